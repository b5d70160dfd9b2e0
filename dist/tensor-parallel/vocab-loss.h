/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#if !defined(EBB_INSIDE) && !defined(EBB_COMPILATION)
#error "Only <ebb/ebb.h> can be included directly."
#endif

#include "dist/group/process-group.h"
#include "tensor/ops/loss.h"

G_BEGIN_DECLS

EBB_AVAILABLE_IN_ALL
EbbTensor *ebb_vocab_parallel_cross_entropy (EbbTensor *logits,
                                             EbbTensor *targets,
                                             gint64 n_classes,
                                             gint64 ignore_index,
                                             EbbReduction reduction,
                                             EbbProcessGroup *group,
                                             GError **error);

EBB_AVAILABLE_IN_ALL
EbbTensor *ebb_vocab_parallel_linear_cross_entropy (EbbTensor *x,
                                                    EbbTensor *weight,
                                                    EbbTensor *bias,
                                                    EbbTensor *targets,
                                                    gint64 n_classes,
                                                    gint64 ignore_index,
                                                    EbbReduction reduction,
                                                    EbbProcessGroup *group,
                                                    GError **error);

EBB_AVAILABLE_IN_ALL
EbbTensor *ebb_vocab_parallel_linear_cross_entropy_full (EbbTensor *x,
                                                         EbbTensor *weight,
                                                         EbbTensor *bias,
                                                         EbbTensor *targets,
                                                         gint64 n_classes,
                                                         gint64 ignore_index,
                                                         double softcap,
                                                         EbbReduction reduction,
                                                         EbbProcessGroup *group,
                                                         GError **error);

G_END_DECLS
