/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "nn/files/safetensors-header-private.h"

/* Reads parts of tensors out of a safetensors file, and no more of it than these. */

G_BEGIN_DECLS

typedef struct
{
  char *path;
  int fd;
  guint64 data_offset;
  EbbSafetensorsHeader header;
  GHashTable *by_name; /* to entries */
} EbbSafetensorsReader;

/* Opens a file and reads its header. NULL with what ebb_load_safetensors () would say. */
EbbSafetensorsReader *ebb_safetensors_reader_open (const char *path,
                                                   GError **error);
void ebb_safetensors_reader_close (EbbSafetensorsReader *self);
/* NULL: there is no such tensor. */
const EbbSafetensorsEntry *ebb_safetensors_reader_find (EbbSafetensorsReader *self,
                                                        const char *name);
/* The bytes [begin, end) of the tensor's data. */
gboolean ebb_safetensors_reader_read (EbbSafetensorsReader *self,
                                      const EbbSafetensorsEntry *entry,
                                      gint64 begin,
                                      gint64 end,
                                      void *data,
                                      GError **error);

G_DEFINE_AUTOPTR_CLEANUP_FUNC (EbbSafetensorsReader, ebb_safetensors_reader_close)

G_END_DECLS
