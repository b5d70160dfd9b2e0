/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Plans the step of a trainer within a memory budget, with as few changes of values as that takes. */
#include "train/within-private.h"

#include "nn/models/gpt.h"
#include "nn/optim/adam.h"
#include "nn/optim/optimizer-private.h"
#include "offload/activation-store.h"
#include "tensor/dry-run.h"
#include "tensor/error-private.h"
#include "train/concessions-private.h"
#include "train/memory-budget-private.h"

#define LOSS_CHUNK_PART 4 /* of the device's own chunk of logits */

/* -- changes ------------------------------------------------------------------------------------------------------- */

static gint64
divide_up (gint64 n, gint64 by)
{
  return (n + by - 1) / by;
}

/* Notes what there is without changes. */
static void
begin (EbbTrainChanges *self, const EbbTrainParts *parts)
{
  EbbOptimizer *optimizer = parts->pass->optimizer;

  self->n_rows = divide_up (parts->n_rows, parts->pass->ranks->n_models);
  if (self->is_begun)
    return;
  self->is_begun = TRUE;
  self->has_moments = g_object_class_find_property (G_OBJECT_GET_CLASS (optimizer), "moment-format") != NULL;
  if (self->has_moments)
    g_object_get (optimizer, "moment-format", &self->moment_format, NULL);
  self->has_steps = ebb_optimizer_get_kind (optimizer) != NULL;
  g_object_get (optimizer, "step-in-backward", &self->steps_in_backward, NULL);
  self->lowers = parts->pass->lowers && EBB_IS_GPT (parts->pass->model);
  self->is_whole =
      parts->settings->clip == 0 && parts->settings->accumulate == 1 && parts->settings->micro_batch_size == 0;
  self->most_rows = parts->pass->most_rows;
  self->loss_chunk = ebb_device_get_loss_chunk (parts->pass->device);
}

/* Puts the changes on @parts. */
static void
apply (EbbTrainChanges *self, const EbbTrainParts *parts)
{
  EbbOptimizer *optimizer = parts->pass->optimizer;
  const gboolean cuts_chunk = (self->taken & EBB_CONCESSIONS_LOSS_CHUNK) != 0;
  int format = self->moment_format;

  if ((self->taken & EBB_CONCESSIONS_EIGHT_BIT_MOMENTS) != 0)
    format = EBB_MOMENT_FORMAT_EIGHT_BIT;
  else if ((self->taken & EBB_CONCESSIONS_BF16_MOMENTS) != 0)
    format = EBB_MOMENT_FORMAT_BF16;
  if (self->has_moments)
    g_object_set (optimizer, "moment-format", format, NULL);
  if (self->has_steps)
    g_object_set (optimizer, "step-in-backward",
                  self->steps_in_backward || (self->taken & EBB_CONCESSIONS_STEP_IN_BACKWARD) != 0, NULL);
  parts->pass->most_rows = (self->taken & EBB_CONCESSIONS_MICRO_BATCHES) != 0
                               ? divide_up (self->n_rows, self->n_parts)
                               : self->most_rows;
  if (cuts_chunk || self->device != NULL)
    ebb_device_set_loss_chunk (parts->pass->device, cuts_chunk ? self->loss_chunk / LOSS_CHUNK_PART : self->loss_chunk);
  self->device = cuts_chunk ? parts->pass->device : NULL;
}

/* Gives the device back what was changed of it. What the model and the optimizer have stays; a later plan keeps it. */
static void
end_changes (EbbTrainChanges *self)
{
  if (self->device != NULL)
    ebb_device_set_loss_chunk (self->device, self->loss_chunk);
  self->device = NULL;
}

/* -- the search ---------------------------------------------------------------------------------------------------- */

typedef struct
{
  EbbMemoryBudget *budget;
  const EbbTrainMakeFuncs *funcs; /* NULL: the parts are there */
  gpointer data;
  EbbTrainChanges *changes;
  EbbConcessions kept;  /* taken from the first try, or by an earlier plan */
  guint kept_parts;     /* of rows, by an earlier plan */
  EbbConcessions allow; /* others are tried as well, to tell which would help */
  guint64 least;        /* the smallest budget that would do with those that are allowed; 0: none is known */
} Search;

static void
reset (gpointer data)
{
  Search *self = data;

  self->changes->taken = self->kept;
  self->changes->n_parts = self->kept_parts;
}

/* A step in backward can't add gradients up. */
static gboolean
cuts_rows (const EbbTrainChanges *self, guint n_parts)
{
  const gint64 rows = divide_up (self->n_rows, n_parts);

  return !self->steps_in_backward && self->n_rows >= n_parts && !(self->most_rows > 0 && self->most_rows <= rows);
}

static gboolean
is_of_use (const Search *self, EbbConcessions change, guint n_parts)
{
  const EbbTrainChanges *changes = self->changes;

  switch (change)
    {
    case EBB_CONCESSIONS_LOSS_CHUNK: return changes->loss_chunk > 0;
    case EBB_CONCESSIONS_MICRO_BATCHES: return cuts_rows (changes, n_parts);
    case EBB_CONCESSIONS_BF16_MOMENTS:
      return changes->has_moments && changes->moment_format == EBB_MOMENT_FORMAT_F32;
    case EBB_CONCESSIONS_EIGHT_BIT_MOMENTS:
      return changes->has_moments && changes->moment_format != EBB_MOMENT_FORMAT_EIGHT_BIT;
    case EBB_CONCESSIONS_BF16_RESIDUAL: return self->funcs != NULL && changes->lowers;
    case EBB_CONCESSIONS_STEP_IN_BACKWARD:
      return changes->has_steps && !changes->steps_in_backward && changes->is_whole;
    case EBB_CONCESSIONS_NONE:
    case EBB_CONCESSIONS_BF16_WEIGHTS:
    default: return FALSE;
    }
}

static gboolean
take (gpointer data, EbbConcessions change, guint n_parts)
{
  Search *self = data;

  if (!is_of_use (self, change, n_parts))
    return FALSE;
  self->changes->taken |= change;
  if (change == EBB_CONCESSIONS_MICRO_BATCHES)
    self->changes->n_parts = MAX (n_parts, self->kept_parts);
  return TRUE;
}

static void
set_group (EbbMemoryBudget *budget, const EbbTrainParts *parts)
{
  g_object_set (budget, "group", parts->pass->ranks->control, NULL);
}

static gboolean
plan (Search *self, const EbbTrainParts *parts, guint64 *needed, GError **error)
{
  GError *failure = NULL;

  set_group (self->budget, parts);
  if (ebb_memory_budget_plan (self->budget, parts->state, parts->step, parts->data, &failure))
    return TRUE;
  if (g_error_matches (failure, EBB_ERROR, EBB_ERROR_NO_MEMORY))
    *needed = self->budget->least_bytes;
  if (*needed > 0 && (self->changes->taken & ~self->allow) == 0 && (self->least == 0 || *needed < self->least))
    self->least = *needed;
  g_propagate_error (error, failure);
  return FALSE;
}

static gboolean
attempt (gpointer data, guint64 *needed, GError **error)
{
  Search *self = data;
  const EbbTrainParts *parts = self->data;
  gboolean ok;

  *needed = 0;
  ebb_memory_budget_release (self->budget); /* of an earlier attempt */
  if (self->funcs == NULL)                  /* with what the process has beside the training */
    {
      begin (self->changes, parts);
      apply (self->changes, parts);
      return plan (self, parts, needed, error);
    }
  ebb_push_dry_run ();
  parts = self->funcs->make (self->data, self->changes->taken, error);
  if (parts != NULL)
    {
      begin (self->changes, parts);
      apply (self->changes, parts);
    }
  ok = parts != NULL && plan (self, parts, needed, error);
  g_object_set (self->budget, "group", NULL, NULL);
  self->funcs->drop (self->data);
  ebb_pop_dry_run ();
  return ok;
}

gboolean
ebb_train_within_search (EbbMemoryBudget *budget,
                         const EbbTrainMakeFuncs *funcs,
                         gpointer data,
                         EbbTrainChanges *changes,
                         GError **error)
{
  static const EbbConcessionFuncs search_funcs = { reset, take, attempt };
  Search search = { budget, funcs, data, changes, changes->taken, MAX (changes->n_parts, 1), budget->allow, 0 };
  EbbConcessions taken, enough;
  g_autofree char *names = NULL;
  GError *failure = NULL;

  if (funcs != NULL)
    search.kept |= budget->allow & EBB_CONCESSIONS_BF16_WEIGHTS;
  reset (&search);
  if (ebb_concessions_search (&search_funcs, &search, budget->allow, budget->plan_file != NULL, &taken, &enough,
                              &failure))
    {
      changes->taken = taken | search.kept;
      ebb_memory_budget_set_taken (budget, changes->taken);
      return TRUE;
    }
  ebb_memory_budget_release (budget);
  budget->least_bytes = search.least;
  changes->taken = EBB_CONCESSIONS_NONE;
  if (funcs == NULL)
    apply (changes, data);
  end_changes (changes);
  *changes = (EbbTrainChanges){ EBB_CONCESSIONS_NONE };
  names = ebb_concessions_to_string (enough);
  if (enough != EBB_CONCESSIONS_NONE)
    ebb_error_set (error, (EbbError) failure->code, "%s; with allow %s it fits", failure->message, names);
  else
    g_propagate_error (error, g_steal_pointer (&failure));
  g_clear_error (&failure);
  return FALSE;
}

void
ebb_train_within_drop (EbbMemoryBudget *budget, EbbTrainChanges *changes)
{
  ebb_memory_budget_release (budget);
  ebb_memory_budget_set_taken (budget, EBB_CONCESSIONS_NONE);
  end_changes (changes);
}

/* -- a trainer ----------------------------------------------------------------------------------------------------- */

gboolean
ebb_train_within_begin (EbbTrainWithin *self, EbbTrainPoll poll, EbbTrainNote note, gpointer data, GError **error)
{
  const EbbTrainParts *parts = &self->parts;
  gboolean ok;

  if (self->budget == NULL || self->is_bound || ebb_is_dry_run ())
    return TRUE;
  if (!self->is_planned && ebb_memory_budget_get_plan (self->budget) != NULL)
    return ebb_fail (error, EBB_ERROR_STATE,
                     "trainer: its budget has a plan of another training: ebb_memory_budget_release () takes it off");
  ebb_memory_budget_set_poll (self->budget, poll, data);
  if (self->is_planned)
    {
      apply (&self->changes, parts);
      set_group (self->budget, parts);
      ok = ebb_memory_budget_plan (self->budget, parts->state, parts->step, parts->data, error);
    }
  else
    ok = ebb_train_within_search (self->budget, NULL, &self->parts, &self->changes, error);
  ebb_memory_budget_set_poll (self->budget, NULL, NULL);
  self->is_planned = FALSE;
  self->is_bound = TRUE; /* or what a failure left */
  if (ok)
    self->handler = g_signal_connect (self->budget, "note", G_CALLBACK (note), data);
  else
    ebb_train_within_end (self);
  return ok;
}

gboolean
ebb_train_within_run_step (EbbTrainWithin *self, GError **error)
{
  const EbbTrainParts *parts = &self->parts;

  return self->is_bound ? ebb_memory_budget_run_step (self->budget, parts->step, parts->data, error)
                        : parts->step (parts->pass->model, parts->data, error);
}

gboolean
ebb_train_within_wait (const EbbTrainWithin *self, GError **error)
{
  EbbSavedTensorHooks *store = self->is_bound ? self->budget->store : NULL;

  return store == NULL || !EBB_IS_ACTIVATION_STORE (store)
         || ebb_activation_store_synchronize (EBB_ACTIVATION_STORE (store), error);
}

void
ebb_train_within_end (EbbTrainWithin *self)
{
  if (!self->is_bound && !self->is_planned)
    return;
  g_free (self->report);
  self->report = ebb_memory_budget_to_json (self->budget);
  g_clear_signal_handler (&self->handler, self->budget);
  ebb_memory_budget_release (self->budget);
  end_changes (&self->changes);
  self->is_bound = self->is_planned = FALSE;
}

char *
ebb_train_within_to_json (const EbbTrainWithin *self)
{
  return self->is_bound ? ebb_memory_budget_to_json (self->budget) : g_strdup (self->report);
}

void
ebb_train_within_clear (EbbTrainWithin *self)
{
  ebb_train_within_end (self);
  g_clear_object (&self->budget);
  g_clear_pointer (&self->report, g_free);
}
