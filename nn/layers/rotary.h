/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#if !defined(EBB_INSIDE) && !defined(EBB_COMPILATION)
#error "Only <ebb/ebb.h> can be included directly."
#endif

#include <glib-object.h>

#include "tensor/macros.h"

/* Rotary positions: the choices from which the inverse frequencies are computed. */

G_BEGIN_DECLS

/**
 * EBB_ROTARY_MAX_FACTORS:
 *
 * The most factors of each list that an #EbbRotaryConfig can have: half of the widest head that is rotated.
 */
#define EBB_ROTARY_MAX_FACTORS 128

/**
 * EbbRotaryScaling:
 * @EBB_ROTARY_DEFAULT: none: frequency i of R / 2 is theta^(-2i / R)
 * @EBB_ROTARY_LINEAR: all frequencies are divided by the factor
 * @EBB_ROTARY_DYNAMIC: rows longer than the original context enlarge theta (dynamic NTK)
 * @EBB_ROTARY_LLAMA3: low frequencies are divided by the factor, high ones stay, those between are interpolated
 * @EBB_ROTARY_YARN: the same by the number of turns within the original context (YaRN), and a factor on cosine and sine
 * @EBB_ROTARY_LONGROPE: each frequency is divided by its own factor, of a list for rows within the original context
 *   and another for longer ones, and a factor on cosine and sine
 *
 * How rotary positions reach beyond the context that a model was first trained with. The names are those of
 * `rope_type` in a config.json.
 */
typedef enum
{
  EBB_ROTARY_DEFAULT,
  EBB_ROTARY_LINEAR,
  EBB_ROTARY_DYNAMIC,
  EBB_ROTARY_LLAMA3,
  EBB_ROTARY_YARN,
  EBB_ROTARY_LONGROPE
} EbbRotaryScaling;

/**
 * EbbRotaryConfig:
 * @scaling: how the frequencies are scaled
 * @theta: the base of the frequencies
 * @partial: which part of a head's width is rotated, from its beginning; 1 for all of it
 * @factor: by how much the context is extended; 0 for the model's context divided by @original_context (YaRN, longrope)
 * @original_context: the context that the model was first trained with; 0 for the model's context
 * @low_freq_factor: for llama3, wavelengths longer than @original_context divided by this are scaled
 * @high_freq_factor: for llama3, wavelengths shorter than @original_context divided by this are not
 * @beta_fast: for YaRN, frequencies with more turns than this in @original_context are not scaled
 * @beta_slow: for YaRN, frequencies with fewer turns than this are
 * @attention_factor: for YaRN, longrope, what cosine and sine are multiplied by; 0 to compute it
 * @mscale: for YaRN, enlarges the computed attention factor, together with @mscale_all_dim; 0 for neither
 * @mscale_all_dim: for YaRN, reduces it
 * @truncate: for YaRN, whether the bounds between scaled and unscaled frequencies are rounded to whole frequencies
 * @n_factors: for longrope, the length of both lists: half of the width that is rotated
 * @short_factors: for longrope, for rows of at most @original_context positions
 * @long_factors: for longrope, for longer rows
 *
 * How rotary positions rotate queries and keys (Su et al., 2021). Plain data, copied by value.
 */
typedef struct
{
  EbbRotaryScaling scaling;
  double theta;
  double partial;
  double factor;
  int original_context;
  double low_freq_factor;
  double high_freq_factor;
  double beta_fast;
  double beta_slow;
  double attention_factor;
  double mscale;
  double mscale_all_dim;
  gboolean truncate;
  int n_factors;
  double short_factors[EBB_ROTARY_MAX_FACTORS];
  double long_factors[EBB_ROTARY_MAX_FACTORS];
} EbbRotaryConfig;

EBB_AVAILABLE_IN_ALL
gboolean ebb_rotary_config_set_short_factors (EbbRotaryConfig *self,
                                              const double *factors,
                                              gsize n_factors,
                                              GError **error);

EBB_AVAILABLE_IN_ALL
const double *ebb_rotary_config_get_short_factors (const EbbRotaryConfig *self,
                                                   gsize *n_factors);

EBB_AVAILABLE_IN_ALL
gboolean ebb_rotary_config_set_long_factors (EbbRotaryConfig *self,
                                             const double *factors,
                                             gsize n_factors,
                                             GError **error);

EBB_AVAILABLE_IN_ALL
const double *ebb_rotary_config_get_long_factors (const EbbRotaryConfig *self,
                                                  gsize *n_factors);

G_END_DECLS
