/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/collective-cases.h"
#include "support/tensors.h"

#include <stdlib.h>
#include <string.h>

/* Run by mpirun: every rank does the same tests in the same order. */

static EbbProcessGroup *world;

static void
test_world (void)
{
  g_assert_cmpstr (ebb_process_group_get_backend (world), ==, "mpi");
  g_assert_true (ebb_process_group_get_default () == world);
  test_collectives (world, TRUE);
}

static void
test_parts_of_the_world (void)
{
  const guint rank = ebb_process_group_get_rank (world);

  for (guint n_colors = 1; n_colors <= 3; n_colors++)
    {
      g_autoptr (GError) error = NULL;
      g_autoptr (EbbProcessGroup) part = ebb_process_group_split (world, rank % n_colors, &error);

      g_assert_no_error (error);
      g_assert_cmpuint (ebb_process_group_get_rank (part), ==, rank / n_colors);
      test_collectives (part, TRUE);
    }
}

/* So few elements in each call of MPI that each tensor needs several. */
static void
test_more_elements_than_mpi_counts (void)
{
  g_setenv ("EBB_MPI_MAX_COUNT", "7", TRUE);
  test_collectives (world, TRUE);
  g_unsetenv ("EBB_MPI_MAX_COUNT");
}

static void
test_without_announcements (void)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbProcessGroup) part = NULL;

  g_setenv ("EBB_PROCESS_GROUP_CHECK", "0", TRUE);
  part = ebb_process_group_split (world, 0, &error);
  g_unsetenv ("EBB_PROCESS_GROUP_CHECK");
  g_assert_no_error (error);
  test_collectives (part, TRUE);
}

/* -- large tensors ------------------------------------------------------------------------------------------------- */

/* Bits that look like noise, exponents near 1: each order of additions gives another sum. */
static EbbTensor *
new_noise (guint rank,
           gint64 n,
           EbbDType dtype)
{
  g_autofree float *values = g_new (float, n);
  g_autoptr (EbbTensor) tensor = NULL;
  g_autoptr (GError) error = NULL;
  EbbTensor *result;
  guint32 state = 12345 + 7919 * rank;

  for (gint64 i = 0; i < n; i++)
    {
      state = state * 1664525u + 1013904223u;
      values[i] = ((float) (gint32) state) / 1e9f;
    }
  tensor = test_floats (values, (int) n, -1);
  result = ebb_cast (tensor, dtype, &error);
  g_assert_no_error (error);
  return result;
}

/* Pieces that need several steps of an exchange, and are summed in the order of the ranks. */
static void
test_sums_are_in_the_order_of_the_ranks (void)
{
  const guint n = ebb_process_group_get_size (world), rank = ebb_process_group_get_rank (world);
  const gint64 length = 3000017;
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) sum = new_noise (rank, length, EBB_DTYPE_F32);
  g_autofree float *expected = g_new0 (float, length);
  const float *got;

  g_assert_true (ebb_process_group_all_reduce (world, sum, EBB_REDUCE_OP_SUM, &error));
  g_assert_no_error (error);
  for (guint r = 0; r < n; r++)
    {
      g_autoptr (EbbTensor) noise = new_noise (r, length, EBB_DTYPE_F32);
      const float *values = ebb_tensor_get_data (noise, &error);

      for (gint64 i = 0; i < length; i++)
        expected[i] = r == 0 ? values[i] : expected[i] + values[i];
    }
  got = ebb_tensor_get_data (sum, &error);
  g_assert_cmpmem (got, (gsize) length * 4, expected, (gsize) length * 4);
}

static void
test_reductions_agree (void)
{
  const guint n = ebb_process_group_get_size (world), rank = ebb_process_group_get_rank (world);
  const EbbDType dtypes[] = { EBB_DTYPE_F32, EBB_DTYPE_BF16, EBB_DTYPE_F16 };

  for (guint d = 0; d < G_N_ELEMENTS (dtypes); d++)
    {
      const gint64 length = 1300003 * (gint64) n;
      const gsize n_bytes = (gsize) length * ebb_dtype_get_size (dtypes[d]);
      g_autoptr (GError) error = NULL;
      g_autoptr (EbbTensor) noise = new_noise (rank, length, dtypes[d]);
      g_autoptr (EbbTensor) piece = ebb_process_group_reduce_scatter (world, noise, EBB_REDUCE_OP_MEAN, &error);
      g_autoptr (EbbTensor) gathered = ebb_process_group_all_gather (world, piece, &error);

      ebb_process_group_all_reduce (world, noise, EBB_REDUCE_OP_MEAN, &error);
      g_assert_no_error (error);
      g_assert_cmpmem (ebb_tensor_get_data (gathered, NULL), n_bytes, ebb_tensor_get_data (noise, NULL), n_bytes);
    }
}

/* Each has a thread of its own, and other ranks may come to them in another order. */
static void
test_groups_work_side_by_side (void)
{
  const guint rank = ebb_process_group_get_rank (world);
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbProcessGroup) part = ebb_process_group_split (world, rank % 2, &error);

  g_assert_no_error (error);
  for (guint i = 0; i < 20; i++)
    {
      g_autoptr (EbbTensor) a = new_noise (rank, 100003, EBB_DTYPE_F32);
      g_autoptr (EbbTensor) b = new_noise (rank, 100003, EBB_DTYPE_F32);
      EbbProcessGroup *first = rank == 0 ? world : part, *second = rank == 0 ? part : world;
      g_autoptr (EbbWork) one = ebb_process_group_all_reduce_async (first, a, EBB_REDUCE_OP_MAX, &error);
      g_autoptr (EbbWork) two = ebb_process_group_all_reduce_async (second, b, EBB_REDUCE_OP_MAX, &error);

      g_assert_no_error (error);
      ebb_work_wait (two, &error);
      ebb_work_wait (one, &error);
      g_assert_no_error (error);
    }
}

int
main (int argc,
      char **argv)
{
  g_autoptr (GError) error = NULL;
  int status;

  g_test_init (&argc, &argv, NULL);
  world = ebb_init_process_group ("auto", &error);
  g_assert_no_error (error);
  g_test_add_func ("/mpi/world", test_world);
  g_test_add_func ("/mpi/parts-of-the-world", test_parts_of_the_world);
  g_test_add_func ("/mpi/more-elements-than-mpi-counts", test_more_elements_than_mpi_counts);
  g_test_add_func ("/mpi/without-announcements", test_without_announcements);
  g_test_add_func ("/mpi/sums-are-in-the-order-of-the-ranks", test_sums_are_in_the_order_of_the_ranks);
  g_test_add_func ("/mpi/reductions-agree", test_reductions_agree);
  g_test_add_func ("/mpi/groups-work-side-by-side", test_groups_work_side_by_side);
  status = g_test_run ();
  g_clear_object (&world);
  ebb_destroy_process_group ();
  return status;
}
