/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Writes GGUF files of version 3: values and tensors are listed first, then the data follows tensor by tensor. */
#include "nn/files/gguf-private.h"

#include "nn/files/q8-private.h"
#include "tensor/util/half-private.h"

#include <string.h>

/* -- bytes --------------------------------------------------------------------------------------------------------- */

static void
append_u32 (GByteArray *bytes,
            guint32 value)
{
  value = GUINT32_TO_LE (value);
  g_byte_array_append (bytes, (const guint8 *) &value, 4);
}

static void
append_u64 (GByteArray *bytes,
            guint64 value)
{
  value = GUINT64_TO_LE (value);
  g_byte_array_append (bytes, (const guint8 *) &value, 8);
}

static void
append_string (GByteArray *bytes,
               const char *text)
{
  const gsize length = strlen (text);

  append_u64 (bytes, length);
  g_byte_array_append (bytes, (const guint8 *) text, (guint) length);
}

static void
begin_value (EbbGgufWriter *self,
             const char *key,
             EbbGgufValueType type)
{
  append_string (self->values, key);
  append_u32 (self->values, type);
  self->n_values++;
}

static gint64
count_bytes (EbbGgufTensorType type,
             gint64 n)
{
  return type == EBB_GGUF_TENSOR_Q8_0 ? n / EBB_Q8_BLOCK * EBB_Q8_BYTES : type == EBB_GGUF_TENSOR_F32 ? n * 4
                                                                                                      : n * 2;
}

static gsize
count_padding (guint64 n_bytes)
{
  return (gsize) ((EBB_GGUF_ALIGNMENT - n_bytes % EBB_GGUF_ALIGNMENT) % EBB_GGUF_ALIGNMENT);
}

/* -- the header ---------------------------------------------------------------------------------------------------- */

void
ebb_gguf_writer_init (EbbGgufWriter *self)
{
  *self = (EbbGgufWriter){ .values = g_byte_array_new (), .tensors = g_byte_array_new () };
}

void
ebb_gguf_writer_clear (EbbGgufWriter *self)
{
  g_clear_pointer (&self->values, g_byte_array_unref);
  g_clear_pointer (&self->tensors, g_byte_array_unref);
}

void
ebb_gguf_writer_add_string (EbbGgufWriter *self,
                            const char *key,
                            const char *value)
{
  begin_value (self, key, EBB_GGUF_STRING);
  append_string (self->values, value);
}

void
ebb_gguf_writer_add_u32 (EbbGgufWriter *self,
                         const char *key,
                         guint32 value)
{
  begin_value (self, key, EBB_GGUF_U32);
  append_u32 (self->values, value);
}

static guint32
get_bits (float value)
{
  union
  {
    float f;
    guint32 u;
  } bits = { .f = value };

  return bits.u;
}

void
ebb_gguf_writer_add_f32 (EbbGgufWriter *self,
                         const char *key,
                         float value)
{
  begin_value (self, key, EBB_GGUF_F32);
  append_u32 (self->values, get_bits (value));
}

void
ebb_gguf_writer_add_boolean (EbbGgufWriter *self,
                             const char *key,
                             gboolean value)
{
  const guint8 byte = value ? 1 : 0;

  begin_value (self, key, EBB_GGUF_BOOL);
  g_byte_array_append (self->values, &byte, 1);
}

void
ebb_gguf_writer_add_strings (EbbGgufWriter *self,
                             const char *key,
                             GPtrArray *values)
{
  begin_value (self, key, EBB_GGUF_ARRAY);
  append_u32 (self->values, EBB_GGUF_STRING);
  append_u64 (self->values, values->len);
  for (guint i = 0; i < values->len; i++)
    append_string (self->values, g_ptr_array_index (values, i));
}

void
ebb_gguf_writer_add_array (EbbGgufWriter *self,
                           const char *key,
                           EbbGgufValueType type,
                           const void *values,
                           gsize n)
{
  const guint32 *words = values;

  begin_value (self, key, EBB_GGUF_ARRAY);
  append_u32 (self->values, type);
  append_u64 (self->values, n);
  for (gsize i = 0; i < n; i++)
    append_u32 (self->values, words[i]);
}

void
ebb_gguf_writer_add_tensor (EbbGgufWriter *self,
                            const char *name,
                            const gint64 *shape,
                            guint n_dims,
                            EbbGgufTensorType type)
{
  gint64 n = 1;

  append_string (self->tensors, name);
  append_u32 (self->tensors, n_dims);
  for (guint d = n_dims; d > 0; d--)
    {
      append_u64 (self->tensors, (guint64) shape[d - 1]);
      n *= shape[d - 1];
    }
  append_u32 (self->tensors, type);
  append_u64 (self->tensors, self->data_size);
  self->data_size += (guint64) count_bytes (type, n);
  self->data_size += count_padding (self->data_size);
  self->n_tensors++;
}

gboolean
ebb_gguf_writer_write_header (EbbGgufWriter *self,
                              EbbAtomicFile *file,
                              GError **error)
{
  static const guint8 zeros[EBB_GGUF_ALIGNMENT] = { 0 };
  g_autoptr (GByteArray) begin = g_byte_array_new ();

  g_byte_array_append (begin, (const guint8 *) "GGUF", 4);
  append_u32 (begin, 3);
  append_u64 (begin, self->n_tensors);
  append_u64 (begin, self->n_values);
  return ebb_atomic_file_write (file, begin->data, begin->len, error)
         && ebb_atomic_file_write (file, self->values->data, self->values->len, error)
         && ebb_atomic_file_write (file, self->tensors->data, self->tensors->len, error)
         && ebb_atomic_file_write (file, zeros,
                                   count_padding ((guint64) begin->len + self->values->len + self->tensors->len),
                                   error);
}

/* -- data ---------------------------------------------------------------------------------------------------------- */

#define STEP ((gint64) 1 << 15) /* values that are converted at one time */

static void
convert (EbbGgufTensorType type,
         const float *values,
         void *bytes,
         gint64 n)
{
  if (type == EBB_GGUF_TENSOR_Q8_0)
    ebb_q8_encode (values, bytes, n);
  else if (type == EBB_GGUF_TENSOR_F32)
    for (gint64 i = 0; i < n; i++)
      ((guint32 *) bytes)[i] = GUINT32_TO_LE (get_bits (values[i]));
  else
    for (gint64 i = 0; i < n; i++)
      ((guint16 *) bytes)[i] = GUINT16_TO_LE (type == EBB_GGUF_TENSOR_F16 ? ebb_f16_from_float (values[i])
                                                                          : ebb_bf16_from_float (values[i]));
}

gboolean
ebb_gguf_write_values (EbbAtomicFile *file,
                       EbbGgufTensorType type,
                       const float *values,
                       gint64 n,
                       GError **error)
{
  g_autofree guint8 *bytes = g_malloc ((gsize) STEP * 4);

  for (gint64 at = 0; at < n; at += STEP)
    {
      const gint64 count = MIN (STEP, n - at);

      convert (type, values + at, bytes, count);
      if (!ebb_atomic_file_write (file, bytes, (gsize) count_bytes (type, count), error))
        return FALSE;
    }
  return TRUE;
}

gboolean
ebb_gguf_write_padding (EbbAtomicFile *file,
                        EbbGgufTensorType type,
                        gint64 n,
                        GError **error)
{
  static const guint8 zeros[EBB_GGUF_ALIGNMENT] = { 0 };

  return ebb_atomic_file_write (file, zeros, count_padding ((guint64) count_bytes (type, n)), error);
}
