/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "tensor/backend-private.h"

/* A file without a name in a given folder: it goes with the process, however that ends. Written and read in large
 * aligned pieces, past the page cache where the file system allows. A file belongs to the process that made it; after a
 * fork the child may read it, and makes its own to write. */

G_BEGIN_DECLS

typedef struct _EbbDiskFile EbbDiskFile;

/* Where something is in a file. */
typedef struct
{
  EbbDiskFile *file;
  guint64 offset;
  gsize size;
  guint64 checksum;
} EbbDiskPart;

EbbDiskFile *ebb_disk_file_new (const char *folder,
                                GError **error);
EbbDiskFile *ebb_disk_file_ref (EbbDiskFile *file);
void ebb_disk_file_unref (EbbDiskFile *file);
/* FALSE in a child of the process that made it. */
gboolean ebb_disk_file_is_own (EbbDiskFile *file);

/* Writes @size bytes of the memory of @device; the file may grow to @limit bytes. */
gboolean ebb_disk_file_write (EbbDiskFile *file,
                              guint64 limit,
                              EbbDevice *device,
                              const void *data,
                              gsize size,
                              EbbDiskPart *part,
                              GError **error);
gboolean ebb_disk_part_read (const EbbDiskPart *part,
                             EbbDevice *device,
                             void *data,
                             GError **error);
/* Gives the space back. */
void ebb_disk_part_clear (EbbDiskPart *part);

G_END_DECLS
