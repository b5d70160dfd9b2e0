/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "tensor/error-private.h"

/* A file without a name in a given folder: the system frees it with the process, however that ends. Read and written at
 * multiples of a sector, past the page cache where the file system allows. A file belongs to the process that made it;
 * after a fork the child may read it, and makes its own to write. */

G_BEGIN_DECLS

/* Direct access needs addresses, offsets and sizes at multiples of it; enough for any disk. */
#define EBB_DISK_SECTOR 4096
#define EBB_DISK_ALIGN(size) (((size) + EBB_DISK_SECTOR - 1) & ~(guint64) (EBB_DISK_SECTOR - 1))

/* In place of the number of an error. */
#define EBB_DISK_SHORTER (-1) /* the file ends before */
#define EBB_DISK_DAMAGED (-2) /* the checksum is another one */

typedef struct _EbbDiskFile EbbDiskFile;

typedef enum
{
  EBB_DISK_MAKE, /* a file without a name */
  EBB_DISK_GROW,
  EBB_DISK_WRITE,
  EBB_DISK_READ
} EbbDiskOperation;

/* For tests: asked before each operation on any file; the number of an error makes it fail with that. */
extern int (*ebb_disk_fault) (EbbDiskOperation operation);

EbbDiskFile *ebb_disk_file_new (const char *folder,
                                GError **error);
void ebb_disk_file_free (EbbDiskFile *file);
/* FALSE in a child of the process that made it. */
gboolean ebb_disk_file_is_own (EbbDiskFile *file);

/* Room for @size bytes and the rest of the last sector; the file may grow to @limit bytes. */
gboolean ebb_disk_file_take (EbbDiskFile *file,
                             guint64 size,
                             guint64 limit,
                             guint64 *offset,
                             GError **error);
void ebb_disk_file_give (EbbDiskFile *file,
                         guint64 offset,
                         guint64 size);
/* Bytes of the file that are taken, in whole sectors. */
guint64 ebb_disk_file_get_in_use (EbbDiskFile *file);

/* EBB_DISK_WRITE or EBB_DISK_READ. Address, size and offset must be multiples of a sector. 0, the number of an error,
 * or EBB_DISK_SHORTER. */
int ebb_disk_file_move (EbbDiskFile *file,
                        EbbDiskOperation operation,
                        char *data,
                        gsize size,
                        guint64 offset);

/* One line with the folder, the bytes and the reason. */
void ebb_disk_file_set_write_error (EbbDiskFile *file,
                                    guint64 size,
                                    guint64 beside,
                                    int reason,
                                    GError **error);
void ebb_disk_file_set_read_error (EbbDiskFile *file,
                                   guint64 size,
                                   guint64 offset,
                                   int reason,
                                   GError **error);

G_END_DECLS
