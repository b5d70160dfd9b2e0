/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* One training: prepares, runs steps, measures held-out data, saves, and reports. */
#include "train/trainer-object-private.h"

#include "nn/data/text-dataset.h"
#include "nn/optim/adam.h"
#include "tensor/dry-run.h"
#include "tensor/error-private.h"
#include "tensor/memory.h"
#include "train/outputs-private.h"
#include "wrap/lora/wrapper.h"

#include <math.h>
#include <string.h>

#define LEARNING_RATE 3e-4 /* without an optimizer */

static gboolean run_step_func (EbbModule *model,
                               gpointer user_data,
                               GError **error);

/* -- making -------------------------------------------------------------------------------------------------------- */

/* Takes @tensors. */
static GPtrArray *
own_tensors (EbbTensor **tensors, guint n)
{
  GPtrArray *owned = g_ptr_array_new_with_free_func ((GDestroyNotify) ebb_tensor_unref);

  for (guint i = 0; i < n; i++)
    g_ptr_array_add (owned, tensors[i]);
  g_free (tensors);
  return owned;
}

/* One that was made of another model, or before an adapter, would train nothing; it may well train a part. */
static gboolean
check_optimizer (EbbModule *model, EbbOptimizer *optimizer, GError **error)
{
  guint n = 0, n_moved = 0;
  g_auto (GStrv) names = ebb_module_get_parameter_names (model, TRUE);
  EbbTensor **tensors = ebb_module_get_parameters (model, TRUE, &n);
  EbbTensor **own = ebb_optimizer_get_parameters (optimizer, &n_moved);
  g_autoptr (GPtrArray) parameters = own_tensors (tensors, n);
  g_autoptr (GPtrArray) moved = own_tensors (own, n_moved);
  const char *missing = NULL;

  for (guint i = 0; i < n; i++)
    {
      if (!ebb_tensor_get_requires_grad (parameters->pdata[i]))
        continue;
      if (g_ptr_array_find (moved, parameters->pdata[i], NULL))
        return TRUE;
      missing = missing == NULL ? names[i] : missing;
    }
  return missing == NULL
         || ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT,
                      "trainer: optimizer: it has none of the model's trainable parameters, as %s: make it of this "
                      "model, after adapters and shards",
                      missing);
}

/**
 * ebb_trainer_new:
 * @model: the model, with all that is put on it: checkpoints, stores, shards, adapters
 * @optimizer: (nullable): the optimizer of its parameters; %NULL for AdamW with a learning rate of 3e-4, which does not
 *   decay norms and biases
 * @data: (nullable): the data to train on; %NULL if ebb_trainer_set_batch_func() gives batches
 * @options: (nullable): the settings, which are copied; %NULL for the defaults
 * @error: return location for an error
 *
 * Makes a training. Connect to its signals and set functions, then call ebb_trainer_run(), or ebb_trainer_prepare(),
 * ebb_trainer_run_step() until ebb_trainer_is_done(), and ebb_trainer_finish().
 *
 * Returns: (transfer full): the trainer, or %NULL with %EBB_ERROR_INVALID_ARGUMENT if two settings contradict each
 *   other, which names both, or if @optimizer has none of the parameters of @model that can be trained
 */
EbbTrainer *
ebb_trainer_new (EbbModule *model,
                 EbbOptimizer *optimizer,
                 EbbDataset *data,
                 EbbTrainerOptions *options,
                 GError **error)
{
  g_autoptr (EbbTrainer) self = NULL;

  if (!EBB_MAY_BEGIN (error, model))
    return NULL;
  g_return_val_if_fail (EBB_IS_MODULE (model), NULL);
  g_return_val_if_fail (optimizer == NULL || EBB_IS_OPTIMIZER (optimizer), NULL);
  g_return_val_if_fail (data == NULL || EBB_IS_DATASET (data), NULL);
  g_return_val_if_fail (options == NULL || EBB_IS_TRAINER_OPTIONS (options), NULL);

  self = g_object_new (EBB_TYPE_TRAINER, NULL);
  self->options = ebb_trainer_options_copy (options);
  self->settings = ebb_trainer_options_get_settings (self->options);
  if (!ebb_trainer_settings_check (self->settings, optimizer, error)
      || (optimizer != NULL && !check_optimizer (model, optimizer, error)))
    return NULL;
  self->steps = self->settings->steps;
  self->model = g_object_ref (model);
  self->optimizer = optimizer != NULL ? g_object_ref (optimizer) : ebb_adamw_new (model, LEARNING_RATE, error);
  if (self->optimizer == NULL
      || (optimizer == NULL && !ebb_optimizer_exclude_from_decay (self->optimizer, error)))
    return NULL;
  self->source.settings = self->settings;
  g_set_object (&self->source.data, data);
  ebb_train_pass_set_model (&self->pass, model);
  self->pass.optimizer = self->optimizer;
  self->pass.schedule = self->settings->schedule;
  self->pass.clip = self->settings->clip;
  self->pass.lowers = g_strcmp0 (self->settings->dtype, "bf16") == 0;
  self->pass.varies = data == NULL || !EBB_IS_TEXT_DATASET (data);
  self->pass.most_rows = self->settings->micro_batch_size;
  self->resume = (EbbTrainResume){ .state = ebb_training_state_new (model, self->optimizer, data),
                                   .optimizer = self->optimizer,
                                   .source = &self->source,
                                   .record = &self->record,
                                   .is_on_ranks = self->settings->mesh != NULL };
  self->within.parts = (EbbTrainParts){ .pass = &self->pass,
                                        .state = self->resume.state,
                                        .settings = self->settings,
                                        .step = run_step_func,
                                        .data = self };
  g_set_object (&self->within.budget, self->settings->budget);
  g_object_set (self->resume.state, "trained-only", ebb_lora_is_wrapped (model), "config", self->settings->config,
                NULL);
  return g_steal_pointer (&self);
}

static gboolean
begin_hooks (EbbTrainer *self, GCancellable *cancellable, GError **error)
{
  const EbbTrainerHooks hooks = self->hooks;

  self->hooks.begin = NULL; /* once */
  return hooks.begin == NULL || hooks.begin (self, hooks.data, cancellable, error);
}

/* -- preparing ----------------------------------------------------------------------------------------------------- */

/* All ranks must agree in what decides which calls they make. */
static gboolean
begin_on_ranks (EbbTrainer *self, GError **error)
{
  const EbbTrainerSettings *settings = self->settings;
  g_autofree char *text = NULL;

  if (!ebb_train_ranks_init (&self->ranks, settings->mesh, error))
    {
      ebb_train_ranks_clear (&self->ranks);
      return FALSE;
    }
  self->pass.ranks = &self->ranks;
  if (settings->mesh == NULL)
    return TRUE;
  text = ebb_trainer_settings_describe (settings, self->steps, ebb_train_source_has_evaluation (&self->source));
  return ebb_train_ranks_check_same (&self->ranks, "settings", text, error);
}

/* -- the state ----------------------------------------------------------------------------------------------------- */

static gboolean
load_state (EbbTrainer *self, GError **error)
{
  g_autofree char *note = NULL;

  if (!ebb_train_resume_load (&self->resume, &note, error))
    return FALSE;
  if (note != NULL)
    ebb_trainer_emit (self, EBB_TRAINER_NOTE, note);
  return TRUE;
}

static gboolean
take_outputs (EbbTrainer *self, gboolean *is_there, GError **error)
{
  return ebb_train_take_outputs (self->settings, self->model, self->hooks.save_dtype, self->ranks.rank, &self->lock,
                                 is_there, error);
}

/* What happens once in the life of a trainer. */
static gboolean
begin (EbbTrainer *self, GError **error)
{
  gboolean is_there = FALSE;

  if (self->is_begun)
    return ebb_trainer_agree (self, take_outputs (self, &is_there, error), error);
  self->record.rss_peak_before = ebb_training_report_get_rss_peak ();
  if (!ebb_train_source_check (&self->source, self->steps, error) || !ebb_train_pass_check_loss (&self->pass, error)
      || !ebb_train_source_find_sizes (&self->source, self->model, &self->steps, error)
      || (self->pass.ranks == NULL && !begin_on_ranks (self, error))
      || !ebb_trainer_agree (self, take_outputs (self, &is_there, error), error)
      || (is_there && !load_state (self, error)))
    return FALSE;
  ebb_optimizer_zero_grad (self->optimizer);
  self->record.first_step = self->record.saved_step = self->record.step;
  self->is_begun = TRUE;
  return TRUE;
}

static gboolean
open_log (EbbTrainer *self, GError **error)
{
  const EbbTrainerSettings *settings = self->settings;

  return settings->log == NULL || ebb_is_dry_run () || self->ranks.rank > 0 || self->log.lines >= 0
         || ebb_training_log_open (&self->log, settings->log, settings->resume, self->record.step, error);
}

/* Between plans. */
static gboolean
poll (gpointer user_data, GError **error)
{
  EbbTrainer *self = user_data;

  if (!ebb_trainer_agree (self, ebb_trainer_notify (self, EBB_TRAINER_PHASE_PLAN, 0, 0, error), error))
    return FALSE;
  return !ebb_trainer_is_cancelled (self) || ebb_trainer_set_cancelled (error);
}

/* An EbbTrainNote. */
static void
note (EbbMemoryBudget *budget, const char *text, gpointer user_data)
{
  EbbTrainer *self = user_data;
  g_autofree char *line = g_strdup_printf ("step %" G_GINT64_FORMAT ": %s", self->record.step, text);

  ebb_trainer_emit (self, EBB_TRAINER_NOTE, line);
}

static gboolean
begin_within (EbbTrainer *self, GError **error)
{
  ebb_train_source_get_size (&self->source, &self->within.parts.n_rows, &self->within.parts.n_bytes);
  return ebb_train_within_begin (&self->within, poll, note, self, error);
}

/* Does in a dry run what comes before a plan, and returns what that is made over. */
static EbbTrainParts *
begin_parts (EbbTrainer *self, GError **error)
{
  if (self->within.budget != NULL)
    return ebb_fail_null (error, EBB_ERROR_INVALID_ARGUMENT,
                          "trainer: budget is set, and it is made within another one: leave budget out");
  if (!begin (self, error) || !ebb_train_source_fill (&self->source, error))
    return NULL;
  ebb_train_source_get_size (&self->source, &self->within.parts.n_rows, &self->within.parts.n_bytes);
  return &self->within.parts;
}

/* Takes the plan that @budget has for a trainer like this one, and the changes that it was found with. */
static void
take_plan (EbbTrainer *self, EbbMemoryBudget *budget, const EbbTrainChanges *changes)
{
  g_set_object (&self->within.budget, budget);
  self->within.changes = *changes;
  self->within.is_planned = TRUE;
}

/**
 * ebb_trainer_prepare:
 * @self: a trainer
 * @cancellable: (nullable): ends the call early
 * @error: return location for an error
 *
 * Makes the trainer ready for steps: checks settings and outputs, locks the folders of the state and of the log, puts
 * a model in evaluation mode into training mode, loads the state that is there, takes the first batch, and plans the
 * step within #EbbTrainerOptions:budget. On ranks all call it together. A trainer that is ready already does nothing.
 *
 * Returns: %FALSE with @error set: %EBB_ERROR_INVALID_ARGUMENT if settings contradict each other, %EBB_ERROR_STATE if
 *   the state doesn't fit or another training uses its folder, %EBB_ERROR_IO if a file can't be written,
 *   %EBB_ERROR_NO_MEMORY if the budget is too small, %G_IO_ERROR_CANCELLED if it was cancelled while it planned
 */
gboolean
ebb_trainer_prepare (EbbTrainer *self, GCancellable *cancellable, GError **error)
{
  gboolean ok;

  if (!EBB_MAY_BEGIN (error, self) || !ebb_trainer_check_made (self, error))
    return FALSE;
  g_return_val_if_fail (cancellable == NULL || G_IS_CANCELLABLE (cancellable), FALSE);

  if (self->is_prepared)
    return TRUE;
  self->ranks.failure_shared = FALSE;
  self->cancellable = cancellable;
  if (!ebb_module_get_training (self->model)) /* before the plan, which counts what dropout takes */
    ebb_module_set_training (self->model, TRUE);
  ok = begin (self, error)
       && ebb_trainer_agree (self,
                             open_log (self, error) && ebb_trainer_take_failure (self, error)
                                 && ebb_train_source_fill (&self->source, error),
                             error)
       && begin_within (self, error);
  self->cancellable = NULL;
  self->is_prepared = self->must_poll = ok;
  if (ok)
    return TRUE;
  ebb_trainer_forget_cancel (self); /* the next call begins anew */
  ebb_trainer_release (self);
  return FALSE;
}

static gboolean
check_whole (const EbbTrainer *self, GError **error)
{
  return !self->is_broken
         || ebb_fail (error, EBB_ERROR_STATE,
                      "trainer: step %" G_GINT64_FORMAT " was broken off, and the weights are those of no step: make a "
                      "new trainer, which goes on from the last saved state",
                      self->record.step + 1);
}

/* -- making within a budget ---------------------------------------------------------------------------------------- */

typedef struct
{
  EbbTrainerMakeFunc make;
  gpointer data;
  EbbTrainer *trainer; /* of the attempt; NULL: none */
} Making;

static EbbTrainer *
call_make (const Making *self, EbbConcessions taken, GError **error)
{
  GError *failure = NULL;
  EbbTrainer *trainer = self->make (taken, self->data, &failure);

  if (trainer == NULL && failure == NULL)
    ebb_error_set (&failure, EBB_ERROR_CALLBACK, "trainer: the function that makes it failed without saying why");
  if (failure == NULL)
    return trainer;
  g_clear_object (&trainer);
  g_propagate_error (error, failure);
  return NULL;
}

static EbbTrainParts *
make_parts (gpointer data, EbbConcessions taken, GError **error)
{
  Making *self = data;

  self->trainer = call_make (self, taken, error);
  return self->trainer != NULL ? begin_parts (self->trainer, error) : NULL;
}

static void
drop_parts (gpointer data)
{
  g_clear_object (&((Making *) data)->trainer);
}

/**
 * ebb_trainer_new_within:
 * @budget: the memory that the training keeps within
 * @make: (scope call) (closure user_data): makes the model, the optimizer, the data, and the trainer
 * @user_data: user data of @make
 * @error: return location for an error
 *
 * Makes a training that keeps within @budget. @make is called in dry runs, in which nothing that it allocates costs
 * memory, with more and more of the changes that #EbbMemoryBudget:allow names, until a plan fits. Then it is called
 * once for real, and ebb_trainer_prepare() puts the plan on what it made. So a budget that is too small is refused
 * before anything is allocated.
 *
 * @make obeys %EBB_CONCESSIONS_BF16_RESIDUAL and %EBB_CONCESSIONS_BF16_WEIGHTS; the trainer makes the other changes.
 * Its trainer has no budget of its own. In dry runs it reads no values that ops have computed.
 *
 * Returns: (transfer full): the trainer, or %NULL with %EBB_ERROR_NO_MEMORY if the budget is too small, which names the
 *   least one that would do and changes that would help; or with what @make reports
 */
EbbTrainer *
ebb_trainer_new_within (EbbMemoryBudget *budget, EbbTrainerMakeFunc make, gpointer user_data, GError **error)
{
  static const EbbTrainMakeFuncs funcs = { make_parts, drop_parts };
  Making making = { make, user_data, NULL };
  EbbTrainChanges changes = { 0 };
  EbbTrainer *trainer;

  if (!EBB_MAY_BEGIN (error, budget))
    return NULL;
  g_return_val_if_fail (EBB_IS_MEMORY_BUDGET (budget) && make != NULL, NULL);

  if (ebb_memory_budget_get_plan (budget) != NULL)
    return ebb_fail_null (error, EBB_ERROR_STATE,
                          "trainer: the budget has a plan of another training: ebb_memory_budget_release () takes it "
                          "off");
  if (!ebb_train_within_search (budget, &funcs, &making, &changes, error))
    return NULL;
  trainer = call_make (&making, changes.taken, error);
  if (trainer != NULL)
    take_plan (trainer, budget, &changes);
  else
    ebb_train_within_drop (budget, &changes);
  return trainer;
}

/* -- saving -------------------------------------------------------------------------------------------------------- */

/* Waits for the device, which reports now what failed since the last step was enqueued: then its weights are no step's.
 */
static gboolean
settle (EbbTrainer *self, GError **error)
{
  const gboolean ok = ebb_trainer_notify (self, EBB_TRAINER_PHASE_WAIT, 0, 0, error);
  const gboolean is_settled = ok && ebb_device_synchronize (self->pass.device, error);

  self->is_broken = self->is_broken || (ok && !is_settled);
  return ebb_trainer_agree (self, is_settled, error);
}

static gboolean
write_state (EbbTrainer *self, GError **error)
{
  GError *failure = NULL;

  if (ebb_train_resume_save (&self->resume, &failure))
    return TRUE;
  /* All ranks fail together, unless one is gone. */
  self->ranks.failure_shared = !g_error_matches (failure, EBB_ERROR, EBB_ERROR_PROCESS_GROUP);
  g_propagate_error (error, failure);
  return FALSE;
}

/**
 * ebb_trainer_save_state:
 * @self: a trainer that is prepared
 * @error: return location for an error
 *
 * Saves the state of the last step in the folder of #EbbTrainerOptions:resume, unless it is there already. On ranks all
 * call it together.
 *
 * Returns: %FALSE with %EBB_ERROR_IO if it can't be written, %EBB_ERROR_STATE if there is no folder, or if a step was
 *   broken off, whose weights are those of no step
 */
gboolean
ebb_trainer_save_state (EbbTrainer *self, GError **error)
{
  if (!EBB_MAY_BEGIN (error, self) || !ebb_trainer_check_made (self, error))
    return FALSE;

  self->ranks.failure_shared = FALSE;
  if (self->settings->resume == NULL)
    return ebb_fail (error, EBB_ERROR_STATE, "trainer: resume is not set: it names the folder of the state");
  if (!check_whole (self, error))
    return FALSE;
  if (!self->is_prepared || self->record.step == self->record.saved_step)
    return self->is_prepared || ebb_fail (error, EBB_ERROR_STATE, "trainer: prepare it before its state is saved");
  if (!settle (self, error)
      || !ebb_trainer_agree (self, ebb_trainer_notify (self, EBB_TRAINER_PHASE_SAVE, 0, 0, error), error)
      || !write_state (self, error))
    return FALSE;
  ebb_trainer_emit (self, EBB_TRAINER_SAVED, self->settings->resume);
  return ebb_trainer_take_failure (self, error);
}

/* After a failure that all ranks have: the last whole step is saved. The first failure is reported. */
static void
save_after_failure (EbbTrainer *self)
{
  g_autoptr (GError) failure = NULL;

  if (self->settings->resume == NULL || self->is_broken || !self->is_prepared
      || (self->ranks.mesh != NULL && !self->ranks.failure_shared))
    return;
  self->ranks.failure_shared = FALSE; /* or the next failure would be taken for it */
  if (!ebb_trainer_save_state (self, &failure))
    {
      g_autofree char *text = g_strdup_printf ("the state of step %" G_GINT64_FORMAT " was not saved: %s",
                                               self->record.step, failure->message);

      ebb_trainer_emit (self, EBB_TRAINER_NOTE, text);
      g_clear_error (&self->failure);
    }
  else
    self->ranks.failure_shared = TRUE;
}

/**
 * ebb_trainer_save_model:
 * @self: a trainer
 * @path: (type filename): where to save it
 * @error: return location for an error
 *
 * Saves the model: its adapter, as ebb_lora_save() does, if it has one; else a file that ends with `.safetensors` or
 * `.gguf`, or a folder, as ebb_model_save() does. On ranks all call it together.
 *
 * Returns: %FALSE with %EBB_ERROR_IO if it can't be written
 */
gboolean
ebb_trainer_save_model (EbbTrainer *self, const char *path, GError **error)
{
  if (!EBB_MAY_BEGIN (error, self, path) || !ebb_trainer_check_made (self, error))
    return FALSE;

  self->ranks.failure_shared = FALSE; /* of an earlier call: ranks would not agree on a new one */
  if (self->pass.ranks == NULL && !begin_on_ranks (self, error))
    return FALSE;
  if (!ebb_trainer_agree (self, ebb_trainer_notify (self, EBB_TRAINER_PHASE_SAVE, 0, 0, error), error)
      || !ebb_train_save_model (self->model, &self->ranks, path, self->hooks.save_dtype, error))
    return FALSE;
  ebb_trainer_emit (self, EBB_TRAINER_SAVED, path);
  return ebb_trainer_take_failure (self, error);
}

/* -- measuring ----------------------------------------------------------------------------------------------------- */

static gboolean
measure (EbbTrainPass *pass, EbbTrainSource *source, EbbDataset *data, double *loss, GError **error)
{
  const guint64 total = data != NULL ? (guint64) ebb_dataset_get_n_rows (data, source->context) : 0;
  double sum = 0, weight = 0;
  gint64 done = 0;

  if (data != NULL)
    g_object_set (data, "position", (gint64) 0, NULL);
  for (gint64 number = 0;; number++)
    {
      EbbTrainBatch *taken;
      g_autoptr (EbbTrainBatch) batch = NULL;

      if (!pass->notify (pass->notify_data, EBB_TRAINER_PHASE_EVALUATE, (guint64) done, total, error)
          || !ebb_train_source_take_measured (source, data, done, number, &taken, error))
        return FALSE;
      batch = taken;
      if (batch == NULL)
        break;
      if (!ebb_train_pass_measure (pass, batch, &sum, error))
        return FALSE;
      weight += ebb_train_batch_get_weight (batch);
      done += batch->n_rows;
      if (!ebb_train_ranks_poll (pass->ranks, error))
        return FALSE;
      if ((pass->ranks->agreed & EBB_TRAIN_CANCEL) != 0)
        return TRUE;
    }
  if (!ebb_train_ranks_sum (pass->ranks, &sum, 1, error))
    return FALSE;
  *loss = isnan (sum / weight) ? NAN : sum / weight; /* without a sign, which would mean nothing */
  return TRUE;
}

/* The mean over what counts in @data, or without it in what the evaluate function gives. Training is as if it had not
 * been: modes, generators, and the place in the data stay. It ends early, with NaN, if a rank is cancelled. */
static gboolean
evaluate (EbbTrainPass *pass, EbbTrainSource *source, EbbDataset *data, double *loss, GError **error)
{
  EbbGenerator *generator = ebb_generator_get_default ();
  const guint64 seed = ebb_generator_get_seed (generator), offset = ebb_generator_get_offset (generator);
  const gboolean was_training = ebb_module_get_training (pass->model);
  gint64 position = 0;
  gboolean ok;

  *loss = NAN;
  if (data != NULL)
    g_object_get (data, "position", &position, NULL);
  ebb_module_set_training (pass->model, FALSE);
  ok = measure (pass, source, data, loss, error);
  ebb_module_set_training (pass->model, was_training);
  if (data != NULL)
    g_object_set (data, "position", position, NULL);
  ebb_generator_set_state (generator, seed, offset);
  return ok;
}

/* Measures the trainer's own held-out data. @may_be_best: it is not the model before its first step. */
static gboolean
evaluate_own (EbbTrainer *self, gboolean may_be_best, double *loss, GError **error)
{
  const char *path = self->settings->save_best;
  gboolean is_best;

  if (!evaluate (&self->pass, &self->source, self->settings->evaluate, loss, error))
    return FALSE;
  if (ebb_trainer_is_cancelled (self))
    return TRUE;
  is_best = ebb_train_record_add_evaluation (&self->record, *loss, may_be_best);
  ebb_trainer_emit (self, EBB_TRAINER_EVALUATED, self->record.step, *loss, is_best);
  if (!ebb_trainer_agree (self, ebb_trainer_take_failure (self, error), error))
    return FALSE;
  return !is_best || path == NULL || ebb_trainer_save_model (self, path, error);
}

/**
 * ebb_trainer_evaluate:
 * @self: a trainer
 * @data: (nullable): data to measure: all its rows, in order; %NULL for the trainer's own held-out data
 * @loss: (out): return location for the loss, a mean over what counts in the data, in nats
 * @cancellable: (nullable): ends the call early
 * @error: return location for an error
 *
 * Measures the loss of the model as it is. Training is as if it had not been. A measure of the trainer's own data is
 * in the report, and emits #EbbTrainer::evaluated. On ranks all call it together.
 *
 * Returns: %FALSE with @error set, %G_IO_ERROR_CANCELLED if it was cancelled
 */
gboolean
ebb_trainer_evaluate (EbbTrainer *self, EbbDataset *data, double *loss, GCancellable *cancellable, GError **error)
{
  gboolean ok;

  *loss = NAN;
  if (!EBB_MAY_BEGIN (error, self) || !ebb_trainer_check_made (self, error))
    return FALSE;
  g_return_val_if_fail (data == NULL || EBB_IS_DATASET (data), FALSE);

  if (data == NULL && !ebb_train_source_has_evaluation (&self->source))
    return ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT,
                     "trainer: there is no data to measure: give some, or set evaluate");
  self->ranks.failure_shared = FALSE;
  if (!ebb_trainer_prepare (self, cancellable, error)
      || (data != NULL && !ebb_dataset_check_context (data, self->source.context, error)))
    return FALSE;
  self->cancellable = cancellable;
  ebb_trainer_take_requests (self);
  ok = data != NULL ? evaluate (&self->pass, &self->source, data, loss, error)
                    : evaluate_own (self, self->record.step > 0, loss, error);
  self->cancellable = NULL;
  if (ok && ebb_trainer_is_cancelled (self))
    ok = ebb_trainer_set_cancelled (error);
  ebb_trainer_forget_cancel (self);
  return ok
         && (data != NULL || self->record.losses->len > 0
             || ebb_training_log_add_evaluation (&self->log, self->record.step, *loss, error));
}

/* -- steps --------------------------------------------------------------------------------------------------------- */

/* Takes the batches of a step and computes it. */
static gboolean
take_step (EbbTrainer *self, GError **error)
{
  double loss;
  g_autoptr (GPtrArray) batches = ebb_train_source_take_step (&self->source, error);

  if (batches == NULL || !ebb_train_pass_take_step (&self->pass, batches, self->record.step + 1, &loss, error))
    return FALSE;
  if (ebb_is_dry_run ())
    return TRUE;
  ebb_train_record_note_step (&self->record, self->optimizer, batches, loss);
  ebb_train_source_end_step (&self->source, batches);
  return TRUE;
}

/* An EbbStepFunc. */
static gboolean
run_step_func (EbbModule *model, gpointer user_data, GError **error)
{
  return take_step (user_data, error);
}

/* A batch larger than any before is planned before it runs. All ranks have the same batches. */
static gboolean
plan_larger (EbbTrainer *self, GError **error)
{
  const EbbTrainParts *parts = &self->within.parts;
  g_autofree char *text = NULL;
  gint64 n_rows;
  guint64 n_bytes;

  if (!self->within.is_bound || self->source.data != NULL)
    return TRUE;
  if (!ebb_train_source_fill (&self->source, error))
    return FALSE;
  ebb_train_source_get_size (&self->source, &n_rows, &n_bytes);
  if (n_rows <= parts->n_rows && n_bytes <= parts->n_bytes)
    return TRUE;
  text = g_strdup_printf ("step %" G_GINT64_FORMAT " has a larger batch than any before, and was planned again",
                          self->record.step + 1);
  ebb_train_within_end (&self->within);
  if (!begin_within (self, error))
    return FALSE;
  ebb_trainer_emit (self, EBB_TRAINER_NOTE, text);
  return TRUE;
}

/* Where nothing lasting has changed yet, a rank that trains alone goes back to the last step. */
static gboolean
run_whole_step (EbbTrainer *self, GError **error)
{
  const gint64 began = g_get_monotonic_time ();
  const gint64 before = self->record.step;
  double seconds;
  gboolean ok;

  if (self->ranks.mesh == NULL && !ebb_training_state_mark (self->resume.state, error))
    return FALSE;
  ok = ebb_train_within_run_step (&self->within, error);
  if (self->record.step == before)
    {
      self->is_broken = self->ranks.mesh != NULL || !ebb_training_state_rewind (self->resume.state, NULL);
      return FALSE;
    }
  seconds = (double) (g_get_monotonic_time () - began) / G_USEC_PER_SEC;
  ebb_train_record_add_step (&self->record, seconds);
  return ok;
}

/* Whether the step that was taken is the last one. Collective. */
static gboolean
is_last (EbbTrainer *self)
{
  if (self->steps == EBB_TRAINER_NO_STEPS)
    return ebb_trainer_is_done (self);
  return self->record.step >= self->steps || (self->ranks.agreed & EBB_TRAIN_STOP) != 0;
}

/* The held-out data is measured every so many steps, and after the last one. */
static gboolean
evaluate_if_due (EbbTrainer *self, GError **error)
{
  const gint64 every = self->settings->evaluate_every;
  double loss;

  if (!ebb_train_source_has_evaluation (&self->source) || ebb_trainer_is_cancelled (self)
      || !((every > 0 && self->record.step % every == 0) || is_last (self)))
    return TRUE;
  return evaluate_own (self, TRUE, &loss, error);
}

/* What follows a step: the handlers of signals, the held-out data, the log, the state. */
static gboolean
finish_step (EbbTrainer *self, GError **error)
{
  const gint64 every = self->settings->save_every;

  ebb_trainer_emit (self, EBB_TRAINER_STEPPED, self->record.step, self->record.loss);
  ebb_trainer_take_requests (self);
  if (!ebb_trainer_agree (self, ebb_trainer_take_failure (self, error), error) || !evaluate_if_due (self, error))
    return FALSE;
  if (self->settings->log != NULL
      && !ebb_trainer_agree (self, ebb_train_record_log_step (&self->record, &self->log, self->pass.device, error),
                             error))
    return FALSE;
  return every == 0 || self->record.step % every != 0 || ebb_trainer_is_cancelled (self)
         || ebb_trainer_save_state (self, error);
}

static gboolean
run_step (EbbTrainer *self, GError **error)
{
  ebb_trainer_take_requests (self);
  if (self->must_poll && !ebb_train_ranks_poll (&self->ranks, error))
    return FALSE;
  self->must_poll = FALSE;
  self->ranks.agreed |= self->ranks.control == NULL ? self->ranks.requested : 0;
  if (ebb_trainer_is_cancelled (self))
    return TRUE;
  return plan_larger (self, error) && run_whole_step (self, error) && finish_step (self, error);
}

/* The state of the last whole step is saved, if this object has taken one. */
static gboolean
end_cancelled (EbbTrainer *self, GError **error)
{
  const gboolean is_saved = self->settings->resume == NULL || self->record.step == self->record.first_step
                            || ebb_trainer_save_state (self, error);

  ebb_trainer_forget_cancel (self);
  self->must_poll = TRUE;
  return is_saved && ebb_trainer_set_cancelled (error);
}

/**
 * ebb_trainer_run_step:
 * @self: a trainer
 * @cancellable: (nullable): ends the training after the running step
 * @error: return location for an error
 *
 * Takes one step, prepared if it is the first, then does what is due: it emits #EbbTrainer::stepped, measures held-out
 * data, writes the log, and saves the state. On ranks all call it together, and all end at the same step.
 *
 * A step that fails changes nothing, unless it has moved parameters already, and the state of the last whole step is
 * saved. On ranks it is saved if all of them know of the failure; see #EbbTrainer:is-failure-shared.
 *
 * Returns: %FALSE with @error set: %G_IO_ERROR_CANCELLED after the state was saved, %EBB_ERROR_STATE if the training is
 *   done, %EBB_ERROR_CALLBACK if a function failed without saying why
 */
gboolean
ebb_trainer_run_step (EbbTrainer *self, GCancellable *cancellable, GError **error)
{
  GError *failure = NULL;
  gboolean ok;

  if (!EBB_MAY_BEGIN (error, self) || !ebb_trainer_check_made (self, error))
    return FALSE;
  g_return_val_if_fail (cancellable == NULL || G_IS_CANCELLABLE (cancellable), FALSE);

  if (!ebb_trainer_prepare (self, cancellable, error) || !check_whole (self, error))
    return FALSE;
  if (ebb_trainer_is_done (self))
    return ebb_fail (error, EBB_ERROR_STATE,
                     "trainer: the training is done, at step %" G_GINT64_FORMAT ": raise steps to go on",
                     self->record.step);
  if (!begin_hooks (self, cancellable, error))
    return FALSE;
  self->cancellable = cancellable;
  self->ranks.failure_shared = FALSE;
  if (self->data_error != NULL)
    failure = g_steal_pointer (&self->data_error);
  ok = failure == NULL && run_step (self, &failure);
  if (!ok)
    save_after_failure (self);
  self->cancellable = NULL;
  if (!ok)
    {
      if (self->within.budget != NULL && !self->within.is_bound) /* the next step is planned again */
        ebb_trainer_release (self);
      g_propagate_error (error, failure);
      return FALSE;
    }
  return !ebb_trainer_is_cancelled (self) || end_cancelled (self, error);
}

/**
 * ebb_trainer_is_done:
 * @self: a trainer that is prepared
 *
 * Whether no step is left: all of #EbbTrainer:steps were taken, ebb_trainer_stop() was called, or the data has ended;
 * to see the last, it takes the next batch. On ranks all call it together.
 *
 * Returns: %TRUE if the training is done
 */
gboolean
ebb_trainer_is_done (EbbTrainer *self)
{
  g_return_val_if_fail (EBB_IS_TRAINER (self), TRUE);

  if ((self->steps != EBB_TRAINER_NO_STEPS && self->record.step >= self->steps)
      || (self->ranks.agreed & EBB_TRAIN_STOP) != 0
      || (self->ranks.control == NULL && (self->ranks.requested & EBB_TRAIN_STOP) != 0))
    return TRUE;
  if (self->source.data != NULL || self->data_error != NULL
      || (self->is_prepared && !ebb_train_source_fill (&self->source, &self->data_error)))
    return FALSE;
  return ebb_train_source_is_at_end (&self->source);
}

/**
 * ebb_trainer_finish:
 * @self: a trainer
 * @error: return location for an error
 *
 * Ends the training: waits for enqueued work, saves the state, and unlocks the folders. More steps may follow after
 * ebb_trainer_prepare(). On ranks all call it together.
 *
 * Returns: %FALSE with @error set; the folders are unlocked all the same
 */
gboolean
ebb_trainer_finish (EbbTrainer *self, GError **error)
{
  gboolean ok = TRUE;

  if (!EBB_MAY_BEGIN (error, self) || !ebb_trainer_check_made (self, error))
    return FALSE;

  self->ranks.failure_shared = FALSE;
  if (self->is_prepared && !self->is_broken)
    ok = begin_hooks (self, NULL, error) && settle (self, error)
         && ebb_trainer_agree (self, ebb_train_within_wait (&self->within, error), error)
         && (self->settings->resume == NULL || ebb_trainer_save_state (self, error))
         && (self->hooks.finish == NULL || self->hooks.finish (self, self->hooks.data, error));
  self->ranks.requested = self->ranks.agreed = 0;
  ebb_trainer_release (self);
  return ok && ebb_train_record_gather_ranks (&self->record, &self->ranks, self->pass.device, error);
}

/**
 * ebb_trainer_run:
 * @self: a trainer
 * @cancellable: (nullable): ends the training after the running step
 * @error: return location for an error
 *
 * Trains to the end: ebb_trainer_prepare(), ebb_trainer_run_step() until ebb_trainer_is_done(), and
 * ebb_trainer_finish(). It may be called again, with more #EbbTrainer:steps or after it was cancelled.
 *
 * Returns: %FALSE with @error set as by these functions
 */
gboolean
ebb_trainer_run (EbbTrainer *self, GCancellable *cancellable, GError **error)
{
  gboolean ok = TRUE;

  if (!EBB_MAY_BEGIN (error, self) || !ebb_trainer_check_made (self, error))
    return FALSE;

  if (!ebb_trainer_prepare (self, cancellable, error))
    return FALSE;
  while (ok && !ebb_trainer_is_done (self))
    ok = ebb_trainer_run_step (self, cancellable, error);
  if (ok)
    return ebb_trainer_finish (self, error);
  self->ranks.requested = self->ranks.agreed = 0;
  ebb_trainer_release (self);
  return FALSE;
}

/**
 * ebb_trainer_estimate:
 * @self: a trainer
 * @error: return location for an error
 *
 * Finds the memory of a step by dry runs of it. On ranks all call it together.
 *
 * Returns: (transfer full): the memory of a step, or %NULL with @error set
 */
EbbMemoryEstimate *
ebb_trainer_estimate (EbbTrainer *self, GError **error)
{
  if (!EBB_MAY_BEGIN (error, self) || !ebb_trainer_check_made (self, error))
    return NULL;

  if (!ebb_trainer_prepare (self, NULL, error) || !ebb_train_source_fill (&self->source, error))
    return NULL;
  return ebb_memory_estimate_new (self->model, self->pass.device, run_step_func, self, error);
}
