/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Where a training stands before a step, and the way back there after a step that failed. */
#include "nn/state/training-state-private.h"

#include "nn/data/dataset-private.h"
#include "nn/layers/layer-private.h"
#include "nn/optim/optimizer-private.h"
#include "tensor/autograd/op-support-private.h"
#include "tensor/backend/backend-private.h"
#include "tensor/error-private.h"
#include "tensor/storage-private.h"
#include "tensor/tensor-private.h"

/* What a tensor's memory holds, without a look at it: each change in place makes a new version. */
typedef struct
{
  guint64 birth; /* 0: there is no tensor */
  guint version;
} Version;

typedef struct
{
  EbbTensor *tensor;
  Version version;
  gboolean has_grad; /* to which backward passes may add without a new version... */
  guint16 n_zeroed;  /* unless the step begins by dropping it */
} Parameter;

/* Forward passes change buffers, such as running statistics, so their elements are kept beside them, where nobody waits
 * for a copy. The memory is uncounted: a mark doesn't change what a step takes. No pass changes a quantised weight,
 * which may be as large as the rest of the training: no elements of it are kept. */
typedef struct
{
  EbbTensor *buffer;
  gboolean is_weight; /* quantised */
  EbbDevice *device;
  Version version;
  gsize size;
  EbbView kept; /* in memory of its own, of that size; data NULL: there are no elements */
} Buffer;

typedef struct
{
  gint64 n_steps;
  Version master, states[EBB_OPTIMIZER_MAX_STATES];
} Slot;

typedef struct
{
  EbbGenerator *generator;
  guint64 seed, offset;
} Generator;

static Version
get_version (const EbbTensor *tensor)
{
  return tensor != NULL ? (Version){ tensor->storage->birth, tensor->storage->version } : (Version){ 0 };
}

static gboolean
is_same (Version a,
         Version b)
{
  return a.birth == b.birth && a.version == b.version;
}

/* -- marking ------------------------------------------------------------------------------------------------------- */

static void
parameter_clear (gpointer data)
{
  ebb_tensor_unref (((Parameter *) data)->tensor);
}

static void
buffer_clear (gpointer data)
{
  Buffer *self = data;

  if (self->kept.data != NULL && self->device != ebb_device_get_cpu ())
    self->device->backend->free (self->device->index, self->kept.data, self->size);
  else
    g_free (self->kept.data);
  ebb_tensor_unref (self->buffer);
}

static void
generator_clear (gpointer data)
{
  g_object_unref (((Generator *) data)->generator);
}

static GArray *
make_array (guint size,
            GDestroyNotify clear)
{
  GArray *array = g_array_new (FALSE, FALSE, size);

  g_array_set_clear_func (array, clear);
  return array;
}

static EbbTrainingMark *
mark_new (void)
{
  EbbTrainingMark *self = g_new0 (EbbTrainingMark, 1);

  self->parameters = make_array (sizeof (Parameter), parameter_clear);
  self->seen = g_hash_table_new (NULL, NULL);
  self->buffers = make_array (sizeof (Buffer), buffer_clear);
  self->slots = g_array_new (FALSE, FALSE, sizeof (Slot));
  self->generators = make_array (sizeof (Generator), generator_clear);
  return self;
}

/* Most are the module's and the optimizer's. */
static void
add_parameter (EbbTrainingMark *self,
               EbbTensor *tensor)
{
  const Parameter parameter = { tensor, get_version (tensor), tensor->grad != NULL,
                                tensor->n_zeroed };

  if (!g_hash_table_add (self->seen, tensor))
    return;
  self->grad_bytes += tensor->grad != NULL ? tensor->grad->storage->size : 0;
  g_array_append_val (self->parameters, parameter);
  ebb_tensor_ref (tensor);
}

static gboolean
keep_elements (Buffer *self,
               GError **error)
{
  const EbbView *view = &self->buffer->view;
  gint64 stride = 1;

  if (self->size == 0 || self->buffer->storage->no_data) /* as in a dry run */
    return TRUE;
  self->kept = *view;
  for (int i = view->n_dims - 1; i >= 0; i--)
    {
      self->kept.strides[i] = stride;
      stride *= view->shape[i];
    }
  self->kept.data = self->device == ebb_device_get_cpu ()
                        ? g_malloc (self->size)
                        : self->device->backend->alloc (self->device->index, self->size, error);
  return self->kept.data != NULL
         && EBB_LAUNCH_VIEWS (self->device, EBB_KERNEL_COPY, EBB_NO_PARAMS, 1, error, view, &self->kept);
}

static gboolean
add_buffer (EbbTrainingMark *self,
            EbbTensor *tensor,
            gboolean is_weight,
            GError **error)
{
  Buffer buffer = { .buffer = ebb_tensor_ref (tensor),
                    .is_weight = is_weight,
                    .device = tensor->storage->device,
                    .version = get_version (tensor),
                    .size = is_weight ? 0 : ebb_tensor_get_n_bytes (tensor) };
  const gboolean ok = keep_elements (&buffer, error);

  g_array_append_val (self->buffers, buffer);
  return ok;
}

static gboolean
add_buffers (EbbTrainingMark *self,
             EbbModule *module,
             GError **error)
{
  const gboolean is_weight = EBB_IS_LINEAR (module) && ebb_linear_is_quantized ((EbbLinear *) module);
  guint n_buffers;
  g_autofree EbbTensor **buffers = ebb_module_get_buffers (module, FALSE, &n_buffers);
  gboolean ok = TRUE;

  for (guint i = 0; i < n_buffers; i++)
    {
      ok = ok && add_buffer (self, buffers[i], is_weight, error);
      ebb_tensor_unref (buffers[i]);
    }
  return ok;
}

static gboolean
add_module (EbbTrainingMark *self,
            EbbModule *module,
            GError **error)
{
  guint n_parameters, n_modules;
  g_autofree EbbTensor **parameters = ebb_module_get_parameters (module, TRUE, &n_parameters);
  g_autofree EbbModule **modules = ebb_module_get_modules (module, &n_modules);
  gboolean ok = TRUE;

  for (guint i = 0; i < n_parameters; i++)
    {
      add_parameter (self, parameters[i]);
      ebb_tensor_unref (parameters[i]);
    }
  for (guint i = 0; i < n_modules; i++)
    {
      ok = ok && add_buffers (self, modules[i], error);
      g_object_unref (modules[i]);
    }
  return ok;
}

static void
add_optimizer (EbbTrainingMark *self,
               EbbOptimizer *optimizer)
{
  EbbOptimizerPrivate *priv = ebb_optimizer_get_private (optimizer);

  self->n_steps = priv->n_steps;
  self->grad_scale = priv->grad_scale;
  self->grad_factor = priv->grad_factor != NULL ? ebb_tensor_ref (priv->grad_factor) : NULL;
  for (guint i = 0; i < priv->n_slots; i++)
    {
      Slot slot = { priv->slots[i].n_steps, get_version (priv->slots[i].master), { { 0 } } };

      for (guint k = 0; k < EBB_OPTIMIZER_MAX_STATES; k++)
        slot.states[k] = get_version (priv->slots[i].states[k]);
      g_array_append_val (self->slots, slot);
      add_parameter (self, priv->slots[i].parameter);
    }
}

static void
add_generator (EbbTrainingMark *self,
               EbbGenerator *generator)
{
  const Generator marked = { g_object_ref (generator), ebb_generator_get_seed (generator),
                             ebb_generator_get_offset (generator) };

  g_array_append_val (self->generators, marked);
}

static void
add_generators (EbbTrainingMark *self,
                GHashTable *generators)
{
  const EbbNamedGenerators *named = ebb_training_state_get_named_generators ();
  GHashTableIter iter;
  gpointer generator;

  add_generator (self, ebb_generator_get_default ());
  g_hash_table_iter_init (&iter, generators);
  while (g_hash_table_iter_next (&iter, NULL, &generator))
    add_generator (self, generator);
  self->named = named != NULL ? named->get () : NULL;
}

/**
 * ebb_training_state_mark:
 * @self: a training
 * @error: return location for an error
 *
 * Notes where the training stands, before a step: the random generators, the place in the data, the versions of
 * parameters and the optimizer's state, and the values of buffers, which forward passes change. The mark
 * takes the place of an earlier one. Buffers are copied where they are, and nobody waits for that.
 *
 * Returns: %FALSE with %EBB_ERROR_NO_MEMORY if there is no memory for the buffers, and then there is no mark
 */
gboolean
ebb_training_state_mark (EbbTrainingState *self,
                         GError **error)
{
  EbbTrainingMark *mark;
  gboolean ok;

  EBB_RETURN_UNLESS_BEGUN (FALSE, error, self);
  g_return_val_if_fail (EBB_IS_TRAINING_STATE (self), FALSE);

  g_clear_pointer (&self->mark, ebb_training_mark_free);
  mark = mark_new ();
  ok = self->module == NULL || add_module (mark, self->module, error);
  if (self->optimizer != NULL)
    add_optimizer (mark, self->optimizer);
  if (self->dataset != NULL)
    mark->position = ebb_dataset_get_private (self->dataset)->position;
  add_generators (mark, self->generators);
  if (ok)
    self->mark = mark;
  else
    ebb_training_mark_free (mark);
  return ok;
}

guint64
ebb_training_state_get_marked_grad_bytes (EbbTrainingState *self)
{
  return self->mark->grad_bytes;
}

/* -- whether there is a way back ----------------------------------------------------------------------------------- */

/* Always FALSE. */
static gboolean
fail_changed (const char *what,
              const char *name,
              GError **error)
{
  return ebb_fail (error, EBB_ERROR_STATE, "%s%s%s has changed since the mark", what, *name != '\0' ? " " : "",
                   name);
}

static char *
find_name (EbbTrainingState *self,
           EbbTensor *parameter)
{
  EbbOptimizerPrivate *priv = self->optimizer != NULL ? ebb_optimizer_get_private (self->optimizer) : NULL;
  g_auto (GStrv) names = self->module != NULL ? ebb_module_get_parameter_names (self->module, TRUE) : NULL;
  guint n = 0;
  g_autofree EbbTensor **parameters = names != NULL ? ebb_module_get_parameters (self->module, TRUE, &n) : NULL;
  char *name = NULL;

  for (guint i = 0; i < n; i++)
    {
      if (name == NULL && parameters[i] == parameter)
        name = g_strdup (names[i]);
      ebb_tensor_unref (parameters[i]);
    }
  for (guint i = 0; name == NULL && priv != NULL && i < priv->n_slots; i++)
    if (priv->slots[i].parameter == parameter)
      name = g_strdup (priv->slots[i].name);
  return name != NULL ? name : g_strdup ("");
}

static gboolean
check_parameters (EbbTrainingState *self,
                  GError **error)
{
  EbbDevice *device = NULL;

  for (guint i = 0; i < self->mark->parameters->len; i++)
    {
      const Parameter *parameter = &g_array_index (self->mark->parameters, Parameter, i);
      const gboolean has_grad = parameter->has_grad && parameter->n_zeroed == parameter->tensor->n_zeroed;
      g_autofree char *name = NULL;

      if (device != parameter->tensor->storage->device
          && !ebb_device_synchronize (device = parameter->tensor->storage->device, error))
        return FALSE;
      if (is_same (parameter->version, get_version (parameter->tensor)) && !has_grad)
        continue;
      name = find_name (self, parameter->tensor);
      if (!has_grad)
        return fail_changed ("the parameter", name, error);
      return ebb_fail (error, EBB_ERROR_STATE,
                       "%s had a gradient at the mark already, to which the step may have added", name);
    }
  return TRUE;
}

/* Elements are put back where they were. */
static gboolean
check_buffers (const EbbTrainingMark *self,
               GError **error)
{
  for (guint i = 0; i < self->buffers->len; i++)
    {
      const Buffer *buffer = &g_array_index (self->buffers, Buffer, i);

      if (buffer->version.birth != buffer->buffer->storage->birth)
        return fail_changed ("the place of a buffer", "", error);
      if (buffer->is_weight && !is_same (buffer->version, get_version (buffer->buffer)))
        return fail_changed ("a quantised weight", "", error);
    }
  return TRUE;
}

static gboolean
is_empty (const Slot *slot)
{
  gboolean empty = slot->master.birth == 0;

  for (guint k = 0; k < EBB_OPTIMIZER_MAX_STATES; k++)
    empty = empty && slot->states[k].birth == 0;
  return empty;
}

/* A state that the step has made goes again. */
static gboolean
check_optimizer (EbbTrainingState *self,
                 GError **error)
{
  EbbOptimizerPrivate *priv = ebb_optimizer_get_private (self->optimizer);

  if (priv->n_slots != self->mark->slots->len || priv->n_steps != self->mark->n_steps)
    return fail_changed ("the optimizer", "", error);
  for (guint i = 0; i < priv->n_slots; i++)
    {
      const Slot *marked = &g_array_index (self->mark->slots, Slot, i);
      const EbbOptimizerSlot *slot = &priv->slots[i];
      gboolean same = is_same (marked->master, get_version (slot->master));

      for (guint k = 0; k < EBB_OPTIMIZER_MAX_STATES; k++)
        same = same && is_same (marked->states[k], get_version (slot->states[k]));
      if (!same && !is_empty (marked))
        return fail_changed ("the optimizer's state of", slot->name, error);
    }
  return TRUE;
}

/* -- going back ---------------------------------------------------------------------------------------------------- */

static gboolean
restore_buffer (Buffer *self,
                GError **error)
{
  EbbStorage *storage = self->buffer->storage;

  if (is_same (self->version, get_version (self->buffer)) || self->kept.data == NULL)
    return TRUE;
  ebb_storage_change (storage);
  self->version = get_version (self->buffer);
  return EBB_LAUNCH_VIEWS (self->device, EBB_KERNEL_COPY, EBB_NO_PARAMS, 1, error, &self->kept, &self->buffer->view);
}

static gboolean
restore_buffers (EbbTrainingMark *self,
                 GError **error)
{
  gboolean ok = TRUE;

  for (guint i = 0; ok && i < self->buffers->len; i++)
    ok = restore_buffer (&g_array_index (self->buffers, Buffer, i), error);
  return ok;
}

static void
drop_gradients (EbbTrainingMark *self)
{
  for (guint i = 0; i < self->parameters->len; i++)
    ebb_tensor_zero_grad (g_array_index (self->parameters, Parameter, i).tensor);
}

static void
restore_optimizer (EbbTrainingMark *self,
                   EbbOptimizer *optimizer)
{
  EbbOptimizerPrivate *priv = ebb_optimizer_get_private (optimizer);

  for (guint i = 0; i < priv->n_slots; i++)
    {
      const Slot *marked = &g_array_index (self->slots, Slot, i);

      if (is_empty (marked))
        ebb_optimizer_slot_clear_state (&priv->slots[i]);
      priv->slots[i].n_steps = marked->n_steps;
    }
  ebb_optimizer_reset_scale (priv);
  priv->grad_scale = self->grad_scale;
  priv->grad_factor = self->grad_factor != NULL ? ebb_tensor_ref (self->grad_factor) : NULL;
}

static gboolean
restore_generators (EbbTrainingMark *self,
                    GError **error)
{
  for (guint i = 0; i < self->generators->len; i++)
    {
      const Generator *marked = &g_array_index (self->generators, Generator, i);

      ebb_generator_set_state (marked->generator, marked->seed, marked->offset);
    }
  return self->named == NULL || ebb_training_state_get_named_generators ()->set (self->named, FALSE, error);
}

/**
 * ebb_training_state_rewind:
 * @self: a training
 * @error: return location for an error
 *
 * Goes back to ebb_training_state_mark() after a step that failed, so that the same step can run again and compute the
 * same bits: generators, the place in the data and buffers are as they were, and gradients and states of the optimizer
 * that the step has made are gone. The way back is open until the step changes a parameter or the optimizer's state,
 * and if there was no gradient at the mark or the step has dropped it (ebb_optimizer_zero_grad()). The mark stays. It
 * knows nothing of other ranks, nor of values of your own.
 *
 * Returns: %FALSE with %EBB_ERROR_STATE, which names what has changed, and nothing is done; or with an error of the
 *   device
 */
gboolean
ebb_training_state_rewind (EbbTrainingState *self,
                           GError **error)
{
  EbbTrainingMark *mark;

  EBB_RETURN_UNLESS_BEGUN (FALSE, error, self);
  g_return_val_if_fail (EBB_IS_TRAINING_STATE (self), FALSE);

  mark = self->mark;
  if (mark == NULL)
    return ebb_fail (error, EBB_ERROR_STATE, "the training has no mark to go back to");
  if (!check_parameters (self, error) || !check_buffers (mark, error)
      || (self->optimizer != NULL && !check_optimizer (self, error)))
    return FALSE;
  drop_gradients (mark);
  if (self->optimizer != NULL)
    restore_optimizer (mark, self->optimizer);
  if (self->dataset != NULL)
    ebb_dataset_get_private (self->dataset)->position = mark->position;
  return restore_buffers (mark, error) && restore_generators (mark, error);
}
