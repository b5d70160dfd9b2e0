/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "wrap/shard/unit-private.h"

#include "tensor/autograd/leaf-hook-private.h"
#include "tensor/ops/creation.h"
#include "tensor/ops/in-place.h"
#include "tensor/autograd/autograd-private.h"
#include "tensor/ops/pointwise.h"
#include "tensor/ops/shape.h"
#include "wrap/shard/tensors-private.h"

/* Gradients of this rank's batch become, summed over ranks, gradients of the shards. */

typedef struct _EbbShardReduction
{
  guint n_buffers;
  EbbTensor **wholes; /* by buffer; NULL: nothing in it is trained */
  EbbTensor **pieces;
  EbbTensor *flags; /* bf16 [ranks, entries]: 1 where this rank has a gradient; NULL: there is one rank */
  EbbTensor *flag_piece;
  gboolean *present; /* by entry: some rank has a gradient */
  EbbWork *work;
} Reduction;

static void
reduction_free (Reduction *self)
{
  for (guint i = 0; i < self->n_buffers; i++)
    {
      ebb_tensor_unref (self->wholes[i]);
      ebb_tensor_unref (self->pieces[i]);
    }
  if (self->work != NULL)
    ebb_work_unref (self->work);
  g_clear_pointer (&self->flags, ebb_tensor_unref);
  g_clear_pointer (&self->flag_piece, ebb_tensor_unref);
  g_free (self->present);
  g_free (self->wholes);
  g_free (self->pieces);
  g_free (self);
}

gboolean
ebb_shard_unit_has_gradients (EbbShardUnit *self)
{
  for (guint i = 0; i < self->n_entries; i++)
    if (*ebb_shard_get_whole_grad_place (self, &self->entries[i]) != NULL)
      return TRUE;
  return FALSE;
}

/* -- beginning ----------------------------------------------------------------------------------------------------- */

static EbbDType
get_grad_dtype (EbbShardUnit *self,
                guint entry)
{
  if (self->reduce_dtype >= 0)
    return (EbbDType) self->reduce_dtype;
  return self->lowers ? self->compute_dtype : self->entries[entry].shard->view.dtype;
}

/* The gradient itself where it is as it has to be. */
static gboolean
take_alone (EbbShardUnit *self,
            guint i,
            guint buffer,
            GError **error)
{
  EbbTensor **place = ebb_shard_get_whole_grad_place (self, &self->entries[i]);
  EbbDType dtype = get_grad_dtype (self, i);
  guint n_dims;
  const gint64 *shape = ebb_shard_layout_get_whole_shape (self->layout, i, &n_dims);
  g_autoptr (EbbTensor) grad = g_steal_pointer (place);

  if (grad == NULL)
    self->reduction->wholes[buffer] = ebb_zeros (shape, n_dims, dtype, self->device, error);
  else if (grad->view.dtype != dtype || !ebb_view_is_contiguous (&grad->view) || !ebb_tensor_is_unshared (grad))
    self->reduction->wholes[buffer] = ebb_tensor_convert (grad, dtype, error);
  else
    self->reduction->wholes[buffer] = g_steal_pointer (&grad);
  return self->reduction->wholes[buffer] != NULL;
}

static gboolean
take_flattened (EbbShardUnit *self,
                guint i,
                guint buffer,
                gint64 offset,
                GError **error)
{
  g_autoptr (EbbTensor) grad = g_steal_pointer (ebb_shard_get_whole_grad_place (self, &self->entries[i]));
  const gint64 n = ebb_shard_layout_get_n_elements (self->layout, i);
  g_autoptr (EbbTensor) plain = NULL;

  if (grad == NULL)
    return TRUE;
  plain = ebb_contiguous (grad, error);
  return plain != NULL && ebb_shard_copy_elements (plain, 0, n, self->reduction->wholes[buffer], offset, error);
}

/* A buffer in which nothing is trained stays out. */
static gboolean
take_gradients (EbbShardUnit *self,
                GError **error)
{
  const gboolean flatten = ebb_shard_layout_get_flatten (self->layout);
  EbbTensor **wholes = self->reduction->wholes;

  for (guint i = 0; i < self->n_entries; i++)
    {
      guint buffer;
      gint64 offset, n;

      ebb_shard_layout_locate (self->layout, i, &buffer, &offset);
      if (!self->entries[i].tensor->requires_grad) /* it may have been frozen since it got a gradient */
        {
          g_clear_pointer (ebb_shard_get_whole_grad_place (self, &self->entries[i]), ebb_tensor_unref);
          continue;
        }
      n = ebb_shard_layout_get_buffer_size (self->layout, buffer);
      if (flatten && wholes[buffer] == NULL)
        wholes[buffer] = ebb_zeros (&n, 1, get_grad_dtype (self, i), self->device, error);
      if (flatten ? wholes[buffer] == NULL || !take_flattened (self, i, buffer, offset, error)
                  : !take_alone (self, i, buffer, error))
        return FALSE;
    }
  return TRUE;
}

/* A parameter that no rank's graph led to has no gradient afterwards, rather than zeros, which an optimizer would decay
 * it with. What a rank sends of it comes to every rank. */
static gboolean
make_flags (EbbShardUnit *self,
            GError **error)
{
  static const guint16 one = 0x3f80;
  const gint64 n = self->n_entries, n_ranks = ebb_process_group_get_size (self->group);
  const gint64 n_all = n * n_ranks;
  g_autofree guint16 *values = g_new0 (guint16, (gsize) n_all + 1);

  self->reduction->present = g_new0 (gboolean, (gsize) n + 1);
  for (gint64 i = 0; i < n_all; i++)
    {
      self->reduction->present[i % n] =
          *ebb_shard_get_whole_grad_place (self, &self->entries[i % n]) != NULL;
      values[i] = self->reduction->present[i % n] ? one : 0;
    }
  if (n_ranks == 1 && self->replicas == NULL)
    return TRUE;
  self->reduction->flags = ebb_tensor_new_from_values (values, (gsize) n_all, &n_all, 1,
                                                       EBB_DTYPE_BF16, self->device, error);
  self->reduction->flag_piece = ebb_tensor_new_uninitialized (&n, 1, EBB_DTYPE_BF16, self->device, error);
  return self->reduction->flags != NULL && self->reduction->flag_piece != NULL;
}

static gboolean
read_flags (EbbShardUnit *self,
            Reduction *reduction,
            GError **error)
{
  g_autoptr (EbbTensor) host = NULL;

  if (reduction->flags == NULL)
    return TRUE;
  host = ebb_to_device (reduction->flag_piece, ebb_device_get_cpu (), error);
  for (guint i = 0; host != NULL && i < self->n_entries; i++)
    reduction->present[i] = ((const guint16 *) host->view.data)[i] != 0;
  return host != NULL;
}

/* What the sum is multiplied by when it is there, beside the mean that the group takes. */
static gboolean
divides_before (const EbbShardUnit *self)
{
  return self->predivide > 0;
}

static gboolean
make_pieces (EbbShardUnit *self,
             EbbCollectivePart *parts,
             guint *n_parts,
             GError **error)
{
  const guint rank = ebb_process_group_get_rank (self->group);

  *n_parts = 0;
  for (guint i = 0; i < self->reduction->n_buffers; i++)
    {
      EbbTensor *whole = self->reduction->wholes[i];
      const gint64 *counts = ebb_shard_layout_get_counts (self->layout, i);
      const gint64 n = counts[rank];

      if (whole == NULL)
        continue;
      if (divides_before (self) && !ebb_tensor_scale (whole, 1 / self->predivide, error))
        return FALSE;
      if (n == whole->n_elements)
        self->reduction->pieces[i] =
            ebb_tensor_new_view (whole->storage, whole->offset, &n, NULL, 1, whole->view.dtype);
      else
        self->reduction->pieces[i] = ebb_tensor_new_uninitialized (&n, 1, whole->view.dtype, self->device, error);
      if (self->reduction->pieces[i] == NULL)
        return FALSE;
      ebb_storage_set_purpose (whole->storage, EBB_PURPOSE_GRADIENT);
      ebb_storage_set_purpose (self->reduction->pieces[i]->storage, EBB_PURPOSE_GRADIENT);
      self->reduced_bytes += ebb_tensor_get_n_bytes (whole);
      parts[(*n_parts)++] = (EbbCollectivePart){
        .whole = whole,
        .piece = n > 0 ? self->reduction->pieces[i] : NULL,
        .counts = counts,
      };
    }
  return TRUE;
}

gboolean
ebb_shard_unit_begin_reduce (EbbShardUnit *self,
                             GError **error)
{
  const guint n = ebb_shard_layout_get_n_buffers (self->layout);
  g_autofree EbbCollectivePart *parts = g_new0 (EbbCollectivePart, n + 2);
  guint n_parts = 0;
  EbbThreadModes modes;
  gboolean ok;

  if (!ebb_shard_unit_finish_reduce (self, error))
    return FALSE;
  self->forwarded = FALSE;
  if (self->state == EBB_SHARD_AWAY)
    ebb_shard_unit_reshard (self, NULL); /* nothing is cached beyond the passes without sync */
  self->reduction = g_new0 (Reduction, 1);
  self->reduction->n_buffers = n;
  self->reduction->wholes = g_new0 (EbbTensor *, n + 1);
  self->reduction->pieces = g_new0 (EbbTensor *, n + 1);
  modes = ebb_shard_begin_quiet ();
  ok = make_flags (self, error) && take_gradients (self, error) && make_pieces (self, parts, &n_parts, error);
  if (ok && n_parts > 0 && self->reduction->flags != NULL)
    parts[n_parts++] =
        (EbbCollectivePart){ .whole = self->reduction->flags, .piece = self->reduction->flag_piece };
  if (ok && n_parts > 0)
    {
      g_autofree char *purpose = g_strdup_printf ("the gradients of %s", self->name);

      self->reduction->work = ebb_process_group_start (
          self->group, EBB_COLLECTIVE_REDUCE_SCATTER,
          divides_before (self) ? EBB_REDUCE_OP_SUM : EBB_REDUCE_OP_MEAN, parts, n_parts, 0, purpose, error);
      ok = self->reduction->work != NULL;
      self->n_reductions++;
    }
  ebb_thread_restore_modes (&modes);
  if (ok && n_parts > 0)
    return TRUE;
  if (!ok)
    g_prefix_error (error, "reducing gradients of %s: ", self->name);
  g_clear_pointer (&self->reduction, reduction_free);
  return ok;
}

/* -- ending -------------------------------------------------------------------------------------------------------- */

void
ebb_shard_unit_drop_reduction (EbbShardUnit *self)
{
  Reduction *reduction = g_steal_pointer (&self->reduction);

  if (reduction == NULL)
    return;
  ebb_work_wait (reduction->work, NULL);
  reduction_free (reduction);
}

static gboolean
average_over_replicas (EbbShardUnit *self,
                       Reduction *reduction,
                       GError **error)
{
  g_autofree EbbCollectivePart *parts = g_new0 (EbbCollectivePart, reduction->n_buffers + 2);
  g_autofree char *purpose = NULL;
  guint n = 0;

  if (self->replicas == NULL)
    return TRUE;
  purpose = g_strdup_printf ("the gradients of %s", self->name);
  for (guint i = 0; i < reduction->n_buffers; i++)
    if (reduction->pieces[i] != NULL && reduction->pieces[i]->n_elements > 0)
      parts[n++].whole = reduction->pieces[i];
  parts[n++].whole = reduction->flag_piece;
  return ebb_process_group_run (self->replicas, EBB_COLLECTIVE_ALL_REDUCE,
                                divides_before (self) ? EBB_REDUCE_OP_SUM : EBB_REDUCE_OP_MEAN, parts, n, 0, purpose,
                                error);
}

/* As gradients of shards are: in the shards' type, and where they are. */
static gboolean
finish_pieces (EbbShardUnit *self,
               Reduction *reduction,
               GError **error)
{
  const guint n_ranks = ebb_process_group_get_size (self->group)
                        * (self->replicas != NULL ? ebb_process_group_get_size (self->replicas) : 1);

  for (guint i = 0; i < reduction->n_buffers; i++)
    {
      EbbTensor *target = self->buffers[i].piece;
      g_autoptr (EbbTensor) cast = NULL;
      EbbTensor *placed;

      if (reduction->pieces[i] == NULL)
        continue;
      if (divides_before (self) && !ebb_tensor_scale (reduction->pieces[i], self->predivide / n_ranks, error))
        return FALSE;
      cast = reduction->pieces[i]->view.dtype == target->view.dtype
                 ? ebb_tensor_ref (reduction->pieces[i])
                 : ebb_tensor_convert (reduction->pieces[i], target->view.dtype, error);
      placed = cast != NULL ? ebb_to_device (cast, target->storage->device, error) : NULL;
      if (placed == NULL)
        return FALSE;
      ebb_storage_set_purpose (placed->storage, EBB_PURPOSE_GRADIENT);
      ebb_tensor_unref (reduction->pieces[i]);
      reduction->pieces[i] = placed;
    }
  return TRUE;
}

static gboolean
add_gradient (EbbShardUnit *self,
              Reduction *reduction,
              guint i,
              GError **error)
{
  EbbShardEntry *entry = &self->entries[i];
  EbbTensor **place = ebb_shard_get_shard_grad_place (self, entry);
  g_autoptr (EbbTensor) grad = NULL;
  gint64 offset;
  guint buffer;

  ebb_shard_layout_locate (self->layout, i, &buffer, &offset);
  if (!reduction->present[i] || !entry->tensor->requires_grad || reduction->pieces[buffer] == NULL)
    return TRUE;
  offset = ebb_shard_layout_get_shard_offset (self->layout, i, ebb_process_group_get_rank (self->group));
  grad = ebb_tensor_new_view (reduction->pieces[buffer]->storage, reduction->pieces[buffer]->offset + offset,
                              entry->shard->view.shape, NULL, (guint) entry->shard->view.n_dims,
                              entry->shard->view.dtype);
  if (*place == NULL)
    *place = g_steal_pointer (&grad);
  else if (grad->n_elements > 0 && !ebb_tensor_add_scaled (*place, grad, 1, error))
    return FALSE;
  return TRUE;
}

gboolean
ebb_shard_unit_finish_reduce (EbbShardUnit *self,
                              GError **error)
{
  Reduction *reduction = g_steal_pointer (&self->reduction);
  EbbThreadModes modes;
  gboolean ok;

  if (reduction == NULL)
    return TRUE;
  modes = ebb_shard_begin_quiet ();
  ok = ebb_work_wait (reduction->work, error) && average_over_replicas (self, reduction, error);
  for (guint i = 0; i < reduction->n_buffers; i++)
    g_clear_pointer (&reduction->wholes[i], ebb_tensor_unref);
  ok = ok && read_flags (self, reduction, error) && finish_pieces (self, reduction, error);
  for (guint i = 0; ok && i < self->n_entries; i++)
    ok = add_gradient (self, reduction, i, error);
  reduction_free (reduction);
  /* An optimizer that steps in backward moves the shards. */
  for (guint i = 0; ok && self->state == EBB_SHARD_AWAY && i < self->n_entries; i++)
    if (self->entries[i].tensor->grad != NULL)
      ok = ebb_leaf_notify (self->entries[i].tensor, error);
  ebb_thread_restore_modes (&modes);
  if (!ok)
    g_prefix_error (error, "reducing gradients of %s: ", self->name);
  return ok;
}
