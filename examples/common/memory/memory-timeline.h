/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "common/report/progress.h"

/* Of the table and the report. */
#define MEMORY_TIMELINE_HOLDERS 10

/* --memory-timeline: records who holds which bytes in one step, and writes the picture. */

G_BEGIN_DECLS

typedef struct
{
  const Trainer *trainer;
  EbbMemoryTimeline *timeline; /* NULL: no step is recorded */
  gint64 step;                 /* the recorded step, as Trainer.step counts before it */
} MemoryTimeline;

void memory_timeline_init (MemoryTimeline *self,
                           const Trainer *trainer);
void memory_timeline_clear (MemoryTimeline *self);
/* Call them around each step. */
gboolean memory_timeline_begin_step (MemoryTimeline *self,
                                     GError **error);
void memory_timeline_end_step (MemoryTimeline *self);
/* Writes the file. */
gboolean memory_timeline_finish (MemoryTimeline *self,
                                 Progress *progress,
                                 GError **error);
/* The recorded peak for --report; adds nothing if no step was recorded. */
void memory_timeline_add_json (const MemoryTimeline *self,
                               JsonBuilder *builder);

/* The name of a timeline of the training's step. */
const char *memory_timeline_get_title (const Trainer *trainer);
/* Of any timeline: writes the file that --memory-timeline names, beside the step without a plan if there is a plan; and
 * its numbers for --report. */
gboolean memory_timeline_save (EbbMemoryTimeline *timeline,
                               const Trainer *trainer,
                               GError **error);
void memory_timeline_write_json (EbbMemoryTimeline *timeline,
                                 JsonBuilder *builder);

G_END_DECLS
