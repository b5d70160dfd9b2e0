/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "nn/models/folder/config-private.h"

#include <string.h>

/* Which layers see a window of positions and which see all: "sliding_window", "layer_types" and their kin. */

#define SLIDING "sliding_attention"
#define FULL "full_attention"

/* -- reading ------------------------------------------------------------------------------------------------------- */

/* The window, 0 for none. */
static gboolean
read_window (const EbbConfigSource *source,
             int *window,
             GError **error)
{
  const EbbJson *flag = ebb_json_get (source->document, "use_sliding_window");
  const EbbJson *value = ebb_json_get (source->document, "sliding_window");
  const gboolean has_flag = source->architecture->window == EBB_WINDOW_FLAG;
  const gboolean is_phi = source->architecture->original_context > 0;
  gboolean is_used = !has_flag;
  gint64 size = is_phi ? 0 : 4096;

  *window = 0;
  if (has_flag && flag != NULL && !ebb_json_as_boolean (flag, &is_used))
    return ebb_config_refuse (source, NULL, "use_sliding_window", flag, "true or false", error);
  if (value != NULL && value->kind == EBB_JSON_NULL)
    return TRUE;
  if (value != NULL && (!ebb_json_as_int (value, &size) || size < 1 || size > G_MAXINT))
    return ebb_config_refuse (source, NULL, "sliding_window", value, "a whole number of at least 1, or null", error);
  *window = is_used ? (int) size : 0;
  return TRUE;
}

/* A letter for each layer, as ebb_gpt_config_set_layer_pattern () takes them. */
static gboolean
read_types (const EbbConfigSource *source,
            const EbbJson *types,
            GString *pattern,
            GError **error)
{
  g_autofree char *right = g_strdup_printf ("a list of %" G_GSIZE_FORMAT " strings, one for each layer", pattern->len);

  if (types->kind != EBB_JSON_LIST || types->n_items != pattern->len)
    return ebb_config_refuse (source, NULL, "layer_types", types, right, error);
  for (gsize i = 0; i < types->n_items; i++)
    {
      const char *type = NULL;

      ebb_json_as_string (&types->items[i], &type);
      if (g_strcmp0 (type, SLIDING) == 0)
        pattern->str[i] = 's';
      else if (g_strcmp0 (type, FULL) == 0)
        pattern->str[i] = 'f';
      else
        {
          g_autofree char *name = g_strdup_printf ("layer_types[%" G_GSIZE_FORMAT "]", i);

          return ebb_config_refuse (source, NULL, name, &types->items[i], "\"" FULL "\" or \"" SLIDING "\"", error);
        }
    }
  return TRUE;
}

/* Without "layer_types": what older files say. */
static gboolean
read_rule (const EbbConfigSource *source,
           int window,
           GString *pattern,
           GError **error)
{
  const EbbArchitecture *architecture = source->architecture;
  const char *key = architecture->window == EBB_WINDOW_FLAG ? "max_window_layers" : "sliding_window_pattern";
  const EbbJson *value = ebb_json_get (source->document, key);
  gint64 number = architecture->window == EBB_WINDOW_FLAG ? 28 : architecture->full_every;

  if (value != NULL && architecture->full_every != 2
      && (!ebb_json_as_int (value, &number) || number < (architecture->window == EBB_WINDOW_FLAG ? 0 : 1)))
    return ebb_config_refuse (source, NULL, key, value, "a whole number that is not negative", error);
  for (gsize i = 0; i < pattern->len; i++)
    if (architecture->window == EBB_WINDOW_FLAG)
      pattern->str[i] = window > 0 && (gint64) i >= number ? 's' : 'f';
    else
      pattern->str[i] = (gint64) (i + 1) % number != 0 ? 's' : 'f';
  return TRUE;
}

gboolean
ebb_config_read_layers (const EbbConfigSource *source,
                        EbbGptConfig *config,
                        GError **error)
{
  const EbbArchitecture *architecture = source->architecture;
  const EbbJson *types = ebb_json_get (source->document, "layer_types");
  g_autoptr (GString) pattern = NULL;
  gsize n_sliding = 0;
  int window;

  config->window = 0;
  if (architecture->window == EBB_WINDOW_NONE)
    return TRUE;
  if (!read_window (source, &window, error))
    return FALSE;
  if (architecture->window == EBB_WINDOW_ALL)
    {
      config->window = window;
      return TRUE;
    }
  pattern = g_string_sized_new ((gsize) config->layers);
  g_string_set_size (pattern, (gsize) config->layers);
  if (types != NULL && types->kind != EBB_JSON_NULL ? !read_types (source, types, pattern, error)
                                                    : !read_rule (source, window, pattern, error))
    return FALSE;
  for (gsize i = 0; i < pattern->len; i++)
    n_sliding += pattern->str[i] == 's';
  if (n_sliding > 0 && window == 0)
    return ebb_config_refuse (source, NULL, "sliding_window", ebb_json_get (source->document, "sliding_window"),
                              "a whole number of at least 1, since layers are " SLIDING, error);
  config->window = n_sliding > 0 ? window : 0;
  if (n_sliding > 0 && n_sliding < pattern->len)
    ebb_gpt_config_set_layer_pattern (config, pattern->str);
  return TRUE;
}

/* -- writing ------------------------------------------------------------------------------------------------------- */

gboolean
ebb_config_layers_are_equal (const EbbGptConfig *a,
                             const EbbGptConfig *b)
{
  gboolean slides = FALSE;

  if (a->layers != b->layers)
    return FALSE;
  for (int i = 0; i < a->layers; i++)
    {
      if (ebb_gpt_config_is_sliding_layer (a, (guint) i) != ebb_gpt_config_is_sliding_layer (b, (guint) i))
        return FALSE;
      slides = slides || ebb_gpt_config_is_sliding_layer (a, (guint) i);
    }
  return !slides || a->window == b->window;
}

void
ebb_config_write_layers (const EbbArchitecture *architecture,
                         const EbbGptConfig *config,
                         EbbJson *document)
{
  g_autofree char *window = config->window > 0 ? g_strdup_printf ("%d", config->window) : g_strdup ("null");
  g_autoptr (GString) types = NULL;

  if (architecture->window == EBB_WINDOW_NONE)
    return;
  ebb_json_set (document, "sliding_window", window);
  if (architecture->window == EBB_WINDOW_FLAG)
    ebb_json_set (document, "use_sliding_window", config->window > 0 ? "true" : "false");
  if (architecture->window == EBB_WINDOW_ALL)
    return;
  types = g_string_new ("[");
  for (int i = 0; i < config->layers; i++)
    g_string_append_printf (types, "%s\"%s\"", i > 0 ? ", " : "",
                            ebb_gpt_config_is_sliding_layer (config, (guint) i) ? SLIDING : FULL);
  g_string_append_c (types, ']');
  ebb_json_set (document, "layer_types", types->str);
}
