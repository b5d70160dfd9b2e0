/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Errors about what is in a file or a folder. */
#include "nn/files/file-error-private.h"

#include "tensor/error-private.h"

gboolean
ebb_file_fail (const char *path,
               GError **error,
               const char *format,
               ...)
{
  g_autofree char *shown = ebb_escape_text (path);
  g_autofree char *text = NULL;
  va_list arguments;

  va_start (arguments, format);
  text = g_strdup_vprintf (format, arguments);
  va_end (arguments);
  return ebb_fail (error, EBB_ERROR_FORMAT, "%s: %s", shown, text);
}
