/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "wrap/checkpoint/options.h"

G_BEGIN_DECLS

/* Where inputs are held: the store, or host memory if that was asked for; NULL: where they are. */
EbbSavedTensorHooks *ebb_checkpoint_options_get_effective_store (EbbCheckpointOptions *self);
/* Tells the callback, if there is one. */
gboolean ebb_checkpoint_options_announce (EbbCheckpointOptions *self,
                                          EbbModule *module,
                                          EbbRecomputePhase phase,
                                          GError **error);

/* What was profiled with these options, of whatever modules and functions. */
typedef struct
{
  guint64 n_forwards, n_backwards;
  guint64 forward_us, backward_us;
} EbbCheckpointTimes;

EbbCheckpointTimes *ebb_checkpoint_options_get_times (EbbCheckpointOptions *self);

G_END_DECLS
