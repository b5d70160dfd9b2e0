/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/device.h"
#include "support/tensors.h"
#include "support/training.h"

/* Of what a wrapped module gives, some may be used, or none, and some may be no result of it. */

/* x to (tanh (x * gain), dropout of exp (that), sin (x)) */
static EbbArgs *
fork_three (EbbModule *self, EbbArgs *args, gpointer data, GError **error)
{
  g_autoptr (EbbTensor) gain = ebb_module_get_parameter (self, "gain");
  g_autoptr (EbbTensor) x = ebb_args_get_tensor (args, 0);
  g_autoptr (EbbTensor) scaled = ebb_mul (x, gain, error);
  g_autoptr (EbbTensor) first = ebb_tanh (scaled, error);
  g_autoptr (EbbTensor) grown = ebb_exp (first, error);
  g_autoptr (EbbTensor) second = ebb_dropout (grown, 0.3, TRUE, NULL, error);
  g_autoptr (EbbTensor) third = ebb_sin (x, error);
  EbbArgs *result;

  if (third == NULL)
    return NULL;
  result = ebb_args_new (EBB_ARGS_TUPLE);
  ebb_args_add_tensor (result, NULL, first);
  ebb_args_add_tensor (result, NULL, second);
  ebb_args_add_tensor (result, NULL, third);
  return result;
}

/* Backward of the outputs in @used; the others are dropped before it, or stay. */
static TestOutcome *
use_outputs (EbbModule *module, EbbTensor *x, guint used, gboolean drop)
{
  GError *error = NULL;
  g_autoptr (EbbArgs) args = ebb_args_new_for_tensor (x);
  EbbArgs *result;
  EbbTensor *losses[3], *outputs[3];
  guint n = 0;
  TestOutcome *outcome;

  ebb_manual_seed (99);
  ebb_module_zero_grad (module);
  ebb_tensor_set_grad (x, NULL, NULL);
  result = ebb_module_call (module, args, &error);
  g_assert_no_error (error);
  for (guint i = 0; i < 3; i++)
    {
      outputs[i] = ebb_args_get_tensor (result, i);
      if (used & (1u << i))
        losses[n++] = test_loss (outputs[i]);
      if (drop)
        g_clear_pointer (&outputs[i], ebb_tensor_unref);
    }
  if (drop)
    g_clear_pointer (&result, ebb_args_unref);
  g_assert_true (n == 0 || ebb_backward (losses, n, NULL, 0, NULL, 0, FALSE, &error));
  g_assert_no_error (error);
  for (guint i = 0; i < n; i++)
    ebb_tensor_unref (losses[i]);
  for (guint i = 0; i < 3 && !drop; i++)
    ebb_tensor_unref (outputs[i]);
  g_clear_pointer (&result, ebb_args_unref);
  outcome = test_outcome_new (module, args);
  return outcome;
}

static void
some_outputs_or_none_may_be_used (const TestMode *mode)
{
  g_autoptr (EbbTensor) x = test_input_in (mode, 3);

  ebb_tensor_set_requires_grad (x, TRUE, NULL);
  for (guint used = 0; used < 8; used++)
    for (guint drop = 0; drop < 2; drop++)
      {
        g_autoptr (EbbModule) module = test_with_gain (test_lambda_new (fork_three, NULL), 1);
        g_autoptr (TestOutcome) plain = NULL;
        g_autoptr (TestOutcome) wrapped = NULL;

        ebb_module_to_dtype (module, mode->dtype, NULL);
        plain = use_outputs (module, x, used, drop);
        wrapped = use_outputs (test_wrap (module, NULL), x, used, drop);
        test_assert_same_outcome (plain, wrapped);
        test_assert_counters (module, 0);
        /* The third needs the argument alone, which is kept. */
        g_assert_cmpuint (ebb_checkpoint_get_n_recomputes (module), ==, (used & 3) != 0);
      }
}

/* Outputs whose backwards come one after another: what the second needs is still there, or comes again. */
static void
outputs_may_be_differentiated_one_after_another (const TestMode *mode)
{
  g_autoptr (EbbTensor) x = test_input_in (mode, 3);
  TestOutcome *outcomes[2];

  ebb_tensor_set_requires_grad (x, TRUE, NULL);
  for (guint wrapped = 0; wrapped < 2; wrapped++)
    {
      GError *error = NULL;
      g_autoptr (EbbModule) module = test_with_gain (test_lambda_new (fork_three, NULL), 1);
      g_autoptr (EbbArgs) args = ebb_args_new_for_tensor (x);
      g_autoptr (EbbArgs) result = NULL;

      ebb_module_to_dtype (module, mode->dtype, NULL);
      if (wrapped)
        test_wrap (module, NULL);
      ebb_manual_seed (99);
      ebb_tensor_set_grad (x, NULL, NULL);
      result = ebb_module_call (module, args, &error);
      for (guint i = 0; i < 3; i++)
        {
          g_autoptr (EbbTensor) output = ebb_args_get_tensor (result, 2 - i);
          EbbTensor *loss = test_loss (output);

          g_assert_true (ebb_backward (&loss, 1, NULL, 0, NULL, 0, TRUE, &error));
          ebb_tensor_unref (loss);
        }
      outcomes[wrapped] = test_outcome_new (module, args);
    }
  test_assert_same_outcome (outcomes[0], outcomes[1]);
  test_outcome_free (outcomes[0]);
  test_outcome_free (outcomes[1]);
}

/* An input given back, a view of it, and an output that is also inside another. */
static EbbArgs *
give_back (EbbModule *self, EbbArgs *args, gpointer data, GError **error)
{
  g_autoptr (EbbTensor) gain = ebb_module_get_parameter (self, "gain");
  g_autoptr (EbbTensor) x = ebb_args_get_tensor (args, 0);
  g_autoptr (EbbTensor) row = ebb_narrow (x, 0, 1, 1, error);
  g_autoptr (EbbTensor) scaled = ebb_mul (x, gain, error);
  g_autoptr (EbbTensor) y = ebb_tanh (scaled, error);
  g_autoptr (EbbTensor) turned = ebb_transpose (y, 0, 1, error);
  EbbArgs *result;

  if (turned == NULL)
    return NULL;
  result = ebb_args_new (EBB_ARGS_LIST);
  ebb_args_add_tensor (result, NULL, x);
  ebb_args_add_tensor (result, NULL, row);
  ebb_args_add_tensor (result, NULL, gain);
  ebb_args_add_tensor (result, NULL, y);
  ebb_args_add_tensor (result, NULL, y);
  ebb_args_add_tensor (result, NULL, turned);
  return result;
}

static void
outputs_may_be_inputs_parameters_and_views (const TestMode *mode)
{
  g_autoptr (EbbTensor) x = test_input_in (mode, 3);
  g_autoptr (EbbArgs) args = NULL;
  g_autoptr (EbbModule) module = test_with_gain (test_lambda_new (give_back, NULL), 1);
  g_autoptr (TestOutcome) plain = NULL;
  g_autoptr (TestOutcome) wrapped = NULL;
  g_autoptr (EbbArgs) result = NULL;
  g_autoptr (EbbTensor) back = NULL;

  ebb_module_to_dtype (module, mode->dtype, NULL);
  ebb_tensor_set_requires_grad (x, TRUE, NULL);
  args = ebb_args_new_for_tensor (x);
  plain = test_train (module, args);
  wrapped = test_train (test_wrap (module, NULL), args);
  test_assert_same_outcome (plain, wrapped);
  result = ebb_module_call (module, args, NULL);
  back = ebb_args_get_tensor (result, 0);
  g_assert_true (back == x);
}

int
main (int argc, char **argv)
{
  test_init (&argc, &argv);
#define MODES(name, func) test_add_modes ("/checkpoint/outputs/" name, func)
  MODES ("some-outputs-or-none-may-be-used", some_outputs_or_none_may_be_used);
  MODES ("outputs-may-be-differentiated-one-after-another", outputs_may_be_differentiated_one_after_another);
  MODES ("outputs-may-be-inputs-parameters-and-views", outputs_may_be_inputs_parameters_and_views);
  return g_test_run ();
}
