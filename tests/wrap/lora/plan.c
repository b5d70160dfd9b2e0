/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: private-headers cpu-only one-thread */
#include "support/device.h"
#include "support/plan-runs.h"
#include "wrap/plan/memory-plan-private.h"

/* A model with adapters is planned by dry steps: real ones keep the budget and the bits, and take the bytes that were
 * predicted, those of gradients and moments of the branches alone, whether the weights below are quantised or not. */

#define N_BUDGETS 3

static void
init (TestPlanRun *self,
      EbbQuantization base)
{
  const BenchSettings settings = {
    .layers = 4,
    .width = 64,
    .heads = 4,
    .vocab = 200,
    .batch = 4,
    .context = 32,
    .dropout = 0.1,
    .lora = 4,
    .base = base
  };

  test_plan_run_init (self, &settings);
}

static void
real_steps_are_as_planned (gconstpointer data)
{
  const EbbQuantization base = (EbbQuantization) GPOINTER_TO_UINT (data);
  g_auto (TestPlanRun) plain = { 0 };
  g_autoptr (EbbMemoryPlan) most = NULL;
  guint64 budgets[N_BUDGETS + 1];

  init (&plain, base);
  most = test_plan_run_plan (&plain, G_MAXUINT64);
  g_assert_cmpuint (test_plan_run_train (&plain), ==, most->predicted_peak_bytes);
  for (guint i = 0; i <= N_BUDGETS; i++)
    budgets[i] = test_plan_get_budget (most, i, N_BUDGETS);
  g_clear_object (&most); /* plans count all that is in use */
  test_plan_run_clear (&plain);
  for (guint i = 0; i <= N_BUDGETS; i++)
    {
      const guint64 budget = budgets[i];
      g_auto (TestPlanRun) planned = { 0 };
      g_autoptr (EbbMemoryPlan) plan = NULL;

      init (&planned, base);
      plan = test_plan_run_plan (&planned, budget);
      g_assert_cmpuint (plan->predicted_peak_bytes, <=, budget);
      g_assert_true (ebb_memory_plan_apply (plan, NULL));
      g_assert_cmpuint (test_plan_run_train (&planned), ==, plan->predicted_peak_bytes);
      g_assert_cmpmem (planned.losses, sizeof planned.losses, plain.losses, sizeof plain.losses);
    }
}

int
main (int argc,
      char **argv)
{
  test_init (&argc, &argv);
  for (EbbQuantization base = EBB_QUANTIZATION_NONE; base <= EBB_QUANTIZATION_NF4; base++)
    {
      g_autofree char *path = g_strconcat ("/lora/real-steps-are-as-planned/", ebb_quantization_get_name (base), NULL);

      g_test_add_data_func (path, GUINT_TO_POINTER (base), real_steps_are_as_planned);
    }
  return g_test_run ();
}
