/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "options.h"

/* What the program writes: whether it can, before hours are spent on it, and how. */

G_BEGIN_DECLS

typedef enum
{
  FOUND_WHOLE = 1 << 0,      /* the state of one rank alone */
  FOUND_PARTS = 1 << 1,      /* what each of many ranks has saved */
  FOUND_INDEX = 1 << 2,      /* which parts belong together */
  FOUND_UNFINISHED = 1 << 3, /* such an index that a save has begun */
} FoundState;

/* Finds out, by trying, whether everything that the options name can be written. */
gboolean output_check (const Options *options,
                       GError **error);
/* Writes all of it or nothing. */
gboolean output_write (const char *path,
                       const char *text,
                       GError **error);
/* Which states of trainings lie in @folder, which may be NULL or not be there: FoundState together. FALSE with an error
 * of
 * --resume if it can't be read to its end: then nobody knows. */
gboolean output_find_state (const char *folder,
                            guint *found,
                            GError **error);
/* Removes those of one rank alone, once ranks have gone on from them and saved theirs. */
void output_remove_whole_states (const char *folder);
/* Prints an error as the one line of a failure. */
void output_print_error (const char *message);
/* Holds the library's messages back, so that a failure stays one line. */
void output_init (void);
/* Prints the last such line. */
void output_print_message (void);

G_END_DECLS
