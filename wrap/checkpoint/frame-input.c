/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Frame inputs: tensors from outside that a checkpointed forward needs, saved once and found again by views. */
#include "wrap/checkpoint/frame-private.h"

#include "offload/activation-store-private.h"
#include "tensor/autograd/parameter-owner-private.h"

#include <string.h>

static const EbbOp checkpoint_op = { .name = "checkpoint" };

static gboolean
same_view (const EbbView *a,
           const EbbView *b)
{
  gsize n = sizeof (gint64) * (gsize) a->n_dims;

  return a->n_dims == b->n_dims && memcmp (a->shape, b->shape, n) == 0 && memcmp (a->strides, b->strides, n) == 0;
}

/* Whether @tensor can be found again inside @input, which comes back with the same strides. A parameter is itself,
 * whatever it points at: a shard and the full parameter have one birth, and other places in other storages. Any other
 * tensor is told by what its values are: storages of one birth and one version hold the same values, in a full buffer
 * or in a shard. The storage of @input may be gone, and its address tells only full buffers from shards: shards stay
 * where they are. */
static gboolean
covers (const EbbFrameInput *input,
        EbbTensor *tensor)
{
  gint64 last = 0, n = 1;

  if (tensor->is_parameter)
    return input->parameter == tensor;
  if (input->saved.birth != tensor->storage->birth || input->saved.version != tensor->storage->version
      || input->storage != tensor->storage || input->view.dtype != tensor->view.dtype)
    return FALSE;
  if (input->offset == tensor->offset && same_view (&input->view, &tensor->view))
    return TRUE;
  if (!ebb_view_is_contiguous (&input->view))
    return FALSE;
  for (int i = 0; i < input->view.n_dims; i++)
    n *= input->view.shape[i];
  for (int i = 0; i < tensor->view.n_dims; i++)
    last += (tensor->view.shape[i] - 1) * tensor->view.strides[i];
  return tensor->offset >= input->offset && tensor->offset + last < input->offset + n;
}

gboolean
ebb_frame_save_outside (EbbCheckpointFrame *self,
                        EbbSavedTensor *saved,
                        const EbbOp *op,
                        EbbTensor *tensor,
                        GError **error)
{
  const EbbModes modes = ebb_modes;
  const gboolean compares = ebb_frame_get_check (self) == EBB_DETERMINISM_CHECK_VALUES;
  gboolean ok;

  ebb_modes.hooks = self->outside;
  ebb_modes_set_save_hints (&ebb_modes, (compares ? EBB_SAVE_HINT_COMPARE_VALUES : 0)
                                            | (op != &checkpoint_op ? EBB_SAVE_HINT_RESULT : 0));
  ok = ebb_saved_tensor_save (saved, op, tensor, NULL, error);
  ebb_modes_leave_forward (&modes);
  return ok;
}

/* Finds @tensor among the inputs, or saves it through the hooks outside. */
gboolean
ebb_frame_take_input (EbbCheckpointFrame *self,
                      EbbTensor *tensor,
                      EbbInputView *view,
                      GError **error)
{
  EbbFrameInput input = { .storage = tensor->storage,
                          .view = tensor->view,
                          .offset = tensor->offset,
                          .n_bytes = ebb_tensor_get_n_bytes (tensor),
                          .is_there = tensor->is_parameter || tensor->is_buffer };
  gboolean ok;

  *view = (EbbInputView){ .is_parameter = tensor->is_parameter,
                          .view = tensor->view,
                          .needs_grad = ebb_tensor_needs_grad (tensor) };
  for (; view->input < self->inputs->len; view->input++)
    if (covers (ebb_frame_input (self, view->input), tensor))
      {
        view->offset = tensor->offset - ebb_frame_input (self, view->input)->offset;
        return TRUE;
      }
  ok = ebb_frame_save_outside (self, &input.saved, &checkpoint_op, tensor, error);
  if (!ok)
    {
      ebb_saved_tensor_clear (&input.saved);
      return FALSE;
    }
  if (tensor->is_parameter)
    input.parameter = ebb_tensor_ref (tensor);
  view->input = self->inputs->len;
  g_array_append_val (self->inputs, input);
  return TRUE;
}

EbbTensor *
ebb_frame_get_input (EbbCheckpointFrame *self,
                     const EbbInputView *view,
                     GError **error)
{
  EbbTensor *tensor = ebb_frame_input (self, view->input)->unpacked;

  if (tensor == NULL)
    {
      tensor = ebb_saved_tensor_unpack (&ebb_frame_input (self, view->input)->saved, &checkpoint_op, error);
      if (tensor == NULL)
        return NULL;
      ebb_frame_input (self, view->input)->unpacked = tensor;
      ebb_frame_input (self, view->input)->version = tensor->storage->version;
      ebb_frame_call_at_end (self);
    }
  if (!ebb_parameter_prepare (tensor, error))
    return NULL;
  if (view->is_parameter || same_view (&tensor->view, &view->view))
    return ebb_tensor_ref (tensor);
  return ebb_tensor_new_view (tensor->storage, tensor->offset + view->offset, view->view.shape, view->view.strides,
                              (guint) view->view.n_dims, view->view.dtype);
}

/* An empty tensor marks the place. */
static EbbTensor *
save_arg (EbbTensor *tensor,
          gpointer data,
          GError **error)
{
  static const gint64 nothing[] = { 0 };
  EbbCheckpointFrame *self = data;
  EbbInputView view;

  if (!ebb_frame_take_input (self, tensor, &view, error))
    {
      g_prefix_error (error, "argument %u: ", self->arg_views->len);
      return NULL;
    }
  if (ebb_frame_get_check (self) == EBB_DETERMINISM_CHECK_VALUES)
    view.checksum = ebb_slot_checksum (tensor);
  g_array_append_val (self->arg_views, view);
  return ebb_tensor_new_uninitialized (nothing, 1, EBB_DTYPE_U8, NULL, error);
}

/* The arguments are saved once it is certain that backward will need something. */
gboolean
ebb_frame_save_args (EbbCheckpointFrame *self,
                     GError **error)
{
  if (self->args == NULL)
    self->args = ebb_args_map_tensors (self->call_args, save_arg, self, error);
  return self->args != NULL;
}

static EbbTensor *
restore_arg (EbbTensor *place,
             gpointer data,
             GError **error)
{
  EbbCheckpointFrame *self = data;
  const EbbInputView view = g_array_index (self->arg_views, EbbInputView, self->next_arg++);
  EbbTensor *tensor = ebb_frame_get_input (self, &view, error);
  EbbTensor *argument;

  if (tensor != NULL && ebb_frame_get_check (self) == EBB_DETERMINISM_CHECK_VALUES
      && ebb_slot_checksum_differs (view.checksum, tensor))
    {
      g_autofree char *shape = ebb_tensor_shape_to_string (tensor);

      g_set_error (error, EBB_ERROR, EBB_ERROR_RECOMPUTE,
                   "argument %u, %s of shape %s, has other values than in the forward; " EBB_RECOMPUTE_CAUSES,
                   self->next_arg - 1, ebb_dtype_get_name (tensor->view.dtype), shape);
      g_clear_pointer (&tensor, ebb_tensor_unref);
    }
  if (tensor == NULL || tensor->is_parameter || tensor->is_buffer)
    return tensor;
  /* The recompute's graph must end here. */
  argument = ebb_tensor_alias (tensor);
  argument->requires_grad = view.needs_grad != FALSE;
  ebb_tensor_unref (tensor);
  return argument;
}

EbbArgs *
ebb_frame_restore_args (EbbCheckpointFrame *self,
                        GError **error)
{
  self->next_arg = 0;
  return ebb_args_map_tensors (self->args, restore_arg, self, error);
}

gboolean
ebb_frame_check_inputs (EbbCheckpointFrame *self,
                        GError **error)
{
  for (guint i = 0; i < self->inputs->len; i++)
    {
      const EbbFrameInput *input = ebb_frame_input (self, i);

      if (input->unpacked != NULL && input->unpacked->storage->version != input->version)
        {
          g_autofree char *shape = ebb_tensor_shape_to_string (input->unpacked);

          return ebb_fail (error, EBB_ERROR_VERSION,
                           "the forward changes a tensor of shape %s in place that it was given or found, so it can't "
                           "be run again from the same values",
                           shape);
        }
    }
  return TRUE;
}
