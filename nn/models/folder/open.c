/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "nn/models/folder/model-private.h"

#include "nn/initialization-private.h"
#include "nn/layers/layer-private.h"
#include "nn/models/bert.h"
#include "nn/models/folder/config-private.h"
#include "nn/models/folder/gguf-model-private.h"
#include "nn/models/generation-options-private.h"
#include "nn/models/gpt.h"
#include "nn/state/state-dict-private.h"
#include "tensor/cpu/host-allocator-private.h"
#include "tensor/error-private.h"
#include "tensor/tensor-private.h"
#include "tensor/util/atomic-file-private.h"
#include "tensor/thread-private.h"

#include <string.h>

/* Opens a model's folder: makes the model that config.json describes, without values, and reads its weights into it. */

static GQuark
get_origin_quark (void)
{
  return g_quark_from_static_string ("ebb-model-origin");
}

static void
origin_free (gpointer data)
{
  EbbModelOrigin *origin = data;

  ebb_json_free (origin->document);
  g_free (origin->folder);
  g_free (origin);
}

/* -- making the model ---------------------------------------------------------------------------------------------- */

/* The dtype of a parameter that is read from the entry. */
static EbbDType
get_target_dtype (const EbbTensorEntry *entry,
                  int dtype)
{
  return dtype != EBB_MODEL_KEEP_DTYPE   ? (EbbDType) dtype
         : entry->dtype == EBB_DTYPE_F16 ? EBB_DTYPE_F32
                                         : entry->dtype;
}

/* The dtype that most of the weights have. */
static EbbDType
find_main_dtype (EbbWeightFiles *files,
                 int dtype)
{
  gint64 n_bf16 = 0, n_f32 = 0;
  GHashTableIter iter;
  gpointer entry;

  g_hash_table_iter_init (&iter, files->found);
  while (g_hash_table_iter_next (&iter, NULL, &entry))
    {
      const gint64 n_bytes = ((EbbTensorEntry *) entry)->end - ((EbbTensorEntry *) entry)->begin;

      if (!ebb_dtype_is_floating_point (((EbbTensorEntry *) entry)->dtype))
        continue;
      if (get_target_dtype (entry, dtype) == EBB_DTYPE_BF16)
        n_bf16 += n_bytes;
      else
        n_f32 += n_bytes;
    }
  return n_bf16 > n_f32 ? EBB_DTYPE_BF16 : EBB_DTYPE_F32;
}

/* Quantised weights without values, in the place of those that linear layers have. */
static gboolean
describe_quantized (EbbModule *model,
                    EbbQuantization quantization,
                    GError **error)
{
  g_autoptr (GArray) layers = ebb_quantize_list_layers (model, error);

  for (guint i = 0; layers != NULL && i < layers->len; i++)
    {
      EbbLinear *layer = g_array_index (layers, EbbQuantizable, i).layer;
      EbbQuantizedWeight weight;

      if (!ebb_quantized_weight_init (&weight, quantization, layer->out_features, layer->in_features,
                                      layer->weight->storage->device, error))
        return FALSE;
      ebb_linear_take_quantized (layer, &weight);
    }
  return layers != NULL;
}

/* @quantization: how the files have the weights of linear layers. */
static EbbModule *
make_model (const EbbArchitecture *architecture,
            gconstpointer config,
            EbbDType dtype,
            EbbUnset memory,
            EbbQuantization quantization,
            GError **error)
{
  EbbModule *model;

  /* The memory of values stays untouched before they are read. */
  ebb_push_parameters_unset (dtype, memory);
  ebb_host_allow_huge_pages_ahead (FALSE);
  model = architecture->is_bert ? ebb_bert_new ((EbbBertConfig *) config, error)
                                : ebb_gpt_new ((EbbGptConfig *) config, error);
  if (model != NULL && quantization != EBB_QUANTIZATION_NONE && !describe_quantized (model, quantization, error))
    g_clear_object (&model);
  ebb_host_allow_huge_pages_ahead (TRUE);
  ebb_pop_parameters_unset ();
  return model;
}

/* -- weights ------------------------------------------------------------------------------------------------------- */

static void
collect_target (const char *name,
                EbbTensor *tensor,
                gpointer user_data)
{
  g_ptr_array_add (user_data, tensor);
}

/* Gives each parameter memory, and the dtype of its tensors in the files, f32 if these have several. */
static gboolean
set_dtypes (const EbbWeightMap *map,
            GPtrArray *entries,
            GPtrArray *targets,
            int dtype,
            GError **error)
{
  g_autofree gboolean *is_f32 = g_new0 (gboolean, targets->len + 1);

  for (guint i = 0; i < map->weights->len; i++)
    {
      const EbbWeight *weight = &g_array_index (map->weights, EbbWeight, i);

      for (guint k = 0; k < weight->n_parts; k++)
        if (get_target_dtype (g_ptr_array_index (entries, i), dtype) == EBB_DTYPE_F32)
          is_f32[weight->parts[k].tensor] = TRUE;
    }
  for (guint i = 0; i < targets->len; i++)
    {
      EbbTensor *target = g_ptr_array_index (targets, i);
      const EbbDType wanted = is_f32[i] ? EBB_DTYPE_F32 : EBB_DTYPE_BF16;
      g_autoptr (EbbTensor) other = NULL;

      if (target == NULL || g_array_index (map->tensors, EbbModelTensor, i).is_exact
          || (target->view.dtype == wanted && !target->storage->placeholder))
        continue;
      other = ebb_tensor_new_uninitialized (target->view.shape, (guint) target->view.n_dims, wanted,
                                            target->storage->device, error);
      if (other == NULL)
        return FALSE;
      ebb_storage_set_purpose (other->storage, (EbbPurpose) target->storage->purpose);
      ebb_tensor_swap_storage (target, other);
    }
  return TRUE;
}

static gboolean
is_converted (const EbbTensorEntry *entry)
{
  return entry->dtype == EBB_DTYPE_F16 || entry->encoding == EBB_ENCODING_Q8_0;
}

static void
report_converted (EbbWeightFiles *files,
                  int dtype)
{
  GHashTableIter iter;
  gpointer entry;

  g_hash_table_iter_init (&iter, files->found);
  while (dtype == EBB_MODEL_KEEP_DTYPE && g_hash_table_iter_next (&iter, NULL, &entry))
    if (is_converted (entry))
      {
        g_message ("%s: weights are %s, which Ebb does not compute in: they are converted to f32", files->folder,
                   ((EbbTensorEntry *) entry)->dtype == EBB_DTYPE_F16 ? "F16" : "Q8_0");
        return;
      }
}

/* The names and shapes that the configuration asks for. They are compared with those of the files before there is a
 * model of that size. */
static EbbWeightMap *
describe_weights (const EbbConfigSource *source,
                  gconstpointer config,
                  EbbDType dtype,
                  EbbQuantization quantization,
                  GError **error)
{
  g_autoptr (EbbModule) model =
      make_model (source->architecture, config, dtype, EBB_UNSET_DESCRIBED, quantization, error);
  g_autoptr (EbbWeightMap) map =
      model != NULL ? ebb_weight_map_new_from_module (source->architecture, model) : NULL;
  g_autofree char *shown = NULL;

  if (map != NULL && ebb_weight_map_check_quantized (map, error))
    return g_steal_pointer (&map);
  shown = ebb_escape_text (source->path);
  g_prefix_error (error, "%s: ", shown);
  return NULL;
}

/* What is opened: the folder's files, and what the model is to be like. */
typedef struct
{
  EbbWeightFiles *files;
  const EbbWeightMap *map;
  GPtrArray *entries;           /* of its weights */
  int dtype;                    /* of parameters */
  EbbQuantization quantization; /* to quantise to while reading */
} Opening;

/* The dtype in which a tensor of the model is read to be quantised: the files', f32 if these have several. */
static EbbDType
find_dtype (const Opening *self,
            guint tensor)
{
  EbbDType dtype = EBB_DTYPE_BF16;

  for (guint i = 0; i < self->map->weights->len; i++)
    {
      const EbbWeight *weight = &g_array_index (self->map->weights, EbbWeight, i);

      for (guint k = 0; k < weight->n_parts; k++)
        if (weight->parts[k].tensor == tensor
            && get_target_dtype (g_ptr_array_index (self->entries, i), EBB_MODEL_KEEP_DTYPE) == EBB_DTYPE_F32)
          dtype = EBB_DTYPE_F32;
    }
  return dtype;
}

/* Reads tensor number @tensor, the weight of @layer, and quantises it: only one such weight is there at a time. */
static gboolean
read_and_quantize (const Opening *self,
                   guint tensor,
                   const EbbQuantizable *found,
                   GError **error)
{
  const gint64 shape[] = { found->layer->out_features, found->layer->in_features };
  g_autoptr (EbbTensor) host =
      ebb_tensor_new_uninitialized (shape, 2, find_dtype (self, tensor), ebb_device_get_cpu (), error);
  EbbQuantizedWeight weight = { EBB_QUANTIZATION_NONE };
  g_autofree char *shown = NULL;

  if (host == NULL || !ebb_weights_read_one (self->files, self->map, self->entries, tensor, host, error)
      || !ebb_quantized_weight_init (&weight, self->quantization, shape[0], shape[1],
                                     found->layer->weight->storage->device, error))
    return FALSE;
  if (ebb_quantized_weight_encode (&weight, host, error))
    {
      ebb_linear_take_quantized (found->layer, &weight);
      return TRUE;
    }
  ebb_quantized_weight_clear (&weight);
  shown = ebb_escape_text (self->files->folder);
  g_prefix_error (error, "%s: the weight of %s: ", shown, found->path);
  return FALSE;
}

/* The weights that are to be quantised are read one after the other, in place of *@layers' parameters. */
static gboolean
read_quantizing (const Opening *self,
                 GArray *layers,
                 const guint *numbers,
                 GError **error)
{
  for (guint i = 0; i < layers->len; i++)
    if (!read_and_quantize (self, numbers[i], &g_array_index (layers, EbbQuantizable, i), error))
      return FALSE;
  return TRUE;
}

/* Takes the weights of @layers out of the targets: numbers[i] gets the place of that of layer i. */
static void
take_layers (GPtrArray *targets,
             GArray *layers,
             guint *numbers)
{
  for (guint i = 0; i < layers->len; i++)
    if (g_ptr_array_find (targets, g_array_index (layers, EbbQuantizable, i).layer->weight, &numbers[i]))
      targets->pdata[numbers[i]] = NULL;
}

static gboolean
read_weights (const Opening *self,
              EbbModule *model,
              GError **error)
{
  g_autoptr (GPtrArray) targets = g_ptr_array_new ();
  g_autoptr (GArray) layers = NULL;
  g_autofree guint *numbers = NULL;

  ebb_module_visit_state (model, collect_target, targets);
  if (self->quantization != EBB_QUANTIZATION_NONE)
    {
      layers = ebb_quantize_list_layers (model, error);
      if (layers == NULL)
        return FALSE;
      numbers = g_new (guint, layers->len);
      take_layers (targets, layers, numbers);
    }
  if (!set_dtypes (self->map, self->entries, targets, self->dtype, error))
    return FALSE;
  report_converted (self->files, self->dtype);
  return ebb_weights_read (self->files, self->map, self->entries, (EbbTensor **) targets->pdata, error)
         && ebb_weights_read_quantized (self->files, self->map, self->entries, model, error)
         && ebb_weights_check_tied (self->files, self->map, (EbbTensor **) targets->pdata, error)
         && (layers == NULL || read_quantizing (self, layers, numbers, error));
}

/* The dtype that config.json names, for a folder whose weights aren't there. */
static EbbDType
read_main_dtype (const EbbConfigSource *source,
                 int dtype)
{
  const char *name = "";

  if (dtype != EBB_MODEL_KEEP_DTYPE)
    return (EbbDType) dtype;
  if (!ebb_json_as_string (ebb_json_get (source->document, "dtype"), &name))
    ebb_json_as_string (ebb_json_get (source->document, "torch_dtype"), &name);
  return strcmp (name, "bfloat16") == 0 ? EBB_DTYPE_BF16 : EBB_DTYPE_F32;
}

/* The type decides only what is made without weights and what is saved, but who wrote another value meant something. */
static gboolean
check_dtype (const EbbConfigSource *source,
             GError **error)
{
  static const char *const keys[] = { "dtype", "torch_dtype" };

  for (guint i = 0; i < G_N_ELEMENTS (keys); i++)
    {
      const EbbJson *value = ebb_json_get (source->document, keys[i]);
      const char *name;

      if (value != NULL && value->kind != EBB_JSON_NULL && !ebb_json_as_string (value, &name))
        return ebb_config_refuse (source, NULL, keys[i], value, "the name of a type, such as \"float32\"", error);
    }
  return TRUE;
}

/* FALSE: the folder is quantised in another way than the caller wants. */
static gboolean
check_quantization (const EbbConfigSource *source,
                    EbbQuantization has,
                    EbbQuantization wanted,
                    GError **error)
{
  return has == EBB_QUANTIZATION_NONE || wanted == EBB_QUANTIZATION_NONE || has == wanted
         || ebb_fail (error, EBB_ERROR_STATE, "%s: the weights are %s already, not to be quantised to %s",
                      ebb_show_text (source->path), ebb_quantization_get_name (has),
                      ebb_quantization_get_name (wanted));
}

/* @files: NULL in a dry run of a folder without weights. */
static EbbModule *
make_from_files (const EbbConfigSource *source,
                 gconstpointer config,
                 EbbWeightFiles *files,
                 int dtype,
                 EbbQuantization wanted,
                 GError **error)
{
  const EbbDType main_dtype = files != NULL ? find_main_dtype (files, dtype) : read_main_dtype (source, dtype);
  EbbQuantization quantization;
  g_autoptr (EbbWeightMap) map = NULL;
  g_autoptr (GPtrArray) entries = NULL;
  g_autoptr (EbbModule) model = NULL;

  if (!check_dtype (source, error) || !ebb_config_read_quantization (source, &quantization, error)
      || !check_quantization (source, quantization, wanted, error))
    return NULL;
  map = describe_weights (source, config, main_dtype, quantization, error);
  if (files == NULL && wanted != EBB_QUANTIZATION_NONE)
    quantization = wanted;
  if (map != NULL && source->is_gguf)
    {
      EbbWeightMap *own = map;

      map = ebb_weight_map_new_gguf (own, config);
      ebb_weight_map_free (own);
      report_converted (files, dtype);
      /* Vectors are F32 in every GGUF file: they get the dtype of the matrices. */
      dtype = (int) main_dtype;
    }
  entries = map != NULL && files != NULL ? ebb_weights_match (files, map, error) : NULL;
  if (map == NULL || (files != NULL && entries == NULL))
    return NULL;
  /* Full weights that give way to quantised ones get no memory; set_dtypes () gives it to those that stay. */
  model = make_model (source->architecture, config, main_dtype,
                      files != NULL && (quantization != EBB_QUANTIZATION_NONE || wanted != EBB_QUANTIZATION_NONE)
                          ? EBB_UNSET_PARAMETERS_ABSENT
                          : EBB_UNSET_WITH_MEMORY,
                      quantization, error);
  if (files != NULL && model != NULL)
    {
      const Opening opening = { files, map, entries, dtype,
                                quantization == EBB_QUANTIZATION_NONE ? wanted : EBB_QUANTIZATION_NONE };

      if (!read_weights (&opening, model, error))
        return NULL;
    }
  return g_steal_pointer (&model);
}

static EbbModule *
make_gpt (const EbbConfigSource *source,
          EbbWeightFiles *files,
          int dtype,
          EbbQuantization quantization,
          GError **error)
{
  g_autoptr (EbbGptConfig) config = ebb_config_read_gpt (source, error);

  return config != NULL
                 && (files == NULL || ebb_weights_check_layers (files, source->architecture, config->layers, error))
             ? make_from_files (source, config, files, dtype, quantization, error)
             : NULL;
}

static EbbModule *
make_bert (const EbbConfigSource *source,
           EbbWeightFiles *files,
           int dtype,
           EbbQuantization quantization,
           GError **error)
{
  g_autoptr (EbbBertConfig) config = ebb_config_read_bert (source, error);

  return config != NULL
                 && (files == NULL || ebb_weights_check_layers (files, source->architecture, config->layers, error))
             ? make_from_files (source, config, files, dtype, quantization, error)
             : NULL;
}

/* @document: taken. */
static void
set_origin (EbbModule *model,
            const EbbArchitecture *architecture,
            EbbJson *document,
            const char *path)
{
  EbbModelOrigin *origin = g_new0 (EbbModelOrigin, 1);

  origin->architecture = architecture;
  origin->document = document;
  origin->folder = g_canonicalize_filename (path, NULL);
  g_object_set_qdata_full (G_OBJECT (model), get_origin_quark (), origin, origin_free);
  ebb_module_set_training (model, FALSE);
}

static EbbModule *
open_gguf (const char *path,
           int dtype,
           EbbQuantization quantization,
           GError **error)
{
  g_autoptr (EbbGguf) gguf = ebb_gguf_open (path, error);
  EbbConfigSource source = { .path = path, .is_own = TRUE, .is_gguf = TRUE };
  g_autoptr (EbbJson) document = gguf != NULL ? ebb_gguf_read_config (gguf, &source.architecture, error) : NULL;
  g_autoptr (EbbWeightFiles) files = NULL;
  EbbModule *model;

  if (document == NULL)
    return NULL;
  source.document = document;
  files = ebb_weight_files_new_for_gguf (gguf->tensors);
  model = make_gpt (&source, files, dtype, quantization, error);
  if (model == NULL)
    return NULL;
  ebb_generation_options_attach (model, path);
  set_origin (model, source.architecture, g_steal_pointer (&document), path);
  return model;
}

static EbbModule *
open_model (const char *folder,
            int dtype,
            EbbQuantization quantization,
            GError **error)
{
  g_autofree char *path = g_build_filename (folder, EBB_CONFIG_FILE, NULL);
  g_autoptr (EbbJson) document =
      ebb_check_folder (folder, error) ? ebb_json_read_file (path, EBB_CONFIG_MAX_SIZE, error) : NULL;
  EbbConfigSource source = { .path = path, .document = document };
  g_autoptr (EbbWeightFiles) files = NULL;
  EbbModule *model;

  if (document == NULL || (source.architecture = ebb_architecture_find (document, path, error)) == NULL)
    return NULL;
  if (!ebb_is_dry () || ebb_weight_files_are_there (folder))
    {
      files = ebb_weight_files_open (folder, error);
      if (files == NULL)
        return NULL;
    }
  model = source.architecture->is_bert ? make_bert (&source, files, dtype, quantization, error)
                                       : make_gpt (&source, files, dtype, quantization, error);
  if (model == NULL)
    return NULL;
  ebb_generation_options_attach (model, folder);
  set_origin (model, source.architecture, g_steal_pointer (&document), folder);
  return model;
}

/**
 * ebb_model_open_full:
 * @folder: (type filename): a folder in Hugging Face's format, or a GGUF file
 * @dtype: the #EbbDType of the parameters, f32 or bf16; %EBB_MODEL_KEEP_DTYPE for that of the files
 * @error: return location for an error
 *
 * Opens a model as ebb_model_open() does, with parameters of another dtype than the files have: they are converted as
 * they are read.
 *
 * Returns: (transfer full) (nullable): the model, or %NULL with @error set
 */
EbbModule *
ebb_model_open_full (const char *folder,
                     int dtype,
                     GError **error)
{
  return ebb_model_open_quantized (folder, dtype, EBB_QUANTIZATION_NONE, error);
}

/**
 * ebb_model_open_quantized:
 * @folder: (type filename): a folder in Hugging Face's format, or a GGUF file
 * @dtype: the #EbbDType of the parameters, f32 or bf16; %EBB_MODEL_KEEP_DTYPE for that of the files
 * @quantization: how the weights of linear layers are held; %EBB_QUANTIZATION_NONE for as the files have them
 * @error: return location for an error
 *
 * Opens a model as ebb_model_open_full() does and quantises it as ebb_quantize() does, each weight as it is read: one
 * full weight is in memory at a time. Weights are quantised from the values in the files, whatever @dtype is.
 *
 * A folder that is quantised already is opened as it is, by all of these functions: one that bitsandbytes has quantised
 * to nf4 with double quantisation, or to int8, and that `transformers` or ebb_model_save() has saved.
 *
 * Returns: (transfer full) (nullable): the model, or %NULL with @error set
 */
EbbModule *
ebb_model_open_quantized (const char *folder,
                          int dtype,
                          EbbQuantization quantization,
                          GError **error)
{
  EBB_RETURN_UNLESS_BEGUN (NULL, error, folder);
  if ((guint) quantization > EBB_QUANTIZATION_NF4)
    return ebb_fail_null (error, EBB_ERROR_INVALID_ARGUMENT,
                          "model_open: the quantisation is %d, it must be none, int8 or nf4", (int) quantization);
  if (dtype == EBB_MODEL_KEEP_DTYPE || dtype == EBB_DTYPE_F32 || dtype == EBB_DTYPE_BF16)
    return ebb_gguf_is_path (folder) && !g_file_test (folder, G_FILE_TEST_IS_DIR)
               ? open_gguf (folder, dtype, quantization, error)
               : open_model (folder, dtype, quantization, error);
  return ebb_fail_null (error, EBB_ERROR_DTYPE, "model_open: dtype is %s, it must be f32 or bf16",
                        dtype >= 0 && dtype < EBB_N_DTYPES ? ebb_dtype_get_name ((EbbDType) dtype) : "no dtype");
}

/**
 * ebb_model_open:
 * @folder: (type filename): a folder in Hugging Face's format: `config.json`, and `model.safetensors` or several
 *   such files with `model.safetensors.index.json`; or a GGUF file, whose name ends with `.gguf`
 * @error: return location for an error
 *
 * Opens a model as it is: an #EbbGpt for GPT-2, Llama, Mistral, Qwen2, Qwen3, Gemma 2, Gemma 3 (text) and Phi-3, an
 * #EbbBert for BERT. `config.json` may have either form of `transformers`. All threads read the weights straight into
 * the parameters, which have the dtype of the files; F16 becomes f32, with a message. Opening draws no random numbers.
 * The model is in evaluation mode, see ebb_module_set_training().
 *
 * Of a GGUF file the tensors may be F32, F16, BF16 and Q8_0. All parameters get one dtype, that of the matrices; Q8_0
 * becomes f32, with a message.
 *
 * In a dry run, see ebb_push_dry_run(), nothing is read, and `config.json` alone will do.
 *
 * The model remembers the folder: ebb_model_save() keeps the keys of `config.json` that Ebb doesn't know and copies the
 * tokenizer's files, and ebb_model_generate() takes its defaults from the folder's `generation_config.json`.
 *
 * Returns: (transfer full) (nullable): the model; %NULL with %EBB_ERROR_IO if a file can't be read, %EBB_ERROR_FORMAT
 * if one is damaged or missing, %EBB_ERROR_DTYPE if a tensor has another dtype, %EBB_ERROR_STATE if `config.json` asks
 *   for what Ebb does not have, or tensors do not fit it. Errors are one line and name the file and the key or tensors
 */
EbbModule *
ebb_model_open (const char *folder,
                GError **error)
{
  return ebb_model_open_full (folder, EBB_MODEL_KEEP_DTYPE, error);
}

const EbbModelOrigin *
ebb_model_get_origin (EbbModule *model)
{
  return g_object_get_qdata (G_OBJECT (model), get_origin_quark ());
}

const EbbArchitecture *
ebb_model_find_architecture (EbbModule *model,
                             GError **error)
{
  const EbbModelOrigin *origin = ebb_model_get_origin (model);
  g_autoptr (EbbGptConfig) config = NULL;

  if (origin != NULL)
    return origin->architecture;
  if (EBB_IS_GPT (model))
    {
      config = ebb_gpt_get_config (EBB_GPT (model));
      return ebb_config_find_architecture (config, error);
    }
  for (guint i = 0; EBB_IS_BERT (model) && i < ebb_n_architectures; i++)
    if (ebb_architectures[i].is_bert)
      return &ebb_architectures[i];
  return ebb_fail_null (
      error, EBB_ERROR_INVALID_ARGUMENT,
      "model_save: %s is no model of a folder, which is a Gpt or a Bert; save_safetensors saves its state",
      ebb_module_get_type_name (model));
}

/**
 * ebb_model_get_architecture:
 * @model: a model
 *
 * Returns: (nullable): the class that `config.json` names for a model that came from a folder, as `LlamaForCausalLM`;
 *   %NULL for any other model
 */
const char *
ebb_model_get_architecture (EbbModule *model)
{
  const EbbModelOrigin *origin;

  g_return_val_if_fail (EBB_IS_MODULE (model), NULL);

  origin = ebb_model_get_origin (model);
  return origin != NULL ? origin->architecture->class_name : NULL;
}
