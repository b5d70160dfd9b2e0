/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "nn/files/safetensors-reader-private.h"

#include "tensor/util/atomic-file-private.h"

#include <unistd.h>

static gboolean
read_header (EbbSafetensorsReader *self,
             gsize size,
             GError **error)
{
  guint8 first[8] = { 0 };
  gsize length;
  g_autofree char *text = NULL;
  gboolean ok;

  if (size >= 8 && !ebb_read_file_part (self->fd, self->path, 0, first, 8, error))
    return FALSE;
  if (!ebb_safetensors_read_length (self->path, first, size, &length, error))
    return FALSE;
  text = g_try_malloc (length + 1);
  if (text == NULL)
    {
      g_set_error (error, EBB_ERROR, EBB_ERROR_NO_MEMORY, "%s: no memory for a header of %" G_GSIZE_FORMAT " bytes",
                   self->path, length);
      return FALSE;
    }
  self->data_offset = 8 + length;
  ok = ebb_read_file_part (self->fd, self->path, 8, text, length, error)
       && ebb_safetensors_header_parse (&self->header, self->path, text, length, size - self->data_offset, error);
  if (!ok)
    return FALSE;
  self->by_name = g_hash_table_new (g_str_hash, g_str_equal);
  for (gsize i = 0; i < self->header.n_entries; i++)
    g_hash_table_insert (self->by_name, self->header.entries[i].name, &self->header.entries[i]);
  return TRUE;
}

EbbSafetensorsReader *
ebb_safetensors_reader_open (const char *path,
                             GError **error)
{
  g_autoptr (EbbSafetensorsReader) self = g_new0 (EbbSafetensorsReader, 1);
  gsize size = 0;

  self->path = g_strdup (path);
  self->fd = ebb_open_regular_file (path, &size, error);
  if (self->fd < 0 || !read_header (self, size, error))
    return NULL;
  return g_steal_pointer (&self);
}

void
ebb_safetensors_reader_close (EbbSafetensorsReader *self)
{
  if (self->by_name != NULL)
    {
      g_hash_table_unref (self->by_name);
      ebb_safetensors_header_clear (&self->header);
    }
  if (self->fd >= 0)
    close (self->fd);
  g_free (self->path);
  g_free (self);
}

const EbbSafetensorsEntry *
ebb_safetensors_reader_find (EbbSafetensorsReader *self,
                             const char *name)
{
  return g_hash_table_lookup (self->by_name, name);
}

gboolean
ebb_safetensors_reader_read (EbbSafetensorsReader *self,
                             const EbbSafetensorsEntry *entry,
                             gint64 begin,
                             gint64 end,
                             void *data,
                             GError **error)
{
  g_assert (begin >= 0 && begin <= end && end <= entry->end - entry->begin);
  return ebb_read_file_part (self->fd, self->path, self->data_offset + (guint64) (entry->begin + begin), data,
                             (gsize) (end - begin), error);
}
