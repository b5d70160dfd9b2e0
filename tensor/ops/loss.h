/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#if !defined(EBB_INSIDE) && !defined(EBB_COMPILATION)
#error "Only <ebb/ebb.h> can be included directly."
#endif

#include "tensor/tensor.h"

G_BEGIN_DECLS

/**
 * EbbReduction:
 * @EBB_REDUCTION_MEAN: the mean over targets that are not ignored
 * @EBB_REDUCTION_SUM: the sum
 * @EBB_REDUCTION_NONE: one loss for each target
 *
 * How the losses of single targets become one.
 */
typedef enum
{
  EBB_REDUCTION_MEAN,
  EBB_REDUCTION_SUM,
  EBB_REDUCTION_NONE
} EbbReduction;

EBB_AVAILABLE_IN_ALL
EbbTensor *ebb_cross_entropy (EbbTensor *logits,
                              EbbTensor *targets,
                              GError **error);

EBB_AVAILABLE_IN_ALL
EbbTensor *ebb_cross_entropy_full (EbbTensor *logits,
                                   EbbTensor *targets,
                                   gint64 ignore_index,
                                   double label_smoothing,
                                   EbbReduction reduction,
                                   GError **error);

EBB_AVAILABLE_IN_ALL
EbbTensor *ebb_fused_linear_cross_entropy (EbbTensor *x,
                                           EbbTensor *weight,
                                           EbbTensor *bias,
                                           EbbTensor *targets,
                                           gint64 ignore_index,
                                           double label_smoothing,
                                           EbbReduction reduction,
                                           GError **error);

EBB_AVAILABLE_IN_ALL
EbbTensor *ebb_fused_linear_cross_entropy_full (EbbTensor *x,
                                                EbbTensor *weight,
                                                EbbTensor *bias,
                                                EbbTensor *targets,
                                                gint64 ignore_index,
                                                double label_smoothing,
                                                double softcap,
                                                EbbReduction reduction,
                                                GError **error);

G_END_DECLS
