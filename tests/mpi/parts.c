/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: private-headers */
#include "support/collective-parts.h"

#include "tensor/tensor-private.h"

#include <stdlib.h>

/* Calls over several tensors with uneven pieces, over MPI. */

static EbbProcessGroup *world;

static void
test_world (void)
{
  test_collective_parts (world);
}

/* A tensor that is longer than the ranks' buffers is exchanged in chunks, each of its own elements. */
static void
test_long_piece (void)
{
  const guint n = ebb_process_group_get_size (world), rank = ebb_process_group_get_rank (world);
  const gint64 length = (1 << 20) / MAX (1, n - 1) + 5, total = n * length;
  g_autoptr (GError) error = NULL;
  g_autofree float *values = g_new (float, (gsize) total);
  g_autoptr (EbbTensor) whole = NULL;
  g_autoptr (EbbTensor) piece = NULL;
  const float *result;

  for (gint64 i = 0; i < total; i++)
    values[i] = (float) (i % 1021 + rank);
  whole = ebb_tensor_new_from_values (values, (gsize) total, &total, 1, EBB_DTYPE_F32, NULL, &error);
  piece = ebb_process_group_reduce_scatter (world, whole, EBB_REDUCE_OP_SUM, &error);
  g_assert_no_error (error);
  g_assert_cmpint (ebb_tensor_get_n_elements (piece), ==, length);
  result = ebb_tensor_get_data (piece, &error);
  for (gint64 i = 0; i < length; i++)
    g_assert_cmpfloat (result[i], ==, (float) (n * ((rank * length + i) % 1021) + n * (n - 1) / 2));
}

static void
test_more_elements_than_mpi_counts (void)
{
  g_setenv ("EBB_MPI_MAX_COUNT", "7", TRUE);
  test_collective_parts (world);
  g_unsetenv ("EBB_MPI_MAX_COUNT");
}

static void
test_parts_of_the_world (void)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbProcessGroup) part = ebb_process_group_split (world, ebb_process_group_get_rank (world) % 2, &error);

  g_assert_no_error (error);
  test_collective_parts (part);
}

int
main (int argc,
      char **argv)
{
  g_autoptr (GError) error = NULL;
  int status;

  g_test_init (&argc, &argv, NULL);
  world = ebb_init_process_group ("mpi", &error);
  g_assert_no_error (error);
  g_test_add_func ("/mpi-parts/world", test_world);
  g_test_add_func ("/mpi-parts/long-piece", test_long_piece);
  g_test_add_func ("/mpi-parts/more-elements-than-mpi-counts", test_more_elements_than_mpi_counts);
  g_test_add_func ("/mpi-parts/parts-of-the-world", test_parts_of_the_world);
  status = g_test_run ();
  g_clear_object (&world);
  ebb_destroy_process_group ();
  return status;
}
