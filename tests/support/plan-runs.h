/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "support/bench-training.h"

/* A small training that is planned and then run by its plan. No launch is measured, so seconds are those of fixed rates
 * and of the file of costs. Links the static library. */

G_BEGIN_DECLS

#define TEST_PLAN_RUN_STEPS 3

typedef struct
{
  BenchTraining *training;
  EbbSavedTensorHooks *store; /* to which its plans may move; set it, or leave it NULL */
  guint64 own;                /* bytes that it has in use between steps, before the first one */
  guint n_steps;              /* dry and real ones */
  double losses[TEST_PLAN_RUN_STEPS];
} TestPlanRun;

void test_plan_run_init (TestPlanRun *self,
                         const BenchSettings *settings);
void test_plan_run_clear (TestPlanRun *self);
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC (TestPlanRun, test_plan_run_clear)

/* @user_data is the training. */
gboolean test_plan_run_step (EbbModule *model,
                             gpointer user_data,
                             GError **error);
/* NULL with an error: no plan keeps @budget. */
EbbMemoryPlan *test_plan_run_try (TestPlanRun *self,
                                  guint64 budget,
                                  GError **error);
/* There is a plan. */
EbbMemoryPlan *test_plan_run_plan (TestPlanRun *self,
                                   guint64 budget);
/* Real steps, whose losses it reads. Returns the bytes of the last one at most. */
guint64 test_plan_run_train (TestPlanRun *self);

/* The budget number @i of @n from the least to that of the step without a plan. */
guint64 test_plan_get_budget (EbbMemoryPlan *any,
                              guint i,
                              guint n);

G_END_DECLS
