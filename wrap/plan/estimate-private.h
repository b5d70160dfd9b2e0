/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "tensor/dry-run-private.h"
#include "wrap/plan/estimate.h"

G_BEGIN_DECLS

/* Of the operands of a kernel that is measured: estimates and plans take little memory. */
#define EBB_ESTIMATE_MEASURED_BYTES ((guint64) 64 << 20)

/* In the run: its memory takes the place of that of the model's parameters and buffers, each where it is, or on @device
 * if none is there. What else is in use there and in host memory counts to the run. */
gboolean ebb_memory_estimate_adopt_model (EbbDryRun *run,
                                          EbbModule *model,
                                          EbbDevice *device,
                                          GError **error);

/* ebb_cost_table_run_products () of the step's products. */
gboolean ebb_memory_estimate_run_products (EbbMemoryEstimate *self,
                                           guint64 max_bytes,
                                           guint64 *n_taken,
                                           GError **error);

G_END_DECLS
