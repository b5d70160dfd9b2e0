/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "nn/models/folder/gguf-model-private.h"

#include "nn/files/file-error-private.h"
#include "tensor/util/json-scanner-private.h"
#include "nn/layers/rotary-private.h"
#include "tensor/error-private.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The values of a GGUF file as a config.json. Keys are those of llama.cpp's converter. */

#define FIELD(key, field) key, G_STRUCT_OFFSET (EbbGptConfig, field)

/* Keys behind the architecture's name and a dot. */
static const struct
{
  const char *key;
  gsize offset;
  gboolean is_number, is_required;
} rows[] = {
  { FIELD ("context_length", context), FALSE, TRUE },
  { FIELD ("embedding_length", width), FALSE, TRUE },
  { FIELD ("block_count", layers), FALSE, TRUE },
  { FIELD ("feed_forward_length", hidden), FALSE, TRUE },
  { FIELD ("attention.head_count", heads), FALSE, TRUE },
  { FIELD ("attention.head_count_kv", kv_heads), FALSE, FALSE },
  { FIELD ("attention.key_length", head_width), FALSE, FALSE },
  { FIELD ("attention.layer_norm_rms_epsilon", norm_eps), TRUE, FALSE },
  { FIELD ("attention.layer_norm_epsilon", norm_eps), TRUE, FALSE },
  { FIELD ("attn_logit_softcapping", attention_softcap), TRUE, FALSE },
  { FIELD ("final_logit_softcapping", logit_softcap), TRUE, FALSE },
};

/* The key of config.json for a field; NULL: the architecture has none. */
static const char *
find_key (const EbbArchitecture *architecture,
          gsize offset)
{
  for (const EbbConfigKeyRow *row = architecture->keys; row->name != NULL; row++)
    if (row->kind != EBB_CONFIG_KEY_ONLY && row->offset == offset)
      return row->name;
  return NULL;
}

/* -- reading ------------------------------------------------------------------------------------------------------- */

typedef struct
{
  const EbbGguf *gguf;
  const EbbArchitecture *architecture;
  EbbJson *document;
  int fields[6]; /* of the first rows, in their order, and the width of heads */
  GError *error;
} Reading;

enum
{
  CONTEXT,
  WIDTH,
  LAYERS,
  HIDDEN,
  HEADS,
  HEAD_WIDTH
};

static char *
get_full_key (const Reading *self,
              const char *key)
{
  return g_strconcat (self->architecture->gguf->name, ".", key, NULL);
}

static gboolean
has_tensor (const Reading *self,
            const char *name)
{
  return ebb_tensor_file_find (self->gguf->tensors, name) != NULL;
}

/* The shortest text that gives the same f32: 1e-05 was 1e-05 before it was written. */
static void
append_single (GString *json,
               double value)
{
  for (int digits = 1; digits <= 9; digits++)
    {
      char text[G_ASCII_DTOSTR_BUF_SIZE];
      char format[8];

      g_snprintf (format, sizeof format, "%%.%dg", digits);
      g_ascii_formatd (text, sizeof text, format, value);
      if (digits < 9 && (float) g_ascii_strtod (text, NULL) != (float) value)
        continue;
      g_string_append (json, text);
      return;
    }
}

static void
set_number (Reading *self,
            const char *key,
            double value)
{
  g_autoptr (GString) json = g_string_new (NULL);

  append_single (json, value);
  ebb_json_set (self->document, key, json->str);
}

static void
set_int (Reading *self,
         const char *key,
         gint64 value)
{
  g_autofree char *json = g_strdup_printf ("%" G_GINT64_FORMAT, value);

  ebb_json_set (self->document, key, json);
}

static gboolean
get_int (Reading *self,
         const char *key,
         gint64 *value)
{
  g_autofree char *full = get_full_key (self, key);

  return self->error == NULL && ebb_gguf_get_int (self->gguf, full, value, &self->error);
}

/* Finite numbers of at least 0. */
static gboolean
get_number (Reading *self,
            const char *key,
            double *value)
{
  g_autofree char *full = get_full_key (self, key);

  if (self->error != NULL || !ebb_gguf_get_double (self->gguf, full, value, &self->error))
    return FALSE;
  return (*value >= 0 && *value <= G_MAXFLOAT)
         || ebb_file_fail (self->gguf->tensors->path, &self->error, "the value \"%s\" is %g: it must be a number of at "
                                                                    "least 0",
                           full, *value);
}

/* Always FALSE. */
static gboolean
refuse (Reading *self,
        const char *key,
        const char *format,
        ...) G_GNUC_PRINTF (3, 4);

static gboolean
refuse (Reading *self,
        const char *key,
        const char *format,
        ...)
{
  g_autofree char *full = get_full_key (self, key);
  g_autofree char *shown = ebb_escape_text (self->gguf->tensors->path);
  g_autofree char *text = NULL;
  va_list arguments;

  va_start (arguments, format);
  text = g_strdup_vprintf (format, arguments);
  va_end (arguments);
  if (self->error == NULL)
    ebb_error_set (&self->error, EBB_ERROR_STATE, "%s: the value \"%s\" %s", shown, full, text);
  return FALSE;
}

static gboolean
read_row (Reading *self,
          guint i)
{
  const char *key = find_key (self->architecture, rows[i].offset);
  double number;
  gint64 integer;

  if (rows[i].is_number)
    {
      if (get_number (self, rows[i].key, &number) && key != NULL)
        set_number (self, key, number);
      return self->error == NULL;
    }
  if (!get_int (self, rows[i].key, &integer))
    return self->error == NULL && (!rows[i].is_required || refuse (self, rows[i].key, "is missing"));
  if (integer < 1 || integer > G_MAXINT)
    return refuse (self, rows[i].key, "is %" G_GINT64_FORMAT ": it must be a whole number of at least 1", integer);
  if (i <= HEADS)
    self->fields[i] = (int) integer;
  if (rows[i].offset == G_STRUCT_OFFSET (EbbGptConfig, head_width))
    self->fields[HEAD_WIDTH] = (int) integer;
  if (key != NULL)
    set_int (self, key, integer);
  else if (rows[i].offset == G_STRUCT_OFFSET (EbbGptConfig, head_width)
           && integer != self->fields[WIDTH] / self->fields[HEADS])
    return refuse (self, rows[i].key, "is %" G_GINT64_FORMAT ": it must be the width / heads, %d", integer,
                   self->fields[WIDTH] / self->fields[HEADS]);
  return TRUE;
}

static gboolean
read_rows (Reading *self)
{
  const EbbArchitecture *architecture = self->architecture;
  const char *kv_key = find_key (architecture, G_STRUCT_OFFSET (EbbGptConfig, kv_heads));
  const char *width_key = find_key (architecture, G_STRUCT_OFFSET (EbbGptConfig, head_width));
  gint64 value_width;

  for (guint i = 0; i < G_N_ELEMENTS (rows); i++)
    if (!read_row (self, i))
      return FALSE;
  if (kv_key != NULL && ebb_json_get (self->document, kv_key) == NULL)
    set_int (self, kv_key, self->fields[HEADS]);
  if (self->fields[HEAD_WIDTH] == 0)
    {
      self->fields[HEAD_WIDTH] = self->fields[WIDTH] / self->fields[HEADS];
      if (width_key != NULL)
        set_int (self, width_key, self->fields[HEAD_WIDTH]);
    }
  if (get_int (self, "attention.value_length", &value_width) && value_width != self->fields[HEAD_WIDTH])
    refuse (self, "attention.value_length", "is %" G_GINT64_FORMAT ": it must be that of keys, %d", value_width,
            self->fields[HEAD_WIDTH]);
  return self->error == NULL;
}

/* What the tensors say: the vocabulary, the tied head, biases. */
static gboolean
read_choices (Reading *self)
{
  const EbbArchitecture *architecture = self->architecture;
  const EbbTensorEntry *embedding = ebb_tensor_file_find (self->gguf->tensors, "token_embd.weight");

  if (embedding == NULL || embedding->n_dims != 2)
    return ebb_file_fail (self->gguf->tensors->path, &self->error, "there is no tensor token_embd.weight of two "
                                                                   "dimensions");
  set_int (self, "vocab_size", embedding->shape[0]);
  ebb_json_set (self->document, "tie_word_embeddings", has_tensor (self, "output.weight") ? "false" : "true");
  if (find_key (architecture, G_STRUCT_OFFSET (EbbGptConfig, output_bias)) != NULL)
    ebb_json_set (self->document, "attention_bias", has_tensor (self, "blk.0.attn_output.bias") ? "true" : "false");
  if (find_key (architecture, G_STRUCT_OFFSET (EbbGptConfig, mlp_bias)) != NULL)
    ebb_json_set (self->document, "mlp_bias", has_tensor (self, "blk.0.ffn_up.bias") ? "true" : "false");
  if (find_key (architecture, G_STRUCT_OFFSET (EbbGptConfig, attention_scale)) != NULL)
    set_int (self, "query_pre_attn_scalar",
             ebb_gguf_get_scaled_width (architecture->gguf, self->fields[LAYERS], self->fields[WIDTH],
                                        self->fields[HEADS], self->fields[HEAD_WIDTH]));
  return TRUE;
}

static gboolean
read_layers (Reading *self)
{
  const EbbArchitecture *architecture = self->architecture;
  gint64 window = 0, every = architecture->full_every;
  g_autoptr (GString) types = NULL;

  /* What gemma2 has without it. */
  if (!get_int (self, EBB_GGUF_WINDOW, &window) && architecture->full_every == 2)
    window = 4096;
  if (window != 0 && !architecture->gguf->has_window)
    return refuse (self, EBB_GGUF_WINDOW, "is %" G_GINT64_FORMAT ": llama.cpp has no window in this architecture",
                   window);
  if (!architecture->gguf->has_window)
    return self->error == NULL;
  ebb_json_set (self->document, "sliding_window", "null");
  if (window != 0)
    set_int (self, "sliding_window", window);
  if (architecture->window != EBB_WINDOW_TYPES)
    return self->error == NULL;
  if (get_int (self, EBB_GGUF_PATTERN, &every) && every < 1)
    return refuse (self, EBB_GGUF_PATTERN, "is %" G_GINT64_FORMAT ": it must be at least 1", every);
  if (self->error != NULL)
    return FALSE;
  /* More than can be: ebb_config_read_gpt () says so. */
  if (self->fields[LAYERS] > 65536)
    return TRUE;
  types = g_string_new ("[");
  for (int i = 0; i < self->fields[LAYERS]; i++)
    g_string_append_printf (types, "%s\"%s\"", i > 0 ? ", " : "",
                            window == 0 || (i + 1) % every == 0 ? "full_attention" : "sliding_attention");
  g_string_append_c (types, ']');
  ebb_json_set (self->document, "layer_types", types->str);
  return TRUE;
}

/* -- reading rotary positions -------------------------------------------------------------------------------------- */

/* The factors of a tensor; NULL with an error if it has none for each rotated frequency. */
static float *
read_factors (Reading *self,
              const char *name,
              gint64 n)
{
  const EbbTensorEntry *entry = ebb_tensor_file_find (self->gguf->tensors, name);
  g_autofree float *factors = NULL;

  if (entry == NULL || n < 1 || n > EBB_ROTARY_MAX_FACTORS || entry->n_dims != 1 || entry->shape[0] != n
      || entry->dtype != EBB_DTYPE_F32 || entry->encoding != EBB_ENCODING_PLAIN)
    {
      ebb_file_fail (self->gguf->tensors->path, &self->error,
                     "tensor %s must have one factor of F32 for each of %" G_GINT64_FORMAT " rotated frequencies, "
                     "of which there are 1 to %d",
                     name, n, EBB_ROTARY_MAX_FACTORS);
      return NULL;
    }
  factors = g_new (float, (gsize) n);
  return ebb_tensor_file_read (self->gguf->tensors, entry, 0, n * 4, factors, &self->error) ? g_steal_pointer (&factors)
                                                                                            : NULL;
}

static gboolean
is_close (const float *a,
          const float *b,
          gint64 n)
{
  for (gint64 i = 0; i < n; i++)
    if (!(fabsf (a[i] - b[i]) <= 1e-5f * fabsf (b[i])))
      return FALSE;
  return TRUE;
}

/* The scaling whose factors the tensor has: with the values that Ebb writes beside it, or those that Llama 3 has. */
static gboolean
read_llama3 (Reading *self,
             double theta,
             GString *json)
{
  const gint64 n = self->fields[HEAD_WIDTH] / 2;
  g_autofree float *factors = read_factors (self, EBB_GGUF_LLAMA3_FACTORS, n);
  float made[EBB_ROTARY_MAX_FACTORS];
  double low = 1, high = 4, factor = 1;
  gint64 original = 8192;
  gboolean is_given;

  if (factors == NULL)
    return FALSE;
  for (gint64 i = 0; i < n; i++)
    factor = MAX (factor, (double) factors[i]);
  get_number (self, EBB_GGUF_LOW_FREQUENCY, &low);
  get_number (self, EBB_GGUF_HIGH_FREQUENCY, &high);
  is_given = get_int (self, EBB_GGUF_ORIGINAL, &original);
  if (self->error != NULL)
    return FALSE;
  /* Llama 3's own context first, then other powers of two: whatever gives these factors is the same model. */
  for (int i = 0; i < (is_given ? 1 : 18); i++)
    {
      const gint64 k = i == 0 ? original : (gint64) 8 << i;

      ebb_gguf_make_llama3_factors (theta, factor, low, high, (double) k, n, made);
      if (!is_close (factors, made, n))
        continue;
      g_string_append (json, "{\"rope_type\": \"llama3\", \"factor\": ");
      append_single (json, factor);
      g_string_append (json, ", \"low_freq_factor\": ");
      append_single (json, low);
      g_string_append (json, ", \"high_freq_factor\": ");
      append_single (json, high);
      g_string_append_printf (json, ", \"original_max_position_embeddings\": %" G_GINT64_FORMAT "}", k);
      return TRUE;
    }
  return ebb_file_fail (self->gguf->tensors->path, &self->error,
                        "the factors of tensor " EBB_GGUF_LLAMA3_FACTORS " are not those of Llama 3's scaling");
}

static gboolean
read_longrope (Reading *self,
               gint64 n,
               GString *json)
{
  static const char *const names[][2] = { { "short_factor", EBB_GGUF_SHORT_FACTORS },
                                          { "long_factor", EBB_GGUF_LONG_FACTORS } };
  double attention_factor, computed = 1;
  gint64 original = 0;

  g_string_append (json, "{\"rope_type\": \"longrope\"");
  for (guint k = 0; k < G_N_ELEMENTS (names); k++)
    {
      g_autofree float *factors = read_factors (self, names[k][1], n);

      if (factors == NULL)
        return FALSE;
      g_string_append_printf (json, ", \"%s\": [", names[k][0]);
      for (gint64 i = 0; i < n; i++)
        {
          if (!(factors[i] > 0 && factors[i] <= G_MAXFLOAT))
            return ebb_file_fail (self->gguf->tensors->path, &self->error,
                                  "factor %" G_GINT64_FORMAT " of tensor %s must be above 0", i, names[k][1]);
          g_string_append (json, i > 0 ? ", " : "");
          append_single (json, (double) factors[i]);
        }
      g_string_append_c (json, ']');
    }
  if (get_int (self, EBB_GGUF_ORIGINAL, &original) && original > 1 && self->fields[CONTEXT] > original)
    computed = sqrt (1 + log ((double) self->fields[CONTEXT] / (double) original) / log ((double) original));
  /* What it is without a value need not be said, and then it isn't rounded. */
  if (get_number (self, EBB_GGUF_ATTENTION_FACTOR, &attention_factor) && attention_factor != (double) (float) computed)
    {
      g_string_append (json, ", \"attention_factor\": ");
      append_single (json, attention_factor);
    }
  g_string_append_c (json, '}');
  return self->error == NULL;
}

static void
append_if_there (Reading *self,
                 GString *json,
                 const char *key,
                 const char *name)
{
  double value;

  if (!get_number (self, key, &value))
    return;
  g_string_append_printf (json, ", \"%s\": ", name);
  append_single (json, value);
}

/* "linear" or "yarn". */
static gboolean
read_scaled (Reading *self,
             const char *type,
             GString *json)
{
  gint64 original;

  g_string_append_printf (json, "{\"rope_type\": \"%s\"", type);
  append_if_there (self, json, EBB_GGUF_FACTOR, "factor");
  if (strcmp (type, "yarn") == 0)
    {
      append_if_there (self, json, EBB_GGUF_YARN_ATTENTION_FACTOR, "attention_factor");
      append_if_there (self, json, EBB_GGUF_BETA_FAST, "beta_fast");
      append_if_there (self, json, EBB_GGUF_BETA_SLOW, "beta_slow");
      if (get_int (self, EBB_GGUF_ORIGINAL, &original))
        g_string_append_printf (json, ", \"original_max_position_embeddings\": %" G_GINT64_FORMAT, original);
    }
  g_string_append_c (json, '}');
  return self->error == NULL;
}

static gboolean
read_rotary (Reading *self)
{
  const EbbArchitecture *architecture = self->architecture;
  const gboolean is_phi = architecture->original_context > 0;
  const int head_width = self->fields[HEAD_WIDTH];
  g_autofree char *key = get_full_key (self, EBB_GGUF_SCALING);
  g_autofree char *type = NULL;
  g_autoptr (GString) scaling = g_string_new (NULL);
  double theta = 10000, local_theta = 10000;
  gint64 n_rotated = head_width, original;

  if (architecture->positions != EBB_POSITIONS_ROTARY)
    return TRUE;
  get_number (self, EBB_GGUF_THETA, &theta);
  get_number (self, EBB_GGUF_LOCAL_THETA, &local_theta);
  if (get_int (self, EBB_GGUF_DIMENSIONS, &n_rotated) && (n_rotated < 2 || n_rotated > head_width)
      && !refuse (self, EBB_GGUF_DIMENSIONS, "is %" G_GINT64_FORMAT ": it must be 2 to the width of heads, %d",
                  n_rotated, head_width))
    return FALSE;
  if (!is_phi && n_rotated != head_width)
    return refuse (self, EBB_GGUF_DIMENSIONS, "is %" G_GINT64_FORMAT ": it must be the width of heads, %d", n_rotated,
                   head_width);
  if (self->error != NULL || (!ebb_gguf_get_string (self->gguf, key, &type, &self->error) && self->error != NULL))
    return FALSE;
  set_number (self, "rope_theta", theta);
  if (architecture->local_theta > 0)
    set_number (self, "rope_local_base_freq", local_theta);
  if (n_rotated != head_width)
    {
      g_autoptr (GString) part = g_string_new (NULL);

      ebb_config_append_number (part, (double) n_rotated / head_width);
      ebb_json_set (self->document, "partial_rotary_factor", part->str);
    }
  if (is_phi && get_int (self, EBB_GGUF_ORIGINAL, &original))
    set_int (self, "original_max_position_embeddings", original);
  if (self->error != NULL)
    return FALSE;
  if (has_tensor (self, EBB_GGUF_LONG_FACTORS) || has_tensor (self, EBB_GGUF_SHORT_FACTORS))
    {
      if (!read_longrope (self, n_rotated / 2, scaling))
        return FALSE;
    }
  else if (has_tensor (self, EBB_GGUF_LLAMA3_FACTORS))
    {
      if (!read_llama3 (self, theta, scaling))
        return FALSE;
    }
  else if (type != NULL && strcmp (type, "none") != 0)
    {
      if (strcmp (type, "linear") != 0 && strcmp (type, "yarn") != 0)
        return refuse (self, EBB_GGUF_SCALING, "is %s: it must be none, linear or yarn, or longrope with its tensors",
                       ebb_in_message (ebb_json_quote (type)));
      if (!read_scaled (self, type, scaling))
        return FALSE;
    }
  if (scaling->len > 0)
    ebb_json_set (self->document, "rope_scaling", scaling->str);
  return TRUE;
}

/* -- reading the whole --------------------------------------------------------------------------------------------- */

/* The tokens that end a text are also those at which generation stops. */
static gboolean
read_tokens (Reading *self)
{
  static const char *const keys[][2] = { { "bos_token_id", "tokenizer.ggml.bos_token_id" },
                                         { "pad_token_id", "tokenizer.ggml.padding_token_id" } };
  static const char *const ends[] = { "tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                                      "tokenizer.ggml.eom_token_id" };
  g_autoptr (GString) list = g_string_new (NULL);
  gint64 token;

  for (guint i = 0; i < G_N_ELEMENTS (keys); i++)
    {
      ebb_json_set (self->document, keys[i][0], "null");
      if (ebb_gguf_get_int (self->gguf, keys[i][1], &token, &self->error))
        set_int (self, keys[i][0], token);
      else if (self->error != NULL)
        return FALSE;
    }
  for (guint i = 0; i < G_N_ELEMENTS (ends); i++)
    if (ebb_gguf_get_int (self->gguf, ends[i], &token, &self->error))
      g_string_append_printf (list, "%s%" G_GINT64_FORMAT, list->len > 0 ? ", " : "[", token);
    else if (self->error != NULL)
      return FALSE;
  g_string_append (list, list->len > 0 ? "]" : "null");
  ebb_json_set (self->document, "eos_token_id", list->str);
  return TRUE;
}

static const EbbArchitecture *
read_architecture (Reading *self)
{
  const char *path = self->gguf->tensors->path;
  g_autofree char *name = NULL;
  g_autofree char *type = NULL;

  if (!ebb_gguf_get_string (self->gguf, "general.architecture", &name, &self->error))
    {
      if (self->error == NULL)
        ebb_file_fail (path, &self->error, "there is no value \"general.architecture\"");
      return NULL;
    }
  if (ebb_gguf_get_string (self->gguf, "general.type", &type, &self->error) && strcmp (type, "model") != 0)
    {
      g_autofree char *quoted = ebb_json_quote (type);
      g_autofree char *shown = ebb_escape_text (path);

      ebb_error_set (&self->error, EBB_ERROR_STATE, "%s: general.type is %s: it must be \"model\"%s", shown, quoted,
                     strcmp (type, "adapter") == 0 ? "; ebb_lora_load () loads an adapter into one" : "");
    }
  return self->error == NULL ? ebb_architecture_find_gguf (name, path, &self->error) : NULL;
}

EbbJson *
ebb_gguf_read_config (const EbbGguf *gguf,
                      const EbbArchitecture **architecture,
                      GError **error)
{
  Reading self = { .gguf = gguf };
  g_autoptr (EbbJson) document = ebb_json_parse ("{}", 2, "config.json", NULL);
  g_autofree char *text = NULL;
  g_autofree char *list = NULL;

  self.document = document;
  self.architecture = *architecture = read_architecture (&self);
  if (*architecture != NULL)
    {
      list = g_strdup_printf ("[\"%s\"]", (*architecture)->class_name);
      text = g_strdup_printf ("\"%s\"", (*architecture)->model_type);
      ebb_json_set (document, "architectures", list);
      ebb_json_set (document, "model_type", text);
      if (read_rows (&self) && read_choices (&self) && read_layers (&self) && read_rotary (&self)
          && read_tokens (&self))
        return g_steal_pointer (&document);
    }
  g_propagate_error (error, self.error);
  return NULL;
}
