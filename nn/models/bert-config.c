/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "nn/models/bert-config.h"

#include "nn/models/model-config-private.h"
#include "tensor/error-private.h"

/* The sizes and choices of a BERT. */

G_DEFINE_BOXED_TYPE (EbbBertConfig, ebb_bert_config, ebb_bert_config_copy, ebb_bert_config_free)

/* The two published sizes (Devlin et al., 2019, section 3) with the uncased vocabulary, and one for bytes that trains
 * in a minute. */
static const EbbModelPreset presets[] = {
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
 * dropout 0.1 and an epsilon of 1e-12. An unknown name is reported where the configuration is used, by
 * ebb_bert_config_check() and ebb_bert_new(), so that one check at the end is enough.
 *
 * Returns: (transfer full): the configuration
 */
EbbBertConfig *
ebb_bert_config_new_preset (const char *name)
{
  EbbBertConfig *self;
  const EbbModelPreset *preset;

  g_return_val_if_fail (name != NULL, NULL);

  self = g_new0 (EbbBertConfig, 1);
  preset = ebb_model_preset_find (presets, G_N_ELEMENTS (presets), name, &self->unknown_preset);
  self->vocab = preset->vocab;
  self->context = preset->context;
  self->segments = 2;
  self->width = preset->width;
  self->heads = preset->heads;
  self->layers = preset->layers;
  self->hidden = 4 * self->width;
  self->dropout = 0.1;
  self->attention_dropout = -1;
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
  static gsize is_filled = 0;

  return ebb_model_preset_list (presets, G_N_ELEMENTS (presets), names, &is_filled);
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
  EBB_RETURN_UNLESS_BEGUN (FALSE, error, self);

  const EbbConfigSize sizes[] = { { "vocab", self->vocab, 1 },       { "context", self->context, 1 },
                                  { "segments", self->segments, 1 }, { "width", self->width, 1 },
                                  { "heads", self->heads, 1 },       { "layers", self->layers, 1 },
                                  { "hidden", self->hidden, 0 } };

  return ebb_model_config_check_preset (self->unknown_preset, ebb_bert_config_get_preset_names (), error)
         && ebb_model_config_check_sizes ("Bert", sizes, G_N_ELEMENTS (sizes), error)
         && ebb_model_config_check_heads ("Bert", self->width, self->heads, error)
         && ebb_model_config_check_dropout ("Bert", self->dropout, self->attention_dropout, error)
         && ebb_model_config_check_norm_eps ("Bert", self->norm_eps, error);
}
