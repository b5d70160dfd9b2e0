/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: private-headers one-thread long-sim */
/* Plans whose blocks are recomputed in segments, below what plans of single blocks reach: they keep the budget and the
 * bits, with dropout, and are none of a model that has no list of free blocks. */
#include "support/device.h"
#include "support/plan-runs.h"
#include "support/tensors.h"
#include "wrap/checkpoint/stack-private.h"
#include "wrap/plan/memory-plan-private.h"
#include "wrap/plan/segments-private.h"

#include <string.h>

#define N_LAYERS 16
#define N_BUDGETS 4

static void
init (TestPlanRun *self)
{
  BenchSettings settings = { .layers = N_LAYERS, .width = 16, .heads = 2, .vocab = 50, .dropout = 0.1 };

  settings.batch = 16;
  settings.context = 64;
  settings.device = test_device ();
  test_plan_run_init (self, &settings);
}

/* Of a segment of @plan; 0: it has none. */
static gint64
get_segment (EbbMemoryPlan *plan)
{
  for (guint i = 0; i < plan->rungs->len; i++)
    if (strcmp (g_array_index (plan->rungs, EbbPlanRung, i).name, EBB_PLAN_SEGMENTS) == 0)
      return g_array_index (plan->rungs, EbbPlanRung, i).value;
  return 0;
}

/* Real steps with @plan, as its file has it. */
static guint64
train (const TestPlanRun *other,
       EbbMemoryPlan *plan,
       double *losses)
{
  g_auto (TestPlanRun) run = { 0 };
  g_autoptr (EbbMemoryPlan) same = NULL;
  g_autoptr (GError) error = NULL;
  g_autofree char *json = ebb_memory_plan_to_json (plan);
  guint64 peak;

  init (&run);
  same = ebb_memory_plan_new_from_json (run.training->model, json, &error);
  g_assert_no_error (error);
  g_assert_true (ebb_memory_plan_apply (same, &error));
  peak = test_plan_run_train (&run) - other->own;
  memcpy (losses, run.losses, sizeof run.losses);
  ebb_memory_plan_unapply (same);
  g_assert_false (ebb_checkpoint_is_wrapped (run.training->model));
  return peak;
}

/* The peak of the plan in which every block is recomputed, and nothing else is done. */
static guint64
get_single_peak (void)
{
  g_auto (TestPlanRun) run = { 0 };
  g_autoptr (EbbModule) h = NULL;
  g_autoptr (EbbMemoryEstimate) estimate = NULL;
  g_autoptr (GError) error = NULL;

  init (&run);
  h = ebb_module_get_child (run.training->model, "h");
  g_assert_true (ebb_checkpoint_wrap_block (h, N_LAYERS, NULL, &error));
  estimate = ebb_memory_estimate_new (run.training->model, test_device (), test_plan_run_step, &run, &error);
  g_assert_no_error (error);
  return ebb_memory_estimate_get_peak_total (estimate);
}

static void
test_below_single_blocks (void)
{
  g_auto (TestPlanRun) run = { 0 };
  g_autoptr (EbbMemoryPlan) most = NULL;
  double expected[TEST_PLAN_RUN_STEPS], losses[TEST_PLAN_RUN_STEPS], seconds = 0;
  const guint64 single = get_single_peak ();
  guint n_sizes = 0;
  gint64 size = 0;

  init (&run);
  most = test_plan_run_plan (&run, G_MAXUINT64);
  train (&run, most, expected);
  g_assert_cmpint (get_segment (most), ==, 0);
  g_assert_cmpuint (most->least_bytes, <, single - single / 20);
  for (guint i = 0; i <= N_BUDGETS; i++)
    {
      const guint64 budget = single - (single - most->least_bytes) * i / N_BUDGETS;
      g_autoptr (EbbMemoryPlan) plan = test_plan_run_plan (&run, budget);

      g_assert_cmpuint (plan->predicted_peak_bytes, <=, budget);
      g_assert_cmpfloat (plan->seconds, >=, seconds);
      seconds = plan->seconds;
      g_assert_cmpuint (train (&run, plan, losses), ==, plan->predicted_peak_bytes);
      g_assert_cmpmem (losses, sizeof losses, expected, sizeof expected);
      n_sizes += get_segment (plan) != size;
      size = get_segment (plan);
    }
  g_assert_cmpuint (n_sizes, >=, 1);
  g_assert_cmpint (size, ==, 4);
}

/* What steps down from a plan ends with the least, which has segments. */
static void
test_lowered (void)
{
  g_auto (TestPlanRun) run = { 0 };
  g_autoptr (EbbMemoryPlan) plan = NULL;
  g_autoptr (GError) error = NULL;
  const guint64 single = get_single_peak ();

  init (&run);
  plan = test_plan_run_plan (&run, single);
  g_assert_true (ebb_memory_plan_apply (plan, &error));
  while (ebb_memory_plan_lower (plan, NULL))
    ;
  g_assert_cmpint (get_segment (plan), ==, 4);
  g_assert_cmpuint (test_plan_run_train (&run), ==, plan->predicted_peak_bytes);
}

static void
test_same_bits (void)
{
  g_auto (TestPlanRun) plain = { 0 };
  g_auto (TestPlanRun) run = { 0 };
  g_autoptr (EbbMemoryPlan) plan = NULL;
  g_autoptr (EbbMemoryEstimate) estimate = NULL;
  g_autoptr (GError) error = NULL;
  guint64 peak, unplanned;

  init (&plain);
  unplanned = test_plan_run_train (&plain);
  test_plan_run_clear (&plain);
  init (&run);
  plan = ebb_memory_plan_new_empty (run.training->model);
  ebb_memory_plan_add_rung (plan, EBB_PLAN_SEGMENTS, 5);
  g_assert_true (ebb_memory_plan_apply (plan, &error));
  estimate = ebb_memory_estimate_new (run.training->model, test_device (), test_plan_run_step, &run, &error);
  g_assert_no_error (error);
  peak = test_plan_run_train (&run);
  g_assert_cmpuint (peak, <, unplanned / 2);
  g_assert_cmpuint (peak, ==, ebb_memory_estimate_get_peak_total (estimate));
  g_assert_cmpmem (run.losses, sizeof run.losses, plain.losses, sizeof plain.losses);
}

static void
test_none_around_the_users_own (void)
{
  g_auto (TestPlanRun) run = { 0 };
  g_autoptr (EbbModule) h = NULL;
  g_autoptr (EbbModule) block = NULL;
  g_autoptr (EbbModule) same = NULL;
  g_autoptr (EbbMemoryPlan) most = NULL;
  g_autoptr (EbbMemoryPlan) least = NULL;
  g_autoptr (EbbMemoryPlan) segmented = NULL;
  g_autoptr (GError) error = NULL;

  init (&run);
  h = ebb_module_get_child (run.training->model, "h");
  block = ebb_module_list_get (EBB_MODULE_LIST (h), 3);
  same = ebb_checkpoint_wrapper (block, NULL, &error);
  most = test_plan_run_plan (&run, G_MAXUINT64);
  least = test_plan_run_plan (&run, most->least_bytes);
  g_assert_cmpint (get_segment (least), ==, 0);

  segmented = ebb_memory_plan_new_empty (run.training->model);
  ebb_memory_plan_add_rung (segmented, EBB_PLAN_SEGMENTS, 4);
  g_assert_false (ebb_memory_plan_apply (segmented, &error));
  test_assert_error (error, EBB_ERROR_STATE, "into segments", "plan again");
  g_clear_error (&error);
  ebb_checkpoint_unwrap (block);
  g_assert_true (ebb_memory_plan_apply (segmented, &error));
  g_assert_true (ebb_checkpoint_is_wrapped (h));
  ebb_memory_plan_unapply (segmented);
  g_assert_false (ebb_checkpoint_is_wrapped (h));
}

/* A wrapper that is put around the stack later stays when the plan is taken off. */
static void
test_unapplied_below_the_users_own (void)
{
  g_autoptr (EbbModule) model = ebb_sequential_new ();
  g_autoptr (EbbModule) same = NULL;
  g_autoptr (EbbMemoryPlan) plan = ebb_memory_plan_new_empty (model);
  g_autoptr (GError) error = NULL;

  for (guint i = 0; i < 4; i++)
    {
      g_autoptr (EbbModule) layer = ebb_linear_new (4, 4, TRUE, &error);

      g_assert_no_error (error);
      g_assert_true (ebb_sequential_append (EBB_SEQUENTIAL (model), layer, &error));
    }
  ebb_memory_plan_add_rung (plan, EBB_PLAN_SEGMENTS, 2);
  g_assert_true (ebb_memory_plan_apply (plan, &error));
  g_assert_true (ebb_checkpoint_stack_is_wrapped (model));
  same = ebb_checkpoint_wrapper (model, NULL, &error);
  ebb_memory_plan_unapply (plan);
  g_assert_false (ebb_checkpoint_stack_is_wrapped (model));
  g_assert_true (ebb_checkpoint_unwrap (model));
  g_assert_false (ebb_checkpoint_is_wrapped (model));
}

static void
test_text (void)
{
  g_autoptr (EbbModule) model = ebb_sequential_new ();
  g_autoptr (EbbMemoryPlan) plan = ebb_memory_plan_new_empty (model);
  g_autoptr (EbbMemoryPlan) none = ebb_memory_plan_new_empty (model);
  g_autoptr (GError) error = NULL;
  g_autofree char *text = NULL;

  ebb_memory_plan_add_rung (plan, EBB_PLAN_SEGMENTS, 4);
  text = ebb_memory_plan_to_string (plan);
  g_assert_nonnull (strstr (text, "segments: every 4 blocks are recomputed together"));
  ebb_memory_plan_add_rung (none, EBB_PLAN_SEGMENTS, 0);
  g_assert_false (ebb_memory_plan_apply (none, &error));
  test_assert_error (error, EBB_ERROR_STATE, "segments of 0 blocks", "one or more");
}

int
main (int argc,
      char **argv)
{
  g_setenv ("EBB_COST_FILE", "", TRUE); /* rates of copies aren't known, so blocks move nothing */
  test_init (&argc, &argv);
  g_test_add_func ("/planner-segments/below-single-blocks", test_below_single_blocks);
  g_test_add_func ("/planner-segments/lowered", test_lowered);
  g_test_add_func ("/planner-segments/same-bits", test_same_bits);
  g_test_add_func ("/planner-segments/none-around-the-users-own", test_none_around_the_users_own);
  g_test_add_func ("/planner-segments/unapplied-below-the-users-own", test_unapplied_below_the_users_own);
  g_test_add_func ("/planner-segments/text", test_text);
  return g_test_run ();
}
