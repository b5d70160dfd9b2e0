/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#if !defined(EBB_INSIDE) && !defined(EBB_COMPILATION)
#error "Only <ebb/ebb.h> can be included directly."
#endif

#include "tensor/tensor.h"

G_BEGIN_DECLS

EBB_AVAILABLE_IN_ALL
EbbTensor *ebb_rotary (EbbTensor *x,
                       EbbTensor *inverse_frequencies,
                       EbbTensor *starts,
                       gint64 first,
                       double factor,
                       double ntk,
                       GError **error);

G_END_DECLS
