/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <glib.h>

/* What the configurations of all transformer models have to fulfil. */

G_BEGIN_DECLS

typedef struct
{
  const char *name;
  int value, least;
} EbbConfigSize;

/* @unknown_preset: the name that was asked for and is none of @presets, or NULL. */
gboolean ebb_model_config_check_preset (const char *unknown_preset,
                                        const char *const *presets,
                                        GError **error);
/* @model: how errors call it. */
gboolean ebb_model_config_check_sizes (const char *model,
                                       const EbbConfigSize *sizes,
                                       guint n_sizes,
                                       GError **error);
gboolean ebb_model_config_check_heads (const char *model,
                                       int width,
                                       int heads,
                                       GError **error);
gboolean ebb_model_config_check_rates (const char *model,
                                       double dropout,
                                       double norm_eps,
                                       GError **error);

G_END_DECLS
