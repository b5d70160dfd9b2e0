/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "wrap/checkpoint/policy-private.h"

G_BEGIN_DECLS

/* Is called at recomputes. A caller holds it meanwhile, since the function may replace it. */
typedef struct
{
  EbbRecomputeFunc func;
  gpointer data;
  GDestroyNotify destroy;
} EbbRecomputeListener;

/* The times of all modules and functions that run with these options. */
typedef struct
{
  guint64 n_forwards, n_backwards;
  guint64 forward_us, backward_us;
} EbbCheckpointTimes;

struct _EbbCheckpointOptions
{
  GObject parent_instance;

  gboolean offload_to_cpu;
  gboolean preserve_rng_state;
  EbbDeterminismCheck determinism_check;
  gboolean early_stop;
  EbbSavedTensorHooks *store;
  gboolean retain_recomputed;
  gboolean synchronize;
  gboolean profile;
  gboolean is_planned; /* what it frees was weighed: nothing is said if that is little */
  EbbCheckpointTimes times;
  EbbRecomputeListener *listener; /* NULL: none */
  EbbPolicy *policy;              /* NULL: everything is recomputed */
};

/* The store that holds inputs: the one that is set, or host memory if that was asked for; NULL: they stay where they
 * are. */
EbbSavedTensorHooks *ebb_checkpoint_options_get_effective_store (EbbCheckpointOptions *self);
/* Calls the recompute function, if there is one. */
gboolean ebb_checkpoint_options_announce (EbbCheckpointOptions *self,
                                          EbbModule *module,
                                          EbbRecomputePhase phase,
                                          GError **error);

G_END_DECLS
