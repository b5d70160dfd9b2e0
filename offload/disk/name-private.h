/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <glib.h>

/* Names for files of a folder whose file system has no files without a name. Such a file has its name for a moment, or
 * until it is closed; a process that is killed meanwhile leaves it, and its name says that it can be removed. */

G_BEGIN_DECLS

/* A path in @folder for mkostemp (), with the process and when it started. */
char *ebb_disk_name_new (const char *folder);
/* Removes the files that dead processes have left in @folder. A file of a live process stays, and one whose process
 * can't be seen from here (another machine or container). */
void ebb_disk_name_remove_leftovers (const char *folder);

G_END_DECLS
