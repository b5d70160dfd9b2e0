/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "wrap/plan/chain/chain-private.h"
#include "wrap/plan/planner/choices-private.h"

G_BEGIN_DECLS

/* The stages of the chain: the optimizer, what comes before the blocks, the blocks, what comes after them. */
#define EBB_PLAN_CHAIN_N_BEFORE_BLOCKS 2

typedef struct
{
  EbbChainStage *stages;
  guint n_stages;
  gboolean moves;     /* blocks may move what they keep, too */
  GPtrArray *options; /* owned arrays */
} EbbPlanChain;

/* An option of a block's stage has the number of the choice. */
void ebb_plan_chain_init (EbbPlanChain *self,
                          EbbPlanChoices *choices,
                          gboolean moves);
void ebb_plan_chain_clear (EbbPlanChain *self);

G_END_DECLS
