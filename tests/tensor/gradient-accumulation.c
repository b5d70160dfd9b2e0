/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/device.h"
#include "support/fixtures.h"
#include "support/tensors.h"

#include <math.h>

/* Gradients that are added up over several micro-batches. */

#define VOCAB 61
#define CONTEXT 24
#define WIDTH 48

static EbbModule *
make_gpt (void)
{
  ebb_manual_seed (3);
  return test_fixture_gpt (VOCAB, CONTEXT, WIDTH, EBB_ACTIVATION_GELU_TANH);
}

/* Goes back from the loss of sequences [first, first + n). */
static double
add_gradients (EbbModule *gpt,
               gint64 first,
               gint64 n,
               double factor)
{
  g_autoptr (EbbTensor) stream = test_tokens (5, VOCAB, 4, CONTEXT + 1, -1);
  g_autoptr (EbbTensor) batch = ebb_narrow (stream, 0, first, n, NULL);
  g_autoptr (EbbTensor) tokens = ebb_narrow (batch, 1, 0, CONTEXT, NULL);
  g_autoptr (EbbTensor) targets = ebb_narrow (batch, 1, 1, CONTEXT, NULL);
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) loss = ebb_gpt_loss (EBB_GPT (gpt), tokens, targets, &error);
  g_autoptr (EbbTensor) scaled = ebb_mul_scalar (loss, factor, &error);

  ebb_tensor_backward (scaled, &error);
  g_assert_no_error (error);
  return test_at (scaled, 0);
}

/* Copies of all gradients, or of all parameters. */
static EbbTensor **
copy_all (EbbModule *gpt,
          gboolean gradients,
          guint *n)
{
  g_autofree EbbTensor **parameters = ebb_module_get_parameters (gpt, TRUE, n);
  EbbTensor **copies = g_new0 (EbbTensor *, *n);

  for (guint i = 0; i < *n; i++)
    {
      g_autoptr (EbbTensor) source =
          gradients ? ebb_tensor_get_grad (parameters[i]) : ebb_tensor_detach (parameters[i]);

      copies[i] = ebb_copy (source, NULL);
      g_assert_nonnull (copies[i]);
      ebb_tensor_unref (parameters[i]);
    }
  return copies;
}

static void
free_all (EbbTensor **tensors,
          guint n)
{
  for (guint i = 0; i < n; i++)
    ebb_tensor_unref (tensors[i]);
  g_free (tensors);
}

/* The gradient of the key bias is zero except for rounding, so no bound relative to itself holds. */
static gboolean
is_attention_bias (EbbModule *gpt,
                   guint i)
{
  g_auto (GStrv) names = ebb_module_get_parameter_names (gpt, TRUE);

  return g_str_has_suffix (names[i], "c_attn.bias");
}

static void
micro_batches_give_the_gradients_of_the_whole (void)
{
  g_autoptr (EbbModule) gpt = make_gpt ();
  EbbTensor **whole, **parts;
  double whole_loss, loss, worst = 0;
  guint n;

  whole_loss = add_gradients (gpt, 0, 4, 1);
  whole = copy_all (gpt, TRUE, &n);
  ebb_module_zero_grad (gpt);
  loss = add_gradients (gpt, 0, 2, 0.5);
  loss += add_gradients (gpt, 2, 2, 0.5);
  parts = copy_all (gpt, TRUE, &n);
  g_assert_cmpfloat (fabs (loss / whole_loss - 1), <, 5e-7);
  for (guint i = 0; i < n; i++)
    {
      double difference = is_attention_bias (gpt, i) ? 0 : test_relative_difference (parts[i], whole[i]);

      test_assert_near (parts[i], whole[i], 1e-6);
      worst = MAX (worst, difference);
    }
  g_test_message ("largest relative difference %g", worst);
  g_assert_cmpfloat (worst, <, 1e-6);
  free_all (whole, n);
  free_all (parts, n);
}

/* The factor may as well wait for the step. */
static void
micro_batches_give_the_step_of_the_whole (void)
{
  EbbTensor **after[2];
  double worst = 0;
  guint n = 0;

  for (guint k = 0; k < 2; k++)
    {
      g_autoptr (GError) error = NULL;
      g_autoptr (EbbModule) gpt = make_gpt ();
      g_autoptr (EbbOptimizer) optimizer = ebb_sgd_new (gpt, 0.5, &error);

      if (k == 0)
        add_gradients (gpt, 0, 4, 1);
      else
        {
          add_gradients (gpt, 0, 2, 1);
          add_gradients (gpt, 2, 2, 1);
          ebb_optimizer_scale_grad (optimizer, 0.5);
        }
      ebb_optimizer_step (optimizer, &error);
      g_assert_no_error (error);
      after[k] = copy_all (gpt, FALSE, &n);
    }
  for (guint i = 0; i < n; i++)
    worst = MAX (worst, test_difference (after[0][i], after[1][i]));
  g_test_message ("largest difference %g", worst);
  g_assert_cmpfloat (worst, <, 1e-6);
  free_all (after[0], n);
  free_all (after[1], n);
}

/* A second backward adds into the gradient that is there, without another tensor of its size. With as few rows as here
 * what comes out is the sum of two separate gradients, bit for bit: what is added is summed up on its own first. A tied
 * weight gets two gradients in a pass, which are added one after the other; there the order of additions is another. */
static void
adding_in_place_equals_adding_gradients (gconstpointer data)
{
  g_autoptr (EbbModule) gpt = make_gpt ();
  g_auto (GStrv) names = ebb_module_get_parameter_names (gpt, TRUE);
  EbbTensor **first, **second, **both;
  guint n;

  ebb_set_num_threads (GPOINTER_TO_INT (data));
  add_gradients (gpt, 0, 2, 1);
  first = copy_all (gpt, TRUE, &n);
  ebb_module_zero_grad (gpt);
  add_gradients (gpt, 2, 2, 1);
  second = copy_all (gpt, TRUE, &n);
  ebb_module_zero_grad (gpt);
  add_gradients (gpt, 0, 2, 1);
  add_gradients (gpt, 2, 2, 1);
  both = copy_all (gpt, TRUE, &n);
  for (guint i = 0; i < n; i++)
    {
      g_autoptr (EbbTensor) sum = ebb_add (first[i], second[i], NULL);

      if (g_str_equal (names[i], "wte.weight"))
        g_assert_cmpfloat (test_relative_difference (both[i], sum), <, 1e-7);
      else if (!ebb_tensor_equal (sum, both[i]))
        g_error ("%s: relative difference %g", names[i], test_relative_difference (both[i], sum));
    }
  free_all (first, n);
  free_all (second, n);
  free_all (both, n);
}

/* The gradient of a linear layer's weight (0) or bias (1), added to that of another pass or by itself. */
static EbbTensor *
linear_gradient (guint which,
                 gint64 n_rows,
                 guint first_pass,
                 guint n_passes)
{
  EbbTensor *leaves[2] = { test_randn (1, 96, 80, -1), test_randn (2, 96, -1) };
  EbbTensor *grad;

  for (guint i = 0; i < 2; i++)
    g_assert_true (ebb_tensor_set_requires_grad (leaves[i], TRUE, NULL));
  for (guint pass = first_pass; pass < first_pass + n_passes; pass++)
    {
      g_autoptr (EbbTensor) x = test_randn (10 + pass, (int) n_rows, 80, -1);
      g_autoptr (EbbTensor) grad_out = test_randn (20 + pass, (int) n_rows, 96, -1);
      g_autoptr (EbbTensor) y = ebb_linear (x, leaves[0], leaves[1], NULL);

      g_assert_true (ebb_backward (&y, 1, &grad_out, 1, NULL, 0, FALSE, NULL));
    }
  grad = ebb_tensor_get_grad (leaves[which]);
  ebb_tensor_unref (leaves[0]);
  ebb_tensor_unref (leaves[1]);
  return grad;
}

/* Matrix products sum up many rows in blocks. Where they have AVX-512 each block waits for the others; else the first
 * is added to what is there, then the next, and so on: another order, rounding apart. Sums of columns do so with blocks
 * of 960 rows, as a layer that is called on tiles of its rows. */
static void
long_products_are_added (gconstpointer data)
{
  ebb_set_num_threads (GPOINTER_TO_INT (data));
  for (gint64 n_rows = 1; n_rows <= 8192; n_rows = n_rows * 5 + 1)
    for (guint which = 0; which < 2; which++)
      {
        g_autoptr (EbbTensor) first = linear_gradient (which, n_rows, 0, 1);
        g_autoptr (EbbTensor) second = linear_gradient (which, n_rows, 1, 1);
        g_autoptr (EbbTensor) both = linear_gradient (which, n_rows, 0, 2);
        g_autoptr (EbbTensor) sum = ebb_add (first, second, NULL);

        g_test_message ("%s of %d rows: %g", which == 0 ? "weight" : "bias", (int) n_rows,
                        test_relative_difference (both, sum));
        if (n_rows < (which == 1 ? 961 : 64))
          g_assert_true (ebb_tensor_equal (both, sum));
        else
          g_assert_cmpfloat (test_relative_difference (both, sum), <, 5e-7);
      }
}

static void
a_second_gradient_takes_no_memory (void)
{
  g_autoptr (EbbTensor) weight = test_randn (1, 1024, 1024, -1);
  g_autoptr (EbbTensor) x = test_randn (2, 8, 1024, -1);
  g_autoptr (EbbTensor) grad = NULL;
  guint64 first_id = 0;

  g_assert_true (ebb_tensor_set_requires_grad (weight, TRUE, NULL));
  for (guint pass = 0; pass < 2; pass++)
    {
      g_autoptr (EbbMemoryStats) before = NULL;
      g_autoptr (EbbMemoryStats) after = NULL;
      g_autoptr (EbbTensor) y = ebb_linear (x, weight, NULL, NULL);
      g_autoptr (EbbTensor) sum = ebb_sum (y, NULL, 0, FALSE, NULL);
      guint64 peak;

      ebb_memory_reset_peaks (test_device ());
      before = ebb_memory_get_stats (test_device ());
      g_assert_true (ebb_tensor_backward (sum, NULL));
      after = ebb_memory_get_stats (test_device ());
      peak = ebb_memory_stats_get_peak_total (after) - ebb_memory_stats_get_total (before);
      g_clear_pointer (&grad, ebb_tensor_unref);
      grad = ebb_tensor_get_grad (weight);
      g_test_message ("pass %u: %" G_GUINT64_FORMAT " bytes", pass, peak);
      if (pass == 0)
        {
          first_id = ebb_tensor_get_storage_id (grad);
          g_assert_cmpuint (peak, >=, ebb_tensor_get_n_bytes (weight));
        }
      else
        {
          g_assert_cmpuint (ebb_tensor_get_storage_id (grad), ==, first_id);
          g_assert_cmpuint (peak, <, ebb_tensor_get_n_bytes (weight) / 4);
        }
    }
}

int
main (int argc,
      char **argv)
{
  test_init (&argc, &argv);
  g_test_add_func ("/accumulate/micro-batches-give-the-gradients-of-the-whole",
                   micro_batches_give_the_gradients_of_the_whole);
  g_test_add_func ("/accumulate/micro-batches-give-the-step-of-the-whole", micro_batches_give_the_step_of_the_whole);
  g_test_add_data_func ("/accumulate/adding-in-place-equals-adding-gradients/1-thread", GINT_TO_POINTER (1),
                        adding_in_place_equals_adding_gradients);
  g_test_add_data_func ("/accumulate/adding-in-place-equals-adding-gradients/2-threads", GINT_TO_POINTER (2),
                        adding_in_place_equals_adding_gradients);
  g_test_add_data_func ("/accumulate/long-products-are-added/1-thread", GINT_TO_POINTER (1), long_products_are_added);
  g_test_add_data_func ("/accumulate/long-products-are-added/2-threads", GINT_TO_POINTER (2), long_products_are_added);
  g_test_add_func ("/accumulate/a-second-gradient-takes-no-memory", a_second_gradient_takes_no_memory);
  return g_test_run ();
}
