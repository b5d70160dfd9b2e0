/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Adam and AdamW, with moments in f32, bf16 or eight bits. */
#include "nn/optim/adam.h"

#include "nn/optim/optimizer-private.h"
#include "tensor/autograd/parameter-owner-private.h"
#include "tensor/error-private.h"
#include "tensor/ops/pointwise.h"

#include <math.h>
#include <string.h>

/* Kingma and Ba, "Adam: a method for stochastic optimization" (2015), and Loshchilov and Hutter, "Decoupled weight
 * decay regularization" (2019), algorithm 2, in PyTorch's order of operations:
 *   Adam:  g += weight_decay * w
 *   AdamW: w -= lr * weight_decay * w
 *   m = beta1 * m + (1 - beta1) * g,  v = beta2 * v + (1 - beta2) * g^2
 *   w -= lr / (1 - beta1^t) * m / (sqrt (v) / sqrt (1 - beta2^t) + eps) */

typedef struct
{
  double beta1, beta2, eps;
  EbbMomentFormat moment_format;
} EbbAdamPrivate;

enum
{
  EXP_AVG,
  EXP_AVG_SQ,
  EXP_AVG_ABSMAX,
  EXP_AVG_SQ_ABSMAX,
};

/* Parameters with fewer elements keep 32 bits where the others have 8: they are biases and norms, which are sensitive
 * and together next to nothing (as in bitsandbytes). The full parameter counts, so that all ranks which hold parts of a
 * parameter choose the same format. */
#define MIN_8BIT_ELEMENTS 4096

#define ROUNDING_SEED G_GUINT64_CONSTANT (0x6d6f6d656e747321)

G_DEFINE_TYPE_WITH_PRIVATE (EbbAdam, ebb_adam, EBB_TYPE_OPTIMIZER)

G_DEFINE_ENUM_TYPE (EbbMomentFormat,
                    ebb_moment_format,
                    G_DEFINE_ENUM_VALUE (EBB_MOMENT_FORMAT_F32, "f32"),
                    G_DEFINE_ENUM_VALUE (EBB_MOMENT_FORMAT_BF16, "bf16"),
                    G_DEFINE_ENUM_VALUE (EBB_MOMENT_FORMAT_EIGHT_BIT, "eight-bit"))

/* -- formats ------------------------------------------------------------------------------------------------------- */

static EbbDType
get_moment_dtype (EbbAdam *self,
                  EbbTensor *parameter)
{
  switch (((EbbAdamPrivate *) ebb_adam_get_instance_private (self))->moment_format)
    {
    case EBB_MOMENT_FORMAT_BF16:
      return EBB_DTYPE_BF16;
    case EBB_MOMENT_FORMAT_EIGHT_BIT:
      return ebb_parameter_get_n_elements (parameter) < MIN_8BIT_ELEMENTS ? EBB_DTYPE_F32 : EBB_DTYPE_U8;
    default:
      return EBB_DTYPE_F32;
    }
}

static gint64
count_blocks (EbbTensor *parameter)
{
  return (parameter->n_elements + EBB_MOMENT_BLOCK - 1) / EBB_MOMENT_BLOCK;
}

static gboolean
launch_conversion (EbbKernel kernel,
                   guint moment,
                   EbbTensor *wide,
                   EbbTensor *codes,
                   EbbTensor *absmax,
                   GError **error)
{
  const EbbKernelParams params = { .moment = { .is_signed = moment == EXP_AVG } };

  return kernel == EBB_KERNEL_MOMENT_ENCODE ? EBB_LAUNCH (kernel, &params, 1, error, wide, codes, absmax)
                                            : EBB_LAUNCH (kernel, &params, 2, error, codes, absmax, wide);
}

/* A moment of any format in f32. */
static EbbTensor *
widen (guint moment,
       EbbTensor *state,
       EbbTensor *absmax,
       GError **error)
{
  EbbTensor *wide;

  if (state->view.dtype != EBB_DTYPE_U8)
    return ebb_cast (state, EBB_DTYPE_F32, error);
  wide = ebb_tensor_new_uninitialized (state->view.shape, (guint) state->view.n_dims, EBB_DTYPE_F32,
                                       state->storage->device, error);
  if (wide != NULL && !launch_conversion (EBB_KERNEL_MOMENT_DECODE, moment, wide, state, absmax, error))
    g_clear_pointer (&wide, ebb_tensor_unref);
  return wide;
}

/* Makes the states of one moment zeros of @dtype. */
static gboolean
ensure_moment (EbbTensor *parameter,
               EbbDType dtype,
               EbbTensor **state,
               EbbTensor **absmax,
               GError **error)
{
  EbbDevice *device = parameter->storage->device;
  gint64 n_blocks = count_blocks (parameter);

  return ebb_optimizer_ensure_state (state, parameter->view.shape, (guint) parameter->view.n_dims, dtype, device, error)
         && (dtype != EBB_DTYPE_U8 || ebb_optimizer_ensure_state (absmax, &n_blocks, 1, EBB_DTYPE_F32, device, error));
}

static gboolean
convert_moment (EbbTensor *parameter,
                guint moment,
                EbbDType dtype,
                EbbTensor **state,
                EbbTensor **absmax,
                GError **error)
{
  g_autoptr (EbbTensor) wide = widen (moment, *state, *absmax, error);
  g_autoptr (EbbTensor) new_state = NULL;
  g_autoptr (EbbTensor) new_absmax = NULL;

  if (wide == NULL)
    return FALSE;
  if (dtype == EBB_DTYPE_U8)
    {
      if (!ensure_moment (parameter, dtype, &new_state, &new_absmax, error)
          || !launch_conversion (EBB_KERNEL_MOMENT_ENCODE, moment, wide, new_state, new_absmax, error))
        return FALSE;
    }
  else
    {
      new_state = ebb_cast (wide, dtype, error);
      if (new_state == NULL)
        return FALSE;
      ebb_storage_set_purpose (new_state->storage, EBB_PURPOSE_OPTIMIZER);
    }
  /* Only now: a state that can't be converted stays. */
  g_clear_pointer (state, ebb_tensor_unref);
  g_clear_pointer (absmax, ebb_tensor_unref);
  *state = g_steal_pointer (&new_state);
  *absmax = g_steal_pointer (&new_absmax);
  return TRUE;
}

static gboolean
prepare_states (EbbOptimizer *optimizer,
                EbbTensor *parameter,
                EbbTensor **states,
                GError **error)
{
  EbbDType dtype = get_moment_dtype (EBB_ADAM (optimizer), parameter);

  for (guint moment = EXP_AVG; moment <= EXP_AVG_SQ; moment++)
    {
      EbbTensor **state = &states[moment], **absmax = &states[EXP_AVG_ABSMAX + moment];

      if (*state != NULL && (*state)->view.dtype != dtype
          && !convert_moment (parameter, moment, dtype, state, absmax, error))
        return FALSE;
      if (!ensure_moment (parameter, dtype, state, absmax, error))
        return FALSE;
    }
  return TRUE;
}

static void
describe_state (guint state,
                EbbTensor *parameter,
                EbbOptimizerLayout *layout)
{
  if (state == EXP_AVG || state == EXP_AVG_SQ)
    {
      layout->dtypes |= 1u << EBB_DTYPE_BF16 | 1u << EBB_DTYPE_U8;
      return;
    }
  layout->per_block = TRUE;
  layout->n_dims = 1;
  layout->shape[0] = count_blocks (parameter);
}

static gboolean
check_states (const char *name,
              EbbTensor **states,
              GError **error)
{
  if ((states[EXP_AVG] != NULL) != (states[EXP_AVG_SQ] != NULL))
    return ebb_fail (error, EBB_ERROR_STATE, "the optimizer's state of %s has no %s", name,
                     states[EXP_AVG] == NULL ? "exp_avg" : "exp_avg_sq");
  for (guint moment = EXP_AVG; moment <= EXP_AVG_SQ; moment++)
    {
      EbbTensor *state = states[moment];
      gboolean is_8bit = state != NULL && state->view.dtype == EBB_DTYPE_U8;

      if (is_8bit == (states[EXP_AVG_ABSMAX + moment] != NULL))
        continue;
      return ebb_fail (error, EBB_ERROR_STATE,
                       "the optimizer's state of %s has %s: 8-bit moments and their absmax come together", name,
                       is_8bit ? "8-bit moments without their absmax" : "an absmax without 8-bit moments");
    }
  return TRUE;
}

/* -- updating ------------------------------------------------------------------------------------------------------ */

/* The parameters of the launch that moves @update: launches with the same ones are one. */
static void
get_params (EbbAdamPrivate *self,
            const EbbOptimizerUpdate *update,
            gboolean decoupled,
            EbbKernelParams *params)
{
  const EbbDType moment_dtype = update->states[EXP_AVG]->view.dtype;

  memset (params, 0, sizeof *params);
  params->adamw.lr = update->lr;
  params->adamw.beta1 = self->beta1;
  params->adamw.beta2 = self->beta2;
  params->adamw.eps = self->eps;
  params->adamw.weight_decay = decoupled ? update->weight_decay : 0;
  params->adamw.l2 = decoupled ? 0 : update->weight_decay;
  params->adamw.grad_scale = update->grad_scale;
  params->adamw.step = update->step;
  params->adamw.grad_dtype = update->grad->view.dtype;
  params->adamw.dtype = update->target->view.dtype;
  params->adamw.moment_dtype = moment_dtype;
  if (moment_dtype == EBB_DTYPE_BF16)
    params->adamw.philox = (EbbPhilox){ ROUNDING_SEED, (guint64) update->step << EBB_OPTIMIZER_STEP_SHIFT };
  params->adamw.rounds_at_random = update->rounds_at_random;
  if (update->rounds_at_random)
    params->adamw.rounding = ebb_optimizer_get_rounding (update);
}

static EbbLaunchItem
get_item (const EbbOptimizerUpdate *update)
{
  EbbTensor *const tensors[EBB_LAUNCH_ITEM_DATA] = { update->grad,
                                                     update->target,
                                                     update->states[EXP_AVG],
                                                     update->states[EXP_AVG_SQ],
                                                     update->states[EXP_AVG_ABSMAX],
                                                     update->states[EXP_AVG_SQ_ABSMAX] };
  EbbLaunchItem item = { .n_elements = update->target->n_elements,
                         .first_element = update->first_element,
                         .philox_seed = update->philox_seed };

  for (guint k = 0; k < EBB_LAUNCH_ITEM_DATA; k++)
    if (tensors[k] != NULL)
      item.data[k] = tensors[k]->view.data;
  return item;
}

/* What a node has saved of them it must not find changed. */
static void
note_changes (const EbbOptimizerUpdate *update)
{
  ebb_storage_change (update->target->storage);
  for (guint i = EXP_AVG; i <= EXP_AVG_SQ_ABSMAX; i++)
    if (update->states[i] != NULL)
      ebb_storage_change (update->states[i]->storage);
}

/* Moves @updates[first] and all later ones that the same launch can move; these are marked as @done. */
static gboolean
move_together (EbbAdamPrivate *self,
               const EbbOptimizerUpdate *updates,
               guint n,
               guint first,
               gboolean decoupled,
               gboolean *done,
               GError **error)
{
  EbbDevice *device = EBB_DEVICE_OF (updates[first].target);
  g_autofree EbbLaunchItem *items = g_new (EbbLaunchItem, n - first);
  EbbLaunch launch;
  EbbKernelParams params;

  ebb_launch_init (&launch, EBB_KERNEL_ADAMW);
  get_params (self, &updates[first], decoupled, &launch.params);
  for (guint i = first; i < n; i++)
    {
      if (done[i] || EBB_DEVICE_OF (updates[i].target) != device)
        continue;
      get_params (self, &updates[i], decoupled, &params);
      if (memcmp (&params, &launch.params, sizeof params) != 0)
        continue;
      done[i] = TRUE;
      if (updates[i].target->n_elements == 0)
        continue;
      items[launch.n_items++] = get_item (&updates[i]);
      note_changes (&updates[i]);
    }
  ebb_launch_input (&launch, updates[first].grad_factor);
  launch.items = items;
  return ebb_launch (device, &launch, error);
}

static gboolean
update_all (EbbOptimizer *optimizer,
            const EbbOptimizerUpdate *updates,
            guint n,
            gboolean decoupled,
            GError **error)
{
  EbbAdamPrivate *self = ebb_adam_get_instance_private (EBB_ADAM (optimizer));
  g_autofree gboolean *done = g_new0 (gboolean, n);

  for (guint i = 0; i < n; i++)
    if (!done[i] && !move_together (self, updates, n, i, decoupled, done, error))
      return FALSE;
  return TRUE;
}

static gboolean
update_with_l2 (EbbOptimizer *optimizer,
                const EbbOptimizerUpdate *updates,
                guint n,
                GError **error)
{
  return update_all (optimizer, updates, n, FALSE, error);
}

static gboolean
update_decoupled (EbbOptimizer *optimizer,
                  const EbbOptimizerUpdate *updates,
                  guint n,
                  GError **error)
{
  return update_all (optimizer, updates, n, TRUE, error);
}

#define ADAM_KIND(kind_name, update_func)                                              \
  {                                                                                    \
    .name = kind_name,                                                                 \
    .state_names = { "exp_avg", "exp_avg_sq", "exp_avg_absmax", "exp_avg_sq_absmax" }, \
    .options = { { "beta1", 1 }, { "beta2", 1 }, { "eps", INFINITY } },                \
    .prepare = prepare_states, .describe = describe_state, .check = check_states,      \
    .update = update_func, .move = ebb_optimizer_move_parameter                        \
  }
static const EbbOptimizerKind adam_kind = ADAM_KIND ("adam", update_with_l2);
static const EbbOptimizerKind adamw_kind = ADAM_KIND ("adamw", update_decoupled);

static void
ebb_adam_class_init (EbbAdamClass *klass)
{
  GObjectClass *object_class = G_OBJECT_CLASS (klass);
  const GParamFlags flags = G_PARAM_READWRITE | G_PARAM_CONSTRUCT | G_PARAM_STATIC_STRINGS;

  object_class->get_property = ebb_property_get_field;
  object_class->set_property = ebb_optimizer_set_property;
  EBB_OPTIMIZER_CLASS (klass)->kind = &adam_kind;
  EBB_OPTIMIZER_CLASS (klass)->step = ebb_optimizer_move_all;

  /**
   * EbbAdam:beta1:
   *
   * How much of the mean of gradients stays from step to step.
   */
  g_object_class_install_property (object_class, G_PRIVATE_OFFSET (EbbAdam, beta1),
                                   ebb_optimizer_option_spec ("beta1", 0.9, G_PARAM_CONSTRUCT));
  /**
   * EbbAdam:beta2:
   *
   * How much of the mean of squared gradients stays from step to step.
   */
  g_object_class_install_property (object_class, G_PRIVATE_OFFSET (EbbAdam, beta2),
                                   ebb_optimizer_option_spec ("beta2", 0.999, G_PARAM_CONSTRUCT));
  /**
   * EbbAdam:eps:
   *
   * The number that is added to the root of the mean square.
   */
  g_object_class_install_property (object_class, G_PRIVATE_OFFSET (EbbAdam, eps),
                                   ebb_optimizer_option_spec ("eps", 1e-8, G_PARAM_CONSTRUCT));
  /**
   * EbbAdam:moment-format:
   *
   * How both moments are kept: in 8 bytes a parameter, in 4 or in about 2. The update itself is computed in f32 from
   * the moments before they are rounded. It may be set at any time; a state that is there, or is loaded later, is
   * converted by the next step.
   */
  g_object_class_install_property (object_class, G_PRIVATE_OFFSET (EbbAdam, moment_format),
                                   g_param_spec_enum ("moment-format", NULL, NULL, EBB_TYPE_MOMENT_FORMAT,
                                                      EBB_MOMENT_FORMAT_F32, flags));
}

static void
ebb_adam_init (EbbAdam *self)
{
}

/**
 * ebb_adam_new:
 * @module: the module whose parameters are to be moved
 * @lr: the learning rate, 0 or more
 * @error: return location for an error
 *
 * Makes Adam (Kingma and Ba, 2015): betas 0.9 and 0.999, epsilon 1e-8. #EbbOptimizer:weight-decay, 0 here, is L2 decay:
 * it is added to the gradient, times the parameter, before the moments; #EbbAdamW has it apart from them. State: two
 * f32 tensors of each parameter's shape, or less (see #EbbAdam:moment-format), and another f32 one where the
 * parameter is bf16 or f16 (see #EbbOptimizer:weight-rounding); all are made at the first step.
 *
 * Returns: (transfer full) (nullable): the optimizer; %NULL with %EBB_ERROR_INVALID_ARGUMENT
 */
EbbOptimizer *
ebb_adam_new (EbbModule *module,
              double lr,
              GError **error)
{
  return ebb_optimizer_make (EBB_TYPE_ADAM, module, lr, error);
}

/**
 * ebb_adam_new_for_parameters:
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
ebb_adam_new_for_parameters (EbbTensor **parameters,
                             guint n_parameters,
                             double lr,
                             GError **error)
{
  return ebb_optimizer_make_for_parameters (EBB_TYPE_ADAM, parameters, n_parameters, lr, error);
}

/* -- Adam with decoupled weight decay ------------------------------------------------------------------------------ */

struct _EbbAdamW
{
  EbbAdam parent_instance;
};

G_DEFINE_FINAL_TYPE (EbbAdamW, ebb_adamw, EBB_TYPE_ADAM)

static void
ebb_adamw_class_init (EbbAdamWClass *klass)
{
  EBB_OPTIMIZER_CLASS (klass)->kind = &adamw_kind;
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
 * less (see #EbbAdam:moment-format), and another f32 one where the parameter is bf16 or f16 (see
 * #EbbOptimizer:weight-rounding); all are made at the first step.
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
