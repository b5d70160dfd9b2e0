/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: private-headers one-thread */
/* Plans with tiles of MLPs, over falling budgets: they keep the budget and the bits, no larger budget is slower, and
 * the least counts tiles. Seconds are those of fixed rates. */
#include "support/device.h"
#include "support/plan-runs.h"
#include "support/tensors.h"
#include "wrap/plan/memory-plan-private.h"
#include "wrap/plan/mlp-tiles-private.h"

#include <math.h>
#include <string.h>

#define BATCH 60
#define CONTEXT 32 /* rows of two tiles on one thread */
#define N_BUDGETS 12
#define N_LAYERS 3

static void
init (TestPlanRun *self,
      int layers)
{
  BenchSettings settings = { .layers = layers, .width = 16, .heads = 2, .vocab = 50, .dropout = 0.1 };

  settings.batch = BATCH;
  settings.context = CONTEXT;
  settings.device = test_device ();
  test_plan_run_init (self, &settings);
}

static gboolean
has_tiles (EbbMemoryPlan *plan)
{
  return plan->rungs->len > 0;
}

/* Real steps with @plan. Returns the bytes of the last one at most, and the parameters after it. */
static guint64
train (const TestPlanRun *other,
       EbbMemoryPlan *plan,
       GPtrArray *parameters)
{
  g_auto (TestPlanRun) run = { 0 };
  g_autoptr (EbbMemoryPlan) same = NULL;
  g_autoptr (GError) error = NULL;
  g_autofree char *json = ebb_memory_plan_to_json (plan);
  g_autofree EbbTensor **all = NULL;
  guint64 peak;
  guint n;

  init (&run, N_LAYERS);
  same = ebb_memory_plan_new_from_json (run.training->model, json, &error);
  g_assert_no_error (error);
  g_assert_true (ebb_memory_plan_apply (same, &error));
  peak = test_plan_run_train (&run) - other->own;
  all = ebb_module_get_parameters (run.training->model, TRUE, &n);
  for (guint i = 0; i < n; i++)
    g_ptr_array_add (parameters, all[i]);
  return peak;
}

/* Returns the peak, measured. */
static guint64
check_real_steps (const TestPlanRun *other,
                  EbbMemoryPlan *plan,
                  GPtrArray *expected)
{
  g_autoptr (GPtrArray) parameters = g_ptr_array_new_with_free_func ((GDestroyNotify) ebb_tensor_unref);
  const guint64 peak = train (other, plan, parameters);

  for (guint i = 0; i < expected->len; i++)
    test_assert_near (parameters->pdata[i], expected->pdata[i], 0);
  return peak;
}

static gboolean
is_real_gpu (void)
{
  return g_str_has_prefix (ebb_device_get_name (test_device ()), "cuda") && !test_device_is_slow ();
}

static void
test_falling_budgets (void)
{
  g_autoptr (GPtrArray) parameters = g_ptr_array_new_with_free_func ((GDestroyNotify) ebb_tensor_unref);
  g_auto (TestPlanRun) run = { 0 };
  g_autoptr (EbbMemoryPlan) most = NULL;
  guint64 peak = G_MAXUINT64, real;
  double seconds = 0;
  guint n_tiled = 0;
  gboolean ends_in_loss = FALSE;

  init (&run, N_LAYERS);
  most = test_plan_run_try (&run, G_MAXUINT64, NULL);
  g_assert_nonnull (most);
  g_assert_false (has_tiles (most));
  train (&run, most, parameters);
  g_clear_object (&most);
  most = test_plan_run_try (&run, G_MAXUINT64, NULL); /* beside the parameters that are compared */
  for (guint i = 0; i <= N_BUDGETS; i++)
    {
      const guint64 budget = test_plan_get_budget (most, N_BUDGETS - i, N_BUDGETS);
      g_autoptr (GError) error = NULL;
      g_autoptr (EbbMemoryPlan) plan = test_plan_run_try (&run, budget, &error);
      g_autofree char *text = NULL;

      g_assert_no_error (error);
      text = ebb_memory_plan_to_string (plan);
      g_test_message ("budget %" G_GUINT64_FORMAT ": peak %" G_GUINT64_FORMAT ", %g s\n%s", budget,
                      plan->predicted_peak_bytes, plan->seconds, text);
      g_assert_cmpuint (plan->predicted_peak_bytes, <=, budget);
      g_assert_cmpuint (plan->predicted_peak_bytes, <=, peak);
      g_assert_cmpfloat (plan->seconds, >=, seconds);
      peak = plan->predicted_peak_bytes;
      seconds = plan->seconds;
      n_tiled += has_tiles (plan);
      ends_in_loss = strstr (text, "in the forward after the blocks") != NULL;
      if (has_tiles (plan) || i == N_BUDGETS / 2)
        {
          real = check_real_steps (&run, plan, parameters);
          g_assert_cmpuint (real, ==, peak);
        }
    }
  /* On a GPU the loss' products may have more workspace than all that a tile could save. On a real one a block's
   * kernels are so short that computing them again costs less than launching them once for each tile. */
  if (test_device_of_same_bits () == ebb_device_get_cpu () || (!ends_in_loss && !is_real_gpu ()))
    g_assert_cmpuint (n_tiled, >, 0);
}

/* The least of all plans without tiles, which the user's own tiles leave no MLP for. */
static void
test_least (void)
{
  g_auto (TestPlanRun) run = { 0 };
  g_autoptr (EbbMemoryPlan) with = NULL, without = NULL;
  g_autoptr (GError) error = NULL;
  g_autofree char *least = NULL;

  init (&run, N_LAYERS);
  with = test_plan_run_try (&run, G_MAXUINT64, &error);
  g_assert_no_error (error);
  ebb_tile_wrap_each (run.training->model, EBB_TYPE_MLP, 1 << 20, &error);
  g_assert_no_error (error);
  without = test_plan_run_try (&run, G_MAXUINT64, &error);
  g_assert_no_error (error);
  g_assert_cmpuint (without->unplanned_peak_bytes, ==, with->unplanned_peak_bytes);
  /* As above: a GPU may need most in the loss. */
  g_assert_cmpuint (with->least_bytes, <=, without->least_bytes);
  if (test_device_of_same_bits () == ebb_device_get_cpu ())
    g_assert_cmpuint (with->least_bytes, <, without->least_bytes);

  for (guint i = 0; i < N_LAYERS; i++)
    {
      g_autoptr (EbbModule) h = ebb_module_get_child (run.training->model, "h");
      g_autoptr (EbbModule) block = ebb_module_list_get (EBB_MODULE_LIST (h), i);
      g_autoptr (EbbModule) mlp = ebb_module_get_child (block, "mlp");

      ebb_tile_unwrap (mlp);
    }
  g_assert_null (test_plan_run_try (&run, with->least_bytes - 1, &error));
  least = g_strdup_printf ("needs at least %.1f MiB", ceil ((double) with->least_bytes / (1 << 20) * 10) / 10);
  test_assert_error (error, EBB_ERROR_NO_MEMORY, "is too small", least);
}

/* Products in bf16 add up gradients in another order with tiles. */
static void
test_bf16_has_none (void)
{
  g_auto (TestPlanRun) run = { 0 };
  g_autoptr (EbbMemoryPlan) most = NULL, least = NULL;
  g_autoptr (GError) error = NULL;

  init (&run, N_LAYERS);
  run.training->settings.bf16 = TRUE;
  most = test_plan_run_try (&run, G_MAXUINT64, &error);
  g_assert_no_error (error);
  least = test_plan_run_try (&run, most->least_bytes, &error);
  g_assert_no_error (error);
  g_assert_false (has_tiles (least));
}

static gboolean
step_of_grads (EbbModule *model,
               gpointer user_data,
               GError **error)
{
  const BenchTraining *self = ((TestPlanRun *) user_data)->training;
  g_autoptr (EbbTensor) loss = ebb_gpt_loss (EBB_GPT (model), self->tokens, self->targets, error);
  g_autofree EbbTensor **parameters = NULL;
  EbbTensor **grads = NULL;
  guint n;

  parameters = ebb_module_get_parameters (model, TRUE, &n);
  if (loss != NULL)
    grads = ebb_grad (&loss, 1, parameters, n, NULL, 0, FALSE, &n, error);
  for (guint i = 0; i < n; i++)
    {
      if (grads != NULL)
        ebb_tensor_unref (grads[i]);
      ebb_tensor_unref (parameters[i]);
    }
  g_free (grads);
  return grads != NULL;
}

/* The gradients of tiles that aren't added where a parameter has its own are added up in another order. */
static void
test_grads_have_none (void)
{
  g_auto (TestPlanRun) run = { 0 };
  g_autoptr (EbbMemoryPlan) most = NULL, least = NULL;
  g_autoptr (GError) error = NULL;

  init (&run, N_LAYERS);
  most = ebb_memory_plan_make (run.training->model, test_device (), NULL, step_of_grads, &run, G_MAXUINT64, 0, &error);
  g_assert_no_error (error);
  least = ebb_memory_plan_make (run.training->model, test_device (), NULL, step_of_grads, &run, most->least_bytes, 0,
                                &error);
  g_assert_no_error (error);
  g_assert_false (has_tiles (least));
}

static guint
count_steps (int layers)
{
  g_auto (TestPlanRun) run = { 0 };
  g_autoptr (EbbMemoryPlan) most = NULL, plan = NULL;
  g_autoptr (GError) error = NULL;
  gint64 began;

  init (&run, layers);
  most = test_plan_run_try (&run, G_MAXUINT64, &error);
  g_assert_no_error (error);
  run.n_steps = 0;
  began = g_get_monotonic_time ();
  plan = test_plan_run_try (&run, test_plan_get_budget (most, 1, 4), &error);
  g_assert_no_error (error);
  g_test_message ("%d blocks: %u dry steps, %.2f s", layers, run.n_steps,
                  (double) (g_get_monotonic_time () - began) / G_USEC_PER_SEC);
  return run.n_steps;
}

/* Equal blocks try choices side by side, with tiles as without. */
static void
test_n_dry_steps (void)
{
  const guint n_shallow = count_steps (6), n_deep = count_steps (48);

  g_assert_cmpuint (n_deep, <=, n_shallow);
}

int
main (int argc,
      char **argv)
{
  g_setenv ("EBB_COST_FILE", "", TRUE);
  test_init (&argc, &argv);
  ebb_set_num_threads (1);
  if (test_device_is_slow ()) /* no tiles keep the bits on a GPU */
    return g_test_run ();
  g_test_add_func ("/plan/planner-tiles/falling-budgets", test_falling_budgets);
  g_test_add_func ("/plan/planner-tiles/least", test_least);
  g_test_add_func ("/plan/planner-tiles/bf16-has-none", test_bf16_has_none);
  g_test_add_func ("/plan/planner-tiles/grads-have-none", test_grads_have_none);
  g_test_add_func ("/plan/planner-tiles/dry-steps", test_n_dry_steps);
  return g_test_run ();
}
