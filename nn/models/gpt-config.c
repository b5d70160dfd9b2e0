/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "nn/models/gpt-config.h"

#include "nn/models/model-config-private.h"
#include "tensor/error-private.h"

#include <string.h>

struct _EbbGptConfig
{
  char *unknown_preset; /* the name that was asked for and is none; reported when the configuration is used */
  int vocab;
  int context;
  int width;
  int heads;
  int layers;
  double dropout;
  gboolean tied;
  EbbGeluKind gelu;
  double norm_eps;
  gboolean bias;
  EbbDType residual_dtype;
};

G_DEFINE_BOXED_TYPE (EbbGptConfig, ebb_gpt_config, ebb_gpt_config_copy, ebb_gpt_config_free)

/* The four published sizes of GPT-2 (Radford et al., 2019, table 2), and one for bytes that trains in a minute. */
static const struct
{
  const char *name;
  int vocab, context, width, heads, layers;
} presets[] = {
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
 * and biases. A name that is none is reported where the configuration is used, by ebb_gpt_config_check() and
 * ebb_gpt_new(), so that one check at the end is enough.
 *
 * Returns: (transfer full): the configuration
 */
EbbGptConfig *
ebb_gpt_config_new_preset (const char *name)
{
  EbbGptConfig *self;
  guint preset = 0;

  g_return_val_if_fail (name != NULL, NULL);

  while (preset < G_N_ELEMENTS (presets) && strcmp (presets[preset].name, name) != 0)
    preset++;
  self = g_new0 (EbbGptConfig, 1);
  if (preset == G_N_ELEMENTS (presets))
    {
      self->unknown_preset = g_utf8_make_valid (name, -1);
      preset = 0;
    }
  self->vocab = presets[preset].vocab;
  self->context = presets[preset].context;
  self->width = presets[preset].width;
  self->heads = presets[preset].heads;
  self->layers = presets[preset].layers;
  self->dropout = 0.1;
  self->tied = TRUE;
  self->gelu = EBB_GELU_TANH;
  self->norm_eps = 1e-5;
  self->bias = TRUE;
  self->residual_dtype = EBB_DTYPE_F32;
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
  static gsize filled = 0;

  if (g_once_init_enter (&filled))
    {
      for (guint i = 0; i < G_N_ELEMENTS (presets); i++)
        names[i] = presets[i].name;
      g_once_init_leave (&filled, 1);
    }
  return names;
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
  g_free (self);
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
  if (!EBB_MAY_BEGIN (error, self))
    return FALSE;

  const EbbConfigSize sizes[] = { { "vocab", self->vocab, 1 },
                                  { "context", self->context, 1 },
                                  { "width", self->width, 1 },
                                  { "heads", self->heads, 1 },
                                  { "layers", self->layers, 1 } };

  if (!ebb_model_config_check_preset (self->unknown_preset, ebb_gpt_config_get_preset_names (), error)
      || !ebb_model_config_check_sizes ("Gpt", sizes, G_N_ELEMENTS (sizes), error)
      || !ebb_model_config_check_heads ("Gpt", self->width, self->heads, error)
      || !ebb_model_config_check_rates ("Gpt", self->dropout, self->norm_eps, error))
    return FALSE;
  if (self->residual_dtype == EBB_DTYPE_F32 || self->residual_dtype == EBB_DTYPE_BF16)
    return TRUE;
  g_set_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT, "Gpt: the residual stream is %s, it must be f32 or bf16",
               ebb_dtype_get_name (self->residual_dtype));
  return FALSE;
}

/**
 * ebb_gpt_config_get_vocab:
 * @self: a configuration
 *
 * Returns: the number of different tokens
 */
int
ebb_gpt_config_get_vocab (const EbbGptConfig *self)
{
  g_return_val_if_fail (self != NULL, 0);

  return self->vocab;
}

/**
 * ebb_gpt_config_set_vocab:
 * @self: a configuration
 * @vocab: the number of different tokens
 *
 * Sets the number of different tokens.
 */
void
ebb_gpt_config_set_vocab (EbbGptConfig *self, int vocab)
{
  g_return_if_fail (self != NULL);

  self->vocab = vocab;
}

/**
 * ebb_gpt_config_get_context:
 * @self: a configuration
 *
 * Returns: the most tokens in a row
 */
int
ebb_gpt_config_get_context (const EbbGptConfig *self)
{
  g_return_val_if_fail (self != NULL, 0);

  return self->context;
}

/**
 * ebb_gpt_config_set_context:
 * @self: a configuration
 * @context: the most tokens in a row
 *
 * Sets the most tokens in a row.
 */
void
ebb_gpt_config_set_context (EbbGptConfig *self, int context)
{
  g_return_if_fail (self != NULL);

  self->context = context;
}

/**
 * ebb_gpt_config_get_width:
 * @self: a configuration
 *
 * Returns: the size of a token's vector
 */
int
ebb_gpt_config_get_width (const EbbGptConfig *self)
{
  g_return_val_if_fail (self != NULL, 0);

  return self->width;
}

/**
 * ebb_gpt_config_set_width:
 * @self: a configuration
 * @width: the size of a token's vector
 *
 * Sets the size of a token's vector.
 */
void
ebb_gpt_config_set_width (EbbGptConfig *self, int width)
{
  g_return_if_fail (self != NULL);

  self->width = width;
}

/**
 * ebb_gpt_config_get_heads:
 * @self: a configuration
 *
 * Returns: the number of attention heads, which divides the width
 */
int
ebb_gpt_config_get_heads (const EbbGptConfig *self)
{
  g_return_val_if_fail (self != NULL, 0);

  return self->heads;
}

/**
 * ebb_gpt_config_set_heads:
 * @self: a configuration
 * @heads: the number of attention heads, which divides the width
 *
 * Sets the number of attention heads, which divides the width.
 */
void
ebb_gpt_config_set_heads (EbbGptConfig *self, int heads)
{
  g_return_if_fail (self != NULL);

  self->heads = heads;
}

/**
 * ebb_gpt_config_get_layers:
 * @self: a configuration
 *
 * Returns: the number of blocks
 */
int
ebb_gpt_config_get_layers (const EbbGptConfig *self)
{
  g_return_val_if_fail (self != NULL, 0);

  return self->layers;
}

/**
 * ebb_gpt_config_set_layers:
 * @self: a configuration
 * @layers: the number of blocks
 *
 * Sets the number of blocks.
 */
void
ebb_gpt_config_set_layers (EbbGptConfig *self, int layers)
{
  g_return_if_fail (self != NULL);

  self->layers = layers;
}

/**
 * ebb_gpt_config_get_dropout:
 * @self: a configuration
 *
 * Returns: the probability of dropout on embeddings, in attention and on each part's result
 */
double
ebb_gpt_config_get_dropout (const EbbGptConfig *self)
{
  g_return_val_if_fail (self != NULL, 0);

  return self->dropout;
}

/**
 * ebb_gpt_config_set_dropout:
 * @self: a configuration
 * @dropout: the probability of dropout on embeddings, in attention and on each part's result
 *
 * Sets the probability of dropout on embeddings, in attention and on each part's result.
 */
void
ebb_gpt_config_set_dropout (EbbGptConfig *self, double dropout)
{
  g_return_if_fail (self != NULL);

  self->dropout = dropout;
}

/**
 * ebb_gpt_config_get_tied:
 * @self: a configuration
 *
 * Returns: whether the output product shares the weight of the token embedding
 */
gboolean
ebb_gpt_config_get_tied (const EbbGptConfig *self)
{
  g_return_val_if_fail (self != NULL, FALSE);

  return self->tied;
}

/**
 * ebb_gpt_config_set_tied:
 * @self: a configuration
 * @tied: whether the output product shares the weight of the token embedding
 *
 * Sets whether the output product shares the weight of the token embedding.
 */
void
ebb_gpt_config_set_tied (EbbGptConfig *self, gboolean tied)
{
  g_return_if_fail (self != NULL);

  self->tied = tied;
}

/**
 * ebb_gpt_config_get_gelu:
 * @self: a configuration
 *
 * Returns: which of the two usual forms of GELU
 */
EbbGeluKind
ebb_gpt_config_get_gelu (const EbbGptConfig *self)
{
  g_return_val_if_fail (self != NULL, EBB_GELU_TANH);

  return self->gelu;
}

/**
 * ebb_gpt_config_set_gelu:
 * @self: a configuration
 * @gelu: which of the two usual forms of GELU
 *
 * Sets which of the two usual forms of GELU.
 */
void
ebb_gpt_config_set_gelu (EbbGptConfig *self, EbbGeluKind gelu)
{
  g_return_if_fail (self != NULL);

  self->gelu = gelu;
}

/**
 * ebb_gpt_config_get_norm_eps:
 * @self: a configuration
 *
 * Returns: what the normalisations add to the variance
 */
double
ebb_gpt_config_get_norm_eps (const EbbGptConfig *self)
{
  g_return_val_if_fail (self != NULL, 0);

  return self->norm_eps;
}

/**
 * ebb_gpt_config_set_norm_eps:
 * @self: a configuration
 * @norm_eps: what the normalisations add to the variance
 *
 * Sets what the normalisations add to the variance.
 */
void
ebb_gpt_config_set_norm_eps (EbbGptConfig *self, double norm_eps)
{
  g_return_if_fail (self != NULL);

  self->norm_eps = norm_eps;
}

/**
 * ebb_gpt_config_get_bias:
 * @self: a configuration
 *
 * Returns: whether linear layers and normalisations have a bias
 */
gboolean
ebb_gpt_config_get_bias (const EbbGptConfig *self)
{
  g_return_val_if_fail (self != NULL, FALSE);

  return self->bias;
}

/**
 * ebb_gpt_config_set_bias:
 * @self: a configuration
 * @bias: whether linear layers and normalisations have a bias
 *
 * Sets whether linear layers and normalisations have a bias.
 */
void
ebb_gpt_config_set_bias (EbbGptConfig *self, gboolean bias)
{
  g_return_if_fail (self != NULL);

  self->bias = bias;
}

/**
 * ebb_gpt_config_get_residual_dtype:
 * @self: a configuration
 *
 * Returns: what the residual stream is kept in under autocast
 */
EbbDType
ebb_gpt_config_get_residual_dtype (const EbbGptConfig *self)
{
  g_return_val_if_fail (self != NULL, EBB_DTYPE_F32);

  return self->residual_dtype;
}

/**
 * ebb_gpt_config_set_residual_dtype:
 * @self: a configuration
 * @residual_dtype: %EBB_DTYPE_F32 or %EBB_DTYPE_BF16
 *
 * Sets what the residual stream, which runs from the embeddings through all blocks, is kept in while autocast lowers
 * products to bf16: f32 (the default), or bf16 as well. With bf16 the sum of the embeddings is cast once, and blocks
 * follow the dtype of their input: sums, norms and their gradients are stored in bf16 and computed in f32, and no
 * tensor is cast on the way. That halves what blocks keep of the stream for the backward pass and what is moved through
 * memory, at the price of eight bits of mantissa in each sum. Parameters, their gradients and logsumexp stay f32.
 * Without autocast it has no effect. (Megatron's `fp32_residual_connection` is the opposite switch.)
 */
void
ebb_gpt_config_set_residual_dtype (EbbGptConfig *self, EbbDType residual_dtype)
{
  g_return_if_fail (self != NULL);

  self->residual_dtype = residual_dtype;
}
