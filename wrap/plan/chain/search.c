/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Finds the cheapest plan of a chain within a budget: dynamic programming over the stages, with the states that no
 * other one dominates, less those whose rest costs too much in any case. */
#include "wrap/plan/chain/search-private.h"

#include <math.h>
#include <string.h>

/* States of a stage that a first, narrow pass keeps. The cost of its plan bounds the exact pass. */
#define NARROW 128
/* More than the exact pass needs for models, whose blocks keep multiples of few sizes. Beyond it the most promising
 * states are kept, and the bound says what that may have cost. Stages that move something have more states, each of
 * which takes longer. */
#define WIDE 4096
#define WIDE_MOVING 512
/* Nodes that each other one is compared with. */
#define MAX_FRONT 64

/* -- the problem --------------------------------------------------------------------------------------------------- */

/* The slowest plan takes about so many ticks. A tick is a power of ten of seconds, and a nanosecond at least. */
#define MAX_TICKS (1 << 17)

static double
choose_ticks (const EbbChainStage *stages,
              guint n_stages)
{
  double sum = 0, ticks = 1e9;

  for (guint i = 0; i < n_stages; i++)
    {
      double most = 0;

      for (guint o = 0; o < stages[i].n_options; o++)
        most = MAX (most, stages[i].options[o].seconds);
      sum += most;
    }
  while (ticks > 1 && sum * ticks > MAX_TICKS)
    ticks /= 10;
  return ticks;
}

static gint64
count_ticks (const EbbChainProblem *self,
             double seconds)
{
  return seconds > 0 ? (gint64) llrint (MIN (seconds, 1e6) * self->ticks) : 0;
}

static gboolean
dominates (const EbbChainMove *a,
           const EbbChainMove *b,
           gint64 tick)
{
  return (a->moving > 0) == (b->moving > 0) && a->kept <= b->kept && a->forward <= b->forward
         && a->backward <= b->backward && a->moving <= b->moving && a->out_seconds <= b->out_seconds
         && a->back_seconds <= b->back_seconds && a->seconds <= b->seconds
         && a->cost - a->seconds * tick <= b->cost - b->seconds * tick;
}

/* Of equal moves the first one stays. A faster move costs less even if it hides less of a copy, since no more is waited
 * for than it is faster. */
static void
take_moves (EbbChainStep *self,
            EbbChainMove *moves,
            guint n_moves,
            gint64 tick)
{
  self->all = moves;
  self->moves = g_new (EbbChainMove, n_moves);
  self->n_moves = 0;
  for (guint i = 0; i < n_moves; i++)
    {
      gboolean is_dominated = FALSE;

      for (guint j = 0; j < n_moves && !is_dominated; j++)
        is_dominated = j != i && dominates (&moves[j], &moves[i], tick)
                       && (j < i || !dominates (&moves[i], &moves[j], tick));
      if (!is_dominated)
        self->moves[self->n_moves++] = moves[i];
    }
}

static guint
count_wrapped (const EbbChainStage *stages,
               guint n_stages)
{
  guint sum = 0;

  for (guint i = 0; i < n_stages; i++)
    {
      guint most = 0;

      for (guint o = 0; o < stages[i].n_options; o++)
        most = MAX (most, stages[i].options[o].n_wrapped);
      sum += most;
    }
  return sum;
}

EbbChainProblem *
ebb_chain_problem_new (const EbbChainStage *stages,
                       guint n_stages,
                       EbbChainCost cost)
{
  EbbChainProblem *self = g_new0 (EbbChainProblem, 1);
  const gboolean counts_wrapped = cost == EBB_CHAIN_COST_SECONDS_AND_WRAPPED;

  self->n_steps = n_stages;
  self->steps = g_new0 (EbbChainStep, n_stages);
  self->tick = 1 + (counts_wrapped ? count_wrapped (stages, n_stages) : 0);
  self->ticks = choose_ticks (stages, n_stages);
  for (guint i = 0; i < n_stages; i++)
    {
      const EbbChainStage *stage = &stages[i];
      EbbChainMove *moves = g_new0 (EbbChainMove, stage->n_options);
      EbbChainStep *step = &self->steps[i];

      for (guint o = 0; o < stage->n_options; o++)
        {
          const EbbChainOption *option = &stage->options[o];

          moves[o] = (EbbChainMove){ option->kept, option->forward, option->backward, option->moving, .index = o };
          self->moves |= option->moving > 0;
          if (cost == EBB_CHAIN_COST_NOTHING)
            continue;
          moves[o].seconds = count_ticks (self, option->seconds);
          moves[o].out_seconds = count_ticks (self, option->out_seconds);
          moves[o].back_seconds = count_ticks (self, option->back_seconds);
          moves[o].cost = moves[o].seconds * self->tick + (counts_wrapped ? option->n_wrapped : 0);
        }
      step->forward_base = stage->forward_base;
      step->backward_base = stage->backward_base;
      step->forward_seconds = count_ticks (self, stage->forward_seconds);
      step->backward_seconds = count_ticks (self, stage->backward_seconds);
      take_moves (step, moves, stage->n_options, self->tick);
    }
  return self;
}

void
ebb_chain_problem_free (EbbChainProblem *self)
{
  for (guint i = 0; i < self->n_steps; i++)
    {
      g_free (self->steps[i].all);
      g_free (self->steps[i].moves);
    }
  g_free (self->steps);
  g_free (self);
}

/* -- one stage ----------------------------------------------------------------------------------------------------- */

EbbChainState
ebb_chain_step (const EbbChainProblem *self,
                guint stage,
                const EbbChainMove *move,
                const EbbChainState *state)
{
  const EbbChainStep *step = &self->steps[stage];
  const gboolean moves = move->moving > 0;
  const guint64 forward = step->forward_base + state->kept + (moves ? 0 : state->moving) + move->forward;
  const guint64 backward = step->backward_base + state->kept + state->moving + move->backward;
  EbbChainState next = { .kept = state->kept + move->kept,
                         .cost = state->cost + move->cost,
                         .moving = state->moving,
                         .out = MAX (0, state->out - step->forward_seconds),
                         .back = MAX (0, state->back - step->backward_seconds - move->seconds),
                         .peak = MAX (state->peak, MAX (forward, backward)) };

  if (moves)
    {
      next.cost += (state->out + next.back) * self->tick; /* what was not hidden is waited for */
      next.moving = move->moving;
      next.out = MAX (0, move->out_seconds - step->forward_seconds);
      next.back = move->back_seconds;
    }
  return next;
}

/* -- layers of states ---------------------------------------------------------------------------------------------- */

/* A state and how it came about. */
typedef struct
{
  EbbChainState state;
  gint64 bound; /* what the whole plan costs at least */
  guint parent; /* in the layer before */
  guint move;
} Node;

typedef struct
{
  Node *nodes;
  guint n_nodes, n_allocated;
} Layer;

static void
add_node (Layer *self,
          const Node *node)
{
  if (self->n_nodes == self->n_allocated)
    {
      self->n_allocated = MAX (64, 2 * self->n_allocated);
      self->nodes = g_renew (Node, self->nodes, self->n_allocated);
    }
  self->nodes[self->n_nodes++] = *node;
}

/* Returns from the comparison where @a and @b differ. */
#define COMPARE(a, b)            \
  G_STMT_START                   \
  {                              \
    if ((a) != (b))              \
      return (a) < (b) ? -1 : 1; \
  }                              \
  G_STMT_END

static int
compare_nodes (gconstpointer a,
               gconstpointer b)
{
  const Node *left = a, *right = b;

  COMPARE (left->state.kept, right->state.kept);
  COMPARE (left->state.cost, right->state.cost);
  COMPARE (left->state.peak, right->state.peak);
  COMPARE (left->state.moving, right->state.moving);
  COMPARE (left->state.out, right->state.out);
  COMPARE (left->state.back, right->state.back);
  COMPARE (left->move, right->move);
  COMPARE (left->parent, right->parent);
  return 0;
}

static int
compare_bounds (gconstpointer a,
                gconstpointer b)
{
  const Node *left = a, *right = b;

  COMPARE (left->bound, right->bound);
  return compare_nodes (a, b);
}

/* Whether whatever follows @b is no better than if it follows @a, which keeps no more. What @a has still to hide may
 * at worst be waited for. */
static gboolean
state_dominates (const EbbChainState *a,
                 const EbbChainState *b,
                 gint64 tick)
{
  return a->moving <= b->moving && a->peak <= b->peak
         && a->cost + (MAX (0, a->out - b->out) + MAX (0, a->back - b->back)) * tick <= b->cost;
}

/* Leaves the nodes that no other one dominates, and maybe some more, in the order of what they keep. */
static void
reduce (Layer *self,
        gint64 tick)
{
  guint front[MAX_FRONT]; /* the nodes so far that dominate the most */
  guint n_front = 0, n = 0;

  if (self->n_nodes > 1)
    qsort (self->nodes, self->n_nodes, sizeof *self->nodes, compare_nodes);
  for (guint i = 0; i < self->n_nodes; i++)
    {
      const Node node = self->nodes[i];
      gboolean is_dominated = FALSE;
      guint n_left = 0;

      for (guint j = 0; j < n_front && !is_dominated; j++)
        is_dominated = state_dominates (&self->nodes[front[j]].state, &node.state, tick);
      if (is_dominated)
        continue;
      for (guint j = 0; j < n_front; j++)
        if (!state_dominates (&node.state, &self->nodes[front[j]].state, tick))
          front[n_left++] = front[j];
      n_front = n_left;
      if (n_front < MAX_FRONT)
        front[n_front++] = n;
      else
        front[n % MAX_FRONT] = n;
      self->nodes[n++] = node;
    }
  self->n_nodes = n;
}

/* Keeps the @width most promising nodes, and the one that keeps least. Lowers @dropped to the bounds of the others. */
static void
narrow (Layer *self,
        guint width,
        gint64 *dropped)
{
  Node least;

  if (self->n_nodes <= width)
    return;
  least = self->nodes[0];
  qsort (self->nodes, self->n_nodes, sizeof *self->nodes, compare_bounds);
  *dropped = MIN (*dropped, self->nodes[width].bound);
  self->n_nodes = width;
  add_node (self, &least);
}

/* -- the search ---------------------------------------------------------------------------------------------------- */

typedef struct
{
  const EbbChainProblem *problem;
  const EbbChainBounds *bounds;
  EbbChainGoal goal;
} Search;

static void
expand (const Search *self,
        guint stage,
        const Layer *from,
        Layer *to)
{
  const EbbChainStep *step = &self->problem->steps[stage];

  for (guint i = 0; i < from->n_nodes; i++)
    for (guint m = 0; m < step->n_moves; m++)
      {
        Node node = { .parent = i, .move = m };
        gint64 rest, left;

        node.state = ebb_chain_step (self->problem, stage, &step->moves[m], &from->nodes[i].state);
        if (node.state.peak > self->goal.budget)
          continue;
        left = self->goal.limit - node.state.cost;
        rest = ebb_chain_bounds_get (self->bounds, stage + 1, &node.state, left);
        if (rest > left)
          continue;
        node.bound = node.state.cost + rest;
        node.state.peak = MAX (node.state.peak, self->goal.floor);
        add_node (to, &node);
      }
}

static gboolean
is_better (const EbbChainState *a,
           const EbbChainState *b,
           gint64 tick)
{
  if (a->cost / tick != b->cost / tick)
    return a->cost / tick < b->cost / tick;
  return a->peak != b->peak ? a->peak < b->peak : a->cost < b->cost;
}

static void
trace_back (const Search *self,
            const Layer *layers,
            guint *choices,
            EbbChainState *end)
{
  const guint n = self->problem->n_steps;
  const Layer *last = &layers[n];
  guint best = 0;

  for (guint i = 1; i < last->n_nodes; i++)
    if (is_better (&last->nodes[i].state, &last->nodes[best].state, self->problem->tick))
      best = i;
  for (guint stage = n, at = best; stage-- > 0; at = layers[stage + 1].nodes[at].parent)
    choices[stage] = self->problem->steps[stage].moves[layers[stage + 1].nodes[at].move].index;
  *end = last->nodes[best].state;
}

/* The best of the plans that pass through at most @width states at each stage; FALSE: none. @dropped: the least bound
 * of the states that were left out. */
static gboolean
run (const Search *self,
     guint width,
     guint *choices,
     EbbChainState *end,
     gint64 *dropped)
{
  const guint n = self->problem->n_steps;
  g_autofree Layer *layers = g_new0 (Layer, n + 1);
  const Node start = { .state.peak = self->goal.floor };
  gboolean found;

  *dropped = G_MAXINT64;
  add_node (&layers[0], &start);
  for (guint stage = 0; stage < n; stage++)
    {
      expand (self, stage, &layers[stage], &layers[stage + 1]);
      reduce (&layers[stage + 1], self->problem->tick);
      narrow (&layers[stage + 1], width, dropped);
    }
  found = layers[n].n_nodes > 0;
  if (found)
    trace_back (self, layers, choices, end);
  for (guint i = 0; i <= n; i++)
    g_free (layers[i].nodes);
  return found;
}

static gboolean
has_unmoving (const EbbChainProblem *self)
{
  for (guint i = 0; i < self->n_steps; i++)
    {
      guint m = 0;

      while (m < self->steps[i].n_moves && self->steps[i].moves[m].moving > 0)
        m++;
      if (m == self->steps[i].n_moves)
        return FALSE;
    }
  return TRUE;
}

/* @self without the moves that move something. */
static EbbChainProblem *
copy_unmoving (const EbbChainProblem *self)
{
  EbbChainProblem *copy = g_memdup2 (self, sizeof *self);

  copy->moves = FALSE;
  copy->steps = g_memdup2 (self->steps, self->n_steps * sizeof *self->steps);
  for (guint i = 0; i < self->n_steps; i++)
    {
      const EbbChainStep *from = &self->steps[i];
      EbbChainStep *to = &copy->steps[i];

      to->all = NULL;
      to->moves = g_new (EbbChainMove, from->n_moves);
      to->n_moves = 0;
      for (guint m = 0; m < from->n_moves; m++)
        if (from->moves[m].moving == 0)
          to->moves[to->n_moves++] = from->moves[m];
    }
  return copy;
}

/* The highest cost of as many ticks: a plan of a lower peak may wrap more modules. */
static gint64
get_last_of_tick (const EbbChainProblem *self,
                  gint64 cost)
{
  return cost - cost % self->tick + self->tick - 1;
}

static gboolean
search_within (const EbbChainProblem *self,
               const EbbChainGoal *goal,
               guint *choices,
               EbbChainState *end,
               gint64 *bound)
{
  g_autoptr (EbbChainBounds) bounds = ebb_chain_bounds_new (self, goal->budget);
  Search search = { self, bounds, *goal };
  const EbbChainState start = { 0 };
  gint64 dropped;
  gboolean found;

  *bound = G_MAXINT64;
  if (ebb_chain_bounds_get (bounds, 0, &start, goal->limit) > goal->limit)
    return FALSE;
  found = run (&search, NARROW, choices, end, &dropped);
  if (found)
    search.goal.limit = get_last_of_tick (self, end->cost);
  if (dropped <= search.goal.limit)
    found |= run (&search, self->moves ? WIDE_MOVING : WIDE, choices, end, &dropped);
  *bound = found ? MIN (end->cost, dropped) : dropped;
  return found;
}

gboolean
ebb_chain_search (const EbbChainProblem *self,
                  const EbbChainGoal *goal,
                  guint *choices,
                  EbbChainState *end,
                  gint64 *bound)
{
  g_autoptr (EbbChainProblem) unmoving = NULL;
  g_autofree guint *found = NULL;
  EbbChainGoal better = *goal;
  EbbChainState last;
  gint64 dropped;

  if (!self->moves || !has_unmoving (self))
    return search_within (self, goal, choices, end, bound);
  unmoving = copy_unmoving (self);
  found = g_new (guint, self->n_steps);
  if (!search_within (unmoving, goal, found, &last, &dropped))
    return search_within (self, goal, choices, end, bound);
  better.limit = get_last_of_tick (self, last.cost);
  if (search_within (self, &better, choices, end, bound) && !is_better (&last, end, self->tick))
    return TRUE;
  memcpy (choices, found, self->n_steps * sizeof *choices);
  *end = last;
  *bound = MIN (*bound, last.cost);
  return TRUE;
}
