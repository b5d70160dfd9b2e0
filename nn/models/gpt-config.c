/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "nn/models/gpt-config.h"

#include "nn/models/model-config-private.h"
#include "tensor/error-private.h"

/* The sizes and choices of a GPT. */

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
 * and biases. An unknown name is reported where the configuration is used, by ebb_gpt_config_check() and
 * ebb_gpt_new(), so that one check at the end is enough.
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
  if (self->gelu != EBB_GELU_EXACT && self->gelu != EBB_GELU_TANH)
    {
      g_set_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT, "Gpt: gelu is %d, it must be 0 (exact) or 1 (tanh)",
                   (int) self->gelu);
      return FALSE;
    }
  if (self->residual_dtype == EBB_DTYPE_F32 || self->residual_dtype == EBB_DTYPE_BF16)
    return TRUE;
  g_set_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT, "Gpt: the residual stream is %s, it must be f32 or bf16",
               (guint) self->residual_dtype < EBB_N_DTYPES ? ebb_dtype_get_name (self->residual_dtype) : "no dtype");
  return FALSE;
}
