/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#if !defined(EBB_INSIDE) && !defined(EBB_COMPILATION)
#error "Only <ebb/ebb.h> can be included directly."
#endif

#include "tensor/error.h"

G_BEGIN_DECLS

EBB_AVAILABLE_IN_ALL
void ebb_push_gradient_sync (gboolean sync);

EBB_AVAILABLE_IN_ALL
void ebb_pop_gradient_sync (void);

EBB_AVAILABLE_IN_ALL
gboolean ebb_is_gradient_sync_enabled (void);

G_END_DECLS
