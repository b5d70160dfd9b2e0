/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/plan-runs.h"

#include "wrap/plan/memory-plan-private.h"

static guint64
count_bytes (EbbDevice *device)
{
  g_autoptr (EbbMemoryStats) stats = ebb_memory_get_stats (device);

  return ebb_memory_stats_get_total (stats);
}

void
test_plan_run_init (TestPlanRun *self,
                    const BenchSettings *settings)
{
  const guint64 before = count_bytes (settings->device);
  g_autoptr (GError) error = NULL;

  *self = (TestPlanRun){ 0 };
  self->training = bench_training_new (settings, &error);
  g_assert_no_error (error);
  self->own = count_bytes (settings->device) - before;
}

void
test_plan_run_clear (TestPlanRun *self)
{
  g_clear_pointer (&self->training, bench_training_free);
  g_clear_object (&self->store);
}

gboolean
test_plan_run_step (EbbModule *model,
                    gpointer user_data,
                    GError **error)
{
  TestPlanRun *self = user_data;
  double seconds[BENCH_N_PARTS];

  self->n_steps++;
  return bench_training_step (self->training, seconds, NULL, error);
}

EbbMemoryPlan *
test_plan_run_try (TestPlanRun *self,
                   guint64 budget,
                   GError **error)
{
  return ebb_memory_plan_make (self->training->model, self->training->settings.device, self->store, test_plan_run_step,
                               self, budget, 0, error);
}

EbbMemoryPlan *
test_plan_run_plan (TestPlanRun *self,
                    guint64 budget)
{
  g_autoptr (GError) error = NULL;
  EbbMemoryPlan *plan = test_plan_run_try (self, budget, &error);

  g_assert_no_error (error);
  return plan;
}

guint64
test_plan_run_train (TestPlanRun *self)
{
  EbbDevice *device = self->training->settings.device;
  g_autoptr (EbbMemoryStats) stats = NULL;
  g_autoptr (GError) error = NULL;

  for (guint i = 0; i < TEST_PLAN_RUN_STEPS; i++)
    {
      double seconds[BENCH_N_PARTS];

      ebb_memory_reset_peaks (device);
      bench_training_step (self->training, seconds, &self->losses[i], &error);
      g_assert_no_error (error);
    }
  stats = ebb_memory_get_stats (device);
  return ebb_memory_stats_get_peak_total (stats);
}

guint64
test_plan_get_budget (EbbMemoryPlan *any,
                      guint i,
                      guint n)
{
  return any->least_bytes + (any->unplanned_peak_bytes - any->least_bytes) * i / n;
}
