/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "options.h"

/* One table of all options, which the parser, --help, the checks of single values, the JSON of reports and the state of
 * a resumed training read. A number has a mark that is out of range until it is given; then defaults are filled in. */

G_BEGIN_DECLS

void option_table_init (Options *self);
void option_table_clear (Options *self);
/* The options of @self's program, in groups. */
void option_table_add_groups (Options *self,
                              GOptionContext *context);
/* After the command line was read: notes which options were given, and gives the others their defaults. */
void option_table_fill (Options *self);
gboolean option_table_was_given (const Options *self,
                                 gsize place);
#define OPTION_WAS_GIVEN(self, member) option_table_was_given ((self), G_STRUCT_OFFSET (Options, member))
/* Checks each value by itself: ranges, names, and files without a name. */
gboolean option_table_check (const Options *self,
                             GError **error);
/* Which of its names the value of an option is. */
guint option_table_get_choice (const Options *self,
                               gsize place);
#define OPTION_CHOICE(self, member) option_table_get_choice ((self), G_STRUCT_OFFSET (Options, member))

/* Adds a member for each option as it took effect. */
void option_table_add_json (const Options *self,
                            JsonBuilder *builder);
/* Parses @saved as a JSON object; NULL if it is not one, or not one that these programs saved. */
JsonNode *option_table_parse_json (const char *saved);
/* Gives the options that change what is computed, and that were not given, the values in @saved. */
gboolean option_table_take_json (Options *self,
                                 const char *saved,
                                 GError **error);

G_END_DECLS
