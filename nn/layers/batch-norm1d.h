/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#if !defined(EBB_INSIDE) && !defined(EBB_COMPILATION)
#error "Only <ebb/ebb.h> can be included directly."
#endif

#include "nn/module.h"

G_BEGIN_DECLS

#define EBB_TYPE_BATCH_NORM1D (ebb_batch_norm1d_get_type ())

EBB_AVAILABLE_IN_ALL
G_DECLARE_FINAL_TYPE (EbbBatchNorm1d, ebb_batch_norm1d, EBB, BATCH_NORM1D, EbbModule)

EBB_AVAILABLE_IN_ALL
EbbModule *ebb_batch_norm1d_new (int num_features,
                                 double eps,
                                 double momentum,
                                 GError **error);

G_END_DECLS
