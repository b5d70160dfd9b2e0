/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#if !defined(EBB_INSIDE) && !defined(EBB_COMPILATION)
#error "Only <ebb/ebb.h> can be included directly."
#endif

#include "tensor/device.h"

G_BEGIN_DECLS

EBB_AVAILABLE_IN_ALL
void ebb_push_dry_run (void);

EBB_AVAILABLE_IN_ALL
void ebb_pop_dry_run (void);

EBB_AVAILABLE_IN_ALL
gboolean ebb_is_dry_run (void);

G_END_DECLS
