/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "nn/optim/adamw.h"

#include "nn/optim/adam-private.h"

struct _EbbAdamW
{
  EbbAdam parent_instance;
};

G_DEFINE_FINAL_TYPE (EbbAdamW, ebb_adamw, EBB_TYPE_ADAM)

static void
ebb_adamw_class_init (EbbAdamWClass *klass)
{
  EBB_OPTIMIZER_CLASS (klass)->kind = &ebb_adamw_kind;
}

static void
ebb_adamw_init (EbbAdamW *self)
{
  ebb_optimizer_get_private (EBB_OPTIMIZER (self))->weight_decay = 0.01;
}

/**
 * ebb_adamw_new:
 * @module: the module whose parameters are to be moved
 * @lr: the learning rate, 0 or more
 * @error: return location for an error
 *
 * Makes Adam with decoupled weight decay (Loshchilov and Hutter, 2019): betas 0.9 and 0.999, epsilon 1e-8, weight decay
 * 0.01 on every parameter; see ebb_optimizer_exclude_from_decay(). State: two f32 tensors of each parameter's shape, or
 * less (see ebb_adam_set_moment_format()), and another f32 one where the parameter is bf16 or f16; all are made at the
 * first step.
 *
 * Returns: (transfer full) (nullable): the optimizer; %NULL with %EBB_ERROR_INVALID_ARGUMENT
 */
EbbOptimizer *
ebb_adamw_new (EbbModule *module,
               double lr,
               GError **error)
{
  return ebb_optimizer_make (EBB_TYPE_ADAMW, module, lr, error);
}

/**
 * ebb_adamw_new_for_parameters:
 * @parameters: (array length=n_parameters): leaf tensors of floating-point numbers, as ebb_module_get_parameters()
 * gives
 * @n_parameters: how many there are, at least 1
 * @lr: the learning rate, 0 or more
 * @error: return location for an error
 *
 * Makes the same for chosen tensors; ebb_optimizer_add_parameters() adds groups of others.
 *
 * Returns: (transfer full) (nullable): the optimizer; %NULL with %EBB_ERROR_INVALID_ARGUMENT
 */
EbbOptimizer *
ebb_adamw_new_for_parameters (EbbTensor **parameters,
                              guint n_parameters,
                              double lr,
                              GError **error)
{
  return ebb_optimizer_make_for_parameters (EBB_TYPE_ADAMW, parameters, n_parameters, lr, error);
}
