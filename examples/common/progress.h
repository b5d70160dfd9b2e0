/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "trainer.h"

/* What is seen while it runs: one line that changes on a terminal, plain lines elsewhere, nothing with --quiet. */

G_BEGIN_DECLS

typedef struct
{
  const Trainer *trainer;
  gboolean quiet, live;
  GArray *losses;      /* double, of each step of this run */
  GArray *seconds;     /* double */
  gint64 began, shown; /* microseconds */
} Progress;

void progress_init (Progress *self,
                    const Trainer *trainer);
void progress_clear (Progress *self);
/* Says what is about to be trained. */
void progress_begin (Progress *self);
void progress_step (Progress *self,
                    double loss,
                    double seconds);
/* Says what it came to. */
void progress_end (Progress *self);
/* Says one line more, unless --quiet. */
void progress_note (Progress *self,
                    const char *format,
                    ...) G_GNUC_PRINTF (2, 3);

/* Tokens per second of the middle one of all steps; 0 without one. */
double progress_get_speed (const Progress *self);

G_END_DECLS
