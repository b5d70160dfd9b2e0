/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "nn/optim/optimizer.h"
#include "train/trainer-options.h"

/* The settings of a training as its parts read them. */

G_BEGIN_DECLS

typedef struct
{
  gint64 batch_size; /* 0: the default; a batch function says itself how many rows it gives */
  gint64 context;    /* 0: the model's */
  gint64 accumulate;
  gint64 micro_batch_size; /* 0: a batch is computed in one part */
  gint64 steps;            /* EBB_TRAINER_NO_STEPS: until the data ends */
  double epochs;           /* 0: the steps count */
  EbbSchedule *schedule;   /* NULL: the learning rate stays */
  double clip;             /* 0: gradients are not clipped */
  char *dtype;             /* "f32" or "bf16" */
  EbbMemoryBudget *budget;
  EbbMesh *mesh;        /* NULL: this rank trains alone */
  EbbDataset *evaluate; /* NULL: there is no held-out data, or a function gives it */
  gint64 evaluate_every;
  char *save_best, *resume;
  gint64 save_every;
  char *config, *log;
} EbbTrainerSettings;

#define EBB_TRAINER_NO_STEPS G_GINT64_CONSTANT (-1)
#define EBB_TRAINER_BATCH_SIZE 8 /* without batch-size */

/* The settings of @self, which keeps them. */
EbbTrainerSettings *ebb_trainer_options_get_settings (EbbTrainerOptions *self);
/* An object of the same class with the same values. @self NULL: the defaults. */
EbbTrainerOptions *ebb_trainer_options_copy (EbbTrainerOptions *self);
/* Fails if a setting makes no sense by itself, or if two contradict each other, @optimizer's included. */
gboolean ebb_trainer_settings_check (const EbbTrainerSettings *self,
                                     EbbOptimizer *optimizer,
                                     GError **error);
/* What decides which calls ranks make; all ranks must have the same. */
char *ebb_trainer_settings_describe (const EbbTrainerSettings *self,
                                     gint64 steps,
                                     gboolean has_evaluation);

G_END_DECLS
