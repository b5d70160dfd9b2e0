/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Reads what is before the data of a GGUF file, and checks all that can be wrong in it. */
#include "nn/files/gguf-private.h"

#include "nn/files/file-error-private.h"
#include "tensor/util/json-scanner-private.h"
#include "nn/files/q8-private.h"
#include "tensor/error-private.h"

#include <string.h>

#define MAX_NAME ((guint64) 65535) /* bytes of a key or a tensor's name */
#define GROWTH ((gsize) 1 << 20)

/* The header so far: bytes are read as they are asked for. */
typedef struct
{
  EbbGguf *gguf;
  const char *path;
  gsize file_size, position;
} Parser;

static const guint8 value_sizes[EBB_GGUF_N_TYPES] = { 1, 1, 2, 2, 4, 4, 4, 1, 8, 8, 8, 8, 8 };
static const char *const value_names[EBB_GGUF_N_TYPES] = { "u8", "i8", "u16", "i16", "u32", "i32", "f32",
                                                           "bool", "string", "array", "u64", "i64", "f64" };

/* Finds a type by its number; NULL if it is unknown. */
static const char *const tensor_types[] = {
  "F32", "F16", "Q4_0", "Q4_1", NULL, NULL, "Q5_0", "Q5_1", "Q8_0", "Q8_1", "Q2_K",
  "Q3_K", "Q4_K", "Q5_K", "Q6_K", "Q8_K", "IQ2_XXS", "IQ2_XS", "IQ3_XXS", "IQ1_S", "IQ4_NL", "IQ3_S",
  "IQ2_S", "IQ4_XS", "I8", "I16", "I32", "I64", "F64", "IQ1_M", "BF16", NULL, NULL,
  NULL, "TQ1_0", "TQ2_0", NULL, NULL, NULL, "MXFP4", "NVFP4", "Q1_0", "Q2_0"
};

gboolean
ebb_gguf_is_path (const char *path)
{
  const gsize length = strlen (path), n = strlen (EBB_GGUF_SUFFIX);

  return length >= n && g_ascii_strcasecmp (path + length - n, EBB_GGUF_SUFFIX) == 0;
}

/* -- bytes --------------------------------------------------------------------------------------------------------- */

/* Has the next @n bytes read, which the header then holds. */
static gboolean
need (Parser *parser,
      guint64 n,
      GError **error)
{
  EbbGguf *gguf = parser->gguf;
  gsize wanted;

  if (n > parser->file_size - parser->position)
    return ebb_file_fail (parser->path, error,
                          "truncated: %" G_GUINT64_FORMAT " bytes are expected at byte %" G_GSIZE_FORMAT
                          ", but the file has %" G_GSIZE_FORMAT,
                          n, parser->position, parser->file_size);
  if (parser->position + n > EBB_GGUF_MAX_HEADER)
    return ebb_file_fail (parser->path, error, "more than %" G_GSIZE_FORMAT " bytes before the data of tensors",
                          EBB_GGUF_MAX_HEADER);
  if (parser->position + n <= gguf->header_size)
    return TRUE;
  wanted =
      MIN (parser->file_size, MAX (parser->position + (gsize) n, gguf->header_size + MAX (gguf->header_size, GROWTH)));
  gguf->header = g_realloc (gguf->header, wanted);
  if (!ebb_read_file_part (gguf->tensors->fd, parser->path, gguf->header_size, gguf->header + gguf->header_size,
                           wanted - gguf->header_size, error))
    return FALSE;
  gguf->header_size = wanted;
  return TRUE;
}

static gboolean
read_u32 (Parser *parser,
          guint32 *value,
          GError **error)
{
  if (!need (parser, 4, error))
    return FALSE;
  memcpy (value, parser->gguf->header + parser->position, 4);
  *value = GUINT32_FROM_LE (*value);
  parser->position += 4;
  return TRUE;
}

static gboolean
read_u64 (Parser *parser,
          guint64 *value,
          GError **error)
{
  if (!need (parser, 8, error))
    return FALSE;
  memcpy (value, parser->gguf->header + parser->position, 8);
  *value = GUINT64_FROM_LE (*value);
  parser->position += 8;
  return TRUE;
}

/* The name of a value or a tensor. Owned. */
static char *
read_name (Parser *parser,
           const char *what,
           GError **error)
{
  g_autofree char *name = NULL;
  guint64 length;

  if (!read_u64 (parser, &length, error))
    return NULL;
  if (length > MAX_NAME)
    {
      ebb_file_fail (parser->path, error,
                     "the name of a %s at byte %" G_GSIZE_FORMAT " has %" G_GUINT64_FORMAT
                     " bytes: it must have at most %" G_GUINT64_FORMAT,
                     what, parser->position, length, MAX_NAME);
      return NULL;
    }
  if (!need (parser, length, error))
    return NULL;
  name = g_strndup ((const char *) parser->gguf->header + parser->position, (gsize) length);
  if (strlen (name) != length || length == 0 || !g_utf8_validate (name, (gssize) length, NULL))
    {
      ebb_file_fail (parser->path, error, "the name of a %s at byte %" G_GSIZE_FORMAT " is empty or not UTF-8", what,
                     parser->position);
      return NULL;
    }
  parser->position += (gsize) length;
  return g_steal_pointer (&name);
}

/* -- values -------------------------------------------------------------------------------------------------------- */

static gboolean
check_type (Parser *parser,
            const char *key,
            guint32 type,
            gboolean is_element,
            GError **error)
{
  g_autofree char *quoted = NULL;

  if (type < EBB_GGUF_N_TYPES && !(is_element && type == EBB_GGUF_ARRAY))
    return TRUE;
  quoted = ebb_json_quote (key);
  if (type == EBB_GGUF_ARRAY)
    return ebb_file_fail (parser->path, error, "the value %s is an array of arrays, which Ebb does not read", quoted);
  return ebb_file_fail (parser->path, error, "the value %s has the type %u: it must be 0 to %d", quoted, type,
                        EBB_GGUF_N_TYPES - 1);
}

static gboolean
skip_strings (Parser *parser,
              gsize n,
              GError **error)
{
  for (gsize i = 0; i < n; i++)
    {
      guint64 length;

      if (!read_u64 (parser, &length, error) || !need (parser, length, error))
        return FALSE;
      parser->position += (gsize) length;
    }
  return TRUE;
}

static gboolean
read_payload (Parser *parser,
              EbbGgufValue *value,
              GError **error)
{
  guint32 type;
  guint64 n = 1;

  if (!read_u32 (parser, &type, error) || !check_type (parser, value->key, type, FALSE, error))
    return FALSE;
  value->is_array = type == EBB_GGUF_ARRAY;
  if (value->is_array
      && (!read_u32 (parser, &type, error) || !check_type (parser, value->key, type, TRUE, error)
          || !read_u64 (parser, &n, error)))
    return FALSE;
  if (n > (parser->file_size - parser->position) / value_sizes[type])
    return ebb_file_fail (parser->path, error,
                          "truncated: the value %s has %" G_GUINT64_FORMAT
                          " elements of type %s, more than the rest of the file holds",
                          ebb_in_message (ebb_json_quote (value->key)), n, value_names[type]);
  value->type = (EbbGgufValueType) type;
  value->n = (gsize) n;
  value->offset = parser->position;
  if (type == EBB_GGUF_STRING)
    return skip_strings (parser, value->n, error);
  if (!need (parser, n * value_sizes[type], error))
    return FALSE;
  parser->position += (gsize) n * value_sizes[type];
  return TRUE;
}

static gboolean
read_values (Parser *parser,
             guint64 n,
             GError **error)
{
  EbbGguf *gguf = parser->gguf;

  for (guint64 i = 0; i < n; i++)
    {
      EbbGgufValue value = { .key = read_name (parser, "value", error) };

      if (value.key == NULL)
        return FALSE;
      if (g_hash_table_contains (gguf->by_key, value.key))
        {
          g_autofree char *key = value.key;
          g_autofree char *quoted = ebb_json_quote (key);

          return ebb_file_fail (parser->path, error, "the value %s is there twice", quoted);
        }
      g_array_append_val (gguf->values, value);
      g_hash_table_insert (gguf->by_key, value.key, GUINT_TO_POINTER (gguf->values->len));
      if (!read_payload (parser, &g_array_index (gguf->values, EbbGgufValue, gguf->values->len - 1), error))
        return FALSE;
    }
  return TRUE;
}

/* -- tensors ------------------------------------------------------------------------------------------------------- */

static gboolean
set_type (Parser *parser,
          EbbTensorEntry *entry,
          guint32 type,
          GError **error)
{
  g_autofree char *name = NULL;

  entry->dtype = type == EBB_GGUF_TENSOR_F16    ? EBB_DTYPE_F16
                 : type == EBB_GGUF_TENSOR_BF16 ? EBB_DTYPE_BF16
                                                : EBB_DTYPE_F32;
  entry->encoding = type == EBB_GGUF_TENSOR_Q8_0 ? EBB_ENCODING_Q8_0 : EBB_ENCODING_PLAIN;
  if (entry->encoding == EBB_ENCODING_Q8_0 && entry->n_dims < 2)
    {
      name = ebb_json_quote (entry->name);
      return ebb_file_fail (parser->path, error, "tensor %s is Q8_0 and has one dimension: it must have two or more",
                            name);
    }
  if (type == EBB_GGUF_TENSOR_F32 || entry->dtype != EBB_DTYPE_F32 || entry->encoding == EBB_ENCODING_Q8_0)
    return TRUE;
  name = ebb_json_quote (entry->name);
  if (type >= G_N_ELEMENTS (tensor_types) || tensor_types[type] == NULL)
    return ebb_file_fail (parser->path, error, "tensor %s has the type %u, which is unknown", name, type);
  return ebb_fail (error, EBB_ERROR_DTYPE, "%s: tensor %s is %s: it must be F32, F16, BF16 or Q8_0",
                   ebb_show_text (parser->path), name, tensor_types[type]);
}

static gboolean
read_shape (Parser *parser,
            EbbTensorEntry *entry,
            GError **error)
{
  guint32 n_dims;
  guint64 n;

  if (!read_u32 (parser, &n_dims, error))
    return FALSE;
  if (n_dims < 1 || n_dims > 4)
    return ebb_file_fail (parser->path, error, "tensor %s has %u dimensions: it must have 1 to 4",
                          ebb_in_message (ebb_json_quote (entry->name)), n_dims);
  entry->n_dims = n_dims;
  for (guint i = 0; i < n_dims; i++)
    {
      if (!read_u64 (parser, &n, error))
        return FALSE;
      if (n > G_MAXINT64)
        return ebb_file_fail (parser->path, error, "tensor %s has a dimension of %" G_GUINT64_FORMAT,
                              ebb_in_message (ebb_json_quote (entry->name)), n);
      entry->shape[n_dims - 1 - i] = (gint64) n;
    }
  return TRUE;
}

/* How many bytes the tensor has; -1: more than can be counted, or no whole number of blocks in a row. */
static gint64
count_bytes (const EbbTensorEntry *entry)
{
  gint64 n = 1;

  for (guint i = 0; i < entry->n_dims; i++)
    if (entry->shape[i] == 0)
      return 0;
  for (guint i = 0; i < entry->n_dims; i++)
    if (__builtin_mul_overflow (n, entry->shape[i], &n))
      return -1;
  if (entry->encoding == EBB_ENCODING_PLAIN)
    return __builtin_mul_overflow (n, (gint64) ebb_dtype_get_size (entry->dtype), &n) ? -1 : n;
  if (entry->shape[entry->n_dims - 1] % EBB_Q8_BLOCK != 0)
    return -1;
  return __builtin_mul_overflow (n / EBB_Q8_BLOCK, (gint64) EBB_Q8_BYTES, &n) ? -1 : n;
}

static gboolean
read_entry (Parser *parser,
            EbbTensorEntry *entry,
            GHashTable *names,
            GError **error)
{
  guint32 type;
  guint64 offset;
  gint64 n_bytes;
  g_autofree char *name = NULL;

  entry->name = read_name (parser, "tensor", error);
  if (entry->name == NULL)
    return FALSE;
  if (!g_hash_table_add (names, entry->name))
    {
      name = ebb_json_quote (entry->name);
      return ebb_file_fail (parser->path, error, "the tensor %s is there twice", name);
    }
  if (!read_shape (parser, entry, error) || !read_u32 (parser, &type, error) || !set_type (parser, entry, type, error)
      || !read_u64 (parser, &offset, error))
    return FALSE;
  n_bytes = count_bytes (entry);
  if (n_bytes >= 0 && offset <= (guint64) (G_MAXINT64 - n_bytes))
    {
      entry->begin = (gint64) offset;
      entry->end = entry->begin + n_bytes;
      return TRUE;
    }
  name = ebb_json_quote (entry->name);
  return ebb_file_fail (parser->path, error,
                        "tensor %s has a shape or a place that no file can hold, or rows of Q8_0 that are no whole "
                        "blocks of %d",
                        name, EBB_Q8_BLOCK);
}

static gboolean
read_entries (Parser *parser,
              EbbTensorEntry *entries,
              gsize n,
              GError **error)
{
  g_autoptr (GHashTable) names = g_hash_table_new (g_str_hash, g_str_equal);

  for (gsize i = 0; i < n; i++)
    if (!read_entry (parser, &entries[i], names, error))
      return FALSE;
  return TRUE;
}

/* The ranges must lie in the file, at multiples of the alignment. */
static gboolean
check_places (Parser *parser,
              const EbbTensorEntry *entries,
              gsize n,
              gint64 alignment,
              GError **error)
{
  const guint64 offset = parser->gguf->tensors->data_offset;
  const guint64 data_size = offset < parser->file_size ? parser->file_size - offset : 0;

  for (gsize i = 0; i < n; i++)
    {
      g_autofree char *name = NULL;

      if ((guint64) entries[i].end <= data_size && entries[i].begin % alignment == 0)
        continue;
      name = ebb_json_quote (entries[i].name);
      if (entries[i].begin % alignment != 0)
        return ebb_file_fail (parser->path, error,
                              "tensor %s begins at %" G_GINT64_FORMAT
                              ", which is no multiple of the alignment %" G_GINT64_FORMAT,
                              name, entries[i].begin, alignment);
      return ebb_file_fail (parser->path, error,
                            "truncated: tensor %s ends at %" G_GINT64_FORMAT ", but there are %" G_GUINT64_FORMAT
                            " bytes of data",
                            name, entries[i].end, data_size);
    }
  return ebb_tensor_entries_check_ranges (parser->path, entries, n, data_size, TRUE, error);
}

/* -- the whole ----------------------------------------------------------------------------------------------------- */

static gboolean
read_begin (Parser *parser,
            guint64 *n_tensors,
            guint64 *n_values,
            GError **error)
{
  guint32 version;

  if (!need (parser, MIN (parser->file_size, 64), error)
      || !ebb_check_is_content (parser->path, parser->gguf->header, MIN (parser->file_size, 64), error))
    return FALSE;
  if (parser->file_size < 4 || memcmp (parser->gguf->header, "GGUF", 4) != 0)
    return ebb_file_fail (parser->path, error, "not a GGUF file: it must begin with \"GGUF\"");
  parser->position = 4;
  if (!read_u32 (parser, &version, error))
    return FALSE;
  if (version != 2 && version != 3)
    return ebb_file_fail (parser->path, error, "GGUF of version %u%s: it must be 2 or 3, little-endian", version,
                          version > 65535 ? ", or big-endian" : "");
  return read_u64 (parser, n_tensors, error) && read_u64 (parser, n_values, error);
}

static gboolean
read_header (Parser *parser,
             GError **error)
{
  EbbGguf *gguf = parser->gguf;
  EbbTensorFile *file = gguf->tensors;
  guint64 n_tensors = 0, n_values = 0; /* gcc 12 does not see, with a sanitizer, that they are read */
  gint64 alignment = EBB_GGUF_ALIGNMENT;
  const gsize room = MIN (parser->file_size, EBB_GGUF_MAX_HEADER);
  GError *failure = NULL;

  if (!read_begin (parser, &n_tensors, &n_values, error))
    return FALSE;
  /* A value takes 13 bytes or more, a tensor 33. */
  if (n_values > room / 13 || n_tensors > room / 33)
    return ebb_file_fail (parser->path, error,
                          "truncated: %" G_GUINT64_FORMAT " tensors and %" G_GUINT64_FORMAT
                          " values do not fit in %s of %" G_GSIZE_FORMAT " bytes",
                          n_tensors, n_values, room < parser->file_size ? "a header" : "a file", room);
  if (!read_values (parser, n_values, error))
    return FALSE;
  if (!ebb_gguf_get_int (gguf, "general.alignment", &alignment, &failure) && failure != NULL)
    {
      g_propagate_error (error, failure);
      return FALSE;
    }
  if (alignment < 1 || alignment > 1 << 20)
    return ebb_file_fail (parser->path, error, "general.alignment is %" G_GINT64_FORMAT ": it must be 1 to 1048576",
                          alignment);
  ebb_tensor_file_take_entries (file, g_new0 (EbbTensorEntry, (gsize) n_tensors + 1), 0);
  /* As many as there are, so that those that were read are freed. */
  file->n_entries = (gsize) n_tensors;
  if (!read_entries (parser, file->entries, file->n_entries, error))
    return FALSE;
  file->data_offset =
      (parser->position + (guint64) alignment - 1) / (guint64) alignment * (guint64) alignment;
  if (!check_places (parser, file->entries, file->n_entries, alignment, error))
    return FALSE;
  for (gsize i = 0; i < file->n_entries; i++)
    g_hash_table_insert (file->by_name, file->entries[i].name, &file->entries[i]);
  return TRUE;
}

static void
value_clear (gpointer data)
{
  g_free (((EbbGgufValue *) data)->key);
}

EbbGguf *
ebb_gguf_open (const char *path,
               GError **error)
{
  g_autoptr (EbbGguf) self = g_new0 (EbbGguf, 1);
  Parser parser = { .gguf = self };

  self->tensors = g_new0 (EbbTensorFile, 1);
  parser.path = self->tensors->path = g_strdup (path);
  self->values = g_array_new (FALSE, TRUE, sizeof (EbbGgufValue));
  g_array_set_clear_func (self->values, value_clear);
  self->by_key = g_hash_table_new (g_str_hash, g_str_equal);
  self->tensors->fd = ebb_open_regular_file (path, &parser.file_size, error);
  return self->tensors->fd >= 0 && read_header (&parser, error) ? g_steal_pointer (&self) : NULL;
}

void
ebb_gguf_close (EbbGguf *self)
{
  g_hash_table_unref (self->by_key);
  g_array_unref (self->values);
  ebb_tensor_file_close (self->tensors);
  g_free (self->header);
  g_free (self);
}

/* -- what values are ----------------------------------------------------------------------------------------------- */

const EbbGgufValue *
ebb_gguf_find (const EbbGguf *self,
               const char *key)
{
  const guint place = GPOINTER_TO_UINT (g_hash_table_lookup (self->by_key, key));

  return place > 0 ? &g_array_index (self->values, EbbGgufValue, place - 1) : NULL;
}

/* Always FALSE. */
static gboolean
refuse (const EbbGguf *self,
        const EbbGgufValue *value,
        const char *right,
        GError **error)
{
  return ebb_file_fail (self->tensors->path, error, "the value %s is %s%s: it must be %s",
                        ebb_in_message (ebb_json_quote (value->key)),
                        value->is_array ? "an array of type " : "of type ", value_names[value->type], right);
}

static double
get_element (const EbbGguf *self,
             const EbbGgufValue *value,
             gsize i,
             gint64 *integer)
{
  const guint8 *data = self->header + value->offset + i * value_sizes[value->type];
  guint64 bits = 0;
  union
  {
    guint32 u;
    float f;
  } single;
  union
  {
    guint64 u;
    double d;
  } number;

  for (guint k = 0; k < value_sizes[value->type]; k++)
    bits |= (guint64) data[k] << (8 * k);
  *integer = (gint64) bits;
  switch (value->type)
    {
    case EBB_GGUF_I8:
      *integer = (gint8) bits;
      break;
    case EBB_GGUF_I16:
      *integer = (gint16) bits;
      break;
    case EBB_GGUF_I32:
      *integer = (gint32) bits;
      break;
    case EBB_GGUF_F32:
      single.u = (guint32) bits;
      return single.f;
    case EBB_GGUF_F64:
      number.u = bits;
      return number.d;
    default:
      break;
    }
  return (double) *integer;
}

static gboolean
is_float (const EbbGgufValue *value)
{
  return value->type == EBB_GGUF_F32 || value->type == EBB_GGUF_F64;
}

static gboolean
is_number (const EbbGgufValue *value)
{
  return value->type != EBB_GGUF_STRING && value->type != EBB_GGUF_BOOL;
}

gboolean
ebb_gguf_get_int (const EbbGguf *self,
                  const char *key,
                  gint64 *value,
                  GError **error)
{
  const EbbGgufValue *found = ebb_gguf_find (self, key);
  gint64 integer;

  if (found == NULL)
    return FALSE;
  if (found->is_array || is_float (found) || !is_number (found))
    return refuse (self, found, "an integer", error);
  get_element (self, found, 0, &integer);
  if (found->type == EBB_GGUF_U64 && integer < 0)
    return ebb_file_fail (self->tensors->path, error, "the value \"%s\" is %" G_GUINT64_FORMAT ": it is too large", key,
                          (guint64) integer);
  *value = integer;
  return TRUE;
}

gboolean
ebb_gguf_get_double (const EbbGguf *self,
                     const char *key,
                     double *value,
                     GError **error)
{
  const EbbGgufValue *found = ebb_gguf_find (self, key);
  gint64 integer;

  if (found == NULL)
    return FALSE;
  if (found->is_array || !is_number (found))
    return refuse (self, found, "a number", error);
  *value = get_element (self, found, 0, &integer);
  return TRUE;
}

gboolean
ebb_gguf_get_boolean (const EbbGguf *self,
                      const char *key,
                      gboolean *value,
                      GError **error)
{
  const EbbGgufValue *found = ebb_gguf_find (self, key);

  if (found == NULL)
    return FALSE;
  if (found->is_array || found->type != EBB_GGUF_BOOL)
    return refuse (self, found, "true or false", error);
  *value = self->header[found->offset] != 0;
  return TRUE;
}

EbbGgufString *
ebb_gguf_get_strings (const EbbGguf *self,
                      const char *key,
                      gsize *n,
                      GError **error)
{
  const EbbGgufValue *found = ebb_gguf_find (self, key);
  EbbGgufString *strings;
  gsize at;

  *n = 0;
  if (found == NULL)
    return NULL;
  if (!found->is_array || found->type != EBB_GGUF_STRING)
    {
      refuse (self, found, "an array of strings", error);
      return NULL;
    }
  strings = g_new (EbbGgufString, found->n + 1);
  at = found->offset;
  for (gsize i = 0; i < found->n; i++)
    {
      guint64 length;

      memcpy (&length, self->header + at, 8);
      strings[i] = (EbbGgufString){ (const char *) self->header + at + 8, (gsize) GUINT64_FROM_LE (length) };
      at += 8 + strings[i].length;
    }
  *n = found->n;
  return strings;
}

gboolean
ebb_gguf_get_string (const EbbGguf *self,
                     const char *key,
                     char **value,
                     GError **error)
{
  const EbbGgufValue *found = ebb_gguf_find (self, key);
  guint64 length;
  const char *text;

  if (found == NULL)
    return FALSE;
  if (found->is_array || found->type != EBB_GGUF_STRING)
    return refuse (self, found, "a string", error);
  memcpy (&length, self->header + found->offset, 8);
  length = GUINT64_FROM_LE (length);
  text = (const char *) self->header + found->offset + 8;
  if (!g_utf8_validate_len (text, (gsize) length, NULL))
    return ebb_file_fail (self->tensors->path, error, "the value \"%s\" is not UTF-8", key);
  *value = g_strndup (text, (gsize) length);
  return TRUE;
}

double *
ebb_gguf_get_numbers (const EbbGguf *self,
                      const char *key,
                      gsize *n,
                      GError **error)
{
  const EbbGgufValue *found = ebb_gguf_find (self, key);
  double *numbers;

  *n = 0;
  if (found == NULL)
    return NULL;
  if (!found->is_array || !is_number (found))
    {
      refuse (self, found, "an array of numbers", error);
      return NULL;
    }
  numbers = g_new (double, found->n + 1);
  for (gsize i = 0; i < found->n; i++)
    {
      gint64 integer;

      numbers[i] = get_element (self, found, i, &integer);
    }
  *n = found->n;
  return numbers;
}
