/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: private-headers */
/* A training's second step is compared with its plan, and a step that differs is named. */
#include "support/device.h"
#include "support/planned-training.h"
#include "wrap/plan/memory-plan-private.h"

#include <string.h>

static EbbMemoryPlan *
make_plan (TestPlanned *self, GError **error)
{
  return ebb_memory_plan_make (self->model, test_device (), NULL, test_planned_step, self, G_MAXINT64, 0, error);
}

/* Plans by the training's own step. */
static void
init (TestPlanned *self, gboolean in_backward, gboolean zeroes_first)
{
  g_autoptr (GError) error = NULL;

  test_planned_init (self, in_backward);
  self->zeroes_first = zeroes_first;
  self->plan = make_plan (self, &error);
  g_assert_no_error (error);
  g_assert_true (ebb_memory_plan_apply (self->plan, &error));
}

static void
run_steps (TestPlanned *self, guint n)
{
  g_autoptr (GError) error = NULL;

  for (guint i = 0; i < n; i++)
    {
      ebb_memory_plan_run_step (self->plan, self->state, test_planned_step, self, &error);
      g_assert_no_error (error);
    }
}

static gboolean
check (TestPlanned *self, GError **error)
{
  return ebb_memory_plan_check_step (self->plan, test_planned_step, self, error);
}

static void
assert_no_step_to_check (TestPlanned *self)
{
  g_autoptr (GError) error = NULL;

  g_assert_false (check (self, &error));
  g_assert_error (error, EBB_ERROR, EBB_ERROR_STATE);
  g_assert_true (g_str_has_prefix (error->message, "there is no step to check"));
}

/* The training goes on with the same bits, and only the second step is there to be checked, once. */
static void
same (gboolean in_backward, gboolean zeroes_first)
{
  g_auto (TestPlanned) training = { 0 }, plain = { 0 };
  g_autoptr (GError) error = NULL;

  init (&plain, in_backward, zeroes_first);
  run_steps (&plain, 3);
  assert_no_step_to_check (&plain);
  init (&training, in_backward, zeroes_first);
  run_steps (&training, 1);
  assert_no_step_to_check (&training);
  run_steps (&training, 1);
  check (&training, &error);
  g_assert_no_error (error);
  assert_no_step_to_check (&training);
  run_steps (&training, 1);
  test_assert_same_planned (&training, &plain);
}

static void
test_same (void)
{
  same (FALSE, FALSE);
}

static void
test_zero_first (void)
{
  same (FALSE, TRUE);
}

static void
test_in_backward (void)
{
  same (TRUE, FALSE);
}

/* While it trains. */
static void
test_other_step (void)
{
  g_auto (TestPlanned) training = { 0 };
  g_autoptr (GError) error = NULL;
  gint64 before, after;

  init (&training, FALSE, FALSE);
  training.varies = TRUE;
  run_steps (&training, 2);
  g_object_get (training.dataset, "position", &before, NULL);
  g_assert_false (check (&training, &error));
  g_assert_error (error, EBB_ERROR, EBB_ERROR_STATE);
  g_test_message ("%s", error->message);
  g_assert_true (g_str_has_prefix (error->message, "the step isn't as it was planned: op "));
  g_assert_nonnull (strstr (error->message, " bytes) in the forward before the blocks, and was "));
  g_object_get (training.dataset, "position", &after, NULL);
  g_assert_cmpint (after, ==, before);
}

/* A check that fails says nothing about the step, which can be checked again. */
static void
test_failure (void)
{
  g_auto (TestPlanned) training = { 0 };
  g_autoptr (GError) error = NULL;

  init (&training, FALSE, FALSE);
  run_steps (&training, 2);
  training.n_dry = 0;
  training.fails_dry = 2;
  g_assert_false (check (&training, &error));
  g_assert_error (error, EBB_ERROR, EBB_ERROR_IO);
  g_assert_cmpstr (error->message, ==, "dry step 2 fails");
  g_clear_error (&error);
  check (&training, &error);
  g_assert_no_error (error);
}

/* A new plan begins with a first step. */
static void
test_new_plan (void)
{
  g_auto (TestPlanned) training = { 0 };
  g_autoptr (GError) error = NULL;

  init (&training, FALSE, FALSE);
  run_steps (&training, 1);
  ebb_memory_plan_unapply (training.plan);
  g_object_unref (training.plan);
  training.plan = make_plan (&training, &error);
  g_assert_no_error (error);
  g_assert_true (ebb_memory_plan_apply (training.plan, &error));
  run_steps (&training, 2);
  check (&training, &error);
  g_assert_no_error (error);
}

/* While it is planned. */
static void
test_varying_step (void)
{
  g_auto (TestPlanned) training = { 0 };
  g_autoptr (EbbMemoryPlan) plan = NULL;
  g_autoptr (GError) error = NULL;

  test_planned_init (&training, FALSE);
  training.varies_dry = TRUE;
  plan = make_plan (&training, &error);
  g_assert_null (plan);
  g_assert_error (error, EBB_ERROR, EBB_ERROR_STATE);
  g_assert_true (g_str_has_prefix (error->message, "the step isn't the same twice: the second time op "));
}

int
main (int argc, char **argv)
{
  test_init (&argc, &argv);
  ebb_set_num_threads (1);
  g_test_add_func ("/plan/watch/a-step-as-it-was-planned", test_same);
  g_test_add_func ("/plan/watch/a-step-that-drops-gradients-first", test_zero_first);
  g_test_add_func ("/plan/watch/a-step-in-backward", test_in_backward);
  g_test_add_func ("/plan/watch/another-step-than-was-planned", test_other_step);
  g_test_add_func ("/plan/watch/a-check-that-fails", test_failure);
  g_test_add_func ("/plan/watch/a-new-plan", test_new_plan);
  g_test_add_func ("/plan/watch/a-step-that-is-not-the-same-twice", test_varying_step);
  return g_test_run ();
}
