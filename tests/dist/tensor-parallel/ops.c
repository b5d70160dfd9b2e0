/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/device.h"
#include "support/ranks.h"
#include "support/tensors.h"

#include <string.h>

/* Ops of several ranks in a forward and its backward, against the same op on one rank. */

typedef enum
{
  COPY,
  REDUCE,
  SCATTER,
  GATHER,
  GATHER_SUMMING,
  REDUCE_SCATTER,
  N_OPS
} Op;

static const char *const names[] = { "copy", "reduce", "scatter", "gather", "gather-summing", "reduce-scatter" };

/* Sizes that the ranks divide evenly, unevenly, and some of which not all ranks have a part; many runs of elements. */
static const gint64 shapes[][3] = { { 4, 8, 4 }, { 5, 7, 3 }, { 3, 1, 2 }, { 20, 5, 6 } };

static EbbTensor *
apply (Op op,
       EbbTensor *x,
       int dim,
       EbbProcessGroup *group,
       GError **error)
{
  switch (op)
    {
    case COPY: return ebb_parallel_copy (x, group, error);
    case REDUCE: return ebb_parallel_reduce (x, group, error);
    case SCATTER: return ebb_parallel_scatter (x, dim, group, error);
    case GATHER: return ebb_parallel_gather (x, dim, FALSE, group, error);
    case GATHER_SUMMING: return ebb_parallel_gather (x, dim, TRUE, group, error);
    case REDUCE_SCATTER:
    default: return ebb_parallel_reduce_scatter (x, dim, group, error);
    }
}

/* -- what is expected ---------------------------------------------------------------------------------------------- */

static EbbTensor *
random_values (guint64 seed,
               const gint64 *shape,
               guint n_dims,
               EbbDType dtype)
{
  g_autoptr (EbbGenerator) generator = ebb_generator_new (seed);
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) wide = ebb_randn (shape, n_dims, EBB_DTYPE_F32, NULL, generator, &error);
  EbbTensor *values = ebb_cast (wide, dtype, &error);

  g_assert_no_error (error);
  return values;
}

/* In the order of the ranks, in f32, and rounded once. */
static EbbTensor *
sum_of (guint64 seed,
        guint n_ranks,
        const gint64 *shape,
        guint n_dims,
        EbbDType dtype)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) sum = NULL;
  EbbTensor *result;

  for (guint r = 0; r < n_ranks; r++)
    {
      g_autoptr (EbbTensor) summand = random_values (seed + r, shape, n_dims, dtype);
      g_autoptr (EbbTensor) wide = ebb_cast (summand, EBB_DTYPE_F32, &error);
      EbbTensor *next = sum != NULL ? ebb_add (sum, wide, &error) : ebb_tensor_ref (wide);

      g_clear_pointer (&sum, ebb_tensor_unref);
      sum = next;
    }
  result = ebb_cast (sum, dtype, &error);
  g_assert_no_error (error);
  return result;
}

static void
get_part (gint64 n,
          guint n_ranks,
          guint rank,
          gint64 *first,
          gint64 *count)
{
  *first = *count = 0;
  for (gint64 i = 0; i < n; i++)
    {
      /* Dealt out one by one. */
      *first += i % n_ranks < rank;
      *count += i % n_ranks == rank;
    }
}

static EbbTensor *
part_of (EbbTensor *whole,
         int dim,
         guint n_ranks,
         guint rank)
{
  g_autoptr (GError) error = NULL;
  gint64 first, count;
  EbbTensor *part;

  get_part (ebb_tensor_get_shape (whole, NULL)[dim], n_ranks, rank, &first, &count);
  part = ebb_narrow (whole, dim, first, count, &error);
  g_assert_no_error (error);
  return part;
}

/* Of the parts of tensors that differ. */
static EbbTensor *
joined_from (guint64 seed,
             guint n_ranks,
             const gint64 *shape,
             guint n_dims,
             int dim,
             EbbDType dtype)
{
  g_autoptr (GError) error = NULL;
  EbbTensor *parts[4], *joined;

  for (guint r = 0; r < n_ranks; r++)
    {
      gint64 own[3], first;

      memcpy (own, shape, n_dims * sizeof *own);
      get_part (shape[dim], n_ranks, r, &first, &own[dim]);
      parts[r] = random_values (seed + r, own, n_dims, dtype);
    }
  joined = ebb_cat (parts, n_ranks, dim, &error);
  g_assert_no_error (error);
  for (guint r = 0; r < n_ranks; r++)
    ebb_tensor_unref (parts[r]);
  return joined;
}

/* The result of @op for random values that differ between the ranks or, where they must not, are the same. */
typedef struct
{
  EbbTensor *x, *y;   /* operand and result of this rank */
  EbbTensor *dy, *dx; /* their gradients */
} Expected;

#define X 100
#define DY 200

/* The operand (@is_grad: the gradient of the result) of this rank for the op, and what must come of it. What goes in is
 * X or DY and the rank where ranks differ. */
static void
expect_along (EbbTensor **in,
              EbbTensor **out,
              guint64 seed,
              gboolean is_summed,
              gboolean gets_part,
              gboolean gives_part,
              const gint64 *shape,
              guint n_dims,
              int dim,
              EbbDType dtype,
              guint n_ranks,
              guint rank)
{
  g_autoptr (EbbTensor) whole = NULL;
  gint64 own[3], first;

  memcpy (own, shape, n_dims * sizeof *own);
  if (gets_part)
    get_part (shape[dim], n_ranks, rank, &first, &own[dim]);
  *in = random_values (seed + (is_summed || gets_part ? rank : 0), own, n_dims, dtype);
  if (gets_part)
    whole = joined_from (seed, n_ranks, shape, n_dims, dim, dtype);
  else if (is_summed)
    whole = sum_of (seed, n_ranks, shape, n_dims, dtype);
  else
    whole = ebb_tensor_ref (*in);
  *out = gives_part ? part_of (whole, dim, n_ranks, rank) : ebb_tensor_ref (whole);
}

static Expected
expect (Op op,
        const gint64 *shape,
        guint n_dims,
        int dim,
        EbbDType dtype,
        guint n_ranks,
        guint rank)
{
  static const struct
  {
    gboolean sums_x, x_is_part, y_is_part, sums_dy;
  } ways[] = {
    [COPY] = { FALSE, FALSE, FALSE, TRUE },
    [REDUCE] = { TRUE, FALSE, FALSE, FALSE },
    [SCATTER] = { FALSE, FALSE, TRUE, FALSE },
    [GATHER] = { FALSE, TRUE, FALSE, FALSE },
    [GATHER_SUMMING] = { FALSE, TRUE, FALSE, TRUE },
    [REDUCE_SCATTER] = { TRUE, FALSE, TRUE, FALSE },
  };
  Expected expected;

  expect_along (&expected.x, &expected.y, X, ways[op].sums_x, ways[op].x_is_part, ways[op].y_is_part, shape, n_dims,
                dim, dtype, n_ranks, rank);
  expect_along (&expected.dy, &expected.dx, DY, ways[op].sums_dy, ways[op].y_is_part, ways[op].x_is_part, shape, n_dims,
                dim, dtype, n_ranks, rank);
  return expected;
}

static void
expected_clear (Expected *expected)
{
  ebb_tensor_unref (expected->x);
  ebb_tensor_unref (expected->y);
  ebb_tensor_unref (expected->dy);
  ebb_tensor_unref (expected->dx);
}

G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC (Expected, expected_clear)

static void
assert_equal (EbbTensor *a,
              EbbTensor *b)
{
  g_autofree char *first = ebb_tensor_shape_to_string (a);
  g_autofree char *second = ebb_tensor_shape_to_string (b);

  g_assert_cmpstr (first, ==, second);
  g_assert_true (ebb_tensor_get_dtype (a) == ebb_tensor_get_dtype (b));
  g_assert_true (ebb_tensor_get_n_elements (a) == 0 || ebb_tensor_equal (a, b));
}

static void
go_back (EbbTensor *y,
         EbbTensor *dy,
         gboolean retain_graph)
{
  g_autoptr (GError) error = NULL;

  ebb_backward (&y, 1, &dy, 1, NULL, 0, retain_graph, &error);
  g_assert_no_error (error);
}

static EbbTensor *
new_leaf (EbbTensor *values)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) bare = ebb_tensor_detach (values);
  EbbTensor *leaf = ebb_copy (bare, &error);

  ebb_tensor_set_requires_grad (leaf, TRUE, &error);
  g_assert_no_error (error);
  return leaf;
}

/* -- values and gradients ------------------------------------------------------------------------------------------ */

typedef struct
{
  Op op;
  EbbDType dtype;
} Case;

static void
check_one (const Case *test,
           EbbProcessGroup *group,
           const gint64 *shape,
           guint n_dims,
           int dim)
{
  g_auto (Expected) expected = expect (test->op, shape, n_dims, dim, test->dtype, ebb_process_group_get_size (group),
                                       ebb_process_group_get_rank (group));
  g_autoptr (EbbTensor) leaf = new_leaf (expected.x);
  g_autoptr (GError) error = NULL;
  /* From the end, half of the time. */
  g_autoptr (EbbTensor) y = apply (test->op, leaf, n_dims % 2 ? dim : dim - (int) n_dims, group, &error);
  g_autoptr (EbbTensor) dx = NULL;

  g_assert_no_error (error);
  assert_equal (y, expected.y);
  go_back (y, expected.dy, FALSE);
  dx = ebb_tensor_get_grad (leaf);
  assert_equal (dx, expected.dx);
  assert_equal (leaf, expected.x);
}

static gboolean
check_all (EbbProcessGroup *group,
           gpointer user_data,
           GError **error)
{
  for (guint i = 0; i < G_N_ELEMENTS (shapes); i++)
    for (guint n_dims = 1; n_dims <= 3; n_dims++)
      for (int dim = 0; dim < (int) n_dims; dim++)
        check_one (user_data, group, shapes[i], n_dims, dim);
  return TRUE;
}

static void
op_and_its_gradient_are_what_one_rank_gets (gconstpointer data)
{
  for (guint n_ranks = 1; n_ranks <= 4; n_ranks *= 2)
    test_ranks_run (n_ranks, check_all, (gpointer) data);
}

/* -- a layer ------------------------------------------------------------------------------------------------------- */

enum
{
  ROWS = 6,
  TIME = 8,
  WIDTH = 8,
  HIDDEN = 16
};

static EbbTensor *
random_leaf (guint64 seed,
             gint64 rows,
             gint64 columns)
{
  g_autoptr (EbbTensor) values = test_randn (seed, (int) rows, (int) columns, -1);

  return new_leaf (values);
}

/* gelu (x A^T) B^T, the parts of A and B that are given. */
static EbbTensor *
feed_forward (EbbTensor *x,
              EbbTensor *a,
              EbbTensor *b)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) hidden = ebb_linear (x, a, NULL, &error);
  g_autoptr (EbbTensor) active = ebb_gelu (hidden, EBB_GELU_EXACT, &error);
  EbbTensor *y = ebb_linear (active, b, NULL, &error);

  g_assert_no_error (error);
  return y;
}

static void
assert_near_part (EbbTensor *leaf,
                  EbbTensor *whole_leaf,
                  int dim,
                  EbbProcessGroup *group)
{
  g_autoptr (EbbTensor) grad = ebb_tensor_get_grad (leaf);
  g_autoptr (EbbTensor) whole = ebb_tensor_get_grad (whole_leaf);
  g_autoptr (EbbTensor) part =
      dim < 0 ? ebb_tensor_ref (whole)
              : part_of (whole, dim, ebb_process_group_get_size (group), ebb_process_group_get_rank (group));

  test_assert_near (grad, part, 2e-5);
}

static gboolean
split_layer (EbbProcessGroup *group,
             gpointer user_data,
             GError **error)
{
  const gboolean by_sequence = user_data != NULL;
  const guint n_ranks = ebb_process_group_get_size (group), rank = ebb_process_group_get_rank (group);
  g_autoptr (EbbTensor) values = test_randn (1, ROWS, TIME, WIDTH, -1);
  g_autoptr (EbbTensor) whole_x = new_leaf (values);
  g_autoptr (EbbTensor) whole_a = random_leaf (2, HIDDEN, WIDTH);
  g_autoptr (EbbTensor) whole_b = random_leaf (3, WIDTH, HIDDEN);
  g_autoptr (EbbTensor) dy = test_randn (4, ROWS, TIME, WIDTH, -1);
  g_autoptr (EbbTensor) whole_y = feed_forward (whole_x, whole_a, whole_b);
  g_autoptr (EbbTensor) x = new_leaf (whole_x);
  g_autoptr (EbbTensor) part_a = part_of (whole_a, 0, n_ranks, rank);
  g_autoptr (EbbTensor) part_b = part_of (whole_b, 1, n_ranks, rank);
  g_autoptr (EbbTensor) a = new_leaf (part_a);
  g_autoptr (EbbTensor) b = new_leaf (part_b);
  g_autoptr (EbbTensor) outer = by_sequence ? ebb_parallel_scatter (x, 1, group, error) : ebb_tensor_ref (x);
  g_autoptr (EbbTensor) in = by_sequence ? ebb_parallel_gather (outer, 1, TRUE, group, error)
                                         : ebb_parallel_copy (outer, group, error);
  g_autoptr (EbbTensor) summand = feed_forward (in, a, b);
  g_autoptr (EbbTensor) out = by_sequence ? ebb_parallel_reduce_scatter (summand, 1, group, error)
                                          : ebb_parallel_reduce (summand, group, error);
  g_autoptr (EbbTensor) y = by_sequence ? ebb_parallel_gather (out, 1, FALSE, group, error) : ebb_tensor_ref (out);

  if (y == NULL)
    return FALSE;
  test_assert_near (y, whole_y, 2e-5);
  go_back (whole_y, dy, FALSE);
  go_back (y, dy, FALSE);
  assert_near_part (x, whole_x, -1, group);
  assert_near_part (a, whole_a, 0, group);
  assert_near_part (b, whole_b, 1, group);
  return TRUE;
}

static void
a_split_layer_learns_what_the_whole_one_learns (gconstpointer data)
{
  for (guint n_ranks = 1; n_ranks <= 4; n_ranks *= 2)
    test_ranks_run (n_ranks, split_layer, (gpointer) data);
}

/* -- calls --------------------------------------------------------------------------------------------------------- */

static void
assert_calls (EbbProcessGroup *group,
              guint all_reduces,
              guint all_gathers,
              guint reduce_scatters)
{
  const guint expected[] = { all_reduces, reduce_scatters, all_gathers, 0, 0, 0, 0, 0 };

  for (guint i = 0; i < EBB_N_COLLECTIVES; i++)
    g_assert_cmpuint (ebb_process_group_get_n_calls (group, (EbbCollective) i), ==, expected[i]);
  ebb_process_group_reset_counters (group);
}

static gboolean
count_calls (EbbProcessGroup *group,
             gpointer user_data,
             GError **error)
{
  static const guint calls[N_OPS][2][3] = {
    [COPY] = { { 0, 0, 0 }, { 1, 0, 0 } },
    [REDUCE] = { { 1, 0, 0 }, { 0, 0, 0 } },
    [SCATTER] = { { 0, 0, 0 }, { 0, 1, 0 } },
    [GATHER] = { { 0, 1, 0 }, { 0, 0, 0 } },
    [GATHER_SUMMING] = { { 0, 1, 0 }, { 0, 0, 1 } },
    [REDUCE_SCATTER] = { { 0, 0, 1 }, { 0, 1, 0 } },
  };
  const gboolean is_alone = ebb_process_group_get_size (group) == 1;

  for (Op op = 0; op < N_OPS; op++)
    for (int dim = 0; dim < 3; dim++)
      {
        g_auto (Expected) expected = expect (op, shapes[3], 3, dim, EBB_DTYPE_F32, ebb_process_group_get_size (group),
                                             ebb_process_group_get_rank (group));
        g_autoptr (EbbTensor) leaf = new_leaf (expected.x);
        g_autoptr (EbbTensor) y = NULL;
        g_autoptr (EbbTensor) unrecorded = NULL;
        g_autoptr (EbbTensor) without_gradient = NULL;
        const guint *forward = calls[op][0], *backward = calls[op][1];

        ebb_process_group_reset_counters (group);
        ebb_push_grad_enabled (FALSE);
        unrecorded = apply (op, leaf, dim, group, error);
        ebb_pop_grad_enabled ();
        without_gradient = apply (op, expected.x, dim, group, error);
        assert_equal (unrecorded, expected.y);
        assert_equal (without_gradient, expected.y);
        g_assert_false (ebb_tensor_get_requires_grad (without_gradient));
        y = apply (op, leaf, dim, group, error);
        g_assert_true (ebb_tensor_get_requires_grad (y));
        if (is_alone)
          {
            g_assert_true (y == leaf);
            assert_calls (group, 0, 0, 0);
            continue;
          }
        assert_calls (group, 3 * forward[0], 3 * forward[1], 3 * forward[2]);
        go_back (y, expected.dy, TRUE);
        assert_calls (group, backward[0], backward[1], backward[2]);
        /* Again through the same graph, which was kept: the gradients double. */
        go_back (y, expected.dy, FALSE);
        assert_calls (group, backward[0], backward[1], backward[2]);
        {
          g_autoptr (EbbTensor) dx = ebb_tensor_get_grad (leaf);
          g_autoptr (EbbTensor) twice = ebb_add (expected.dx, expected.dx, error);

          assert_equal (dx, twice);
        }
      }
  return TRUE;
}

static void
each_op_makes_one_call_and_so_does_its_gradient (void)
{
  for (guint n_ranks = 1; n_ranks <= 4; n_ranks *= 2)
    test_ranks_run (n_ranks, count_calls, NULL);
}

/* The gradients of all uses of a copy are summed before they are sent. */
static gboolean
use_copy_twice (EbbProcessGroup *group,
                gpointer user_data,
                GError **error)
{
  g_autoptr (EbbTensor) values = test_randn (1, 4, 3, -1);
  g_autoptr (EbbTensor) leaf = new_leaf (values);
  g_autoptr (EbbTensor) copy = ebb_parallel_copy (leaf, group, error);
  g_autoptr (EbbTensor) square = ebb_mul (copy, copy, error);
  g_autoptr (EbbTensor) both = ebb_add (square, copy, error);
  g_autoptr (EbbTensor) loss = ebb_sum (both, NULL, 0, FALSE, error);
  g_autoptr (EbbTensor) doubled = ebb_mul_scalar (values, 2, error);
  g_autoptr (EbbTensor) once = ebb_add_scalar (doubled, 1, error);
  g_autoptr (EbbTensor) expected = ebb_mul_scalar (once, ebb_process_group_get_size (group), error);
  g_autoptr (EbbTensor) grad = NULL;

  ebb_process_group_reset_counters (group);
  if (!ebb_tensor_backward (loss, error))
    return FALSE;
  assert_calls (group, 1, 0, 0);
  grad = ebb_tensor_get_grad (leaf);
  test_assert_near (grad, expected, 1e-5);
  return TRUE;
}

static void
a_copy_that_is_used_often_sends_its_gradient_once (void)
{
  test_ranks_run (2, use_copy_twice, NULL);
}

/* -- operands ------------------------------------------------------------------------------------------------------ */

static gboolean
take_views (EbbProcessGroup *group,
            gpointer user_data,
            GError **error)
{
  for (Op op = 0; op < N_OPS; op++)
    for (int dim = 0; dim < 2; dim++)
      {
        const gint64 shape[] = { 5, 6 };
        g_auto (Expected) expected = expect (op, shape, 2, dim, EBB_DTYPE_F32, ebb_process_group_get_size (group),
                                             ebb_process_group_get_rank (group));
        g_autoptr (EbbTensor) turned = ebb_transpose (expected.x, 0, 1, error);
        g_autoptr (EbbTensor) leaf = new_leaf (turned);
        g_autoptr (EbbTensor) x = ebb_transpose (leaf, 0, 1, error);
        g_autoptr (EbbTensor) dy_turned = ebb_transpose (expected.dy, 0, 1, error);
        g_autoptr (EbbTensor) dy_copy = ebb_copy (dy_turned, error);
        g_autoptr (EbbTensor) dy = ebb_transpose (dy_copy, 0, 1, error);
        g_autoptr (EbbTensor) y = apply (op, x, dim, group, error);
        g_autoptr (EbbTensor) grad = NULL;
        g_autoptr (EbbTensor) dx = NULL;

        assert_equal (y, expected.y);
        go_back (y, dy, FALSE);
        grad = ebb_tensor_get_grad (leaf);
        dx = ebb_transpose (grad, 0, 1, error);
        assert_equal (dx, expected.dx);
        assert_equal (dy, expected.dy); /* the caller's gradient is not summed into */
      }
  return TRUE;
}

static void
operands_and_gradients_may_be_views (void)
{
  test_ranks_run (3, take_views, NULL);
}

static gboolean
take_integers (EbbProcessGroup *group,
               gpointer user_data,
               GError **error)
{
  const gint64 n = 5, rank = ebb_process_group_get_rank (group);
  const gint64 values[] = { 1, 2, 3, 4, 5 };
  g_autoptr (EbbTensor) x = ebb_tensor_new_from_ints (values, 5, &n, 1, error);
  g_autoptr (EbbTensor) part = ebb_parallel_scatter (x, 0, group, error);
  g_autoptr (EbbTensor) again = ebb_parallel_gather (part, 0, TRUE, group, error);
  g_autoptr (EbbTensor) sum = ebb_parallel_reduce (x, group, error);
  g_autoptr (EbbTensor) doubled = ebb_mul_scalar (x, 2, error);

  if (sum == NULL || again == NULL)
    return FALSE;
  g_assert_cmpint (ebb_tensor_get_n_elements (part), ==, rank == 0 ? 3 : 2);
  assert_equal (again, x);
  assert_equal (sum, doubled);
  return TRUE;
}

static void
integers_are_moved_as_well (void)
{
  test_ranks_run (2, take_integers, NULL);
}

/* -- memory -------------------------------------------------------------------------------------------------------- */

static guint64
get_total (void)
{
  g_autoptr (EbbMemoryStats) stats = ebb_memory_get_stats (test_device ());

  return ebb_memory_stats_get_total (stats);
}

static gboolean
drop_graphs (EbbProcessGroup *group,
             gpointer user_data,
             GError **error)
{
  const guint64 before = get_total ();

  for (Op op = 0; op < N_OPS; op++)
    for (guint which = 0; which < 3; which++)
      {
        g_auto (Expected) expected = expect (op, shapes[3], 3, 1, EBB_DTYPE_F32, ebb_process_group_get_size (group),
                                             ebb_process_group_get_rank (group));
        g_autoptr (EbbTensor) leaf = new_leaf (expected.x);
        g_autoptr (EbbTensor) y = apply (op, leaf, 1, group, error);

        if (which > 0)
          go_back (y, expected.dy, which == 2);
      }
  g_assert_cmpuint (get_total (), ==, before);
  /* Nodes that go later hold the group no longer than themselves. */
  g_assert_cmpuint (G_OBJECT (group)->ref_count, ==, GPOINTER_TO_UINT (user_data));
  return TRUE;
}

static gboolean
look_at_references (EbbProcessGroup *group,
                    gpointer user_data,
                    GError **error)
{
  return drop_graphs (group, GUINT_TO_POINTER (G_OBJECT (group)->ref_count), error);
}

static void
dropped_graphs_leave_nothing (void)
{
  test_ranks_run (2, look_at_references, NULL);
}

/* -- errors -------------------------------------------------------------------------------------------------------- */

static gboolean
leave_group_out (EbbProcessGroup *group,
                 gpointer user_data,
                 GError **error)
{
  g_autoptr (EbbTensor) x = test_randn (1, 4, 4, -1);

  for (Op op = 0; op < N_OPS; op++)
    {
      g_autoptr (EbbTensor) expected = apply (op, x, 0, group, error);
      g_autoptr (EbbTensor) y = apply (op, x, 0, NULL, error);

      if (expected == NULL || y == NULL)
        return FALSE;
      test_assert_near (y, expected, 0);
    }
  return TRUE;
}

static void
no_group_is_the_default_one (void)
{
  test_ranks_run (2, leave_group_out, NULL);
}

static gboolean
make_mistakes (EbbProcessGroup *group,
               gpointer user_data,
               GError **error)
{
  g_autoptr (EbbTensor) x = test_randn (1, 4, 4, -1);
  g_autoptr (EbbTensor) scalar = ebb_sum (x, NULL, 0, FALSE, error);

  ebb_process_group_reset_counters (group);
  for (Op op = 0; op < N_OPS; op++)
    {
      const gboolean has_dim = op != COPY && op != REDUCE;
      g_autoptr (GError) failure = NULL;

      g_assert_null (apply (op, NULL, 0, group, &failure));
      test_assert_error (failure, EBB_ERROR_INVALID_ARGUMENT, "x is NULL");
      g_clear_error (&failure);
      for (int dim = -3; dim <= 2; dim += 5)
        if (has_dim)
          {
            g_assert_null (apply (op, x, dim, group, &failure));
            test_assert_error (failure, EBB_ERROR_INDEX, "parallel_", dim < 0 ? "-3" : "2", "from -2 to 1");
            g_clear_error (&failure);
          }
      if (has_dim)
        {
          g_assert_null (apply (op, scalar, 0, group, &failure));
          test_assert_error (failure, EBB_ERROR_SHAPE, "parallel_", "[]");
          g_clear_error (&failure);
        }
      g_set_error (&failure, EBB_ERROR, EBB_ERROR_IO, "long before");
      g_assert_null (apply (op, x, 0, group, &failure));
      g_assert_error (failure, EBB_ERROR, EBB_ERROR_IO);
    }
  assert_calls (group, 0, 0, 0);
  return TRUE;
}

static void
wrong_arguments_are_told_before_any_call (void)
{
  test_ranks_run (1, make_mistakes, NULL);
  test_ranks_run (2, make_mistakes, NULL);
}

/* Some of the ranks have what an even division gives, but all are told. */
static gboolean
divide_unevenly (EbbProcessGroup *group,
                 gpointer user_data,
                 GError **error)
{
  const int sizes[] = { 4, 4, 3, 5 };
  g_autoptr (EbbTensor) x = test_randn (1, 2, sizes[ebb_process_group_get_rank (group)], -1);
  g_autoptr (GError) failure = NULL;
  g_autoptr (EbbTensor) other = test_randn (1, 2, -1);
  g_autoptr (EbbTensor) sum = NULL;

  g_assert_null (ebb_parallel_gather (x, 1, FALSE, group, &failure));
  test_assert_error (failure, EBB_ERROR_SHAPE, "parallel_gather", "rank 2 of 4 has 3 of 16", "dimension 1", "it has 4");
  /* The group is as good as before. */
  sum = ebb_parallel_reduce (other, group, error);
  return sum != NULL;
}

static void
parts_that_no_even_division_gives_are_refused_on_all_ranks (void)
{
  test_ranks_run (4, divide_unevenly, NULL);
}

/* Ranks that call different things, or of different shapes. */
static gboolean
disagree (EbbProcessGroup *group,
          gpointer user_data,
          GError **error)
{
  const guint which = GPOINTER_TO_UINT (user_data), rank = ebb_process_group_get_rank (group);
  g_autoptr (EbbTensor) x = test_randn (1, 4, which == 0 && rank == 1 ? 3 : 4, -1);
  g_autoptr (GError) failure = NULL;

  if (which == 0 || rank == 0)
    g_assert_null (ebb_parallel_reduce (x, group, &failure));
  else
    g_assert_null (ebb_parallel_reduce_scatter (x, 0, group, &failure));
  test_assert_error (failure, EBB_ERROR_PROCESS_GROUP, "parallel_reduce", rank == 0 ? "rank 1" : "rank 0");
  return TRUE;
}

static void
ranks_that_disagree_fail (void)
{
  test_ranks_run (2, disagree, GUINT_TO_POINTER (0));
  test_ranks_run (2, disagree, GUINT_TO_POINTER (1));
}

int
main (int argc,
      char **argv)
{
  static Case cases[N_OPS][3];
  const EbbDType dtypes[] = { EBB_DTYPE_F32, EBB_DTYPE_BF16, EBB_DTYPE_F16 };

  test_init (&argc, &argv);
  for (Op op = 0; op < N_OPS; op++)
    for (guint i = 0; i < G_N_ELEMENTS (dtypes); i++)
      {
        g_autofree char *path = g_strdup_printf ("/parallel-ops/op-and-its-gradient-are-what-one-rank-gets/%s/%s",
                                                 names[op], ebb_dtype_get_name (dtypes[i]));

        cases[op][i] = (Case){ op, dtypes[i] };
        g_test_add_data_func (path, &cases[op][i], op_and_its_gradient_are_what_one_rank_gets);
      }
#define TEST(name, func) g_test_add_func ("/parallel-ops/" name, func)
  g_test_add_data_func ("/parallel-ops/a-split-layer-learns-what-the-whole-one-learns", NULL,
                        a_split_layer_learns_what_the_whole_one_learns);
  g_test_add_data_func ("/parallel-ops/a-split-layer-learns-what-the-whole-one-learns/by-sequence", "",
                        a_split_layer_learns_what_the_whole_one_learns);
  TEST ("each-op-makes-one-call-and-so-does-its-gradient", each_op_makes_one_call_and_so_does_its_gradient);
  TEST ("a-copy-that-is-used-often-sends-its-gradient-once", a_copy_that_is_used_often_sends_its_gradient_once);
  TEST ("operands-and-gradients-may-be-views", operands_and_gradients_may_be_views);
  TEST ("integers-are-moved-as-well", integers_are_moved_as_well);
  TEST ("dropped-graphs-leave-nothing", dropped_graphs_leave_nothing);
  TEST ("wrong-arguments-are-told-before-any-call", wrong_arguments_are_told_before_any_call);
  TEST ("parts-that-no-even-division-gives-are-refused-on-all-ranks",
        parts_that_no_even_division_gives_are_refused_on_all_ranks);
  TEST ("ranks-that-disagree-fail", ranks_that_disagree_fail);
  g_test_add_func ("/parallel-ops/no-group-is-the-default-one", no_group_is_the_default_one);
  return g_test_run ();
}
