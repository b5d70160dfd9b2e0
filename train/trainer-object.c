/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* The class of trainers: what is set of one, its signals and requests, and what it tells about itself. */
#include "train/trainer-object-private.h"

#include "nn/models/folder/model.h"
#include "tensor/error-private.h"
#include "tensor/memory.h"
#include "tensor/util/property-private.h"

#include <math.h>

G_DEFINE_FINAL_TYPE (EbbTrainer, ebb_trainer, G_TYPE_OBJECT)

static guint signals[EBB_TRAINER_N_SIGNALS];

/* -- setting ------------------------------------------------------------------------------------------------------- */

/**
 * ebb_trainer_set_batch_func:
 * @self: a trainer without a dataset
 * @func: (nullable) (scope notified) (closure user_data) (destroy destroy): gives batches
 * @user_data: user data of @func
 * @destroy: (nullable): frees @user_data
 *
 * Sets the function that gives the batches to train on. It is called on the thread that calls the trainer, and once
 * for each batch.
 */
void
ebb_trainer_set_batch_func (EbbTrainer *self, EbbTrainerBatchFunc func, gpointer user_data, GDestroyNotify destroy)
{
  g_return_if_fail (EBB_IS_TRAINER (self));

  ebb_train_batch_func_set (&self->source.batches, func, user_data, destroy);
}

/**
 * ebb_trainer_set_evaluate_func:
 * @self: a trainer
 * @func: (nullable) (scope notified) (closure user_data) (destroy destroy): gives batches
 * @user_data: user data of @func
 * @destroy: (nullable): frees @user_data
 *
 * Sets the function that gives the held-out data. Each measure takes its batches from number 0 to an empty one.
 */
void
ebb_trainer_set_evaluate_func (EbbTrainer *self, EbbTrainerBatchFunc func, gpointer user_data, GDestroyNotify destroy)
{
  g_return_if_fail (EBB_IS_TRAINER (self));

  ebb_train_batch_func_set (&self->source.evaluated, func, user_data, destroy);
}

/**
 * ebb_trainer_set_loss_func:
 * @self: a trainer
 * @func: (nullable) (scope notified) (closure user_data) (destroy destroy): computes the loss; %NULL for the loss of
 *   #EbbGpt and #EbbBert
 * @user_data: user data of @func
 * @destroy: (nullable): frees @user_data
 *
 * Sets the function that computes the loss of the rows that the trainer gives it.
 */
void
ebb_trainer_set_loss_func (EbbTrainer *self, EbbTrainerLossFunc func, gpointer user_data, GDestroyNotify destroy)
{
  g_return_if_fail (EBB_IS_TRAINER (self));

  ebb_train_pass_set_loss (&self->pass, func, user_data, destroy);
}

void
ebb_trainer_set_hooks (EbbTrainer *self, const EbbTrainerHooks *hooks)
{
  self->hooks = *hooks;
}

/* -- signals and requests ------------------------------------------------------------------------------------------ */

/**
 * ebb_trainer_fail:
 * @self: a trainer
 * @error: what went wrong
 *
 * Makes the trainer's running call fail with a copy of @error after the handler of a signal that calls this function.
 * Handlers can't return errors. The first error counts.
 */
void
ebb_trainer_fail (EbbTrainer *self, const GError *error)
{
  g_return_if_fail (EBB_IS_TRAINER (self));
  g_return_if_fail (error != NULL);

  if (self->failure == NULL)
    self->failure = g_error_copy (error);
}

/* Bindings can make an object without a model. */
gboolean
ebb_trainer_check_made (EbbTrainer *self, GError **error)
{
  g_return_val_if_fail (EBB_IS_TRAINER (self), FALSE);

  return self->model != NULL
         || ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT, "trainer: it has no model: make it by ebb_trainer_new ()");
}

gboolean
ebb_trainer_take_failure (EbbTrainer *self, GError **error)
{
  if (self->failure == NULL)
    return TRUE;
  g_propagate_error (error, g_steal_pointer (&self->failure));
  return FALSE;
}

void
ebb_trainer_take_requests (EbbTrainer *self)
{
  if (self->cancellable != NULL && g_cancellable_is_cancelled (self->cancellable))
    self->ranks.requested |= EBB_TRAIN_CANCEL;
}

gboolean
ebb_trainer_set_cancelled (GError **error)
{
  g_set_error_literal (error, G_IO_ERROR, G_IO_ERROR_CANCELLED, "the training was cancelled");
  return FALSE;
}

/* An EbbTrainNotify. */
gboolean
ebb_trainer_notify (gpointer user_data, EbbTrainerPhase phase, guint64 done, guint64 total, GError **error)
{
  EbbTrainer *self = user_data;

  ebb_trainer_emit (self, EBB_TRAINER_PHASE, phase, done, total);
  ebb_trainer_take_requests (self);
  return ebb_trainer_take_failure (self, error);
}

/**
 * ebb_trainer_stop:
 * @self: a trainer
 *
 * Ends the training after the step that runs, as if it had been the last one. On ranks one that calls this is enough.
 */
void
ebb_trainer_stop (EbbTrainer *self)
{
  g_return_if_fail (EBB_IS_TRAINER (self));

  self->ranks.requested |= EBB_TRAIN_STOP;
}

void
ebb_trainer_emit (EbbTrainer *self, EbbTrainerSignal signal, ...)
{
  va_list args;

  va_start (args, signal);
  g_signal_emit_valist (self, signals[signal], 0, args);
  va_end (args);
}

/* -- metrics and values of one's own ------------------------------------------------------------------------------- */

/**
 * ebb_trainer_add_metric:
 * @self: a trainer
 * @name: the name of the metric
 * @value: a floating tensor of one element, a mean over what counts in the rows of the loss
 *
 * Notes a number besides the loss, from the loss function: see ebb_trainer_get_metrics(). On ranks all note the same
 * metrics.
 */
void
ebb_trainer_add_metric (EbbTrainer *self, const char *name, EbbTensor *value)
{
  g_return_if_fail (EBB_IS_TRAINER (self));
  g_return_if_fail (name != NULL && value != NULL);

  ebb_train_pass_add_metric (&self->pass, name, value);
}

/**
 * ebb_trainer_get_metrics:
 * @self: a trainer
 *
 * Returns: (transfer full): a dictionary of what the loss function has noted in the last step: means over the step and
 *   all ranks, as the loss
 */
EbbArgs *
ebb_trainer_get_metrics (EbbTrainer *self)
{
  EbbArgs *metrics;

  g_return_val_if_fail (EBB_IS_TRAINER (self), NULL);

  metrics = ebb_args_new (EBB_ARGS_DICT);
  for (guint i = 0; i < self->pass.names->len; i++)
    ebb_args_add_double (metrics, self->pass.names->pdata[i], g_array_index (self->pass.sums, double, i));
  return metrics;
}

/**
 * ebb_trainer_set_values:
 * @self: a trainer
 * @values: (nullable): numbers, strings, tensors, and containers of them, nested at most 50 deep
 *
 * Sets values of the program's own that are saved with the state, as the place in its data.
 */
void
ebb_trainer_set_values (EbbTrainer *self, EbbArgs *values)
{
  g_return_if_fail (EBB_IS_TRAINER (self));

  if (values != NULL)
    ebb_args_ref (values);
  g_clear_pointer (&self->resume.values, ebb_args_unref);
  self->resume.values = values;
}

/**
 * ebb_trainer_get_values:
 * @self: a trainer
 *
 * Returns: (transfer full) (nullable): the values that ebb_trainer_set_values() set, or that the resumed state had
 */
EbbArgs *
ebb_trainer_get_values (EbbTrainer *self)
{
  g_return_val_if_fail (EBB_IS_TRAINER (self), NULL);

  return self->resume.values != NULL ? ebb_args_ref (self->resume.values) : NULL;
}

/* -- reports ------------------------------------------------------------------------------------------------------- */

/**
 * ebb_trainer_to_json:
 * @self: a trainer
 *
 * Returns: (transfer full) (nullable): the report of the training: losses, times, and memory, as one JSON object; %NULL
 *   for a trainer without a model
 */
char *
ebb_trainer_to_json (EbbTrainer *self)
{
  g_autofree char *budget = NULL;

  g_return_val_if_fail (EBB_IS_TRAINER (self) && self->model != NULL, NULL);

  budget = ebb_train_within_to_json (&self->within);
  return ebb_train_record_to_json (&self->record, self->model, self->pass.device, budget);
}

/**
 * ebb_trainer_get_progress:
 * @self: a trainer
 * @n_columns: the most columns of the line
 *
 * Returns: (transfer full) (nullable): a line of text for people: the step, the loss, tokens a second, the time that is
 *   left, and memory, as far as there are columns; %NULL for a trainer without a model
 */
char *
ebb_trainer_get_progress (EbbTrainer *self, guint n_columns)
{
  guint64 budget = 0;

  g_return_val_if_fail (EBB_IS_TRAINER (self) && self->model != NULL, NULL);

  if (self->within.budget != NULL)
    g_object_get (self->within.budget, "bytes", &budget, NULL);
  return ebb_train_record_get_progress (&self->record, self->pass.device, budget, self->steps, n_columns);
}

void
ebb_trainer_release (EbbTrainer *self)
{
  self->is_prepared = FALSE;
  g_clear_object (&self->lock);
  ebb_training_log_close (&self->log);
  self->log = EBB_TRAINING_LOG_NONE;
  ebb_train_within_end (&self->within);
}

/* -- object -------------------------------------------------------------------------------------------------------- */

/* Properties that are no fields; the others have the offset of their field as the number. */
enum
{
  PROP_CONFIG = 1,
  PROP_SCHEDULE,
  PROP_TOKENS_PER_SECOND,
  PROP_IS_FAILURE_SHARED
};

static void
ebb_trainer_get_property (GObject *object, guint id, GValue *value, GParamSpec *spec)
{
  EbbTrainer *self = EBB_TRAINER (object);

  if (id == PROP_CONFIG && self->resume.state != NULL)
    g_object_get_property (G_OBJECT (self->resume.state), "config", value);
  else if (id == PROP_SCHEDULE)
    g_value_set_object (value, self->pass.schedule);
  else if (id == PROP_TOKENS_PER_SECOND)
    g_value_set_double (value, ebb_train_record_get_speed (&self->record));
  else if (id == PROP_IS_FAILURE_SHARED)
    g_value_set_boolean (value, self->ranks.mesh == NULL || self->ranks.failure_shared);
  else if (id != PROP_CONFIG)
    ebb_property_get_field (object, id, value, spec);
}

/* The optimizer of a trainer without a schedule has the rate that it was given. */
static void
take_schedule (EbbTrainer *self, EbbSchedule *schedule)
{
  if (self->settings == NULL)
    return;
  g_set_object (&self->settings->schedule, schedule);
  self->pass.schedule = schedule;
  if (schedule == NULL)
    g_object_set (self->optimizer, "lr-scale", 1.0, NULL);
}

static void
take_steps (EbbTrainer *self)
{
  g_autoptr (EbbSchedule) schedule = NULL;

  self->source.has_ended = FALSE; /* it may give more batches */
  if (self->hooks.make_schedule == NULL || self->steps == EBB_TRAINER_NO_STEPS)
    return;
  schedule = self->hooks.make_schedule (self->steps);
  take_schedule (self, schedule);
}

static void
ebb_trainer_set_property (GObject *object, guint id, const GValue *value, GParamSpec *spec)
{
  EbbTrainer *self = EBB_TRAINER (object);

  if (id == PROP_SCHEDULE)
    take_schedule (self, g_value_get_object (value));
  else if (id != PROP_CONFIG)
    ebb_property_set_field (object, id, value, spec);
  if (id == offsetof (EbbTrainer, steps))
    take_steps (self);
  if (id == PROP_CONFIG && self->resume.state != NULL)
    g_object_set_property (G_OBJECT (self->resume.state), "config", value);
}

static void
ebb_trainer_finalize (GObject *object)
{
  EbbTrainer *self = EBB_TRAINER (object);

  ebb_trainer_release (self);
  ebb_train_source_clear (&self->source);
  ebb_train_record_clear (&self->record);
  ebb_train_within_clear (&self->within);
  ebb_train_pass_clear (&self->pass);
  ebb_train_ranks_clear (&self->ranks);
  g_clear_pointer (&self->resume.values, ebb_args_unref);
  g_clear_object (&self->resume.state);
  g_clear_object (&self->optimizer);
  g_clear_object (&self->model);
  g_clear_object (&self->options);
  g_clear_error (&self->failure);
  g_clear_error (&self->data_error);
  if (self->hooks.destroy != NULL)
    self->hooks.destroy (self->hooks.data);
  G_OBJECT_CLASS (ebb_trainer_parent_class)->finalize (object);
}

static void
ebb_trainer_init (EbbTrainer *self)
{
  ebb_train_pass_init (&self->pass);
  self->pass.notify = ebb_trainer_notify;
  self->pass.notify_data = self;
  self->ranks = EBB_TRAIN_RANKS_ALONE;
  ebb_train_source_init (&self->source);
  ebb_train_record_init (&self->record);
  self->log = EBB_TRAINING_LOG_NONE;
  self->hooks.save_dtype = EBB_MODEL_KEEP_DTYPE;
}

#define FIELD(name) ((guint) offsetof (EbbTrainer, name))

static void
install_number (GObjectClass *klass, guint id, const char *name)
{
  g_object_class_install_property (klass, id,
                                   g_param_spec_double (name, NULL, NULL, -G_MAXDOUBLE, G_MAXDOUBLE, 0,
                                                        G_PARAM_READABLE | G_PARAM_STATIC_STRINGS));
}

static void
install_step (GObjectClass *klass, guint id, const char *name)
{
  g_object_class_install_property (klass, id,
                                   g_param_spec_int64 (name, NULL, NULL, 0, G_MAXINT64, 0,
                                                       G_PARAM_READABLE | G_PARAM_STATIC_STRINGS));
}

static void
install_properties (GObjectClass *klass)
{
  const GParamFlags reads = G_PARAM_READABLE | G_PARAM_STATIC_STRINGS, writes = G_PARAM_READWRITE | reads;

  /**
   * EbbTrainer:steps:
   *
   * The step at which the training ends, resumed steps included; -1: when the data ends. It may be raised for another
   * ebb_trainer_run().
   */
  g_object_class_install_property (
      klass, FIELD (steps), g_param_spec_int64 ("steps", NULL, NULL, EBB_TRAINER_NO_STEPS, G_MAXINT64 / 2, -1, writes));
  /**
   * EbbTrainer:schedule:
   *
   * The factor of the learning rate in each step: at first #EbbTrainerOptions:schedule; %NULL: the rate stays. One that
   * falls until a last step is set anew where #EbbTrainer:steps is raised; the one that ebb_finetune_new() chose
   * follows the steps by itself.
   */
  g_object_class_install_property (klass, PROP_SCHEDULE,
                                   g_param_spec_object ("schedule", NULL, NULL, EBB_TYPE_SCHEDULE, writes));
  /**
   * EbbTrainer:config:
   *
   * The text that is kept in the state: at first #EbbTrainerOptions:config.
   */
  g_object_class_install_property (klass, PROP_CONFIG, g_param_spec_string ("config", NULL, NULL, NULL, writes));
  /**
   * EbbTrainer:model:
   *
   * The model that is trained.
   */
  g_object_class_install_property (klass, FIELD (model),
                                   g_param_spec_object ("model", NULL, NULL, EBB_TYPE_MODULE, reads));
  /**
   * EbbTrainer:optimizer:
   *
   * The optimizer of its parameters.
   */
  g_object_class_install_property (klass, FIELD (optimizer),
                                   g_param_spec_object ("optimizer", NULL, NULL, EBB_TYPE_OPTIMIZER, reads));
  /**
   * EbbTrainer:step:
   *
   * How many steps were taken, resumed ones included.
   */
  install_step (klass, FIELD (record.step), "step");
  /**
   * EbbTrainer:loss:
   *
   * The loss of the last step: the mean over what counts in its batches, on all ranks; NaN before the first one.
   */
  install_number (klass, FIELD (record.loss), "loss");
  /**
   * EbbTrainer:learning-rate:
   *
   * The learning rate of the last step.
   */
  install_number (klass, FIELD (record.rate), "learning-rate");
  /**
   * EbbTrainer:gradient-norm:
   *
   * The norm of the last step's gradients before they were clipped; NaN without #EbbTrainerOptions:clip.
   */
  install_number (klass, FIELD (pass.norm), "gradient-norm");
  /**
   * EbbTrainer:tokens-per-second:
   *
   * Tokens that all ranks compute in a second, by the last steps; rows, if batches have no `tokens`.
   */
  install_number (klass, PROP_TOKENS_PER_SECOND, "tokens-per-second");
  /**
   * EbbTrainer:evaluated-loss:
   *
   * The held-out loss as it was measured last; NaN if it never was.
   */
  install_number (klass, FIELD (record.evaluated_loss), "evaluated-loss");
  /**
   * EbbTrainer:best-loss:
   *
   * The least held-out loss, resumed steps included; NaN if there is none.
   */
  install_number (klass, FIELD (record.best_loss), "best-loss");
  /**
   * EbbTrainer:best-step:
   *
   * The step after which it was measured; 0 if there is none.
   */
  install_step (klass, FIELD (record.best_step), "best-step");
  /**
   * EbbTrainer:is-failure-shared:
   *
   * Whether all ranks know of the failure of the last call: then they may leave in order.
   */
  g_object_class_install_property (klass, PROP_IS_FAILURE_SHARED,
                                   g_param_spec_boolean ("is-failure-shared", NULL, NULL, FALSE, reads));
}

static guint
add_signal (EbbTrainerClass *klass, const char *name, guint n, const GType *types)
{
  return g_signal_newv (name, G_TYPE_FROM_CLASS (klass), G_SIGNAL_RUN_LAST, NULL, NULL, NULL, NULL, G_TYPE_NONE, n,
                        (GType *) types);
}

static void
ebb_trainer_class_init (EbbTrainerClass *klass)
{
  GObjectClass *object_class = G_OBJECT_CLASS (klass);

  object_class->get_property = ebb_trainer_get_property;
  object_class->set_property = ebb_trainer_set_property;
  object_class->finalize = ebb_trainer_finalize;
  install_properties (object_class);
  /**
   * EbbTrainer::stepped:
   * @self: the trainer
   * @step: how many steps were taken
   * @loss: the loss of the step
   *
   * A step was taken.
   */
  signals[EBB_TRAINER_STEPPED] = add_signal (klass, "stepped", 2, (GType[]){ G_TYPE_INT64, G_TYPE_DOUBLE });
  /**
   * EbbTrainer::evaluated:
   * @self: the trainer
   * @step: how many steps were taken
   * @loss: the loss of the held-out data
   * @is_best: whether it is the least so far
   *
   * The trainer's held-out data was measured. It comes before the best weights are saved.
   */
  signals[EBB_TRAINER_EVALUATED] =
      add_signal (klass, "evaluated", 3, (GType[]){ G_TYPE_INT64, G_TYPE_DOUBLE, G_TYPE_BOOLEAN });
  /**
   * EbbTrainer::saved:
   * @self: the trainer
   * @path: (type filename): the folder or file
   *
   * The state or weights were saved.
   */
  signals[EBB_TRAINER_SAVED] = add_signal (klass, "saved", 1, (GType[]){ G_TYPE_STRING });
  /**
   * EbbTrainer::note:
   * @self: the trainer
   * @text: one line
   *
   * Something happened that people should read.
   */
  signals[EBB_TRAINER_NOTE] = add_signal (klass, "note", 1, (GType[]){ G_TYPE_STRING });
  /**
   * EbbTrainer::phase:
   * @self: the trainer
   * @phase: what begins
   * @done: parts that are done of it
   * @total: all its parts; 0: their number isn't known
   *
   * A phase begins, or a part of it. Phases of a step come in dry runs, too, where ebb_is_dry_run() says so.
   */
  signals[EBB_TRAINER_PHASE] =
      add_signal (klass, "phase", 3, (GType[]){ EBB_TYPE_TRAINER_PHASE, G_TYPE_UINT64, G_TYPE_UINT64 });
}
