/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#if !defined(EBB_INSIDE) && !defined(EBB_COMPILATION)
#error "Only <ebb/ebb.h> can be included directly."
#endif

#include "tensor/tensor.h"

G_BEGIN_DECLS

/**
 * EbbCheckpointPolicy:
 * @EBB_CHECKPOINT_POLICY_MUST_SAVE: the op's results are saved from forward to backward, and its kernel does not run
 * again
 * @EBB_CHECKPOINT_POLICY_PREFER_SAVE: saved, unless a budget has no room for them
 * @EBB_CHECKPOINT_POLICY_PREFER_RECOMPUTE: freed, unless a budget has room to spare
 * @EBB_CHECKPOINT_POLICY_MUST_RECOMPUTE: freed; the op runs again in the recompute
 *
 * How a checkpointed forward treats the results of one op. Without a budget, "prefer" is the same as "must".
 *
 * A result that is to be saved is freed all the same if nothing will need it: neither backward, nor an op
 * that runs again, nor code that reads their values in the forward.
 */
typedef enum
{
  EBB_CHECKPOINT_POLICY_MUST_SAVE,
  EBB_CHECKPOINT_POLICY_PREFER_SAVE,
  EBB_CHECKPOINT_POLICY_PREFER_RECOMPUTE,
  EBB_CHECKPOINT_POLICY_MUST_RECOMPUTE
} EbbCheckpointPolicy;

/**
 * EbbCheckpointPolicyFunc:
 * @op: the op's name, as "linear" or "self_attention"; see ebb_op_list_names()
 * @ordinal: how many ops of this forward came before it
 * @n_bytes: the bytes of its results
 * @user_data: user data
 * @error: return location for an error
 *
 * Decides for each op of a checkpointed forward, as soon as it has run; not for views, casts and copies, nor for ops
 * that run with gradients off, none of which count. A recompute does not ask again. A policy that sets @error makes the
 * forward fail with it.
 *
 * Returns: what becomes of the op's results
 */
typedef EbbCheckpointPolicy (*EbbCheckpointPolicyFunc) (const char *op,
                                                        guint ordinal,
                                                        guint64 n_bytes,
                                                        gpointer user_data,
                                                        GError **error);

G_END_DECLS
