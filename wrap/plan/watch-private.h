/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "wrap/plan/memory-plan.h"

/* A real step whose ops and bytes are noted, to be compared with those of the plan's dry steps. */

G_BEGIN_DECLS

typedef struct _EbbPlanWatch EbbPlanWatch;

/* Runs @step and notes it. NULL: it failed. @missing_bytes: of gradients that others of its steps find at their
 * beginning, and that this one, which runs again, doesn't. */
EbbPlanWatch *ebb_plan_watch_run (EbbModule *model,
                                  EbbStepFunc step,
                                  gpointer user_data,
                                  guint64 missing_bytes,
                                  GError **error);
/* Runs the same step dry. Owned: the first difference; NULL: there is none, or the dry step failed with @error. */
char *ebb_plan_watch_compare (EbbPlanWatch *self,
                              EbbModule *model,
                              EbbStepFunc step,
                              gpointer user_data,
                              GError **error);
void ebb_plan_watch_free (EbbPlanWatch *self);

G_END_DECLS
