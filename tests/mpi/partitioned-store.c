/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/device.h"
#include "support/partitions.h"
#include "support/stores.h"

#include <ebb/ebb.h>

/* Run by mpirun: processes keep their parts of checkpointed inputs, and learn what each learns alone. */

static EbbProcessGroup *world;

static void
train (EbbModule *model)
{
  g_autoptr (EbbTensor) input = test_partition_input (31);
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) loss = test_partition_forward (model, input, &error);

  g_assert_no_error (error);
  ebb_tensor_backward (loss, &error);
  g_assert_no_error (error);
}

static void
gradients_are_bitwise_equal (gconstpointer data)
{
  const TestBehind behind = (TestBehind) GPOINTER_TO_UINT (data);
  g_autoptr (EbbSavedTensorHooks) store = test_partitioned_store_new (world, behind);
  g_autoptr (EbbCheckpointOptions) options = test_partition_options_new (store);
  g_autoptr (EbbModule) model = test_partition_model_new (options);
  g_autoptr (EbbModule) plain = test_partition_model_new (NULL);

  ebb_process_group_reset_counters (world);
  for (guint step = 0; step < 3; step++)
    {
      g_object_set (store, "check", (EbbPartitionCheck) step, NULL);
      train (model);
      train (plain);
      test_partition_assert_same_grads (model, plain);
    }
  g_assert_cmpuint (ebb_process_group_get_n_calls (world, EBB_COLLECTIVE_ALL_GATHER), ==, 3 * TEST_PARTITION_BLOCKS);
  /* And the one that is gathered ahead, with the samples of all ranks. */
  g_assert_cmpuint (
      ebb_activation_store_get_bytes_peak (EBB_ACTIVATION_STORE (store)), <,
      TEST_PARTITION_BLOCKS
              * (TEST_PARTITION_ROWS * TEST_PARTITION_WIDTH * 4 / ebb_process_group_get_size (world) + 160)
          + TEST_PARTITION_ROWS * TEST_PARTITION_WIDTH * 4 + ebb_process_group_get_size (world) * 128);
  g_assert_cmpuint (test_held (store), ==, 0);
}

/* Each rank is told, and all go on. */
static void
other_values_are_found (void)
{
  g_autoptr (EbbSavedTensorHooks) store = test_partitioned_store_new (world, TEST_BEHIND_NOTHING);
  g_autoptr (EbbCheckpointOptions) options = test_partition_options_new (store);
  g_autoptr (EbbModule) model = test_partition_model_new (options);
  g_autoptr (EbbTensor) input = test_partition_input (ebb_process_group_get_rank (world) == 1 ? 2 : 1);
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) loss = test_partition_forward (model, input, &error);

  g_assert_no_error (error);
  g_assert_false (ebb_tensor_backward (loss, &error));
  g_assert_error (error, EBB_ERROR, EBB_ERROR_PROCESS_GROUP);
  g_assert_nonnull (g_strstr_len (error->message, -1, "rank 1 put other values"));
  g_clear_error (&error);
  ebb_process_group_barrier (world, &error);
  g_assert_no_error (error);
}

int
main (int argc,
      char **argv)
{
  g_autoptr (GError) error = NULL;
  int status;

  test_init (&argc, &argv);
  world = ebb_init_process_group ("auto", &error);
  g_assert_no_error (error);
  for (guint behind = 0; behind < TEST_N_BEHIND; behind++)
    {
      g_autofree char *path = g_strconcat ("/mpi/partitioned/", test_behind_names[behind], NULL);

      g_test_add_data_func (path, GUINT_TO_POINTER (behind), gradients_are_bitwise_equal);
    }
  g_test_add_func ("/mpi/partitioned/other-values-are-found", other_values_are_found);
  status = g_test_run ();
  g_clear_object (&world);
  ebb_destroy_process_group ();
  return status;
}
