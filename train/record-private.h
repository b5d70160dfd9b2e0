/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "nn/optim/optimizer.h"
#include "train/log-private.h"
#include "train/ranks-private.h"
#include "train/report-private.h"

/* How far a training is: its steps, losses, and times, the best held-out loss, and what people read of them. */

G_BEGIN_DECLS

typedef struct
{
  gint64 step, first_step, saved_step;
  double loss, rate;                /* of the last step; the learning rate */
  gint64 n_tokens;                  /* of the last step, on all ranks */
  double evaluated_loss, best_loss; /* NaN: none yet */
  gint64 best_step;                 /* 0: none yet */
  GArray *losses, *seconds;         /* double, of each step since the object was made */
  GArray *evaluations;              /* EbbEvaluation */
  guint64 rss_peak_before;
  guint64 most_resident; /* bytes of the process after a step */
  gint64 *rank_values;   /* EBB_N_RANK_VALUES of each rank; NULL: there are no ranks, or the training goes on */
  guint n_ranks;
} EbbTrainRecord;

void ebb_train_record_init (EbbTrainRecord *self);
void ebb_train_record_clear (EbbTrainRecord *self);
/* Notes a step that has taken @batches, of EbbTrainBatch. */
void ebb_train_record_note_step (EbbTrainRecord *self,
                                 EbbOptimizer *optimizer,
                                 GPtrArray *batches,
                                 double loss);
/* Notes how long the last step took. */
void ebb_train_record_add_step (EbbTrainRecord *self,
                                double seconds);
/* Notes a held-out loss. Returns TRUE if it is the best so far; @may_be_best: the model has been trained. */
gboolean ebb_train_record_add_evaluation (EbbTrainRecord *self,
                                          double loss,
                                          gboolean may_be_best);
/* Tokens a second, by the last steps. */
double ebb_train_record_get_speed (const EbbTrainRecord *self);
/* Writes the numbers of the last step to @log, if that is open. */
gboolean ebb_train_record_log_step (const EbbTrainRecord *self,
                                    EbbTrainingLog *log,
                                    EbbDevice *device,
                                    GError **error);
/* Exchanges the numbers of all ranks for the report: memory, and what the groups of their mesh sent. Collective. */
gboolean ebb_train_record_gather_ranks (EbbTrainRecord *self,
                                        EbbTrainRanks *ranks,
                                        EbbDevice *device,
                                        GError **error);
/* @budget: a JSON object about the memory budget, or NULL. */
char *ebb_train_record_to_json (const EbbTrainRecord *self,
                                EbbModule *model,
                                EbbDevice *device,
                                const char *budget);
/* One line of text. @budget: bytes of the memory budget; 0: none. @n_steps: of the whole training. */
char *ebb_train_record_get_progress (const EbbTrainRecord *self,
                                     EbbDevice *device,
                                     guint64 budget,
                                     gint64 n_steps,
                                     guint n_columns);

G_END_DECLS
