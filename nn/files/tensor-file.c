/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Reads parts of the tensors of an open file. */
#include "nn/files/tensor-file-private.h"

#include "nn/files/file-error-private.h"
#include "tensor/util/json-scanner-private.h"
#include "tensor/util/atomic-file-private.h"

#include <unistd.h>

const EbbTensorEntry *
ebb_tensor_file_find (EbbTensorFile *self,
                      const char *name)
{
  return g_hash_table_lookup (self->by_name, name);
}

gboolean
ebb_tensor_file_read (EbbTensorFile *self,
                      const EbbTensorEntry *entry,
                      gint64 begin,
                      gint64 end,
                      void *data,
                      GError **error)
{
  g_assert (begin >= 0 && begin <= end && end <= entry->end - entry->begin);
  return ebb_read_file_part (self->fd, self->path, self->data_offset + (guint64) (entry->begin + begin), data,
                             (gsize) (end - begin), error);
}

void
ebb_tensor_file_close (EbbTensorFile *self)
{
  g_clear_pointer (&self->by_name, g_hash_table_unref);
  g_clear_pointer (&self->metadata, ebb_args_unref);
  ebb_tensor_entries_free (self->entries, self->n_entries);
  if (self->fd >= 0)
    close (self->fd);
  g_free (self->path);
  g_free (self);
}

/* -- opening ------------------------------------------------------------------------------------------------------- */

void
ebb_tensor_file_take_entries (EbbTensorFile *self,
                              EbbTensorEntry *entries,
                              gsize n_entries)
{
  self->entries = entries;
  self->n_entries = n_entries;
  self->by_name = g_hash_table_new (g_str_hash, g_str_equal);
  for (gsize i = 0; i < n_entries; i++)
    g_hash_table_insert (self->by_name, entries[i].name, &entries[i]);
}

void
ebb_tensor_entries_free (EbbTensorEntry *entries,
                         gsize n_entries)
{
  for (gsize i = 0; i < n_entries; i++)
    g_free (entries[i].name);
  g_free (entries);
}

static int
compare_ranges (gconstpointer a,
                gconstpointer b)
{
  const EbbTensorEntry *x = *(const EbbTensorEntry *const *) a;
  const EbbTensorEntry *y = *(const EbbTensorEntry *const *) b;

  if (x->begin != y->begin)
    return x->begin < y->begin ? -1 : 1;
  return x->end < y->end ? -1 : x->end > y->end;
}

gboolean
ebb_tensor_entries_check_ranges (const char *path,
                                 const EbbTensorEntry *entries,
                                 gsize n_entries,
                                 guint64 data_size,
                                 gboolean has_gaps,
                                 GError **error)
{
  g_autofree const EbbTensorEntry **sorted = g_new (const EbbTensorEntry *, n_entries + 1);
  gint64 expected = 0;

  for (gsize i = 0; i < n_entries; i++)
    sorted[i] = &entries[i];
  qsort (sorted, n_entries, sizeof *sorted, compare_ranges);
  for (gsize i = 0; i < n_entries; i++)
    {
      g_autofree char *name = NULL;

      if (sorted[i]->begin == expected || (has_gaps && sorted[i]->begin > expected))
        {
          expected = sorted[i]->end;
          continue;
        }
      name = ebb_json_quote (sorted[i]->name);
      if (sorted[i]->begin < expected)
        return ebb_file_fail (path, error, "the data of tensors %s and %s overlap at byte %" G_GINT64_FORMAT,
                              ebb_in_message (ebb_json_quote (sorted[i - 1]->name)), name, sorted[i]->begin);
      return ebb_file_fail (path, error,
                            "bytes %" G_GINT64_FORMAT " to %" G_GINT64_FORMAT
                            " of the data, before tensor %s, belong to none",
                            expected, sorted[i]->begin, name);
    }
  if (!has_gaps && (guint64) expected != data_size)
    return ebb_file_fail (path, error, "the last %" G_GUINT64_FORMAT " bytes belong to no tensor",
                          data_size - (guint64) expected);
  return TRUE;
}
