/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "nn/optim/optimizer-private.h"

#include "tensor/error-private.h"
#include "tensor/autograd/parameter-owner-private.h"
#include "tensor/ops/creation.h"
#include "tensor/ops/pointwise.h"
#include "tensor/ops/shape.h"
#include "tensor/profile/profiler-private.h"

#include <string.h>

/* Moving parameters: all in one step, or each as soon as a backward pass has its gradient. */

/* -- one step ------------------------------------------------------------------------------------------------------ */

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
  const void *x, *y;

  if (a != NULL && b != NULL && ebb_is_dry ()) /* it has no values; a step leaves them equal */
    return *equal = TRUE;
  x = ebb_tensor_get_data (a, error);
  y = ebb_tensor_get_data (b, error);
  if (a == NULL || b == NULL || (x == NULL && a->n_elements > 0) || (y == NULL && b->n_elements > 0))
    return FALSE;
  *equal = a->n_elements == 0 || memcmp (x, y, ebb_tensor_get_n_bytes (a)) == 0;
  return TRUE;
}

/* The master follows the parameter where somebody else has changed that (weights loaded later). */
static gboolean
prepare_master (EbbOptimizerPrivate *priv,
                EbbOptimizerSlot *slot,
                GError **error)
{
  EbbTensor *parameter = slot->parameter;
  gboolean equal = FALSE;

  if (!ebb_optimizer_keeps_master (priv, parameter))
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
  return equal || ebb_launch_copy (parameter, slot->master, error);
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

gboolean
ebb_optimizer_ensure_state (EbbTensor **state,
                            const gint64 *shape,
                            guint n_dims,
                            EbbDType dtype,
                            EbbDevice *device,
                            GError **error)
{
  if (*state != NULL)
    return TRUE;
  *state = ebb_zeros (shape, n_dims, dtype, device, error);
  if (*state == NULL)
    return FALSE;
  ebb_storage_set_purpose ((*state)->storage, EBB_PURPOSE_OPTIMIZER);
  return TRUE;
}

/* A parameter may have been sharded since, or gathered. */
static gboolean
check_state_fits (const EbbOptimizerSlot *slot,
                  GError **error)
{
  return (slot->master == NULL && slot->states[0] == NULL) || slot->n_elements == slot->parameter->n_elements
         || ebb_fail (error, EBB_ERROR_STATE,
                      "the optimizer's state of %s is for %" G_GINT64_FORMAT
                      " elements, and the parameter has %" G_GINT64_FORMAT
                      " now: shard before the first step, or load the state again",
                      slot->name, slot->n_elements, slot->parameter->n_elements);
}

/* All that can fail for one parameter happens here, before the first parameter is changed. */
static gboolean
prepare_slot (EbbOptimizer *self,
              EbbOptimizerSlot *slot,
              GError **error)
{
  EbbOptimizerPrivate *priv = ebb_optimizer_get_private (self);
  EbbTensor *parameter = slot->parameter;

  if (parameter->view.dtype == EBB_DTYPE_F16 && !ebb_optimizer_keeps_master (priv, parameter))
    return ebb_fail (
        error, EBB_ERROR_DTYPE,
        "the parameter %s is f16: without a master copy only bf16 moves: set weight-rounding to \"master\", "
        "or cast it to bf16",
        slot->name);
  if (!ebb_view_is_contiguous (&parameter->view))
    return ebb_fail (error, EBB_ERROR_NOT_SUPPORTED,
                     "the parameter %s is not contiguous: an optimizer changes contiguous parameters only", slot->name);
  if (!check_state_fits (slot, error))
    return FALSE;
  slot->n_elements = parameter->n_elements;
  if (!move_to_parameter (&slot->master, parameter, error) || !prepare_master (priv, slot, error))
    return FALSE;
  for (guint i = 0; i < EBB_OPTIMIZER_MAX_STATES; i++)
    if (!move_to_parameter (&slot->states[i], parameter, error))
      return FALSE;
  return ebb_optimizer_get_kind (self)->prepare (self, parameter, slot->states, error);
}

/* Slots that one call of the kind's update () moves, and what it takes. */
typedef struct
{
  EbbOptimizer *optimizer;
  GArray *updates;  /* of EbbOptimizerUpdate */
  GPtrArray *slots; /* of EbbOptimizerSlot */
} Batch;

static void
batch_init (Batch *self,
            EbbOptimizer *optimizer)
{
  self->optimizer = optimizer;
  self->updates = g_array_new (FALSE, FALSE, sizeof (EbbOptimizerUpdate));
  self->slots = g_ptr_array_new ();
}

static void
batch_drop (Batch *self)
{
  for (guint i = 0; i < self->updates->len; i++)
    {
      EbbOptimizerUpdate *update = &g_array_index (self->updates, EbbOptimizerUpdate, i);

      ebb_tensor_unref (update->grad);
      g_clear_pointer (&update->grad_factor, ebb_tensor_unref);
    }
  g_array_set_size (self->updates, 0);
  g_ptr_array_set_size (self->slots, 0);
}

static void
batch_clear (Batch *self)
{
  batch_drop (self);
  g_array_unref (self->updates);
  g_ptr_array_unref (self->slots);
}

static gboolean
batch_run (Batch *self,
           GError **error)
{
  const EbbOptimizerUpdate *updates = (const EbbOptimizerUpdate *) (void *) self->updates->data;
  gboolean ok =
      self->updates->len == 0
      || ebb_optimizer_get_kind (self->optimizer)->update (self->optimizer, updates, self->updates->len, error);

  for (guint i = 0; ok && i < self->slots->len; i++)
    {
      EbbOptimizerSlot *slot = g_ptr_array_index (self->slots, i);
      EbbTensor *parameter = slot->parameter;

      slot->n_steps++;
      ok = slot->master == NULL || ebb_launch_copy (slot->master, parameter, error);
      slot->seen_birth = parameter->storage->birth;
      slot->seen_version = parameter->storage->version;
    }
  batch_drop (self);
  return ok;
}

/* The gradient in a form that kernels take: itself, or a copy. */
static EbbTensor *
get_grad (EbbTensor *parameter,
          GError **error)
{
  EbbTensor *grad = ebb_contiguous (parameter->grad, error);

  if (grad != NULL && grad->view.dtype == EBB_DTYPE_F16)
    {
      EbbTensor *cast = ebb_cast (grad, EBB_DTYPE_F32, error);

      ebb_tensor_unref (grad);
      grad = cast;
    }
  return grad;
}

/* A gradient that had to be copied goes alone, so that never more than one copy is there. */
static gboolean
batch_add (Batch *self,
           EbbOptimizerSlot *slot,
           GError **error)
{
  EbbOptimizer *optimizer = self->optimizer;
  EbbOptimizerPrivate *priv = ebb_optimizer_get_private (optimizer);
  EbbTensor *parameter = slot->parameter;
  g_autoptr (EbbTensor) grad = get_grad (parameter, error);
  gboolean is_copy = grad != NULL && grad->view.data != parameter->grad->view.data;
  EbbOptimizerUpdate update = {
    .target = slot->master ? slot->master : parameter,
    .states = slot->states,
    .step = slot->n_steps + 1,
    .philox_seed = slot->philox_seed,
    .first_element = ebb_parameter_get_first_element (parameter),
    .rounds_at_random = priv->weight_rounding == EBB_WEIGHT_ROUNDING_RANDOM && slot->master == NULL
                        && parameter->view.dtype == EBB_DTYPE_BF16,
    .lr = ebb_optimizer_get_group_lr (optimizer, slot->group) * priv->lr_scale,
    .weight_decay = ebb_optimizer_get_group_weight_decay (optimizer, slot->group),
    .grad_scale = priv->grad_scale,
  };

  if (grad == NULL || (is_copy && !batch_run (self, error)))
    return FALSE;
  if (priv->grad_factor != NULL)
    update.grad_factor = ebb_to_device (priv->grad_factor, update.target->storage->device, error);
  if (priv->grad_factor != NULL && update.grad_factor == NULL)
    return FALSE;
  update.grad = g_steal_pointer (&grad);
  g_array_append_val (self->updates, update);
  g_ptr_array_add (self->slots, slot);
  return !is_copy || batch_run (self, error);
}

/* Before any gradient is looked at: what other ranks have to add may still be under way, and has to be asked for in the
 * same order on all of them. */
static gboolean
settle_parameters (EbbOptimizerPrivate *priv,
                   GError **error)
{
  for (guint i = 0; i < priv->n_slots; i++)
    if (!ebb_parameter_finalize (priv->slots[i].parameter, error))
      return FALSE;
  return TRUE;
}

/* An optimizer that was made before ebb_lora_wrap () has the parameters that this freezes, and not the adapter's. One
 * that has trained may wait while its parameters are frozen. */
static gboolean
check_trains (EbbOptimizer *self,
              GError **error)
{
  EbbOptimizerPrivate *priv = ebb_optimizer_get_private (self);

  if (priv->n_steps > 0)
    return TRUE;
  for (guint i = 0; i < priv->n_slots; i++)
    if (priv->slots[i].parameter->requires_grad || priv->slots[i].parameter->grad != NULL)
      return TRUE;
  return ebb_fail (
      error, EBB_ERROR_STATE,
      "none of the parameters of the %s requires a gradient: make the optimizer after the adapter is added, or "
      "unfreeze what it is to train",
      ebb_optimizer_get_type_name (self));
}

/* With steps in backward a parameter moves once between two calls of step (). */
static gboolean
check_moved (const EbbOptimizerSlot *slot,
             GError **error)
{
  return !slot->moved
         || ebb_fail (
             error, EBB_ERROR_STATE,
             "%s got a gradient again before ebb_optimizer_step(): gradients can't be accumulated over several "
             "backward passes while step-in-backward is on",
             slot->name);
}

gboolean
ebb_optimizer_move_all (EbbOptimizer *self,
                        GError **error)
{
  EbbOptimizerPrivate *priv = ebb_optimizer_get_private (self);
  gboolean ok = TRUE;
  Batch batch;

  if (!check_trains (self, error))
    return FALSE;
  for (guint i = 0; i < priv->n_slots; i++)
    if (priv->slots[i].parameter->grad != NULL
        && (!check_moved (&priv->slots[i], error) || !prepare_slot (self, &priv->slots[i], error)))
      return FALSE;
  batch_init (&batch, self);
  for (guint i = 0; ok && i < priv->n_slots; i++)
    ok = priv->slots[i].parameter->grad == NULL || batch_add (&batch, &priv->slots[i], error);
  ok = ok && batch_run (&batch, error);
  batch_clear (&batch);
  return ok;
}

/**
 * ebb_optimizer_step:
 * @self: an optimizer
 * @error: return location for an error
 *
 * Moves each parameter that has a gradient. The first step allocates the optimizer's state; that is done for all
 * parameters before the first of them changes. Gradients stay: see ebb_optimizer_zero_grad(); to accumulate them over
 * several backward passes, scale the losses and call that only after the step. Where parameters live on several ranks,
 * all ranks step together.
 *
 * Returns: %FALSE with %EBB_ERROR_NO_MEMORY if the state doesn't fit, with %EBB_ERROR_STATE if before the first step
 * no parameter requires or has a gradient, or with what a subclass reports
 */
gboolean
ebb_optimizer_step (EbbOptimizer *self,
                    GError **error)
{
  g_autoptr (GError) failure = NULL;
  EbbOptimizerPrivate *priv;
  EbbProfileMark mark;
  gboolean ok;

  EBB_RETURN_UNLESS_BEGUN (FALSE, error, self);
  g_return_val_if_fail (EBB_IS_OPTIMIZER (self), FALSE);

  if (EBB_OPTIMIZER_GET_CLASS (self)->step == NULL)
    return ebb_fail (error, EBB_ERROR_NOT_SUPPORTED, "%s does not implement step ()",
                     ebb_optimizer_get_type_name (self));
  priv = ebb_optimizer_get_private (self);
  ebb_optimizer_join_dry_run (self);
  mark = ebb_profile_push_range (EBB_PROFILE_STEP, EBB_PHASE_OPTIMIZER);
  ebb_push_grad_enabled (FALSE);
  ok = settle_parameters (priv, &failure) && EBB_OPTIMIZER_GET_CLASS (self)->step (self, &failure);
  ebb_pop_grad_enabled ();
  ebb_profile_pop (mark);
  if (failure != NULL)
    {
      g_propagate_error (error, g_steal_pointer (&failure));
      return FALSE;
    }
  if (!ok)
    return ebb_fail (error, EBB_ERROR_CALLBACK, "step () of %s failed without an error",
                     ebb_optimizer_get_type_name (self));
  priv->n_steps++;
  ebb_optimizer_reset_scale (priv);
  ebb_optimizer_name_memory (self);
  for (guint i = 0; i < priv->n_slots; i++)
    priv->slots[i].moved = FALSE;
  return TRUE;
}

/* -- steps in backward --------------------------------------------------------------------------------------------- */

gboolean
ebb_optimizer_move_parameter (EbbTensor *parameter,
                              gpointer data,
                              GError **error)
{
  EbbOptimizer *self = data;
  EbbOptimizerPrivate *priv = ebb_optimizer_get_private (self);
  EbbOptimizerSlot *slot =
      &priv->slots[GPOINTER_TO_UINT (g_hash_table_lookup (priv->by_parameter, parameter))];
  EbbProfileMark mark = ebb_profile_push_range ("optimizer step in backward", EBB_PHASE_OPTIMIZER);
  Batch batch;
  gboolean ok;

  ebb_optimizer_join_dry_run (self);
  batch_init (&batch, self);
  ok = check_moved (slot, error) && prepare_slot (self, slot, error)
       && batch_add (&batch, slot, error) && batch_run (&batch, error);
  batch_clear (&batch);
  ebb_profile_pop (mark);
  if (!ok)
    return FALSE;
  slot->moved = TRUE;
  g_clear_pointer (&parameter->grad, ebb_tensor_unref);
  g_clear_pointer (&parameter->shadow, ebb_tensor_unref); /* of the weights that were; nothing in this pass reads it */
  return TRUE;
}
