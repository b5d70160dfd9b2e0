/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "nn/files/folder-lock.h"
#include "train/log-private.h"
#include "train/resume-private.h"
#include "train/trainer-private.h"
#include "train/within-private.h"

/* The trainer as its own files see it. */

G_BEGIN_DECLS

struct _EbbTrainer
{
  GObject parent_instance;

  EbbTrainerOptions *options;
  EbbTrainerSettings *settings; /* of @options */
  EbbModule *model;
  EbbOptimizer *optimizer;
  EbbTrainSource source;
  EbbTrainPass pass;
  EbbTrainRanks ranks;
  EbbTrainRecord record;
  EbbTrainWithin within;

  EbbTrainResume resume;
  EbbFolderLock *lock; /* on the state's folder; NULL: another rank holds it, or there is none */
  EbbTrainingLog log;
  GError *failure;           /* by ebb_trainer_fail () */
  GError *data_error;        /* of the batch function, until the next step */
  GCancellable *cancellable; /* of the call that runs */

  gboolean is_prepared, is_begun; /* for steps; ever */
  gboolean is_broken;             /* a step was broken off: the weights are no step's */
  gboolean must_poll;             /* requests of other ranks may have changed since the last exchange */
  gint64 steps;                   /* EBB_TRAINER_NO_STEPS: until the data ends */
  EbbTrainerHooks hooks;          /* each NULL if nothing is left to do */
};

typedef enum
{
  EBB_TRAINER_STEPPED,
  EBB_TRAINER_EVALUATED,
  EBB_TRAINER_SAVED,
  EBB_TRAINER_NOTE,
  EBB_TRAINER_PHASE,
  EBB_TRAINER_N_SIGNALS
} EbbTrainerSignal;

void ebb_trainer_emit (EbbTrainer *self,
                       EbbTrainerSignal signal,
                       ...);
/* Bindings can make an object without a model. */
gboolean ebb_trainer_check_made (EbbTrainer *self,
                                 GError **error);
/* Fails with the error of a handler, if one has called ebb_trainer_fail (). */
gboolean ebb_trainer_take_failure (EbbTrainer *self,
                                   GError **error);
/* Takes what the cancellable of the call asks for. */
void ebb_trainer_take_requests (EbbTrainer *self);
/* An EbbTrainNotify. */
gboolean ebb_trainer_notify (gpointer user_data,
                             EbbTrainerPhase phase,
                             guint64 done,
                             guint64 total,
                             GError **error);
/* Always FALSE. */
gboolean ebb_trainer_set_cancelled (GError **error);
/* Unlocks the folders, closes the log, and takes the plan off. */
void ebb_trainer_release (EbbTrainer *self);

static inline gboolean
ebb_trainer_is_cancelled (const EbbTrainer *self)
{
  return (self->ranks.agreed & EBB_TRAIN_CANCEL) != 0;
}

static inline void
ebb_trainer_forget_cancel (EbbTrainer *self)
{
  self->ranks.requested &= ~(guint) EBB_TRAIN_CANCEL;
  self->ranks.agreed &= ~(guint) EBB_TRAIN_CANCEL;
}

static inline gboolean
ebb_trainer_agree (EbbTrainer *self, gboolean ok, GError **error)
{
  return ebb_train_ranks_agree (&self->ranks, ok, error);
}

G_END_DECLS
