/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#if !defined(EBB_INSIDE) && !defined(EBB_COMPILATION)
#error "Only <ebb/ebb.h> can be included directly."
#endif

#include "tensor/tensor.h"
#include "tensor/random.h"

G_BEGIN_DECLS

EBB_AVAILABLE_IN_ALL
gboolean ebb_tensor_fill (EbbTensor *tensor,
                          double value,
                          GError **error);

EBB_AVAILABLE_IN_ALL
gboolean ebb_tensor_copy_from (EbbTensor *tensor,
                               EbbTensor *source,
                               GError **error);

EBB_AVAILABLE_IN_ALL
gboolean ebb_tensor_add_scaled (EbbTensor *tensor,
                                EbbTensor *other,
                                double alpha,
                                GError **error);

EBB_AVAILABLE_IN_ALL
gboolean ebb_tensor_scale (EbbTensor *tensor,
                           double factor,
                           GError **error);

EBB_AVAILABLE_IN_ALL
gboolean ebb_tensor_add_in_place (EbbTensor *tensor,
                                  EbbTensor *other,
                                  GError **error);

EBB_AVAILABLE_IN_ALL
gboolean ebb_tensor_sub_in_place (EbbTensor *tensor,
                                  EbbTensor *other,
                                  GError **error);

EBB_AVAILABLE_IN_ALL
gboolean ebb_tensor_mul_in_place (EbbTensor *tensor,
                                  EbbTensor *other,
                                  GError **error);

EBB_AVAILABLE_IN_ALL
gboolean ebb_tensor_div_in_place (EbbTensor *tensor,
                                  EbbTensor *other,
                                  GError **error);

EBB_AVAILABLE_IN_ALL
gboolean ebb_tensor_add_scalar_in_place (EbbTensor *tensor,
                                         double value,
                                         GError **error);

EBB_AVAILABLE_IN_ALL
gboolean ebb_tensor_sub_scalar_in_place (EbbTensor *tensor,
                                         double value,
                                         GError **error);

EBB_AVAILABLE_IN_ALL
gboolean ebb_tensor_mul_scalar_in_place (EbbTensor *tensor,
                                         double value,
                                         GError **error);

EBB_AVAILABLE_IN_ALL
gboolean ebb_tensor_div_scalar_in_place (EbbTensor *tensor,
                                         double value,
                                         GError **error);

EBB_AVAILABLE_IN_ALL
gboolean ebb_tensor_fill_uniform (EbbTensor *tensor,
                                  double low,
                                  double high,
                                  EbbGenerator *generator,
                                  GError **error);

EBB_AVAILABLE_IN_ALL
gboolean ebb_tensor_fill_normal (EbbTensor *tensor,
                                 double mean,
                                 double std,
                                 EbbGenerator *generator,
                                 GError **error);

G_END_DECLS
