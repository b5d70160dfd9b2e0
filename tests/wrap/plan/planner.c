/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: private-headers cpu-only one-thread */
/* The planner: real steps keep the budget and the bits, and take what was predicted. */
#include "support/device.h"
#include "support/plan-runs.h"
#include "wrap/plan/memory-plan-private.h"

static void
init (TestPlanRun *self, double dropout)
{
  BenchSettings settings = { .layers = 6, .width = 64, .heads = 4, .vocab = 200, .batch = 4, .context = 32 };

  settings.dropout = dropout;
  test_plan_run_init (self, &settings);
}

static void
check_budgets (double dropout)
{
  enum
  {
    N_BUDGETS = 9
  };
  g_auto (TestPlanRun) plain = { 0 };
  g_autoptr (EbbMemoryPlan) most = NULL;
  guint64 budgets[N_BUDGETS + 1], peak = G_MAXUINT64;
  double seconds = 0;

  init (&plain, dropout);
  most = test_plan_run_plan (&plain, G_MAXUINT64);
  g_assert_cmpuint (most->predicted_peak_bytes, ==, most->unplanned_peak_bytes);
  g_assert_cmpuint (test_plan_run_train (&plain), ==, most->predicted_peak_bytes);
  for (guint i = 0; i <= N_BUDGETS; i++)
    budgets[i] = test_plan_get_budget (most, i, N_BUDGETS);
  g_clear_object (&most); /* plans count all that is in use */
  test_plan_run_clear (&plain);
  for (guint i = N_BUDGETS + 1; i-- > 0;)
    {
      const guint64 budget = budgets[i];
      g_auto (TestPlanRun) planned = { 0 };
      g_autoptr (EbbMemoryPlan) plan = NULL;
      g_autofree char *text = NULL;

      init (&planned, dropout);
      plan = test_plan_run_plan (&planned, budget);
      text = ebb_memory_plan_to_string (plan);
      g_test_message ("budget %" G_GUINT64_FORMAT "\n%s", budget, text);
      g_assert_cmpuint (plan->predicted_peak_bytes, <=, budget);
      g_assert_cmpuint (plan->predicted_peak_bytes, <=, peak);
      g_assert_cmpfloat (plan->seconds, >=, seconds);
      peak = plan->predicted_peak_bytes;
      seconds = plan->seconds;
      g_assert_true (ebb_memory_plan_apply (plan, NULL));
      g_assert_cmpuint (test_plan_run_train (&planned), ==, plan->predicted_peak_bytes);
      g_assert_cmpmem (planned.losses, sizeof planned.losses, plain.losses, sizeof plain.losses);
    }
}

static void
test_budgets (void)
{
  check_budgets (0);
}

static void
test_dropout (void)
{
  check_budgets (0.1);
}

static void
test_too_small (void)
{
  g_auto (TestPlanRun) run = { 0 };
  g_autoptr (GError) error = NULL;

  init (&run, 0);
  g_assert_null (test_plan_run_try (&run, 100000, &error));
  g_assert_error (error, EBB_ERROR, EBB_ERROR_NO_MEMORY);
  g_test_message ("%s", error->message);
  g_assert_true (g_str_has_prefix (error->message,
                                   "a budget of 0.1 MiB is too small: the step needs at least "));
}

static void
count_timing (guint n_timed, guint n_kernels, gpointer user_data)
{
  ++*(guint *) user_data;
}

/* It is the least of a plan for any budget, and no kernel is timed for it. */
static void
test_least (void)
{
  g_auto (TestPlanRun) run = { 0 };
  g_autoptr (EbbMemoryPlan) any = NULL, least = NULL;
  g_autoptr (GError) error = NULL;
  guint n_timings = 0;

  init (&run, 0);
  any = test_plan_run_plan (&run, G_MAXUINT64);
  ebb_timing_set_func (count_timing, &n_timings, NULL);
  least = ebb_memory_plan_new_least (run.training->model, run.training->settings.device, NULL, NULL, test_plan_run_step,
                                     &run, &error);
  ebb_timing_set_func (NULL, NULL, NULL);
  g_assert_no_error (error);
  g_assert_cmpuint (n_timings, ==, 0);
  g_assert_cmpuint (least->predicted_peak_bytes, ==, any->least_bytes);
  g_assert_cmpuint (least->budget_bytes, ==, any->least_bytes);
  g_assert_cmpuint (least->least_bytes, ==, any->least_bytes);
  g_assert_true (ebb_memory_plan_apply (least, &error));
  g_assert_cmpuint (test_plan_run_train (&run), ==, least->predicted_peak_bytes);
}

int
main (int argc, char **argv)
{
  test_init (&argc, &argv);
  g_test_add_func ("/plan/planner/budgets-and-bits", test_budgets);
  g_test_add_func ("/plan/planner/with-dropout", test_dropout);
  g_test_add_func ("/plan/planner/too-small-a-budget", test_too_small);
  g_test_add_func ("/plan/planner/least", test_least);
  return g_test_run ();
}
