/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Reduces the gradients of this rank's batch over the ranks into gradients of the shards. */
#include "wrap/shard/unit-private.h"

#include "tensor/autograd/autograd-private.h"
#include "tensor/autograd/leaf-hook-private.h"
#include "tensor/ops/creation.h"
#include "tensor/ops/in-place.h"
#include "tensor/ops/pointwise.h"
#include "tensor/ops/shape.h"
#include "tensor/profile/profiler-private.h"

gboolean
ebb_shard_unit_has_gradients (EbbShardUnit *self)
{
  for (guint i = 0; i < self->n_entries; i++)
    if (*ebb_shard_full_grad (self, &self->entries[i]) != NULL)
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

/* Takes the gradient itself where its dtype and memory allow it. */
static gboolean
take_alone (EbbShardUnit *self,
            guint i,
            EbbTensor **full,
            GError **error)
{
  const EbbShardParameter *parameter = &self->layout->parameters[i];
  EbbDType dtype = get_grad_dtype (self, i);
  g_autoptr (EbbTensor) grad = g_steal_pointer (ebb_shard_full_grad (self, &self->entries[i]));

  if (grad == NULL)
    *full = ebb_zeros (parameter->shape, parameter->n_dims, dtype, self->device, error);
  else if (grad->view.dtype != dtype || !ebb_view_is_contiguous (&grad->view) || !ebb_tensor_is_unshared (grad))
    *full = ebb_tensor_convert (grad, dtype, error);
  else
    *full = g_steal_pointer (&grad);
  return *full != NULL;
}

static gboolean
take_flattened (EbbShardUnit *self,
                guint i,
                EbbTensor **full,
                GError **error)
{
  const EbbShardParameter *parameter = &self->layout->parameters[i];
  g_autoptr (EbbTensor) grad = g_steal_pointer (ebb_shard_full_grad (self, &self->entries[i]));
  g_autoptr (EbbTensor) contiguous = NULL;

  if (*full == NULL)
    *full = ebb_zeros (&self->layout->n_elements[parameter->buffer], 1, get_grad_dtype (self, i), self->device, error);
  if (*full == NULL || grad == NULL)
    return *full != NULL;
  contiguous = ebb_contiguous (grad, error);
  return contiguous != NULL
         && ebb_shard_copy_elements (contiguous, 0, parameter->n_elements, *full, parameter->start, error);
}

/* A buffer in which nothing is trained is left out. */
static gboolean
take_gradients (EbbShardUnit *self,
                GError **error)
{
  for (guint i = 0; i < self->n_entries; i++)
    {
      EbbTensor **full = &self->reduction->full[self->layout->parameters[i].buffer];

      if (!self->entries[i].tensor->requires_grad) /* it may have been frozen since it got a gradient */
        g_clear_pointer (ebb_shard_full_grad (self, &self->entries[i]), ebb_tensor_unref);
      else if (!(self->layout->flatten ? take_flattened : take_alone) (self, i, full, error))
        return FALSE;
    }
  return TRUE;
}

/* A parameter that no rank's graph reached must have no gradient afterwards, rather than zeros, with which an optimizer
 * would decay it. The flags that a rank sends reach every rank. Where all are set, nothing is copied to the device. */
static gboolean
make_flags (EbbShardUnit *self,
            GError **error)
{
  static const guint16 one = 0x3f80;
  const gint64 n = self->n_entries, n_ranks = ebb_process_group_get_size (self->group);
  const gint64 n_all = n * n_ranks;
  gboolean all_present = TRUE;
  g_autofree guint16 *values = g_new0 (guint16, (gsize) n_all + 1);

  self->reduction->present = g_new0 (gboolean, (gsize) n + 1);
  for (gint64 i = 0; i < n_all; i++)
    {
      self->reduction->present[i % n] = !self->entries[i % n].tensor->requires_grad /* nobody asks for it */
                                        || *ebb_shard_full_grad (self, &self->entries[i % n]) != NULL;
      values[i] = self->reduction->present[i % n] ? one : 0;
      all_present = all_present && self->reduction->present[i % n];
    }
  if (self->check_unused != NULL || (n_ranks == 1 && self->replicas == NULL))
    return TRUE;
  self->reduction->flags =
      all_present ? ebb_ones (&n_all, 1, EBB_DTYPE_BF16, self->device, error)
                  : ebb_tensor_new_from_values (values, (gsize) n_all, &n_all, 1, EBB_DTYPE_BF16, self->device, error);
  self->reduction->flag_shard = n_ranks == 1 && self->reduction->flags != NULL
                                    ? ebb_tensor_ref (self->reduction->flags)
                                    : ebb_tensor_new_uninitialized (&n, 1, EBB_DTYPE_BF16, self->device, error);
  return self->reduction->flags != NULL && self->reduction->flag_shard != NULL;
}

/* TRUE if another rank may have a gradient of a trained parameter that this one has none of. */
static gboolean
lacks_gradient (const EbbShardUnit *self,
                const EbbShardReduction *reduction)
{
  for (guint i = 0; i < self->n_entries; i++)
    if (!reduction->present[i] && self->entries[i].tensor->requires_grad)
      return TRUE;
  return FALSE;
}

/* Asked where a backward pass reduces the unit, in the pass or at its end: an optimizer that reduces what passes have
 * left can't say which of them should have given a gradient. */
static gboolean
check_unused (EbbShardUnit *self,
              GError **error)
{
  return self->check_unused == NULL || self->last_pass != ebb_shard_get_thread ()->pass
         || !lacks_gradient (self, self->reduction) || self->check_unused (self->check_data, error);
}

/* To read them, the host waits for the device: only where this rank's own flags don't say enough. */
static gboolean
read_flags (EbbShardUnit *self,
            EbbShardReduction *reduction,
            GError **error)
{
  g_autoptr (EbbTensor) host = NULL;

  if (reduction->flags == NULL || ebb_is_dry () /* a dry run has this rank's own */
      || !lacks_gradient (self, reduction))
    return TRUE;
  host = ebb_to_device (reduction->flag_shard, ebb_device_get_cpu (), error);
  for (guint i = 0; host != NULL && i < self->n_entries; i++)
    reduction->present[i] = ((const guint16 *) host->view.data)[i] != 0;
  return host != NULL;
}

/* TRUE if gradients are divided by a factor before they are summed, and by the rest afterwards; FALSE: the group takes
 * the mean. */
static gboolean
divides_before (const EbbShardUnit *self)
{
  return self->predivide > 0;
}

/* TRUE if the shards are full: the replicas alone have to reduce them. */
static gboolean
is_whole (const EbbShardUnit *self)
{
  return self->replicas != NULL && ebb_process_group_get_size (self->group) == 1;
}

static gboolean
make_shards (EbbShardUnit *self,
             EbbCollectivePart *parts,
             guint *n_parts,
             GError **error)
{
  const guint rank = ebb_process_group_get_rank (self->group);

  *n_parts = 0;
  for (guint i = 0; i < self->reduction->n_buffers; i++)
    {
      EbbTensor *full = self->reduction->full[i];
      const gint64 *counts = ebb_shard_layout_get_counts (self->layout, i);
      const gint64 n = counts[rank];

      if (full == NULL)
        continue;
      if (divides_before (self) && !ebb_tensor_scale (full, 1 / self->predivide, error))
        return FALSE;
      if (n == full->n_elements)
        self->reduction->shards[i] =
            ebb_tensor_new_view (full->storage, full->offset, &n, NULL, 1, full->view.dtype);
      else
        self->reduction->shards[i] = ebb_tensor_new_uninitialized (&n, 1, full->view.dtype, self->device, error);
      if (self->reduction->shards[i] == NULL)
        return FALSE;
      ebb_storage_set_purpose (full->storage, EBB_PURPOSE_GRADIENT);
      ebb_storage_set_purpose (self->reduction->shards[i]->storage, EBB_PURPOSE_GRADIENT);
      self->reduced_bytes += ebb_tensor_get_n_bytes (full);
      parts[(*n_parts)++] = (EbbCollectivePart){
        .full = full,
        .shard = n > 0 ? self->reduction->shards[i] : NULL,
        .counts = counts,
      };
    }
  return TRUE;
}

gboolean
ebb_shard_unit_begin_reduce (EbbShardUnit *self,
                             GError **error)
{
  const guint n = self->layout->n_buffers;
  g_autofree EbbCollectivePart *parts = g_new0 (EbbCollectivePart, n + 2);
  guint n_parts = 0;
  gboolean ok;

  if (!ebb_shard_unit_finish_reduce (self, error))
    return FALSE;
  self->forwarded = FALSE;
  if (!ebb_shard_unit_is_used (self)) /* no pass through a graph that stays will give it more */
    g_ptr_array_remove (ebb_shard_get_thread ()->forwarded, self);
  if (self->state == EBB_SHARD_SHARDED)
    ebb_shard_unit_reshard (self, NULL); /* the cache ends with the passes without sync */
  self->reduction = g_new0 (EbbShardReduction, 1);
  self->reduction->n_buffers = n;
  self->reduction->full = g_new0 (EbbTensor *, n + 1);
  self->reduction->shards = g_new0 (EbbTensor *, n + 1);
  EBB_AUTO_INTERNAL_MODES ();
  ok = make_flags (self, error) && check_unused (self, error) && take_gradients (self, error)
       && make_shards (self, parts, &n_parts, error);
  if (ok && n_parts > 0 && self->reduction->flags != NULL)
    parts[n_parts++] =
        (EbbCollectivePart){ .full = self->reduction->flags, .shard = self->reduction->flag_shard };
  if (ok && n_parts > 0)
    {
      g_autofree char *purpose = g_strdup_printf ("the gradients of %s", self->name);

      for (guint i = 0; is_whole (self) && i < n_parts; i++)
        parts[i] = (EbbCollectivePart){ .full = parts[i].full };
      self->reduction->work = ebb_process_group_start (
          is_whole (self) ? self->replicas : self->group,
          is_whole (self) ? EBB_COLLECTIVE_ALL_REDUCE : EBB_COLLECTIVE_REDUCE_SCATTER,
          divides_before (self) ? EBB_REDUCE_OP_SUM : EBB_REDUCE_OP_MEAN, parts, n_parts, 0, purpose, error);
      ok = self->reduction->work != NULL;
      self->n_reductions++;
    }
  if (ok && n_parts > 0)
    return TRUE;
  if (!ok)
    g_prefix_error (error, "reducing gradients of %s: ", self->name);
  g_clear_pointer (&self->reduction, ebb_shard_reduction_free);
  return ok;
}

/* -- finishing ----------------------------------------------------------------------------------------------------- */

static gboolean
average_over_replicas (EbbShardUnit *self,
                       EbbShardReduction *reduction,
                       GError **error)
{
  g_autofree EbbCollectivePart *parts = g_new0 (EbbCollectivePart, reduction->n_buffers + 2);
  g_autofree char *purpose = NULL;
  guint n = 0;

  if (self->replicas == NULL || is_whole (self))
    return TRUE;
  purpose = g_strdup_printf ("the gradients of %s", self->name);
  for (guint i = 0; i < reduction->n_buffers; i++)
    if (reduction->shards[i] != NULL && reduction->shards[i]->n_elements > 0)
      parts[n++].full = reduction->shards[i];
  parts[n++].full = reduction->flag_shard;
  return ebb_process_group_run (self->replicas, EBB_COLLECTIVE_ALL_REDUCE,
                                divides_before (self) ? EBB_REDUCE_OP_SUM : EBB_REDUCE_OP_MEAN, parts, n, 0, purpose,
                                error);
}

/* Brings the gradients to the device and the dtype of the shards; shards in bf16 may have f32 gradients. */
static gboolean
finish_shards (EbbShardUnit *self,
               EbbShardReduction *reduction,
               GError **error)
{
  const guint n_ranks = ebb_process_group_get_size (self->group)
                        * (self->replicas != NULL ? ebb_process_group_get_size (self->replicas) : 1);

  for (guint i = 0; i < reduction->n_buffers; i++)
    {
      EbbTensor *target = self->buffers[i].shard;
      g_autoptr (EbbTensor) cast = NULL;
      EbbTensor *placed;

      if (reduction->shards[i] == NULL)
        continue;
      if (divides_before (self) && !ebb_tensor_scale (reduction->shards[i], self->predivide / n_ranks, error))
        return FALSE;
      cast = reduction->shards[i]->view.dtype == target->view.dtype || target->view.dtype == EBB_DTYPE_BF16
                 ? ebb_tensor_ref (reduction->shards[i])
                 : ebb_tensor_convert (reduction->shards[i], target->view.dtype, error);
      placed = cast != NULL ? ebb_to_device (cast, target->storage->device, error) : NULL;
      if (placed == NULL)
        return FALSE;
      ebb_storage_set_purpose (placed->storage, EBB_PURPOSE_GRADIENT);
      ebb_tensor_unref (reduction->shards[i]);
      reduction->shards[i] = placed;
    }
  return TRUE;
}

static gboolean
add_gradient (EbbShardUnit *self,
              EbbShardReduction *reduction,
              guint i,
              GError **error)
{
  EbbShardEntry *entry = &self->entries[i];
  EbbTensor **sum = self->state == EBB_SHARD_UNSHARDED ? &entry->stashed_grad : &entry->tensor->grad;
  EbbTensor *shard = reduction->shards[self->layout->parameters[i].buffer];
  g_autoptr (EbbTensor) grad = NULL;
  gint64 offset;

  if (!reduction->present[i] || !entry->tensor->requires_grad || shard == NULL)
    return TRUE;
  offset = ebb_shard_layout_get_shard_offset (self->layout, i, ebb_process_group_get_rank (self->group));
  grad = ebb_tensor_new_view (shard->storage, shard->offset + offset, entry->shard->view.shape, NULL,
                              (guint) entry->shard->view.n_dims, shard->view.dtype);
  if (*sum != NULL)
    return grad->n_elements == 0 || ebb_tensor_add_scaled (*sum, grad, 1, error);
  *sum = g_steal_pointer (&grad);
  return TRUE;
}

gboolean
ebb_shard_unit_finish_reduce (EbbShardUnit *self,
                              GError **error)
{
  EbbShardReduction *reduction = g_steal_pointer (&self->reduction);
  EbbProfileMark mark;
  gint64 before;
  gboolean ok;

  if (reduction == NULL)
    return TRUE;
  EBB_AUTO_INTERNAL_MODES ();
  mark = ebb_profile_push_range ("wait for gradients", EBB_PHASE_BACKWARD);
  before = g_get_monotonic_time ();
  ok = ebb_work_wait (reduction->work, error) && average_over_replicas (self, reduction, error);
  self->seconds += (double) (g_get_monotonic_time () - before) / G_USEC_PER_SEC;
  ebb_profile_pop (mark);
  for (guint i = 0; i < reduction->n_buffers; i++)
    g_clear_pointer (&reduction->full[i], ebb_tensor_unref);
  ok = ok && read_flags (self, reduction, error) && finish_shards (self, reduction, error);
  for (guint i = 0; ok && i < self->n_entries; i++)
    ok = add_gradient (self, reduction, i, error);
  ebb_shard_reduction_free (reduction);
  /* An optimizer that steps in backward updates the shards. */
  for (guint i = 0; ok && self->state == EBB_SHARD_SHARDED && i < self->n_entries; i++)
    if (self->entries[i].tensor->grad != NULL)
      ok = ebb_leaf_notify (self->entries[i].tensor, error);
  if (!ok)
    g_prefix_error (error, "reducing gradients of %s: ", self->name);
  return ok;
}
