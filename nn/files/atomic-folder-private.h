/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "tensor/error.h"

/* A folder whose files appear together or not at all: they are written to another folder beside it, which then takes
 * its name. What is in a folder that is replaced stays there, except for the files that the new ones replace. A lock
 * says that the other folder is being written, so that leftovers of killed processes are known.
 *
 * The files of a folder without the key file, and those of the current folder, are replaced one by one, the key file
 * last. An error puts the old ones back. If the machine stops in between, the folder has no key file, and the old files
 * are in the other folder until the next one is written there, which puts them back first. */

G_BEGIN_DECLS

/* TRUE if a new folder replaces the file even if it has none of that name. */
typedef gboolean (*EbbIsReplacedFunc) (const char *name);

typedef struct
{
  char *path;
  char *temporary; /* where to write the files */
  const char *key; /* the file without which the folder has no meaning */
  EbbIsReplacedFunc is_replaced;
  int fd; /* of the temporary folder: it holds the lock */
} EbbAtomicFolder;

/* Makes the temporary folder, and removes those that killed processes have left. @key and @is_replaced: as above. */
gboolean ebb_atomic_folder_open (EbbAtomicFolder *self,
                                 const char *path,
                                 const char *key,
                                 EbbIsReplacedFunc is_replaced,
                                 GError **error);
/* Writes a file into the temporary folder. */
gboolean ebb_atomic_folder_write (EbbAtomicFolder *self,
                                  const char *name,
                                  const void *data,
                                  gsize size,
                                  GError **error);
/* Makes the files appear, or leaves what was there; either way @self is closed. */
gboolean ebb_atomic_folder_commit (EbbAtomicFolder *self,
                                   GError **error);
/* Leaves nothing. */
void ebb_atomic_folder_abort (EbbAtomicFolder *self);

G_END_DECLS
