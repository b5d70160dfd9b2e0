/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "common/options/options.h"

/* The options of a program that tunes a folder's model: its adapter, and defaults that depend on others. */

G_BEGIN_DECLS

/* After the command line was read: gives options that it left out the defaults that others decide. */
void tuning_options_fill (Options *self);
/* Has --save take the best weights where there is --eval, of the command line or of a resumed training. */
void tuning_options_keep_best (Options *self);
/* How a training that is resumed was said to end: by its steps, if @saved, its options, has none by epochs. */
void tuning_options_take_saved (Options *self,
                                const char *saved);
/* Checks which options go together. */
gboolean tuning_options_check (const Options *self,
                               GError **error);
/* Once the data is open, which has @n_rows rows, and the options of a resumed training are known: steps, and the warmup
 * unless @is_resumed. */
void tuning_options_set_steps (Options *self,
                               gint64 n_rows,
                               gboolean is_resumed);

G_END_DECLS
