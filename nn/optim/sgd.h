/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#if !defined(EBB_INSIDE) && !defined(EBB_COMPILATION)
#error "Only <ebb/ebb.h> can be included directly."
#endif

#include "nn/optim/optimizer.h"

G_BEGIN_DECLS

#define EBB_TYPE_SGD (ebb_sgd_get_type ())

/**
 * EbbSgd:
 *
 * Stochastic gradient descent, with or without momentum.
 */
EBB_AVAILABLE_IN_ALL
G_DECLARE_FINAL_TYPE (EbbSgd, ebb_sgd, EBB, SGD, EbbOptimizer)

EBB_AVAILABLE_IN_ALL
EbbOptimizer *ebb_sgd_new (EbbModule *module,
                           double lr,
                           GError **error);

EBB_AVAILABLE_IN_ALL
EbbOptimizer *ebb_sgd_new_for_parameters (EbbTensor **parameters,
                                          guint n_parameters,
                                          double lr,
                                          GError **error);

G_END_DECLS
