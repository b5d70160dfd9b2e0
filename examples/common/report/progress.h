/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "common/train/trainer.h"

/* Shows the progress: one line that changes on a terminal, plain lines elsewhere, nothing with --quiet. */

G_BEGIN_DECLS

typedef struct
{
  const Trainer *trainer;
  gboolean quiet, live, has_colours;
  GArray *losses;      /* double, of each step of this run */
  GArray *seconds;     /* double */
  gint64 began, shown; /* microseconds */
  guint n_evaluations; /* printed */
} Progress;

void progress_init (Progress *self,
                    const Trainer *trainer);
void progress_clear (Progress *self);
/* Prints what is trained. */
void progress_begin (Progress *self);
void progress_step (Progress *self,
                    double loss,
                    double seconds);
/* Prints the loss on held-out data, if it was measured since the last call. */
void progress_evaluation (Progress *self);
/* Prints the results. */
void progress_end (Progress *self);
/* Prints one more line, unless --quiet. */
void progress_note (Progress *self,
                    const char *format,
                    ...) G_GNUC_PRINTF (2, 3);

/* "parameters", by EbbPurpose. */
extern const char *const progress_purposes[EBB_N_PURPOSES];
/* Tokens per second of the median step; 0 without steps. */
double progress_get_speed (const Progress *self);

G_END_DECLS
