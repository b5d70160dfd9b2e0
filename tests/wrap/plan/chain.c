/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: private-headers cpu-only one-thread */
/* The solver of chains beside exhaustive search, and beside a table over all numbers of bytes that blocks may keep. */
#include "wrap/plan/chain/chain-private.h"

#include <ebb/ebb.h>
#include <math.h>
#include <string.h>

#define MAX_STAGES 6
#define MAX_OPTIONS 5

typedef struct
{
  EbbChainOption options[MAX_STAGES][MAX_OPTIONS];
  EbbChainStage stages[MAX_STAGES];
  guint n_stages;
} Chain;

/* -- random chains ------------------------------------------------------------------------------------------------- */

static guint64
draw (GRand *rand, guint most)
{
  return (guint64) g_rand_int_range (rand, 0, (gint32) most + 1);
}

/* Few different values, so that plans are often equal in one figure and not in the others. */
static EbbChainOption
draw_option (GRand *rand, gboolean moves)
{
  EbbChainOption option = { .kept = draw (rand, 12), .seconds = 0.25 * (double) draw (rand, 8) };

  option.forward = option.kept + draw (rand, 8);
  option.backward = option.kept + draw (rand, 10);
  option.n_wrapped = (guint) draw (rand, 1);
  if (!moves || draw (rand, 1) == 0)
    return option;
  option.moving = 1 + draw (rand, 6);
  option.out_seconds = 0.5 * (double) draw (rand, 6);
  option.back_seconds = 0.5 * (double) draw (rand, 6);
  return option;
}

static void
draw_chain (GRand *rand, Chain *chain)
{
  const gboolean moves = draw (rand, 1) == 1, equal = draw (rand, 2) == 0;

  chain->n_stages = 1 + (guint) draw (rand, MAX_STAGES - 1);
  for (guint i = 0; i < chain->n_stages; i++)
    {
      EbbChainStage *stage = &chain->stages[i];

      if (i > 0 && equal)
        {
          *stage = chain->stages[0];
          continue;
        }
      stage->n_options = 1 + (guint) draw (rand, MAX_OPTIONS - 1);
      stage->options = chain->options[i];
      for (guint o = 0; o < stage->n_options; o++)
        chain->options[i][o] = draw_option (rand, moves);
      stage->forward_base = draw (rand, 5);
      stage->backward_base = draw (rand, 5);
      stage->forward_seconds = 0.5 * (double) draw (rand, 3);
      stage->backward_seconds = 0.5 * (double) draw (rand, 3);
    }
}

/* -- exhaustive search --------------------------------------------------------------------------------------------- */

/* Written from the description of the chain, as a simulation of its bytes and copies. */
typedef struct
{
  guint64 peak;
  double seconds;
  guint n_wrapped;
} Figures;

static Figures
simulate (const Chain *chain, const guint *choices)
{
  Figures figures = { 0 };
  double out = 0, back = 0; /* not yet hidden of the copies of the last stage that moved something */
  guint64 moving = 0, kept = 0;

  for (guint i = 0; i < chain->n_stages; i++)
    {
      const EbbChainStage *stage = &chain->stages[i];
      const EbbChainOption *option = &stage->options[choices[i]];
      const gboolean moves = option->moving > 0;
      const guint64 forward = stage->forward_base + kept + (moves ? 0 : moving) + option->forward;
      const guint64 backward = stage->backward_base + kept + moving + option->backward;

      figures.peak = MAX (figures.peak, MAX (forward, backward));
      figures.seconds += option->seconds;
      figures.n_wrapped += option->n_wrapped;
      back = MAX (0, back - stage->backward_seconds - option->seconds);
      if (moves)
        {
          figures.seconds += out + back;
          moving = option->moving;
          out = option->out_seconds;
          back = option->back_seconds;
        }
      out = MAX (0, out - stage->forward_seconds);
      kept += option->kept;
    }
  return figures;
}

static gboolean
is_better (Figures a, Figures b)
{
  if (a.seconds != b.seconds)
    return a.seconds < b.seconds;
  if (a.peak != b.peak)
    return a.peak < b.peak;
  return a.n_wrapped < b.n_wrapped;
}

static gboolean
next_choices (const Chain *chain, guint *choices)
{
  for (guint i = 0; i < chain->n_stages; i++)
    {
      if (++choices[i] < chain->stages[i].n_options)
        return TRUE;
      choices[i] = 0;
    }
  return FALSE;
}

/* FALSE: no plan fits. */
static gboolean
search_all (const Chain *chain, guint64 budget, Figures *best, guint64 *least)
{
  guint choices[MAX_STAGES] = { 0 };
  gboolean fits = FALSE;

  *least = G_MAXUINT64;
  do
    {
      const Figures figures = simulate (chain, choices);

      *least = MIN (*least, figures.peak);
      if (figures.peak > budget || (fits && !is_better (figures, *best)))
        continue;
      *best = figures;
      fits = TRUE;
    }
  while (next_choices (chain, choices));
  return fits;
}

/* All figures are small multiples of a quarter, so sums of doubles are exact. */
static void
check_beside_all (const Chain *chain, guint64 budget, const EbbChainPlan *plan)
{
  Figures best = { 0 };
  guint64 least;
  const gboolean fits = search_all (chain, budget, &best, &least);

  g_assert_cmpint (plan->fits, ==, fits);
  g_assert_cmpuint (ebb_chain_get_least (chain->stages, chain->n_stages), ==, least);
  if (!fits)
    return;
  g_assert_cmpfloat_with_epsilon (plan->seconds, best.seconds, 1e-12);
  g_assert_cmpuint (plan->peak, ==, best.peak);
  g_assert_cmpuint (plan->n_wrapped, ==, best.n_wrapped);
  best = simulate (chain, plan->choices);
  g_assert_cmpuint (plan->peak, ==, best.peak);
  g_assert_cmpfloat_with_epsilon (plan->seconds, best.seconds, 1e-12);
  g_assert_cmpfloat (plan->seconds_bound, ==, plan->seconds);
}

#define N_BUDGETS 12

static void
test_exhaustive (void)
{
  for (guint seed = 0; seed < 400; seed++)
    {
      g_autoptr (GRand) rand = g_rand_new_with_seed (seed);
      guint64 budgets[N_BUDGETS];
      EbbChainPlan plans[N_BUDGETS];
      Chain chain;

      draw_chain (rand, &chain);
      for (guint i = 0; i < N_BUDGETS; i++)
        budgets[i] = draw (rand, 60);
      ebb_chain_solve (chain.stages, chain.n_stages, budgets, N_BUDGETS, plans);
      for (guint i = 0; i < N_BUDGETS; i++)
        {
          check_beside_all (&chain, budgets[i], &plans[i]);
          ebb_chain_plan_clear (&plans[i]);
        }
    }
}

/* -- chains of models ---------------------------------------------------------------------------------------------- */

/* Options of a transformer block, in units of its input: which of its products' results are kept, and what it takes to
 * run the others again. Dominated ones are among them. */
#define N_BLOCK_OPTIONS 20

static void
fill_block (EbbChainOption *options, guint64 unit, double second)
{
  static const guint sizes[] = { 3, 1, 1, 4 }; /* queries, keys and values; attention; projection; hidden */
  static const double seconds[] = { 3, 1.3, 1, 4 };

  options[0] = (EbbChainOption){ 10 * unit, 14 * unit, 16 * unit, 0, 0, 0, 0, 0 };
  for (guint o = 1; o < N_BLOCK_OPTIONS; o++)
    {
      const guint saved = (o - 1) % 16; /* a bit for each result */
      EbbChainOption *option = &options[o];

      *option = (EbbChainOption){ .kept = unit, .n_wrapped = 1, .seconds = 0.2 * second };
      for (guint i = 0; i < 4; i++)
        {
          option->kept += (saved >> i & 1) * sizes[i] * unit;
          option->seconds += (saved >> i & 1) == 0 ? seconds[i] * second : 0;
        }
      option->forward = option->kept + 5 * unit;
      option->backward = 17 * unit;
      option->kept += o > 16 ? unit / 64 : 0;
    }
}

static void
fill_model (EbbChainStage *stages,
            guint n_blocks,
            const EbbChainOption *block,
            const EbbChainOption *head,
            guint64 gradients)
{
  for (guint i = 0; i < n_blocks; i++)
    stages[i] = (EbbChainStage){ block, N_BLOCK_OPTIONS, 0, (n_blocks - i) * gradients, 0.01, 0.02 };
  stages[n_blocks] = (EbbChainStage){ head, 1, 0, 0, 0.01, 0.02 };
}

/* The least seconds by a table: for each stage and each number of bytes kept before it, the fastest rest. */
static double
solve_by_table (const EbbChainStage *stages, guint n_stages, guint64 budget)
{
  const gsize n_sizes = budget + 2;
  g_autofree double *rest = g_new0 (double, n_sizes), *next = g_new0 (double, n_sizes);

  for (guint i = n_stages; i-- > 0;)
    {
      const EbbChainStage *stage = &stages[i];

      memcpy (next, rest, n_sizes * sizeof *rest);
      for (gsize kept = 0; kept < n_sizes; kept++)
        {
          rest[kept] = INFINITY;
          for (guint o = 0; o < stage->n_options; o++)
            {
              const EbbChainOption *option = &stage->options[o];
              const guint64 after = kept + option->kept;

              if (after < n_sizes && stage->forward_base + kept + option->forward <= budget
                  && stage->backward_base + kept + option->backward <= budget)
                rest[kept] = MIN (rest[kept], option->seconds + next[after]);
            }
        }
    }
  return rest[0];
}

/* No option for all blocks fits and is faster. */
static void
check_beside_uniform (const EbbChainStage *stages, guint n_blocks, guint64 budget, const EbbChainPlan *plan)
{
  g_autofree guint *choices = g_new0 (guint, n_blocks + 1);

  for (guint o = 0; o < N_BLOCK_OPTIONS; o++)
    {
      g_auto (EbbChainPlan) uniform = { 0 };

      for (guint i = 0; i < n_blocks; i++)
        choices[i] = o;
      ebb_chain_evaluate (stages, n_blocks + 1, choices, &uniform);
      g_assert_true (uniform.peak > budget || uniform.seconds >= plan->seconds);
    }
}

static void
check_model (guint n_blocks, guint64 gradients)
{
  const guint64 unit = 64, head_bytes = 40 * unit;
  const EbbChainOption head = { 0, head_bytes, head_bytes, 0, 0, 0, 0, 0 };
  g_autofree EbbChainStage *stages = g_new (EbbChainStage, n_blocks + 1);
  EbbChainOption block[N_BLOCK_OPTIONS];
  EbbChainPlan plans[N_BUDGETS];
  guint64 budgets[N_BUDGETS], least, most;

  fill_block (block, unit, 0.001);
  fill_model (stages, n_blocks, block, &head, gradients);
  least = ebb_chain_get_least (stages, n_blocks + 1);
  most = (10 * n_blocks + 40) * unit + n_blocks * gradients;
  for (guint i = 0; i < N_BUDGETS; i++)
    budgets[i] = most - i * (most - least) / (N_BUDGETS - 1);
  ebb_chain_solve (stages, n_blocks + 1, budgets, N_BUDGETS, plans);
  for (guint i = 0; i < N_BUDGETS; i++)
    {
      g_assert_true (plans[i].fits);
      g_assert_cmpuint (plans[i].peak, <=, budgets[i]);
      g_assert_cmpfloat (plans[i].seconds_bound, ==, plans[i].seconds);
      if (i % 4 == 3)
        g_assert_cmpfloat_with_epsilon (plans[i].seconds, solve_by_table (stages, n_blocks + 1, budgets[i]), 1e-9);
      check_beside_uniform (stages, n_blocks, budgets[i], &plans[i]);
      if (i > 0)
        g_assert_cmpuint (plans[i].peak, <=, plans[i - 1].peak);
    }
  g_assert_cmpuint (plans[N_BUDGETS - 1].peak, ==, least);
  for (guint i = 0; i < N_BUDGETS; i++)
    ebb_chain_plan_clear (&plans[i]);
}

static void
test_deep (void)
{
  const guint depths[] = { 12, 24, 48 };

  for (guint i = 0; i < G_N_ELEMENTS (depths); i++)
    {
      check_model (depths[i], 0);
      check_model (depths[i], 4 * 64);
      check_model (depths[i], 700);
    }
}

/* The slower the link, the longer the step; and with memory to spare nothing moves, however fast it is. */
static void
test_bandwidths (void)
{
  const guint64 unit = 1024;
  const double second = 0.001;
  double slower = 0;

  for (guint slowness = 0; slowness < 4; slowness++)
    {
      const double copy = 0.015 * slowness;
      const EbbChainOption block[] = { { 10 * unit, 14 * unit, 16 * unit, 0, 0, 0, 0, 0 },
                                       { unit, 6 * unit, 17 * unit, 0, 9 * second, 0, 0, 1 },
                                       { 0, 6 * unit, 17 * unit, unit, 9.1 * second, copy, copy, 1 } };
      EbbChainStage stages[12];
      EbbChainPlan plans[2];
      const guint64 budgets[] = { 20 * unit, 160 * unit };
      guint n_moved = 0;

      for (guint i = 0; i < G_N_ELEMENTS (stages); i++)
        stages[i] = (EbbChainStage){ block, G_N_ELEMENTS (block), 0, 0, 0.01, 0.01 };
      ebb_chain_solve (stages, G_N_ELEMENTS (stages), budgets, 2, plans);
      g_assert_true (plans[0].fits && plans[1].fits);
      g_assert_cmpuint (plans[0].peak, <=, budgets[0]);
      g_assert_cmpfloat (plans[0].seconds, >=, slower);
      slower = plans[0].seconds;
      for (guint i = 0; i < G_N_ELEMENTS (stages); i++)
        {
          n_moved += plans[0].choices[i] == 2;
          g_assert_cmpuint (plans[1].choices[i], ==, 0);
        }
      g_assert_cmpuint (n_moved, >=, 8); /* three blocks may keep their inputs for others, and the last one its own */
      ebb_chain_plan_clear (&plans[0]);
      ebb_chain_plan_clear (&plans[1]);
    }
}

/* pytorch/pytorch#197838: asked for 0.05, 0.15 and 0.35 of the memory, a step took 1145, 275 and 457 MB. */
static void
test_falling_budgets (void)
{
  enum
  {
    N_BLOCKS = 24,
    N_SHARES = 20
  };
  const guint64 unit = 100003;
  const EbbChainOption head = { 0, 40 * unit, 40 * unit, 0, 0, 0, 0, 0 };
  EbbChainOption block[N_BLOCK_OPTIONS];
  EbbChainStage stages[N_BLOCKS + 1];
  guint64 before = G_MAXUINT64;

  fill_block (block, unit, 0.001);
  fill_model (stages, N_BLOCKS, block, &head, 12345);
  for (guint share = N_SHARES; share > 0; share--) /* each by itself, and not as a ladder */
    {
      const guint64 budget = (10 * N_BLOCKS + 40) * unit / N_SHARES * share;
      g_auto (EbbChainPlan) plan = { 0 };

      ebb_chain_solve (stages, N_BLOCKS + 1, &budget, 1, &plan);
      g_assert_cmpint (plan.fits, ==, budget >= ebb_chain_get_least (stages, N_BLOCKS + 1));
      if (!plan.fits)
        continue;
      g_assert_cmpuint (plan.peak, <=, MIN (budget, before));
      before = plan.peak;
    }
}

int
main (int argc, char **argv)
{
  g_test_init (&argc, &argv, NULL);
  g_test_add_func ("/plan/chain/as-exhaustive-search", test_exhaustive);
  g_test_add_func ("/plan/chain/deep-as-a-table-of-all-bytes", test_deep);
  g_test_add_func ("/plan/chain/copies-are-waited-for-where-nothing-hides-them", test_bandwidths);
  g_test_add_func ("/plan/chain/pytorch-197838-the-peak-never-rises-over-falling-budgets", test_falling_budgets);
  return g_test_run ();
}
