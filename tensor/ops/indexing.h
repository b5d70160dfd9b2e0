/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#if !defined(EBB_INSIDE) && !defined(EBB_COMPILATION)
#error "Only <ebb/ebb.h> can be included directly."
#endif

#include "tensor/tensor.h"

G_BEGIN_DECLS

EBB_AVAILABLE_IN_ALL
EbbTensor *ebb_embedding (EbbTensor *weight,
                          EbbTensor *indices,
                          GError **error);

EBB_AVAILABLE_IN_ALL
EbbTensor *ebb_index_select (EbbTensor *x,
                             int dim,
                             EbbTensor *indices,
                             GError **error);

EBB_AVAILABLE_IN_ALL
EbbTensor *ebb_gather (EbbTensor *x,
                       int dim,
                       EbbTensor *indices,
                       GError **error);

EBB_AVAILABLE_IN_ALL
EbbTensor *ebb_scatter_add (EbbTensor *x,
                            int dim,
                            EbbTensor *indices,
                            EbbTensor *source,
                            GError **error);

G_END_DECLS
