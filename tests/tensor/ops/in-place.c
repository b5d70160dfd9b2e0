/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/device.h"

#include <math.h>

/* Changes in place: what they write, what they count, and what they must not touch. */

#define SHAPE(...) (const gint64[]){ __VA_ARGS__ }, G_N_ELEMENTS (((const gint64[]){ __VA_ARGS__ }))

static EbbTensor *
count_up (gint64 rows, gint64 columns)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) line = ebb_arange (0, (double) (rows * columns), 1, EBB_DTYPE_F32, NULL, &error);
  g_autoptr (EbbTensor) tensor = ebb_reshape (line, SHAPE (rows, columns), &error);
  EbbTensor *copy = ebb_copy (tensor, &error);

  g_assert_no_error (error);
  return copy;
}

static void
assert_sum (EbbTensor *tensor, double expected)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) sum = ebb_sum (tensor, NULL, 0, FALSE, &error);
  double value = 0;

  g_assert_no_error (error);
  g_assert_true (ebb_tensor_get_item (sum, &value, &error));
  g_assert_cmpfloat_with_epsilon (value, expected, 1e-4);
}

static void
each_change_counts (void)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) x = count_up (2, 3);
  g_autoptr (EbbTensor) other = count_up (2, 3);
  g_autoptr (EbbTensor) column = ebb_select (x, 1, 0, &error);
  guint version = ebb_tensor_get_version (x);

  g_assert_true (ebb_tensor_fill (column, 7, &error));
  g_assert_cmpuint (ebb_tensor_get_version (x), ==, version + 1);
  assert_sum (x, 7 + 1 + 2 + 7 + 4 + 5);
  g_assert_true (ebb_tensor_scale (x, 2, &error));
  g_assert_cmpuint (ebb_tensor_get_version (column), ==, version + 2);
  assert_sum (x, 52);
  g_assert_true (ebb_tensor_add_scaled (x, other, -1, &error));
  assert_sum (x, 37);
  g_assert_true (ebb_tensor_copy_from (x, other, &error));
  g_assert_cmpuint (ebb_tensor_get_version (x), ==, version + 4);
  g_assert_true (ebb_tensor_copy_from (x, x, &error));
  g_assert_cmpuint (ebb_tensor_get_version (x), ==, version + 4);
  g_assert_true (ebb_tensor_equal (x, other));
  g_assert_true (ebb_tensor_fill_uniform (x, 5, 6, NULL, &error));
  g_assert_cmpuint (ebb_tensor_get_version (x), ==, version + 5);
  g_assert_no_error (error);
}

/* Rounding, of the product in f32 and of the result to the dtype, must not lead out of the range. */
static void
uniform_stays_in_its_range (void)
{
  static const struct
  {
    double low, high;
  } ranges[] = { { 0, 1 },         { -1, 1 },   { 0.1, 0.3 },    { -0.3, -0.1 },  { 100, 101 }, { -3, -2.98 },
                 { 1, 1.0000005 }, { 1, 1.01 }, { 0, 0x1p-130 }, { -1e30, 1e30 }, { 0.99, 1 },  { 5, 5 } };
  const gint64 n = 200000;

  for (guint d = 0; d < 2; d++)
    for (guint i = 0; i < G_N_ELEMENTS (ranges); i++)
      {
        EbbDType dtype = d == 0 ? EBB_DTYPE_F32 : EBB_DTYPE_BF16;
        const double low = ranges[i].low, high = ranges[i].high;
        g_autoptr (GError) error = NULL;
        g_autoptr (EbbTensor) x = i == 0 ? ebb_rand (&n, 1, dtype, NULL, NULL, &error)
                                         : ebb_tensor_new_empty (&n, 1, dtype, NULL, &error);
        g_autoptr (EbbTensor) wide = NULL;
        const float *values;

        g_assert_true (i == 0 || ebb_tensor_fill_uniform (x, low, high, NULL, &error));
        wide = ebb_cast (x, EBB_DTYPE_F32, &error);
        g_assert_no_error (error);
        values = test_read (wide);
        for (gint64 k = 0; k < n; k++)
          if (!(low == high ? values[k] == low : values[k] >= low && values[k] < high))
            g_error ("%.9g of %s is not in [%.9g, %.9g)", values[k], ebb_dtype_get_name (dtype), low, high);
      }
}

static void
uniform_has_a_range_of_f32 (void)
{
  g_autoptr (EbbTensor) x = count_up (2, 3);
  const double ranges[][2] = { { 1, 0 }, { -INFINITY, 0 }, { 0, INFINITY }, { -3e38, 3e38 }, { NAN, 1 } };

  for (guint i = 0; i < G_N_ELEMENTS (ranges); i++)
    {
      g_autoptr (GError) error = NULL;

      g_assert_false (ebb_tensor_fill_uniform (x, ranges[i][0], ranges[i][1], NULL, &error));
      g_assert_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT);
    }
}

static void
a_source_may_overlap (void)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) x = count_up (3, 3);
  g_autoptr (EbbTensor) transposed = ebb_transpose (x, 0, 1, &error);
  g_autoptr (EbbTensor) expected = ebb_copy (transposed, &error);
  g_autoptr (EbbTensor) upper = NULL;
  g_autoptr (EbbTensor) lower = NULL;

  g_assert_true (ebb_tensor_copy_from (x, transposed, &error));
  g_assert_no_error (error);
  g_assert_true (ebb_tensor_equal (x, expected));

  upper = ebb_narrow (x, 0, 0, 2, &error);
  lower = ebb_narrow (x, 0, 1, 2, &error);
  g_assert_true (ebb_tensor_add_scaled (lower, upper, 1, &error));
  /* Columns 0 1 2 | 3 4 5 | 6 7 8: each row but the first has the old row above it added. */
  assert_sum (x, 36 + (0 + 3 + 6) + (1 + 4 + 7));
  /* With itself it need not be copied. */
  g_assert_true (ebb_tensor_add_scaled (x, x, -1, &error));
  assert_sum (x, 0);
}

typedef gboolean (*Change) (EbbTensor *tensor, EbbTensor *other, GError **error);
typedef EbbTensor *(*Op) (EbbTensor *a, EbbTensor *b, GError **error);
typedef gboolean (*ScalarChange) (EbbTensor *tensor, double value, GError **error);
typedef EbbTensor *(*ScalarOp) (EbbTensor *a, double value, GError **error);

/* In each dtype, on a whole tensor and on a part whose elements lie apart, the other one of the same shape or
 * broadcast: the bits of the op, in the tensor's dtype, and nothing beside the part. */
static void
arithmetic_has_the_bits_of_the_op (void)
{
  const struct
  {
    Change change;
    Op op;
    ScalarChange scalar_change;
    ScalarOp scalar_op;
  } cases[] = {
    { ebb_tensor_add_in_place, ebb_add, ebb_tensor_add_scalar_in_place, ebb_add_scalar },
    { ebb_tensor_sub_in_place, ebb_sub, ebb_tensor_sub_scalar_in_place, ebb_sub_scalar },
    { ebb_tensor_mul_in_place, ebb_mul, ebb_tensor_mul_scalar_in_place, ebb_mul_scalar },
    { ebb_tensor_div_in_place, ebb_div, ebb_tensor_div_scalar_in_place, ebb_div_scalar },
  };
  const EbbDType dtypes[] = { EBB_DTYPE_F32, EBB_DTYPE_BF16, EBB_DTYPE_I64, EBB_DTYPE_I32 };

  for (guint c = 0; c < G_N_ELEMENTS (cases); c++)
    for (guint d = 0; d < G_N_ELEMENTS (dtypes); d++)
      for (guint i = 0; i < 8; i++)
        {
          const gboolean is_part = i & 1, is_broadcast = i & 2, is_scalar = i & 4;
          g_autoptr (GError) error = NULL;
          g_autoptr (EbbTensor) counted = count_up (3, 4);
          g_autoptr (EbbTensor) x = ebb_cast (counted, dtypes[d], &error);
          g_autoptr (EbbTensor) copy = ebb_copy (x, &error);
          g_autoptr (EbbTensor) target = is_part ? ebb_narrow (copy, 1, 1, 2, &error) : ebb_tensor_ref (copy);
          g_autoptr (EbbTensor) before = ebb_copy (target, &error);
          g_autoptr (EbbTensor) larger = ebb_add_scalar (before, 3, &error);
          g_autoptr (EbbTensor) other =
              is_broadcast ? ebb_narrow (larger, 0, 1, 1, &error) : ebb_tensor_ref (larger);
          g_autoptr (EbbTensor) computed =
              is_scalar ? cases[c].scalar_op (before, 3, &error) : cases[c].op (before, other, &error);
          g_autoptr (EbbTensor) expected = ebb_cast (computed, dtypes[d], &error);
          const guint version = ebb_tensor_get_version (copy);
          gboolean done;

          g_assert_no_error (error);
          done = is_scalar ? cases[c].scalar_change (target, 3, &error) : cases[c].change (target, other, &error);
          if (d >= 2 && cases[c].op == ebb_div)
            {
              g_assert_false (done);
              g_assert_error (error, EBB_ERROR, EBB_ERROR_DTYPE);
              g_assert_true (ebb_tensor_equal (copy, x));
              continue;
            }
          g_assert_no_error (error);
          g_assert_true (done);
          g_assert_true (ebb_tensor_equal (target, expected));
          g_assert_cmpuint (ebb_tensor_get_version (copy), ==, version + 1);
          if (is_part)
            {
              g_autoptr (EbbTensor) edge = ebb_select (copy, 1, 3, &error);
              g_autoptr (EbbTensor) edge_before = ebb_select (x, 1, 3, &error);

              g_assert_true (ebb_tensor_equal (edge, edge_before));
            }
        }
}

static void
arithmetic_reads_what_it_overwrites_first (void)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) x = count_up (3, 3);
  g_autoptr (EbbTensor) transposed = ebb_transpose (x, 0, 1, &error);
  g_autoptr (EbbTensor) expected = ebb_mul (x, transposed, &error);

  g_assert_true (ebb_tensor_mul_in_place (x, transposed, &error));
  g_assert_no_error (error);
  g_assert_true (ebb_tensor_equal (x, expected));
}

static void
arithmetic_names_what_is_wrong (void)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) x = count_up (2, 3);
  g_autoptr (EbbTensor) integers = ebb_cast (x, EBB_DTYPE_I64, &error);
  g_autoptr (EbbTensor) larger = count_up (3, 3);
  g_autoptr (EbbTensor) leaf = count_up (2, 3);

  g_assert_false (ebb_tensor_add_in_place (integers, x, &error));
  g_assert_error (error, EBB_ERROR, EBB_ERROR_DTYPE);
  g_assert_cmpstr (error->message, ==,
                   "add_in_place: the result is of f32, which a tensor of i64 can't hold; cast it to f32 first");
  g_clear_error (&error);
  g_assert_false (ebb_tensor_sub_in_place (x, larger, &error));
  g_assert_error (error, EBB_ERROR, EBB_ERROR_SHAPE);
  g_clear_error (&error);
  g_assert_true (ebb_tensor_set_requires_grad (leaf, TRUE, &error));
  g_assert_false (ebb_tensor_mul_scalar_in_place (leaf, 2, &error));
  g_assert_error (error, EBB_ERROR, EBB_ERROR_GRAPH);
  g_clear_error (&error);
  g_assert_false (ebb_tensor_div_in_place (x, leaf, &error));
  g_assert_error (error, EBB_ERROR, EBB_ERROR_GRAPH);
  assert_sum (x, 15);
  assert_sum (leaf, 15);
}

static void
expanded_tensors_are_refused (void)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) x = count_up (1, 3);
  g_autoptr (EbbTensor) expanded = ebb_expand (x, SHAPE (4, 3), &error);

  g_assert_no_error (error);
  g_assert_false (ebb_tensor_scale (expanded, 2, &error));
  g_assert_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT);
  g_assert_cmpstr (error->message, ==,
                   "scale: a tensor expanded to shape [4, 3] has elements that share memory; change a copy of it");
  assert_sum (x, 3);
}

static void
leaves_with_gradients_are_protected (void)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) leaf = count_up (2, 2);
  g_autoptr (EbbTensor) plain = count_up (2, 2);
  g_autoptr (EbbTensor) result = NULL;

  g_assert_true (ebb_tensor_set_requires_grad (leaf, TRUE, &error));
  g_assert_false (ebb_tensor_fill (leaf, 0, &error));
  g_assert_error (error, EBB_ERROR, EBB_ERROR_GRAPH);
  g_assert_cmpstr (error->message, ==,
                   "fill: a tensor that requires a gradient can't be changed in place while gradients are recorded; do "
                   "it with gradients off");
  g_clear_error (&error);
  assert_sum (leaf, 6);

  result = ebb_mul_scalar (leaf, 2, &error);
  g_assert_false (ebb_tensor_scale (result, 2, &error));
  g_assert_error (error, EBB_ERROR, EBB_ERROR_GRAPH);
  g_clear_error (&error);
  g_assert_false (ebb_tensor_add_scaled (plain, result, 2, &error));
  g_assert_error (error, EBB_ERROR, EBB_ERROR_GRAPH);
  g_assert_cmpstr (
      error->message, ==,
      "add_scaled: the operand requires a gradient, which a change in place does not pass on; detach it or "
      "turn gradients off");
  g_clear_error (&error);

  ebb_push_grad_enabled (FALSE);
  g_assert_true (ebb_tensor_fill (leaf, 1, &error));
  g_assert_true (ebb_tensor_add_scaled (plain, result, 0.5, &error));
  ebb_pop_grad_enabled ();
  g_assert_no_error (error);
  assert_sum (leaf, 4);
}

static void
backward_notices_a_change (void)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) leaf = count_up (2, 2);
  g_autoptr (EbbTensor) factor = count_up (2, 2);
  g_autoptr (EbbTensor) product = NULL;
  g_autoptr (EbbTensor) sum = NULL;

  g_assert_true (ebb_tensor_set_requires_grad (leaf, TRUE, &error));
  product = ebb_mul (leaf, factor, &error);
  sum = ebb_sum (product, NULL, 0, FALSE, &error);
  g_assert_true (ebb_tensor_fill (factor, 3, &error));
  g_assert_no_error (error);
  g_assert_false (ebb_tensor_backward (sum, &error));
  g_assert_error (error, EBB_ERROR, EBB_ERROR_VERSION);
}

/* The product needs the factor for the gradient of the leaf, but the leaf for nothing. */
static void
what_backward_does_not_need_may_change (void)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) leaf = count_up (2, 2);
  g_autoptr (EbbTensor) factor = count_up (2, 2);
  g_autoptr (EbbTensor) product = NULL;
  g_autoptr (EbbTensor) sum = NULL;
  g_autoptr (EbbTensor) grad = NULL;

  g_assert_true (ebb_tensor_set_requires_grad (leaf, TRUE, &error));
  product = ebb_mul (leaf, factor, &error);
  sum = ebb_sum (product, NULL, 0, FALSE, &error);
  ebb_push_grad_enabled (FALSE);
  g_assert_true (ebb_tensor_fill (leaf, 3, &error));
  g_assert_true (ebb_tensor_fill (product, 3, &error));
  ebb_pop_grad_enabled ();
  g_assert_true (ebb_tensor_backward (sum, &error));
  g_assert_no_error (error);
  grad = ebb_tensor_get_grad (leaf);
  g_assert_true (ebb_tensor_equal (grad, factor));
}

int
main (int argc, char **argv)
{
  test_init (&argc, &argv);
  g_test_add_func ("/in-place/each-change-counts", each_change_counts);
  g_test_add_func ("/in-place/a-source-may-overlap", a_source_may_overlap);
  g_test_add_func ("/in-place/arithmetic-has-the-bits-of-the-op", arithmetic_has_the_bits_of_the_op);
  g_test_add_func ("/in-place/arithmetic-reads-what-it-overwrites-first", arithmetic_reads_what_it_overwrites_first);
  g_test_add_func ("/in-place/arithmetic-names-what-is-wrong", arithmetic_names_what_is_wrong);
  g_test_add_func ("/in-place/expanded-tensors-are-refused", expanded_tensors_are_refused);
  g_test_add_func ("/in-place/leaves-with-gradients-are-protected", leaves_with_gradients_are_protected);
  g_test_add_func ("/in-place/backward-notices-a-change", backward_notices_a_change);
  g_test_add_func ("/in-place/what-backward-does-not-need-may-change", what_backward_does_not_need_may_change);
  g_test_add_func ("/in-place/uniform-stays-in-its-range", uniform_stays_in_its_range);
  g_test_add_func ("/in-place/uniform-has-a-range-of-f32", uniform_has_a_range_of_f32);
  return g_test_run ();
}
