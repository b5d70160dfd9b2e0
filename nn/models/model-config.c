/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "nn/models/model-config-private.h"

#include "nn/layers/layer-private.h"
#include "tensor/error-private.h"
#include "tensor/error.h"

#include <string.h>

/* What all models share: presets and checks of configurations, initial weights, a check of calls. */

const EbbModelPreset *
ebb_model_preset_find (const EbbModelPreset *presets, guint n_presets, const char *name, char **unknown)
{
  for (guint i = 0; i < n_presets; i++)
    if (strcmp (presets[i].name, name) == 0)
      return &presets[i];
  *unknown = g_utf8_make_valid (name, -1);
  return presets;
}

const char *const *
ebb_model_preset_list (const EbbModelPreset *presets, guint n_presets, const char **names, gsize *is_filled)
{
  if (g_once_init_enter (is_filled))
    {
      for (guint i = 0; i < n_presets; i++)
        names[i] = presets[i].name;
      g_once_init_leave (is_filled, 1);
    }
  return names;
}

gboolean
ebb_model_config_check_preset (const char *unknown_preset, const char *const *presets, GError **error)
{
  return unknown_preset == NULL
         || ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT, "there is no preset \"%s\", the presets are %s",
                      unknown_preset, ebb_in_message (g_strjoinv (", ", (char **) presets)));
}

gboolean
ebb_model_config_check_sizes (const char *model, const EbbConfigSize *sizes, guint n_sizes, GError **error)
{
  for (guint i = 0; i < n_sizes; i++)
    if (sizes[i].value < sizes[i].least)
      return ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT, "%s: %s is %d, it must be at least %d", model,
                       sizes[i].name, sizes[i].value, sizes[i].least);
  return TRUE;
}

gboolean
ebb_model_config_check_heads (const char *model, int width, int heads, GError **error)
{
  return width % heads == 0
         || ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT, "%s: a width of %d can't be divided among %d heads", model,
                      width, heads);
}

gboolean
ebb_model_config_check_dropout (const char *model, double dropout, double attention_dropout, GError **error)
{
  if (!(dropout >= 0 && dropout < 1))
    ebb_error_set (error, EBB_ERROR_INVALID_ARGUMENT, "%s: dropout is %g, it must be at least 0 and below 1", model,
                   dropout);
  else if (!(attention_dropout < 1))
    ebb_error_set (error, EBB_ERROR_INVALID_ARGUMENT,
                   "%s: attention_dropout is %g, it must be below 1, or negative to be as dropout is", model,
                   attention_dropout);
  else
    return TRUE;
  return FALSE;
}

gboolean
ebb_model_config_check_norm_eps (const char *model, double norm_eps, GError **error)
{
  return norm_eps >= 0
         || ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT, "%s: norm_eps is %g, it must not be negative", model,
                      norm_eps);
}

gboolean
ebb_model_check_has_config (EbbModule *model, gconstpointer config, GError **error)
{
  return config != NULL
         || ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT, "%s: config is missing", ebb_module_get_type_name (model));
}

gboolean
ebb_model_initialize (EbbModule *model, EbbInitialStdFunc get_std, GError **error)
{
  g_auto (GStrv) names = ebb_module_get_parameter_names (model, TRUE);
  guint n;
  g_autofree EbbTensor **parameters = ebb_module_get_parameters (model, TRUE, &n);
  gboolean done = TRUE;

  for (guint i = 0; i < n; i++)
    {
      if (ebb_tensor_get_n_dims (parameters[i]) == 2)
        done = done
               && ebb_layer_reinitialize (parameters[i], EBB_INIT_NORMAL,
                                          get_std != NULL ? get_std (model, names[i]) : 0.02, error);
      else if (g_str_has_suffix (names[i], ".bias"))
        done = done && ebb_layer_reinitialize (parameters[i], EBB_INIT_CONSTANT, 0, error);
      ebb_tensor_unref (parameters[i]);
    }
  return done;
}

gboolean
ebb_model_check_like_tokens (EbbModule *model, const char *name, EbbTensor *tensor, EbbTensor *tokens, GError **error)
{
  return tensor == NULL
         || (ebb_tensor_get_n_dims (tensor) == 2 && ebb_tensor_get_dim (tensor, 0) == ebb_tensor_get_dim (tokens, 0)
             && ebb_tensor_get_dim (tensor, 1) == ebb_tensor_get_dim (tokens, 1))
         || ebb_fail (error, EBB_ERROR_SHAPE, "%s: %s %s; it must be %s, as tokens", ebb_module_get_type_name (model),
                      name, ebb_show_shape (tensor), ebb_show_shape (tokens));
}
