/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "wrap/shard/place-private.h"

#include "tensor/autograd/autograd.h"
#include "tensor/ops/pointwise.h"
#include "tensor/ops/shape.h"
#include "dist/agree-private.h"

#include <string.h>

/* The whole's shape and which of its elements the part has; @part_shape is what the tensor or its unit has as a whole.
 */
static void
init_part (EbbLocalShard *self,
           EbbTensor *tensor,
           const gint64 *part_shape,
           guint n_dims)
{
  const EbbPartition *partition = tensor->partition;

  self->shape = self->part_shape = part_shape;
  self->n_dims = n_dims;
  if (partition != NULL && partition->n_parts > 1)
    {
      self->partition = partition;
      self->shape = partition->shape;
      ebb_shard_cut_init (&self->cut, partition->shape, n_dims, partition->dim, partition->n_sections,
                          partition->n_parts, partition->index);
    }
  self->n_elements = 1;
  for (guint d = 0; d < n_dims; d++)
    self->n_elements *= self->shape[d];
  if (self->partition == NULL)
    ebb_shard_cut_init_whole (&self->cut, self->n_elements);
}

void
ebb_local_shard_init (EbbLocalShard *self,
                      EbbTensor *tensor)
{
  const gint64 *shape = tensor->view.shape;
  guint n_dims = (guint) tensor->view.n_dims;

  *self = (EbbLocalShard){ .local = tensor };
  self->unit = ebb_shard_unit_of (tensor, &self->entry);
  if (self->unit != NULL)
    {
      const EbbShardParameter *parameter = &self->unit->layout->parameters[self->entry];

      shape = parameter->shape;
      n_dims = parameter->n_dims;
    }
  init_part (self, tensor, shape, n_dims);
  self->end = ebb_shard_cut_count (&self->cut);
  if (self->unit == NULL)
    return;
  self->local = self->unit->entries[self->entry].shard;
  ebb_shard_layout_get_range (self->unit->layout, self->entry, ebb_process_group_get_rank (self->unit->group),
                              &self->begin, &self->end);
}

gboolean
ebb_local_shard_is_split (const EbbLocalShard *self)
{
  return self->unit != NULL || self->partition != NULL;
}

void
ebb_local_shard_get_shape (const EbbLocalShard *self,
                           gint64 *shape,
                           guint *n_dims)
{
  if (self->unit != NULL)
    {
      *n_dims = ebb_shard_layout_get_shape (self->unit->layout, self->entry,
                                            ebb_process_group_get_rank (self->unit->group), shape);
      return;
    }
  *n_dims = self->n_dims;
  memcpy (shape, self->part_shape, self->n_dims * sizeof shape[0]);
}

gboolean
ebb_local_shard_fits (const EbbLocalShard *self,
                      EbbTensor *tensor)
{
  gint64 shape[EBB_MAX_DIMS];
  guint n_dims;

  ebb_local_shard_get_shape (self, shape, &n_dims);
  return ebb_view_has_shape (&tensor->view, shape, n_dims);
}

static EbbTensor *
copy_part (const EbbLocalShard *self,
           EbbTensor *whole,
           const gint64 *shape,
           guint n_dims,
           GError **error)
{
  g_autoptr (EbbTensor) host = ebb_tensor_to_host (whole, error);
  g_autoptr (EbbTensor) part =
      host != NULL ? ebb_tensor_new_uninitialized (shape, n_dims, host->view.dtype, ebb_device_get_cpu (), error)
                   : NULL;
  EbbShardCut all;

  if (part == NULL)
    return NULL;
  ebb_shard_cut_init_whole (&all, self->n_elements);
  if (part->n_elements > 0)
    ebb_shard_cut_copy (&all, 0, self->n_elements, ebb_tensor_get_data (host, NULL), &self->cut, self->begin, self->end,
                        ebb_tensor_get_data (part, NULL), ebb_dtype_get_size (host->view.dtype));
  return g_steal_pointer (&part);
}

EbbTensor *
ebb_local_shard_slice (const EbbLocalShard *self,
                       EbbTensor *whole,
                       GError **error)
{
  g_autoptr (EbbTensor) contiguous = NULL;
  gint64 shape[EBB_MAX_DIMS];
  guint n_dims;

  if (!ebb_local_shard_is_split (self))
    return ebb_tensor_ref (whole);
  ebb_local_shard_get_shape (self, shape, &n_dims);
  if (self->partition != NULL)
    return copy_part (self, whole, shape, n_dims, error);
  contiguous = ebb_contiguous (whole, error);
  if (contiguous == NULL)
    return NULL;
  return ebb_tensor_new_view (contiguous->storage, contiguous->offset + self->begin, shape, NULL, n_dims,
                              contiguous->view.dtype);
}

EbbTensor *
ebb_tensor_to_host (EbbTensor *tensor,
                    GError **error)
{
  g_autoptr (EbbTensor) alias = ebb_tensor_alias (tensor);
  g_autoptr (EbbTensor) contiguous = ebb_contiguous (alias, error);

  return ebb_to_device (contiguous, ebb_device_get_cpu (), error);
}

/* -- gathering ----------------------------------------------------------------------------------------------------- */

/* All that can fail on one rank alone. */
static gboolean
prepare (guint n,
         const EbbLocalShard *places,
         EbbTensor *const *locals,
         const EbbDType *dtypes,
         EbbTensor **hosts,
         EbbTensor **wholes,
         GError **error)
{
  for (guint i = 0; i < n; i++)
    {
      const EbbLocalShard *place = &places[i];

      if (place->begin < place->end)
        {
          hosts[i] = ebb_tensor_to_host (locals[i], error);
          if (hosts[i] == NULL)
            return FALSE;
        }
      wholes[i] = ebb_tensor_new_empty (place->part_shape, place->n_dims, dtypes[i], ebb_device_get_cpu (), error);
      if (wholes[i] == NULL)
        return FALSE;
    }
  return TRUE;
}

static gboolean
exchange (EbbShardUnit *unit,
          guint n,
          const EbbLocalShard *places,
          EbbTensor **hosts,
          EbbTensor **wholes,
          GError **error)
{
  guint n_ranks = ebb_process_group_get_size (unit->group), n_parts = 0;
  g_autofree EbbCollectivePart *parts = g_new (EbbCollectivePart, n + 1);
  g_autofree gint64 *counts = g_new (gint64, (gsize) n * n_ranks + 1);
  g_autofree char *purpose = NULL;

  for (guint i = 0; i < n; i++)
    {
      gint64 *own = counts + (gsize) i * n_ranks;

      if (ebb_shard_cut_count (&places[i].cut) == 0)
        continue;
      for (guint r = 0; r < n_ranks; r++)
        {
          gint64 begin, end;

          ebb_shard_layout_get_range (unit->layout, places[i].entry, r, &begin, &end);
          own[r] = end - begin;
        }
      parts[n_parts++] = (EbbCollectivePart){ wholes[i], hosts[i], own };
    }
  if (n_parts == 0)
    return TRUE;
  purpose = g_strdup_printf ("the state of %s", unit->name);
  return ebb_process_group_run (unit->group, EBB_COLLECTIVE_ALL_GATHER, EBB_REDUCE_OP_SUM, parts, n_parts, 0, purpose,
                                error);
}

gboolean
ebb_shard_gather (EbbProcessGroup *all,
                  EbbShardUnit *unit,
                  guint n,
                  const EbbLocalShard *places,
                  EbbTensor *const *locals,
                  const EbbDType *dtypes,
                  GError *failure,
                  EbbTensor **wholes,
                  GError **error)
{
  g_autofree EbbTensor **hosts = g_new0 (EbbTensor *, n);
  gboolean ok;

  memset (wholes, 0, n * sizeof *wholes);
  ebb_push_grad_enabled (FALSE);
  if (failure == NULL)
    prepare (n, places, locals, dtypes, hosts, wholes, &failure);
  ok = ebb_agree_no_failure (all, failure, error) && exchange (unit, n, places, hosts, wholes, error);
  ebb_pop_grad_enabled ();
  for (guint i = 0; i < n; i++)
    {
      g_clear_pointer (&hosts[i], ebb_tensor_unref);
      if (!ok)
        g_clear_pointer (&wholes[i], ebb_tensor_unref);
    }
  return ok;
}

/* -- tensor-parallel ranks ----------------------------------------------------------------------------------------- */

static void
init_cut (EbbShardCut *cut,
          const EbbLocalShard *place,
          guint index)
{
  ebb_shard_cut_init (cut, place->shape, place->n_dims, place->partition->dim, place->partition->n_sections,
                      place->partition->n_parts, index);
}

/* @parts: of all ranks, one after the other. */
static void
join_parts (const EbbLocalShard *place,
            EbbTensor *parts,
            EbbTensor *whole)
{
  const gsize element = ebb_dtype_get_size (parts->view.dtype);
  const char *from = ebb_tensor_get_data (parts, NULL);
  EbbShardCut all;

  ebb_shard_cut_init_whole (&all, place->n_elements);
  for (guint r = 0; r < place->partition->n_parts; r++)
    {
      EbbShardCut cut;
      gint64 n;

      init_cut (&cut, place, r);
      n = ebb_shard_cut_count (&cut);
      ebb_shard_cut_copy (&cut, 0, n, from, &all, 0, place->n_elements, ebb_tensor_get_data (whole, NULL), element);
      from += (gsize) n * element;
    }
}

gboolean
ebb_shard_gather_parts (EbbProcessGroup *all,
                        const EbbLocalShard *place,
                        EbbTensor *part,
                        EbbDType dtype,
                        gboolean keep,
                        GError *failure,
                        EbbTensor **whole,
                        GError **error)
{
  const guint n_ranks = place->partition->n_parts;
  g_autofree gint64 *counts = g_new (gint64, n_ranks);
  g_autoptr (EbbTensor) parts = NULL;
  g_autoptr (EbbTensor) joined = NULL;
  /* Where the parts follow each other in the whole, they are the whole. */
  const gboolean follows = place->cut.n_rows == 1;
  EbbCollectivePart call = { .counts = counts };
  gboolean ok = TRUE;

  *whole = NULL;
  ebb_push_grad_enabled (FALSE);
  if (failure == NULL)
    parts = ebb_tensor_new_empty (place->shape, place->n_dims, dtype, ebb_device_get_cpu (), &failure);
  if (failure == NULL && keep && !follows)
    joined = ebb_tensor_new_empty (place->shape, place->n_dims, dtype, ebb_device_get_cpu (), &failure);
  ok = ebb_agree_no_failure (all, failure, error);
  for (guint r = 0; r < n_ranks; r++)
    {
      EbbShardCut cut;

      init_cut (&cut, place, r);
      counts[r] = ebb_shard_cut_count (&cut);
    }
  call.full = parts;
  call.shard = part != NULL && part->n_elements > 0 ? part : NULL;
  if (ok && place->n_elements > 0)
    ok = ebb_process_group_run (place->partition->ranks, EBB_COLLECTIVE_ALL_GATHER, EBB_REDUCE_OP_SUM, &call, 1, 0,
                                "the state of tensor-parallel ranks", error);
  if (ok && joined != NULL && place->n_elements > 0)
    join_parts (place, parts, joined);
  ebb_pop_grad_enabled ();
  if (ok && keep)
    *whole = follows ? g_steal_pointer (&parts) : g_steal_pointer (&joined);
  return ok;
}
