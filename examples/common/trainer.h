/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "options.h"
#include "ranks.h"

/* One training: what it is made of, a step of it, and its state on the disk. */

G_BEGIN_DECLS

typedef struct
{
  Options *options;
  Ranks *ranks; /* NULL: a program on its own */
  EbbDevice *device;
  EbbTokenizer *tokenizer;
  EbbTextDataset *dataset; /* NULL if there is nothing to train on */
  EbbGpt *model;
  EbbOptimizer *optimizer;
  char **spared; /* parameters of one dimension: norms and biases */
  EbbSchedule *schedule;
  EbbSavedTensorHooks *store;
  EbbTrainingState *state;
  EbbFolderLock *lock;      /* on the folder of --resume; one rank has it for all */
  guint found;              /* of what lies there: FoundState */
  EbbArgs *whole_optimizer; /* its state as one rank alone had it, until it is shared out */
  gint64 step;              /* taken so far, resumed ones included */
  gint64 first_step;        /* of this run */
  gint64 saved_step;        /* at which the state was last written */
  gboolean step_is_whole;   /* the last one of this run: nothing of another has begun */
  gint64 first_row, n_rows; /* of each batch that this rank computes with; it may have none */
  guint64 n_parameters;     /* of the whole model */
  double plain_activations; /* bytes that a step would keep without checkpointing, 0 if unknown */
} Trainer;

/* Makes everything, loads what there is to load, and refuses what can't be before anything is computed. */
gboolean trainer_init (Trainer *self,
                       Options *options,
                       Ranks *ranks,
                       GError **error);
void trainer_clear (Trainer *self);
/* The exit status that a signal asks for; of all ranks, as of the last step or trainer_poll(). 0: none. */
int trainer_get_interrupt (const Trainer *self);
gboolean trainer_poll (Trainer *self,
                       GError **error);
/* One optimizer step; @loss is the mean over its batches, over all ranks. */
gboolean trainer_step (Trainer *self,
                       double *loss,
                       GError **error);
/* Waits for all enqueued work, and reports failures of asynchronous work. */
gboolean trainer_finish (Trainer *self,
                         GError **error);
/* The settings of the command line, after a state has brought its own. */
gboolean trainer_set_optimizer (Trainer *self,
                                GError **error);
/* Writes the state to the folder of --resume, if there is one and it is not there yet. */
gboolean trainer_save_state (Trainer *self,
                             GError **error);
gboolean trainer_save_weights (Trainer *self,
                               const char *path,
                               GError **error);

G_END_DECLS
