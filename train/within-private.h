/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "nn/state/training-state.h"
#include "train/pass-private.h"
#include "train/trainer-options-private.h"

/* A trainer within a memory budget: the plan of its step, and the changes of values that make it fit. */

G_BEGIN_DECLS

/* What a plan is made over. */
typedef struct
{
  EbbTrainPass *pass;
  EbbTrainingState *state;
  const EbbTrainerSettings *settings;
  gint64 n_rows;   /* of the largest batch */
  guint64 n_bytes; /* of that batch; 0: all batches are alike */
  EbbStepFunc step;
  gpointer data;
} EbbTrainParts;

/* The changes that a search has made, and the values that they replace. */
typedef struct
{
  EbbConcessions taken;
  guint n_parts; /* of the rows of a model, with micro-batches */
  /* Without changes. */
  gboolean is_begun;
  gboolean has_moments, has_steps; /* the optimizer can change them */
  int moment_format;
  gboolean steps_in_backward, lowers, is_whole;
  gint64 most_rows, n_rows;
  guint64 loss_chunk; /* of the device */
  EbbDevice *device;  /* whose chunk was changed; NULL: none */
} EbbTrainChanges;

/* Makes parts for the changes @taken, in a dry run; and drops them again. */
typedef struct
{
  EbbTrainParts *(*make) (gpointer data,
                          EbbConcessions taken,
                          GError **error);
  void (*drop) (gpointer data);
} EbbTrainMakeFuncs;

/* Finds the fewest changes that @budget allows with which a plan fits, and leaves that plan in @budget, for parts that
 * come. @funcs NULL: @data is an EbbTrainParts whose values change. */
gboolean ebb_train_within_search (EbbMemoryBudget *budget,
                                  const EbbTrainMakeFuncs *funcs,
                                  gpointer data,
                                  EbbTrainChanges *changes,
                                  GError **error);
/* Drops that plan and takes @changes back, where no parts come. */
void ebb_train_within_drop (EbbMemoryBudget *budget,
                            EbbTrainChanges *changes);

/* A trainer and its budget. */
typedef struct
{
  EbbMemoryBudget *budget; /* owned; NULL: there is none */
  EbbTrainParts parts;
  EbbTrainChanges changes;
  gboolean is_planned; /* the budget has a plan for these parts, by a search in dry runs */
  gboolean is_bound;   /* the plan is on the model */
  gulong handler;      /* of the budget's notes */
  char *report;        /* of the budget, after its end; NULL: none */
} EbbTrainWithin;

/* Called between plans; it may end planning, on all ranks alike. */
typedef gboolean (*EbbTrainPoll) (gpointer data,
                                  GError **error);
/* What the budget does besides: text. */
typedef void (*EbbTrainNote) (EbbMemoryBudget *budget,
                              const char *text,
                              gpointer data);

/* Plans and puts the plan on the model, under the budget's limit. Does nothing without a budget. */
gboolean ebb_train_within_begin (EbbTrainWithin *self,
                                 EbbTrainPoll poll,
                                 EbbTrainNote note,
                                 gpointer data,
                                 GError **error);
/* Runs a step as the budget does. */
gboolean ebb_train_within_run_step (EbbTrainWithin *self,
                                    GError **error);
/* Waits for the store that the budget names, if it has one. */
gboolean ebb_train_within_wait (const EbbTrainWithin *self,
                                GError **error);
/* Takes plan and limit off. */
void ebb_train_within_end (EbbTrainWithin *self);
/* Owned; NULL: there was no budget. */
char *ebb_train_within_to_json (const EbbTrainWithin *self);
void ebb_train_within_clear (EbbTrainWithin *self);

G_END_DECLS
