/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#if !defined(EBB_INSIDE) && !defined(EBB_COMPILATION)
#error "Only <ebb/ebb.h> can be included directly."
#endif

#include <glib.h>

#include "tensor/dtype.h"
#include "tensor/macros.h"

G_BEGIN_DECLS

EBB_AVAILABLE_IN_ALL
void ebb_push_initialization_skipped (void);

EBB_AVAILABLE_IN_ALL
void ebb_pop_initialization_skipped (void);

EBB_AVAILABLE_IN_ALL
gboolean ebb_is_initialization_skipped (void);

EBB_AVAILABLE_IN_ALL
void ebb_push_parameter_dtype (EbbDType dtype);

EBB_AVAILABLE_IN_ALL
void ebb_pop_parameter_dtype (void);

G_END_DECLS
