/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "nn/layers/rotary-private.h"

#include "tensor/error.h"

#include <math.h>

/* Rotary positions (Su et al., 2021): the checks of their configuration. */

G_GNUC_PRINTF (3, 4)
static gboolean
refuse (GError **error, const char *name, const char *format, ...)
{
  g_autofree char *text = NULL;
  va_list arguments;

  va_start (arguments, format);
  text = g_strdup_vprintf (format, arguments);
  va_end (arguments);
  g_set_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT, "%s: %s", name, text);
  return FALSE;
}

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
    return refuse (error, name, "n_factors is %d, it must be half of the width that turns, %d (at most %d)",
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
  width = (int) (head_width * self->partial);
  if (width < 2 || width % 2 != 0)
    return refuse (error, name, "%d of a head's width of %d turn, the number must be even and above 0", width,
                   head_width);
  if (self->scaling == EBB_ROTARY_DYNAMIC && width == 2)
    return refuse (error, name, "dynamic scaling needs more than one frequency, a width that turns of 2 has one");
  if ((self->scaling == EBB_ROTARY_YARN || self->scaling == EBB_ROTARY_LONGROPE)
      && (self->original_context != 0 ? self->original_context : context) < 2)
    return refuse (error, name, "original_context is %d, it must be at least 2", self->original_context);
  return check_factors (self, name, width, error);
}
