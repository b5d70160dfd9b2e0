/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/device.h"
#include "support/tensors.h"

#include <math.h>

/* Views, strides, broadcasting and dtypes: what a tensor is, by what is read back from it. */

#define SHAPE(...) (const gint64[]){ __VA_ARGS__ }, G_N_ELEMENTS (((const gint64[]){ __VA_ARGS__ }))
#define DIMS(...) (const int[]){ __VA_ARGS__ }, G_N_ELEMENTS (((const int[]){ __VA_ARGS__ }))
#define assert_shape(tensor, ...) assert_shape_ (tensor, SHAPE (__VA_ARGS__))
#define assert_values(tensor, ...) \
  assert_values_ (tensor, (const double[]){ __VA_ARGS__ }, G_N_ELEMENTS (((const double[]){ __VA_ARGS__ })))

static void
assert_shape_ (EbbTensor *tensor, const gint64 *shape, guint n)
{
  guint n_dims;
  const gint64 *actual;

  g_assert_nonnull (tensor);
  actual = ebb_tensor_get_shape (tensor, &n_dims);
  g_assert_cmpuint (n_dims, ==, n);
  for (guint i = 0; i < n; i++)
    g_assert_cmpint (actual[i], ==, shape[i]);
}

static void
assert_values_ (EbbTensor *tensor, const double *values, guint n)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) flat = NULL;
  g_autoptr (EbbTensor) real = NULL;
  const float *data;

  g_assert_nonnull (tensor);
  flat = ebb_reshape (tensor, SHAPE (-1), &error);
  g_assert_no_error (error);
  g_assert_cmpint (ebb_tensor_get_n_elements (flat), ==, n);
  real = ebb_cast (flat, EBB_DTYPE_F32, &error);
  g_assert_no_error (error);
  flat = (ebb_tensor_unref (flat), ebb_contiguous (real, &error));
  g_assert_no_error (error);
  data = test_read (flat);
  g_assert_no_error (error);
  for (guint i = 0; i < n; i++)
    g_assert_cmpfloat_with_epsilon (data[i], values[i], 1e-6);
}

/* 0, 1, 2, ... in @shape */
static EbbTensor *
count_up (const gint64 *shape, guint n_dims)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) line = NULL;
  EbbTensor *tensor;
  gint64 n = 1;

  for (guint i = 0; i < n_dims; i++)
    n *= shape[i];
  line = ebb_arange (0, (double) n, 1, EBB_DTYPE_F32, NULL, &error);
  g_assert_no_error (error);
  tensor = ebb_reshape (line, shape, n_dims, &error);
  g_assert_no_error (error);
  return tensor;
}

/* -- views --------------------------------------------------------------------------------------------------------- */

static void
views_share_storage (void)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) x = count_up (SHAPE (2, 3, 4));
  g_autoptr (EbbTensor) transposed = ebb_transpose (x, 0, -1, &error);
  g_autoptr (EbbTensor) permuted = ebb_permute (x, DIMS (1, -1, 0), &error);
  g_autoptr (EbbTensor) viewed = ebb_view (x, SHAPE (6, -1), &error);
  g_autoptr (EbbTensor) narrowed = ebb_narrow (x, 1, 1, 2, &error);
  g_autoptr (EbbTensor) selected = ebb_select (x, -1, -1, &error);
  g_autoptr (EbbTensor) sliced = ebb_slice (x, 2, 1, 100, 2, &error);
  g_autoptr (EbbTensor) row = ebb_unsqueeze (selected, 0, &error);
  g_autoptr (EbbTensor) expanded = ebb_expand (row, SHAPE (3, -1, -1), &error);

  g_assert_no_error (error);
  assert_shape (transposed, 4, 3, 2);
  assert_shape (permuted, 3, 4, 2);
  assert_shape (viewed, 6, 4);
  assert_shape (narrowed, 2, 2, 4);
  assert_shape (selected, 2, 3);
  assert_shape (sliced, 2, 3, 2);
  assert_shape (expanded, 3, 2, 3);
  g_assert_true (ebb_tensor_shares_storage (x, transposed) && ebb_tensor_shares_storage (x, permuted));
  g_assert_true (ebb_tensor_shares_storage (x, viewed) && ebb_tensor_shares_storage (x, narrowed));
  g_assert_true (ebb_tensor_shares_storage (x, sliced) && ebb_tensor_shares_storage (x, expanded));
  assert_values (selected, 3, 7, 11, 15, 19, 23);
  assert_values (narrowed, 4, 5, 6, 7, 8, 9, 10, 11, 16, 17, 18, 19, 20, 21, 22, 23);
  assert_values (sliced, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23);
  assert_values (permuted, 0, 12, 1, 13, 2, 14, 3, 15, 4, 16, 5, 17, 6, 18, 7, 19, 8, 20, 9, 21, 10, 22, 11, 23);
  assert_values (expanded, 3, 7, 11, 15, 19, 23, 3, 7, 11, 15, 19, 23, 3, 7, 11, 15, 19, 23);
}

static void
strides_of_views (void)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) x = count_up (SHAPE (2, 3, 4));
  g_autoptr (EbbTensor) transposed = ebb_transpose (x, 0, 2, &error);
  g_autoptr (EbbTensor) sliced = ebb_slice (transposed, 0, -3, 4, 2, &error);
  g_autoptr (EbbTensor) expanded = NULL;
  g_autoptr (EbbTensor) line = ebb_narrow (x, 0, 0, 1, &error);
  const gint64 *strides;
  guint n;

  g_assert_no_error (error);
  strides = ebb_tensor_get_strides (sliced, &n);
  g_assert_cmpuint (n, ==, 3);
  g_assert_cmpint (strides[0], ==, 2);
  g_assert_cmpint (strides[1], ==, 4);
  g_assert_cmpint (strides[2], ==, 12);
  g_assert_false (ebb_tensor_is_contiguous (sliced));
  assert_values (sliced, 1, 13, 5, 17, 9, 21, 3, 15, 7, 19, 11, 23);
  expanded = ebb_expand (line, SHAPE (5, 3, 4), &error);
  g_assert_no_error (error);
  g_assert_cmpint (ebb_tensor_get_strides (expanded, NULL)[0], ==, 0);
}

static void
reshape_copies_only_if_it_must (void)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) x = count_up (SHAPE (2, 3, 4));
  g_autoptr (EbbTensor) transposed = ebb_transpose (x, 1, 2, &error);
  g_autoptr (EbbTensor) split = ebb_reshape (transposed, SHAPE (2, 2, 2, 3), &error);
  g_autoptr (EbbTensor) joined = ebb_reshape (transposed, SHAPE (8, 3), &error);
  g_autoptr (EbbTensor) mixed = ebb_reshape (transposed, SHAPE (2, 12), &error);
  g_autoptr (EbbTensor) flat = ebb_flatten (x, 0, 1, &error);
  g_autoptr (EbbTensor) refused = NULL;

  g_assert_no_error (error);
  g_assert_true (ebb_tensor_shares_storage (split, x));
  g_assert_true (ebb_tensor_shares_storage (flat, x));
  g_assert_false (ebb_tensor_shares_storage (joined, x));
  g_assert_false (ebb_tensor_shares_storage (mixed, x));
  assert_values (mixed, 0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11, 12, 16, 20, 13, 17, 21, 14, 18, 22, 15, 19, 23);
  refused = ebb_view (transposed, SHAPE (2, 12), &error);
  g_assert_null (refused);
  g_assert_error (error, EBB_ERROR, EBB_ERROR_SHAPE);
  g_assert_cmpstr (error->message, ==,
                   "view: a tensor of shape [2, 4, 3], as it lies in memory, can't be seen as [2, 12] without a copy; "
                   "use reshape");
}

static void
squeeze_and_flatten (void)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) x = count_up (SHAPE (2, 1, 3));
  g_autoptr (EbbTensor) squeezed = ebb_squeeze (x, 1, &error);
  g_autoptr (EbbTensor) same = ebb_squeeze (x, 0, &error);
  g_autoptr (EbbTensor) last = ebb_unsqueeze (squeezed, -1, &error);
  g_autoptr (EbbTensor) scalar = ebb_scalar (4, EBB_DTYPE_F32, NULL, &error);
  g_autoptr (EbbTensor) line = ebb_flatten (scalar, 0, -1, &error);

  g_assert_no_error (error);
  assert_shape (squeezed, 2, 3);
  assert_shape (same, 2, 1, 3);
  assert_shape (last, 2, 3, 1);
  assert_shape (line, 1);
  g_assert_cmpuint (ebb_tensor_get_n_dims (scalar), ==, 0);
}

static void
parts_and_their_union (void)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) x = count_up (SHAPE (2, 7));
  g_autoptr (EbbTensor) whole = NULL;
  g_autoptr (EbbTensor) stacked = NULL;
  g_autofree EbbTensor **parts = NULL;
  g_autofree EbbTensor **chunks = NULL;
  EbbTensor *copies[23];
  guint n;

  parts = ebb_split (x, 3, -1, &n, &error);
  g_assert_no_error (error);
  g_assert_cmpuint (n, ==, 3);
  assert_shape (parts[0], 2, 3);
  assert_shape (parts[2], 2, 1);
  assert_values (parts[1], 3, 4, 5, 10, 11, 12);
  whole = ebb_cat (parts, n, 1, &error);
  g_assert_no_error (error);
  g_assert_true (ebb_tensor_equal (whole, x));
  for (guint i = 0; i < n; i++)
    ebb_tensor_unref (parts[i]);

  chunks = ebb_chunk (x, 7, 1, &n, &error);
  g_assert_no_error (error);
  g_assert_cmpuint (n, ==, 7);
  for (guint i = 0; i < n; i++)
    {
      assert_shape (chunks[i], 2, 1);
      ebb_tensor_unref (chunks[i]);
    }

  /* More than one op takes at once. */
  for (guint i = 0; i < G_N_ELEMENTS (copies); i++)
    copies[i] = x;
  stacked = ebb_stack (copies, G_N_ELEMENTS (copies), 1, &error);
  g_assert_no_error (error);
  assert_shape (stacked, 2, 23, 7);
  for (gint64 i = 0; i < 23; i++)
    {
      g_autoptr (EbbTensor) row = ebb_select (stacked, 1, i, &error);

      g_assert_no_error (error);
      g_assert_true (ebb_tensor_equal (row, x));
    }
}

/* -- arithmetic ---------------------------------------------------------------------------------------------------- */

static void
shapes_broadcast (void)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) row = count_up (SHAPE (3));
  g_autoptr (EbbTensor) column = count_up (SHAPE (2, 1));
  g_autoptr (EbbTensor) sum = ebb_add (row, column, &error);
  g_autoptr (EbbTensor) scalar = ebb_scalar (10, EBB_DTYPE_F32, NULL, &error);
  g_autoptr (EbbTensor) product = ebb_mul (scalar, sum, &error);
  g_autoptr (EbbTensor) less = ebb_lt (row, column, &error);
  g_autoptr (EbbTensor) chosen = ebb_where (less, scalar, row, &error);

  g_assert_no_error (error);
  assert_shape (sum, 2, 3);
  assert_values (sum, 0, 1, 2, 1, 2, 3);
  assert_values (product, 0, 10, 20, 10, 20, 30);
  g_assert_cmpint (ebb_tensor_get_dtype (less), ==, EBB_DTYPE_BOOL);
  assert_values (less, 0, 0, 0, 1, 0, 0);
  assert_values (chosen, 0, 1, 2, 10, 1, 2);
}

static void
dtypes_are_promoted (void)
{
  static const struct
  {
    EbbDType a, b;
    gboolean b_is_scalar;
    EbbDType result;
  } cases[] = {
    { EBB_DTYPE_F32, EBB_DTYPE_BF16, FALSE, EBB_DTYPE_F32 },
    { EBB_DTYPE_BF16, EBB_DTYPE_I64, FALSE, EBB_DTYPE_BF16 },
    { EBB_DTYPE_I32, EBB_DTYPE_I64, FALSE, EBB_DTYPE_I64 },
    { EBB_DTYPE_U8, EBB_DTYPE_BOOL, FALSE, EBB_DTYPE_U8 },
    { EBB_DTYPE_BF16, EBB_DTYPE_F32, TRUE, EBB_DTYPE_BF16 },
    { EBB_DTYPE_I32, EBB_DTYPE_I64, TRUE, EBB_DTYPE_I32 },
    { EBB_DTYPE_I32, EBB_DTYPE_F32, TRUE, EBB_DTYPE_F32 },
  };

  for (guint i = 0; i < G_N_ELEMENTS (cases); i++)
    {
      g_autoptr (GError) error = NULL;
      g_autoptr (EbbTensor) a = ebb_ones (SHAPE (2), cases[i].a, NULL, &error);
      g_autoptr (EbbTensor) b = ebb_full ((const gint64[]){ 2 }, !cases[i].b_is_scalar, 1, cases[i].b, NULL, &error);
      g_autoptr (EbbTensor) sum = ebb_add (a, b, &error);

      g_assert_no_error (error);
      g_assert_cmpint (ebb_tensor_get_dtype (sum), ==, cases[i].result);
      assert_values (sum, 2, 2);
    }
}

static void
integers_and_numbers (void)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) x = ebb_arange (-1, 3, 1, EBB_DTYPE_I64, NULL, &error);
  g_autoptr (EbbTensor) twice = ebb_mul_scalar (x, 2, &error);
  g_autoptr (EbbTensor) half = ebb_mul_scalar (x, 0.5, &error);
  g_autoptr (EbbTensor) quotient = ebb_div (x, twice, &error);
  g_autoptr (EbbTensor) above = ebb_gt_scalar (x, 0.5, &error);
  g_autoptr (EbbTensor) inverted = ebb_rsub_scalar (above, 1, &error);
  g_autoptr (EbbTensor) sum = ebb_sum (above, NULL, 0, FALSE, &error);
  g_autoptr (EbbTensor) bounded = ebb_clamp (x, 0, INFINITY, &error);
  g_autoptr (EbbTensor) between = ebb_clamp (x, -0.5, 1.5, &error);
  g_autoptr (EbbTensor) joined = ebb_bitwise_or (x, twice, &error);
  g_autoptr (EbbTensor) turned = ebb_bitwise_not (x, &error);
  gint64 count = 0;

  g_assert_no_error (error);
  g_assert_cmpint (ebb_tensor_get_dtype (twice), ==, EBB_DTYPE_I64);
  assert_values (twice, -2, 0, 2, 4);
  g_assert_cmpint (ebb_tensor_get_dtype (half), ==, EBB_DTYPE_F32);
  assert_values (half, -0.5, 0, 0.5, 1);
  g_assert_cmpint (ebb_tensor_get_dtype (bounded), ==, EBB_DTYPE_I64);
  assert_values (bounded, 0, 0, 1, 2);
  g_assert_cmpint (ebb_tensor_get_dtype (between), ==, EBB_DTYPE_F32);
  assert_values (between, -0.5, 0, 1, 1.5);
  g_assert_cmpint (ebb_tensor_get_dtype (joined), ==, EBB_DTYPE_I64);
  assert_values (joined, -1, 0, 3, 6);
  assert_values (turned, 0, -1, -2, -3);
  g_assert_cmpint (ebb_tensor_get_dtype (quotient), ==, EBB_DTYPE_F32);
  assert_values (above, 0, 0, 1, 1);
  assert_values (inverted, 1, 1, 0, 0);
  g_assert_cmpint (ebb_tensor_get_dtype (sum), ==, EBB_DTYPE_I64);
  g_assert_true (ebb_tensor_get_item_int (sum, &count, &error));
  g_assert_cmpint (count, ==, 2);
}

/* Every dtype to every other and back: small integers survive, as do their truth values. */
static void
casts_keep_values (void)
{
  for (int from = 0; from < EBB_N_DTYPES; from++)
    for (int to = 0; to < EBB_N_DTYPES; to++)
      {
        g_autoptr (GError) error = NULL;
        g_autoptr (EbbTensor) line = ebb_arange (0, 5, 1, EBB_DTYPE_F32, NULL, &error);
        g_autoptr (EbbTensor) a = ebb_cast (line, (EbbDType) from, &error);
        g_autoptr (EbbTensor) b = ebb_cast (a, (EbbDType) to, &error);

        g_assert_no_error (error);
        g_assert_cmpint (ebb_tensor_get_dtype (b), ==, to);
        if (from == EBB_DTYPE_BOOL || to == EBB_DTYPE_BOOL)
          assert_values (b, 0, 1, 1, 1, 1);
        else
          assert_values (b, 0, 1, 2, 3, 4);
      }
}

static void
reductions_along_dimensions (void)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) x = count_up (SHAPE (2, 3, 2));
  g_autoptr (EbbTensor) sum = ebb_sum (x, DIMS (0, -1), FALSE, &error);
  g_autoptr (EbbTensor) mean = ebb_mean (x, DIMS (1), TRUE, &error);
  g_autoptr (EbbTensor) greatest = ebb_max (x, NULL, 0, FALSE, &error);
  g_autoptr (EbbTensor) least = ebb_min (x, DIMS (2), FALSE, &error);
  g_autoptr (EbbTensor) var = ebb_var (x, DIMS (1), 0, FALSE, &error);
  g_autoptr (EbbTensor) norm = ebb_norm (x, &error);
  g_autoptr (EbbTensor) where = ebb_argmax (x, 1, TRUE, &error);
  g_autoptr (EbbTensor) values = NULL;
  g_autoptr (EbbTensor) indices = NULL;
  g_autoptr (EbbTensor) flat = ebb_flatten (x, 0, -1, &error);
  g_autoptr (EbbTensor) one = ebb_narrow (flat, 0, 3, 1, &error);
  g_autoptr (EbbTensor) of_one = ebb_var (one, NULL, 0, 1, FALSE, &error);
  g_autoptr (EbbTensor) none = count_up (SHAPE (3, 0, 2));
  g_autoptr (EbbTensor) turned = ebb_transpose (none, 0, 2, &error);
  g_autoptr (EbbTensor) of_none = ebb_var (turned, NULL, 0, 0, FALSE, &error);

  g_assert_no_error (error);
  g_assert_true (isnan (test_at (of_one, 0)));
  g_assert_true (isnan (test_at (of_none, 0)));
  assert_shape (sum, 3);
  assert_values (sum, 14, 22, 30);
  assert_shape (mean, 2, 1, 2);
  assert_values (mean, 2, 3, 8, 9);
  assert_values (greatest, 11);
  assert_values (least, 0, 2, 4, 6, 8, 10);
  assert_values (var, 8.0 / 3, 8.0 / 3, 8.0 / 3, 8.0 / 3);
  assert_values (norm, 22.4944437584);
  assert_shape (where, 2, 1, 2);
  assert_values (where, 2, 2, 2, 2);
  g_assert_true (ebb_topk (flat, 3, FALSE, &values, &indices, &error));
  assert_values (values, 0, 1, 2);
  assert_values (indices, 0, 1, 2);
}

static void
selection_by_index (void)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) x = count_up (SHAPE (3, 2));
  g_autoptr (EbbTensor) rows = ebb_tensor_new_from_ints ((const gint64[]){ 2, 0, 2 }, 3, SHAPE (3), &error);
  g_autoptr (EbbTensor) tokens = ebb_reshape (rows, SHAPE (3, 1), &error);
  g_autoptr (EbbTensor) selected = ebb_index_select (x, 0, rows, &error);
  g_autoptr (EbbTensor) embedded = ebb_embedding (x, tokens, &error);
  g_autoptr (EbbTensor) gathered = ebb_gather (x, 0, tokens, &error);
  g_autoptr (EbbTensor) zeros = ebb_zeros (SHAPE (3, 2), EBB_DTYPE_F32, NULL, &error);
  g_autoptr (EbbTensor) scattered = ebb_scatter_add (zeros, 0, tokens, x, &error);

  g_assert_no_error (error);
  assert_values (selected, 4, 5, 0, 1, 4, 5);
  assert_shape (embedded, 3, 1, 2);
  assert_values (embedded, 4, 5, 0, 1, 4, 5);
  assert_values (gathered, 4, 0, 4);
  assert_values (scattered, 2, 0, 0, 0, 4, 0);
}

/* -- randomness ---------------------------------------------------------------------------------------------------- */

static void
draws_are_named_by_seed_and_offset (void)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbGenerator) generator = ebb_generator_new (7);
  g_autoptr (EbbTensor) first = ebb_randn (SHAPE (5, 5), EBB_DTYPE_F32, NULL, generator, &error);
  guint64 offset = ebb_generator_get_offset (generator);
  g_autoptr (EbbTensor) second = ebb_randn (SHAPE (5, 5), EBB_DTYPE_F32, NULL, generator, &error);
  g_autoptr (EbbTensor) again = NULL;
  g_autoptr (EbbTensor) filled = ebb_zeros (SHAPE (5, 5), EBB_DTYPE_F32, NULL, &error);
  g_autoptr (EbbTensor) transposed = ebb_transpose (filled, 0, 1, &error);

  g_assert_no_error (error);
  g_assert_false (ebb_tensor_equal (first, second));
  ebb_generator_set_state (generator, 7, offset);
  again = ebb_randn (SHAPE (5, 5), EBB_DTYPE_F32, NULL, generator, &error);
  g_assert_true (ebb_tensor_equal (again, second));
  /* By the position of an element in the tensor, not in memory. */
  ebb_generator_set_state (generator, 7, offset);
  g_assert_true (ebb_tensor_fill_normal (transposed, 0, 1, generator, &error));
  g_assert_true (ebb_tensor_equal (transposed, second));
}

/* Blocks of four numbers; what a draw leaves of its last one is not drawn again. */
static void
each_draw_takes_whole_blocks (void)
{
  static const gint64 sizes[] = { 1, 2, 3, 4, 5, 8, 9 };

  for (guint i = 0; i < G_N_ELEMENTS (sizes); i++)
    for (int what = 0; what < 5; what++)
      {
        g_autoptr (GError) error = NULL;
        g_autoptr (EbbGenerator) generator = ebb_generator_new (7);
        g_autoptr (EbbTensor) ones = ebb_ones (&sizes[i], 1, EBB_DTYPE_F32, NULL, &error);
        const guint64 n_blocks = (guint64) (what == 2 ? 2 * sizes[i] + 3 : sizes[i] + 3) / 4;
        EbbTensor *draws[2];

        for (guint k = 0; k < 2; k++)
          {
            switch (what)
              {
              case 0: draws[k] = ebb_rand (&sizes[i], 1, EBB_DTYPE_F32, NULL, generator, &error); break;
              case 1: draws[k] = ebb_randn (&sizes[i], 1, EBB_DTYPE_F32, NULL, generator, &error); break;
              case 2:
                draws[k] = ebb_randint (0, G_MAXINT32, &sizes[i], 1, EBB_DTYPE_I64, NULL, generator, &error);
                break;
              case 3: draws[k] = ebb_dropout (ones, 0.5, TRUE, generator, &error); break;
              default: draws[k] = ebb_multinomial (ones, sizes[i], generator, &error);
              }
            g_assert_no_error (error);
            g_assert_cmpuint (ebb_generator_get_offset (generator), ==, (k + 1) * n_blocks);
          }
        if (what < 3)
          g_assert_false (ebb_tensor_equal (draws[0], draws[1]));
        ebb_tensor_unref (draws[0]);
        ebb_tensor_unref (draws[1]);
      }
}

static void
dropout_keeps_the_mean (void)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbGenerator) generator = ebb_generator_new (1);
  g_autoptr (EbbTensor) x = ebb_ones (SHAPE (100, 100), EBB_DTYPE_F32, NULL, &error);
  g_autoptr (EbbTensor) y = ebb_dropout (x, 0.25, TRUE, generator, &error);
  g_autoptr (EbbTensor) mean = ebb_mean (y, NULL, 0, FALSE, &error);
  g_autoptr (EbbTensor) is_zero = ebb_eq_scalar (y, 0, &error);
  g_autoptr (EbbTensor) n_zeros = ebb_sum (is_zero, NULL, 0, FALSE, &error);
  g_autoptr (EbbTensor) same = ebb_dropout (x, 0.25, FALSE, generator, &error);
  guint64 offset = ebb_generator_get_offset (generator);
  g_autoptr (EbbTensor) all = ebb_dropout (x, 1, TRUE, generator, &error);
  g_autoptr (EbbTensor) sum = ebb_sum (all, NULL, 0, FALSE, &error);
  double value = 0;

  g_assert_no_error (error);
  g_assert_true (ebb_tensor_get_item (n_zeros, &value, &error));
  g_assert_cmpfloat_with_epsilon (value, 2500, 150);
  g_assert_true (ebb_tensor_get_item (mean, &value, &error));
  g_assert_cmpfloat_with_epsilon (value, (10000 - 2500) / 0.75 / 10000, 0.02);
  g_assert_true (ebb_tensor_shares_storage (same, x) && same != x);
  g_assert_cmpuint (offset, ==, 2500);
  assert_values (sum, 0);
}

static void
samples_follow_their_weights (void)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbGenerator) generator = ebb_generator_new (3);
  g_autoptr (EbbTensor) weights =
      ebb_tensor_new_from_floats ((const float[]){ 0, 3, 1, 5, 0, 0 }, 6, SHAPE (2, 3), &error);
  g_autoptr (EbbTensor) samples = ebb_multinomial (weights, 4000, generator, &error);
  g_autoptr (EbbTensor) first = ebb_select (samples, 0, 0, &error);
  g_autoptr (EbbTensor) second = ebb_select (samples, 0, 1, &error);
  g_autoptr (EbbTensor) of_one = ebb_eq_scalar (first, 1, &error);
  g_autoptr (EbbTensor) n_ones = ebb_sum (of_one, NULL, 0, FALSE, &error);
  g_autoptr (EbbTensor) least = ebb_min (first, NULL, 0, FALSE, &error);
  g_autoptr (EbbTensor) greatest = ebb_max (second, NULL, 0, FALSE, &error);
  gint64 n = 0;

  g_assert_no_error (error);
  assert_shape (samples, 2, 4000);
  g_assert_true (ebb_tensor_get_item_int (n_ones, &n, &error));
  g_assert_cmpint (n, >, 2900);
  g_assert_cmpint (n, <, 3100);
  assert_values (least, 1);
  assert_values (greatest, 0);
}

int
main (int argc, char **argv)
{
  test_init (&argc, &argv);
  g_test_add_func ("/tensor/views-share-storage", views_share_storage);
  g_test_add_func ("/tensor/strides-of-views", strides_of_views);
  g_test_add_func ("/tensor/reshape-copies-only-if-it-must", reshape_copies_only_if_it_must);
  g_test_add_func ("/tensor/squeeze-and-flatten", squeeze_and_flatten);
  g_test_add_func ("/tensor/parts-and-their-union", parts_and_their_union);
  g_test_add_func ("/tensor/shapes-broadcast", shapes_broadcast);
  g_test_add_func ("/tensor/dtypes-are-promoted", dtypes_are_promoted);
  g_test_add_func ("/tensor/integers-and-numbers", integers_and_numbers);
  g_test_add_func ("/tensor/casts-keep-values", casts_keep_values);
  g_test_add_func ("/tensor/reductions-along-dimensions", reductions_along_dimensions);
  g_test_add_func ("/tensor/selection-by-index", selection_by_index);
  g_test_add_func ("/tensor/draws-are-named-by-seed-and-offset", draws_are_named_by_seed_and_offset);
  g_test_add_func ("/tensor/each-draw-takes-whole-blocks", each_draw_takes_whole_blocks);
  g_test_add_func ("/tensor/dropout-keeps-the-mean", dropout_keeps_the_mean);
  g_test_add_func ("/tensor/samples-follow-their-weights", samples_follow_their_weights);
  return g_test_run ();
}
