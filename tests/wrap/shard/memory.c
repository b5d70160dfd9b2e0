/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: cpu-only */
#include "support/device.h"
#include "support/ranks.h"

#include <ebb/ebb.h>

/* The memory of a rank, by its own counters, and the bytes that it sends, against the formulas of Rajbhandari et al.,
 * "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", 2020: with P bytes of parameters, of which a
 * rank sends (N - 1) / N in each gather and each reduce-scatter: 2 P with sharded gradients and states, 3 P with
 * sharded parameters. */

#define N_LAYERS 6
#define N_ROWS 8

typedef struct
{
  guint64 parameters, root, block; /* bytes, unsharded */
} Sizes;

static EbbModule *
make_gpt (Sizes *sizes)
{
  EbbModule *gpt = test_ranks_model (N_LAYERS, 0, 1);
  g_autoptr (EbbModule) blocks = ebb_module_get_child (gpt, "h");
  g_autoptr (EbbModule) block = ebb_module_get_child (blocks, "0");

  sizes->parameters = 4 * ebb_module_count_parameters (gpt);
  sizes->block = 4 * ebb_module_count_parameters (block);
  sizes->root = sizes->parameters - N_LAYERS * sizes->block;
  return gpt;
}

static guint64
get_current (EbbPurpose purpose)
{
  g_autoptr (EbbMemoryStats) stats = ebb_memory_get_stats (test_device ());

  return ebb_memory_stats_get_current (stats, purpose);
}

static guint64
get_peak (EbbPurpose purpose)
{
  g_autoptr (EbbMemoryStats) stats = ebb_memory_get_stats (test_device ());

  return ebb_memory_stats_get_peak (stats, purpose);
}

static void
assert_share (guint64 n_bytes,
              double whole,
              guint n_ranks)
{
  g_assert_cmpfloat ((double) n_bytes, >=, 0.95 * whole / n_ranks);
  g_assert_cmpfloat ((double) n_bytes, <=, 1.05 * whole / n_ranks);
}

static void
shard (EbbModule *gpt,
       EbbProcessGroup *group,
       EbbReshard reshard,
       gboolean flatten)
{
  g_autoptr (EbbFullyShardOptions) options = ebb_fully_shard_options_new ();
  g_autoptr (GError) error = NULL;

  g_object_set (options, "reshard-after-forward", reshard, "flatten", flatten, NULL);
  ebb_fully_shard_wrap_each (gpt, EBB_TYPE_TRANSFORMER_BLOCK, group, options, &error);
  g_assert_no_error (error);
}

static void
run_backward (EbbModule *gpt,
              EbbProcessGroup *group)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) loss = test_ranks_loss (gpt, 0, ebb_process_group_get_rank (group), 1, &error);

  g_assert_no_error (error);
  ebb_tensor_backward (loss, &error);
  g_assert_no_error (error);
}

static gboolean
check_memory (EbbProcessGroup *group,
              gpointer user_data,
              GError **error)
{
  const guint n = ebb_process_group_get_size (group);

  for (int i = 0; i < 8; i++)
    {
      const gboolean flatten = i % 2, checkpointed = i / 2 % 2, outside = i / 4;
      Sizes sizes;
      g_autoptr (EbbModule) gpt = make_gpt (&sizes);
      g_autoptr (EbbOptimizer) optimizer = ebb_adamw_new (gpt, 1e-3, error);

      if (checkpointed && !outside)
        ebb_checkpoint_wrap_each (gpt, EBB_TYPE_TRANSFORMER_BLOCK, NULL, error);
      shard (gpt, group, EBB_RESHARD_AUTO, flatten);
      if (checkpointed && outside)
        ebb_checkpoint_wrap_each (gpt, EBB_TYPE_TRANSFORMER_BLOCK, NULL, error);
      assert_share (get_current (EBB_PURPOSE_PARAMETER), (double) sizes.parameters, n);
      for (int j = 0; j < 3; j++)
        {
          const guint64 shards = get_current (EBB_PURPOSE_PARAMETER);

          ebb_memory_reset_peaks (test_device ());
          run_backward (gpt, group);
          assert_share (get_current (EBB_PURPOSE_PARAMETER), (double) sizes.parameters, n);
          assert_share (get_current (EBB_PURPOSE_GRADIENT), (double) sizes.parameters, n);
          if (n > 1)
            {
              /* The root and two units; of gradients those of the root, of the unit that is reduced and of the next. */
              g_assert_cmpuint (get_peak (EBB_PURPOSE_PARAMETER) - shards, <=, sizes.root + 2 * sizes.block);
              g_assert_cmpuint (get_peak (EBB_PURPOSE_GRADIENT), <=,
                                sizes.parameters / n * 21 / 20 + sizes.root + 2 * sizes.block + sizes.block / n);
            }
          ebb_optimizer_step (optimizer, error);
          ebb_optimizer_zero_grad (optimizer);
          g_assert_no_error (*error);
          assert_share (get_current (EBB_PURPOSE_OPTIMIZER), 2 * (double) sizes.parameters, n);
          g_assert_cmpuint (get_current (EBB_PURPOSE_GRADIENT), ==, 0);
        }
    }
  return TRUE;
}

static void
assert_bytes (EbbProcessGroup *group,
              EbbCollective which,
              double expected)
{
  const double n_bytes = (double) ebb_process_group_get_n_bytes (group, which);

  g_assert_cmpfloat (n_bytes, >=, 0.99 * expected);
  g_assert_cmpfloat (n_bytes, <=, 1.01 * expected);
}

static gboolean
check_bytes (EbbProcessGroup *group,
             gpointer user_data,
             GError **error)
{
  const double n = ebb_process_group_get_size (group), part = (n - 1) / n;

  for (int i = 0; i < 6; i++)
    {
      static const EbbReshard reshards[] = { EBB_RESHARD_ALWAYS, EBB_RESHARD_NEVER, EBB_RESHARD_AUTO };
      const EbbReshard reshard = reshards[i / 2];
      Sizes sizes;
      g_autoptr (EbbModule) gpt = make_gpt (&sizes);
      const double p = (double) sizes.parameters;

      shard (gpt, group, reshard, i % 2);
      run_backward (gpt, group);
      ebb_process_group_reset_counters (group);
      run_backward (gpt, group);
      assert_bytes (group, EBB_COLLECTIVE_REDUCE_SCATTER, part * p);
      assert_bytes (group, EBB_COLLECTIVE_ALL_GATHER,
                    part
                        * (reshard == EBB_RESHARD_ALWAYS  ? 2 * p
                           : reshard == EBB_RESHARD_NEVER ? p
                                                          : 2 * p - (double) sizes.root));
    }
  {
    Sizes sizes;
    g_autoptr (EbbModule) gpt = make_gpt (&sizes);
    g_autoptr (EbbModule) same = ebb_replicate (gpt, group, NULL, error);

    g_assert_no_error (*error);
    ebb_process_group_reset_counters (group);
    run_backward (gpt, group);
    assert_bytes (group, EBB_COLLECTIVE_ALL_REDUCE, 2 * part * (double) sizes.parameters);
  }
  return TRUE;
}

static void
test_ranks (gconstpointer data)
{
  for (guint n = 1; n <= 8; n *= 2)
    test_ranks_run (n, *(const EbbRankFunc *) data, NULL);
}

static const EbbRankFunc memory_func = check_memory, bytes_func = check_bytes;

int
main (int argc,
      char **argv)
{
  test_init (&argc, &argv);
  g_test_add_data_func ("/fully-shard/memory", &memory_func, test_ranks);
  g_test_add_data_func ("/fully-shard/bytes", &bytes_func, test_ranks);
  return g_test_run ();
}
