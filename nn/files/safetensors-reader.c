/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "nn/files/safetensors-reader-private.h"

#include "nn/files/file-error-private.h"
#include "tensor/util/json-scanner-private.h"
#include "tensor/error-private.h"
#include "tensor/util/atomic-file-private.h"

#include <string.h>

/* Reads the header of a safetensors file, checks it, and reads ranges of the tensors behind it. */

static const char *const dtype_names[EBB_N_DTYPES] = { "F32", "BF16", "F16", "I32", "I64", "U8", "BOOL" };
/* Dtypes that the format has and Ebb doesn't. */
static const char *const other_dtype_names[] = { "F64", "F8_E5M2", "F8_E4M3", "F8_E8M0",
                                                 "F8_E5M2FNUZ", "F8_E4M3FNUZ", "F6_E2M3", "F6_E3M2",
                                                 "F4", "I8", "I16", "U16",
                                                 "U32", "U64", "C64", NULL };

#define SUPPORTED_DTYPES "F32, BF16, F16, I32, I64, U8 and BOOL"

typedef struct
{
  EbbJsonScanner scanner;
  const char *path;
  EbbSafetensorsHeader *header;
  gsize n_allocated;
  GHashTable *names;
} Parser;

const char *
ebb_safetensors_get_dtype_name (EbbDType dtype)
{
  return dtype_names[dtype];
}

const char *
ebb_safetensors_entry_get_dtype_name (const EbbTensorEntry *entry)
{
  return entry->is_i8 ? "I8" : dtype_names[entry->dtype];
}

void
ebb_safetensors_header_clear (EbbSafetensorsHeader *self)
{
  ebb_tensor_entries_free (self->entries, self->n_entries);
  self->entries = NULL;
  g_clear_pointer (&self->metadata, ebb_args_unref);
  self->n_entries = 0;
}

/* -- one tensor's description -------------------------------------------------------------------------------------- */

static gboolean
read_dtype (Parser *parser,
            EbbTensorEntry *entry,
            GError **error)
{
  g_autofree char *name = ebb_json_scanner_read_string (&parser->scanner, error);
  g_autofree char *tensor = ebb_json_quote (entry->name);

  if (name == NULL)
    return FALSE;
  for (guint i = 0; i < EBB_N_DTYPES; i++)
    if (strcmp (name, dtype_names[i]) == 0)
      {
        entry->dtype = (EbbDType) i;
        return TRUE;
      }
  entry->is_i8 = parser->header->accepts_i8 && strcmp (name, "I8") == 0;
  if (entry->is_i8)
    {
      entry->dtype = EBB_DTYPE_U8;
      return TRUE;
    }
  if (g_strv_contains (other_dtype_names, name))
    return ebb_fail (error, EBB_ERROR_DTYPE,
                     "%s: tensor %s has the dtype %s, which is not supported: it must be one of " SUPPORTED_DTYPES,
                     ebb_show_text (parser->path), tensor, name);
  return ebb_file_fail (parser->path, error,
                        "tensor %s has the dtype %s, which is unknown: it must be one of " SUPPORTED_DTYPES, tensor,
                        ebb_in_message (ebb_json_quote (name)));
}

static gboolean
read_shape (Parser *parser,
            EbbTensorEntry *entry,
            GError **error)
{
  EbbJsonScanner *scanner = &parser->scanner;
  gboolean more;

  if (!ebb_json_scanner_expect (scanner, '[', error))
    return FALSE;
  while (ebb_json_scanner_next (scanner, entry->n_dims == 0, ']', &more, error))
    {
      if (!more)
        return TRUE;
      if (entry->n_dims == EBB_MAX_DIMS)
        {
          return ebb_file_fail (parser->path, error, "tensor %s has more than %d dimensions",
                                ebb_in_message (ebb_json_quote (entry->name)), EBB_MAX_DIMS);
        }
      if (!ebb_json_scanner_read_uint (scanner, &entry->shape[entry->n_dims++], error))
        return FALSE;
    }
  return FALSE;
}

static gboolean
read_offsets (Parser *parser,
              EbbTensorEntry *entry,
              GError **error)
{
  EbbJsonScanner *scanner = &parser->scanner;

  return ebb_json_scanner_expect (scanner, '[', error) && ebb_json_scanner_read_uint (scanner, &entry->begin, error)
         && ebb_json_scanner_expect (scanner, ',', error) && ebb_json_scanner_read_uint (scanner, &entry->end, error)
         && ebb_json_scanner_expect (scanner, ']', error);
}

/* Shape, type and range of one tensor must agree. */
static gboolean
check_size (Parser *parser,
            const EbbTensorEntry *entry,
            guint64 data_size,
            GError **error)
{
  g_autofree char *tensor = NULL;
  gint64 n_bytes = (gint64) ebb_dtype_get_size (entry->dtype);
  gboolean ok = TRUE, empty = FALSE;

  for (guint i = 0; i < entry->n_dims; i++)
    empty = empty || entry->shape[i] == 0;
  for (guint i = 0; i < entry->n_dims && !empty; i++)
    ok = ok && !__builtin_mul_overflow (n_bytes, entry->shape[i], &n_bytes);
  if (empty)
    n_bytes = 0;

  if (ok && entry->begin <= entry->end && (guint64) entry->end <= data_size && entry->end - entry->begin == n_bytes)
    return TRUE;
  tensor = ebb_json_quote (entry->name);
  if (!ok)
    return ebb_file_fail (parser->path, error, "tensor %s has a shape with more bytes than can be counted", tensor);
  if (entry->begin > entry->end)
    return ebb_file_fail (parser->path, error,
                          "tensor %s begins at %" G_GINT64_FORMAT " and ends before, at %" G_GINT64_FORMAT, tensor,
                          entry->begin, entry->end);
  if ((guint64) entry->end > data_size)
    return ebb_file_fail (parser->path, error,
                          "truncated: tensor %s ends at %" G_GINT64_FORMAT ", but there are %" G_GUINT64_FORMAT
                          " bytes of data",
                          tensor, entry->end, data_size);
  return ebb_file_fail (parser->path, error,
                        "tensor %s has %" G_GINT64_FORMAT
                        " bytes of data, but its shape and dtype ask for %" G_GINT64_FORMAT,
                        tensor, entry->end - entry->begin, n_bytes);
}

static gboolean
read_entry (Parser *parser,
            EbbTensorEntry *entry,
            guint64 data_size,
            GError **error)
{
  EbbJsonScanner *scanner = &parser->scanner;
  guint seen = 0;
  gboolean more;

  if (!ebb_json_scanner_expect (scanner, '{', error))
    return FALSE;
  while (ebb_json_scanner_next (scanner, seen == 0, '}', &more, error))
    {
      static const char *const keys[] = { "dtype", "shape", "data_offsets" };
      static gboolean (*const readers[]) (Parser *, EbbTensorEntry *, GError **) = { read_dtype, read_shape,
                                                                                     read_offsets };
      g_autofree char *key = NULL;
      g_autofree char *tensor = NULL;
      guint which = 0;

      if (!more && seen == 7)
        return check_size (parser, entry, data_size, error);
      tensor = ebb_json_quote (entry->name);
      if (!more)
        return ebb_file_fail (parser->path, error, "tensor %s has no %s", tensor,
                              seen & 1 ? seen & 2 ? "data_offsets" : "shape" : "dtype");
      key = ebb_json_scanner_read_key (scanner, error);
      if (key == NULL)
        return FALSE;
      while (which < 3 && strcmp (key, keys[which]) != 0)
        which++;
      if (which == 3 || (seen & (1u << which)))
        return ebb_file_fail (parser->path, error, "tensor %s has %s key %s", tensor,
                              which == 3 ? "the unknown" : "twice the", ebb_in_message (ebb_json_quote (key)));
      seen |= 1u << which;
      if (!readers[which](parser, entry, error))
        return FALSE;
    }
  return FALSE;
}

/* -- the whole ----------------------------------------------------------------------------------------------------- */

static gboolean
read_metadata (Parser *parser,
               GError **error)
{
  EbbJsonScanner *scanner = &parser->scanner;
  g_autoptr (GHashTable) keys = g_hash_table_new_full (g_str_hash, g_str_equal, g_free, NULL);
  gboolean more, first = TRUE;

  if (!ebb_json_scanner_try (scanner, '{'))
    return ebb_file_fail (parser->path, error, "__metadata__ is not an object of strings");
  for (; ebb_json_scanner_next (scanner, first, '}', &more, error); first = FALSE)
    {
      g_autofree char *key = NULL;
      g_autofree char *value = NULL;

      if (!more)
        return TRUE;
      key = ebb_json_scanner_read_key (scanner, error);
      if (key == NULL)
        return FALSE;
      if (g_hash_table_contains (keys, key))
        return ebb_file_fail (parser->path, error, "__metadata__ has %s twice", ebb_in_message (ebb_json_quote (key)));
      if (!ebb_json_scanner_try (scanner, '"'))
        return ebb_file_fail (parser->path, error, "__metadata__ has %s, which is not a string",
                              ebb_in_message (ebb_json_quote (key)));
      scanner->position--;
      value = ebb_json_scanner_read_string (scanner, error);
      if (value == NULL)
        return FALSE;
      ebb_args_add_string (parser->header->metadata, key, value);
      g_hash_table_add (keys, g_steal_pointer (&key));
    }
  return FALSE;
}

static EbbTensorEntry *
append_entry (Parser *parser,
              char *name)
{
  EbbSafetensorsHeader *header = parser->header;

  if (header->n_entries == parser->n_allocated)
    {
      parser->n_allocated = MAX (64, parser->n_allocated * 2);
      header->entries = g_renew (EbbTensorEntry, header->entries, parser->n_allocated);
    }
  header->entries[header->n_entries] = (EbbTensorEntry){ .name = name };
  return &header->entries[header->n_entries++];
}

static gboolean
read_members (Parser *parser,
              guint64 data_size,
              GError **error)
{
  EbbJsonScanner *scanner = &parser->scanner;
  gboolean more, first = TRUE;

  if (!ebb_json_scanner_expect (scanner, '{', error))
    return FALSE;
  for (; ebb_json_scanner_next (scanner, first, '}', &more, error); first = FALSE)
    {
      g_autofree char *name = NULL;
      gboolean is_metadata;

      if (!more)
        return ebb_json_scanner_expect_end (scanner, error);
      name = ebb_json_scanner_read_key (scanner, error);
      if (name == NULL)
        return FALSE;
      if (g_hash_table_contains (parser->names, name))
        return ebb_file_fail (parser->path, error, "the name %s is there twice",
                              ebb_in_message (ebb_json_quote (name)));
      is_metadata = strcmp (name, "__metadata__") == 0;
      g_hash_table_add (parser->names, g_strdup (name));
      if (is_metadata ? !read_metadata (parser, error)
                      : !read_entry (parser, append_entry (parser, g_steal_pointer (&name)), data_size, error))
        return FALSE;
    }
  return FALSE;
}

gboolean
ebb_safetensors_read_length (const char *path,
                             const void *data,
                             gsize size,
                             gsize *length,
                             GError **error)
{
  guint64 value;

  if (size < 8)
    return ebb_file_fail (
        path, error, "%" G_GSIZE_FORMAT " bytes: a safetensors file begins with the 8 bytes of its header's length",
        size);
  memcpy (&value, data, 8);
  value = GUINT64_FROM_LE (value);
  /* Files of torch.save () are ZIP archives, "PK\003\004", or pickles of protocol 2. */
  if (value > EBB_SAFETENSORS_MAX_HEADER && ((value & G_MAXUINT32) == 0x04034b50 || (value & 0xffff) == 0x0280))
    return ebb_file_fail (path, error,
                          "a file of torch.save (), not of safetensors: write it in PyTorch by "
                          "safetensors.torch.save_file ()");
  if (value > EBB_SAFETENSORS_MAX_HEADER)
    return ebb_file_fail (path, error,
                          "not a safetensors file, or a header of %" G_GUINT64_FORMAT " bytes: it must have %d at most",
                          value, EBB_SAFETENSORS_MAX_HEADER);
  if (value > size - 8)
    return ebb_file_fail (path, error,
                          "truncated: the header has %" G_GUINT64_FORMAT " bytes, but the file only %" G_GSIZE_FORMAT,
                          value, size);
  *length = (gsize) value;
  return TRUE;
}

gboolean
ebb_safetensors_header_parse (EbbSafetensorsHeader *self,
                              const char *path,
                              const char *text,
                              gsize length,
                              guint64 data_size,
                              GError **error)
{
  Parser parser = { .path = path, .header = self };
  g_autofree char *what = g_strdup_printf ("%s: header", path);
  gboolean ok;

  *self = (EbbSafetensorsHeader){ .metadata = ebb_args_new (EBB_ARGS_DICT), .accepts_i8 = self->accepts_i8 };
  parser.names = g_hash_table_new_full (g_str_hash, g_str_equal, g_free, NULL);
  ok = ebb_json_scanner_init (&parser.scanner, text, length, what, error);
  if (ok && (length == 0 || text[0] != '{'))
    ok = ebb_file_fail (path, error, "the header does not begin with '{'");
  ok = ok && read_members (&parser, data_size, error)
       && ebb_tensor_entries_check_ranges (path, self->entries, self->n_entries, data_size, FALSE, error);
  g_hash_table_unref (parser.names);
  if (!ok)
    ebb_safetensors_header_clear (self);
  return ok;
}

static gboolean
read_header (EbbTensorFile *self,
             gsize size,
             gboolean accepts_i8,
             GError **error)
{
  EbbSafetensorsHeader header = { .accepts_i8 = accepts_i8 };
  guint8 first[64] = { 0 };
  gsize length = 0;
  g_autofree char *text = NULL;

  if (!ebb_read_file_part (self->fd, self->path, 0, first, MIN (size, sizeof first), error)
      || !ebb_check_is_content (self->path, first, MIN (size, sizeof first), error))
    return FALSE;
  if (!ebb_safetensors_read_length (self->path, first, size, &length, error))
    return FALSE;
  text = g_try_malloc (length + 1);
  if (text == NULL)
    return ebb_fail (error, EBB_ERROR_NO_MEMORY, "%s: no memory for a header of %" G_GSIZE_FORMAT " bytes",
                     self->path, length);
  self->data_offset = 8 + length;
  if (!ebb_read_file_part (self->fd, self->path, 8, text, length, error)
      || !ebb_safetensors_header_parse (&header, self->path, text, length, size - self->data_offset, error))
    return FALSE;
  self->metadata = header.metadata;
  ebb_tensor_file_take_entries (self, header.entries, header.n_entries);
  return TRUE;
}

EbbTensorFile *
ebb_safetensors_open (const char *path,
                      gboolean accepts_i8,
                      GError **error)
{
  g_autoptr (EbbTensorFile) self = g_new0 (EbbTensorFile, 1);
  gsize size = 0;

  self->path = g_strdup (path);
  self->fd = ebb_open_regular_file (path, &size, error);
  if (self->fd < 0 || !read_header (self, size, accepts_i8, error))
    return NULL;
  return g_steal_pointer (&self);
}
