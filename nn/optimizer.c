/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "nn/optimizer-private.h"

#include "nn/clip-grad-private.h"
#include "tensor/ops/creation.h"
#include "tensor/ops/in-place.h"
#include "tensor/ops/pointwise.h"
#include "tensor/ops/shape.h"
#include "tensor/profiler-private.h"

#include <gio/gio.h>
#include <math.h>
#include <string.h>

enum
{
  PROP_MODULE = 1,
  PROP_LR,
  PROP_LR_SCALE,
  PROP_WEIGHT_DECAY,
};

static void ebb_optimizer_initable_init (GInitableIface *iface);

G_DEFINE_ABSTRACT_TYPE_WITH_CODE (EbbOptimizer,
                                  ebb_optimizer,
                                  G_TYPE_OBJECT,
                                  G_ADD_PRIVATE (EbbOptimizer)
                                      G_IMPLEMENT_INTERFACE (G_TYPE_INITABLE, ebb_optimizer_initable_init))

EbbOptimizerPrivate *
ebb_optimizer_get_private (EbbOptimizer *self)
{
  return ebb_optimizer_get_instance_private (self);
}

const EbbOptimizerKind *
ebb_optimizer_get_kind (EbbOptimizer *self)
{
  return EBB_OPTIMIZER_GET_CLASS (self)->kind;
}

void
ebb_optimizer_slot_clear_state (EbbOptimizerSlot *slot)
{
  g_clear_pointer (&slot->master, ebb_tensor_unref);
  for (guint i = 0; i < EBB_OPTIMIZER_MAX_STATES; i++)
    g_clear_pointer (&slot->states[i], ebb_tensor_unref);
  slot->n_steps = 0;
}

/* -- one step ------------------------------------------------------------------------------------------------------ */

static gboolean
copy_tensor (EbbTensor *source,
             EbbTensor *target,
             GError **error)
{
  EbbLaunch launch;

  ebb_launch_init (&launch, EBB_KERNEL_COPY);
  ebb_launch_input (&launch, source);
  ebb_launch_output (&launch, target);
  return ebb_launch (target->storage->device, &launch, error);
}

/* TRUE if @master, rounded to the parameter's type, is the parameter, bit for bit. */
static gboolean
master_is_equal (EbbTensor *master,
                 EbbTensor *parameter,
                 gboolean *equal,
                 GError **error)
{
  g_autoptr (EbbTensor) rounded = ebb_cast (master, parameter->view.dtype, error);
  g_autoptr (EbbTensor) a = ebb_to_device (rounded, ebb_device_get_cpu (), error);
  g_autoptr (EbbTensor) b = ebb_to_device (parameter, ebb_device_get_cpu (), error);
  const void *x = ebb_tensor_get_data (a, error);
  const void *y = ebb_tensor_get_data (b, error);

  if (a == NULL || b == NULL || (x == NULL && a->n_elements > 0) || (y == NULL && b->n_elements > 0))
    return FALSE;
  *equal = a->n_elements == 0 || memcmp (x, y, ebb_tensor_get_n_bytes (a)) == 0;
  return TRUE;
}

/* The master follows the parameter where somebody else has changed that (weights loaded later). */
static gboolean
prepare_master (EbbOptimizerSlot *slot,
                GError **error)
{
  EbbTensor *parameter = slot->parameter;
  gboolean equal = FALSE;

  if (parameter->view.dtype == EBB_DTYPE_F32)
    {
      g_clear_pointer (&slot->master, ebb_tensor_unref);
      return TRUE;
    }
  if (slot->master == NULL)
    {
      slot->master = ebb_tensor_new_uninitialized (parameter->view.shape, (guint) parameter->view.n_dims, EBB_DTYPE_F32,
                                                   parameter->storage->device, error);
      if (slot->master == NULL)
        return FALSE;
      ebb_storage_set_purpose (slot->master->storage, EBB_PURPOSE_OPTIMIZER);
    }
  else if (slot->seen_birth == parameter->storage->birth && slot->seen_version == parameter->storage->version)
    return TRUE;
  else if (!master_is_equal (slot->master, parameter, &equal, error))
    return FALSE;
  return equal || copy_tensor (parameter, slot->master, error);
}

/* A tensor of the state follows its parameter to another device. */
static gboolean
move_to_parameter (EbbTensor **state,
                   EbbTensor *parameter,
                   GError **error)
{
  EbbTensor *moved;

  if (*state == NULL || (*state)->storage->device == parameter->storage->device)
    return TRUE;
  moved = ebb_to_device (*state, parameter->storage->device, error);
  if (moved == NULL)
    return FALSE;
  ebb_storage_set_purpose (moved->storage, EBB_PURPOSE_OPTIMIZER);
  ebb_tensor_unref (*state);
  *state = moved;
  return TRUE;
}

/* All that can fail for one parameter happens here, before the first parameter is changed. */
static gboolean
prepare_slot (EbbOptimizerSlot *slot,
              guint n_states,
              GError **error)
{
  EbbTensor *parameter = slot->parameter;

  if (!ebb_view_is_contiguous (&parameter->view))
    {
      g_set_error (error, EBB_ERROR, EBB_ERROR_NOT_SUPPORTED,
                   "the parameter %s is not contiguous: an optimizer changes contiguous parameters only", slot->name);
      return FALSE;
    }
  if (!move_to_parameter (&slot->master, parameter, error) || !prepare_master (slot, error))
    return FALSE;
  for (guint i = 0; i < n_states; i++)
    {
      if (!move_to_parameter (&slot->states[i], parameter, error))
        return FALSE;
      if (slot->states[i] != NULL)
        continue;
      slot->states[i] = ebb_zeros (parameter->view.shape, (guint) parameter->view.n_dims, EBB_DTYPE_F32,
                                   parameter->storage->device, error);
      if (slot->states[i] == NULL)
        return FALSE;
      ebb_storage_set_purpose (slot->states[i]->storage, EBB_PURPOSE_OPTIMIZER);
    }
  return TRUE;
}

static gboolean
update_slot (EbbOptimizer *self,
             EbbOptimizerSlot *slot,
             GError **error)
{
  EbbOptimizerPrivate *priv = ebb_optimizer_get_private (self);
  EbbTensor *parameter = slot->parameter;
  g_autoptr (EbbTensor) grad = ebb_contiguous (parameter->grad, error);
  EbbOptimizerUpdate update = {
    .target = slot->master ? slot->master : parameter,
    .states = slot->states,
    .step = slot->n_steps + 1,
    .lr = ebb_optimizer_get_group_lr (self, slot->group) * priv->lr_scale,
    .weight_decay = ebb_optimizer_get_group_weight_decay (self, slot->group),
    .grad_scale = priv->grad_scale,
  };

  if (grad != NULL && grad->view.dtype == EBB_DTYPE_F16)
    {
      EbbTensor *cast = ebb_cast (grad, EBB_DTYPE_F32, error);

      ebb_tensor_unref (grad);
      grad = cast;
    }
  if (grad == NULL)
    return FALSE;
  update.grad = grad;
  if (!ebb_optimizer_get_kind (self)->update (self, &update, error))
    return FALSE;
  slot->n_steps++;
  if (slot->master != NULL && !copy_tensor (slot->master, parameter, error))
    return FALSE;
  slot->seen_birth = parameter->storage->birth;
  slot->seen_version = parameter->storage->version;
  return TRUE;
}

static gboolean
ebb_optimizer_real_step (EbbOptimizer *self,
                         GError **error)
{
  EbbOptimizerPrivate *priv = ebb_optimizer_get_private (self);
  const EbbOptimizerKind *kind = ebb_optimizer_get_kind (self);
  guint n_states;

  if (kind == NULL)
    {
      g_set_error (error, EBB_ERROR, EBB_ERROR_NOT_SUPPORTED, "%s does not implement step ()",
                   G_OBJECT_TYPE_NAME (self));
      return FALSE;
    }
  n_states = kind->count_states (self);
  for (guint i = 0; i < priv->n_slots; i++)
    if (priv->slots[i].parameter->grad != NULL && !prepare_slot (&priv->slots[i], n_states, error))
      return FALSE;
  for (guint i = 0; i < priv->n_slots; i++)
    if (priv->slots[i].parameter->grad != NULL && !update_slot (self, &priv->slots[i], error))
      return FALSE;
  return TRUE;
}

/**
 * ebb_optimizer_step:
 * @self: an optimizer
 * @error: return location for an error
 *
 * Moves each parameter that has a gradient. The first step allocates the optimizer's state; that is done for all
 * parameters before the first of them changes. Gradients stay: see ebb_optimizer_zero_grad(); to accumulate them over
 * several backward passes, scale the losses and call that only after the step.
 *
 * Returns: %FALSE with %EBB_ERROR_NO_MEMORY if the state doesn't fit, or with what a subclass reports
 */
gboolean
ebb_optimizer_step (EbbOptimizer *self,
                    GError **error)
{
  g_autoptr (GError) failure = NULL;
  EbbOptimizerPrivate *priv;
  EbbProfileMark mark;
  gboolean ok;

  if ((error != NULL && *error != NULL) || self == NULL)
    return FALSE;
  g_return_val_if_fail (EBB_IS_OPTIMIZER (self), FALSE);

  priv = ebb_optimizer_get_private (self);
  mark = ebb_profile_push_range (EBB_PROFILE_STEP, EBB_PHASE_OPTIMIZER);
  ebb_push_grad_enabled (FALSE);
  ok = EBB_OPTIMIZER_GET_CLASS (self)->step (self, &failure);
  ebb_pop_grad_enabled ();
  ebb_profile_pop (mark);
  if (failure != NULL)
    {
      g_propagate_error (error, g_steal_pointer (&failure));
      return FALSE;
    }
  if (!ok)
    {
      g_set_error (error, EBB_ERROR, EBB_ERROR_CALLBACK, "step () of %s failed without an error",
                   G_OBJECT_TYPE_NAME (self));
      return FALSE;
    }
  priv->n_steps++;
  priv->grad_scale = 1;
  return TRUE;
}

/* -- gradients ----------------------------------------------------------------------------------------------------- */

/**
 * ebb_optimizer_zero_grad:
 * @self: (nullable): an optimizer
 *
 * Drops the gradients of its parameters; the memory is free for the next forward pass. What ebb_optimizer_scale_grad()
 * noted is forgotten.
 */
void
ebb_optimizer_zero_grad (EbbOptimizer *self)
{
  EbbOptimizerPrivate *priv;

  if (self == NULL)
    return;
  g_return_if_fail (EBB_IS_OPTIMIZER (self));

  priv = ebb_optimizer_get_private (self);
  for (guint i = 0; i < priv->n_slots; i++)
    ebb_tensor_set_grad (priv->slots[i].parameter, NULL, NULL);
  priv->grad_scale = 1;
}

/**
 * ebb_optimizer_zero_grad_in_place:
 * @self: an optimizer
 * @error: return location for an error
 *
 * Fills the gradients of its parameters with zeros and keeps their memory. Parameters without a gradient stay without.
 *
 * Returns: %FALSE with an error of the device
 */
gboolean
ebb_optimizer_zero_grad_in_place (EbbOptimizer *self,
                                  GError **error)
{
  EbbOptimizerPrivate *priv;
  gboolean ok = TRUE;

  if ((error != NULL && *error != NULL) || self == NULL)
    return FALSE;
  g_return_val_if_fail (EBB_IS_OPTIMIZER (self), FALSE);

  priv = ebb_optimizer_get_private (self);
  ebb_push_grad_enabled (FALSE);
  for (guint i = 0; ok && i < priv->n_slots; i++)
    if (priv->slots[i].parameter->grad != NULL)
      ok = ebb_tensor_fill (priv->slots[i].parameter->grad, 0, error);
  ebb_pop_grad_enabled ();
  priv->grad_scale = 1;
  return ok;
}

/**
 * ebb_optimizer_scale_grad:
 * @self: an optimizer
 * @factor: a finite factor
 *
 * Makes the next step take the gradients times @factor, without a pass over them. Factors of several calls multiply;
 * after the step, or when gradients are dropped, the factor is 1 again.
 */
void
ebb_optimizer_scale_grad (EbbOptimizer *self,
                          double factor)
{
  g_return_if_fail (EBB_IS_OPTIMIZER (self));
  g_return_if_fail (isfinite (factor));

  ebb_optimizer_get_private (self)->grad_scale *= factor;
}

/**
 * ebb_optimizer_clip_grad_norm:
 * @self: an optimizer
 * @max_norm: the largest norm, more than 0
 * @norm: (out) (optional): return location for the norm before clipping; not finite if a gradient is not
 * @error: return location for an error
 *
 * Makes the next step take the gradients as if their global norm were at most @max_norm (Pascanu et al., "On the
 * difficulty of training recurrent neural networks", 2013): the optimizer's factor is noted, the gradients themselves
 * are left alone. A norm that is not finite notes nothing. See ebb_clip_grad_norm() to change gradients in place.
 *
 * Returns: %FALSE with %EBB_ERROR_INVALID_ARGUMENT if @max_norm makes no sense
 */
gboolean
ebb_optimizer_clip_grad_norm (EbbOptimizer *self,
                              double max_norm,
                              double *norm,
                              GError **error)
{
  EbbOptimizerPrivate *priv;
  g_autofree EbbTensor **parameters = NULL;
  double total;

  if (norm != NULL)
    *norm = 0;
  if ((error != NULL && *error != NULL) || self == NULL)
    return FALSE;
  g_return_val_if_fail (EBB_IS_OPTIMIZER (self), FALSE);

  priv = ebb_optimizer_get_private (self);
  parameters = g_new (EbbTensor *, priv->n_slots + 1);
  for (guint i = 0; i < priv->n_slots; i++)
    parameters[i] = priv->slots[i].parameter;
  if (!ebb_check_max_norm (max_norm, error) || !ebb_compute_grad_norm (parameters, priv->n_slots, &total, error))
    return FALSE;
  total *= fabs (priv->grad_scale);
  priv->grad_scale *= ebb_get_clip_factor (total, max_norm);
  if (norm != NULL)
    *norm = total;
  return TRUE;
}

/* -- looking ------------------------------------------------------------------------------------------------------- */

/**
 * ebb_optimizer_get_n_steps:
 * @self: an optimizer
 *
 * Returns: how many steps it has taken
 */
gint64
ebb_optimizer_get_n_steps (EbbOptimizer *self)
{
  g_return_val_if_fail (EBB_IS_OPTIMIZER (self), 0);

  return ebb_optimizer_get_private (self)->n_steps;
}

/**
 * ebb_optimizer_get_lr: (get-property lr)
 * @self: an optimizer
 *
 * Returns: the learning rate of all groups that have none of their own
 */
double
ebb_optimizer_get_lr (EbbOptimizer *self)
{
  g_return_val_if_fail (EBB_IS_OPTIMIZER (self), 0);

  return ebb_optimizer_get_private (self)->lr;
}

/**
 * ebb_optimizer_set_lr: (set-property lr)
 * @self: an optimizer
 * @lr: the learning rate, 0 or more
 *
 * Sets the learning rate of all groups that have none of their own.
 */
void
ebb_optimizer_set_lr (EbbOptimizer *self,
                      double lr)
{
  g_return_if_fail (EBB_IS_OPTIMIZER (self));
  g_return_if_fail (lr >= 0 && isfinite (lr));

  ebb_optimizer_get_private (self)->lr = lr;
  g_object_notify (G_OBJECT (self), "lr");
}

/**
 * ebb_optimizer_get_lr_scale: (get-property lr-scale)
 * @self: an optimizer
 *
 * Returns: the factor of all learning rates
 */
double
ebb_optimizer_get_lr_scale (EbbOptimizer *self)
{
  g_return_val_if_fail (EBB_IS_OPTIMIZER (self), 0);

  return ebb_optimizer_get_private (self)->lr_scale;
}

/**
 * ebb_optimizer_set_lr_scale: (set-property lr-scale)
 * @self: an optimizer
 * @lr_scale: the factor, 0 or more
 *
 * Sets a factor of the learning rates of all groups; schedules set it before each step.
 */
void
ebb_optimizer_set_lr_scale (EbbOptimizer *self,
                            double lr_scale)
{
  g_return_if_fail (EBB_IS_OPTIMIZER (self));
  g_return_if_fail (lr_scale >= 0 && isfinite (lr_scale));

  ebb_optimizer_get_private (self)->lr_scale = lr_scale;
  g_object_notify (G_OBJECT (self), "lr-scale");
}

/**
 * ebb_optimizer_get_weight_decay: (get-property weight-decay)
 * @self: an optimizer
 *
 * Returns: the weight decay of all groups that have none of their own
 */
double
ebb_optimizer_get_weight_decay (EbbOptimizer *self)
{
  g_return_val_if_fail (EBB_IS_OPTIMIZER (self), 0);

  return ebb_optimizer_get_private (self)->weight_decay;
}

/**
 * ebb_optimizer_set_weight_decay: (set-property weight-decay)
 * @self: an optimizer
 * @weight_decay: the weight decay, 0 or more
 *
 * Sets the weight decay of all groups that have none of their own.
 */
void
ebb_optimizer_set_weight_decay (EbbOptimizer *self,
                                double weight_decay)
{
  g_return_if_fail (EBB_IS_OPTIMIZER (self));
  g_return_if_fail (weight_decay >= 0 && isfinite (weight_decay));

  ebb_optimizer_get_private (self)->weight_decay = weight_decay;
  g_object_notify (G_OBJECT (self), "weight-decay");
}

/**
 * ebb_optimizer_get_parameters:
 * @self: an optimizer
 * @n_parameters: (out): return location for how many there are
 *
 * The parameters of the module that the optimizer was made for, each once.
 *
 * Returns: (array length=n_parameters) (transfer full): the parameters
 */
EbbTensor **
ebb_optimizer_get_parameters (EbbOptimizer *self,
                              guint *n_parameters)
{
  EbbOptimizerPrivate *priv;
  EbbTensor **parameters;

  *n_parameters = 0;
  g_return_val_if_fail (EBB_IS_OPTIMIZER (self), NULL);

  priv = ebb_optimizer_get_private (self);
  parameters = g_new (EbbTensor *, priv->n_slots + 1);
  for (guint i = 0; i < priv->n_slots; i++)
    parameters[i] = ebb_tensor_ref (priv->slots[i].parameter);
  parameters[priv->n_slots] = NULL;
  *n_parameters = priv->n_slots;
  return parameters;
}

/* -- the object ---------------------------------------------------------------------------------------------------- */

static void
collect_parameters (EbbOptimizerPrivate *priv)
{
  g_autoptr (GHashTable) seen = g_hash_table_new (NULL, NULL);
  g_auto (GStrv) names = ebb_module_get_parameter_names (priv->module, TRUE);
  guint n;
  g_autofree EbbTensor **parameters = ebb_module_get_parameters (priv->module, TRUE, &n);

  priv->slots = g_new0 (EbbOptimizerSlot, n + 1);
  for (guint i = 0; i < n; i++)
    if (g_hash_table_add (seen, parameters[i]))
      priv->slots[priv->n_slots++] = (EbbOptimizerSlot){ .name = g_strdup (names[i]), .parameter = parameters[i] };
    else
      ebb_tensor_unref (parameters[i]);
}

static gboolean
ebb_optimizer_initable_init_instance (GInitable *initable,
                                      GCancellable *cancellable,
                                      GError **error)
{
  EbbOptimizerPrivate *priv = ebb_optimizer_get_private (EBB_OPTIMIZER (initable));

  if (priv->module == NULL)
    {
      if (priv->slots != NULL)
        return TRUE;
      g_set_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT, "%s: it needs a module whose parameters it can move",
                   G_OBJECT_TYPE_NAME (initable));
      return FALSE;
    }
  collect_parameters (priv);
  g_clear_object (&priv->module);
  if (priv->n_slots == 0)
    {
      g_set_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT, "%s: the module has no parameters",
                   G_OBJECT_TYPE_NAME (initable));
      return FALSE;
    }
  return TRUE;
}

static void
ebb_optimizer_initable_init (GInitableIface *iface)
{
  iface->init = ebb_optimizer_initable_init_instance;
}

EbbOptimizer *
ebb_optimizer_make (GType type,
                    EbbModule *module,
                    double lr,
                    GError **error)
{
  if ((error != NULL && *error != NULL) || module == NULL)
    return NULL;
  g_return_val_if_fail (EBB_IS_MODULE (module), NULL);

  if (!(lr >= 0) || !isfinite (lr))
    {
      g_set_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT, "learning rate %g: it must be a number of 0 or more",
                   lr);
      return NULL;
    }
  return g_initable_new (type, NULL, error, "module", module, "lr", lr, NULL);
}

static void
ebb_optimizer_get_property (GObject *object,
                            guint id,
                            GValue *value,
                            GParamSpec *pspec)
{
  EbbOptimizerPrivate *priv = ebb_optimizer_get_private (EBB_OPTIMIZER (object));

  switch (id)
    {
    case PROP_LR:
      g_value_set_double (value, priv->lr);
      break;
    case PROP_LR_SCALE:
      g_value_set_double (value, priv->lr_scale);
      break;
    case PROP_WEIGHT_DECAY:
      g_value_set_double (value, priv->weight_decay);
      break;
    default:
      G_OBJECT_WARN_INVALID_PROPERTY_ID (object, id, pspec);
    }
}

static void
ebb_optimizer_set_property (GObject *object,
                            guint id,
                            const GValue *value,
                            GParamSpec *pspec)
{
  EbbOptimizerPrivate *priv = ebb_optimizer_get_private (EBB_OPTIMIZER (object));

  switch (id)
    {
    case PROP_MODULE:
      priv->module = g_value_dup_object (value);
      break;
    case PROP_LR:
      priv->lr = g_value_get_double (value);
      break;
    case PROP_LR_SCALE:
      priv->lr_scale = g_value_get_double (value);
      break;
    case PROP_WEIGHT_DECAY:
      priv->weight_decay = g_value_get_double (value);
      break;
    default:
      G_OBJECT_WARN_INVALID_PROPERTY_ID (object, id, pspec);
    }
}

static void
ebb_optimizer_finalize (GObject *object)
{
  EbbOptimizerPrivate *priv = ebb_optimizer_get_private (EBB_OPTIMIZER (object));

  for (guint i = 0; i < priv->n_slots; i++)
    {
      ebb_optimizer_slot_clear_state (&priv->slots[i]);
      ebb_tensor_unref (priv->slots[i].parameter);
      g_free (priv->slots[i].name);
    }
  g_free (priv->slots);
  g_free (priv->groups);
  g_clear_object (&priv->module);
  G_OBJECT_CLASS (ebb_optimizer_parent_class)->finalize (object);
}

static void
ebb_optimizer_class_init (EbbOptimizerClass *klass)
{
  GObjectClass *object_class = G_OBJECT_CLASS (klass);

  object_class->get_property = ebb_optimizer_get_property;
  object_class->set_property = ebb_optimizer_set_property;
  object_class->finalize = ebb_optimizer_finalize;
  klass->step = ebb_optimizer_real_step;

  /**
   * EbbOptimizer:module:
   *
   * The module whose parameters are moved. The optimizer keeps the parameters, not the module.
   */
  g_object_class_install_property (object_class, PROP_MODULE,
                                   g_param_spec_object ("module", NULL, NULL, EBB_TYPE_MODULE,
                                                        G_PARAM_WRITABLE | G_PARAM_CONSTRUCT_ONLY
                                                            | G_PARAM_STATIC_STRINGS));
  /**
   * EbbOptimizer:lr: (getter get_lr) (setter set_lr)
   *
   * The learning rate of all groups that have none of their own.
   */
  g_object_class_install_property (object_class, PROP_LR,
                                   g_param_spec_double ("lr", NULL, NULL, 0, G_MAXDOUBLE, 1e-3,
                                                        G_PARAM_READWRITE | G_PARAM_STATIC_STRINGS));
  /**
   * EbbOptimizer:lr-scale: (getter get_lr_scale) (setter set_lr_scale)
   *
   * A factor of all learning rates, for schedules.
   */
  g_object_class_install_property (object_class, PROP_LR_SCALE,
                                   g_param_spec_double ("lr-scale", NULL, NULL, 0, G_MAXDOUBLE, 1,
                                                        G_PARAM_READWRITE | G_PARAM_STATIC_STRINGS));
  /**
   * EbbOptimizer:weight-decay: (getter get_weight_decay) (setter set_weight_decay)
   *
   * The weight decay of all groups that have none of their own.
   */
  g_object_class_install_property (object_class, PROP_WEIGHT_DECAY,
                                   g_param_spec_double ("weight-decay", NULL, NULL, 0, G_MAXDOUBLE, 0,
                                                        G_PARAM_READWRITE | G_PARAM_STATIC_STRINGS));
}

static void
ebb_optimizer_init (EbbOptimizer *self)
{
  EbbOptimizerPrivate *priv = ebb_optimizer_get_private (self);

  priv->lr = 1e-3;
  priv->lr_scale = 1;
  priv->grad_scale = 1;
  priv->groups = g_new (EbbOptimizerGroup, 1);
  priv->groups[0] = (EbbOptimizerGroup){ -1, -1 };
  priv->n_groups = 1;
}
