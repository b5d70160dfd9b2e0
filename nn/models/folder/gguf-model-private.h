/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "nn/files/gguf-private.h"
#include "nn/models/folder/config-private.h"

/* The configuration of a model in the values of a GGUF file. */

G_BEGIN_DECLS

/* -- keys, behind the architecture's name and a dot */

#define EBB_GGUF_WINDOW "attention.sliding_window"
#define EBB_GGUF_PATTERN "attention.sliding_window_pattern"
#define EBB_GGUF_THETA "rope.freq_base"
#define EBB_GGUF_LOCAL_THETA "rope.freq_base_swa"
#define EBB_GGUF_DIMENSIONS "rope.dimension_count"
#define EBB_GGUF_SCALING "rope.scaling.type"
#define EBB_GGUF_FACTOR "rope.scaling.factor"
#define EBB_GGUF_ORIGINAL "rope.scaling.original_context_length"
#define EBB_GGUF_ATTENTION_FACTOR "rope.scaling.attn_factor"
#define EBB_GGUF_YARN_ATTENTION_FACTOR "rope.scaling.yarn_attn_factor"
#define EBB_GGUF_BETA_FAST "rope.scaling.yarn_beta_fast"
#define EBB_GGUF_BETA_SLOW "rope.scaling.yarn_beta_slow"
/* Of llama3, beside its tensor of factors; llama.cpp has no such keys and needs none. */
#define EBB_GGUF_LOW_FREQUENCY "rope.scaling.low_freq_factor"
#define EBB_GGUF_HIGH_FREQUENCY "rope.scaling.high_freq_factor"

#define EBB_GGUF_LLAMA3_FACTORS "rope_freqs.weight"
#define EBB_GGUF_LONG_FACTORS "rope_factors_long.weight"
#define EBB_GGUF_SHORT_FACTORS "rope_factors_short.weight"

/* -- gguf-config.c */

/* The config.json that the file stands for, with rotary positions in the older form. NULL with an error that names the
 * value. */
EbbJson *ebb_gguf_read_config (const EbbGguf *gguf,
                               const EbbArchitecture **architecture,
                               GError **error);

/* A tensor that belongs to the configuration: one factor for each rotated frequency. */
typedef struct
{
  const char *name;
  gint64 n;
  float factors[EBB_ROTARY_MAX_FACTORS];
} EbbGgufFactors;

#define EBB_GGUF_MAX_FACTORS 2

/* -- gguf-config-write.c */

/* By llama.cpp's rule the square of 1 / the attention scale: the width / heads for a model of 27 billion parameters,
 * else a head's width. */
int ebb_gguf_get_scaled_width (const EbbGgufForm *form,
                               int layers,
                               int width,
                               int heads,
                               int head_width);
/* The factors of llama3's scaling, as llama.cpp's converter computes them, in f32. */
void ebb_gguf_make_llama3_factors (double theta,
                                   double factor,
                                   double low,
                                   double high,
                                   double original,
                                   gint64 n,
                                   float *factors);
/* Adds the values. FALSE with an error if llama.cpp would compute another model. */
gboolean ebb_gguf_write_config (EbbGgufWriter *writer,
                                const EbbArchitecture *architecture,
                                const EbbGptConfig *config,
                                EbbGgufFactors factors[EBB_GGUF_MAX_FACTORS],
                                guint *n_factors,
                                GError **error);

G_END_DECLS
