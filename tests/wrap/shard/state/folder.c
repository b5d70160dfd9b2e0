/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: long-sim */
#include "support/device.h"
#include "support/shard-runs.h"
#include "support/tensors.h"

#include <glib/gstdio.h>
#include <math.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>

/* Sharded states, saved in a folder and loaded on any number of ranks. */

#define N_STEPS 6
#define HALF 3

typedef struct
{
  const char *folder;
  TestSplit split;
  EbbMomentFormat moments;
  EbbDType dtype;
  EbbArgs *state, *optimizer; /* whole, as rank 0 had them */
  double losses[N_STEPS];
} Saved;

static void
saved_clear (Saved *saved)
{
  g_clear_pointer (&saved->state, ebb_args_unref);
  g_clear_pointer (&saved->optimizer, ebb_args_unref);
}

/* -- any number of ranks ------------------------------------------------------------------------------------------- */

/* Trains, saves in the middle, and goes on. */
static gboolean
train_and_save (EbbProcessGroup *group,
                gpointer user_data,
                GError **error)
{
  Saved *saved = user_data;
  gboolean is_first = ebb_process_group_get_rank (group) == 0;
  g_auto (TestShardRun) run = { NULL };
  g_autoptr (EbbArgs) state = NULL;
  g_autoptr (EbbArgs) optimizer = NULL;
  double losses[N_STEPS];

  test_shard_run_start (&run, group, NULL, saved->split, 0, EBB_MOMENT_FORMAT_F32);
  test_shard_run_steps (&run, group, 0, HALF, losses);
  if (!ebb_save_sharded_state (run.model, run.optimizer, saved->folder, error))
    return FALSE;
  state = ebb_get_full_state_dict (run.model, TRUE, error);
  optimizer = ebb_get_full_optimizer_state (run.optimizer, TRUE, error);
  if (state == NULL || optimizer == NULL)
    return FALSE;
  test_shard_run_steps (&run, group, HALF, N_STEPS - HALF, losses);
  if (is_first)
    {
      saved->state = g_steal_pointer (&state);
      saved->optimizer = g_steal_pointer (&optimizer);
      memcpy (saved->losses, losses, sizeof losses);
    }
  return TRUE;
}

static gboolean
load_and_go_on (EbbProcessGroup *group,
                gpointer user_data,
                GError **error)
{
  Saved *saved = user_data;
  gboolean is_first = ebb_process_group_get_rank (group) == 0;

  for (int split = 0; split < TEST_N_SPLITS; split++)
    {
      g_auto (TestShardRun) run = { NULL };
      g_autoptr (EbbArgs) state = NULL;
      g_autoptr (EbbArgs) optimizer = NULL;
      double losses[N_STEPS];

      test_shard_run_start (&run, group, NULL, (TestSplit) split, 0, EBB_MOMENT_FORMAT_F32);
      /* The values from before the load leave no trace. */
      test_shard_run_steps (&run, group, 40, 1, NULL);
      if (!ebb_load_sharded_state (run.model, run.optimizer, saved->folder, error))
        return FALSE;
      state = ebb_get_full_state_dict (run.model, TRUE, error);
      optimizer = ebb_get_full_optimizer_state (run.optimizer, TRUE, error);
      if (state == NULL || optimizer == NULL
          || (is_first
              && (!test_same_dicts (state, saved->state, error)
                  || !test_same_dicts (optimizer, saved->optimizer, error))))
        return FALSE;
      test_shard_run_steps (&run, group, HALF, N_STEPS - HALF, losses);
      for (int i = HALF; i < N_STEPS; i++)
        g_assert_cmpfloat_with_epsilon (losses[i], saved->losses[i], 2e-6 * saved->losses[i]);
    }
  return TRUE;
}

static void
test_other_numbers (void)
{
  static const struct
  {
    guint n_ranks;
    TestSplit split;
  } saves[] = { { 4, TEST_SPLIT_ROWS },
                { 4, TEST_SPLIT_FLAT },
                { 3, TEST_SPLIT_FLAT },
                { 1, TEST_SPLIT_ROWS },
                { 2, TEST_SPLIT_NONE } };

  for (guint i = 0; i < G_N_ELEMENTS (saves); i++)
    {
      g_autofree char *folder = test_make_folder ();
      Saved saved = { .folder = folder, .split = saves[i].split };

      test_run_ranks (saves[i].n_ranks, train_and_save, &saved);
      g_assert_cmpuint (test_count_files (folder, NULL), ==, 3 * saves[i].n_ranks + 1);
      for (guint n = 1; n <= 4; n++)
        test_run_ranks (n, load_and_go_on, &saved);
      saved_clear (&saved);
      test_remove_folder (folder);
    }
}

/* A process that knows of no ranks and no sharding. */
static void
test_plain_process (void)
{
  g_autofree char *folder = test_make_folder ();
  Saved saved = { .folder = folder, .split = TEST_SPLIT_FLAT };
  g_auto (TestShardRun) run = { NULL };
  g_autoptr (EbbArgs) state = NULL;
  g_autoptr (EbbArgs) optimizer = NULL;
  g_autoptr (GError) error = NULL;

  test_run_ranks (4, train_and_save, &saved);
  test_shard_run_start (&run, ebb_process_group_get_default (), NULL, TEST_SPLIT_NONE, 0, EBB_MOMENT_FORMAT_F32);
  ebb_replicate_unwrap (run.model);
  ebb_load_sharded_state (run.model, run.optimizer, folder, &error);
  g_assert_no_error (error);
  state = ebb_module_get_state_dict (run.model);
  optimizer = ebb_optimizer_get_state (run.optimizer);
  test_same_dicts (state, saved.state, &error);
  g_assert_no_error (error);
  test_same_dicts (optimizer, saved.optimizer, &error);
  g_assert_no_error (error);

  /* And the other way: what it saves, ranks load. */
  ebb_save_sharded_state (run.model, run.optimizer, folder, &error);
  g_assert_no_error (error);
  g_assert_cmpuint (test_count_files (folder, NULL), ==, 4);
  test_run_ranks (3, load_and_go_on, &saved);
  saved_clear (&saved);
  test_remove_folder (folder);
}

/* -- a training ---------------------------------------------------------------------------------------------------- */

static EbbTextDataset *
make_dataset (guint rank)
{
  g_autoptr (EbbTokenizer) tokenizer = ebb_byte_tokenizer_new ();
  g_autoptr (GString) text = g_string_new (NULL);
  g_autoptr (GBytes) bytes = NULL;
  g_autoptr (GError) error = NULL;
  EbbTextDataset *dataset;

  for (int i = 0; i < 100; i++)
    g_string_append_printf (text, "line %d squared is %d\n", i, i * i);
  bytes = g_bytes_new (text->str, text->len);
  dataset = ebb_text_dataset_new_from_bytes (bytes, tokenizer, 3 + rank, &error);
  g_assert_no_error (error);
  return dataset;
}

static gboolean
stop_and_resume (EbbProcessGroup *group,
                 gpointer user_data,
                 GError **error)
{
  Saved *saved = user_data;
  guint rank = ebb_process_group_get_rank (group);
  g_auto (TestShardRun) whole = { NULL };
  g_auto (TestShardRun) resumed = { NULL };
  g_autoptr (EbbTextDataset) dataset = make_dataset (rank);
  g_autoptr (EbbTextDataset) other_dataset = make_dataset (rank + 9);
  g_autoptr (EbbTrainingState) training = NULL;
  g_autoptr (EbbTrainingState) other = NULL;
  g_autoptr (EbbArgs) state = NULL;
  g_autoptr (EbbArgs) other_state = NULL;
  g_autofree char *config = NULL;
  double losses[N_STEPS], other_losses[N_STEPS];
  gint64 step = 0;

  test_shard_run_start_in (saved->dtype, &whole, group, NULL, saved->split, 0.1, saved->moments);
  training = ebb_training_state_new (whole.model, whole.optimizer, EBB_DATASET (dataset));
  g_object_set (training, "config", "width 32", NULL);
  ebb_manual_seed (50 + rank);
  test_shard_run_steps (&whole, group, 0, HALF, losses);
  g_object_set (dataset, "position", (gint64) (5 + rank), NULL);
  if (!ebb_training_state_save_sharded (training, saved->folder, HALF, error))
    return FALSE;
  test_shard_run_steps (&whole, group, HALF, N_STEPS - HALF, losses);
  state = ebb_get_full_state_dict (whole.model, FALSE, error);

  test_shard_run_start_in (saved->dtype, &resumed, group, NULL, saved->split, 0.1, saved->moments);
  other = ebb_training_state_new (resumed.model, resumed.optimizer, EBB_DATASET (other_dataset));
  ebb_manual_seed (1);
  if (!ebb_training_state_load_sharded (other, saved->folder, &step, error))
    return FALSE;
  g_assert_cmpint (step, ==, HALF);
  test_assert_text (other, "config", "width 32");
  g_assert_cmpfloat (test_get_double (other_dataset, "position"), ==, 5 + rank);
  config = ebb_training_state_read_config (saved->folder, error);
  g_assert_cmpstr (config, ==, "width 32");
  test_shard_run_steps (&resumed, group, HALF, N_STEPS - HALF, other_losses);
  for (int i = HALF; i < N_STEPS; i++)
    g_assert_true (losses[i] == other_losses[i]);
  other_state = ebb_get_full_state_dict (resumed.model, FALSE, error);
  return other_state != NULL && test_same_dicts (state, other_state, error);
}

static void
test_resume (void)
{
  static const EbbDType dtypes[] = { EBB_DTYPE_F32, EBB_DTYPE_BF16 };

  /* In bf16 an optimizer keeps a copy in f32 besides, which is split as well. */
  for (int split = 0; split < TEST_N_SPLITS; split++)
    for (int i = 0; i < 2 * 3; i++)
      {
        g_autofree char *folder = test_make_folder ();
        Saved saved = { .folder = folder,
                        .split = (TestSplit) split,
                        .moments = (EbbMomentFormat) (i % 3),
                        .dtype = dtypes[i / 3] };

        test_run_ranks (3, stop_and_resume, &saved);
        test_remove_folder (folder);
      }
}

static gboolean
load_training (EbbProcessGroup *group,
               gpointer user_data,
               GError **error)
{
  Saved *saved = user_data;
  guint rank = ebb_process_group_get_rank (group);
  g_auto (TestShardRun) run = { NULL };
  g_autoptr (EbbTrainingState) training = NULL;
  g_autoptr (EbbTensor) drawn = NULL;
  g_autoptr (EbbTensor) all = NULL;
  gint64 step = 0;

  test_shard_run_start (&run, group, NULL, TEST_SPLIT_FLAT, 0.1, EBB_MOMENT_FORMAT_F32);
  training = ebb_training_state_new (run.model, run.optimizer, NULL);
  if (!ebb_training_state_load_sharded (training, saved->folder, &step, error))
    return FALSE;
  g_assert_cmpint (step, ==, HALF);
  /* No two ranks draw the same numbers. */
  drawn = ebb_randn (&(gint64){ 1 }, 1, EBB_DTYPE_F32, ebb_device_get_cpu (), NULL, error);
  all = drawn != NULL ? ebb_process_group_all_gather (group, drawn, error) : NULL;
  if (all == NULL)
    return FALSE;
  for (guint r = 0; r < ebb_process_group_get_size (group); r++)
    if (r != rank)
      g_assert_true (test_at (all, r) != test_at (all, rank));
  return TRUE;
}

static void
test_resume_elsewhere (void)
{
  g_autofree char *folder = test_make_folder ();
  Saved saved = { .folder = folder, .split = TEST_SPLIT_ROWS };

  test_run_ranks (2, stop_and_resume, &saved);
  test_run_ranks (4, load_training, &saved);
  test_run_ranks (1, load_training, &saved);
  test_remove_folder (folder);
}

/* -- states of version 1.0 ----------------------------------------------------------------------------------------- */

static char *
find_old (const char *kind)
{
  return g_test_build_filename (G_TEST_DIST, "fixtures", "states-1.0", kind, NULL);
}

typedef struct
{
  const char *folder;
  gboolean is_sharded;
  const char *to; /* where it is saved again; NULL: nowhere */
} Old;

/* A linear layer of 3 and 2 features, after two steps of AdamW that moved each weight of 0.5 and each bias of 0.25 by
 * about 0.01. */
static gboolean
load_old (EbbProcessGroup *group,
          gpointer user_data,
          GError **error)
{
  const Old *old = user_data;
  g_autoptr (EbbModule) module = ebb_linear_new (3, 2, TRUE, error);
  g_autoptr (EbbModule) same = old->is_sharded ? ebb_fully_shard (module, group, NULL, error) : NULL;
  g_autoptr (EbbOptimizer) optimizer = ebb_adamw_new (module, 0.5, error);
  g_autoptr (EbbTrainingState) training = ebb_training_state_new (module, optimizer, NULL);
  g_autoptr (EbbArgs) values = NULL;
  g_autoptr (EbbArgs) state = NULL;
  g_autoptr (EbbArgs) moments = NULL;
  g_autoptr (EbbTensor) weight = NULL;
  g_autofree char *config = ebb_training_state_read_config (old->folder, error);
  g_autofree char *text = NULL;
  gint64 step = 0;

  if (!(old->is_sharded ? ebb_training_state_load_sharded : ebb_training_state_load) (training, old->folder, &step,
                                                                                      error))
    return FALSE;
  g_assert_cmpint (step, ==, 2);
  g_assert_cmpstr (config, ==, "from 1.0");
  test_assert_text (training, "config", "from 1.0");
  g_object_get (training, "values", &values, NULL);
  g_assert_cmpfloat (ebb_args_get_double (values, 0), ==, 0.5);
  g_assert_cmpint (ebb_optimizer_get_n_steps (optimizer), ==, 2);
  g_assert_cmpfloat (test_get_double (optimizer, "lr"), ==, 1e-2);
  state = ebb_get_full_state_dict (module, FALSE, error);
  moments = ebb_get_full_optimizer_state (optimizer, FALSE, error);
  if (state == NULL || moments == NULL)
    return FALSE;
  weight = ebb_args_get_tensor (state, 0);
  for (gsize i = 0; i < 6; i++)
    g_assert_cmpfloat_with_epsilon (test_at (weight, i), 0.4799010, 1e-6);
  text = ebb_args_to_string (moments);
  g_assert_nonnull (strstr (text, "exp_avg_sq"));
  if (old->to == NULL)
    return TRUE;
  return (old->is_sharded ? ebb_training_state_save_sharded : ebb_training_state_save) (training, old->to, step, error);
}

static void
copy_old (const char *kind,
          const char *folder)
{
  g_autofree char *from = find_old (kind);
  g_autoptr (GDir) dir = g_dir_open (from, 0, NULL);
  const char *name;

  while ((name = g_dir_read_name (dir)) != NULL)
    {
      g_autofree char *source = g_build_filename (from, name, NULL);
      g_autofree char *target = g_build_filename (folder, name, NULL);
      g_autofree char *data = NULL;
      gsize size;

      g_assert_true (g_file_get_contents (source, &data, &size, NULL));
      g_assert_true (g_file_set_contents (target, data, (gssize) size, NULL));
    }
}

/* Of one process and of two ranks, by one process and by ranks. The state that is saved next replaces them. */
static void
test_old (void)
{
  static const char *const kinds[] = { "whole", "sharded" };

  for (guint i = 0; i < G_N_ELEMENTS (kinds); i++)
    for (guint n = 0; n <= 3; n++)
      {
        g_autofree char *folder = test_make_folder ();
        Old old = { folder, n > 0, folder };

        copy_old (kinds[i], folder);
        test_run_ranks (MAX (n, 1), load_old, &old);
        g_assert_cmpuint (test_count_files (folder, NULL), >=, 3 * MAX (n, 1) + 1);
        g_assert_cmpuint (test_count_files (folder, NULL), <=, n > 0 || i == 0 ? 3 * MAX (n, 1) + 1 : 3 + 1 + 6 + 1);
        old.to = NULL;
        test_run_ranks (MAX (n, 1), load_old, &old);
        test_remove_folder (folder);
      }
}

/* A folder of version 1.0 may have states of both kinds: that of the greater step is loaded. Later states are newer,
 * whoever saves them. */
static void
test_both_kinds (void)
{
  g_autofree char *folder = test_make_folder ();
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbModule) module = ebb_linear_new (3, 2, TRUE, &error);
  g_autoptr (EbbTrainingState) training = ebb_training_state_new (module, NULL, NULL);
  gint64 step = 0;

  for (gint64 i = 1; i < 6; i++)
    {
      g_autofree char *config = g_strdup_printf ("step %d", (int) i);
      g_autofree char *loaded = NULL;

      g_object_set (training, "config", i == 2 ? "from 1.0" : config, NULL);
      if (i == 2)
        copy_old ("whole", folder);
      else
        g_assert_true ((i % 2 != 0 ? ebb_training_state_save_sharded : ebb_training_state_save) (training, folder, i,
                                                                                                 &error));
      g_assert_no_error (error);
      for (guint k = 0; k < 2; k++)
        {
          g_assert_true ((k == 0 ? ebb_training_state_load : ebb_training_state_load_sharded) (training, folder, &step,
                                                                                               &error));
          g_assert_no_error (error);
          g_assert_cmpint (step, ==, i);
        }
      loaded = ebb_training_state_read_config (folder, &error);
      g_assert_cmpstr (loaded, ==, i == 2 ? "from 1.0" : config);
    }
  test_remove_folder (folder);
}

static gboolean
differ_in_what_they_save (EbbProcessGroup *group,
                          gpointer user_data,
                          GError **error)
{
  const gboolean is_first = ebb_process_group_get_rank (group) == 0;
  g_autoptr (EbbModule) module = ebb_linear_new (2, 3, FALSE, error);
  g_autoptr (EbbTrainingState) training = ebb_training_state_new (module, NULL, NULL);
  g_autoptr (GError) refused = NULL;

  g_object_set (training, "trained-only", TRUE, NULL);
  if (!ebb_training_state_save_sharded (training, user_data, 1, error))
    return FALSE;
  g_object_set (training, "trained-only", is_first, NULL);
  g_assert_false (ebb_training_state_save_sharded (training, user_data, 1, &refused));
  g_assert_nonnull (strstr (refused->message, "trained-only"));
  g_clear_error (&refused);
  g_assert_false (ebb_training_state_load_sharded (training, user_data, NULL, &refused));
  g_assert_nonnull (strstr (refused->message, "trained-only"));
  return TRUE;
}

static void
test_ranks_that_differ (void)
{
  g_autofree char *folder = test_make_folder ();

  test_run_ranks (2, differ_in_what_they_save, folder);
  test_remove_folder (folder);
}

/* Eight bits follow the elements of a rank: the same ranges are needed. */
static gboolean
save_8bit (EbbProcessGroup *group,
           gpointer user_data,
           GError **error)
{
  Saved *saved = user_data;
  g_auto (TestShardRun) run = { NULL };

  test_shard_run_start (&run, group, NULL, TEST_SPLIT_FLAT, 0, EBB_MOMENT_FORMAT_EIGHT_BIT);
  test_shard_run_steps (&run, group, 0, 1, NULL);
  return ebb_save_sharded_state (run.model, run.optimizer, saved->folder, error);
}

static gboolean
load_8bit (EbbProcessGroup *group,
           gpointer user_data,
           GError **error)
{
  Saved *saved = user_data;
  g_auto (TestShardRun) run = { NULL };

  test_shard_run_start (&run, group, NULL, saved->split, 0, EBB_MOMENT_FORMAT_EIGHT_BIT);
  return ebb_load_sharded_state (run.model, run.optimizer, saved->folder, error);
}

static void
test_8bit (void)
{
  g_autofree char *folder = test_make_folder ();
  Saved saved = { .folder = folder, .split = TEST_SPLIT_FLAT };
  g_autoptr (GError) error = NULL;

  test_run_ranks (3, save_8bit, &saved);
  test_run_ranks (3, load_8bit, &saved);
  g_assert_false (ebb_run_ranks (2, load_8bit, &saved, &error));
  test_assert_error (error, EBB_ERROR_STATE, "on as many ranks");
  test_remove_folder (folder);
}

static gboolean
save_hybrid (EbbProcessGroup *group,
             gpointer user_data,
             GError **error)
{
  static const char *const names[] = { "data", "shard" };
  static const gint64 sizes[] = { 2, 2 };
  Saved *saved = user_data;
  g_autoptr (EbbMesh) mesh = ebb_mesh_new (group, names, sizes, 2, error);
  g_auto (TestShardRun) run = { NULL };

  if (mesh == NULL)
    return FALSE;
  test_shard_run_start (&run, ebb_mesh_get_group (mesh, "shard"), ebb_mesh_get_group (mesh, "data"), TEST_SPLIT_ROWS, 0,
                        EBB_MOMENT_FORMAT_F32);
  return ebb_save_sharded_state (run.model, run.optimizer, saved->folder, error)
         && ebb_load_sharded_state (run.model, run.optimizer, saved->folder, error);
}

static gboolean
load_only (EbbProcessGroup *group,
           gpointer user_data,
           GError **error)
{
  Saved *saved = user_data;
  g_auto (TestShardRun) run = { NULL };

  test_shard_run_start (&run, group, NULL, saved->split, 0, EBB_MOMENT_FORMAT_F32);
  return ebb_load_sharded_state (run.model, NULL, saved->folder, error);
}

static void
test_hybrid (void)
{
  g_autofree char *folder = test_make_folder ();
  Saved saved = { .folder = folder, .split = TEST_SPLIT_FLAT };

  test_run_ranks (4, save_hybrid, &saved);
  test_run_ranks (3, load_only, &saved);
  test_remove_folder (folder);
}

/* -- failures ------------------------------------------------------------------------------------------------------ */

typedef struct
{
  const char *folder;
  gboolean fails; /* one rank can't write what it has */
  gboolean leaves;
  guint64 limit; /* for a file's size; 0: none */
} Attempt;

/* A save that fails on rank 2 alone, or whose rank 2 never comes, then, in the same folder, one that works. */
static gboolean
save_with_failure (EbbProcessGroup *group,
                   gpointer user_data,
                   GError **error)
{
  const Attempt *attempt = user_data;
  guint rank = ebb_process_group_get_rank (group);
  g_auto (TestShardRun) run = { NULL };
  g_autoptr (EbbTrainingState) training = NULL;
  g_autoptr (EbbArgs) values = ebb_args_new (EBB_ARGS_DICT);
  g_autoptr (GError) failure = NULL;

  test_shard_run_start (&run, group, NULL, TEST_SPLIT_ROWS, 0, EBB_MOMENT_FORMAT_F32);
  test_shard_run_steps (&run, group, 0, 1, NULL);
  training = ebb_training_state_new (run.model, run.optimizer, NULL);
  if (attempt->leaves && rank == 2)
    {
      g_set_error (error, EBB_ERROR, EBB_ERROR_CANCELLED, "rank 2 had enough");
      return FALSE;
    }
  if (attempt->fails && rank == 2)
    {
      ebb_args_add_object (values, "model", G_OBJECT (run.model));
      g_object_set (training, "values", values, NULL);
    }
  if (ebb_training_state_save_sharded (training, attempt->folder, 1, &failure))
    return TRUE;
  if (attempt->fails)
    {
      test_assert_error (failure, EBB_ERROR_STATE, "it has an object");
      g_assert_cmpint (g_str_has_prefix (failure->message, "rank 2: "), ==, rank != 2);
    }
  else if (attempt->limit > 0)
    test_assert_error (failure, EBB_ERROR_IO, "can't write");
  g_propagate_error (error, g_steal_pointer (&failure));
  return FALSE;
}

static void
test_failures (void)
{
  const Attempt attempts[] = { { NULL, TRUE, FALSE, 0 }, { NULL, FALSE, TRUE, 0 }, { NULL, FALSE, FALSE, 20000 } };

  for (guint i = 0; i < G_N_ELEMENTS (attempts); i++)
    {
      g_autofree char *folder = test_make_folder ();
      Saved saved = { .folder = folder, .split = TEST_SPLIT_FLAT };
      Attempt attempt = attempts[i];
      g_autoptr (GError) error = NULL;
      struct rlimit old, small;

      attempt.folder = folder;
      test_run_ranks (4, train_and_save, &saved);
      signal (SIGXFSZ, SIG_IGN);
      getrlimit (RLIMIT_FSIZE, &old);
      small = old;
      small.rlim_cur = attempt.limit > 0 ? attempt.limit : old.rlim_cur;
      setrlimit (RLIMIT_FSIZE, &small);
      g_assert_false (ebb_run_ranks (4, save_with_failure, &attempt, &error));
      setrlimit (RLIMIT_FSIZE, &old);
      g_assert_nonnull (error);

      /* The state before is there, and nothing else. */
      g_assert_cmpuint (test_count_files (folder, NULL), ==, 13);
      g_assert_cmpuint (test_count_files (folder, "-00000001-"), ==, 12);
      test_run_ranks (3, load_and_go_on, &saved);
      saved_clear (&saved);
      test_remove_folder (folder);
    }
}

static void
put_file (const char *folder,
          const char *name)
{
  g_autofree char *path = g_build_filename (folder, name, NULL);
  g_autoptr (GError) error = NULL;

  g_file_set_contents (path, "left", 4, &error);
  g_assert_no_error (error);
}

/* Files that a machine left when it stopped in the middle of a save. */
static void
test_leftovers (void)
{
  g_autofree char *folder = test_make_folder ();
  Saved saved = { .folder = folder, .split = TEST_SPLIT_ROWS };

  test_run_ranks (4, train_and_save, &saved);
  put_file (folder, "model-00000002-00001-of-00004.safetensors");
  put_file (folder, "optimizer-00000002-00003-of-00004.safetensors.0badcafe.ebb-partial");
  put_file (folder, "index.json.0badcafe.ebb-partial");
  put_file (folder, "model-00001-of-00004.safetensors"); /* somebody else's */
  put_file (folder, "notes.txt");
  test_run_ranks (2, load_and_go_on, &saved);
  saved_clear (&saved);
  test_run_ranks (3, train_and_save, &saved);
  g_assert_cmpuint (test_count_files (folder, "-00000003-"), ==, 9);
  g_assert_cmpuint (test_count_files (folder, NULL), ==, 9 + 1 + 2);
  test_run_ranks (2, load_and_go_on, &saved);
  saved_clear (&saved);
  test_remove_folder (folder);
}

static gboolean
save_in (EbbProcessGroup *group,
         gpointer user_data,
         GError **error)
{
  g_auto (TestShardRun) run = { NULL };

  test_shard_run_start (&run, group, NULL, TEST_SPLIT_ROWS, 0, EBB_MOMENT_FORMAT_F32);
  return ebb_save_sharded_state (run.model, run.optimizer, user_data, error);
}

static void
test_unwritable (void)
{
  g_autofree char *folder = test_make_folder ();
  g_autofree char *file = g_build_filename (folder, "file", NULL);
  g_autofree char *below = g_build_filename (folder, "file", "folder", NULL);
  g_autofree char *deep = g_build_filename (folder, "new", NULL);
  Saved saved = { .folder = deep };
  g_autoptr (GError) error = NULL;

  put_file (folder, "file");
  g_assert_false (ebb_run_ranks (2, save_in, below, &error));
  test_assert_error (error, EBB_ERROR_IO, "can't make the folder", below);
  g_clear_error (&error);
  g_assert_false (ebb_run_ranks (2, load_only, &saved, &error));
  test_assert_error (error, EBB_ERROR_IO, "can't read", deep);
  test_run_ranks (2, save_in, deep);
  test_run_ranks (3, load_only, &saved);
  test_remove_folder (deep);
  test_remove_folder (folder);
}

/* Each save has a number of its own, whatever its digits; what stays is one save. */
static gboolean
save_often (EbbProcessGroup *group,
            gpointer user_data,
            GError **error)
{
  g_auto (TestShardRun) run = { NULL };

  test_shard_run_start (&run, group, NULL, TEST_SPLIT_ROWS, 0, EBB_MOMENT_FORMAT_F32);
  for (guint i = 1; i <= 20; i++)
    {
      g_autofree char *number = g_strdup_printf ("-%08u-", i);

      if (!ebb_save_sharded_state (run.model, NULL, user_data, error) || !ebb_process_group_barrier (group, error))
        return FALSE;
      g_assert_cmpuint (test_count_files (user_data, number), ==, 4);
      g_assert_cmpuint (test_count_files (user_data, NULL), ==, 5);
      if (!ebb_process_group_barrier (group, error))
        return FALSE;
    }
  return TRUE;
}

static void
test_numbers (void)
{
  g_autofree char *folder = test_make_folder ();

  test_run_ranks (2, save_often, folder);
  test_remove_folder (folder);
}

int
main (int argc,
      char **argv)
{
  test_init (&argc, &argv);
  g_test_add_func ("/shard-folder/loads-on-other-numbers-of-ranks", test_other_numbers);
  g_test_add_func ("/shard-folder/loads-in-a-plain-process", test_plain_process);
  g_test_add_func ("/shard-folder/a-training-goes-on-bit-for-bit", test_resume);
  g_test_add_func ("/shard-folder/a-training-goes-on-elsewhere", test_resume_elsewhere);
  g_test_add_func ("/shard-folder/states-of-1.0-load", test_old);
  g_test_add_func ("/shard-folder/the-state-of-the-greater-step-is-loaded", test_both_kinds);
  g_test_add_func ("/shard-folder/ranks-agree-on-whether-a-base-is-left-out", test_ranks_that_differ);
  g_test_add_func ("/shard-folder/moments-in-8-bits-need-the-same-ranges", test_8bit);
  g_test_add_func ("/shard-folder/replicas-save-once", test_hybrid);
  g_test_add_func ("/shard-folder/a-failure-leaves-the-state-before", test_failures);
  g_test_add_func ("/shard-folder/leftovers-do-no-harm-and-go", test_leftovers);
  g_test_add_func ("/shard-folder/folders-that-are-not-there", test_unwritable);
  g_test_add_func ("/shard-folder/each-save-has-its-own-number", test_numbers);
  return g_test_run ();
}
