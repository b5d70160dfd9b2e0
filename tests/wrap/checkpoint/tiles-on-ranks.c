/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: private-headers cpu-only */
#include "support/tensor-parallel.h"
#include "support/tensors.h"
#include "support/training.h"

#include <string.h>

/* Modules in tiles on ranks that are threads: with sharded parameters, and where tensor ranks share the MLP. */

static gboolean
train_sharded (EbbProcessGroup *group,
               gpointer data,
               GError **error)
{
  TestOutcome *outcomes[2];

  ebb_set_num_threads (1);
  for (guint i = 0; i < 2; i++)
    {
      g_autoptr (EbbTensor) x = test_randn (3, 2000 + 960 * ebb_process_group_get_rank (group), 8, -1);
      g_autoptr (EbbModule) chain = NULL;
      g_autoptr (EbbModule) middle = NULL;
      g_autoptr (EbbModule) same = NULL;
      g_autoptr (GError) refused = NULL;

      ebb_manual_seed (1);
      chain = test_chain_new (ebb_linear_new (8, 8, TRUE, NULL), test_mlp_new (4), ebb_linear_new (8, 8, TRUE, NULL),
                              NULL);
      middle = ebb_module_get_child (chain, "1");
      if (i == 1)
        g_object_unref (ebb_tile_wrapper (middle, 0, NULL));
      g_object_unref (ebb_fully_shard (middle, group, NULL, error));
      same = ebb_fully_shard (chain, group, NULL, error);
      if (same == NULL)
        return FALSE;
      g_assert_null (ebb_tile_wrapper (middle, 0, &refused));
      test_assert_error (refused, EBB_ERROR_NOT_SUPPORTED, "sharded already", "before");
      ebb_tensor_set_requires_grad (x, TRUE, NULL);
      outcomes[i] = test_train1 (chain, x);
    }
  test_assert_same_outcome (outcomes[0], outcomes[1]);
  test_outcome_free (outcomes[0]);
  test_outcome_free (outcomes[1]);
  return TRUE;
}

/* The ranks have different numbers of tiles, and gather each unit once all the same. */
static void
sharded_ranks_get_the_gradients_of_untiled_ones (void)
{
  g_autoptr (GError) error = NULL;

  ebb_run_ranks (2, train_sharded, NULL, &error);
  g_assert_no_error (error);
}

static gboolean
tile_mlps (const TestParallel *self,
           EbbModule *model,
           EbbProcessGroup *group,
           GError **error)
{
  return ebb_tile_wrap_each (model, EBB_TYPE_MLP, 8, error);
}

static void
tensor_ranks_get_the_gradients_of_untiled_ones (void)
{
  for (guint i = 0; i < 4; i++)
    {
      const TestParallel plain = { .n_ranks = 2,
                                   .is_sequence_parallel = i & 1,
                                   .is_checkpointed = (i & 2) != 0,
                                   .decoder = i == 2 ? "llama2" : NULL };
      TestParallel tiled = plain;
      g_autoptr (TestParallelResult) expected = test_parallel_run (&plain);
      g_autoptr (TestParallelResult) result = NULL;

      tiled.prepare = tile_mlps;
      result = test_parallel_run (&tiled);
      test_parallel_assert_near (expected, result, 2e-5);
    }
}

int
main (int argc,
      char **argv)
{
  g_test_init (&argc, &argv, NULL);
  g_test_add_func ("/tiles/sharded-ranks-get-the-gradients-of-untiled-ones",
                   sharded_ranks_get_the_gradients_of_untiled_ones);
  g_test_add_func ("/tiles/tensor-ranks-get-the-gradients-of-untiled-ones",
                   tensor_ranks_get_the_gradients_of_untiled_ones);
  return g_test_run ();
}
