/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "nn/models/folder/gguf-model-private.h"

#include "nn/files/file-error-private.h"
#include "nn/files/json-scanner-private.h"
#include "nn/layers/rotary-private.h"
#include "tensor/error-private.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A model's configuration as the values of a GGUF file, and such values as a config.json. Keys are those of llama.cpp's
 * converter. */

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

#define WINDOW "attention.sliding_window"
#define PATTERN "attention.sliding_window_pattern"
#define THETA "rope.freq_base"
#define LOCAL_THETA "rope.freq_base_swa"
#define DIMENSIONS "rope.dimension_count"
#define SCALING "rope.scaling.type"
#define FACTOR "rope.scaling.factor"
#define ORIGINAL "rope.scaling.original_context_length"
#define ATTENTION_FACTOR "rope.scaling.attn_factor"
#define YARN_ATTENTION_FACTOR "rope.scaling.yarn_attn_factor"
#define BETA_FAST "rope.scaling.yarn_beta_fast"
#define BETA_SLOW "rope.scaling.yarn_beta_slow"
/* Of llama3, beside its tensor of factors; llama.cpp has no such keys and needs none. */
#define LOW_FREQUENCY "rope.scaling.low_freq_factor"
#define HIGH_FREQUENCY "rope.scaling.high_freq_factor"

#define LLAMA3_FACTORS "rope_freqs.weight"
#define LONG_FACTORS "rope_factors_long.weight"
#define SHORT_FACTORS "rope_factors_short.weight"

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

/* By llama.cpp's rule: the width / heads for a model of 27 billion parameters, else a head's width. */
static int
get_scaled_width (const EbbGgufForm *form,
                  int layers,
                  int width,
                  int heads,
                  int head_width)
{
  return layers == form->layers_of_27b ? width / heads : head_width;
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
  if (*value >= 0 && *value <= G_MAXFLOAT)
    return TRUE;
  return ebb_file_fail (self->gguf->tensors->path, &self->error, "the value \"%s\" is %g: it must be a number of at "
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
    g_set_error (&self->error, EBB_ERROR, EBB_ERROR_STATE, "%s: the value \"%s\" %s", shown, full, text);
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
             get_scaled_width (architecture->gguf, self->fields[LAYERS], self->fields[WIDTH], self->fields[HEADS],
                               self->fields[HEAD_WIDTH]));
  return TRUE;
}

static gboolean
read_layers (Reading *self)
{
  const EbbArchitecture *architecture = self->architecture;
  gint64 window = 0, every = architecture->full_every;
  g_autoptr (GString) types = NULL;

  /* What gemma2 has without it. */
  if (!get_int (self, WINDOW, &window) && architecture->full_every == 2)
    window = 4096;
  if (window != 0 && !architecture->gguf->has_window)
    return refuse (self, WINDOW, "is %" G_GINT64_FORMAT ": llama.cpp has no window in this architecture", window);
  if (!architecture->gguf->has_window)
    return self->error == NULL;
  ebb_json_set (self->document, "sliding_window", "null");
  if (window != 0)
    set_int (self, "sliding_window", window);
  if (architecture->window != EBB_WINDOW_TYPES)
    return self->error == NULL;
  if (get_int (self, PATTERN, &every) && every < 1)
    return refuse (self, PATTERN, "is %" G_GINT64_FORMAT ": it must be at least 1", every);
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

  if (entry == NULL || entry->n_dims != 1 || entry->shape[0] != n || n > EBB_ROTARY_MAX_FACTORS
      || entry->dtype != EBB_DTYPE_F32 || entry->encoding != EBB_ENCODING_PLAIN)
    {
      ebb_file_fail (self->gguf->tensors->path, &self->error,
                     "tensor %s must have one factor of F32 for each of %" G_GINT64_FORMAT " rotated frequencies, "
                     "of which there are %d at most",
                     name, n, EBB_ROTARY_MAX_FACTORS);
      return NULL;
    }
  factors = g_new (float, (gsize) n);
  return ebb_tensor_file_read (self->gguf->tensors, entry, 0, n * 4, factors, &self->error) ? g_steal_pointer (&factors)
                                                                                            : NULL;
}

/* The factors of llama3's scaling, as llama.cpp's converter computes them, in f32. */
static void
make_llama3_factors (double theta,
                     double factor,
                     double low,
                     double high,
                     double original,
                     gint64 n,
                     float *factors)
{
  for (gint64 i = 0; i < n; i++)
    {
      const float frequency = (float) (1 / powf ((float) theta, (float) (2 * i) / (float) (2 * n)));
      const double wavelength = 2 * G_PI / (double) frequency;
      const double smooth = (original / wavelength - low) / (high - low);

      factors[i] = (float) (wavelength < original / high  ? 1
                            : wavelength > original / low ? factor
                                                          : 1 / ((1 - smooth) / factor + smooth));
    }
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
  g_autofree float *factors = read_factors (self, LLAMA3_FACTORS, n);
  float made[EBB_ROTARY_MAX_FACTORS];
  double low = 1, high = 4, factor = 1;
  gint64 original = 8192;
  gboolean is_given;

  if (factors == NULL)
    return FALSE;
  for (gint64 i = 0; i < n; i++)
    factor = MAX (factor, (double) factors[i]);
  get_number (self, LOW_FREQUENCY, &low);
  get_number (self, HIGH_FREQUENCY, &high);
  is_given = get_int (self, ORIGINAL, &original);
  if (self->error != NULL)
    return FALSE;
  /* Llama 3's own context first, then other powers of two: whatever gives these factors is the same model. */
  for (int i = 0; i < (is_given ? 1 : 18); i++)
    {
      const gint64 k = i == 0 ? original : (gint64) 8 << i;

      make_llama3_factors (theta, factor, low, high, (double) k, n, made);
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
                        "the factors of tensor " LLAMA3_FACTORS " are not those of Llama 3's scaling");
}

static gboolean
read_longrope (Reading *self,
               gint64 n,
               GString *json)
{
  static const char *const names[][2] = { { "short_factor", SHORT_FACTORS }, { "long_factor", LONG_FACTORS } };
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
  if (get_int (self, ORIGINAL, &original) && original > 1 && self->fields[CONTEXT] > original)
    computed = sqrt (1 + log ((double) self->fields[CONTEXT] / (double) original) / log ((double) original));
  /* What it is without a value need not be said, and then it isn't rounded. */
  if (get_number (self, ATTENTION_FACTOR, &attention_factor) && attention_factor != (double) (float) computed)
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
  append_if_there (self, json, FACTOR, "factor");
  if (strcmp (type, "yarn") == 0)
    {
      append_if_there (self, json, YARN_ATTENTION_FACTOR, "attention_factor");
      append_if_there (self, json, BETA_FAST, "beta_fast");
      append_if_there (self, json, BETA_SLOW, "beta_slow");
      if (get_int (self, ORIGINAL, &original))
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
  g_autofree char *key = get_full_key (self, SCALING);
  g_autofree char *type = NULL;
  g_autoptr (GString) scaling = g_string_new (NULL);
  double theta = 10000, local_theta = 10000;
  gint64 n_rotated = head_width, original;

  if (architecture->positions != EBB_POSITIONS_ROTARY)
    return TRUE;
  get_number (self, THETA, &theta);
  get_number (self, LOCAL_THETA, &local_theta);
  if (get_int (self, DIMENSIONS, &n_rotated) && (n_rotated < 2 || n_rotated > head_width)
      && !refuse (self, DIMENSIONS, "is %" G_GINT64_FORMAT ": it must be 2 to the width of heads, %d", n_rotated,
                  head_width))
    return FALSE;
  if (!is_phi && n_rotated != head_width)
    return refuse (self, DIMENSIONS, "is %" G_GINT64_FORMAT ": it must be the width of heads, %d", n_rotated,
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
  if (is_phi && get_int (self, ORIGINAL, &original))
    set_int (self, "original_max_position_embeddings", original);
  if (self->error != NULL)
    return FALSE;
  if (has_tensor (self, LONG_FACTORS) || has_tensor (self, SHORT_FACTORS))
    {
      if (!read_longrope (self, n_rotated / 2, scaling))
        return FALSE;
    }
  else if (has_tensor (self, LLAMA3_FACTORS))
    {
      if (!read_llama3 (self, theta, scaling))
        return FALSE;
    }
  else if (type != NULL && strcmp (type, "none") != 0)
    {
      if (strcmp (type, "linear") != 0 && strcmp (type, "yarn") != 0)
        {
          g_autofree char *quoted = ebb_json_quote (type);

          return refuse (self, SCALING, "is %s: it must be none, linear or yarn, or longrope with its tensors", quoted);
        }
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

      g_set_error (&self->error, EBB_ERROR, EBB_ERROR_STATE, "%s: general.type is %s: it must be \"model\"%s", shown,
                   quoted, strcmp (type, "adapter") == 0 ? "; ebb_lora_load () loads an adapter into one" : "");
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

/* -- writing ------------------------------------------------------------------------------------------------------- */

typedef struct
{
  EbbGgufWriter *writer;
  const EbbArchitecture *architecture;
  const EbbGptConfig *config;
  int head_width;
  EbbGgufFactors *factors;
  guint n_factors;
  GError **error;
} Writing;

static void
add_int (Writing *self,
         const char *key,
         int value)
{
  g_autofree char *full = g_strconcat (self->architecture->gguf->name, ".", key, NULL);

  ebb_gguf_writer_add_u32 (self->writer, full, (guint32) value);
}

static void
add_number (Writing *self,
            const char *key,
            double value)
{
  g_autofree char *full = g_strconcat (self->architecture->gguf->name, ".", key, NULL);

  ebb_gguf_writer_add_f32 (self->writer, full, (float) value);
}

/* Always FALSE. */
static gboolean
refuse_writing (Writing *self,
                const char *format,
                ...) G_GNUC_PRINTF (2, 3);

static gboolean
refuse_writing (Writing *self,
                const char *format,
                ...)
{
  g_autofree char *text = NULL;
  va_list arguments;

  va_start (arguments, format);
  text = g_strdup_vprintf (format, arguments);
  va_end (arguments);
  g_set_error (self->error, EBB_ERROR, EBB_ERROR_NOT_SUPPORTED,
               "the model can't be saved as GGUF: llama.cpp's %s has %s; save it as a folder",
               self->architecture->gguf->name, text);
  return FALSE;
}

static gboolean
check_choices (Writing *self)
{
  const EbbGptConfig *config = self->config;
  const EbbGgufForm *form = self->architecture->gguf;
  const double scale = config->attention_scale > 0 ? config->attention_scale : 1 / sqrt (self->head_width);
  const int width =
      get_scaled_width (form, config->layers, config->width, config->heads, self->head_width);

  if (config->activation != form->activation)
    return refuse_writing (self, "the activation %s", form->activation == EBB_ACTIVATION_SILU ? "SiLU" : "tanh GELU");
  if (!form->takes_biases && (config->output_bias || config->mlp_bias || config->bias))
    return refuse_writing (self, "no biases where the model has them");
  if (!form->takes_biases && config->qkv_bias && !self->architecture->qkv_bias)
    return refuse_writing (self, "no biases of queries, keys and values");
  if (fabs (scale * sqrt (width) - 1) > 1e-6)
    return refuse_writing (self, "an attention scale of 1 / sqrt (%d), and the model's is %g", width, scale);
  if (self->architecture->full_every == 2 && (config->attention_softcap == 0 || config->logit_softcap == 0))
    return refuse_writing (self, "soft caps of scores and logits, and the model lacks one");
  return TRUE;
}

/* Sliding layers: the converter's keys, or a context in which a window never matters. */
static gboolean
write_layers (Writing *self)
{
  const EbbGptConfig *config = self->config;
  gboolean slides = FALSE;
  int every = 0;

  for (int i = 0; i < config->layers; i++)
    if (config->positions == EBB_POSITIONS_ROTARY && !ebb_gpt_config_is_rotary_layer (config, (guint) i))
      return refuse_writing (self, "rotary positions in all layers");
  for (int i = 0; i < config->layers; i++)
    {
      const gboolean is_sliding = ebb_gpt_config_is_sliding_layer (config, (guint) i);

      slides = slides || is_sliding;
      every = every == 0 && !is_sliding ? i + 1 : every;
    }
  slides = slides && config->window > 0;
  if (!self->architecture->gguf->has_window)
    {
      const int context = slides ? MIN (config->context, config->window) : config->context;

      if (context < config->context)
        g_message ("the GGUF file has a context of %d, not %d: llama.cpp's %s has no sliding layers, and up to their "
                   "window they are full ones",
                   context, config->context, self->architecture->gguf->name);
      add_int (self, "context_length", context);
      return TRUE;
    }
  add_int (self, "context_length", config->context);
  if (self->architecture->window != EBB_WINDOW_TYPES)
    {
      add_int (self, WINDOW, slides ? config->window : 0);
      return TRUE;
    }
  if (!slides)
    {
      if (self->architecture->full_every == 2)
        return refuse_writing (self, "sliding layers, and the model has none");
      return TRUE;
    }
  /* Without a full layer, one comes after the last. */
  every = every == 0 ? config->layers + 1 : every;
  for (int i = 0; i < config->layers; i++)
    if (ebb_gpt_config_is_sliding_layer (config, (guint) i) != ((i + 1) % every != 0))
      return refuse_writing (self, "a full layer after each so many sliding ones, and the model has another pattern");
  add_int (self, WINDOW, config->window);
  if (every != self->architecture->full_every)
    add_int (self, PATTERN, every);
  return TRUE;
}

static EbbGgufFactors *
add_factors (Writing *self,
             const char *name,
             gint64 n)
{
  EbbGgufFactors *factors = &self->factors[self->n_factors++];

  factors->name = name;
  factors->n = n;
  return factors;
}

static gboolean
write_longrope (Writing *self)
{
  const EbbRotaryConfig *rotary = &self->config->rotary;
  const int original = rotary->original_context > 0 ? rotary->original_context : self->config->context;
  EbbGgufFactors *factors[] = { add_factors (self, LONG_FACTORS, rotary->n_factors),
                                add_factors (self, SHORT_FACTORS, rotary->n_factors) };
  const double *const lists[] = { rotary->long_factors, rotary->short_factors };

  for (guint k = 0; k < G_N_ELEMENTS (lists); k++)
    for (int i = 0; i < rotary->n_factors; i++)
      factors[k]->factors[i] = (float) lists[k][i];
  add_int (self, ORIGINAL, original);
  add_number (self, ATTENTION_FACTOR, ebb_rotary_get_attention_factor (rotary, self->config->context));
  return TRUE;
}

static gboolean
write_scaling (Writing *self)
{
  const EbbRotaryConfig *rotary = &self->config->rotary;
  const int original = rotary->original_context > 0 ? rotary->original_context : self->config->context;
  const char *name = rotary->scaling == EBB_ROTARY_LINEAR ? "linear" : "yarn";
  g_autofree char *key = g_strconcat (self->architecture->gguf->name, "." SCALING, NULL);

  if (rotary->scaling == EBB_ROTARY_DYNAMIC)
    return refuse_writing (self, "no dynamic scaling of rotary positions");
  if (rotary->scaling == EBB_ROTARY_LONGROPE)
    return self->architecture->original_context > 0 ? write_longrope (self)
                                                    : refuse_writing (self, "no longrope");
  if (self->architecture->original_context > 0)
    add_int (self, ORIGINAL, original);
  if (rotary->scaling == EBB_ROTARY_DEFAULT)
    return TRUE;
  if (rotary->scaling == EBB_ROTARY_LLAMA3)
    {
      EbbGgufFactors *made;

      if (!self->architecture->gguf->permutes)
        return refuse_writing (self, "no scaling of rotary positions as Llama 3 has it");
      made = add_factors (self, LLAMA3_FACTORS, self->head_width / 2);
      make_llama3_factors (rotary->theta, rotary->factor, rotary->low_freq_factor, rotary->high_freq_factor, original,
                           made->n, made->factors);
      add_int (self, ORIGINAL, original);
      add_number (self, LOW_FREQUENCY, rotary->low_freq_factor);
      add_number (self, HIGH_FREQUENCY, rotary->high_freq_factor);
      return TRUE;
    }
  if (rotary->scaling == EBB_ROTARY_YARN && (rotary->mscale > 0 || rotary->mscale_all_dim > 0 || !rotary->truncate))
    return refuse_writing (self, "no YaRN with mscale, or without truncate");
  ebb_gguf_writer_add_string (self->writer, key, name);
  add_number (self, FACTOR, rotary->factor > 0 ? rotary->factor : (double) self->config->context / original);
  if (rotary->scaling == EBB_ROTARY_LINEAR)
    return TRUE;
  add_int (self, ORIGINAL, original);
  add_number (self, BETA_FAST, rotary->beta_fast);
  add_number (self, BETA_SLOW, rotary->beta_slow);
  if (rotary->attention_factor > 0)
    add_number (self, YARN_ATTENTION_FACTOR, rotary->attention_factor);
  return TRUE;
}

static gboolean
write_rotary (Writing *self)
{
  const EbbGptConfig *config = self->config;
  const int n_rotated = (int) (self->head_width * config->rotary.partial);

  if (config->positions != EBB_POSITIONS_ROTARY)
    return TRUE;
  add_int (self, DIMENSIONS, n_rotated);
  add_number (self, THETA, config->rotary.theta);
  if (config->local_rotary.theta > 0)
    add_number (self, LOCAL_THETA, config->local_rotary.theta);
  return write_scaling (self);
}

gboolean
ebb_gguf_write_config (EbbGgufWriter *writer,
                       const EbbArchitecture *architecture,
                       const EbbGptConfig *config,
                       EbbGgufFactors factors[EBB_GGUF_MAX_FACTORS],
                       guint *n_factors,
                       GError **error)
{
  Writing self = { writer, architecture, config,
                   config->head_width > 0 ? config->head_width : config->width / config->heads, factors, 0, error };

  if (!check_choices (&self) || !write_layers (&self))
    return FALSE;
  add_int (&self, "embedding_length", config->width);
  add_int (&self, "block_count", config->layers);
  add_int (&self, "feed_forward_length", config->hidden > 0 ? config->hidden : 4 * config->width);
  add_int (&self, "attention.head_count", config->heads);
  if (config->layout == EBB_GPT_LAYOUT_LLAMA)
    {
      add_int (&self, "attention.head_count_kv", config->kv_heads > 0 ? config->kv_heads : config->heads);
      add_int (&self, "attention.key_length", self.head_width);
      add_int (&self, "attention.value_length", self.head_width);
    }
  add_number (&self,
              config->norm == EBB_NORM_LAYER ? "attention.layer_norm_epsilon" : "attention.layer_norm_rms_epsilon",
              config->norm_eps);
  if (config->attention_softcap > 0)
    add_number (&self, "attn_logit_softcapping", config->attention_softcap);
  if (config->logit_softcap > 0)
    add_number (&self, "final_logit_softcapping", config->logit_softcap);
  add_int (&self, "vocab_size", config->vocab);
  if (!write_rotary (&self))
    return FALSE;
  *n_factors = self.n_factors;
  return TRUE;
}
