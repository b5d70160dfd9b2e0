/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/device.h"
#include "support/tensors.h"
#include "support/training.h"

#include <string.h>

/* Parameters that move while backward goes on: the same weights with less memory, and what can't be had with it. */

#define N_STEPS 4

static EbbModule *
make_gpt (gboolean tied, EbbDType residual)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbGptConfig) config = ebb_gpt_config_new_preset ("tiny");
  EbbModule *gpt;

  ebb_manual_seed (1);
  config->width = 32;
  config->layers = 3;
  config->tied = tied;
  config->residual_dtype = residual;
  gpt = ebb_gpt_new (config, &error);
  g_assert_no_error (error);
  return gpt;
}

static void
wrap_blocks (EbbModule *gpt, const char *way)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbCheckpointOptions) options = g_str_equal (way, "selective") ? ebb_checkpoint_options_new_selective ()
                                                                            : ebb_checkpoint_options_new ();

  if (!g_str_equal (way, "none"))
    ebb_checkpoint_wrap_each (gpt, EBB_TYPE_TRANSFORMER_BLOCK, options, &error);
  g_assert_no_error (error);
}

/* One step; returns the most that gradients took. */
static guint64
take_step (EbbModule *gpt, EbbOptimizer *optimizer, int step, gboolean autocast)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) tokens = test_tokens ((guint64) step, 256, 2, 24, -1);
  g_autoptr (EbbTensor) targets = test_tokens ((guint64) step + 100, 256, 2, 24, -1);
  g_autoptr (EbbTensor) loss = NULL;
  g_autoptr (EbbMemoryStats) stats = NULL;

  ebb_push_autocast (autocast, EBB_DTYPE_BF16);
  loss = ebb_gpt_loss (EBB_GPT (gpt), tokens, targets, &error);
  ebb_pop_autocast ();
  ebb_memory_reset_peaks (test_device ());
  ebb_tensor_backward (loss, &error);
  g_assert_no_error (error);
  stats = ebb_memory_get_stats (test_device ());
  g_assert_true (ebb_optimizer_step (optimizer, &error));
  ebb_optimizer_zero_grad (optimizer);
  return ebb_memory_stats_get_peak (stats, EBB_PURPOSE_GRADIENT);
}

typedef struct
{
  EbbModule *gpt;
  guint64 grad_bytes;
} Outcome;

static Outcome
train (gboolean tied, gboolean autocast, const char *way, gboolean in_backward)
{
  g_autoptr (GError) error = NULL;
  Outcome outcome = { make_gpt (tied, autocast ? EBB_DTYPE_BF16 : EBB_DTYPE_F32), 0 };
  g_autoptr (EbbOptimizer) optimizer = ebb_adamw_new (outcome.gpt, 1e-2, &error);

  g_assert_no_error (error);
  wrap_blocks (outcome.gpt, way);
  g_object_set (optimizer, "step-in-backward", in_backward, NULL);
  for (int step = 0; step < N_STEPS; step++)
    outcome.grad_bytes = take_step (outcome.gpt, optimizer, step, autocast);
  g_assert_cmpint (ebb_optimizer_get_n_steps (optimizer), ==, N_STEPS);
  return outcome;
}

static void
assert_same_weights (EbbModule *a, EbbModule *b)
{
  guint n, m;
  EbbTensor **x = ebb_module_get_parameters (a, TRUE, &n), **y = ebb_module_get_parameters (b, TRUE, &m);

  g_assert_cmpuint (n, ==, m);
  for (guint i = 0; i < n; i++)
    {
      g_assert_true (ebb_tensor_equal (x[i], y[i]));
      ebb_tensor_unref (x[i]);
      ebb_tensor_unref (y[i]);
    }
  g_free (x);
  g_free (y);
}

static void
weights_are_the_same_bit_for_bit (gconstpointer data)
{
  const char *way = data;

  for (int tied = 0; tied < 2; tied++)
    for (int autocast = 0; autocast < 2; autocast++)
      {
        Outcome plain = train (tied, autocast, "none", FALSE);
        Outcome early = train (tied, autocast, way, TRUE);

        assert_same_weights (plain.gpt, early.gpt);
        g_assert_cmpuint (early.grad_bytes, <, plain.grad_bytes / 2);
        g_object_unref (plain.gpt);
        g_object_unref (early.gpt);
      }
}

static void
no_gradient_is_left (void)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbModule) gpt = make_gpt (TRUE, EBB_DTYPE_F32);
  g_autoptr (EbbOptimizer) optimizer = ebb_adamw_new (gpt, 1e-2, &error);
  g_autoptr (EbbTensor) tokens = test_tokens (1, 256, 2, 24, -1);
  g_autoptr (EbbTensor) loss = NULL;
  guint n;
  EbbTensor **parameters = ebb_module_get_parameters (gpt, TRUE, &n);

  g_object_set (optimizer, "step-in-backward", TRUE, NULL);
  loss = ebb_gpt_loss (EBB_GPT (gpt), tokens, tokens, &error);
  g_assert_true (ebb_tensor_backward (loss, &error));
  for (guint i = 0; i < n; i++)
    {
      g_assert_null (ebb_tensor_get_grad (parameters[i]));
      ebb_tensor_unref (parameters[i]);
    }
  g_free (parameters);
}

static EbbTensor *
compute_loss (EbbModule *mlp)
{
  g_autoptr (EbbTensor) x = test_randn (5, 3, 8, -1);
  g_autoptr (EbbTensor) y = ebb_module_call1 (mlp, x, NULL);

  return test_loss (y);
}

static void
what_needs_all_gradients_is_refused (void)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbModule) mlp = test_mlp_new (1);
  g_autoptr (EbbOptimizer) optimizer = ebb_adamw_new (mlp, 1e-2, &error);
  g_autoptr (EbbTensor) first = compute_loss (mlp);
  g_autoptr (EbbTensor) second = NULL;
  g_autoptr (EbbTensor) third = NULL;

  g_object_set (optimizer, "step-in-backward", TRUE, NULL);
  g_assert_false (test_clip_grad (optimizer, 1, 2, NULL, &error));
  test_assert_error (error, EBB_ERROR_NOT_SUPPORTED, "step-in-backward");
  g_clear_error (&error);

  g_assert_true (ebb_tensor_backward (first, &error));
  second = compute_loss (mlp);
  g_assert_false (ebb_tensor_backward (second, &error));
  test_assert_error (error, EBB_ERROR_STATE, "accumulated", "ebb_optimizer_step()");
  g_clear_error (&error);

  /* After the step it goes on, and switched off it clips again. */
  g_assert_true (ebb_optimizer_step (optimizer, &error));
  third = compute_loss (mlp);
  g_assert_true (ebb_tensor_backward (third, &error));
  g_object_set (optimizer, "step-in-backward", FALSE, NULL);
  g_assert_true (ebb_optimizer_step (optimizer, &error));
  g_assert_true (test_clip_grad (optimizer, 1, 2, NULL, &error));
  g_assert_no_error (error);
}

/* The step moves parameters that such a pass leaves alone. */
static void
a_pass_that_keeps_its_graph_leaves_gradients (void)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbModule) a = test_mlp_new (1);
  g_autoptr (EbbModule) b = test_mlp_new (1);
  EbbModule *const modules[] = { a, b };

  for (int i = 0; i < 2; i++)
    {
      g_autoptr (EbbOptimizer) optimizer = ebb_adamw_new (modules[i], 1e-2, &error);
      g_autoptr (EbbTensor) loss = NULL;
      EbbTensor *outputs[1];

      ebb_manual_seed (3);
      loss = outputs[0] = compute_loss (modules[i]);
      g_object_set (optimizer, "step-in-backward", i == 1, NULL);
      for (int pass = 0; pass < 2; pass++)
        g_assert_true (ebb_backward (outputs, 1, NULL, 0, NULL, 0, TRUE, &error));
      g_assert_true (ebb_optimizer_step (optimizer, &error));
      g_assert_no_error (error);
    }
  assert_same_weights (a, b);
}

/* Backward does not know of a reader that asks for no gradient: it finds the parameter changed, and says so. */
static void
a_moved_parameter_is_not_read_unnoticed (void)
{
  g_autoptr (GError) error = NULL;
  const gint64 shape[] = { 4, 4 };
  g_autoptr (EbbModule) linear = ebb_linear_new (4, 4, FALSE, &error);
  g_autoptr (EbbOptimizer) optimizer = ebb_adamw_new (linear, 1e-2, &error);
  g_autoptr (EbbTensor) weight = ebb_module_get_parameter (linear, "weight");
  g_autoptr (EbbTensor) detached = ebb_tensor_detach (weight);
  g_autoptr (EbbTensor) x = ebb_randn (shape, 2, EBB_DTYPE_F32, NULL, NULL, &error);
  g_autoptr (EbbTensor) product = NULL;
  g_autoptr (EbbTensor) sum = NULL;
  g_autoptr (EbbTensor) loss = NULL;

  g_assert_no_error (error);
  ebb_tensor_set_requires_grad (x, TRUE, &error);
  g_object_set (optimizer, "step-in-backward", TRUE, NULL);
  product = ebb_mul (x, detached, &error);
  sum = ebb_add (product, weight, &error);
  loss = ebb_sum (sum, NULL, 0, FALSE, &error);
  g_assert_no_error (error);
  g_assert_false (ebb_tensor_backward (loss, &error));
  g_assert_error (error, EBB_ERROR, EBB_ERROR_VERSION);
}

static void
an_optimizer_that_is_gone_moves_nothing (void)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbModule) mlp = test_mlp_new (1);
  g_autoptr (EbbModule) other = test_mlp_new (1);
  g_autoptr (EbbOptimizer) optimizer = ebb_adamw_new (mlp, 1e-2, &error);
  g_autoptr (EbbTensor) loss = NULL;

  g_object_set (optimizer, "step-in-backward", TRUE, NULL);
  g_clear_object (&optimizer);
  loss = compute_loss (mlp);
  g_assert_true (ebb_tensor_backward (loss, &error));
  assert_same_weights (mlp, other);
}

int
main (int argc, char **argv)
{
  test_init (&argc, &argv);
  g_test_add_data_func ("/step-in-backward/weights-are-the-same-bit-for-bit/none", "none",
                        weights_are_the_same_bit_for_bit);
  g_test_add_data_func ("/step-in-backward/weights-are-the-same-bit-for-bit/selective", "selective",
                        weights_are_the_same_bit_for_bit);
  g_test_add_data_func ("/step-in-backward/weights-are-the-same-bit-for-bit/full", "full",
                        weights_are_the_same_bit_for_bit);
  g_test_add_func ("/step-in-backward/no-gradient-is-left", no_gradient_is_left);
  g_test_add_func ("/step-in-backward/what-needs-all-gradients-is-refused", what_needs_all_gradients_is_refused);
  g_test_add_func ("/step-in-backward/a-pass-that-keeps-its-graph-leaves-gradients",
                   a_pass_that_keeps_its_graph_leaves_gradients);
  g_test_add_func ("/step-in-backward/a-moved-parameter-is-not-read-unnoticed",
                   a_moved_parameter_is_not_read_unnoticed);
  g_test_add_func ("/step-in-backward/an-optimizer-that-is-gone-moves-nothing",
                   an_optimizer_that_is_gone_moves_nothing);
  return g_test_run ();
}
