/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#if !defined(EBB_INSIDE) && !defined(EBB_COMPILATION)
#error "Only <ebb/ebb.h> can be included directly."
#endif

#include "tensor/macros.h"

#include <glib.h>

G_BEGIN_DECLS

EBB_AVAILABLE_IN_ALL
char *ebb_read_file (const char *path,
                     gsize max_size,
                     gsize *size,
                     GError **error);

G_END_DECLS
