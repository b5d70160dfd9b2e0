/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "nn/models/folder/weights-private.h"

#include "nn/files/file-error-private.h"
#include "tensor/util/json-scanner-private.h"
#include "tensor/error-private.h"
#include "tensor/util/atomic-file-private.h"

#include <string.h>

/* The files of a folder's weights: one safetensors file, or several with an index that says which tensor is where. */

#define MAX_INDEX_SIZE ((gsize) 64 << 20)

static gboolean
is_there (EbbWeightFiles *self,
          const char *name)
{
  g_autofree char *path = g_build_filename (self->folder, name, NULL);

  return g_file_test (path, G_FILE_TEST_EXISTS);
}

static EbbTensorFile *
open_file (EbbWeightFiles *self,
           const char *name,
           GError **error)
{
  g_autofree char *path = g_build_filename (self->folder, name, NULL);
  EbbTensorFile *reader = ebb_safetensors_open (path, TRUE, error);

  if (reader != NULL)
    g_ptr_array_add (self->readers, reader);
  return reader;
}

static void
add_entry (EbbWeightFiles *self,
           EbbTensorFile *reader,
           EbbTensorEntry *entry)
{
  g_hash_table_insert (self->found, entry->name, entry);
  g_hash_table_insert (self->homes, entry, reader);
}

/* -- several files ------------------------------------------------------------------------------------------------- */

/* A file's name from the index: nothing outside the folder is read. */
static gboolean
check_name (EbbWeightFiles *self,
            const EbbJson *member,
            GError **error)
{
  const char *name = NULL;
  g_autofree char *tensor = NULL;
  g_autofree char *quoted = NULL;

  if (ebb_json_as_string (member, &name) && *name != '\0' && strpbrk (name, "/\\") == NULL && strcmp (name, ".") != 0
      && strcmp (name, "..") != 0)
    return TRUE;
  tensor = ebb_json_quote (member->key);
  quoted = name != NULL ? ebb_json_quote (name) : g_strdup ("not a string");
  return ebb_file_fail (self->folder, error,
                        EBB_WEIGHTS_INDEX ": the file of %s is %s: it must be the name of a file in the folder", tensor,
                        quoted);
}

static gboolean
take_entries (EbbWeightFiles *self,
              const EbbJson *map,
              GHashTable *by_file,
              GError **error)
{
  for (gsize i = 0; i < map->n_items; i++)
    {
      const EbbJson *member = &map->items[i];
      EbbTensorFile *reader = g_hash_table_lookup (by_file, member->text);
      EbbTensorEntry *entry = (EbbTensorEntry *) ebb_tensor_file_find (reader, member->key);
      g_autofree char *tensor = NULL;
      g_autofree char *file = NULL;

      if (entry != NULL)
        {
          add_entry (self, reader, entry);
          continue;
        }
      tensor = ebb_json_quote (member->key);
      file = ebb_json_quote (member->text);
      return ebb_file_fail (self->folder, error,
                            EBB_WEIGHTS_INDEX ": the tensor %s is not in %s, where the index has it", tensor, file);
    }
  return TRUE;
}

/* FALSE with an error if the file has a tensor that the index doesn't have, or has in another file. */
static gboolean
check_all_listed (EbbWeightFiles *self,
                  EbbTensorFile *reader,
                  GError **error)
{
  for (gsize i = 0; i < reader->n_entries; i++)
    {
      EbbTensorEntry *entry = &reader->entries[i];
      g_autofree char *tensor = NULL;
      g_autofree char *file = NULL;

      if (g_hash_table_lookup (self->found, entry->name) == entry)
        continue;
      tensor = ebb_json_quote (entry->name);
      file = g_path_get_basename (reader->path);
      return ebb_file_fail (self->folder, error, EBB_WEIGHTS_INDEX ": the index does not have %s in %s, which has it",
                            tensor, file);
    }
  return TRUE;
}

/* The index's "total_size" is not compared: transformers ignores it, and tools that cast or prune a folder leave the
 * old sum in it. The checks here miss nothing without it: each tensor is in the file that the index names, the index
 * has each tensor of the files, and each file has the bytes of its tensors. */
static gboolean
open_indexed (EbbWeightFiles *self,
              GError **error)
{
  g_autofree char *path = g_build_filename (self->folder, EBB_WEIGHTS_INDEX, NULL);
  g_autoptr (EbbJson) index = ebb_json_read_file (path, MAX_INDEX_SIZE, error);
  g_autoptr (GHashTable) by_file = g_hash_table_new (g_str_hash, g_str_equal);
  const EbbJson *map = ebb_json_get (index, "weight_map");

  if (index == NULL)
    return FALSE;
  if (map == NULL || map->kind != EBB_JSON_OBJECT || map->n_items == 0)
    return ebb_file_fail (self->folder, error,
                          EBB_WEIGHTS_INDEX ": weight_map must be an object with the file of each tensor");
  for (gsize i = 0; i < map->n_items; i++)
    {
      EbbTensorFile *reader;

      if (!check_name (self, &map->items[i], error))
        return FALSE;
      if (g_hash_table_contains (by_file, map->items[i].text))
        continue;
      reader = open_file (self, map->items[i].text, error);
      if (reader == NULL)
        return FALSE;
      g_hash_table_insert (by_file, map->items[i].text, reader);
    }
  if (!take_entries (self, map, by_file, error))
    return FALSE;
  for (guint i = 0; i < self->readers->len; i++)
    if (!check_all_listed (self, g_ptr_array_index (self->readers, i), error))
      return FALSE;
  return TRUE;
}

/* -- all ----------------------------------------------------------------------------------------------------------- */

/* Neither weights nor an index: perhaps there are weights that Ebb does not read. */
static gboolean
fail_without_weights (EbbWeightFiles *self,
                      GError **error)
{
  static const char *const endings[] = { ".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack", ".gguf", ".onnx", NULL };
  g_auto (GStrv) names = ebb_list_folder (self->folder, error);

  if (names == NULL)
    return FALSE;
  for (guint i = 0; names[i] != NULL; i++)
    for (guint j = 0; endings[j] != NULL; j++)
      if (g_str_has_suffix (names[i], endings[j]))
        return ebb_file_fail (self->folder, error,
                              "there is no " EBB_WEIGHTS_FILE
                              ", and %s is not read: convert the weights to safetensors, for "
                              "example by opening the folder in transformers and saving it with save_pretrained ()",
                              ebb_show_text (names[i]));
  return ebb_file_fail (self->folder, error, "there is neither " EBB_WEIGHTS_FILE " nor " EBB_WEIGHTS_INDEX);
}

static gboolean
open_files (EbbWeightFiles *self,
            GError **error)
{
  EbbTensorFile *reader;

  if (!is_there (self, EBB_WEIGHTS_FILE))
    return is_there (self, EBB_WEIGHTS_INDEX) ? open_indexed (self, error) : fail_without_weights (self, error);
  reader = open_file (self, EBB_WEIGHTS_FILE, error);
  for (gsize i = 0; reader != NULL && i < reader->n_entries; i++)
    add_entry (self, reader, &reader->entries[i]);
  return reader != NULL;
}

gboolean
ebb_weight_files_are_there (const char *folder)
{
  g_autofree char *one = g_build_filename (folder, EBB_WEIGHTS_FILE, NULL);
  g_autofree char *index = g_build_filename (folder, EBB_WEIGHTS_INDEX, NULL);

  return g_file_test (one, G_FILE_TEST_EXISTS) || g_file_test (index, G_FILE_TEST_EXISTS);
}

static EbbWeightFiles *
new_files (const char *path,
           const char *config)
{
  EbbWeightFiles *self = g_new0 (EbbWeightFiles, 1);

  self->folder = g_strdup (path);
  self->config = config;
  self->readers = g_ptr_array_new_with_free_func ((GDestroyNotify) ebb_tensor_file_close);
  self->found = g_hash_table_new (g_str_hash, g_str_equal);
  self->homes = g_hash_table_new (NULL, NULL);
  return self;
}

EbbWeightFiles *
ebb_weight_files_new_for_gguf (EbbTensorFile *file)
{
  EbbWeightFiles *self = new_files (file->path, "the file's values");

  for (gsize i = 0; i < file->n_entries; i++)
    add_entry (self, file, &file->entries[i]);
  return self;
}

EbbWeightFiles *
ebb_weight_files_open (const char *folder,
                       GError **error)
{
  g_autoptr (EbbWeightFiles) self = new_files (folder, "config.json");

  return open_files (self, error) ? g_steal_pointer (&self) : NULL;
}

const EbbTensorEntry *
ebb_weight_files_find (EbbWeightFiles *self,
                       const char *name)
{
  return g_hash_table_lookup (self->found, name);
}

EbbTensorFile *
ebb_weight_files_get_reader (EbbWeightFiles *self,
                             const EbbTensorEntry *entry)
{
  return g_hash_table_lookup (self->homes, entry);
}

void
ebb_weight_files_close (EbbWeightFiles *self)
{
  g_hash_table_unref (self->found);
  g_hash_table_unref (self->homes);
  g_ptr_array_unref (self->readers);
  g_free (self->folder);
  g_free (self);
}
