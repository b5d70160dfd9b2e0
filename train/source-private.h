/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "train/batch-private.h"
#include "train/trainer-options-private.h"
#include "train/trainer.h"

/* Where the batches of a training come from: a dataset or a function, and the same for held-out data. */

G_BEGIN_DECLS

/* A function that a program has set. */
typedef struct
{
  EbbTrainerBatchFunc func; /* NULL: none */
  gpointer data;
  GDestroyNotify destroy;
} EbbTrainBatchFunc;

typedef struct
{
  const EbbTrainerSettings *settings;
  EbbDataset *data; /* NULL: the batch function gives batches */
  EbbTrainBatchFunc batches, evaluated;
  gint64 batch_size, context; /* of datasets */
  GPtrArray *queue;           /* of EbbTrainBatch: those that the batch function gave for the next step */
  gboolean is_used;           /* they are those of the last step, which dry steps take until the next one */
  gboolean has_ended;         /* the batch function gave an empty batch */
  gint64 n_batches;           /* that whole steps have taken */
} EbbTrainSource;

void ebb_train_source_init (EbbTrainSource *self);
void ebb_train_source_clear (EbbTrainSource *self);
/* Replaces a function and frees the data of the earlier one. */
void ebb_train_batch_func_set (EbbTrainBatchFunc *self,
                               EbbTrainerBatchFunc func,
                               gpointer data,
                               GDestroyNotify destroy);
/* Fails if settings contradict the dataset or the functions. @steps: EBB_TRAINER_NO_STEPS until the data ends. */
gboolean ebb_train_source_check (const EbbTrainSource *self,
                                 gint64 steps,
                                 GError **error);
/* Finds the tokens of a row and the rows of a batch of datasets. Epochs become *@steps. */
gboolean ebb_train_source_find_sizes (EbbTrainSource *self,
                                      EbbModule *model,
                                      gint64 *steps,
                                      GError **error);
gboolean ebb_train_source_has_evaluation (const EbbTrainSource *self);
/* Takes the batches of the next step from the batch function, as far as there are any. */
gboolean ebb_train_source_fill (EbbTrainSource *self,
                                GError **error);
/* The batches of the next step, of EbbTrainBatch. A dry run takes those that the batch function has given. */
GPtrArray *ebb_train_source_take_step (EbbTrainSource *self,
                                       GError **error);
/* The most rows and bytes of a batch that the next step takes; no bytes are known of a dataset, whose batches are
 * alike.
 */
void ebb_train_source_get_size (const EbbTrainSource *self,
                                gint64 *n_rows,
                                guint64 *n_bytes);
/* Whether the data has ended, as far as it was taken. */
gboolean ebb_train_source_is_at_end (const EbbTrainSource *self);
/* A step has taken @batches. */
void ebb_train_source_end_step (EbbTrainSource *self,
                                GPtrArray *batches);
/* The next batch of a measure: of @data after @done rows, or without @data that of number @number of the evaluate
 * function. *@batch is NULL at the end. */
gboolean ebb_train_source_take_measured (EbbTrainSource *self,
                                         EbbDataset *data,
                                         gint64 done,
                                         gint64 number,
                                         EbbTrainBatch **batch,
                                         GError **error);

G_END_DECLS
