/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: private-headers cpu-only one-thread */
/* Memory runs out in a step: the training goes on with the same bits and a lower plan, or ends with the reason. */
#include "support/device.h"
#include "support/planned-training.h"
#include "support/stores.h"
#include "tensor/backend/backend-private.h"
#include "wrap/plan/memory-plan-private.h"

#include <json-glib/json-glib.h>
#include <string.h>

#define N_STEPS 2

/* -- a driver that fails ------------------------------------------------------------------------------------------- */

static EbbBackend failing;
static gboolean counting;
static guint n_allocations, fails_at;

static void *
alloc_or_fail (int index, gsize size, GError **error)
{
  if (!counting || n_allocations++ != fails_at)
    return ebb_cpu_backend.alloc (index, size, error);
  g_set_error (error, EBB_ERROR, EBB_ERROR_NO_MEMORY, "allocation %u fails", fails_at);
  return NULL;
}

/* -- trainings ----------------------------------------------------------------------------------------------------- */

/* One that has lower ones below it. */
static char *
make_plan (gboolean in_backward, guint64 *unplanned)
{
  g_auto (TestPlanned) training = { 0 };
  g_autoptr (EbbMemoryPlan) plan = NULL;
  g_autoptr (GError) error = NULL;

  test_planned_init (&training, in_backward);
  plan = ebb_memory_plan_make (training.model, NULL, NULL, test_planned_step, &training, G_MAXINT64, 0, &error);
  g_assert_no_error (error);
  g_assert_nonnull (plan->lower);
  if (unplanned != NULL)
    g_object_get (plan, "predicted-peak-bytes", unplanned, NULL);
  return ebb_memory_plan_to_json (plan);
}

/* All steps, in one of which one allocation fails. FALSE with an error if the training has ended there. */
static gboolean
train (TestPlanned *self, guint step, guint allocation, GError **error)
{
  for (guint i = 0; i < N_STEPS; i++)
    {
      gboolean ok;

      n_allocations = 0;
      fails_at = allocation;
      counting = i == step;
      ok = ebb_memory_plan_run_step (self->plan, self->state, test_planned_step, self, error);
      counting = FALSE;
      if (!ok)
        return FALSE;
    }
  return TRUE;
}

static void
each_allocation_of (guint step, gboolean in_backward, gboolean zeroes_first)
{
  g_auto (TestPlanned) plain = { 0 };
  g_autofree char *json = make_plan (in_backward, NULL);
  const guint64 held = test_bytes_in_use ();
  guint n, n_ended = 0;

  failing = ebb_cpu_backend;
  failing.alloc = alloc_or_fail;
  ebb_device_get_cpu ()->backend = &failing;
  test_planned_init (&plain, in_backward);
  plain.zeroes_first = zeroes_first;
  test_planned_apply (&plain, json);
  g_assert_true (train (&plain, step, G_MAXUINT, NULL));
  n = 0;
  for (gboolean failed = TRUE; failed; n += zeroes_first ? 7 : 1) /* the rest of that step is the same */
    {
      g_auto (TestPlanned) training = { 0 };
      g_autoptr (GError) error = NULL;
      guint n_lowered;

      test_planned_init (&training, in_backward);
      training.zeroes_first = zeroes_first;
      test_planned_apply (&training, json);
      if (!train (&training, step, n, &error))
        {
          g_assert_error (error, EBB_ERROR, EBB_ERROR_NO_MEMORY);
          g_assert_nonnull (strstr (error->message, "fails; the step can't run again: "));
          g_assert_true (g_str_has_suffix (error->message, "has changed since the mark"));
          g_assert_true (in_backward); /* otherwise nothing changes before all memory is there */
          n_ended++;
          continue;
        }
      g_object_get (training.plan, "n-lowered", &n_lowered, NULL);
      failed = n_lowered > 0;
      test_assert_same_planned (&training, &plain);
      ebb_memory_plan_check_step (training.plan, test_planned_step, &training, &error);
      g_assert_no_error (error);
    }
  test_planned_clear (&plain);
  ebb_device_get_cpu ()->backend = &ebb_cpu_backend;
  g_test_message ("%u allocations, of which %u end the training", n, n_ended);
  g_assert_cmpuint (n, >, 100);
  g_assert_true ((n_ended > 0) == in_backward);
  g_assert_cmpuint (test_bytes_in_use (), ==, held);
}

static void
test_first_step (void)
{
  each_allocation_of (0, FALSE, FALSE);
}

static void
test_watched_step (void)
{
  each_allocation_of (1, FALSE, FALSE);
}

static void
test_zero_first (void)
{
  each_allocation_of (1, FALSE, TRUE);
}

static void
test_step_in_backward (void)
{
  each_allocation_of (1, TRUE, FALSE);
}

/* The seconds that a lowered plan reports are those of its own blocks, and the rest of the step is the same. */
static void
test_seconds (void)
{
  g_auto (TestPlanned) training = { 0 };
  g_autoptr (EbbMemoryPlan) plan = NULL;
  g_autoptr (GError) error = NULL;
  double before = -1, rest = -1;
  guint n_lowered = 0;

  test_planned_init (&training, FALSE);
  plan = ebb_memory_plan_make (training.model, NULL, NULL, test_planned_step, &training, G_MAXINT64, 0, &error);
  g_assert_no_error (error);
  do
    {
      g_autofree char *json = ebb_memory_plan_to_json (plan);
      g_autoptr (JsonNode) node = json_from_string (json, &error);
      JsonArray *blocks = json_object_get_array_member (json_node_get_object (node), "blocks");
      double seconds, step_seconds, sum = 0;

      g_assert_no_error (error);
      for (guint i = 0; i < json_array_get_length (blocks); i++)
        sum += json_object_get_double_member (json_array_get_object_element (blocks, i), "seconds");
      seconds = json_object_get_double_member (json_node_get_object (node), "seconds");
      step_seconds = json_object_get_double_member (json_node_get_object (node), "step_seconds");
      g_assert_cmpfloat_with_epsilon (seconds, sum, 1e-9 * step_seconds);
      g_assert_cmpfloat (seconds, >, before);
      if (rest >= 0)
        g_assert_cmpfloat_with_epsilon (step_seconds - seconds, rest, 1e-6 * rest);
      before = seconds;
      rest = step_seconds - seconds;
      n_lowered++;
    }
  while (ebb_memory_plan_lower (plan, &error));
  g_assert_error (error, EBB_ERROR, EBB_ERROR_NO_MEMORY);
  g_assert_cmpuint (n_lowered, >, 2);
}

/* Other memory is in use than when it was planned. */
static void
test_limit (void)
{
  g_auto (TestPlanned) plain = { 0 };
  guint64 peak, least;
  g_autofree char *json = make_plan (FALSE, &peak);
  guint64 others = test_bytes_in_use ();

  test_planned_init (&plain, FALSE);
  test_planned_apply (&plain, json);
  g_object_get (plain.plan, "least-bytes", &least, NULL);
  g_assert_true (train (&plain, G_MAXUINT, 0, NULL));
  test_planned_clear (&plain);
  for (guint64 limit = peak + 64; limit + 512 > least; limit -= MIN (limit, (peak - least) / 5))
    {
      g_auto (TestPlanned) training = { 0 };
      g_autoptr (GError) error = NULL;
      guint64 predicted;
      guint n_lowered;
      gboolean ok;

      test_planned_init (&training, FALSE);
      test_planned_apply (&training, json);
      ebb_memory_set_limit (NULL, others + limit);
      ok = train (&training, G_MAXUINT, 0, &error);
      ebb_memory_set_limit (NULL, 0);
      g_object_get (training.plan, "n-lowered", &n_lowered, "predicted-peak-bytes", &predicted, NULL);
      g_test_message ("limit %" G_GUINT64_FORMAT ": lowered %u times, %" G_GUINT64_FORMAT " bytes", limit, n_lowered,
                      predicted);
      if (ok)
        {
          g_assert_cmpmem (training.losses, sizeof training.losses, plain.losses, sizeof plain.losses);
          g_assert_true ((n_lowered > 0) == (limit < peak));
        }
      else
        {
          g_autofree char *wanted = g_strdup_printf ("no plan needs less than %.1f MiB",
                                                     (double) least / (1024.0 * 1024.0));

          g_assert_error (error, EBB_ERROR, EBB_ERROR_NO_MEMORY);
          g_assert_true (g_str_has_suffix (error->message, wanted));
          g_assert_cmpuint (limit, <, least);
        }
    }
}

static void
test_by_hand (void)
{
  g_auto (TestPlanned) training = { 0 };
  g_autofree char *json = make_plan (FALSE, NULL);
  g_autoptr (GError) error = NULL;
  guint64 least, before, now;

  test_planned_init (&training, FALSE);
  test_planned_apply (&training, json);
  g_object_get (training.plan, "least-bytes", &least, "predicted-peak-bytes", &before, NULL);
  while (ebb_memory_plan_lower (training.plan, &error))
    {
      g_autofree char *text = ebb_memory_plan_to_json (training.plan);
      g_autoptr (EbbMemoryPlan) again = NULL;
      g_autoptr (EbbMemoryEstimate) estimate = NULL;

      g_object_get (training.plan, "predicted-peak-bytes", &now, NULL);
      g_assert_cmpuint (now, <, before);
      before = now;
      estimate = ebb_memory_estimate_new (training.model, NULL, test_planned_step, &training, NULL);
      g_assert_cmpuint (ebb_memory_estimate_get_peak_total (estimate), ==, now); /* it is applied */
      again = ebb_memory_plan_new_from_json (training.model, text, NULL);
      g_assert_nonnull (again);
    }
  g_assert_error (error, EBB_ERROR, EBB_ERROR_NO_MEMORY);
  g_assert_cmpuint (before, ==, least);
}

int
main (int argc, char **argv)
{
  test_init (&argc, &argv);
  ebb_set_num_threads (1);
  g_test_add_func ("/plan/lower/seconds-are-those-of-the-blocks", test_seconds);
  g_test_add_func ("/plan/lower/each-allocation-of-the-first-step", test_first_step);
  g_test_add_func ("/plan/lower/each-allocation-of-the-step-that-is-watched", test_watched_step);
  g_test_add_func ("/plan/lower/each-allocation-of-a-step-that-drops-gradients-first", test_zero_first);
  g_test_add_func ("/plan/lower/each-allocation-of-a-step-in-backward", test_step_in_backward);
  g_test_add_func ("/plan/lower/a-limit", test_limit);
  g_test_add_func ("/plan/lower/by-hand", test_by_hand);
  return g_test_run ();
}
