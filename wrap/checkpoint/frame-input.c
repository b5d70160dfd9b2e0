/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "wrap/checkpoint/frame-private.h"

#include "offload/activation-store-private.h"

#include <string.h>

static const EbbOp door_op = { .name = "checkpoint" };

static gboolean
same_view (const EbbView *a,
           const EbbView *b)
{
  gsize n = sizeof (gint64) * (gsize) a->n_dims;

  return a->n_dims == b->n_dims && memcmp (a->shape, b->shape, n) == 0 && memcmp (a->strides, b->strides, n) == 0;
}

/* Whether @tensor can be found again inside @outer, which comes back with the same strides. */
static gboolean
covers (const EbbOuter *outer,
        EbbTensor *tensor)
{
  gint64 last = 0, n = 1;

  if (outer->birth != tensor->storage->birth || outer->view.dtype != tensor->view.dtype)
    return FALSE;
  if (outer->offset == tensor->offset && same_view (&outer->view, &tensor->view))
    return TRUE;
  if (!ebb_view_is_contiguous (&outer->view))
    return FALSE;
  for (int i = 0; i < outer->view.n_dims; i++)
    n *= outer->view.shape[i];
  for (int i = 0; i < tensor->view.n_dims; i++)
    last += (tensor->view.shape[i] - 1) * tensor->view.strides[i];
  return tensor->offset >= outer->offset && tensor->offset + last < outer->offset + n;
}

gboolean
ebb_frame_save_outside (EbbCheckpointFrame *self,
                        EbbSavedTensor *saved,
                        const EbbOp *op,
                        EbbTensor *tensor,
                        GError **error)
{
  const EbbModes outer = ebb_modes;
  const gboolean compares = ebb_frame_get_check (self) == EBB_DETERMINISM_CHECK_VALUES;
  gboolean ok;

  ebb_modes.hooks = self->outside;
  ebb_modes_set_save_hints (&ebb_modes, (compares ? EBB_SAVE_HINT_COMPARE_VALUES : 0)
                                            | (op != &door_op ? EBB_SAVE_HINT_RESULT : 0));
  ok = ebb_saved_tensor_save (saved, op, tensor, NULL, error);
  ebb_modes_leave_forward (&outer);
  return ok;
}

/* Finds @tensor among the outer ones, or passes it through the door outside. */
gboolean
ebb_frame_find_part (EbbCheckpointFrame *self,
                     EbbTensor *tensor,
                     EbbPart *part,
                     GError **error)
{
  EbbOuter outer = { .view = tensor->view,
                     .offset = tensor->offset,
                     .birth = tensor->storage->birth,
                     .n_bytes = ebb_tensor_get_n_bytes (tensor),
                     .is_parameter = tensor->is_parameter || tensor->is_buffer };
  gboolean ok;

  *part = (EbbPart){ .view = tensor->view, .needs_grad = ebb_tensor_needs_grad (tensor) };
  for (; part->outer < self->outers->len; part->outer++)
    if (covers (ebb_frame_outer (self, part->outer), tensor))
      {
        part->offset = tensor->offset - ebb_frame_outer (self, part->outer)->offset;
        return TRUE;
      }
  ok = ebb_frame_save_outside (self, &outer.saved, &door_op, tensor, error);
  if (!ok)
    {
      ebb_saved_tensor_clear (&outer.saved);
      return FALSE;
    }
  part->outer = self->outers->len;
  g_array_append_val (self->outers, outer);
  return TRUE;
}

EbbTensor *
ebb_frame_get_part (EbbCheckpointFrame *self,
                    const EbbPart *part,
                    GError **error)
{
  EbbTensor *tensor = ebb_frame_outer (self, part->outer)->cached;

  if (tensor == NULL)
    {
      tensor = ebb_saved_tensor_unpack (&ebb_frame_outer (self, part->outer)->saved, &door_op, error);
      if (tensor == NULL)
        return NULL;
      ebb_frame_outer (self, part->outer)->cached = tensor;
      ebb_frame_outer (self, part->outer)->version = tensor->storage->version;
      ebb_frame_call_at_end (self);
    }
  if (same_view (&tensor->view, &part->view))
    return ebb_tensor_ref (tensor);
  return ebb_tensor_new_view (tensor->storage, tensor->offset + part->offset, part->view.shape, part->view.strides,
                              (guint) part->view.n_dims, part->view.dtype);
}

/* An empty tensor marks the place. */
static EbbTensor *
save_arg (EbbTensor *tensor,
          gpointer data,
          GError **error)
{
  static const gint64 nothing[] = { 0 };
  EbbCheckpointFrame *self = data;
  EbbPart part;

  if (!ebb_frame_find_part (self, tensor, &part, error))
    {
      g_prefix_error (error, "argument %u: ", self->parts->len);
      return NULL;
    }
  if (ebb_frame_get_check (self) == EBB_DETERMINISM_CHECK_VALUES)
    part.checksum = ebb_slot_checksum (tensor);
  g_array_append_val (self->parts, part);
  return ebb_tensor_new_uninitialized (nothing, 1, EBB_DTYPE_U8, NULL, error);
}

/* The arguments pass through the door when it is certain that backward will need something. */
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
  const EbbPart part = g_array_index (self->parts, EbbPart, self->next_part++);
  EbbTensor *tensor = ebb_frame_get_part (self, &part, error);
  EbbTensor *argument;

  if (tensor != NULL && ebb_frame_get_check (self) == EBB_DETERMINISM_CHECK_VALUES
      && ebb_slot_checksum_differs (part.checksum, tensor))
    {
      g_autofree char *shape = ebb_tensor_shape_to_string (tensor);

      g_set_error (error, EBB_ERROR, EBB_ERROR_RECOMPUTE,
                   "argument %u, %s of shape %s, has other values than in the forward; " EBB_RECOMPUTE_CAUSES,
                   self->next_part - 1, ebb_dtype_get_name (tensor->view.dtype), shape);
      g_clear_pointer (&tensor, ebb_tensor_unref);
    }
  if (tensor == NULL || tensor->is_parameter || tensor->is_buffer)
    return tensor;
  /* The recompute's graph must end here. */
  argument = ebb_tensor_alias (tensor);
  argument->requires_grad = part.needs_grad != FALSE;
  ebb_tensor_unref (tensor);
  return argument;
}

EbbArgs *
ebb_frame_restore_args (EbbCheckpointFrame *self,
                        GError **error)
{
  self->next_part = 0;
  return ebb_args_map_tensors (self->args, restore_arg, self, error);
}

gboolean
ebb_frame_check_outers (EbbCheckpointFrame *self,
                        GError **error)
{
  for (guint i = 0; i < self->outers->len; i++)
    {
      const EbbOuter *outer = ebb_frame_outer (self, i);

      if (outer->cached != NULL && outer->cached->storage->version != outer->version)
        {
          g_autofree char *shape = ebb_tensor_shape_to_string (outer->cached);

          g_set_error (error, EBB_ERROR, EBB_ERROR_VERSION,
                       "the forward changes a tensor of shape %s in place that it was given or found, so it can't be "
                       "run again from the same values",
                       shape);
          return FALSE;
        }
    }
  return TRUE;
}
