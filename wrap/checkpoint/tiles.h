/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#if !defined(EBB_INSIDE) && !defined(EBB_COMPILATION)
#error "Only <ebb/ebb.h> can be included directly."
#endif

#include "nn/module.h"

G_BEGIN_DECLS

EBB_AVAILABLE_IN_ALL
EbbModule *ebb_tile_wrapper (EbbModule *module,
                             gint64 n_rows,
                             GError **error);

EBB_AVAILABLE_IN_ALL
gboolean ebb_tile_wrap_each (EbbModule *root,
                             GType type,
                             gint64 n_rows,
                             GError **error);

EBB_AVAILABLE_IN_ALL
gboolean ebb_tile_unwrap (EbbModule *module);

EBB_AVAILABLE_IN_ALL
gboolean ebb_tile_is_wrapped (EbbModule *module);

EBB_AVAILABLE_IN_ALL
gint64 ebb_tile_get_rows (EbbModule *module);

EBB_AVAILABLE_IN_ALL
gint64 ebb_tile_get_row_block (void);

EBB_AVAILABLE_IN_ALL
gint64 ebb_tile_get_least_rows (void);

G_END_DECLS
