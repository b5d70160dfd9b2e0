/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Keeps a planned training within its budget while it trains. */
#include "common/memory/keep.h"

#include "common/memory/planning.h"
#include "common/ranks/fault.h"
#include "common/train/output.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* What the budget did, as a line of the step. A step that wasn't compared is no correction. */
static void
note (EbbMemoryBudget *budget G_GNUC_UNUSED,
      const char *text,
      Keep *self)
{
  static const char uncompared[] = "the step wasn't compared";
  Trainer *trainer = self->trainer;
  const gboolean is_correction = !g_str_has_prefix (text, uncompared);
  char *line = is_correction
                   ? g_strdup_printf ("step %" G_GINT64_FORMAT ": %s", trainer->step, text)
                   : g_strdup_printf ("step %" G_GINT64_FORMAT "%s", trainer->step, text + strlen ("the step"));

  if (isatty (STDOUT_FILENO) && !trainer->options->quiet)
    putchar ('\n'); /* ends the line of progress */
  output_print_error (line);
  if (is_correction)
    g_ptr_array_add (trainer->corrections, line);
  else
    g_free (line);
}

void
keep_init (Keep *self,
           Trainer *trainer)
{
  *self = (Keep){ .trainer = trainer };
  if (trainer->ranks == NULL)
    self->training = ebb_training_state_new (trainer->model, trainer->optimizer, trainer->dataset);
  if (trainer->memory != NULL)
    self->handler = g_signal_connect (trainer->memory, "note", G_CALLBACK (note), self);
}

void
keep_clear (Keep *self)
{
  if (self->handler > 0)
    g_signal_handler_disconnect (self->trainer->memory, self->handler);
  g_clear_object (&self->training);
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
  double loss;

  if (ebb_is_dry_run ())
    return fault_meet (trainer->ranks, "check", trainer->step, error) && trainer_step (&dry, &loss, error);
  if (self->n_attempts++ > 0 && EBB_IS_CONTIGUOUS_STORE (trainer->store))
    ebb_contiguous_store_reset (EBB_CONTIGUOUS_STORE (trainer->store));
  return trainer_step (trainer, self->loss, error);
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

/* The budget may have another plan after a step. */
static void
take_plan (Trainer *trainer)
{
  if (trainer->plan == ebb_memory_budget_get_plan (trainer->memory))
    return;
  g_set_object (&trainer->plan, ebb_memory_budget_get_plan (trainer->memory));
  trainer->limit = planning_get_bytes (trainer->memory, "limit_bytes");
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
  ok = ebb_training_state_mark (self->training, &failure)
       && (trainer->memory != NULL ? ebb_memory_budget_run_step (trainer->memory, run, self, &failure)
                                   : run (NULL, self, &failure));
  if (ok && trainer->memory != NULL)
    take_plan (trainer);
  if (ok)
    return TRUE;
  if (g_error_matches (failure, EBB_ERROR, EBB_ERROR_NO_MEMORY))
    save_step_before (self);
  g_propagate_error (error, failure);
  return FALSE;
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
