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

/* A tensor of this rank on the CPU: its number, twice. */
static EbbTensor *
make_on_cpu (GError **error)
{
  const gint64 n = 2;

  return ebb_full (&n, 1, ebb_process_group_get_rank (world), EBB_DTYPE_I64, ebb_device_get_cpu (), error);
}

static void
assert_gathers (void)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) mine = make_on_cpu (&error);
  g_autoptr (EbbTensor) all = ebb_process_group_all_gather (world, mine, &error);

  g_assert_no_error (error);
  for (guint i = 0; i < 2 * ebb_process_group_get_size (world); i++)
    g_assert_cmpint (((const gint64 *) ebb_tensor_get_data (all, &error))[i], ==, i / 2);
}

static void
test_tensors_on_the_cpu (void)
{
  const guint last = ebb_process_group_get_size (world) - 1;
  const gboolean has_others = last > 0;
  g_autoptr (GError) error = NULL;
  g_autoptr (GError) other = NULL;
  g_autoptr (EbbTensor) mine = make_on_cpu (&error);
  g_autoptr (EbbTensor) moved = NULL;

  assert_gathers ();
  g_assert_true (ebb_process_group_broadcast (world, mine, last, &error));
  g_assert_cmpint (((const gint64 *) ebb_tensor_get_data (mine, &error))[1], ==, last);
  g_assert_true (ebb_process_group_barrier (world, &error));
  g_assert_no_error (error);
  /* All else is refused, by each rank alone, and the group goes on. */
  g_assert_false (ebb_process_group_all_reduce (world, mine, EBB_REDUCE_OP_SUM, &error));
  g_assert_error (error, EBB_ERROR, EBB_ERROR_NOT_SUPPORTED);
  g_assert_cmpstr (error->message, ==,
                   "all_reduce: nccl takes tensors on this rank's own device only, and gathers and broadcasts others: "
                   "move them there, or run the ranks over MPI or as threads");
  g_assert_null (ebb_process_group_all_reduce_async (world, mine, EBB_REDUCE_OP_SUM, &other));
  g_assert_error (other, EBB_ERROR, EBB_ERROR_NOT_SUPPORTED);
  g_clear_error (&other);
  if (has_others)
    {
      g_assert_false (ebb_process_group_send (world, mine, ebb_process_group_get_rank (world) == 0 ? 1 : 0, &other));
      g_assert_error (other, EBB_ERROR, EBB_ERROR_NOT_SUPPORTED);
    }
  assert_gathers ();
  moved = ebb_to_device (mine, test_device (), NULL);
  g_assert_true (ebb_process_group_all_reduce (world, moved, EBB_REDUCE_OP_MAX, NULL) || test_device_is_cpu ());
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
  g_test_add_func ("/nccl/tensors-on-the-cpu", test_tensors_on_the_cpu);
  status = g_test_run ();
  g_clear_object (&world);
  ebb_destroy_process_group ();
  return status;
}
