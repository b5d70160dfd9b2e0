/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "wrap/plan/blocks-private.h"

/* The rung "segments" of a plan: every so many blocks that follow each other are one checkpoint, around those that the
 * blocks may be themselves. */

G_BEGIN_DECLS

#define EBB_PLAN_SEGMENTS "segments" /* its value is the blocks of a segment */

/* How many of @blocks follow each other in a stack that a plan may divide: all are blocks that the user hasn't wrapped.
 * Of several stacks the longest counts. */
guint ebb_plan_segments_count_blocks (EbbModule *model,
                                      GArray *blocks);
/* Divides each such stack of @model, and returns them, with references. NULL with EBB_ERROR_STATE if there is none. */
GPtrArray *ebb_plan_segments_put (EbbModule *model,
                                  GArray *blocks,
                                  gint64 n_blocks,
                                  GError **error);
/* Undoes that for one of them, whatever else was wrapped around it since. */
void ebb_plan_segments_take_off (EbbModule *stack);

G_END_DECLS
