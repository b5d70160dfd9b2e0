/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "dist/group/process-group.h"
#include "wrap/plan/memory-plan-private.h"
#include "wrap/plan/probe-private.h"

/* Ranks that plan together. The first one decides and announces each of its dry steps, the others run the same step,
 * and all send what it takes: so all have one plan, although kernels take other times and steps other bytes on each.
 * All ranks call each function together, but for the two of announcements: the first rank announces while the others
 * receive. */

G_BEGIN_DECLS

/* Fails on all ranks unless they have the same blocks. @budget: becomes the smallest of all. */
gboolean ebb_plan_ranks_meet (EbbProcessGroup *group,
                              GArray *blocks,
                              guint64 *budget,
                              GError **error);

/* How what is announced begins; a plan's is its JSON. The rows of the tiles of MLPs follow, 0: none. */
#define EBB_PLAN_STEP_NONE "none "
#define EBB_PLAN_STEP_RECORD "record "
/* No step: planning begins again, now with times of kernels. */
#define EBB_PLAN_STEP_AGAIN "again"

/* @group: NULL: there are no others. */
gboolean ebb_plan_ranks_announce (EbbProcessGroup *group,
                                  const char *step,
                                  GError **error);
/* Takes the @failure of this rank, or NULL; FALSE on all ranks if any has one. */
gboolean ebb_plan_ranks_agree (EbbProcessGroup *group,
                               GError *failure,
                               GError **error);
/* Takes @step, a dry step of this rank, or its @failure. Returns the step with the largest figures of all ranks. */
EbbProbeStep *ebb_plan_ranks_merge (EbbProcessGroup *group,
                                    EbbProbeStep *step,
                                    GError *failure,
                                    GError **error);

/* Says so in a plan, and in those below it, before the others get it. */
void ebb_plan_ranks_mark (EbbMemoryPlan *plan,
                          EbbProcessGroup *group);
/* Gives the others the plan, or takes the @failure and gives them that. Returns @plan. */
EbbMemoryPlan *ebb_plan_ranks_give (EbbProcessGroup *group,
                                    EbbMemoryPlan *plan,
                                    GError *failure,
                                    GError **error);
/* On the others: the next announced step; NULL if the plan, which goes to @plan, or a failure came instead. */
char *ebb_plan_ranks_receive (EbbProcessGroup *group,
                              EbbModule *model,
                              EbbMemoryPlan **plan,
                              GError **error);

G_END_DECLS
