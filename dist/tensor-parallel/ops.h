/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#if !defined(EBB_INSIDE) && !defined(EBB_COMPILATION)
#error "Only <ebb/ebb.h> can be included directly."
#endif

#include "dist/group/process-group.h"

G_BEGIN_DECLS

EBB_AVAILABLE_IN_ALL
EbbTensor *ebb_parallel_copy (EbbTensor *x,
                              EbbProcessGroup *group,
                              GError **error);

EBB_AVAILABLE_IN_ALL
EbbTensor *ebb_parallel_reduce (EbbTensor *x,
                                EbbProcessGroup *group,
                                GError **error);

EBB_AVAILABLE_IN_ALL
EbbTensor *ebb_parallel_scatter (EbbTensor *x,
                                 int dim,
                                 EbbProcessGroup *group,
                                 GError **error);

EBB_AVAILABLE_IN_ALL
EbbTensor *ebb_parallel_gather (EbbTensor *x,
                                int dim,
                                gboolean sum_gradient,
                                EbbProcessGroup *group,
                                GError **error);

EBB_AVAILABLE_IN_ALL
EbbTensor *ebb_parallel_reduce_scatter (EbbTensor *x,
                                        int dim,
                                        EbbProcessGroup *group,
                                        GError **error);

G_END_DECLS
