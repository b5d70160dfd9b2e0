/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: one-thread */
#include "support/device.h"
#include "support/stores.h"
#include "support/tensors.h"
#include "support/training.h"

/* A wrapped forward may itself run a backward pass. */

/* x to sin (x * gain) + the gradient of that, as a force field from its energy. */
static EbbTensor *
differentiate_inside (EbbModule *self, EbbTensor *x, gpointer data, GError **error)
{
  gboolean retain = data != NULL;
  g_autoptr (EbbTensor) gain = ebb_module_get_parameter (self, "gain");
  g_autoptr (EbbTensor) point = ebb_tensor_detach (x);
  g_autoptr (EbbTensor) sum = NULL;
  g_autoptr (EbbTensor) y = NULL;
  g_autoptr (EbbTensor) z = NULL;
  EbbTensor *energy, **grads;
  guint n = 0;

  ebb_tensor_set_requires_grad (point, TRUE, error);
  y = ebb_mul (point, gain, error);
  z = ebb_sin (y, error);
  energy = ebb_sum (z, NULL, 0, FALSE, error);
  grads = energy != NULL ? ebb_grad (&energy, 1, &point, 1, NULL, 0, retain, &n, error) : NULL;
  g_clear_pointer (&energy, ebb_tensor_unref);
  if (grads == NULL)
    return NULL;
  g_clear_pointer (&y, ebb_tensor_unref);
  y = ebb_mul (x, gain, error);
  sum = ebb_add (y, grads[0], error);
  ebb_tensor_unref (grads[0]);
  g_free (grads);
  return ebb_tanh (sum, error);
}

/* Bits: no early stop, a policy, the first recompute is kept, all values are compared, inputs go to a file. */
enum
{
  N_OPTIONS = 1 << 5
};

static EbbCheckpointOptions *
options_of (guint bits)
{
  EbbCheckpointOptions *options = bits & 2 ? ebb_checkpoint_options_new_selective () : ebb_checkpoint_options_new ();
  g_autoptr (EbbSavedTensorHooks) store = bits & 16 ? test_disk_store_new (NULL) : NULL;

  g_object_set (options, "early-stop", !(bits & 1), "retain-recomputed", (bits & 4) != 0, NULL);
  if (bits & 8)
    g_object_set (options, "determinism-check", EBB_DETERMINISM_CHECK_VALUES, NULL);
  ebb_checkpoint_options_set_store (options, store);
  return options;
}

static void
backward_may_run_inside_a_forward (const TestMode *mode)
{
  for (guint retain = 0; retain < 2; retain++)
    for (guint bits = 0; bits < N_OPTIONS; bits++)
      {
        EbbModule *inner = test_with_gain (test_lambda1_new (differentiate_inside, GUINT_TO_POINTER (retain)), 2);
        g_autoptr (EbbModule) model = test_chain_new (test_mlp_new (1), inner, test_mlp_new (3), NULL);
        g_autoptr (EbbTensor) x = test_input_in (mode, 3);
        g_autoptr (EbbCheckpointOptions) options = options_of (bits);
        g_autoptr (TestOutcome) plain = NULL;

        ebb_module_to_dtype (model, mode->dtype, NULL);
        plain = test_train1 (model, x);
        for (guint depth = 1; depth <= 3; depth++)
          {
            g_autoptr (TestOutcome) wrapped = NULL;

            test_wrap (depth == 1 ? inner : model, options);
            wrapped = test_train1 (model, x);
            test_assert_same_outcome (plain, wrapped);
            test_assert_counters (model, 0);
          }
      }
}

/* The forward takes one product's gradient through a wrapped part of its own. */
static EbbTensor *
differentiate_part (EbbModule *self, EbbTensor *x, gpointer data, GError **error)
{
  g_autoptr (EbbModule) part = ebb_module_get_child (self, "part");
  g_autoptr (EbbTensor) point = ebb_tensor_detach (x);
  g_autoptr (EbbTensor) energy = NULL;
  g_autoptr (EbbTensor) sum = NULL;
  g_autoptr (EbbTensor) again = NULL;
  EbbTensor **grads;
  guint n = 0;

  ebb_tensor_set_requires_grad (point, TRUE, error);
  energy = ebb_module_call1 (part, point, error);
  sum = ebb_sum (energy, NULL, 0, FALSE, error);
  grads = sum != NULL ? ebb_grad (&sum, 1, &point, 1, NULL, 0, FALSE, &n, error) : NULL;
  if (grads == NULL)
    return NULL;
  again = ebb_add (x, grads[0], error);
  ebb_tensor_unref (grads[0]);
  g_free (grads);
  return ebb_module_call1 (part, again, error);
}

static void
backward_may_run_through_wrapped_parts_inside_a_forward (const TestMode *mode)
{
  for (guint bits = 0; bits < N_OPTIONS; bits++)
    {
      g_autoptr (EbbModule) part = test_mlp_new (4);
      EbbModule *inner = test_lambda1_new (differentiate_part, NULL);
      g_autoptr (EbbModule) model = test_chain_new (test_mlp_new (1), inner, test_mlp_new (3), NULL);
      g_autoptr (EbbTensor) x = test_input_in (mode, 3);
      g_autoptr (EbbCheckpointOptions) options = options_of (bits);
      g_autoptr (TestOutcome) plain = NULL;

      ebb_module_register_child (inner, "part", part, NULL);
      ebb_module_to_dtype (model, mode->dtype, NULL);
      plain = test_train1 (model, x);
      for (guint depth = 1; depth <= 4; depth++)
        {
          g_autoptr (TestOutcome) wrapped = NULL;

          test_wrap (depth == 1 ? part : depth == 2 ? inner
                                                    : model,
                     depth == 3 ? NULL : options);
          wrapped = test_train1 (model, x);
          test_assert_same_outcome (plain, wrapped);
          test_assert_counters (model, 0);
        }
    }
}

/* The whole step of a wrapped model inside the forward of another one. */
static EbbTensor *
train_another (EbbModule *self, EbbTensor *x, gpointer data, GError **error)
{
  g_autoptr (EbbTensor) gain = ebb_module_get_parameter (self, "gain");
  g_autoptr (EbbTensor) scaled = ebb_mul (x, gain, error);
  g_autoptr (EbbTensor) y = ebb_module_call1 (data, x, error);
  g_autoptr (EbbTensor) square = ebb_mul (y, y, error);
  g_autoptr (EbbTensor) loss = ebb_sum (square, NULL, 0, FALSE, error);
  g_autoptr (EbbTensor) score = ebb_tensor_detach (loss);
  g_autoptr (EbbTensor) sum = NULL;

  if (!ebb_is_recomputing () && !ebb_tensor_backward (loss, error))
    return NULL;
  sum = ebb_add (scaled, score, error);
  return ebb_tanh (sum, error);
}

static void
step_of_another_model_may_run_inside_a_forward (void)
{
  TestOutcome *outer[2], *other[2];

  for (guint wrapped = 0; wrapped < 2; wrapped++)
    {
      g_autoptr (EbbModule) trained = test_mlp_new (4);
      g_autoptr (EbbModule) module = test_with_gain (test_lambda1_new (train_another, trained), 1);
      g_autoptr (EbbTensor) x = test_randn (1, 3, 8, -1);

      if (wrapped)
        {
          test_wrap (trained, NULL);
          test_wrap (module, NULL);
        }
      outer[wrapped] = test_train1 (module, x);
      other[wrapped] = test_outcome_new (trained, NULL);
    }
  test_assert_same_outcome (outer[0], outer[1]);
  test_assert_same_outcome (other[0], other[1]);
  for (guint i = 0; i < 2; i++)
    {
      test_outcome_free (outer[i]);
      test_outcome_free (other[i]);
    }
}

int
main (int argc, char **argv)
{
  test_init (&argc, &argv);
#define TEST(name, func) g_test_add_func ("/checkpoint/inner-backward/" name, func)
#define MODES(name, func) test_add_modes ("/checkpoint/inner-backward/" name, func)
  MODES ("backward-may-run-inside-a-forward", backward_may_run_inside_a_forward);
  MODES ("backward-may-run-through-wrapped-parts", backward_may_run_through_wrapped_parts_inside_a_forward);
  TEST ("step-of-another-model-may-run-inside-a-forward", step_of_another_model_may_run_inside_a_forward);
  return g_test_run ();
}
