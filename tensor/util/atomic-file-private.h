/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "tensor/error-private.h"
#include "tensor/util/file.h"

/* A file that is there as a whole or not at all: written under another name in the same folder, flushed to the disk,
 * then renamed. Its writer holds a lock on it, which ends with the process, so leftovers of killed ones are known. */

G_BEGIN_DECLS

#define EBB_ATOMIC_FILE_SUFFIX ".ebb-partial"

typedef struct
{
  char *path;
  char *temporary;
  int fd;
} EbbAtomicFile;

/* Removes what killed processes have left of writing the same file. */
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
/* Writes a file of these bytes. */
gboolean ebb_atomic_file_save (const char *path,
                               const void *data,
                               gsize size,
                               GError **error);
/* Leaves nothing. */
void ebb_atomic_file_abort (EbbAtomicFile *self);
/* Closes @self and leaves the unfinished file. */
void ebb_atomic_file_leave (EbbAtomicFile *self);
/* What the names of unfinished files and folders begin with: the name of @path, or a cut one with a hash where the file
 * system allows no name that is longer by a suffix. */
char *ebb_atomic_file_make_stem (const char *path);
/* Removes the unfinished files in @folder whose names begin with @prefix and which no living process writes. Never
 * fails: what stays takes room, and the next call tries again. */
void ebb_atomic_file_clean (const char *folder,
                            const char *prefix);
/* The names in @folder, which was read to its end; NULL with %EBB_ERROR_IO if it wasn't. */
char **ebb_list_folder (const char *folder,
                        GError **error);
/* Whether there is such a folder; if not, the error says that it is missing, or a file. */
gboolean ebb_check_folder (const char *folder,
                           GError **error);
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
/* Whether @data, with which the file begins, is the file's own: a clone without Git LFS has pointers in its place. */
gboolean ebb_check_is_content (const char *path,
                               const void *data,
                               gsize size,
                               GError **error);
/* Maps it whole, privately: changes are never written back. Who cuts the file meanwhile ends the process (SIGBUS). */
GBytes *ebb_map_file (const char *path,
                      GError **error);

G_END_DECLS
