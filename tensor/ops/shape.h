/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#if !defined(EBB_INSIDE) && !defined(EBB_COMPILATION)
#error "Only <ebb/ebb.h> can be included directly."
#endif

#include "tensor/tensor.h"

G_BEGIN_DECLS

EBB_AVAILABLE_IN_ALL
EbbTensor *ebb_reshape (EbbTensor *x,
                        const gint64 *shape,
                        guint n_dims,
                        GError **error);

EBB_AVAILABLE_IN_ALL
EbbTensor *ebb_view (EbbTensor *x,
                     const gint64 *shape,
                     guint n_dims,
                     GError **error);

EBB_AVAILABLE_IN_ALL
EbbTensor *ebb_permute (EbbTensor *x,
                        const int *dims,
                        guint n_dims,
                        GError **error);

EBB_AVAILABLE_IN_ALL
EbbTensor *ebb_transpose (EbbTensor *x,
                          int dim0,
                          int dim1,
                          GError **error);

EBB_AVAILABLE_IN_ALL
EbbTensor *ebb_expand (EbbTensor *x,
                       const gint64 *shape,
                       guint n_dims,
                       GError **error);

EBB_AVAILABLE_IN_ALL
EbbTensor *ebb_contiguous (EbbTensor *x,
                           GError **error);

EBB_AVAILABLE_IN_ALL
EbbTensor *ebb_squeeze (EbbTensor *x,
                        int dim,
                        GError **error);

EBB_AVAILABLE_IN_ALL
EbbTensor *ebb_unsqueeze (EbbTensor *x,
                          int dim,
                          GError **error);

EBB_AVAILABLE_IN_ALL
EbbTensor *ebb_flatten (EbbTensor *x,
                        int start_dim,
                        int end_dim,
                        GError **error);

EBB_AVAILABLE_IN_ALL
EbbTensor *ebb_narrow (EbbTensor *x,
                       int dim,
                       gint64 start,
                       gint64 length,
                       GError **error);

EBB_AVAILABLE_IN_ALL
EbbTensor *ebb_select (EbbTensor *x,
                       int dim,
                       gint64 index,
                       GError **error);

EBB_AVAILABLE_IN_ALL
EbbTensor *ebb_slice (EbbTensor *x,
                      int dim,
                      gint64 start,
                      gint64 end,
                      gint64 step,
                      GError **error);

EBB_AVAILABLE_IN_ALL
EbbTensor **ebb_split (EbbTensor *x,
                       gint64 size,
                       int dim,
                       guint *n_parts,
                       GError **error);

EBB_AVAILABLE_IN_ALL
EbbTensor **ebb_chunk (EbbTensor *x,
                       gint64 n_chunks,
                       int dim,
                       guint *n_parts,
                       GError **error);

EBB_AVAILABLE_IN_ALL
EbbTensor *ebb_cat (EbbTensor **tensors,
                    guint n_tensors,
                    int dim,
                    GError **error);

EBB_AVAILABLE_IN_ALL
EbbTensor *ebb_stack (EbbTensor **tensors,
                      guint n_tensors,
                      int dim,
                      GError **error);

G_END_DECLS
