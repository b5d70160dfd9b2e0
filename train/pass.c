/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* The passes of a model over batches: the loss of each part, weighted by its share in the step, and the update. */
#include "train/pass-private.h"

#include "nn/models/bert.h"
#include "nn/models/gpt.h"
#include "tensor/autograd/autograd.h"
#include "tensor/autograd/parameter-owner-private.h"
#include "tensor/dry-run.h"
#include "tensor/error-private.h"
#include "tensor/ops/pointwise.h"
#include "wrap/gradient-sync.h"

#include <math.h>
#include <string.h>

G_DEFINE_ENUM_TYPE (EbbTrainerPhase,
                    ebb_trainer_phase,
                    G_DEFINE_ENUM_VALUE (EBB_TRAINER_PHASE_PLAN, "plan"),
                    G_DEFINE_ENUM_VALUE (EBB_TRAINER_PHASE_FORWARD, "forward"),
                    G_DEFINE_ENUM_VALUE (EBB_TRAINER_PHASE_BACKWARD, "backward"),
                    G_DEFINE_ENUM_VALUE (EBB_TRAINER_PHASE_EXCHANGE, "exchange"),
                    G_DEFINE_ENUM_VALUE (EBB_TRAINER_PHASE_UPDATE, "update"),
                    G_DEFINE_ENUM_VALUE (EBB_TRAINER_PHASE_EVALUATE, "evaluate"),
                    G_DEFINE_ENUM_VALUE (EBB_TRAINER_PHASE_SAVE, "save"),
                    G_DEFINE_ENUM_VALUE (EBB_TRAINER_PHASE_WAIT, "wait"))

static EbbDevice *
find_device (EbbModule *model)
{
  guint n;
  g_autofree EbbTensor **parameters = ebb_module_get_parameters (model, TRUE, &n);
  EbbDevice *device = n > 0 ? ebb_parameter_get_device (parameters[0]) : ebb_device_get_cpu ();

  for (guint i = 0; i < n; i++)
    ebb_tensor_unref (parameters[i]);
  return device;
}

void
ebb_train_pass_init (EbbTrainPass *self)
{
  *self = (EbbTrainPass){ .norm = NAN,
                          .names = g_ptr_array_new_with_free_func (g_free),
                          .pending = g_ptr_array_new (),
                          .sums = g_array_new (FALSE, TRUE, sizeof (double)) };
}

static void
drop_pending (EbbTrainPass *self)
{
  for (guint i = 0; i < self->pending->len; i++)
    g_clear_pointer (&self->pending->pdata[i], ebb_tensor_unref);
}

void
ebb_train_pass_set_model (EbbTrainPass *self, EbbModule *model)
{
  self->model = model;
  self->device = find_device (model);
}

void
ebb_train_pass_set_loss (EbbTrainPass *self, EbbTrainerLossFunc func, gpointer data, GDestroyNotify destroy)
{
  gpointer old = self->loss_data;
  GDestroyNotify destroy_old = self->destroy_loss_data;

  self->loss = func;
  self->loss_data = data;
  self->destroy_loss_data = destroy;
  if (destroy_old != NULL)
    destroy_old (old);
}

void
ebb_train_pass_clear (EbbTrainPass *self)
{
  ebb_train_pass_set_loss (self, NULL, NULL, NULL);
  if (self->pending != NULL)
    drop_pending (self);
  g_clear_pointer (&self->names, g_ptr_array_unref);
  g_clear_pointer (&self->pending, g_ptr_array_unref);
  g_clear_pointer (&self->sums, g_array_unref);
}

/* -- the model's own loss ------------------------------------------------------------------------------------------ */

gboolean
ebb_train_pass_check_loss (const EbbTrainPass *self, GError **error)
{
  if (self->loss != NULL || EBB_IS_GPT (self->model) || EBB_IS_BERT (self->model))
    return TRUE;
  return ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT,
                   "trainer: %s has no loss of its own, as Gpt and Bert have: set a loss function",
                   G_OBJECT_TYPE_NAME (self->model));
}

static gboolean
take_inputs (EbbArgs *batch, EbbTensor **inputs, GError **error)
{
  static const char *const names[] = { "tokens", "targets", "starts" };

  for (guint i = 0; i < ebb_args_get_length (batch); i++)
    {
      const char *key = ebb_args_get_key (batch, i);
      guint known = 0;

      while (known < G_N_ELEMENTS (names) && g_strcmp0 (key, names[known]) != 0)
        known++;
      if (known < G_N_ELEMENTS (names) && ebb_args_get_value_kind (batch, i) == EBB_VALUE_TENSOR)
        inputs[known] = ebb_args_get_tensor (batch, i);
      else if (g_strcmp0 (key, "weight") != 0)
        return ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT,
                         "batch: the model's loss takes tensors \"tokens\", \"targets\", and \"starts\": set a loss "
                         "function that reads \"%s\"",
                         key);
    }
  for (guint i = 0; i < 2; i++)
    if (inputs[i] == NULL)
      return ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT, "batch: it has no \"%s\", which the model's loss takes",
                       names[i]);
  return TRUE;
}

static EbbTensor *
compute_from (EbbModule *model, EbbTensor *tokens, EbbTensor *targets, EbbTensor *starts, GError **error)
{
  g_autoptr (EbbArgs) args = NULL;
  g_autoptr (EbbArgs) results = NULL;

  if (EBB_IS_BERT (model) && starts != NULL)
    return ebb_fail_null (error, EBB_ERROR_INVALID_ARGUMENT, "batch: \"starts\" are for a decoder, and the model is a "
                                                             "Bert: leave them out");
  if (EBB_IS_BERT (model))
    return ebb_bert_loss (EBB_BERT (model), tokens, NULL, NULL, targets, error);
  if (starts == NULL)
    return ebb_gpt_loss (EBB_GPT (model), tokens, targets, error);
  args = ebb_args_new (EBB_ARGS_TUPLE);
  ebb_args_add_tensor (args, NULL, tokens);
  ebb_args_add_tensor (args, "targets", targets);
  ebb_args_add_tensor (args, "starts", starts);
  results = ebb_module_call (model, args, error);
  return results != NULL ? ebb_args_get_tensor (results, 0) : NULL;
}

static EbbTensor *
compute_own (EbbModule *model, EbbArgs *batch, GError **error)
{
  EbbTensor *inputs[3] = { NULL };
  EbbTensor *loss = NULL;

  if (take_inputs (batch, inputs, error))
    loss = compute_from (model, inputs[0], inputs[1], inputs[2], error);
  for (guint i = 0; i < G_N_ELEMENTS (inputs); i++)
    g_clear_pointer (&inputs[i], ebb_tensor_unref);
  return loss;
}

/* -- a part -------------------------------------------------------------------------------------------------------- */

static gboolean
check_loss (EbbTensor *loss, GError **error)
{
  if (ebb_tensor_get_n_elements (loss) == 1 && ebb_dtype_is_floating_point (ebb_tensor_get_dtype (loss)))
    return TRUE;
  return ebb_fail (error, EBB_ERROR_SHAPE,
                   "trainer: the loss function returned a tensor of %" G_GINT64_FORMAT
                   " elements of %s: it must be one "
                   "floating-point number, a mean",
                   ebb_tensor_get_n_elements (loss), ebb_dtype_get_name (ebb_tensor_get_dtype (loss)));
}

static EbbTensor *
compute_loss (EbbTrainPass *self, const EbbTrainPart *part, GError **error)
{
  GError *failure = NULL;
  g_autoptr (EbbTensor) loss = NULL;

  self->is_running = TRUE;
  if (self->lowers)
    ebb_push_autocast (TRUE, EBB_DTYPE_BF16);
  loss = self->loss != NULL ? self->loss (self->model, part->values, self->loss_data, &failure)
                            : compute_own (self->model, part->values, &failure);
  if (self->lowers)
    ebb_pop_autocast ();
  self->is_running = FALSE;
  if (failure == NULL && loss == NULL)
    ebb_error_set (&failure, EBB_ERROR_CALLBACK, "trainer: the loss function failed without saying why");
  if (failure != NULL)
    {
      g_propagate_error (error, failure);
      return NULL;
    }
  return check_loss (loss, error) ? g_steal_pointer (&loss) : NULL;
}

static gboolean
read_number (EbbTensor *tensor, double *value, GError **error)
{
  g_autoptr (EbbTensor) host = NULL;

  *value = 0;
  if (ebb_is_dry_run ())
    return TRUE;
  host = ebb_to_device (tensor, ebb_device_get_cpu (), error);
  return host != NULL && ebb_tensor_get_item (host, value, error);
}

/* Ranks average their gradients, and the parts of a step add theirs, so each part's loss is weighted by its share.
 * Where shares vary from step to step, a weight of 1 is applied, too: a plan needs steps with the same ops. */
static gboolean
run_backward (EbbTrainPass *self, EbbTensor *loss, double share, gboolean is_whole, GError **error)
{
  g_autoptr (EbbTensor) weighted = NULL;

  if (is_whole || (!self->varies && share == 1))
    return ebb_tensor_backward (loss, error);
  weighted = ebb_mul_scalar (loss, share, error);
  return weighted != NULL && ebb_tensor_backward (weighted, error);
}

static gboolean
sum_metrics (EbbTrainPass *self, double share, GError **error)
{
  for (guint i = 0; i < self->pending->len; i++)
    {
      double value;

      if (self->pending->pdata[i] == NULL)
        continue;
      if (!read_number (self->pending->pdata[i], &value, error))
        return FALSE;
      if (share > 0)
        g_array_index (self->sums, double, i) += value * share;
    }
  drop_pending (self);
  return TRUE;
}

/* A part of a step. */
typedef struct
{
  const EbbTrainBatch *batch;
  const EbbTrainShare *share;
  guint number;        /* in @batch */
  guint64 done, total; /* parts of the step */
  double weight;       /* of the step */
} Place;

static gboolean
run_part (EbbTrainPass *self, const Place *place, double *loss, GError **error)
{
  const guint n_models = self->ranks->n_models;
  g_auto (EbbTrainPart) part = { 0 };
  g_autoptr (EbbTensor) result = NULL;
  double one;

  if (!ebb_train_batch_take_part (place->batch, place->share, place->number, self->device, &part, error)
      || !self->notify (self->notify_data, EBB_TRAINER_PHASE_FORWARD, place->done, place->total, error))
    return FALSE;
  result = compute_loss (self, &part, error);
  if (result == NULL
      || !self->notify (self->notify_data, EBB_TRAINER_PHASE_BACKWARD, place->done, place->total, error)
      || !run_backward (self, result, part.weight * n_models / place->weight, n_models == 1 && place->total == 1, error)
      || !read_number (result, &one, error))
    return FALSE;
  if (part.weight > 0) /* the loss of nothing is NaN */
    *loss += one * (part.weight / place->weight);
  return sum_metrics (self, part.weight / place->weight, error);
}

/* -- passes -------------------------------------------------------------------------------------------------------- */

static gboolean
run_parts (EbbTrainPass *self, GPtrArray *batches, Place *place, double *loss, GError **error)
{
  const gboolean syncs_last = self->ranks->control != NULL;
  gboolean ok = TRUE;

  for (guint i = 0; ok && i < batches->len; i++)
    {
      place->batch = batches->pdata[i];
      for (guint k = 0; ok && k < ebb_train_batch_count_parts (place->batch, place->share); k++)
        {
          place->number = k;
          if (syncs_last)
            ebb_push_gradient_sync (place->done == place->total - 1);
          ok = run_part (self, place, loss, error);
          if (syncs_last)
            ebb_pop_gradient_sync ();
          place->done++;
        }
    }
  return ok;
}

/* The loss goes with the metrics. */
static gboolean
exchange (EbbTrainPass *self, double *loss, GError **error)
{
  g_autoptr (GArray) values = g_array_new (FALSE, FALSE, sizeof (double));

  g_array_append_val (values, *loss);
  g_array_append_vals (values, self->sums->data, self->sums->len);
  if (!ebb_train_ranks_sum (self->ranks, (double *) values->data, values->len, error))
    return FALSE;
  *loss = g_array_index (values, double, 0);
  if (self->sums->len > 0 && !ebb_is_dry_run ())
    memcpy (self->sums->data, values->data + sizeof (double), self->sums->len * sizeof (double));
  return TRUE;
}

static gboolean
run_batches (EbbTrainPass *self, GPtrArray *batches, double weight, double *loss, GError **error)
{
  const EbbTrainShare share = { self->ranks->model, self->ranks->n_models, self->most_rows };
  Place place = { .share = &share, .weight = weight };
  gboolean ok;

  *loss = 0;
  drop_pending (self);
  for (guint i = 0; i < self->sums->len && !ebb_is_dry_run (); i++) /* a dry step leaves those of the last one */
    g_array_index (self->sums, double, i) = 0;
  for (guint i = 0; i < batches->len; i++)
    place.total += ebb_train_batch_count_parts (batches->pdata[i], &share);
  ok = run_parts (self, batches, &place, loss, error)
       && self->notify (self->notify_data, EBB_TRAINER_PHASE_EXCHANGE, 0, 0, error) && exchange (self, loss, error);
  drop_pending (self);
  return ok;
}

/* All ranks take the same rows. */
static gboolean
check_weight (EbbTrainPass *self, double weight, gint64 step, GError **error)
{
  if (weight > 0)
    return TRUE;
  self->ranks->failure_shared = TRUE;
  return ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT,
                   "the rows of step %" G_GINT64_FORMAT " have no token to predict: they need tokens that are not "
                   "special, or a larger batch-size",
                   step);
}

static gboolean
check_finite (EbbTrainPass *self, double loss, gint64 step, GError **error)
{
  double rate;

  if (isfinite (loss) || ebb_is_dry_run ())
    return TRUE;
  self->ranks->failure_shared = TRUE; /* all ranks have the same sum */
  g_object_get (self->optimizer, "lr", &rate, NULL);
  return ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT,
                   "the loss of step %" G_GINT64_FORMAT " is %g: a smaller learning rate than %g, or clip 1, may help",
                   step, isnan (loss) ? (double) NAN : loss, rate); /* without a sign */
}

static gboolean
clip (EbbTrainPass *self, GError **error)
{
  g_autoptr (EbbTensor) norm = NULL;

  if (self->clip == 0)
    return TRUE;
  norm = ebb_optimizer_clip_grad_norm (self->optimizer, self->clip, error);
  return norm != NULL && (ebb_is_dry_run () || read_number (norm, &self->norm, error));
}

gboolean
ebb_train_pass_take_step (EbbTrainPass *self, GPtrArray *batches, gint64 step, double *loss, GError **error)
{
  double weight = 0;

  for (guint i = 0; i < batches->len; i++)
    weight += ebb_train_batch_get_weight (batches->pdata[i]);
  if (!check_weight (self, weight, step, error))
    return FALSE;
  ebb_schedule_apply (self->schedule, self->optimizer); /* first: the backward pass may move parameters */
  if (!run_batches (self, batches, weight, loss, error) || !check_finite (self, *loss, step, error)
      || !self->notify (self->notify_data, EBB_TRAINER_PHASE_UPDATE, 0, 0, error) || !clip (self, error)
      || !ebb_optimizer_step (self->optimizer, error))
    return FALSE;
  ebb_optimizer_zero_grad (self->optimizer);
  return TRUE;
}

gboolean
ebb_train_pass_measure (EbbTrainPass *self, const EbbTrainBatch *batch, double *sum, GError **error)
{
  const EbbTrainShare share = { self->ranks->model, self->ranks->n_models, self->most_rows };
  double all = 0;

  for (guint i = 0; i < ebb_train_batch_count_parts (batch, &share); i++)
    {
      g_auto (EbbTrainPart) part = { 0 };
      g_autoptr (EbbTensor) result = NULL;
      double one;

      if (!ebb_train_batch_take_part (batch, &share, i, self->device, &part, error))
        return FALSE;
      ebb_push_grad_enabled (FALSE);
      result = compute_loss (self, &part, error);
      ebb_pop_grad_enabled ();
      drop_pending (self);
      if (result == NULL || !read_number (result, &one, error))
        return FALSE;
      all += part.weight > 0 ? one * part.weight : 0;
    }
  *sum += all;
  return TRUE;
}

/* -- metrics ------------------------------------------------------------------------------------------------------- */

void
ebb_train_pass_add_metric (EbbTrainPass *self, const char *name, EbbTensor *value)
{
  guint i = 0;

  if (!self->is_running || ebb_is_dry_run ())
    return;
  while (i < self->names->len && strcmp (self->names->pdata[i], name) != 0)
    i++;
  if (i == self->names->len)
    {
      const double zero = 0;

      g_ptr_array_add (self->names, g_strdup (name));
      g_ptr_array_add (self->pending, NULL);
      g_array_append_val (self->sums, zero);
    }
  g_clear_pointer (&self->pending->pdata[i], ebb_tensor_unref);
  self->pending->pdata[i] = ebb_tensor_detach (value);
}
