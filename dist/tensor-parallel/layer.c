/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Common to parallel layers: how their parameters are cut, how tensors enter and leave. */
#include "dist/tensor-parallel/layer-private.h"

#include "dist/init.h"
#include "dist/tensor-parallel/ops-private.h"
#include "tensor/ops/pointwise.h"
#include "tensor/thread-private.h"

/* -- a layer's life ------------------------------------------------------------------------------------------------ */

static gboolean
cut (EbbParallelLayer *self, EbbModule *module, const char *name, guint dim, GError **error)
{
  g_autoptr (EbbTensor) parameter = ebb_module_get_parameter (module, name);
  g_autoptr (EbbCut) made = NULL;

  if (parameter == NULL)
    return TRUE;
  made = ebb_cut_new (parameter, name, dim, 1, self->group, error);
  if (made == NULL || !ebb_cut_take (made, error))
    return FALSE;
  ebb_cut_apply (made);
  self->cuts[self->n_cuts++] = g_steal_pointer (&made);
  return TRUE;
}

gboolean
ebb_parallel_layer_build (EbbParallelLayer *self, EbbModule *module, gpointer parent_class, guint dim, GError **error)
{
  if (self->group == NULL)
    self->group = g_object_ref (ebb_process_group_get_default ());
  return self->adopts
         || (EBB_MODULE_CLASS (parent_class)->build (module, error) && cut (self, module, "weight", dim, error)
             && (dim > 0 || cut (self, module, "bias", dim, error)));
}

static gint64
find_common_divisor (gint64 a,
                     gint64 b)
{
  return b == 0 ? a : find_common_divisor (b, a % b);
}

/* Which nested scale each group of the shard's blocks has: of each of @n_runs runs of @stride blocks it has @run, from
 * @first on. The blocks of a group are of one run and of one nested block. */
static gboolean
index_blocks (EbbQuantizedWeight *shard,
              const EbbQuantizedWeight *weight,
              guint n_runs,
              gint64 first,
              gint64 run,
              gint64 stride,
              GError **error)
{
  const gint64 blocks_per_scale = find_common_divisor (
      EBB_NF4_NESTED_BLOCK, find_common_divisor (run, find_common_divisor (first, stride)));
  const gint64 in_run = run / blocks_per_scale, n = n_runs * in_run;
  g_autofree gint32 *index = g_new (gint32, n);
  g_autoptr (EbbTensor) host = NULL;

  for (gint64 i = 0; i < n; i++)
    index[i] = (gint32) ((i / in_run * stride + first + i % in_run * blocks_per_scale) / EBB_NF4_NESTED_BLOCK);
  shard->blocks_per_scale = blocks_per_scale;
  shard->n_full = weight->n_rows * weight->n_columns;
  shard->nested_index = ebb_tensor_new_uninitialized (&n, 1, EBB_DTYPE_I32, weight->codes->storage->device, error);
  return shard->nested_index != NULL && ebb_tensor_upload (shard->nested_index, index, error);
}

gboolean
ebb_parallel_quantized_plan (const EbbQuantizedWeight *weight,
                             const char *name,
                             guint dim,
                             guint n_sections,
                             EbbProcessGroup *group,
                             EbbQuantizedCut *codes,
                             EbbQuantizedCut *scales,
                             EbbQuantizedWeight *shard,
                             GError **error)
{
  const guint n_ranks = ebb_process_group_get_size (group);
  const gint64 size = dim == 0 ? weight->n_rows / n_sections : weight->n_columns;
  const gint64 inner = dim == 0 ? weight->n_columns : 1; /* elements of the codes to one along @dim */
  gint64 first, count;

  ebb_parallel_get_part (size, n_ranks, ebb_process_group_get_rank (group), &first, &count);
  *shard = *weight;
  *(dim == 0 ? &shard->n_rows : &shard->n_columns) = count * (dim == 0 ? n_sections : 1);
  *codes = (EbbQuantizedCut){ dim, n_sections };
  *scales = (EbbQuantizedCut){ 0, dim == 0 ? n_sections : 0 };
  if (weight->quantization != EBB_QUANTIZATION_NF4)
    return TRUE;
  if (size % n_ranks != 0 || count * inner % EBB_NF4_BLOCK != 0)
    return ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT,
                     "%s: its nf4 weight [%" G_GINT64_FORMAT ", %" G_GINT64_FORMAT
                     "] can't be divided among %u ranks along dimension %u: the ranks' shards must be equal and whole "
                     "blocks of %d elements, which int8 does not have",
                     name, weight->n_rows, weight->n_columns, n_ranks, dim, EBB_NF4_BLOCK);
  codes->dim = 0;
  codes->n_sections = scales->n_sections = dim == 0 ? n_sections : (guint) weight->n_rows;
  return index_blocks (shard, weight, codes->n_sections, first * inner / EBB_NF4_BLOCK, count * inner / EBB_NF4_BLOCK,
                       size * inner / EBB_NF4_BLOCK, error);
}

/* -- in and out ---------------------------------------------------------------------------------------------------- */

EbbTensor *
ebb_parallel_layer_enter (const EbbParallelLayer *self, EbbTensor *x, GError **error)
{
  if (self->is_entered)
    return x != NULL ? ebb_tensor_ref (x) : NULL;
  return ebb_parallel_enter (self->model, self->group, x, error);
}

EbbTensor *
ebb_parallel_layer_leave (const EbbParallelLayer *self, EbbTensor *summand, GError **error)
{
  if (summand == NULL)
    return NULL;
  return ebb_parallel_model_is_sequence_sharded (self->model)
             ? ebb_parallel_reduce_scatter (summand, EBB_SEQUENCE_DIM, self->group, error)
             : ebb_parallel_reduce_over (summand, self->group, NULL, error);
}

void
ebb_parallel_layer_clear (EbbParallelLayer *self)
{
  for (guint i = 0; i < self->n_cuts; i++)
    ebb_cut_unref (self->cuts[i]);
  self->n_cuts = 0;
  g_clear_pointer (&self->model, ebb_parallel_model_unref);
  g_clear_object (&self->group);
}
