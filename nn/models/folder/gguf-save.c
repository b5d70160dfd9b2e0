/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "nn/models/folder/model-private.h"

#include "nn/data/tokenizer/gguf-private.h"
#include "tensor/util/json-scanner-private.h"
#include "nn/models/folder/gguf-model-private.h"
#include "nn/models/gpt.h"
#include "nn/module-instance-private.h"
#include "tensor/autograd/autograd.h"
#include "tensor/error-private.h"
#include "tensor/ops/shape.h"
#include "tensor/tensor-private.h"
#include "tensor/util/half-private.h"

#include <string.h>

/* Saves a model as one GGUF file: names, types and order of rows are those of llama.cpp's converter. Tensors are
 * fetched, converted and written one after the other. */

typedef struct
{
  EbbModule *model;
  const EbbModelSource *source;
  EbbWeightMap *map;
  int dtype; /* as of ebb_model_save_full () */
  EbbGgufWriter writer;
  EbbGgufFactors factors[EBB_GGUF_MAX_FACTORS];
  guint n_factors;
  EbbAtomicFile file;
  EbbTensor *full; /* the tensor that was fetched last */
  guint full_number;
} Saving;

/* -- types --------------------------------------------------------------------------------------------------------- */

static EbbGgufTensorType
get_main_type (const Saving *saving)
{
  switch (saving->dtype)
    {
    case EBB_DTYPE_F32: return EBB_GGUF_TENSOR_F32;
    case EBB_DTYPE_F16: return EBB_GGUF_TENSOR_F16;
    case EBB_DTYPE_BF16: return EBB_GGUF_TENSOR_BF16;
    case EBB_MODEL_Q8_0: return EBB_GGUF_TENSOR_Q8_0;
    default: break;
    }
  for (guint i = 0; i < saving->map->tensors->len; i++)
    {
      const EbbModelTensor *tensor = &g_array_index (saving->map->tensors, EbbModelTensor, i);

      if (tensor->n_dims > 1 && tensor->dtype == EBB_DTYPE_BF16)
        return EBB_GGUF_TENSOR_BF16;
    }
  return EBB_GGUF_TENSOR_F32;
}

/* As the converter: vectors, norms and learned positions are F32, and rows that are no whole blocks F16. */
static EbbGgufTensorType
get_type (const Saving *saving,
          const EbbWeight *weight)
{
  EbbGgufTensorType type = get_main_type (saving);

  if (weight->n_dims < 2 || g_str_has_suffix (weight->name, "_norm.weight")
      || strcmp (weight->name, "position_embd.weight") == 0)
    return EBB_GGUF_TENSOR_F32;
  if (type == EBB_GGUF_TENSOR_Q8_0 && weight->shape[weight->n_dims - 1] % 32 != 0)
    return EBB_GGUF_TENSOR_F16;
  for (guint k = 0; saving->dtype == EBB_MODEL_KEEP_DTYPE && k < weight->n_parts; k++)
    if (g_array_index (saving->map->tensors, EbbModelTensor, weight->parts[k].tensor).dtype != EBB_DTYPE_BF16)
      type = EBB_GGUF_TENSOR_F32;
  return type;
}

/* llama.cpp's number for the type that most tensors have. */
static guint32
get_file_type (EbbGgufTensorType type)
{
  return type == EBB_GGUF_TENSOR_Q8_0 ? 7 : type == EBB_GGUF_TENSOR_BF16 ? 32
                                                                         : type;
}

static gint64
count_values (const EbbWeight *weight)
{
  gint64 n = 1;

  for (guint d = 0; d < weight->n_dims; d++)
    n *= weight->shape[d];
  return n;
}

/* -- weights ------------------------------------------------------------------------------------------------------- */

#define STEP ((gint64) 1 << 16) /* values that are converted at one time, at least one row */

static void
convert_row (const EbbTensor *full,
             gint64 row,
             gint64 width,
             gboolean is_one_more,
             float *values)
{
  const char *data = full->view.data;

  for (gint64 i = 0, at = row * width; i < width; i++, at++)
    values[i] = (full->view.dtype == EBB_DTYPE_F32    ? ((const float *) (gconstpointer) data)[at]
                 : full->view.dtype == EBB_DTYPE_BF16 ? ebb_bf16_to_float (((const guint16 *) (gconstpointer) data)[at])
                                                      : ebb_f16_to_float (((const guint16 *) (gconstpointer) data)[at]))
                + (is_one_more ? 1.0f : 0.0f);
}

/* The rows of one part, in the file's order. */
static gboolean
write_part (Saving *saving,
            const EbbWeight *weight,
            const EbbWeightPart *part,
            GError **error)
{
  g_autoptr (EbbTensor) full = ebb_contiguous (saving->full, error);
  const gint64 width = count_values (weight) / weight->shape[0];
  const gint64 step = MAX (1, STEP / MAX (1, width));
  g_autofree float *values = g_new (float, (gsize) (step * width));

  if (full == NULL || ebb_tensor_get_data (full, error) == NULL)
    return FALSE;
  for (gint64 first = 0; first < part->n_rows; first += step)
    {
      const gint64 n = MIN (step, part->n_rows - first);

      for (gint64 i = 0; i < n; i++)
        convert_row (full,
                     part->row
                         + (weight->n_heads > 0 ? ebb_weight_get_own_row (weight->n_heads, part->n_rows, first + i)
                                                : first + i),
                     width, weight->is_one_more, values + i * width);
      if (!ebb_gguf_write_values (&saving->file, get_type (saving, weight), values, n * width, error))
        return FALSE;
    }
  return TRUE;
}

/* Fetches the parts of a weight, on all ranks, and writes them on the one that writes. *@failure: what has failed on
 * this rank alone; all ranks go on to the next fetch, which reports it. */
static gboolean
save_weight (Saving *saving,
             const EbbWeight *weight,
             GError **failure,
             GError **error)
{
  const EbbModelSource *source = saving->source;

  for (guint k = 0; k < weight->n_parts; k++)
    {
      if (saving->full_number != weight->parts[k].tensor)
        {
          g_clear_pointer (&saving->full, ebb_tensor_unref);
          if (!source->get (source->data, weight->parts[k].tensor, g_steal_pointer (failure), &saving->full, error))
            return FALSE;
          saving->full_number = weight->parts[k].tensor;
        }
      if (source->is_writer && *failure == NULL)
        write_part (saving, weight, &weight->parts[k], failure);
    }
  if (source->is_writer && *failure == NULL)
    ebb_gguf_write_padding (&saving->file, get_type (saving, weight), count_values (weight), failure);
  return TRUE;
}

/* -- values -------------------------------------------------------------------------------------------------------- */

/* The folder or file that has the model's tokenizer; NULL: none is known. */
static const char *
get_tokenizer_path (EbbModule *model)
{
  const EbbModelTokenizer *tokenizer = ebb_model_get_tokenizer (model);
  const EbbModelOrigin *origin = ebb_model_get_origin (model);

  return tokenizer != NULL ? tokenizer->folder : origin != NULL ? origin->folder
                                                                : NULL;
}

static char *
make_name (const char *path)
{
  g_autofree char *name = g_path_get_basename (path);

  if (ebb_gguf_is_path (name))
    name[strlen (name) - strlen (EBB_GGUF_SUFFIX)] = '\0';
  return g_utf8_make_valid (name, -1);
}

static gboolean
add_values (Saving *saving,
            const char *path,
            GError **error)
{
  EbbGgufWriter *writer = &saving->writer;
  g_autoptr (EbbGptConfig) config = ebb_gpt_get_config (EBB_GPT (saving->model));
  const EbbModelOrigin *origin = ebb_model_get_origin (saving->model);
  g_autofree char *name = make_name (path);

  ebb_gguf_writer_add_string (writer, "general.architecture", saving->map->architecture->gguf->name);
  ebb_gguf_writer_add_string (writer, "general.type", "model");
  ebb_gguf_writer_add_string (writer, "general.name", name);
  if (!ebb_gguf_write_config (writer, saving->map->architecture, config, saving->factors, &saving->n_factors, error))
    return FALSE;
  ebb_gguf_writer_add_u32 (writer, "general.file_type", get_file_type (get_main_type (saving)));
  ebb_gguf_writer_add_u32 (writer, "general.quantization_version", 2);
  return ebb_gguf_write_tokenizer (writer, get_tokenizer_path (saving->model), (guint) config->vocab,
                                   origin != NULL ? origin->document : NULL, error);
}

/* All that is not a weight, on the rank that writes. */
static gboolean
begin (Saving *saving,
       const char *path,
       GError **error)
{
  if (!add_values (saving, path, error))
    return FALSE;
  for (guint i = 0; i < saving->n_factors; i++)
    ebb_gguf_writer_add_tensor (&saving->writer, saving->factors[i].name, &saving->factors[i].n, 1,
                                EBB_GGUF_TENSOR_F32);
  for (guint i = 0; i < saving->map->weights->len; i++)
    {
      const EbbWeight *weight = &g_array_index (saving->map->weights, EbbWeight, i);

      ebb_gguf_writer_add_tensor (&saving->writer, weight->name, weight->shape, weight->n_dims,
                                  get_type (saving, weight));
    }
  if (!ebb_atomic_file_open (&saving->file, path, error)
      || !ebb_gguf_writer_write_header (&saving->writer, &saving->file, error))
    return FALSE;
  for (guint i = 0; i < saving->n_factors; i++)
    if (!ebb_gguf_write_values (&saving->file, EBB_GGUF_TENSOR_F32, saving->factors[i].factors, saving->factors[i].n,
                                error)
        || !ebb_gguf_write_padding (&saving->file, EBB_GGUF_TENSOR_F32, saving->factors[i].n, error))
      return FALSE;
  return TRUE;
}

/* -- saving -------------------------------------------------------------------------------------------------------- */

static gboolean
save (Saving *saving,
      const char *path,
      GError **error)
{
  const EbbModelSource *source = saving->source;
  GError *failure = NULL;

  if (source->is_writer)
    begin (saving, path, &failure);
  if (!source->agree (source->data, g_steal_pointer (&failure), error))
    return FALSE;
  for (guint i = 0; i < saving->map->weights->len; i++)
    if (!save_weight (saving, &g_array_index (saving->map->weights, EbbWeight, i), &failure, error))
      {
        g_clear_error (&failure);
        return FALSE;
      }
  if (source->is_writer && failure == NULL)
    ebb_atomic_file_commit (&saving->file, &failure);
  return source->agree (source->data, failure, error);
}

gboolean
ebb_model_save_gguf_from (EbbModule *model,
                          EbbWeightMap *map,
                          const EbbModelSource *source,
                          const char *path,
                          int dtype,
                          GError **error)
{
  Saving saving = { .model = model,
                    .source = source,
                    .dtype = dtype,
                    .file = { .fd = -1 },
                    .full_number = G_MAXUINT };
  g_autoptr (EbbGptConfig) config = EBB_IS_GPT (model) ? ebb_gpt_get_config (EBB_GPT (model)) : NULL;
  g_autoptr (EbbJson) document = NULL;
  gboolean done;

  if (config == NULL || map->architecture->gguf == NULL)
    return ebb_fail (error, EBB_ERROR_NOT_SUPPORTED,
                     "the model can't be saved as GGUF: llama.cpp has no %s with its head; save it as a folder",
                     ebb_module_get_type_name (model));
  /* The architecture has all choices of the model, or says which not. */
  document = ebb_config_write (map->architecture, NULL, config, error);
  if (document == NULL)
    return FALSE;
  saving.map = ebb_weight_map_new_gguf (map, config);
  ebb_gguf_writer_init (&saving.writer);
  ebb_push_grad_enabled (FALSE);
  done = save (&saving, path, error);
  ebb_pop_grad_enabled ();
  ebb_atomic_file_abort (&saving.file);
  g_clear_pointer (&saving.full, ebb_tensor_unref);
  ebb_gguf_writer_clear (&saving.writer);
  ebb_weight_map_free (saving.map);
  return done;
}
