/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "wrap/plan/chain/chain-private.h"

/* The search for the cheapest plan of a chain within one budget. Seconds are counted in whole ticks, so that sums don't
 * depend on their order, and so that plans which differ by less than anybody can measure are equal. */

G_BEGIN_DECLS

typedef struct
{
  guint64 kept, forward, backward, moving;
  gint64 seconds, out_seconds, back_seconds; /* ticks */
  gint64 cost;                               /* @seconds and, if that counts, the number of wrapped modules */
  guint index;                               /* among the stage's options */
} EbbChainMove;

typedef struct
{
  EbbChainMove *all;   /* by the index of their options */
  EbbChainMove *moves; /* those that no other one of the stage dominates */
  guint n_moves;
  guint64 forward_base, backward_base;
  gint64 forward_seconds, backward_seconds;
} EbbChainStep;

typedef struct
{
  EbbChainStep *steps;
  guint n_steps;
  gboolean moves; /* whether any stage may move something */
  double ticks;   /* in a second */
  gint64 tick;    /* the cost of a tick: more than that of all modules that a plan may wrap, if they count */
} EbbChainProblem;

/* What the stages so far have left behind. */
typedef struct
{
  guint64 kept;
  gint64 cost;
  guint64 moving;   /* the last stage that moved something: its bytes... */
  gint64 out, back; /* ...and what is still to be hidden of its copies */
  guint64 peak;     /* of the stages so far, forward and backward */
} EbbChainState;

/* What a plan's cost counts. */
typedef enum
{
  EBB_CHAIN_COST_NOTHING,
  EBB_CHAIN_COST_SECONDS,
  EBB_CHAIN_COST_SECONDS_AND_WRAPPED /* modules matter where seconds are equal */
} EbbChainCost;

EbbChainProblem *ebb_chain_problem_new (const EbbChainStage *stages,
                                        guint n_stages,
                                        EbbChainCost cost);
void ebb_chain_problem_free (EbbChainProblem *self);

/* What @state becomes by a stage. */
EbbChainState ebb_chain_step (const EbbChainProblem *self,
                              guint stage,
                              const EbbChainMove *move,
                              const EbbChainState *state);

typedef struct
{
  guint64 budget;
  guint64 floor; /* lower peaks than this are as good as this */
  gint64 limit;  /* the most that a plan may cost */
} EbbChainGoal;

/* Finds the plan of the fewest ticks, then of the lowest peak, then of the least cost. Sets @choices and @end, the
 * state in which it ends; FALSE: no plan reaches the goal. @bound: no plan costs less. */
gboolean ebb_chain_search (const EbbChainProblem *self,
                           const EbbChainGoal *goal,
                           guint *choices,
                           EbbChainState *end,
                           gint64 *bound);

/* -- bounds -------------------------------------------------------------------------------------------------------- */

/* What the stages from each one on cost at least, given the state in which those before it leave the device: a linear
 * relaxation, in which a stage may mix options. */
typedef struct _EbbChainBounds EbbChainBounds;

EbbChainBounds *ebb_chain_bounds_new (const EbbChainProblem *problem,
                                      guint64 budget);
void ebb_chain_bounds_free (EbbChainBounds *self);
/* Without @state's own cost. More than @limit: no plan costs @limit or less. */
gint64 ebb_chain_bounds_get (const EbbChainBounds *self,
                             guint stage,
                             const EbbChainState *state,
                             gint64 limit);

G_DEFINE_AUTOPTR_CLEANUP_FUNC (EbbChainProblem, ebb_chain_problem_free)
G_DEFINE_AUTOPTR_CLEANUP_FUNC (EbbChainBounds, ebb_chain_bounds_free)

G_END_DECLS
