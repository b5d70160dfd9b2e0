/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "tensor/autograd/op-private.h"
#include "wrap/checkpoint/options.h"

G_BEGIN_DECLS

/* What a policy is asked, op by op: whether the results of a checkpointed forward are saved. */
typedef struct
{
  const EbbOpCall *call; /* that has run */
  guint ordinal;         /* ops of this forward before it... */
  guint n_products;      /* and matrix products among them */
  guint64 n_bytes;
} EbbPolicyQuestion;

/* A function that the options call, in an atomic box. A caller holds it meanwhile, since the function may replace it.
 */
typedef struct _EbbOptionsFunc EbbOptionsFunc;

struct _EbbOptionsFunc
{
  GCallback func; /* the user's: EbbRecomputeFunc or EbbCheckpointPolicyFunc; NULL in a ready-made policy */
  EbbCheckpointPolicy (*answer) (const EbbOptionsFunc *self,
                                 const EbbPolicyQuestion *question,
                                 GError **error); /* of a policy */
  gpointer data;
  GDestroyNotify destroy;
};

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
  EbbOptionsFunc *listener; /* NULL: none */
  EbbOptionsFunc *policy;   /* NULL: everything is recomputed */
};

/* The store that holds inputs: the one that is set, or host memory if that was asked for; NULL: they stay where they
 * are. */
EbbSavedTensorHooks *ebb_checkpoint_options_get_effective_store (EbbCheckpointOptions *self);
/* Asks the policy, which is there, and sets @saves to whether the results are saved; FALSE with @error if it fails. */
gboolean ebb_checkpoint_options_ask (EbbCheckpointOptions *self,
                                     const EbbPolicyQuestion *question,
                                     gboolean *saves,
                                     GError **error);
/* Calls the recompute function, if there is one. */
gboolean ebb_checkpoint_options_announce (EbbCheckpointOptions *self,
                                          EbbModule *module,
                                          EbbRecomputePhase phase,
                                          GError **error);

G_END_DECLS
