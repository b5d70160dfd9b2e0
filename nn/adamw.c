/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "nn/adamw.h"

#include "nn/optimizer-private.h"

/* Loshchilov and Hutter, "Decoupled weight decay regularization" (2019), algorithm 2, in PyTorch's order of operations:
 *   w -= lr * weight_decay * w
 *   m = beta1 * m + (1 - beta1) * g,  v = beta2 * v + (1 - beta2) * g^2
 *   w -= lr / (1 - beta1^t) * m / (sqrt (v) / sqrt (1 - beta2^t) + eps) */

struct _EbbAdamW
{
  EbbOptimizer parent_instance;

  double beta1, beta2, eps;
};

enum
{
  PROP_BETA1 = 1,
  PROP_BETA2,
  PROP_EPS,
};

G_DEFINE_FINAL_TYPE (EbbAdamW, ebb_adamw, EBB_TYPE_OPTIMIZER)

static guint
count_states (EbbOptimizer *optimizer)
{
  return 2;
}

static gboolean
update_parameter (EbbOptimizer *optimizer,
                  const EbbOptimizerUpdate *update,
                  GError **error)
{
  EbbAdamW *self = EBB_ADAMW (optimizer);
  EbbLaunch launch;

  ebb_launch_init (&launch, EBB_KERNEL_ADAMW);
  ebb_launch_input (&launch, update->grad);
  ebb_launch_output (&launch, update->target);
  ebb_launch_output (&launch, update->states[0]);
  ebb_launch_output (&launch, update->states[1]);
  launch.params.adamw.lr = update->lr;
  launch.params.adamw.beta1 = self->beta1;
  launch.params.adamw.beta2 = self->beta2;
  launch.params.adamw.eps = self->eps;
  launch.params.adamw.weight_decay = update->weight_decay;
  launch.params.adamw.grad_scale = update->grad_scale;
  launch.params.adamw.step = update->step;
  return ebb_launch (update->target->storage->device, &launch, error);
}

static const EbbOptimizerKind adamw_kind = {
  .name = "adamw",
  .state_names = { "exp_avg", "exp_avg_sq" },
  .option_names = { "beta1", "beta2", "eps" },
  .count_states = count_states,
  .update = update_parameter,
};

static void
ebb_adamw_get_property (GObject *object,
                        guint id,
                        GValue *value,
                        GParamSpec *pspec)
{
  EbbAdamW *self = EBB_ADAMW (object);

  switch (id)
    {
    case PROP_BETA1:
      g_value_set_double (value, self->beta1);
      break;
    case PROP_BETA2:
      g_value_set_double (value, self->beta2);
      break;
    case PROP_EPS:
      g_value_set_double (value, self->eps);
      break;
    default:
      G_OBJECT_WARN_INVALID_PROPERTY_ID (object, id, pspec);
    }
}

static void
ebb_adamw_set_property (GObject *object,
                        guint id,
                        const GValue *value,
                        GParamSpec *pspec)
{
  EbbAdamW *self = EBB_ADAMW (object);

  switch (id)
    {
    case PROP_BETA1:
      self->beta1 = g_value_get_double (value);
      break;
    case PROP_BETA2:
      self->beta2 = g_value_get_double (value);
      break;
    case PROP_EPS:
      self->eps = g_value_get_double (value);
      break;
    default:
      G_OBJECT_WARN_INVALID_PROPERTY_ID (object, id, pspec);
    }
}

static void
ebb_adamw_class_init (EbbAdamWClass *klass)
{
  GObjectClass *object_class = G_OBJECT_CLASS (klass);
  const GParamFlags flags = G_PARAM_READWRITE | G_PARAM_CONSTRUCT | G_PARAM_STATIC_STRINGS;

  object_class->get_property = ebb_adamw_get_property;
  object_class->set_property = ebb_adamw_set_property;
  EBB_OPTIMIZER_CLASS (klass)->kind = &adamw_kind;

  /**
   * EbbAdamW:beta1:
   *
   * How much of the mean of gradients stays from step to step.
   */
  g_object_class_install_property (object_class, PROP_BETA1,
                                   g_param_spec_double ("beta1", NULL, NULL, 0, 0.9999999, 0.9, flags));
  /**
   * EbbAdamW:beta2:
   *
   * How much of the mean of squared gradients stays from step to step.
   */
  g_object_class_install_property (object_class, PROP_BETA2,
                                   g_param_spec_double ("beta2", NULL, NULL, 0, 0.9999999, 0.999, flags));
  /**
   * EbbAdamW:eps:
   *
   * What is added to the root of the mean square.
   */
  g_object_class_install_property (object_class, PROP_EPS,
                                   g_param_spec_double ("eps", NULL, NULL, 0, G_MAXDOUBLE, 1e-8, flags));
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
 * 0.01 on every parameter; see ebb_optimizer_exclude_from_decay(). State: two f32 tensors of each parameter's shape,
 * and a third where the parameter is bf16 or f16, all made at the first step.
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
