/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/device.h"
#include "support/stores.h"
#include "support/tensors.h"

/* Whichever allocation of a training step can't be met, the step fails with an error, leaves no memory behind, and the
 * next one with room enough gives the gradients that it always gives. */

#define N_LIMITS 48

typedef enum
{
  NONE,
  SELECTIVE,
  FULL,
  NESTED
} Way;

static EbbModule *
make_model (Way way)
{
  EbbModule *gpt = test_gpt_new ();
  g_autoptr (EbbCheckpointOptions) options =
      way == SELECTIVE ? ebb_checkpoint_options_new_selective () : ebb_checkpoint_options_new ();
  g_autoptr (GError) error = NULL;

  if (way != NONE)
    ebb_checkpoint_wrap_each (gpt, EBB_TYPE_TRANSFORMER_BLOCK, options, &error);
  g_assert_no_error (error);
  if (way == NESTED)
    g_object_unref (ebb_checkpoint_wrapper (gpt, NULL, &error));
  g_assert_no_error (error);
  return gpt;
}

static gboolean
run_step (EbbModule *gpt,
          guint64 limit,
          GError **error)
{
  g_autoptr (EbbTensor) tokens = test_tokens (11, 61, 2, 24, -1);
  g_autoptr (EbbTensor) targets = test_tokens (12, 61, 2, 24, -1);
  g_autoptr (EbbTensor) loss = NULL;

  ebb_manual_seed (13);
  ebb_memory_set_limit (test_device (), limit);
  loss = ebb_gpt_loss (EBB_GPT (gpt), tokens, targets, error);
  return ebb_tensor_backward (loss, error);
}

/* A limit of 0: all there is. */
static void
step_within (EbbModule *gpt,
             guint64 limit,
             guint *n_failures)
{
  g_autoptr (GError) error = NULL;

  if (!run_step (gpt, limit, &error))
    {
      g_assert_error (error, EBB_ERROR, EBB_ERROR_NO_MEMORY);
      ++*n_failures;
    }
  ebb_memory_set_limit (test_device (), 0);
  g_assert_false (ebb_is_checkpointing ());
  g_assert_false (ebb_is_recomputing ());
  g_assert_true (ebb_is_grad_enabled ());
  g_assert_cmpuint (ebb_module_get_forward_counter (gpt), ==, 0);
}

static void
fails_cleanly_at_any_point (gconstpointer data)
{
  g_autoptr (EbbModule) gpt = make_model ((Way) GPOINTER_TO_INT (data));
  TestStep expected, after;
  guint64 held, peak;
  guint n_failures = 0;

  test_step_run (gpt, NULL, &expected);
  ebb_module_zero_grad (gpt);
  held = test_bytes_in_use ();
  ebb_memory_reset_peaks (test_device ());
  step_within (gpt, 0, &n_failures);
  g_assert_cmpuint (n_failures, ==, 0);
  {
    g_autoptr (EbbMemoryStats) stats = ebb_memory_get_stats (test_device ());

    peak = ebb_memory_stats_get_peak_total (stats);
  }
  ebb_module_zero_grad (gpt);
  g_assert_cmpuint (test_bytes_in_use (), ==, held);

  for (guint i = 0; i < N_LIMITS; i++)
    {
      step_within (gpt, held + 1024 + (peak - held - 1024) * i / N_LIMITS, &n_failures);
      ebb_module_zero_grad (gpt);
      g_assert_cmpuint (test_bytes_in_use (), ==, held);
    }
  g_assert_cmpuint (n_failures, ==, N_LIMITS);

  test_step_run (gpt, NULL, &after);
  test_step_assert_same (&expected, &after);
  test_step_clear (&expected);
  test_step_clear (&after);
}

/* What is available is what the limit leaves, and never more than the machine has. */
static void
what_is_available_is_within_the_limit (void)
{
  g_autoptr (EbbTensor) held = test_randn (2, 256, 1024, -1);
  g_autoptr (EbbMemoryStats) stats = ebb_memory_get_stats (test_device ());
  const guint64 used = ebb_memory_stats_get_total (stats);

  g_assert_cmpuint (used, >=, 1 << 20);
  ebb_memory_set_limit (test_device (), used + 4096);
  g_assert_cmpuint (ebb_memory_get_available (test_device ()), ==, 4096);
  ebb_memory_set_limit (test_device (), used - 1);
  g_assert_cmpuint (ebb_memory_get_available (test_device ()), ==, 0);
  ebb_memory_set_limit (test_device (), 0);
  g_assert_cmpuint (ebb_memory_get_available (test_device ()), <=, ebb_memory_get_limit (test_device ()) - used);
}

int
main (int argc,
      char **argv)
{
  test_init (&argc, &argv);
  g_test_add_data_func ("/memory-limit/fails-cleanly/none", GINT_TO_POINTER (NONE), fails_cleanly_at_any_point);
  g_test_add_data_func ("/memory-limit/fails-cleanly/selective", GINT_TO_POINTER (SELECTIVE),
                        fails_cleanly_at_any_point);
  g_test_add_data_func ("/memory-limit/fails-cleanly/full", GINT_TO_POINTER (FULL), fails_cleanly_at_any_point);
  g_test_add_data_func ("/memory-limit/fails-cleanly/nested", GINT_TO_POINTER (NESTED), fails_cleanly_at_any_point);
  g_test_add_func ("/memory-limit/available", what_is_available_is_within_the_limit);
  return g_test_run ();
}
