/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#if !defined(EBB_INSIDE) && !defined(EBB_COMPILATION)
#error "Only <ebb/ebb.h> can be included directly."
#endif

#include "tensor/tensor.h"
#include "tensor/random.h"

G_BEGIN_DECLS

EBB_AVAILABLE_IN_ALL
EbbTensor *ebb_scaled_dot_product_attention (EbbTensor *query,
                                             EbbTensor *key,
                                             EbbTensor *value,
                                             EbbTensor *mask,
                                             gboolean causal,
                                             double scale,
                                             double dropout_p,
                                             EbbGenerator *generator,
                                             GError **error);

EBB_AVAILABLE_IN_ALL
EbbTensor *ebb_self_attention (EbbTensor *qkv,
                               guint n_heads,
                               EbbTensor *mask,
                               gboolean causal,
                               double scale,
                               double dropout_p,
                               EbbGenerator *generator,
                               GError **error);

G_END_DECLS
