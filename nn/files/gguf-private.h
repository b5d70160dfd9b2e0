/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "nn/files/tensor-file-private.h"
#include "tensor/util/atomic-file-private.h"

/* GGUF files, versions 2 and 3, little-endian: "GGUF", the version, the numbers of tensors and of values; values by
 * key; name, shape (the last dimension first), type and place of each tensor; then, aligned, their data.
 * https://github.com/ggml-org/ggml/blob/master/docs/gguf.md */

G_BEGIN_DECLS

#define EBB_GGUF_SUFFIX ".gguf"
/* The most bytes before the data that are read: vocabularies of 250,000 tokens with their merges take 20 MB. */
#define EBB_GGUF_MAX_HEADER ((gsize) 1 << 28)
#define EBB_GGUF_ALIGNMENT 32

typedef enum
{
  EBB_GGUF_U8,
  EBB_GGUF_I8,
  EBB_GGUF_U16,
  EBB_GGUF_I16,
  EBB_GGUF_U32,
  EBB_GGUF_I32,
  EBB_GGUF_F32,
  EBB_GGUF_BOOL,
  EBB_GGUF_STRING,
  EBB_GGUF_ARRAY,
  EBB_GGUF_U64,
  EBB_GGUF_I64,
  EBB_GGUF_F64,
  EBB_GGUF_N_TYPES
} EbbGgufValueType;

typedef struct
{
  char *key;
  EbbGgufValueType type; /* of the value, of an array's elements */
  gboolean is_array;
  gsize n;      /* elements; 1 for what is no array */
  gsize offset; /* of the first in the header */
} EbbGgufValue;

typedef struct
{
  EbbTensorFile *tensors;
  guint8 *header; /* its bytes */
  gsize header_size;
  GArray *values; /* of EbbGgufValue */
  GHashTable *by_key;
} EbbGguf;

/* Whether the path's name ends as such files do. */
gboolean ebb_gguf_is_path (const char *path);

/* -- gguf-reader.c */

/* Reads and checks all that is before the data. Tensors of other types than F32, F16, BF16 and Q8_0 are refused. */
EbbGguf *ebb_gguf_open (const char *path,
                        GError **error);
void ebb_gguf_close (EbbGguf *self);
/* NULL: there is no such value. */
const EbbGgufValue *ebb_gguf_find (const EbbGguf *self,
                                   const char *key);
/* The value @key, if it is there and has the type: of all integers one of 64 bits, of all floats a double. Else FALSE,
 * with an error if it is there and has another type. */
gboolean ebb_gguf_get_int (const EbbGguf *self,
                           const char *key,
                           gint64 *value,
                           GError **error);
gboolean ebb_gguf_get_double (const EbbGguf *self,
                              const char *key,
                              double *value,
                              GError **error);
gboolean ebb_gguf_get_boolean (const EbbGguf *self,
                               const char *key,
                               gboolean *value,
                               GError **error);
/* Owned. It is UTF-8 and has no byte 0. */
gboolean ebb_gguf_get_string (const EbbGguf *self,
                              const char *key,
                              char **value,
                              GError **error);
/* The array @key of strings, which point into the header and are no texts of C; NULL as above. */
typedef struct
{
  const char *text;
  gsize length;
} EbbGgufString;
EbbGgufString *ebb_gguf_get_strings (const EbbGguf *self,
                                     const char *key,
                                     gsize *n,
                                     GError **error);
/* The array @key of numbers. */
double *ebb_gguf_get_numbers (const EbbGguf *self,
                              const char *key,
                              gsize *n,
                              GError **error);

/* -- gguf-writer.c */

typedef enum
{
  EBB_GGUF_TENSOR_F32 = 0,
  EBB_GGUF_TENSOR_F16 = 1,
  EBB_GGUF_TENSOR_Q8_0 = 8,
  EBB_GGUF_TENSOR_BF16 = 30
} EbbGgufTensorType;

typedef struct
{
  GByteArray *values, *tensors;
  guint64 n_values, n_tensors, data_size;
} EbbGgufWriter;

void ebb_gguf_writer_init (EbbGgufWriter *self);
void ebb_gguf_writer_clear (EbbGgufWriter *self);
void ebb_gguf_writer_add_string (EbbGgufWriter *self,
                                 const char *key,
                                 const char *value);
void ebb_gguf_writer_add_u32 (EbbGgufWriter *self,
                              const char *key,
                              guint32 value);
void ebb_gguf_writer_add_f32 (EbbGgufWriter *self,
                              const char *key,
                              float value);
void ebb_gguf_writer_add_boolean (EbbGgufWriter *self,
                                  const char *key,
                                  gboolean value);
void ebb_gguf_writer_add_strings (EbbGgufWriter *self,
                                  const char *key,
                                  GPtrArray *values);
/* Of four bytes each: I32 or F32. */
void ebb_gguf_writer_add_array (EbbGgufWriter *self,
                                const char *key,
                                EbbGgufValueType type,
                                const void *values,
                                gsize n);
/* Tensors are written in the order in which they are added. */
void ebb_gguf_writer_add_tensor (EbbGgufWriter *self,
                                 const char *name,
                                 const gint64 *shape,
                                 guint n_dims,
                                 EbbGgufTensorType type);
gboolean ebb_gguf_writer_write_header (EbbGgufWriter *self,
                                       EbbAtomicFile *file,
                                       GError **error);
/* Rows of @n values of f32, a multiple of 32 for Q8_0. */
gboolean ebb_gguf_write_values (EbbAtomicFile *file,
                                EbbGgufTensorType type,
                                const float *values,
                                gint64 n,
                                GError **error);
/* After the last byte of a tensor that has @n values. */
gboolean ebb_gguf_write_padding (EbbAtomicFile *file,
                                 EbbGgufTensorType type,
                                 gint64 n,
                                 GError **error);

G_DEFINE_AUTOPTR_CLEANUP_FUNC (EbbGguf, ebb_gguf_close)
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC (EbbGgufWriter, ebb_gguf_writer_clear)

G_END_DECLS
