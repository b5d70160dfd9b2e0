/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: private-headers cpu-only one-thread */
/* Plans for a part of a model, whose blocks lie deeper in the tree of modules than the part knows, and for a model that
 * is a block itself. */
#include "support/device.h"
#include "support/plan-runs.h"
#include "support/tensors.h"
#include "wrap/plan/memory-plan-private.h"

#include <string.h>

#define BATCH 4
#define CONTEXT 32
#define WIDTH 48
#define N_LAYERS 4

/* -- parts of models ----------------------------------------------------------------------------------------------- */

static void
init (TestPlanRun *self)
{
  BenchSettings settings = { .layers = N_LAYERS, .width = WIDTH, .heads = 4, .vocab = 50, .batch = BATCH };

  settings.context = CONTEXT;
  test_plan_run_init (self, &settings);
}

static gboolean
run_whole (EbbModule *part,
           gpointer user_data,
           GError **error)
{
  const TestPlanRun *self = user_data;
  const gboolean ok = bench_training_accumulate (self->training, error);

  ebb_module_zero_grad (self->training->model);
  return ok;
}

/* A plan half-way between none and the least. */
static EbbMemoryPlan *
plan_half (EbbModule *model,
           EbbStepFunc step,
           gpointer user_data)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbMemoryPlan) most = ebb_memory_plan_make (model, NULL, NULL, step, user_data, G_MAXUINT64, 0, &error);
  EbbMemoryPlan *plan;

  g_assert_no_error (error);
  g_assert_cmpuint (most->least_bytes, <, most->unplanned_peak_bytes);
  plan = ebb_memory_plan_make (model, NULL, NULL, step, user_data, (most->least_bytes + most->unplanned_peak_bytes) / 2,
                               0, &error);
  g_assert_no_error (error);
  return plan;
}

static void
test_part (void)
{
  g_auto (TestPlanRun) run = { 0 };
  g_autoptr (EbbModule) h = NULL;
  g_autoptr (EbbMemoryPlan) of_whole = NULL, of_part = NULL;

  init (&run);
  h = ebb_module_get_child (run.training->model, "h");
  of_whole = plan_half (run.training->model, run_whole, &run);
  of_part = plan_half (h, run_whole, &run);
  g_assert_cmpuint (of_part->rows->len, ==, N_LAYERS);
  g_assert_cmpstr (g_array_index (of_part->rows, EbbPlanRow, 1).path, ==, "1");
  for (guint i = 0; i < N_LAYERS; i++)
    g_assert_true (ebb_plan_row_equal (&g_array_index (of_whole->rows, EbbPlanRow, i),
                                       &g_array_index (of_part->rows, EbbPlanRow, i)));
  g_assert_cmpfloat (of_part->seconds, ==, of_whole->seconds);
  g_assert_cmpfloat (of_part->seconds, >, 0);
}

/* -- blocks -------------------------------------------------------------------------------------------------------- */

static gboolean
run_block (EbbModule *block,
           gpointer input,
           GError **error)
{
  g_autoptr (EbbTensor) result = ebb_module_call1 (block, input, error);
  g_autoptr (EbbTensor) loss = result != NULL ? ebb_sum (result, NULL, 0, FALSE, error) : NULL;

  if (loss == NULL || !ebb_tensor_backward (loss, error))
    return FALSE;
  ebb_module_zero_grad (block);
  return TRUE;
}

/* The plan of the block at @index within a list that isn't planned, or of one that is in none. */
static void
test_block (gconstpointer is_inside)
{
  g_auto (TestPlanRun) run = { 0 };
  g_autoptr (EbbModule) h = NULL, block = NULL;
  g_autoptr (EbbTensor) input = test_randn (3, BATCH, CONTEXT, WIDTH, -1);
  g_autoptr (EbbMemoryPlan) most = NULL, loaded = NULL;
  g_autoptr (GError) error = NULL;
  g_autofree char *text = NULL, *json = NULL;

  init (&run);
  h = ebb_module_get_child (run.training->model, "h");
  block = ebb_module_list_get (EBB_MODULE_LIST (h), 1);
  if (!GPOINTER_TO_INT (is_inside))
    {
      g_clear_object (&h);
      test_plan_run_clear (&run);
    }
  most = ebb_memory_plan_make (block, NULL, NULL, run_block, input, G_MAXUINT64, 0, &error);
  g_assert_no_error (error);
  g_assert_cmpuint (most->rows->len, ==, 1);
  g_assert_cmpuint (g_array_index (most->rows, EbbPlanRow, 0).kept_bytes, >, 0);
  g_assert_cmpuint (g_array_index (most->rows, EbbPlanRow, 0).kept_bytes, <, most->unplanned_peak_bytes);
  g_assert_false (g_array_index (most->rows, EbbPlanRow, 0).is_checkpoint);
  text = ebb_memory_plan_to_string (most);
  g_test_message ("%s", text);
  g_assert_nonnull (strstr (text, "\nthe model  everything"));
  json = ebb_memory_plan_to_json (most);
  loaded = ebb_memory_plan_new_from_json (block, json, &error);
  g_assert_no_error (error);
  g_assert_true (ebb_memory_plan_apply (loaded, &error));
  ebb_memory_plan_unapply (loaded);
}

int
main (int argc,
      char **argv)
{
  g_setenv ("EBB_COST_FILE", "", TRUE);
  test_init (&argc, &argv);
  g_test_add_func ("/plan/planner-parts/part", test_part);
  g_test_add_data_func ("/plan/planner-parts/block-inside", GINT_TO_POINTER (TRUE), test_block);
  g_test_add_data_func ("/plan/planner-parts/block", GINT_TO_POINTER (FALSE), test_block);
  return g_test_run ();
}
