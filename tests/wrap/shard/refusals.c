/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: cpu-only */
#include "support/device.h"
#include "support/ranks.h"
#include "support/sharding.h"
#include "support/tensors.h"
#include "support/training.h"

#include <ebb/ebb.h>
#include <string.h>

/* The errors of sharded modules, and the state after unwrapping. */

#define N_RANKS 3

/* One rank of four can't shard: all hear of it, those of the other group of shards too. */
static gboolean
check_hybrid_refusal (EbbProcessGroup *group,
                      gpointer user_data,
                      GError **error)
{
  static const char *const names[] = { "data", "shard" };
  const gint64 sizes[] = { 2, 2 };
  g_autoptr (EbbMesh) mesh = ebb_mesh_new (group, names, sizes, 2, error);
  g_autoptr (EbbFullyShardOptions) options = ebb_fully_shard_options_new ();
  g_autoptr (EbbModule) module = test_linear (1, 8, 8);
  g_autoptr (EbbModule) sharded = NULL;
  g_autoptr (GError) failure = NULL;

  g_object_set (options, "replicate-group", ebb_mesh_get_group (mesh, "data"), NULL);
  if (ebb_process_group_get_rank (group) == 1)
    test_shard_step (module, NULL);
  g_assert_null (ebb_fully_shard (module, ebb_mesh_get_group (mesh, "shard"), options, &failure));
  if (ebb_process_group_get_rank (group) == 1)
    test_assert_error (failure, EBB_ERROR_STATE, "has a gradient");
  else
    test_assert_error (failure, EBB_ERROR_PROCESS_GROUP, "has a gradient");
  g_clear_error (&failure);
  ebb_module_zero_grad (module);
  sharded = ebb_fully_shard (module, ebb_mesh_get_group (mesh, "shard"), options, error);
  return sharded != NULL;
}

static void
test_hybrid_refusal (void)
{
  test_ranks_run (4, check_hybrid_refusal, NULL);
}

static void
assert_error (GError **error,
              const char *part)
{
  g_assert_nonnull (*error);
  if (strstr ((*error)->message, part) == NULL)
    g_error ("\"%s\" is not in \"%s\"", part, (*error)->message);
  g_clear_error (error);
}

static gboolean
check_refusals (EbbProcessGroup *group,
                gpointer user_data,
                GError **error)
{
  const guint rank = ebb_process_group_get_rank (group);
  g_autoptr (EbbModule) sharded = test_shard_chain (NULL);
  g_autoptr (EbbModule) trained = test_linear (1, 8, 8);
  g_autoptr (EbbModule) used = test_linear (1, 8, 8);
  g_autoptr (EbbModule) differs = test_linear (1, 8, rank == 2 ? 9 : 8);
  g_autoptr (EbbModule) first = ebb_module_get_child (sharded, "0");
  g_autoptr (EbbTensor) x = test_randn (5, 12, 8, -1);
  g_autoptr (EbbTensor) y = NULL;
  g_autoptr (EbbOptimizer) optimizer = ebb_adamw_new (sharded, 1e-3, error);
  g_autoptr (EbbOptimizer) late = ebb_adamw_new (trained, 1e-3, error);

  test_shard_step (trained, NULL);
  g_assert_null (ebb_fully_shard (trained, group, NULL, error));
  assert_error (error, "weight has a gradient: drop it first");
  ebb_optimizer_step (late, error);
  ebb_optimizer_zero_grad (late);
  test_shard (trained, group, FALSE);
  test_shard_step (trained, group);
  g_assert_false (ebb_optimizer_step (late, error));
  assert_error (error, "shard before the first step");

  y = ebb_module_call1 (used, x, error);
  g_assert_null (ebb_fully_shard (used, group, NULL, error));
  assert_error (error, "weight belongs to a graph whose backward is still to come");

  g_assert_null (ebb_fully_shard (differs, group, NULL, error));
  assert_error (error, "weight f32 [9, 8]");

  test_shard (first, group, FALSE);
  g_assert_null (ebb_fully_shard (first, group, NULL, error));
  assert_error (error, "Linear is sharded already");
  test_shard (sharded, group, FALSE);
  g_assert_false (ebb_release_full_params (sharded, FALSE, error));
  assert_error (error, "was not summoned");
  ebb_summon_full_params (sharded, error);
  g_assert_no_error (*error);
  g_assert_false (test_clip_grad (optimizer, 1, 2, NULL, error));
  assert_error (error, "call ebb_release_full_params () before the optimizer");
  ebb_release_full_params (sharded, FALSE, error);
  g_assert_false (ebb_module_to_dtype (sharded, EBB_DTYPE_BF16, error));
  assert_error (error, "is split over ranks; convert the module before ebb_fully_shard()");
  g_assert_false (ebb_fully_shard_auto_wrap (sharded, 0, group, NULL, error));
  assert_error (error, "it must be 1 or more");
  test_shard_step (sharded, group);
  return TRUE;
}

static gboolean
check_unwrap (EbbProcessGroup *group,
              gpointer user_data,
              GError **error)
{
  g_autoptr (EbbModule) units = test_shard_tied ();
  g_autoptr (EbbModule) whole = test_shard_tied ();
  g_autoptr (EbbModule) first = ebb_module_get_child (units, "0");
  g_autoptr (EbbTensor) x = test_randn (5, 12, 8, -1);
  g_autoptr (EbbTensor) y = NULL;

  test_wrap_leaves (units, NULL);
  test_shard_children (units, group, FALSE);
  y = ebb_module_call1 (units, x, error);
  g_assert_false (ebb_fully_shard_unwrap (units, error));
  assert_error (error, "a graph holds its parameters: run its backward or drop it first");
  g_clear_pointer (&y, ebb_tensor_unref);
  ebb_summon_full_params (units, error);
  g_assert_no_error (*error);
  g_assert_null (ebb_module_call1 (units, x, error));
  assert_error (error, "has full parameters summoned");
  ebb_release_full_params (units, FALSE, error);
  /* One of two units that share a parameter. */
  ebb_fully_shard_unwrap (first, error);
  g_assert_no_error (*error);
  test_shard_step (units, group);
  ebb_module_zero_grad (units);
  ebb_fully_shard_unwrap (units, error);
  g_assert_no_error (*error);
  g_assert_cmpuint (test_ranks_hash (units), ==, test_ranks_hash (whole));
  return TRUE;
}

static gboolean
see_nothing (EbbModule *module,
             EbbArgs *args,
             EbbArgs *result,
             gpointer user_data,
             GError **error)
{
  return TRUE;
}

/* An output product that shares the weight of a unit is a call of this unit, which no hook expects. */
static gboolean
check_hooks_of_a_tied_unit (EbbProcessGroup *group,
                            gpointer user_data,
                            GError **error)
{
  g_autoptr (EbbModule) gpt = test_ranks_model (1, 0, 3);
  g_autoptr (EbbModule) embedding = ebb_module_get_child (gpt, "wte");
  g_autoptr (EbbTensor) loss = NULL;
  guint id = ebb_module_add_forward_hook (embedding, see_nothing, NULL, NULL);

  test_shard (embedding, group, FALSE);
  test_shard (gpt, group, FALSE);
  g_assert_null (test_ranks_loss (gpt, 0, 0, 2, error));
  assert_error (error, "Embedding: an output shares the weight of this module, which is sharded as a unit");
  g_assert_true (ebb_module_remove_hook (embedding, id));
  loss = test_ranks_loss (gpt, 0, 0, 2, error);
  return loss != NULL;
}

/* A rank that can't shard tells the others at once. */
static gboolean
check_one_rank_refuses (EbbProcessGroup *group,
                        gpointer user_data,
                        GError **error)
{
  g_autoptr (EbbModule) layer = test_linear (1, 8, 8);

  if (ebb_process_group_get_rank (group) == 1)
    test_shard_step (layer, NULL);
  g_assert_null (ebb_fully_shard (layer, group, NULL, error));
  assert_error (error, "weight has a gradient: drop it first");
  ebb_module_zero_grad (layer);
  return TRUE;
}

/* Before there are threads: how GLib orders the making of classes is hidden from ThreadSanitizer. */
static void
make_all_types (void)
{
  g_autoptr (EbbModule) chain = test_shard_chain (NULL);
  g_autoptr (EbbOptimizer) optimizer = ebb_adamw_new (chain, 1, NULL);
  g_autoptr (EbbFullyShardOptions) options = ebb_fully_shard_options_new ();

  test_wrap_leaves (chain, NULL);
}

static void
test_ranks (gconstpointer data)
{
  test_ranks_run (N_RANKS, *(const EbbRankFunc *) data, NULL);
}

static const EbbRankFunc refusals = check_refusals, unwrap = check_unwrap, one_rank = check_one_rank_refuses,
                         hooks = check_hooks_of_a_tied_unit;

int
main (int argc,
      char **argv)
{
  test_init (&argc, &argv);
  make_all_types ();
  g_test_add_data_func ("/fully-shard/refusals/what-is-wrong", &refusals, test_ranks);
  g_test_add_data_func ("/fully-shard/refusals/unwrap", &unwrap, test_ranks);
  g_test_add_data_func ("/fully-shard/refusals/one-rank", &one_rank, test_ranks);
  g_test_add_data_func ("/fully-shard/refusals/hooks-of-a-tied-unit", &hooks, test_ranks);
  g_test_add_func ("/fully-shard/refusals/one-rank-for-all-replicas", test_hybrid_refusal);
  return g_test_run ();
}
