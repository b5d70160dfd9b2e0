/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Common to parallel layers: how their parameters are cut, how they replace other layers, how tensors enter and leave.
 * */
#include "dist/tensor-parallel/layer-private.h"

#include "dist/init.h"
#include "dist/tensor-parallel/ops-private.h"
#include "tensor/ops/pointwise.h"
#include "tensor/thread-private.h"

#define SEQUENCE_DIM 1 /* of [B, T, C] */

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

/* Not built yet: building it makes no parameters. */
static EbbModule *
make_like (EbbModule *old,
           EbbParallelStyle style,
           EbbParallelModel *model,
           EbbParallelLayer **layer)
{
  const gboolean is_row = style == EBB_PARALLEL_STYLE_ROW || style == EBB_PARALLEL_STYLE_ROW_SCATTERED;
  GObject *made;

  if (style == EBB_PARALLEL_STYLE_VOCAB)
    {
      EbbEmbedding *embedding = EBB_EMBEDDING (old);

      made = g_object_new (EBB_TYPE_VOCAB_PARALLEL_EMBEDDING, "num-embeddings", embedding->num_embeddings,
                           "embedding-dim", embedding->embedding_dim, "group", model->group, NULL);
      *layer = &EBB_VOCAB_PARALLEL_EMBEDDING (made)->layer;
    }
  else
    {
      EbbLinear *linear = EBB_LINEAR (old);
      const gboolean flag = style == EBB_PARALLEL_STYLE_ROW || style == EBB_PARALLEL_STYLE_COLUMN_GATHERED;

      made = g_object_new (is_row ? EBB_TYPE_ROW_PARALLEL_LINEAR : EBB_TYPE_COLUMN_PARALLEL_LINEAR, "in-features",
                           linear->in_features, "out-features", linear->out_features, "bias", linear->has_bias,
                           is_row ? "input-is-parallel" : "gather-output", flag, "group", model->group, NULL);
      *layer = is_row ? &EBB_ROW_PARALLEL_LINEAR (made)->layer : &EBB_COLUMN_PARALLEL_LINEAR (made)->layer;
    }
  return EBB_MODULE (made);
}

EbbModule *
ebb_parallel_layer_adopt (EbbModule *old,
                          EbbParallelStyle style,
                          EbbParallelModel *model,
                          EbbCut *const cuts[EBB_PARALLEL_MAX_CUTS],
                          const EbbQuantizedWeight *quantized,
                          GError **error)
{
  EbbParallelLayer *layer;
  g_autoptr (EbbModule) made = make_like (old, style, model, &layer);
  g_auto (GStrv) names = ebb_module_get_parameter_names (old, FALSE);

  layer->adopts = TRUE;
  layer->model = ebb_parallel_model_ref (model);
  for (guint i = 0; i < EBB_PARALLEL_MAX_CUTS; i++)
    if (cuts[i] != NULL)
      layer->cuts[layer->n_cuts++] = ebb_cut_ref (cuts[i]);
  if (!g_initable_init (G_INITABLE (made), NULL, error))
    return NULL;
  for (guint i = 0; names[i] != NULL; i++)
    {
      g_autoptr (EbbTensor) parameter = ebb_module_get_parameter (old, names[i]);

      if (!ebb_module_register_parameter (made, names[i], parameter, error))
        return NULL;
    }
  if (ebb_quantized_weight_is_set (quantized))
    {
      EbbQuantizedWeight taken;

      ebb_quantized_weight_copy (&taken, quantized);
      ebb_linear_take_quantized (EBB_LINEAR (made), &taken);
    }
  ebb_module_set_training (made, ebb_module_get_training (old));
  return g_steal_pointer (&made);
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
    {
      g_set_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT,
                   "%s: its nf4 weight [%" G_GINT64_FORMAT ", %" G_GINT64_FORMAT
                   "] can't be divided among %u ranks along dimension %u: the ranks' shards must be equal and whole "
                   "blocks of %d elements, which int8 does not have",
                   name, weight->n_rows, weight->n_columns, n_ranks, dim, EBB_NF4_BLOCK);
      return FALSE;
    }
  codes->dim = 0;
  codes->n_sections = scales->n_sections = dim == 0 ? n_sections : (guint) weight->n_rows;
  return index_blocks (shard, weight, codes->n_sections, first * inner / EBB_NF4_BLOCK, count * inner / EBB_NF4_BLOCK,
                       size * inner / EBB_NF4_BLOCK, error);
}

/* -- in and out ---------------------------------------------------------------------------------------------------- */

/* Under autocast the product would cast x, so cast it before it is sent. */
static EbbTensor *
lower (EbbTensor *x, GError **error)
{
  EbbDType dtype;

  if (x != NULL && ebb_autocast_get (&dtype) && x->view.dtype == EBB_DTYPE_F32)
    return ebb_cast (x, dtype, error);
  return x != NULL ? ebb_tensor_ref (x) : NULL;
}

static gboolean
check_sequence (EbbTensor *x, GError **error)
{
  g_autofree char *shape = NULL;

  if (x->view.n_dims == 3)
    return TRUE;
  shape = ebb_tensor_shape_to_string (x);
  g_set_error (error, EBB_ERROR, EBB_ERROR_SHAPE,
               "a parallel layer on a sequence shard: x is %s; it must be [B, T, C]", shape);
  return FALSE;
}

EbbTensor *
ebb_parallel_enter (EbbParallelModel *model, EbbProcessGroup *group, EbbTensor *x, GError **error)
{
  g_autoptr (EbbTensor) lowered = NULL;

  if (x == NULL)
    return NULL;
  if (!ebb_parallel_model_is_sequence_sharded (model))
    return ebb_parallel_copy (x, group, error);
  if (!check_sequence (x, error))
    return NULL;
  lowered = lower (x, error);
  return lowered != NULL
             ? ebb_parallel_gather_sized (lowered, SEQUENCE_DIM,
                                          x->view.shape[SEQUENCE_DIM] * ebb_process_group_get_size (group), TRUE,
                                          group, error)
             : NULL;
}

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
             ? ebb_parallel_reduce_scatter (summand, SEQUENCE_DIM, self->group, error)
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
