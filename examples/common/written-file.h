/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <glib.h>

/* Files and folders that an option names: checked before the work, written after it. */

G_BEGIN_DECLS

/* Checks that a file can be written at @path, the value of the option @option. A path of NULL passes. */
gboolean written_file_check (const char *option,
                             const char *path,
                             GError **error);
/* Whether files can be written in the folder @path, which may have to be made; NULL can. */
gboolean written_file_check_folder (const char *option,
                                    const char *path,
                                    GError **error);
/* Writes the whole text or nothing. */
gboolean written_file_write (const char *path,
                             const char *text,
                             GError **error);

G_END_DECLS
