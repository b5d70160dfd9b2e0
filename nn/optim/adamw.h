/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#if !defined(EBB_INSIDE) && !defined(EBB_COMPILATION)
#error "Only <ebb/ebb.h> can be included directly."
#endif

#include "nn/optim/adam.h"

G_BEGIN_DECLS

#define EBB_TYPE_ADAMW (ebb_adamw_get_type ())

/**
 * EbbAdamW:
 *
 * Adam with decoupled weight decay.
 */
EBB_AVAILABLE_IN_ALL
G_DECLARE_FINAL_TYPE (EbbAdamW, ebb_adamw, EBB, ADAMW, EbbAdam)

EBB_AVAILABLE_IN_ALL
EbbOptimizer *ebb_adamw_new (EbbModule *module,
                             double lr,
                             GError **error);

EBB_AVAILABLE_IN_ALL
EbbOptimizer *ebb_adamw_new_for_parameters (EbbTensor **parameters,
                                            guint n_parameters,
                                            double lr,
                                            GError **error);

G_END_DECLS
