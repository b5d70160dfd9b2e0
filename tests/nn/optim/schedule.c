/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/device.h"
#include "support/tensors.h"

#include <math.h>

/* The learning rate over the steps. */

static void
the_cosine_warms_up_and_comes_down (void)
{
  g_autoptr (EbbSchedule) schedule = ebb_cosine_schedule_new (4, 12, 0.1);
  g_autoptr (EbbModule) module = ebb_linear_new (2, 2, TRUE, NULL);
  g_autoptr (EbbOptimizer) optimizer = ebb_sgd_new (module, 1, NULL);

  g_assert_cmpfloat (ebb_schedule_get_factor (schedule, 0), ==, 0.25);
  g_assert_cmpfloat (ebb_schedule_get_factor (schedule, 3), ==, 1);
  g_assert_cmpfloat (ebb_schedule_get_factor (schedule, 4), ==, 1);
  g_assert_cmpfloat_with_epsilon (ebb_schedule_get_factor (schedule, 8), 0.55, 1e-12);
  g_assert_cmpfloat_with_epsilon (ebb_schedule_get_factor (schedule, 6), 0.1 + 0.45 * (1 + sqrt (0.5)), 1e-12);
  g_assert_cmpfloat (ebb_schedule_get_factor (schedule, 12), ==, 0.1);
  g_assert_cmpfloat (ebb_schedule_get_factor (schedule, 1000), ==, 0.1);
  ebb_schedule_apply (schedule, optimizer);
  g_assert_cmpfloat (test_get_double (optimizer, "lr-scale"), ==, 0.25);
  g_assert_true (ebb_optimizer_step (optimizer, NULL));
  ebb_schedule_apply (schedule, optimizer);
  g_assert_cmpfloat (test_get_double (optimizer, "lr-scale"), ==, 0.5);
}

/* Nothing of the cosine is left, and no step divides by its length. */
static void
a_warmup_may_take_all_steps (void)
{
  static const gint64 totals[] = { 4, 3, 0 };

  for (guint i = 0; i < G_N_ELEMENTS (totals); i++)
    {
      g_autoptr (EbbSchedule) schedule = ebb_cosine_schedule_new (4, totals[i], 0.1);

      for (gint64 step = 0; step < 4; step++)
        g_assert_cmpfloat (ebb_schedule_get_factor (schedule, step), ==, (double) (step + 1) / 4);
      g_assert_cmpfloat (ebb_schedule_get_factor (schedule, 4), ==, 0.1);
      g_assert_cmpfloat (ebb_schedule_get_factor (schedule, 5), ==, 0.1);
    }
}

int
main (int argc, char **argv)
{
  test_init (&argc, &argv);
  g_test_add_func ("/schedule/the-cosine-warms-up-and-comes-down", the_cosine_warms_up_and_comes_down);
  g_test_add_func ("/schedule/a-warmup-may-take-all-steps", a_warmup_may_take_all_steps);
  return g_test_run ();
}
