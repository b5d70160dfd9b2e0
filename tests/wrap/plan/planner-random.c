/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: private-headers cpu-only one-thread */
/* Random trees of modules under random budgets: planned steps keep the budget, take what was predicted, and give the
 * bits of steps without a plan; making a plan changes nothing.
 *
 *   planner-random --seed N     one program, with its plans */
#include "support/device.h"
#include "support/random-tree.h"
#include "support/tensors.h"
#include "wrap/plan/memory-plan-private.h"

#include <stdio.h>
#include <string.h>

#define N_SUITE_SEEDS 24
#define N_LONG_SEEDS 300
#define N_STEPS 3
#define N_BUDGETS 2
#define MOST_TREES 6

typedef struct
{
  TestTree trees[MOST_TREES];
  guint n_trees;
  EbbModule *model; /* the trees' roots, one after the other */
  EbbOptimizer *optimizer;
  guint64 seed;
  gboolean reads;
  GByteArray *seen; /* of real steps: losses */
} Program;

/* Roots that take or give more than a tensor can't follow each other. */
static gboolean
is_plain (EbbModule *root)
{
  const char *kind = TEST_IS_PART (root) ? test_part_get_kind (TEST_PART (root), NULL, NULL, NULL) : "";

  return !g_str_equal (kind, "nested") && !g_str_equal (kind, "keyed");
}

static void
program_init (Program *self,
              guint64 seed)
{
  TestDice dice = test_dice_new (seed);
  const guint n = 3 + test_dice_roll (&dice, MOST_TREES - 2);
  guint64 tree_seed = seed * 1000;

  *self = (Program){ .seed = seed, .seen = g_byte_array_new () };
  self->model = ebb_sequential_new ();
  while (self->n_trees < n)
    {
      TestTree *tree = &self->trees[self->n_trees];
      g_autoptr (GError) error = NULL;

      test_tree_init (tree, tree_seed++);
      if (!is_plain (tree->root))
        {
          test_tree_clear (tree);
          continue;
        }
      ebb_sequential_append (EBB_SEQUENTIAL (self->model), tree->root, &error);
      g_assert_no_error (error);
      self->n_trees++;
    }
  self->optimizer = EBB_OPTIMIZER (ebb_adamw_new (self->model, 1e-3, NULL));
  ebb_manual_seed (seed + 5);
}

static void
program_clear (Program *self)
{
  g_clear_object (&self->optimizer);
  g_clear_object (&self->model);
  for (guint i = 0; i < self->n_trees; i++)
    test_tree_clear (&self->trees[i]);
  g_clear_pointer (&self->seen, g_byte_array_unref);
}

G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC (Program, program_clear)

/* -- steps --------------------------------------------------------------------------------------------------------- */

static void
zero_gradients (Program *self)
{
  ebb_optimizer_zero_grad (self->optimizer);
  for (guint i = 0; i < self->n_trees; i++)
    for (guint c = 0; c < TEST_N_CLOSURES; c++)
      ebb_tensor_set_grad (self->trees[i].closures[c], NULL, NULL);
}

static gboolean
step (EbbModule *model,
      gpointer user_data,
      GError **error)
{
  Program *self = user_data;
  g_autoptr (EbbTensor) x = test_randn (self->seed + 100, 4, 48, TEST_WIDTH, -1);
  g_autoptr (EbbTensor) y = ebb_module_call1 (model, x, error);
  g_autoptr (EbbTensor) square = y != NULL ? ebb_square (y, error) : NULL;
  g_autoptr (EbbTensor) loss = square != NULL ? ebb_mean (square, NULL, 0, FALSE, error) : NULL;
  double value;

  if (loss == NULL)
    return FALSE;
  if (ebb_tensor_get_requires_grad (loss)
      && (!ebb_tensor_backward (loss, error) || !ebb_optimizer_step (self->optimizer, error)))
    return FALSE;
  zero_gradients (self);
  if (!self->reads)
    return TRUE;
  if (!ebb_tensor_get_item (loss, &value, error))
    return FALSE;
  g_byte_array_append (self->seen, (const guint8 *) &value, sizeof value);
  return TRUE;
}

static void
see_tensors (GByteArray *seen,
             EbbTensor **tensors,
             guint n)
{
  for (guint i = 0; i < n; i++)
    {
      g_byte_array_append (seen, ebb_tensor_get_data (tensors[i], NULL), (guint) ebb_tensor_get_n_bytes (tensors[i]));
      ebb_tensor_unref (tensors[i]);
    }
  g_free (tensors);
}

/* Parameters, buffers and generators. */
static void
see_state (Program *self,
           GByteArray *seen)
{
  EbbTensor **tensors;
  guint n;

  tensors = ebb_module_get_parameters (self->model, TRUE, &n);
  see_tensors (seen, tensors, n);
  tensors = ebb_module_get_buffers (self->model, TRUE, &n);
  see_tensors (seen, tensors, n);
  for (guint i = 0; i < self->n_trees; i++)
    for (guint g = 0; g <= TEST_N_GENERATORS; g++)
      {
        EbbGenerator *generator = g < TEST_N_GENERATORS ? self->trees[i].generators[g] : ebb_generator_get_default ();
        const guint64 offset = ebb_generator_get_offset (generator);

        g_byte_array_append (seen, (const guint8 *) &offset, sizeof offset);
      }
}

/* Real steps. Returns the bytes of the last one at most. */
static guint64
train (Program *self)
{
  g_autoptr (EbbMemoryStats) stats = NULL;
  g_autoptr (GError) error = NULL;

  self->reads = TRUE;
  for (guint i = 0; i < N_STEPS; i++)
    {
      ebb_memory_reset_peaks (NULL);
      step (self->model, self, &error);
      g_assert_no_error (error);
    }
  stats = ebb_memory_get_stats (NULL);
  see_state (self, self->seen);
  return ebb_memory_stats_get_peak_total (stats);
}

/* -- plans --------------------------------------------------------------------------------------------------------- */

/* NULL with an error: as ebb_memory_plan_make (). */
static EbbMemoryPlan *
plan_for (Program *self,
          guint64 budget,
          GError **error)
{
  g_autoptr (GByteArray) before = g_byte_array_new (), after = g_byte_array_new ();
  EbbMemoryPlan *plan;

  see_state (self, before);
  plan = ebb_memory_plan_make (self->model, NULL, NULL, step, self, budget, 0, error);
  see_state (self, after);
  g_assert_cmpmem (before->data, before->len, after->data, after->len);
  return plan;
}

static void
check_budget (guint64 seed,
              guint64 budget,
              GByteArray *plain)
{
  g_auto (Program) program = { 0 };
  g_autoptr (EbbMemoryPlan) plan = NULL;
  g_autoptr (GError) error = NULL;
  g_autofree char *text = NULL;
  guint64 measured;

  program_init (&program, seed);
  plan = plan_for (&program, budget, &error);
  g_assert_no_error (error);
  text = ebb_memory_plan_to_string (plan);
  g_test_message ("seed %" G_GUINT64_FORMAT "\n%s", seed, text);
  g_assert_cmpuint (plan->predicted_peak_bytes, <=, budget);
  ebb_memory_plan_apply (plan, &error);
  g_assert_no_error (error);
  measured = train (&program);
  ebb_memory_plan_unapply (plan);
  g_assert_cmpuint (measured, ==, plan->predicted_peak_bytes);
  g_assert_cmpmem (program.seen->data, program.seen->len, plain->data, plain->len);
}

static void
check_too_small (guint64 seed,
                 guint64 least)
{
  g_auto (Program) program = { 0 };
  g_autoptr (EbbMemoryPlan) plan = NULL;
  g_autoptr (GError) error = NULL;

  program_init (&program, seed);
  plan = plan_for (&program, least - 1, &error);
  g_assert_null (plan);
  g_assert_error (error, EBB_ERROR, EBB_ERROR_NO_MEMORY);
}

/* FALSE: there is nothing to choose, or the program goes by values, which dry steps haven't. */
static gboolean
try_seed (guint64 seed)
{
  g_auto (Program) plain = { 0 };
  g_autoptr (EbbMemoryPlan) first = NULL;
  g_autoptr (GByteArray) seen = NULL;
  g_autoptr (GError) error = NULL;
  TestDice dice = test_dice_new (seed + 1);
  guint64 least, room;

  program_init (&plain, seed);
  first = plan_for (&plain, G_MAXUINT64, &error);
  if (g_error_matches (error, EBB_ERROR, EBB_ERROR_DRY_RUN))
    return FALSE;
  g_assert_no_error (error);
  least = first->least_bytes;
  room = first->unplanned_peak_bytes - least;
  g_assert_cmpuint (train (&plain), ==, first->unplanned_peak_bytes);
  seen = g_byte_array_ref (plain.seen);
  g_clear_object (&first); /* plans count all that is in use */
  program_clear (&plain);
  check_budget (seed, least, seen);
  for (guint i = 0; i < N_BUDGETS && room > 0; i++)
    check_budget (seed, least + room * test_dice_roll (&dice, 1000) / 1000, seen);
  check_too_small (seed, least);
  return room > 0;
}

static void
test_random_programs (void)
{
  const gboolean is_long = g_getenv ("EBB_TEST_IS_LONG") != NULL;
  const guint n_seeds = is_long ? N_LONG_SEEDS : N_SUITE_SEEDS;
  guint n_planned = 0;

  for (guint64 seed = 1; seed <= n_seeds; seed++)
    n_planned += try_seed (seed);
  g_test_message ("plans to choose from in %u of %u programs", n_planned, n_seeds);
  g_assert_cmpuint (4 * n_planned, >=, n_seeds);
}

int
main (int argc,
      char **argv)
{
  gint64 seed = -1;
  const GOptionEntry entries[] = { { "seed", 0, 0, G_OPTION_ARG_INT64, &seed, "Try one program", "N" },
                                   G_OPTION_ENTRY_NULL };
  g_autoptr (GOptionContext) options = g_option_context_new (NULL);
  g_autoptr (GError) error = NULL;

  g_option_context_add_main_entries (options, entries, NULL);
  g_option_context_set_ignore_unknown_options (options, TRUE);
  g_option_context_set_help_enabled (options, FALSE);
  if (!g_option_context_parse (options, &argc, &argv, &error))
    {
      fprintf (stderr, "%s\n", error->message);
      return 2;
    }
  g_setenv ("EBB_COST_FILE", "", TRUE);
  test_init (&argc, &argv);
  if (seed >= 0)
    {
      printf ("%s\n", try_seed ((guint64) seed) ? "planned" : "not planned");
      return 0;
    }
  g_test_add_func ("/plan/planner/random-programs", test_random_programs);
  return g_test_run ();
}
