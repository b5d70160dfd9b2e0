/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "tensor/error-private.h"

/* A file that is there as a whole or not at all: written under another name in the same folder, flushed to the disk,
 * then renamed. */

G_BEGIN_DECLS

#define EBB_ATOMIC_FILE_SUFFIX ".ebb-partial"

typedef struct
{
  char *path;
  char *temporary;
  int fd;
} EbbAtomicFile;

gboolean ebb_atomic_file_open (EbbAtomicFile *self,
                               const char *path,
                               GError **error);
gboolean ebb_atomic_file_write (EbbAtomicFile *self,
                                const void *data,
                                gsize size,
                                GError **error);
/* Makes the file appear, or leaves nothing; either way @self is closed. */
gboolean ebb_atomic_file_commit (EbbAtomicFile *self,
                                 GError **error);
/* Leaves nothing. */
void ebb_atomic_file_abort (EbbAtomicFile *self);
/* Opens a regular file for reading; -1 with an error that names it. */
int ebb_open_regular_file (const char *path,
                           gsize *size,
                           GError **error);
/* Fills @data from the place @offset of the file; it is an error if that has less. @path names it. */
gboolean ebb_read_file_part (int fd,
                             const char *path,
                             guint64 offset,
                             void *data,
                             gsize size,
                             GError **error);
/* Reads a file of at most @max_size bytes; a zero byte follows them. */
char *ebb_read_file (const char *path,
                     gsize max_size,
                     gsize *size,
                     GError **error);
/* Maps it whole, privately: changes are never written back. Who cuts the file meanwhile ends the process (SIGBUS). */
GBytes *ebb_map_file (const char *path,
                      GError **error);

G_END_DECLS
