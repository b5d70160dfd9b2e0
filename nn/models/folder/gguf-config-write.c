/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "nn/models/folder/gguf-model-private.h"

#include "nn/layers/rotary-private.h"
#include "tensor/error-private.h"

#include <math.h>

/* A model's configuration as values of a GGUF file, as llama.cpp's converter has them. What llama.cpp would compute in
 * another way is refused. */

int
ebb_gguf_get_scaled_width (const EbbGgufForm *form,
                           int layers,
                           int width,
                           int heads,
                           int head_width)
{
  return layers == form->layers_of_27b ? width / heads : head_width;
}

void
ebb_gguf_make_llama3_factors (double theta,
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

#define refuse_writing(self, format, ...)                                                           \
  ebb_fail ((self)->error, EBB_ERROR_NOT_SUPPORTED,                                                 \
            "the model can't be saved as GGUF: llama.cpp's %s has " format "; save it as a folder", \
            (self)->architecture->gguf->name, ##__VA_ARGS__)

static gboolean
check_choices (Writing *self)
{
  const EbbGptConfig *config = self->config;
  const EbbGgufForm *form = self->architecture->gguf;
  const double scale = config->attention_scale > 0 ? config->attention_scale : 1 / sqrt (self->head_width);
  const int width =
      ebb_gguf_get_scaled_width (form, config->layers, config->width, config->heads, self->head_width);

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
  /* llama.cpp reads the window of Phi-3 and computes without it. */
  if (!self->architecture->gguf->has_window || self->architecture->window != EBB_WINDOW_TYPES)
    {
      const int context = slides ? MIN (config->context, config->window) : config->context;

      if (context < config->context)
        g_message ("the GGUF file has a context of %d, not %d: llama.cpp's %s computes no sliding layers, and up to "
                   "their window they are full ones",
                   context, config->context, self->architecture->gguf->name);
      add_int (self, "context_length", context);
      if (self->architecture->gguf->has_window)
        add_int (self, EBB_GGUF_WINDOW, slides ? config->window : 0);
      return TRUE;
    }
  add_int (self, "context_length", config->context);
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
  add_int (self, EBB_GGUF_WINDOW, config->window);
  if (every != self->architecture->full_every)
    add_int (self, EBB_GGUF_PATTERN, every);
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
  EbbGgufFactors *factors[] = { add_factors (self, EBB_GGUF_LONG_FACTORS, rotary->n_factors),
                                add_factors (self, EBB_GGUF_SHORT_FACTORS, rotary->n_factors) };
  const double *const lists[] = { rotary->long_factors, rotary->short_factors };

  for (guint k = 0; k < G_N_ELEMENTS (lists); k++)
    for (int i = 0; i < rotary->n_factors; i++)
      factors[k]->factors[i] = (float) lists[k][i];
  add_int (self, EBB_GGUF_ORIGINAL, original);
  add_number (self, EBB_GGUF_ATTENTION_FACTOR, ebb_rotary_get_attention_factor (rotary, self->config->context));
  return TRUE;
}

/* llama.cpp computes the attention factor of YaRN, and has no use for one that is given. */
static gboolean
follows_from_factor (const EbbRotaryConfig *rotary,
                     int context)
{
  EbbRotaryConfig other = *rotary;

  other.attention_factor = 0;
  return rotary->attention_factor == 0
         || fabs (rotary->attention_factor - ebb_rotary_get_attention_factor (&other, context)) <= 1e-6;
}

static gboolean
write_scaling (Writing *self)
{
  const EbbRotaryConfig *rotary = &self->config->rotary;
  const int original = rotary->original_context > 0 ? rotary->original_context : self->config->context;
  const char *name = rotary->scaling == EBB_ROTARY_LINEAR ? "linear" : "yarn";
  g_autofree char *key = g_strconcat (self->architecture->gguf->name, "." EBB_GGUF_SCALING, NULL);

  if (rotary->scaling == EBB_ROTARY_DYNAMIC)
    return refuse_writing (self, "no dynamic scaling of rotary positions");
  if (rotary->scaling == EBB_ROTARY_LONGROPE)
    return self->architecture->original_context > 0 ? write_longrope (self)
                                                    : refuse_writing (self, "no longrope");
  if (self->architecture->original_context > 0)
    add_int (self, EBB_GGUF_ORIGINAL, original);
  if (rotary->scaling == EBB_ROTARY_DEFAULT)
    return TRUE;
  if (rotary->scaling == EBB_ROTARY_LLAMA3)
    {
      EbbGgufFactors *made;

      if (!self->architecture->gguf->permutes)
        return refuse_writing (self, "no scaling of rotary positions as Llama 3 has it");
      made = add_factors (self, EBB_GGUF_LLAMA3_FACTORS, self->head_width / 2);
      ebb_gguf_make_llama3_factors (rotary->theta, rotary->factor, rotary->low_freq_factor, rotary->high_freq_factor,
                                    original, made->n, made->factors);
      add_int (self, EBB_GGUF_ORIGINAL, original);
      add_number (self, EBB_GGUF_LOW_FREQUENCY, rotary->low_freq_factor);
      add_number (self, EBB_GGUF_HIGH_FREQUENCY, rotary->high_freq_factor);
      return TRUE;
    }
  if (rotary->scaling == EBB_ROTARY_YARN && !follows_from_factor (rotary, self->config->context))
    return refuse_writing (self, "an attention factor of YaRN that follows from its factor");
  if (rotary->scaling == EBB_ROTARY_YARN && (rotary->mscale > 0 || rotary->mscale_all_dim > 0 || !rotary->truncate))
    return refuse_writing (self, "no YaRN with mscale, or without truncate");
  ebb_gguf_writer_add_string (self->writer, key, name);
  add_number (self, EBB_GGUF_FACTOR, rotary->factor > 0 ? rotary->factor : (double) self->config->context / original);
  if (rotary->scaling == EBB_ROTARY_LINEAR)
    return TRUE;
  add_int (self, EBB_GGUF_ORIGINAL, original);
  add_number (self, EBB_GGUF_BETA_FAST, rotary->beta_fast);
  add_number (self, EBB_GGUF_BETA_SLOW, rotary->beta_slow);
  if (rotary->attention_factor > 0)
    add_number (self, EBB_GGUF_YARN_ATTENTION_FACTOR, rotary->attention_factor);
  return TRUE;
}

static gboolean
write_rotary (Writing *self)
{
  const EbbGptConfig *config = self->config;
  const int n_rotated = (int) (self->head_width * config->rotary.partial);

  if (config->positions != EBB_POSITIONS_ROTARY)
    return TRUE;
  add_int (self, EBB_GGUF_DIMENSIONS, n_rotated);
  add_number (self, EBB_GGUF_THETA, config->rotary.theta);
  if (config->local_rotary.theta > 0)
    add_number (self, EBB_GGUF_LOCAL_THETA, config->local_rotary.theta);
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
