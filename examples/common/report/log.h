/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "common/train/trainer.h"

#include "train/log-private.h"

/* --log: each step's numbers, as an object in a line of steps.jsonl and as events for TensorBoard. */

G_BEGIN_DECLS

typedef struct
{
  const Trainer *trainer;
  EbbTrainingLog files;
} Log;

/* A log that is not open. */
void log_init_none (Log *self);
/* Opens the files. A resumed training continues them after its first step; without --resume there may be none. */
gboolean log_init (Log *self,
                   const Trainer *trainer,
                   GError **error);
void log_clear (Log *self);
/* Writes the last step's numbers, with those of --eval if they were measured after it; at once. */
gboolean log_step (Log *self,
                   double loss,
                   double seconds,
                   GError **error);
/* Writes what --eval has measured before the first step, if it has. */
gboolean log_begin (Log *self,
                    GError **error);

G_END_DECLS
