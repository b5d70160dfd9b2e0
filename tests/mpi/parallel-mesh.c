/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/device.h"
#include "support/mesh-runs.h"
#include "support/shard-runs.h"
#include "support/tensors.h"

#include <ebb/ebb.h>
#include <glib/gstdio.h>
#include <string.h>

/* Run by mpirun: data ranks and tensor-parallel ranks learn what the whole model learns, which every rank trains
 * beside, and go on from what they have saved. */

#define N_STEPS 10
#define LEARNING_RATE 3e-4

static EbbProcessGroup *world;

static const TestMesh ways[] = {
  { .n_tensor = 2, .max_norm = 1 },
  { .n_tensor = 2, .split = TEST_MESH_ROWS, .max_norm = 1, .checkpoint = TEST_MESH_CHECKPOINT_INSIDE },
  { .n_tensor = 2, .split = TEST_MESH_FLAT, .sequence_parallel = TRUE, .checkpoint = TEST_MESH_CHECKPOINT_OUTSIDE },
  { .n_tensor = 2, .split = TEST_MESH_ROWS, .sequence_parallel = TRUE, .n_passes = 2, .max_norm = 1 },
};

static double
run_whole_step (EbbModule *gpt,
                EbbOptimizer *optimizer,
                guint step,
                double max_norm)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) loss = test_ranks_loss (gpt, step, 0, TEST_RANKS_ROWS, &error);
  double value;

  g_assert_no_error (error);
  ebb_tensor_get_item (loss, &value, &error);
  ebb_tensor_backward (loss, &error);
  if (max_norm > 0)
    test_clip_grad (optimizer, max_norm, 2, NULL, &error);
  ebb_optimizer_step (optimizer, &error);
  ebb_optimizer_zero_grad (optimizer);
  g_assert_no_error (error);
  return value;
}

static void
test_way (gconstpointer data)
{
  const TestMesh *way = data;
  g_autoptr (GError) error = NULL;
  g_auto (TestMeshRun) run = { NULL };
  g_autoptr (EbbModule) whole = test_ranks_model (2, 0, 7);
  g_autoptr (EbbOptimizer) optimizer = ebb_adamw_new (whole, LEARNING_RATE, &error);

  ebb_optimizer_exclude_from_decay (optimizer, &error);
  g_assert_no_error (error);
  test_mesh_run_start (&run, way, world, &error);
  g_assert_no_error (error);
  for (guint i = 0; i < N_STEPS; i++)
    {
      double expected = run_whole_step (whole, optimizer, i, way->max_norm), loss, norm;

      test_mesh_run_step (&run, i, &loss, &norm, &error);
      g_assert_no_error (error);
      g_assert_cmpfloat_with_epsilon (loss, expected, 1e-5 * expected);
    }
}

/* The first rank's folder. */
static char *
share_folder (void)
{
  const gint64 n = 256;
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) name = ebb_zeros (&n, 1, EBB_DTYPE_U8, ebb_device_get_cpu (), &error);
  g_autofree char *own = ebb_process_group_get_rank (world) == 0 ? test_make_folder () : NULL;

  g_assert_no_error (error);
  if (own != NULL)
    g_strlcpy (ebb_tensor_get_data (name, NULL), own, (gsize) n);
  ebb_process_group_broadcast (world, name, 0, &error);
  g_assert_no_error (error);
  return g_strdup (ebb_tensor_get_data (name, NULL));
}

static void
test_resume (void)
{
  const TestMesh settings = { .n_tensor = 2, .split = TEST_MESH_ROWS, .dropout = 0.1, .max_norm = 1 };
  g_autofree char *folder = share_folder ();
  g_auto (TestMeshRun) run = { NULL };
  g_auto (TestMeshRun) again = { NULL };
  g_autoptr (EbbTrainingState) training = NULL;
  g_autoptr (EbbTrainingState) second = NULL;
  g_autoptr (GError) error = NULL;
  double losses[4], loss, norm;
  gint64 step;

  test_mesh_run_start (&run, &settings, world, &error);
  g_assert_no_error (error);
  for (guint i = 0; i < 4; i++)
    {
      if (i == 2)
        {
          training = ebb_training_state_new (run.model, run.optimizer, NULL);
          ebb_training_state_save_sharded (training, folder, i, &error);
          g_assert_no_error (error);
        }
      test_mesh_run_step (&run, i, &losses[i], &norm, &error);
      g_assert_no_error (error);
    }
  test_mesh_run_start (&again, &settings, world, &error);
  g_assert_no_error (error);
  second = ebb_training_state_new (again.model, again.optimizer, NULL);
  ebb_training_state_load_sharded (second, folder, &step, &error);
  g_assert_no_error (error);
  g_assert_cmpint (step, ==, 2);
  for (guint i = 2; i < 4; i++)
    {
      test_mesh_run_step (&again, i, &loss, &norm, &error);
      g_assert_no_error (error);
      g_assert_cmpfloat (loss, ==, losses[i]);
    }
  ebb_process_group_barrier (world, &error);
  g_assert_no_error (error);
  if (ebb_process_group_get_rank (world) == 0)
    test_remove_folder (folder);
}

int
main (int argc,
      char **argv)
{
  g_autoptr (GError) error = NULL;
  int status;

  test_init (&argc, &argv);
  world = ebb_init_process_group ("mpi", &error);
  if (world == NULL)
    {
      g_printerr ("%s\n", error->message);
      return 1;
    }
  for (guint i = 0; i < G_N_ELEMENTS (ways); i++)
    {
      g_autofree char *path = g_strdup_printf ("/mpi-parallel-mesh/way-%u-learns-what-the-whole-model-learns", i);

      g_test_add_data_func (path, &ways[i], test_way);
    }
  g_test_add_func ("/mpi-parallel-mesh/a-training-goes-on-bit-for-bit", test_resume);
  status = g_test_run ();
  ebb_destroy_process_group ();
  return status;
}
