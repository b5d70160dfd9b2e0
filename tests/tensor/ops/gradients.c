/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/device.h"
#include "support/tensors.h"

#include <math.h>

/* Gradients where a formula alone would be wrong: at ties, at zero, of parts, of what is repeated, across dtypes. */

#define SHAPE(...) (const gint64[]){ __VA_ARGS__ }, G_N_ELEMENTS (((const gint64[]){ __VA_ARGS__ }))
#define LEAF(...) make_leaf ((const float[]){ __VA_ARGS__ }, G_N_ELEMENTS (((const float[]){ __VA_ARGS__ })))
#define assert_grad(leaf, ...) assert_grad_ (leaf, (const double[]){ __VA_ARGS__ })

static EbbTensor *
make_leaf (const float *values, gint64 n)
{
  g_autoptr (GError) error = NULL;
  EbbTensor *leaf = ebb_tensor_new_from_floats (values, (gsize) n, &n, 1, &error);

  g_assert_no_error (error);
  ebb_tensor_set_requires_grad (leaf, TRUE, &error);
  return leaf;
}

/* Goes back from the sum of @y, which is @error's to explain if there is none, weighted by 1, 2, 3, ... */
static void
backward (EbbTensor *y, GError *error)
{
  g_autoptr (EbbTensor) flat = NULL;
  g_autoptr (EbbTensor) weights = NULL;
  g_autoptr (EbbTensor) product = NULL;
  g_autoptr (EbbTensor) sum = NULL;

  g_assert_no_error (error);
  flat = ebb_reshape (y, SHAPE (-1), &error);
  weights = ebb_arange (1, 1 + (double) ebb_tensor_get_n_elements (flat), 1, EBB_DTYPE_F32, NULL, &error);
  product = ebb_mul (flat, weights, &error);
  sum = ebb_sum (product, NULL, 0, FALSE, &error);
  g_assert_true (ebb_tensor_backward (sum, &error));
  g_assert_no_error (error);
}

static void
assert_grad_ (EbbTensor *leaf, const double *expected)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) grad = ebb_tensor_get_grad (leaf);
  g_autoptr (EbbTensor) real = ebb_cast (grad, EBB_DTYPE_F32, &error);
  const float *data;

  g_assert_nonnull (real);
  g_assert_cmpint (ebb_tensor_get_dtype (grad), ==, ebb_tensor_get_dtype (leaf));
  data = test_read (real);
  for (gint64 i = 0; i < ebb_tensor_get_n_elements (leaf); i++)
    g_assert_cmpfloat_with_epsilon (data[i], expected[i], 1e-5);
}

static void
ties_are_shared (void)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) a = LEAF (1, 2, 3);
  g_autoptr (EbbTensor) b = LEAF (1, 3, 2);
  g_autoptr (EbbTensor) greater = ebb_maximum (a, b, &error);
  g_autoptr (EbbTensor) c = LEAF (5, 4, 5, 5);
  g_autoptr (EbbTensor) greatest = ebb_max (c, NULL, 0, FALSE, &error);
  g_autoptr (EbbTensor) d = LEAF (5, 4, 5, 5);
  g_autoptr (EbbTensor) first = NULL;

  backward (greater, error);
  assert_grad (a, 0.5, 0, 3);
  assert_grad (b, 0.5, 2, 0);
  backward (greatest, error);
  assert_grad (c, 1.0 / 3, 0, 1.0 / 3, 1.0 / 3);
  g_assert_true (ebb_max_along (d, 0, FALSE, &first, NULL, &error));
  backward (first, error);
  assert_grad (d, 1, 0, 0, 0);
}

static void
zero_gives_no_nan (void)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) base = LEAF (0, 0, 2);
  g_autoptr (EbbTensor) exponent = LEAF (0, 2, 3);
  g_autoptr (EbbTensor) power = ebb_pow (base, exponent, &error);
  g_autoptr (EbbTensor) x = LEAF (0, 2);
  g_autoptr (EbbTensor) one = ebb_pow_scalar (x, 0, &error);
  g_autoptr (EbbTensor) zeros = LEAF (0, 0);
  g_autoptr (EbbTensor) norm = ebb_norm (zeros, &error);

  backward (power, error);
  assert_grad (base, 0, 0, 3 * 12);
  assert_grad (exponent, 0, 0, 3 * 8 * log (2));
  backward (one, error);
  assert_grad (x, 0, 0);
  backward (norm, error);
  assert_grad (zeros, 0, 0);
}

/* Where only some parts are used, the others have a gradient of zero, not of what the memory held. */
static void
unused_parts_are_zero (void)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) x = LEAF (1, 2, 3, 4, 5, 6, 7);
  g_autofree EbbTensor **parts = NULL;
  g_autoptr (EbbTensor) joined = NULL;
  g_autoptr (EbbTensor) every_third = NULL;
  g_autoptr (EbbTensor) y = LEAF (1, 2, 3, 4, 5, 6, 7);
  guint n = 0;

  parts = ebb_split (x, 2, 0, &n, &error);
  g_assert_no_error (error);
  joined = ebb_cat ((EbbTensor *[]){ parts[3], parts[1], parts[3] }, 3, 0, &error);
  for (guint i = 0; i < n; i++)
    ebb_tensor_unref (parts[i]);
  backward (joined, error);
  assert_grad (x, 0, 0, 2, 3, 0, 0, 1 + 4);

  every_third = ebb_slice (y, 0, 1, G_MAXINT64, 3, &error);
  backward (every_third, error);
  assert_grad (y, 0, 1, 0, 0, 2, 0, 0);
}

static void
repetitions_are_summed (void)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) x = LEAF (1, 2);
  g_autoptr (EbbTensor) column = ebb_reshape (x, SHAPE (2, 1), &error);
  g_autoptr (EbbTensor) expanded = ebb_expand (column, SHAPE (2, 2, 3), &error);
  g_autoptr (EbbTensor) y = LEAF (1, 2);
  g_autoptr (EbbTensor) other = ebb_reshape (y, SHAPE (2, 1), &error);
  g_autoptr (EbbTensor) row = LEAF (1, 2, 3);
  g_autoptr (EbbTensor) product = ebb_mul (other, row, &error);
  g_autoptr (EbbTensor) table = LEAF (1, 2, 3);
  g_autoptr (EbbTensor) indices = ebb_tensor_new_from_ints ((const gint64[]){ 2, 0, 2, 2 }, 4, SHAPE (4), &error);
  g_autoptr (EbbTensor) selected = ebb_index_select (table, 0, indices, &error);

  backward (expanded, error);
  assert_grad (x, 1 + 2 + 3 + 7 + 8 + 9, 4 + 5 + 6 + 10 + 11 + 12);
  backward (product, error);
  assert_grad (row, 1 + 8, 2 + 10, 3 + 12);
  assert_grad (y, 1 + 4 + 9, 4 + 10 + 18);
  backward (selected, error);
  assert_grad (table, 2, 0, 1 + 3 + 4);
}

#define N_REPEATED 1000

/* However often an element of bf16 is selected, its gradient is rounded once. */
static void
sums_of_bf16_are_rounded_once (void)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) weights = ebb_rand (SHAPE (N_REPEATED, 2), EBB_DTYPE_BF16, NULL, NULL, &error);
  g_autoptr (EbbTensor) real = ebb_cast (weights, EBB_DTYPE_F32, &error);
  g_autoptr (EbbTensor) rows = ebb_zeros (SHAPE (N_REPEATED), EBB_DTYPE_I64, NULL, &error);
  g_autoptr (EbbTensor) elements = ebb_zeros (SHAPE (N_REPEATED, 2), EBB_DTYPE_I64, NULL, &error);
  const float *data = test_read (real);
  double exact[2] = { 0, 0 };

  for (int i = 0; i < 2 * N_REPEATED; i++)
    exact[i % 2] += data[i];
  for (int k = 0; k < 5; k++)
    {
      g_autoptr (EbbTensor) table = ebb_zeros (SHAPE (3, 2), EBB_DTYPE_BF16, NULL, &error);
      g_autoptr (EbbTensor) y = NULL;
      g_autoptr (EbbTensor) product = NULL;
      g_autoptr (EbbTensor) sum = NULL;
      g_autoptr (EbbTensor) result = NULL;
      g_autoptr (EbbTensor) first = NULL;
      g_autoptr (EbbTensor) result_real = NULL;

      g_assert_true (ebb_tensor_set_requires_grad (table, k < 4, &error));
      if (k == 0)
        y = ebb_embedding (table, rows, &error);
      else if (k == 1)
        y = ebb_index_select (table, 0, rows, &error);
      else if (k == 2)
        y = ebb_gather (table, 0, elements, &error);
      else if (k == 3)
        {
          first = ebb_slice (table, 0, 0, 1, 1, &error);
          y = ebb_expand (first, SHAPE (N_REPEATED, 2), &error);
        }
      else
        result = ebb_scatter_add (table, 0, elements, weights, &error);
      if (k < 4)
        {
          product = ebb_mul (y, weights, &error);
          sum = ebb_sum (product, NULL, 0, FALSE, &error);
          g_assert_true (ebb_tensor_backward (sum, &error));
          result = ebb_tensor_get_grad (table);
        }
      g_assert_no_error (error);
      g_assert_cmpint (ebb_tensor_get_dtype (result), ==, EBB_DTYPE_BF16);
      result_real = ebb_cast (result, EBB_DTYPE_F32, &error);
      for (int i = 0; i < 2; i++)
        g_assert_cmpfloat_with_epsilon (((const float *) test_read (result_real))[i] / exact[i], 1, 1.0 / 256 + 1e-6);
    }
}

/* Distances to a mean that f32 has no room for. */
static void
gradient_of_var_holds_far_from_zero (void)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) x = LEAF (1e6f, 1e6f + 0.25f, 1e6f + 0.0625f, 1e6f - 1);
  g_autoptr (EbbTensor) var = ebb_var (x, NULL, 0, 0, FALSE, &error);
  const double mean = (0.25 + 0.0625 - 1) / 4;

  backward (var, error);
  assert_grad (x, -mean / 2, (0.25 - mean) / 2, (0.0625 - mean) / 2, (-1 - mean) / 2);
}

/* The gradient of a leaf has its dtype, whatever the op was done in. */
static void
dtypes_are_those_of_the_leaves (void)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) a = LEAF (1, 2, 3);
  g_autoptr (EbbTensor) b = ebb_full (SHAPE (1), 2, EBB_DTYPE_BF16, NULL, &error);
  g_autoptr (EbbTensor) half = ebb_full (SHAPE (3), 2, EBB_DTYPE_F16, NULL, &error);
  g_autoptr (EbbTensor) product = NULL;
  g_autoptr (EbbTensor) sum = NULL;
  g_autoptr (EbbTensor) cast = NULL;

  g_assert_true (ebb_tensor_set_requires_grad (b, TRUE, &error));
  g_assert_true (ebb_tensor_set_requires_grad (half, TRUE, &error));
  product = ebb_mul (b, a, &error);
  cast = ebb_cast (half, EBB_DTYPE_F32, &error);
  sum = ebb_add (product, cast, &error);
  g_assert_no_error (error);
  g_assert_cmpint (ebb_tensor_get_dtype (product), ==, EBB_DTYPE_F32);
  backward (sum, error);
  assert_grad (a, 2, 4, 6);
  assert_grad (b, 1 + 4 + 9);
  assert_grad (half, 1, 2, 3);
}

/* Both operands receive the same tensor, and one of them goes on: what it writes must not reach the other. */
static void
shared_gradients_are_not_overwritten (void)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) a = LEAF (1, 2, 3);
  g_autoptr (EbbTensor) b = LEAF (4, 5, 6);
  g_autoptr (EbbTensor) scaled = ebb_mul_scalar (b, -3, &error);
  g_autoptr (EbbTensor) negative = ebb_neg (a, &error);
  g_autoptr (EbbTensor) sum = ebb_add (negative, scaled, &error);
  g_autoptr (EbbTensor) twice = ebb_add (sum, negative, &error);

  backward (twice, error);
  assert_grad (a, -2, -4, -6);
  assert_grad (b, -3, -6, -9);
}

/* Forward and backward of dropout draw the same mask, without having kept it. */
static void
dropout_drops_the_same_twice (void)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbGenerator) generator = ebb_generator_new (11);
  g_autoptr (EbbTensor) x = ebb_ones (SHAPE (1000), EBB_DTYPE_F32, NULL, &error);
  g_autoptr (EbbTensor) y = NULL;
  g_autoptr (EbbTensor) sum = NULL;
  g_autoptr (EbbTensor) grad = NULL;

  g_assert_true (ebb_tensor_set_requires_grad (x, TRUE, &error));
  y = ebb_dropout (x, 0.4, TRUE, generator, &error);
  sum = ebb_sum (y, NULL, 0, FALSE, &error);
  g_assert_true (ebb_tensor_backward (sum, &error));
  g_assert_no_error (error);
  grad = ebb_tensor_get_grad (x);
  g_assert_true (ebb_tensor_equal (grad, y));
}

/* A gradient that is a view of a greater one must not hold all of that. */
static void
a_parts_gradient_holds_its_own_bytes_alone (void)
{
  for (int others = 0; others < 2; others++)
    for (int dim = 0; dim < 2; dim++)
      {
        g_autoptr (GError) error = NULL;
        g_autoptr (EbbTensor) large = test_randn (1, 100, 100, -1);
        g_autoptr (EbbTensor) small = test_randn (2, dim == 0 ? 3 : 100, dim == 0 ? 100 : 3, -1);
        g_autoptr (EbbTensor) joined = NULL;
        g_autoptr (EbbTensor) squares = NULL;
        g_autoptr (EbbTensor) loss = NULL;
        g_autoptr (EbbMemoryStats) stats = NULL;
        const guint64 expected = 3 * 100 * 4 + (others ? 100 * 100 * 4 : 0);

        ebb_tensor_set_requires_grad (large, others, &error);
        ebb_tensor_set_requires_grad (small, TRUE, &error);
        joined = ebb_cat ((EbbTensor *[]){ large, small }, 2, dim, &error);
        squares = ebb_square (joined, &error);
        loss = ebb_sum (squares, NULL, 0, FALSE, &error);
        ebb_tensor_backward (loss, &error);
        g_assert_no_error (error);
        stats = ebb_memory_get_stats (test_device ());
        g_assert_cmpuint (ebb_memory_stats_get_current (stats, EBB_PURPOSE_GRADIENT), ==, expected);
      }
}

/* More nodes wait at a time than most passes have, and each of them for all its gradients: a product that was gone
 * through too early has let its factors go when the rest comes. */
static void
many_waiting_nodes_go_in_order (void)
{
  enum
  {
    N = 100
  };
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) x = LEAF (1);
  EbbTensor *powers[N], *shuffled[N];

  for (guint i = 0; i < N; i++)
    powers[i] = ebb_mul (i > 0 ? powers[i - 1] : x, x, &error);
  for (guint i = 0; i < N; i++)
    shuffled[i] = powers[i * 7 % N];
  g_assert_no_error (error);
  ebb_backward (shuffled, N, NULL, 0, NULL, 0, FALSE, &error);
  g_assert_no_error (error);
  assert_grad (x, N * (N + 3) / 2); /* 2 + 3 + .. */
  for (guint i = 0; i < N; i++)
    ebb_tensor_unref (powers[i]);
}

static void
what_keeps_nothing_is_gone_through_again (void)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) x = LEAF (3);
  g_autoptr (EbbTensor) twice = ebb_add (x, x, &error);

  for (guint pass = 0; pass < 2; pass++)
    g_assert_true (ebb_tensor_backward (twice, &error));
  g_assert_no_error (error);
  assert_grad (x, 4);
}

static void
a_pass_that_fails_leaves_no_gradient (void)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) late = LEAF (1, 2), early = LEAF (3, 4);
  g_autoptr (EbbTensor) alias = ebb_tensor_detach (late);
  g_autoptr (EbbTensor) first = ebb_square (late, &error);
  g_autoptr (EbbTensor) second = ebb_square (early, &error);
  g_autoptr (EbbTensor) both = ebb_add (first, second, &error);
  g_autoptr (EbbTensor) sum = ebb_sum (both, NULL, 0, FALSE, &error);

  g_assert_true (ebb_tensor_fill (alias, 0, &error));
  g_assert_false (ebb_tensor_backward (sum, &error));
  g_assert_error (error, EBB_ERROR, EBB_ERROR_VERSION);
  g_assert_null (ebb_tensor_get_grad (late));
  g_assert_null (ebb_tensor_get_grad (early));
}

int
main (int argc, char **argv)
{
  test_init (&argc, &argv);
  g_test_add_func ("/op-gradients/ties-are-shared", ties_are_shared);
  g_test_add_func ("/op-gradients/zero-gives-no-nan", zero_gives_no_nan);
  g_test_add_func ("/op-gradients/unused-parts-are-zero", unused_parts_are_zero);
  g_test_add_func ("/op-gradients/repetitions-are-summed", repetitions_are_summed);
  g_test_add_func ("/op-gradients/sums-of-bf16-are-rounded-once", sums_of_bf16_are_rounded_once);
  g_test_add_func ("/op-gradients/gradient-of-var-holds-far-from-zero", gradient_of_var_holds_far_from_zero);
  g_test_add_func ("/op-gradients/dtypes-are-those-of-the-leaves", dtypes_are_those_of_the_leaves);
  g_test_add_func ("/op-gradients/shared-gradients-are-not-overwritten", shared_gradients_are_not_overwritten);
  g_test_add_func ("/op-gradients/a-parts-gradient-holds-its-own-bytes-alone",
                   a_parts_gradient_holds_its_own_bytes_alone);
  g_test_add_func ("/op-gradients/dropout-drops-the-same-twice", dropout_drops_the_same_twice);
  g_test_add_func ("/op-gradients/many-waiting-nodes-go-in-order", many_waiting_nodes_go_in_order);
  g_test_add_func ("/op-gradients/what-keeps-nothing-is-gone-through-again", what_keeps_nothing_is_gone_through_again);
  g_test_add_func ("/op-gradients/a-pass-that-fails-leaves-no-gradient", a_pass_that_fails_leaves_no_gradient);
  return g_test_run ();
}
