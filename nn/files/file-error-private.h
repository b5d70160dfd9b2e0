/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "tensor/error.h"

/* Errors about what is in a file or a folder. */

G_BEGIN_DECLS

/* Sets an EBB_ERROR_FORMAT "PATH: ...", with the path as messages show it. Always FALSE. */
gboolean ebb_file_fail (const char *path,
                        GError **error,
                        const char *format,
                        ...) G_GNUC_PRINTF (3, 4);

G_END_DECLS
