/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/device.h"
#include "support/stores.h"
#include "support/tensors.h"
#include "support/training.h"

/* Every strategy must give the gradients of the plain model, bit for bit. */

/* -- equality ------------------------------------------------------------------------------------------------------ */

static EbbCheckpointOptions *
checked_options (gboolean selective)
{
  EbbCheckpointOptions *options = selective ? ebb_checkpoint_options_new_selective () : ebb_checkpoint_options_new ();

  g_object_set (options, "determinism-check", EBB_DETERMINISM_CHECK_VALUES, NULL);
  return options;
}

/* A GPT and the gradients of one step, by each strategy. */
static void
strategies_are_bitwise_equal (const TestMode *mode)
{
  GError *error = NULL;
  TestStep plain, full, selective, nested;
  g_autoptr (EbbModule) gpt = test_gpt_new ();
  g_autoptr (EbbCheckpointOptions) all = checked_options (FALSE);
  g_autoptr (EbbCheckpointOptions) some = checked_options (TRUE);

  ebb_module_to_dtype (gpt, mode->dtype, &error);
  test_step_run (gpt, NULL, &plain);
  g_assert_true (ebb_checkpoint_wrap_each (gpt, EBB_TYPE_TRANSFORMER_BLOCK, all, &error));
  test_step_run (gpt, NULL, &full);
  test_step_assert_same (&plain, &full);
  g_assert_cmpuint (full.peak, <, plain.peak);
  test_assert_counters (gpt, 0);

  /* Once more around: the whole model, each block, and each feed-forward part inside. */
  g_assert_true (ebb_checkpoint_wrap_each (gpt, EBB_TYPE_MLP, all, &error));
  test_step_run (test_wrap (gpt, all), NULL, &nested);
  g_assert_no_error (error);
  test_step_assert_same (&plain, &nested);
  test_assert_counters (gpt, 0);
  g_clear_object (&gpt);

  gpt = test_gpt_new ();
  ebb_module_to_dtype (gpt, mode->dtype, &error);
  g_assert_true (ebb_checkpoint_wrap_each (gpt, EBB_TYPE_TRANSFORMER_BLOCK, some, &error));
  test_step_run (gpt, NULL, &selective);
  test_step_assert_same (&plain, &selective);
  g_assert_cmpuint (selective.peak, <, plain.peak);
  g_assert_cmpuint (full.peak, <, selective.peak);
  test_assert_counters (gpt, 0);
  test_step_clear (&plain);
  test_step_clear (&full);
  test_step_clear (&selective);
  test_step_clear (&nested);
}

/* -- what is run again --------------------------------------------------------------------------------------------- */

static void
each_block_is_recomputed_once (void)
{
  GError *error = NULL;
  TestStep step;
  guint n;
  g_autoptr (EbbModule) gpt = test_gpt_new ();
  g_autofree EbbModule **modules = NULL;

  g_assert_true (ebb_checkpoint_wrap_each (gpt, EBB_TYPE_TRANSFORMER_BLOCK, NULL, &error));
  test_step_run (gpt, NULL, &step);
  test_step_clear (&step);
  modules = ebb_module_get_modules (gpt, &n);
  for (guint i = 0; i < n; i++)
    {
      if (EBB_IS_TRANSFORMER_BLOCK (modules[i]))
        g_assert_cmpuint (ebb_checkpoint_get_n_recomputes (modules[i]), ==, 1);
      g_object_unref (modules[i]);
    }
}

/* -- memory -------------------------------------------------------------------------------------------------------- */

static void
steps_leave_nothing_behind (void)
{
  g_autoptr (EbbTensor) x = test_randn (2, 3, 8, -1);
  g_autoptr (EbbMemoryStats) before = NULL;
  g_autoptr (EbbMemoryStats) after = NULL;
  EbbModule *mlp = test_mlp_new (1);

  g_object_unref (mlp);
  before = ebb_memory_get_stats (test_device ());
  mlp = test_mlp_new (1);
  g_object_unref (ebb_checkpoint_wrapper (mlp, NULL, NULL));
  for (guint i = 0; i < 200; i++)
    test_outcome_free (test_train1 (mlp, x));
  g_object_unref (mlp);
  after = ebb_memory_get_stats (test_device ());
  g_assert_cmpuint (ebb_memory_stats_get_total (after), ==, ebb_memory_stats_get_total (before));
}

static void
steady_state_asks_the_system_for_nothing (void)
{
  g_autoptr (EbbTensor) x = test_randn (2, 3, 8, -1);
  g_autoptr (EbbMemoryStats) before = NULL;
  g_autoptr (EbbMemoryStats) after = NULL;
  g_autoptr (EbbModule) mlp = test_mlp_new (1);

  g_object_unref (ebb_checkpoint_wrapper (mlp, NULL, NULL));
  for (guint i = 0; i < 2; i++)
    test_outcome_free (test_train1 (mlp, x));
  before = ebb_memory_get_stats (test_device ());
  for (guint i = 0; i < 50; i++)
    test_outcome_free (test_train1 (mlp, x));
  after = ebb_memory_get_stats (test_device ());
  g_assert_cmpuint (ebb_memory_stats_get_system_calls (after), ==, ebb_memory_stats_get_system_calls (before));
}

int
main (int argc,
      char **argv)
{
  test_init (&argc, &argv);
  test_add_modes ("/checkpoint/strategies-are-bitwise-equal", strategies_are_bitwise_equal);
  g_test_add_func ("/checkpoint/each-block-is-recomputed-once", each_block_is_recomputed_once);
  g_test_add_func ("/checkpoint/steps-leave-nothing-behind", steps_leave_nothing_behind);
  g_test_add_func ("/checkpoint/steady-state-asks-the-system-for-nothing", steady_state_asks_the_system_for_nothing);
  return g_test_run ();
}
