/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "nn/models/folder/weights-private.h"

#include "nn/layers/quantize.h"
#include "nn/state/state-dict-private.h"
#include "tensor/tensor-private.h"

#include <string.h>

/* Names and shapes of a model's tensors in files: one to one, joined (Phi-3), apart (BERT) or transposed (GPT-2).
 * Those of quantised weights are never transposed. */

static void
tensor_clear (gpointer data)
{
  g_free (((EbbModelTensor *) data)->name);
}

static void
weight_clear (gpointer data)
{
  g_free (((EbbWeight *) data)->name);
  g_free (((EbbWeight *) data)->text);
}

EbbWeightMap *
ebb_weight_map_new (const EbbArchitecture *architecture)
{
  EbbWeightMap *self = g_new0 (EbbWeightMap, 1);

  self->architecture = architecture;
  self->tensors = g_array_new (FALSE, TRUE, sizeof (EbbModelTensor));
  self->weights = g_array_new (FALSE, TRUE, sizeof (EbbWeight));
  g_array_set_clear_func (self->tensors, tensor_clear);
  g_array_set_clear_func (self->weights, weight_clear);
  return self;
}

/* The rest of the name after the number in "layers.12.mlp.up_proj.weight"; NULL for a name outside the blocks. */
static const char *
skip_block (const EbbArchitecture *architecture,
            const char *name)
{
  const gsize length = strlen (architecture->own_list);
  gsize n_digits;

  if (strncmp (name, architecture->own_list, length) != 0)
    return NULL;
  n_digits = strspn (name + length, "0123456789");
  return n_digits > 0 && name[length + n_digits] == '.' ? name + length + n_digits + 1 : NULL;
}

/* @rest: the name without its block. What follows the rule's name; NULL: the rule is not for it. */
static const char *
match_rule (const EbbNameRule *rule,
            const char *rest)
{
  const gsize length = strlen (rule->own);

  return strncmp (rest, rule->own, length) == 0 && (rest[length] == '.' || rest[length] == '\0') ? rest + length : NULL;
}

/* A new weight, or the one of that name that other tensors have begun. */
static EbbWeight *
get_weight (EbbWeightMap *self,
            const char *name,
            gboolean *is_new)
{
  EbbWeight weight = { .name = NULL };

  /* The tensors of one weight follow each other closely. */
  for (guint i = self->weights->len; i > 0 && i + 8 > self->weights->len; i--)
    if (strcmp (g_array_index (self->weights, EbbWeight, i - 1).name, name) == 0)
      {
        *is_new = FALSE;
        return &g_array_index (self->weights, EbbWeight, i - 1);
      }
  *is_new = TRUE;
  weight.name = g_strdup (name);
  g_array_append_val (self->weights, weight);
  return &g_array_index (self->weights, EbbWeight, self->weights->len - 1);
}

static void
add_values (EbbWeightMap *self,
            const char *name,
            const EbbNameRule *rule,
            gboolean transposed)
{
  const guint index = self->tensors->len - 1;
  const EbbModelTensor *tensor = &g_array_index (self->tensors, EbbModelTensor, index);
  const guint n_files = rule != NULL && rule->n_files > 0 ? rule->n_files : 1;
  const gint64 n_rows = tensor->n_dims > 0 ? tensor->shape[0] / n_files : 1;
  gboolean is_new;
  EbbWeight *weight = get_weight (self, name, &is_new);

  if (is_new)
    {
      memcpy (weight->shape, tensor->shape, sizeof weight->shape);
      weight->n_dims = tensor->n_dims;
      weight->shape[0] = n_rows;
      weight->is_i8 = tensor->dtype == EBB_DTYPE_U8 && self->quantization == EBB_QUANTIZATION_INT8;
      weight->transposed = transposed;
      if (transposed)
        {
          weight->shape[0] = tensor->shape[1];
          weight->shape[1] = tensor->shape[0];
        }
    }
  g_assert (weight->n_parts < EBB_MAX_WEIGHT_PARTS);
  weight->parts[weight->n_parts++] =
      (EbbWeightPart){ index, rule != NULL ? rule->index * n_rows : 0, n_rows, is_new ? 0 : weight->shape[0] };
  if (!is_new)
    weight->shape[0] += n_rows;
}

/* A tensor of the files that has no values of the model, but those of number @tensor if that isn't negative. */
static void
add_content (EbbWeightMap *self,
             const char *name,
             EbbWeightContent content,
             int tensor)
{
  gboolean is_new;
  EbbWeight *weight = get_weight (self, name, &is_new);

  weight->content = content;
  weight->n_dims = content == EBB_WEIGHT_FORMAT ? 0 : 1;
  weight->shape[0] = content == EBB_WEIGHT_QUANT_MAP ? 16 : -1;
  if (tensor >= 0 && weight->n_parts < EBB_MAX_WEIGHT_PARTS)
    weight->parts[weight->n_parts++] = (EbbWeightPart){ (guint) tensor, 0, 1, 0 };
}

static char *
replace_end (const char *name,
             const char *end,
             const char *other)
{
  return g_strdup_printf ("%.*s%s", (int) (strlen (name) - strlen (end)), name, other);
}

/* Adds what files have for the model's last tensor under @name, and beside it if it is of a quantised weight. */
static void
add_part (EbbWeightMap *self,
          const char *name,
          const EbbNameRule *rule,
          gboolean transposed)
{
  const int index = (int) self->tensors->len - 1;
  EbbModelTensor *tensor = &g_array_index (self->tensors, EbbModelTensor, index);
  g_autoptr (GString) file = g_string_new (name);
  EbbWeightContent content = EBB_WEIGHT_VALUES;
  g_autofree char *beside = NULL;

  tensor->is_exact = ebb_quantized_name_to_file (self->quantization, tensor->dtype, file, &content);
  if (content == EBB_WEIGHT_VALUES)
    add_values (self, file->str, rule, transposed);
  else
    add_content (self, file->str, content, index);
  if (content == EBB_WEIGHT_QUANT_STATE)
    {
      beside = replace_end (file->str, "quant_state.bitsandbytes__nf4", "quant_map");
      add_content (self, beside, EBB_WEIGHT_QUANT_MAP, -1);
    }
  else if (g_str_has_suffix (file->str, ".SCB"))
    {
      beside = replace_end (file->str, "SCB", "weight_format");
      add_content (self, beside, EBB_WEIGHT_FORMAT, -1);
    }
}

static gboolean
is_turned (const EbbArchitecture *architecture,
           const char *rest,
           const EbbModelTensor *tensor)
{
  return architecture->transposed != NULL && tensor->n_dims == 2 && ebb_dtype_is_floating_point (tensor->dtype)
         && g_strv_contains (architecture->transposed, rest);
}

void
ebb_weight_map_add (EbbWeightMap *self,
                    const char *name,
                    const gint64 *shape,
                    guint n_dims,
                    EbbDType dtype)
{
  const EbbArchitecture *architecture = self->architecture;
  const char *rest = skip_block (architecture, name);
  const EbbGgufForm *gguf = self->gguf;
  const EbbNameRule *names = gguf != NULL ? gguf->names : architecture->names;
  const EbbNameRule *block_names = gguf != NULL ? gguf->block_names : architecture->block_names;
  const EbbNameRule *rules = rest != NULL ? block_names : names;
  const char *prefix = gguf != NULL ? "" : architecture->prefix;
  const gsize list_length = strlen (architecture->own_list);
  const gboolean is_head = g_str_has_prefix (name, "lm_head.");
  EbbModelTensor tensor = { .name = g_strdup (name), .n_dims = n_dims, .dtype = dtype };
  g_autofree char *block = NULL;
  guint n_matches = 0;

  memcpy (tensor.shape, shape, n_dims * sizeof shape[0]);
  g_array_append_val (self->tensors, tensor);
  /* The prefix in files: "model.layers.12.". */
  block = rest == NULL ? g_strdup (is_head ? "" : prefix)
                       : g_strdup_printf ("%s%s%.*s", prefix, gguf != NULL ? "blk." : architecture->file_list,
                                          (int) (rest - name - (gssize) list_length), name + list_length);
  rest = rest != NULL ? rest : name;
  for (const EbbNameRule *rule = rules; rule->own != NULL; rule++)
    {
      const char *end = match_rule (rule, rest);
      g_autofree char *file = end != NULL ? g_strconcat (block, rule->file, end, NULL) : NULL;

      if (file != NULL)
        add_part (self, file, rule, FALSE);
      n_matches += file != NULL;
    }
  if (n_matches == 0)
    {
      g_autofree char *file = g_strconcat (block, rest, NULL);

      add_part (self, file, NULL, gguf == NULL && is_turned (architecture, rest, &tensor));
    }
}

static void
add_tensor (const char *name,
            EbbTensor *tensor,
            gpointer user_data)
{
  ebb_weight_map_add (user_data, name, tensor->view.shape, (guint) tensor->view.n_dims, tensor->view.dtype);
}

EbbWeightMap *
ebb_weight_map_new_from_module (const EbbArchitecture *architecture,
                                EbbModule *model)
{
  EbbWeightMap *self = ebb_weight_map_new (architecture);

  self->quantization = ebb_get_quantization (model);
  ebb_module_visit_state (model, add_tensor, self);
  return self;
}

static gboolean
is_of (const EbbWeight *weight,
       const char *module)
{
  g_autofree char *matrix = g_strconcat (module, ".weight", NULL);
  g_autofree char *bias = g_strconcat (module, ".bias", NULL);

  return g_str_has_suffix (weight->name, matrix) || g_str_has_suffix (weight->name, bias);
}

EbbWeightMap *
ebb_weight_map_new_gguf (const EbbWeightMap *map,
                         const EbbGptConfig *config)
{
  EbbWeightMap *self = ebb_weight_map_new (map->architecture);
  const EbbGgufForm *gguf = self->gguf = map->architecture->gguf;

  for (guint i = 0; i < map->tensors->len; i++)
    {
      const EbbModelTensor *tensor = &g_array_index (map->tensors, EbbModelTensor, i);

      ebb_weight_map_add (self, tensor->name, tensor->shape, tensor->n_dims, tensor->dtype);
    }
  for (guint i = 0; i < self->weights->len; i++)
    {
      EbbWeight *weight = &g_array_index (self->weights, EbbWeight, i);

      if (gguf->permutes && is_of (weight, ".attn_q"))
        weight->n_heads = (guint) config->heads;
      if (gguf->permutes && is_of (weight, ".attn_k"))
        weight->n_heads = (guint) (config->kv_heads > 0 ? config->kv_heads : config->heads);
      weight->is_one_more = gguf->adds_one && g_str_has_suffix (weight->name, "norm.weight");
    }
  return self;
}

void
ebb_weight_map_free (EbbWeightMap *self)
{
  g_array_unref (self->tensors);
  g_array_unref (self->weights);
  g_free (self);
}
