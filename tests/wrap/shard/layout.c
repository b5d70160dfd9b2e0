/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: private-headers cpu-only */

/* How parameters are split over ranks: all small sizes on all small numbers of ranks. */

#include "tensor/backend/kernel-private.h"
#include "wrap/shard/layout-private.h"

#define MAX_SIZE 9
#define MAX_RANKS 5
#define N_PARAMETERS 3

static gint64
count_elements (const gint64 *shape,
                guint n_dims)
{
  gint64 n = 1;

  for (guint d = 0; d < n_dims; d++)
    n *= shape[d];
  return n;
}

/* The ranges of the ranks follow each other from the first element to the last, and are the shards' sizes. */
static void
check_parameter (EbbShardLayout *layout,
                 guint parameter,
                 const gint64 *shape,
                 guint n_dims)
{
  gint64 n = count_elements (shape, n_dims), reached = 0;

  g_assert_cmpint (layout->parameters[parameter].n_elements, ==, n);
  for (guint r = 0; r < layout->n_ranks; r++)
    {
      gint64 shard[EBB_MAX_DIMS], begin, end;

      ebb_shard_layout_get_range (layout, parameter, r, &begin, &end);
      g_assert_cmpuint (ebb_shard_layout_get_shape (layout, parameter, r, shard), ==, MAX (1, n_dims));
      g_assert_cmpint (begin, ==, reached);
      g_assert_cmpint (begin, <=, end);
      g_assert_cmpint (count_elements (shard, MAX (1, n_dims)), ==, end - begin);
      for (guint d = 1; d < n_dims && !layout->flatten; d++)
        g_assert_cmpint (shard[d], ==, shape[d]);
      for (guint d = 0; d + 1 < n_dims && layout->flatten; d++)
        g_assert_cmpint (shard[d], ==, 1);
      reached = end;
    }
  g_assert_cmpint (reached, ==, n);
}

/* Writes each shard to where the layout says it lies in the buffers: each element then has its place, once, and the
 * place is the same whether counted from the full parameter or from the rank's shards. */
static void
check_buffers (EbbShardLayout *layout)
{
  guint n_buffers = layout->n_buffers, n_ranks = layout->n_ranks;
  g_autofree int **seen = g_new0 (int *, n_buffers);

  g_assert_cmpuint (n_buffers, ==, layout->flatten ? 1 : N_PARAMETERS);
  for (guint b = 0; b < n_buffers; b++)
    {
      const gint64 *counts = ebb_shard_layout_get_counts (layout, b);
      gint64 sum = 0;

      for (guint r = 0; r < n_ranks; r++)
        sum += counts[r];
      g_assert_cmpint (sum, ==, layout->n_elements[b]);
      seen[b] = g_new0 (int, sum + 1);
    }
  for (guint p = 0; p < N_PARAMETERS; p++)
    for (guint r = 0; r < n_ranks; r++)
      {
        const gint64 offset = layout->parameters[p].start;
        const guint buffer = layout->parameters[p].buffer;
        const gint64 *counts = ebb_shard_layout_get_counts (layout, buffer);
        gint64 begin, end, before = 0, shard_offset = ebb_shard_layout_get_shard_offset (layout, p, r);

        ebb_shard_layout_get_range (layout, p, r, &begin, &end);
        for (guint q = 0; q < r; q++)
          before += counts[q];
        g_assert_cmpint (shard_offset, >=, 0);
        g_assert_cmpint (shard_offset + end - begin, <=, counts[r]);
        if (end > begin)
          g_assert_cmpint (before + shard_offset, ==, offset + begin);
        for (gint64 i = begin; i < end; i++)
          seen[buffer][offset + i]++;
      }
  for (guint b = 0; b < n_buffers; b++)
    {
      for (gint64 i = 0; i < layout->n_elements[b]; i++)
        g_assert_cmpint (seen[b][i], ==, 1);
      g_free (seen[b]);
    }
}

/* No rank has more than one row, or one element, more than another. */
static void
check_balance (EbbShardLayout *layout)
{
  for (guint b = 0; b < layout->n_buffers; b++)
    {
      const gint64 *counts = ebb_shard_layout_get_counts (layout, b);
      gint64 least = G_MAXINT64, most = 0, row = 1;

      if (!layout->flatten)
        row = layout->parameters[b].n_dims > 1
                  ? count_elements (layout->parameters[b].shape + 1, layout->parameters[b].n_dims - 1)
                  : 1;
      for (guint r = 0; r < layout->n_ranks; r++)
        {
          least = MIN (least, counts[r]);
          most = MAX (most, counts[r]);
        }
      g_assert_cmpint (most - least, <=, row);
    }
}

static void
check (guint n_ranks,
       gboolean flatten,
       const gint64 *const *shapes,
       const guint *n_dims)
{
  g_autoptr (EbbShardLayout) layout = ebb_shard_layout_new (n_ranks, flatten, N_PARAMETERS, shapes, n_dims, NULL);

  for (guint p = 0; p < N_PARAMETERS; p++)
    check_parameter (layout, p, shapes[p], n_dims[p]);
  check_buffers (layout);
  check_balance (layout);
}

static void
test_all_sizes (void)
{
  for (gint64 rows = 0; rows <= MAX_SIZE; rows++)
    for (gint64 columns = 0; columns <= 3; columns++)
      for (gint64 length = 0; length <= MAX_SIZE; length++)
        for (guint n_ranks = 1; n_ranks <= MAX_RANKS; n_ranks++)
          for (guint n_scalar_dims = 0; n_scalar_dims < 2; n_scalar_dims++)
            {
              const gint64 matrix[] = { rows, columns }, vector[] = { length }, one[] = { 1 };
              const gint64 *const shapes[] = { matrix, one, vector };
              const guint n_dims[] = { 2, n_scalar_dims, 1 };

              check (n_ranks, FALSE, shapes, n_dims);
              check (n_ranks, TRUE, shapes, n_dims);
            }
}

static void
test_ranges (void)
{
  const gint64 matrix[] = { 5, 2 }, vector[] = { 3 };
  const gint64 *const shapes[] = { matrix, vector };
  const guint n_dims[] = { 2, 1 };
  g_autoptr (EbbShardLayout) rows = ebb_shard_layout_new (4, FALSE, 2, shapes, n_dims, NULL);
  g_autoptr (EbbShardLayout) flat = ebb_shard_layout_new (4, TRUE, 2, shapes, n_dims, NULL);
  static const gint64 row_ends[] = { 2, 4, 6, 10 }, flat_counts[] = { 3, 3, 3, 4 };
  gint64 begin, end;

  for (guint r = 0; r < 4; r++)
    {
      ebb_shard_layout_get_range (rows, 0, r, &begin, &end);
      g_assert_cmpint (end, ==, row_ends[r]);
      g_assert_cmpint (ebb_shard_layout_get_counts (flat, 0)[r], ==, flat_counts[r]);
    }
  ebb_shard_layout_get_range (flat, 0, 3, &begin, &end);
  g_assert_cmpint (begin, ==, 9);
  g_assert_cmpint (end, ==, 10);
  g_assert_cmpint (ebb_shard_layout_get_shard_offset (flat, 1, 3), ==, 1);
}

/* Parameters that tensor parallelism splits differ in size by rank: the others are split at the same places anyway. */
static void
test_split_apart (void)
{
  const gint64 vector[] = { 7 }, matrix[] = { 3, 3 };
  const guint classes[] = { 0, 2, 0 };
  const guint n_dims[] = { 1, 2, 2 };
  gint64 ends[2][2][4];

  for (gint64 rows = 4; rows < 6; rows++)
    {
      const gint64 part[] = { rows, 5 };
      const gint64 *const shapes[] = { vector, part, matrix };
      g_autoptr (EbbShardLayout) layout = ebb_shard_layout_new (4, TRUE, 3, shapes, n_dims, classes);

      g_assert_cmpuint (layout->n_buffers, ==, 2);
      g_assert_cmpint (layout->n_elements[0], ==, 16);
      g_assert_cmpint (layout->n_elements[1], ==, rows * 5);
      for (guint p = 0; p < 3; p++)
        check_parameter (layout, p, shapes[p], n_dims[p]);
      check_balance (layout);
      for (guint r = 0; r < 4; r++)
        for (guint w = 0; w < 2; w++)
          {
            gint64 begin;

            ebb_shard_layout_get_range (layout, 2 * w, r, &begin, &ends[rows - 4][w][r]);
          }
    }
  g_assert_cmpmem (ends[0], sizeof ends[0], ends[1], sizeof ends[1]);
}

static void
test_large_sizes (void)
{
  const gint64 shape[] = { G_MAXINT64 / 2 };
  const gint64 *const shapes[] = { shape };
  const guint n_dims[] = { 1 };
  gint64 begin, end, last = 0;

  for (int flatten = 0; flatten < 2; flatten++)
    {
      g_autoptr (EbbShardLayout) layout = ebb_shard_layout_new (1000, flatten, 1, shapes, n_dims, NULL);

      last = 0;
      for (guint r = 0; r < 1000; r++)
        {
          ebb_shard_layout_get_range (layout, 0, r, &begin, &end);
          g_assert_cmpint (begin, ==, last);
          g_assert_cmpint (end - begin, >=, shape[0] / 1000);
          g_assert_cmpint (end - begin, <=, shape[0] / 1000 + 1);
          last = end;
        }
      g_assert_cmpint (last, ==, shape[0]);
    }
}

int
main (int argc,
      char **argv)
{
  g_test_init (&argc, &argv, NULL);
  g_test_add_func ("/shard-layout/shards-tile-every-parameter-evenly", test_all_sizes);
  g_test_add_func ("/shard-layout/ranges-are-where-they-are-defined", test_ranges);
  g_test_add_func ("/shard-layout/large-sizes-do-not-overflow", test_large_sizes);
  g_test_add_func ("/shard-layout/tensor-parallel-parameters-do-not-move-the-others", test_split_apart);
  return g_test_run ();
}
