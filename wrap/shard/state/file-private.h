/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "nn/files/safetensors-reader-private.h"

/* One rank's tensors as a safetensors file, with checksums of every so many bytes: then a part that is read is checked
 * without the rest. */

G_BEGIN_DECLS

#define EBB_SHARD_FILE_BLOCK ((gint64) 1 << 20) /* bytes */

/* @tensors are contiguous or not, on any device. */
gboolean ebb_shard_file_write (const char *path,
                               EbbArgs *tensors,
                               GError **error);
/* Finds a tensor that must have that dtype (-1: any) and so many elements. */
const EbbSafetensorsEntry *ebb_shard_file_find (EbbSafetensorsReader *file,
                                                const char *name,
                                                int dtype,
                                                gint64 n_elements,
                                                GError **error);
/* Reads the elements [begin, end) and compares them with their checksums; @data NULL: does no more than that. */
gboolean ebb_shard_file_read (EbbSafetensorsReader *file,
                              const EbbSafetensorsEntry *entry,
                              gint64 begin,
                              gint64 end,
                              void *data,
                              GError **error);

G_END_DECLS
