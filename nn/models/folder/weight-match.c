/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "nn/models/folder/weights-private.h"

#include "nn/state/state-dict-private.h"
#include "tensor/autograd/op-private.h"
#include "tensor/error-private.h"
#include "tensor/tensor-private.h"

#include <string.h>

/* Finds the tensors of a model in the files of a folder, and lists those that do not fit. */

#define MAX_SHOWN 200 /* bytes of a name */

/* By its name, by that without the prefix, or by the name that the oldest files have for a norm. */
static const EbbTensorEntry *
find_entry (EbbWeightFiles *files,
            const EbbArchitecture *architecture,
            const char *name)
{
  static const char *const norms[][2] = { { ".LayerNorm.weight", ".LayerNorm.gamma" },
                                          { ".LayerNorm.bias", ".LayerNorm.beta" } };
  const EbbTensorEntry *entry = ebb_weight_files_find (files, name);

  if (entry == NULL && *architecture->prefix != '\0' && g_str_has_prefix (name, architecture->prefix))
    entry = ebb_weight_files_find (files, name + strlen (architecture->prefix));
  for (guint i = 0; entry == NULL && architecture->has_old_norm_names && i < G_N_ELEMENTS (norms); i++)
    if (g_str_has_suffix (name, norms[i][0]))
      {
        const int length = (int) (strlen (name) - strlen (norms[i][0]));
        g_autofree char *old = g_strdup_printf ("%.*s%s", length, name, norms[i][1]);

        entry = ebb_weight_files_find (files, old);
      }
  return entry;
}

/* A quant state has any length. */
static gboolean
has_shape (const EbbTensorEntry *entry,
           const EbbWeight *weight)
{
  return entry->n_dims == weight->n_dims
         && (weight->content == EBB_WEIGHT_QUANT_STATE
             || memcmp (entry->shape, weight->shape, weight->n_dims * sizeof weight->shape[0]) == 0);
}

static char *
describe_shape (const EbbTensorEntry *entry,
                const gint64 *shape,
                guint n_dims)
{
  g_autofree char *given = ebb_shape_to_string (entry->shape, entry->n_dims);
  g_autofree char *wanted = ebb_shape_to_string (shape, n_dims);

  return g_strdup_printf ("%.*s %s, not %s", MAX_SHOWN, entry->name, given, wanted);
}

static gboolean
fail (EbbWeightFiles *files,
      GString *text,
      GError **error)
{
  return ebb_fail (error, EBB_ERROR_STATE, "%s: the tensors do not fit %s:%s", ebb_show_text (files->folder),
                   files->config, ebb_show_text (text->str));
}

gboolean
ebb_weights_check_layers (EbbWeightFiles *files,
                          const EbbArchitecture *architecture,
                          gint64 layers,
                          GError **error)
{
  const gsize offset = architecture->is_bert ? offsetof (EbbBertConfig, layers) : offsetof (EbbGptConfig, layers);
  const gint64 n_tensors = g_hash_table_size (files->found);
  const EbbConfigKeyRow *row = architecture->keys;
  g_autoptr (GString) text = NULL;

  if (layers <= n_tensors)
    return TRUE;
  while (row->kind != EBB_CONFIG_KEY_SIZE || row->offset != offset)
    row++;
  text = g_string_new (NULL);
  g_string_printf (text, " %s is %" G_GINT64_FORMAT ", and there are %" G_GINT64_FORMAT " tensors", row->name, layers,
                   n_tensors);
  return fail (files, text, error);
}

static gboolean
is_ignored (const EbbWeightMap *map,
            const char *name)
{
  const EbbArchitecture *architecture = map->architecture;

  /* The factors of rotary positions belong to the configuration. */
  if (map->gguf != NULL)
    return g_str_has_prefix (name, "rope_f");
  for (const char *const *pattern = architecture->ignored; pattern != NULL && *pattern != NULL; pattern++)
    if (g_pattern_match_simple (*pattern, name))
      return TRUE;
  for (const EbbTiedName *tied = architecture->tied; tied->file != NULL; tied++)
    if (strcmp (name, tied->file) == 0)
      return TRUE;
  return FALSE;
}

static gboolean
check_dtype (EbbWeightFiles *files,
             const EbbWeightMap *map,
             const EbbWeight *weight,
             const EbbTensorEntry *entry,
             GError **error)
{
  const int exact = ebb_weight_get_exact_dtype (map, weight);
  const gboolean is_exact = exact >= 0;
  const EbbTensorEntry wanted = { .dtype = (EbbDType) MAX (exact, 0), .is_i8 = weight->is_i8 };
  g_autofree char *shown = NULL;
  g_autofree char *name = NULL;

  if (is_exact ? entry->dtype == wanted.dtype && entry->is_i8 == wanted.is_i8
               : ebb_dtype_is_floating_point (entry->dtype))
    return TRUE;
  shown = ebb_escape_text (ebb_weight_files_get_reader (files, entry)->path);
  name = ebb_escape_text (entry->name);
  return ebb_fail (error, EBB_ERROR_DTYPE, "%s: the tensor %s is %s: it must be %s", shown, name,
                   ebb_safetensors_entry_get_dtype_name (entry),
                   is_exact ? ebb_safetensors_entry_get_dtype_name (&wanted) : "F32, BF16 or F16");
}

static int
compare_names (gconstpointer a,
               gconstpointer b)
{
  return strcmp (*(const char *const *) a, *(const char *const *) b);
}

GPtrArray *
ebb_weights_match (EbbWeightFiles *files,
                   const EbbWeightMap *map,
                   GError **error)
{
  g_autoptr (GPtrArray) entries = g_ptr_array_new ();
  g_autoptr (GPtrArray) missing = g_ptr_array_new ();
  g_autoptr (GPtrArray) unexpected = g_ptr_array_new_with_free_func (g_free);
  g_autoptr (GPtrArray) reshaped = g_ptr_array_new_with_free_func (g_free);
  g_autoptr (GHashTable) used = g_hash_table_new (NULL, NULL);
  g_autoptr (GString) text = g_string_new (NULL);
  GHashTableIter iter;
  gpointer name, value;

  for (guint i = 0; i < map->weights->len; i++)
    {
      const EbbWeight *weight = &g_array_index (map->weights, EbbWeight, i);
      const EbbTensorEntry *entry = find_entry (files, map->architecture, weight->name);

      g_ptr_array_add (entries, (gpointer) entry);
      if (entry == NULL && weight->content == EBB_WEIGHT_FORMAT)
        continue;
      if (entry == NULL)
        g_ptr_array_add (missing, weight->name);
      else if (!has_shape (entry, weight))
        g_ptr_array_add (reshaped, describe_shape (entry, weight->shape, weight->n_dims));
      else if (!check_dtype (files, map, weight, entry, error))
        return NULL;
      g_hash_table_add (used, (gpointer) entry);
    }
  g_hash_table_iter_init (&iter, files->found);
  while (g_hash_table_iter_next (&iter, &name, &value))
    if (!g_hash_table_contains (used, value) && !is_ignored (map, name))
      g_ptr_array_add (unexpected, g_strndup (name, MAX_SHOWN));
  g_ptr_array_sort (unexpected, compare_names);
  ebb_state_append_names (text, "missing", missing);
  ebb_state_append_names (text, "unexpected", unexpected);
  ebb_state_append_names (text, "of another shape", reshaped);
  return text->len == 0 || fail (files, text, error) ? g_steal_pointer (&entries) : NULL;
}
