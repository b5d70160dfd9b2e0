/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#if !defined(EBB_INSIDE) && !defined(EBB_COMPILATION)
#error "Only <ebb/ebb.h> can be included directly."
#endif

#include "nn/module.h"
#include "tensor/autograd/saved-tensor.h"
#include "wrap/checkpoint/policy.h"

G_BEGIN_DECLS

/**
 * EbbRecomputePhase:
 * @EBB_RECOMPUTE_BEGIN: a recompute is about to begin
 * @EBB_RECOMPUTE_END: it is over, however it went
 *
 * When an #EbbRecomputeFunc is called.
 */
typedef enum
{
  EBB_RECOMPUTE_BEGIN,
  EBB_RECOMPUTE_END
} EbbRecomputePhase;

/**
 * EbbRecomputeFunc:
 * @module: (nullable): the module whose forward is run again; %NULL for a function
 * @phase: before or after
 * @user_data: user data
 * @error: return location for an error
 *
 * Called before and after each recompute, inside the backward pass, with gradients off.
 *
 * Returns: %FALSE with @error set to make the backward pass fail
 */
typedef gboolean (*EbbRecomputeFunc) (EbbModule *module,
                                      EbbRecomputePhase phase,
                                      gpointer user_data,
                                      GError **error);

/**
 * EbbDeterminismCheck:
 * @EBB_DETERMINISM_CHECK_NONE: only what backward must rely on: as many tensors as the forward saved, of the same
 *   shapes, types and devices, and that nothing that was saved was changed in place
 * @EBB_DETERMINISM_CHECK_DEFAULT: also that each was saved by the same op with the same strides, and that nothing that
 *   the forward read from outside (arguments, parameters, buffers, other tensors) was changed in place since
 * @EBB_DETERMINISM_CHECK_VALUES: also a 64-bit checksum of every saved tensor, of every argument, and of every result
 *   that backward makes again instead of saving it
 *
 * How a recompute is compared with the forward that it repeats.
 */
typedef enum
{
  EBB_DETERMINISM_CHECK_NONE,
  EBB_DETERMINISM_CHECK_DEFAULT,
  EBB_DETERMINISM_CHECK_VALUES
} EbbDeterminismCheck;

#define EBB_TYPE_DETERMINISM_CHECK (ebb_determinism_check_get_type ())

EBB_AVAILABLE_IN_ALL
GType ebb_determinism_check_get_type (void);

#define EBB_TYPE_CHECKPOINT_OPTIONS (ebb_checkpoint_options_get_type ())

EBB_AVAILABLE_IN_ALL
G_DECLARE_FINAL_TYPE (EbbCheckpointOptions, ebb_checkpoint_options, EBB, CHECKPOINT_OPTIONS, GObject)

EBB_AVAILABLE_IN_ALL
EbbCheckpointOptions *ebb_checkpoint_options_new (void);

EBB_AVAILABLE_IN_ALL
EbbCheckpointOptions *ebb_checkpoint_options_new_selective (void);

EBB_AVAILABLE_IN_ALL
EbbSavedTensorHooks *ebb_checkpoint_options_get_store (EbbCheckpointOptions *self);

EBB_AVAILABLE_IN_ALL
void ebb_checkpoint_options_set_store (EbbCheckpointOptions *self,
                                       EbbSavedTensorHooks *store);

EBB_AVAILABLE_IN_ALL
void ebb_checkpoint_options_set_recompute_func (EbbCheckpointOptions *self,
                                                EbbRecomputeFunc func,
                                                gpointer user_data,
                                                GDestroyNotify destroy);

EBB_AVAILABLE_IN_ALL
void ebb_checkpoint_options_set_policy (EbbCheckpointOptions *self,
                                        EbbCheckpointPolicyFunc policy,
                                        gpointer user_data,
                                        GDestroyNotify destroy);

EBB_AVAILABLE_IN_ALL
void ebb_checkpoint_options_set_policy_selective (EbbCheckpointOptions *self);

EBB_AVAILABLE_IN_ALL
void ebb_checkpoint_options_set_policy_core_attention (EbbCheckpointOptions *self);

EBB_AVAILABLE_IN_ALL
gboolean ebb_checkpoint_options_set_policy_save_ops (EbbCheckpointOptions *self,
                                                     const char *const *ops,
                                                     GError **error);

EBB_AVAILABLE_IN_ALL
gboolean ebb_checkpoint_options_set_policy_save_nth_product (EbbCheckpointOptions *self,
                                                             guint n,
                                                             GError **error);

G_END_DECLS
