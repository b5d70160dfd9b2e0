/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Where the batches of a training come from: the rows of datasets, and functions of programs. */
#include "train/source-private.h"

#include "nn/models/bert.h"
#include "nn/models/gpt.h"
#include "tensor/dry-run.h"
#include "tensor/error-private.h"

#include <math.h>

void
ebb_train_source_init (EbbTrainSource *self)
{
  *self = (EbbTrainSource){ .queue = g_ptr_array_new_with_free_func ((GDestroyNotify) ebb_train_batch_free) };
}

void
ebb_train_batch_func_set (EbbTrainBatchFunc *self, EbbTrainerBatchFunc func, gpointer data, GDestroyNotify destroy)
{
  const EbbTrainBatchFunc old = *self;

  *self = (EbbTrainBatchFunc){ func, data, destroy };
  if (old.destroy != NULL)
    old.destroy (old.data);
}

void
ebb_train_source_clear (EbbTrainSource *self)
{
  ebb_train_batch_func_set (&self->batches, NULL, NULL, NULL);
  ebb_train_batch_func_set (&self->evaluated, NULL, NULL, NULL);
  g_clear_object (&self->data);
  g_clear_pointer (&self->queue, g_ptr_array_unref);
}

/* -- settings ------------------------------------------------------------------------------------------------------ */

static gboolean
check_data (const EbbTrainSource *self, gint64 steps, GError **error)
{
  const EbbTrainerSettings *settings = self->settings;
  const gboolean has_dataset = self->data != NULL || settings->evaluate != NULL;

  if ((self->data != NULL) == (self->batches.func != NULL))
    return ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT, "trainer: it has %s: give it one of both",
                     self->data != NULL ? "a dataset and a batch function" : "no dataset and no batch function");
  if (!has_dataset && (settings->batch_size > 0 || settings->context > 0))
    return ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT,
                     "trainer: %s %" G_GINT64_FORMAT " and a batch function: the function says how large batches are",
                     settings->batch_size > 0 ? "batch-size" : "context",
                     settings->batch_size > 0 ? settings->batch_size : settings->context);
  if (settings->epochs > 0 && self->data == NULL)
    return ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT,
                     "trainer: epochs %g and a batch function: set steps, or end the data by an empty batch",
                     settings->epochs);
  if (self->data != NULL && steps == EBB_TRAINER_NO_STEPS && settings->epochs == 0)
    return ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT, "trainer: neither steps nor epochs are set: set one of both");
  return TRUE;
}

gboolean
ebb_train_source_check (const EbbTrainSource *self, gint64 steps, GError **error)
{
  const EbbTrainerSettings *settings = self->settings;

  if (!check_data (self, steps, error))
    return FALSE;
  if (settings->evaluate != NULL && self->evaluated.func != NULL)
    return ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT,
                     "trainer: evaluate and an evaluate function are set: set one of both");
  if (ebb_train_source_has_evaluation (self))
    return TRUE;
  if (settings->evaluate_every > 0)
    return ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT,
                     "trainer: evaluate-every %" G_GINT64_FORMAT " without evaluate: set the data to measure",
                     settings->evaluate_every);
  if (settings->save_best != NULL)
    return ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT,
                     "trainer: save-best %s without evaluate: set the data that tells which weights are best",
                     settings->save_best);
  return TRUE;
}

/* The tokens that the model takes in a row; 0: it doesn't say. */
static gint64
get_model_context (EbbModule *model)
{
  g_autoptr (EbbBertConfig) config = NULL;

  if (EBB_IS_GPT (model))
    return ebb_gpt_get_max_positions (EBB_GPT (model));
  if (!EBB_IS_BERT (model))
    return 0;
  config = ebb_bert_get_config (EBB_BERT (model));
  return config->context;
}

gboolean
ebb_train_source_find_sizes (EbbTrainSource *self, EbbModule *model, gint64 *steps, GError **error)
{
  const EbbTrainerSettings *settings = self->settings;
  EbbDataset *evaluate = settings->evaluate;

  self->batch_size = settings->batch_size > 0 ? settings->batch_size : EBB_TRAINER_BATCH_SIZE;
  self->context = settings->context > 0 ? settings->context : get_model_context (model);
  if (self->context == 0 && (self->data != NULL || evaluate != NULL))
    return ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT,
                     "trainer: context is not set, and %s doesn't say how many tokens a row has",
                     G_OBJECT_TYPE_NAME (model));
  if ((self->data != NULL && !ebb_dataset_check_context (self->data, self->context, error))
      || (evaluate != NULL && !ebb_dataset_check_context (evaluate, self->context, error)))
    return FALSE;
  if (*steps == EBB_TRAINER_NO_STEPS && settings->epochs > 0)
    *steps = (gint64) ceil (MIN (settings->epochs * (double) ebb_dataset_get_n_rows (self->data, self->context)
                                     / ((double) self->batch_size * (double) settings->accumulate),
                                 1e15));
  return TRUE;
}

gboolean
ebb_train_source_has_evaluation (const EbbTrainSource *self)
{
  return self->settings->evaluate != NULL || self->evaluated.func != NULL;
}

/* -- batches ------------------------------------------------------------------------------------------------------- */

static EbbTrainBatch *
take_rows (const EbbTrainSource *self, EbbDataset *data, gint64 n_rows, GError **error)
{
  g_autoptr (EbbArgs) values = ebb_args_new (EBB_ARGS_DICT);
  g_autoptr (EbbTensor) tokens = NULL;
  g_autoptr (EbbTensor) targets = NULL;
  g_autoptr (EbbTensor) starts = NULL;

  if (!ebb_dataset_get_rows (data, n_rows, self->context, &tokens, &targets, &starts, error))
    return NULL;
  ebb_args_add_tensor (values, "tokens", tokens);
  ebb_args_add_tensor (values, "targets", targets);
  if (starts != NULL)
    ebb_args_add_tensor (values, "starts", starts);
  return ebb_train_batch_new (values, error);
}

/* *@batch is NULL at the end of the data. */
static gboolean
call_func (const EbbTrainBatchFunc *self, gint64 number, EbbTrainBatch **batch, GError **error)
{
  GError *failure = NULL;
  g_autoptr (EbbArgs) values = self->func (number, self->data, &failure);

  *batch = NULL;
  if (failure != NULL)
    {
      g_propagate_error (error, failure);
      return FALSE;
    }
  if (values == NULL)
    return ebb_fail (error, EBB_ERROR_CALLBACK,
                     "trainer: the batch function gave no batch %" G_GINT64_FORMAT " and no error: an empty "
                     "dictionary ends the data",
                     number);
  if (ebb_args_get_length (values) == 0)
    return TRUE;
  *batch = ebb_train_batch_new (values, error);
  if (*batch == NULL)
    g_prefix_error (error, "trainer: batch %" G_GINT64_FORMAT ": ", number);
  return *batch != NULL;
}

gboolean
ebb_train_source_fill (EbbTrainSource *self, GError **error)
{
  if (self->is_used)
    g_ptr_array_set_size (self->queue, 0);
  self->is_used = FALSE;
  while (self->data == NULL && !self->has_ended && self->queue->len < (guint) self->settings->accumulate)
    {
      EbbTrainBatch *batch;

      if (!call_func (&self->batches, self->n_batches + self->queue->len, &batch, error))
        return FALSE;
      if (batch != NULL)
        g_ptr_array_add (self->queue, batch);
      else
        self->has_ended = TRUE;
    }
  return TRUE;
}

GPtrArray *
ebb_train_source_take_step (EbbTrainSource *self, GError **error)
{
  g_autoptr (GPtrArray) batches = NULL;

  if (self->data == NULL)
    return ebb_is_dry_run () || ebb_train_source_fill (self, error) ? g_ptr_array_ref (self->queue) : NULL;
  batches = g_ptr_array_new_with_free_func ((GDestroyNotify) ebb_train_batch_free);
  for (gint64 i = 0; i < self->settings->accumulate; i++)
    {
      EbbTrainBatch *batch = take_rows (self, self->data, self->batch_size, error);

      if (batch == NULL)
        return NULL;
      g_ptr_array_add (batches, batch);
    }
  return g_steal_pointer (&batches);
}

void
ebb_train_source_end_step (EbbTrainSource *self, GPtrArray *batches)
{
  self->n_batches += batches->len;
  self->is_used = batches == self->queue;
}

void
ebb_train_source_get_size (const EbbTrainSource *self, gint64 *n_rows, guint64 *n_bytes)
{
  *n_rows = self->data != NULL ? self->batch_size : 0;
  *n_bytes = 0;
  for (guint i = 0; i < self->queue->len; i++)
    {
      const EbbTrainBatch *batch = self->queue->pdata[i];

      *n_rows = MAX (*n_rows, batch->n_rows);
      *n_bytes = MAX (*n_bytes, batch->n_bytes);
    }
}

gboolean
ebb_train_source_is_at_end (const EbbTrainSource *self)
{
  return self->has_ended && (self->is_used || self->queue->len == 0);
}

gboolean
ebb_train_source_take_measured (EbbTrainSource *self,
                                EbbDataset *data,
                                gint64 done,
                                gint64 number,
                                EbbTrainBatch **batch,
                                GError **error)
{
  const gint64 n_left = data != NULL ? ebb_dataset_get_n_rows (data, self->context) - done : 0;

  *batch = NULL;
  if (data == NULL)
    return call_func (&self->evaluated, number, batch, error);
  if (n_left <= 0)
    return TRUE;
  *batch = take_rows (self, data, MIN (n_left, self->batch_size), error);
  return *batch != NULL;
}
