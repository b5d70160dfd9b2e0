/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#if !defined(EBB_INSIDE) && !defined(EBB_COMPILATION)
#error "Only <ebb/ebb.h> can be included directly."
#endif

#include "nn/optim/optimizer.h"
#include "train/trainer-options.h"
#include "wrap/plan/estimate.h"

#include <gio/gio.h>

G_BEGIN_DECLS

/**
 * EbbTrainerPhase:
 * @EBB_TRAINER_PHASE_PLAN: the memory of a step is planned, by dry runs of it
 * @EBB_TRAINER_PHASE_FORWARD: the loss of a part of the step's rows is computed
 * @EBB_TRAINER_PHASE_BACKWARD: its gradients are computed
 * @EBB_TRAINER_PHASE_EXCHANGE: ranks exchange the loss of the step
 * @EBB_TRAINER_PHASE_UPDATE: the optimizer moves the parameters
 * @EBB_TRAINER_PHASE_EVALUATE: the loss of held-out data is measured
 * @EBB_TRAINER_PHASE_SAVE: the state or the weights are saved
 * @EBB_TRAINER_PHASE_WAIT: enqueued work is waited for
 *
 * What a trainer is doing.
 */
typedef enum
{
  EBB_TRAINER_PHASE_PLAN,
  EBB_TRAINER_PHASE_FORWARD,
  EBB_TRAINER_PHASE_BACKWARD,
  EBB_TRAINER_PHASE_EXCHANGE,
  EBB_TRAINER_PHASE_UPDATE,
  EBB_TRAINER_PHASE_EVALUATE,
  EBB_TRAINER_PHASE_SAVE,
  EBB_TRAINER_PHASE_WAIT
} EbbTrainerPhase;

#define EBB_TYPE_TRAINER_PHASE (ebb_trainer_phase_get_type ())

EBB_AVAILABLE_IN_ALL
GType ebb_trainer_phase_get_type (void);

/**
 * EbbTrainerBatchFunc:
 * @number: the number of the batch, counted from 0 at the training's beginning, resumed batches too
 * @user_data: user data
 * @error: return location for an error
 *
 * Gives a batch: a dictionary of tensors on the CPU whose first dimension is rows, `tokens` and `targets`, or what the
 * loss function reads. Each rank gives the whole batch, and its trainer takes the rank's rows. A batch counts by its
 * `targets` that are not negative, if they are integers, else by its number `weight`, else by its rows.
 *
 * Returns: (transfer full) (nullable): the batch, an empty dictionary at the end of the data, or %NULL with @error set
 */
typedef EbbArgs *(*EbbTrainerBatchFunc) (gint64 number,
                                         gpointer user_data,
                                         GError **error);

/**
 * EbbTrainerLossFunc:
 * @model: the model
 * @batch: some rows of a batch, on the model's device
 * @user_data: user data
 * @error: return location for an error
 *
 * Computes the loss of @batch, a mean over what counts in it. It reads no values that ops have computed: a dry run has
 * none.
 *
 * Returns: (transfer full) (nullable): the loss, a floating tensor of one element, or %NULL with @error set
 */
typedef EbbTensor *(*EbbTrainerLossFunc) (EbbModule *model,
                                          EbbArgs *batch,
                                          gpointer user_data,
                                          GError **error);

#define EBB_TYPE_TRAINER (ebb_trainer_get_type ())

/**
 * EbbTrainer:
 *
 * One training: takes batches, runs steps, measures held-out data, and saves. It prints nothing, handles no signals of
 * the system, and all its calls come from one thread.
 *
 * A step takes all its batches first. Each part that is computed counts by its share in all of them, over all ranks, so
 * a batch of 4 rows, 4 batches of 1 row that add up, and parts of 1 row train alike.
 */
EBB_AVAILABLE_IN_ALL
G_DECLARE_FINAL_TYPE (EbbTrainer, ebb_trainer, EBB, TRAINER, GObject)

/**
 * EbbTrainerMakeFunc:
 * @taken: the changes of values that are made
 * @user_data: user data
 * @error: return location for an error
 *
 * Makes a model, with all that is put on it, an optimizer, data, and a trainer of them; see ebb_trainer_new_within().
 *
 * Returns: (transfer full) (nullable): the trainer, or %NULL with @error set
 */
typedef EbbTrainer *(*EbbTrainerMakeFunc) (EbbConcessions taken,
                                           gpointer user_data,
                                           GError **error);

EBB_AVAILABLE_IN_ALL
EbbTrainer *ebb_trainer_new_within (EbbMemoryBudget *budget,
                                    EbbTrainerMakeFunc make,
                                    gpointer user_data,
                                    GError **error);

EBB_AVAILABLE_IN_ALL
EbbTrainer *ebb_trainer_new (EbbModule *model,
                             EbbOptimizer *optimizer,
                             EbbDataset *data,
                             EbbTrainerOptions *options,
                             GError **error);

EBB_AVAILABLE_IN_ALL
void ebb_trainer_set_batch_func (EbbTrainer *self,
                                 EbbTrainerBatchFunc func,
                                 gpointer user_data,
                                 GDestroyNotify destroy);

EBB_AVAILABLE_IN_ALL
void ebb_trainer_set_evaluate_func (EbbTrainer *self,
                                    EbbTrainerBatchFunc func,
                                    gpointer user_data,
                                    GDestroyNotify destroy);

EBB_AVAILABLE_IN_ALL
void ebb_trainer_set_loss_func (EbbTrainer *self,
                                EbbTrainerLossFunc func,
                                gpointer user_data,
                                GDestroyNotify destroy);

/* -- training */

EBB_AVAILABLE_IN_ALL
gboolean ebb_trainer_prepare (EbbTrainer *self,
                              GCancellable *cancellable,
                              GError **error);

EBB_AVAILABLE_IN_ALL
gboolean ebb_trainer_run_step (EbbTrainer *self,
                               GCancellable *cancellable,
                               GError **error);

EBB_AVAILABLE_IN_ALL
gboolean ebb_trainer_finish (EbbTrainer *self,
                             GError **error);

EBB_AVAILABLE_IN_ALL
gboolean ebb_trainer_run (EbbTrainer *self,
                          GCancellable *cancellable,
                          GError **error);

EBB_AVAILABLE_IN_ALL
gboolean ebb_trainer_is_done (EbbTrainer *self);

EBB_AVAILABLE_IN_ALL
void ebb_trainer_stop (EbbTrainer *self);

EBB_AVAILABLE_IN_ALL
void ebb_trainer_fail (EbbTrainer *self,
                       const GError *error);

/* -- metrics and values of one's own */

EBB_AVAILABLE_IN_ALL
void ebb_trainer_add_metric (EbbTrainer *self,
                             const char *name,
                             EbbTensor *value);

EBB_AVAILABLE_IN_ALL
EbbArgs *ebb_trainer_get_metrics (EbbTrainer *self);

EBB_AVAILABLE_IN_ALL
void ebb_trainer_set_values (EbbTrainer *self,
                             EbbArgs *values);

EBB_AVAILABLE_IN_ALL
EbbArgs *ebb_trainer_get_values (EbbTrainer *self);

/* -- besides steps */

EBB_AVAILABLE_IN_ALL
gboolean ebb_trainer_evaluate (EbbTrainer *self,
                               EbbDataset *data,
                               double *loss,
                               GCancellable *cancellable,
                               GError **error);

EBB_AVAILABLE_IN_ALL
gboolean ebb_trainer_save_state (EbbTrainer *self,
                                 GError **error);

EBB_AVAILABLE_IN_ALL
gboolean ebb_trainer_save_model (EbbTrainer *self,
                                 const char *path,
                                 GError **error);

EBB_AVAILABLE_IN_ALL
EbbMemoryEstimate *ebb_trainer_estimate (EbbTrainer *self,
                                         GError **error);

EBB_AVAILABLE_IN_ALL
char *ebb_trainer_to_json (EbbTrainer *self);

EBB_AVAILABLE_IN_ALL
char *ebb_trainer_get_progress (EbbTrainer *self,
                                guint n_columns);

G_END_DECLS
