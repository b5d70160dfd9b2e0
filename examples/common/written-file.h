/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <json-glib/json-glib.h>

/* Files and folders that an option names: checked before the work, written after it. */

G_BEGIN_DECLS

/* What an option writes, by which files that it may replace are known. */
typedef enum
{
  WRITTEN_ANY, /* also stands for --overwrite */
  WRITTEN_WEIGHTS,
  WRITTEN_REPORT,
  WRITTEN_TRACE,
  WRITTEN_PICTURE,
} WrittenKind;

/* Checks that a file can be written at @path, the value of the option @option, and that a file there is empty or of
 * the same kind. A path of NULL passes. */
gboolean written_file_check (const char *option,
                             const char *path,
                             WrittenKind kind,
                             GError **error);
/* Whether files can be written in the folder @path, which may have to be made; NULL can. */
gboolean written_file_check_folder (const char *option,
                                    const char *path,
                                    GError **error);
/* Writes all that @builder has, or nothing. */
gboolean written_file_write_json (const char *path,
                                  JsonBuilder *builder,
                                  GError **error);

G_END_DECLS
