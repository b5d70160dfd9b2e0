/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/stores.h"
#include "support/device.h"
#include "support/tensor-parallel.h"
#include "support/tensors.h"

#include <string.h>

/* Run by mpirun: one call finds the processes, divides a model among two of them each, and its activations. */

static const TestParallel settings;

#define CONFIG(n)                                                                  \
  "{\"model_parallelism\": {\"enable\": true, \"tensor_parallel_size\": " #n "}, " \
  "\"activation_checkpointing\": {\"enable\": true, \"cpu_checkpointing\": true, " \
  "\"partitioned_checkpointing\": true, \"contiguous_checkpointing\": true}}"

/* The group that it has made by itself is gone when it fails, and can be made again. */
static void
a_failure_leaves_no_group (void)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbModule) model = test_parallel_model (&settings, &error);

  g_assert_null (ebb_initialize (model, CONFIG (3), &error));
  test_assert_error (error, EBB_ERROR_INVALID_ARGUMENT, "tensor_parallel_size is 3", "must be a multiple");
  g_assert_cmpstr (ebb_process_group_get_backend (ebb_process_group_get_default ()), ==, "single");
}

static void
processes_are_found_and_the_loss_is_that_of_one (void)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbModule) whole = test_parallel_model (&settings, &error);
  g_autoptr (EbbModule) model = test_parallel_model (&settings, &error);
  g_autoptr (EbbTensor) expected = test_parallel_loss (&settings, whole, 0, &error);
  g_autoptr (EbbModule) same = ebb_initialize (model, CONFIG (2), &error);
  g_autoptr (EbbTensor) loss = NULL;
  EbbActivationStore *store;
  EbbMesh *mesh;

  g_assert_no_error (error);
  mesh = ebb_initialize_get_mesh (model);
  g_assert_cmpstr (ebb_process_group_get_backend (ebb_process_group_get_default ()), ==, "mpi");
  g_assert_cmpuint (ebb_mesh_get_size (mesh, "tensor"), ==, 2);
  g_assert_cmpuint (ebb_mesh_get_size (mesh, "data"), ==,
                    ebb_process_group_get_size (ebb_process_group_get_default ()) / 2);
  store = EBB_ACTIVATION_STORE (ebb_checkpoint_options_get_store (ebb_initialize_get_options (model)));
  loss = test_parallel_loss (&settings, model, 0, &error);
  g_assert_no_error (error);
  g_assert_cmpfloat_with_epsilon (test_at (loss, 0), test_at (expected, 0), 1e-5 * test_at (expected, 0));
  g_assert_cmpuint (ebb_activation_store_get_bytes_held (store), >, 0);
  g_assert_true (ebb_tensor_backward (loss, &error));
  g_assert_no_error (error);
  g_assert_cmpuint (test_get_double (store, "n-gathers"), ==, 2);
  g_assert_cmpuint (ebb_activation_store_get_bytes_held (store), ==, 0);
}

int
main (int argc, char **argv)
{
  int status;

  test_init (&argc, &argv);
  g_test_add_func ("/mpi/initialize/a-failure-leaves-no-group", a_failure_leaves_no_group);
  g_test_add_func ("/mpi/initialize/processes-are-found-and-the-loss-is-that-of-one",
                   processes_are_found_and_the_loss_is_that_of_one);
  status = g_test_run ();
  ebb_destroy_process_group ();
  return status;
}
