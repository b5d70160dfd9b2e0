/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "nn/files/tensor-file-private.h"

/* The header of a safetensors file: eight bytes of length (little-endian), then JSON:
 *   { "__metadata__": { key: text }, name: { "dtype": ..., "shape": [...], "data_offsets": [begin, end] }, ... }
 * with offsets from the header's end. */

G_BEGIN_DECLS

/* The longest header that is read, as in the format's own reader. */
#define EBB_SAFETENSORS_MAX_HEADER 100000000

typedef struct
{
  EbbTensorEntry *entries; /* in the order of the header */
  gsize n_entries;
  EbbArgs *metadata;   /* a dictionary of strings, maybe empty */
  gboolean accepts_i8; /* set before it is parsed: entries may be I8 */
} EbbSafetensorsHeader;

/* The length of the header of a file of @size bytes that begins with @data, of which the first 8 are looked at. */
gboolean ebb_safetensors_read_length (const char *path,
                                      const void *data,
                                      gsize size,
                                      gsize *length,
                                      GError **error);
/* Reads and checks all that can be wrong in the header of a file with @data_size bytes after it. @path names it in
 * errors. */
gboolean ebb_safetensors_header_parse (EbbSafetensorsHeader *self,
                                       const char *path,
                                       const char *text,
                                       gsize length,
                                       guint64 data_size,
                                       GError **error);
void ebb_safetensors_header_clear (EbbSafetensorsHeader *self);

/* The name of @dtype in such files: "F32". */
const char *ebb_safetensors_get_dtype_name (EbbDType dtype);
/* That of the entry's, which may be I8. */
const char *ebb_safetensors_entry_get_dtype_name (const EbbTensorEntry *entry);

/* Opens a file and reads its header. NULL with what ebb_load_safetensors () would say, which accepts no I8. */
EbbTensorFile *ebb_safetensors_open (const char *path,
                                     gboolean accepts_i8,
                                     GError **error);

G_END_DECLS
