/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "wrap/plan/memory-plan-private.h"
#include "wrap/plan/planner/choices-chain-private.h"

/* The plans of a model among which the planner looks for the fastest one: all with tiles in MLPs, or all without. */

G_BEGIN_DECLS

/* A plan in which all blocks move, whether copies are hidden or not. */
typedef struct
{
  guint *choices;
  gboolean with_last;  /* else the last block, whose backward comes next, keeps everything */
  guint64 peak;        /* as the chain knows it, */
  double seconds;      /* which doesn't know what blocks do to their neighbors */
  EbbMemoryPlan *plan; /* NULL until it is made, by a dry step */
} EbbPlanUniform;

typedef struct
{
  EbbPlanChoices *choices; /* owned */
  EbbPlanChain chain;
  EbbPlanChain moving; /* with choices that move what blocks keep; without stages if there are none */
  GArray *uniform;     /* of EbbPlanUniform */
  EbbMemoryPlan *least;
  EbbProbeStep *least_step;
  EbbMemoryPlan *nested; /* the least with segments, if that is less than without; or NULL */
  EbbProbeStep *nested_step;
  GPtrArray *segmented; /* of EbbMemoryPlan: with segments, made when no other plan fits; NULL until then */
} EbbPlanCandidates;

/* Takes @choices. To be cleared where it fails, too. */
gboolean ebb_plan_candidates_init (EbbPlanCandidates *self,
                                   EbbPlanChoices *choices,
                                   GError **error);
void ebb_plan_candidates_clear (EbbPlanCandidates *self);
/* Puts the fastest plan within @budget in the place of @fastest, which may be NULL, if it is faster. */
gboolean ebb_plan_candidates_find_fastest (EbbPlanCandidates *self,
                                           guint64 budget,
                                           EbbMemoryPlan **fastest,
                                           GError **error);

G_END_DECLS
