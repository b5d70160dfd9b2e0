/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "common/ranks/ranks.h"

/* Failures for tests: when that rank, 0 of a program without ranks, reaches that phase (plan, forward, backward,
 * exchange, update, save, or check against the plan) of that step, counted from 1,
 * EBB_GPT_JOB_FAULT="RANK:PHASE:STEP:HOW" kills it, stops it ("hang"), runs an op that the step doesn't have ("op"),
 * takes 64 MiB of memory that nobody counts
 * ("grow"), or takes it and gives it back ("surge"), keeps a tensor, in dry runs too ("leak"), and else makes it fail,
 * with "memory" for lack of that. Commas separate several. */

G_BEGIN_DECLS

gboolean fault_meet (const Ranks *ranks,
                     const char *phase,
                     gint64 step,
                     GError **error);

G_END_DECLS
