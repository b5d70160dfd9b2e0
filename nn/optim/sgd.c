/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Stochastic gradient descent, with momentum, dampening and weight decay. */
#include "nn/optim/sgd.h"

#include "nn/optim/optimizer-private.h"

#include <math.h>

/* As in PyTorch: g += weight_decay * w; b = momentum * b + (1 - dampening) * g, b = g at first;
 * w -= lr * (nesterov ? g + momentum * b : b). Nesterov's form after Sutskever et al., "On the importance of
 * initialization and momentum in deep learning" (2013). */

struct _EbbSgd
{
  EbbOptimizer parent_instance;

  double momentum, dampening;
  gboolean nesterov;
};

G_DEFINE_FINAL_TYPE (EbbSgd, ebb_sgd, EBB_TYPE_OPTIMIZER)

static gboolean
prepare_states (EbbOptimizer *optimizer,
                EbbTensor *parameter,
                EbbTensor **states,
                GError **error)
{
  return EBB_SGD (optimizer)->momentum == 0
         || ebb_optimizer_ensure_state (&states[0], parameter->view.shape, (guint) parameter->view.n_dims,
                                        EBB_DTYPE_F32, parameter->storage->device, error);
}

static gboolean
update_parameter (EbbOptimizer *optimizer,
                  const EbbOptimizerUpdate *update,
                  GError **error)
{
  EbbSgd *self = EBB_SGD (optimizer);
  EbbKernelParams params = { .sgd = { .lr = update->lr,
                                      .momentum = self->momentum,
                                      .weight_decay = update->weight_decay,
                                      .dampening = self->dampening,
                                      .grad_scale = update->grad_scale,
                                      .nesterov = self->nesterov && self->momentum != 0,
                                      .first = update->step == 1 } };

  if (update->rounds_at_random)
    {
      params.sgd.rounds_at_random = TRUE;
      params.sgd.rounding = ebb_optimizer_get_rounding (update);
      params.sgd.rounding.seed ^= update->philox_seed;
      params.sgd.first_element = update->first_element;
    }
  return EBB_LAUNCH (EBB_KERNEL_SGD, &params, 2, error, update->grad_factor, update->grad, update->target,
                     self->momentum != 0 ? update->states[0] : NULL);
}

static gboolean
update_all (EbbOptimizer *optimizer,
            const EbbOptimizerUpdate *updates,
            guint n,
            GError **error)
{
  for (guint i = 0; i < n; i++)
    if (!update_parameter (optimizer, &updates[i], error))
      return FALSE;
  return TRUE;
}

static const EbbOptimizerKind sgd_kind = {
  .name = "sgd",
  .state_names = { "momentum" },
  .options = { { "momentum", INFINITY }, { "dampening", INFINITY }, { "nesterov", 0 } },
  .prepare = prepare_states,
  .update = update_all,
  .move = ebb_optimizer_move_parameter,
};

static void
ebb_sgd_class_init (EbbSgdClass *klass)
{
  GObjectClass *object_class = G_OBJECT_CLASS (klass);
  const GParamFlags flags = G_PARAM_READWRITE | G_PARAM_CONSTRUCT | G_PARAM_STATIC_STRINGS;

  object_class->get_property = ebb_property_get_field;
  object_class->set_property = ebb_optimizer_set_property;
  EBB_OPTIMIZER_CLASS (klass)->kind = &sgd_kind;
  EBB_OPTIMIZER_CLASS (klass)->step = ebb_optimizer_move_all;

  /**
   * EbbSgd:momentum:
   *
   * How much of the direction stays from step to step; 0: no momentum, and no state.
   */
  g_object_class_install_property (object_class, offsetof (EbbSgd, momentum),
                                   ebb_optimizer_option_spec ("momentum", 0, G_PARAM_CONSTRUCT));
  /**
   * EbbSgd:dampening:
   *
   * How much of each gradient is kept out of the momentum.
   */
  g_object_class_install_property (object_class, offsetof (EbbSgd, dampening),
                                   ebb_optimizer_option_spec ("dampening", 0, G_PARAM_CONSTRUCT));
  /**
   * EbbSgd:nesterov:
   *
   * Whether the momentum is Nesterov's.
   */
  g_object_class_install_property (object_class, offsetof (EbbSgd, nesterov),
                                   g_param_spec_boolean ("nesterov", NULL, NULL, FALSE, flags));
}

static void
ebb_sgd_init (EbbSgd *self)
{
}

/**
 * ebb_sgd_new:
 * @module: the module whose parameters are to be moved
 * @lr: the learning rate, 0 or more
 * @error: return location for an error
 *
 * Makes plain stochastic gradient descent; see #EbbSgd:momentum, #EbbSgd:nesterov and #EbbOptimizer:weight-decay (0
 * here, added to the gradient) for more. State: with momentum, one f32 tensor of each parameter's shape.
 *
 * Returns: (transfer full) (nullable): the optimizer; %NULL with %EBB_ERROR_INVALID_ARGUMENT
 */
EbbOptimizer *
ebb_sgd_new (EbbModule *module,
             double lr,
             GError **error)
{
  return ebb_optimizer_make (EBB_TYPE_SGD, module, lr, error);
}

/**
 * ebb_sgd_new_for_parameters:
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
ebb_sgd_new_for_parameters (EbbTensor **parameters,
                            guint n_parameters,
                            double lr,
                            GError **error)
{
  return ebb_optimizer_make_for_parameters (EBB_TYPE_SGD, parameters, n_parameters, lr, error);
}
