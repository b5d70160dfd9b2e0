/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: private-headers */
#include "support/device.h"
#include "support/tensors.h"
#include "tensor/autograd/op-private.h"
#include "tensor/thread-private.h"

/* The operations of ops, counted as they run. */

typedef struct
{
  EbbOpObserver observer;
  guint64 flop;
} Meter;

static gboolean
count (EbbOpObserver *observer,
       EbbOpCall *call,
       GError **error)
{
  ((Meter *) observer)->flop += ebb_op_call_get_flop (call);
  return TRUE;
}

static Meter meter = { .observer = { .after = count } };

static guint64
read_meter (EbbTensor *result)
{
  g_assert_nonnull (result);
  ebb_tensor_unref (result);
  return meter.flop;
}

#define flop_of(call) (meter.flop = 0, read_meter (call))

static void
products_count_two_for_each_multiplication (void)
{
  g_autoptr (EbbTensor) x = test_randn (1, 2, 3, 5, -1);
  g_autoptr (EbbTensor) weight = test_randn (2, 7, 5, -1);
  g_autoptr (EbbTensor) bias = test_randn (3, 7, -1);
  g_autoptr (EbbTensor) right = test_randn (4, 2, 5, 11, -1);
  g_autoptr (GError) error = NULL;

  ebb_thread_push_observer (&meter.observer);
  g_assert_cmpuint (flop_of (ebb_linear (x, weight, bias, &error)), ==, 2 * 6 * 5 * 7);
  g_assert_cmpuint (flop_of (ebb_matmul (x, right, &error)), ==, 2 * 2 * 3 * 5 * 11);
  g_assert_cmpuint (flop_of (ebb_tanh (x, &error)), ==, 30);
  g_assert_cmpuint (flop_of (ebb_transpose (x, 0, 1, &error)), ==, 0);
  ebb_thread_pop_observer (&meter.observer);
}

static void
attention_counts_its_products (void)
{
  const guint64 all = 4 * 2 * 3 * 5 * 7 * 4; /* [B, H, T, S], two products of D */
  g_autoptr (EbbTensor) q = test_randn (1, 2, 3, 5, 4, -1);
  g_autoptr (EbbTensor) k = test_randn (2, 2, 3, 7, 4, -1);
  g_autoptr (EbbTensor) v = test_randn (3, 2, 3, 7, 4, -1);
  g_autoptr (EbbTensor) qkv = test_randn (4, 2, 5, 36, -1);
  g_autoptr (GError) error = NULL;

  ebb_thread_push_observer (&meter.observer);
  g_assert_cmpuint (flop_of (ebb_scaled_dot_product_attention (q, k, v, NULL, FALSE, 1, 0, NULL, &error)), ==, all);
  g_assert_cmpuint (flop_of (ebb_scaled_dot_product_attention (q, k, v, NULL, TRUE, 1, 0, NULL, &error)), ==, all / 2);
  g_assert_cmpuint (flop_of (ebb_self_attention (qkv, 3, NULL, FALSE, 1, 0, NULL, &error)), ==, 4 * 2 * 3 * 5 * 5 * 4);
  ebb_thread_pop_observer (&meter.observer);
}

/* Against pairs counted one by one. */
static void
attention_counts_the_pairs_that_see_each_other (void)
{
  static const EbbAttentionForm forms[] = {
    { .causal = TRUE, .window = 3 },
    { .causal = TRUE, .window = 100 },
    { .causal = TRUE, .first_query = 4 },
    { .causal = TRUE, .first_query = 9, .window = 4 },
    { .causal = FALSE, .first_query = 2, .window = 4 },
  };
  g_autoptr (EbbTensor) q = test_randn (1, 2, 6, 5, 4, -1);
  g_autoptr (EbbTensor) k = test_randn (2, 2, 3, 7, 4, -1);
  g_autoptr (GError) error = NULL;

  ebb_thread_push_observer (&meter.observer);
  for (guint i = 0; i < G_N_ELEMENTS (forms); i++)
    {
      guint64 n_pairs = 0;

      for (gint64 t = 0; t < 5; t++)
        for (gint64 s = 0; s < 7; s++)
          {
            gint64 position = forms[i].first_query + t;

            if ((!forms[i].causal || s <= position) && (forms[i].window == 0 || s > position - forms[i].window))
              n_pairs++;
          }
      g_assert_cmpuint (flop_of (ebb_attention (q, k, k, NULL, NULL, &forms[i], NULL, &error)), ==,
                        4 * 2 * 6 * 4 * n_pairs);
    }
  ebb_thread_pop_observer (&meter.observer);
}

static void
a_fused_loss_counts_the_products_that_it_does (void)
{
  g_autoptr (EbbTensor) x = test_randn (1, 6, 5, -1);
  g_autoptr (EbbTensor) weight = test_randn (2, 11, 5, -1);
  g_autoptr (EbbTensor) targets = test_tokens (3, 11, 6, -1);
  g_autoptr (GError) error = NULL;
  const guint64 one = 2 * 6 * 5 * 11;

  ebb_thread_push_observer (&meter.observer);
  g_assert_cmpuint (
      flop_of (ebb_fused_linear_cross_entropy (x, weight, NULL, targets, -100, 0, EBB_REDUCTION_MEAN, &error)), ==,
      one);
  ebb_tensor_set_requires_grad (x, TRUE, NULL);
  ebb_tensor_set_requires_grad (weight, TRUE, NULL);
  g_assert_cmpuint (
      flop_of (ebb_fused_linear_cross_entropy (x, weight, NULL, targets, -100, 0, EBB_REDUCTION_MEAN, &error)), ==,
      3 * one);
  ebb_thread_pop_observer (&meter.observer);
}

int
main (int argc,
      char **argv)
{
  test_init (&argc, &argv);
  g_test_add_func ("/op-flop/products", products_count_two_for_each_multiplication);
  g_test_add_func ("/op-flop/attention", attention_counts_its_products);
  g_test_add_func ("/op-flop/attention/pairs", attention_counts_the_pairs_that_see_each_other);
  g_test_add_func ("/op-flop/fused-loss", a_fused_loss_counts_the_products_that_it_does);
  return g_test_run ();
}
