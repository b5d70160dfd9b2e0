/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Loads adapters from PEFT's folders. */
#include "wrap/lora/lora-private.h"

#include "dist/agree-private.h"
#include "dist/init.h"
#include "nn/args-private.h"
#include "nn/files/gguf-private.h"
#include "tensor/util/json-private.h"
#include "nn/files/safetensors.h"
#include "nn/initialization-private.h"
#include "nn/layers/layer-private.h"
#include "nn/models/folder/config-private.h"
#include "nn/models/gpt.h"
#include "tensor/autograd/autograd-private.h"
#include "tensor/dry-run.h"
#include "tensor/error-private.h"
#include "tensor/ops/in-place.h"
#include "tensor/ops/pointwise.h"
#include "tensor/tensor-private.h"
#include "wrap/shard/state/local-shard-private.h"

#include <string.h>

/* Keys of adapter_config.json with values that Ebb has nothing for, beside those that it takes; separated by '|'. */
static const struct
{
  const char *key, *values;
} only[] = {
  { "peft_type", "\"LORA\"" },
  { "bias", "\"none\"|null" },
  { "use_dora", "false|null" },
  { "use_qalora", "false|null" },
  { "use_bdlora", "false|null" },
  { "arrow_config", "null" },
  { "kasa_config", "null" },
  { "lora_ga_config", "null" },
  { "monteclora_config", "null" },
  { "velora_config", "null" },
  { "lora_bias", "false|null" },
  { "modules_to_save", "null|[]" },
  { "rank_pattern", "{}|null" },
  { "alpha_pattern", "{}|null" },
  { "layer_replication", "null" },
  { "trainable_token_indices", "null" },
  { "target_parameters", "null|[]" },
  { "alora_invocation_tokens", "null" },
  { "init_lora_weights", "true|false|\"gaussian\"|null" },
  { "ensure_weight_tying", "false|null" },
  { "megatron_config", "null" },
};

/* Keys that say how an adapter was trained, or that its tensors say again. */
static const char *const other_keys[] = {
  "r", "lora_alpha", "lora_dropout", "use_rslora", /* read_config () takes them */
  "auto_mapping", "base_model_name_or_path", "corda_config", "enable_lora", "eva_config",
  "exclude_modules", "fan_in_fan_out", "inference_mode", "layers_pattern", "layers_to_transform", "loftq_config",
  "megatron_core", "merge_weights", "peft_version", "qalora_group_size", "revision", "target_modules", "task_type",
  "unsloth_fixed", NULL
};

static gboolean
refuse (const char *path,
        const char *key,
        const EbbJson *value,
        const char *right,
        GError **error)
{
  g_autofree char *described = value != NULL ? ebb_json_describe (value) : g_strdup ("missing");

  return ebb_fail (error, EBB_ERROR_NOT_SUPPORTED, "%s: %s is %s: it must be %s", ebb_show_text (path), key, described,
                   right);
}

static gboolean
is_one_of (const EbbJson *value,
           const char *values)
{
  g_auto (GStrv) texts = g_strsplit (values, "|", -1);
  g_autofree char *text = ebb_json_to_line (value);

  return g_strv_contains ((const char *const *) texts, text);
}

/* Refuses a key that nothing here knows, unless its value is one that turns a feature off. */
static gboolean
check_unknown (const char *path,
               const EbbJson *document,
               GError **error)
{
  for (gsize i = 0; i < document->n_items; i++)
    {
      const EbbJson *value = &document->items[i];
      g_autofree char *key = NULL;
      gboolean is_known = g_strv_contains (other_keys, value->key) || is_one_of (value, "null|false|[]|{}");

      for (guint j = 0; !is_known && j < G_N_ELEMENTS (only); j++)
        is_known = strcmp (value->key, only[j].key) == 0;
      if (is_known)
        continue;
      key = ebb_escape_text (value->key);
      return refuse (path, key, value, "null, false, or missing, for the key is not known", error);
    }
  return TRUE;
}

/* Sets rank, alpha, dropout and rslora of @options. */
static gboolean
read_config (const char *path,
             EbbLoraOptions *options,
             GError **error)
{
  g_autoptr (EbbJson) document = ebb_json_read_file (path, EBB_CONFIG_MAX_SIZE, error);
  const EbbJson *value;
  gint64 rank = 0;

  if (document == NULL)
    return FALSE;
  for (guint i = 0; i < G_N_ELEMENTS (only); i++)
    if ((value = ebb_json_get (document, only[i].key)) != NULL ? !is_one_of (value, only[i].values) : i == 0)
      return refuse (path, only[i].key, value, only[i].values, error);
  if (!check_unknown (path, document, error))
    return FALSE;
  value = ebb_json_get (document, "r");
  if (!ebb_json_as_int (value, &rank) || rank < 1 || rank > G_MAXINT)
    return refuse (path, "r", value, "an integer, at least 1", error);
  options->rank = (int) rank;
  value = ebb_json_get (document, "lora_alpha");
  if (!ebb_json_as_double (value, &options->alpha) || !(options->alpha > 0))
    return refuse (path, "lora_alpha", value, "a number above 0", error);
  value = ebb_json_get (document, "lora_dropout");
  if (value != NULL
      && (!ebb_json_as_double (value, &options->dropout) || !(options->dropout >= 0 && options->dropout < 1)))
    return refuse (path, "lora_dropout", value, "a number, at least 0 and below 1", error);
  value = ebb_json_get (document, "use_rslora");
  if (value != NULL && value->kind != EBB_JSON_NULL && !ebb_json_as_boolean (value, &options->rslora))
    return refuse (path, "use_rslora", value, "true or false", error);
  return TRUE;
}

/* A layer, and the numbers of its tensors in the file. */
typedef struct
{
  EbbModule *module; /* not owned */
  int factors[2];    /* A and B */
  int base;          /* the layer's own weight, which PEFT saves of heads; -1: none */
} Found;

typedef struct
{
  const EbbArchitecture *architecture;
  EbbLoraOptions *options;
  EbbArgs *tensors;
  const char *path; /* of the file */
  GArray *layers;   /* of Found */
  GError **error;
} Loading;

static gboolean
check_shape (Loading *loading,
             int index,
             gint64 n_rows,
             gint64 n_columns)
{
  EbbTensor *tensor = ebb_args_peek_tensor (loading->tensors, (guint) index);

  return ebb_view_has_shape (&tensor->view, (gint64[]){ n_rows, n_columns }, 2)
         || ebb_fail (loading->error, EBB_ERROR_SHAPE,
                      "%s: %s is %s: for rank %d and this model it must be [%" G_GINT64_FORMAT ", %" G_GINT64_FORMAT
                      "]",
                      loading->path, ebb_args_get_key (loading->tensors, (guint) index), ebb_show_shape (tensor),
                      loading->options->rank, n_rows, n_columns);
}

/* Finds the tensor with the layer's own weight: PEFT writes it for a head, and would load it into the model. */
static int
find_base (Loading *loading,
           const char *key_a)
{
  g_autofree char *path = g_strndup (key_a, strlen (key_a) - strlen ("lora_A.weight"));
  g_autofree char *key = g_strconcat (path, "base_layer.weight", NULL);

  return ebb_args_find (loading->tensors, key);
}

static gboolean
look_up (EbbModule *module,
         const char *path,
         gpointer user_data)
{
  Loading *loading = user_data;
  g_autofree char *key_a = NULL;
  g_autofree char *key_b = NULL;
  const EbbLinear *linear = (EbbLinear *) module;
  Found found = { module };

  if (!EBB_IS_LINEAR (module) || !ebb_lora_get_keys (loading->architecture, module, path, &key_a, &key_b))
    return TRUE;
  found.factors[0] = ebb_args_find (loading->tensors, key_a);
  found.factors[1] = ebb_args_find (loading->tensors, key_b);
  if (found.factors[0] < 0 || found.factors[1] < 0)
    return TRUE;
  found.base = find_base (loading, key_a);
  g_array_append_val (loading->layers, found);
  return check_shape (loading, found.factors[0], loading->options->rank, linear->in_features)
         && check_shape (loading, found.factors[1], linear->out_features, loading->options->rank)
         && (found.base < 0 || check_shape (loading, found.base, linear->out_features, linear->in_features));
}

/* TRUE if a tensor of the file is of a layer that the model has as several. */
static gboolean
is_of_joined (const EbbArchitecture *architecture,
              const char *key)
{
  for (const EbbNameRule *rule = architecture->block_names; rule->own != NULL; rule++)
    for (const EbbNameRule *other = architecture->block_names; other < rule; other++)
      {
        g_autofree char *part = g_strconcat (".", rule->file, ".lora_", NULL);

        if (strcmp (rule->file, other->file) == 0 && strstr (key, part) != NULL)
          return TRUE;
      }
  return FALSE;
}

static gboolean
has_tied_head (EbbGpt *model)
{
  g_autoptr (EbbGptConfig) config = ebb_gpt_get_config (model);

  return config->tied;
}

/* Every tensor of the file belongs to a layer. */
static gboolean
check_all_used (Loading *loading,
                EbbModule *model,
                GError **error)
{
  const guint n = ebb_args_get_length (loading->tensors);
  g_autofree gboolean *is_used = g_new0 (gboolean, n + 1);

  for (guint i = 0; i < loading->layers->len; i++)
    {
      const Found *found = &g_array_index (loading->layers, Found, i);

      is_used[found->factors[0]] = is_used[found->factors[1]] = TRUE;
      if (found->base >= 0)
        is_used[found->base] = TRUE;
    }
  for (guint i = 0; i < n; i++)
    if (!is_used[i])
      {
        const char *key = ebb_args_get_key (loading->tensors, i);

        if (EBB_IS_GPT (model) && strstr (key, ".lm_head.") != NULL && has_tied_head (EBB_GPT (model)))
          return ebb_fail (error, EBB_ERROR_NOT_SUPPORTED,
                           "%s: %s is of the head, and this model's head has the embedding's weight, so that it takes "
                           "no branch: leave lm_head out of target_modules",
                           loading->path, key);
        if (loading->architecture != NULL && is_of_joined (loading->architecture, key))
          return ebb_fail (error, EBB_ERROR_NOT_SUPPORTED,
                           "%s: %s is of a layer that joins others, which have branches of their own here",
                           loading->path, key);
        return ebb_fail (error, EBB_ERROR_STATE,
                         "%s: %s belongs to no linear layer of this %s: the adapter is of another model", loading->path,
                         key, ebb_module_get_type_name (model));
      }
  return n > 0 || ebb_fail (error, EBB_ERROR_STATE, "%s: there is no tensor in it", loading->path);
}

/* Whether the tensor has the values of the layer's own weight, in the narrower of their types. */
static gboolean
check_base (Loading *loading,
            const Found *found,
            GError **error)
{
  EbbTensor *full = ebb_args_peek_tensor (loading->tensors, (guint) found->base);
  const char *key = ebb_args_get_key (loading->tensors, (guint) found->base);
  EbbTensor *weight = ((EbbLinear *) found->module)->weight;
  EbbLocalShard shard;
  g_autoptr (EbbTensor) part = NULL;
  g_autoptr (EbbTensor) own = NULL;
  g_autoptr (EbbTensor) saved = NULL;
  g_autoptr (EbbTensor) other = NULL;
  EbbDType dtype;

  if (weight == NULL)
    return ebb_fail (error, EBB_ERROR_NOT_SUPPORTED,
                     "%s: %s: the model's weight is quantized, so it can't be compared: leave the tensor out",
                     loading->path, key);
  ebb_local_shard_init (&shard, weight);
  part = ebb_local_shard_extract (&shard, full, error);
  if (part == NULL)
    return FALSE;
  dtype = ebb_dtype_get_size (part->view.dtype) < ebb_dtype_get_size (weight->view.dtype) ? part->view.dtype
                                                                                          : weight->view.dtype;
  own = ebb_cast (shard.tensor, dtype, error);
  saved = own != NULL ? ebb_cast (part, dtype, error) : NULL;
  other = saved != NULL ? ebb_to_device (own, ebb_device_get_cpu (), error) : NULL;
  if (other == NULL)
    return FALSE;
  return ebb_tensor_equal (other, saved)
         || ebb_fail (error, EBB_ERROR_STATE,
                      "%s: %s is not the model's own weight: the adapter was trained over another base", loading->path,
                      key);
}

/* The heads' weights that PEFT saves are those of the model. All ranks that split one succeed, or none does. */
static gboolean
check_bases (Loading *loading,
             GError **error)
{
  GError *failure = NULL; /* the first; ranks agree on it once, after all layers */
  gboolean is_split = FALSE;

  for (guint i = 0; !ebb_is_dry_run () && i < loading->layers->len; i++)
    {
      const Found *found = &g_array_index (loading->layers, Found, i);
      EbbTensor *weight = ((EbbLinear *) found->module)->weight;
      EbbLocalShard shard;

      if (found->base < 0)
        continue;
      if (failure == NULL)
        check_base (loading, found, &failure);
      if (weight != NULL)
        ebb_local_shard_init (&shard, weight);
      is_split = is_split || (weight != NULL && ebb_local_shard_is_split (&shard));
    }
  if (is_split)
    return ebb_agree_no_failure (ebb_process_group_get_default (), failure, error);
  if (failure != NULL)
    g_propagate_error (error, failure);
  return failure == NULL;
}

static gboolean
is_found (EbbModule *layer,
          const char *path,
          gpointer user_data)
{
  const GArray *layers = ((Loading *) user_data)->layers;
  gboolean found = FALSE;

  for (guint i = 0; i < layers->len && !found; i++)
    found = g_array_index (layers, Found, i).module == layer;
  return found;
}

static gboolean
copy_values (Loading *loading,
             GError **error)
{
  gboolean ok = TRUE;

  EBB_AUTO_NO_GRAD ();
  for (guint i = 0; ok && i < loading->layers->len; i++)
    {
      const Found *found = &g_array_index (loading->layers, Found, i);
      const EbbLoraBranch *branch =
          ebb_lora_layer_find (ebb_lora_layer_get (found->module), loading->options->adapter);
      EbbTensor *targets[] = { ebb_lora_factor_get_weight (branch->a), ebb_lora_factor_get_weight (branch->b) };

      for (guint k = 0; ok && k < 2; k++)
        {
          const guint index = (guint) found->factors[k];
          EbbLocalShard shard;
          g_autoptr (EbbTensor) source = NULL;
          g_autoptr (EbbTensor) moved = NULL;

          ebb_local_shard_init (&shard, targets[k]);
          source = ebb_local_shard_extract (&shard, ebb_args_peek_tensor (loading->tensors, index), error);
          moved = source != NULL ? ebb_to_device (source, ebb_tensor_get_device (targets[k]), error) : NULL;
          ok = moved != NULL && ebb_tensor_copy_from (targets[k], moved, error);
        }
    }
  return ok;
}

static gboolean
add_loaded (EbbModule *model,
            Loading *loading,
            GError **error)
{
  g_autofree char *before = ebb_lora_get_adapter (model);
  gboolean added;

  if (!ebb_module_visit (model, look_up, loading) || !check_all_used (loading, model, error)
      || !check_bases (loading, error))
    return FALSE;
  ebb_push_parameters_unset (EBB_DTYPE_F32, EBB_UNSET_WITH_MEMORY);
  added = ebb_lora_model_add (model, loading->options, is_found, loading, error);
  ebb_pop_parameters_unset ();
  if (!added)
    return FALSE;
  if (copy_values (loading, error))
    return TRUE;
  ebb_lora_model_drop_last (model, before);
  return FALSE;
}

/**
 * ebb_lora_load:
 * @model: the model that the adapter was trained with
 * @folder: (type filename): a folder that ebb_lora_save() or PEFT has saved, or a GGUF file
 * @adapter: (nullable): the name that the adapter gets; %NULL for "default"
 * @error: return location for an error
 *
 * Adds a saved adapter to a model as ebb_lora_wrap() adds a new one: it is chosen, and may be trained further.
 *
 * Returns: (transfer full) (nullable): @model; %NULL with %EBB_ERROR_STATE for an adapter of another model,
 *   %EBB_ERROR_SHAPE for one of another rank than its configuration says or other sizes than the model's,
 *   %EBB_ERROR_NOT_SUPPORTED for a configuration that asks for what Ebb does not have, and what ebb_lora_wrap() fails
 *   with
 */
EbbModule *
ebb_lora_load (EbbModule *model,
               const char *folder,
               const char *adapter,
               GError **error)
{
  g_autofree char *config = NULL;
  g_autofree char *weights = NULL;
  g_autofree char *shown = NULL;
  g_autoptr (EbbLoraOptions) options = NULL;
  g_autoptr (EbbArgs) tensors = NULL;
  g_autoptr (GArray) layers = g_array_new (FALSE, FALSE, sizeof (Found));
  Loading loading = { .layers = layers, .error = error };

  g_return_val_if_fail (model == NULL || EBB_IS_MODULE (model), NULL);

  if (!EBB_MAY_BEGIN (error, model, folder))
    return NULL;
  config = g_build_filename (folder, EBB_LORA_CONFIG_FILE, NULL);
  weights = g_build_filename (folder, EBB_LORA_WEIGHTS_FILE, NULL);
  options = g_object_new (EBB_TYPE_LORA_OPTIONS, "adapter", adapter != NULL ? adapter : "default", NULL);
  if (ebb_gguf_is_path (folder))
    tensors = ebb_lora_read_gguf (model, folder, options, error);
  else if (read_config (config, options, error))
    tensors = ebb_load_safetensors (weights, error);
  if (tensors == NULL)
    return NULL;
  loading.architecture = ebb_lora_find_architecture (model);
  loading.options = options;
  loading.tensors = tensors;
  loading.path = shown = ebb_escape_text (ebb_gguf_is_path (folder) ? folder : weights);
  return add_loaded (model, &loading, error) ? g_object_ref (model) : NULL;
}
