/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "wrap/shard/state/local-shard-private.h"

#include "dist/agree-private.h"
#include "dist/tensor-parallel/ops-private.h"
#include "tensor/autograd/autograd-private.h"
#include "tensor/ops/pointwise.h"
#include "tensor/ops/shape.h"

#include <string.h>

/* Takes a rank's elements out of full tensors, and makes full tensors of the elements of all ranks. */

/* -- local shards -------------------------------------------------------------------------------------------------- */

static EbbShardSlice
get_slice (const EbbLocalShard *self,
           guint index)
{
  return ebb_shard_slice_of (self->shape, self->n_dims, self->n_elements, &self->split, index);
}

void
ebb_local_shard_init (EbbLocalShard *self,
                      EbbTensor *tensor)
{
  const EbbPartition *partition = tensor->partition;

  *self = (EbbLocalShard){
    .tensor = tensor,
    .slice_shape = tensor->view.shape,
    .n_dims = (guint) tensor->view.n_dims,
    .split = { 0, 1, 1 },
    .n_elements = 1,
  };
  self->unit = ebb_shard_unit_of (tensor, &self->entry);
  if (self->unit != NULL)
    {
      const EbbShardParameter *parameter = &self->unit->layout->parameters[self->entry];

      self->slice_shape = parameter->shape;
      self->n_dims = parameter->n_dims;
    }
  self->shape = self->slice_shape;
  if (partition != NULL && partition->n_parts > 1)
    {
      self->ranks = partition->ranks;
      self->shape = partition->shape;
      self->split = (EbbTensorSplit){ partition->dim, partition->n_sections, partition->n_parts };
      self->index = partition->index;
    }
  for (guint d = 0; d < self->n_dims; d++)
    self->n_elements *= self->shape[d];
  self->slice = get_slice (self, self->index);
  self->end = ebb_shard_slice_count (&self->slice);
  if (self->unit == NULL)
    return;
  self->tensor = self->unit->entries[self->entry].shard;
  ebb_shard_layout_get_range (self->unit->layout, self->entry, ebb_process_group_get_rank (self->unit->group),
                              &self->begin, &self->end);
}

gboolean
ebb_local_shard_is_split (const EbbLocalShard *self)
{
  return self->unit != NULL || self->ranks != NULL;
}

guint
ebb_local_shard_get_shape (const EbbLocalShard *self,
                           gint64 *shape)
{
  if (self->unit != NULL)
    return ebb_shard_layout_get_shape (self->unit->layout, self->entry, ebb_process_group_get_rank (self->unit->group),
                                       shape);
  memcpy (shape, self->slice_shape, self->n_dims * sizeof shape[0]);
  return self->n_dims;
}

gboolean
ebb_local_shard_fits (const EbbLocalShard *self,
                      EbbTensor *tensor)
{
  gint64 shape[EBB_MAX_DIMS];
  const guint n_dims = ebb_local_shard_get_shape (self, shape);

  return ebb_view_has_shape (&tensor->view, shape, n_dims);
}

EbbTensor *
ebb_tensor_to_host (EbbTensor *tensor,
                    GError **error)
{
  g_autoptr (EbbTensor) alias = ebb_tensor_alias (tensor);
  g_autoptr (EbbTensor) contiguous = ebb_contiguous (alias, error);

  return ebb_to_device (contiguous, ebb_device_get_cpu (), error);
}

EbbTensor *
ebb_local_shard_extract (const EbbLocalShard *self,
                         EbbTensor *full,
                         GError **error)
{
  const EbbShardSlice all = ebb_shard_slice_all (self->n_elements);
  g_autoptr (EbbTensor) source = NULL;
  EbbTensor *local;
  gint64 shape[EBB_MAX_DIMS];
  const guint n_dims = ebb_local_shard_get_shape (self, shape);

  if (!ebb_local_shard_is_split (self))
    return ebb_tensor_ref (full);
  source = self->ranks != NULL ? ebb_tensor_to_host (full, error) : ebb_contiguous (full, error);
  if (source == NULL)
    return NULL;
  if (self->ranks == NULL)
    return ebb_tensor_new_view (source->storage, source->offset + self->begin, shape, NULL, n_dims,
                                source->view.dtype);
  local = ebb_tensor_new_uninitialized (shape, n_dims, source->view.dtype, ebb_device_get_cpu (), error);
  if (local != NULL && local->n_elements > 0)
    ebb_shard_slice_copy (&all, 0, self->n_elements, ebb_tensor_get_data (source, NULL), &self->slice, self->begin,
                          self->end, ebb_tensor_get_data (local, NULL), ebb_dtype_get_size (source->view.dtype));
  return local;
}

/* -- full tensors -------------------------------------------------------------------------------------------------- */

/* All that can fail on one rank alone. */
static gboolean
prepare_unit (EbbGatherItem *items,
              EbbTensor **hosts,
              guint n,
              EbbShardUnit *unit,
              GError **error)
{
  for (guint i = 0; i < n; i++)
    {
      const EbbLocalShard *shard = &items[i].shard;

      if (shard->unit != unit)
        continue;
      if (shard->begin < shard->end)
        {
          hosts[i] = ebb_tensor_to_host (items[i].local, error);
          if (hosts[i] == NULL)
            return FALSE;
        }
      items[i].full =
          ebb_tensor_new_empty (shard->slice_shape, shard->n_dims, items[i].dtype, ebb_device_get_cpu (), error);
      if (items[i].full == NULL)
        return FALSE;
    }
  return TRUE;
}

static gboolean
exchange_unit (EbbGatherItem *items,
               EbbTensor **hosts,
               guint n,
               EbbShardUnit *unit,
               GError **error)
{
  const guint n_ranks = ebb_process_group_get_size (unit->group);
  g_autofree EbbCollectivePart *parts = g_new (EbbCollectivePart, n + 1);
  g_autofree gint64 *counts = g_new (gint64, (gsize) n * n_ranks + 1);
  g_autofree char *purpose = g_strdup_printf ("the state of %s", unit->name);
  guint n_parts = 0;

  for (guint i = 0; i < n; i++)
    {
      gint64 *own = counts + (gsize) i * n_ranks;

      if (items[i].shard.unit != unit || ebb_shard_slice_count (&items[i].shard.slice) == 0)
        continue;
      for (guint r = 0; r < n_ranks; r++)
        {
          gint64 begin, end;

          ebb_shard_layout_get_range (unit->layout, items[i].shard.entry, r, &begin, &end);
          own[r] = end - begin;
        }
      parts[n_parts++] = (EbbCollectivePart){ items[i].full, hosts[i], own };
    }
  return n_parts == 0
         || ebb_process_group_run (unit->group, EBB_COLLECTIVE_ALL_GATHER, EBB_REDUCE_OP_SUM, parts, n_parts, 0,
                                   purpose, error);
}

/* Gives all items of @unit the slices that its ranks make up together. */
static gboolean
gather_unit (EbbProcessGroup *all,
             EbbGatherItem *items,
             guint n,
             EbbShardUnit *unit,
             GError *failure,
             GError **error)
{
  g_autofree EbbTensor **hosts = g_new0 (EbbTensor *, n);
  gboolean ok;

  if (failure == NULL)
    prepare_unit (items, hosts, n, unit, &failure);
  ok = ebb_agree_no_failure (all, failure, error) && exchange_unit (items, hosts, n, unit, error);
  for (guint i = 0; i < n; i++)
    g_clear_pointer (&hosts[i], ebb_tensor_unref);
  return ok;
}

/* @slices: those of all ranks, one after the other. */
static void
join_slices (const EbbLocalShard *shard,
             const gint64 *counts,
             EbbTensor *slices,
             EbbTensor *full)
{
  const gsize element = ebb_dtype_get_size (slices->view.dtype);
  const EbbShardSlice all = ebb_shard_slice_all (shard->n_elements);
  const char *from = ebb_tensor_get_data (slices, NULL);

  for (guint r = 0; r < shard->split.n_parts; r++)
    {
      const EbbShardSlice slice = get_slice (shard, r);

      ebb_shard_slice_copy (&slice, 0, counts[r], from, &all, 0, shard->n_elements, ebb_tensor_get_data (full, NULL),
                            element);
      from += (gsize) counts[r] * element;
    }
}

/* Replaces the slice of this rank, @item->full, by the full tensor. */
static gboolean
gather_slices (EbbProcessGroup *all,
               EbbGatherItem *item,
               gboolean keep,
               GError *failure,
               GError **error)
{
  const EbbLocalShard *shard = &item->shard;
  g_autofree gint64 *counts = g_new (gint64, shard->split.n_parts);
  g_autoptr (EbbTensor) own = g_steal_pointer (&item->full);
  g_autoptr (EbbTensor) slices = NULL;
  g_autoptr (EbbTensor) joined = NULL;
  /* Where the slices follow each other in the full tensor, they are the full tensor. */
  const gboolean follows = shard->slice.n_rows == 1;
  EbbCollectivePart part = { .counts = counts };

  if (failure == NULL)
    slices = ebb_tensor_new_empty (shard->shape, shard->n_dims, item->dtype, ebb_device_get_cpu (), &failure);
  if (failure == NULL && keep && !follows)
    joined = ebb_tensor_new_empty (shard->shape, shard->n_dims, item->dtype, ebb_device_get_cpu (), &failure);
  if (!ebb_agree_no_failure (all, failure, error))
    return FALSE;
  for (guint r = 0; r < shard->split.n_parts; r++)
    {
      const EbbShardSlice slice = get_slice (shard, r);

      counts[r] = ebb_shard_slice_count (&slice);
    }
  part.full = slices;
  part.shard = own != NULL && own->n_elements > 0 ? own : NULL;
  if (shard->n_elements > 0
      && !ebb_process_group_run (shard->ranks, EBB_COLLECTIVE_ALL_GATHER, EBB_REDUCE_OP_SUM, &part, 1, 0,
                                 "the state of tensor-parallel ranks", error))
    return FALSE;
  if (joined != NULL && shard->n_elements > 0)
    join_slices (shard, counts, slices, joined);
  if (keep)
    item->full = follows ? g_steal_pointer (&slices) : g_steal_pointer (&joined);
  return TRUE;
}

/* If there is a unit, it has gathered @item->full. */
static gboolean
finish_item (EbbProcessGroup *all,
             EbbGatherItem *item,
             gboolean keep,
             GError **failure,
             GError **error)
{
  item->done = TRUE;
  if (item->shard.unit == NULL && item->local != NULL && *failure == NULL && (keep || item->shard.ranks != NULL))
    item->full = ebb_tensor_to_host (item->local, failure);
  if (item->shard.ranks != NULL)
    return gather_slices (all, item, keep, g_steal_pointer (failure), error);
  if (item->full != NULL && item->local != NULL && item->full->storage == item->local->storage)
    {
      g_autoptr (EbbTensor) same = g_steal_pointer (&item->full);

      item->full = ebb_copy (same, failure);
    }
  if (!keep)
    g_clear_pointer (&item->full, ebb_tensor_unref);
  return TRUE;
}

gboolean
ebb_gather_full_tensors (EbbProcessGroup *all,
                         EbbGatherItem *items,
                         guint n,
                         gboolean keep,
                         GError *failure,
                         GError **error)
{
  EBB_AUTO_NO_GRAD ();
  for (guint i = 0; i < n; i++)
    {
      EbbShardUnit *unit = items[i].shard.unit;

      if (!items[i].done && unit != NULL
          && !gather_unit (all, items + i, n - i, unit, g_steal_pointer (&failure), error))
        return FALSE;
      for (guint k = i; k < n && (k == i || unit != NULL); k++)
        if (!items[k].done && items[k].shard.unit == unit && !finish_item (all, &items[k], keep, &failure, error))
          {
            g_clear_error (&failure);
            return FALSE;
          }
    }
  return ebb_agree_no_failure (all, failure, error);
}

void
ebb_gather_items_free (EbbGatherItem *items,
                       guint n)
{
  for (guint i = 0; i < n; i++)
    g_clear_pointer (&items[i].full, ebb_tensor_unref);
  g_free (items);
}

/* -- slices -------------------------------------------------------------------------------------------------------- */

EbbShardSlice
ebb_shard_slice_of (const gint64 *shape,
                    guint n_dims,
                    gint64 n_elements,
                    const EbbTensorSplit *split,
                    guint index)
{
  gint64 section, n_rows = split->n_sections, inner = 1, first, count;

  if (split->n_parts == 1 || n_elements == 0)
    return ebb_shard_slice_all (n_elements);
  section = shape[split->dim] / split->n_sections;
  for (guint d = 0; d < split->dim; d++)
    n_rows *= shape[d];
  for (guint d = split->dim + 1; d < n_dims; d++)
    inner *= shape[d];
  ebb_parallel_get_part (section, split->n_parts, index, &first, &count);
  return (EbbShardSlice){ n_rows, section * inner, first * inner, (first + count) * inner };
}

gint64
ebb_shard_slice_count (const EbbShardSlice *self)
{
  return self->n_rows * (self->last - self->first);
}

/* The same, of the elements [from, to) of the full tensor; @source_data begins with the one at @from. */
static gint64
copy_stretch (gint64 from,
              gint64 to,
              const char *source_data,
              const EbbShardSlice *target,
              gint64 target_begin,
              gint64 target_end,
              char *target_data,
              gsize element)
{
  const gint64 n = target->last - target->first;
  gint64 copied = 0;

  for (gint64 row = from / target->width; row * target->width < to; row++)
    {
      /* Where the row's elements lie in the full tensor, and which of them are wanted. */
      const gint64 start = row * target->width + target->first, at = row * n;
      const gint64 begin = MAX (MAX (from, start), start + target_begin - at);
      const gint64 end = MIN (MIN (to, start + n), start + target_end - at);

      if (begin >= end)
        continue;
      if (target_data != NULL)
        memcpy (target_data + (gsize) (at + begin - start - target_begin) * element,
                source_data + (gsize) (begin - from) * element, (gsize) (end - begin) * element);
      copied += end - begin;
    }
  return copied;
}

gint64
ebb_shard_slice_copy (const EbbShardSlice *source,
                      gint64 source_begin,
                      gint64 source_end,
                      const void *source_data,
                      const EbbShardSlice *target,
                      gint64 target_begin,
                      gint64 target_end,
                      void *target_data,
                      gsize element)
{
  const gint64 n = source->last - source->first;
  gint64 copied = 0;

  if (target->last <= target->first)
    return 0;
  for (gint64 at = source_begin, next; at < source_end; at = next)
    {
      const gint64 row = at / n, start = row * source->width + source->first - row * n;

      next = MIN (source_end, (row + 1) * n);
      copied +=
          copy_stretch (start + at, start + next, (const char *) source_data + (gsize) (at - source_begin) * element,
                        target, target_begin, target_end, target_data, element);
    }
  return copied;
}
