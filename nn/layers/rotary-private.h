/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "nn/layers/rotary.h"
#include "nn/module.h"
#include "tensor/tensor.h"

/* Rotary positions of a module: its inverse frequencies, and how one call rotates by them. */

G_BEGIN_DECLS

/* No scaling; what a config.json leaves out is so. */
#define EBB_ROTARY_CONFIG_INITIAL            \
  ((EbbRotaryConfig){ .theta = 10000,        \
                      .partial = 1,          \
                      .factor = 1,           \
                      .low_freq_factor = 1,  \
                      .high_freq_factor = 4, \
                      .beta_fast = 32,       \
                      .beta_slow = 1,        \
                      .truncate = TRUE })

/* @name: of the configuration in errors. @context: of the model. */
gboolean ebb_rotary_config_check (const EbbRotaryConfig *self,
                                  const char *name,
                                  int head_width,
                                  int context,
                                  GError **error);

/* The rotary positions of one module, in its instance. */
typedef struct
{
  EbbTensor *frequencies; /* f32 [width that is rotated / 2]: a buffer of the module, bound, not in its state dict */
  EbbTensor *long_frequencies; /* longrope: for rows longer than the original context */
  EbbRotaryScaling scaling;
  double extension; /* by how much dynamic scaling extends the context */
  int original_context;
  double factor; /* on cosine and sine */
} EbbRotary;

/* Computes the frequencies and registers them with @module. @config is checked. */
gboolean ebb_rotary_install (EbbRotary *self,
                             EbbModule *module,
                             const EbbRotaryConfig *config,
                             int head_width,
                             int context,
                             GError **error);
/* Turns x [B, T, H, D], whose first token has the index @first in its row; @starts: where each token's document begins,
 * or NULL. */
EbbTensor *ebb_rotary_apply (const EbbRotary *self,
                             EbbTensor *x,
                             EbbTensor *starts,
                             gint64 first,
                             GError **error);

/* The factor of cosine and sine. */
double ebb_rotary_get_attention_factor (const EbbRotaryConfig *config,
                                        int context);
/* The most positions of a row, in a model with the @context. */
gint64 ebb_rotary_config_get_limit (const EbbRotaryConfig *self,
                                    int context);

G_END_DECLS
