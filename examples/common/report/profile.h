/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "common/report/progress.h"

/* --profile: records a few steps, prints a table of them and writes a trace. */

G_BEGIN_DECLS

typedef struct
{
  const Trainer *trainer;
  EbbProfiler *profiler; /* NULL: no step is profiled */
  gint64 first, end;     /* the profiled steps, as Trainer.step counts before them; end is excluded */
} Profile;

void profile_init (Profile *self,
                   const Trainer *trainer);
void profile_clear (Profile *self);
/* Call them around each step. */
gboolean profile_begin_step (Profile *self,
                             GError **error);
void profile_end_step (Profile *self);
/* Writes the file, measures the floor and shows the table. */
gboolean profile_finish (Profile *self,
                         Progress *progress,
                         GError **error);

G_END_DECLS
