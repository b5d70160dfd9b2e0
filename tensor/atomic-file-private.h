/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "tensor/error.h"

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
/* Maps it whole, privately: changes are never written back. */
GBytes *ebb_map_file (const char *path,
                      GError **error);

G_END_DECLS
