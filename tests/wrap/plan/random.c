/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: private-headers cpu-only */
/* Plans of random models for random budgets: steps keep the budget and the bits.
 *
 *   random --seed N             one model
 *   random --seeds N [--from M] many */
#include "support/device.h"
#include "support/random-tree.h"
#include "support/tensors.h"
#include "wrap/plan/memory-plan-private.h"

#include <string.h>

#define N_SUITE_SEEDS 60
#define LENGTH 8

typedef struct
{
  TestTree tree;
  EbbTensor *x;
  guint64 others; /* bytes that are in use without the tree */
} Program;

static guint64
count_bytes (void)
{
  g_autoptr (EbbMemoryStats) stats = ebb_memory_get_stats (NULL);

  return ebb_memory_stats_get_total (stats);
}

static void
program_init (Program *self,
              guint64 seed)
{
  *self = (Program){ .x = test_randn (seed + 100, 2, LENGTH, TEST_WIDTH, -1) };
  self->others = count_bytes ();
  test_tree_init (&self->tree, seed);
}

static void
program_clear (Program *self)
{
  if (self->x == NULL)
    return;
  test_tree_clear (&self->tree);
  g_clear_pointer (&self->x, ebb_tensor_unref);
}

G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC (Program, program_clear)

static EbbTensor *
add_square (EbbTensor *before,
            EbbTensor *output,
            GError **error)
{
  g_autoptr (EbbTensor) square = ebb_square (output, error);
  g_autoptr (EbbTensor) sum = square != NULL ? ebb_sum (square, NULL, 0, FALSE, error) : NULL;

  return sum == NULL || before == NULL ? g_steal_pointer (&sum) : ebb_add (before, sum, error);
}

/* Gradients stay until the next step, where they are compared. Those of tensors that are no parameters don't. */
static gboolean
step (EbbModule *model,
      gpointer user_data,
      GError **error)
{
  Program *self = user_data;
  g_autoptr (EbbArgs) args = ebb_args_new_for_tensor (self->x);
  g_autoptr (EbbArgs) result = NULL;
  g_autoptr (GPtrArray) outputs = NULL;
  g_autoptr (EbbTensor) loss = NULL;
  gboolean ok = TRUE;

  ebb_module_zero_grad (model);
  result = ebb_module_call (model, args, error);
  outputs = result != NULL ? test_args_list_floats (result) : NULL;
  ok = outputs != NULL;
  for (guint i = 0; ok && i < outputs->len; i++)
    if (ebb_tensor_get_requires_grad (outputs->pdata[i]))
      {
        g_autoptr (EbbTensor) before = g_steal_pointer (&loss);

        loss = add_square (before, outputs->pdata[i], error);
        ok = loss != NULL;
      }
  if (ok && loss != NULL)
    ok = ebb_tensor_backward (loss, error);
  for (guint i = 0; i < TEST_N_CLOSURES; i++)
    ebb_tensor_set_grad (self->tree.closures[i], NULL, NULL);
  return ok;
}

/* Two steps. Returns the bytes of the second one at most. */
static guint64
train (Program *self,
       guint64 seed)
{
  g_autoptr (EbbMemoryStats) stats = NULL;

  ebb_manual_seed (seed + 5);
  for (guint i = 0; i < 2; i++)
    {
      g_autoptr (GError) error = NULL;

      ebb_memory_reset_peaks (NULL);
      step (self->tree.root, self, &error);
      g_assert_no_error (error);
    }
  stats = ebb_memory_get_stats (NULL);
  return ebb_memory_stats_get_peak_total (stats) - self->others;
}

static void
assert_same_bytes (EbbTensor *a,
                   EbbTensor *b)
{
  const gsize n = a != NULL ? (gsize) ebb_tensor_get_n_elements (a) * ebb_dtype_get_size (ebb_tensor_get_dtype (a)) : 0;

  g_assert_true ((a == NULL) == (b == NULL));
  if (a == NULL)
    return;
  g_assert_cmpint (ebb_tensor_get_n_elements (a), ==, ebb_tensor_get_n_elements (b));
  g_assert_cmpint (memcmp (test_read (a), test_read (b), n), ==, 0);
}

static void
assert_same_state (Program *a,
                   Program *b)
{
  guint n, n_buffers, n_other;
  g_autofree EbbTensor **mine = ebb_module_get_parameters (a->tree.root, TRUE, &n);
  g_autofree EbbTensor **others = ebb_module_get_parameters (b->tree.root, TRUE, &n_other);
  g_autofree EbbTensor **buffers = ebb_module_get_buffers (a->tree.root, TRUE, &n_buffers);
  g_autofree EbbTensor **other_buffers = NULL;

  g_assert_cmpuint (n, ==, n_other);
  for (guint i = 0; i < n; i++)
    {
      g_autoptr (EbbTensor) grad = ebb_tensor_get_grad (mine[i]);
      g_autoptr (EbbTensor) other = ebb_tensor_get_grad (others[i]);

      assert_same_bytes (grad, other);
      assert_same_bytes (mine[i], others[i]);
      ebb_tensor_unref (mine[i]);
      ebb_tensor_unref (others[i]);
    }
  other_buffers = ebb_module_get_buffers (b->tree.root, TRUE, &n_other);
  g_assert_cmpuint (n_buffers, ==, n_other);
  for (guint i = 0; i < n_buffers; i++)
    {
      assert_same_bytes (buffers[i], other_buffers[i]);
      ebb_tensor_unref (buffers[i]);
      ebb_tensor_unref (other_buffers[i]);
    }
}

typedef enum
{
  READS_VALUES,
  KEEPS_ALL,
  WRAPS
} Outcome;

static EbbMemoryPlan *
plan_for (Program *self,
          guint64 budget,
          GError **error)
{
  return ebb_memory_plan_make (self->tree.root, NULL, step, self, budget, 0, error);
}

static Outcome
try_seed (guint64 seed)
{
  g_auto (Program) plain = { 0 }, planned = { 0 };
  g_autoptr (EbbMemoryPlan) first = NULL, plan = NULL;
  g_autoptr (GError) error = NULL;
  TestDice dice = test_dice_new (seed + 77);
  Outcome outcome = KEEPS_ALL;
  guint64 budget, plain_peak, uncounted;

  g_test_message ("seed %" G_GUINT64_FORMAT, seed);
  program_init (&plain, seed);
  plain_peak = train (&plain, seed);
  program_init (&planned, seed);
  first = plan_for (&planned, G_MAXUINT64, &error);
  if (g_error_matches (error, EBB_ERROR, EBB_ERROR_DRY_RUN))
    return READS_VALUES;
  g_assert_no_error (error);
  /* A plan counts the model and its step, not tensors of the tree that are in no module. */
  g_assert_cmpuint (plain_peak, >=, first->unplanned_peak_bytes);
  uncounted = plain_peak - first->unplanned_peak_bytes;
  budget = first->least_bytes + (first->unplanned_peak_bytes - first->least_bytes) * test_dice_roll (&dice, 101) / 100;
  plan = plan_for (&planned, budget, &error);
  g_assert_no_error (error);
  g_assert_cmpuint (plan->predicted_peak_bytes, <=, budget);
  for (guint i = 0; i < plan->rows->len; i++)
    if (g_array_index (plan->rows, EbbPlanRow, i).is_checkpoint)
      outcome = WRAPS;
  ebb_memory_plan_apply (plan, &error);
  g_assert_no_error (error);
  g_assert_cmpuint (train (&planned, seed) - uncounted, ==, plan->predicted_peak_bytes);
  assert_same_state (&plain, &planned);
  return outcome;
}

static void
try_seeds (guint64 from,
           guint64 n,
           guint counts[3])
{
  for (guint64 seed = from; seed < from + n; seed++)
    counts[try_seed (seed)]++;
  g_test_message ("%u read values, %u keep everything, %u are wrapped", counts[READS_VALUES], counts[KEEPS_ALL],
                  counts[WRAPS]);
}

static void
test_random_models (void)
{
  guint counts[3] = { 0 };

  try_seeds (1, N_SUITE_SEEDS, counts);
  g_assert_cmpuint (counts[READS_VALUES], <, N_SUITE_SEEDS / 2);
  g_assert_cmpuint (counts[WRAPS], >, 0);
}

int
main (int argc,
      char **argv)
{
  gint64 seed = -1, n_seeds = 1, from = -1;
  const GOptionEntry entries[] = { { "seed", 0, 0, G_OPTION_ARG_INT64, &seed, "Try one model", "N" },
                                   { "seeds", 0, 0, G_OPTION_ARG_INT64, &n_seeds, "Try many models", "N" },
                                   { "from", 0, 0, G_OPTION_ARG_INT64, &from, "The first of them", "N" },
                                   G_OPTION_ENTRY_NULL };
  g_autoptr (GOptionContext) options = g_option_context_new (NULL);
  g_autoptr (GError) error = NULL;

  g_setenv ("EBB_COST_FILE", "", TRUE);
  g_option_context_add_main_entries (options, entries, NULL);
  g_option_context_set_ignore_unknown_options (options, TRUE);
  g_option_context_parse (options, &argc, &argv, &error);
  g_assert_no_error (error);
  test_init (&argc, &argv);
  if (seed >= 0 || from >= 0 || n_seeds > 1)
    {
      guint counts[3] = { 0 };

      try_seeds ((guint64) (seed >= 0 ? seed : MAX (from, 1)), (guint64) n_seeds, counts);
      return 0;
    }
  g_test_add_func ("/plan/planner/random-models", test_random_models);
  return g_test_run ();
}
