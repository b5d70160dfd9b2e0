/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#if !defined(EBB_INSIDE) && !defined(EBB_COMPILATION)
#error "Only <ebb/ebb.h> can be included directly."
#endif

#include "tensor/macros.h"

#include <glib.h>

G_BEGIN_DECLS

EBB_AVAILABLE_IN_ALL
gboolean ebb_check_text_format (const char *name,
                                const guint8 *start,
                                gsize n,
                                gboolean may_be_binary,
                                GError **error);

G_END_DECLS
