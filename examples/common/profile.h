/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "progress.h"

/* --profile: a few steps recorded, a table of them, and a trace file. */

G_BEGIN_DECLS

typedef struct
{
  const Trainer *trainer;
  EbbProfiler *profiler; /* NULL: nothing is to be profiled */
  gint64 first, end;     /* steps that are, as Trainer.step counts before them; end is not among them */
} Profile;

void profile_init (Profile *self,
                   const Trainer *trainer);
void profile_clear (Profile *self);
/* Around each step. */
gboolean profile_begin_step (Profile *self,
                             GError **error);
void profile_end_step (Profile *self);
/* Writes the file, measures the floor and shows the table. */
gboolean profile_finish (Profile *self,
                         Progress *progress,
                         GError **error);

G_END_DECLS
