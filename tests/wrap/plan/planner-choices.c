/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: private-headers cpu-only one-thread */
/* The planner beside other ways to wrap the same blocks, each shown by a dry step. No launch is measured, so seconds
 * are those of fixed rates. */
#include "nn/module-private.h"
#include "support/device.h"
#include "support/plan-runs.h"
#include "wrap/checkpoint/target-private.h"
#include "wrap/plan/planner/choices-private.h"

#include <string.h>

#define VOCAB 100
#define LARGE_VOCAB 4000
#define N_BUDGETS 8

static void
init (TestPlanRun *self,
      int layers,
      int vocab)
{
  BenchSettings settings = { .layers = layers, .width = 48, .heads = 4, .batch = 4, .context = 32, .dropout = 0.1 };

  settings.vocab = vocab;
  test_plan_run_init (self, &settings);
}

/* Its blocks normalize after each part, so that they keep other things than those of a GPT. */
static void
init_bert (TestPlanRun *self,
           int layers)
{
  BenchSettings settings = { .width = 48, .heads = 4, .vocab = VOCAB, .batch = 4, .context = 32, .dropout = 0.1 };

  settings.preset = "bert-base";
  settings.layers = layers;
  test_plan_run_init (self, &settings);
}

static EbbPlanChoices *
find_choices (TestPlanRun *self)
{
  g_autoptr (GError) error = NULL;
  EbbPlanChoices *choices =
      ebb_plan_choices_new (&(EbbPlanRequest){ self->training->model, ebb_device_get_cpu (),
                                               .step = test_plan_run_step, .user_data = self },
                            0, 0, &error);

  g_assert_no_error (error);
  return choices;
}

/* -- ways to wrap the blocks --------------------------------------------------------------------------------------- */

typedef struct
{
  guint64 peak;
  double seconds; /* of recomputes */
} Outcome;

static Outcome
get_outcome (const EbbProbeStep *ran)
{
  Outcome outcome = { .peak = ran->peak };

  for (guint i = 0; i < ran->n_stages; i++)
    outcome.seconds += ran->stages[i].seconds[EBB_PROBE_RECOMPUTE];
  return outcome;
}

static Outcome
try_numbers (EbbPlanChoices *choices,
             const guint *numbers)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbMemoryPlan) plan = ebb_memory_plan_new_empty (choices->model);
  g_autoptr (EbbProbeStep) ran = NULL;

  ebb_plan_choices_fill (choices, numbers, plan);
  ran = ebb_plan_choices_try (choices, plan, &error);
  g_assert_no_error (error);
  return get_outcome (ran);
}

/* All combinations in which a block does one of its choices of the numbers @allowed. */
static GArray *
try_all (TestPlanRun *self,
         const guint *allowed,
         guint n_allowed)
{
  g_autoptr (EbbPlanChoices) choices = find_choices (self);
  const guint n_blocks = choices->blocks->len;
  GArray *outcomes = g_array_new (FALSE, FALSE, sizeof (Outcome));
  guint n_all = 1;

  for (guint i = 0; i < n_blocks; i++)
    n_all *= n_allowed;
  for (guint i = 0; i < n_all; i++)
    {
      g_autofree guint *numbers = g_new (guint, n_blocks);
      Outcome outcome;

      for (guint b = 0, rest = i; b < n_blocks; b++, rest /= n_allowed)
        numbers[b] = allowed[rest % n_allowed];
      outcome = try_numbers (choices, numbers);
      g_array_append_val (outcomes, outcome);
    }
  return outcomes;
}

/* The least seconds within @budget; G_MAXDOUBLE: nothing is. */
static double
find_best (GArray *outcomes,
           guint64 budget)
{
  double best = G_MAXDOUBLE;

  for (guint i = 0; i < outcomes->len; i++)
    {
      const Outcome *outcome = &g_array_index (outcomes, Outcome, i);

      if (outcome->peak <= budget)
        best = MIN (best, outcome->seconds);
    }
  return best;
}

static guint64
find_least (GArray *outcomes)
{
  guint64 least = G_MAXUINT64;

  for (guint i = 0; i < outcomes->len; i++)
    least = MIN (least, g_array_index (outcomes, Outcome, i).peak);
  return least;
}

/* -- the best of all ----------------------------------------------------------------------------------------------- */

static void
check_beside_all (TestPlanRun *run,
                  GArray *outcomes)
{
  g_autoptr (EbbMemoryPlan) first = test_plan_run_plan (run, G_MAXUINT64);
  const double none_seconds = first->step_seconds - first->seconds;

  g_assert_cmpfloat ((double) first->least_bytes, <=, 1.005 * (double) find_least (outcomes));
  for (guint i = 0; i <= N_BUDGETS; i++)
    {
      const guint64 budget = test_plan_get_budget (first, i, N_BUDGETS);
      g_autoptr (EbbMemoryPlan) plan = test_plan_run_plan (run, budget);
      const double best = find_best (outcomes, budget);

      g_test_message ("budget %" G_GUINT64_FORMAT ": peak %" G_GUINT64_FORMAT ", %g s of recompute, at best %g s",
                      budget, plan->predicted_peak_bytes, plan->seconds, best);
      g_assert_cmpuint (plan->predicted_peak_bytes, <=, budget);
      if (best == G_MAXDOUBLE)
        continue;
      g_assert_cmpfloat (none_seconds + plan->seconds, <=, 1.03 * (none_seconds + best));
      if (plan->seconds > best * (1 + 1e-9)) /* there is a better plan: then hardly a byte is left */
        g_assert_cmpfloat ((double) plan->predicted_peak_bytes, >=, 0.995 * (double) budget);
    }
}

static void
test_all_of_two_blocks (void)
{
  g_auto (TestPlanRun) run = { 0 };
  g_autoptr (GArray) outcomes = NULL;
  g_autofree guint *allowed = NULL;
  guint n;

  init (&run, 2, VOCAB);
  {
    g_autoptr (EbbPlanChoices) choices = find_choices (&run);

    g_assert_cmpuint (choices->classes->len, ==, 1);
    n = ((EbbPlanClass *) choices->classes->pdata[0])->choices->len;
  }
  allowed = g_new (guint, n);
  for (guint i = 0; i < n; i++)
    allowed[i] = i;
  outcomes = try_all (&run, allowed, n);
  check_beside_all (&run, outcomes);
}

static void
test_all_of_six_blocks (void)
{
  const guint allowed[] = { 0, 1, 2 };
  g_auto (TestPlanRun) run = { 0 };
  g_autoptr (GArray) outcomes = NULL;

  init (&run, 6, VOCAB);
  outcomes = try_all (&run, allowed, G_N_ELEMENTS (allowed));
  check_beside_all (&run, outcomes);
}

/* -- all blocks alike ---------------------------------------------------------------------------------------------- */

/* Each peak at which all blocks do the same is a budget that a plan keeps, and not slower. The least budget depends on
 * no times, as the choices between all and nothing do, so some of them may need a little less. */
static void
check_beside_uniform (TestPlanRun *run)
{
  g_autoptr (GArray) outcomes = g_array_new (FALSE, FALSE, sizeof (Outcome));
  g_autoptr (EbbMemoryPlan) first = NULL;

  {
    g_autoptr (EbbPlanChoices) choices = find_choices (run);
    g_autofree guint *numbers = g_new (guint, choices->blocks->len);

    g_assert_cmpuint (choices->classes->len, ==, 1);
    for (guint k = 0; k < ((EbbPlanClass *) choices->classes->pdata[0])->choices->len; k++)
      {
        Outcome outcome;

        for (guint i = 0; i < choices->blocks->len; i++)
          numbers[i] = k;
        outcome = try_numbers (choices, numbers);
        g_array_append_val (outcomes, outcome);
      }
  }
  first = test_plan_run_plan (run, G_MAXUINT64);
  g_assert_cmpfloat ((double) first->least_bytes, <=, 1.01 * (double) find_least (outcomes));
  for (guint i = 0; i < outcomes->len; i++)
    {
      const guint64 budget = MAX (g_array_index (outcomes, Outcome, i).peak, first->least_bytes);
      g_autoptr (EbbMemoryPlan) plan = test_plan_run_plan (run, budget);
      const double best = find_best (outcomes, budget);

      g_test_message ("budget %" G_GUINT64_FORMAT ": peak %" G_GUINT64_FORMAT ", %g s, at best %g s", budget,
                      plan->predicted_peak_bytes, plan->seconds, best);
      g_assert_cmpuint (plan->predicted_peak_bytes, <=, budget);
      g_assert_cmpfloat (plan->seconds, <=, best * (1 + 1e-9));
    }
}

static void
test_uniform_gpt (void)
{
  g_auto (TestPlanRun) run = { 0 };

  init (&run, 8, VOCAB);
  check_beside_uniform (&run);
}

static void
test_uniform_bert (void)
{
  g_auto (TestPlanRun) run = { 0 };

  init_bert (&run, 8);
  check_beside_uniform (&run);
}

/* -- ladders ------------------------------------------------------------------------------------------------------- */

/* A plan as @before: that of a larger budget, and then of this one. Its peak is no higher, and it is no faster. */
static void
check_ladder_step (TestPlanRun *run,
                   guint64 budget,
                   Outcome *before)
{
  g_autoptr (EbbMemoryPlan) plan = test_plan_run_plan (run, budget);

  g_test_message ("budget %" G_GUINT64_FORMAT ": peak %" G_GUINT64_FORMAT ", %g s", budget, plan->predicted_peak_bytes,
                  plan->seconds);
  g_assert_cmpuint (plan->predicted_peak_bytes, <=, budget);
  g_assert_cmpuint (plan->predicted_peak_bytes, <=, before->peak);
  g_assert_cmpfloat (plan->seconds, >=, before->seconds);
  *before = (Outcome){ plan->predicted_peak_bytes, plan->seconds };
}

/* Budgets of 0.05, 0.15 and 0.35 of what activations take had peaks of 1145, 275 and 457 MB there. */
static void
test_pytorch_197838 (void)
{
  const double shares[] = { 1, 0.75, 0.5, 0.35, 0.25, 0.2, 0.15, 0.1, 0.05, 0 };
  g_auto (TestPlanRun) run = { 0 };
  g_autoptr (EbbMemoryPlan) first = NULL;
  Outcome before = { .peak = G_MAXUINT64 };

  init (&run, 6, VOCAB);
  first = test_plan_run_plan (&run, G_MAXUINT64);
  for (guint i = 0; i < G_N_ELEMENTS (shares); i++)
    {
      const double room = (double) (first->unplanned_peak_bytes - first->least_bytes);

      check_ladder_step (&run, first->least_bytes + (guint64) (shares[i] * room), &before);
    }
}

static void
test_ladder_of_bert (void)
{
  enum
  {
    N = 32
  };
  g_auto (TestPlanRun) run = { 0 };
  g_autoptr (EbbMemoryPlan) first = NULL;
  Outcome before = { .peak = G_MAXUINT64 };

  init_bert (&run, 6);
  first = test_plan_run_plan (&run, G_MAXUINT64);
  for (guint i = N + 1; i-- > 0;)
    check_ladder_step (&run, test_plan_get_budget (first, i, N), &before);
}

/* -- what the user has wrapped ------------------------------------------------------------------------------------- */

static void
test_wrapped_by_the_user (void)
{
  g_auto (TestPlanRun) run = { 0 };
  g_autoptr (EbbModule) block = NULL;
  g_autoptr (EbbModule) wrapped = NULL;
  g_autoptr (EbbMemoryPlan) first = NULL;
  g_autoptr (EbbMemoryPlan) plan = NULL;
  g_autoptr (GArray) blocks = NULL;
  guint interceptor;
  guint64 budget;

  init (&run, 5, VOCAB);
  blocks = ebb_plan_find_blocks (run.training->model);
  block = g_object_ref (g_array_index (blocks, EbbPlanBlock, 2).module);
  wrapped = ebb_checkpoint_wrapper (block, NULL, NULL);
  g_assert_nonnull (wrapped);
  interceptor = ebb_module_find_interceptor (block, EBB_CHECKPOINT_INTERCEPTOR);

  first = test_plan_run_plan (&run, G_MAXUINT64);
  budget = test_plan_get_budget (first, 1, 3);
  plan = test_plan_run_plan (&run, budget);
  for (guint i = 0; i < plan->rows->len; i++)
    g_assert_cmpint (g_array_index (plan->rows, EbbPlanRow, i).is_taken, ==, i == 2);
  g_assert_true (ebb_memory_plan_apply (plan, NULL));
  g_assert_cmpuint (ebb_module_find_interceptor (block, EBB_CHECKPOINT_INTERCEPTOR), ==, interceptor);
  g_assert_cmpuint (test_plan_run_train (&run), ==, plan->predicted_peak_bytes);
  g_assert_cmpuint (plan->predicted_peak_bytes, <=, budget);
  ebb_memory_plan_unapply (plan);
  g_assert_cmpuint (ebb_module_find_interceptor (block, EBB_CHECKPOINT_INTERCEPTOR), ==, interceptor);
}

/* -- how often things run ------------------------------------------------------------------------------------------ */

static gboolean
count_forward (EbbModule *module,
               EbbArgs *args,
               EbbArgs *result,
               gpointer user_data,
               GError **error)
{
  ++*(guint *) user_data;
  return TRUE;
}

/* Its backward comes next, so that recomputing it frees nothing that counts at the peak. */
static void
test_last_block (void)
{
  g_auto (TestPlanRun) run = { 0 };
  g_autoptr (EbbMemoryPlan) plan = NULL;
  g_autoptr (GArray) blocks = NULL;
  g_autofree char *text = NULL, *count = NULL;
  guint n_forwards[6] = { 0 };
  guint n_wrapped = 0;

  init (&run, 6, VOCAB);
  {
    g_autoptr (EbbMemoryPlan) first = test_plan_run_plan (&run, G_MAXUINT64);

    plan = test_plan_run_plan (&run, test_plan_get_budget (first, 1, 4));
  }
  blocks = ebb_plan_find_blocks (run.training->model);
  g_assert_true (ebb_memory_plan_apply (plan, NULL));
  for (guint i = 0; i < blocks->len; i++)
    ebb_module_add_forward_pre_hook (g_array_index (blocks, EbbPlanBlock, i).module, count_forward, &n_forwards[i],
                                     NULL);
  g_assert_true (test_plan_run_step (NULL, &run, NULL));
  for (guint i = 0; i < blocks->len; i++)
    {
      const EbbPlanRow *row = &g_array_index (plan->rows, EbbPlanRow, i);

      g_test_message ("%s: %u forwards", row->path, n_forwards[i]);
      g_assert_cmpuint (n_forwards[i], ==, row->is_checkpoint ? 2 : 1);
      n_wrapped += row->is_checkpoint;
    }
  g_assert_cmpuint (n_wrapped, >, 0);
  g_assert_cmpuint (n_forwards[5], ==, 1);
  text = ebb_memory_plan_to_string (plan);
  count = g_strdup_printf ("\n%u of 6 blocks recompute, the last one not: its backward comes first\n", n_wrapped);
  g_assert_nonnull (strstr (text, count));
}

static EbbMemoryPlan *
copy_but_keep_last (EbbModule *model,
                    EbbMemoryPlan *plan)
{
  EbbMemoryPlan *copy = ebb_memory_plan_new_empty (model);

  for (guint i = 0; i < plan->rows->len; i++)
    {
      EbbPlanRow row = g_array_index (plan->rows, EbbPlanRow, i);

      row.path = g_strdup (row.path);
      row.saved = g_memdup2 (row.saved, row.n_saved * sizeof *row.saved);
      if (i + 1 == plan->rows->len)
        {
          g_clear_pointer (&row.saved, g_free);
          row.n_saved = 0;
          row.is_checkpoint = FALSE;
        }
      ebb_memory_plan_add_row (copy, &row);
    }
  return copy;
}

/* Where a plan does recompute the last block, keeping it would pass the budget. Returns how many plans do. */
static guint
check_last_block (int vocab)
{
  g_auto (TestPlanRun) run = { 0 };
  g_autoptr (EbbMemoryPlan) first = NULL;
  g_autoptr (GPtrArray) plans = g_ptr_array_new_with_free_func (g_object_unref);
  g_autoptr (EbbPlanChoices) choices = NULL;
  guint n_recompute = 0;

  init (&run, 6, vocab);
  first = test_plan_run_plan (&run, G_MAXUINT64);
  for (guint i = 0; i <= N_BUDGETS; i++)
    g_ptr_array_add (plans, test_plan_run_plan (&run, test_plan_get_budget (first, i, N_BUDGETS)));
  choices = find_choices (&run);
  for (guint i = 0; i < plans->len; i++)
    {
      EbbMemoryPlan *plan = plans->pdata[i];
      g_autoptr (GError) error = NULL;
      g_autoptr (EbbMemoryPlan) kept = copy_but_keep_last (run.training->model, plan);
      g_autoptr (EbbProbeStep) ran = NULL;

      if (!g_array_index (plan->rows, EbbPlanRow, plan->rows->len - 1).is_checkpoint)
        continue;
      ran = ebb_plan_choices_try (choices, kept, &error);
      g_assert_no_error (error);
      g_test_message ("budget %" G_GUINT64_FORMAT ": %" G_GUINT64_FORMAT " with the last block kept",
                      plan->budget_bytes, ran->peak);
      g_assert_cmpuint (ran->peak, >, plan->budget_bytes);
      n_recompute++;
    }
  return n_recompute;
}

/* The backward of the head, which comes before that of the last block, is small beside it with a small vocabulary. */
static void
test_last_block_of_each_budget (void)
{
  g_assert_cmpuint (check_last_block (VOCAB), ==, 0);
  g_assert_cmpuint (check_last_block (LARGE_VOCAB), >, 0);
}

static guint
count_steps (int layers)
{
  g_auto (TestPlanRun) run = { 0 };
  g_autoptr (EbbMemoryPlan) first = NULL;
  g_autoptr (EbbMemoryPlan) plan = NULL;

  init (&run, layers, VOCAB);
  first = test_plan_run_plan (&run, G_MAXUINT64);
  run.n_steps = 0;
  plan = test_plan_run_plan (&run, test_plan_get_budget (first, 1, 3));
  return run.n_steps;
}

/* Equal blocks try choices side by side: a deep model takes no more steps than a shallow one. */
static void
test_n_dry_steps (void)
{
  const guint n_shallow = count_steps (6), n_deep = count_steps (48);

  g_test_message ("%u dry steps for 6 blocks, %u for 48", n_shallow, n_deep);
  g_assert_cmpuint (n_deep, <=, n_shallow);
}

int
main (int argc,
      char **argv)
{
  g_setenv ("EBB_COST_FILE", "", TRUE);
  test_init (&argc, &argv);
  g_test_add_func ("/plan/planner/all-plans-of-two-blocks", test_all_of_two_blocks);
  g_test_add_func ("/plan/planner/plans-of-six-blocks", test_all_of_six_blocks);
  g_test_add_func ("/plan/planner/uniform-gpt", test_uniform_gpt);
  g_test_add_func ("/plan/planner/uniform-bert", test_uniform_bert);
  g_test_add_func ("/plan/planner/pytorch-197838", test_pytorch_197838);
  g_test_add_func ("/plan/planner/ladder-of-bert", test_ladder_of_bert);
  g_test_add_func ("/plan/planner/wrapped-by-the-user", test_wrapped_by_the_user);
  g_test_add_func ("/plan/planner/last-block", test_last_block);
  g_test_add_func ("/plan/planner/last-block-of-each-budget", test_last_block_of_each_budget);
  g_test_add_func ("/plan/planner/dry-steps", test_n_dry_steps);
  return g_test_run ();
}
