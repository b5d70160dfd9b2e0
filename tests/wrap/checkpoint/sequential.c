/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/device.h"
#include "support/tensors.h"
#include "support/test-modules.h"
#include "support/training.h"

/* A sequence in segments, all but the last checkpointed. */

#define N_CHILDREN 7

/* Each child counts its calls. */
static EbbModule *
make_sequence (guint *calls)
{
  EbbModule *sequence = ebb_sequential_new ();

  for (guint i = 0; i < N_CHILDREN; i++)
    {
      g_autoptr (EbbModule) child = test_counting_new (100 + i, &calls[i]);

      g_assert_true (ebb_sequential_append (EBB_SEQUENTIAL (sequence), child, NULL));
    }
  return sequence;
}

static EbbTensor *
make_input (void)
{
  EbbTensor *x = test_randn (3, 4, 8, -1);

  g_assert_true (ebb_tensor_set_requires_grad (x, TRUE, NULL));
  return x;
}

static void
test_segments_are_bitwise_equal_to_the_sequence (void)
{
  for (guint n = 1; n <= N_CHILDREN; n++)
    {
      guint calls[N_CHILDREN] = { 0 };
      g_autoptr (EbbModule) sequence = make_sequence (calls);
      g_autoptr (EbbTensor) x = make_input ();
      g_autoptr (EbbTensor) y = NULL;
      g_autoptr (EbbTensor) loss = NULL;
      g_autoptr (EbbTensor) grad = NULL;
      g_autoptr (EbbTensor) plain_y = NULL;
      g_autoptr (EbbTensor) plain_loss = NULL;
      g_autoptr (EbbTensor) plain_grad = NULL;
      g_autoptr (TestOutcome) plain = NULL;
      g_autoptr (TestOutcome) outcome = NULL;
      GError *error = NULL;

      plain_y = ebb_module_call1 (sequence, x, &error);
      plain_loss = test_loss (plain_y);
      test_backward (plain_loss);
      plain = test_outcome_new (sequence, NULL);
      plain_grad = ebb_tensor_get_grad (x);
      ebb_module_zero_grad (sequence);
      ebb_tensor_set_grad (x, NULL, &error);

      for (guint i = 0; i < N_CHILDREN; i++)
        calls[i] = 0;
      y = ebb_checkpoint_sequential (sequence, n, x, &error);
      g_assert_no_error (error);
      g_assert_true (ebb_tensor_equal (y, plain_y));
      loss = test_loss (y);
      test_backward (loss);
      outcome = test_outcome_new (sequence, NULL);
      grad = ebb_tensor_get_grad (x);
      test_assert_same_outcome (outcome, plain);
      g_assert_true (ebb_tensor_equal (grad, plain_grad));
      /* PyTorch's rule: segments of 7 / n children, the last one takes the rest and is run once. */
      for (guint i = 0; i < N_CHILDREN; i++)
        g_assert_cmpuint (calls[i], ==, i < (n - 1) * (N_CHILDREN / n) ? 2 : 1);
      test_assert_counters (sequence, 0);
    }
}

static void
test_children_in_segments_count_forwards (void)
{
  guint calls[N_CHILDREN] = { 0 };
  g_autoptr (EbbModule) sequence = make_sequence (calls);
  g_autoptr (EbbTensor) x = make_input ();
  g_autoptr (EbbTensor) y = NULL;
  g_autoptr (EbbTensor) again = NULL;
  GError *error = NULL;

  y = ebb_checkpoint_sequential (sequence, 3, x, &error);
  again = ebb_checkpoint_sequential (sequence, 3, x, &error);
  for (guint i = 0; i < N_CHILDREN; i++)
    {
      g_autoptr (EbbModule) child = ebb_sequential_get (EBB_SEQUENTIAL (sequence), i);

      g_assert_cmpuint (ebb_module_get_forward_counter (child), ==, i < 4 ? 2 : 0);
    }
  g_clear_pointer (&y, ebb_tensor_unref);
  g_clear_pointer (&again, ebb_tensor_unref);
  test_assert_counters (sequence, 0);

  ebb_push_grad_enabled (FALSE);
  y = ebb_checkpoint_sequential (sequence, 3, x, &error);
  ebb_pop_grad_enabled ();
  g_assert_no_error (error);
  g_assert_false (ebb_tensor_get_requires_grad (y));
  test_assert_counters (sequence, 0);
}

/* Dropout in a segment draws as in training, though the modules are in evaluation when backward comes. */
static void
test_training_flags_are_those_of_the_forward (void)
{
  g_autoptr (EbbModule) sequence = test_mlp_new (1);
  g_autoptr (EbbTensor) x = test_randn (2, 4, 8, -1);
  g_autoptr (TestOutcome) plain = NULL;
  GError *error = NULL;

  for (guint n = 1; n <= 3; n++)
    {
      g_autoptr (EbbTensor) y = NULL;
      g_autoptr (EbbTensor) loss = NULL;
      g_autoptr (TestOutcome) outcome = NULL;

      ebb_manual_seed (9);
      ebb_module_zero_grad (sequence);
      ebb_module_set_training (sequence, TRUE);
      y = ebb_checkpoint_sequential (sequence, n, x, &error);
      g_assert_no_error (error);
      loss = test_loss (y);
      ebb_module_set_training (sequence, FALSE);
      test_backward (loss);
      g_assert_false (ebb_module_get_training (sequence));
      outcome = test_outcome_new (sequence, NULL);
      if (plain == NULL)
        plain = g_steal_pointer (&outcome);
      else
        test_assert_same_outcome (outcome, plain);
    }
}

/* (x, *) to (tanh (x), {"n": 1}); the next child gets the pair as one value, and gives its tensor times 3 and a name.
 */
static EbbArgs *
give_pair (EbbModule *self, EbbArgs *args, gpointer data, GError **error)
{
  g_autoptr (EbbTensor) x = ebb_args_get_tensor (args, 0);
  g_autoptr (EbbTensor) y = ebb_tanh (x, error);
  g_autoptr (EbbArgs) info = ebb_args_new (EBB_ARGS_DICT);
  EbbArgs *result = y != NULL ? ebb_args_new (EBB_ARGS_LIST) : NULL;

  g_assert_cmpint (ebb_args_get_length (args), ==, 2);
  ebb_args_add_int (info, "n", 1);
  if (result != NULL)
    {
      ebb_args_add_tensor (result, NULL, y);
      ebb_args_add_args (result, NULL, info);
    }
  return result;
}

static EbbArgs *
take_pair (EbbModule *self, EbbArgs *args, gpointer data, GError **error)
{
  g_autoptr (EbbArgs) pair = ebb_args_get_args (args, 0);
  g_autoptr (EbbTensor) x = NULL;
  g_autoptr (EbbTensor) y = NULL;
  EbbArgs *result;

  g_assert_cmpint (ebb_args_get_length (args), ==, 1);
  g_assert_cmpint (ebb_args_get_kind (pair), ==, EBB_ARGS_LIST);
  x = ebb_args_get_tensor (pair, 0);
  y = ebb_mul_scalar (x, 3, error);
  result = ebb_args_new (EBB_ARGS_DICT);
  if (y != NULL)
    ebb_args_add_tensor (result, "y", y);
  ebb_args_add_string (result, "name", "three");
  return result;
}

static void
test_any_arguments_and_results_pass (void)
{
  g_autoptr (EbbModule) first = test_lambda_new (give_pair, NULL);
  g_autoptr (EbbModule) second = test_lambda_new (take_pair, NULL);
  g_autoptr (EbbModule) sequence = ebb_sequential_new ();
  g_autoptr (EbbTensor) x = make_input ();
  g_autoptr (EbbArgs) args = ebb_args_new (EBB_ARGS_TUPLE);
  g_autoptr (EbbArgs) plain = NULL;
  GError *error = NULL;

  ebb_sequential_append (EBB_SEQUENTIAL (sequence), first, NULL);
  ebb_sequential_append (EBB_SEQUENTIAL (sequence), second, NULL);
  ebb_args_add_tensor (args, NULL, x);
  ebb_args_add_string (args, "mode", "train");
  plain = ebb_module_call (sequence, args, &error);
  g_assert_no_error (error);
  for (guint n = 1; n <= 2; n++)
    {
      g_autoptr (EbbCheckpointOptions) options = ebb_checkpoint_options_new ();
      g_autoptr (EbbArgs) result = NULL;
      g_autoptr (EbbTensor) y = NULL;
      g_autoptr (EbbTensor) loss = NULL;

      g_object_set (options, "determinism-check", EBB_DETERMINISM_CHECK_VALUES, NULL);
      result = ebb_checkpoint_sequential_full (sequence, n, args, options, &error);
      g_assert_no_error (error);
      test_assert_args_equal (result, plain);
      y = ebb_args_get_tensor (result, 0);
      loss = test_loss (y);
      test_backward (loss);
    }
}

static void
test_a_child_dropped_before_backward_is_an_error (void)
{
  guint calls[N_CHILDREN] = { 0 };
  EbbModule *sequence = make_sequence (calls);
  g_autoptr (EbbTensor) x = make_input ();
  g_autoptr (EbbTensor) y = NULL;
  g_autoptr (EbbTensor) loss = NULL;
  GError *error = NULL;

  y = ebb_checkpoint_sequential (sequence, 3, x, &error);
  g_assert_no_error (error);
  loss = test_loss (y);
  g_object_add_weak_pointer (G_OBJECT (sequence), (gpointer *) &sequence);
  g_object_unref (sequence);
  g_assert_null (sequence);
  g_assert_false (ebb_tensor_backward (loss, &error));
  test_assert_error (error, EBB_ERROR_GRAPH, "2 to ", "finalized");
  g_clear_error (&error);
}

static void
test_errors_name_the_number_of_segments (void)
{
  guint calls[N_CHILDREN] = { 0 };
  g_autoptr (EbbModule) sequence = make_sequence (calls);
  g_autoptr (EbbTensor) x = make_input ();
  g_autoptr (EbbArgs) args = ebb_args_new_for_tensor (x);
  GError *error = NULL;

  g_assert_null (ebb_checkpoint_sequential (sequence, 0, x, &error));
  test_assert_error (error, EBB_ERROR_INVALID_ARGUMENT, "n_segments is 0", "Sequential", "7 modules", "from 1 to 7");
  g_assert_null (ebb_checkpoint_sequential (sequence, 2, x, &error)); /* an error is set */
  g_clear_error (&error);
  g_assert_null (ebb_checkpoint_sequential_full (sequence, 8, args, NULL, &error));
  test_assert_error (error, EBB_ERROR_INVALID_ARGUMENT, "n_segments is 8", "from 1 to 7");
  g_clear_error (&error);
  g_assert_null (ebb_checkpoint_sequential (NULL, 1, x, NULL));
  g_assert_null (ebb_checkpoint_sequential (sequence, 1, NULL, NULL));
  for (guint i = 0; i < N_CHILDREN; i++)
    g_assert_cmpuint (calls[i], ==, 0);
}

int
main (int argc,
      char **argv)
{
  test_init (&argc, &argv);
  g_test_add_func ("/checkpoint-sequential/segments-are-bitwise-equal-to-the-sequence",
                   test_segments_are_bitwise_equal_to_the_sequence);
  g_test_add_func ("/checkpoint-sequential/children-in-segments-count-forwards",
                   test_children_in_segments_count_forwards);
  g_test_add_func ("/checkpoint-sequential/training-flags-are-those-of-the-forward",
                   test_training_flags_are_those_of_the_forward);
  g_test_add_func ("/checkpoint-sequential/any-arguments-and-results-pass", test_any_arguments_and_results_pass);
  g_test_add_func ("/checkpoint-sequential/a-child-dropped-before-backward-is-an-error",
                   test_a_child_dropped_before_backward_is_an_error);
  g_test_add_func ("/checkpoint-sequential/errors-name-the-number-of-segments",
                   test_errors_name_the_number_of_segments);
  return g_test_run ();
}
