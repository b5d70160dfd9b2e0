/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "wrap/shard/state/save-private.h"

#include "nn/files/json-scanner-private.h"
#include "nn/files/state-folder-private.h"
#include "tensor/util/atomic-file-private.h"
#include "tensor/tensor-private.h"
#include "wrap/shard/state/file-private.h"

#include <string.h>

/* As many files as are open at once: a state of many ranks has more of them than a process may open. */
#define MAX_OPEN_FILES 64

char *
ebb_shard_source_read_index (const char *folder,
                             GError **error)
{
  g_autofree char *path = g_build_filename (folder, EBB_SHARD_INDEX_FILE, NULL);
  gsize size;
  g_autofree char *text = ebb_read_file (path, EBB_SHARD_INDEX_MAX_SIZE, &size, error);
  g_autofree char *shown = NULL;

  if (text == NULL || strlen (text) == size)
    return g_steal_pointer (&text);
  shown = ebb_escape_text (path);
  g_set_error (error, EBB_ERROR, EBB_ERROR_FORMAT, "%s: it has a zero byte", shown);
  return NULL;
}

static void
close_file (gpointer data)
{
  ebb_safetensors_reader_close (data);
}

EbbShardSource *
ebb_shard_source_new (const char *folder,
                      const char *text,
                      GError **error)
{
  g_autofree char *what = g_build_filename (folder, EBB_SHARD_INDEX_FILE, NULL);
  g_autoptr (EbbShardIndex) index = ebb_shard_index_parse (text, what, error);
  EbbShardSource *self;

  if (index == NULL || !ebb_shard_index_check (index, what, error))
    return NULL;
  self = g_new0 (EbbShardSource, 1);
  self->folder = g_strdup (folder);
  self->shown = ebb_escape_text (folder);
  self->index = g_steal_pointer (&index);
  self->files = g_hash_table_new_full (g_str_hash, g_str_equal, g_free, close_file);
  return self;
}

void
ebb_shard_source_free (EbbShardSource *self)
{
  g_hash_table_unref (self->files);
  ebb_shard_index_free (self->index);
  g_free (self->folder);
  g_free (self->shown);
  g_free (self);
}

static char *
make_path (EbbShardSource *self,
           EbbShardFile kind,
           guint rank)
{
  g_autofree char *name = ebb_shard_file_make_name (kind, self->index->save, rank, self->index->n_ranks);

  return g_build_filename (self->folder, name, NULL);
}

static EbbSafetensorsReader *
open_file (EbbShardSource *self,
           EbbShardFile kind,
           guint rank,
           GError **error)
{
  g_autofree char *path = make_path (self, kind, rank);
  EbbSafetensorsReader *file = g_hash_table_lookup (self->files, path);

  if (file != NULL)
    return file;
  if (!self->index->has_files[kind] || rank >= self->index->n_ranks)
    {
      g_autofree char *name = ebb_shard_file_make_name (kind, self->index->save, rank, self->index->n_ranks);

      g_set_error (error, EBB_ERROR, EBB_ERROR_FORMAT, "%s: the index does not name the file %s", self->shown, name);
      return NULL;
    }
  if (g_hash_table_size (self->files) >= MAX_OPEN_FILES)
    g_hash_table_remove_all (self->files);
  file = ebb_safetensors_reader_open (path, error);
  if (file != NULL)
    g_hash_table_insert (self->files, g_steal_pointer (&path), file);
  return file;
}

/* As many elements at a time as have one checksum: of each only what is wanted is copied, and what has nothing of it is
 * not read. */
static gboolean
read_scattered (EbbSafetensorsReader *file,
                const EbbSafetensorsEntry *entry,
                const EbbSavedRange *part,
                const EbbShardCut *part_cut,
                const EbbShardCut *cut,
                gint64 begin,
                gint64 end,
                void *data,
                GError **error)
{
  const gsize element = ebb_dtype_get_size (entry->dtype);
  const gint64 n = EBB_SHARD_FILE_BLOCK / (gint64) element;
  g_autofree void *scratch = data != NULL ? g_malloc ((gsize) MIN (n, part->end - part->begin) * element) : NULL;

  for (gint64 at = part->begin; at < part->end; at += n)
    {
      const gint64 next = MIN (at + n, part->end);

      if (ebb_shard_cut_copy (part_cut, at, next, NULL, cut, begin, end, NULL, element) == 0)
        continue;
      if (!ebb_shard_file_read (file, entry, at - part->begin, next - part->begin, scratch, error))
        return FALSE;
      if (data != NULL)
        ebb_shard_cut_copy (part_cut, at, next, scratch, cut, begin, end, data, element);
    }
  return TRUE;
}

/* The same cut: what is wanted of a part is one range. */
static gboolean
read_range (EbbSafetensorsReader *file,
            const EbbSafetensorsEntry *entry,
            const EbbSavedRange *part,
            gint64 begin,
            gint64 end,
            void *data,
            GError **error)
{
  gint64 first = MAX (begin, part->begin), last = MIN (end, part->end);
  gsize offset = (gsize) (first - begin) * ebb_dtype_get_size (entry->dtype);

  return ebb_shard_file_read (file, entry, first - part->begin, last - part->begin,
                              data != NULL ? (char *) data + offset : NULL, error);
}

gboolean
ebb_shard_source_read (EbbShardSource *self,
                       EbbShardFile table,
                       const EbbShardRecord *record,
                       const EbbShardCut *cut,
                       gint64 begin,
                       gint64 end,
                       void *data,
                       GError **error)
{
  for (guint i = 0; i < record->parts->len; i++)
    {
      const EbbSavedRange *part = &g_array_index (record->parts, EbbSavedRange, i);
      EbbSafetensorsReader *file;
      const EbbSafetensorsEntry *entry;
      gboolean is_same, ok;
      EbbShardCut part_cut;

      ebb_shard_record_get_cut (record, part->index, &part_cut);
      is_same = memcmp (&part_cut, cut, sizeof part_cut) == 0;
      if (is_same ? MAX (begin, part->begin) >= MIN (end, part->end)
                  : ebb_shard_cut_copy (&part_cut, part->begin, part->end, NULL, cut, begin, end, NULL, 1) == 0)
        continue;
      file = open_file (self, table, part->rank, error);
      entry = file != NULL
                  ? ebb_shard_file_find (file, record->stored_as, record->dtype, part->end - part->begin, error)
                  : NULL;
      if (entry == NULL)
        return FALSE;
      ok = is_same ? read_range (file, entry, part, begin, end, data, error)
                   : read_scattered (file, entry, part, &part_cut, cut, begin, end, data, error);
      if (!ok)
        return FALSE;
    }
  return TRUE;
}

EbbTensor *
ebb_shard_source_read_of_rank (EbbShardSource *self,
                               EbbShardFile table,
                               const EbbShardRecord *record,
                               guint rank,
                               GError **error)
{
  for (guint i = 0; i < record->parts->len; i++)
    {
      const EbbSavedRange *part = &g_array_index (record->parts, EbbSavedRange, i);
      EbbSafetensorsReader *file;
      const EbbSafetensorsEntry *entry;
      g_autoptr (EbbTensor) tensor = NULL;

      if (part->rank != rank)
        continue;
      file = open_file (self, table, rank, error);
      entry = file != NULL ? ebb_shard_file_find (file, record->stored_as, -1, part->end, error) : NULL;
      tensor = entry != NULL ? ebb_tensor_new_empty (entry->shape, entry->n_dims, entry->dtype, ebb_device_get_cpu (),
                                                     error)
                             : NULL;
      if (tensor == NULL || !ebb_shard_file_read (file, entry, 0, part->end, ebb_tensor_get_data (tensor, NULL), error))
        return NULL;
      return g_steal_pointer (&tensor);
    }
  return NULL;
}

EbbArgs *
ebb_shard_source_read_tree (EbbShardSource *self,
                            guint rank,
                            GError **error)
{
  g_autofree char *path = make_path (self, EBB_SHARD_FILE_STATE, rank);

  return ebb_state_file_read (path, error);
}
