/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/device.h"
#include "support/ranks.h"
#include "support/tensors.h"
#include "support/trainers.h"

#include <string.h>

/* Trainers within memory budgets of a device's tensors, which are exact. */

#define N_STEPS 4

typedef struct
{
  guint n_dry, n_real;
  EbbConcessions taken;    /* of the last call */
  gboolean has_func;       /* batches by a function */
  gboolean grows;          /* batches of 2 rows, and from number 2 on of 8 */
  EbbMemoryBudget *budget; /* of the options; NULL: none */
} Making;

static EbbArgs *
give_batch (gint64 number, gpointer user_data, GError **error)
{
  const Making *self = user_data;

  return test_trainer_batch (number, self->grows && number < 2 ? 2 : 8);
}

static EbbTrainer *
make (EbbConcessions taken, gpointer user_data, GError **error)
{
  Making *self = user_data;
  g_autoptr (EbbModule) model = test_trainer_model (0.1);
  g_autoptr (EbbOptimizer) optimizer = ebb_adamw_new (model, 1e-2, error);
  g_autoptr (EbbDataset) data = self->has_func ? NULL : test_trainer_text ();
  g_autoptr (EbbTrainerOptions) options =
      test_trainer_options ("steps", (gint64) N_STEPS, "budget", self->budget, NULL);
  EbbTrainer *trainer;

  if (!self->has_func)
    g_object_set (options, "batch-size", (gint64) 8, NULL);
  if (ebb_is_dry_run ())
    self->n_dry++;
  else
    self->n_real++;
  self->taken = taken;
  trainer = ebb_trainer_new (model, optimizer, data, options, error);
  if (trainer != NULL && self->has_func)
    ebb_trainer_set_batch_func (trainer, give_batch, self, NULL);
  return trainer;
}

static void
note_loss (EbbTrainer *trainer, gint64 step, double loss, double *losses)
{
  losses[step - 1] = loss;
}

/* Trains to the end. Returns the most bytes that tensors took in a step, and the weights' hash. */
static guint64
train (EbbTrainer *trainer, double *losses, guint64 *hash)
{
  g_autoptr (EbbMemoryStats) stats = NULL;
  g_autoptr (EbbModule) model = NULL;
  g_autoptr (GError) error = NULL;

  ebb_manual_seed (7);
  g_signal_connect (trainer, "stepped", G_CALLBACK (note_loss), losses);
  ebb_trainer_prepare (trainer, NULL, &error);
  g_assert_no_error (error);
  ebb_memory_reset_peaks (test_device ());
  ebb_trainer_run (trainer, NULL, &error);
  g_assert_no_error (error);
  g_object_get (trainer, "model", &model, NULL);
  *hash = test_ranks_hash (model);
  stats = ebb_memory_get_stats (test_device ());
  return ebb_memory_stats_get_peak_total (stats);
}

static guint64
train_plainly (Making *making, double *losses, guint64 *hash)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTrainer) trainer = make (EBB_CONCESSIONS_NONE, making, &error);

  g_assert_no_error (error);
  return train (trainer, losses, hash);
}

static EbbMemoryBudget *
make_budget (guint64 n_bytes, EbbConcessions allow)
{
  return g_object_new (EBB_TYPE_MEMORY_BUDGET, "bytes", n_bytes, "scope", EBB_MEMORY_SCOPE_DEVICE, "allow", allow,
                       NULL);
}

/* With a budget below what a step takes, the step keeps it and computes the same bits. */
static void
same_bits (gconstpointer has_func)
{
  Making making = { .has_func = has_func != NULL };
  double plain[N_STEPS], losses[N_STEPS];
  guint64 hash, other, least, limit = ebb_memory_get_limit (test_device ());
  const guint64 need = train_plainly (&making, plain, &hash);
  g_autoptr (EbbMemoryBudget) none = make_budget (1, EBB_CONCESSIONS_NONE);
  g_autoptr (EbbMemoryBudget) budget = NULL;
  g_autoptr (EbbTrainer) trainer = NULL;
  g_autoptr (GError) error = NULL;
  g_autofree char *report = NULL;

  g_assert_null (ebb_trainer_new_within (none, make, &making, &error));
  test_assert_error (error, EBB_ERROR_NO_MEMORY, "too small");
  g_clear_error (&error);
  g_object_get (none, "least-bytes", &least, NULL);
  g_assert_cmpuint (least, <, need);
  budget = make_budget ((least + need) / 2, EBB_CONCESSIONS_NONE);
  making.n_real = 0;
  trainer = ebb_trainer_new_within (budget, make, &making, &error);
  g_assert_no_error (error);
  g_assert_cmpuint (making.n_real, ==, 1);
  g_assert_cmpuint (train (trainer, losses, &other), <=, (least + need) / 2);
  g_assert_cmphex (other, ==, hash);
  for (guint i = 0; i < N_STEPS; i++)
    g_assert_true (losses[i] == plain[i]);
  g_assert_cmpuint (ebb_memory_get_limit (test_device ()), ==, limit);
  report = ebb_trainer_to_json (trainer);
  g_assert_nonnull (strstr (report, "\"budget_bytes\""));
}

/* A budget that is too small is refused before anything is allocated; its least works. */
static void
too_small (void)
{
  Making making = { 0 };
  double losses[N_STEPS];
  guint64 hash, least;
  g_autoptr (EbbMemoryBudget) budget = make_budget (20000, EBB_CONCESSIONS_NONE);
  g_autoptr (EbbMemoryStats) stats = NULL;
  g_autoptr (EbbTrainer) trainer = NULL;
  g_autoptr (GError) error = NULL;

  ebb_memory_reset_peaks (test_device ());
  g_assert_null (ebb_trainer_new_within (budget, make, &making, &error));
  test_assert_error (error, EBB_ERROR_NO_MEMORY, "too small");
  g_clear_error (&error);
  stats = ebb_memory_get_stats (test_device ()); /* kernels are timed in workspace */
  g_assert_cmpuint (ebb_memory_stats_get_peak (stats, EBB_PURPOSE_PARAMETER), ==, 0);
  g_assert_cmpuint (ebb_memory_stats_get_peak (stats, EBB_PURPOSE_OPTIMIZER), ==, 0);
  g_assert_cmpuint (ebb_memory_stats_get_peak (stats, EBB_PURPOSE_GRADIENT), ==, 0);
  g_assert_cmpuint (ebb_memory_stats_get_peak (stats, EBB_PURPOSE_ACTIVATION), ==, 0);
  g_assert_cmpuint (making.n_real, ==, 0);
  g_assert_null (ebb_memory_budget_get_plan (budget));
  g_object_get (budget, "least-bytes", &least, NULL);
  g_object_set (budget, "bytes", least, NULL);
  trainer = ebb_trainer_new_within (budget, make, &making, &error);
  g_assert_no_error (error);
  g_assert_cmpuint (train (trainer, losses, &hash), <=, least);
}

/* Only changes that are allowed are made, no more than are needed, and none of the device's settings stays. */
static void
changes (void)
{
  Making making = { 0 };
  double losses[N_STEPS];
  guint64 hash, least;
  const guint64 chunk = ebb_device_get_loss_chunk (test_device ());
  g_autoptr (EbbMemoryBudget) budget = make_budget (20000, EBB_CONCESSIONS_NONE);
  g_autoptr (EbbTrainer) trainer = NULL;
  g_autoptr (GError) error = NULL;
  EbbConcessions taken;

  g_assert_null (ebb_trainer_new_within (budget, make, &making, &error));
  g_clear_error (&error);
  g_object_get (budget, "least-bytes", &least, NULL);
  g_object_set (budget, "bytes", least - 1, NULL);
  g_assert_null (ebb_trainer_new_within (budget, make, &making, &error));
  test_assert_error (error, EBB_ERROR_NO_MEMORY, "with allow ", "it fits");
  g_clear_error (&error);
  g_object_set (budget, "allow",
                EBB_CONCESSIONS_MICRO_BATCHES | EBB_CONCESSIONS_EIGHT_BIT_MOMENTS | EBB_CONCESSIONS_BF16_WEIGHTS, NULL);
  trainer = ebb_trainer_new_within (budget, make, &making, &error);
  g_assert_no_error (error);
  g_object_get (budget, "taken", &taken, NULL);
  g_assert_cmpuint (taken & EBB_CONCESSIONS_BF16_WEIGHTS, !=, 0);
  g_assert_cmpuint (taken, ==, making.taken);
  g_assert_true (taken == (EBB_CONCESSIONS_BF16_WEIGHTS | EBB_CONCESSIONS_MICRO_BATCHES)
                 || taken == (EBB_CONCESSIONS_BF16_WEIGHTS | EBB_CONCESSIONS_EIGHT_BIT_MOMENTS));
  g_assert_cmpuint (train (trainer, losses, &hash), <=, least - 1);
  g_assert_cmpuint (ebb_device_get_loss_chunk (test_device ()), ==, chunk);
}

/* A trainer over a model that is there plans within the budget of its options, and may be run again. */
static void
over_a_model (void)
{
  Making making = { 0 };
  double plain[N_STEPS], losses[N_STEPS];
  guint64 hash, other;
  const guint64 need = train_plainly (&making, plain, &hash);
  g_autoptr (EbbMemoryBudget) budget = make_budget (need * 9 / 10, EBB_CONCESSIONS_NONE);
  g_autoptr (EbbTrainer) trainer = NULL;
  g_autoptr (GError) error = NULL;

  making.budget = budget;
  trainer = make (EBB_CONCESSIONS_NONE, &making, &error);
  g_assert_no_error (error);
  g_assert_cmpuint (train (trainer, losses, &other), <=, need * 9 / 10);
  g_assert_cmphex (other, ==, hash);
  g_assert_null (ebb_memory_budget_get_plan (budget));
  g_object_set (trainer, "steps", (gint64) N_STEPS + 1, NULL);
  g_assert_true (ebb_trainer_prepare (trainer, NULL, &error));
  g_assert_nonnull (ebb_memory_budget_get_plan (budget));
  g_assert_null (ebb_trainer_new_within (budget, make, &making, &error));
  test_assert_error (error, EBB_ERROR_STATE, "plan of another training");
}

static void
note_text (EbbTrainer *trainer, const char *text, guint *n_planned)
{
  *n_planned += strstr (text, "step 3 has a larger batch") != NULL;
  if (!test_device_is_cpu ()) /* whose kernels were timed in workspace */
    ebb_memory_reset_peaks (test_device ());
}

/* A batch larger than any before is planned before it runs. */
static void
larger_batches (void)
{
  Making making = { .has_func = TRUE };
  double plain[N_STEPS], losses[N_STEPS];
  guint64 hash, other, least;
  guint n_planned = 0;
  const guint64 need = train_plainly (&making, plain, &hash);
  g_autoptr (EbbMemoryBudget) none = make_budget (1, EBB_CONCESSIONS_NONE);
  g_autoptr (EbbMemoryBudget) budget = NULL;
  g_autoptr (EbbTrainer) trainer = NULL;
  g_autoptr (GError) error = NULL;

  g_assert_null (ebb_trainer_new_within (none, make, &making, NULL));
  g_object_get (none, "least-bytes", &least, NULL);
  making.grows = TRUE;
  train_plainly (&making, plain, &hash);
  budget = make_budget ((least + need) / 2, EBB_CONCESSIONS_NONE);
  trainer = ebb_trainer_new_within (budget, make, &making, &error);
  g_assert_no_error (error);
  g_signal_connect (trainer, "note", G_CALLBACK (note_text), &n_planned);
  g_assert_cmpuint (train (trainer, losses, &other), <=, (least + need) / 2);
  g_assert_cmphex (other, ==, hash);
  g_assert_cmpuint (n_planned, ==, 1);
}

/* -- ranks --------------------------------------------------------------------------------------------------------- */

typedef struct
{
  guint64 budget; /* of each rank; 0: none */
  double losses[N_STEPS];
} RanksRun;

typedef struct
{
  EbbProcessGroup *group;
} RankMaking;

static EbbTrainer *
make_on_rank (EbbConcessions taken, gpointer user_data, GError **error)
{
  static const char *const names[] = { "data" };
  static const gint64 sizes[] = { -1 };
  RankMaking *self = user_data;
  g_autoptr (EbbMesh) mesh = ebb_mesh_new (self->group, names, sizes, 1, error);
  g_autoptr (EbbModule) model = test_trainer_model (0);
  g_autoptr (EbbModule) same = mesh != NULL ? ebb_fully_shard (model, self->group, NULL, error) : NULL;
  g_autoptr (EbbOptimizer) optimizer = same != NULL ? ebb_adamw_new (model, 1e-2, error) : NULL;
  g_autoptr (EbbDataset) data = test_trainer_text ();
  g_autoptr (EbbTrainerOptions) options =
      test_trainer_options ("steps", (gint64) N_STEPS, "batch-size", (gint64) 8, "mesh", mesh, NULL);

  return optimizer != NULL ? ebb_trainer_new (model, optimizer, data, options, error) : NULL;
}

static gboolean
train_rank (EbbProcessGroup *group, gpointer user_data, GError **error)
{
  RanksRun *run = user_data;
  RankMaking making = { .group = group };
  g_autoptr (EbbMemoryBudget) budget = run->budget > 0 ? make_budget (run->budget, EBB_CONCESSIONS_NONE) : NULL;
  g_autoptr (EbbTrainer) trainer = budget != NULL ? ebb_trainer_new_within (budget, make_on_rank, &making, error)
                                                  : make_on_rank (EBB_CONCESSIONS_NONE, &making, error);
  double losses[N_STEPS];

  if (trainer == NULL)
    return FALSE;
  g_signal_connect (trainer, "stepped", G_CALLBACK (note_loss), losses);
  if (!ebb_trainer_run (trainer, NULL, error))
    return FALSE;
  if (ebb_process_group_get_rank (group) == 0)
    memcpy (run->losses, losses, sizeof losses);
  return TRUE;
}

static gboolean
find_least (EbbProcessGroup *group, gpointer user_data, GError **error)
{
  RankMaking making = { .group = group };
  g_autoptr (EbbMemoryBudget) budget = make_budget (1, EBB_CONCESSIONS_NONE);
  g_autoptr (GError) failure = NULL;

  g_assert_null (ebb_trainer_new_within (budget, make_on_rank, &making, &failure));
  g_assert_error (failure, EBB_ERROR, EBB_ERROR_NO_MEMORY);
  g_object_get (budget, "least-bytes", user_data, NULL);
  return TRUE;
}

/* Ranks plan together; each keeps the least budget, and computes the bits that it computes without one. */
static void
ranks (void)
{
  RanksRun plain = { 0 }, within = { 0 };

  test_ranks_run (2, find_least, &within.budget);
  g_assert_cmpuint (within.budget, >, 0);
  test_ranks_run (2, train_rank, &plain);
  test_ranks_run (2, train_rank, &within);
  for (guint i = 0; i < N_STEPS; i++)
    g_assert_true (plain.losses[i] == within.losses[i]);
}

/* The maker's trainer has no other budget, and a maker that returns nothing is an error. */
static EbbTrainer *
make_nothing (EbbConcessions taken, gpointer user_data, GError **error)
{
  return NULL;
}

static void
makers (void)
{
  g_autoptr (EbbMemoryBudget) budget = make_budget (1 << 30, EBB_CONCESSIONS_NONE);
  g_autoptr (EbbMemoryBudget) other = make_budget (1 << 30, EBB_CONCESSIONS_NONE);
  Making making = { .budget = other };
  g_autoptr (GError) error = NULL;

  g_assert_null (ebb_trainer_new_within (budget, make_nothing, NULL, &error));
  test_assert_error (error, EBB_ERROR_CALLBACK, "without saying why");
  g_clear_error (&error);
  g_assert_null (ebb_trainer_new_within (budget, make, &making, &error));
  test_assert_error (error, EBB_ERROR_INVALID_ARGUMENT, "leave budget out");
}

int
main (int argc, char **argv)
{
  test_init (&argc, &argv);
  g_test_add_data_func ("/trainer/within/same-bits", NULL, same_bits);
  g_test_add_data_func ("/trainer/within/same-bits-by-a-function", "", same_bits);
  g_test_add_func ("/trainer/within/too-small-allocates-nothing", too_small);
  g_test_add_func ("/trainer/within/changes-that-are-allowed", changes);
  g_test_add_func ("/trainer/within/over-a-model", over_a_model);
  g_test_add_func ("/trainer/within/larger-batches-are-planned", larger_batches);
  g_test_add_func ("/trainer/within/ranks-plan-together", ranks);
  g_test_add_func ("/trainer/within/makers", makers);
  return g_test_run ();
}
