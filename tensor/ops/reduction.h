/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#if !defined(EBB_INSIDE) && !defined(EBB_COMPILATION)
#error "Only <ebb/ebb.h> can be included directly."
#endif

#include "tensor/tensor.h"

G_BEGIN_DECLS

EBB_AVAILABLE_IN_ALL
EbbTensor *ebb_sum (EbbTensor *x,
                    const int *dims,
                    guint n_dims,
                    gboolean keep_dims,
                    GError **error);

EBB_AVAILABLE_IN_ALL
EbbTensor *ebb_mean (EbbTensor *x,
                     const int *dims,
                     guint n_dims,
                     gboolean keep_dims,
                     GError **error);

EBB_AVAILABLE_IN_ALL
EbbTensor *ebb_max (EbbTensor *x,
                    const int *dims,
                    guint n_dims,
                    gboolean keep_dims,
                    GError **error);

EBB_AVAILABLE_IN_ALL
EbbTensor *ebb_min (EbbTensor *x,
                    const int *dims,
                    guint n_dims,
                    gboolean keep_dims,
                    GError **error);

EBB_AVAILABLE_IN_ALL
EbbTensor *ebb_var (EbbTensor *x,
                    const int *dims,
                    guint n_dims,
                    double correction,
                    gboolean keep_dims,
                    GError **error);

EBB_AVAILABLE_IN_ALL
EbbTensor *ebb_norm (EbbTensor *x,
                     GError **error);

EBB_AVAILABLE_IN_ALL
EbbTensor *ebb_argmax (EbbTensor *x,
                       int dim,
                       gboolean keep_dim,
                       GError **error);

EBB_AVAILABLE_IN_ALL
gboolean ebb_max_along (EbbTensor *x,
                        int dim,
                        gboolean keep_dim,
                        EbbTensor **values,
                        EbbTensor **indices,
                        GError **error);

EBB_AVAILABLE_IN_ALL
gboolean ebb_topk (EbbTensor *x,
                   gint64 k,
                   gboolean largest,
                   EbbTensor **values,
                   EbbTensor **indices,
                   GError **error);

G_END_DECLS
