/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Gathers and sum-scatters along any dimension. A rank's elements of a dimension that is not the first lie apart in the
 * full tensor: few runs become parts of one call; many are packed first, the ranks' shards one after another. */
#include "dist/group/group-private.h"
#include "dist/tensor-parallel/ops-private.h"
#include "tensor/autograd/op-support-private.h"

#include <string.h>

#define MAX_RUNS 16

/* A full tensor seen around a dimension: [outer, n, inner]. */
typedef struct
{
  gint64 outer, n, inner;
} Around;

void
ebb_parallel_get_part (gint64 n,
                       guint n_parts,
                       guint index,
                       gint64 *first,
                       gint64 *count)
{
  const gint64 least = n / n_parts, longer = n % n_parts;

  *first = least * index + MIN (longer, (gint64) index);
  *count = least + ((gint64) index < longer);
}

static Around
look_around (const EbbView *view,
             int dim)
{
  Around around = { 1, view->shape[dim], 1 };

  for (int i = 0; i < view->n_dims; i++)
    if (i < dim)
      around.outer *= view->shape[i];
    else if (i > dim)
      around.inner *= view->shape[i];
  return around;
}

static gint64 *
count_elements (const Around *around,
                gint64 unit,
                guint size)
{
  gint64 *counts = g_new (gint64, size);

  for (guint r = 0; r < size; r++)
    {
      gint64 first;

      ebb_parallel_get_part (around->n, size, r, &first, &counts[r]);
      counts[r] *= unit;
    }
  return counts;
}

static EbbTensor *
new_run (EbbTensor *tensor,
         gint64 start,
         gint64 length)
{
  return ebb_tensor_new_view (tensor->storage, tensor->offset + start, &length, NULL, 1, tensor->view.dtype);
}

EbbTensor *
ebb_parallel_view_part (EbbTensor *full,
                        int dim,
                        EbbProcessGroup *group)
{
  const guint size = ebb_process_group_get_size (group), rank = ebb_process_group_get_rank (group);
  EbbView view = full->view;
  gint64 first;
  EbbTensor *part;

  ebb_parallel_get_part (view.shape[dim], size, rank, &first, &view.shape[dim]);
  part = ebb_tensor_new_from_view (full, &view, full->offset + first * view.strides[dim]);
  part->is_local_shard = TRUE;
  return part;
}

/* -- sums ---------------------------------------------------------------------------------------------------------- */

gboolean
ebb_parallel_sum (EbbTensor **tensors,
                  guint n_tensors,
                  EbbProcessGroup *group,
                  const char *purpose,
                  GError **error)
{
  g_autofree EbbCollectivePart *parts = g_new0 (EbbCollectivePart, n_tensors);

  for (guint i = 0; i < n_tensors; i++)
    parts[i].full = tensors[i];
  return ebb_process_group_run (group, EBB_COLLECTIVE_ALL_REDUCE, EBB_REDUCE_OP_SUM, parts, n_tensors, 0, purpose,
                                error);
}

/* -- along a dimension --------------------------------------------------------------------------------------------- */

/* Each run of the outer dimensions is a part. */
static gboolean
move_runs (EbbCollective which,
           EbbTensor *full,
           EbbTensor *shard,
           const Around *around,
           EbbProcessGroup *group,
           const char *purpose,
           GError **error)
{
  const guint n = (guint) around->outer;
  const gint64 long_run = around->n * around->inner, short_run = shard->n_elements / MAX (around->outer, 1);
  g_autofree gint64 *counts = count_elements (around, around->inner, ebb_process_group_get_size (group));
  EbbCollectivePart parts[MAX_RUNS];
  gboolean ok;

  if (n == 1)
    {
      parts[0] = (EbbCollectivePart){ full, shard, counts };
      return ebb_process_group_run (group, which, EBB_REDUCE_OP_SUM, parts, 1, 0, purpose, error);
    }
  for (guint i = 0; i < n; i++)
    parts[i] = (EbbCollectivePart){ new_run (full, i * long_run, long_run), new_run (shard, i * short_run, short_run),
                                    counts };
  ok = ebb_process_group_run (group, which, EBB_REDUCE_OP_SUM, parts, n, 0, purpose, error);
  for (guint i = 0; i < n; i++)
    {
      ebb_tensor_unref (parts[i].full);
      ebb_tensor_unref (parts[i].shard);
    }
  return ok;
}

/* Copies between @full and @packed, in which the ranks' shards follow each other. */
static gboolean
pack (EbbTensor *full,
      EbbTensor *packed,
      const Around *around,
      guint size,
      gboolean from_full,
      GError **error)
{
  for (guint r = 0; r < size; r++)
    {
      gint64 first, count;
      g_autoptr (EbbTensor) apart = NULL;
      g_autoptr (EbbTensor) together = NULL;

      ebb_parallel_get_part (around->n, size, r, &first, &count);
      apart = ebb_tensor_new_view (full->storage, full->offset + first * around->inner,
                                   (gint64[]){ around->outer, count, around->inner },
                                   (gint64[]){ around->n * around->inner, around->inner, 1 }, 3, full->view.dtype);
      together = ebb_tensor_new_view (packed->storage, packed->offset + first * around->outer * around->inner,
                                      (gint64[]){ around->outer, count, around->inner }, NULL, 3, full->view.dtype);
      if (!(from_full ? ebb_launch_copy (apart, together, error) : ebb_launch_copy (together, apart, error)))
        return FALSE;
    }
  return TRUE;
}

static gboolean
move_packed (EbbCollective which,
             EbbTensor *full,
             EbbTensor *shard,
             const Around *around,
             EbbProcessGroup *group,
             const char *purpose,
             GError **error)
{
  const guint size = ebb_process_group_get_size (group);
  const gboolean from_full = which == EBB_COLLECTIVE_REDUCE_SCATTER;
  g_autofree gint64 *counts = count_elements (around, around->outer * around->inner, size);
  g_autoptr (EbbTensor) packed = ebb_tensor_new_uninitialized (
      full->view.shape, (guint) full->view.n_dims, full->view.dtype, full->storage->device, error);
  EbbCollectivePart part = { packed, shard, counts };

  return packed != NULL && (!from_full || pack (full, packed, around, size, TRUE, error))
         && ebb_process_group_run (group, which, EBB_REDUCE_OP_SUM, &part, 1, 0, purpose, error)
         && (from_full || pack (full, packed, around, size, FALSE, error));
}

gboolean
ebb_parallel_move (EbbCollective which,
                   EbbTensor *full,
                   EbbTensor *shard,
                   int dim,
                   EbbProcessGroup *group,
                   const char *purpose,
                   GError **error)
{
  const Around around = look_around (&full->view, dim);

  return around.outer >= 1 && around.outer <= MAX_RUNS
             ? move_runs (which, full, shard, &around, group, purpose, error)
             : move_packed (which, full, shard, &around, group, purpose, error);
}
