/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "nn/module.h"

/* What all transformer models share: presets and checks of configurations, initial weights, a check of calls. */

G_BEGIN_DECLS

typedef struct
{
  const char *name;
  int vocab, context, width, heads, layers;
} EbbModelPreset;

/* The preset called @name. Where there is none, the first one, and *@unknown is a copy of @name that errors can show.
 */
const EbbModelPreset *ebb_model_preset_find (const EbbModelPreset *presets,
                                             guint n_presets,
                                             const char *name,
                                             char **unknown);
/* Fills @names, which has room for one more than there are presets, at the first call; returns it. */
const char *const *ebb_model_preset_list (const EbbModelPreset *presets,
                                          guint n_presets,
                                          const char **names,
                                          gsize *is_filled);

typedef struct
{
  const char *name;
  int value, least;
} EbbConfigSize;

/* @unknown_preset: a name that none of @presets has, or NULL. */
gboolean ebb_model_config_check_preset (const char *unknown_preset,
                                        const char *const *presets,
                                        GError **error);
/* @model: its name in errors. */
gboolean ebb_model_config_check_sizes (const char *model,
                                       const EbbConfigSize *sizes,
                                       guint n_sizes,
                                       GError **error);
gboolean ebb_model_config_check_heads (const char *model,
                                       int width,
                                       int heads,
                                       GError **error);
gboolean ebb_model_config_check_dropout (const char *model,
                                         double dropout,
                                         double attention_dropout,
                                         GError **error);
gboolean ebb_model_config_check_norm_eps (const char *model,
                                          double norm_eps,
                                          GError **error);

gboolean ebb_model_check_has_config (EbbModule *model,
                                     gconstpointer config,
                                     GError **error);
/* Draws the parameters anew: matrices normal with the standard deviation that @get_std returns, 0.02 if it is NULL, and
 * biases as zeros. Norms begin as ones and zeros anyway. */
typedef double (*EbbInitialStdFunc) (EbbModule *model,
                                     const char *name);
gboolean ebb_model_initialize (EbbModule *model,
                               EbbInitialStdFunc get_std,
                               GError **error);
/* Checks that @tensor, which may be NULL, has one element for each token. */
gboolean ebb_model_check_like_tokens (EbbModule *model,
                                      const char *name,
                                      EbbTensor *tensor,
                                      EbbTensor *tokens,
                                      GError **error);

G_END_DECLS
