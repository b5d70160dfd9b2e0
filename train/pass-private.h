/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "train/batch-private.h"
#include "train/ranks-private.h"
#include "train/trainer.h"

/* The passes of a model over batches: a step, with the update of the parameters, or forward passes alone to measure. */

G_BEGIN_DECLS

/* Called before each phase; it may fail. */
typedef gboolean (*EbbTrainNotify) (gpointer user_data,
                                    EbbTrainerPhase phase,
                                    guint64 done,
                                    guint64 total,
                                    GError **error);

typedef struct
{
  EbbModule *model; /* it, the optimizer, and the schedule are not owned */
  EbbOptimizer *optimizer;
  EbbSchedule *schedule; /* NULL: the learning rate stays */
  double clip;           /* the greatest norm of the gradients; 0: any */
  double norm;           /* of the last step's gradients before they were clipped; NaN: it was not computed */
  EbbDevice *device;     /* that computes */
  gboolean lowers;       /* computes in bf16 */
  gboolean varies;       /* the share of a part varies from step to step */
  gint64 most_rows;      /* of a part; 0: all */
  EbbTrainRanks *ranks;
  EbbTrainerLossFunc loss; /* NULL: that of the model */
  gpointer loss_data;
  GDestroyNotify destroy_loss_data;
  EbbTrainNotify notify;
  gpointer notify_data;
  /* Metrics of the part that runs, and their sums over the step. */
  GPtrArray *names;    /* of char * */
  GPtrArray *pending;  /* of EbbTensor *, or NULL where the part has none of that name */
  GArray *sums;        /* of double */
  gboolean is_running; /* a loss is computed now */
} EbbTrainPass;

void ebb_train_pass_init (EbbTrainPass *self);
void ebb_train_pass_clear (EbbTrainPass *self);
/* Sets the model, which computes where its parameters do. */
void ebb_train_pass_set_model (EbbTrainPass *self,
                               EbbModule *model);
/* Sets the loss function and frees the data of the earlier one. */
void ebb_train_pass_set_loss (EbbTrainPass *self,
                              EbbTrainerLossFunc func,
                              gpointer data,
                              GDestroyNotify destroy);
/* Fails if the model has no loss, and no function computes one. */
gboolean ebb_train_pass_check_loss (const EbbTrainPass *self,
                                    GError **error);
/* One step of the optimizer over @batches, of EbbTrainBatch; a dry run takes one as well. @loss: the mean over what
 * counts in them, of all ranks. @step: its number, from 1, for errors. */
gboolean ebb_train_pass_take_step (EbbTrainPass *self,
                                   GPtrArray *batches,
                                   gint64 step,
                                   double *loss,
                                   GError **error);
/* Adds this model's share of the sum of the losses over what counts in @batch to @sum, without gradients. */
gboolean ebb_train_pass_measure (EbbTrainPass *self,
                                 const EbbTrainBatch *batch,
                                 double *sum,
                                 GError **error);
/* Notes a metric of the part whose loss is computed now. */
void ebb_train_pass_add_metric (EbbTrainPass *self,
                                const char *name,
                                EbbTensor *value);

G_END_DECLS
