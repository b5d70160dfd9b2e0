/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/device.h"
#include "support/ranks.h"
#include "support/tensor-parallel.h"
#include "support/tensors.h"

/* What ranks that share a model must have alike: that it is made so, and told of where it is not. */

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

int
main (int argc, char **argv)
{
  static const Unlike same = { 0 };
  static const Unlike rows = { .other_pass = 1,
                               .words = { "wte of tokens with checksum", "ranks that share a model get the same rows" } };
  static const Unlike evaluated_rows = { .other_pass = 1, .evaluates = TRUE, .words = { "wte of tokens with checksum" } };
  static const Unlike seed = {
    .other_seed = 4,
    .words = { "default generator at 1+5", "at 5+5", "ebb_model_parallel_manual_seed () puts them alike" }
  };
  static const Unlike drift = { .other_draws = 3, .words = { "default generator at 1+5", "at 1+8" } };
  static const Unlike evaluated_seed = { .other_seed = 4, .evaluates = TRUE };

  test_init (&argc, &argv);
  g_test_add_data_func ("/parallel-alike/same-rows-and-generators-pass", &same, test_unlike);
  g_test_add_data_func ("/parallel-alike/other-rows-are-told-of", &rows, test_unlike);
  g_test_add_data_func ("/parallel-alike/other-rows-are-told-of-in-evaluation", &evaluated_rows, test_unlike);
  g_test_add_data_func ("/parallel-alike/other-seeds-are-told-of", &seed, test_unlike);
  g_test_add_data_func ("/parallel-alike/generators-that-drift-apart-are-told-of", &drift, test_unlike);
  g_test_add_data_func ("/parallel-alike/evaluation-needs-no-generators-alike", &evaluated_seed, test_unlike);
  return g_test_run ();
}
