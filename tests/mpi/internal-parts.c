/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/collective-parts.h"

#include <stdlib.h>

/* Calls over several tensors with uneven pieces, over MPI. */

static EbbProcessGroup *world;

static void
test_world (void)
{
  test_collective_parts (world);
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
  g_test_add_func ("/mpi-parts/more-elements-than-mpi-counts", test_more_elements_than_mpi_counts);
  g_test_add_func ("/mpi-parts/parts-of-the-world", test_parts_of_the_world);
  status = g_test_run ();
  g_clear_object (&world);
  ebb_destroy_process_group ();
  return status;
}
