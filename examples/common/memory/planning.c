/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* The memory budget of a training as the command line names it. */
#include "common/memory/planning.h"

#include "common/interrupt.h"
#include "common/memory/concessions.h"
#include "common/ranks/fault.h"
#include "common/report/rank-table.h"
#include "common/train/output.h"
#include "common/train/store.h"

#include <gio/gio.h>
#include <stdio.h>
#include <string.h>

gboolean
planning_refuse_interrupt (Ranks *ranks,
                           GError **error)
{
  const int status = ranks != NULL ? ranks->interrupt : interrupt_get_status ();

  if (status == 0 || status == INTERRUPT_CLOSED) /* a closed output lets a step finish first */
    return TRUE;
  if (ranks != NULL)
    ranks->failure_shared = TRUE; /* all have looked at the same time */
  g_set_error_literal (error, G_IO_ERROR, G_IO_ERROR_CANCELLED, "interrupted before the first step: nothing is kept");
  return FALSE;
}

/* Ranks look at their interrupts together, after each attempt. */
gboolean
planning_run_step (EbbModule *model,
                   gpointer trainer,
                   GError **error)
{
  return (((Trainer *) trainer)->ranks != NULL || planning_refuse_interrupt (NULL, error))
         && trainer_run_step (model, trainer, error);
}

/* -- words --------------------------------------------------------------------------------------------------------- */

static void
replace (GString *text,
         const char *what,
         const char *by)
{
  char *at = strstr (text->str, what);
  const gssize where = at != NULL ? at - text->str : -1;

  if (at == NULL)
    return;
  g_string_erase (text, where, (gssize) strlen (what));
  g_string_insert (text, where, by);
}

#define TOGETHER "ranks together need a budget of "

/* The library names a budget and its properties; the command line has options. @has_file: the plan is that of --plan.
 */
static void
name_options (const Options *options,
              gboolean has_file,
              gboolean is_device,
              GError *failure)
{
  const guint n_here = (guint) MAX (options->ranks.n_ranks, 1);
  g_autoptr (GString) text = g_string_new (failure->message);

  if (has_file)
    {
      replace (text, "plan-file ", "--plan ");
      replace (text, "and the budget is ", "and --memory is ");
    }
  else
    {
      g_autofree char *shared =
          is_device && n_here > 1 ? g_strdup_printf (", shared by %u ranks", n_here) : g_strdup ("");
      g_autofree char *prefix = options->memory_text != NULL
                                    ? g_strdup_printf ("--memory %s%s: ", options->memory_text, shared)
                                    : g_strdup_printf ("--checkpoint auto%s: ", shared);

      if (!is_device)
        replace (text, "a budget of ", "");
      if (strstr (text->str, TOGETHER) != NULL)
        {
          replace (text, TOGETHER, "ranks together need --memory ");
          g_string_truncate (text, text->len - strlen (" MiB")); /* --memory takes the number with its unit */
          g_string_append (text, "MiB");
        }
      g_string_prepend (text, prefix);
    }
  g_free (failure->message);
  failure->message = g_string_free (g_steal_pointer (&text), FALSE);
}

/* -- planning ------------------------------------------------------------------------------------------------------ */

static gboolean
is_on_device (const Trainer *trainer)
{
  return trainer->device != ebb_device_get_cpu ();
}

static EbbTrainingState *
make_training (const Trainer *trainer)
{
  return ebb_training_state_new (trainer->model, trainer->optimizer, trainer->dataset);
}

/* The step without the plan, to be drawn beside the one with it. */
static gboolean
record_unplanned (Planning *self,
                  Trainer *trainer,
                  GError **error)
{
  g_autoptr (EbbMemoryEstimate) estimate = NULL;
  GError *failure = NULL;

  if (!self->draws)
    return TRUE;
  estimate = ebb_memory_estimate_new (trainer->model, trainer->device, planning_run_step, trainer, error);
  if (estimate == NULL)
    return FALSE;
  if (trainer->options->memory_timeline != NULL) /* on ranks the first one's; mostly the planner has measured them */
    ebb_memory_estimate_measure_seconds (estimate, PLANNING_MAX_SECONDS, &failure);
  if (failure != NULL)
    {
      g_propagate_error (error, failure);
      return FALSE;
    }
  self->unplanned = g_object_ref (ebb_memory_estimate_get_timeline (estimate));
  ebb_memory_timeline_set_name (self->unplanned, "none");
  return TRUE;
}

/* Peaks are those of the training, not of measuring kernels and dry steps, and the training begins with a trimmed heap.
 */
static void
begin_training (const Options *options)
{
  EbbDevice *device = ebb_device_get (options->device, NULL);

  if (device != NULL)
    ebb_memory_reset_peaks (device);
  ebb_memory_reset_peaks (NULL);
  ebb_memory_trim (NULL);
  rank_table_begin_training ();
}

/* Whether there is a plan to read; on ranks the first one reads it. */
static gboolean
find_file (Planning *self,
           const Options *options,
           gboolean *is_there,
           GError **error)
{
  const gint64 own = options->plan != NULL && g_file_test (options->plan, G_FILE_TEST_EXISTS);
  g_autofree gint64 *all = self->ranks != NULL ? g_new (gint64, self->ranks->size) : NULL;

  if (self->ranks != NULL && !ranks_exchange (self->ranks, &own, 1, all, error))
    return FALSE;
  *is_there = (all != NULL ? all[0] : own) != 0;
  return TRUE;
}

/* Plans for @trainer, whose parts are of a dry run. */
static gboolean
make_plan (Planning *self,
           Trainer *trainer,
           gboolean has_file,
           GError **error)
{
  const Options *options = trainer->options;
  g_autoptr (EbbTrainingState) training = make_training (trainer);
  g_auto (GStrv) changes = concessions_list (options);
  EbbConcessions has = EBB_CONCESSIONS_NONE;
  GError *failure = NULL;

  for (guint i = 0; changes[i] != NULL; i++)
    has |= concessions_find (changes[i]);
  g_object_set (self->budget, "device", trainer->device, "store", store_for_plan (options, trainer->store), "has", has,
                NULL);
  if (!ebb_memory_budget_plan (self->budget, training, planning_run_step, trainer, &failure))
    {
      name_options (options, has_file, is_on_device (trainer), failure);
      g_propagate_error (error, failure);
      return FALSE;
    }
  if (!has_file)
    g_object_set (ebb_memory_budget_get_plan (self->budget), "needs", changes, NULL);
  return record_unplanned (self, trainer, error);
}

/* A ConcessionAttempt: one plan, for the options as they are. On ranks all fail together, with the same error. */
static gboolean
attempt (Options *options,
         gpointer data,
         guint64 *needed,
         GError **error)
{
  Planning *self = data;
  Trainer trainer;
  gboolean has_file, ok;

  ebb_memory_budget_release (self->budget); /* of an earlier attempt */
  g_clear_object (&self->unplanned);
  *needed = 0;
  if (!find_file (self, options, &has_file, error))
    return FALSE;
  if (!has_file && options->memory == 0 && !options->memory_is_auto)
    return options_refuse (error, "--plan %s: there is no such file; say --memory SIZE to make it", options->plan);
  ebb_push_dry_run ();
  ok = trainer_init (&trainer, options, self->ranks, error);
  if (self->ranks != NULL)
    ok = ranks_agree (self->ranks, ok, error);
  if (ok)
    {
      ok = make_plan (self, &trainer, has_file, error);
      g_object_get (self->budget, "least-bytes", needed, NULL);
      if (self->ranks != NULL && (ok || *needed > 0))
        ok = ranks_poll (self->ranks, ok ? error : NULL) && planning_refuse_interrupt (self->ranks, ok ? error : NULL)
             && ok;
    }
  g_object_set (self->budget, "store", NULL, NULL);
  trainer_clear (&trainer);
  ebb_pop_dry_run ();
  if (self->ranks != NULL)
    ranks_forget_models (self->ranks);
  return ok;
}

gboolean
planning_init (Planning *self,
               Options *options,
               Ranks *ranks,
               GError **error)
{
  GError *failure = NULL;
  gboolean ok;

  *self = (Planning){ .ranks = ranks, .draws = options->memory_timeline != NULL };
  ok = concessions_check (options, &failure);
  if (ok && options_have_plan (options) && options->steps > 0)
    {
      self->budget = ebb_memory_budget_new (options->memory);
      g_object_set (self->budget, "plan-file", options->plan, "group", ranks != NULL ? ranks->control : NULL, NULL);
      ok = concessions_take (options, ranks != NULL ? ranks->size : 1, attempt, self, &self->taken, &failure);
      ok = ok && fault_meet (ranks, "plan", 1, &failure);
      begin_training (options);
    }
  if (ok)
    return TRUE;
  if (ranks != NULL && !g_error_matches (failure, EBB_ERROR, EBB_ERROR_PROCESS_GROUP))
    ranks->failure_shared = TRUE; /* it is the same on all */
  g_propagate_error (error, failure);
  planning_clear (self);
  return FALSE;
}

void
planning_clear (Planning *self)
{
  if (self->budget != NULL)
    ebb_memory_budget_release (self->budget);
  g_clear_object (&self->budget);
  g_clear_pointer (&self->taken, g_free);
  g_clear_object (&self->unplanned);
}

/* -- applying ------------------------------------------------------------------------------------------------------ */

guint64
planning_get_bytes (EbbMemoryBudget *budget,
                    const char *name)
{
  g_autofree char *json = ebb_memory_budget_to_json (budget);
  g_autoptr (JsonNode) root = json_from_string (json, NULL);

  return (guint64) json_object_get_int_member_with_default (json_node_get_object (root), name, 0);
}

/* A plan of a file shows the budget that there is now. */
static void
print_plan (const Planning *self,
            const Trainer *trainer)
{
  EbbMemoryPlan *made = trainer->plan;
  g_autofree char *text = NULL;
  guint64 budget;

  g_object_get (made, "budget-bytes", &budget, NULL);
  g_object_set (made, "budget-bytes", trainer->limit, NULL);
  text = ebb_memory_plan_to_string (made);
  g_object_set (made, "budget-bytes", budget, NULL);
  printf ("%s%s%s\n", text, self->taken != NULL ? "taken, as --allow says: " : "",
          self->taken != NULL ? self->taken : "");
}

gboolean
planning_apply (Planning *self,
                Trainer *trainer,
                GError **error)
{
  const Options *options = trainer->options;
  g_autoptr (EbbTrainingState) training = NULL;

  if (options->steps == 0)
    return TRUE;
  if (options->checkpoint_kind == CHECKPOINT_AUTO && self->budget == NULL)
    return options_refuse (
        error, "--resume %s: this training had --checkpoint auto: say it again, or --checkpoint none", options->resume);
  if (self->budget == NULL)
    return TRUE;
  training = make_training (trainer);
  g_object_set (self->budget, "store", store_for_plan (options, trainer->store), NULL);
  if (!ebb_memory_budget_plan (self->budget, training, planning_run_step, trainer, error))
    return FALSE;
  g_set_object (&trainer->memory, self->budget);
  g_set_object (&trainer->plan, ebb_memory_budget_get_plan (self->budget));
  trainer->budget = planning_get_bytes (self->budget, "budget_bytes");
  trainer->limit = planning_get_bytes (self->budget, "limit_bytes");
  g_set_object (&trainer->unplanned, self->unplanned);
  if (!options->quiet)
    print_plan (self, trainer);
  return TRUE;
}

/* -- without a budget ---------------------------------------------------------------------------------------------- */

gboolean
planning_find_need (Trainer *trainer,
                    PlanningNeed *need,
                    GError **error)
{
  g_autoptr (EbbMemoryBudget) budget = ebb_memory_budget_new (1);
  g_autoptr (EbbTrainingState) training = make_training (trainer);
  g_autoptr (GError) failure = NULL;
  g_autofree char *json = NULL;
  g_autoptr (JsonNode) root = NULL;
  JsonObject *least;

  g_object_set (budget, "device", trainer->device, "store", store_for_plan (trainer->options, trainer->store), "group",
                trainer->ranks != NULL ? trainer->ranks->control : NULL, NULL);
  if (!ebb_memory_budget_plan (budget, training, planning_run_step, trainer, &failure)
      && !g_error_matches (failure, EBB_ERROR, EBB_ERROR_NO_MEMORY))
    {
      g_propagate_error (error, g_steal_pointer (&failure));
      return FALSE;
    }
  json = ebb_memory_budget_to_json (budget);
  root = json_from_string (json, NULL);
  least = json_object_get_object_member (json_node_get_object (root), "least");
  need->all = planning_get_bytes (budget, "least_bytes");
  need->tensors = (guint64) json_object_get_int_member (least, "tensors");
  need->gaps = (guint64) json_object_get_int_member (least, "gaps");
  need->own = (guint64) json_object_get_int_member (least, "own");
  return TRUE;
}

/* -- the report ---------------------------------------------------------------------------------------------------- */

static void
add_bytes (JsonBuilder *builder,
           const char *name,
           guint64 n_bytes)
{
  json_builder_set_member_name (builder, name);
  json_builder_add_int_value (builder, (gint64) n_bytes);
}

static guint64
get_bytes (EbbMemoryPlan *made,
           const char *property)
{
  guint64 n_bytes;

  g_object_get (made, property, &n_bytes, NULL);
  return n_bytes;
}

void
planning_add_json (const Trainer *trainer,
                   JsonBuilder *builder)
{
  g_autofree char *json = NULL;

  if (trainer->plan == NULL)
    return;
  json = ebb_memory_plan_to_json (trainer->plan);
  add_bytes (builder, "budget_bytes",
             trainer->budget > 0 ? trainer->budget : get_bytes (trainer->plan, "budget-bytes"));
  add_bytes (builder, "predicted_peak_bytes", get_bytes (trainer->plan, "predicted-peak-bytes"));
  add_bytes (builder, "least_bytes", get_bytes (trainer->plan, "least-bytes"));
  json_builder_set_member_name (builder, "plan");
  json_builder_add_value (builder, json_from_string (json, NULL));
  json_builder_set_member_name (builder, "corrections");
  json_builder_begin_array (builder);
  for (guint i = 0; i < trainer->corrections->len; i++)
    json_builder_add_string_value (builder, trainer->corrections->pdata[i]);
  json_builder_end_array (builder);
}
