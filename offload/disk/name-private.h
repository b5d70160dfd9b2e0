/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <glib.h>

/* Names for files of a folder whose file system has no files without a name. Such a file has its name for a moment, or
 * until it is closed; a process that is killed meanwhile leaves it, and its name tells that nobody needs it. */

G_BEGIN_DECLS

/* A path in @folder for mkostemp (), with the process and when it started. */
char *ebb_disk_name_new (const char *folder);
/* Removes what processes that are gone have left in @folder. A file of a process that lives, or of which that can't be
 * told from here (another machine or container), stays. */
void ebb_disk_name_remove_leftovers (const char *folder);

G_END_DECLS
