/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#if !defined(EBB_INSIDE) && !defined(EBB_COMPILATION)
#error "Only <ebb/ebb.h> can be included directly."
#endif

#include "dist/tensor-parallel/plan.h"
#include "dist/group/process-group.h"
#include "tensor/ops/activation.h"

G_BEGIN_DECLS

EBB_AVAILABLE_IN_ALL
EbbModule *ebb_parallelize (EbbModule *module,
                            EbbProcessGroup *group,
                            EbbParallelOptions *options,
                            GError **error);

EBB_AVAILABLE_IN_ALL
gboolean ebb_parallel_is_parallelized (EbbModule *module);

EBB_AVAILABLE_IN_ALL
EbbProcessGroup *ebb_parallel_get_group (EbbModule *module);

EBB_AVAILABLE_IN_ALL
gboolean ebb_parallel_get_sequence_parallel (EbbModule *module);

EBB_AVAILABLE_IN_ALL
gboolean ebb_parallel_set_sequence_parallel (EbbModule *module,
                                             gboolean on,
                                             GError **error);

/* -- layers by themselves */

EBB_AVAILABLE_IN_ALL
EbbModule *ebb_parallel_attention_new (int width,
                                       int heads,
                                       double dropout,
                                       gboolean causal,
                                       EbbProcessGroup *group,
                                       GError **error);

EBB_AVAILABLE_IN_ALL
EbbModule *ebb_parallel_mlp_new (int width,
                                 int hidden,
                                 EbbActivation activation,
                                 EbbProcessGroup *group,
                                 GError **error);

G_END_DECLS
