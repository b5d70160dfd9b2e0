/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "nn/layers/rotary.h"
#include "nn/module.h"
#include "tensor/tensor.h"

/* Rotary positions of a module: its inverse frequencies, and how one call turns by them. */

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

G_END_DECLS
