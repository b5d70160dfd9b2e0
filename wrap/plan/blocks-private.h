/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "nn/module.h"

/* The blocks of a model: the repeated modules that a plan wraps one by one. */

G_BEGIN_DECLS

typedef struct
{
  EbbModule *module; /* owned */
  char *path;        /* "h.3" */
  gboolean is_taken; /* the user has wrapped it, or something inside or around it: a plan leaves it alone */
} EbbPlanBlock;

/* The blocks in the order of the model's modules, an array of EbbPlanBlock: transformer blocks that are not inside
 * other ones, or else the children of the longest list or sequence of modules. It may be empty. */
GArray *ebb_plan_find_blocks (EbbModule *model);
/* A block's path for people; the model itself may be the block. */
const char *ebb_plan_describe_block (const char *path);

G_END_DECLS
