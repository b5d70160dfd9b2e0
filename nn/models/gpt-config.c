/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "nn/models/gpt-config.h"

#include "nn/models/model-config-private.h"
#include "nn/layers/rotary-private.h"
#include "tensor/error-private.h"

#include <math.h>
#include <string.h>

/* The sizes and choices of a decoder. */

G_DEFINE_BOXED_TYPE (EbbGptConfig, ebb_gpt_config, ebb_gpt_config_copy, ebb_gpt_config_free)

/* The four published sizes of GPT-2 (Radford et al., 2019, table 2), and one for bytes that trains in a minute. */
static const EbbModelPreset presets[] = {
  { "gpt2", 50257, 1024, 768, 12, 12 },
  { "gpt2-medium", 50257, 1024, 1024, 16, 24 },
  { "gpt2-large", 50257, 1024, 1280, 20, 36 },
  { "gpt2-xl", 50257, 1024, 1600, 25, 48 },
  { "tiny", 256, 256, 128, 4, 4 },
};

/**
 * ebb_gpt_config_new:
 *
 * Makes the configuration of the smallest GPT-2, to be changed at will.
 *
 * Returns: (transfer full): the configuration
 */
EbbGptConfig *
ebb_gpt_config_new (void)
{
  return ebb_gpt_config_new_preset ("gpt2");
}

/**
 * ebb_gpt_config_new_preset:
 * @name: the name of a preset, see ebb_gpt_config_get_preset_names()
 *
 * Makes the configuration of a known size. All presets have dropout 0.1, tied weights, GELU by tanh, an epsilon of 1e-5
 * and biases, and are GPT-2 in all other choices. An unknown name is reported where the configuration is used, by
 * ebb_gpt_config_check() and ebb_gpt_new(), so that one check at the end is enough.
 *
 * Returns: (transfer full): the configuration
 */
EbbGptConfig *
ebb_gpt_config_new_preset (const char *name)
{
  EbbGptConfig *self;
  const EbbModelPreset *preset;

  g_return_val_if_fail (name != NULL, NULL);

  self = g_new0 (EbbGptConfig, 1);
  preset = ebb_model_preset_find (presets, G_N_ELEMENTS (presets), name, &self->unknown_preset);
  self->vocab = preset->vocab;
  self->context = preset->context;
  self->width = preset->width;
  self->heads = preset->heads;
  self->layers = preset->layers;
  self->dropout = 0.1;
  self->attention_dropout = -1;
  self->tied = TRUE;
  self->activation = EBB_ACTIVATION_GELU_TANH;
  self->norm_eps = 1e-5;
  self->bias = TRUE;
  self->residual_dtype = EBB_DTYPE_F32;
  self->rotary = EBB_ROTARY_CONFIG_INITIAL;
  self->local_rotary = EBB_ROTARY_CONFIG_INITIAL;
  self->local_rotary.theta = 0;
  return self;
}

/**
 * ebb_gpt_config_get_preset_names:
 *
 * Returns: (transfer none) (array zero-terminated=1): the names of the presets
 */
const char *const *
ebb_gpt_config_get_preset_names (void)
{
  static const char *names[G_N_ELEMENTS (presets) + 1];
  static gsize is_filled = 0;

  return ebb_model_preset_list (presets, G_N_ELEMENTS (presets), names, &is_filled);
}

/**
 * ebb_gpt_config_copy:
 * @self: a configuration
 *
 * Returns: (transfer full): a copy
 */
EbbGptConfig *
ebb_gpt_config_copy (const EbbGptConfig *self)
{
  EbbGptConfig *copy;

  g_return_val_if_fail (self != NULL, NULL);

  copy = g_memdup2 (self, sizeof *self);
  copy->unknown_preset = g_strdup (self->unknown_preset);
  copy->layer_pattern = g_strdup (self->layer_pattern);
  return copy;
}

/**
 * ebb_gpt_config_free:
 * @self: (transfer full): a configuration
 *
 * Frees a configuration.
 */
void
ebb_gpt_config_free (EbbGptConfig *self)
{
  g_return_if_fail (self != NULL);

  g_free (self->unknown_preset);
  g_free (self->layer_pattern);
  g_free (self);
}

/**
 * ebb_gpt_config_set_layer_pattern:
 * @self: a configuration
 * @pattern: (nullable): a letter for each layer: `s` for sliding, `f` for full, `S` and `F` for the same without rotary
 *   positions; repeated if there are more layers (`sssssf` for Gemma 3, `fffF` for SmolLM 3); %NULL: all layers are
 *   sliding where there is a window
 *
 * Says which layers see a window of #EbbGptConfig.window positions (sliding) and which see all (full), and which have
 * no rotary positions. ebb_gpt_config_check() reports other letters.
 */
void
ebb_gpt_config_set_layer_pattern (EbbGptConfig *self, const char *pattern)
{
  g_return_if_fail (self != NULL);

  if (pattern == self->layer_pattern)
    return;
  g_free (self->layer_pattern);
  self->layer_pattern = g_strdup (pattern);
}

/**
 * ebb_gpt_config_get_layer_pattern:
 * @self: a configuration
 *
 * Returns: (nullable): see ebb_gpt_config_set_layer_pattern()
 */
const char *
ebb_gpt_config_get_layer_pattern (const EbbGptConfig *self)
{
  g_return_val_if_fail (self != NULL, NULL);

  return self->layer_pattern;
}

static char
get_letter (const EbbGptConfig *self, guint layer)
{
  const char *pattern = self->layer_pattern;

  return pattern != NULL && *pattern != '\0' ? pattern[layer % strlen (pattern)] : 's';
}

/**
 * ebb_gpt_config_is_sliding_layer:
 * @self: a configuration
 * @layer: the number of a layer
 *
 * Returns: whether the layer sees a window of positions and not all of them
 */
gboolean
ebb_gpt_config_is_sliding_layer (const EbbGptConfig *self, guint layer)
{
  g_return_val_if_fail (self != NULL, FALSE);

  return self->window > 0 && g_ascii_tolower (get_letter (self, layer)) == 's';
}

/**
 * ebb_gpt_config_is_rotary_layer:
 * @self: a configuration
 * @layer: the number of a layer
 *
 * Returns: whether the layer has rotary positions
 */
gboolean
ebb_gpt_config_is_rotary_layer (const EbbGptConfig *self, guint layer)
{
  g_return_val_if_fail (self != NULL, FALSE);

  return self->positions == EBB_POSITIONS_ROTARY && g_ascii_islower (get_letter (self, layer));
}

/* -- checks -------------------------------------------------------------------------------------------------------- */

#define refuse(error, ...) ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT, "Gpt: " __VA_ARGS__)

static gboolean
check_choices (const EbbGptConfig *self, GError **error)
{
  const struct
  {
    const char *name;
    guint value, n;
    const char *values;
  } choices[] = {
    { "activation", self->activation, EBB_ACTIVATION_SILU + 1, "0 (GELU), 1 (GELU by tanh) or 2 (SiLU)" },
    { "layout", self->layout, EBB_GPT_LAYOUT_LLAMA + 1, "0 (GPT-2) or 1 (Llama)" },
    { "norm", self->norm, EBB_NORM_RMS_UNIT + 1, "0 (layer), 1 (RMS) or 2 (RMS by 1 + weight)" },
    { "norm_order", self->norm_order, EBB_NORM_ORDER_BOTH + 1, "0 (pre), 1 (post) or 2 (both)" },
    { "positions", self->positions, EBB_POSITIONS_NONE + 1, "0 (learned), 1 (rotary) or 2 (none)" },
  };

  for (guint i = 0; i < G_N_ELEMENTS (choices); i++)
    if (choices[i].value >= choices[i].n)
      return refuse (error, "%s is %d, it must be %s", choices[i].name, (int) choices[i].value, choices[i].values);
  return TRUE;
}

static gboolean
check_scales (const EbbGptConfig *self, GError **error)
{
  const struct
  {
    const char *name;
    double value;
  } scales[] = { { "attention_scale", self->attention_scale },
                 { "attention_softcap", self->attention_softcap },
                 { "logit_softcap", self->logit_softcap },
                 { "embedding_scale", self->embedding_scale } };

  for (guint i = 0; i < G_N_ELEMENTS (scales); i++)
    if (!(scales[i].value >= 0 && isfinite (scales[i].value)))
      return refuse (error, "%s is %g, it must be finite and not negative", scales[i].name, scales[i].value);
  return TRUE;
}

static gboolean
check_heads (const EbbGptConfig *self, GError **error)
{
  if (self->kv_heads != 0 && (self->kv_heads > self->heads || self->heads % self->kv_heads != 0))
    return refuse (error, "%d heads can't be divided among %d kv_heads", self->heads, self->kv_heads);
  if (self->head_width == 0)
    return ebb_model_config_check_heads ("Gpt", self->width, self->heads, error);
  if (self->head_width > G_MAXINT / 3 / self->heads)
    return refuse (error, "%d heads of a head_width of %d are too large", self->heads, self->head_width);
  return TRUE;
}

static gboolean
check_pattern (const EbbGptConfig *self, GError **error)
{
  const char *pattern = self->layer_pattern;
  gsize letters = pattern != NULL ? strspn (pattern, "sfSF") : 0;

  if (pattern == NULL)
    return TRUE;
  if (letters == 0 || pattern[letters] != '\0')
    return refuse (
        error,
        "the layer pattern is \"%s\", it must be letters s (sliding) and f (full), or S and F without rotary "
        "positions",
        ebb_show_text (pattern));
  if (self->window == 0 && strpbrk (pattern, "sS") != NULL)
    return refuse (error, "the layer pattern \"%s\" has sliding layers, but window is 0", pattern);
  if (self->positions != EBB_POSITIONS_ROTARY && strpbrk (pattern, "SF") != NULL)
    return refuse (error, "the layer pattern \"%s\" has layers without rotary positions, but no layer has them",
                   pattern);
  return TRUE;
}

/* GPT-2's layout has one product for queries, keys and values, and names for the parts that GPT-2 has. */
static gboolean
check_layout (const EbbGptConfig *self, GError **error)
{
  const struct
  {
    gboolean is_chosen;
    const char *what;
  } others[] = { { self->kv_heads != 0 && self->kv_heads != self->heads, "kv_heads other than heads" },
                 { self->head_width != 0 && self->head_width != self->width / self->heads,
                   "a head_width other than width / heads" },
                 { self->gated, "gated MLPs" },
                 { self->qk_norm, "qk_norm" },
                 { self->norm_order == EBB_NORM_ORDER_BOTH, "norm_order both" },
                 { self->positions == EBB_POSITIONS_ROTARY, "rotary positions" } };

  if (self->layout == EBB_GPT_LAYOUT_LLAMA)
    return self->positions != EBB_POSITIONS_LEARNED
           || refuse (error, "learned positions need the layout of GPT-2, but layout is that of Llama");
  for (guint i = 0; i < G_N_ELEMENTS (others); i++)
    if (others[i].is_chosen)
      return refuse (error, "%s: this needs the layout of Llama, but layout is that of GPT-2", others[i].what);
  return TRUE;
}

static gboolean
check_rotary (const EbbGptConfig *self, GError **error)
{
  int head_width = self->head_width != 0 ? self->head_width : self->width / self->heads;

  if (self->positions != EBB_POSITIONS_ROTARY)
    return TRUE;
  return ebb_rotary_config_check (&self->rotary, "rotary", head_width, self->context, error)
         && (self->local_rotary.theta == 0
             || ebb_rotary_config_check (&self->local_rotary, "local_rotary", head_width, self->context, error));
}

/**
 * ebb_gpt_config_check:
 * @self: a configuration
 * @error: return location for an error
 *
 * Checks that a model can be made of the configuration.
 *
 * Returns: %TRUE if it can, %FALSE with @error set to %EBB_ERROR_INVALID_ARGUMENT, the value and what would be right
 */
gboolean
ebb_gpt_config_check (const EbbGptConfig *self, GError **error)
{
  EBB_RETURN_UNLESS_BEGUN (FALSE, error, self);

  const EbbConfigSize sizes[] = { { "vocab", self->vocab, 1 },
                                  { "context", self->context, 1 },
                                  { "width", self->width, 1 },
                                  { "heads", self->heads, 1 },
                                  { "layers", self->layers, 1 },
                                  { "kv_heads", self->kv_heads, 0 },
                                  { "head_width", self->head_width, 0 },
                                  { "hidden", self->hidden, 0 },
                                  { "window", self->window, 0 } };

  if (!ebb_model_config_check_preset (self->unknown_preset, ebb_gpt_config_get_preset_names (), error)
      || !ebb_model_config_check_sizes ("Gpt", sizes, G_N_ELEMENTS (sizes), error) || !check_heads (self, error)
      || !ebb_model_config_check_dropout ("Gpt", self->dropout, self->attention_dropout, error)
      || !ebb_model_config_check_norm_eps ("Gpt", self->norm_eps, error) || !check_choices (self, error)
      || !check_scales (self, error) || !check_pattern (self, error) || !check_layout (self, error)
      || !check_rotary (self, error))
    return FALSE;
  return self->residual_dtype == EBB_DTYPE_F32 || self->residual_dtype == EBB_DTYPE_BF16
         || refuse (error, "the residual stream is %s, it must be f32 or bf16",
                    (guint) self->residual_dtype < EBB_N_DTYPES ? ebb_dtype_get_name (self->residual_dtype)
                                                                : "no dtype");
}
