/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#if !defined(EBB_INSIDE) && !defined(EBB_COMPILATION)
#error "Only <ebb/ebb.h> can be included directly."
#endif

#include "dist/group/process-group.h"
#include "nn/layers/linear.h"

G_BEGIN_DECLS

#define EBB_TYPE_COLUMN_PARALLEL_LINEAR (ebb_column_parallel_linear_get_type ())

EBB_AVAILABLE_IN_ALL
G_DECLARE_FINAL_TYPE (EbbColumnParallelLinear, ebb_column_parallel_linear, EBB, COLUMN_PARALLEL_LINEAR, EbbLinear)

EBB_AVAILABLE_IN_ALL
EbbModule *ebb_column_parallel_linear_new (int in_features,
                                           int out_features,
                                           gboolean bias,
                                           gboolean gather_output,
                                           EbbProcessGroup *group,
                                           GError **error);

G_END_DECLS
