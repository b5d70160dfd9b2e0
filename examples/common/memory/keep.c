/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Keeps a planned training within its budget while it trains. */
#include "common/memory/keep.h"

#include "common/ranks/fault.h"
#include "common/report/rank-table.h"
#include "common/train/output.h"
#include "common/train/store.h"

#include <stdio.h>
#include <unistd.h>

#define MIB (1024.0 * 1024.0)
/* Steps that are compared with the plan; the first one makes the optimizer's state. */
#define N_WATCHED 2

void
keep_init (Keep *self,
           Trainer *trainer)
{
  *self = (Keep){ .trainer = trainer };
  if (trainer->ranks == NULL)
    self->training = ebb_training_state_new (trainer->model, trainer->optimizer, trainer->dataset);
}

void
keep_clear (Keep *self)
{
  g_clear_object (&self->training);
  g_clear_pointer (&self->reason, g_free);
}

static void
print_line (const Trainer *trainer,
            const char *text)
{
  if (isatty (STDOUT_FILENO) && !trainer->options->quiet)
    putchar ('\n'); /* ends the line of progress */
  output_print_error (text);
}

/* Takes @text. */
static void
note (Trainer *trainer,
      char *text)
{
  print_line (trainer, text);
  g_ptr_array_add (trainer->corrections, text);
}

/* Dry steps count in a trainer of their own. */
static gboolean
run (EbbModule *model G_GNUC_UNUSED,
     gpointer user_data,
     GError **error)
{
  Keep *self = user_data;
  Trainer *trainer = self->trainer;
  Trainer dry = *trainer;
  GError *failure = NULL;
  double loss;

  if (ebb_is_dry_run ())
    return trainer_step (&dry, &loss, error);
  if (self->n_attempts++ > 0 && EBB_IS_CONTIGUOUS_STORE (trainer->store))
    ebb_contiguous_store_reset (EBB_CONTIGUOUS_STORE (trainer->store));
  if (trainer_step (trainer, self->loss, &failure))
    return TRUE;
  if (self->reason == NULL)
    self->reason = g_strdup (failure->message);
  g_propagate_error (error, failure);
  return FALSE;
}

/* Where nothing lasting has changed yet, the training may go on from the last step. */
static void
save_step_before (Keep *self)
{
  Trainer *trainer = self->trainer;
  g_autoptr (GError) failure = NULL; /* older states are still there */

  if (trainer->step > trainer->first_step && ebb_training_state_rewind (self->training, &failure))
    trainer_save_state (trainer, &failure);
}

gboolean
keep_step (Keep *self,
           double *loss,
           GError **error)
{
  Trainer *trainer = self->trainer;
  GError *failure = NULL;
  gboolean ok;

  if (self->training == NULL)
    return trainer_step (trainer, loss, error);
  self->loss = loss;
  self->n_attempts = 0;
  g_clear_pointer (&self->reason, g_free);
  ok = trainer->plan != NULL ? ebb_memory_plan_run_step (trainer->plan, self->training, run, self, &failure)
                             : ebb_training_state_mark (self->training, &failure) && run (NULL, self, &failure);
  if (!ok)
    {
      if (g_error_matches (failure, EBB_ERROR, EBB_ERROR_NO_MEMORY))
        save_step_before (self);
      g_propagate_error (error, failure);
    }
  else if (self->n_attempts > 1)
    {
      guint64 peak;

      g_object_get (trainer->plan, "predicted-peak-bytes", &peak, NULL);
      note (trainer, g_strdup_printf ("step %" G_GINT64_FORMAT ": %s; it ran again with a lower plan, whose peak is "
                                      "%.1f MiB",
                                      trainer->step, self->reason, (double) peak / MIB));
    }
  return ok;
}

/* -- the first steps ----------------------------------------------------------------------------------------------- */

/* Takes the plan that needs least. */
static gboolean
take_least (Trainer *trainer,
            GError **error)
{
  if (!ebb_memory_plan_apply (trainer->plan, error))
    return FALSE;
  while (ebb_memory_plan_lower (trainer->plan, NULL))
    ;
  return TRUE;
}

static guint64
subtract (guint64 a,
          guint64 b)
{
  return a > b ? a - b : 0;
}

/* Tensors get less by the bytes that passed the promise, since other memory needs these. A new plan is compared with
 * its own second step. */
static gboolean
plan_again (Keep *self,
            guint64 too_much,
            GError **error)
{
  Trainer *trainer = self->trainer;
  const guint64 limit = subtract (trainer->limit, too_much);
  g_autoptr (EbbMemoryPlan) plan = NULL;
  g_autofree char *budget = NULL;
  GError *failure = NULL;
  guint64 peak;

  ebb_memory_plan_unapply (trainer->plan);
  ebb_memory_trim (trainer->device); /* planning takes some, too */
  plan = ebb_memory_plan_new (trainer->model, trainer->device, store_for_plan (trainer->options, trainer->store), run,
                              self, limit, &failure);
  if (plan == NULL && !g_error_matches (failure, EBB_ERROR, EBB_ERROR_NO_MEMORY))
    {
      g_propagate_error (error, failure);
      return FALSE;
    }
  g_clear_error (&failure);
  if (plan != NULL)
    {
      g_set_object (&trainer->plan, plan);
      self->n_watched = 0;
    }
  if (!(plan != NULL ? ebb_memory_plan_apply (plan, error) : take_least (trainer, error)))
    return FALSE;
  g_object_get (trainer->plan, "predicted-peak-bytes", &peak, NULL);
  trainer->limit = MAX (limit, peak);
  g_object_set (trainer->plan, "budget-bytes", trainer->limit, NULL);
  trainer->heap = MAX (subtract (trainer->heap, too_much), peak);
  ebb_memory_set_limit (trainer->device, trainer->heap);
  note (trainer, g_strdup_printf ("step %" G_GINT64_FORMAT ": the training took %.1f MiB more than its budget of %.1f "
                                  "MiB; %s, whose peak is %.1f MiB",
                                  trainer->step, (double) too_much / MIB, (double) trainer->budget / MIB,
                                  plan != NULL ? "it was planned again" : "it goes on with the plan that needs least",
                                  (double) peak / MIB));
  return TRUE;
}

/* The bytes by which the training exceeds the promise: on the CPU that of the process, elsewhere that of the device's
 * tensors. */
static guint64
get_too_much (const Trainer *trainer)
{
  g_autoptr (EbbMemoryStats) stats = ebb_memory_get_stats (trainer->device);
  const gboolean on_cpu = trainer->device == ebb_device_get_cpu ();
  const guint64 peak = on_cpu ? (guint64) rank_table_get_training_rss_peak () : ebb_memory_stats_get_peak_total (stats);
  const guint64 promised = on_cpu ? trainer->budget : trainer->limit;

  return peak > promised ? peak - promised : 0;
}

/* A check that fails itself, for lack of memory for example, is no correction: the training goes on. */
static void
check_step (Keep *self)
{
  Trainer *trainer = self->trainer;
  g_autoptr (GError) failure = NULL;
  g_autofree char *text = NULL;

  ebb_memory_trim (trainer->device); /* a dry step takes some, too */
  if (fault_meet (trainer->ranks, "check", trainer->step, &failure)
      && ebb_memory_plan_check_step (trainer->plan, run, self, &failure))
    return;
  if (g_error_matches (failure, EBB_ERROR, EBB_ERROR_STATE))
    {
      note (trainer, g_strdup_printf ("step %" G_GINT64_FORMAT ": %s", trainer->step, failure->message));
      return;
    }
  text = g_strdup_printf ("step %" G_GINT64_FORMAT " wasn't compared with its plan: %s", trainer->step,
                          failure->message);
  print_line (trainer, text);
}

gboolean
keep_check (Keep *self,
            GError **error)
{
  Trainer *trainer = self->trainer;
  guint64 too_much;

  if (trainer->plan == NULL || self->training == NULL || self->n_watched == N_WATCHED)
    return TRUE;
  self->n_watched++;
  if (self->n_watched == N_WATCHED)
    check_step (self);
  too_much = self->is_corrected ? 0 : get_too_much (trainer);
  if (too_much == 0)
    return TRUE;
  self->is_corrected = TRUE;
  self->n_watched = N_WATCHED;
  return plan_again (self, too_much, error);
}

/* -- the end ------------------------------------------------------------------------------------------------------- */

void
keep_explain (const Trainer *trainer,
              GError **error)
{
  const char *folder = trainer->options->resume;
  const gboolean is_saved = trainer->found != 0 || trainer->saved_step > trainer->first_step;
  GError *failure;

  if (error == NULL || !g_error_matches (*error, EBB_ERROR, EBB_ERROR_NO_MEMORY))
    return;
  failure = *error;
  *error = NULL;
  if (folder != NULL && is_saved)
    g_set_error (error, failure->domain, failure->code,
                 "%s; --resume %s goes on from its last state, that of step %" G_GINT64_FORMAT, failure->message,
                 folder, trainer->saved_step);
  else if (folder != NULL)
    g_set_error (error, failure->domain, failure->code, "%s; no state was saved before", failure->message);
  else
    g_set_error (error, failure->domain, failure->code,
                 "%s; no state was saved: --resume FOLDER keeps one to go on from", failure->message);
  g_error_free (failure);
}
