/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "nn/layers/rotary-private.h"

#include "nn/module-private.h"
#include "tensor/error-private.h"
#include "tensor/ops/rotary.h"
#include "tensor/tensor-private.h"

#include <math.h>
#include <string.h>

/* Rotary positions (Su et al., 2021): the inverse frequencies of each scaling, computed in f32 as transformers does. */

static int
get_width (const EbbRotaryConfig *config, int head_width)
{
  return (int) (head_width * config->partial);
}

static int
get_original_context (const EbbRotaryConfig *config, int context)
{
  return config->original_context != 0 ? config->original_context : context;
}

static double
get_extension (const EbbRotaryConfig *config, int context)
{
  return config->factor != 0 ? config->factor : (double) context / get_original_context (config, context);
}

/* theta^(2i / R): without scaling frequency i is one divided by it. */
static float
get_wave (const EbbRotaryConfig *config, int i, int width)
{
  return (float) pow (config->theta, (float) (2 * i) / (float) width);
}

/* -- llama3 -------------------------------------------------------------------------------------------------------- */

static float
scale_llama3 (const EbbRotaryConfig *config, int context, float frequency)
{
  const double original = get_original_context (config, context);
  const double low = config->low_freq_factor, high = config->high_freq_factor;
  const float factor = (float) config->factor;
  const float wavelength = (float) (2 * G_PI) / frequency;
  float smooth;

  if (wavelength > (float) (original / low))
    return frequency / factor;
  if (wavelength < (float) (original / high))
    return frequency;
  smooth = ((float) original / wavelength - (float) low) / (float) (high - low);
  return (1 - smooth) * frequency / factor + smooth * frequency;
}

/* -- YaRN (Peng et al., 2023) -------------------------------------------------------------------------------------- */

/* The number, not whole, of the frequency that turns @turns times within the original context. */
static double
find_frequency (const EbbRotaryConfig *config, int context, int width, double turns)
{
  return width * log (get_original_context (config, context) / (turns * 2 * G_PI)) / (2 * log (config->theta));
}

static float
scale_yarn (const EbbRotaryConfig *config, int context, int i, int width)
{
  const float wave = get_wave (config, i, width);
  const float extended = 1 / ((float) get_extension (config, context) * wave);
  double low = find_frequency (config, context, width, config->beta_fast);
  double high = find_frequency (config, context, width, config->beta_slow);
  float ramp;

  if (config->truncate)
    {
      low = floor (low);
      high = ceil (high);
    }
  low = MAX (low, 0);
  high = MIN (high, width - 1);
  if (low == high)
    high += 0.001; /* a step, not a division by 0 */
  ramp = CLAMP (((float) i - (float) low) / (float) (high - low), 0, 1);
  return extended * ramp + 1 / wave * (1 - ramp);
}

static double
get_magnitude (double extension, double mscale)
{
  return extension <= 1 ? 1 : 0.1 * mscale * log (extension) + 1;
}

double
ebb_rotary_get_attention_factor (const EbbRotaryConfig *config, int context)
{
  const double extension = get_extension (config, context);

  if (config->scaling != EBB_ROTARY_YARN && config->scaling != EBB_ROTARY_LONGROPE)
    return 1;
  if (config->attention_factor != 0)
    return config->attention_factor;
  if (config->scaling == EBB_ROTARY_LONGROPE)
    return extension <= 1 ? 1 : sqrt (1 + log (extension) / log (get_original_context (config, context)));
  if (config->mscale != 0 && config->mscale_all_dim != 0)
    return get_magnitude (extension, config->mscale) / get_magnitude (extension, config->mscale_all_dim);
  return get_magnitude (extension, 1);
}

/* -- frequencies --------------------------------------------------------------------------------------------------- */

static float
get_frequency (const EbbRotaryConfig *config, int context, int i, int width, gboolean is_long)
{
  const float frequency = 1 / get_wave (config, i, width);

  switch (config->scaling)
    {
    case EBB_ROTARY_DEFAULT:
    case EBB_ROTARY_DYNAMIC: /* beyond the original context the kernel scales */ return frequency;
    case EBB_ROTARY_LINEAR: return frequency / (float) config->factor;
    case EBB_ROTARY_LLAMA3: return scale_llama3 (config, context, frequency);
    case EBB_ROTARY_YARN: return scale_yarn (config, context, i, width);
    case EBB_ROTARY_LONGROPE:
      return 1 / ((float) (is_long ? config->long_factors[i] : config->short_factors[i]) * get_wave (config, i, width));
    }
  g_assert_not_reached ();
}

static gboolean
add_frequencies (EbbModule *module,
                 const char *name,
                 EbbTensor **field,
                 const EbbRotaryConfig *config,
                 int head_width,
                 int context,
                 GError **error)
{
  const int width = get_width (config, head_width);
  const gint64 shape[] = { width / 2 };
  g_autoptr (EbbTensor) tensor = ebb_tensor_new_empty (shape, 1, EBB_DTYPE_F32, NULL, error);
  g_autofree float *values = NULL;

  if (tensor == NULL)
    return FALSE;
  if (!tensor->storage->placeholder)
    values = g_new (float, width / 2);
  for (int i = 0; values != NULL && i < width / 2; i++)
    values[i] = get_frequency (config, context, i, width, g_str_has_prefix (name, "long"));
  ebb_module_bind_buffer (module, name, field);
  return ebb_tensor_upload (tensor, values, error)
         && ebb_module_register_exact_buffer (module, name, tensor, FALSE, error);
}

gboolean
ebb_rotary_install (EbbRotary *self,
                    EbbModule *module,
                    const EbbRotaryConfig *config,
                    int head_width,
                    int context,
                    GError **error)
{
  self->scaling = config->scaling;
  self->extension = get_extension (config, context);
  self->original_context = get_original_context (config, context);
  self->factor = ebb_rotary_get_attention_factor (config, context);
  return add_frequencies (module, "inv_freq", &self->frequencies, config, head_width, context, error)
         && (config->scaling != EBB_ROTARY_LONGROPE
             || add_frequencies (module, "long_inv_freq", &self->long_frequencies, config, head_width, context, error));
}

/* -- calls --------------------------------------------------------------------------------------------------------- */

/* Dynamic scaling enlarges theta by s^(R / (R - 2)); the kernel divides frequency i by the (2i / R)-th power of it. */
static double
get_ntk (const EbbRotary *self, gint64 length)
{
  const double width = 2 * (double) ebb_tensor_get_n_elements (self->frequencies);
  double growth;

  if (self->scaling != EBB_ROTARY_DYNAMIC || length <= self->original_context)
    return 1;
  growth = self->extension * (double) length / self->original_context - (self->extension - 1);
  return pow (growth, width / (width - 2));
}

EbbTensor *
ebb_rotary_apply (const EbbRotary *self, EbbTensor *x, EbbTensor *starts, gint64 first, GError **error)
{
  gint64 length;
  EbbTensor *frequencies = self->frequencies;

  if (x == NULL)
    return NULL;
  length = first + ebb_tensor_get_dim (x, 1);
  if (self->long_frequencies != NULL && length > self->original_context)
    frequencies = self->long_frequencies;
  return ebb_rotary (x, frequencies, starts, first, self->factor, get_ntk (self, length), error);
}

gint64
ebb_rotary_config_get_limit (const EbbRotaryConfig *self, int context)
{
  if (self->scaling != EBB_ROTARY_DYNAMIC)
    return context;
  return MAX (context, (gint64) MIN (get_original_context (self, context) * self->factor, G_MAXINT));
}

/* -- checks -------------------------------------------------------------------------------------------------------- */

#define refuse(error, name, format, ...) \
  ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT, "%s: " format, name, ##__VA_ARGS__)

static gboolean
is_positive (double value)
{
  return value > 0 && isfinite (value);
}

static gboolean
check_numbers (const EbbRotaryConfig *self, const char *name, GError **error)
{
  const struct
  {
    const char *name;
    double value;
    gboolean may_be_zero;
  } numbers[] = { { "theta", self->theta, FALSE },
                  { "partial", self->partial, FALSE },
                  { "factor", self->factor,
                    self->scaling == EBB_ROTARY_YARN || self->scaling == EBB_ROTARY_LONGROPE },
                  { "low_freq_factor", self->low_freq_factor, FALSE },
                  { "high_freq_factor", self->high_freq_factor, FALSE },
                  { "beta_fast", self->beta_fast, FALSE },
                  { "beta_slow", self->beta_slow, FALSE },
                  { "attention_factor", self->attention_factor, TRUE },
                  { "mscale", self->mscale, TRUE },
                  { "mscale_all_dim", self->mscale_all_dim, TRUE } };

  for (guint i = 0; i < G_N_ELEMENTS (numbers); i++)
    if (!is_positive (numbers[i].value) && !(numbers[i].may_be_zero && numbers[i].value == 0))
      return refuse (error, name, "%s is %g, it must be finite and %s", numbers[i].name, numbers[i].value,
                     numbers[i].may_be_zero ? "not negative" : "above 0");
  if (self->scaling == EBB_ROTARY_YARN && self->theta <= 1)
    return refuse (error, name, "theta is %g, for YaRN it must be above 1", self->theta);
  if (self->original_context < 0)
    return refuse (error, name, "original_context is %d, it must not be negative", self->original_context);
  if (self->scaling == EBB_ROTARY_LLAMA3 && self->low_freq_factor == self->high_freq_factor)
    return refuse (error, name, "low_freq_factor and high_freq_factor are both %g, they must differ",
                   self->low_freq_factor);
  return TRUE;
}

static gboolean
check_factors (const EbbRotaryConfig *self, const char *name, int width, GError **error)
{
  if (self->scaling != EBB_ROTARY_LONGROPE)
    return TRUE;
  if (self->n_factors > EBB_ROTARY_MAX_FACTORS || self->n_factors != width / 2)
    return refuse (error, name, "n_factors is %d, it must be half of the width that is rotated, %d (at most %d)",
                   self->n_factors, width / 2, EBB_ROTARY_MAX_FACTORS);
  for (int i = 0; i < self->n_factors; i++)
    if (!is_positive (self->short_factors[i]) || !is_positive (self->long_factors[i]))
      return refuse (error, name, "short_factors[%d] is %g and long_factors[%d] is %g, both must be finite and above 0",
                     i, self->short_factors[i], i, self->long_factors[i]);
  return TRUE;
}

gboolean
ebb_rotary_config_check (const EbbRotaryConfig *self, const char *name, int head_width, int context, GError **error)
{
  int width;

  if ((guint) self->scaling > EBB_ROTARY_LONGROPE)
    return refuse (
        error, name,
        "scaling is %d, it must be 0 (default), 1 (linear), 2 (dynamic), 3 (llama3), 4 (YaRN) or 5 (longrope)",
        (int) self->scaling);
  if (!check_numbers (self, name, error))
    return FALSE;
  if (self->partial > 1)
    return refuse (error, name, "partial is %g, it must be at most 1", self->partial);
  width = get_width (self, head_width);
  if (width < 2 || width % 2 != 0)
    return refuse (error, name, "%d of a head's width of %d are rotated, the number must be even and above 0", width,
                   head_width);
  if (self->scaling == EBB_ROTARY_DYNAMIC && width == 2)
    return refuse (error, name, "dynamic scaling needs more than one frequency, a width that is rotated of 2 has one");
  if ((self->scaling == EBB_ROTARY_YARN || self->scaling == EBB_ROTARY_LONGROPE)
      && get_original_context (self, context) < 2)
    return refuse (error, name, "original_context is %d, it must be at least 2", self->original_context);
  return check_factors (self, name, width, error);
}

/* -- lists of factors, for languages that can't write arrays inside a structure ------------------------------------ */

static gboolean
set_factors (EbbRotaryConfig *self,
             double *list,
             const char *name,
             const double *factors,
             gsize n_factors,
             GError **error)
{
  if (n_factors > EBB_ROTARY_MAX_FACTORS)
    return refuse (error, "rotary", "%s has %" G_GSIZE_FORMAT " factors, it must have at most %d", name, n_factors,
                   EBB_ROTARY_MAX_FACTORS);
  memset (list, 0, sizeof (double) * EBB_ROTARY_MAX_FACTORS);
  if (n_factors > 0)
    memcpy (list, factors, sizeof (double) * n_factors);
  self->n_factors = (int) n_factors;
  return TRUE;
}

/**
 * ebb_rotary_config_set_short_factors:
 * @self: a configuration
 * @factors: (array length=n_factors) (nullable): the factors; %NULL if there are none
 * @n_factors: how many there are, at most %EBB_ROTARY_MAX_FACTORS
 * @error: return location for an error
 *
 * Sets the factors for rows of at most `original_context` positions. `n_factors` becomes their number, so the list for
 * longer rows needs as many.
 *
 * Returns: %TRUE, or %FALSE with @error set if there are too many
 */
gboolean
ebb_rotary_config_set_short_factors (EbbRotaryConfig *self,
                                     const double *factors,
                                     gsize n_factors,
                                     GError **error)
{
  return EBB_MAY_BEGIN (error, self)
         && set_factors (self, self->short_factors, "short_factors", factors, n_factors, error);
}

/**
 * ebb_rotary_config_get_short_factors:
 * @self: a configuration
 * @n_factors: (out): return location for how many there are
 *
 * Returns: (array length=n_factors) (transfer none): the factors for rows of at most `original_context` positions
 */
const double *
ebb_rotary_config_get_short_factors (const EbbRotaryConfig *self,
                                     gsize *n_factors)
{
  g_return_val_if_fail (self != NULL && n_factors != NULL, NULL);

  *n_factors = (gsize) CLAMP (self->n_factors, 0, EBB_ROTARY_MAX_FACTORS);
  return self->short_factors;
}

/**
 * ebb_rotary_config_set_long_factors:
 * @self: a configuration
 * @factors: (array length=n_factors) (nullable): the factors; %NULL if there are none
 * @n_factors: how many there are, at most %EBB_ROTARY_MAX_FACTORS
 * @error: return location for an error
 *
 * Sets the factors for rows longer than `original_context`. `n_factors` becomes their number, so the list for shorter
 * rows needs as many.
 *
 * Returns: %TRUE, or %FALSE with @error set if there are too many
 */
gboolean
ebb_rotary_config_set_long_factors (EbbRotaryConfig *self,
                                    const double *factors,
                                    gsize n_factors,
                                    GError **error)
{
  return EBB_MAY_BEGIN (error, self)
         && set_factors (self, self->long_factors, "long_factors", factors, n_factors, error);
}

/**
 * ebb_rotary_config_get_long_factors:
 * @self: a configuration
 * @n_factors: (out): return location for how many there are
 *
 * Returns: (array length=n_factors) (transfer none): the factors for rows longer than `original_context`
 */
const double *
ebb_rotary_config_get_long_factors (const EbbRotaryConfig *self,
                                    gsize *n_factors)
{
  g_return_val_if_fail (self != NULL && n_factors != NULL, NULL);

  *n_factors = (gsize) CLAMP (self->n_factors, 0, EBB_ROTARY_MAX_FACTORS);
  return self->long_factors;
}
