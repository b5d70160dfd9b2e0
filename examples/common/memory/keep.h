/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "common/train/trainer.h"

/* Keeps a planned training within its budget while it trains. What it does about that is printed as one line each, and
 * is in the report. */

G_BEGIN_DECLS

typedef struct
{
  Trainer *trainer;
  EbbTrainingState *training; /* NULL: on ranks, where steps can't run again */
  double *loss;               /* of the step that runs */
  guint n_attempts;           /* at it */
  char *reason;               /* why the first one failed; NULL: it didn't */
  guint n_watched;            /* steps so far that were compared with the plan that there is */
  gboolean is_corrected;      /* it was planned again, which is done once */
} Keep;

void keep_init (Keep *self,
                Trainer *trainer);
void keep_clear (Keep *self);
/* trainer_step (). If memory runs out in it before anything lasting has changed, a lower plan takes over and it runs
 * again with the same bits. Without a lower plan, the state of the step before is saved in the folder of --resume. */
gboolean keep_step (Keep *self,
                    double *loss,
                    GError **error);
/* After each step: compares the first two of a plan with what that promised, and plans once more if it was broken. */
gboolean keep_check (Keep *self,
                     GError **error);
/* Adds to a lack of memory where the training can go on from. */
void keep_explain (const Trainer *trainer,
                   GError **error);

G_END_DECLS
