/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Quantised weights in files as bitsandbytes names them, and config.json's "quantization_config" as transformers has
 * it. Of nf4, beside "weight": "weight.absmax", "weight.nested_absmax", "weight.nested_quant_map", "weight.quant_map"
 * with the code book, and "weight.quant_state.bitsandbytes__nf4", JSON with the rest. Of int8: "SCB" and
 * "weight_format". */
#include "nn/models/folder/config-private.h"
#include "nn/models/folder/weights-private.h"

#include "nn/layers/layer-private.h"
#include "tensor/error-private.h"
#include "tensor/ops/pointwise.h"
#include "tensor/thread-private.h"

#include <math.h>
#include <string.h>

#define CONFIG_KEY "quantization_config"
#define QUANT_STATE "weight.quant_state.bitsandbytes__nf4"
#define MAX_QUANT_STATE ((gint64) 65536) /* bytes */
#define MAX_SHOWN 200

/* -- config.json --------------------------------------------------------------------------------------------------- */

/* A missing flag is FALSE. */
static gboolean
read_flag (const EbbConfigSource *source,
           const EbbJson *config,
           const char *key,
           gboolean *value,
           GError **error)
{
  const EbbJson *json = ebb_json_get (config, key);

  *value = FALSE;
  return json == NULL || json->kind == EBB_JSON_NULL || ebb_json_as_boolean (json, value)
         || ebb_config_refuse (source, CONFIG_KEY, key, json, "true or false", error);
}

static gboolean
check_string (const EbbConfigSource *source,
              const EbbJson *config,
              const char *key,
              const char *usual,
              const char *wanted,
              GError **error)
{
  const EbbJson *json = ebb_json_get (config, key);
  g_autofree char *right = NULL;
  const char *value = usual;

  if ((json == NULL || json->kind == EBB_JSON_NULL || ebb_json_as_string (json, &value))
      && g_strcmp0 (value, wanted) == 0)
    return TRUE;
  right = g_strdup_printf ("\"%s\"", wanted);
  return ebb_config_refuse (source, CONFIG_KEY, key, json, right, error);
}

/* Heads stay anyway. */
static gboolean
check_skipped (const EbbConfigSource *source,
               const EbbJson *config,
               GError **error)
{
  const EbbJson *json = ebb_json_get (config, "llm_int8_skip_modules");
  gboolean ok = json == NULL || json->kind == EBB_JSON_NULL || json->kind == EBB_JSON_LIST;

  for (gsize i = 0; ok && json != NULL && i < json->n_items; i++)
    ok = json->items[i].kind == EBB_JSON_STRING && strcmp (json->items[i].text, "lm_head") == 0;
  return ok || ebb_config_refuse (source, CONFIG_KEY, "llm_int8_skip_modules", json, "null or [\"lm_head\"]", error);
}

static gboolean
check_nf4 (const EbbConfigSource *source,
           const EbbJson *config,
           GError **error)
{
  gboolean is_double;

  if (!check_string (source, config, "bnb_4bit_quant_type", "fp4", "nf4", error)
      || !check_string (source, config, "bnb_4bit_quant_storage", "uint8", "uint8", error)
      || !read_flag (source, config, "bnb_4bit_use_double_quant", &is_double, error))
    return FALSE;
  return is_double
         || ebb_config_refuse (source, CONFIG_KEY, "bnb_4bit_use_double_quant",
                               ebb_json_get (config, "bnb_4bit_use_double_quant"), "true", error);
}

/* Refuses a key that nothing here knows, unless its value turns a feature off, and values of other types than the keys
 * have that say how a layer computes. */
static gboolean
check_others (const EbbConfigSource *source,
              const EbbJson *config,
              GError **error)
{
  /* These say how others compute with the weights, or what was asked for when they were made. */
  static const char *const known[] = {
    "_load_in_4bit", "_load_in_8bit", "bnb_4bit_compute_dtype", "bnb_4bit_quant_storage", "bnb_4bit_quant_type",
    "bnb_4bit_use_double_quant", "llm_int8_enable_fp32_cpu_offload", "llm_int8_has_fp16_weight",
    "llm_int8_skip_modules", "llm_int8_threshold", "load_in_4bit", "load_in_8bit", "quant_method", NULL
  };
  const EbbJson *threshold = ebb_json_get (config, "llm_int8_threshold");
  const EbbJson *dtype = ebb_json_get (config, "bnb_4bit_compute_dtype");
  gboolean flag;
  double number;
  const char *name;

  if (threshold != NULL && threshold->kind != EBB_JSON_NULL && !ebb_json_as_double (threshold, &number))
    return ebb_config_refuse (source, CONFIG_KEY, "llm_int8_threshold", threshold, "a number", error);
  if (dtype != NULL && dtype->kind != EBB_JSON_NULL && !ebb_json_as_string (dtype, &name))
    return ebb_config_refuse (source, CONFIG_KEY, "bnb_4bit_compute_dtype", dtype, "the name of a type", error);
  for (gsize i = 0; i < config->n_items; i++)
    {
      const EbbJson *value = &config->items[i];
      g_autofree char *key = NULL;

      if (g_strv_contains (known, value->key) || value->kind == EBB_JSON_NULL
          || (ebb_json_as_boolean (value, &flag) && !flag)
          || ((value->kind == EBB_JSON_LIST || value->kind == EBB_JSON_OBJECT) && value->n_items == 0))
        continue;
      key = ebb_escape_text (value->key);
      return ebb_config_refuse (source, CONFIG_KEY, key, value, "null, false, or missing, for the key is not known",
                                error);
    }
  return TRUE;
}

gboolean
ebb_config_read_quantization (const EbbConfigSource *source,
                              EbbQuantization *quantization,
                              GError **error)
{
  const EbbJson *config = ebb_json_get (source->document, CONFIG_KEY);
  gboolean in_4_bits, in_8_bits, has_fp16;

  *quantization = EBB_QUANTIZATION_NONE;
  if (config == NULL || config->kind == EBB_JSON_NULL)
    return TRUE;
  if (config->kind != EBB_JSON_OBJECT)
    return ebb_config_refuse (source, NULL, CONFIG_KEY, config, "an object or null", error);
  if (!check_string (source, config, "quant_method", NULL, "bitsandbytes", error)
      || !read_flag (source, config, "load_in_4bit", &in_4_bits, error)
      || !read_flag (source, config, "load_in_8bit", &in_8_bits, error)
      || !read_flag (source, config, "llm_int8_has_fp16_weight", &has_fp16, error)
      || !check_skipped (source, config, error) || !check_others (source, config, error))
    return FALSE;
  if (in_4_bits == in_8_bits)
    return ebb_config_refuse (source, CONFIG_KEY, "load_in_4bit", ebb_json_get (config, "load_in_4bit"),
                              in_8_bits ? "false where load_in_8bit is true" : "true, or load_in_8bit must be", error);
  if (has_fp16)
    return ebb_config_refuse (source, CONFIG_KEY, "llm_int8_has_fp16_weight",
                              ebb_json_get (config, "llm_int8_has_fp16_weight"), "false", error);
  *quantization = in_4_bits ? EBB_QUANTIZATION_NF4 : EBB_QUANTIZATION_INT8;
  return !in_4_bits || check_nf4 (source, config, error);
}

void
ebb_config_write_quantization (EbbQuantization quantization,
                               EbbDType dtype,
                               EbbJson *document)
{
  const EbbConfigSource source = { .path = EBB_CONFIG_FILE, .document = document };
  const gboolean is_nf4 = quantization == EBB_QUANTIZATION_NF4;
  EbbQuantization read;
  g_autofree char *text = NULL;

  if (ebb_config_read_quantization (&source, &read, NULL) && read == quantization)
    return;
  text = g_strdup_printf ("{\"_load_in_4bit\": %s, \"_load_in_8bit\": %s, \"bnb_4bit_compute_dtype\": \"%s\", "
                          "\"bnb_4bit_quant_storage\": \"uint8\", \"bnb_4bit_quant_type\": \"nf4\", "
                          "\"bnb_4bit_use_double_quant\": true, \"llm_int8_enable_fp32_cpu_offload\": false, "
                          "\"llm_int8_has_fp16_weight\": false, \"llm_int8_skip_modules\": null, "
                          "\"llm_int8_threshold\": 6.0, \"load_in_4bit\": %s, \"load_in_8bit\": %s, "
                          "\"quant_method\": \"bitsandbytes\"}",
                          is_nf4 ? "true" : "false", is_nf4 ? "false" : "true",
                          dtype == EBB_DTYPE_BF16 ? "bfloat16" : "float32", is_nf4 ? "true" : "false",
                          is_nf4 ? "false" : "true");
  ebb_json_set (document, CONFIG_KEY, quantization != EBB_QUANTIZATION_NONE ? text : "null");
}

/* -- names --------------------------------------------------------------------------------------------------------- */

gboolean
ebb_quantized_name_to_file (EbbQuantization quantization,
                            EbbDType dtype,
                            GString *name,
                            EbbWeightContent *content)
{
  static const struct
  {
    EbbQuantization quantization;
    EbbDType dtype;
    const char *own, *file;
    EbbWeightContent content;
  } ends[] = {
    { EBB_QUANTIZATION_NF4, EBB_DTYPE_U8, ".weight", ".weight", EBB_WEIGHT_VALUES },
    { EBB_QUANTIZATION_NF4, EBB_DTYPE_U8, ".weight_absmax", ".weight.absmax", EBB_WEIGHT_VALUES },
    { EBB_QUANTIZATION_NF4, EBB_DTYPE_F32, ".weight_nested_absmax", ".weight.nested_absmax", EBB_WEIGHT_VALUES },
    { EBB_QUANTIZATION_NF4, EBB_DTYPE_F32, ".weight_nested_map", ".weight.nested_quant_map", EBB_WEIGHT_VALUES },
    { EBB_QUANTIZATION_NF4, EBB_DTYPE_F32, ".weight_nested_offset", "." QUANT_STATE, EBB_WEIGHT_QUANT_STATE },
    { EBB_QUANTIZATION_INT8, EBB_DTYPE_U8, ".weight", ".weight", EBB_WEIGHT_VALUES },
    { EBB_QUANTIZATION_INT8, EBB_DTYPE_F32, ".weight_absmax", ".SCB", EBB_WEIGHT_VALUES },
  };

  for (guint i = 0; i < G_N_ELEMENTS (ends); i++)
    if (ends[i].quantization == quantization && ends[i].dtype == dtype && g_str_has_suffix (name->str, ends[i].own))
      {
        g_string_truncate (name, name->len - strlen (ends[i].own));
        g_string_append (name, ends[i].file);
        *content = ends[i].content;
        return TRUE;
      }
  return FALSE;
}

gboolean
ebb_weight_map_check_quantized (const EbbWeightMap *map,
                                GError **error)
{
  if (map->quantization != EBB_QUANTIZATION_NF4)
    return TRUE;
  for (guint i = 0; i < map->weights->len; i++)
    {
      const EbbWeight *weight = &g_array_index (map->weights, EbbWeight, i);
      const EbbModelTensor *tensor =
          weight->n_parts > 0 ? &g_array_index (map->tensors, EbbModelTensor, weight->parts[0].tensor) : NULL;

      if (tensor == NULL || !tensor->is_exact
          || (weight->n_parts == 1
              && (weight->content != EBB_WEIGHT_VALUES || weight->parts[0].n_rows == tensor->shape[0])))
        continue;
      return ebb_fail (
          error, EBB_ERROR_NOT_SUPPORTED,
          "%s in nf4: the files of %s hold in %s what the model holds in %s weights, and blocks of nf4 can't be "
          "divided; use int8",
          tensor->name, map->architecture->class_name, weight->name, weight->n_parts > 1 ? "several" : "a larger");
    }
  return TRUE;
}

int
ebb_weight_get_exact_dtype (const EbbWeightMap *map,
                            const EbbWeight *weight)
{
  const EbbModelTensor *tensor;

  if (weight->content != EBB_WEIGHT_VALUES)
    return weight->content == EBB_WEIGHT_QUANT_MAP ? EBB_DTYPE_F32 : EBB_DTYPE_U8;
  tensor = &g_array_index (map->tensors, EbbModelTensor, weight->parts[0].tensor);
  return tensor->is_exact ? (int) tensor->dtype : -1;
}

/* -- writing ------------------------------------------------------------------------------------------------------- */

/* The layer that has the tensor of that name; NULL: there is none. */
static EbbLinear *
find_layer (EbbModule *model,
            const char *name)
{
  g_auto (GStrv) parts = g_strsplit (name, ".", -1);
  g_autoptr (EbbModule) module = g_object_ref (model);

  for (guint i = 0; module != NULL && parts[i] != NULL && parts[i + 1] != NULL; i++)
    {
      EbbModule *child = ebb_module_get_child (module, parts[i]);

      g_object_unref (module);
      module = child;
    }
  return module != NULL && EBB_IS_LINEAR (module) ? (EbbLinear *) module : NULL;
}

static char *
write_quant_state (EbbLinear *layer,
                   EbbDType dtype,
                   GError **error)
{
  g_autoptr (GString) text = g_string_new (NULL);
  g_autoptr (EbbTensor) offset = NULL;

  if (!ebb_quantized_weight_check (&layer->quantized, "model_save", error))
    return NULL;
  offset = ebb_to_device (layer->quantized.nested_offset, ebb_device_get_cpu (), error);
  if (offset == NULL)
    return NULL;
  g_string_printf (text,
                   "{\"quant_type\": \"nf4\", \"blocksize\": %d, \"dtype\": \"%s\", \"shape\": [%" G_GINT64_FORMAT
                   ", %" G_GINT64_FORMAT "], \"nested_blocksize\": %d, \"nested_dtype\": \"float32\", "
                   "\"nested_offset\": ",
                   EBB_NF4_BLOCK, dtype == EBB_DTYPE_BF16 ? "bfloat16" : "float32", (gint64) layer->out_features,
                   (gint64) layer->in_features, EBB_NF4_NESTED_BLOCK);
  ebb_config_append_number (text, (double) *(const float *) offset->view.data);
  g_string_append_c (text, '}');
  return g_string_free (g_steal_pointer (&text), FALSE);
}

gboolean
ebb_weight_map_describe_quantized (EbbWeightMap *map,
                                   EbbModule *model,
                                   EbbDType dtype,
                                   GError **error)
{
  for (guint i = 0; i < map->weights->len; i++)
    {
      EbbWeight *weight = &g_array_index (map->weights, EbbWeight, i);
      const char *name;
      EbbLinear *layer;

      if (weight->content != EBB_WEIGHT_QUANT_STATE)
        continue;
      name = g_array_index (map->tensors, EbbModelTensor, weight->parts[0].tensor).name;
      layer = find_layer (model, name);
      if (layer == NULL || layer->quantized.quantization != EBB_QUANTIZATION_NF4)
        return ebb_fail (error, EBB_ERROR_NOT_SUPPORTED, "%s: it must be of a linear layer in nf4", name);
      weight->text = write_quant_state (layer, dtype, error);
      if (weight->text == NULL)
        return FALSE;
      weight->shape[0] = (gint64) strlen (weight->text);
    }
  return TRUE;
}

EbbTensor *
ebb_weight_make_content (const EbbWeight *weight,
                         GError **error)
{
  const guint8 format = 0;
  const void *values = weight->content == EBB_WEIGHT_QUANT_MAP ? (const void *) ebb_nf4_codes
                       : weight->content == EBB_WEIGHT_FORMAT  ? (const void *) &format
                                                               : weight->text;
  const EbbDType dtype = weight->content == EBB_WEIGHT_QUANT_MAP ? EBB_DTYPE_F32 : EBB_DTYPE_U8;

  return ebb_tensor_new_from_values (values, weight->n_dims > 0 ? (gsize) weight->shape[0] : 1, weight->shape,
                                     weight->n_dims, dtype, ebb_device_get_cpu (), error);
}

/* -- reading ------------------------------------------------------------------------------------------------------- */

typedef struct
{
  EbbWeightFiles *files;
  const EbbTensorEntry *entry;
  EbbLinear *layer;
} Source;

static gboolean
refuse (const Source *source,
        const char *what,
        GError **error)
{
  return ebb_fail (error, EBB_ERROR_FORMAT, "%s: %.*s: %s",
                   ebb_show_text (ebb_weight_files_get_reader (source->files, source->entry)->path), MAX_SHOWN,
                   ebb_show_text (source->entry->name), what);
}

static gboolean
read_bytes (const Source *source,
            void *data,
            GError **error)
{
  return ebb_tensor_file_read (ebb_weight_files_get_reader (source->files, source->entry), source->entry, 0,
                               source->entry->end - source->entry->begin, data, error);
}

static gboolean
has_int (const EbbJson *json,
         const char *key,
         gint64 wanted)
{
  gint64 value;

  return ebb_json_as_int (ebb_json_get (json, key), &value) && value == wanted;
}

static gboolean
has_string (const EbbJson *json,
            const char *key,
            const char *wanted)
{
  const char *value;

  return ebb_json_as_string (ebb_json_get (json, key), &value) && strcmp (value, wanted) == 0;
}

/* What the state says otherwise than the layer; NULL: nothing. */
static char *
find_difference (const EbbJson *json,
                 const EbbQuantizedWeight *weight,
                 float *offset)
{
  const EbbJson *shape = ebb_json_get (json, "shape");
  gint64 n_rows, n_columns;
  double value;

  if (!has_string (json, "quant_type", "nf4"))
    return g_strdup ("quant_type must be \"nf4\"");
  if (!has_int (json, "blocksize", EBB_NF4_BLOCK))
    return g_strdup_printf ("blocksize must be %d", EBB_NF4_BLOCK);
  if (!has_int (json, "nested_blocksize", EBB_NF4_NESTED_BLOCK))
    return g_strdup_printf ("nested_blocksize must be %d", EBB_NF4_NESTED_BLOCK);
  if (!has_string (json, "nested_dtype", "float32"))
    return g_strdup ("nested_dtype must be \"float32\"");
  if (shape == NULL || shape->kind != EBB_JSON_LIST || shape->n_items != 2
      || !ebb_json_as_int (&shape->items[0], &n_rows) || !ebb_json_as_int (&shape->items[1], &n_columns)
      || n_rows != weight->n_rows || n_columns != weight->n_columns)
    return g_strdup_printf ("shape must be [%" G_GINT64_FORMAT ", %" G_GINT64_FORMAT "]", weight->n_rows,
                            weight->n_columns);
  if (!ebb_json_as_double (ebb_json_get (json, "nested_offset"), &value) || !(fabs (value) <= G_MAXFLOAT))
    return g_strdup ("nested_offset must be a number");
  *offset = (float) value;
  return NULL;
}

static gboolean
read_quant_state (const Source *source,
                  GError **error)
{
  const gint64 size = source->entry->end - source->entry->begin;
  g_autofree char *text = NULL;
  g_autoptr (EbbJson) json = NULL;
  g_autofree char *difference = NULL;
  float offset;

  if (size > MAX_QUANT_STATE)
    return refuse (source, "it must be JSON of at most 64 KiB", error);
  text = g_malloc0 ((gsize) size + 1);
  if (!read_bytes (source, text, error))
    return FALSE;
  json = ebb_json_parse (text, (gsize) size, "a quant state", NULL);
  if (json == NULL || json->kind != EBB_JSON_OBJECT)
    return refuse (source, "it must be a JSON object", error);
  difference = find_difference (json, &source->layer->quantized, &offset);
  if (difference != NULL)
    return refuse (source, difference, error);
  return ebb_tensor_upload (source->layer->quantized.nested_offset, &offset, error);
}

static gboolean
check_quant_map (const Source *source,
                 GError **error)
{
  float codes[16];

  if (!read_bytes (source, codes, error))
    return FALSE;
  return memcmp (codes, ebb_nf4_codes, sizeof codes) == 0
         || refuse (source, "it must have the 16 values of nf4", error);
}

static gboolean
check_format (const Source *source,
              GError **error)
{
  guint8 format;

  if (!read_bytes (source, &format, error))
    return FALSE;
  return format == 0 || refuse (source, "it must be 0, which stands for rows", error);
}

gboolean
ebb_weights_read_quantized (EbbWeightFiles *files,
                            const EbbWeightMap *map,
                            GPtrArray *entries,
                            EbbModule *model,
                            GError **error)
{
  gboolean ok = TRUE;

  for (guint i = 0; ok && !ebb_is_dry () && i < map->weights->len; i++)
    {
      const EbbWeight *weight = &g_array_index (map->weights, EbbWeight, i);
      Source source = { files, g_ptr_array_index (entries, i), NULL };

      if (weight->content == EBB_WEIGHT_VALUES || source.entry == NULL)
        continue;
      if (weight->content == EBB_WEIGHT_QUANT_STATE)
        source.layer = find_layer (model, g_array_index (map->tensors, EbbModelTensor, weight->parts[0].tensor).name);
      ok = weight->content == EBB_WEIGHT_QUANT_STATE ? read_quant_state (&source, error)
           : weight->content == EBB_WEIGHT_QUANT_MAP ? check_quant_map (&source, error)
                                                     : check_format (&source, error);
    }
  return ok;
}
