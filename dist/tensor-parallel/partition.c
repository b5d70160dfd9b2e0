/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Cuts parameters into shards, and takes shards of full tensors. */
#include "dist/tensor-parallel/partition-private.h"

#include "dist/group/group-private.h"
#include "dist/tensor-parallel/ops-private.h"
#include "tensor/autograd/op-private.h"
#include "tensor/ops/pointwise.h"
#include "tensor/ops/shape.h"

#include <string.h>

struct _EbbCut
{
  EbbPartition partition; /* first: what a parameter points at */
  int ref_count;
  gboolean applied;
  EbbProcessGroup *group;
  EbbTensor *parameter;
  EbbTensor *part, *grad_part; /* until they are the parameter's */
};

/* -- over ranks ---------------------------------------------------------------------------------------------------- */

static gboolean
reduce_over_ranks (EbbPartition *self,
                   EbbReduceKind op,
                   EbbTensor *values,
                   GError **error)
{
  if (self->n_parts == 1)
    return error == NULL || *error == NULL;
  return ebb_process_group_reduce_norms (self->ranks, op, values, "a norm over tensor-parallel shards", error);
}

static const EbbPartitionFuncs partition_funcs = { reduce_over_ranks };

/* -- shard and full------------------------------------------------------------------------------------------------ */

static gint64
get_section (const EbbPartition *partition)
{
  return partition->shape[partition->dim] / partition->n_sections;
}

void
ebb_partition_get_part_shape (const EbbPartition *partition, gint64 *shape)
{
  gint64 first, count;

  ebb_parallel_get_part (get_section (partition), partition->n_parts, partition->index, &first, &count);
  memcpy (shape, partition->shape, partition->n_dims * sizeof (gint64));
  shape[partition->dim] = count * partition->n_sections;
}

/* @tensor, contiguous, with its dimension @dim as [n_sections, ..], of which the second is sharded. */
static EbbTensor *
view_sections (EbbTensor *tensor, const EbbPartition *partition, GError **error)
{
  gint64 shape[EBB_MAX_DIMS + 1];
  guint n = 0;

  if (partition->n_sections == 1)
    return ebb_tensor_alias (tensor);
  for (guint d = 0; d < partition->n_dims; d++)
    {
      gint64 size = ebb_tensor_get_dim (tensor, (int) d);

      if (d == partition->dim)
        {
          shape[n++] = partition->n_sections;
          size /= partition->n_sections;
        }
      shape[n++] = size;
    }
  return ebb_view (tensor, shape, n, error);
}

static int
get_sharded_dim (const EbbPartition *partition)
{
  return (int) partition->dim + (partition->n_sections > 1);
}

static gboolean
check_shape (EbbTensor *tensor, const gint64 *shape, guint n_dims, const char *which, GError **error)
{
  g_autofree char *given = NULL;
  g_autofree char *right = NULL;

  if (ebb_view_has_shape (&tensor->view, shape, n_dims))
    return TRUE;
  given = ebb_tensor_shape_to_string (tensor);
  right = ebb_shape_to_string (shape, n_dims);
  return ebb_fail (error, EBB_ERROR_SHAPE, "%s %s; it must be %s", which, given, right);
}

static EbbTensor *
take (EbbTensor *full, const EbbPartition *partition, const gint64 *shape, GError **error)
{
  g_autoptr (EbbTensor) alias = ebb_tensor_alias (full);
  g_autoptr (EbbTensor) dense = ebb_contiguous (alias, error);
  g_autoptr (EbbTensor) sections = dense != NULL ? view_sections (dense, partition, error) : NULL;
  g_autoptr (EbbTensor) part = NULL;
  g_autoptr (EbbTensor) copy = NULL;
  gint64 first, count;

  ebb_parallel_get_part (get_section (partition), partition->n_parts, partition->index, &first, &count);
  part = ebb_narrow (sections, get_sharded_dim (partition), first, count, error);
  copy = ebb_copy (part, error);
  return copy != NULL ? ebb_reshape (copy, shape, partition->n_dims, error) : NULL;
}

EbbTensor *
ebb_partition_take (EbbTensor *full, const EbbPartition *partition, GError **error)
{
  gint64 shape[EBB_MAX_DIMS];
  EbbTensor *part;

  ebb_partition_get_part_shape (partition, shape);
  if ((error != NULL && *error != NULL)
      || !check_shape (full, partition->shape, partition->n_dims, "the full parameter is", error))
    return NULL;
  ebb_push_grad_enabled (FALSE);
  part = take (full, partition, shape, error);
  ebb_pop_grad_enabled ();
  if (part != NULL)
    part->is_local_shard = TRUE;
  return part;
}

/* -- cuts ---------------------------------------------------------------------------------------------------------- */

static gboolean
describe (EbbPartition *partition,
          EbbTensor *parameter,
          const char *name,
          guint dim,
          guint n_sections,
          EbbProcessGroup *group,
          GError **error)
{
  g_autofree char *shape = NULL;
  guint n_dims = (guint) parameter->view.n_dims, n_parts = ebb_process_group_get_size (group);

  *partition = (EbbPartition){ .funcs = &partition_funcs,
                               .ranks = group,
                               .n_parts = n_parts,
                               .index = ebb_process_group_get_rank (group),
                               .dim = dim,
                               .n_sections = n_sections,
                               .n_dims = n_dims };
  memcpy (partition->shape, parameter->view.shape, n_dims * sizeof (gint64));
  if (dim < n_dims && partition->shape[dim] % n_sections == 0 && get_section (partition) >= n_parts)
    return TRUE;
  shape = ebb_tensor_shape_to_string (parameter);
  if (n_sections > 1)
    return ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT,
                     "%s %s can't be divided among %u ranks along dimension %u in %u equal sections", name, shape,
                     n_parts, dim, n_sections);
  return ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT, "%s %s can't be divided among %u ranks along dimension %u", name,
                   shape, n_parts, dim);
}

EbbCut *
ebb_cut_new (EbbTensor *parameter,
             const char *name,
             guint dim,
             guint n_sections,
             EbbProcessGroup *group,
             GError **error)
{
  g_autoptr (EbbCut) self = NULL;
  EbbPartition partition;

  if (!describe (&partition, parameter, name, dim, n_sections, group, error))
    return NULL;
  self = g_new0 (EbbCut, 1);
  self->partition = partition;
  self->ref_count = 1;
  self->group = g_object_ref (group);
  self->parameter = ebb_tensor_ref (parameter);
  return g_steal_pointer (&self);
}

gboolean
ebb_cut_take (EbbCut *self, GError **error)
{
  EbbTensor *grad = self->parameter->grad;

  self->part = ebb_partition_take (self->parameter, &self->partition, error);
  if (self->part != NULL && grad != NULL)
    self->grad_part = ebb_partition_take (grad, &self->partition, error);
  return self->part != NULL && (grad == NULL || self->grad_part != NULL);
}

void
ebb_cut_apply (EbbCut *self)
{
  EbbTensor *parameter = self->parameter;

  if (self->applied)
    return;
  ebb_tensor_set_grad (parameter, NULL, NULL);
  ebb_tensor_swap_storage (parameter, self->part);
  if (self->grad_part != NULL)
    ebb_tensor_set_grad (parameter, self->grad_part, NULL);
  g_clear_pointer (&self->part, ebb_tensor_unref);
  g_clear_pointer (&self->grad_part, ebb_tensor_unref);
  parameter->partition = &self->partition;
  parameter->is_local_shard = TRUE;
  self->applied = TRUE;
}

gboolean
ebb_cut_is_like (EbbCut *self, guint dim, guint n_sections)
{
  return self->partition.dim == dim && self->partition.n_sections == n_sections;
}

EbbCut *
ebb_cut_ref (EbbCut *self)
{
  __atomic_add_fetch (&self->ref_count, 1, __ATOMIC_RELAXED);
  return self;
}

void
ebb_cut_unref (EbbCut *self)
{
  if (__atomic_sub_fetch (&self->ref_count, 1, __ATOMIC_ACQ_REL) != 0)
    return;
  if (self->applied && self->parameter->partition == &self->partition)
    self->parameter->partition = NULL;
  g_clear_pointer (&self->part, ebb_tensor_unref);
  g_clear_pointer (&self->grad_part, ebb_tensor_unref);
  ebb_tensor_unref (self->parameter);
  g_object_unref (self->group);
  g_free (self);
}
