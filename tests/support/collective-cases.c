/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/collective-cases.h"

#include "support/device.h"
#include "support/tensors.h"

#include <math.h>
#include <string.h>

static const gint64 lengths[] = { 0, 1, 5, 1025 };

/* -- each operation ------------------------------------------------------------------------------------------------ */

static gboolean
has_op (EbbDType dtype,
        EbbReduceOp op)
{
  return dtype != EBB_DTYPE_BOOL || op != EBB_REDUCE_OP_MEAN;
}

static void
check_all_reduce (EbbProcessGroup *group)
{
  const guint n = ebb_process_group_get_size (group), rank = ebb_process_group_get_rank (group);

  for (EbbDType dtype = 0; dtype < EBB_N_DTYPES; dtype++)
    for (EbbReduceOp op = 0; op < EBB_N_REDUCE_OPS; op++)
      for (guint l = 0; has_op (dtype, op) && l < G_N_ELEMENTS (lengths); l++)
        {
          const gint64 shape[] = { lengths[l], 3 };
          const gsize n_elements = (gsize) lengths[l] * 3;
          g_autoptr (GError) error = NULL;
          g_autoptr (EbbTensor) tensor = test_collective_tensor (rank, dtype, shape, 2);
          g_autofree double *expected = g_new (double, n_elements + 1);

          for (gsize i = 0; i < n_elements; i++)
            expected[i] = test_collective_reduced (n, i, dtype, op);
          ebb_process_group_all_reduce (group, tensor, op, &error);
          g_assert_no_error (error);
          test_assert_elements (tensor, expected, n_elements);
        }
}

static void
check_reduce_scatter (EbbProcessGroup *group)
{
  const guint n = ebb_process_group_get_size (group), rank = ebb_process_group_get_rank (group);

  for (EbbDType dtype = 0; dtype < EBB_N_DTYPES; dtype++)
    for (EbbReduceOp op = 0; op < EBB_N_REDUCE_OPS; op++)
      for (guint l = 0; has_op (dtype, op) && l < G_N_ELEMENTS (lengths); l++)
        {
          const gint64 shape[] = { lengths[l] * n, 2 };
          const gsize n_elements = (gsize) lengths[l] * 2;
          g_autoptr (GError) error = NULL;
          g_autoptr (EbbTensor) tensor = test_collective_tensor (rank, dtype, shape, 2);
          g_autoptr (EbbTensor) piece = NULL;
          g_autofree double *expected = g_new (double, n_elements + 1);

          for (gsize i = 0; i < n_elements; i++)
            expected[i] = test_collective_reduced (n, rank * n_elements + i, dtype, op);
          piece = ebb_process_group_reduce_scatter (group, tensor, op, &error);
          g_assert_no_error (error);
          g_assert_cmpint (ebb_tensor_get_dim (piece, 0), ==, lengths[l]);
          test_assert_elements (piece, expected, n_elements);
        }
}

static void
check_all_gather (EbbProcessGroup *group)
{
  const guint n = ebb_process_group_get_size (group), rank = ebb_process_group_get_rank (group);

  for (EbbDType dtype = 0; dtype < EBB_N_DTYPES; dtype++)
    for (guint l = 0; l < G_N_ELEMENTS (lengths); l++)
      {
        const gsize length = (gsize) lengths[l];
        g_autoptr (GError) error = NULL;
        g_autoptr (EbbTensor) tensor = test_collective_tensor (rank, dtype, &lengths[l], 1);
        g_autoptr (EbbTensor) whole = NULL;
        g_autofree double *expected = g_new (double, length *n + 1);

        for (gsize i = 0; i < length * n; i++)
          expected[i] = test_collective_value ((guint) (i / length), i % length, dtype);
        whole = ebb_process_group_all_gather (group, tensor, &error);
        g_assert_no_error (error);
        test_assert_elements (whole, expected, length * n);
      }
}

static void
check_broadcast (EbbProcessGroup *group)
{
  const guint n = ebb_process_group_get_size (group), rank = ebb_process_group_get_rank (group);

  for (EbbDType dtype = 0; dtype < EBB_N_DTYPES; dtype++)
    for (guint root = 0; root < n; root++)
      for (guint l = 0; l < G_N_ELEMENTS (lengths); l++)
        {
          const gsize length = (gsize) lengths[l];
          g_autoptr (GError) error = NULL;
          g_autoptr (EbbTensor) tensor = test_collective_tensor (rank, dtype, &lengths[l], 1);
          g_autofree double *expected = g_new (double, length + 1);

          for (gsize i = 0; i < length; i++)
            expected[i] = test_collective_value (root, i, dtype);
          ebb_process_group_broadcast (group, tensor, root, &error);
          g_assert_no_error (error);
          test_assert_elements (tensor, expected, length);
        }
}

static void
check_all_to_all (EbbProcessGroup *group)
{
  const guint n = ebb_process_group_get_size (group), rank = ebb_process_group_get_rank (group);

  for (EbbDType dtype = 0; dtype < EBB_N_DTYPES; dtype++)
    for (guint l = 0; l < G_N_ELEMENTS (lengths); l++)
      {
        const gsize length = (gsize) lengths[l];
        const gint64 whole = lengths[l] * n;
        g_autoptr (GError) error = NULL;
        g_autoptr (EbbTensor) tensor = test_collective_tensor (rank, dtype, &whole, 1);
        g_autoptr (EbbTensor) result = NULL;
        g_autofree double *expected = g_new (double, length *n + 1);

        for (gsize i = 0; i < length * n; i++)
          expected[i] = test_collective_value ((guint) (i / length), rank * length + i % length, dtype);
        result = ebb_process_group_all_to_all (group, tensor, &error);
        g_assert_no_error (error);
        test_assert_elements (result, expected, length * n);
      }
}

/* Round the ring; the first one takes last. */
static void
check_pairs (EbbProcessGroup *group)
{
  const guint n = ebb_process_group_get_size (group), rank = ebb_process_group_get_rank (group);
  const guint next = (rank + 1) % n, previous = (rank + n - 1) % n;
  const gint64 length = 7;

  for (EbbDType dtype = 0; n > 1 && dtype < EBB_N_DTYPES; dtype++)
    {
      g_autoptr (GError) error = NULL;
      g_autoptr (EbbTensor) mine = test_collective_tensor (rank, dtype, &length, 1);
      g_autoptr (EbbTensor) got = test_collective_tensor (rank, dtype, &length, 1);
      double expected[7];

      if (rank == 0)
        ebb_process_group_send (group, mine, next, &error);
      ebb_process_group_recv (group, got, previous, &error);
      if (rank != 0)
        ebb_process_group_send (group, mine, next, &error);
      g_assert_no_error (error);
      for (gsize i = 0; i < 7; i++)
        expected[i] = test_collective_value (previous, i, dtype);
      test_assert_elements (got, expected, 7);
    }
}

static void
check_barrier (EbbProcessGroup *group)
{
  g_autoptr (GError) error = NULL;

  for (guint i = 0; i < 20; i++)
    ebb_process_group_barrier (group, &error);
  g_assert_no_error (error);
}

/* -- beside the caller --------------------------------------------------------------------------------------------- */

/* Three in a row, of which each needs what the one before gave; waited for in the other order. */
static void
check_async (EbbProcessGroup *group)
{
  const guint n = ebb_process_group_get_size (group), rank = ebb_process_group_get_rank (group);
  const gint64 length = 12 * n, piece_length = 12;
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) whole = test_collective_tensor (rank, EBB_DTYPE_F32, &length, 1);
  g_autoptr (EbbTensor) piece = test_collective_tensor (rank, EBB_DTYPE_F32, &piece_length, 1);
  g_autofree double *expected = g_new (double, (gsize) length);
  EbbWork *works[3];

  works[0] = ebb_process_group_reduce_scatter_async (group, piece, whole, EBB_REDUCE_OP_SUM, &error);
  works[1] = ebb_process_group_all_gather_async (group, whole, piece, &error);
  works[2] = ebb_process_group_all_reduce_async (group, whole, EBB_REDUCE_OP_MAX, &error);
  g_assert_no_error (error);
  for (guint i = 3; i-- > 0;)
    {
      ebb_work_wait (works[i], &error);
      g_assert_no_error (error);
      g_assert_true (ebb_work_is_done (works[i]));
      g_assert_true (ebb_work_wait (works[i], NULL));
    }
  for (guint i = 0; i < 3; i++)
    ebb_work_unref (works[i]);
  for (gsize i = 0; i < (gsize) length; i++)
    expected[i] = test_collective_reduced (n, i, EBB_DTYPE_F32, EBB_REDUCE_OP_SUM);
  test_assert_elements (whole, expected, (gsize) length);

  /* One that nobody waits for comes before the next. */
  g_clear_pointer (&piece, ebb_tensor_unref);
  piece = test_collective_tensor (rank, EBB_DTYPE_F32, &piece_length, 1);
  ebb_work_unref (ebb_process_group_broadcast_async (group, piece, n - 1, &error));
  ebb_process_group_all_reduce (group, piece, EBB_REDUCE_OP_SUM, &error);
  g_assert_no_error (error);
  for (gsize i = 0; i < 12; i++)
    expected[i] = n * test_collective_value (n - 1, i, EBB_DTYPE_F32);
  test_assert_elements (piece, expected, 12);
}

/* -- parts of a group ---------------------------------------------------------------------------------------------- */

static void
check_part (EbbProcessGroup *part,
            const guint *members,
            guint n_members,
            guint rank)
{
  const gint64 length = 9;
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) tensor = test_collective_tensor (rank, EBB_DTYPE_I32, &length, 1);
  double expected[9] = { 0 };

  g_assert_nonnull (part);
  g_assert_cmpuint (ebb_process_group_get_size (part), ==, n_members);
  g_assert_cmpuint (members[ebb_process_group_get_rank (part)], ==, rank);
  ebb_process_group_all_reduce (part, tensor, EBB_REDUCE_OP_SUM, &error);
  g_assert_no_error (error);
  for (gsize i = 0; i < 9; i++)
    for (guint m = 0; m < n_members; m++)
      expected[i] += test_collective_value (members[m], i, EBB_DTYPE_I32);
  test_assert_elements (tensor, expected, 9);
}

static void
check_split (EbbProcessGroup *group)
{
  const guint n = ebb_process_group_get_size (group), rank = ebb_process_group_get_rank (group);

  for (guint n_colors = 1; n_colors <= n; n_colors++)
    {
      g_autoptr (GError) error = NULL;
      g_autoptr (EbbProcessGroup) part = ebb_process_group_split (group, rank % n_colors, &error);
      g_autoptr (EbbProcessGroup) alone = NULL;
      g_autofree guint *members = g_new (guint, n);
      guint n_members = 0;

      g_assert_no_error (error);
      for (guint r = rank % n_colors; r < n; r += n_colors)
        members[n_members++] = r;
      check_part (part, members, n_members, rank);
      alone = ebb_process_group_split (part, rank, &error);
      g_assert_no_error (error);
      check_part (alone, &rank, 1, rank);
    }
}

/* -- counters ------------------------------------------------------------------------------------------------------ */

static void
check_counters (EbbProcessGroup *group)
{
  const guint n = ebb_process_group_get_size (group), rank = ebb_process_group_get_rank (group);
  const gint64 whole_length = 24 * n, piece_length = 24;
  const guint64 all_but_one = 24 * (n - 1) * 2;
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) whole = test_collective_tensor (rank, EBB_DTYPE_BF16, &whole_length, 1);
  g_autoptr (EbbTensor) piece = test_collective_tensor (rank, EBB_DTYPE_BF16, &piece_length, 1);
  const guint64 expected[EBB_N_COLLECTIVES] = {
    [EBB_COLLECTIVE_ALL_REDUCE] = 2 * all_but_one,
    [EBB_COLLECTIVE_REDUCE_SCATTER] = all_but_one,
    [EBB_COLLECTIVE_ALL_GATHER] = all_but_one,
    [EBB_COLLECTIVE_BROADCAST] = all_but_one,
    [EBB_COLLECTIVE_ALL_TO_ALL] = all_but_one,
  };

  ebb_process_group_reset_counters (group);
  ebb_process_group_all_reduce (group, whole, EBB_REDUCE_OP_MEAN, &error);
  ebb_process_group_broadcast (group, whole, 0, &error);
  ebb_tensor_unref (ebb_process_group_reduce_scatter (group, whole, EBB_REDUCE_OP_MEAN, &error));
  ebb_tensor_unref (ebb_process_group_all_gather (group, piece, &error));
  ebb_tensor_unref (ebb_process_group_all_to_all (group, whole, &error));
  ebb_process_group_barrier (group, &error);
  g_assert_no_error (error);
  for (EbbCollective which = 0; which < EBB_N_COLLECTIVES; which++)
    {
      const gboolean is_pair = which == EBB_COLLECTIVE_SEND || which == EBB_COLLECTIVE_RECV;

      g_assert_cmpuint (ebb_process_group_get_n_calls (group, which), ==, is_pair ? 0 : 1);
      g_assert_cmpuint (ebb_process_group_get_n_bytes (group, which), ==, expected[which]);
    }
  if (n > 1 && rank < 2)
    {
      if (rank == 0)
        ebb_process_group_send (group, piece, 1, &error);
      else
        ebb_process_group_recv (group, piece, 0, &error);
      g_assert_no_error (error);
      g_assert_cmpuint (ebb_process_group_get_n_bytes (group, EBB_COLLECTIVE_SEND), ==, rank == 0 ? 48 : 0);
      g_assert_cmpuint (ebb_process_group_get_n_calls (group, EBB_COLLECTIVE_RECV), ==, rank);
    }
  ebb_process_group_reset_counters (group);
  g_assert_cmpuint (ebb_process_group_get_n_calls (group, EBB_COLLECTIVE_ALL_REDUCE), ==, 0);
}

/* -- what is not right --------------------------------------------------------------------------------------------- */

/* The same on all ranks, and none of it reaches the others: the group goes on. */
static void
check_bad_input (EbbProcessGroup *group)
{
  const guint n = ebb_process_group_get_size (group), rank = ebb_process_group_get_rank (group);
  const gint64 odd[] = { n + 1, 2 }, one = 1;
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) uneven = test_collective_tensor (rank, EBB_DTYPE_F32, odd, 2);
  g_autoptr (EbbTensor) turned = ebb_transpose (uneven, 0, 1, &error);
  g_autoptr (EbbTensor) flags = test_collective_tensor (rank, EBB_DTYPE_BOOL, &one, 1);
  g_autoptr (EbbTensor) scalar = test_collective_tensor (rank, EBB_DTYPE_F32, NULL, 0);

  g_assert_false (ebb_process_group_broadcast (group, uneven, n, &error));
  test_assert_error (error, EBB_ERROR_INVALID_ARGUMENT, "broadcast", "no rank");
  /* Already set: nothing happens. */
  g_assert_false (ebb_process_group_all_reduce (group, uneven, EBB_REDUCE_OP_SUM, &error));
  test_assert_error (error, EBB_ERROR_INVALID_ARGUMENT, "broadcast");
  g_clear_error (&error);
  g_assert_false (ebb_process_group_all_reduce (group, NULL, EBB_REDUCE_OP_SUM, &error));
  g_assert_no_error (error);
  if (n > 1)
    {
      g_assert_null (ebb_process_group_reduce_scatter (group, uneven, EBB_REDUCE_OP_SUM, &error));
      test_assert_error (error, EBB_ERROR_SHAPE, "reduce_scatter", "equal shards");
      g_clear_error (&error);
      g_assert_null (ebb_process_group_all_gather_async (group, uneven, uneven, &error));
      test_assert_error (error, EBB_ERROR_SHAPE, "all_gather", "first dimension");
      g_clear_error (&error);
    }
  g_assert_false (ebb_process_group_all_reduce (group, turned, EBB_REDUCE_OP_SUM, &error));
  test_assert_error (error, EBB_ERROR_INVALID_ARGUMENT, "all_reduce", "contiguous");
  g_clear_error (&error);
  g_assert_false (ebb_process_group_all_reduce (group, flags, EBB_REDUCE_OP_MEAN, &error));
  test_assert_error (error, EBB_ERROR_DTYPE, "mean of bool");
  g_clear_error (&error);
  g_assert_null (ebb_process_group_all_gather (group, scalar, &error));
  test_assert_error (error, EBB_ERROR_SHAPE, "all_gather", "[]");
  g_clear_error (&error);
  g_assert_false (ebb_process_group_send (group, uneven, rank, &error));
  test_assert_error (error, EBB_ERROR_INVALID_ARGUMENT, "send", "itself");
  g_clear_error (&error);
  g_assert_true (ebb_process_group_barrier (group, &error));
  g_assert_no_error (error);
}

/* A tensor that backward needs must not change unnoticed. */
static void
check_versions (EbbProcessGroup *group)
{
  const gint64 length = 4;
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) tensor = test_collective_tensor (0, EBB_DTYPE_F32, &length, 1);
  const guint version = ebb_tensor_get_version (tensor);

  ebb_process_group_all_reduce (group, tensor, EBB_REDUCE_OP_MAX, &error);
  g_assert_no_error (error);
  g_assert_cmpuint (ebb_tensor_get_version (tensor), >, version);
}

/* -- to the bit ---------------------------------------------------------------------------------------------------- */

/* 256 + 1 is no bf16: added one by one in bf16 nothing would come of the ones. */
static void
check_accumulation (EbbProcessGroup *group)
{
  const guint n = ebb_process_group_get_size (group), rank = ebb_process_group_get_rank (group);
  const gint64 length = 3;
  const float mine[] = { rank == 0 ? 256 : 1, rank == 0 ? 2048 : 1, 1 };
  const double expected[] = { 256.0 + n - 1, 2048.0 + n - 1, n };
  const EbbDType dtypes[] = { EBB_DTYPE_BF16, EBB_DTYPE_F16 };

  for (guint d = 0; d < G_N_ELEMENTS (dtypes); d++)
    {
      g_autoptr (GError) error = NULL;
      g_autoptr (EbbTensor) exact = ebb_tensor_new_from_floats (mine, 3, &length, 1, &error);
      g_autoptr (EbbTensor) cast = ebb_cast (exact, dtypes[d], &error);
      g_autoptr (EbbTensor) tensor = test_move (cast);

      ebb_process_group_all_reduce (group, tensor, EBB_REDUCE_OP_SUM, &error);
      g_assert_no_error (error);
      test_assert_elements (tensor, expected, 3);
    }
}

static EbbTensor *
make_random (guint rank,
             gint64 length)
{
  g_autoptr (EbbTensor) tensor = test_randn (100 + rank, length, (gint64) -1);

  return test_move (tensor);
}

/* In the order of the ranks, in f32, and so in every run and on every rank. */
static void
check_order (EbbProcessGroup *group)
{
  const guint n = ebb_process_group_get_size (group), rank = ebb_process_group_get_rank (group);
  const gint64 length = 3001;
  g_autofree float *sum = g_new0 (float, (gsize) length);

  for (guint r = 0; r < n; r++)
    {
      g_autoptr (EbbTensor) x = make_random (r, length);
      const float *values = test_read (x);

      for (gsize i = 0; i < (gsize) length; i++)
        sum[i] = r == 0 ? values[i] : sum[i] + values[i];
    }
  for (guint run = 0; run < 2; run++)
    {
      g_autoptr (GError) error = NULL;
      g_autoptr (EbbTensor) x = make_random (rank, length);
      g_autoptr (EbbTensor) mean = make_random (rank, length);

      ebb_process_group_all_reduce (group, x, EBB_REDUCE_OP_SUM, &error);
      ebb_process_group_all_reduce (group, mean, EBB_REDUCE_OP_MEAN, &error);
      g_assert_no_error (error);
      for (gsize i = 0; i < (gsize) length; i++)
        {
          g_assert_cmpfloat (((const float *) test_read (x))[i], ==, sum[i]);
          if (i % 100 == 0)
            g_assert_cmpfloat (((const float *) test_read (mean))[i], ==, sum[i] / (float) n);
        }
    }
}

static void
check_nan (EbbProcessGroup *group)
{
  const guint n = ebb_process_group_get_size (group), rank = ebb_process_group_get_rank (group);
  const gint64 length = 3;

  for (guint who = 0; who < n; who++)
    for (EbbReduceOp op = 0; op < EBB_N_REDUCE_OPS; op++)
      {
        const float mine[] = { rank == who ? NAN : 1, rank == who ? INFINITY : 1, 2 };
        g_autoptr (GError) error = NULL;
        g_autoptr (EbbTensor) given = ebb_tensor_new_from_floats (mine, 3, &length, 1, &error);
        g_autoptr (EbbTensor) tensor = test_move (given);
        const float *values;

        ebb_process_group_all_reduce (group, tensor, op, &error);
        g_assert_no_error (error);
        values = test_read (tensor);
        g_assert_true (isnan (values[0]));
        g_assert_cmpfloat (values[1], ==, op == EBB_REDUCE_OP_MIN && n > 1 ? 1 : INFINITY);
        g_assert_cmpfloat (values[2], ==, op == EBB_REDUCE_OP_SUM ? 2 * (float) n : 2);
      }
}

/* -- the list ------------------------------------------------------------------------------------------------------ */

const TestCollectiveCase test_collective_cases[] = {
  { "all-reduce", check_all_reduce, FALSE },
  { "reduce-scatter", check_reduce_scatter, FALSE },
  { "all-gather", check_all_gather, FALSE },
  { "broadcast", check_broadcast, FALSE },
  { "all-to-all", check_all_to_all, FALSE },
  { "pairs", check_pairs, FALSE },
  { "barrier", check_barrier, FALSE },
  { "async", check_async, FALSE },
  { "split", check_split, FALSE },
  { "counters", check_counters, FALSE },
  { "bad-input", check_bad_input, FALSE },
  { "versions", check_versions, FALSE },
  { "sixteen-bits-add-in-f32", check_accumulation, TRUE },
  { "order-of-ranks", check_order, TRUE },
  { "nan", check_nan, TRUE },
};

const guint n_test_collective_cases = G_N_ELEMENTS (test_collective_cases);

void
test_collectives (EbbProcessGroup *group,
                  gboolean exact)
{
  for (guint i = 0; i < n_test_collective_cases; i++)
    if (exact || !test_collective_cases[i].is_exact)
      test_collective_cases[i].check (group);
}
