/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/architectures.h"
#include "support/device.h"
#include "support/partitions.h"
#include "support/ranks.h"
#include "support/shard-runs.h"
#include "support/stores.h"
#include "support/tensors.h"

#include <math.h>
#include <string.h>

/* Every architecture trained with checkpoints, stores, sharding and tensor ranks: to the last bit as without them, and
 * on tensor ranks, which add in another order, as near to transformers as without. */

#define STEPS 4

typedef struct
{
  double losses[STEPS];
  guint64 hash; /* of the parameters after them */
} Outcome;

typedef enum
{
  STORE_NONE,
  STORE_HOST,
  STORE_DISK,
  STORE_CONTIGUOUS
} Store;

typedef struct
{
  const char *name;
  gboolean is_checkpointed, is_selective, takes_all; /* all that is saved for backward goes to the store */
  Store store;
} Way;

static const Way ways[] = {
  { "full", TRUE, FALSE, FALSE, STORE_NONE },
  { "selective", TRUE, TRUE, FALSE, STORE_NONE },
  { "full, inputs on the host", TRUE, FALSE, FALSE, STORE_HOST },
  { "full, inputs on the disk", TRUE, FALSE, FALSE, STORE_DISK },
  { "full, inputs in contiguous memory", TRUE, FALSE, FALSE, STORE_CONTIGUOUS },
  { "selective, inputs on the host", TRUE, TRUE, FALSE, STORE_HOST },
  { "all that is saved on the host", FALSE, FALSE, TRUE, STORE_HOST },
  { "all that is saved on the disk", FALSE, FALSE, TRUE, STORE_DISK },
};

static EbbSavedTensorHooks *
make_store (Store kind, const char *folder)
{
  g_autoptr (GError) error = NULL;
  EbbSavedTensorHooks *store = NULL;

  if (kind == STORE_HOST)
    store = ebb_host_store_new ();
  else if (kind == STORE_DISK)
    store = test_disk_store_new (folder);
  else if (kind == STORE_CONTIGUOUS)
    store = ebb_contiguous_store_new (8, NULL, &error);
  g_assert_no_error (error);
  return store;
}

static void
checkpoint (EbbModule *model, gboolean is_selective, EbbSavedTensorHooks *store)
{
  g_autoptr (EbbCheckpointOptions) options =
      is_selective ? ebb_checkpoint_options_new_selective () : ebb_checkpoint_options_new ();
  g_autoptr (GError) error = NULL;

  if (store != NULL)
    ebb_checkpoint_options_set_store (options, store);
  ebb_checkpoint_wrap_each (model, EBB_TYPE_TRANSFORMER_BLOCK, options, &error);
  g_assert_no_error (error);
}

static void
train (EbbModule *model, EbbArgs *expected, Outcome *outcome)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbOptimizer) optimizer = test_architecture_optimizer (model, &error);

  g_assert_no_error (error);
  test_architecture_train (model, optimizer, expected, STEPS, outcome->losses, &error);
  g_assert_no_error (error);
}

static void
assert_same (const Outcome *outcome, const Outcome *plain, const char *what)
{
  if (memcmp (outcome->losses, plain->losses, sizeof plain->losses) != 0 || outcome->hash != plain->hash)
    g_error ("%s: losses %.9g to %.9g, without %.9g to %.9g; parameters %s", what, outcome->losses[0],
             outcome->losses[STEPS - 1], plain->losses[0], plain->losses[STEPS - 1],
             outcome->hash == plain->hash ? "the same" : "others");
}

static void
train_plain (const TestArchitecture *architecture, EbbArgs *expected, Outcome *outcome)
{
  g_autoptr (EbbModule) model = test_architecture_open (architecture);

  train (model, expected, outcome);
  outcome->hash = test_ranks_hash (model);
}

/* -- one rank ------------------------------------------------------------------------------------------------------ */

static void
run_way (const TestArchitecture *architecture, EbbArgs *expected, const Way *way, const char *folder, Outcome *outcome)
{
  g_autoptr (EbbModule) model = test_architecture_open (architecture);
  g_autoptr (EbbSavedTensorHooks) store = make_store (way->store, folder);

  if (way->is_checkpointed)
    checkpoint (model, way->is_selective, store);
  if (way->takes_all)
    ebb_push_saved_tensor_hooks (store);
  train (model, expected, outcome);
  if (way->takes_all)
    ebb_pop_saved_tensor_hooks ();
  outcome->hash = test_ranks_hash (model);
}

static void
checkpoints_and_stores_change_no_bit (gconstpointer data)
{
  g_autoptr (EbbArgs) expected = test_architecture_load_expected (data);
  g_autofree char *folder = test_make_folder ();
  Outcome plain;

  train_plain (data, expected, &plain);
  for (guint i = 0; i < G_N_ELEMENTS (ways); i++)
    {
      Outcome outcome;

      run_way (data, expected, &ways[i], folder, &outcome);
      assert_same (&outcome, &plain, ways[i].name);
    }
  test_remove_folder (folder);
}

/* -- many ranks ---------------------------------------------------------------------------------------------------- */

typedef struct
{
  const TestArchitecture *architecture;
  EbbArgs *expected;
  gboolean is_checkpointed;
  gboolean is_sequence_parallel;
  TestBehind behind; /* the partitioned store */
  Outcome outcomes[2];
} Ranks;

/* Both ranks have the same model and rows, and each stores one half of what is saved. */
static gboolean
run_partitioned (EbbProcessGroup *group, gpointer user_data, GError **error)
{
  Ranks *self = user_data;
  Outcome *outcome = &self->outcomes[ebb_process_group_get_rank (group)];
  g_autoptr (EbbModule) model = test_architecture_open (self->architecture);
  g_autoptr (EbbSavedTensorHooks) store = test_partitioned_store_new (group, self->behind);

  if (self->is_checkpointed)
    checkpoint (model, FALSE, store);
  else
    ebb_push_saved_tensor_hooks (store);
  train (model, self->expected, outcome);
  if (!self->is_checkpointed)
    ebb_pop_saved_tensor_hooks ();
  outcome->hash = test_ranks_hash (model);
  return TRUE;
}

static void
partitioned_stores_change_no_bit (gconstpointer data)
{
  static const struct
  {
    const char *name;
    TestBehind behind;
    gboolean is_checkpointed;
  } cases[] = { { "full, inputs partitioned", TEST_BEHIND_NOTHING, TRUE },
                { "full, inputs partitioned on the host", TEST_BEHIND_CONTIGUOUS_HOST, TRUE },
                { "all that is saved partitioned", TEST_BEHIND_NOTHING, FALSE } };
  g_autoptr (EbbArgs) expected = test_architecture_load_expected (data);
  Outcome plain;

  train_plain (data, expected, &plain);
  for (guint i = 0; i < G_N_ELEMENTS (cases); i++)
    {
      Ranks ranks = { .architecture = data,
                      .expected = expected,
                      .is_checkpointed = cases[i].is_checkpointed,
                      .behind = cases[i].behind };

      test_ranks_run (2, run_partitioned, &ranks);
      for (guint j = 0; j < 2; j++)
        assert_same (&ranks.outcomes[j], &plain, cases[i].name);
    }
}

/* Both ranks have all rows, so that the mean of their gradients is each one's to the last bit. */
static gboolean
run_sharded (EbbProcessGroup *group, gpointer user_data, GError **error)
{
  Ranks *self = user_data;
  Outcome *outcome = &self->outcomes[ebb_process_group_get_rank (group)];
  g_autoptr (EbbModule) model = test_architecture_open (self->architecture);

  if (self->is_checkpointed)
    checkpoint (model, FALSE, NULL);
  if (!ebb_fully_shard_wrap_each (model, EBB_TYPE_TRANSFORMER_BLOCK, group, NULL, error))
    return FALSE;
  train (model, self->expected, outcome);
  if (!ebb_summon_full_params (model, error))
    return FALSE;
  outcome->hash = test_ranks_hash (model);
  return ebb_release_full_params (model, FALSE, error);
}

static void
sharded_ranks_change_no_bit (gconstpointer data)
{
  g_autoptr (EbbArgs) expected = test_architecture_load_expected (data);
  Outcome plain;

  train_plain (data, expected, &plain);
  for (guint i = 0; i < 2; i++)
    {
      Ranks ranks = { .architecture = data, .expected = expected, .is_checkpointed = i == 1 };

      test_ranks_run (2, run_sharded, &ranks);
      for (guint j = 0; j < 2; j++)
        assert_same (&ranks.outcomes[j], &plain, i == 1 ? "sharded and checkpointed" : "sharded");
    }
}

/* -- tensor ranks -------------------------------------------------------------------------------------------------- */

static gboolean
run_parallel (EbbProcessGroup *group, gpointer user_data, GError **error)
{
  Ranks *self = user_data;
  Outcome *outcome = &self->outcomes[ebb_process_group_get_rank (group)];
  g_autoptr (EbbModule) model = test_architecture_open (self->architecture);
  g_autoptr (EbbParallelOptions) options = ebb_parallel_options_new ();
  g_autoptr (EbbModule) same = NULL;

  g_object_set (options, "sequence-parallel", self->is_sequence_parallel, NULL);
  same = ebb_parallelize (model, group, options, error);
  if (same == NULL)
    return FALSE;
  if (self->is_checkpointed)
    checkpoint (model, FALSE, NULL);
  train (model, self->expected, outcome);
  return TRUE;
}

static void
tensor_ranks_are_as_near_as_one (gconstpointer data)
{
  g_autoptr (EbbArgs) expected = test_architecture_load_expected (data);
  Outcome plain[2];

  for (guint i = 0; i < 4; i++)
    {
      const gboolean is_sequence_parallel = i >= 2;
      Ranks ranks = { .architecture = data,
                      .expected = expected,
                      .is_checkpointed = i % 2 == 1,
                      .is_sequence_parallel = is_sequence_parallel };
      double distance, bound;

      test_ranks_run (2, run_parallel, &ranks);
      distance = test_architecture_compare_losses (expected, ranks.outcomes[0].losses, STEPS, &bound);
      g_test_message ("%s%s: losses %g of %g", is_sequence_parallel ? "along the sequence" : "whole sequences",
                      i % 2 == 1 ? ", checkpointed" : "", distance, bound);
      g_assert_cmpfloat (distance, <=, bound);
      for (guint j = 0; j < 2; j++)
        {
          ranks.outcomes[j].hash = 0;
          assert_same (&ranks.outcomes[j], &ranks.outcomes[0], "the other tensor rank");
        }
      /* Checkpoints change no bit here either. */
      if (i % 2 == 0)
        plain[i / 2] = ranks.outcomes[0];
      else
        assert_same (&ranks.outcomes[0], &plain[i / 2], "checkpointed tensor ranks");
    }
}

/* All on the CPU; on another device those that have the most parts. */
static void
add (const char *path, GTestDataFunc func)
{
  static const char *const few[] = { "qwen2", "gemma3", NULL };

  for (guint i = 0; i < test_n_architectures; i++)
    if (test_device_is_cpu () || g_strv_contains (few, test_architectures[i].name))
      test_add_architecture (path, &test_architectures[i], func);
}

int
main (int argc, char **argv)
{
  test_init (&argc, &argv);
  add ("/architectures/checkpoints-and-stores", checkpoints_and_stores_change_no_bit);
  add ("/architectures/partitioned-stores", partitioned_stores_change_no_bit);
  add ("/architectures/sharded-ranks", sharded_ranks_change_no_bit);
  add ("/architectures/tensor-ranks", tensor_ranks_are_as_near_as_one);
  return g_test_run ();
}
