/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: private-headers cpu-only glpk one-thread */
/* The solver of chains of 12 and 24 random blocks beside the same problem as an integer program, which GLPK solves. */
#include "wrap/plan/chain/chain-private.h"

#include <ebb/ebb.h>
#include <glpk.h>
#include <math.h>

#define MAX_STAGES 24
#define N_OPTIONS 6
#define N_BUDGETS 6
#define SECOND 1000 /* of the integer program's units of time: it counts whole ones, as the solver counts ticks */

typedef struct
{
  EbbChainOption options[MAX_STAGES][N_OPTIONS];
  EbbChainStage stages[MAX_STAGES];
  guint n_stages;
} Chain;

/* -- random chains ------------------------------------------------------------------------------------------------- */

/* Results of different sizes are kept or computed again, the larger ones for about their bytes' worth of time. */
static void
draw_options (GRand *rand, EbbChainOption *options)
{
  const gint all = g_rand_int_range (rand, 20000, 60000);

  for (guint o = 0; o < N_OPTIONS; o++)
    {
      const gint kept = o == 0 ? all : g_rand_int_range (rand, 1000, all);
      const gint ticks = o == 0 ? 0 : (all - kept) / 50 + g_rand_int_range (rand, 0, 400);

      options[o] = (EbbChainOption){ .kept = (guint64) kept, .seconds = (double) ticks / SECOND, .n_wrapped = o > 0 };
      options[o].forward = (guint64) (kept + g_rand_int_range (rand, 0, 20000));
      options[o].backward = (guint64) (MAX (kept, all) + g_rand_int_range (rand, 0, 40000));
    }
}

static void
draw_chain (GRand *rand, Chain *chain)
{
  for (guint i = 0; i < chain->n_stages; i++)
    {
      draw_options (rand, chain->options[i]);
      chain->stages[i] = (EbbChainStage){ .options = chain->options[i],
                                          .n_options = N_OPTIONS,
                                          .forward_base = 1000,
                                          .backward_base = 1000 + 100 * (chain->n_stages - i) };
    }
}

/* -- the integer program ------------------------------------------------------------------------------------------- */

/* One column for each option of each stage, 1 where it is chosen. Columns are counted from 1. */
static gint
get_column (guint stage, guint option)
{
  return (gint) (stage * N_OPTIONS + option) + 1;
}

static void
add_row (glp_prob *program, gint kind, double bound, gint n, const gint *columns, const double *factors)
{
  const gint row = glp_add_rows (program, 1);

  glp_set_row_bnds (program, row, kind, bound, bound);
  glp_set_mat_row (program, row, n, columns, factors);
}

/* What the stages before @stage keep, and what it takes itself, is at most @budget in its forward and its backward. */
static void
add_rows_of_stage (glp_prob *program, const Chain *chain, guint stage, guint64 budget)
{
  gint columns[MAX_STAGES * N_OPTIONS + 1];
  double forward[G_N_ELEMENTS (columns)], backward[G_N_ELEMENTS (columns)], one[G_N_ELEMENTS (columns)];
  const EbbChainStage *self = &chain->stages[stage];
  const gint n = get_column (stage + 1, 0) - 1, first = get_column (stage, 0);

  for (guint i = 0; i <= stage; i++)
    for (guint o = 0; o < N_OPTIONS; o++)
      {
        const EbbChainOption *option = &chain->options[i][o];
        const gint column = get_column (i, o);

        columns[column] = column;
        forward[column] = (double) (i < stage ? option->kept : option->forward);
        backward[column] = (double) (i < stage ? option->kept : option->backward);
        one[column] = 1;
      }
  add_row (program, GLP_UP, (double) budget - (double) self->forward_base, n, columns, forward);
  add_row (program, GLP_UP, (double) budget - (double) self->backward_base, n, columns, backward);
  add_row (program, GLP_FX, 1, N_OPTIONS, columns + first - 1, one + first - 1);
}

/* The least units of time of any plan; -1: no plan fits. */
static gint64
solve_by_program (const Chain *chain, guint64 budget)
{
  glp_prob *program = glp_create_prob ();
  glp_iocp options;
  gint64 least = -1;

  glp_add_cols (program, get_column (chain->n_stages, 0) - 1);
  for (guint i = 0; i < chain->n_stages; i++)
    for (guint o = 0; o < N_OPTIONS; o++)
      {
        glp_set_col_kind (program, get_column (i, o), GLP_BV);
        glp_set_obj_coef (program, get_column (i, o), round (chain->options[i][o].seconds * SECOND));
      }
  for (guint i = 0; i < chain->n_stages; i++)
    add_rows_of_stage (program, chain, i, budget);
  glp_init_iocp (&options);
  options.presolve = GLP_ON;
  options.msg_lev = GLP_MSG_ERR;
  if (glp_intopt (program, &options) == 0 && glp_mip_status (program) == GLP_OPT)
    least = (gint64) llrint (glp_mip_obj_val (program));
  glp_delete_prob (program);
  return least;
}

/* -- beside each other --------------------------------------------------------------------------------------------- */

/* Within 2 % of the budget is what is promised; the solver reaches all of it on these chains. */
static void
check_beside_program (const Chain *chain, guint64 budget, const EbbChainPlan *plan)
{
  const gint64 least = solve_by_program (chain, budget);

  g_assert_cmpint (plan->fits, ==, least >= 0);
  if (!plan->fits)
    return;
  g_assert_cmpuint (plan->peak, <=, budget);
  g_assert_cmpint (llrint (plan->seconds * SECOND), ==, least);
}

static void
check_chain (guint n_stages, guint seed)
{
  g_autoptr (GRand) rand = g_rand_new_with_seed (seed);
  const guint everything[MAX_STAGES] = { 0 }; /* is kept */
  g_auto (EbbChainPlan) most = { 0 };
  Chain chain = { .n_stages = n_stages };
  guint64 budgets[N_BUDGETS], least;
  EbbChainPlan plans[N_BUDGETS];

  draw_chain (rand, &chain);
  least = ebb_chain_get_least (chain.stages, n_stages);
  ebb_chain_evaluate (chain.stages, n_stages, everything, &most);
  for (guint i = 0; i < N_BUDGETS; i++)
    budgets[i] = least - 1 + i * (most.peak - least) / N_BUDGETS;
  ebb_chain_solve (chain.stages, n_stages, budgets, N_BUDGETS, plans);
  for (guint i = 0; i < N_BUDGETS; i++)
    {
      check_beside_program (&chain, budgets[i], &plans[i]);
      ebb_chain_plan_clear (&plans[i]);
    }
}

static void
test_12_blocks (void)
{
  for (guint seed = 0; seed < 8; seed++)
    check_chain (12, seed);
}

static void
test_24_blocks (void)
{
  for (guint seed = 0; seed < 8; seed++)
    check_chain (24, seed);
}

int
main (int argc, char **argv)
{
  g_test_init (&argc, &argv, NULL);
  g_test_add_func ("/plan/chain/12-blocks-as-an-integer-program", test_12_blocks);
  g_test_add_func ("/plan/chain/24-blocks-as-an-integer-program", test_24_blocks);
  return g_test_run ();
}
