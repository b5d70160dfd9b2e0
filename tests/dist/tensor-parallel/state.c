/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: long-sim */
#include "support/device.h"
#include "support/mesh-runs.h"
#include "support/shard-runs.h"
#include "support/tensor-parallel.h"
#include "support/tensors.h"

#include <string.h>

/* States of a GPT on data and tensor-parallel ranks, saved full or sharded, and loaded on other ranks, or on one. */

#define MOST_STEPS 6

static const struct
{
  guint n_data, n_tensor;
  TestMeshSplit split;
} grids[] = {
  { 1, 1, TEST_MESH_REPLICATED },
  { 1, 2, TEST_MESH_REPLICATED },
  { 1, 4, TEST_MESH_REPLICATED },
  { 2, 2, TEST_MESH_REPLICATED },
  { 2, 2, TEST_MESH_ROWS },
  { 2, 2, TEST_MESH_FLAT },
  { 4, 1, TEST_MESH_FLAT },
  { 4, 2, TEST_MESH_HYBRID },
};

/* The emulated device, which takes its time, goes from each grid to one other. */
static gboolean
is_left_out (guint from, guint to)
{
  return test_device () != ebb_device_get_cpu () && (from + 2) % G_N_ELEMENTS (grids) != to;
}

/* Steps, and those of them before the state is saved. */
static guint
get_n_steps (void)
{
  return test_device_is_slow () ? 3 : MOST_STEPS;
}

static guint
get_n_saved (void)
{
  return test_device_is_slow () ? 1 : MOST_STEPS / 2;
}

typedef struct
{
  TestMesh settings;
  const char *folder;
  EbbArgs *state, *optimizer; /* whole */
  double losses[MOST_STEPS];
  guint64 hash;
} Saved;

static void
saved_clear (Saved *self)
{
  g_clear_pointer (&self->state, ebb_args_unref);
  g_clear_pointer (&self->optimizer, ebb_args_unref);
}

G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC (Saved, saved_clear)

static void
choose_grid (Saved *self, guint grid)
{
  self->settings.n_tensor = grids[grid].n_tensor;
  self->settings.split = grids[grid].split;
}

static guint
count_ranks (guint grid)
{
  return grids[grid].n_data * grids[grid].n_tensor;
}

static gboolean
train (TestMeshRun *run, guint first, guint end, double *losses, GError **error)
{
  for (guint step = first; step < end; step++)
    {
      double norm;

      if (!test_mesh_run_step (run, step, &losses[step], &norm, error))
        return FALSE;
    }
  return TRUE;
}

static EbbTensor *
copy_tensor (EbbTensor *tensor, gpointer user_data, GError **error)
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
is_equal_to_saved (const Saved *saved, TestMeshRun *run, GError **error)
{
  g_autoptr (EbbArgs) expected = copy_dict (saved->state);
  g_autoptr (EbbArgs) expected_optimizer = copy_dict (saved->optimizer);
  g_autoptr (EbbArgs) state = ebb_get_full_state_dict (run->model, FALSE, error);
  g_autoptr (EbbArgs) optimizer = state != NULL ? ebb_get_full_optimizer_state (run->optimizer, FALSE, error) : NULL;

  return optimizer != NULL && test_same_dicts (state, expected, error)
         && test_same_dicts (optimizer, expected_optimizer, error);
}

/* -- whole --------------------------------------------------------------------------------------------------------- */

static gboolean
take_first_state (EbbProcessGroup *group, gpointer user_data, GError **error)
{
  Saved *saved = user_data;
  g_auto (TestMeshRun) run = { NULL };

  if (!test_mesh_run_start (&run, &saved->settings, group, error))
    return FALSE;
  saved->state = ebb_get_full_state_dict (run.model, FALSE, error);
  saved->optimizer = ebb_get_full_optimizer_state (run.optimizer, FALSE, error);
  return saved->optimizer != NULL;
}

static gboolean
train_whole (EbbProcessGroup *group, gpointer user_data, GError **error)
{
  Saved *saved = user_data;
  g_auto (TestMeshRun) run = { NULL };

  if (!test_mesh_run_start (&run, &saved->settings, group, error)
      || !train (&run, 0, get_n_saved (), saved->losses, error))
    return FALSE;
  saved->state = ebb_get_full_state_dict (run.model, FALSE, error);
  saved->optimizer = ebb_get_full_optimizer_state (run.optimizer, FALSE, error);
  return saved->optimizer != NULL && train (&run, get_n_saved (), get_n_steps (), saved->losses, error);
}

static gboolean
compare_first_state (EbbProcessGroup *group, gpointer user_data, GError **error)
{
  const Saved *saved = user_data;
  g_auto (TestMeshRun) run = { NULL };

  return test_mesh_run_start (&run, &saved->settings, group, error) && is_equal_to_saved (saved, &run, error);
}

/* Parts of a model before its first step give the whole one's values, names and order. */
static void
test_first_state (void)
{
  g_auto (Saved) saved = { .settings = { 0 } };

  test_ranks_run (1, take_first_state, &saved);
  for (guint g = 0; g < G_N_ELEMENTS (grids); g++)
    {
      choose_grid (&saved, g);
      test_ranks_run (count_ranks (g), compare_first_state, &saved);
    }
}

/* Each grid of ranks loads the state of one rank, returns it unchanged, and continues its training. */
static gboolean
load_whole (EbbProcessGroup *group, gpointer user_data, GError **error)
{
  const Saved *saved = user_data;
  g_autoptr (EbbArgs) state = copy_dict (saved->state);
  g_autoptr (EbbArgs) optimizer = copy_dict (saved->optimizer);

  for (int broadcast = 0; broadcast < 2; broadcast++)
    {
      const gboolean gives = !broadcast || ebb_process_group_get_rank (group) == 0;
      g_auto (TestMeshRun) run = { NULL };
      double losses[MOST_STEPS];

      /* The values from before the load leave no trace. */
      if (!test_mesh_run_start (&run, &saved->settings, group, error) || !train (&run, 0, 1, losses, error)
          || !ebb_load_full_state_dict (run.model, gives ? state : NULL, broadcast, TRUE, error)
          || !ebb_load_full_optimizer_state (run.optimizer, gives ? optimizer : NULL, broadcast, error)
          || !is_equal_to_saved (saved, &run, error) || !train (&run, get_n_saved (), get_n_steps (), losses, error))
        return FALSE;
      for (guint i = get_n_saved (); i < get_n_steps (); i++)
        g_assert_cmpfloat_with_epsilon (losses[i], saved->losses[i], 1e-5 * saved->losses[i]);
    }
  return TRUE;
}

static void
test_whole (void)
{
  g_auto (Saved) saved = { .settings = { 0 } };

  test_ranks_run (1, train_whole, &saved);
  for (guint g = 0; g < G_N_ELEMENTS (grids); g++)
    {
      choose_grid (&saved, g);
      test_ranks_run (count_ranks (g), load_whole, &saved);
    }
}

/* Names that don't fit and shapes of another whole are found before anything is changed on any rank. */
static gboolean
load_misfits (EbbProcessGroup *group, gpointer user_data, GError **error)
{
  static const gint64 shape[] = { 3 };
  static const char *const expected[] = { "missing", "unexpected", "of another shape" };
  const Saved *saved = user_data;
  g_auto (TestMeshRun) run = { NULL };
  g_autoptr (EbbTensor) other = ebb_zeros (shape, 1, EBB_DTYPE_F32, ebb_device_get_cpu (), error);
  guint64 before, after;

  if (other == NULL || !test_mesh_run_start (&run, &saved->settings, group, error)
      || !test_mesh_run_hash (&run, &before, error))
    return FALSE;
  for (guint kind = 0; kind < 3; kind++)
    for (int broadcast = 0; broadcast < 2; broadcast++)
      {
        g_autoptr (EbbArgs) whole = ebb_get_full_state_dict (run.model, FALSE, error);
        g_autoptr (EbbArgs) state = ebb_args_new (EBB_ARGS_DICT);
        g_autoptr (GError) failure = NULL;

        for (guint i = kind == 0 ? 1 : 0; whole != NULL && i < ebb_args_get_length (whole); i++)
          {
            g_autoptr (EbbTensor) tensor = ebb_args_get_tensor (whole, i);

            ebb_args_add_tensor (state, ebb_args_get_key (whole, i), kind == 2 && i == 0 ? other : tensor);
          }
        if (kind == 1)
          ebb_args_add_tensor (state, "nobody", other);
        g_assert_false (ebb_load_full_state_dict (run.model, state, broadcast, TRUE, &failure));
        test_assert_error (failure, EBB_ERROR_STATE, expected[kind]);
      }
  if (!test_mesh_run_hash (&run, &after, error))
    return FALSE;
  g_assert_cmphex (after, ==, before);
  return TRUE;
}

static void
test_misfits (void)
{
  g_auto (Saved) saved = { .settings = { .n_tensor = 2 } };

  test_ranks_run (2, load_misfits, &saved);
  saved.settings.split = TEST_MESH_ROWS;
  test_ranks_run (4, load_misfits, &saved);
}

/* Rank 0 holds the full state, and no rank more than a few full tensors besides. */
static gboolean
check_memory (EbbProcessGroup *group, gpointer user_data, GError **error)
{
  const Saved *saved = user_data;
  const gboolean is_first = ebb_process_group_get_rank (group) == 0;
  g_auto (TestMeshRun) run = { NULL };
  g_autoptr (EbbMemoryStats) before = NULL;
  g_autoptr (EbbMemoryStats) after = NULL;
  g_autoptr (EbbArgs) state = NULL;
  guint64 bytes = 0, largest = 0, added;

  if (!test_mesh_run_start (&run, &saved->settings, group, error) || !ebb_process_group_barrier (group, error))
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
  g_assert_cmpint (ebb_args_get_length (state) > 0, ==, is_first);
  if (!is_first)
    return TRUE;
  after = ebb_memory_get_stats (ebb_device_get_cpu ());
  for (guint i = 0; i < ebb_args_get_length (state); i++)
    {
      g_autoptr (EbbTensor) tensor = ebb_args_get_tensor (state, i);

      bytes += ebb_tensor_get_n_bytes (tensor);
      largest = MAX (largest, ebb_tensor_get_n_bytes (tensor));
    }
  added = ebb_memory_stats_get_peak (after, EBB_PURPOSE_WORKSPACE)
          - ebb_memory_stats_get_current (before, EBB_PURPOSE_WORKSPACE);
  /* The parts of one tensor on each of two ranks, its own parts that were brought to the host, and some texts. */
  g_assert_cmpuint (added, <, bytes + 2 * 2 * largest + 16384);
  return TRUE;
}

static void
test_memory (void)
{
  g_auto (Saved) saved = { .settings = { .n_tensor = 2 } };

  test_ranks_run (2, check_memory, &saved);
}

/* -- in parts ------------------------------------------------------------------------------------------------------ */

static gboolean
train_and_save (EbbProcessGroup *group, gpointer user_data, GError **error)
{
  Saved *saved = user_data;
  g_auto (TestMeshRun) run = { NULL };
  g_autoptr (EbbArgs) state = NULL;
  g_autoptr (EbbArgs) optimizer = NULL;
  double losses[MOST_STEPS];

  if (!test_mesh_run_start (&run, &saved->settings, group, error) || !train (&run, 0, get_n_saved (), losses, error)
      || !ebb_save_sharded_state (run.model, run.optimizer, saved->folder, error))
    return FALSE;
  state = ebb_get_full_state_dict (run.model, TRUE, error);
  optimizer = state != NULL ? ebb_get_full_optimizer_state (run.optimizer, TRUE, error) : NULL;
  if (optimizer == NULL || !train (&run, get_n_saved (), get_n_steps (), losses, error))
    return FALSE;
  if (ebb_process_group_get_rank (group) == 0)
    {
      saved->state = g_steal_pointer (&state);
      saved->optimizer = g_steal_pointer (&optimizer);
      memcpy (saved->losses, losses, sizeof losses);
    }
  return TRUE;
}

static gboolean
load_parts (EbbProcessGroup *group, gpointer user_data, GError **error)
{
  const Saved *saved = user_data;
  g_auto (TestMeshRun) run = { NULL };
  double losses[MOST_STEPS];

  if (!test_mesh_run_start (&run, &saved->settings, group, error) || !train (&run, 0, 1, losses, error)
      || !ebb_load_sharded_state (run.model, run.optimizer, saved->folder, error)
      || !is_equal_to_saved (saved, &run, error) || !train (&run, get_n_saved (), get_n_steps (), losses, error))
    return FALSE;
  for (guint i = get_n_saved (); i < get_n_steps (); i++)
    g_assert_cmpfloat_with_epsilon (losses[i], saved->losses[i], 1e-5 * saved->losses[i]);
  return TRUE;
}

static void
test_parts (void)
{
  for (guint from = 0; from < G_N_ELEMENTS (grids); from++)
    {
      g_autofree char *folder = test_make_folder ();
      g_auto (Saved) saved = { .folder = folder };

      choose_grid (&saved, from);
      test_ranks_run (count_ranks (from), train_and_save, &saved);
      for (guint to = 0; to < G_N_ELEMENTS (grids); to++)
        if (!is_left_out (from, to))
          {
            choose_grid (&saved, to);
            test_ranks_run (count_ranks (to), load_parts, &saved);
          }
      test_remove_folder (folder);
    }
}

/* A model that knows of no ranks takes over what they saved, and they what it saves. */
static void
test_alone (void)
{
  g_autofree char *folder = test_make_folder ();
  g_auto (Saved) saved = { .folder = folder, .settings = { .n_tensor = 2, .split = TEST_MESH_ROWS } };
  g_autoptr (EbbModule) model = test_ranks_model (2, 0, 99);
  g_autoptr (EbbArgs) state = NULL;
  g_autoptr (GError) error = NULL;

  test_ranks_run (4, train_and_save, &saved);
  ebb_load_sharded_state (model, NULL, folder, &error);
  g_assert_no_error (error);
  state = ebb_module_get_state_dict (model);
  if (test_device () == ebb_device_get_cpu ())
    test_same_dicts (state, saved.state, &error);
  g_assert_no_error (error);
  test_remove_folder (folder);
}

/* -- another model ------------------------------------------------------------------------------------------------- */

/* Two pairs of tensor-parallel ranks, whose parts of a BERT are uneven, save; each pair alone, and one rank, load. */
static gboolean
save_bert (EbbProcessGroup *group, gpointer user_data, GError **error)
{
  static const char *const names[] = { "data", "tensor" };
  static const gint64 sizes[] = { 2, 2 };
  const TestParallel bert = { .is_bert = TRUE, .vocab = 29 };
  g_autoptr (EbbMesh) mesh = ebb_mesh_new (group, names, sizes, 2, error);
  g_autoptr (EbbModule) whole = test_parallel_model (&bert, error);
  g_autoptr (EbbModule) model = test_parallel_model (&bert, error);
  g_autoptr (EbbArgs) expected = whole != NULL ? ebb_get_full_state_dict (whole, FALSE, error) : NULL;
  g_autoptr (EbbArgs) state = NULL;

  if (mesh == NULL || expected == NULL
      || !test_parallel_divide (&bert, model, ebb_mesh_get_group (mesh, "tensor"), error)
      || !ebb_fully_shard_wrap_each (model, EBB_TYPE_TRANSFORMER_BLOCK, ebb_mesh_get_group (mesh, "data"), NULL, error))
    return FALSE;
  state = ebb_get_full_state_dict (model, FALSE, error);
  return state != NULL && test_same_dicts (state, expected, error)
         && ebb_save_sharded_state (model, NULL, user_data, error);
}

static gboolean
load_bert (EbbProcessGroup *group, gpointer user_data, GError **error)
{
  const TestParallel bert = { .is_bert = TRUE, .vocab = 29 };
  g_autoptr (EbbModule) whole = test_parallel_model (&bert, error);
  g_autoptr (EbbModule) model = test_parallel_model (&bert, error);
  g_autoptr (EbbArgs) expected = whole != NULL ? ebb_get_full_state_dict (whole, FALSE, error) : NULL;
  g_autoptr (EbbArgs) state = NULL;
  guint n;
  g_autofree EbbTensor **parameters = NULL;

  if (expected == NULL
      || (ebb_process_group_get_size (group) > 1 && !test_parallel_divide (&bert, model, group, error)))
    return FALSE;
  parameters = ebb_module_get_parameters (model, TRUE, &n);
  for (guint i = 0; i < n; i++)
    {
      g_autoptr (EbbTensor) parameter = parameters[i];
      g_autoptr (EbbTensor) detached = ebb_tensor_detach (parameter);

      if (!ebb_tensor_fill (detached, 0, error))
        return FALSE;
    }
  if (!ebb_load_sharded_state (model, NULL, user_data, error))
    return FALSE;
  state = ebb_get_full_state_dict (model, FALSE, error);
  return state != NULL && test_same_dicts (state, expected, error);
}

static void
test_bert (void)
{
  g_autofree char *folder = test_make_folder ();

  test_ranks_run (4, save_bert, folder);
  for (guint n = 1; n <= 4; n *= 2)
    test_ranks_run (n, load_bert, folder);
  test_remove_folder (folder);
}

/* -- a training ---------------------------------------------------------------------------------------------------- */

static EbbTrainingState *
make_training (TestMeshRun *run)
{
  return ebb_training_state_new (run->model, run->optimizer, NULL);
}

static gboolean
train_through (EbbProcessGroup *group, gpointer user_data, GError **error)
{
  Saved *saved = user_data;
  g_auto (TestMeshRun) run = { NULL };
  g_autoptr (EbbTrainingState) training = NULL;
  double losses[MOST_STEPS];
  guint64 hash;

  if (!test_mesh_run_start (&run, &saved->settings, group, error) || !train (&run, 0, get_n_saved (), losses, error))
    return FALSE;
  training = make_training (&run);
  if (!ebb_training_state_save_sharded (training, saved->folder, get_n_saved (), error)
      || !train (&run, get_n_saved (), get_n_steps (), losses, error) || !test_mesh_run_hash (&run, &hash, error))
    return FALSE;
  if (ebb_process_group_get_rank (group) == 0)
    {
      memcpy (saved->losses, losses, sizeof losses);
      saved->hash = hash;
    }
  return TRUE;
}

static gboolean
resume (EbbProcessGroup *group, gpointer user_data, GError **error)
{
  const Saved *saved = user_data;
  g_auto (TestMeshRun) run = { NULL };
  g_autoptr (EbbTrainingState) training = NULL;
  double losses[MOST_STEPS];
  gint64 step = 0;
  guint64 hash;

  /* Random numbers were drawn meanwhile. */
  if (!test_mesh_run_start (&run, &saved->settings, group, error) || !train (&run, 0, 1, losses, error))
    return FALSE;
  training = make_training (&run);
  if (!ebb_training_state_load_sharded (training, saved->folder, &step, error))
    return FALSE;
  g_assert_cmpint (step, ==, get_n_saved ());
  if (!train (&run, get_n_saved (), get_n_steps (), losses, error) || !test_mesh_run_hash (&run, &hash, error))
    return FALSE;
  for (guint i = get_n_saved (); i < get_n_steps (); i++)
    g_assert_cmpfloat (losses[i], ==, saved->losses[i]);
  g_assert_cmphex (hash, ==, saved->hash);
  return TRUE;
}

static void
test_resume (void)
{
  for (int split = 0; split < TEST_N_MESH_SPLITS; split++)
    for (int sequence = 0; sequence < 2; sequence++)
      {
        g_autofree char *folder = test_make_folder ();
        g_auto (Saved) saved = {
          .folder = folder,
          .settings = { .n_tensor = 2,
                        .split = (TestMeshSplit) split,
                        .sequence_parallel = sequence,
                        .checkpoint = TEST_MESH_CHECKPOINT_INSIDE,
                        .max_norm = 1,
                        .dropout = 0.1 },
        };

        test_ranks_run (4, train_through, &saved);
        test_ranks_run (4, resume, &saved);
        test_remove_folder (folder);
      }
}

/* On other ranks random numbers are others, but tensor-parallel ranks agree on those that they have to, which
 * test_mesh_run_step () sees to. */
static gboolean
resume_elsewhere (EbbProcessGroup *group, gpointer user_data, GError **error)
{
  const Saved *saved = user_data;
  g_auto (TestMeshRun) run = { NULL };
  g_autoptr (EbbTrainingState) training = NULL;
  double losses[MOST_STEPS];
  gint64 step = 0;

  if (!test_mesh_run_start (&run, &saved->settings, group, error))
    return FALSE;
  training = make_training (&run);
  return ebb_training_state_load_sharded (training, saved->folder, &step, error) && step == get_n_saved ()
         && train (&run, get_n_saved (), get_n_steps (), losses, error);
}

static void
test_resume_elsewhere (void)
{
  for (guint from = 0; from < G_N_ELEMENTS (grids); from++)
    {
      g_autofree char *folder = test_make_folder ();
      g_auto (Saved) saved = { .folder = folder, .settings = { .dropout = 0.1 } };

      choose_grid (&saved, from);
      test_ranks_run (count_ranks (from), train_through, &saved);
      for (guint to = 0; to < G_N_ELEMENTS (grids); to++)
        if (!is_left_out (from, to))
          {
            choose_grid (&saved, to);
            test_ranks_run (count_ranks (to), resume_elsewhere, &saved);
          }
      test_remove_folder (folder);
    }
}

int
main (int argc, char **argv)
{
  test_init (&argc, &argv);
  g_test_add_func ("/parallel-state/the-first-state-is-the-whole-model-s", test_first_state);
  g_test_add_func ("/parallel-state/whole-states-load-and-come-back", test_whole);
  g_test_add_func ("/parallel-state/misfits-change-nothing", test_misfits);
  g_test_add_func ("/parallel-state/one-tensor-at-a-time", test_memory);
  g_test_add_func ("/parallel-state/parts-load-on-any-mesh", test_parts);
  g_test_add_func ("/parallel-state/one-rank-alone-loads-parts", test_alone);
  g_test_add_func ("/parallel-state/another-model-s-parts-load-as-well", test_bert);
  g_test_add_func ("/parallel-state/a-training-goes-on-bit-for-bit", test_resume);
  g_test_add_func ("/parallel-state/a-training-goes-on-elsewhere", test_resume_elsewhere);
  return g_test_run ();
}
