/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: cpu-only one-thread */
/* Memory budgets: sizes as people write them, properties, plans that are found, put on, kept, and taken off. */
#include "support/planned-training.h"

#include <string.h>

static void
assert_parsed (const char *size, guint64 expected)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbMemoryBudget) budget = ebb_memory_budget_new_parse (size, &error);
  guint64 n_bytes = 1;

  g_assert_no_error (error);
  g_object_get (budget, "bytes", &n_bytes, NULL);
  g_assert_cmpuint (n_bytes, ==, expected);
}

static void
assert_refused (const char *size, const char *message)
{
  g_autoptr (GError) error = NULL;

  g_assert_null (ebb_memory_budget_new_parse (size, &error));
  g_assert_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT);
  g_assert_cmpstr (error->message, ==, message);
}

static void
test_sizes (void)
{
  assert_parsed ("1.5GiB", G_GUINT64_CONSTANT (3) << 29);
  assert_parsed ("64M", 64 << 20);
  assert_parsed ("auto", 0);
  assert_refused ("much", "memory budget: \"much\" is not a size: write bytes or a unit, as 1500000, 1500MB or 1.5GiB");
  assert_refused ("0.1", "memory budget: \"0.1\" is less than a byte: write more, or \"auto\" for all that is free");
}

static void
test_properties (void)
{
  g_autoptr (EbbMemoryBudget) budget = ebb_memory_budget_new (7);
  g_autoptr (EbbSavedTensorHooks) store = ebb_host_store_new ();
  g_autoptr (EbbSavedTensorHooks) found = NULL;
  g_autofree char *path = NULL;
  EbbConcessions allow, taken;
  EbbMemoryScope scope;
  EbbDevice *device;

  g_object_get (budget, "allow", &allow, "scope", &scope, "device", &device, "plan-file", &path, NULL);
  g_assert_cmpint (allow, ==, EBB_CONCESSIONS_NONE);
  g_assert_cmpint (scope, ==, EBB_MEMORY_SCOPE_AUTO);
  g_assert_null (device);
  g_assert_null (path);
  g_object_set (budget, "allow", EBB_CONCESSIONS_LOSS_CHUNK | EBB_CONCESSIONS_BF16_MOMENTS, "scope",
                EBB_MEMORY_SCOPE_DEVICE, "device", ebb_device_get_cpu (), "plan-file", "plan", "store", store, NULL);
  g_object_get (budget, "allow", &allow, "taken", &taken, "scope", &scope, "device", &device, "plan-file", &path,
                "store", &found, NULL);
  g_assert_cmpint (allow, ==, EBB_CONCESSIONS_LOSS_CHUNK | EBB_CONCESSIONS_BF16_MOMENTS);
  g_assert_cmpint (taken, ==, EBB_CONCESSIONS_NONE);
  g_assert_cmpint (scope, ==, EBB_MEMORY_SCOPE_DEVICE);
  g_assert_true (device == ebb_device_get_cpu ());
  g_assert_cmpstr (path, ==, "plan");
  g_assert_true (found == store);
}

/* -- plans --------------------------------------------------------------------------------------------------------- */

/* Peaks of tensors alone, which are the same at each run. */
static EbbMemoryBudget *
make_budget (guint64 n_bytes)
{
  EbbMemoryBudget *budget = ebb_memory_budget_new (n_bytes);

  g_object_set (budget, "scope", EBB_MEMORY_SCOPE_DEVICE, NULL);
  return budget;
}

static guint64
get_bytes (gpointer object, const char *property)
{
  guint64 n_bytes;

  g_object_get (object, property, &n_bytes, NULL);
  return n_bytes;
}

/* The least bytes for the training, of which the error of a budget that is less by one tells. */
static guint64
find_least (TestPlanned *training)
{
  g_autoptr (EbbMemoryBudget) small = make_budget (1);
  g_autoptr (GError) error = NULL;

  g_assert_false (ebb_memory_budget_plan (small, training->state, test_planned_step, training, &error));
  g_assert_error (error, EBB_ERROR, EBB_ERROR_NO_MEMORY);
  g_assert_nonnull (strstr (error->message, "a budget of 1 byte is too small: the step needs at least "));
  g_assert_null (ebb_memory_budget_get_plan (small));
  return get_bytes (small, "least-bytes");
}

static void
test_least (void)
{
  g_auto (TestPlanned) training = { 0 };
  g_autoptr (EbbMemoryBudget) budget = NULL, less = NULL;
  g_autoptr (GError) error = NULL;
  guint64 least;

  test_planned_init (&training, FALSE);
  least = find_least (&training);
  less = make_budget (least - 1);
  g_assert_false (ebb_memory_budget_plan (less, training.state, test_planned_step, &training, NULL));
  budget = make_budget (least);
  ebb_memory_budget_plan (budget, training.state, test_planned_step, &training, &error);
  g_assert_no_error (error);
  g_assert_cmpuint (get_bytes (ebb_memory_budget_get_plan (budget), "predicted-peak-bytes"), ==, least);
}

static void
run_steps (TestPlanned *self, EbbMemoryBudget *budget)
{
  for (guint i = 0; i < TEST_PLANNED_STEPS; i++)
    {
      g_autoptr (GError) error = NULL;

      if (budget != NULL)
        ebb_memory_budget_run_step (budget, test_planned_step, self, &error);
      else
        test_planned_step (self->model, self, &error);
      g_assert_no_error (error);
    }
}

static void
test_steps (void)
{
  g_auto (TestPlanned) plain = { 0 }, training = { 0 };
  g_autoptr (EbbMemoryBudget) budget = NULL;
  g_autoptr (GError) error = NULL;
  guint64 least;

  test_planned_init (&plain, FALSE);
  run_steps (&plain, NULL);
  test_planned_init (&training, FALSE);
  least = find_least (&training);
  budget = make_budget (least);
  g_assert_false (ebb_memory_budget_run_step (budget, test_planned_step, &training, &error));
  g_assert_error (error, EBB_ERROR, EBB_ERROR_STATE);
  g_clear_error (&error);
  ebb_memory_budget_plan (budget, training.state, test_planned_step, &training, &error);
  g_assert_no_error (error);
  g_assert_cmpuint (ebb_memory_get_limit (NULL), ==, least);
  g_assert_false (ebb_memory_budget_plan (budget, training.state, test_planned_step, &training, &error));
  g_assert_error (error, EBB_ERROR, EBB_ERROR_STATE);
  run_steps (&training, budget);
  test_assert_same_planned (&training, &plain);
}

static void
test_one_at_a_time (void)
{
  const guint64 before = 100 << 20;
  g_auto (TestPlanned) training = { 0 };
  g_autoptr (EbbMemoryBudget) first = make_budget (50 << 20), second = make_budget (40 << 20);
  g_autoptr (GError) error = NULL;

  test_planned_init (&training, FALSE);
  ebb_memory_set_limit (NULL, before);
  g_assert_true (ebb_memory_budget_plan (first, training.state, test_planned_step, &training, NULL));
  g_assert_cmpuint (ebb_memory_get_limit (NULL), ==, 50 << 20);
  g_assert_false (ebb_memory_budget_plan (second, training.state, test_planned_step, &training, &error));
  g_assert_error (error, EBB_ERROR, EBB_ERROR_STATE);
  g_assert_null (ebb_memory_budget_get_plan (second));
  ebb_memory_budget_release (first);
  g_assert_cmpuint (ebb_memory_get_limit (NULL), ==, before);
  g_assert_true (ebb_memory_budget_plan (second, training.state, test_planned_step, &training, NULL));
  g_assert_cmpuint (ebb_memory_get_limit (NULL), ==, 40 << 20);
  g_clear_object (&second);
  g_assert_cmpuint (ebb_memory_get_limit (NULL), ==, before);
  ebb_memory_set_limit (NULL, 0);
}

/* What is planned in a dry run is put onto the parts that are made afterwards. */
static void
test_planned_before (void)
{
  g_auto (TestPlanned) plain = { 0 }, training = { 0 };
  g_autoptr (EbbMemoryBudget) budget = NULL;
  g_autoptr (EbbMemoryPlan) plan = NULL;
  g_autoptr (EbbModule) other = EBB_MODULE (ebb_linear_new (4, 4, TRUE, NULL));
  g_autoptr (EbbTrainingState) wrong = ebb_training_state_new (other, NULL, NULL);
  g_autoptr (GError) error = NULL;

  test_planned_init (&plain, FALSE);
  budget = make_budget (2 * find_least (&plain)); /* the plain training stays in memory */
  run_steps (&plain, NULL);
  ebb_push_dry_run ();
  {
    g_auto (TestPlanned) dry = { 0 };

    test_planned_init (&dry, FALSE);
    ebb_memory_budget_plan (budget, dry.state, test_planned_step, &dry, &error);
    g_assert_no_error (error);
  }
  ebb_pop_dry_run ();
  plan = g_object_ref (ebb_memory_budget_get_plan (budget));
  g_assert_false (ebb_memory_budget_plan (budget, wrong, test_planned_step, &training, &error));
  g_assert_error (error, EBB_ERROR, EBB_ERROR_STATE);
  g_clear_error (&error);
  test_planned_init (&training, FALSE);
  ebb_memory_budget_plan (budget, training.state, test_planned_step, &training, &error);
  g_assert_no_error (error);
  g_assert_true (ebb_memory_budget_get_plan (budget) == plan);
  run_steps (&training, budget);
  test_assert_same_planned (&training, &plain);
}

int
main (int argc, char **argv)
{
  g_test_init (&argc, &argv, NULL);
  g_test_add_func ("/memory-budget/sizes", test_sizes);
  g_test_add_func ("/memory-budget/properties", test_properties);
  g_test_add_func ("/memory-budget/least", test_least);
  g_test_add_func ("/memory-budget/steps", test_steps);
  g_test_add_func ("/memory-budget/one-at-a-time", test_one_at_a_time);
  g_test_add_func ("/memory-budget/planned-before", test_planned_before);
  return g_test_run ();
}
