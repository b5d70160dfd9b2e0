/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#if !defined(EBB_INSIDE) && !defined(EBB_COMPILATION)
#error "Only <ebb/ebb.h> can be included directly."
#endif

#include "wrap/plan/memory-plan.h"

G_BEGIN_DECLS

/**
 * EbbMemoryScope:
 * @EBB_MEMORY_SCOPE_AUTO: %EBB_MEMORY_SCOPE_PROCESS if the training computes on the CPU, else %EBB_MEMORY_SCOPE_DEVICE
 * @EBB_MEMORY_SCOPE_PROCESS: resident bytes of the process: tensors in host memory, gaps between them, and the bytes of
 *   the program itself
 * @EBB_MEMORY_SCOPE_DEVICE: bytes of the device's tensors alone
 *
 * The memory that a budget limits.
 */
typedef enum
{
  EBB_MEMORY_SCOPE_AUTO,
  EBB_MEMORY_SCOPE_PROCESS,
  EBB_MEMORY_SCOPE_DEVICE
} EbbMemoryScope;

#define EBB_TYPE_MEMORY_SCOPE (ebb_memory_scope_get_type ())

EBB_AVAILABLE_IN_ALL
GType ebb_memory_scope_get_type (void);

/**
 * EbbConcessions:
 * @EBB_CONCESSIONS_NONE: nothing
 * @EBB_CONCESSIONS_LOSS_CHUNK: the loss computes a quarter of the usual chunk of logits at a time
 * @EBB_CONCESSIONS_MICRO_BATCHES: each step adds up gradients over 2, 4, or 8 parts of its batch
 * @EBB_CONCESSIONS_BF16_MOMENTS: the optimizer keeps its moments in bf16
 * @EBB_CONCESSIONS_EIGHT_BIT_MOMENTS: the optimizer keeps its moments in 8 bits
 * @EBB_CONCESSIONS_BF16_RESIDUAL: a model that computes in bf16 keeps its residual stream in bf16, too
 * @EBB_CONCESSIONS_STEP_IN_BACKWARD: each parameter is updated as soon as its gradient is complete
 * @EBB_CONCESSIONS_BF16_WEIGHTS: weights stay in bf16 where their file has them in bf16
 *
 * Changes that save memory and also change values or the order of sums. A budget takes a change only if it is allowed
 * and no plan fits without it. Changes are tried in this order, except %EBB_CONCESSIONS_BF16_WEIGHTS: it is taken from
 * the first try where it is allowed.
 */
typedef enum /*< flags >*/
{
  EBB_CONCESSIONS_NONE = 0,
  EBB_CONCESSIONS_LOSS_CHUNK = 1 << 0,
  EBB_CONCESSIONS_MICRO_BATCHES = 1 << 1,
  EBB_CONCESSIONS_BF16_MOMENTS = 1 << 2,
  EBB_CONCESSIONS_EIGHT_BIT_MOMENTS = 1 << 3,
  EBB_CONCESSIONS_BF16_RESIDUAL = 1 << 4,
  EBB_CONCESSIONS_STEP_IN_BACKWARD = 1 << 5,
  EBB_CONCESSIONS_BF16_WEIGHTS = 1 << 6
} EbbConcessions;

#define EBB_TYPE_CONCESSIONS (ebb_concessions_get_type ())

EBB_AVAILABLE_IN_ALL
GType ebb_concessions_get_type (void);

#define EBB_TYPE_MEMORY_BUDGET (ebb_memory_budget_get_type ())

/**
 * EbbMemoryBudget:
 *
 * Bytes that a training keeps within, and what was done to keep within them.
 */
EBB_AVAILABLE_IN_ALL
G_DECLARE_FINAL_TYPE (EbbMemoryBudget, ebb_memory_budget, EBB, MEMORY_BUDGET, GObject)

EBB_AVAILABLE_IN_ALL
EbbMemoryBudget *ebb_memory_budget_new (guint64 bytes);

EBB_AVAILABLE_IN_ALL
EbbMemoryBudget *ebb_memory_budget_new_parse (const char *size,
                                              GError **error);

EBB_AVAILABLE_IN_ALL
gboolean ebb_memory_budget_plan (EbbMemoryBudget *self,
                                 EbbTrainingState *training,
                                 EbbStepFunc step,
                                 gpointer user_data,
                                 GError **error);

EBB_AVAILABLE_IN_ALL
gboolean ebb_memory_budget_run_step (EbbMemoryBudget *self,
                                     EbbStepFunc step,
                                     gpointer user_data,
                                     GError **error);

EBB_AVAILABLE_IN_ALL
void ebb_memory_budget_release (EbbMemoryBudget *self);

EBB_AVAILABLE_IN_ALL
EbbMemoryPlan *ebb_memory_budget_get_plan (EbbMemoryBudget *self);

EBB_AVAILABLE_IN_ALL
char *ebb_memory_budget_to_json (EbbMemoryBudget *self);

G_END_DECLS
