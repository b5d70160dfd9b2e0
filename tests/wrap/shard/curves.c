/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: slow cpu-only */
#include "support/device.h"
#include "support/ranks.h"

#include <ebb/ebb.h>

/* A sharded model learns what the model on one rank learns, however it is wrapped and on any number of ranks. */

typedef enum
{
  NO_CHECKPOINT,
  INSIDE,  /* sharded (checkpointed (block)) */
  OUTSIDE, /* checkpointed (sharded (block)) */
  AROUND,  /* checkpointed (sharded (model)) */
} Nesting;

typedef struct
{
  const char *name;
  EbbReshard reshard;
  Nesting nesting;
  gboolean flatten, no_prefetch, hybrid, root_alone, offload;
  double predivide;
  const char *compute, *reduce;
} Way;

static const Way ways[] = {
  { "auto" },
  { "always", .reshard = EBB_RESHARD_ALWAYS },
  { "never", .reshard = EBB_RESHARD_NEVER },
  { "flatten", .flatten = TRUE },
  { "without-prefetch", .no_prefetch = TRUE },
  { "one-unit", .root_alone = TRUE },
  { "one-unit-flattened", .root_alone = TRUE, .flatten = TRUE },
  { "checkpoint-inside", .nesting = INSIDE },
  { "checkpoint-inside-flattened", .nesting = INSIDE, .flatten = TRUE },
  { "checkpoint-outside", .nesting = OUTSIDE },
  { "checkpoint-outside-always", .nesting = OUTSIDE, .reshard = EBB_RESHARD_ALWAYS },
  { "checkpoint-around", .nesting = AROUND },
  { "checkpoint-outside-never", .nesting = OUTSIDE, .reshard = EBB_RESHARD_NEVER },
  { "predivide", .predivide = 2 },
  { "offload", .offload = TRUE },
  { "hybrid", .hybrid = TRUE },
  { "hybrid-flattened-checkpoint-inside", .hybrid = TRUE, .flatten = TRUE, .nesting = INSIDE },
};

static gboolean
checkpoint (EbbModule *gpt,
            gboolean whole,
            GError **error)
{
  g_autoptr (EbbModule) same = NULL;

  if (!whole)
    return ebb_checkpoint_wrap_each (gpt, EBB_TYPE_TRANSFORMER_BLOCK, NULL, error);
  same = ebb_checkpoint_wrapper (gpt, NULL, error);
  return same != NULL;
}

static gboolean
set_dtypes (EbbFullyShardOptions *options,
            const Way *way,
            GError **error)
{
  EbbDType dtype;

  return (way->compute == NULL
          || (ebb_dtype_from_name (way->compute, &dtype, error)
              && ebb_fully_shard_options_set_compute_dtype (options, dtype, error)))
         && (way->reduce == NULL
             || (ebb_dtype_from_name (way->reduce, &dtype, error)
                 && ebb_fully_shard_options_set_reduce_dtype (options, dtype, error)));
}

static gboolean
shard (EbbModule *gpt,
       EbbProcessGroup *group,
       gconstpointer data,
       GError **error)
{
  static const char *const names[] = { "data", "shard" };
  const Way *way = data;
  g_autoptr (EbbFullyShardOptions) options = ebb_fully_shard_options_new ();
  g_autoptr (EbbMesh) mesh = NULL;

  g_object_set (options, "reshard-after-forward", way->reshard, "flatten", way->flatten, "prefetch", !way->no_prefetch,
                "predivide-factor", (double) way->predivide, "offload", way->offload, NULL);
  if (!set_dtypes (options, way, error) || (way->nesting == INSIDE && !checkpoint (gpt, FALSE, error)))
    return FALSE;
  if (way->hybrid)
    {
      const gint64 sizes[] = { -1, ebb_process_group_get_size (group) % 2 == 0 ? 2 : 1 };

      mesh = ebb_mesh_new (group, names, sizes, 2, error);
      if (mesh == NULL)
        return FALSE;
      g_object_set (options, "replicate-group", ebb_mesh_get_group (mesh, "data"), NULL);
      group = ebb_mesh_get_group (mesh, "shard");
    }
  if (way->root_alone)
    {
      g_autoptr (EbbModule) same = ebb_fully_shard (gpt, group, options, error);

      return same != NULL;
    }
  return ebb_fully_shard_wrap_each (gpt, EBB_TYPE_TRANSFORMER_BLOCK, group, options, error)
         && (way->nesting != OUTSIDE || checkpoint (gpt, FALSE, error))
         && (way->nesting != AROUND || checkpoint (gpt, TRUE, error));
}

static TestRanksResult *
train_whole (const TestRanks *like)
{
  TestRanks whole = *like;

  whole.n_ranks = 1;
  whole.strategy = NULL;
  return test_ranks_train (&whole);
}

/* -- losses -------------------------------------------------------------------------------------------------------- */

static void
compare (const Way *way,
         TestRanks *ranks,
         guint from,
         guint to)
{
  g_autoptr (TestRanksResult) whole = train_whole (ranks);

  ranks->strategy = shard;
  ranks->data = way;
  for (guint n = from; n <= to; n++)
    {
      g_autoptr (TestRanksResult) sharded = NULL;

      ranks->n_ranks = n;
      g_test_message ("%s on %u", way->name, n);
      sharded = test_ranks_train (ranks);
      test_ranks_assert_near (whole, sharded, 1e-6);
    }
}

static void
test_losses (gconstpointer data)
{
  TestRanks ranks = { .n_steps = 20 };

  compare (data, &ranks, 1, 4);
}

static void
test_accumulation (void)
{
  for (guint i = 0; i < G_N_ELEMENTS (ways); i += 3)
    {
      TestRanks ranks = { .n_steps = 20, .n_passes = 2 };
      TestRanks synced = { .n_steps = 20, .n_passes = 2, .syncs_all = TRUE };

      compare (&ways[i], &ranks, 3, 3);
      compare (&ways[i], &synced, 3, 3);
    }
}

static void
test_clipping (void)
{
  for (guint i = 0; i < G_N_ELEMENTS (ways); i += 2)
    {
      TestRanks ranks = { .n_steps = 20, .max_norm = 0.5 };

      compare (&ways[i], &ranks, 2, 4);
    }
}

static void
test_optimizer (void)
{
  TestRanks first = { .n_steps = 20, .optimizer_is_first = TRUE };
  TestRanks in_backward = { .n_steps = 20, .steps_in_backward = TRUE };

  compare (&ways[0], &first, 2, 3);
  compare (&ways[8], &in_backward, 2, 3);
}

/* One rank has everything, and nothing is rounded on the way. */
static void
test_one_rank (void)
{
  TestRanks ranks = { .n_steps = 5, .dropout = 0.1, .max_norm = 0.5 };
  g_autoptr (TestRanksResult) whole = train_whole (&ranks);

  ranks.strategy = shard;
  for (guint i = 0; i < G_N_ELEMENTS (ways); i++)
    if (ways[i].predivide == 0)
      {
        g_autoptr (TestRanksResult) sharded = NULL;

        ranks.data = &ways[i];
        g_test_message ("%s", ways[i].name);
        sharded = test_ranks_train (&ranks);
        for (guint j = 0; j < whole->n_steps; j++)
          g_assert_cmpfloat (whole->losses[j], ==, sharded->losses[j]);
      }
}

static void
test_twice (void)
{
  for (guint i = 0; i < G_N_ELEMENTS (ways); i++)
    {
      const TestRanks ranks = { .n_ranks = 3,
                                .n_steps = 5,
                                .dropout = 0.1,
                                .max_norm = 0.5,
                                .strategy = shard,
                                .data = &ways[i] };
      g_autoptr (TestRanksResult) a = test_ranks_train (&ranks);
      g_autoptr (TestRanksResult) b = test_ranks_train (&ranks);

      test_ranks_assert_same (a, b);
    }
}

/* Checkpoints change nothing, with dropout, to the last bit. */
static void
test_checkpoint_bits (void)
{
  const Way plain = { "auto" };
  TestRanks ranks = { .n_ranks = 3, .n_steps = 5, .dropout = 0.1, .strategy = shard, .data = &plain };
  g_autoptr (TestRanksResult) without = test_ranks_train (&ranks);

  for (int nesting = INSIDE; nesting <= AROUND; nesting++)
    {
      const Way way = { "nested", .nesting = (Nesting) nesting };
      g_autoptr (TestRanksResult) with = NULL;

      ranks.data = &way;
      with = test_ranks_train (&ranks);
      test_ranks_assert_same (without, with);
    }
}

static void
test_mixed_precision (void)
{
  static const Way mixed[] = { { "bf16", .compute = "bf16", .reduce = "f32" },
                               { "bf16 all", .compute = "bf16" },
                               { "bf16 reduce", .reduce = "bf16" },
                               { "bf16 checkpoint", .compute = "bf16", .reduce = "f32", .nesting = INSIDE },
                               { "bf16 flat", .compute = "bf16", .reduce = "f32", .flatten = TRUE } };

  for (guint i = 0; i < G_N_ELEMENTS (mixed); i++)
    {
      TestRanks ranks = { .n_steps = 20 };
      g_autoptr (TestRanksResult) whole = train_whole (&ranks);
      g_autoptr (TestRanksResult) sharded = NULL;

      ranks.strategy = shard;
      ranks.n_ranks = 2;
      ranks.data = &mixed[i];
      sharded = test_ranks_train (&ranks);
      g_test_message ("%s: %.9g for %.9g", mixed[i].name, sharded->losses[19], whole->losses[19]);
      test_ranks_assert_near (whole, sharded, 1e-2);
      g_assert_cmpfloat (sharded->losses[19], !=, whole->losses[19]);
    }
}

int
main (int argc,
      char **argv)
{
  test_init (&argc, &argv);
  for (guint i = 0; i < G_N_ELEMENTS (ways); i++)
    {
      g_autofree char *path = g_strconcat ("/fully-shard/losses-are-the-whole-model's/", ways[i].name, NULL);

      g_test_add_data_func (path, &ways[i], test_losses);
    }
  g_test_add_func ("/fully-shard/losses-are-the-whole-model's-with-accumulation", test_accumulation);
  g_test_add_func ("/fully-shard/losses-are-the-whole-model's-with-clipping", test_clipping);
  g_test_add_func ("/fully-shard/losses-are-the-whole-model's-with-other-optimizers", test_optimizer);
  g_test_add_func ("/fully-shard/one-rank-is-bitwise-equal", test_one_rank);
  g_test_add_func ("/fully-shard/ranks-twice-are-bitwise-equal", test_twice);
  g_test_add_func ("/fully-shard/checkpoints-are-bitwise-equal", test_checkpoint_bits);
  g_test_add_func ("/fully-shard/mixed-precision-learns", test_mixed_precision);
  return g_test_run ();
}
