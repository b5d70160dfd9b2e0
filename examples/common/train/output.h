/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "common/options/options.h"

/* Checks before the training that files can be written; finds states; prints errors. */

G_BEGIN_DECLS

typedef enum
{
  FOUND_WHOLE = 1 << 0,      /* the state of one rank alone */
  FOUND_PARTS = 1 << 1,      /* a part from each of many ranks */
  FOUND_INDEX = 1 << 2,      /* which parts belong together */
  FOUND_UNFINISHED = 1 << 3, /* an index that a save has begun */
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
/* Removes the states of one rank alone, after ranks have resumed from them and saved their own. */
void output_remove_whole_states (const char *folder);
/* Prints an error as one line. */
void output_print_error (const char *message);
/* Holds the library's messages back, so that a failure stays one line. */
void output_init (void);
/* Prints the last message that was held back. */
void output_print_message (void);

G_END_DECLS
