/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "nn/args.h"
#include "tensor/backend/kernel-private.h"

/* A file with tensors of whatever format, open to read parts of them, and no more of it than these. */

G_BEGIN_DECLS

/* How the values of a tensor lie in the file. */
typedef enum
{
  EBB_ENCODING_PLAIN, /* as the dtype says */
  EBB_ENCODING_Q8_0,  /* blocks of 32 values, which become f32: nn/files/q8-private.h */
} EbbEncoding;

typedef struct
{
  char *name;
  EbbDType dtype; /* of the values, decoded */
  gboolean is_i8; /* safetensors' I8: dtype is U8, which has its bits */
  EbbEncoding encoding;
  gint64 shape[EBB_MAX_DIMS];
  guint n_dims;
  gint64 begin, end; /* bytes, from the file's data_offset */
} EbbTensorEntry;

typedef struct
{
  char *path;
  int fd;
  guint64 data_offset;
  EbbTensorEntry *entries; /* in the order of the file's header */
  gsize n_entries;
  GHashTable *by_name; /* to entries */
  EbbArgs *metadata;   /* a dictionary of strings, maybe empty; NULL: the format has other metadata */
} EbbTensorFile;

/* NULL: there is no such tensor. */
const EbbTensorEntry *ebb_tensor_file_find (EbbTensorFile *self,
                                            const char *name);
/* The bytes [begin, end) of the tensor's data, as the file has them. */
gboolean ebb_tensor_file_read (EbbTensorFile *self,
                               const EbbTensorEntry *entry,
                               gint64 begin,
                               gint64 end,
                               void *data,
                               GError **error);
void ebb_tensor_file_close (EbbTensorFile *self);

/* For those that open a format: takes the entries over and fills by_name. */
void ebb_tensor_file_take_entries (EbbTensorFile *self,
                                   EbbTensorEntry *entries,
                                   gsize n_entries);
void ebb_tensor_entries_free (EbbTensorEntry *entries,
                              gsize n_entries);
/* FALSE with an error if ranges overlap, leave the @data_size bytes of the file, or, unless @has_gaps, leave any of
 * them to no tensor. */
gboolean ebb_tensor_entries_check_ranges (const char *path,
                                          const EbbTensorEntry *entries,
                                          gsize n_entries,
                                          guint64 data_size,
                                          gboolean has_gaps,
                                          GError **error);

G_DEFINE_AUTOPTR_CLEANUP_FUNC (EbbTensorFile, ebb_tensor_file_close)

G_END_DECLS
