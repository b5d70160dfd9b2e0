/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Keeps a plan's promise while it trains: where memory runs out in a step, a lower plan takes over and the step runs
 * again. */
#include "wrap/plan/memory-plan-private.h"

#include "nn/state/training-state-private.h"
#include "tensor/dry-run.h"
#include "tensor/error-private.h"

#define MIB (1024.0 * 1024.0)
/* The second step is looked at: the first one makes the optimizer's state. */
#define WATCHED 2

EbbMemoryPlan *
ebb_memory_plan_new_below (EbbMemoryPlan *self)
{
  EbbMemoryPlan *lower = ebb_memory_plan_new_empty (self->model);

  lower->budget_bytes = self->budget_bytes;
  lower->least_bytes = self->least_bytes;
  lower->unplanned_peak_bytes = self->unplanned_peak_bytes;
  lower->is_on_ranks = self->is_on_ranks;
  g_free (lower->step);
  lower->step = g_strdup (self->step);
  return lower;
}

static void
swap_pointers (gpointer a,
               gpointer b)
{
  gpointer *x = a, *y = b, kept = *x;

  *x = *y;
  *y = kept;
}

/**
 * ebb_memory_plan_lower:
 * @self: a plan
 * @error: return location for an error
 *
 * Makes the plan the next lower one: it recomputes more and its peak is lower, and no bit of the training depends on
 * it. Lower plans are made together with a plan, down to the one that needs least. If the plan is applied, its wrappers
 * are replaced, so call it between steps.
 *
 * Returns: %FALSE with %EBB_ERROR_NO_MEMORY if there is no lower plan, or as by ebb_memory_plan_apply()
 */
gboolean
ebb_memory_plan_lower (EbbMemoryPlan *self,
                       GError **error)
{
  const gboolean is_applied = self != NULL && self->applied != NULL;
  g_autoptr (EbbMemoryPlan) lower = NULL;

  if (!EBB_MAY_BEGIN (error, self))
    return FALSE;
  g_return_val_if_fail (EBB_IS_MEMORY_PLAN (self), FALSE);

  if (self->lower == NULL)
    return ebb_fail (error, EBB_ERROR_NO_MEMORY, "no plan needs less than %.1f MiB",
                     (double) self->predicted_peak_bytes / MIB);
  ebb_memory_plan_unapply (self);
  lower = g_steal_pointer (&self->lower);
  swap_pointers (&self->rows, &lower->rows);
  swap_pointers (&self->rungs, &lower->rungs);
  swap_pointers (&self->binds, &lower->binds);
  swap_pointers (&self->lower, &lower->lower);
  self->predicted_peak_bytes = lower->predicted_peak_bytes;
  self->seconds = lower->seconds;
  self->step_seconds = lower->step_seconds;
  self->n_lowered++;
  return !is_applied || ebb_memory_plan_apply (self, error);
}

/* -- running ------------------------------------------------------------------------------------------------------- */

static gboolean
run (EbbMemoryPlan *self,
     EbbStepFunc step,
     gpointer user_data,
     guint64 missing_bytes,
     GError **error)
{
  g_clear_pointer (&self->watch, ebb_plan_watch_free);
  if (self->n_steps + 1 != WATCHED)
    return step (self->model, user_data, error);
  self->watch = ebb_plan_watch_run (self->model, step, user_data, missing_bytes, error);
  return self->watch != NULL;
}

/* What is done about @failure of a step. FALSE: nothing, and @error is that with the reason. */
static gboolean
step_down (EbbMemoryPlan *self,
           EbbTrainingState *training,
           const GError *failure,
           GError **error)
{
  g_autoptr (GError) reason = NULL;

  if (self->is_on_ranks)
    g_set_error (&reason, EBB_ERROR, EBB_ERROR_STATE, "steps on ranks don't, as the others would wait for this one");
  else if (ebb_training_state_rewind (training, &reason) && ebb_memory_plan_lower (self, &reason))
    return TRUE;
  return ebb_fail (error, EBB_ERROR_NO_MEMORY, "%s; the step can't run again: %s", failure->message, reason->message);
}

/**
 * ebb_memory_plan_run_step:
 * @self: a plan that is applied
 * @training: what the step changes: the model, the optimizer, the data and all generators
 * @step: (scope call) (closure user_data): one training step
 * @user_data: user data of @step
 * @error: return location for an error
 *
 * Runs a step. If memory runs out in it before it has changed anything lasting, the training goes back to where the
 * step began (ebb_training_state_rewind()), the plan is lowered (ebb_memory_plan_lower()), and the step runs again,
 * with the same bits as if nothing had happened: until it succeeds, or until no lower plan is left. @step leaves behind
 * no graph, begins or ends by dropping gradients, and sets values that it counts itself only when it succeeds.
 *
 * A step of a plan that was made or loaded on several ranks never runs again: the others would wait in its collectives.
 *
 * Returns: %FALSE with what @step reports; %EBB_ERROR_NO_MEMORY also says why the step can't run again
 */
gboolean
ebb_memory_plan_run_step (EbbMemoryPlan *self,
                          EbbTrainingState *training,
                          EbbStepFunc step,
                          gpointer user_data,
                          GError **error)
{
  guint64 missing_bytes = 0;

  if (!EBB_MAY_BEGIN (error, self, training))
    return FALSE;
  g_return_val_if_fail (EBB_IS_MEMORY_PLAN (self) && EBB_IS_TRAINING_STATE (training) && step != NULL, FALSE);

  if (ebb_is_dry_run ())
    return step (self->model, user_data, error);
  if (!self->is_on_ranks && !ebb_training_state_mark (training, error))
    return FALSE;
  while (TRUE)
    {
      g_autoptr (GError) failure = NULL;

      if (run (self, step, user_data, missing_bytes, &failure))
        {
          self->n_steps++;
          return TRUE;
        }
      if (!g_error_matches (failure, EBB_ERROR, EBB_ERROR_NO_MEMORY))
        {
          if (failure == NULL)
            g_set_error (error, EBB_ERROR, EBB_ERROR_CALLBACK, "the step failed without saying why");
          else
            g_propagate_error (error, g_steal_pointer (&failure));
          return FALSE;
        }
      if (!step_down (self, training, failure, error))
        return FALSE;
      missing_bytes = ebb_training_state_get_marked_grad_bytes (training);
    }
}

/**
 * ebb_memory_plan_check_step:
 * @self: a plan that is applied
 * @step: (scope call) (closure user_data): the same step
 * @user_data: user data of @step
 * @error: return location for an error
 *
 * Compares the second step by ebb_memory_plan_run_step() with the plan: call it right after that step. The first step
 * creates the optimizer's state, so the second step is the first that all later steps should equal. @step runs twice as
 * a dry run, which changes nothing, as in ebb_memory_plan_new().
 *
 * Returns: %FALSE with %EBB_ERROR_STATE, which names the first op that differs and its block, or the bytes; or with
 *   what @step reports
 */
gboolean
ebb_memory_plan_check_step (EbbMemoryPlan *self,
                            EbbStepFunc step,
                            gpointer user_data,
                            GError **error)
{
  g_autofree char *difference = NULL;
  GError *failure = NULL;

  if (!EBB_MAY_BEGIN (error, self))
    return FALSE;
  g_return_val_if_fail (EBB_IS_MEMORY_PLAN (self) && step != NULL, FALSE);

  if (self->watch == NULL)
    return ebb_fail (error, EBB_ERROR_STATE,
                     "there is no step to check: it is the second one by ebb_memory_plan_run_step (), before the "
                     "third");
  difference = ebb_plan_watch_compare (self->watch, self->model, step, user_data, &failure);
  if (failure != NULL)
    return ebb_fail_with (error, failure);
  g_clear_pointer (&self->watch, ebb_plan_watch_free);
  return difference == NULL
         || ebb_fail (error, EBB_ERROR_STATE, "the step isn't as it was planned: %s", difference);
}
