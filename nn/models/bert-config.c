/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "nn/models/bert-config.h"

#include "nn/models/model-config-private.h"
#include "tensor/error-private.h"

#include <string.h>

struct _EbbBertConfig
{
  char *unknown_preset; /* the name that was asked for and is none; reported when the configuration is used */
  int vocab;
  int context;
  int segments;
  int width;
  int heads;
  int layers;
  int hidden;
  double dropout;
  double norm_eps;
};

G_DEFINE_BOXED_TYPE (EbbBertConfig, ebb_bert_config, ebb_bert_config_copy, ebb_bert_config_free)

/* The two published sizes (Devlin et al., 2019, section 3) with the uncased vocabulary, and one for bytes that trains
 * in a minute. */
static const struct
{
  const char *name;
  int vocab, context, width, heads, layers;
} presets[] = {
  { "bert-base", 30522, 512, 768, 12, 12 },
  { "bert-large", 30522, 512, 1024, 16, 24 },
  { "tiny", 256, 256, 128, 4, 4 },
};

/**
 * ebb_bert_config_new:
 *
 * Makes the configuration of the smaller published BERT, to be changed at will.
 *
 * Returns: (transfer full): the configuration
 */
EbbBertConfig *
ebb_bert_config_new (void)
{
  return ebb_bert_config_new_preset ("bert-base");
}

/**
 * ebb_bert_config_new_preset:
 * @name: the name of a preset, see ebb_bert_config_get_preset_names()
 *
 * Makes the configuration of a known size. All presets have two segments, a feed-forward part of four times the width,
 * dropout 0.1 and an epsilon of 1e-12. A name that is none is reported where the configuration is used, by
 * ebb_bert_config_check() and ebb_bert_new(), so that one check at the end is enough.
 *
 * Returns: (transfer full): the configuration
 */
EbbBertConfig *
ebb_bert_config_new_preset (const char *name)
{
  EbbBertConfig *self;
  guint preset = 0;

  g_return_val_if_fail (name != NULL, NULL);

  while (preset < G_N_ELEMENTS (presets) && strcmp (presets[preset].name, name) != 0)
    preset++;
  self = g_new0 (EbbBertConfig, 1);
  if (preset == G_N_ELEMENTS (presets))
    {
      self->unknown_preset = g_utf8_make_valid (name, -1);
      preset = 0;
    }
  self->vocab = presets[preset].vocab;
  self->context = presets[preset].context;
  self->segments = 2;
  self->width = presets[preset].width;
  self->heads = presets[preset].heads;
  self->layers = presets[preset].layers;
  self->hidden = 4 * self->width;
  self->dropout = 0.1;
  self->norm_eps = 1e-12;
  return self;
}

/**
 * ebb_bert_config_get_preset_names:
 *
 * Returns: (transfer none) (array zero-terminated=1): the names of the presets
 */
const char *const *
ebb_bert_config_get_preset_names (void)
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
 * ebb_bert_config_copy:
 * @self: a configuration
 *
 * Returns: (transfer full): a copy
 */
EbbBertConfig *
ebb_bert_config_copy (const EbbBertConfig *self)
{
  EbbBertConfig *copy;

  g_return_val_if_fail (self != NULL, NULL);

  copy = g_memdup2 (self, sizeof *self);
  copy->unknown_preset = g_strdup (self->unknown_preset);
  return copy;
}

/**
 * ebb_bert_config_free:
 * @self: (transfer full): a configuration
 *
 * Frees a configuration.
 */
void
ebb_bert_config_free (EbbBertConfig *self)
{
  g_return_if_fail (self != NULL);

  g_free (self->unknown_preset);
  g_free (self);
}

/**
 * ebb_bert_config_check:
 * @self: a configuration
 * @error: return location for an error
 *
 * Checks that a model can be made of the configuration.
 *
 * Returns: %TRUE if it can, %FALSE with @error set to %EBB_ERROR_INVALID_ARGUMENT, the value and what would be right
 */
gboolean
ebb_bert_config_check (const EbbBertConfig *self, GError **error)
{
  if (!EBB_MAY_BEGIN (error, self))
    return FALSE;

  const EbbConfigSize sizes[] = { { "vocab", self->vocab, 1 },       { "context", self->context, 1 },
                                  { "segments", self->segments, 1 }, { "width", self->width, 1 },
                                  { "heads", self->heads, 1 },       { "layers", self->layers, 1 },
                                  { "hidden", self->hidden, 0 } };

  return ebb_model_config_check_preset (self->unknown_preset, ebb_bert_config_get_preset_names (), error)
         && ebb_model_config_check_sizes ("Bert", sizes, G_N_ELEMENTS (sizes), error)
         && ebb_model_config_check_heads ("Bert", self->width, self->heads, error)
         && ebb_model_config_check_rates ("Bert", self->dropout, self->norm_eps, error);
}

/**
 * ebb_bert_config_get_vocab:
 * @self: a configuration
 *
 * Returns: the number of different tokens
 */
int
ebb_bert_config_get_vocab (const EbbBertConfig *self)
{
  g_return_val_if_fail (self != NULL, 0);

  return self->vocab;
}

/**
 * ebb_bert_config_set_vocab:
 * @self: a configuration
 * @vocab: the number of different tokens
 *
 * Sets the number of different tokens.
 */
void
ebb_bert_config_set_vocab (EbbBertConfig *self, int vocab)
{
  g_return_if_fail (self != NULL);

  self->vocab = vocab;
}

/**
 * ebb_bert_config_get_context:
 * @self: a configuration
 *
 * Returns: the most tokens in a row
 */
int
ebb_bert_config_get_context (const EbbBertConfig *self)
{
  g_return_val_if_fail (self != NULL, 0);

  return self->context;
}

/**
 * ebb_bert_config_set_context:
 * @self: a configuration
 * @context: the most tokens in a row
 *
 * Sets the most tokens in a row.
 */
void
ebb_bert_config_set_context (EbbBertConfig *self, int context)
{
  g_return_if_fail (self != NULL);

  self->context = context;
}

/**
 * ebb_bert_config_get_segments:
 * @self: a configuration
 *
 * Returns: the number of different segments that a token can belong to
 */
int
ebb_bert_config_get_segments (const EbbBertConfig *self)
{
  g_return_val_if_fail (self != NULL, 0);

  return self->segments;
}

/**
 * ebb_bert_config_set_segments:
 * @self: a configuration
 * @segments: the number of different segments that a token can belong to
 *
 * Sets the number of different segments that a token can belong to.
 */
void
ebb_bert_config_set_segments (EbbBertConfig *self, int segments)
{
  g_return_if_fail (self != NULL);

  self->segments = segments;
}

/**
 * ebb_bert_config_get_width:
 * @self: a configuration
 *
 * Returns: the size of a token's vector
 */
int
ebb_bert_config_get_width (const EbbBertConfig *self)
{
  g_return_val_if_fail (self != NULL, 0);

  return self->width;
}

/**
 * ebb_bert_config_set_width:
 * @self: a configuration
 * @width: the size of a token's vector
 *
 * Sets the size of a token's vector.
 */
void
ebb_bert_config_set_width (EbbBertConfig *self, int width)
{
  g_return_if_fail (self != NULL);

  self->width = width;
}

/**
 * ebb_bert_config_get_heads:
 * @self: a configuration
 *
 * Returns: the number of attention heads, which divides the width
 */
int
ebb_bert_config_get_heads (const EbbBertConfig *self)
{
  g_return_val_if_fail (self != NULL, 0);

  return self->heads;
}

/**
 * ebb_bert_config_set_heads:
 * @self: a configuration
 * @heads: the number of attention heads, which divides the width
 *
 * Sets the number of attention heads, which divides the width.
 */
void
ebb_bert_config_set_heads (EbbBertConfig *self, int heads)
{
  g_return_if_fail (self != NULL);

  self->heads = heads;
}

/**
 * ebb_bert_config_get_layers:
 * @self: a configuration
 *
 * Returns: the number of blocks
 */
int
ebb_bert_config_get_layers (const EbbBertConfig *self)
{
  g_return_val_if_fail (self != NULL, 0);

  return self->layers;
}

/**
 * ebb_bert_config_set_layers:
 * @self: a configuration
 * @layers: the number of blocks
 *
 * Sets the number of blocks.
 */
void
ebb_bert_config_set_layers (EbbBertConfig *self, int layers)
{
  g_return_if_fail (self != NULL);

  self->layers = layers;
}

/**
 * ebb_bert_config_get_hidden:
 * @self: a configuration
 *
 * Returns: the size inside the feed-forward parts, 0 for four times the width
 */
int
ebb_bert_config_get_hidden (const EbbBertConfig *self)
{
  g_return_val_if_fail (self != NULL, 0);

  return self->hidden;
}

/**
 * ebb_bert_config_set_hidden:
 * @self: a configuration
 * @hidden: the size inside the feed-forward parts, 0 for four times the width
 *
 * Sets the size inside the feed-forward parts, 0 for four times the width.
 */
void
ebb_bert_config_set_hidden (EbbBertConfig *self, int hidden)
{
  g_return_if_fail (self != NULL);

  self->hidden = hidden;
}

/**
 * ebb_bert_config_get_dropout:
 * @self: a configuration
 *
 * Returns: the probability of dropout on embeddings, in attention and on each part's result
 */
double
ebb_bert_config_get_dropout (const EbbBertConfig *self)
{
  g_return_val_if_fail (self != NULL, 0);

  return self->dropout;
}

/**
 * ebb_bert_config_set_dropout:
 * @self: a configuration
 * @dropout: the probability of dropout on embeddings, in attention and on each part's result
 *
 * Sets the probability of dropout on embeddings, in attention and on each part's result.
 */
void
ebb_bert_config_set_dropout (EbbBertConfig *self, double dropout)
{
  g_return_if_fail (self != NULL);

  self->dropout = dropout;
}

/**
 * ebb_bert_config_get_norm_eps:
 * @self: a configuration
 *
 * Returns: what the normalisations add to the variance
 */
double
ebb_bert_config_get_norm_eps (const EbbBertConfig *self)
{
  g_return_val_if_fail (self != NULL, 0);

  return self->norm_eps;
}

/**
 * ebb_bert_config_set_norm_eps:
 * @self: a configuration
 * @norm_eps: what the normalisations add to the variance
 *
 * Sets what the normalisations add to the variance.
 */
void
ebb_bert_config_set_norm_eps (EbbBertConfig *self, double norm_eps)
{
  g_return_if_fail (self != NULL);

  self->norm_eps = norm_eps;
}
