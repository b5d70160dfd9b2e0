/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "nn/files/safetensors.h"

#include "tensor/util/atomic-file-private.h"
#include "tensor/util/json-scanner-private.h"
#include "nn/files/safetensors-writer-private.h"
#include "tensor/autograd/autograd.h"
#include "tensor/error-private.h"
#include "tensor/ops/pointwise.h"
#include "tensor/ops/shape.h"

#include <string.h>

/* Loads and saves dictionaries of tensors as safetensors files. */

/* -- reading ------------------------------------------------------------------------------------------------------- */

static gboolean
check_booleans (const char *path,
                const EbbTensorEntry *entry,
                const guint8 *data,
                GError **error)
{
  for (gint64 i = 0; i < entry->end - entry->begin; i++)
    if (data[i] > 1)
      return ebb_fail (error, EBB_ERROR_FORMAT, "%s: tensor %s is BOOL and has the byte %u: it must be 0 or 1",
                       ebb_show_text (path), ebb_in_message (ebb_json_quote (entry->name)), data[i]);
  return TRUE;
}

static EbbTensor *
make_tensor (const char *path,
             GBytes *bytes,
             gsize data_offset,
             const EbbTensorEntry *entry,
             GError **error)
{
  const guint8 *data = (const guint8 *) g_bytes_get_data (bytes, NULL) + data_offset + entry->begin;
  EbbTensor *copy;

  if (entry->dtype == EBB_DTYPE_BOOL && !check_booleans (path, entry, data, error))
    return NULL;
  if ((gsize) data % ebb_dtype_get_size (entry->dtype) == 0)
    return ebb_tensor_new_from_bytes (bytes, data_offset + (gsize) entry->begin, entry->shape, entry->n_dims,
                                      entry->dtype, error);
  copy = ebb_tensor_new_empty (entry->shape, entry->n_dims, entry->dtype, ebb_device_get_cpu (), error);
  if (copy != NULL && entry->end > entry->begin)
    memcpy (ebb_tensor_get_data (copy, NULL), data, (gsize) (entry->end - entry->begin));
  return copy;
}

static gboolean
parse_file (const char *path,
            GBytes *bytes,
            EbbSafetensorsHeader *header,
            gsize *data_offset,
            GError **error)
{
  gsize size, length;
  const char *data = g_bytes_get_data (bytes, &size);

  if (!ebb_safetensors_read_length (path, data, size, &length, error))
    return FALSE;
  *data_offset = 8 + length;
  return ebb_safetensors_header_parse (header, path, data + 8, length, size - *data_offset, error);
}

/**
 * ebb_load_safetensors_full:
 * @path: (type filename): the file
 * @metadata: (out) (optional): return location for a dictionary of the strings in the file's `__metadata__`
 * @error: return location for an error
 *
 * Loads as ebb_load_safetensors() does, with the metadata.
 *
 * Returns: (transfer full) (nullable): a dictionary of tensors by name
 */
EbbArgs *
ebb_load_safetensors_full (const char *path,
                           EbbArgs **metadata,
                           GError **error)
{
  g_autoptr (GBytes) bytes = NULL;
  g_autoptr (EbbArgs) tensors = NULL;
  EbbSafetensorsHeader header = { .accepts_i8 = FALSE };
  gsize data_offset = 0;
  gboolean ok = TRUE;

  if (metadata != NULL)
    *metadata = NULL;
  EBB_RETURN_UNLESS_BEGUN (NULL, error, path);

  bytes = ebb_map_file (path, error);
  if (bytes == NULL || !parse_file (path, bytes, &header, &data_offset, error))
    return NULL;
  tensors = ebb_args_new (EBB_ARGS_DICT);
  for (gsize i = 0; ok && i < header.n_entries; i++)
    {
      g_autoptr (EbbTensor) tensor = make_tensor (path, bytes, data_offset, &header.entries[i], error);

      ok = tensor != NULL;
      if (ok)
        ebb_args_add_tensor (tensors, header.entries[i].name, tensor);
    }
  if (ok && metadata != NULL)
    *metadata = g_steal_pointer (&header.metadata);
  ebb_safetensors_header_clear (&header);
  return ok ? g_steal_pointer (&tensors) : NULL;
}

/**
 * ebb_load_safetensors:
 * @path: (type filename): the file
 * @error: return location for an error
 *
 * Loads the tensors of a safetensors file, on the CPU, in the order of its header. The file is mapped, not read:
 * tensors share the mapping, privately, so that changing them does not change the file; those whose data is not aligned
 * to its type are copied. The file must not be cut while they are in use: a process that reads what is gone of a
 * mapped file is ended by a signal. Files that are replaced by renaming, as ebb_save_safetensors() does, are safe. The
 * dtypes F32, BF16, F16, I32, I64, U8 and BOOL are supported.
 *
 * Returns: (transfer full) (nullable): a dictionary of tensors by name; %NULL with %EBB_ERROR_IO if the file can't be
 *   read, %EBB_ERROR_FORMAT if anything in it is wrong, %EBB_ERROR_DTYPE if a tensor has another dtype
 */
EbbArgs *
ebb_load_safetensors (const char *path,
                      GError **error)
{
  return ebb_load_safetensors_full (path, NULL, error);
}

/* -- writing ------------------------------------------------------------------------------------------------------- */

static gboolean
check_tensors (const char *path,
               EbbArgs *tensors,
               GError **error)
{
  g_autoptr (GHashTable) names = g_hash_table_new (g_str_hash, g_str_equal);

  for (guint i = 0; i < ebb_args_get_length (tensors); i++)
    {
      const char *name = ebb_args_get_key (tensors, i);
      const char *problem = NULL;

      if (name == NULL)
        problem = "has no name";
      else if (ebb_args_get_value_kind (tensors, i) != EBB_VALUE_TENSOR)
        problem = "is not a tensor";
      else if (strcmp (name, "__metadata__") == 0)
        problem = "has a name that the format keeps for itself";
      else if (!g_utf8_validate (name, -1, NULL))
        problem = "has a name that is not UTF-8";
      else if (!g_hash_table_add (names, (gpointer) name))
        problem = "has the name of another";
      if (problem != NULL)
        return ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT, "can't write %s: value %u, %s, %s", path, i,
                         ebb_in_message (ebb_json_quote (name ? name : "")), problem);
    }
  return TRUE;
}

static gboolean
append_metadata (GString *json,
                 const char *path,
                 EbbArgs *metadata,
                 GError **error)
{
  guint n = metadata ? ebb_args_get_length (metadata) : 0;

  if (n == 0)
    return TRUE;
  g_string_append (json, "\"__metadata__\":{");
  for (guint i = 0; i < n; i++)
    {
      const char *key = ebb_args_get_key (metadata, i);
      const char *value =
          ebb_args_get_value_kind (metadata, i) == EBB_VALUE_STRING ? ebb_args_get_string (metadata, i) : NULL;

      if (key == NULL || value == NULL || !g_utf8_validate (key, -1, NULL) || !g_utf8_validate (value, -1, NULL)
          || ebb_args_find (metadata, key) != (int) i)
        return ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT,
                         "can't write %s: entry %u of the metadata is not a string in UTF-8 with a name of its own",
                         path, i);
      if (i > 0)
        g_string_append_c (json, ',');
      ebb_json_append_string (json, key);
      g_string_append_c (json, ':');
      ebb_json_append_string (json, value);
    }
  g_string_append_c (json, '}');
  return TRUE;
}

static void
append_entry (GString *json,
              const EbbTensorEntry *entry)
{
  if (json->len > 1)
    g_string_append_c (json, ',');
  ebb_json_append_string (json, entry->name);
  g_string_append_printf (json, ":{\"dtype\":\"%s\",\"shape\":[", ebb_safetensors_entry_get_dtype_name (entry));
  for (guint i = 0; i < entry->n_dims; i++)
    g_string_append_printf (json, "%s%" G_GINT64_FORMAT, i ? "," : "", entry->shape[i]);
  g_string_append_printf (json, "],\"data_offsets\":[%" G_GINT64_FORMAT ",%" G_GINT64_FORMAT "]}", entry->begin,
                          entry->end);
}

/* The file's order: wide types first, so that each tensor is aligned to its type though there may be no gaps; else as
 * given. */
static guint *
order_tensors (EbbArgs *tensors)
{
  guint n = ebb_args_get_length (tensors), filled = 0;
  guint *order = g_new (guint, n + 1);

  for (gsize size = 8; size > 0; size /= 2)
    for (guint i = 0; i < n; i++)
      {
        g_autoptr (EbbTensor) tensor = ebb_args_get_tensor (tensors, i);

        if (ebb_dtype_get_size (ebb_tensor_get_dtype (tensor)) == size)
          order[filled++] = i;
      }
  return order;
}

GString *
ebb_safetensors_make_header (const char *path,
                             const EbbTensorEntry *entries,
                             gsize n_entries,
                             EbbArgs *metadata,
                             GError **error)
{
  g_autoptr (GString) json = g_string_new ("{");

  if (!append_metadata (json, path, metadata, error))
    return NULL;
  for (gsize i = 0; i < n_entries; i++)
    append_entry (json, &entries[i]);
  g_string_append_c (json, '}');
  /* The format asks for 8; a cache line suits readers that map the file. */
  while ((json->len + 8) % 64 != 0)
    g_string_append_c (json, ' ');
  if (json->len > EBB_SAFETENSORS_MAX_HEADER)
    return ebb_fail_null (error, EBB_ERROR_INVALID_ARGUMENT,
                          "can't write %s: its header would have %" G_GSIZE_FORMAT " bytes, more than %d", path,
                          json->len, EBB_SAFETENSORS_MAX_HEADER);
  return g_steal_pointer (&json);
}

static GString *
make_header (const char *path,
             EbbArgs *tensors,
             EbbArgs *metadata,
             const guint *order,
             GError **error)
{
  const guint n = ebb_args_get_length (tensors);
  g_autofree EbbTensorEntry *entries = g_new0 (EbbTensorEntry, n + 1);
  gint64 position = 0;

  for (guint i = 0; i < n; i++)
    {
      g_autoptr (EbbTensor) tensor = ebb_args_get_tensor (tensors, order[i]);
      EbbTensorEntry *entry = &entries[i];
      const gint64 *shape = ebb_tensor_get_shape (tensor, &entry->n_dims);

      entry->name = (char *) ebb_args_get_key (tensors, order[i]);
      entry->dtype = ebb_tensor_get_dtype (tensor);
      memcpy (entry->shape, shape, entry->n_dims * sizeof shape[0]);
      entry->begin = position;
      entry->end = position += (gint64) ebb_tensor_get_n_bytes (tensor);
    }
  return ebb_safetensors_make_header (path, entries, n, metadata, error);
}

gboolean
ebb_safetensors_write_header (EbbAtomicFile *file,
                              GString *header,
                              GError **error)
{
  guint64 length = GUINT64_TO_LE ((guint64) header->len);

  return ebb_atomic_file_write (file, &length, 8, error)
         && ebb_atomic_file_write (file, header->str, header->len, error);
}

gboolean
ebb_safetensors_write_tensor (EbbAtomicFile *file,
                              EbbTensor *tensor,
                              GError **error)
{
  g_autoptr (EbbTensor) contiguous = ebb_contiguous (tensor, error);
  g_autoptr (EbbTensor) host = ebb_to_device (contiguous, ebb_device_get_cpu (), error);
  const void *data;

  if (host == NULL)
    return FALSE;
  if (ebb_tensor_get_n_bytes (host) == 0)
    return TRUE;
  data = ebb_tensor_get_data (host, error);
  return data != NULL && ebb_atomic_file_write (file, data, ebb_tensor_get_n_bytes (host), error);
}

static gboolean
write_all (EbbAtomicFile *file,
           EbbArgs *tensors,
           const guint *order,
           GString *header,
           GError **error)
{
  gboolean ok = ebb_safetensors_write_header (file, header, error);

  for (guint i = 0; ok && i < ebb_args_get_length (tensors); i++)
    {
      g_autoptr (EbbTensor) tensor = ebb_args_get_tensor (tensors, order[i]);

      ok = ebb_safetensors_write_tensor (file, tensor, error);
    }
  return ok;
}

/**
 * ebb_save_safetensors:
 * @path: (type filename): the file
 * @tensors: a dictionary of tensors by name, on any device
 * @metadata: (nullable): a dictionary of strings
 * @error: return location for an error
 *
 * Writes tensors to a safetensors file. The file appears as a whole, by renaming, after all of it has reached the disk:
 * on an error, or if the machine stops in the middle, what was at @path before is still there and nothing else. Tensors
 * that were loaded from @path may be among @tensors.
 *
 * Returns: %FALSE with %EBB_ERROR_IO if it can't be written, %EBB_ERROR_INVALID_ARGUMENT if @tensors or @metadata hold
 *   anything else
 */
gboolean
ebb_save_safetensors (const char *path,
                      EbbArgs *tensors,
                      EbbArgs *metadata,
                      GError **error)
{
  g_autofree guint *order = NULL;
  g_autoptr (GString) header = NULL;
  EbbAtomicFile file;
  gboolean ok;

  EBB_RETURN_UNLESS_BEGUN (FALSE, error, path, tensors);
  if (!check_tensors (path, tensors, error))
    return FALSE;
  order = order_tensors (tensors);
  header = make_header (path, tensors, metadata, order, error);
  if (header == NULL || !ebb_atomic_file_open (&file, path, error))
    return FALSE;

  ebb_push_grad_enabled (FALSE);
  ok = write_all (&file, tensors, order, header, error);
  ebb_pop_grad_enabled ();
  if (!ok)
    {
      ebb_atomic_file_abort (&file);
      return FALSE;
    }
  return ebb_atomic_file_commit (&file, error);
}
