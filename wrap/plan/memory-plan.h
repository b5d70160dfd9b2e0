/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#if !defined(EBB_INSIDE) && !defined(EBB_COMPILATION)
#error "Only <ebb/ebb.h> can be included directly."
#endif

#include "dist/group/process-group.h"
#include "nn/module.h"
#include "nn/state/training-state.h"
#include "offload/kinds/store-kinds.h"
#include "tensor/autograd/saved-tensor.h"
#include "wrap/plan/estimate.h"

G_BEGIN_DECLS

#define EBB_TYPE_MEMORY_PLAN (ebb_memory_plan_get_type ())

/**
 * EbbMemoryPlan:
 *
 * What each block of a model keeps, recomputes and moves, so that a training step stays within a budget of bytes.
 */
EBB_AVAILABLE_IN_ALL
G_DECLARE_FINAL_TYPE (EbbMemoryPlan, ebb_memory_plan, EBB, MEMORY_PLAN, GObject)

EBB_AVAILABLE_IN_ALL
EbbMemoryPlan *ebb_memory_plan_new (EbbModule *model,
                                    EbbDevice *device,
                                    EbbSavedTensorHooks *store,
                                    EbbStepFunc step,
                                    gpointer user_data,
                                    guint64 budget_bytes,
                                    GError **error);

EBB_AVAILABLE_IN_ALL
EbbMemoryPlan *ebb_memory_plan_new_measured (EbbModule *model,
                                             EbbDevice *device,
                                             EbbStepFunc step,
                                             gpointer user_data,
                                             guint64 budget_bytes,
                                             GError **error);

EBB_AVAILABLE_IN_ALL
EbbMemoryPlan *ebb_memory_plan_new_on_ranks (EbbModule *model,
                                             EbbDevice *device,
                                             EbbSavedTensorHooks *store,
                                             EbbProcessGroup *group,
                                             EbbStepFunc step,
                                             gpointer user_data,
                                             guint64 budget_bytes,
                                             GError **error);

EBB_AVAILABLE_IN_ALL
EbbMemoryPlan *ebb_memory_plan_new_least (EbbModule *model,
                                          EbbDevice *device,
                                          EbbSavedTensorHooks *store,
                                          EbbProcessGroup *group,
                                          EbbStepFunc step,
                                          gpointer user_data,
                                          GError **error);

EBB_AVAILABLE_IN_ALL
EbbMemoryPlan *ebb_memory_plan_load (EbbModule *model,
                                     const char *path,
                                     GError **error);

EBB_AVAILABLE_IN_ALL
EbbMemoryPlan *ebb_memory_plan_load_on_ranks (EbbModule *model,
                                              EbbProcessGroup *group,
                                              const char *path,
                                              GError **error);

EBB_AVAILABLE_IN_ALL
EbbMemoryPlan *ebb_memory_plan_new_from_json (EbbModule *model,
                                              const char *json,
                                              GError **error);

EBB_AVAILABLE_IN_ALL
gboolean ebb_memory_plan_save (EbbMemoryPlan *self,
                               const char *path,
                               GError **error);

EBB_AVAILABLE_IN_ALL
char *ebb_memory_plan_to_string (EbbMemoryPlan *self);

EBB_AVAILABLE_IN_ALL
char *ebb_memory_plan_to_json (EbbMemoryPlan *self);

EBB_AVAILABLE_IN_ALL
void ebb_memory_plan_set_store (EbbMemoryPlan *self,
                                EbbMemoryPlace place,
                                EbbSavedTensorHooks *store);

EBB_AVAILABLE_IN_ALL
gboolean ebb_memory_plan_apply (EbbMemoryPlan *self,
                                GError **error);

EBB_AVAILABLE_IN_ALL
void ebb_memory_plan_unapply (EbbMemoryPlan *self);

EBB_AVAILABLE_IN_ALL
gboolean ebb_memory_plan_lower (EbbMemoryPlan *self,
                                GError **error);

EBB_AVAILABLE_IN_ALL
gboolean ebb_memory_plan_run_step (EbbMemoryPlan *self,
                                   EbbTrainingState *training,
                                   EbbStepFunc step,
                                   gpointer user_data,
                                   GError **error);

EBB_AVAILABLE_IN_ALL
gboolean ebb_memory_plan_check_step (EbbMemoryPlan *self,
                                     EbbStepFunc step,
                                     gpointer user_data,
                                     GError **error);

G_END_DECLS
