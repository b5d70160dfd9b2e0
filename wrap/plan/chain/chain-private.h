/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <glib.h>

/* Chooses one option for each stage of a chain so that the chain takes the least time within a budget of bytes. A stage
 * is a block of a model, or what comes before or after the blocks. The forwards run from the first stage to the last,
 * then the backwards from the last to the first. */

G_BEGIN_DECLS

/* How a stage may be run. Bytes are those of the device that the budget is for. */
typedef struct
{
  guint64 kept;                     /* what the stage keeps from the end of its forward to the start of its backward */
  guint64 forward; /* the peak of its forward above what the stages before it keep, its own @kept included */
  guint64 backward;                 /* the same of its backward, with its recompute */
  guint64 moving;                   /* what it moves to a store: see below; 0: it moves nothing */
  double seconds;                   /* how much longer its backward takes than without a wrapper */
  double out_seconds, back_seconds; /* of the copies to the store and from it */
  guint n_wrapped; /* how many modules it wraps: of plans that are equal otherwise, the one with fewest is taken */
} EbbChainOption;

/* A store moves one stage's bytes at a time. The source of a copy is freed when the next stage that moves something
 * begins its forward, and what comes back is fetched when that stage begins its backward: so the bytes are on the
 * device at all stages between the two, and the copies may run as long as these compute. What of a copy is longer than
 * that is waited for. The last stage that moves something therefore keeps it. */
typedef struct
{
  const EbbChainOption *options; /* equal stages may share them */
  guint n_options;
  guint64 forward_base, backward_base; /* bytes that are there whatever is chosen: parameters, gradients so far */
  double forward_seconds, backward_seconds;
} EbbChainStage;

typedef struct
{
  gboolean fits;  /* FALSE: no plan does, and the rest is unset */
  guint *choices; /* the option of each stage */
  guint64 peak;   /* bytes */
  double seconds; /* how much longer the step takes than with nothing wrapped */
  guint n_wrapped;
  guint binding_stage;  /* the first one that reaches the peak */
  double seconds_bound; /* no plan within the budget takes less: equal to @seconds unless the search was cut short */
} EbbChainPlan;

/* What the plan @choices needs and takes. Clear the plan by ebb_chain_plan_clear (). */
void ebb_chain_evaluate (const EbbChainStage *stages,
                         guint n_stages,
                         const guint *choices,
                         EbbChainPlan *plan);
/* The least peak that any plan reaches. */
guint64 ebb_chain_get_least (const EbbChainStage *stages,
                             guint n_stages);
/* The plan for each of @budgets: of least seconds, then of the lowest peak, then with fewest wrapped modules. So no
 * plan has a higher peak than the plan of a larger budget. */
void ebb_chain_solve (const EbbChainStage *stages,
                      guint n_stages,
                      const guint64 *budgets,
                      guint n_budgets,
                      EbbChainPlan *plans);
void ebb_chain_plan_clear (EbbChainPlan *plan);

G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC (EbbChainPlan, ebb_chain_plan_clear)

G_END_DECLS
