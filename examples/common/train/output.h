/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "common/options/options.h"

/* Checks before the training that files can be written; finds states; prints errors. */

G_BEGIN_DECLS

typedef enum
{
  FOUND_STATE = 1 << 0,      /* a state: an index, or a file of version 1.0 that has all */
  FOUND_PARTS = 1 << 1,      /* files that an index should name */
  FOUND_UNFINISHED = 1 << 2, /* an index that a save has begun */
} FoundState;

/* Whether a program that tunes saves elsewhere than in the folder or file of --model. */
gboolean output_check_base (const Options *options,
                            GError **error);
/* Checks that --save and --save-best replace no other model, unless --overwrite is given. @model: with
 * full parameters, or with the adapter that is saved. */
gboolean output_check_replaced (const Options *options,
                                EbbModule *model,
                                GError **error);
/* Tries whether every file that the options name can be written. */
gboolean output_check (const Options *options,
                       GError **error);
/* The FoundState bits of the states in @folder, which may be NULL or missing. FALSE with an error of --resume if it
 * can't be read to its end. */
gboolean output_find_state (const char *folder,
                            guint *found,
                            GError **error);
/* Checks that @folder, which has no state, is not a model's or an adapter's: a new training would begin beside it. */
gboolean output_check_no_model (const char *folder,
                                GError **error);
/* Prints an error as one line. */
void output_print_error (const char *message);
/* Holds the library's messages back, so that a failure stays one line. */
void output_init (void);
/* Prints the last message that was held back. */
void output_print_message (void);

G_END_DECLS
