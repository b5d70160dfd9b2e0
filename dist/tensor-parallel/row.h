/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#if !defined(EBB_INSIDE) && !defined(EBB_COMPILATION)
#error "Only <ebb/ebb.h> can be included directly."
#endif

#include "dist/group/process-group.h"
#include "nn/layers/linear.h"

G_BEGIN_DECLS

#define EBB_TYPE_ROW_PARALLEL_LINEAR (ebb_row_parallel_linear_get_type ())

EBB_AVAILABLE_IN_ALL
G_DECLARE_FINAL_TYPE (EbbRowParallelLinear, ebb_row_parallel_linear, EBB, ROW_PARALLEL_LINEAR, EbbLinear)

EBB_AVAILABLE_IN_ALL
EbbModule *ebb_row_parallel_linear_new (int in_features,
                                        int out_features,
                                        gboolean bias,
                                        gboolean input_is_parallel,
                                        EbbProcessGroup *group,
                                        GError **error);

G_END_DECLS
