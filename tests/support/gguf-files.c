/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/gguf-files.h"

#include <string.h>

EbbGguf *
test_gguf_open (const char *path)
{
  g_autoptr (GError) error = NULL;
  EbbGguf *gguf = ebb_gguf_open (path, &error);

  g_assert_no_error (error);
  return gguf;
}

void
test_gguf_assert_same_tensors (const char *a,
                               const char *b)
{
  g_autoptr (EbbGguf) x = test_gguf_open (a);
  g_autoptr (EbbGguf) y = test_gguf_open (b);
  g_autoptr (GError) error = NULL;

  g_assert_cmpuint (x->tensors->n_entries, ==, y->tensors->n_entries);
  for (gsize i = 0; i < x->tensors->n_entries; i++)
    {
      const EbbTensorEntry *entry = &x->tensors->entries[i];
      const EbbTensorEntry *other = ebb_tensor_file_find (y->tensors, entry->name);
      const gsize size = (gsize) (entry->end - entry->begin);
      g_autofree guint8 *data = g_malloc (size);
      g_autofree guint8 *other_data = g_malloc (size);

      g_assert_nonnull (other);
      g_assert_cmpint (entry->dtype, ==, other->dtype);
      g_assert_cmpint (entry->encoding, ==, other->encoding);
      g_assert_cmpmem (entry->shape, sizeof entry->shape, other->shape, sizeof other->shape);
      ebb_tensor_file_read (x->tensors, entry, 0, (gint64) size, data, &error);
      ebb_tensor_file_read (y->tensors, other, 0, (gint64) size, other_data, &error);
      g_assert_no_error (error);
      if (strcmp (entry->name, "rope_freqs.weight") != 0)
        g_assert_cmpmem (data, size, other_data, size);
      else
        for (gsize k = 0; k < size / 4; k++)
          g_assert_cmpfloat_with_epsilon (((float *) (gpointer) data)[k], ((float *) (gpointer) other_data)[k], 1e-5);
    }
}
