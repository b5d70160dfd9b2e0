/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Prepares the steps of a plan, and applies them to the module tree. */
#include "dist/tensor-parallel/job-private.h"

#include "nn/layers/layer-private.h"
#include "nn/layers/mlp.h"
#include "nn/layers/multi-head-attention.h"
#include "nn/module-instance-private.h"
#include "tensor/tensor-private.h"

static void
step_clear (gpointer data)
{
  EbbParallelStep *step = data;

  g_free (step->path);
  g_clear_object (&step->module);
  g_clear_object (&step->made);
  g_clear_pointer (&step->parameter, ebb_tensor_unref);
}

static void
cut_unref (gpointer cut)
{
  ebb_cut_unref (cut);
}

EbbParallelJob *
ebb_parallel_job_new (EbbModule *root, EbbProcessGroup *group, const EbbParallelPlan *plan, gboolean sequence)
{
  EbbParallelJob *self = g_new0 (EbbParallelJob, 1);

  self->root = g_object_ref (root);
  self->group = g_object_ref (group);
  self->plan = plan;
  self->sequence = sequence;
  self->steps = g_array_new (FALSE, FALSE, sizeof (EbbParallelStep));
  g_array_set_clear_func (self->steps, step_clear);
  self->layers = g_hash_table_new_full (NULL, NULL, NULL, g_free);
  self->cuts = g_hash_table_new_full (NULL, NULL, NULL, cut_unref);
  self->kept_cuts = g_ptr_array_new_with_free_func (cut_unref);
  self->model = ebb_parallel_model_new (group, sequence);
  return self;
}

void
ebb_parallel_job_free (EbbParallelJob *self)
{
  g_array_unref (self->steps);
  g_hash_table_unref (self->layers);
  g_hash_table_unref (self->cuts);
  g_ptr_array_unref (self->kept_cuts);
  ebb_parallel_model_unref (self->model);
  g_object_unref (self->group);
  g_object_unref (self->root);
  g_free (self);
}

/* -- prepare ------------------------------------------------------------------------------------------------------- */

/* Not a reference. A parameter that several modules share is cut once, in one way. */
static EbbCut *
get_cut (EbbParallelJob *self,
         EbbTensor *parameter,
         const char *path,
         const char *name,
         guint dim,
         guint n_sections,
         GError **error)
{
  EbbCut *cut = g_hash_table_lookup (self->cuts, parameter);
  g_autofree char *full = ebb_module_join_path (path, name);

  if (cut == NULL)
    {
      cut = ebb_cut_new (parameter, full, dim, n_sections, self->group, error);
      if (cut != NULL)
        g_hash_table_insert (self->cuts, parameter, cut);
      return cut;
    }
  if (ebb_cut_is_like (cut, dim, n_sections))
    return cut;
  return ebb_fail_null (error, EBB_ERROR_INVALID_ARGUMENT,
                        "%s is shared with another module that the plan divides in another way", full);
}

/* Of codes and scales. */
static gboolean
get_quantized_cuts (EbbParallelJob *self,
                    EbbParallelStep *step,
                    const EbbQuantizedWeight *weight,
                    guint dim,
                    EbbCut *cuts[EBB_PARALLEL_MAX_CUTS],
                    EbbQuantizedWeight *shard,
                    GError **error)
{
  EbbQuantizedCut codes, scales;

  if (!ebb_parallel_quantized_plan (weight, step->path, dim, step->n_sections, self->group, &codes, &scales, shard,
                                    error))
    return FALSE;
  cuts[0] = get_cut (self, weight->codes, step->path, "weight", codes.dim, codes.n_sections, error);
  if (cuts[0] == NULL || scales.n_sections == 0)
    return cuts[0] != NULL;
  cuts[2] = get_cut (self, weight->absmax, step->path, "weight_absmax", scales.dim, scales.n_sections, error);
  return cuts[2] != NULL;
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

/* Makes the parallel form of a Linear or an Embedding from its parameters, which are cut already or will be. @cuts: one
 * each for the weight or its codes, the bias, and the scales of codes; NULL for a tensor that is missing or stays full.
 * @quantized: this rank's shard of a quantised weight; the layer takes references to its tensors. */
static EbbModule *
adopt (EbbModule *old,
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

static gboolean
prepare_layer (EbbParallelJob *self, EbbParallelStep *step, GError **error)
{
  const gboolean is_row = step->style == EBB_PARALLEL_STYLE_ROW || step->style == EBB_PARALLEL_STYLE_ROW_SCATTERED;
  const guint dim = is_row ? 1 : 0;
  EbbLinear *linear = step->style != EBB_PARALLEL_STYLE_VOCAB ? EBB_LINEAR (step->module) : NULL;
  EbbTensor *weight = linear != NULL ? linear->weight : EBB_EMBEDDING (step->module)->weight;
  EbbCut *cuts[EBB_PARALLEL_MAX_CUTS] = { 0 };
  g_autoptr (EbbTensor) nested_index = NULL;
  EbbQuantizedWeight shard = { EBB_QUANTIZATION_NONE };

  if (linear != NULL && ebb_linear_is_quantized (linear))
    {
      const gboolean has_cuts = get_quantized_cuts (self, step, &linear->quantized, dim, cuts, &shard, error);

      nested_index = shard.nested_index; /* the layer takes a reference */
      if (!has_cuts)
        return FALSE;
    }
  else
    cuts[0] = get_cut (self, weight, step->path, "weight", dim, step->n_sections, error);
  if (cuts[0] == NULL)
    return FALSE;
  if (linear != NULL && linear->bias != NULL && !is_row)
    {
      cuts[1] = get_cut (self, linear->bias, step->path, "bias", 0, step->n_sections, error);
      if (cuts[1] == NULL)
        return FALSE;
    }
  step->made = adopt (step->module, step->style, self->model, cuts, &shard, error);
  return step->made != NULL;
}

static gboolean
prepare_parameter (EbbParallelJob *self, EbbParallelStep *step, GError **error)
{
  EbbCut *cut = get_cut (self, step->parameter, "", step->path, 0, 1, error);

  if (cut != NULL)
    g_ptr_array_add (self->kept_cuts, ebb_cut_ref (cut));
  return cut != NULL;
}

static gboolean
prepare_step (EbbParallelJob *self, EbbParallelStep *step, GError **error)
{
  switch (step->style)
    {
    case EBB_PARALLEL_STYLE_COLUMN:
    case EBB_PARALLEL_STYLE_COLUMN_QKV:
    case EBB_PARALLEL_STYLE_COLUMN_GATHERED:
    case EBB_PARALLEL_STYLE_ROW:
    case EBB_PARALLEL_STYLE_ROW_SCATTERED:
    case EBB_PARALLEL_STYLE_VOCAB: return prepare_layer (self, step, error);
    case EBB_PARALLEL_STYLE_PARAMETER: return prepare_parameter (self, step, error);
    case EBB_PARALLEL_STYLE_ATTENTION:
    case EBB_PARALLEL_STYLE_SEQUENCE: return TRUE;
    }
  g_assert_not_reached ();
}

gboolean
ebb_parallel_job_prepare (EbbParallelJob *self, GError **error)
{
  for (guint i = 0; i < self->steps->len; i++)
    {
      EbbParallelStep *step = &g_array_index (self->steps, EbbParallelStep, i);

      if (!prepare_step (self, step, error))
        return FALSE;
    }
  return TRUE;
}

gboolean
ebb_parallel_job_take (EbbParallelJob *self, GError **error)
{
  GHashTableIter iter;
  gpointer cut;

  g_hash_table_iter_init (&iter, self->cuts);
  while (g_hash_table_iter_next (&iter, NULL, &cut))
    if (!ebb_cut_take (cut, error))
      return FALSE;
  return TRUE;
}

/* -- apply --------------------------------------------------------------------------------------------------------- */

/* Replaces a module under each of its names, everywhere in the tree. */
static gboolean
exchange_children (EbbModule *module, const char *path, gpointer user_data)
{
  GHashTable *made = user_data;
  EbbModulePrivate *priv = ebb_module_get_private (module);

  for (guint i = 0; i < priv->n_children; i++)
    {
      EbbModule *child = priv->children[i].module;
      EbbModule *other = child != NULL ? g_hash_table_lookup (made, child) : NULL;

      if (other != NULL)
        ebb_module_register_child (module, priv->children[i].name, other, NULL);
    }
  return TRUE;
}

/* A norm applies its parameters to this rank's shard of the sequence; inside attention, to its heads. */
static gboolean
share_norm (EbbModule *module, const char *path, gpointer user_data)
{
  EbbParallelJob *self = user_data;
  EbbModule *parent = ebb_module_get_private (module)->parent;

  if (ebb_module_is_norm (module) && !(parent != NULL && ebb_parallel_attention_is_installed (parent)))
    ebb_parallel_sequence_share (module, self->model);
  return TRUE;
}

/* Queries, keys and values, or a gate and what it multiplies, are products of one input. */
static gboolean
shares_input (EbbModule *parent)
{
  g_autoptr (EbbModule) queries = parent != NULL ? ebb_module_get_child (parent, "q_proj") : NULL;
  g_autoptr (EbbModule) gate = parent != NULL ? ebb_module_get_child (parent, "gate_proj") : NULL;

  return parent != NULL
         && ((EBB_IS_MULTI_HEAD_ATTENTION (parent) && queries != NULL) || (EBB_IS_MLP (parent) && gate != NULL));
}

static void
share_input (EbbParallelJob *self, EbbParallelStep *step)
{
  EbbModule *parent = ebb_module_get_private (step->module)->parent;

  if (step->style != EBB_PARALLEL_STYLE_COLUMN || !shares_input (parent))
    return;
  EBB_COLUMN_PARALLEL_LINEAR (step->made)->layer.is_entered = TRUE;
  ebb_parallel_input_share (parent, self->model);
}

static void
install_attention (EbbParallelJob *self, EbbModule *attention)
{
  ebb_parallel_attention_install (attention, ebb_parallel_get_heads (attention), self->group);
  ebb_parallel_attention_share_norms (attention, self->model);
}

void
ebb_parallel_job_apply (EbbParallelJob *self)
{
  g_autoptr (GHashTable) made = g_hash_table_new (NULL, NULL);
  GHashTableIter iter;
  gpointer cut;

  for (guint i = 0; i < self->steps->len; i++)
    {
      EbbParallelStep *step = &g_array_index (self->steps, EbbParallelStep, i);

      if (step->made != NULL)
        g_hash_table_insert (made, step->module, step->made);
      share_input (self, step);
      if (step->style == EBB_PARALLEL_STYLE_ATTENTION)
        install_attention (self, step->module);
    }
  for (guint i = 0; self->sequence && i < self->steps->len; i++)
    {
      EbbParallelStep *step = &g_array_index (self->steps, EbbParallelStep, i);

      if (step->style != EBB_PARALLEL_STYLE_SEQUENCE)
        continue;
      ebb_parallel_sequence_install (step->module, self->model);
      ebb_module_visit (step->module, share_norm, self);
    }
  ebb_module_visit (self->root, exchange_children, made);
  g_hash_table_iter_init (&iter, self->cuts);
  while (g_hash_table_iter_next (&iter, NULL, &cut))
    ebb_cut_apply (cut);
}
