/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "common/options/options.h"

/* Activation checkpointing of the model, and an estimate of what it saves. */

G_BEGIN_DECLS

/* Wraps the blocks as --checkpoint and --store ask for. */
gboolean wrapping_apply (EbbModule *model,
                         const Options *options,
                         EbbSavedTensorHooks *store,
                         GError **error);
/* How many forwards of blocks were recomputed. */
guint64 wrapping_count_recomputes (EbbModule *model);
/* Bytes of activations that @n_rows of text would save without checkpointing, extrapolated from two short texts. 0 if
 * that is unknown. Changes only counters. */
double wrapping_estimate_plain (EbbModule *model,
                                const Options *options,
                                gint64 n_rows,
                                EbbDevice *device);

G_END_DECLS
