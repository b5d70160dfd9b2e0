/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "ranks.h"

/* Failures for tests: EBB_GPT_JOB_FAULT="RANK:PHASE:STEP:HOW" kills that rank, makes it fail or stops it when it
 * reaches that phase (forward, backward, exchange, update, save) of that step, counted from 1. */

G_BEGIN_DECLS

gboolean fault_meet (const Ranks *ranks,
                     const char *phase,
                     gint64 step,
                     GError **error);

G_END_DECLS
