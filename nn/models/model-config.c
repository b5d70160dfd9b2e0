/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "nn/models/model-config-private.h"

#include "tensor/error.h"

#include <string.h>

/* The presets and checks that the configurations of all models share. */

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
  g_autofree char *known = NULL;

  if (unknown_preset == NULL)
    return TRUE;
  known = g_strjoinv (", ", (char **) presets);
  g_set_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT, "there is no preset \"%s\", the presets are %s",
               unknown_preset, known);
  return FALSE;
}

gboolean
ebb_model_config_check_sizes (const char *model, const EbbConfigSize *sizes, guint n_sizes, GError **error)
{
  for (guint i = 0; i < n_sizes; i++)
    if (sizes[i].value < sizes[i].least)
      {
        g_set_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT, "%s: %s is %d, it must be at least %d", model,
                     sizes[i].name, sizes[i].value, sizes[i].least);
        return FALSE;
      }
  return TRUE;
}

gboolean
ebb_model_config_check_heads (const char *model, int width, int heads, GError **error)
{
  if (width % heads == 0)
    return TRUE;
  g_set_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT, "%s: a width of %d can't be divided among %d heads", model,
               width, heads);
  return FALSE;
}

gboolean
ebb_model_config_check_dropout (const char *model, double dropout, double attention_dropout, GError **error)
{
  if (!(dropout >= 0 && dropout < 1))
    g_set_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT, "%s: dropout is %g, it must be at least 0 and below 1",
                 model, dropout);
  else if (!(attention_dropout < 1))
    g_set_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT,
                 "%s: attention_dropout is %g, it must be below 1, or negative to be as dropout is", model,
                 attention_dropout);
  else
    return TRUE;
  return FALSE;
}

gboolean
ebb_model_config_check_norm_eps (const char *model, double norm_eps, GError **error)
{
  if (norm_eps >= 0)
    return TRUE;
  g_set_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT, "%s: norm_eps is %g, it must not be negative", model,
               norm_eps);
  return FALSE;
}
