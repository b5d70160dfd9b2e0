/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#if !defined(EBB_INSIDE) && !defined(EBB_COMPILATION)
#error "Only <ebb/ebb.h> can be included directly."
#endif

#include "tensor/tensor.h"
#include "tensor/random.h"

G_BEGIN_DECLS

EBB_AVAILABLE_IN_ALL
EbbTensor *ebb_layer_norm (EbbTensor *x,
                           EbbTensor *weight,
                           EbbTensor *bias,
                           double eps,
                           GError **error);

EBB_AVAILABLE_IN_ALL
EbbTensor *ebb_rms_norm (EbbTensor *x,
                         EbbTensor *weight,
                         double eps,
                         GError **error);

EBB_AVAILABLE_IN_ALL
EbbTensor *ebb_unit_offset_rms_norm (EbbTensor *x,
                                     EbbTensor *weight,
                                     double eps,
                                     GError **error);

EBB_AVAILABLE_IN_ALL
EbbTensor *ebb_batch_norm (EbbTensor *x,
                           EbbTensor *weight,
                           EbbTensor *bias,
                           EbbTensor *running_mean,
                           EbbTensor *running_var,
                           gboolean training,
                           double momentum,
                           double eps,
                           GError **error);

EBB_AVAILABLE_IN_ALL
gboolean ebb_residual_dropout_layer_norm (EbbTensor *x,
                                          EbbTensor *residual,
                                          EbbTensor *weight,
                                          EbbTensor *bias,
                                          double eps,
                                          double dropout_p,
                                          gboolean training,
                                          EbbGenerator *generator,
                                          EbbTensor **sum,
                                          EbbTensor **normalized,
                                          GError **error);

EBB_AVAILABLE_IN_ALL
gboolean ebb_residual_dropout_rms_norm (EbbTensor *x,
                                        EbbTensor *residual,
                                        EbbTensor *branch_weight,
                                        EbbTensor *weight,
                                        double eps,
                                        gboolean unit_offset,
                                        double dropout_p,
                                        gboolean training,
                                        EbbGenerator *generator,
                                        EbbTensor **sum,
                                        EbbTensor **normalized,
                                        GError **error);

EBB_AVAILABLE_IN_ALL
EbbTensor *ebb_residual_dropout (EbbTensor *x,
                                 EbbTensor *residual,
                                 double dropout_p,
                                 gboolean training,
                                 EbbGenerator *generator,
                                 GError **error);

G_END_DECLS
