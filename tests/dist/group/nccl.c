/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: cpu-only */
#include "support/collective-cases.h"
#include "support/device.h"
#include "support/tensors.h"

#include <string.h>

/* One rank on one GPU, or as many as mpirun or torchrun starts; tensors are where EBB_TEST_DEVICE says. */

static EbbProcessGroup *world;

static void
test_world (void)
{
  g_assert_cmpstr (ebb_process_group_get_backend (world), ==, "nccl");
  test_collectives (world, FALSE);
}

static void
test_parts_of_the_world (void)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbProcessGroup) part = ebb_process_group_split (world, ebb_process_group_get_rank (world) % 2, &error);

  g_assert_no_error (error);
  test_collectives (part, FALSE);
}

int
main (int argc,
      char **argv)
{
  g_autoptr (GError) error = NULL;
  int status;

  test_init (&argc, &argv);
  world = ebb_init_process_group ("nccl", &error);
  /* No module, or no GPU. */
  if (g_error_matches (error, EBB_ERROR, EBB_ERROR_NOT_SUPPORTED)
      || g_error_matches (error, EBB_ERROR, EBB_ERROR_DEVICE))
    {
      g_printerr ("%s\n", error->message);
      return 77;
    }
  g_assert_no_error (error);
  g_test_add_func ("/nccl/world", test_world);
  g_test_add_func ("/nccl/parts-of-the-world", test_parts_of_the_world);
  status = g_test_run ();
  g_clear_object (&world);
  ebb_destroy_process_group ();
  return status;
}
