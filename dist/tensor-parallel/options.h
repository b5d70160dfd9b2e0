/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#if !defined(EBB_INSIDE) && !defined(EBB_COMPILATION)
#error "Only <ebb/ebb.h> can be included directly."
#endif

#include "dist/tensor-parallel/plan.h"

G_BEGIN_DECLS

#define EBB_TYPE_PARALLEL_OPTIONS (ebb_parallel_options_get_type ())

/**
 * EbbParallelOptions:
 *
 * How ebb_parallelize() divides a model among ranks.
 */
EBB_AVAILABLE_IN_ALL
G_DECLARE_FINAL_TYPE (EbbParallelOptions, ebb_parallel_options, EBB, PARALLEL_OPTIONS, GObject)

EBB_AVAILABLE_IN_ALL
EbbParallelOptions *ebb_parallel_options_new (void);

G_END_DECLS
