/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "nn/files/gguf-private.h"
#include "nn/models/folder/config-private.h"

/* The configuration of a model in the values of a GGUF file. */

G_BEGIN_DECLS

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

/* Adds the values. FALSE with an error if llama.cpp would compute another model. */
gboolean ebb_gguf_write_config (EbbGgufWriter *writer,
                                const EbbArchitecture *architecture,
                                const EbbGptConfig *config,
                                EbbGgufFactors factors[EBB_GGUF_MAX_FACTORS],
                                guint *n_factors,
                                GError **error);

G_END_DECLS
