/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/device.h"
#include "support/ranks.h"
#include "support/shard-runs.h"
#include "support/tensors.h"
#include "support/trainers.h"

#include <math.h>
#include <string.h>

#define N_STEPS 6

/* -- batches, parts, and ranks ------------------------------------------------------------------------------------- */

typedef struct
{
  gint64 n_rows; /* of a batch */
  gint64 accumulate, micro_batch_size;
  guint n_ranks;
  gint64 n_tensor; /* ranks that share a model; 0: none do */
} Way;

typedef struct
{
  const Way *way;
  double losses[3];
  EbbTensor *weight; /* on the host, after the steps */
} WayRun;

static EbbArgs *
give_batch (gint64 number, gpointer user_data, GError **error)
{
  const gint64 *n_rows = user_data;

  return test_trainer_batch (number, *n_rows);
}

static void
note_loss (EbbTrainer *trainer, gint64 step, double loss, double *losses)
{
  losses[step - 1] = loss;
}

static EbbTensor *
copy_weight (EbbModule *model)
{
  g_autoptr (EbbArgs) state = ebb_get_full_state_dict (model, FALSE, NULL);
  g_autoptr (EbbTensor) weight = ebb_args_get_tensor (state, 0);

  return ebb_to_device (weight, ebb_device_get_cpu (), NULL);
}

static EbbMesh *
make_mesh (EbbProcessGroup *group, const Way *way, GError **error)
{
  static const char *const names[] = { "data", "tensor" };
  const gint64 sizes[] = { -1, way->n_tensor };

  return way->n_ranks > 1 ? ebb_mesh_new (group, names, sizes, way->n_tensor > 0 ? 2 : 1, error) : NULL;
}

static gboolean
wrap (EbbModule *model, EbbMesh *mesh, const Way *way, GError **error)
{
  g_autoptr (EbbModule) parallel = way->n_tensor > 0
                                       ? ebb_parallelize (model, ebb_mesh_get_group (mesh, "tensor"), NULL, error)
                                       : g_object_ref (model);
  g_autoptr (EbbModule) sharded =
      mesh != NULL && parallel != NULL ? ebb_fully_shard (model, ebb_mesh_get_group (mesh, "data"), NULL, error) : NULL;

  return mesh == NULL || sharded != NULL;
}

static gboolean
train_way (EbbProcessGroup *group, gpointer user_data, GError **error)
{
  WayRun *run = user_data;
  const Way *way = run->way;
  g_autoptr (EbbMesh) mesh = make_mesh (group, way, error);
  g_autoptr (EbbModule) model = test_trainer_model (0);
  const gboolean is_wrapped = wrap (model, mesh, way, error);
  g_autoptr (EbbOptimizer) optimizer = ebb_sgd_new (model, 0.5, error);
  g_autoptr (EbbTrainerOptions) options =
      test_trainer_options ("accumulate", way->accumulate, "micro-batch-size", way->micro_batch_size, "steps",
                            (gint64) G_N_ELEMENTS (run->losses), "mesh", mesh, "clip", 100.0, NULL);
  g_autoptr (EbbTrainer) trainer = ebb_trainer_new (model, optimizer, NULL, options, error);
  double losses[G_N_ELEMENTS (run->losses)];
  g_autoptr (EbbTensor) weight = NULL;
  g_autofree char *report = NULL;

  if (!is_wrapped || trainer == NULL)
    return FALSE;
  ebb_trainer_set_batch_func (trainer, give_batch, (gpointer) &way->n_rows, NULL);
  g_signal_connect (trainer, "stepped", G_CALLBACK (note_loss), losses);
  if (!ebb_trainer_run (trainer, NULL, error))
    return FALSE;
  weight = copy_weight (model);
  report = ebb_trainer_to_json (trainer);
  g_assert_true ((strstr (report, "\"ranks\"") != NULL) == (mesh != NULL));
  if (ebb_process_group_get_rank (group) == 0)
    {
      memcpy (run->losses, losses, sizeof losses);
      run->weight = g_steal_pointer (&weight);
    }
  return TRUE;
}

/* A batch of 4 rows, 4 batches of a row, and parts of a row train alike, on one rank and on several, of which some
 * share a model, though rows predict different numbers of tokens, and one row none. */
static void
ways_of_a_batch (void)
{
  static const Way ways[] = { { 4, 1, 0, 1, 0 }, { 1, 4, 0, 1, 0 }, { 4, 1, 1, 1, 0 }, { 4, 1, 3, 1, 0 },
                              { 4, 1, 0, 2, 0 }, { 1, 4, 0, 2, 0 }, { 4, 1, 1, 2, 0 }, { 2, 2, 0, 2, 0 },
                              { 4, 1, 1, 2, 2 }, { 4, 1, 0, 4, 2 } };
  WayRun first = { .way = &ways[0] };

  test_ranks_run (1, train_way, &first);
  for (guint i = 1; i < G_N_ELEMENTS (ways); i++)
    {
      WayRun run = { .way = &ways[i] };

      test_ranks_run (ways[i].n_ranks, train_way, &run);
      for (guint step = 0; step < G_N_ELEMENTS (run.losses); step++)
        g_assert_cmpfloat (fabs (run.losses[step] - first.losses[step]), <=, 2e-6 * first.losses[step]);
      test_assert_near (run.weight, first.weight, 1e-6);
      ebb_tensor_unref (run.weight);
    }
  ebb_tensor_unref (first.weight);
}

/* -- ends of a training -------------------------------------------------------------------------------------------- */

typedef struct
{
  const char *name;
  int phase;      /* the callback that fails; -1: none */
  gboolean stops; /* in a handler of "stepped" */
  gboolean cancels;
  gboolean has_func; /* batches by a function */
} Ending;

typedef struct
{
  const Ending *ending; /* NULL: none */
  gint64 step;          /* at which it comes */
  GCancellable *cancellable;
  double losses[N_STEPS];
  gboolean is_over;
} Run;

static void
meet_phase (EbbTrainer *trainer, EbbTrainerPhase phase, guint64 done, guint64 total, Run *run)
{
  gint64 step;

  g_object_get (trainer, "step", &step, NULL);
  if (run->ending == NULL || run->is_over || (int) phase != run->ending->phase || step + 1 < run->step)
    return;
  run->is_over = TRUE;
  {
    g_autoptr (GError) error = g_error_new (EBB_ERROR, EBB_ERROR_CALLBACK, "the handler of phase %d failed", phase);

    ebb_trainer_fail (trainer, error);
  }
}

static void
meet_step (EbbTrainer *trainer, gint64 step, double loss, Run *run)
{
  run->losses[step - 1] = loss;
  if (run->ending == NULL || step != run->step)
    return;
  if (run->ending->stops)
    ebb_trainer_stop (trainer);
  if (run->ending->cancels)
    g_cancellable_cancel (run->cancellable);
}

/* Trains up to N_STEPS in @folder. Returns what ebb_trainer_run () does. */
static gboolean
train_in (const char *folder, Run *run, const Ending *ending, guint64 *hash, GError **error)
{
  g_autoptr (EbbModule) model = test_trainer_model (0.1);
  g_autoptr (EbbDataset) data = ending->has_func ? NULL : test_trainer_text ();
  g_autoptr (EbbDataset) held_out = test_trainer_text ();
  g_autoptr (EbbTrainerOptions) options =
      test_trainer_options ("steps", (gint64) N_STEPS, "accumulate", (gint64) 2, "micro-batch-size", (gint64) 1,
                            "clip", 1.0, "evaluate", held_out, "evaluate-every", (gint64) 2, "resume", folder,
                            "save-every", (gint64) 2, "batch-size", (gint64) 3, NULL);
  g_autoptr (EbbTrainer) trainer = ebb_trainer_new (model, NULL, data, options, error);
  g_autoptr (GCancellable) cancellable = g_cancellable_new ();
  static const gint64 n_rows = 3;
  gboolean ok;

  g_assert_nonnull (trainer);
  run->cancellable = cancellable;
  ebb_manual_seed (11);
  if (data == NULL)
    ebb_trainer_set_batch_func (trainer, give_batch, (gpointer) &n_rows, NULL);
  g_signal_connect (trainer, "phase", G_CALLBACK (meet_phase), run);
  g_signal_connect (trainer, "stepped", G_CALLBACK (meet_step), run);
  ok = ebb_trainer_run (trainer, cancellable, error);
  *hash = test_ranks_hash (model);
  return ok;
}

static void
assert_same_losses (const Run *a, const Run *b)
{
  for (guint i = 0; i < N_STEPS; i++)
    g_assert_true (a->losses[i] == b->losses[i]);
}

/* Where a training ends by a cancel, a stop, or a failure at any phase, another one goes on to the same bits. */
static void
endings (void)
{
  static const Ending all[] = {
    { "cancel", -1, FALSE, TRUE, FALSE },
    { "stop", -1, TRUE, FALSE, FALSE },
    { "forward", EBB_TRAINER_PHASE_FORWARD, FALSE, FALSE, FALSE },
    { "backward", EBB_TRAINER_PHASE_BACKWARD, FALSE, FALSE, FALSE },
    { "exchange", EBB_TRAINER_PHASE_EXCHANGE, FALSE, FALSE, FALSE },
    { "update", EBB_TRAINER_PHASE_UPDATE, FALSE, FALSE, FALSE },
    { "evaluate", EBB_TRAINER_PHASE_EVALUATE, FALSE, FALSE, FALSE },
    { "save", EBB_TRAINER_PHASE_SAVE, FALSE, FALSE, FALSE },
    { "wait", EBB_TRAINER_PHASE_WAIT, FALSE, FALSE, FALSE },
    { "cancel-func", -1, FALSE, TRUE, TRUE },
    { "backward-func", EBB_TRAINER_PHASE_BACKWARD, FALSE, FALSE, TRUE },
  };
  Run whole[2] = { { 0 } };
  guint64 hashes[2];

  for (guint i = 0; i < 2; i++)
    {
      g_autoptr (GError) error = NULL;
      g_autofree char *folder = test_make_folder ();

      train_in (folder, &whole[i], &(Ending){ .has_func = i == 1 }, &hashes[i], &error);
      g_assert_no_error (error);
      test_remove_folder (folder);
    }
  for (guint i = 0; i < G_N_ELEMENTS (all); i++)
    {
      const Ending *ending = &all[i];
      g_autofree char *folder = test_make_folder ();
      g_autoptr (GError) error = NULL;
      Run run = { .ending = ending, .step = 3 };
      guint64 hash;

      g_test_message ("%s", ending->name);
      g_assert_true (train_in (folder, &run, ending, &hash, &error) == ending->stops);
      if (ending->cancels)
        g_assert_error (error, G_IO_ERROR, G_IO_ERROR_CANCELLED);
      else if (!ending->stops)
        test_assert_error (error, EBB_ERROR_CALLBACK, "the handler of phase");
      g_assert_true (isfinite (run.losses[1]) && run.losses[N_STEPS - 1] == 0);
      g_clear_error (&error);
      run.ending = NULL;
      train_in (folder, &run, ending, &hash, &error);
      g_assert_no_error (error);
      assert_same_losses (&run, &whole[ending->has_func]);
      g_assert_cmphex (hash, ==, hashes[ending->has_func]);
      test_remove_folder (folder);
    }
}

/* A trainer whose step failed before anything lasting changed goes on itself. */
static void
goes_on_after_a_failure (void)
{
  g_autoptr (EbbModule) model = test_trainer_model (0.1);
  g_autoptr (EbbDataset) data = test_trainer_text ();
  g_autoptr (EbbTrainerOptions) options = test_trainer_options ("steps", (gint64) 4, NULL);
  g_autoptr (EbbTrainer) trainer = NULL;
  g_autoptr (GError) error = NULL;
  static const Ending ending = { "backward", EBB_TRAINER_PHASE_BACKWARD, FALSE, FALSE, FALSE };
  Run runs[2] = { { 0 }, { .ending = &ending, .step = 3 } };
  guint64 hashes[2];

  for (guint i = 0; i < 2; i++)
    {
      g_clear_object (&model);
      g_clear_object (&data);
      g_clear_object (&trainer);
      model = test_trainer_model (0.1);
      data = test_trainer_text ();
      trainer = ebb_trainer_new (model, NULL, data, options, &error);
      g_signal_connect (trainer, "phase", G_CALLBACK (meet_phase), &runs[i]);
      g_signal_connect (trainer, "stepped", G_CALLBACK (meet_step), &runs[i]);
      ebb_manual_seed (11);
      if (!ebb_trainer_run (trainer, NULL, &error))
        {
          test_assert_error (error, EBB_ERROR_CALLBACK, "the handler of phase");
          g_clear_error (&error);
          ebb_trainer_run (trainer, NULL, &error);
        }
      g_assert_no_error (error);
      hashes[i] = test_ranks_hash (model);
    }
  g_assert_true (runs[1].is_over);
  assert_same_losses (&runs[0], &runs[1]);
  g_assert_cmphex (hashes[0], ==, hashes[1]);
}

/* Where parameters have moved, the step is no step: nothing is saved, and the trainer says so. */
static void
broken_step (void)
{
  g_autofree char *folder = test_make_folder ();
  g_autoptr (EbbModule) model = test_trainer_model (0);
  g_autoptr (EbbOptimizer) optimizer = ebb_sgd_new (model, 0.1, NULL);
  g_autoptr (EbbDataset) data = test_trainer_text ();
  g_autoptr (EbbTrainerOptions) options = test_trainer_options ("steps", (gint64) 4, "resume", folder, NULL);
  g_autoptr (EbbTrainer) trainer = NULL;
  g_autoptr (GError) error = NULL;
  static const Ending ending = { "exchange", EBB_TRAINER_PHASE_EXCHANGE, FALSE, FALSE, FALSE };
  Run run = { .ending = &ending, .step = 2 };

  g_object_set (optimizer, "step-in-backward", TRUE, NULL);
  trainer = ebb_trainer_new (model, optimizer, data, options, &error);
  g_signal_connect (trainer, "phase", G_CALLBACK (meet_phase), &run);
  g_signal_connect (trainer, "stepped", G_CALLBACK (meet_step), &run);
  g_assert_false (ebb_trainer_run (trainer, NULL, &error));
  test_assert_error (error, EBB_ERROR_CALLBACK, "the handler of phase");
  g_clear_error (&error);
  g_assert_cmpuint (test_count_files (folder, "index"), ==, 0);
  g_assert_false (ebb_trainer_run_step (trainer, NULL, &error));
  test_assert_error (error, EBB_ERROR_STATE, "step 2 was broken off");
  g_clear_error (&error);
  g_assert_true (ebb_trainer_finish (trainer, &error));
  g_assert_cmpuint (test_count_files (folder, "index"), ==, 0);
  test_remove_folder (folder);
}

/* -- ranks end together -------------------------------------------------------------------------------------------- */

typedef struct
{
  const char *how;
  const char *folder;
  gint64 steps[2];
  guint codes[2];
} RanksEnd;

typedef struct
{
  RanksEnd *end;
  guint rank;
  GCancellable *cancellable;
} RankEnd;

static void
end_on_rank (EbbTrainer *trainer, gint64 step, double loss, RankEnd *self)
{
  if (self->rank != 1 || step != 2)
    return;
  if (strcmp (self->end->how, "cancel") == 0)
    g_cancellable_cancel (self->cancellable);
  else if (strcmp (self->end->how, "stop") == 0)
    ebb_trainer_stop (trainer);
  else
    {
      g_autoptr (GError) error = g_error_new_literal (EBB_ERROR, EBB_ERROR_CALLBACK, "a handler failed");

      ebb_trainer_fail (trainer, error);
    }
}

static gboolean
end_ranks (EbbProcessGroup *group, gpointer user_data, GError **error)
{
  static const char *const names[] = { "data" };
  static const gint64 sizes[] = { -1 };
  RankEnd self = { user_data, ebb_process_group_get_rank (group), g_cancellable_new () };
  g_autoptr (EbbMesh) mesh = ebb_mesh_new (group, names, sizes, 1, error);
  g_autoptr (EbbModule) model = test_trainer_model (0.1);
  g_autoptr (EbbModule) same = ebb_fully_shard (model, group, NULL, error);
  g_autoptr (EbbDataset) data = test_trainer_text ();
  g_autoptr (EbbTrainerOptions) options =
      test_trainer_options ("steps", (gint64) 5, "mesh", mesh, "resume", self.end->folder, NULL);
  g_autoptr (EbbTrainer) trainer = ebb_trainer_new (model, NULL, data, options, error);
  g_autoptr (GError) failure = NULL;
  gboolean is_shared;

  g_assert_nonnull (trainer);
  g_signal_connect (trainer, "stepped", G_CALLBACK (end_on_rank), &self);
  ebb_trainer_run (trainer, self.cancellable, &failure);
  g_object_get (trainer, "step", &self.end->steps[self.rank], "is-failure-shared", &is_shared, NULL);
  if (strcmp (self.end->how, "cancel") == 0)
    g_assert_error (failure, G_IO_ERROR, G_IO_ERROR_CANCELLED);
  else if (strcmp (self.end->how, "stop") == 0)
    g_assert_no_error (failure);
  else
    {
      g_assert_cmpstr (failure->message, ==, "rank 1: a handler failed");
      g_assert_true (is_shared);
    }
  g_object_unref (self.cancellable);
  return TRUE;
}

/* A cancel, a stop, or a failing handler of one rank ends the training of both at the same step, which is saved. */
static void
ranks_end_together (void)
{
  static const char *const ways[] = { "cancel", "stop", "fail" };

  for (guint i = 0; i < G_N_ELEMENTS (ways); i++)
    {
      g_autofree char *folder = test_make_folder ();
      RanksEnd end = { .how = ways[i], .folder = folder };

      test_ranks_run (2, end_ranks, &end);
      g_assert_cmpint (end.steps[0], ==, 2);
      g_assert_cmpint (end.steps[1], ==, 2);
      g_assert_cmpuint (test_count_files (folder, "index.json"), ==, 1);
      test_remove_folder (folder);
    }
}

/* -- settings ------------------------------------------------------------------------------------------------------ */

typedef struct
{
  const char *first, *second; /* both are named */
  const char *names[3];
  const char *values[3];
  gboolean has_func;
} Contradiction;

static void
set_text (gpointer object, const char *name, const char *text)
{
  GParamSpec *spec = g_object_class_find_property (G_OBJECT_GET_CLASS (object), name);

  g_assert_nonnull (spec);
  if (spec->value_type == G_TYPE_STRING)
    g_object_set (object, name, text, NULL);
  else if (spec->value_type == G_TYPE_DOUBLE)
    g_object_set (object, name, g_ascii_strtod (text, NULL), NULL);
  else if (spec->value_type == EBB_TYPE_DATASET)
    {
      g_autoptr (EbbDataset) data = test_trainer_text ();

      g_object_set (object, name, data, NULL);
    }
  else
    g_object_set (object, name, g_ascii_strtoll (text, NULL, 10), NULL);
}

static EbbArgs *
give_nothing (gint64 number, gpointer user_data, GError **error)
{
  return ebb_args_new (EBB_ARGS_DICT);
}

/* Each contradiction is an error that names both settings, and nothing is dropped. */
static void
contradictions (void)
{
  static const Contradiction all[] = {
    { "steps 3", "epochs 2", { "steps", "epochs" }, { "3", "2" }, FALSE },
    { "micro-batch-size 5", "batch-size 4", { "micro-batch-size", "batch-size", "steps" }, { "5", "4", "1" }, FALSE },
    { "save-every 2", "resume", { "save-every", "steps" }, { "2", "1" }, FALSE },
    { "config", "resume", { "config", "steps" }, { "text", "1" }, FALSE },
    { "save-best a", "resume a", { "save-best", "resume", "steps" }, { "a", "a", "1" }, FALSE },
    { "save-best a/", "resume ./a", { "save-best", "resume", "steps" }, { "a/", "./a", "1" }, FALSE },
    { "evaluate-every 2", "evaluate", { "evaluate-every", "steps" }, { "2", "1" }, FALSE },
    { "save-best b", "evaluate", { "save-best", "steps" }, { "b", "1" }, FALSE },
    { "neither steps", "epochs", { NULL }, { NULL }, FALSE },
    { "dtype", "f16", { "dtype", "steps" }, { "f16", "1" }, FALSE },
    { "batch-size 4", "batch function", { "batch-size" }, { "4" }, TRUE },
    { "context 4", "batch function", { "context" }, { "4" }, TRUE },
    { "epochs 2", "batch function", { "epochs" }, { "2" }, TRUE },
  };

  for (guint i = 0; i < G_N_ELEMENTS (all); i++)
    {
      g_autoptr (EbbModule) model = test_trainer_model (0);
      g_autoptr (EbbDataset) data = all[i].has_func ? NULL : test_trainer_text ();
      g_autoptr (EbbTrainerOptions) options = ebb_trainer_options_new ();
      g_autoptr (EbbTrainer) trainer = NULL;
      g_autoptr (GError) error = NULL;

      for (guint k = 0; k < 3 && all[i].names[k] != NULL; k++)
        set_text (options, all[i].names[k], all[i].values[k]);
      trainer = ebb_trainer_new (model, NULL, data, options, &error);
      if (trainer != NULL && all[i].has_func)
        ebb_trainer_set_batch_func (trainer, give_nothing, NULL, NULL);
      if (trainer != NULL)
        g_assert_false (ebb_trainer_prepare (trainer, NULL, &error));
      g_assert_nonnull (error);
      g_assert_nonnull (strstr (error->message, all[i].first));
      g_assert_nonnull (strstr (error->message, all[i].second));
    }
}

static void
step_in_backward_contradicts (void)
{
  static const char *const names[] = { "clip", "accumulate", "micro-batch-size" };

  for (guint i = 0; i < G_N_ELEMENTS (names); i++)
    {
      g_autoptr (EbbModule) model = test_trainer_model (0);
      g_autoptr (EbbOptimizer) optimizer = ebb_adamw_new (model, 1e-3, NULL);
      g_autoptr (EbbDataset) data = test_trainer_text ();
      g_autoptr (EbbTrainerOptions) options = test_trainer_options ("steps", (gint64) 1, NULL);
      g_autoptr (GError) error = NULL;

      set_text (options, names[i], "2");
      g_object_set (optimizer, "step-in-backward", TRUE, NULL);
      g_assert_null (ebb_trainer_new (model, optimizer, data, options, &error));
      test_assert_error (error, EBB_ERROR_INVALID_ARGUMENT, names[i], "step-in-backward");
    }
}

/* An object that a binding makes without a model says so. */
static void
without_a_model (void)
{
  g_autoptr (EbbTrainer) trainer = g_object_new (EBB_TYPE_TRAINER, NULL);
  g_autoptr (GError) error = NULL;

  g_assert_false (ebb_trainer_run (trainer, NULL, &error));
  test_assert_error (error, EBB_ERROR_INVALID_ARGUMENT, "no model");
}

/* -- callbacks ----------------------------------------------------------------------------------------------------- */

static EbbArgs *
give_null (gint64 number, gpointer user_data, GError **error)
{
  return NULL;
}

static EbbTensor *
lose_nothing (EbbModule *model, EbbArgs *batch, gpointer user_data, GError **error)
{
  return NULL;
}

static EbbArgs *
give_two (gint64 number, gpointer user_data, GError **error)
{
  return number < 2 ? test_trainer_batch (number, 2) : ebb_args_new (EBB_ARGS_DICT);
}

/* A function that returns nothing without an error is never taken for the end of the data. */
static void
silent_callbacks (void)
{
  g_autoptr (EbbModule) model = test_trainer_model (0);
  g_autoptr (EbbTrainer) trainer = ebb_trainer_new (model, NULL, NULL, NULL, NULL);
  g_autoptr (GError) error = NULL;

  ebb_trainer_set_batch_func (trainer, give_null, NULL, NULL);
  g_assert_false (ebb_trainer_run (trainer, NULL, &error));
  test_assert_error (error, EBB_ERROR_CALLBACK, "gave no batch 0");
  g_clear_error (&error);
  ebb_trainer_set_batch_func (trainer, give_two, NULL, NULL);
  ebb_trainer_set_loss_func (trainer, lose_nothing, NULL, NULL);
  g_assert_false (ebb_trainer_run (trainer, NULL, &error));
  test_assert_error (error, EBB_ERROR_CALLBACK, "loss function failed without saying why");
}

/* An empty batch ends the data, also in the middle of a step. */
static void
data_ends (void)
{
  g_autoptr (EbbModule) model = test_trainer_model (0);
  g_autoptr (EbbTrainerOptions) options = test_trainer_options ("accumulate", (gint64) 4, NULL);
  g_autoptr (EbbTrainer) trainer = ebb_trainer_new (model, NULL, NULL, options, NULL);
  g_autoptr (GError) error = NULL;
  gint64 step;

  ebb_trainer_set_batch_func (trainer, give_two, NULL, NULL);
  ebb_trainer_run (trainer, NULL, &error);
  g_assert_no_error (error);
  g_object_get (trainer, "step", &step, NULL);
  g_assert_cmpint (step, ==, 1);
  g_assert_true (ebb_trainer_is_done (trainer));
  g_assert_false (ebb_trainer_run_step (trainer, NULL, &error));
  test_assert_error (error, EBB_ERROR_STATE, "done, at step 1");
}

typedef struct
{
  EbbTrainer *trainer; /* not owned */
  guint *n_freed;
} OwnLoss;

static void
free_own_loss (gpointer data)
{
  ++*((OwnLoss *) data)->n_freed;
  g_free (data);
}

/* A loss function that uses its trainer. */
static EbbTensor *
compute_own_loss (EbbModule *model, EbbArgs *batch, gpointer user_data, GError **error)
{
  OwnLoss *self = user_data;
  g_autoptr (EbbTensor) x = ebb_args_get_tensor (batch, (guint) ebb_args_find (batch, "x"));
  g_autoptr (EbbTensor) y = ebb_module_call1 (model, x, error);
  g_autoptr (EbbTensor) squares = y != NULL ? ebb_mul (y, y, error) : NULL;
  EbbTensor *loss = squares != NULL ? ebb_mean (squares, NULL, 0, FALSE, error) : NULL;

  if (loss != NULL)
    ebb_trainer_add_metric (self->trainer, "twice", loss);
  return loss;
}

static EbbArgs *
give_x (gint64 number, gpointer user_data, GError **error)
{
  const gint64 shape[] = { 4, 3 };
  g_autoptr (EbbTensor) x = ebb_tensor_new_empty (shape, 2, EBB_DTYPE_F32, ebb_device_get_cpu (), error);
  float *data = ebb_tensor_get_data (x, error);
  EbbArgs *batch = ebb_args_new (EBB_ARGS_DICT);

  for (guint i = 0; i < 12; i++)
    data[i] = (float) i;
  ebb_args_add_tensor (batch, "x", x);
  return batch;
}

static EbbTrainer *
make_own (EbbModule *model, const char *folder, guint *n_freed)
{
  g_autoptr (EbbTrainerOptions) options =
      test_trainer_options ("steps", (gint64) 1, "micro-batch-size", (gint64) 1, "resume", folder, NULL);
  EbbTrainer *trainer = ebb_trainer_new (model, NULL, NULL, options, NULL);
  OwnLoss *loss = g_new (OwnLoss, 1);

  *loss = (OwnLoss){ trainer, n_freed };
  ebb_trainer_set_loss_func (trainer, compute_own_loss, loss, free_own_loss);
  ebb_trainer_set_batch_func (trainer, give_x, NULL, NULL);
  return trainer;
}

static EbbModule *
make_linear (void)
{
  EbbModule *model = ebb_linear_new (3, 2, TRUE, NULL);

  ebb_module_to_device (model, test_device (), NULL);
  return model;
}

/* Metrics are means over the step, as the loss is. */
static void
metrics (void)
{
  g_autoptr (EbbModule) model = make_linear ();
  guint n_freed = 0;
  g_autoptr (EbbTrainer) trainer = make_own (model, NULL, &n_freed);
  g_autoptr (EbbArgs) noted = NULL;
  g_autoptr (GError) error = NULL;
  double loss;

  ebb_trainer_run (trainer, NULL, &error);
  g_assert_no_error (error);
  noted = ebb_trainer_get_metrics (trainer);
  g_object_get (trainer, "loss", &loss, NULL);
  g_assert_cmpint (ebb_args_find (noted, "twice"), ==, 0);
  g_assert_true (ebb_args_get_double (noted, 0) == loss);
}

static guint64
get_current_bytes (EbbMemoryStats *stats)
{
  guint64 sum = 0;

  for (guint i = 0; i < EBB_N_PURPOSES; i++)
    sum += ebb_memory_stats_get_current (stats, (EbbPurpose) i);
  return sum;
}

/* Trainers whose callbacks use them leave no bytes and no locks. */
static void
nothing_is_left (void)
{
  g_autofree char *folder = test_make_folder ();
  const guint n = test_device_is_slow () ? 20 : 1000;
  g_autoptr (EbbModule) model = make_linear ();
  guint64 before = 0;
  guint n_freed = 0;

  for (guint i = 0; i < n; i++)
    {
      g_autoptr (EbbTrainer) trainer = make_own (model, i % 100 == 0 ? folder : NULL, &n_freed);
      g_autoptr (GError) error = NULL;
      g_autoptr (EbbMemoryStats) stats = NULL;

      if (i % 10 == 0)
        ebb_trainer_prepare (trainer, NULL, &error);
      if (i % 100 == 0)
        ebb_trainer_run_step (trainer, NULL, &error);
      g_clear_error (&error); /* the state that is there is done */
      g_clear_object (&trainer);
      ebb_module_zero_grad (model);
      stats = ebb_memory_get_stats (test_device ());
      if (i == 0)
        before = get_current_bytes (stats);
      g_assert_cmpuint (get_current_bytes (stats), ==, before);
    }
  g_assert_cmpuint (n_freed, ==, n);
  test_remove_folder (folder);
}

/* -- states -------------------------------------------------------------------------------------------------------- */

/* One trainer at a time has a state's folder, until it is finished or gone. */
static void
locks (void)
{
  g_autofree char *folder = test_make_folder ();
  g_autoptr (EbbModule) model = make_linear ();
  guint n_freed = 0;
  g_autoptr (EbbTrainer) first = make_own (model, folder, &n_freed);
  g_autoptr (EbbTrainer) second = make_own (model, folder, &n_freed);
  g_autoptr (GError) error = NULL;

  g_assert_true (ebb_trainer_prepare (first, NULL, &error));
  g_assert_false (ebb_trainer_prepare (second, NULL, &error));
  g_assert_error (error, EBB_ERROR, EBB_ERROR_STATE);
  g_clear_error (&error);
  g_assert_true (ebb_trainer_finish (first, &error));
  g_assert_true (ebb_trainer_prepare (second, NULL, &error));
  g_clear_object (&second);
  g_assert_true (ebb_trainer_prepare (first, NULL, &error));
  test_remove_folder (folder);
}

static void
keep_text (EbbTrainer *trainer, const char *text, char **kept)
{
  g_free (*kept);
  *kept = g_strdup (text);
}

/* The program's settings count, and a note names those that the state was saved with; its values come back. */
static void
settings_of_a_state (void)
{
  g_autofree char *folder = test_make_folder ();
  g_autofree char *note = NULL;
  g_autoptr (EbbArgs) values = ebb_args_new (EBB_ARGS_DICT);

  ebb_args_add_int (values, "place", 7);
  for (guint i = 0; i < 2; i++)
    {
      g_autoptr (EbbModule) model = test_trainer_model (0);
      g_autoptr (EbbOptimizer) optimizer = ebb_adamw_new (model, i == 0 ? 1e-3 : 2e-3, NULL);
      g_autoptr (EbbDataset) data = test_trainer_text ();
      g_autoptr (EbbTrainerOptions) options =
          test_trainer_options ("steps", (gint64) i + 1, "batch-size", (gint64) 2 + i, "resume", folder, NULL);
      g_autoptr (EbbTrainer) trainer = ebb_trainer_new (model, optimizer, data, options, NULL);
      g_autoptr (EbbArgs) there = NULL;
      g_autoptr (GError) error = NULL;
      double rate;

      g_signal_connect (trainer, "note", G_CALLBACK (keep_text), &note);
      if (i == 0)
        ebb_trainer_set_values (trainer, values);
      ebb_trainer_run (trainer, NULL, &error);
      g_assert_no_error (error);
      there = ebb_trainer_get_values (trainer);
      g_assert_cmpint (ebb_args_get_int (there, 0), ==, 7);
      g_object_get (trainer, "learning-rate", &rate, NULL);
      g_assert_true (rate == (i == 0 ? 1e-3 : 2e-3));
      if (i == 0)
        g_assert_null (note);
    }
  g_assert_nonnull (strstr (note, "was saved with learning rate 0.001, batch-size 2"));
  g_assert_nonnull (strstr (note, "goes on with 0.002, 3"));
  test_remove_folder (folder);
}

/* -- held-out data ------------------------------------------------------------------------------------------------- */

typedef struct
{
  guint n_evaluated, n_saved, n_best;
} Signals;

static void
note_evaluated (EbbTrainer *trainer, gint64 step, double loss, gboolean is_best, Signals *self)
{
  self->n_evaluated++;
  self->n_best += is_best;
}

static void
note_saved (EbbTrainer *trainer, const char *path, Signals *self)
{
  self->n_saved++;
}

/* Measuring changes nothing of the training; the best weights are those of the least loss. */
static void
evaluation (void)
{
  g_autofree char *folder = test_make_folder ();
  g_autofree char *best = g_build_filename (folder, "best.safetensors", NULL);
  guint64 hashes[2];
  Signals noted = { 0 };

  for (guint i = 0; i < 2; i++)
    {
      g_autoptr (EbbModule) model = test_trainer_model (0.1);
      g_autoptr (EbbDataset) data = test_trainer_text ();
      g_autoptr (EbbDataset) held_out = ebb_dataset_hold_out (data, 0.2, NULL);
      g_autoptr (EbbTrainerOptions) options = test_trainer_options ("steps", (gint64) 5, NULL);
      g_autoptr (EbbTrainer) trainer = NULL;
      g_autoptr (GError) error = NULL;
      double loss, least;
      gint64 step;

      if (i == 1)
        g_object_set (options, "evaluate", held_out, "evaluate-every", (gint64) 2, "save-best", best, NULL);
      trainer = ebb_trainer_new (model, NULL, data, options, &error);
      g_signal_connect (trainer, "evaluated", G_CALLBACK (note_evaluated), &noted);
      g_signal_connect (trainer, "saved", G_CALLBACK (note_saved), &noted);
      ebb_manual_seed (3);
      ebb_trainer_run (trainer, NULL, &error);
      g_assert_no_error (error);
      hashes[i] = test_ranks_hash (model);
      if (i == 0)
        continue;
      g_object_get (trainer, "best-loss", &least, "best-step", &step, NULL);
      g_assert_cmpint (step, ==, 5);
      ebb_trainer_evaluate (trainer, held_out, &loss, NULL, &error);
      g_assert_no_error (error);
      g_assert_true (loss == least);
    }
  g_assert_cmphex (hashes[0], ==, hashes[1]);
  g_assert_cmpuint (noted.n_evaluated, ==, 3);
  g_assert_cmpuint (noted.n_best, ==, 3);
  g_assert_cmpuint (noted.n_saved, ==, 3);
  g_assert_true (g_file_test (best, G_FILE_TEST_EXISTS));
  test_remove_folder (folder);
}

/* An estimate is the memory of a step to the byte, and changes nothing. */
static void
estimate (void)
{
  g_autoptr (EbbModule) model = test_trainer_model (0);
  g_autoptr (EbbTrainerOptions) options = test_trainer_options ("steps", (gint64) 2, "clip", 1.0, NULL);
  g_autoptr (EbbTrainer) trainer = ebb_trainer_new (model, NULL, NULL, options, NULL);
  g_autoptr (EbbMemoryEstimate) estimated = NULL;
  g_autoptr (EbbMemoryStats) stats = NULL;
  g_autoptr (GError) error = NULL;
  static const gint64 n_rows = 2;
  const guint64 hash = test_ranks_hash (model);

  ebb_trainer_set_batch_func (trainer, give_batch, (gpointer) &n_rows, NULL);
  estimated = ebb_trainer_estimate (trainer, &error);
  g_assert_no_error (error);
  g_assert_cmphex (test_ranks_hash (model), ==, hash);
  ebb_trainer_run_step (trainer, NULL, &error);
  ebb_memory_reset_peaks (test_device ());
  ebb_trainer_run_step (trainer, NULL, &error);
  g_assert_no_error (error);
  stats = ebb_memory_get_stats (test_device ());
  g_assert_cmpuint (ebb_memory_stats_get_peak_total (stats), ==, ebb_memory_estimate_get_peak_total (estimated));
}

int
main (int argc, char **argv)
{
  test_init (&argc, &argv);
  g_test_add_func ("/trainer/ways-of-a-batch-train-alike", ways_of_a_batch);
  g_test_add_func ("/trainer/endings-resume-to-the-same-bits", endings);
  g_test_add_func ("/trainer/goes-on-after-a-failure", goes_on_after_a_failure);
  g_test_add_func ("/trainer/broken-steps-are-not-saved", broken_step);
  g_test_add_func ("/trainer/ranks-end-together", ranks_end_together);
  g_test_add_func ("/trainer/contradictions-name-both-settings", contradictions);
  g_test_add_func ("/trainer/step-in-backward-contradicts", step_in_backward_contradicts);
  g_test_add_func ("/trainer/needs-a-model", without_a_model);
  g_test_add_func ("/trainer/silent-callbacks-are-errors", silent_callbacks);
  g_test_add_func ("/trainer/an-empty-batch-ends-the-data", data_ends);
  g_test_add_func ("/trainer/metrics-are-means-over-the-step", metrics);
  g_test_add_func ("/trainer/nothing-is-left-of-a-thousand", nothing_is_left);
  g_test_add_func ("/trainer/one-trainer-has-a-folder", locks);
  g_test_add_func ("/trainer/settings-of-a-state-are-named", settings_of_a_state);
  g_test_add_func ("/trainer/measuring-changes-nothing", evaluation);
  g_test_add_func ("/trainer/an-estimate-changes-nothing", estimate);
  return g_test_run ();
}
