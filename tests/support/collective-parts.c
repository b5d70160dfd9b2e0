/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/collective-parts.h"

#include "dist/agree-private.h"
#include "support/collective-cases.h"
#include "support/device.h"
#include "support/tensors.h"
#include "tensor/storage-private.h"
#include "tensor/tensor-private.h"

/* Calls over several tensors with pieces of different sizes, some of them empty. */

#define N_PARTS 6

/* How many elements of part @part rank @rank has. */
static gint64
get_count (guint part,
           guint rank)
{
  return part == 0 ? (rank == 0 ? 5 : 0) : (gint64) ((part * 7 + rank * 3) % 5);
}

typedef struct
{
  EbbCollectivePart parts[N_PARTS];
  gint64 *counts[N_PARTS];
  gsize begin[N_PARTS]; /* where this rank's piece lies */
} Parts;

/* @in_place: the pieces lie in the wholes. */
static void
parts_init (Parts *self,
            EbbProcessGroup *group,
            EbbDType dtype,
            gboolean in_place)
{
  const guint n = ebb_process_group_get_size (group), rank = ebb_process_group_get_rank (group);

  for (guint p = 0; p < N_PARTS; p++)
    {
      gint64 total = 0;

      self->counts[p] = g_new (gint64, n);
      for (guint r = 0; r < n; r++)
        {
          if (r == rank)
            self->begin[p] = (gsize) total;
          self->counts[p][r] = get_count (p, r);
          total += self->counts[p][r];
        }
      self->parts[p].counts = self->counts[p];
      self->parts[p].full = test_collective_tensor (rank, dtype, &total, 1);
      if (in_place)
        self->parts[p].shard = ebb_tensor_new_view (self->parts[p].full->storage, (gint64) self->begin[p],
                                                    &self->counts[p][rank], NULL, 1, dtype);
      else if (self->counts[p][rank] > 0)
        self->parts[p].shard = test_collective_tensor (rank, dtype, &self->counts[p][rank], 1);
      else
        self->parts[p].shard = NULL;
    }
}

static void
parts_clear (Parts *self)
{
  for (guint p = 0; p < N_PARTS; p++)
    {
      g_clear_pointer (&self->parts[p].full, ebb_tensor_unref);
      g_clear_pointer (&self->parts[p].shard, ebb_tensor_unref);
      g_free (self->counts[p]);
    }
}

static void
run (EbbProcessGroup *group,
     EbbCollective which,
     Parts *parts,
     gboolean async)
{
  g_autoptr (GError) error = NULL;

  if (async)
    {
      g_autoptr (EbbWork) work =
          ebb_process_group_start (group, which, EBB_REDUCE_OP_MEAN, parts->parts, N_PARTS, 0, NULL, &error);

      g_assert_no_error (error);
      ebb_work_wait (work, &error);
    }
  else
    ebb_process_group_run (group, which, EBB_REDUCE_OP_MEAN, parts->parts, N_PARTS, 0, NULL, &error);
  g_assert_no_error (error);
}

static void
check_gather (EbbProcessGroup *group,
              EbbDType dtype,
              gboolean in_place,
              gboolean async)
{
  const guint n = ebb_process_group_get_size (group);
  Parts parts;

  parts_init (&parts, group, dtype, in_place);
  run (group, EBB_COLLECTIVE_ALL_GATHER, &parts, async);
  for (guint p = 0; p < N_PARTS; p++)
    {
      const gsize total = (gsize) ebb_tensor_get_n_elements (parts.parts[p].full);
      g_autofree double *expected = g_new (double, total + 1);
      gsize i = 0;

      for (guint r = 0; r < n; r++)
        {
          const gsize begin = i;

          for (; i < begin + (gsize) parts.counts[p][r]; i++)
            expected[i] = test_collective_value (r, in_place ? i : i - begin, dtype);
        }
      test_assert_elements (parts.parts[p].full, expected, total);
    }
  parts_clear (&parts);
}

static void
check_scatter (EbbProcessGroup *group,
               EbbDType dtype,
               gboolean in_place,
               gboolean async)
{
  const guint n = ebb_process_group_get_size (group), rank = ebb_process_group_get_rank (group);
  Parts parts;

  parts_init (&parts, group, dtype, in_place);
  run (group, EBB_COLLECTIVE_REDUCE_SCATTER, &parts, async);
  for (guint p = 0; p < N_PARTS; p++)
    {
      const gsize mine = (gsize) parts.counts[p][rank];
      double expected[5];

      for (gsize i = 0; i < mine; i++)
        expected[i] = test_collective_reduced (n, parts.begin[p] + i, dtype, EBB_REDUCE_OP_MEAN);
      if (parts.parts[p].shard != NULL)
        test_assert_elements (parts.parts[p].shard, expected, mine);
    }
  parts_clear (&parts);
}

/* All but one piece: of a gather that of the next rank, of a scatter the own one. */
static void
check_bytes (EbbProcessGroup *group)
{
  const guint n = ebb_process_group_get_size (group), rank = ebb_process_group_get_rank (group);
  guint64 gathered = 0, scattered = 0;
  Parts parts;

  for (guint p = 0; p < N_PARTS; p++)
    for (guint r = 0; r < n; r++)
      {
        gathered += r == (rank + 1) % n ? 0 : 4 * (guint64) get_count (p, r);
        scattered += r == rank ? 0 : 4 * (guint64) get_count (p, r);
      }
  parts_init (&parts, group, EBB_DTYPE_F32, FALSE);
  ebb_process_group_reset_counters (group);
  run (group, EBB_COLLECTIVE_ALL_GATHER, &parts, FALSE);
  run (group, EBB_COLLECTIVE_REDUCE_SCATTER, &parts, TRUE);
  g_assert_cmpuint (ebb_process_group_get_n_calls (group, EBB_COLLECTIVE_ALL_GATHER), ==, 1);
  g_assert_cmpuint (ebb_process_group_get_n_calls (group, EBB_COLLECTIVE_REDUCE_SCATTER), ==, 1);
  g_assert_cmpuint (ebb_process_group_get_n_bytes (group, EBB_COLLECTIVE_ALL_GATHER), ==, gathered);
  g_assert_cmpuint (ebb_process_group_get_n_bytes (group, EBB_COLLECTIVE_REDUCE_SCATTER), ==, scattered);
  ebb_process_group_reset_counters (group);
  parts_clear (&parts);
}

/* Tensors of different types in one call. */
static void
check_mixed (EbbProcessGroup *group)
{
  const guint n = ebb_process_group_get_size (group), rank = ebb_process_group_get_rank (group);
  EbbCollectivePart parts[EBB_N_DTYPES] = { 0 };
  g_autoptr (GError) error = NULL;
  double expected[11];

  for (EbbDType dtype = 0; dtype < EBB_N_DTYPES; dtype++)
    {
      const gint64 length = 4 + dtype;

      parts[dtype].full = test_collective_tensor (rank, dtype, &length, 1);
    }
  ebb_process_group_run (group, EBB_COLLECTIVE_ALL_REDUCE, EBB_REDUCE_OP_SUM, parts, EBB_N_DTYPES, 0, NULL, &error);
  g_assert_no_error (error);
  for (EbbDType dtype = 0; dtype < EBB_N_DTYPES; dtype++)
    {
      for (gsize i = 0; i < 4 + (gsize) dtype; i++)
        expected[i] = test_collective_reduced (n, i, dtype, EBB_REDUCE_OP_SUM);
      test_assert_elements (parts[dtype].full, expected, 4 + dtype);
      ebb_tensor_unref (parts[dtype].full);
    }
}

static void
check_same (EbbProcessGroup *group)
{
  const guint n = ebb_process_group_get_size (group), rank = ebb_process_group_get_rank (group);
  g_autoptr (GError) error = NULL;

  ebb_process_group_reset_counters (group);
  g_assert_true (ebb_agree_same_text (group, "the module", "a\nb\n", &error));
  g_assert_no_error (error);
  if (n > 1)
    {
      g_assert_false (ebb_agree_same_text (
          group, "the module", rank == n - 1 ? "same\nweight f32 [2, 3]\nx" : "same\nweight f32 [2, 2]\ny", &error));
      test_assert_error (error, EBB_ERROR_PROCESS_GROUP, "the module", "weight f32 [2, 3]", "weight f32 [2, 2]");
      g_clear_error (&error);
      g_assert_false (ebb_agree_same_text (group, "options", rank == 1 ? "a" : "a\nb", &error));
      test_assert_error (error, EBB_ERROR_PROCESS_GROUP, "options", "rank 1 has \"nothing\"", "rank 0 has \"b\"");
      g_clear_error (&error);
    }
  g_assert_true (ebb_process_group_barrier (group, &error));
  g_assert_no_error (error);
  g_assert_cmpuint (ebb_process_group_get_n_calls (group, EBB_COLLECTIVE_ALL_GATHER), ==, 0);
}

static void
check_bad_parts (EbbProcessGroup *group)
{
  const guint n = ebb_process_group_get_size (group), rank = ebb_process_group_get_rank (group);
  g_autofree gint64 *counts = g_new0 (gint64, n);
  const gint64 length = 4;
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) whole = test_collective_tensor (rank, EBB_DTYPE_F32, &length, 1);
  g_autoptr (EbbTensor) piece = test_collective_tensor (rank, EBB_DTYPE_I32, &length, 1);
  g_autoptr (EbbTensor) inside = ebb_tensor_new_view (whole->storage, 1, (gint64[]){ 2 }, NULL, 1, EBB_DTYPE_F32);
  EbbCollectivePart part = { whole, inside, counts };

  counts[rank] = 3;
  g_assert_null (
      ebb_process_group_start (group, EBB_COLLECTIVE_ALL_GATHER, EBB_REDUCE_OP_SUM, &part, 1, 0, NULL, &error));
  test_assert_error (error, EBB_ERROR_SHAPE, "all_gather", "don't make up the 4 of the full tensor");
  g_clear_error (&error);
  counts[rank] = 4;
  g_assert_null (
      ebb_process_group_start (group, EBB_COLLECTIVE_ALL_GATHER, EBB_REDUCE_OP_SUM, &part, 1, 0, NULL, &error));
  test_assert_error (error, EBB_ERROR_SHAPE, "all_gather", "[2]", "4 elements of [4]");
  g_clear_error (&error);
  part.shard = piece;
  g_assert_null (
      ebb_process_group_start (group, EBB_COLLECTIVE_REDUCE_SCATTER, EBB_REDUCE_OP_SUM, &part, 1, 0, NULL, &error));
  test_assert_error (error, EBB_ERROR_DTYPE, "reduce_scatter", "i32", "f32");
  g_clear_error (&error);
  part.shard = NULL;
  g_assert_null (
      ebb_process_group_start (group, EBB_COLLECTIVE_REDUCE_SCATTER, EBB_REDUCE_OP_SUM, &part, 1, 0, NULL, &error));
  test_assert_error (error, EBB_ERROR_INVALID_ARGUMENT, "no tensor for its shard");
  g_clear_error (&error);
  if (n > 1)
    {
      counts[rank] = 0;
      counts[(rank + 1) % n] = 2;
      counts[rank] = 2;
      part.shard = inside; /* neither at its place nor apart */
      g_assert_null (
          ebb_process_group_start (group, EBB_COLLECTIVE_ALL_GATHER, EBB_REDUCE_OP_SUM, &part, 1, 0, NULL, &error));
      test_assert_error (error, EBB_ERROR_INVALID_ARGUMENT, "overlaps");
    }
}

void
test_collective_parts (EbbProcessGroup *group)
{
  for (guint in_place = 0; in_place < 2; in_place++)
    for (guint async = 0; async < 2; async++)
      for (EbbDType dtype = 0; dtype < EBB_N_DTYPES; dtype++)
        {
          check_gather (group, dtype, in_place, async);
          if (dtype != EBB_DTYPE_BOOL) /* which has no mean */
            check_scatter (group, dtype, in_place, async);
        }
  check_bytes (group);
  check_mixed (group);
  check_bad_parts (group);
  check_same (group);
}
