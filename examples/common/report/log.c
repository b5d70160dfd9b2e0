/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* --log: numbers of each step, for programs and for TensorBoard. */
#include "common/report/log.h"

#include "common/report/rank-table.h"

/* An error begins with the name of the option. */
static gboolean
name_option (gboolean ok,
             GError **error)
{
  if (!ok)
    g_prefix_error (error, "--");
  return ok;
}

void
log_init_none (Log *self)
{
  *self = (Log){ .files = EBB_TRAINING_LOG_NONE };
}

gboolean
log_init (Log *self,
          const Trainer *trainer,
          GError **error)
{
  const Options *options = trainer->options;

  gboolean ok;

  self->trainer = trainer;
  if (options->log == NULL)
    return TRUE;
  ok = ebb_training_log_open (&self->files, options->log, options->resume, trainer->first_step, error);
  return name_option (ok, error);
}

void
log_clear (Log *self)
{
  ebb_training_log_close (&self->files);
}

/* The last measure of held-out data, if it is of this step. */
static const double *
get_evaluated_loss (const Trainer *trainer)
{
  const GArray *all = trainer->evaluations;
  const Evaluation *last = all->len > 0 ? &g_array_index (all, Evaluation, all->len - 1) : NULL;

  return last != NULL && last->step == trainer->step ? &last->loss : NULL;
}

gboolean
log_begin (Log *self,
           GError **error)
{
  const Trainer *trainer = self->trainer;
  const double *loss = get_evaluated_loss (trainer);

  return loss == NULL
         || name_option (ebb_training_log_add_evaluation (&self->files, trainer->step, *loss, error), error);
}

gboolean
log_step (Log *self,
          double loss,
          double seconds,
          GError **error)
{
  const Trainer *trainer = self->trainer;
  const Options *options = trainer->options;
  g_autoptr (EbbMemoryStats) stats = NULL;
  EbbLoggedStep step = { .step = trainer->step, .loss = loss, .seconds = seconds };
  double scale;

  if (options->log == NULL)
    return TRUE;
  stats = ebb_memory_get_stats (trainer->device);
  g_object_get (trainer->optimizer, "lr-scale", &scale, NULL);
  step.learning_rate = options->lr * scale;
  step.tokens = (double) options->batch * options->context * options->accumulate;
  step.peak_bytes = ebb_memory_stats_get_peak_total (stats);
  step.rss_peak_bytes = (guint64) rank_table_get_rss_peak ();
  return name_option (ebb_training_log_add_step (&self->files, &step, get_evaluated_loss (trainer), error), error);
}
