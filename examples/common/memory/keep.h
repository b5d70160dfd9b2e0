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
  gulong handler;             /* of the budget's notes; 0: there is no budget */
} Keep;

void keep_init (Keep *self,
                Trainer *trainer);
void keep_clear (Keep *self);
/* trainer_step (). If memory runs out in it before anything lasting has changed, a lower plan takes over and it runs
 * again with the same bits. Without a lower plan, the state of the step before is saved in the folder of --resume. */
gboolean keep_step (Keep *self,
                    double *loss,
                    GError **error);
/* Adds to a lack of memory where the training can go on from. */
void keep_explain (const Trainer *trainer,
                   GError **error);

G_END_DECLS
