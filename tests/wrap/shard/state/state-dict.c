/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/device.h"
#include "support/shard-runs.h"
#include "support/tensors.h"

#include <string.h>

/* The whole state of what is split over ranks, in memory. */

static const char *const split_names[TEST_N_SPLITS] = { "replicated", "rows", "flat" };

/* -- get ----------------------------------------------------------------------------------------------------------- */

/* The same training replicated, whose state every rank has, and split. */
static gboolean
compare_with_replicated (EbbProcessGroup *group,
                         gpointer user_data,
                         GError **error)
{
  g_auto (TestShardRun) whole = { NULL };
  g_autoptr (EbbArgs) expected = NULL;
  g_autoptr (EbbArgs) expected_optimizer = NULL;

  test_shard_run_start (&whole, group, NULL, TEST_SPLIT_NONE, 0, EBB_MOMENT_FORMAT_F32);
  test_shard_run_steps (&whole, group, 0, 3, NULL);
  expected = ebb_module_get_state_dict (whole.model);
  expected_optimizer = ebb_optimizer_get_state (whole.optimizer);
  for (int split = 0; split < TEST_N_SPLITS; split++)
    {
      g_auto (TestShardRun) run = { NULL };
      g_autoptr (EbbArgs) state = NULL;
      g_autoptr (EbbArgs) optimizer = NULL;

      test_shard_run_start (&run, group, NULL, (TestSplit) split, 0, EBB_MOMENT_FORMAT_F32);
      test_shard_run_steps (&run, group, 0, 3, NULL);
      g_test_message ("%u ranks, %s", ebb_process_group_get_size (group), split_names[split]);
      state = ebb_get_full_state_dict (run.model, FALSE, error);
      if (state == NULL || !test_same_dicts (state, expected, error))
        return FALSE;
      optimizer = ebb_get_full_optimizer_state (run.optimizer, FALSE, error);
      if (optimizer == NULL || !test_same_dicts (optimizer, expected_optimizer, error))
        return FALSE;
    }
  return TRUE;
}

static void
test_full_state_equals (void)
{
  for (guint n = 1; n <= 4; n++)
    test_run_ranks (n, compare_with_replicated, NULL);
}

static gboolean
check_rank0_only (EbbProcessGroup *group,
                  gpointer user_data,
                  GError **error)
{
  gboolean is_first = ebb_process_group_get_rank (group) == 0;
  g_auto (TestShardRun) run = { NULL };
  g_autoptr (EbbArgs) state = NULL;
  g_autoptr (EbbArgs) optimizer = NULL;

  test_shard_run_start (&run, group, NULL, TEST_SPLIT_ROWS, 0, EBB_MOMENT_FORMAT_F32);
  test_shard_run_steps (&run, group, 0, 1, NULL);
  state = ebb_get_full_state_dict (run.model, TRUE, error);
  if (state == NULL)
    return FALSE;
  optimizer = ebb_get_full_optimizer_state (run.optimizer, TRUE, error);
  if (optimizer == NULL)
    return FALSE;
  g_assert_cmpint (ebb_args_get_length (state) > 0, ==, is_first);
  g_assert_cmpint (ebb_args_get_length (optimizer) > 0, ==, is_first);
  return TRUE;
}

static void
test_rank0_only (void)
{
  test_run_ranks (3, check_rank0_only, NULL);
}

/* Rank 0 holds the full state, and the other rank at most one full unit at a time. */
static gboolean
check_memory (EbbProcessGroup *group,
              gpointer user_data,
              GError **error)
{
  g_auto (TestShardRun) run = { NULL };
  g_autoptr (EbbMemoryStats) before = NULL;
  g_autoptr (EbbMemoryStats) after = NULL;
  g_autoptr (EbbArgs) state = NULL;
  guint64 added, bytes = 0;
  gboolean is_first = ebb_process_group_get_rank (group) == 0;

  test_shard_run_start (&run, group, NULL, TEST_SPLIT_FLAT, 0, EBB_MOMENT_FORMAT_F32);
  if (!ebb_process_group_barrier (group, error))
    return FALSE;
  if (is_first)
    {
      before = ebb_memory_get_stats (ebb_device_get_cpu ());
      ebb_memory_reset_peaks (ebb_device_get_cpu ());
    }
  if (!ebb_process_group_barrier (group, error))
    return FALSE;
  state = ebb_get_full_state_dict (run.model, TRUE, error);
  if (state == NULL || !ebb_process_group_barrier (group, error))
    return FALSE;
  if (!is_first)
    return TRUE;
  after = ebb_memory_get_stats (ebb_device_get_cpu ());
  added = ebb_memory_stats_get_peak (after, EBB_PURPOSE_WORKSPACE)
          - ebb_memory_stats_get_current (before, EBB_PURPOSE_WORKSPACE);
  for (guint i = 0; i < ebb_args_get_length (state); i++)
    {
      g_autoptr (EbbTensor) tensor = ebb_args_get_tensor (state, i);

      bytes += ebb_tensor_get_n_bytes (tensor);
    }
  /* A block is a little less than half of all. */
  g_assert_cmpuint (added, >=, bytes);
  if (test_device () == ebb_device_get_cpu ()) /* shards of other devices have copies on the host besides */
    g_assert_cmpuint (added, <, bytes + bytes * 3 / 4);
  return TRUE;
}

static void
test_memory (void)
{
  test_run_ranks (2, check_memory, NULL);
}

/* -- load ---------------------------------------------------------------------------------------------------------- */

typedef struct
{
  EbbArgs *state, *optimizer; /* whole, of one process */
} Whole;

static EbbTensor *
copy_tensor (EbbTensor *tensor,
             gpointer user_data,
             GError **error)
{
  return ebb_copy (tensor, error);
}

/* Ranks share no tensors. */
static EbbArgs *
copy_dict (EbbArgs *dict)
{
  g_autoptr (GError) error = NULL;
  EbbArgs *copy = ebb_args_map_tensors (dict, copy_tensor, NULL, &error);

  g_assert_no_error (error);
  return copy;
}

static gboolean
train_alone (EbbProcessGroup *group,
             gpointer user_data,
             GError **error)
{
  Whole *whole = user_data;
  g_auto (TestShardRun) run = { NULL };

  test_shard_run_start (&run, group, NULL, TEST_SPLIT_NONE, 0, EBB_MOMENT_FORMAT_F32);
  test_shard_run_steps (&run, group, 0, 2, NULL);
  whole->state = ebb_get_full_state_dict (run.model, FALSE, error);
  whole->optimizer = ebb_get_full_optimizer_state (run.optimizer, FALSE, error);
  return whole->state != NULL && whole->optimizer != NULL;
}

static gboolean
load_and_get (EbbProcessGroup *group,
              gpointer user_data,
              GError **error)
{
  Whole *shared = user_data;
  g_autoptr (EbbArgs) whole_state = copy_dict (shared->state);
  g_autoptr (EbbArgs) whole_optimizer = copy_dict (shared->optimizer);

  for (int split = 0; split < TEST_N_SPLITS; split++)
    for (int broadcast = 0; broadcast < 2; broadcast++)
      {
        gboolean gives = !broadcast || ebb_process_group_get_rank (group) == 0;
        g_auto (TestShardRun) run = { NULL };
        g_autoptr (EbbArgs) state = NULL;
        g_autoptr (EbbArgs) optimizer = NULL;

        test_shard_run_start (&run, group, NULL, (TestSplit) split, 0, EBB_MOMENT_FORMAT_F32);
        if (!ebb_load_full_state_dict (run.model, gives ? whole_state : NULL, broadcast, TRUE, error)
            || !ebb_load_full_optimizer_state (run.optimizer, gives ? whole_optimizer : NULL, broadcast, error))
          return FALSE;
        state = ebb_get_full_state_dict (run.model, FALSE, error);
        if (state == NULL || !test_same_dicts (state, whole_state, error))
          return FALSE;
        optimizer = ebb_get_full_optimizer_state (run.optimizer, FALSE, error);
        if (optimizer == NULL || !test_same_dicts (optimizer, whole_optimizer, error))
          return FALSE;
      }
  return TRUE;
}

static void
test_load (void)
{
  Whole whole = { NULL };

  test_run_ranks (1, train_alone, &whole);
  for (guint n = 1; n <= 4; n++)
    test_run_ranks (n, load_and_get, &whole);
  ebb_args_unref (whole.state);
  ebb_args_unref (whole.optimizer);
}

/* A state that does not fit on one rank is an error on all ranks, and changes nothing. */
static gboolean
load_what_does_not_fit (EbbProcessGroup *group,
                        gpointer user_data,
                        GError **error)
{
  for (int broadcast = 0; broadcast < 2; broadcast++)
    {
      gboolean is_wrong = ebb_process_group_get_rank (group) == (broadcast ? 0 : 1);
      g_auto (TestShardRun) run = { NULL };
      g_autoptr (EbbArgs) before = NULL;
      g_autoptr (EbbArgs) after = NULL;
      g_autoptr (EbbArgs) wrong = ebb_args_new (EBB_ARGS_DICT);
      g_autoptr (EbbTensor) tensor = test_randn (1, 3, 5, -1);
      g_autoptr (GError) failure = NULL;

      test_shard_run_start (&run, group, NULL, TEST_SPLIT_ROWS, 0, EBB_MOMENT_FORMAT_F32);
      before = ebb_get_full_state_dict (run.model, FALSE, error);
      ebb_args_add_tensor (wrong, "wte.weight", tensor);
      g_assert_false (
          ebb_load_full_state_dict (run.model, is_wrong ? wrong : before, broadcast, FALSE, &failure));
      test_assert_error (failure, EBB_ERROR_STATE, "wte.weight [3, 5]");
      g_assert_cmpint (g_str_has_prefix (failure->message, broadcast ? "rank 0: " : "rank 1: "), ==, !is_wrong);
      after = ebb_get_full_state_dict (run.model, FALSE, error);
      if (!test_same_dicts (before, after, error))
        return FALSE;
      g_clear_error (&failure);

      /* The way of a whole module is closed, with a word on the right one. */
      g_assert_false (ebb_module_load_state_dict (run.model, before, TRUE, &failure));
      test_assert_error (failure, EBB_ERROR_STATE, "ebb_load_full_state_dict");
    }
  return TRUE;
}

static void
test_misfit (void)
{
  test_run_ranks (2, load_what_does_not_fit, NULL);
}

static gboolean
check_loose (EbbProcessGroup *group,
             gpointer user_data,
             GError **error)
{
  g_auto (TestShardRun) run = { NULL };
  g_autoptr (EbbArgs) part = ebb_args_new (EBB_ARGS_DICT);
  g_autoptr (EbbArgs) state = NULL;
  g_autoptr (EbbTensor) bias = test_randn (3, 32, -1);
  g_autoptr (EbbTensor) loaded = NULL;
  g_autoptr (GError) failure = NULL;

  test_shard_run_start (&run, group, NULL, TEST_SPLIT_FLAT, 0, EBB_MOMENT_FORMAT_F32);
  ebb_args_add_tensor (part, "ln_f.bias", bias);
  ebb_args_add_tensor (part, "of_another_model", bias);
  g_assert_false (ebb_load_full_state_dict (run.model, part, TRUE, TRUE, &failure));
  test_assert_error (failure, EBB_ERROR_STATE, "missing", "unexpected", "of_another_model");
  if (!ebb_load_full_state_dict (run.model, part, TRUE, FALSE, error))
    return FALSE;
  state = ebb_get_full_state_dict (run.model, FALSE, error);
  loaded = ebb_args_get_tensor (state, (guint) ebb_args_find (state, "ln_f.bias"));
  g_assert_true (ebb_tensor_equal (loaded, bias));
  return TRUE;
}

static void
test_loose (void)
{
  test_run_ranks (3, check_loose, NULL);
}

/* -- where there are limits ---------------------------------------------------------------------------------------- */

static gboolean
check_8bit (EbbProcessGroup *group,
            gpointer user_data,
            GError **error)
{
  g_auto (TestShardRun) run = { NULL };
  g_autoptr (GError) failure = NULL;

  /* So that a weight of 4096 elements, the least that is kept in 8 bits, lies on one rank. */
  test_shard_run_start (&run, group, NULL, TEST_SPLIT_FLAT, 0, EBB_MOMENT_FORMAT_EIGHT_BIT);
  test_shard_run_steps (&run, group, 0, 1, NULL);
  g_assert_null (ebb_get_full_optimizer_state (run.optimizer, FALSE, &failure));
  test_assert_error (failure, EBB_ERROR_NOT_SUPPORTED, "block");
  return TRUE;
}

static void
test_8bit (void)
{
  test_run_ranks (2, check_8bit, NULL);
}

static gboolean
check_summoned (EbbProcessGroup *group,
                gpointer user_data,
                GError **error)
{
  g_auto (TestShardRun) run = { NULL };
  g_autoptr (EbbArgs) before = NULL;
  g_autoptr (EbbArgs) after = NULL;
  g_autoptr (GError) failure = NULL;

  test_shard_run_start (&run, group, NULL, TEST_SPLIT_FLAT, 0, EBB_MOMENT_FORMAT_F32);
  before = ebb_get_full_state_dict (run.model, FALSE, error);
  if (!ebb_summon_full_params (run.model, error))
    return FALSE;
  g_assert_null (ebb_get_full_state_dict (run.model, FALSE, &failure));
  test_assert_error (failure, EBB_ERROR_STATE, "ebb_release_full_params");
  if (!ebb_release_full_params (run.model, FALSE, error))
    return FALSE;
  after = ebb_get_full_state_dict (run.model, FALSE, error);
  return after != NULL && test_same_dicts (before, after, error);
}

static void
test_summoned (void)
{
  test_run_ranks (2, check_summoned, NULL);
}

/* Two replicas of two shards each. */
static gboolean
check_hybrid (EbbProcessGroup *group,
              gpointer user_data,
              GError **error)
{
  static const char *const names[] = { "data", "shard" };
  static const gint64 sizes[] = { 2, 2 };
  g_autoptr (EbbMesh) mesh = ebb_mesh_new (group, names, sizes, 2, error);
  g_auto (TestShardRun) whole = { NULL };
  g_auto (TestShardRun) run = { NULL };
  g_autoptr (EbbArgs) expected = NULL;
  g_autoptr (EbbArgs) state = NULL;

  if (mesh == NULL)
    return FALSE;
  test_shard_run_start (&whole, group, NULL, TEST_SPLIT_NONE, 0, EBB_MOMENT_FORMAT_F32);
  expected = ebb_get_full_state_dict (whole.model, FALSE, error);
  test_shard_run_start (&run, ebb_mesh_get_group (mesh, "shard"), ebb_mesh_get_group (mesh, "data"), TEST_SPLIT_ROWS, 0,
                        EBB_MOMENT_FORMAT_F32);
  state = ebb_get_full_state_dict (run.model, FALSE, error);
  if (state == NULL || !test_same_dicts (state, expected, error))
    return FALSE;
  return ebb_load_full_state_dict (run.model, ebb_process_group_get_rank (group) == 0 ? expected : NULL, TRUE, TRUE,
                                   error);
}

static void
test_hybrid (void)
{
  test_run_ranks (4, check_hybrid, NULL);
}

/* Without a group, the whole is what there is. */
static void
test_plain (void)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbModule) norm = ebb_batch_norm1d_new (4, 1e-5, 0.1, &error);
  g_autoptr (EbbArgs) own = ebb_module_get_state_dict (norm);
  g_autoptr (EbbArgs) state = ebb_get_full_state_dict (norm, TRUE, &error);
  g_autoptr (EbbTensor) a = NULL;
  g_autoptr (EbbTensor) b = NULL;

  g_assert_no_error (error);
  test_same_dicts (own, state, &error);
  g_assert_no_error (error);
  a = ebb_args_get_tensor (own, 0);
  b = ebb_args_get_tensor (state, 0);
  g_assert_false (ebb_tensor_shares_storage (a, b));
  g_assert_null (ebb_get_full_state_dict (NULL, FALSE, &error));
  test_assert_error (error, EBB_ERROR_INVALID_ARGUMENT, "module is NULL");
  g_clear_error (&error);
  g_assert_false (ebb_load_full_state_dict (norm, NULL, FALSE, TRUE, &error));
  test_assert_error (error, EBB_ERROR_INVALID_ARGUMENT, "no state");
}

int
main (int argc,
      char **argv)
{
  test_init (&argc, &argv);
  g_test_add_func ("/shard-state/full-state-is-that-of-the-replicated-training", test_full_state_equals);
  g_test_add_func ("/shard-state/rank-0-alone-may-keep-it", test_rank0_only);
  g_test_add_func ("/shard-state/a-rank-that-keeps-nothing-holds-one-unit", test_memory);
  g_test_add_func ("/shard-state/full-state-loads-on-any-number-of-ranks", test_load);
  g_test_add_func ("/shard-state/what-does-not-fit-changes-nothing-on-any-rank", test_misfit);
  g_test_add_func ("/shard-state/not-strict-loads-what-there-is", test_loose);
  g_test_add_func ("/shard-state/moments-in-8-bits-have-no-full-state", test_8bit);
  g_test_add_func ("/shard-state/summoned-parameters-belong-to-no-state", test_summoned);
  g_test_add_func ("/shard-state/hybrid", test_hybrid);
  g_test_add_func ("/shard-state/a-plain-module-is-copied", test_plain);
  return g_test_run ();
}
