/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "common/options/options.h"
#include "common/ranks/ranks.h"

/* One training: its parts, a step, and its state on disk. */

G_BEGIN_DECLS

typedef struct
{
  gint64 step;
  double loss; /* a token's, in nats */
  gboolean is_best;
} Evaluation;

typedef struct
{
  Options *options;
  Ranks *ranks; /* NULL: a program without ranks */
  EbbDevice *device;
  EbbTokenizer *tokenizer;
  EbbDataset *dataset;  /* NULL if there is nothing to train on */
  EbbDataset *held_out; /* of --eval; NULL: there is none */
  GArray *evaluations;  /* of Evaluation: those of this run */
  double best_loss;     /* on held-out data, of the resumed runs too */
  gint64 best_step;     /* 0: none yet */
  EbbModule *model;
  EbbOptimizer *optimizer;
  char **spared; /* parameters of one dimension: norms and biases */
  EbbSchedule *schedule;
  EbbSavedTensorHooks *store;
  EbbMemoryBudget *memory;      /* of --memory; NULL: there is none */
  EbbMemoryPlan *plan;          /* its plan, or NULL */
  guint64 budget, limit;        /* its bytes, and those of them that the plan's tensors may take */
  GPtrArray *corrections;       /* of char *: what was done while it trained to keep it within the budget */
  EbbMemoryTimeline *unplanned; /* of a step without the plan, for --memory-timeline; or NULL */
  EbbTrainingState *state;
  EbbFolderLock *lock;      /* on the folder of --resume; one rank holds it for all */
  guint found;              /* FoundState bits of that folder */
  gint64 step;              /* steps so far, including resumed ones */
  gint64 first_step;        /* of this run */
  gint64 saved_step;        /* at which the state was last written */
  gboolean step_is_whole;   /* no step is half done */
  gint64 n_rows;            /* that this rank computes at a time; it may have none */
  guint64 n_parameters;     /* of the full model, without an adapter */
  guint64 n_trained;        /* of them, or of the adapter's */
  double plain_activations; /* bytes that a step would save without checkpointing, 0 if unknown */
} Trainer;

/* Makes all parts, loads files and states, and refuses impossible options before anything is computed. */
gboolean trainer_init (Trainer *self,
                       Options *options,
                       Ranks *ranks,
                       GError **error);
void trainer_clear (Trainer *self);
/* The exit status that a signal asks for; of all ranks, as of the last step or trainer_poll(). 0: none. */
int trainer_get_interrupt (const Trainer *self);
/* Returns TRUE if a signal ends the training now. A closed output ends a training after its first step at the earliest,
 * since the program has printed before that. */
gboolean trainer_must_stop (const Trainer *self);
gboolean trainer_poll (Trainer *self,
                       GError **error);
/* One optimizer step; @loss is the mean over the tokens that its batches predict, on all ranks. */
gboolean trainer_step (Trainer *self,
                       double *loss,
                       GError **error);
/* The same as an EbbStepFunc, of a Trainer. */
gboolean trainer_run_step (EbbModule *model,
                           gpointer trainer,
                           GError **error);
/* Models that the ranks train, each with rows of its own. */
gint64 trainer_get_n_models (const Trainer *self);
/* The loss of the model as it is over @n_rows rows of @dataset, without gradients: this model's share of the sum over
 * tokens in @loss, and how many tokens all models predict in @n_targets. */
gboolean trainer_measure (Trainer *self,
                          EbbDataset *dataset,
                          gint64 n_rows,
                          double *loss,
                          gint64 *n_targets,
                          GError **error);
/* Waits for all enqueued work, and reports failures of asynchronous work. */
gboolean trainer_finish (Trainer *self,
                         GError **error);
/* Applies the settings of the command line after a state was loaded. */
gboolean trainer_set_optimizer (Trainer *self,
                                GError **error);
/* Takes the best held-out loss of a state that was loaded. */
void trainer_take_best (Trainer *self);
/* Writes the state to the folder of --resume, unless it is there already. */
gboolean trainer_save_state (Trainer *self,
                             GError **error);
gboolean trainer_save_weights (Trainer *self,
                               const char *path,
                               GError **error);

G_END_DECLS
