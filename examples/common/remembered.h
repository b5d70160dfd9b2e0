/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "options.h"

/* Options that change what is computed: a training that is resumed keeps its own unless the command line has others. */

G_BEGIN_DECLS

/* Marks them as not given. */
void remembered_init (Options *self);
/* After the command line was read: notes which were given, and gives the others their defaults. */
void remembered_fill (Options *self);
gboolean remembered_was_dropout_given (const Options *self);
/* Parses @saved as a JSON object; NULL if it is not one, or not one that these programs saved. */
JsonNode *remembered_parse (const char *saved);
/* Gives those that were not given the values in @saved, the options as JSON. */
gboolean remembered_take (Options *self,
                          const char *saved,
                          GError **error);
/* After that: an option of the command line switches off what was saved and contradicts it. */
void remembered_settle (Options *self);

G_END_DECLS
