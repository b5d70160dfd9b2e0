/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* The weights of GPT-2 and BERT as dictionaries in the format of the published files. Each published tensor is a view
 * of the model's, all of it, transposed, or some of its rows: loading copies to what saving gives. */
#include "nn/args-private.h"
#include "nn/models/bert.h"
#include "nn/models/folder/weights-private.h"
#include "nn/models/gpt-file-private.h"
#include "nn/models/gpt.h"
#include "nn/module-instance-private.h"
#include "nn/state/state-dict-private.h"
#include "tensor/autograd/autograd.h"
#include "tensor/error-private.h"
#include "tensor/ops/shape.h"
#include "tensor/tensor-private.h"

#include <string.h>

typedef struct
{
  const EbbArchitecture *architecture;
  const char *function; /* in errors */
  EbbWeightMap *map;
  GPtrArray *tensors; /* of the module, in the order of the map */
} Published;

static void
add_tensor (const char *name, EbbTensor *tensor, gpointer user_data)
{
  Published *self = user_data;

  ebb_weight_map_add (self->map, name, tensor->view.shape, (guint) tensor->view.n_dims, tensor->view.dtype);
  g_ptr_array_add (self->tensors, tensor);
}

static void
published_init (Published *self, EbbModule *model, const char *model_type, const char *function)
{
  self->architecture = ebb_architectures;
  while (strcmp (self->architecture->model_type, model_type) != 0)
    self->architecture++;
  self->function = function;
  self->map = ebb_weight_map_new (self->architecture);
  self->tensors = g_ptr_array_new ();
  ebb_module_visit_state (model, add_tensor, self);
}

static void
published_clear (Published *self)
{
  g_clear_pointer (&self->map, ebb_weight_map_free);
  g_clear_pointer (&self->tensors, g_ptr_array_unref);
}
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC (Published, published_clear)

static const char *
skip_prefix (const Published *self, const char *name)
{
  const char *prefix = self->architecture->prefix;

  return g_str_has_prefix (name, prefix) ? name + strlen (prefix) : name;
}

/* The views that stand for the published tensors; of tied weights the first. */
static EbbArgs *
make_views (const Published *self, GError **error)
{
  g_autoptr (EbbArgs) views = ebb_args_new (EBB_ARGS_DICT);

  for (guint i = 0; i < self->map->weights->len; i++)
    {
      const EbbWeight *weight = &g_array_index (self->map->weights, EbbWeight, i);
      const EbbWeightPart *part = &weight->parts[0];
      EbbTensor *tensor = g_ptr_array_index (self->tensors, part->tensor);
      g_autoptr (EbbTensor) view = NULL;

      if (weight->transposed)
        view = ebb_transpose (tensor, 0, 1, error);
      else if (part->row != 0 || (tensor->view.n_dims > 0 && part->n_rows != tensor->view.shape[0]))
        view = ebb_narrow (tensor, 0, part->row, part->n_rows, error);
      else
        view = ebb_tensor_ref (tensor);
      if (view == NULL)
        return NULL;
      ebb_args_add_tensor (views, skip_prefix (self, weight->name), view);
    }
  return g_steal_pointer (&views);
}

static EbbTensor *
find_tensor (EbbArgs *state, const char *name)
{
  const int index = ebb_args_find (state, name);

  return index >= 0 ? ebb_args_peek_tensor (state, (guint) index) : NULL;
}

static gboolean
is_ignored (const Published *self, const char *name)
{
  for (const char *const *pattern = self->architecture->ignored; *pattern != NULL; pattern++)
    if (g_pattern_match_simple (*pattern, name))
      return TRUE;
  return FALSE;
}

/* TRUE for the second name of a weight that the model has once. */
static gboolean
is_copy (const Published *self, EbbArgs *views, const char *name)
{
  for (const EbbTiedName *tied = self->architecture->tied; tied->file != NULL; tied++)
    if (strcmp (name, tied->file) == 0)
      return ebb_args_find (views, name) < 0;
  return FALSE;
}

/* The oldest files call a norm's weight and bias gamma and beta. */
static char *
rename_norm (const Published *self, const char *name)
{
  static const char *const ends[][2] = { { ".LayerNorm.gamma", ".LayerNorm.weight" },
                                         { ".LayerNorm.beta", ".LayerNorm.bias" } };

  for (guint i = 0; self->architecture->has_old_norm_names && i < G_N_ELEMENTS (ends); i++)
    if (g_str_has_suffix (name, ends[i][0]))
      return g_strdup_printf ("%.*s%s", (int) (strlen (name) - strlen (ends[i][0])), name, ends[i][1]);
  return g_strdup (name);
}

/* Fails if one of @copies differs from the weight of @state that it is tied to. */
static gboolean
check_copies (const Published *self, EbbArgs *copies, EbbArgs *state, GError **error)
{
  for (const EbbTiedName *tied = self->architecture->tied; tied->file != NULL; tied++)
    for (guint i = 0; i < self->map->weights->len; i++)
      {
        const EbbWeight *weight = &g_array_index (self->map->weights, EbbWeight, i);
        const char *name = skip_prefix (self, weight->name);
        EbbTensor *copy = find_tensor (copies, tied->file), *tensor = find_tensor (state, name);

        if (copy == NULL || tensor == NULL || ebb_weights_have_same_bits (copy, tensor)
            || strcmp (g_array_index (self->map->tensors, EbbModelTensor, weight->parts[0].tensor).name, tied->own)
                   != 0)
          continue;
        return ebb_fail (error, EBB_ERROR_STATE,
                         "%s: %s differs from %s, and the model has one weight for both%s", self->function, tied->file,
                         name, self->architecture->is_bert ? "" : ": make it of a configuration that is not tied");
      }
  return TRUE;
}

/* @state by the names of @views, without what the model has no use for. */
static EbbArgs *
read_state (const Published *self, EbbArgs *views, EbbArgs *state, GError **error)
{
  g_autoptr (EbbArgs) result = ebb_args_new (EBB_ARGS_DICT);
  g_autoptr (EbbArgs) copies = ebb_args_new (EBB_ARGS_DICT);

  for (guint i = 0; i < ebb_args_get_length (state); i++)
    {
      const char *name = ebb_args_get_key (state, i);
      EbbTensor *tensor = ebb_args_peek_tensor (state, i);
      g_autofree char *renamed = NULL;
      EbbArgs *into;

      if (name == NULL || tensor == NULL)
        return ebb_fail_null (error, EBB_ERROR_STATE, "%s: entry %u, \"%s\", is not a tensor", self->function, i,
                              name != NULL ? name : "");
      renamed = rename_norm (self, skip_prefix (self, name));
      if (is_ignored (self, renamed))
        continue;
      into = is_copy (self, views, renamed) ? copies : result;
      if (ebb_args_find (into, renamed) >= 0)
        return ebb_fail_null (
            error, EBB_ERROR_STATE, "%s: %s is there twice, %s%s", self->function, ebb_show_text (renamed),
            self->architecture->is_bert ? "by its old name too" : "with and without ", self->architecture->prefix);
      ebb_args_add_tensor (into, renamed, tensor);
    }
  return check_copies (self, copies, result, error) ? g_steal_pointer (&result) : NULL;
}

static gboolean
check_is_whole (EbbModule *model, const char *advice, GError **error)
{
  return ebb_module_check_full (model, FALSE, advice, error)
         && ebb_module_check_not_tensor_parallel (model, advice, error);
}

static gboolean
load (EbbModule *model, const char *model_type, const char *function, EbbArgs *state, GError **error)
{
  g_auto (Published) self = { NULL };
  g_autoptr (EbbArgs) views = NULL;
  g_autoptr (EbbArgs) source = NULL;
  gboolean loaded;

  if (!check_is_whole (model, "load it before ebb_fully_shard() and ebb_parallelize()", error))
    return FALSE;
  published_init (&self, model, model_type, function);
  ebb_push_grad_enabled (FALSE);
  views = make_views (&self, error);
  source = views != NULL ? read_state (&self, views, state, error) : NULL;
  loaded = source != NULL && ebb_module_load_state_into (model, views, source, TRUE, error);
  ebb_pop_grad_enabled ();
  return loaded;
}

static EbbArgs *
collect (EbbModule *model, const char *model_type, const char *function, GError **error)
{
  g_auto (Published) self = { NULL };
  EbbArgs *views;

  if (!check_is_whole (model,
                       "gather it by ebb_get_full_state_dict(), and load that into a model that is not divided", error))
    return NULL;
  published_init (&self, model, model_type, function);
  ebb_push_grad_enabled (FALSE);
  views = make_views (&self, error);
  ebb_pop_grad_enabled ();
  return views;
}

/* -- GPT-2 --------------------------------------------------------------------------------------------------------- */

/* Models with other modules have folders, see ebb_model_open (). */
static gboolean
check_layout (EbbGpt *self, const char *what, GError **error)
{
  g_autoptr (EbbGptConfig) config = ebb_gpt_get_config (self);

  return config == NULL || config->layout == EBB_GPT_LAYOUT_GPT2
         || ebb_fail (
             error, EBB_ERROR_NOT_SUPPORTED,
             "%s: the model has the layout of Llama, not GPT-2's; ebb_model_open () and ebb_model_save () are for it",
             what);
}

/**
 * ebb_gpt_load_gpt2:
 * @self: a model
 * @state: tensors by name, in the format of the published GPT-2 file
 * @error: return location for an error
 *
 * Loads weights in the format of the published GPT-2 file: matrices inside blocks are `[in, out]`, names may begin with
 * `transformer.`, causal masks are passed over, and so is an `lm_head.weight` that is that of `wte`, where the model's
 * weights are tied; another one is an error there, see ebb_gpt_config_new_from_gpt2(). With an error nothing is
 * changed. A model that is made to be loaded need not draw its weights before, see ebb_push_initialization_skipped().
 *
 * Returns: %TRUE if all was copied, %FALSE with @error set as ebb_module_load_state_dict() does
 */
gboolean
ebb_gpt_load_gpt2 (EbbGpt *self, EbbArgs *state, GError **error)
{
  EBB_RETURN_UNLESS_BEGUN (FALSE, error, self, state);
  g_return_val_if_fail (EBB_IS_GPT (self), FALSE);

  return check_layout (self, "load_gpt2", error) && load (EBB_MODULE (self), "gpt2", "load_gpt2", state, error);
}

/**
 * ebb_gpt_to_gpt2_state:
 * @self: a model
 * @error: return location for an error
 *
 * Collects the weights in the format of the published GPT-2 file, without prefix and masks. The tensors share the
 * model's memory; the matrices inside blocks are transposed views, so they are not contiguous.
 *
 * Returns: (transfer full) (nullable): an %EBB_ARGS_DICT of tensors by name, or %NULL with @error set
 */
EbbArgs *
ebb_gpt_to_gpt2_state (EbbGpt *self, GError **error)
{
  EBB_RETURN_UNLESS_BEGUN (NULL, error, self);
  g_return_val_if_fail (EBB_IS_GPT (self), NULL);

  return check_layout (self, "to_gpt2_state", error) ? collect (EBB_MODULE (self), "gpt2", "to_gpt2_state", error)
                                                     : NULL;
}

/* -- BERT ---------------------------------------------------------------------------------------------------------- */

/**
 * ebb_bert_load_published:
 * @self: a model
 * @state: tensors by name, in the format of the published BERT files
 * @error: return location for an error
 *
 * Loads weights in the format of the published BERT files, as of `bert-base-uncased`: `bert.embeddings.*`,
 * `bert.encoder.layer.N.*`, with queries, keys and values apart, and `cls.predictions.*`. Norms may have `gamma` and
 * `beta`. The pooler, the head of the other task, and what is tied to other weights are passed over; a decoder that
 * differs from the embedding of the words, or its bias from `cls.predictions.bias`, is an error. With an error nothing
 * is changed.
 *
 * Returns: %TRUE if all was copied, %FALSE with @error set as ebb_module_load_state_dict() does
 */
gboolean
ebb_bert_load_published (EbbBert *self, EbbArgs *state, GError **error)
{
  EBB_RETURN_UNLESS_BEGUN (FALSE, error, self, state);
  g_return_val_if_fail (EBB_IS_BERT (self), FALSE);

  return load (EBB_MODULE (self), "bert", "load_published", state, error);
}

/**
 * ebb_bert_to_published_state:
 * @self: a model
 * @error: return location for an error
 *
 * Collects the weights in the format of the published BERT files, see ebb_bert_load_published(). The tensors share the
 * model's memory.
 *
 * Returns: (transfer full) (nullable): an %EBB_ARGS_DICT of tensors by name, or %NULL with @error set
 */
EbbArgs *
ebb_bert_to_published_state (EbbBert *self, GError **error)
{
  EBB_RETURN_UNLESS_BEGUN (NULL, error, self);
  g_return_val_if_fail (EBB_IS_BERT (self), NULL);

  return collect (EBB_MODULE (self), "bert", "to_published_state", error);
}
