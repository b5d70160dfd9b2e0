/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Plans of a chain of stages: for each budget the one of least time, then of the lowest peak, then with fewest wrapped
 * modules. */
#include "wrap/plan/chain/search-private.h"

#include <math.h>
#include <string.h>

/* Above any plan's cost, and far below where sums overflow. */
#define MAX_COST (G_MAXINT64 / 8)

/* -- one plan ------------------------------------------------------------------------------------------------------ */

static double
get_seconds (const EbbChainProblem *problem,
             gint64 cost)
{
  return (double) (cost / problem->tick) / problem->ticks;
}

/* Fills in what follows from the choices. */
static void
measure (const EbbChainProblem *problem,
         EbbChainPlan *plan)
{
  EbbChainState state = { 0 };

  for (guint i = 0; i < problem->n_steps; i++)
    {
      const guint64 peak = state.peak;

      state = ebb_chain_step (problem, i, &problem->steps[i].all[plan->choices[i]], &state);
      if (state.peak > peak)
        plan->binding_stage = i;
    }
  plan->fits = TRUE;
  plan->peak = state.peak;
  plan->seconds = plan->seconds_bound = get_seconds (problem, state.cost);
  plan->n_wrapped = (guint) (state.cost % problem->tick);
}

void
ebb_chain_evaluate (const EbbChainStage *stages,
                    guint n_stages,
                    const guint *choices,
                    EbbChainPlan *plan)
{
  g_autoptr (EbbChainProblem) problem =
      ebb_chain_problem_new (stages, n_stages, EBB_CHAIN_COST_SECONDS_AND_WRAPPED);

  *plan = (EbbChainPlan){ .choices = g_memdup2 (choices, n_stages * sizeof *choices) };
  measure (problem, plan);
}

void
ebb_chain_plan_clear (EbbChainPlan *plan)
{
  g_clear_pointer (&plan->choices, g_free);
}

/* -- the lowest peak ----------------------------------------------------------------------------------------------- */

guint64
ebb_chain_get_least (const EbbChainStage *stages,
                     guint n_stages)
{
  g_autoptr (EbbChainProblem) problem = ebb_chain_problem_new (stages, n_stages, EBB_CHAIN_COST_NOTHING);
  g_autofree guint *choices = g_new (guint, n_stages);
  const EbbChainGoal goal = { .budget = G_MAXUINT64, .limit = MAX_COST };
  EbbChainState end = { 0 };
  gint64 bound;

  ebb_chain_search (problem, &goal, choices, &end, &bound);
  return end.peak;
}

/* No plan that costs @limit or less has a peak below this. The nearer to the truth, the fewer peaks the search has to
 * tell apart: so many halvings are near enough. */
#define N_HALVINGS 12

static guint64
find_floor (const EbbChainProblem *problem,
            gint64 limit,
            guint64 budget)
{
  guint64 excluded = 0;

  for (guint i = 0; i < N_HALVINGS && excluded + 1 < budget; i++)
    {
      const guint64 middle = excluded + (budget - excluded) / 2;
      g_autoptr (EbbChainBounds) bounds = ebb_chain_bounds_new (problem, middle);

      if (ebb_chain_bounds_get (bounds, 0, &(EbbChainState){ 0 }, limit) > limit)
        excluded = middle;
      else
        budget = middle;
    }
  return excluded + 1;
}

/* -- plans for budgets --------------------------------------------------------------------------------------------- */

typedef struct
{
  EbbChainProblem *timed;  /* for the least time */
  EbbChainProblem *tiered; /* for the best plan of this time */
} Problems;

/* FALSE: no plan within the budget takes fewer ticks than @limit, or none at all fits. */
static gboolean
solve (const Problems *problems,
       guint64 budget,
       gint64 limit,
       EbbChainPlan *plan)
{
  const guint n = problems->timed->n_steps;
  g_autofree guint *choices = g_new (guint, n), *better = g_new (guint, n);
  EbbChainGoal goal = { .budget = budget, .floor = budget, .limit = limit - 1 };
  EbbChainState end;
  gint64 fewest, bound;

  if (!ebb_chain_search (problems->timed, &goal, choices, &end, &fewest))
    return FALSE;
  goal.limit = end.cost * problems->tiered->tick + problems->tiered->tick - 1;
  goal.floor = find_floor (problems->timed, end.cost, budget);
  if (ebb_chain_search (problems->tiered, &goal, better, &end, &bound))
    memcpy (choices, better, n * sizeof *choices);
  *plan = (EbbChainPlan){ .choices = g_steal_pointer (&choices) };
  measure (problems->tiered, plan);
  plan->seconds_bound = get_seconds (problems->timed, fewest);
  return TRUE;
}

static void
copy_plan (EbbChainPlan *to,
           const EbbChainPlan *from,
           guint n_stages)
{
  *to = *from;
  to->choices = g_memdup2 (from->choices, n_stages * sizeof *to->choices);
}

static int
compare_budgets (gconstpointer a,
                 gconstpointer b,
                 gpointer budgets)
{
  const guint64 left = ((guint64 *) budgets)[*(const guint *) a], right = ((guint64 *) budgets)[*(const guint *) b];

  return left < right ? -1 : left > right;
}

void
ebb_chain_solve (const EbbChainStage *stages,
                 guint n_stages,
                 const guint64 *budgets,
                 guint n_budgets,
                 EbbChainPlan *plans)
{
  g_autoptr (EbbChainProblem) timed = ebb_chain_problem_new (stages, n_stages, EBB_CHAIN_COST_SECONDS);
  g_autoptr (EbbChainProblem) tiered =
      ebb_chain_problem_new (stages, n_stages, EBB_CHAIN_COST_SECONDS_AND_WRAPPED);
  g_autofree guint *order = g_new (guint, n_budgets);
  const Problems problems = { timed, tiered };
  const EbbChainPlan *smaller = NULL;
  gint64 limit = MAX_COST;

  for (guint i = 0; i < n_budgets; i++)
    order[i] = i;
  g_qsort_with_data (order, (gint) n_budgets, sizeof *order, compare_budgets, (gpointer) budgets);
  for (guint i = 0; i < n_budgets; i++)
    {
      EbbChainPlan *plan = &plans[order[i]];

      *plan = (EbbChainPlan){ 0 };
      if (solve (&problems, budgets[order[i]], limit, plan))
        {
          smaller = plan;
          limit = llrint (plan->seconds * timed->ticks);
        }
      else if (smaller != NULL) /* it is the best one here, too */
        copy_plan (plan, smaller, n_stages);
    }
}
