/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "nn/args-private.h"
#include "nn/models/gpt-config.h"
#include "nn/models/gpt-file-private.h"
#include "tensor/util/json-private.h"
#include "tensor/autograd/autograd.h"
#include "tensor/error-private.h"
#include "tensor/ops/pointwise.h"
#include "tensor/ops/shape.h"
#include "tensor/tensor-private.h"

#include <string.h>

/* Reads a GPT-2's configuration from its files: the shapes of the tensors, the metadata beside them, and config.json
 * as `transformers` writes it. */

#define HEADS_KEY "n_head"
#define NORM_EPS_KEY "layer_norm_epsilon"
#define ACTIVATION_KEY "activation_function"
#define TIED_KEY "tie_word_embeddings"
#define USUAL_HEAD_WIDTH 64 /* of all published sizes */
#define MAX_CONFIG_SIZE ((gsize) 1 << 20)

/* Where a value stands, and all that stands there: names to JSON values. */
typedef struct
{
  const char *where;
  GHashTable *values;
} Source;

static const struct
{
  const char *name;
  EbbActivation activation;
} activations[] = {
  { "gelu_new", EBB_ACTIVATION_GELU_TANH },
  { "gelu_pytorch_tanh", EBB_ACTIVATION_GELU_TANH },
  { "gelu_fast", EBB_ACTIVATION_GELU_TANH },
  { "gelu", EBB_ACTIVATION_GELU },
  { "silu", EBB_ACTIVATION_SILU },
};

static gboolean
refuse (const Source *source,
        const char *name,
        const char *right,
        GError **error)
{
  return ebb_fail (error, EBB_ERROR_STATE, "%s: %s is %s: it must be %s", ebb_show_text (source->where), name,
                   ebb_show_text (g_hash_table_lookup (source->values, name)), right);
}

/* -- reading ------------------------------------------------------------------------------------------------------- */

static gboolean
read_config (const Source *source,
             GError **error)
{
  g_autoptr (EbbJson) document = ebb_json_read_file (source->where, MAX_CONFIG_SIZE, error);
  g_autofree char *where = ebb_escape_text (source->where);

  if (document == NULL)
    return FALSE;
  if (document->kind != EBB_JSON_OBJECT)
    return ebb_fail (error, EBB_ERROR_FORMAT, "%s: expected an object of keys and values", where);
  for (gsize i = 0; i < document->n_items; i++)
    g_hash_table_insert (source->values, g_strdup (document->items[i].key), ebb_json_to_line (&document->items[i]));
  return TRUE;
}

/* Takes the values that ebb_gpt_config_to_gpt2_metadata() has written, all of them text; other metadata is ignored. */
static void
read_metadata (const Source *source,
               EbbArgs *metadata)
{
  static const char *const names[] = { HEADS_KEY, NORM_EPS_KEY, ACTIVATION_KEY };

  for (guint i = 0; i < G_N_ELEMENTS (names); i++)
    {
      int index = ebb_args_find (metadata, names[i]);
      const char *text;

      if (index < 0 || ebb_args_get_value_kind (metadata, (guint) index) != EBB_VALUE_STRING)
        continue;
      text = ebb_args_get_string (metadata, (guint) index);
      g_hash_table_insert (source->values, g_strdup (names[i]),
                           strcmp (names[i], ACTIVATION_KEY) == 0 ? g_strdup_printf ("\"%s\"", text) : g_strdup (text));
    }
}

/* -- taking over --------------------------------------------------------------------------------------------------- */

/* The number of that name; 0 if it is missing. */
static gboolean
find_size (const Source *source,
           const char *name,
           int *size,
           GError **error)
{
  const char *text = g_hash_table_lookup (source->values, name);
  guint64 number = 0;

  if (text != NULL && !g_ascii_string_to_unsigned (text, 10, 1, G_MAXINT, &number, NULL))
    return refuse (source, name, "a number of at least 1", error);
  *size = (int) number;
  return TRUE;
}

static gboolean
check_sizes (const EbbGptConfig *config,
             const Source *source,
             GError **error)
{
  const struct
  {
    const char *name;
    int size;
  } sizes[] = {
    { "n_embd", config->width },
    { "n_layer", config->layers },
    { "n_positions", config->context },
    { "n_ctx", config->context },
    { "vocab_size", config->vocab },
    { "n_inner", 4 * config->width },
  };

  for (guint i = 0; i < G_N_ELEMENTS (sizes); i++)
    {
      g_autofree char *right = g_strdup_printf ("%d, as the tensors have it", sizes[i].size);
      int size;

      if (g_strcmp0 (g_hash_table_lookup (source->values, sizes[i].name), "null") == 0)
        continue;
      if (!find_size (source, sizes[i].name, &size, error))
        return FALSE;
      if (size != 0 && size != sizes[i].size)
        return refuse (source, sizes[i].name, right, error);
    }
  return TRUE;
}

/* FALSE with an error if a key asks for another model of the same tensors. */
static gboolean
check_form (const Source *source,
            GError **error)
{
  static const char *const forms[][2] = { { "model_type", "\"gpt2\"" },
                                          { "scale_attn_weights", "true" },
                                          { "scale_attn_by_inverse_layer_idx", "false" },
                                          { "add_cross_attention", "false" } };

  for (guint i = 0; i < G_N_ELEMENTS (forms); i++)
    {
      const char *text = g_hash_table_lookup (source->values, forms[i][0]);

      if (text != NULL && strcmp (text, forms[i][1]) != 0)
        return refuse (source, forms[i][0], forms[i][1], error);
    }
  return TRUE;
}

static gboolean
take_heads (EbbGptConfig *config,
            const Source *source,
            GError **error)
{
  g_autofree char *before = NULL;
  int heads;

  if (!find_size (source, HEADS_KEY, &heads, error))
    return FALSE;
  if (heads == 0)
    return TRUE;
  before = g_strdup_printf ("%d, as the metadata of the file says", config->heads);
  if (config->heads != 0 && config->heads != heads)
    return refuse (source, HEADS_KEY, before, error);
  config->heads = heads;
  return TRUE;
}

/* A number that is no size, like 1e-05 or 0.1. */
static gboolean
find_number (const Source *source,
             const char *name,
             double below,
             double *number,
             GError **error)
{
  const char *text = g_hash_table_lookup (source->values, name);
  char *end;

  if (text == NULL)
    return TRUE;
  *number = g_ascii_strtod (text, &end);
  return (end != text && *end == '\0' && *number >= 0 && *number < below)
         || refuse (source, name, below == 1 ? "a number of at least 0 and below 1" : "a number of at least 0", error);
}

static gboolean
take_rates (EbbGptConfig *config,
            const Source *source,
            GError **error)
{
  static const char *const dropouts[] = { "resid_pdrop", "embd_pdrop" };
  double eps = config->norm_eps, all = -1, attention = -1;

  if (!find_number (source, NORM_EPS_KEY, G_MAXDOUBLE, &eps, error))
    return FALSE;
  config->norm_eps = eps;
  if (!find_number (source, "attn_pdrop", 1, &attention, error))
    return FALSE;
  for (guint i = 0; i < G_N_ELEMENTS (dropouts); i++)
    {
      double one = all;

      if (!find_number (source, dropouts[i], 1, &one, error))
        return FALSE;
      if (all >= 0 && one != all)
        g_message ("%s: %s is %g, and dropout is %g on embeddings too, as %s is", source->where, dropouts[i], one, all,
                   dropouts[0]);
      else
        all = one;
    }
  if (all < 0)
    all = attention;
  if (all >= 0)
    config->dropout = all;
  config->attention_dropout = attention == config->dropout ? -1 : attention;
  return TRUE;
}

static gboolean
take_gelu (EbbGptConfig *config,
           const Source *source,
           GError **error)
{
  const char *text = g_hash_table_lookup (source->values, ACTIVATION_KEY);

  if (text == NULL)
    return TRUE;
  for (guint i = 0; i < G_N_ELEMENTS (activations); i++)
    {
      g_autofree char *name = g_strdup_printf ("\"%s\"", activations[i].name);

      if (strcmp (text, name) == 0)
        {
          config->activation = activations[i].activation;
          return TRUE;
        }
    }
  return refuse (source, ACTIVATION_KEY, "\"gelu_new\", \"gelu_pytorch_tanh\", \"gelu_fast\", \"gelu\" or \"silu\"",
                 error);
}

/* FALSE with an error if "tie_word_embeddings" contradicts the tensors. */
static gboolean
take_tied (EbbGptConfig *config,
           const Source *source,
           gboolean has_head,
           GError **error)
{
  const char *text = g_hash_table_lookup (source->values, TIED_KEY);

  if (text == NULL)
    return TRUE;
  if (strcmp (text, "true") != 0 && strcmp (text, "false") != 0)
    return refuse (source, TIED_KEY, "true or false", error);
  if (strcmp (text, "true") == 0 && !config->tied)
    return refuse (source, TIED_KEY, "false, as lm_head.weight differs from wte.weight", error);
  if (strcmp (text, "false") == 0 && !has_head)
    return refuse (source, TIED_KEY, "true, as there is no lm_head.weight", error);
  config->tied = strcmp (text, "true") == 0;
  return TRUE;
}

static gboolean
take (EbbGptConfig *config,
      const Source *source,
      gboolean has_head,
      GError **error)
{
  return check_form (source, error) && check_sizes (config, source, error) && take_heads (config, source, error)
         && take_rates (config, source, error) && take_gelu (config, source, error)
         && take_tied (config, source, has_head, error);
}

/* -- tensors ------------------------------------------------------------------------------------------------------- */

static EbbTensor *
find_weight (EbbArgs *state,
             const char *name)
{
  g_autofree char *prefixed = g_strconcat (EBB_GPT2_PREFIX, name, NULL);
  int index = ebb_args_find (state, name);

  index = index >= 0 ? index : ebb_args_find (state, prefixed);
  return index >= 0 ? ebb_args_peek_tensor (state, (guint) index) : NULL;
}

/* "h.12.ln_1.weight" is of block 12; -1 for other names. */
static int
find_block (const char *name)
{
  char *end;
  guint64 index;

  if (g_str_has_prefix (name, EBB_GPT2_PREFIX))
    name += strlen (EBB_GPT2_PREFIX);
  if (!g_str_has_prefix (name, "h.") || !g_ascii_isdigit (name[2]))
    return -1;
  index = g_ascii_strtoull (name + 2, &end, 10);
  return *end == '.' && index < G_MAXINT - 1 ? (int) index : -1;
}

/* Or no copy, where it is there and contiguous. */
static EbbTensor *
copy_to_host (EbbTensor *tensor)
{
  g_autoptr (EbbTensor) contiguous = NULL;
  EbbTensor *host;

  ebb_push_grad_enabled (FALSE);
  contiguous = ebb_contiguous (tensor, NULL);
  host = contiguous != NULL ? ebb_to_device (contiguous, ebb_device_get_cpu (), NULL) : NULL;
  ebb_pop_grad_enabled ();
  return host;
}

gboolean
ebb_weights_have_same_bits (EbbTensor *first,
                            EbbTensor *second)
{
  g_autoptr (EbbTensor) a = NULL;
  g_autoptr (EbbTensor) b = NULL;
  const void *x, *y;

  if (first->view.dtype != second->view.dtype || !ebb_shapes_equal (&first->view, &second->view))
    return FALSE;
  a = copy_to_host (first);
  b = copy_to_host (second);
  x = a != NULL ? ebb_tensor_get_data (a, NULL) : NULL;
  y = b != NULL ? ebb_tensor_get_data (b, NULL) : NULL;
  return x != NULL && y != NULL && memcmp (x, y, ebb_tensor_get_n_bytes (a)) == 0;
}

/* Whether the output product has no weight of its own: none at all, or bit for bit that of the embedding. */
static gboolean
is_tied (EbbArgs *state)
{
  EbbTensor *head = find_weight (state, "lm_head.weight"), *words = find_weight (state, "wte.weight");

  return head == NULL || (words != NULL && ebb_weights_have_same_bits (head, words));
}

static gboolean
take_shapes (EbbGptConfig *config,
             EbbArgs *state,
             GError **error)
{
  EbbTensor *words = find_weight (state, "wte.weight"), *positions = find_weight (state, "wpe.weight");
  int layers = 0;

  for (guint i = 0; i < ebb_args_get_length (state); i++)
    if (ebb_args_get_key (state, i) != NULL)
      layers = MAX (layers, find_block (ebb_args_get_key (state, i)) + 1);
  if (words == NULL || positions == NULL || ebb_tensor_get_n_dims (words) != 2 || ebb_tensor_get_n_dims (positions) != 2
      || layers == 0 || (guint) layers > ebb_args_get_length (state))
    return ebb_fail (
        error, EBB_ERROR_STATE,
        "not the weights of a GPT-2: wte.weight [vocab, width], wpe.weight [context, width] and those of h.0 "
        "and each block up to the last one must be there");
  config->vocab = (int) MIN (ebb_tensor_get_dim (words, 0), G_MAXINT);
  config->width = (int) MIN (ebb_tensor_get_dim (words, 1), G_MAXINT / 4);
  config->context = (int) MIN (ebb_tensor_get_dim (positions, 0), G_MAXINT);
  config->layers = layers;
  config->heads = 0;
  config->bias = find_weight (state, "ln_f.bias") != NULL;
  config->tied = is_tied (state);
  return TRUE;
}

/**
 * ebb_gpt_config_new_from_gpt2:
 * @state: tensors by name on the CPU, in the format of the published GPT-2 file
 * @metadata: (nullable): the metadata of their file, see ebb_load_safetensors_full()
 * @config_path: (nullable) (type filename): the `config.json` of `transformers` that belongs to the file
 * @error: return location for an error
 *
 * Makes the configuration of a model that ebb_gpt_load_gpt2() can load such weights into. Sizes are those of the
 * tensors; weights are tied unless there is an `lm_head.weight` that differs from `wte.weight`. Heads, epsilon, GELU
 * and dropout are those that @metadata or @config_path name; what they say otherwise has to go with the tensors.
 * Without a number of heads it is one for each 64 of the width, with a message, or 0, which can't be used, if 64 does
 * not divide that.
 *
 * Returns: (transfer full) (nullable): the configuration; %NULL with %EBB_ERROR_STATE and what doesn't go together, or
 *   %EBB_ERROR_IO or %EBB_ERROR_FORMAT if @config_path can't be read
 */
EbbGptConfig *
ebb_gpt_config_new_from_gpt2 (EbbArgs *state,
                              EbbArgs *metadata,
                              const char *config_path,
                              GError **error)
{
  g_autoptr (EbbGptConfig) config = NULL;
  g_autoptr (GHashTable) values = NULL;
  g_autoptr (GHashTable) noted = NULL;
  gboolean has_head;
  int width;

  EBB_RETURN_UNLESS_BEGUN (NULL, error, state);

  config = ebb_gpt_config_new ();
  values = g_hash_table_new_full (g_str_hash, g_str_equal, g_free, g_free);
  noted = g_hash_table_new_full (g_str_hash, g_str_equal, g_free, g_free);
  const Source file = { "the metadata", noted }, beside = { config_path, values };
  has_head = find_weight (state, "lm_head.weight") != NULL;
  if (metadata != NULL)
    read_metadata (&file, metadata);
  if (!take_shapes (config, state, error) || !take (config, &file, has_head, error)
      || (config_path != NULL && (!read_config (&beside, error) || !take (config, &beside, has_head, error))))
    return NULL;
  width = config->width;
  if (config->heads == 0 && width % USUAL_HEAD_WIDTH == 0)
    {
      config->heads = width / USUAL_HEAD_WIDTH;
      g_message ("nothing says how many heads there are: %d are taken, each %d wide", width / USUAL_HEAD_WIDTH,
                 USUAL_HEAD_WIDTH);
    }
  return g_steal_pointer (&config);
}

/**
 * ebb_gpt_config_to_gpt2_metadata:
 * @self: a configuration
 *
 * Collects what the shapes of tensors don't say: heads, epsilon and GELU, under the names of `transformers`. Saved as
 * the metadata of ebb_gpt_to_gpt2_state(), ebb_gpt_config_new_from_gpt2() finds it there.
 *
 * Returns: (transfer full): an %EBB_ARGS_DICT of strings
 */
EbbArgs *
ebb_gpt_config_to_gpt2_metadata (const EbbGptConfig *self)
{
  EbbArgs *metadata;
  g_autofree char *heads = NULL;
  char eps[G_ASCII_DTOSTR_BUF_SIZE];

  g_return_val_if_fail (self != NULL, NULL);

  metadata = ebb_args_new (EBB_ARGS_DICT);
  heads = g_strdup_printf ("%d", self->heads);
  g_ascii_dtostr (eps, sizeof eps, self->norm_eps);
  ebb_args_add_string (metadata, "format", "pt"); /* what readers of GPT-2's file ask for */
  ebb_args_add_string (metadata, HEADS_KEY, heads);
  ebb_args_add_string (metadata, NORM_EPS_KEY, eps);
  for (guint i = 0; i < G_N_ELEMENTS (activations); i++)
    if (activations[i].activation == self->activation && ebb_args_find (metadata, ACTIVATION_KEY) < 0)
      ebb_args_add_string (metadata, ACTIVATION_KEY, activations[i].name);
  return metadata;
}
