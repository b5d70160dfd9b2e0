/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/device.h"
#include "support/tensors.h"
#include "support/test-modules.h"
#include "support/gpt-step.h"
#include "support/training.h"

#include <string.h>

/* The layers of a stack checkpointed in chunks (uniform), or the first of them each by itself (block). */

#define N_LAYERS 5

static EbbModule *
get_layers (EbbModule *gpt)
{
  EbbModule *h = ebb_module_get_child (gpt, "h");

  g_object_unref (h); /* the model holds it */
  return h;
}

static EbbModule *
get_layer (EbbModule *gpt, guint index)
{
  EbbModule *layer = ebb_module_list_get (EBB_MODULE_LIST (get_layers (gpt)), index);

  g_object_unref (layer);
  return layer;
}

static EbbCheckpointOptions *
strict_options (void)
{
  EbbCheckpointOptions *options = ebb_checkpoint_options_new ();

  g_object_set (options, "determinism-check", EBB_DETERMINISM_CHECK_VALUES, NULL);
  return options;
}

/* -- uniform ------------------------------------------------------------------------------------------------------- */

static void
test_uniform_is_bitwise_equal (gconstpointer data)
{
  const gboolean autocast = GPOINTER_TO_INT (data) & 1, with_mask = GPOINTER_TO_INT (data) & 2;
  g_autoptr (EbbModule) gpt = test_gpt_step_model (N_LAYERS, 0.1);
  g_autoptr (EbbCheckpointOptions) options = strict_options ();
  g_auto (TestGptStep) plain = { 0 };
  GError *error = NULL;

  if (autocast)
    ebb_push_autocast (TRUE, EBB_DTYPE_BF16);
  test_gpt_step_run (gpt, with_mask, &plain);
  for (guint n = 1; n <= N_LAYERS; n++)
    {
      g_auto (TestGptStep) step = { 0 };

      g_assert_true (ebb_checkpoint_wrap_uniform (get_layers (gpt), n, options, &error));
      g_assert_no_error (error);
      test_gpt_step_run (gpt, with_mask, &step);
      test_assert_same_gpt_step (&plain, &step);
      g_assert_cmpuint (step.peak, <, plain.peak);
      test_assert_counters (gpt, 0);
      g_assert_cmpuint (ebb_checkpoint_get_n_recomputes (get_layers (gpt)), ==, (N_LAYERS + n - 1) / n);
      g_assert_true (ebb_checkpoint_unwrap (get_layers (gpt)));
    }
  if (autocast)
    ebb_pop_autocast ();
}

/* A chunk keeps what its first layer is given and nothing else. */
static void
test_uniform_keeps_one_input_a_chunk (void)
{
  const guint64 input = TEST_GPT_BATCH * TEST_GPT_CONTEXT * TEST_GPT_WIDTH * sizeof (float);

  for (guint n = 1; n <= N_LAYERS; n++)
    {
      g_autoptr (EbbModule) gpt = test_gpt_step_model (N_LAYERS, 0);
      g_autoptr (EbbCheckpointStats) stats = NULL;
      g_auto (TestGptStep) step = { 0 };

      g_assert_true (ebb_checkpoint_wrap_uniform (get_layers (gpt), n, NULL, NULL));
      test_gpt_step_run (gpt, FALSE, &step);
      stats = ebb_checkpoint_get_stats (get_layers (gpt));
      g_assert_cmpuint (stats->peak_saved_bytes, ==, input * ((N_LAYERS + n - 1) / n));
      g_assert_cmpuint (stats->saved_bytes, ==, 0);
    }
}

static void
test_uniform_changes_nothing_but_memory (void)
{
  g_autoptr (EbbModule) gpt = test_gpt_step_model (3, 0.1);
  g_autofree char *before = ebb_module_to_string (gpt);
  g_auto (GStrv) names = ebb_module_get_parameter_names (gpt, TRUE);
  g_autofree char *after = NULL;
  g_auto (GStrv) names_after = NULL;
  g_auto (TestGptStep) plain = { 0 };
  g_auto (TestGptStep) step = { 0 };

  test_gpt_step_run (gpt, FALSE, &plain);
  g_assert_true (ebb_checkpoint_wrap_uniform (get_layers (gpt), 2, NULL, NULL));
  g_assert_true (ebb_checkpoint_is_wrapped (get_layers (gpt)));
  names_after = ebb_module_get_parameter_names (gpt, TRUE);
  after = ebb_module_to_string (gpt);
  g_assert_cmpstr (before, ==, after);
  g_assert_true (g_strv_equal ((const char *const *) names, (const char *const *) names_after));
  g_assert_true (ebb_checkpoint_unwrap (get_layers (gpt)));
  g_assert_false (ebb_checkpoint_is_wrapped (get_layers (gpt)));
  g_assert_false (ebb_checkpoint_unwrap (get_layers (gpt)));
  test_gpt_step_run (gpt, FALSE, &step);
  g_assert_cmpuint (step.peak, ==, plain.peak);
}

static void
test_uniform_nests_with_wrapped_layers (void)
{
  g_autoptr (EbbModule) gpt = test_gpt_step_model (N_LAYERS, 0.1);
  g_autoptr (EbbCheckpointOptions) options = strict_options ();
  g_auto (TestGptStep) plain = { 0 };
  g_auto (TestGptStep) nested = { 0 };
  g_auto (TestGptStep) all = { 0 };

  test_gpt_step_run (gpt, TRUE, &plain);
  g_assert_true (ebb_checkpoint_wrap_each (gpt, EBB_TYPE_TRANSFORMER_BLOCK, options, NULL));
  g_assert_true (ebb_checkpoint_wrap_uniform (get_layers (gpt), 2, options, NULL));
  test_gpt_step_run (gpt, TRUE, &nested);
  test_assert_same_gpt_step (&plain, &nested);
  test_assert_counters (gpt, 0);

  g_object_unref (ebb_checkpoint_wrapper (gpt, options, NULL));
  test_gpt_step_run (gpt, TRUE, &all);
  test_assert_same_gpt_step (&plain, &all);
  test_assert_counters (gpt, 0);
}

static void
test_forwards_in_chunks_are_counted (void)
{
  g_autoptr (EbbModule) gpt = test_gpt_step_model (3, 0);
  g_autoptr (EbbTensor) tokens = test_tokens (1, 20, 1, 4, -1);
  g_autoptr (EbbTensor) logits = NULL;
  g_autoptr (EbbTensor) more = NULL;
  g_autoptr (EbbTensor) sum = NULL;
  GError *error = NULL;

  g_assert_true (ebb_checkpoint_wrap_uniform (get_layers (gpt), 2, NULL, NULL));
  logits = ebb_module_call1 (gpt, tokens, &error);
  more = ebb_module_call1 (gpt, tokens, &error);
  for (guint i = 0; i < 3; i++)
    test_assert_counters (get_layer (gpt, i), 2);
  g_clear_pointer (&more, ebb_tensor_unref); /* a graph that nobody goes back through */
  for (guint i = 0; i < 3; i++)
    test_assert_counters (get_layer (gpt, i), 1);
  sum = ebb_sum (logits, NULL, 0, FALSE, &error);
  ebb_tensor_backward (sum, &error);
  g_assert_no_error (error);
  test_assert_counters (gpt, 0);

  ebb_push_checkpointing_disabled ();
  g_clear_pointer (&logits, ebb_tensor_unref);
  logits = ebb_module_call1 (gpt, tokens, &error);
  ebb_pop_checkpointing_disabled ();
  test_assert_counters (gpt, 0);
}

/* A flag that is changed between forward and backward must not change the recompute, nor be changed by it. */
static void
test_training_flags_are_those_of_the_forward (void)
{
  g_autoptr (EbbModule) gpt = test_gpt_step_model (2, 0.3);
  g_autoptr (EbbTensor) tokens = test_tokens (1, 20, 1, 4, -1);
  g_autoptr (EbbTensor) weight = ebb_module_get_parameter (gpt, "h.0.mlp.c_fc.weight");
  g_autoptr (EbbTensor) expected = NULL;
  GError *error = NULL;

  g_assert_nonnull (weight);
  for (int wrapped = 0; wrapped < 2; wrapped++)
    {
      g_autoptr (EbbTensor) logits = NULL;
      g_autoptr (EbbTensor) sum = NULL;
      g_autoptr (EbbTensor) grad = NULL;

      if (wrapped)
        g_assert_true (ebb_checkpoint_wrap_uniform (get_layers (gpt), 2, NULL, NULL));
      ebb_manual_seed (3);
      ebb_module_zero_grad (gpt);
      ebb_module_set_training (gpt, TRUE);
      logits = ebb_module_call1 (gpt, tokens, &error);
      sum = ebb_sum (logits, NULL, 0, FALSE, &error);
      ebb_module_set_training (gpt, FALSE);
      ebb_tensor_backward (sum, &error);
      g_assert_no_error (error);
      g_assert_false (ebb_module_get_training (get_layer (gpt, 1)));
      grad = ebb_tensor_get_grad (weight);
      if (wrapped)
        g_assert_true (ebb_tensor_equal (grad, expected));
      else
        expected = g_steal_pointer (&grad);
    }
}

static void
test_a_layer_dropped_before_backward_is_an_error (void)
{
  g_autoptr (EbbModule) stack = ebb_sequential_new ();
  EbbModule *layer = test_scale_new (2);
  g_autoptr (EbbModule) last = test_scale_new (3);
  g_autoptr (EbbTensor) x = test_randn (1, 4, -1);
  g_autoptr (EbbTensor) y = NULL;
  g_autoptr (EbbTensor) squared = NULL;
  g_autoptr (EbbTensor) sum = NULL;
  GError *error = NULL;

  ebb_sequential_append (EBB_SEQUENTIAL (stack), layer, &error);
  ebb_sequential_append (EBB_SEQUENTIAL (stack), last, &error);
  g_assert_true (ebb_checkpoint_wrap_uniform (stack, 2, NULL, &error));
  y = ebb_module_call1 (stack, x, &error);
  squared = ebb_square (y, &error);
  sum = ebb_sum (squared, NULL, 0, FALSE, &error);
  g_assert_no_error (error);
  g_object_add_weak_pointer (G_OBJECT (layer), (gpointer *) &layer);
  g_object_unref (layer);
  g_assert_nonnull (layer);
  g_clear_object (&stack);
  g_assert_null (layer); /* neither the chunk nor the graph holds it */
  g_assert_false (ebb_tensor_backward (sum, &error));
  test_assert_error (error, EBB_ERROR_GRAPH, "0 to ", "finalized");
  g_clear_error (&error);
  g_clear_pointer (&sum, ebb_tensor_unref);
  g_clear_pointer (&squared, ebb_tensor_unref);
  g_clear_pointer (&y, ebb_tensor_unref);
  g_assert_cmpuint (ebb_module_get_forward_counter (last), ==, 0);
}

static void
append_scale (EbbModule *stack, float gain)
{
  g_autoptr (EbbModule) scale = test_scale_new (gain);

  g_assert_true (ebb_sequential_append (EBB_SEQUENTIAL (stack), scale, NULL));
}

static void
assert_slope (EbbModule *stack, float expected)
{
  g_autoptr (EbbTensor) x = test_randn (1, 4, -1);
  g_autoptr (EbbTensor) y = NULL;
  g_autoptr (EbbTensor) sum = NULL;
  g_autoptr (EbbTensor) grad = NULL;
  GError *error = NULL;

  ebb_tensor_set_requires_grad (x, TRUE, &error);
  y = ebb_module_call1 (stack, x, &error);
  sum = ebb_sum (y, NULL, 0, FALSE, &error);
  ebb_tensor_backward (sum, &error);
  g_assert_no_error (error);
  grad = ebb_tensor_get_grad (x);
  g_assert_cmpfloat (test_at (grad, 0), ==, expected);
  test_assert_counters (stack, 0);
}

/* Layers may come, go and be replaced after the stack was divided. */
static void
test_chunks_follow_the_layers_of_the_stack (void)
{
  g_autoptr (EbbModule) stack = ebb_sequential_new ();
  g_autoptr (EbbModule) other = test_scale_new (16);
  g_autoptr (EbbModule) replaced = NULL; /* which lives on */

  for (guint i = 0; i < 3; i++)
    append_scale (stack, 2);
  replaced = ebb_module_get_child (stack, "0");
  g_assert_true (ebb_checkpoint_wrap_uniform (stack, 2, NULL, NULL));
  assert_slope (stack, 8);
  append_scale (stack, 4);
  append_scale (stack, 4);
  assert_slope (stack, 128);
  g_assert_true (ebb_module_register_child (stack, "0", other, NULL));
  assert_slope (stack, 1024);
  g_assert_true (ebb_module_register_child (stack, "1", NULL, NULL));
  g_assert_true (ebb_module_register_child (stack, "4", NULL, NULL));
  assert_slope (stack, 128);
}

/* -- sequences and lists of any module ----------------------------------------------------------------------------- */

/* Results of modules with other signatures pass through a chunk as from one module to the next. */
static void
test_a_list_shares_the_other_arguments (void)
{
  g_autoptr (EbbModule) list = ebb_module_list_new ();
  g_autoptr (EbbTensor) x = test_floats ((float[]){ 1, 2 }, 2, -1);
  g_autoptr (EbbArgs) args = ebb_args_new (EBB_ARGS_TUPLE);
  g_autofree char *plain = NULL;
  GError *error = NULL;

  for (guint i = 0; i < 3; i++)
    {
      g_autoptr (EbbModule) scale = test_scale_new (2);

      ebb_module_list_append (EBB_MODULE_LIST (list), scale, &error);
    }
  ebb_args_add_tensor (args, NULL, x);
  for (int wrapped = 0; wrapped < 2; wrapped++)
    {
      g_autoptr (EbbArgs) result = NULL;
      g_autofree char *text = NULL;

      if (wrapped)
        g_assert_true (ebb_checkpoint_wrap_uniform (list, 2, NULL, &error));
      result = ebb_module_list_call_in_turn (EBB_MODULE_LIST (list), args, &error);
      g_assert_no_error (error);
      g_assert_cmpint (ebb_args_get_kind (result), ==, EBB_ARGS_BARE);
      text = ebb_args_to_string (result);
      if (wrapped)
        g_assert_cmpstr (text, ==, plain);
      else
        plain = g_steal_pointer (&text);
    }
  g_assert_null (ebb_module_call (list, args, &error));
  test_assert_error (error, EBB_ERROR_NOT_SUPPORTED, "ModuleList", "call_in_turn");
  g_clear_error (&error);
}

static void
test_a_list_needs_a_first_argument_by_position (void)
{
  g_autoptr (EbbModule) list = ebb_module_list_new ();
  g_autoptr (EbbArgs) args = ebb_args_new (EBB_ARGS_TUPLE);
  g_autoptr (EbbArgs) result = NULL;
  GError *error = NULL;

  ebb_args_add_int (args, "x", 3);
  g_assert_null (ebb_module_list_call_in_turn (EBB_MODULE_LIST (list), args, &error));
  test_assert_error (error, EBB_ERROR_INVALID_ARGUMENT, "by position", "x");
  g_assert_null (ebb_module_list_call_in_turn (EBB_MODULE_LIST (list), args, &error)); /* an error is set */
  g_clear_error (&error);
  ebb_args_add_int (args, NULL, 4);
  result = ebb_module_list_call_in_turn (EBB_MODULE_LIST (list), args, &error);
  g_assert_no_error (error);
  g_assert_cmpint (ebb_args_get_int (result, 0), ==, 4);
}

static void
test_a_failing_layer_fails_the_step_alone (void)
{
  g_autoptr (EbbModule) stack = ebb_sequential_new ();
  g_autoptr (EbbModule) scale = test_scale_new (2);
  g_autoptr (EbbModule) silent = test_silent_new ();
  g_autoptr (EbbTensor) x = test_randn (1, 4, -1);
  GError *error = NULL;

  ebb_sequential_append (EBB_SEQUENTIAL (stack), scale, &error);
  ebb_sequential_append (EBB_SEQUENTIAL (stack), silent, &error);
  g_assert_true (ebb_checkpoint_wrap_uniform (stack, 2, NULL, &error));
  g_assert_null (ebb_module_call1 (stack, x, &error));
  test_assert_error (error, EBB_ERROR_CALLBACK, "1: ", "Silent");
  g_clear_error (&error);
  test_assert_counters (stack, 0);
}

/* -- block --------------------------------------------------------------------------------------------------------- */

static void
test_block_wraps_the_first_layers (void)
{
  guint64 last_peak = G_MAXUINT64;
  g_auto (TestGptStep) plain = { 0 };

  {
    g_autoptr (EbbModule) gpt = test_gpt_step_model (N_LAYERS, 0.1);

    test_gpt_step_run (gpt, FALSE, &plain);
  }
  for (guint n = 1; n <= N_LAYERS; n++)
    {
      g_autoptr (EbbModule) gpt = test_gpt_step_model (N_LAYERS, 0.1);
      g_autoptr (EbbCheckpointOptions) options = strict_options ();
      g_auto (TestGptStep) step = { 0 };

      g_assert_true (ebb_checkpoint_wrap_block (get_layers (gpt), n, options, NULL));
      test_gpt_step_run (gpt, FALSE, &step);
      test_assert_same_gpt_step (&plain, &step);
      g_assert_cmpuint (step.peak, <, last_peak);
      last_peak = step.peak;
      for (guint i = 0; i < N_LAYERS; i++)
        {
          g_assert_cmpint (ebb_checkpoint_is_wrapped (get_layer (gpt, i)), ==, i < n);
          g_assert_cmpuint (ebb_checkpoint_get_n_recomputes (get_layer (gpt, i)), ==, i < n);
        }
    }
}

/* -- what can't be ------------------------------------------------------------------------------------------------- */

static void
test_errors_name_the_value (void)
{
  g_autoptr (EbbModule) gpt = test_gpt_step_model (2, 0);
  g_autoptr (EbbModule) empty = ebb_module_list_new ();
  GError *error = NULL;

  g_assert_false (ebb_checkpoint_wrap_uniform (get_layers (gpt), 0, NULL, &error));
  test_assert_error (error, EBB_ERROR_INVALID_ARGUMENT, "n_layers_per_chunk is 0", "2 layers", "from 1 to 2");
  g_assert_false (ebb_checkpoint_wrap_block (get_layers (gpt), 1, NULL, &error)); /* an error is set */
  g_assert_false (ebb_checkpoint_is_wrapped (get_layer (gpt, 0)));
  g_clear_error (&error);
  g_assert_false (ebb_checkpoint_wrap_block (get_layers (gpt), 3, NULL, &error));
  test_assert_error (error, EBB_ERROR_INVALID_ARGUMENT, "n_layers is 3", "from 1 to 2");
  g_assert_false (ebb_checkpoint_is_wrapped (get_layer (gpt, 0)));
  g_clear_error (&error);
  g_assert_false (ebb_checkpoint_wrap_uniform (gpt, 1, NULL, &error));
  test_assert_error (error, EBB_ERROR_INVALID_ARGUMENT, "Gpt", "ModuleList", "\"h\"");
  g_clear_error (&error);
  g_assert_false (ebb_checkpoint_wrap_uniform (empty, 1, NULL, &error));
  test_assert_error (error, EBB_ERROR_INVALID_ARGUMENT, "no layers");
  g_clear_error (&error);
  g_assert_true (ebb_checkpoint_wrap_uniform (get_layers (gpt), 1, NULL, &error));
  g_assert_false (ebb_checkpoint_wrap_uniform (get_layers (gpt), 2, NULL, &error));
  test_assert_error (error, EBB_ERROR_INVALID_ARGUMENT, "chunks of 1", "unwrap");
  g_clear_error (&error);
  g_assert_false (ebb_checkpoint_wrap_uniform (NULL, 1, NULL, NULL));
  g_assert_false (ebb_checkpoint_wrap_block (NULL, 1, NULL, NULL));
}

static void
test_chunks_show_in_the_report (void)
{
  g_autoptr (EbbModule) gpt = test_gpt_step_model (3, 0);
  g_auto (TestGptStep) step = { 0 };
  g_autofree char *report = NULL;

  g_assert_true (ebb_checkpoint_wrap_uniform (get_layers (gpt), 2, NULL, NULL));
  test_gpt_step_run (gpt, FALSE, &step);
  report = ebb_checkpoint_report (gpt);
  g_assert_nonnull (strstr (report, "h.0 to h.1"));
  g_assert_nonnull (strstr (report, "h.2 "));
}

int
main (int argc,
      char **argv)
{
  test_init (&argc, &argv);
  g_test_add_data_func ("/checkpoint-stack/uniform-is-bitwise-equal", GINT_TO_POINTER (0),
                        test_uniform_is_bitwise_equal);
  g_test_add_data_func ("/checkpoint-stack/uniform-is-bitwise-equal/autocast", GINT_TO_POINTER (1),
                        test_uniform_is_bitwise_equal);
  g_test_add_data_func ("/checkpoint-stack/uniform-is-bitwise-equal/mask", GINT_TO_POINTER (2),
                        test_uniform_is_bitwise_equal);
  g_test_add_func ("/checkpoint-stack/uniform-keeps-one-input-a-chunk", test_uniform_keeps_one_input_a_chunk);
  g_test_add_func ("/checkpoint-stack/uniform-changes-nothing-but-memory", test_uniform_changes_nothing_but_memory);
  g_test_add_func ("/checkpoint-stack/uniform-nests-with-wrapped-layers", test_uniform_nests_with_wrapped_layers);
  g_test_add_func ("/checkpoint-stack/forwards-in-chunks-are-counted", test_forwards_in_chunks_are_counted);
  g_test_add_func ("/checkpoint-stack/training-flags-are-those-of-the-forward",
                   test_training_flags_are_those_of_the_forward);
  g_test_add_func ("/checkpoint-stack/a-layer-dropped-before-backward-is-an-error",
                   test_a_layer_dropped_before_backward_is_an_error);
  g_test_add_func ("/checkpoint-stack/chunks-follow-the-layers-of-the-stack",
                   test_chunks_follow_the_layers_of_the_stack);
  g_test_add_func ("/checkpoint-stack/a-list-gives-what-it-gives-unwrapped", test_a_list_shares_the_other_arguments);
  g_test_add_func ("/checkpoint-stack/a-list-needs-a-first-argument-by-position",
                   test_a_list_needs_a_first_argument_by_position);
  g_test_add_func ("/checkpoint-stack/a-failing-layer-fails-the-step-alone", test_a_failing_layer_fails_the_step_alone);
  g_test_add_func ("/checkpoint-stack/block-wraps-the-first-layers", test_block_wraps_the_first_layers);
  g_test_add_func ("/checkpoint-stack/errors-name-the-value", test_errors_name_the_value);
  g_test_add_func ("/checkpoint-stack/chunks-show-in-the-report", test_chunks_show_in_the_report);
  return g_test_run ();
}
