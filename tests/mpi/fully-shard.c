/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/device.h"
#include "support/ranks.h"

#include <ebb/ebb.h>

/* Run by mpirun: sharded and replicated models learn what the whole one learns, which every rank trains beside. */

#define N_STEPS (test_device_is_cpu () ? 20 : 3) /* others are emulated */
#define N_LAYERS 3
#define N_UNITS (N_LAYERS + 1)

typedef enum
{
  SHARDED,
  CHECKPOINT_INSIDE,
  CHECKPOINT_OUTSIDE,
  FLATTENED,
  HYBRID,
  REPLICATED,
  N_WAYS
} Way;

static const char *const way_names[] = { "sharded", "checkpoint-inside", "checkpoint-outside", "flattened",
                                         "hybrid", "replicated" };

static EbbProcessGroup *world;

static void
checkpoint (EbbModule *gpt)
{
  g_autoptr (GError) error = NULL;

  ebb_checkpoint_wrap_each (gpt, EBB_TYPE_TRANSFORMER_BLOCK, NULL, &error);
  g_assert_no_error (error);
}

static void
shard (EbbModule *gpt,
       Way way)
{
  static const char *const names[] = { "data", "shard" };
  const gint64 sizes[] = { 2, -1 };
  g_autoptr (EbbFullyShardOptions) options = ebb_fully_shard_options_new ();
  g_autoptr (EbbMesh) mesh = NULL;
  g_autoptr (GError) error = NULL;
  EbbProcessGroup *group = world;

  g_object_set (options, "flatten", way == FLATTENED, NULL);
  if (way == HYBRID)
    {
      mesh = ebb_mesh_new (world, names, sizes, 2, &error);
      g_assert_no_error (error);
      g_object_set (options, "replicate-group", ebb_mesh_get_group (mesh, "data"), NULL);
      group = ebb_mesh_get_group (mesh, "shard");
    }
  ebb_fully_shard_wrap_each (gpt, EBB_TYPE_TRANSFORMER_BLOCK, group, options, &error);
  g_assert_no_error (error);
}

static EbbModule *
make_model (Way way)
{
  EbbModule *gpt = test_ranks_model (N_LAYERS, 0, 1);
  g_autoptr (GError) error = NULL;

  if (way == CHECKPOINT_INSIDE)
    checkpoint (gpt);
  if (way == REPLICATED)
    g_object_unref (ebb_replicate (gpt, world, NULL, &error));
  else
    shard (gpt, way);
  g_assert_no_error (error);
  if (way == CHECKPOINT_OUTSIDE)
    checkpoint (gpt);
  return gpt;
}

/* One step over the rows from @first on; their mean loss. */
static double
run_step (EbbModule *gpt,
          EbbOptimizer *optimizer,
          guint step,
          gint64 first,
          gint64 n_rows)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) loss = test_ranks_loss (gpt, step, first, n_rows, &error);
  double value;

  g_assert_no_error (error);
  ebb_tensor_get_item (loss, &value, &error);
  ebb_tensor_backward (loss, &error);
  test_clip_grad (optimizer, 1, 2, NULL, &error);
  ebb_optimizer_step (optimizer, &error);
  ebb_optimizer_zero_grad (optimizer);
  g_assert_no_error (error);
  return value;
}

static double
average (double value)
{
  const float own = (float) value;
  const gint64 one = 1;
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) tensor = ebb_tensor_new_from_floats (&own, 1, &one, 1, &error);
  double mean;

  ebb_process_group_all_reduce (world, tensor, EBB_REDUCE_OP_MEAN, &error);
  ebb_tensor_get_item (tensor, &mean, &error);
  g_assert_no_error (error);
  return mean;
}

static void
test_way (gconstpointer data)
{
  const Way way = (Way) GPOINTER_TO_UINT (data);
  const gint64 n_rows = TEST_RANKS_ROWS / ebb_process_group_get_size (world);
  g_autoptr (EbbModule) gpt = make_model (way);
  g_autoptr (EbbModule) whole = test_ranks_model (N_LAYERS, 0, 1);
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbOptimizer) optimizer = ebb_adamw_new (gpt, 3e-4, &error);
  g_autoptr (EbbOptimizer) whole_optimizer = ebb_adamw_new (whole, 3e-4, &error);

  for (guint i = 0; i < N_STEPS; i++)
    {
      double expected = run_step (whole, whole_optimizer, i, 0, TEST_RANKS_ROWS);
      double loss;

      ebb_process_group_reset_counters (world);
      loss = run_step (gpt, optimizer, i, ebb_process_group_get_rank (world) * n_rows, n_rows);
      if (way != HYBRID && way != REPLICATED)
        {
          /* With the one that clipping takes. */
          g_assert_cmpuint (ebb_process_group_get_n_calls (world, EBB_COLLECTIVE_ALL_GATHER), ==, 2 * N_UNITS - 1 + 1);
          g_assert_cmpuint (ebb_process_group_get_n_calls (world, EBB_COLLECTIVE_REDUCE_SCATTER), ==, N_UNITS);
        }
      g_assert_cmpfloat_with_epsilon (average (loss), expected, 1e-6 * expected);
    }
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
  for (guint i = 0; i < N_WAYS; i++)
    {
      g_autofree char *path = g_strconcat ("/mpi/", way_names[i], NULL);

      g_test_add_data_func (path, GUINT_TO_POINTER (i), test_way);
    }
  status = g_test_run ();
  g_clear_object (&world);
  ebb_destroy_process_group ();
  return status;
}
