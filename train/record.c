/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* How far a training is, and what its report and its line of text say about that. */
#include "train/record-private.h"

#include "dist/init.h"
#include "train/batch-private.h"
#include "train/memory-budget-private.h"
#include "train/progress-private.h"
#include "wrap/lora/lora-private.h"

#include <math.h>

#define RECENT 10 /* steps whose median time is shown */

void
ebb_train_record_init (EbbTrainRecord *self)
{
  *self = (EbbTrainRecord){ .loss = NAN,
                            .evaluated_loss = NAN,
                            .best_loss = NAN,
                            .rate = NAN,
                            .losses = g_array_new (FALSE, FALSE, sizeof (double)),
                            .seconds = g_array_new (FALSE, FALSE, sizeof (double)),
                            .evaluations = g_array_new (FALSE, FALSE, sizeof (EbbEvaluation)) };
}

void
ebb_train_record_clear (EbbTrainRecord *self)
{
  g_free (self->rank_values);
  g_clear_pointer (&self->losses, g_array_unref);
  g_clear_pointer (&self->seconds, g_array_unref);
  g_clear_pointer (&self->evaluations, g_array_unref);
}

void
ebb_train_record_note_step (EbbTrainRecord *self, EbbOptimizer *optimizer, GPtrArray *batches, double loss)
{
  double rate, scale;

  g_object_get (optimizer, "lr", &rate, "lr-scale", &scale, NULL);
  self->rate = rate * scale;
  self->loss = loss;
  self->n_tokens = 0;
  for (guint i = 0; i < batches->len; i++)
    self->n_tokens += ebb_train_batch_count_tokens (batches->pdata[i]);
  self->step++;
}

void
ebb_train_record_add_step (EbbTrainRecord *self, double seconds)
{
  g_array_append_val (self->losses, self->loss);
  g_array_append_val (self->seconds, seconds);
  self->most_resident = MAX (self->most_resident, ebb_budget_read_resident ());
}

gboolean
ebb_train_record_add_evaluation (EbbTrainRecord *self, double loss, gboolean may_be_best)
{
  const gboolean is_best = may_be_best && !isnan (loss) && (self->best_step == 0 || loss < self->best_loss);
  const EbbEvaluation evaluation = { self->step, loss, is_best };

  if (is_best)
    {
      self->best_loss = loss;
      self->best_step = self->step;
    }
  self->evaluated_loss = loss;
  g_array_append_val (self->evaluations, evaluation);
  return is_best;
}

/* The held-out loss of the last step, or NULL if it was not measured. */
static const double *
get_evaluated (const EbbTrainRecord *self)
{
  const GArray *all = self->evaluations;
  const EbbEvaluation *last = all->len > 0 ? &g_array_index (all, EbbEvaluation, all->len - 1) : NULL;

  return last != NULL && last->step == self->step ? &last->loss : NULL;
}

gboolean
ebb_train_record_log_step (const EbbTrainRecord *self, EbbTrainingLog *log, EbbDevice *device, GError **error)
{
  EbbLoggedStep step = { .step = self->step, .loss = self->loss, .learning_rate = self->rate };
  g_autoptr (EbbMemoryStats) stats = NULL;

  if (log->lines < 0)
    return TRUE;
  stats = ebb_memory_get_stats (device);
  step.seconds = g_array_index (self->seconds, double, self->seconds->len - 1);
  step.tokens = (double) self->n_tokens;
  step.peak_bytes = ebb_memory_stats_get_peak_total (stats);
  step.rss_peak_bytes = ebb_training_report_get_rss_peak ();
  return ebb_training_log_add_step (log, &step, get_evaluated (self), error);
}

double
ebb_train_record_get_speed (const EbbTrainRecord *self)
{
  const double seconds = ebb_progress_get_median (self->seconds, RECENT);

  return seconds > 0 ? (double) self->n_tokens / seconds : 0;
}

static void
take_rank (EbbDevice *device, EbbMesh *mesh, gint64 *values)
{
  g_auto (GStrv) names = ebb_mesh_get_names (mesh);
  g_autoptr (GPtrArray) groups = g_ptr_array_new ();

  g_ptr_array_add (groups, ebb_process_group_get_default ());
  for (guint i = 0; names[i] != NULL; i++)
    {
      EbbProcessGroup *group = ebb_mesh_get_group (mesh, names[i]);

      if (!g_ptr_array_find (groups, group, NULL)) /* a dimension of all ranks has the default group */
        g_ptr_array_add (groups, group);
    }
  ebb_training_report_take_rank (device, (EbbProcessGroup *const *) groups->pdata, groups->len, values);
}

gboolean
ebb_train_record_gather_ranks (EbbTrainRecord *self, EbbTrainRanks *ranks, EbbDevice *device, GError **error)
{
  gint64 mine[EBB_N_RANK_VALUES];

  if (ranks->mesh == NULL)
    return TRUE;
  g_free (self->rank_values);
  self->rank_values = g_new0 (gint64, (gsize) ranks->size * EBB_N_RANK_VALUES);
  self->n_ranks = ranks->size;
  take_rank (device, ranks->mesh, mine);
  return ebb_train_ranks_gather (ranks, mine, EBB_N_RANK_VALUES, self->rank_values, error);
}

char *
ebb_train_record_to_json (const EbbTrainRecord *self, EbbModule *model, EbbDevice *device, const char *budget)
{
  const EbbTrainingReport report = { .model = model,
                                     .device = device,
                                     .losses = self->losses,
                                     .seconds = self->seconds,
                                     .evaluations = self->evaluations,
                                     .step_tokens = (double) self->n_tokens,
                                     .first_step = self->first_step,
                                     .last_step = self->step,
                                     .best_step = self->best_step,
                                     .best_loss = self->best_loss,
                                     .n_parameters =
                                         ebb_module_count_parameters (model) - ebb_lora_count_parameters (model),
                                     .rss_peak_before_bytes = self->rss_peak_before,
                                     .budget = budget,
                                     .rank_values = self->rank_values,
                                     .n_ranks = self->n_ranks };

  return ebb_training_report_to_json (&report);
}

/* Bytes that count in the budget: a peak from before the training doesn't. */
static guint64
get_used_bytes (const EbbTrainRecord *self,
                EbbDevice *device,
                EbbMemoryStats *stats)
{
  const guint64 peak = ebb_training_report_get_rss_peak ();

  if (device != ebb_device_get_cpu ())
    return ebb_memory_stats_get_peak_total (stats);
  return peak > self->rss_peak_before ? peak : self->most_resident;
}

char *
ebb_train_record_get_progress (const EbbTrainRecord *self,
                               EbbDevice *device,
                               guint64 budget,
                               gint64 n_steps,
                               guint n_columns)
{
  g_autoptr (EbbMemoryStats) stats = ebb_memory_get_stats (device);
  const EbbProgress progress = { .step = self->step,
                                 .n_steps = MAX (n_steps, self->step),
                                 .loss = self->loss,
                                 .tokens_per_second = ebb_train_record_get_speed (self),
                                 .seconds_left = (double) (MAX (n_steps, self->step) - self->step)
                                                 * ebb_progress_get_median (self->seconds, RECENT),
                                 .budget_bytes = budget,
                                 .used_bytes = budget > 0 ? get_used_bytes (self, device, stats) : 0,
                                 .stats = stats,
                                 .owner = "" };

  return ebb_progress_format (&progress, n_columns);
}
