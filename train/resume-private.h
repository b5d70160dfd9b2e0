/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "nn/state/training-state.h"
#include "train/record-private.h"
#include "train/source-private.h"

/* The state of a training in its folder, with the trainer's own values: best loss, place in the data, settings. */

G_BEGIN_DECLS

/* What belongs to a training that is saved or resumed. */
typedef struct
{
  EbbTrainingState *state;
  EbbOptimizer *optimizer;
  EbbTrainSource *source;
  EbbTrainRecord *record;
  gboolean is_on_ranks; /* all ranks save and load together */
  EbbArgs *values;      /* of the program; owned, or NULL */
} EbbTrainResume;

gboolean ebb_train_resume_save (const EbbTrainResume *self,
                                GError **error);
/* Learning rates and weight decays of the optimizer stay as the program has set them. *@note: names the settings that
 * the state was saved with, if they were others, else NULL. */
gboolean ebb_train_resume_load (EbbTrainResume *self,
                                char **note,
                                GError **error);

G_END_DECLS
