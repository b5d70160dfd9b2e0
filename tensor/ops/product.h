/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#if !defined(EBB_INSIDE) && !defined(EBB_COMPILATION)
#error "Only <ebb/ebb.h> can be included directly."
#endif

#include "tensor/tensor.h"

G_BEGIN_DECLS

EBB_AVAILABLE_IN_ALL
EbbTensor *ebb_matmul (EbbTensor *a,
                       EbbTensor *b,
                       GError **error);

EBB_AVAILABLE_IN_ALL
EbbTensor *ebb_matmul_transposed (EbbTensor *a,
                                  EbbTensor *b,
                                  gboolean transpose_a,
                                  gboolean transpose_b,
                                  GError **error);

EBB_AVAILABLE_IN_ALL
EbbTensor *ebb_linear (EbbTensor *x,
                       EbbTensor *weight,
                       EbbTensor *bias,
                       GError **error);

EBB_AVAILABLE_IN_ALL
EbbTensor *ebb_add_linear (EbbTensor *y,
                           EbbTensor *x,
                           EbbTensor *weight,
                           GError **error);

G_END_DECLS
