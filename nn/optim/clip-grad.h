/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#if !defined(EBB_INSIDE) && !defined(EBB_COMPILATION)
#error "Only <ebb/ebb.h> can be included directly."
#endif

#include "tensor/tensor.h"

G_BEGIN_DECLS

EBB_AVAILABLE_IN_ALL
EbbTensor *ebb_clip_grad_norm (EbbTensor **parameters,
                               guint n_parameters,
                               double max_norm,
                               GError **error);

EBB_AVAILABLE_IN_ALL
EbbTensor *ebb_clip_grad_p_norm (EbbTensor **parameters,
                                 guint n_parameters,
                                 double max_norm,
                                 double p,
                                 GError **error);

G_END_DECLS
