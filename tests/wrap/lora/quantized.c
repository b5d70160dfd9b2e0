/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: private-headers */
#include <math.h>
#include <string.h>

#include "nn/layers/layer-private.h"
#include "support/decoders.h"
#include "support/device.h"
#include "support/ranks.h"
#include "support/stores.h"
#include "support/tensors.h"
#include "support/training.h"

/* Adapters beside quantised weights: gradients of A and B against float64 on the dequantised weight, and the same bits
 * on ranks; what can't be done is refused by name. pairs.c and ranks.c have the rest. */

static const EbbQuantization quantizations[] = { EBB_QUANTIZATION_INT8, EBB_QUANTIZATION_NF4 };

static EbbModule *
wrap (EbbModule *model,
      int rank)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbLoraOptions) options = ebb_lora_options_new ();
  g_autoptr (EbbGenerator) generator = ebb_generator_new (7);
  EbbModule *same;
  guint n;
  g_autofree EbbTensor **parameters = NULL;

  g_object_set (options, "rank", rank, "alpha", 5.0, NULL);
  same = ebb_lora_wrap (model, options, &error);
  g_assert_no_error (error);
  parameters = ebb_module_get_parameters (model, TRUE, &n);
  ebb_push_grad_enabled (FALSE);
  for (guint i = 0; i < n; i++)
    {
      if (ebb_tensor_get_requires_grad (parameters[i]))
        g_assert_true (ebb_tensor_fill_normal (parameters[i], 0, 0.2, generator, &error));
      ebb_tensor_unref (parameters[i]);
    }
  ebb_pop_grad_enabled ();
  return same;
}

/* -- gradients ----------------------------------------------------------------------------------------------------- */

static double *
to_doubles (EbbTensor *tensor)
{
  const gint64 n = ebb_tensor_get_n_elements (tensor);
  double *values = g_new (double, n);
  const float *from = test_read (tensor);

  for (gint64 i = 0; i < n; i++)
    values[i] = (double) from[i];
  return values;
}

/* c [m, n] = alpha a [m, k] b [k, n], each with the strides given. */
static double *
multiply (double alpha,
          const double *a,
          int a_row,
          int a_column,
          const double *b,
          int b_row,
          int b_column,
          int m,
          int n,
          int k)
{
  double *c = g_new0 (double, m *n);

  for (int i = 0; i < m; i++)
    for (int j = 0; j < n; j++)
      for (int l = 0; l < k; l++)
        c[i * n + j] += alpha * a[i * a_row + l * a_column] * b[l * b_row + j * b_column];
  return c;
}

static void
assert_near (EbbTensor *tensor,
             const double *expected)
{
  const gint64 n = ebb_tensor_get_n_elements (tensor);
  const float *values = test_read (tensor);
  double distance = 0, size = 0;

  for (gint64 i = 0; i < n; i++)
    {
      distance += ((double) values[i] - expected[i]) * ((double) values[i] - expected[i]);
      size += expected[i] * expected[i];
    }
  g_assert_cmpfloat (sqrt (distance), <=, 1e-6 * sqrt (size));
}

static EbbTensor *
get_factor_grad (EbbModule *layer,
                 const char *name,
                 double **values)
{
  g_autoptr (EbbModule) list = ebb_module_get_child (layer, name);
  g_autoptr (EbbModule) factor = ebb_module_get_child (list, "default");
  g_autoptr (EbbTensor) weight = ebb_module_get_parameter (factor, "weight");

  *values = to_doubles (weight);
  return ebb_tensor_get_grad (weight);
}

/* y = x W^T + s x A^T B^T for W as it is dequantised. */
static void
check_gradients (EbbQuantization quantization)
{
  enum
  {
    M = 6,
    IN = 70,
    OUT = 45,
    R = 3
  };
  const double scale = 5.0 / R;
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbModule) layer = ebb_linear_new (IN, OUT, FALSE, &error);
  g_autoptr (EbbModule) root = test_chain_new (layer, NULL);
  g_autoptr (EbbModule) same = NULL;
  g_autoptr (EbbTensor) x = test_randn (5, (gint64) M, (gint64) IN, (gint64) -1);
  g_autoptr (EbbTensor) sent = test_randn (6, (gint64) M, (gint64) OUT, (gint64) -1);
  g_autoptr (EbbTensor) y = NULL;
  g_autoptr (EbbTensor) decoded = NULL;
  g_autoptr (EbbTensor) grad_x = NULL;
  g_autoptr (EbbTensor) grad_a = NULL;
  g_autoptr (EbbTensor) grad_b = NULL;
  double *a, *b, *w, *xs, *s, *low, *back, *expected;

  g_object_ref (layer);
  g_assert_true (ebb_quantize (root, quantization, &error));
  same = wrap (root, R);
  decoded = ebb_linear_dequantize ((EbbLinear *) layer, EBB_DTYPE_F32, &error);
  g_assert_true (ebb_tensor_set_requires_grad (x, TRUE, &error));
  y = ebb_module_call1 (root, x, &error);
  g_assert_true (ebb_backward (&y, 1, &sent, 1, NULL, 0, FALSE, &error));
  g_assert_no_error (error);
  grad_x = ebb_tensor_get_grad (x);
  grad_a = get_factor_grad (layer, "lora_A", &a);
  grad_b = get_factor_grad (layer, "lora_B", &b);
  w = to_doubles (decoded);
  xs = to_doubles (x);
  s = to_doubles (sent);
  /* dB = s dy^T (x A^T), dA = s (dy B)^T x, dx = dy W + s (dy B) A */
  low = multiply (scale, xs, IN, 1, a, 1, IN, M, R, IN);
  expected = multiply (1, s, 1, OUT, low, R, 1, OUT, R, M);
  assert_near (grad_b, expected);
  g_free (expected);
  back = multiply (scale, s, OUT, 1, b, R, 1, M, R, OUT);
  expected = multiply (1, back, 1, R, xs, IN, 1, R, IN, M);
  assert_near (grad_a, expected);
  g_free (expected);
  expected = multiply (1, s, OUT, 1, w, IN, 1, M, IN, OUT);
  g_free (low);
  low = multiply (1, back, R, 1, a, IN, 1, M, IN, R);
  for (int i = 0; i < M * IN; i++)
    expected[i] += low[i];
  assert_near (grad_x, expected);
  g_free (expected);
  g_free (low);
  g_free (back);
  g_free (a);
  g_free (b);
  g_free (w);
  g_free (xs);
  g_free (s);
}

static void
gradients_equal_f64 (void)
{
  for (gsize q = 0; q < G_N_ELEMENTS (quantizations); q++)
    check_gradients (quantizations[q]);
}

/* -- other wrappers ------------------------------------------------------------------------------------------------ */

static EbbModule *
new_adapted (EbbQuantization quantization)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbModule) model = test_decoder_new ("llama3", 1);

  g_assert_true (ebb_quantize (model, quantization, &error));
  g_assert_no_error (error);
  return wrap (model, 3);
}

static void
merging_is_refused (void)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbModule) model = new_adapted (EBB_QUANTIZATION_NF4);

  g_assert_false (ebb_lora_merge (model, &error));
  test_assert_error (error, EBB_ERROR_NOT_SUPPORTED, "q_proj", "nf4", "full weights");
}

static void
wrapped_layers_are_not_quantised (void)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbModule) model = test_decoder_new ("llama3", 1);
  g_autoptr (EbbModule) same = wrap (model, 3);

  g_assert_false (ebb_quantize (model, EBB_QUANTIZATION_NF4, &error));
  test_assert_error (error, EBB_ERROR_STATE, "q_proj", "is wrapped");
}

/* -- ranks --------------------------------------------------------------------------------------------------------- */

typedef struct
{
  EbbQuantization quantization;
  gboolean replicates;
  EbbArgs *expected; /* of one rank; NULL: this is that one */
  EbbArgs *state;    /* of one rank */
} Training;

static gboolean
wrap_for_ranks (EbbModule *model,
                EbbProcessGroup *group,
                gboolean replicates,
                GError **error)
{
  g_autoptr (EbbModule) same = NULL;

  if (!replicates)
    return ebb_fully_shard_wrap_each (model, EBB_TYPE_TRANSFORMER_BLOCK, group, NULL, error);
  same = ebb_replicate (model, group, NULL, error);
  return same != NULL;
}

/* Ranks have the same rows: the mean of their gradients is that of one. */
static gboolean
train_on_a_rank (EbbProcessGroup *group,
                 gpointer user_data,
                 GError **error)
{
  Training *training = user_data;
  g_autoptr (EbbModule) model = new_adapted (training->quantization);
  g_autoptr (EbbTensor) tokens = test_tokens (3, 64, 2, 9, -1);
  g_autoptr (EbbOptimizer) optimizer = NULL;
  g_autoptr (EbbArgs) state = NULL;

  if (training->expected != NULL && !wrap_for_ranks (model, group, training->replicates, error))
    return FALSE;
  optimizer = ebb_sgd_new (model, 0.1, error);
  for (int i = 0; optimizer != NULL && i < 2; i++)
    {
      g_autoptr (TestOutcome) outcome = test_train1 (model, tokens);

      if (!ebb_optimizer_step (optimizer, error))
        return FALSE;
      ebb_optimizer_zero_grad (optimizer);
    }
  state = optimizer != NULL ? ebb_get_full_state_dict (model, FALSE, error) : NULL;
  if (state == NULL)
    return FALSE;
  if (training->expected != NULL)
    test_assert_args_equal (state, training->expected);
  else
    training->state = g_steal_pointer (&state);
  return TRUE;
}

static void
ranks_train_the_same_bits (void)
{
  for (gsize q = 0; q < G_N_ELEMENTS (quantizations); q++)
    {
      Training training = { quantizations[q] };
      g_autoptr (EbbArgs) expected = NULL;

      test_ranks_run (1, train_on_a_rank, &training);
      expected = training.state;
      training.expected = expected;
      for (int replicates = 0; replicates < 2; replicates++)
        {
          training.replicates = replicates;
          test_ranks_run (2, train_on_a_rank, &training);
        }
    }
}

int
main (int argc,
      char **argv)
{
  test_init (&argc, &argv);
  g_test_add_func ("/quantized-lora/gradients-equal-f64", gradients_equal_f64);
  g_test_add_func ("/quantized-lora/merging-is-refused", merging_is_refused);
  g_test_add_func ("/quantized-lora/wrapped-layers-are-not-quantised", wrapped_layers_are_not_quantised);
  g_test_add_func ("/quantized-lora/ranks-train-the-same-bits", ranks_train_the_same_bits);
  return g_test_run ();
}
