/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: private-headers */
/* Ranks that plan together have one plan, which keeps the budget and the bits on each; they fail together. */
#include "support/device.h"
#include "support/ranks.h"
#include "wrap/plan/memory-plan-private.h"

#include <glib/gstdio.h>
#include <string.h>

#define MAX_RANKS 3
#define N_STEPS 3
#define N_LAYERS 4

typedef struct
{
  guint n_ranks;
  guint64 budget;    /* of the last rank; others have more. 0: no plan */
  gboolean is_least; /* the plan that needs least, whatever the budget is */
  guint failing;     /* the rank whose dry step fails... */
  guint fails_from;  /* from which on; 0: none does */
  gboolean differs;  /* rank 1 has a block less */
  gboolean stores;   /* what rank 0 saves is large enough for its store, what others save is too small for theirs */
  const char *path;  /* of a plan to write, or one that is there */
  gboolean is_read;
  /* what came of it */
  guint64 least;
  guint64 peaks[MAX_RANKS], predicted[MAX_RANKS], hashes[MAX_RANKS];
  char *plans[MAX_RANKS];
  GError *errors[MAX_RANKS];
} Training;

typedef struct
{
  Training *training;
  EbbOptimizer *optimizer;
  EbbProcessGroup *group;
  EbbSavedTensorHooks *store;
  guint rank, n_steps;
} Rank;

static void
training_clear (Training *self)
{
  for (guint i = 0; i < MAX_RANKS; i++)
    {
      g_free (self->plans[i]);
      g_clear_error (&self->errors[i]);
    }
}

G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC (Training, training_clear)

/* A collective of integers, which dry steps send, and of another shape than those of planning. */
static gboolean
meet (Rank *self, GError **error)
{
  const gint64 shape[] = { 7 };
  g_autoptr (EbbTensor) one = ebb_zeros (shape, 1, EBB_DTYPE_I64, ebb_device_get_cpu (), error);
  g_autoptr (EbbTensor) all = one != NULL ? ebb_process_group_all_gather (self->group, one, error) : NULL;

  return all != NULL;
}

static EbbTensor *
run_forward (Rank *self, EbbModule *model, gint64 first, gint64 n_rows, GError **error)
{
  EbbTensor *loss;

  if (self->store == NULL)
    return test_ranks_loss (model, 0, first, n_rows, error);
  if (!meet (self, error))
    return NULL;
  ebb_push_saved_tensor_hooks (self->store);
  loss = test_ranks_loss (model, 0, first, n_rows, error);
  ebb_pop_saved_tensor_hooks ();
  return loss;
}

/* Three ranks have unequal shares of the rows. */
static gboolean
step (EbbModule *model, gpointer user_data, GError **error)
{
  Rank *self = user_data;
  const Training *training = self->training;
  const gint64 first = TEST_RANKS_ROWS * self->rank / training->n_ranks;
  const gint64 n_rows = TEST_RANKS_ROWS * (self->rank + 1) / training->n_ranks - first;
  g_autoptr (EbbTensor) loss = NULL;

  if (training->fails_from > 0 && self->rank == training->failing && ++self->n_steps >= training->fails_from)
    {
      g_set_error (error, EBB_ERROR, EBB_ERROR_IO, "step %u has no rows", self->n_steps);
      return FALSE;
    }
  loss = run_forward (self, model, first, n_rows, error);
  if (loss == NULL || !ebb_tensor_backward (loss, error) || !ebb_optimizer_step (self->optimizer, error))
    return FALSE;
  ebb_optimizer_zero_grad (self->optimizer);
  return TRUE;
}

static EbbMemoryPlan *
make_plan (Training *self, EbbModule *gpt, EbbProcessGroup *group, Rank *rank, GError **error)
{
  const guint64 budget = self->budget + (rank->rank + 1 < self->n_ranks ? 1 << 20 : 0);
  EbbMemoryPlan *plan;

  if (self->is_read)
    return ebb_memory_plan_load_on_ranks (gpt, group, rank->rank == 0 ? self->path : "only rank 0 reads", error);
  plan = self->is_least
             ? ebb_memory_plan_new_least (gpt, test_device (), NULL, group, step, rank, error)
             : ebb_memory_plan_make_on_ranks (gpt, test_device (), NULL, group, step, rank, budget, 0, error);
  if (plan != NULL && rank->rank == 0 && self->path != NULL)
    g_assert_true (ebb_memory_plan_save (plan, self->path, NULL));
  return plan;
}

/* An error of planning is the test's. */
static gboolean
train (EbbProcessGroup *group, gpointer user_data, GError **error)
{
  Training *self = user_data;
  const guint r = ebb_process_group_get_rank (group);
  g_autoptr (EbbModule) gpt = test_ranks_model (N_LAYERS - (self->differs && r == 1), 0.1, 7);
  Rank rank = { .training = self, .group = group, .rank = r };
  g_autoptr (EbbSavedTensorHooks) store = self->stores ? ebb_contiguous_store_new (N_LAYERS, NULL, error) : NULL;
  g_autoptr (EbbFullyShardOptions) how = ebb_fully_shard_options_new ();
  g_autoptr (EbbMemoryPlan) plan = NULL;
  g_autoptr (EbbMemoryStats) stats = NULL;
  g_autoptr (EbbOptimizer) optimizer = NULL;

  if (!ebb_module_to_device (gpt, test_device (), error))
    return FALSE;
  if (!self->differs
      && !ebb_fully_shard_wrap_each (gpt, EBB_TYPE_TRANSFORMER_BLOCK, group, how, error))
    return FALSE;
  rank.optimizer = optimizer = EBB_OPTIMIZER (ebb_adamw_new (gpt, 1e-3, error));
  rank.store = store;
  if (store != NULL)
    g_object_set (store, "least-size", r == 0 ? G_GUINT64_CONSTANT (1) : (guint64) G_MAXINT64, "grow", TRUE, NULL);
  if (self->budget > 0)
    {
      plan = make_plan (self, gpt, group, &rank, &self->errors[r]);
      if (plan == NULL)
        return TRUE;
      self->plans[r] = ebb_memory_plan_to_string (plan);
      g_object_get (plan, "predicted-peak-bytes", &self->predicted[r], "least-bytes", &self->least, NULL);
      if (!ebb_memory_plan_apply (plan, error))
        return FALSE;
    }
  for (guint i = 0; i < N_STEPS; i++)
    {
      if (i == 1)
        ebb_memory_reset_peaks (test_device ());
      if (!step (gpt, &rank, error))
        return FALSE;
    }
  stats = ebb_memory_get_stats (test_device ());
  self->peaks[r] = ebb_memory_stats_get_peak_total (stats);
  self->hashes[r] = test_ranks_hash (gpt);
  return TRUE;
}

/* -- budgets ------------------------------------------------------------------------------------------------------- */

static guint64
get_peak (const Training *self)
{
  guint64 peak = 0;

  for (guint i = 0; i < self->n_ranks; i++)
    peak = MAX (peak, self->peaks[i]);
  return peak;
}

static void
assert_keeps (const Training *self, const Training *plain)
{
  for (guint i = 0; i < self->n_ranks; i++)
    {
      g_assert_no_error (self->errors[i]);
      g_assert_cmpstr (self->plans[i], ==, self->plans[0]);
      g_assert_cmpuint (self->predicted[i], ==, get_peak (self));
      g_assert_cmpuint (self->peaks[i], <=, self->budget);
      g_assert_cmpuint (self->hashes[i], ==, plain->hashes[i]);
    }
}

static void
test_budgets (gconstpointer data)
{
  const guint n_ranks = GPOINTER_TO_UINT (data);
  g_auto (Training) plain = { .n_ranks = n_ranks };
  g_auto (Training) all = { .n_ranks = n_ranks };
  g_auto (Training) some = { .n_ranks = n_ranks };
  g_auto (Training) least = { .n_ranks = n_ranks };
  g_auto (Training) any_least = { .n_ranks = n_ranks, .is_least = TRUE };
  g_auto (Training) less = { .n_ranks = n_ranks };

  test_ranks_run (n_ranks, train, &plain);
  all.budget = get_peak (&plain);
  test_ranks_run (n_ranks, train, &all);
  assert_keeps (&all, &plain);
  g_assert_cmpuint (all.least, <, get_peak (&plain));
  some.budget = (all.budget + all.least) / 2;
  test_ranks_run (n_ranks, train, &some);
  assert_keeps (&some, &plain);
  least.budget = all.least;
  test_ranks_run (n_ranks, train, &least);
  assert_keeps (&least, &plain);
  g_assert_cmpuint (get_peak (&least), ==, all.least);
  any_least.budget = all.least;
  test_ranks_run (n_ranks, train, &any_least);
  assert_keeps (&any_least, &plain);
  g_assert_cmpuint (any_least.least, <=, all.least);
  g_assert_cmpuint (get_peak (&any_least), ==, any_least.least);
  less.budget = all.least - 1;
  test_ranks_run (n_ranks, train, &less);
  for (guint i = 0; i < n_ranks; i++)
    {
      g_assert_error (less.errors[i], EBB_ERROR, EBB_ERROR_NO_MEMORY);
      g_assert_nonnull (strstr (less.errors[i]->message, "is too small: the step needs at least"));
    }
}

/* Dry steps that use stores run twice, on all ranks. */
static void
test_stores_of_one_rank (void)
{
  g_auto (Training) plain = { .n_ranks = 2, .stores = TRUE };
  g_auto (Training) planned = { .n_ranks = 2, .stores = TRUE, .budget = G_MAXINT64 / 2, .is_least = TRUE };

  test_ranks_run (2, train, &plain);
  test_ranks_run (2, train, &planned);
  assert_keeps (&planned, &plain);
}

/* Shards of three ranks have other shapes on each. */
static void
test_files (void)
{
  g_autofree char *folder = g_dir_make_tmp ("ebb-plan-XXXXXX", NULL);
  g_autofree char *path = g_build_filename (folder, "plan.json", NULL);
  g_auto (Training) made = { .n_ranks = 3, .path = path, .budget = G_MAXINT64 / 2 };
  g_auto (Training) again = { .n_ranks = 3, .path = path, .is_read = TRUE, .budget = G_MAXINT64 / 2 };
  g_auto (Training) missing = { .n_ranks = 3, .path = folder, .is_read = TRUE, .budget = 1 };

  test_ranks_run (3, train, &made);
  test_ranks_run (3, train, &again);
  assert_keeps (&again, &made);
  g_assert_cmpstr (again.plans[0], ==, made.plans[0]);
  test_ranks_run (3, train, &missing);
  for (guint i = 0; i < 3; i++)
    g_assert_error (missing.errors[i], EBB_ERROR, EBB_ERROR_IO);
  g_remove (path);
  g_remove (folder);
}

/* -- failures ------------------------------------------------------------------------------------------------------ */

/* In the first dry step, in a later one; on the rank that decides, on another one. */
static void
test_a_rank_fails (void)
{
  const guint from[] = { 1, 2, 5 };

  for (guint failing = 0; failing < 2; failing++)
    for (guint i = 0; i < G_N_ELEMENTS (from); i++)
      {
        g_auto (Training) self = { .n_ranks = 2, .budget = G_MAXINT64 / 2, .failing = failing };

        self.fails_from = from[i];
        test_ranks_run (2, train, &self);
        for (guint r = 0; r < 2; r++)
          {
            g_assert_error (self.errors[r], EBB_ERROR, EBB_ERROR_IO);
            g_assert_nonnull (strstr (self.errors[r]->message, "has no rows"));
          }
      }
}

static void
test_other_blocks (void)
{
  g_auto (Training) self = { .n_ranks = 2, .budget = G_MAXINT64 / 2, .differs = TRUE };

  test_ranks_run (2, train, &self);
  for (guint r = 0; r < 2; r++)
    {
      g_assert_error (self.errors[r], EBB_ERROR, EBB_ERROR_PROCESS_GROUP);
      g_assert_nonnull (strstr (self.errors[r]->message, "the blocks of the model must be the same on all ranks: "
                                                         "rank 1 has \"nothing\", rank 0 has \"h.3\""));
    }
}

/* -- steps that lack memory ---------------------------------------------------------------------------------------- */

static gboolean
lack_memory (EbbModule *model, gpointer user_data, GError **error)
{
  guint *n_calls = user_data;

  ++*n_calls;
  g_set_error (error, EBB_ERROR, EBB_ERROR_NO_MEMORY, "no memory");
  return FALSE;
}

static void
assert_runs_once (EbbMemoryPlan *plan, EbbTrainingState *training)
{
  g_autoptr (GError) error = NULL;
  guint n_calls = 0, before, after;

  g_object_get (plan, "n-lowered", &before, NULL);
  g_assert_false (ebb_memory_plan_run_step (plan, training, lack_memory, &n_calls, &error));
  g_object_get (plan, "n-lowered", &after, NULL);
  g_assert_error (error, EBB_ERROR, EBB_ERROR_NO_MEMORY);
  g_assert_cmpstr (error->message, ==,
                   "no memory; the step can't run again: steps on ranks don't, as the others would wait for this one");
  g_assert_cmpuint (n_calls, ==, 1);
  g_assert_cmpuint (after, ==, before);
}

/* The plan itself, those below it, and its JSON. */
static void
assert_never_runs_again (EbbMemoryPlan *plan, EbbModule *model, EbbTrainingState *training)
{
  g_autofree char *json = ebb_memory_plan_to_json (plan);
  g_autoptr (EbbMemoryPlan) again = ebb_memory_plan_new_from_json (model, json, NULL);
  g_autoptr (EbbMemoryPlan) below = ebb_memory_plan_new_below (plan);

  g_assert_nonnull (plan->lower);
  g_assert_true (below->is_on_ranks);
  assert_runs_once (plan, training);
  assert_runs_once (again, training);
  while (ebb_memory_plan_lower (plan, NULL))
    {
      assert_runs_once (plan, training);
      g_assert_true (again->is_on_ranks && ebb_memory_plan_lower (again, NULL));
      assert_runs_once (again, training);
    }
}

/* A file that one process has made for itself. */
static void
save_own_plan (EbbModule *model, Rank *rank)
{
  g_autoptr (EbbMemoryPlan) plan = ebb_memory_plan_make (model, test_device (), NULL, step, rank, G_MAXINT64, 0, NULL);
  g_autoptr (EbbTrainingState) training = ebb_training_state_new (model, NULL, NULL);
  guint n_calls = 0;

  g_assert_true (ebb_memory_plan_save (plan, rank->training->path, NULL));
  g_assert_false (ebb_memory_plan_run_step (plan, training, lack_memory, &n_calls, NULL));
  g_assert_cmpuint (n_calls, >, 1);
}

static gboolean
run_short_steps (EbbProcessGroup *group, gpointer user_data, GError **error)
{
  Training *self = user_data;
  g_autoptr (EbbModule) model = test_ranks_model (N_LAYERS, 0.1, 7);
  Rank rank = { .training = self, .rank = ebb_process_group_get_rank (group) };
  g_autoptr (EbbTrainingState) training = ebb_training_state_new (model, NULL, NULL);
  g_autoptr (EbbOptimizer) optimizer = NULL;
  g_autoptr (EbbMemoryPlan) made = NULL, loaded = NULL;

  if (!ebb_module_to_device (model, test_device (), error))
    return FALSE;
  rank.optimizer = optimizer = EBB_OPTIMIZER (ebb_adamw_new (model, 1e-3, error));
  if (rank.rank == 0)
    save_own_plan (model, &rank);
  loaded = ebb_memory_plan_load_on_ranks (model, group, self->path, error);
  made = ebb_memory_plan_make_on_ranks (model, test_device (), NULL, group, step, &rank, G_MAXINT64, 0, error);
  if (loaded == NULL || made == NULL)
    return FALSE;
  assert_never_runs_again (loaded, model, training);
  assert_never_runs_again (made, model, training);
  return TRUE;
}

static void
test_no_second_try (void)
{
  g_autofree char *folder = g_dir_make_tmp ("ebb-plan-XXXXXX", NULL);
  g_autofree char *path = g_build_filename (folder, "plan.json", NULL);
  g_auto (Training) self = { .n_ranks = 2, .path = path };

  test_ranks_run (2, run_short_steps, &self);
  g_remove (path);
  g_remove (folder);
}

/* A group of one has nobody who waits. */
static gboolean
run_alone (EbbProcessGroup *group, gpointer user_data, GError **error)
{
  Training *self = user_data;
  g_autoptr (EbbModule) model = test_ranks_model (N_LAYERS, 0.1, 7);
  Rank rank = { .training = self };
  g_autoptr (EbbOptimizer) optimizer = NULL;
  g_autoptr (EbbMemoryPlan) plan = NULL;

  if (!ebb_module_to_device (model, test_device (), error))
    return FALSE;
  rank.optimizer = optimizer = EBB_OPTIMIZER (ebb_adamw_new (model, 1e-3, error));
  plan = ebb_memory_plan_make_on_ranks (model, test_device (), NULL, group, step, &rank, G_MAXINT64, 0, error);
  g_assert_false (plan == NULL || plan->is_on_ranks);
  return plan != NULL;
}

static void
test_alone (void)
{
  g_auto (Training) self = { .n_ranks = 1 };

  test_ranks_run (1, run_alone, &self);
}

int
main (int argc, char **argv)
{
  test_init (&argc, &argv);
  g_test_add_data_func ("/plan/on-ranks/two-keep-the-budget-and-the-bits", GUINT_TO_POINTER (2), test_budgets);
  g_test_add_data_func ("/plan/on-ranks/three-with-unequal-rows-and-shards", GUINT_TO_POINTER (3), test_budgets);
  g_test_add_func ("/plan/on-ranks/one-rank-alone-uses-its-store", test_stores_of_one_rank);
  g_test_add_func ("/plan/on-ranks/the-first-rank-reads-the-file", test_files);
  g_test_add_func ("/plan/on-ranks/a-rank-that-fails-ends-all", test_a_rank_fails);
  g_test_add_func ("/plan/on-ranks/other-blocks-are-refused", test_other_blocks);
  g_test_add_func ("/plan/on-ranks/a-step-that-lacks-memory-never-runs-again", test_no_second_try);
  g_test_add_func ("/plan/on-ranks/a-group-of-one-may-run-it-again", test_alone);
  return g_test_run ();
}
