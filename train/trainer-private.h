/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "train/trainer.h"

/* What other parts of the library set of a trainer. */

G_BEGIN_DECLS

/* What is done besides training: once before the first step, or where none is left before the end; and at each end,
 * before the folders are unlocked. */
typedef struct
{
  gboolean (*begin) (EbbTrainer *trainer,
                     gpointer data,
                     GCancellable *cancellable,
                     GError **error);
  gboolean (*finish) (EbbTrainer *trainer,
                      gpointer data,
                      GError **error);
  gpointer data;
  GDestroyNotify destroy;
  EbbSchedule *(*make_schedule) (gint64 n_steps); /* for another number of steps; NULL: it stays */
  int save_dtype; /* of saved folders, as of ebb_model_save_full (): a model trained in f32 keeps that of its folder */
} EbbTrainerHooks;

void ebb_trainer_set_hooks (EbbTrainer *self,
                            const EbbTrainerHooks *hooks);
G_END_DECLS
