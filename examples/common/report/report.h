/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "common/memory/memory-timeline.h"
#include "common/report/rank-table.h"

G_BEGIN_DECLS

/* Writes what --report asks for: one JSON object with losses, times, memory in bytes, what each wrapped block and
 * each rank has done, and all options. */
gboolean report_write (const Trainer *trainer,
                       const Progress *progress,
                       const RankTable *table,
                       const MemoryTimeline *timeline,
                       GError **error);

G_END_DECLS
