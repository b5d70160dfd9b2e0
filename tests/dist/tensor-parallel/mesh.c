/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: long-sim */
#include "support/device.h"
#include "support/mesh-runs.h"
#include "support/tensors.h"

/* Data ranks and tensor-parallel ranks together train what one rank with the whole model trains. */

#define TOLERANCE 1e-5

/* Emulated devices take their time. */
static guint
get_n_steps (void)
{
  return test_device_is_slow () ? 2 : test_device_is_cpu () ? 10
                                                            : 3;
}

static TestRanksResult *
train_whole (const TestMesh *like)
{
  const TestRanks whole = { .n_steps = get_n_steps (),
                            .max_norm = like->max_norm,
                            .n_passes = MAX (like->n_passes, 1) };

  return test_ranks_train (&whole);
}

static void
assert_like_whole (const TestMesh *settings, guint n_data)
{
  g_autoptr (TestRanksResult) whole = train_whole (settings);
  g_autoptr (TestRanksResult) parts = test_mesh_train (settings, n_data, get_n_steps (), NULL);

  g_test_message ("%u x %u, split %d, checkpoint %d, sequence %d, %u passes", n_data, settings->n_tensor,
                  settings->split, settings->checkpoint, settings->sequence_parallel, settings->n_passes);
  test_ranks_assert_near (whole, parts, TOLERANCE);
}

static void
test_splits (void)
{
  static const guint grids[][2] = { { 2, 2 }, { 1, 2 }, { 1, 4 }, { 4, 2 }, { 2, 4 } };

  for (int split = 0; split < TEST_N_MESH_SPLITS; split++)
    for (guint g = 0; g < (split == TEST_MESH_ROWS ? G_N_ELEMENTS (grids) : 1); g++)
      {
        const TestMesh settings = { .n_tensor = grids[g][1], .split = (TestMeshSplit) split };

        assert_like_whole (&settings, grids[g][0]);
      }
}

/* Three dimensions. */
static void
test_hybrid (void)
{
  const TestMesh settings = { .n_tensor = 2, .split = TEST_MESH_HYBRID, .sequence_parallel = TRUE, .max_norm = 1 };

  assert_like_whole (&settings, 4);
}

static void
test_sequence (void)
{
  for (int split = 0; split < TEST_N_MESH_SPLITS; split++)
    for (int checkpoint = 0; checkpoint < TEST_N_MESH_CHECKPOINTS; checkpoint++)
      {
        const TestMesh settings = {
          .n_tensor = 2,
          .split = (TestMeshSplit) split,
          .checkpoint = (TestMeshCheckpoint) checkpoint,
          .sequence_parallel = TRUE,
        };

        assert_like_whole (&settings, 2);
      }
}

static void
test_accumulation (void)
{
  for (int split = 0; split < TEST_N_MESH_SPLITS; split++)
    for (int sequence = 0; sequence < 2; sequence++)
      {
        const TestMesh settings = {
          .n_tensor = 2,
          .split = (TestMeshSplit) split,
          .sequence_parallel = sequence,
          .n_passes = 4,
          .max_norm = 1,
        };

        assert_like_whole (&settings, 2);
      }
}

/* Gradients are longer than that. */
static void
test_clipping (void)
{
  for (int split = 0; split < TEST_N_MESH_SPLITS; split++)
    {
      const TestMesh settings = { .n_tensor = 2, .split = (TestMeshSplit) split, .max_norm = 0.1 };

      assert_like_whole (&settings, 2);
    }
}

static double
clip (EbbModule *model, GError **error)
{
  guint n;
  g_autofree EbbTensor **parameters = ebb_module_get_parameters (model, TRUE, &n);
  double norm;

  g_assert_true (test_clip_grads_of (parameters, n, 1e-3, 2, &norm, error));
  for (guint i = 0; i < n; i++)
    ebb_tensor_unref (parameters[i]);
  return norm;
}

/* Data ranks shard one block alone, with the same rows on all of them: some parameters are sharded, some divided, some
 * both, some neither. */
static gboolean
run_partly_sharded (EbbProcessGroup *group, gpointer user_data, GError **error)
{
  static const char *const names[] = { "data", "tensor" };
  static const gint64 sizes[] = { 2, 2 };
  g_autoptr (EbbMesh) mesh = ebb_mesh_new (group, names, sizes, 2, error);
  g_autoptr (EbbModule) model = test_ranks_model (2, 0, 7);
  g_autoptr (EbbModule) whole = test_ranks_model (2, 0, 7);
  g_autoptr (EbbModule) block = ebb_module_get_child (model, "h.0");
  g_autoptr (EbbModule) divided = ebb_parallelize (model, ebb_mesh_get_group (mesh, "tensor"), NULL, error);
  g_autoptr (EbbModule) sharded = ebb_fully_shard (block, ebb_mesh_get_group (mesh, "data"), NULL, error);
  EbbModule *models[] = { model, whole };
  double norms[2];

  if (divided == NULL || sharded == NULL)
    return FALSE;
  for (guint i = 0; i < 2; i++)
    {
      g_autoptr (EbbTensor) loss = test_ranks_loss (models[i], 0, 0, 4, error);

      if (loss == NULL || !ebb_tensor_backward (loss, error))
        return FALSE;
      norms[i] = clip (models[i], error);
    }
  g_assert_cmpfloat_with_epsilon (norms[0], norms[1], 1e-5 * norms[1]);
  return TRUE;
}

static void
test_partly_sharded (void)
{
  test_ranks_run (4, run_partly_sharded, NULL);
}

/* With dropout, which needs the generators to be where they were; and twice the same run gives the same bits. */
static void
test_checkpoints (void)
{
  for (int split = 0; split < TEST_N_MESH_SPLITS; split++)
    for (int sequence = 0; sequence < 2; sequence++)
      {
        TestMesh settings = {
          .n_tensor = 2,
          .split = (TestMeshSplit) split,
          .sequence_parallel = sequence,
          .max_norm = 1,
          .dropout = 0.1,
        };
        g_autoptr (TestRanksResult) plain = test_mesh_train (&settings, 2, get_n_steps (), NULL);
        g_autoptr (TestRanksResult) again = test_mesh_train (&settings, 2, get_n_steps (), NULL);

        test_ranks_assert_same (plain, again);
        for (int checkpoint = 1; checkpoint < TEST_N_MESH_CHECKPOINTS; checkpoint++)
          {
            g_autoptr (TestRanksResult) result = NULL;

            settings.checkpoint = (TestMeshCheckpoint) checkpoint;
            result = test_mesh_train (&settings, 2, get_n_steps (), NULL);
            test_ranks_assert_same (plain, result);
          }
      }
}

/* Parameters that tensor-parallel ranks have alike stay alike to the bit, which test_mesh_train () checks, though their
 * moments are rounded at random. */
static void
test_moments (void)
{
  for (int split = 0; split < TEST_N_MESH_SPLITS; split++)
    {
      const TestMesh settings = {
        .n_tensor = 2,
        .split = (TestMeshSplit) split,
        .moments = EBB_MOMENT_FORMAT_BF16,
        .max_norm = 1,
      };
      g_autoptr (TestRanksResult) result = test_mesh_train (&settings, 2, get_n_steps (), NULL);
      g_autoptr (TestRanksResult) whole = train_whole (&settings);

      test_ranks_assert_near (whole, result, 1e-4);
    }
}

/* Between data ranks no more is sent than without tensor-parallel ranks, and among these nothing for their sake. */
static void
test_collectives (void)
{
  for (int split = 0; split < TEST_N_MESH_SPLITS; split++)
    for (int sequence = 0; sequence < 2; sequence++)
      {
        TestMesh settings = { .split = (TestMeshSplit) split, .max_norm = 1 };
        guint64 without[EBB_N_COLLECTIVES], with[EBB_N_COLLECTIVES], none[EBB_N_COLLECTIVES];
        g_autoptr (TestRanksResult) data = test_mesh_train (&settings, 2, 2, without);
        g_autoptr (TestRanksResult) both = NULL;
        g_autoptr (TestRanksResult) tensor = NULL;

        settings.n_tensor = 2;
        settings.sequence_parallel = sequence;
        both = test_mesh_train (&settings, 2, 2, with);
        tensor = test_mesh_train (&settings, 1, 2, none);
        for (guint i = 0; i < EBB_N_COLLECTIVES; i++)
          {
            g_assert_cmpuint (with[i], ==, without[i]);
            g_assert_cmpuint (both->n_calls[i], ==, tensor->n_calls[i]);
          }
        /* Of two layers four each, one of the embedding and one of the output layer's input. */
        if (!sequence)
          g_assert_cmpuint (both->n_calls[EBB_COLLECTIVE_ALL_REDUCE], <=, 4 * 2 + 2);
      }
}

int
main (int argc, char **argv)
{
  test_init (&argc, &argv);
  g_test_add_func ("/parallel-mesh/losses-are-those-of-the-whole-model", test_splits);
  g_test_add_func ("/parallel-mesh/hybrid-shards-are-those-of-the-whole-model", test_hybrid);
  g_test_add_func ("/parallel-mesh/sequence-parallel-losses-are-those-of-the-whole-model", test_sequence);
  g_test_add_func ("/parallel-mesh/passes-without-sync-add-up", test_accumulation);
  g_test_add_func ("/parallel-mesh/clipping-is-that-of-the-whole-gradients", test_clipping);
  g_test_add_func ("/parallel-mesh/norms-are-those-of-the-whole-where-a-part-is-sharded", test_partly_sharded);
  g_test_add_func ("/parallel-mesh/checkpoints-change-no-bit", test_checkpoints);
  g_test_add_func ("/parallel-mesh/moments-of-few-bits-drift-nowhere", test_moments);
  g_test_add_func ("/parallel-mesh/each-kind-of-ranks-sends-its-own", test_collectives);
  return g_test_run ();
}
