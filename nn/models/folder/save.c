/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "nn/models/folder/model-private.h"

#include "nn/files/gguf-private.h"
#include "tensor/util/json-scanner-private.h"
#include "nn/files/safetensors-writer-private.h"
#include "nn/layers/layer-private.h"
#include "nn/models/bert.h"
#include "nn/models/folder/config-private.h"
#include "nn/models/gpt.h"
#include "nn/module-instance-private.h"
#include "nn/state/state-dict-private.h"
#include "tensor/autograd/autograd.h"
#include "tensor/error-private.h"
#include "tensor/ops/pointwise.h"
#include "tensor/ops/shape.h"
#include "tensor/tensor-private.h"

#include <string.h>

/* Saves a model as a folder: config.json, weights in files of a bounded size, and the small files of the folder that
 * the model came from. Tensors are fetched, transposed and written one after the other. */

#define USUAL_FILE_SIZE G_GUINT64_CONSTANT (5000000000)

/* A file of weights: those with the numbers in @order. */
typedef struct
{
  char *name;
  GArray *order;   /* of guint */
  GArray *entries; /* of EbbTensorEntry, whose names are the weights' */
} WeightFile;

typedef struct
{
  const EbbModelSource *source;
  const EbbWeightMap *map;
  int dtype;
  guint64 max_file_size;
  GPtrArray *files;       /* of WeightFile */
  EbbAtomicFolder folder; /* of the rank that writes */
  EbbTensor *full;        /* the tensor that was fetched last */
  guint full_number;
} Saving;

static void
weight_file_free (gpointer data)
{
  WeightFile *file = data;

  g_free (file->name);
  g_array_unref (file->order);
  g_array_unref (file->entries);
  g_free (file);
}

/* -- which weights go to which file -------------------------------------------------------------------------------- */

static EbbDType
get_dtype (const Saving *saving,
           const EbbWeight *weight)
{
  const int exact = ebb_weight_get_exact_dtype (saving->map, weight);
  EbbDType dtype = EBB_DTYPE_BF16;

  if (exact >= 0 || saving->dtype != EBB_MODEL_KEEP_DTYPE)
    return (EbbDType) (exact >= 0 ? exact : saving->dtype);
  for (guint k = 0; k < weight->n_parts; k++)
    {
      const EbbModelTensor *tensor =
          &g_array_index (saving->map->tensors, EbbModelTensor, weight->parts[k].tensor);

      dtype = k == 0 ? tensor->dtype : ebb_dtype_promote (dtype, tensor->dtype);
    }
  return dtype;
}

static gint64
count_bytes (const Saving *saving,
             const EbbWeight *weight)
{
  gint64 n = (gint64) ebb_dtype_get_size (get_dtype (saving, weight));

  for (guint d = 0; d < weight->n_dims; d++)
    n *= weight->shape[d];
  return n;
}

/* The ranges of the file's tensors: wide types first, so that each is aligned to its type though there may be no gaps.
 */
static void
lay_out (const Saving *saving,
         WeightFile *file)
{
  g_autoptr (GArray) order = g_steal_pointer (&file->order);
  gint64 position = 0;

  file->order = g_array_new (FALSE, FALSE, sizeof (guint));
  for (gsize size = 8; size > 0; size /= 2)
    for (guint i = 0; i < order->len; i++)
      {
        const guint number = g_array_index (order, guint, i);
        const EbbWeight *weight = &g_array_index (saving->map->weights, EbbWeight, number);
        EbbTensorEntry entry = { .name = weight->name,
                                 .dtype = get_dtype (saving, weight),
                                 .is_i8 = weight->is_i8,
                                 .n_dims = weight->n_dims,
                                 .begin = position };

        if (ebb_dtype_get_size (entry.dtype) != size)
          continue;
        memcpy (entry.shape, weight->shape, sizeof entry.shape);
        entry.end = position += count_bytes (saving, weight);
        g_array_append_val (file->entries, entry);
        g_array_append_val (file->order, number);
      }
}

static void
divide (Saving *saving)
{
  WeightFile *file = NULL;
  guint64 n_bytes = 0;

  for (guint i = 0; i < saving->map->weights->len; i++)
    {
      const guint64 more = (guint64) count_bytes (saving, &g_array_index (saving->map->weights, EbbWeight, i));

      if (file == NULL || (n_bytes > 0 && n_bytes + more > saving->max_file_size))
        {
          file = g_new0 (WeightFile, 1);
          file->order = g_array_new (FALSE, FALSE, sizeof (guint));
          file->entries = g_array_new (FALSE, TRUE, sizeof (EbbTensorEntry));
          g_ptr_array_add (saving->files, file);
          n_bytes = 0;
        }
      g_array_append_val (file->order, i);
      n_bytes += more;
    }
  for (guint i = 0; i < saving->files->len; i++)
    {
      file = g_ptr_array_index (saving->files, i);
      file->name = saving->files->len == 1
                       ? g_strdup (EBB_WEIGHTS_FILE)
                       : g_strdup_printf ("model-%05u-of-%05u.safetensors", i + 1, saving->files->len);
      lay_out (saving, file);
    }
}

/* -- weights ------------------------------------------------------------------------------------------------------- */

/* The weight as the file has it. NULL on ranks that do not write, or with an error, which then is in *@failed. */
static EbbTensor *
make_weight (const EbbWeight *weight,
             const EbbWeightPart *part,
             EbbTensor *full,
             EbbDType dtype,
             GError **error)
{
  g_autoptr (EbbTensor) alias = ebb_tensor_alias (full);
  g_autoptr (EbbTensor) rows = NULL;
  g_autoptr (EbbTensor) cast = NULL;

  if (weight->transposed)
    rows = ebb_transpose (alias, 0, 1, error);
  else if (weight->n_dims > 0 && part->n_rows != ebb_tensor_get_dim (alias, 0))
    rows = ebb_narrow (alias, 0, part->row, part->n_rows, error);
  else
    rows = g_steal_pointer (&alias);
  cast = rows != NULL ? ebb_cast (rows, dtype, error) : NULL;
  return g_steal_pointer (&cast);
}

/* Fetches a weight's parts on all ranks; one writes. *@failure is this rank's alone: the next fetch reports it. */
static gboolean
save_weight (Saving *saving,
             EbbAtomicFile *file,
             const EbbWeight *weight,
             GError **failure,
             GError **error)
{
  if (weight->content != EBB_WEIGHT_VALUES)
    {
      g_autoptr (EbbTensor) content =
          saving->source->is_writer && *failure == NULL ? ebb_weight_make_content (weight, failure) : NULL;

      if (content != NULL)
        ebb_safetensors_write_tensor (file, content, failure);
      return TRUE;
    }
  for (guint k = 0; k < weight->n_parts; k++)
    {
      const EbbWeightPart *part = &weight->parts[k];
      g_autoptr (EbbTensor) rows = NULL;

      if (saving->full_number != part->tensor)
        {
          g_clear_pointer (&saving->full, ebb_tensor_unref);
          if (!saving->source->get (saving->source->data, part->tensor, g_steal_pointer (failure), &saving->full,
                                    error))
            return FALSE;
          saving->full_number = part->tensor;
        }
      if (!saving->source->is_writer || *failure != NULL)
        continue;
      rows = make_weight (weight, part, saving->full, get_dtype (saving, weight), failure);
      if (rows != NULL)
        ebb_safetensors_write_tensor (file, rows, failure);
    }
  return TRUE;
}

static gboolean
open_file (Saving *saving,
           const WeightFile *weights,
           EbbAtomicFile *file,
           GError **error)
{
  g_autofree char *path = g_build_filename (saving->folder.temporary, weights->name, NULL);
  g_autoptr (EbbArgs) metadata = ebb_args_new (EBB_ARGS_DICT);
  g_autoptr (GString) header = NULL;

  ebb_args_add_string (metadata, "format", "pt"); /* what other readers ask for */
  header = ebb_safetensors_make_header (path, (const EbbTensorEntry *) (gpointer) weights->entries->data,
                                        weights->entries->len, metadata, error);
  return header != NULL && ebb_atomic_file_open (file, path, error)
         && ebb_safetensors_write_header (file, header, error);
}

static gboolean
save_file (Saving *saving,
           const WeightFile *weights,
           GError **failure,
           GError **error)
{
  const gboolean is_writer = saving->source->is_writer;
  EbbAtomicFile file = { .fd = -1 };
  gboolean ok = TRUE;

  if (is_writer && *failure == NULL)
    open_file (saving, weights, &file, failure);
  for (guint i = 0; ok && i < weights->order->len; i++)
    ok = save_weight (saving, &file,
                      &g_array_index (saving->map->weights, EbbWeight, g_array_index (weights->order, guint, i)),
                      failure, error);
  if (is_writer && ok && *failure == NULL)
    ebb_atomic_file_commit (&file, failure);
  else
    ebb_atomic_file_abort (&file);
  return ok;
}

static gboolean
write_index (Saving *saving,
             GError **error)
{
  g_autoptr (GString) json = g_string_new (NULL);
  gint64 total = 0, n_parameters = 0;
  gboolean is_first = TRUE;

  if (saving->files->len < 2)
    return TRUE;
  for (guint i = 0; i < saving->map->weights->len; i++)
    {
      const EbbWeight *weight = &g_array_index (saving->map->weights, EbbWeight, i);

      total += count_bytes (saving, weight);
      n_parameters += count_bytes (saving, weight) / (gint64) ebb_dtype_get_size (get_dtype (saving, weight));
    }
  g_string_printf (json,
                   "{\n  \"metadata\": {\n    \"total_parameters\": %" G_GINT64_FORMAT ",\n    \"total_size\": "
                   "%" G_GINT64_FORMAT "\n  },\n  \"weight_map\": {",
                   n_parameters, total);
  for (guint i = 0; i < saving->files->len; i++)
    {
      const WeightFile *file = g_ptr_array_index (saving->files, i);

      for (guint k = 0; k < file->entries->len; k++, is_first = FALSE)
        {
          g_string_append (json, is_first ? "\n    " : ",\n    ");
          ebb_json_append_string (json, g_array_index (file->entries, EbbTensorEntry, k).name);
          g_string_append_printf (json, ": \"%s\"", file->name);
        }
    }
  g_string_append (json, "\n  }\n}\n");
  return ebb_atomic_folder_write (&saving->folder, EBB_WEIGHTS_INDEX, json->str, json->len, error);
}

/* -- config.json --------------------------------------------------------------------------------------------------- */

/* That of most weights, those aside that are quantised. */
static EbbDType
find_main_dtype (const Saving *saving)
{
  gint64 n_bytes[EBB_N_DTYPES] = { 0 };

  for (guint i = 0; i < saving->map->weights->len; i++)
    {
      const EbbWeight *weight = &g_array_index (saving->map->weights, EbbWeight, i);

      if (ebb_weight_get_exact_dtype (saving->map, weight) < 0)
        n_bytes[get_dtype (saving, weight)] += count_bytes (saving, weight);
    }
  return n_bytes[EBB_DTYPE_BF16] > n_bytes[EBB_DTYPE_F32] ? EBB_DTYPE_BF16 : EBB_DTYPE_F32;
}

/* "dtype", which transformers called "torch_dtype" before its version 5: that of most weights. */
static void
set_dtype (const Saving *saving,
           EbbJson *document)
{
  const char *key = ebb_json_get (document, "dtype") == NULL && ebb_json_get (document, "torch_dtype") != NULL
                        ? "torch_dtype"
                        : "dtype";
  const char *name = find_main_dtype (saving) == EBB_DTYPE_BF16 ? "bfloat16" : "float32";
  const EbbJson *old = ebb_json_get (document, key);
  g_autofree char *text = g_strdup_printf ("\"%s\"", name);

  if (old == NULL || g_strcmp0 (old->text, name) != 0)
    ebb_json_set (document, key, text);
}

static EbbJson *
make_document (EbbModule *model,
               const EbbArchitecture *architecture,
               const EbbJson *document,
               GError **error)
{
  g_autoptr (EbbGptConfig) gpt = EBB_IS_GPT (model) ? ebb_gpt_get_config (EBB_GPT (model)) : NULL;
  g_autoptr (EbbBertConfig) bert = EBB_IS_BERT (model) ? ebb_bert_get_config (EBB_BERT (model)) : NULL;

  return ebb_config_write (architecture, document, gpt != NULL ? (gconstpointer) gpt : bert, error);
}

/* Writes the model over @before, a config.json; NULL: that of its own folder. Owned; NULL with an error. */
static char *
make_config (const Saving *saving,
             EbbModule *model,
             const EbbJson *before,
             GError **error)
{
  const EbbModelTokenizer *tokenizer = ebb_model_get_tokenizer (model);
  const EbbModelOrigin *origin = ebb_model_get_origin (model);
  const EbbJson *own = origin != NULL ? origin->document : NULL;
  g_autoptr (EbbJson) document =
      make_document (model, saving->map->architecture, before != NULL ? before : own, error);
  GString *text;

  if (document == NULL)
    return NULL;
  if (tokenizer != NULL)
    ebb_model_tokenizer_write_tokens (tokenizer, document);
  set_dtype (saving, document);
  if (saving->map->quantization != EBB_QUANTIZATION_NONE)
    ebb_config_write_quantization (saving->map->quantization, find_main_dtype (saving), document);
  text = g_string_new (NULL);
  ebb_json_print (document, text);
  g_string_append_c (text, '\n');
  return g_string_free (text, FALSE);
}

/* -- saving -------------------------------------------------------------------------------------------------------- */

/* All that is not a weight, on the rank that writes. */
static gboolean
begin (Saving *saving,
       EbbModule *model,
       const char *folder,
       GError **error)
{
  g_autofree char *config = make_config (saving, model, NULL, error);

  return config != NULL
         && ebb_atomic_folder_open (&saving->folder, folder, EBB_CONFIG_FILE, ebb_model_get_replaced_files (model),
                                    error)
         && ebb_model_copy_other_files (model, &saving->folder, error)
         && ebb_atomic_folder_write (&saving->folder, EBB_CONFIG_FILE, config, strlen (config), error);
}

static gboolean
save (Saving *saving,
      EbbModule *model,
      const char *folder,
      GError **error)
{
  const EbbModelSource *source = saving->source;
  GError *failure = NULL;

  if (source->is_writer)
    begin (saving, model, folder, &failure);
  if (!source->agree (source->data, g_steal_pointer (&failure), error))
    return FALSE;
  for (guint i = 0; i < saving->files->len; i++)
    if (!save_file (saving, g_ptr_array_index (saving->files, i), &failure, error))
      {
        g_clear_error (&failure);
        return FALSE;
      }
  if (source->is_writer && failure == NULL && write_index (saving, &failure))
    ebb_atomic_folder_commit (&saving->folder, &failure);
  return source->agree (source->data, failure, error);
}

gboolean
ebb_model_save_from (EbbModule *model,
                     EbbWeightMap *map,
                     const EbbModelSource *source,
                     const char *folder,
                     int dtype,
                     guint64 max_file_size,
                     GError **error)
{
  Saving saving = { .source = source,
                    .map = map,
                    .dtype = dtype,
                    .max_file_size = max_file_size > 0 ? max_file_size : USUAL_FILE_SIZE,
                    .files = g_ptr_array_new_with_free_func (weight_file_free),
                    .folder = { .fd = -1 },
                    .full_number = G_MAXUINT };
  gboolean done = FALSE;

  if (ebb_gguf_is_path (folder))
    {
      g_ptr_array_unref (saving.files);
      return ebb_module_check_not_quantized (model, "a GGUF file has no such weights; save a folder", error)
             && ebb_model_save_gguf_from (model, map, source, folder, dtype, error);
    }
  if (ebb_weight_map_check_quantized (map, error)
      && ebb_weight_map_describe_quantized (map, model, find_main_dtype (&saving), error))
    {
      divide (&saving);
      ebb_push_grad_enabled (FALSE);
      done = save (&saving, model, folder, error);
      ebb_pop_grad_enabled ();
    }
  if (saving.folder.temporary != NULL)
    ebb_atomic_folder_abort (&saving.folder);
  g_clear_pointer (&saving.full, ebb_tensor_unref);
  g_ptr_array_unref (saving.files);
  return done;
}

/* -- of a model with full parameters ------------------------------------------------------------------------------- */

static EbbModelSaveSplitFunc save_split;
static EbbModelSaveCheckFunc save_check;

void
ebb_model_set_save_split_func (EbbModelSaveSplitFunc func)
{
  save_split = func;
}

void
ebb_model_set_save_check_func (EbbModelSaveCheckFunc func)
{
  save_check = func;
}

static gboolean
get_own (gpointer data,
         guint tensor,
         GError *failure,
         EbbTensor **full,
         GError **error)
{
  g_autoptr (EbbTensor) alias = NULL;

  if (failure != NULL)
    {
      g_propagate_error (error, failure);
      return FALSE;
    }
  alias = ebb_tensor_alias (g_ptr_array_index ((GPtrArray *) data, tensor));
  *full = ebb_to_device (alias, ebb_device_get_cpu (), error);
  return *full != NULL;
}

static gboolean
agree_alone (gpointer data,
             GError *failure,
             GError **error)
{
  if (failure != NULL)
    g_propagate_error (error, failure);
  return failure == NULL;
}

static void
collect_tensor (const char *name,
                EbbTensor *tensor,
                gpointer user_data)
{
  g_ptr_array_add (user_data, tensor);
}

static gboolean
save_model (EbbModule *model,
            const char *folder,
            int dtype,
            guint64 max_file_size,
            GError **error)
{
  const EbbArchitecture *architecture = ebb_model_find_architecture (model, error);
  g_autoptr (EbbWeightMap) map = NULL;
  g_autoptr (GPtrArray) tensors = g_ptr_array_new ();
  const EbbModelSource source = { get_own, agree_alone, tensors, TRUE };

  if (architecture == NULL)
    return FALSE;
  map = ebb_weight_map_new_from_module (architecture, model);
  ebb_module_visit_state (model, collect_tensor, tensors);
  return ebb_model_save_from (model, map, &source, folder, dtype, max_file_size, error);
}

static gboolean
check_dtype (const char *path,
             int dtype,
             GError **error)
{
  const gboolean is_gguf = ebb_gguf_is_path (path);

  return dtype == EBB_MODEL_KEEP_DTYPE || dtype == EBB_DTYPE_F32 || dtype == EBB_DTYPE_BF16
         || (is_gguf && (dtype == EBB_DTYPE_F16 || dtype == EBB_MODEL_Q8_0))
         || ebb_fail (error, EBB_ERROR_DTYPE, "model_save: dtype is %s, it must be %s",
                      dtype == EBB_MODEL_Q8_0              ? "q8_0"
                      : dtype >= 0 && dtype < EBB_N_DTYPES ? ebb_dtype_get_name ((EbbDType) dtype)
                                                           : "no dtype",
                      is_gguf ? "f32, f16, bf16 or q8_0" : "f32 or bf16; a GGUF file may also have f16 or q8_0");
}

/**
 * ebb_model_save_full:
 * @model: an #EbbGpt or an #EbbBert
 * @folder: (type filename): where to save it: a folder, or a file whose name ends with `.gguf`
 * @dtype: the #EbbDType of all weights in the files, f32 or bf16, of a GGUF file also f16 and %EBB_MODEL_Q8_0;
 *   %EBB_MODEL_KEEP_DTYPE for that of the parameters
 * @max_file_size: the most bytes of weights in one file, unless one tensor has more; 0 for 5 GB
 * @error: return location for an error
 *
 * Saves a model as ebb_model_save() does. More than @max_file_size bytes become several files, with
 * `model.safetensors.index.json`; a GGUF file is always one.
 *
 * In a GGUF file vectors, norms and learned positions are F32 whatever the dtype, and rows that are no multiple of 32
 * values are F16 in place of Q8_0, as llama.cpp's converter has them.
 *
 * Returns: %TRUE if the folder is there, %FALSE with @error set
 */
gboolean
ebb_model_save_full (EbbModule *model,
                     const char *folder,
                     int dtype,
                     guint64 max_file_size,
                     GError **error)
{
  gboolean is_split = FALSE, done = FALSE;

  EBB_RETURN_UNLESS_BEGUN (FALSE, error, model, folder);
  g_return_val_if_fail (EBB_IS_MODULE (model), FALSE);

  if (!check_dtype (folder, dtype, error) || (save_check != NULL && !save_check (model, error)))
    return FALSE;
  if (save_split != NULL)
    done = save_split (model, folder, dtype, max_file_size, &is_split, error);
  return is_split ? done : save_model (model, folder, dtype, max_file_size, error);
}

/**
 * ebb_model_save:
 * @model: an #EbbGpt or an #EbbBert
 * @folder: (type filename): where to save it: a folder, or a file whose name ends with `.gguf`
 * @error: return location for an error
 *
 * Saves a model as a folder in Hugging Face's format, which ebb_model_open() and `transformers` open. Of a model
 * that came from a folder, `config.json` keeps what Ebb does not know, and the files of the tokenizer,
 * `generation_config.json`, templates, the licence and the description are copied from that folder where @folder has
 * none of that name; ebb_model_set_tokenizer() replaces the tokenizer. Any other model gets the `config.json` of the
 * architecture that has its choices. Weights have the dtype of their parameters; tied ones are saved once.
 *
 * The folder appears as a whole, after all of it has reached the disk: on an error, or if the machine stops in the
 * middle, what was at @folder before is still there and nothing else. A model that is there is replaced, and other
 * files beside it stay. The files of the current folder, and of one without `config.json`, are replaced one by one,
 * `config.json` last: an error puts the old ones back, and if the machine stops in between there is no `config.json`.
 *
 * A name that ends with `.gguf` becomes one file for llama.cpp, with names, types and the order of rows of its
 * converter; ebb_model_open() opens that too. It has the tokenizer of the model's folder, or the one that
 * ebb_model_set_tokenizer() names, its special tokens and its chat template.
 *
 * A model that is fully sharded or tensor-parallel is saved by all ranks of the default group together: rank 0 writes,
 * and no rank holds more full parameters at a time than one.
 *
 * Returns: %TRUE if the folder is there; %FALSE with %EBB_ERROR_IO if it can't be written, %EBB_ERROR_STATE if no
 *   architecture has the choices of the model, %EBB_ERROR_NOT_SUPPORTED if llama.cpp would compute another model than a
 *   GGUF file is to hold, or has no such tokenizer
 */
gboolean
ebb_model_save (EbbModule *model,
                const char *folder,
                GError **error)
{
  return ebb_model_save_full (model, folder, EBB_MODEL_KEEP_DTYPE, 0, error);
}

static char *
describe_over (EbbModule *model,
               int dtype,
               const EbbJson *before,
               GError **error)
{
  const EbbArchitecture *architecture;
  g_autoptr (EbbWeightMap) map = NULL;
  Saving saving = { .dtype = dtype };

  if (!check_dtype ("", dtype, error) || (save_check != NULL && !save_check (model, error))
      || (architecture = ebb_model_find_architecture (model, error)) == NULL)
    return NULL;
  saving.map = map = ebb_weight_map_new_from_module (architecture, model);
  return ebb_weight_map_check_quantized (map, error)
                 && ebb_weight_map_describe_quantized (map, model, find_main_dtype (&saving), error)
             ? make_config (&saving, model, before, error)
             : NULL;
}

/**
 * ebb_model_make_config:
 * @model: an #EbbGpt or an #EbbBert with full parameters
 * @dtype: the #EbbDType of the weights, f32 or bf16, or %EBB_MODEL_KEEP_DTYPE for that of the parameters
 * @error: return location for an error
 *
 * Describes a model as the `config.json` that ebb_model_save_full() would write.
 *
 * Returns: (transfer full) (nullable): JSON; %NULL with @error set
 */
char *
ebb_model_make_config (EbbModule *model,
                       int dtype,
                       GError **error)
{
  EBB_RETURN_UNLESS_BEGUN (NULL, error, model);
  g_return_val_if_fail (EBB_IS_MODULE (model), NULL);

  return describe_over (model, dtype, NULL, error);
}

/* A config.json is the model's if the model would write each of its values, and would change nothing of it. Keys that
 * it lacks and whose values go without saying are no difference: an older version may not have written them. */
static const char *
find_changed_key (const EbbJson *there,
                  const EbbJson *ours,
                  const EbbJson *over)
{
  for (gsize i = 0; i < there->n_items; i++)
    {
      const EbbJson *value = ebb_json_get (ours, there->items[i].key);
      g_autofree char *line = ebb_json_to_line (&there->items[i]);
      g_autofree char *own = value != NULL ? ebb_json_to_line (value) : NULL;

      if (g_strcmp0 (line, own) != 0)
        return there->items[i].key;
    }
  for (gsize i = 0; i < over->n_items; i++)
    if (ebb_json_get (there, over->items[i].key) == NULL)
      return over->items[i].key;
  return NULL;
}

/**
 * ebb_model_check_config:
 * @model: an #EbbGpt or an #EbbBert with full parameters
 * @dtype: the #EbbDType of the weights, f32 or bf16, or %EBB_MODEL_KEEP_DTYPE for that of the parameters
 * @config: the text of a folder's `config.json`
 * @error: return location for an error
 *
 * Checks that a `config.json` describes this model, as one that an earlier ebb_model_save_full() of the same model
 * wrote, also of an older version that wrote fewer keys: a program may replace such a folder.
 *
 * Returns: %TRUE if it does; %FALSE with @error set to %EBB_ERROR_STATE, which names a key, or to why the model has no
 *   `config.json`
 */
gboolean
ebb_model_check_config (EbbModule *model,
                        int dtype,
                        const char *config,
                        GError **error)
{
  g_autoptr (EbbJson) there = NULL;
  g_autoptr (EbbJson) ours = NULL;
  g_autoptr (EbbJson) over = NULL;
  g_autofree char *text = NULL;
  g_autofree char *written = NULL;
  const char *key;

  EBB_RETURN_UNLESS_BEGUN (FALSE, error, model, config);
  g_return_val_if_fail (EBB_IS_MODULE (model), FALSE);

  text = describe_over (model, dtype, NULL, error);
  there = text != NULL ? ebb_json_parse (config, strlen (config), EBB_CONFIG_FILE, error) : NULL;
  if (there == NULL)
    return FALSE;
  ours = ebb_json_parse (text, strlen (text), EBB_CONFIG_FILE, error);
  if (there->kind != EBB_JSON_OBJECT)
    return ebb_fail (error, EBB_ERROR_STATE, "%s is no object", EBB_CONFIG_FILE);
  written = describe_over (model, dtype, there, error);
  over = written != NULL ? ebb_json_parse (written, strlen (written), EBB_CONFIG_FILE, error) : NULL;
  if (over == NULL)
    return FALSE;
  key = find_changed_key (there, ours, over);
  if (key != NULL)
    ebb_error_set (error, EBB_ERROR_STATE, "%s: \"%s\" is not this model's", EBB_CONFIG_FILE, key);
  return key == NULL;
}
