/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "nn/files/folder-lock.h"
#include "train/event-file-private.h"

/* The log of a training: each step's numbers, as an object in a line of steps.jsonl and as events for TensorBoard. */

G_BEGIN_DECLS

typedef struct
{
  int lines; /* the file with a line for each step; -1: there is no log */
  char *path;
  gint64 last; /* the last step that the file had at the beginning; -1: none */
  EbbEventFile events;
  EbbFolderLock *lock; /* on the folder; NULL: the lock of the state's folder holds it */
} EbbTrainingLog;

/* A log that is not open, to which the functions below write nothing. */
#define EBB_TRAINING_LOG_NONE ((EbbTrainingLog){ .lines = -1, .last = -1, .events = { .fd = -1 } })

/* Opens the files in @folder, which is made if it is missing. A training that is resumed from @resume, a folder that
 * the caller has locked, continues the files after step @first_step. Without one, @resume is NULL, and the folder may
 * have no lines. Close @self after a failure, too. */
gboolean ebb_training_log_open (EbbTrainingLog *self,
                                const char *folder,
                                const char *resume,
                                gint64 first_step,
                                GError **error);
void ebb_training_log_close (EbbTrainingLog *self);

typedef struct
{
  gint64 step;
  double loss; /* a token's, in nats */
  double learning_rate;
  double seconds;
  double tokens; /* that all ranks computed in these seconds */
  guint64 peak_bytes, rss_peak_bytes;
} EbbLoggedStep;

/* Writes the numbers of a step at once. @evaluated_loss: the loss of held-out data, if it was measured after the step,
 * else NULL. */
gboolean ebb_training_log_add_step (EbbTrainingLog *self,
                                    const EbbLoggedStep *step,
                                    const double *evaluated_loss,
                                    GError **error);
/* Writes the loss of held-out data of a step that this run hasn't taken, unless the file has a line of that step. */
gboolean ebb_training_log_add_evaluation (EbbTrainingLog *self,
                                          gint64 step,
                                          double evaluated_loss,
                                          GError **error);

G_END_DECLS
