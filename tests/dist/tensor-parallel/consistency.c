/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/device.h"
#include "support/ranks.h"
#include "support/tensor-parallel.h"
#include "support/tensors.h"

/* Ranks that share a model must agree on values, rows and generators: they are made to agree, or an error says so. */

static const TestParallel gpt = { .n_ranks = 2, .dropout = 0.3 };

typedef struct
{
  guint other_pass;    /* of the second rank's rows */
  guint64 other_seed;  /* of its default generator */
  guint64 other_draws; /* what it has drawn more */
  gboolean evaluates;
  const char *words[3]; /* of both ranks' errors; none: there is no error */
} Unlike;

/* -- in a forward -------------------------------------------------------------------------------------------------- */

static gboolean
run_unlike (EbbProcessGroup *group, gpointer user_data, GError **error)
{
  const Unlike *self = user_data;
  const guint rank = ebb_process_group_get_rank (group);
  g_autoptr (EbbModule) model = test_parallel_model (&gpt, error);
  g_autoptr (EbbTensor) loss = NULL;
  g_autoptr (GError) local = NULL;

  if (!test_parallel_divide (&gpt, model, group, error))
    return FALSE;
  ebb_module_set_training (model, !self->evaluates);
  ebb_manual_seed (1 + rank * self->other_seed);
  ebb_generator_set_state (ebb_generator_get_default (), 1 + rank * self->other_seed, 5 + rank * self->other_draws);
  loss = test_parallel_loss (&gpt, model, rank * self->other_pass, &local);
  if (self->words[0] == NULL)
    {
      g_assert_no_error (local);
      g_assert_nonnull (loss);
      return TRUE;
    }
  g_assert_null (loss);
  test_assert_error (local, EBB_ERROR_PROCESS_GROUP, self->words[0], self->words[1], self->words[2]);
  return TRUE;
}

static void
test_unlike (gconstpointer data)
{
  test_ranks_run (2, run_unlike, (gpointer) data);
}

/* -- at the begin -------------------------------------------------------------------------------------------------- */

typedef struct
{
  gboolean synchronizes, differs_in_values, differs_in_seed;
  const char *words[3];   /* of the error of both ranks; none: there is no error */
  guint64 seeds[2][2];    /* rank: of the default generator and of the parts' */
  guint64 hashes[2];      /* of what all have */
  gboolean begins_seeded; /* by the program */
} Begin;

static gboolean
run_begin (EbbProcessGroup *group, gpointer user_data, GError **error)
{
  Begin *self = user_data;
  const guint rank = ebb_process_group_get_rank (group);
  g_autoptr (EbbModule) model = test_parallel_model (&gpt, error);
  g_autoptr (EbbParallelOptions) options = ebb_parallel_options_new ();
  g_autoptr (EbbTensor) weight = ebb_module_get_parameter (model, "h.1.ln_2.weight");
  g_autoptr (EbbTensor) last = NULL;
  g_autoptr (EbbModule) same = NULL;
  g_autoptr (EbbModule) norm = NULL;
  g_autoptr (GError) local = NULL;
  EbbGeneratorTracker *tracker = ebb_generator_tracker_get_default ();

  ebb_push_grad_enabled (FALSE);
  last = ebb_narrow (weight, 0, ebb_tensor_get_dim (weight, 0) - 1, 1, error);
  g_assert_true (ebb_tensor_fill (weight, 2, error));
  g_assert_true (ebb_tensor_fill (last, 2 + rank * (self->differs_in_values ? 1 : 0), error)); /* one element alone */
  g_clear_pointer (&last, ebb_tensor_unref);
  ebb_pop_grad_enabled ();
  ebb_generator_set_state (ebb_generator_get_default (), 30 + rank * (self->differs_in_seed ? 100 : 0), 7);
  if (self->begins_seeded)
    g_assert_true (ebb_generator_tracker_add (tracker, EBB_MODEL_PARALLEL_RNG, 70 + rank, error));
  g_object_set (options, "synchronize-weights", self->synchronizes, NULL);
  same = ebb_parallelize (model, group, options, &local);
  if (self->words[0] != NULL)
    {
      g_assert_null (same);
      test_assert_error (local, EBB_ERROR_PROCESS_GROUP, self->words[0], self->words[1], self->words[2]);
      g_assert_false (ebb_generator_tracker_has (tracker, EBB_MODEL_PARALLEL_RNG));
      return TRUE;
    }
  g_assert_no_error (local);
  norm = ebb_module_get_child (model, "h.1.ln_2");
  self->hashes[rank] = test_ranks_hash (norm);
  self->seeds[rank][0] = ebb_generator_get_seed (ebb_generator_get_default ());
  self->seeds[rank][1] =
      ebb_generator_get_seed (ebb_generator_tracker_get_generator (tracker, EBB_MODEL_PARALLEL_RNG));
  g_assert_cmpuint (ebb_generator_get_offset (ebb_generator_get_default ()), ==, 7);
  return TRUE;
}

static void
the_first_ranks_values_and_generator_are_all_ranks (void)
{
  Begin begin = { .synchronizes = TRUE, .differs_in_values = TRUE, .differs_in_seed = TRUE };

  test_ranks_run (2, run_begin, &begin);
  g_assert_cmpuint (begin.hashes[0], ==, begin.hashes[1]);
  for (guint rank = 0; rank < 2; rank++)
    {
      g_assert_cmpuint (begin.seeds[rank][0], ==, 30);
      g_assert_cmpuint (begin.seeds[rank][1], ==, 30 + 2718 + rank);
    }
}

static void
a_generator_of_the_program_stays (void)
{
  Begin begin = { .synchronizes = TRUE, .begins_seeded = TRUE };

  test_ranks_run (2, run_begin, &begin);
  g_assert_cmpuint (begin.seeds[0][1], ==, 70);
  g_assert_cmpuint (begin.seeds[1][1], ==, 71);
}

static void
values_that_are_not_synchronized_are_compared (void)
{
  Begin same = { 0 };
  Begin values = { .differs_in_values = TRUE,
                   .words = { "rank 1 has \"parameter h.1.ln_2.weight with checksum", "rank 0 has" } };
  Begin seeds = { .differs_in_seed = TRUE,
                  .words = { "rank 1 has \"default generator at 130+7\"",
                             "rank 0 has \"default generator at 30+7\"" } };

  test_ranks_run (2, run_begin, &same);
  test_ranks_run (2, run_begin, &values);
  test_ranks_run (2, run_begin, &seeds);
}

/* -- one model after another --------------------------------------------------------------------------------------- */

static gboolean
run_again (EbbProcessGroup *group, gpointer user_data, GError **error)
{
  double values[2];

  for (guint run = 0; run < 2; run++)
    {
      g_autoptr (EbbModule) model = test_parallel_model (&gpt, error);
      g_autoptr (EbbTensor) loss = NULL;

      ebb_manual_seed (3);
      if (!test_parallel_divide (&gpt, model, group, error))
        return FALSE;
      loss = test_parallel_loss (&gpt, model, 0, error);
      if (loss == NULL || !ebb_tensor_get_item (loss, &values[run], error))
        return FALSE;
    }
  g_assert_cmpfloat (values[0], ==, values[1]);
  return TRUE;
}

static void
a_second_run_draws_as_the_first (void)
{
  test_ranks_run (2, run_again, NULL);
}

/* The vocabulary can't be divided, which is known only when parts are made. */
static gboolean
run_refused (EbbProcessGroup *group, gpointer user_data, GError **error)
{
  const TestParallel settings = { .vocab = 3, .n_layers = 1 };
  g_autoptr (EbbModule) model = test_parallel_model (&settings, error);
  g_autoptr (EbbTensor) weight = ebb_module_get_parameter (model, "ln_f.weight");
  g_autoptr (GError) local = NULL;
  const guint rank = ebb_process_group_get_rank (group);
  guint64 before;

  ebb_push_grad_enabled (FALSE);
  g_assert_true (ebb_tensor_fill (weight, rank, error));
  ebb_pop_grad_enabled ();
  ebb_manual_seed (rank);
  before = test_ranks_hash (model);
  g_assert_null (ebb_parallelize (model, group, NULL, &local));
  test_assert_error (local, EBB_ERROR_INVALID_ARGUMENT, "wte.weight [3, 32]", "4 ranks");
  g_assert_cmpuint (test_ranks_hash (model), ==, before);
  g_assert_cmpuint (ebb_generator_get_seed (ebb_generator_get_default ()), ==, rank);
  g_assert_false (ebb_generator_tracker_has (ebb_generator_tracker_get_default (), EBB_MODEL_PARALLEL_RNG));
  return TRUE;
}

static void
a_refused_model_is_unchanged (void)
{
  test_ranks_run (4, run_refused, NULL);
}

/* -- gradients that are there -------------------------------------------------------------------------------------- */

static gboolean
run_gradients (EbbProcessGroup *group, gpointer user_data, GError **error)
{
  const TestParallel settings = { .n_layers = 1 };
  g_autoptr (EbbModule) model = test_parallel_model (&settings, error);
  g_autoptr (EbbTensor) loss = test_parallel_loss (&settings, model, 0, error);
  g_autoptr (EbbTensor) weight = ebb_module_get_parameter (model, "h.0.mlp.c_fc.weight");
  g_autoptr (EbbTensor) whole = NULL;
  g_autoptr (EbbTensor) expected = NULL;
  g_autoptr (EbbTensor) part = NULL;
  gint64 rows;

  if (loss == NULL || !ebb_tensor_backward (loss, error))
    return FALSE;
  g_clear_pointer (&loss, ebb_tensor_unref);
  whole = ebb_tensor_get_grad (weight);
  if (!test_parallel_divide (&settings, model, group, error))
    return FALSE;
  part = ebb_tensor_get_grad (weight);
  g_assert_nonnull (part);
  rows = ebb_tensor_get_dim (weight, 0);
  g_assert_cmpint (rows, ==, ebb_tensor_get_dim (whole, 0) / 2);
  expected = ebb_narrow (whole, 0, rows * ebb_process_group_get_rank (group), rows, error);
  test_assert_near (part, expected, 0);
  return TRUE;
}

static void
gradients_that_are_there_are_divided (void)
{
  test_ranks_run (2, run_gradients, NULL);
}

int
main (int argc, char **argv)
{
  static const Unlike same = { 0 };
  static const Unlike rows = { .other_pass = 1,
                               .words = { "wte of tokens with checksum",
                                          "ranks that share a model get the same rows" } };
  static const Unlike evaluated_rows = { .other_pass = 1,
                                         .evaluates = TRUE,
                                         .words = { "wte of tokens with checksum" } };
  static const Unlike seed = {
    .other_seed = 4,
    .words = { "default generator at 1+5", "at 5+5", "ebb_model_parallel_manual_seed () puts them alike" }
  };
  static const Unlike drift = { .other_draws = 3, .words = { "default generator at 1+5", "at 1+8" } };
  static const Unlike evaluated_seed = { .other_seed = 4, .evaluates = TRUE };

  test_init (&argc, &argv);
  g_test_add_data_func ("/parallel-consistency/same-rows-and-generators-pass", &same, test_unlike);
  g_test_add_data_func ("/parallel-consistency/other-rows-are-refused", &rows, test_unlike);
  g_test_add_data_func ("/parallel-consistency/other-rows-are-refused-in-evaluation", &evaluated_rows, test_unlike);
  g_test_add_data_func ("/parallel-consistency/other-seeds-are-refused", &seed, test_unlike);
  g_test_add_data_func ("/parallel-consistency/generators-that-drift-apart-are-refused", &drift, test_unlike);
  g_test_add_data_func ("/parallel-consistency/evaluation-needs-no-generators-alike", &evaluated_seed, test_unlike);
  g_test_add_func ("/parallel-consistency/the-first-ranks-values-and-generator-are-all-ranks",
                   the_first_ranks_values_and_generator_are_all_ranks);
  g_test_add_func ("/parallel-consistency/a-generator-of-the-program-stays", a_generator_of_the_program_stays);
  g_test_add_func ("/parallel-consistency/values-that-are-not-synchronized-are-compared",
                   values_that_are_not_synchronized_are_compared);
  g_test_add_func ("/parallel-consistency/a-second-run-draws-as-the-first", a_second_run_draws_as_the_first);
  g_test_add_func ("/parallel-consistency/a-refused-model-is-unchanged", a_refused_model_is_unchanged);
  g_test_add_func ("/parallel-consistency/gradients-that-are-there-are-divided", gradients_that_are_there_are_divided);
  return g_test_run ();
}
