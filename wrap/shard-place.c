/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "wrap/shard-place-private.h"

#include "tensor/autograd.h"
#include "tensor/ops/pointwise.h"
#include "tensor/ops/shape.h"
#include "dist/rank-texts-private.h"

#include <string.h>

void
ebb_shard_place_init (EbbShardPlace *self,
                      EbbTensor *tensor)
{
  *self = (EbbShardPlace){ .local = tensor };
  self->unit = ebb_shard_unit_of (tensor, &self->entry);
  if (self->unit == NULL)
    {
      self->shape = tensor->view.shape;
      self->n_dims = (guint) tensor->view.n_dims;
      self->n_elements = self->end = tensor->n_elements;
      return;
    }
  self->local = self->unit->entries[self->entry].shard;
  self->shape = ebb_shard_layout_get_whole_shape (self->unit->layout, self->entry, &self->n_dims);
  self->n_elements = ebb_shard_layout_get_n_elements (self->unit->layout, self->entry);
  ebb_shard_layout_get_range (self->unit->layout, self->entry, ebb_process_group_get_rank (self->unit->group),
                              &self->begin, &self->end);
}

gboolean
ebb_shard_place_speaks (const EbbShardPlace *self,
                        EbbProcessGroup *group)
{
  if (self->unit == NULL)
    return ebb_process_group_get_rank (group) == 0;
  return self->unit->replicas == NULL || ebb_process_group_get_rank (self->unit->replicas) == 0;
}

void
ebb_shard_place_get_shape (const EbbShardPlace *self,
                           gint64 *shape,
                           guint *n_dims)
{
  if (self->unit != NULL)
    {
      *n_dims = ebb_shard_layout_get_shard_n_dims (self->unit->layout, self->entry);
      ebb_shard_layout_get_shape (self->unit->layout, self->entry, ebb_process_group_get_rank (self->unit->group),
                                  shape);
      return;
    }
  *n_dims = self->n_dims;
  memcpy (shape, self->shape, self->n_dims * sizeof shape[0]);
}

gboolean
ebb_shard_place_fits (const EbbShardPlace *self,
                      EbbTensor *tensor)
{
  gint64 shape[EBB_MAX_DIMS];
  guint n_dims;

  ebb_shard_place_get_shape (self, shape, &n_dims);
  return (guint) tensor->view.n_dims == n_dims && memcmp (tensor->view.shape, shape, n_dims * sizeof shape[0]) == 0;
}

EbbTensor *
ebb_shard_place_slice (const EbbShardPlace *self,
                       EbbTensor *whole,
                       GError **error)
{
  g_autoptr (EbbTensor) contiguous = NULL;
  gint64 shape[EBB_MAX_DIMS];
  guint n_dims;

  if (self->unit == NULL)
    return ebb_tensor_ref (whole);
  contiguous = ebb_contiguous (whole, error);
  if (contiguous == NULL)
    return NULL;
  ebb_shard_place_get_shape (self, shape, &n_dims);
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
         const EbbShardPlace *places,
         EbbTensor *const *locals,
         const EbbDType *dtypes,
         EbbTensor **hosts,
         EbbTensor **wholes,
         GError **error)
{
  for (guint i = 0; i < n; i++)
    {
      const EbbShardPlace *place = &places[i];

      if (place->begin < place->end)
        {
          hosts[i] = ebb_tensor_to_host (locals[i], error);
          if (hosts[i] == NULL)
            return FALSE;
        }
      wholes[i] = ebb_tensor_new_empty (place->shape, place->n_dims, dtypes[i], ebb_device_get_cpu (), error);
      if (wholes[i] == NULL)
        return FALSE;
    }
  return TRUE;
}

static gboolean
exchange (EbbShardUnit *unit,
          guint n,
          const EbbShardPlace *places,
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

      if (places[i].n_elements == 0)
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
                  const EbbShardPlace *places,
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
  ok = ebb_ranks_agree (all, failure, error) && exchange (unit, n, places, hosts, wholes, error);
  ebb_pop_grad_enabled ();
  for (guint i = 0; i < n; i++)
    {
      g_clear_pointer (&hosts[i], ebb_tensor_unref);
      if (!ok)
        g_clear_pointer (&wholes[i], ebb_tensor_unref);
    }
  return ok;
}
