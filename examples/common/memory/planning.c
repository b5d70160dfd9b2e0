/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* From a budget of bytes to a plan for the training, and the plan's effect on it. */
#include "common/memory/planning.h"

#include "common/interrupt.h"
#include "common/memory/concessions.h"
#include "common/ranks/fault.h"
#include "common/report/rank-table.h"
#include "common/train/output.h"
#include "common/train/store.h"

#include <gio/gio.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define MIB (1024.0 * 1024.0)
/* What a process takes during a training beside tensors: stacks, tables, libraries' own memory. */
#define RESERVE ((guint64) 18 << 20)
/* By so much that differs from one start to the next. */
#define OWN_VARIES ((guint64) 1 << 20)
/* How many limits are tried before the plan that needs least is taken. */
#define N_LIMITS 10
/* oneDNN packs matrices on each thread, in memory of malloc: at most so many bytes, and of a small model's one for so
 * many of the heap, as far as was seen. */
#define PACKED ((guint64) 10 << 20)
#define PART_PACKED 16
/* Ranks that are threads have one heap, in which blocks of one are in the way of others'. Of its bytes, so much is
 * lost. */
#define PART_LOST_AMONG_THREADS 8

/* -- the budget ---------------------------------------------------------------------------------------------------- */

/* Resident bytes of this process. */
static guint64
get_own_bytes (void)
{
  g_autofree char *text = NULL;
  guint64 n_all, n_resident = 0;

  if (g_file_get_contents ("/proc/self/statm", &text, NULL, NULL)
      && sscanf (text, "%" G_GUINT64_FORMAT " %" G_GUINT64_FORMAT, &n_all, &n_resident) != 2)
    n_resident = 0;
  return n_resident * (guint64) sysconf (_SC_PAGESIZE);
}

/* How many ranks share this one's device: those of its machine on the CPU. */
static gboolean
count_sharers (Ranks *ranks,
               EbbDevice *device,
               guint *n,
               GError **error)
{
  g_autofree char *place = g_strdup_printf ("%s %s", g_get_host_name (), ebb_device_get_name (device));
  g_autofree gint64 *places = ranks != NULL ? g_new (gint64, ranks->size) : NULL;
  const gint64 own = g_str_hash (place);

  *n = ranks == NULL;
  if (ranks == NULL)
    return TRUE;
  if (!ranks_exchange (ranks, &own, 1, places, error))
    return FALSE;
  for (guint i = 0; i < ranks->size; i++)
    *n += places[i] == own;
  return TRUE;
}

/* All that is free where the training computes; of what other processes' ranks share, this one's part. */
static gboolean
find_budget (Planning *self,
             EbbDevice *device,
             GError **error)
{
  const guint64 available = ebb_memory_get_available (device);
  guint n_sharers;

  if (!count_sharers (self->ranks, device, &n_sharers, error))
    return FALSE;
  self->budget = (device == ebb_device_get_cpu () ? get_own_bytes () : 0) + available / n_sharers * self->n_here;
  return TRUE;
}

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

/* The largest of all ranks. */
static gboolean
take_largest (Ranks *ranks,
              guint64 *n_bytes,
              GError **error)
{
  g_autofree gint64 *all = ranks != NULL ? g_new (gint64, ranks->size) : NULL;
  const gint64 own = (gint64) *n_bytes;

  if (ranks == NULL)
    return TRUE;
  if (!ranks_exchange (ranks, &own, 1, all, error))
    return FALSE;
  for (guint i = 0; i < ranks->size; i++)
    *n_bytes = MAX (*n_bytes, (guint64) all[i]);
  return planning_refuse_interrupt (ranks, error);
}

static guint64
get_bytes (EbbMemoryPlan *plan,
           const char *property)
{
  guint64 n_bytes;

  g_object_get (plan, property, &n_bytes, NULL);
  return n_bytes;
}

/* -- planning ------------------------------------------------------------------------------------------------------ */

/* What of the budget isn't for tensors, as it is at first: what planning leaves behind is used again by the training.
 */
static gboolean
find_own_bytes (Planning *self,
                const Trainer *trainer,
                GError **error)
{
  if (self->own > 0 || trainer->device != ebb_device_get_cpu ())
    return TRUE;
  self->own = get_own_bytes () + RESERVE;
  return take_largest (self->ranks, &self->own, error);
}

/* A plan of a file has no store of its own. */
static void
set_store (const Trainer *trainer,
           EbbMemoryPlan *plan)
{
  EbbSavedTensorHooks *store = store_for_plan (trainer->options, trainer->store);

  if (store != NULL)
    ebb_memory_plan_set_store (plan, ebb_store_kind_get_place (trainer->options->store), store);
}

/* Ranks look at their interrupts together, after each plan. */
gboolean
planning_run_step (EbbModule *model,
                   gpointer trainer,
                   GError **error)
{
  return (((Trainer *) trainer)->ranks != NULL || planning_refuse_interrupt (NULL, error))
         && trainer_run_step (model, trainer, error);
}

static EbbMemoryPlan *
plan_limit (Trainer *trainer,
            guint64 limit,
            GError **error)
{
  EbbSavedTensorHooks *store = store_for_plan (trainer->options, trainer->store);

  return trainer->ranks != NULL
             ? ebb_memory_plan_new_on_ranks (trainer->model, trainer->device, store, trainer->ranks->control,
                                             planning_run_step, trainer, limit, error)
             : ebb_memory_plan_new (trainer->model, trainer->device, store, planning_run_step, trainer, limit, error);
}

/* The bytes of a dry run with a plan, of the rank that needs most, and those that its heap needs. */
static gboolean
measure (Trainer *trainer,
         EbbMemoryPlan *plan,
         guint64 *peak,
         guint64 *extent,
         GError **error)
{
  g_autoptr (EbbMemoryEstimate) estimate = NULL;

  if (ebb_memory_plan_apply (plan, error))
    {
      estimate = ebb_memory_estimate_new (trainer->model, trainer->device, planning_run_step, trainer, error);
      ebb_memory_plan_unapply (plan);
    }
  if (trainer->ranks != NULL ? !ranks_agree (trainer->ranks, estimate != NULL, error) : estimate == NULL)
    return FALSE;
  *peak = ebb_memory_estimate_get_peak_total (estimate);
  *extent = trainer->device == ebb_device_get_cpu () ? ebb_memory_estimate_get_extent (estimate) : *peak;
  if (trainer->device == ebb_device_get_cpu () && trainer->options->ranks.n_ranks > 1)
    *extent += *extent / PART_LOST_AMONG_THREADS;
  return take_largest (trainer->ranks, peak, error) && take_largest (trainer->ranks, extent, error);
}

/* A plan for @limit, and the bytes of a dry run of the step with it. */
static EbbMemoryPlan *
plan_within (Trainer *trainer,
             guint64 limit,
             guint64 *peak,
             guint64 *extent,
             GError **error)
{
  g_autoptr (EbbMemoryPlan) plan = plan_limit (trainer, limit, error);

  return plan != NULL && measure (trainer, plan, peak, extent, error) ? g_steal_pointer (&plan) : NULL;
}

/* The bytes of all ranks of this process. */
static double
count_mib (const Planning *self,
           guint64 n_bytes)
{
  return (double) n_bytes * self->n_here / MIB;
}

/* The bytes that libraries take beside a heap of @extent bytes. */
static guint64
count_libraries (const Trainer *trainer,
                 guint64 extent)
{
  return trainer->device == ebb_device_get_cpu ()
             ? MIN (extent / PART_PACKED, (guint64) ebb_get_num_threads () * PACKED)
             : 0;
}

/* The plan that needs least, for which no kernels are timed: timing takes memory that a small budget doesn't have. */
static EbbMemoryPlan *
make_least (Trainer *trainer,
            GError **error)
{
  return ebb_memory_plan_new_least (trainer->model, trainer->device, store_for_plan (trainer->options, trainer->store),
                                    trainer->ranks != NULL ? trainer->ranks->control : NULL, planning_run_step, trainer,
                                    error);
}

/* A budget that rounds to 0.0 MiB is mostly a number whose unit was forgotten: it is named in bytes. */
static char *
describe_budget (const Planning *self)
{
  if (self->budget < MIB / 20)
    return g_strdup_printf ("%" G_GUINT64_FORMAT " byte%s", self->budget, self->budget == 1 ? "" : "s");
  return g_strdup_printf ("%.1f MiB", (double) self->budget / MIB);
}

/* The plan that needs least, or a faster plan for the same tensors. Where even the least is too much, the error says
 * what would do: the figures of the plan that needs least, which are always the same. */
static EbbMemoryPlan *
plan_least (Planning *self,
            Trainer *trainer,
            GError **error)
{
  g_autoptr (EbbMemoryPlan) least = make_least (trainer, error), faster = NULL;
  guint64 extent, peak, other_extent, other_peak;
  g_autofree char *budget = describe_budget (self);
  GError *failure = NULL;
  double own;

  if (least == NULL || !measure (trainer, least, &peak, &extent, error))
    return NULL;
  self->limit = get_bytes (least, "least-bytes");
  if (self->limit <= self->heap)
    faster = plan_within (trainer, self->limit, &other_peak, &other_extent, &failure);
  if (failure != NULL && !g_error_matches (failure, EBB_ERROR, EBB_ERROR_NO_MEMORY))
    {
      g_propagate_error (error, failure);
      return NULL;
    }
  g_clear_error (&failure);
  if (faster != NULL && other_extent <= self->heap)
    return g_steal_pointer (&faster);
  if (extent <= self->heap)
    return g_steal_pointer (&least);
  self->needed = (extent + count_libraries (trainer, extent)) * self->n_here + self->own + OWN_VARIES;
  own = (double) (self->own + OWN_VARIES) / MIB + count_mib (self, count_libraries (trainer, extent));
  g_set_error (error, EBB_ERROR, EBB_ERROR_NO_MEMORY,
               "%s is too little: the training needs at least %.1f MiB (tensors%s %.1f, gaps between them %.1f, the "
               "program itself %.1f)",
               budget, ceil ((count_mib (self, extent) + own) * 10) / 10,
               self->n_here > 1 ? " of its ranks" : "", count_mib (self, peak), count_mib (self, extent - peak), own);
  return NULL;
}

/* On the CPU a budget is one of resident bytes, so the gaps between tensors need some of it. Each limit may have
 * another plan with other gaps, larger or smaller: limits are tried from the highest one down, since a lower one has no
 * faster plan. Near the least budget only the plan that needs least may be left. */
static EbbMemoryPlan *
plan_with_gaps (Planning *self,
                Trainer *trainer,
                GError **error)
{
  const guint64 room = self->heap;

  for (guint i = 0; i < N_LIMITS; i++)
    {
      guint64 peak, extent;
      GError *failure = NULL;
      g_autoptr (EbbMemoryPlan) plan = plan_within (trainer, self->limit, &peak, &extent, &failure);

      if (g_error_matches (failure, EBB_ERROR, EBB_ERROR_NO_MEMORY))
        {
          g_error_free (failure);
          break;
        }
      if (plan == NULL)
        {
          g_propagate_error (error, failure);
          return NULL;
        }
      if (extent <= room)
        return g_steal_pointer (&plan);
      self->limit = MIN (self->limit, peak) - MIN (self->limit / 2, MAX ((extent - room) / 3, room / 128));
    }
  return plan_least (self, trainer, error);
}

/* Ranks that are threads share a budget, and the planner names the least bytes of one rank: this adds the budget. */
static void
add_least_budget (const Planning *self,
                  guint64 least,
                  GError **error)
{
  g_autofree char *message = (*error)->message;

  (*error)->message = g_strdup_printf ("%s; %u ranks together need --memory %.1fMiB", message, self->n_here,
                                       ceil (count_mib (self, least) * 10) / 10);
}

/* Memory that runs out while kernels are timed is another failure than a budget that no plan keeps. */
static EbbMemoryPlan *
plan_for_device (Planning *self,
                 Trainer *trainer,
                 GError **error)
{
  EbbMemoryPlan *plan = plan_limit (trainer, self->limit, error);
  g_autoptr (EbbMemoryPlan) least = NULL;

  if (plan == NULL && g_error_matches (*error, EBB_ERROR, EBB_ERROR_NO_MEMORY))
    {
      least = make_least (trainer, NULL);
      self->needed = least != NULL && get_bytes (least, "least-bytes") > self->limit ? get_bytes (least, "least-bytes")
                                                                                     : 0;
    }
  if (self->needed > 0 && self->n_here > 1)
    add_least_budget (self, get_bytes (least, "least-bytes"), error);
  return plan;
}

/* Divides the budget between the heap and what is beside it. */
static void
divide_budget (Planning *self,
               const Trainer *trainer)
{
  const guint64 room = (self->budget - MIN (self->budget, self->own)) / self->n_here;

  /* A heap and what libraries take beside it make up the room: the inverse of count_libraries (). */
  self->heap = trainer->device == ebb_device_get_cpu ()
                   ? room - MIN (room / (PART_PACKED + 1), (guint64) ebb_get_num_threads () * PACKED)
                   : room;
  self->limit = self->heap;
}

/* A plan that was made with changes keeps its budget only with them. */
static gboolean
check_changes (EbbMemoryPlan *plan,
               const Options *options,
               GError **error)
{
  g_auto (GStrv) has = concessions_list (options), needs = NULL;

  g_object_get (plan, "needs", &needs, NULL);
  for (guint i = 0; needs != NULL && needs[i] != NULL; i++)
    if (!g_strv_contains ((const char *const *) has, needs[i]))
      {
        g_set_error (error, EBB_ERROR, EBB_ERROR_NO_MEMORY,
                     "--plan %s: the plan was made with %s, which this training doesn't have", options->plan, needs[i]);
        return FALSE;
      }
  return TRUE;
}

static gboolean
make_plan (Planning *self,
           Trainer *trainer,
           GError **error)
{
  const Options *options = trainer->options;
  g_autofree char *name = options->memory_text != NULL ? g_strdup_printf ("--memory %s", options->memory_text)
                                                       : g_strdup ("--checkpoint auto");
  g_autoptr (EbbMemoryPlan) plan = NULL;
  g_auto (GStrv) changes = concessions_list (options);

  self->budget = options->memory;
  if (!find_own_bytes (self, trainer, error)
      || (options->memory_is_auto && !find_budget (self, trainer->device, error)))
    return FALSE;
  divide_budget (self, trainer);
  plan = trainer->device == ebb_device_get_cpu () ? plan_with_gaps (self, trainer, error)
                                                  : plan_for_device (self, trainer, error);
  if (plan == NULL)
    {
      if (self->n_here > 1 && trainer->device != ebb_device_get_cpu ())
        g_prefix_error (error, "%s, shared by %u ranks: ", name, self->n_here);
      else
        g_prefix_error (error, "%s: ", name);
      return FALSE;
    }
  g_object_set (plan, "needs", changes, NULL);
  self->json = ebb_memory_plan_to_json (plan);
  self->text = ebb_memory_plan_to_string (plan);
  return TRUE;
}

/* A plan that was made earlier must do for this training. */
static gboolean
check_plan (Planning *self,
            Trainer *trainer,
            GError **error)
{
  const Options *options = trainer->options;
  g_autoptr (EbbMemoryPlan) plan = NULL;
  g_autofree char *budget = NULL;
  guint64 peak, extent;

  if (!find_own_bytes (self, trainer, error))
    return FALSE;
  plan = self->ranks != NULL
             ? ebb_memory_plan_load_on_ranks (trainer->model, self->ranks->control, options->plan, error)
             : ebb_memory_plan_load (trainer->model, options->plan, error);
  if (plan != NULL)
    set_store (trainer, plan);
  self->needed = plan != NULL && !check_changes (plan, options, error) ? G_MAXUINT64 : 0;
  if (plan == NULL || self->needed > 0 || !measure (trainer, plan, &peak, &extent, error)
      || (options->memory_is_auto && !find_budget (self, trainer->device, error)))
    return FALSE;
  self->is_from_file = TRUE;
  budget = describe_budget (self);
  self->limit = get_bytes (plan, "budget-bytes");
  self->heap = MAX (self->limit, extent);
  extent = (extent + count_libraries (trainer, extent)) * self->n_here + self->own;
  if (peak > self->limit || (self->budget > 0 && extent > self->budget + OWN_VARIES))
    self->needed = MAX (peak, extent);
  if (peak > self->limit)
    g_set_error (error, EBB_ERROR, EBB_ERROR_NO_MEMORY,
                 "--plan %s: with it a step of this training needs %.1f MiB, and it was made for %.1f MiB: remove the "
                 "file to plan again",
                 options->plan, (double) peak / MIB, (double) self->limit / MIB);
  else if (self->needed > 0)
    g_set_error (
        error, EBB_ERROR, EBB_ERROR_NO_MEMORY,
        "--plan %s: with it a training needs %.1f MiB, and --memory is %s: remove the file to plan again",
        options->plan, (double) extent / MIB, budget);
  else
    {
      if (self->budget > 0)
        divide_budget (self, trainer);
      self->limit = MAX (peak, self->limit);
      self->heap = MAX (peak, self->heap);
      self->json = ebb_memory_plan_to_json (plan);
      self->text = ebb_memory_plan_to_string (plan);
    }
  return self->json != NULL;
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

  planning_clear (self); /* of an earlier attempt */
  self->needed = *needed = 0;
  if (!find_file (self, options, &has_file, error))
    return FALSE;
  if (!has_file && options->memory == 0 && !options->memory_is_auto)
    return options_refuse (error, "--plan %s: there is no such file; say --memory SIZE to make it", options->plan);
  ebb_push_dry_run ();
  ok = trainer_init (&trainer, options, self->ranks, error);
  if (self->ranks != NULL)
    ok = ranks_agree (self->ranks, ok, error);
  ok = ok && (has_file ? check_plan : make_plan) (self, &trainer, error) && record_unplanned (self, &trainer, error);
  trainer_clear (&trainer);
  ebb_pop_dry_run ();
  if (self->ranks != NULL)
    ranks_forget_models (self->ranks);
  *needed = self->needed;
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

  *self = (Planning){ .ranks = ranks,
                      .budget = options->memory,
                      .n_here = (guint) MAX (options->ranks.n_ranks, 1),
                      .draws = options->memory_timeline != NULL };
  ok = concessions_check (options, &failure);
  if (ok && options_have_plan (options) && options->steps > 0)
    {
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
  g_clear_pointer (&self->json, g_free);
  g_clear_pointer (&self->text, g_free);
  g_clear_pointer (&self->taken, g_free);
  g_clear_object (&self->unplanned);
}

/* -- applying ------------------------------------------------------------------------------------------------------ */

gboolean
planning_apply (Planning *self,
                Trainer *trainer,
                GError **error)
{
  const Options *options = trainer->options;

  if (options->steps == 0)
    return TRUE;
  if (options->checkpoint_kind == CHECKPOINT_AUTO && self->json == NULL)
    return options_refuse (
        error, "--resume %s: this training had --checkpoint auto: say it again, or --checkpoint none", options->resume);
  if (self->json == NULL)
    return TRUE;
  trainer->plan = ebb_memory_plan_new_from_json (trainer->model, self->json, error);
  if (trainer->plan != NULL)
    set_store (trainer, trainer->plan);
  if (trainer->plan == NULL || !ebb_memory_plan_apply (trainer->plan, error)
      || (options->plan != NULL && !self->is_from_file && (self->ranks == NULL || self->ranks->rank == 0)
          && !ebb_memory_plan_save (trainer->plan, options->plan, error)))
    return FALSE;
  trainer->budget = self->budget > 0 ? self->budget : self->limit * self->n_here + self->own;
  trainer->limit = self->limit;
  trainer->heap = self->heap;
  g_set_object (&trainer->unplanned, self->unplanned);
  if (self->heap > 0)
    ebb_memory_set_limit (trainer->device, self->heap * self->n_here);
  ebb_memory_trim (trainer->device); /* timing kernels and dry steps take some, too */
  if (!options->quiet)
    printf ("%s%s%s\n", self->text, self->taken != NULL ? "taken, as --allow says: " : "",
            self->taken != NULL ? self->taken : "");
  return TRUE;
}

/* -- without a budget ---------------------------------------------------------------------------------------------- */

void
planning_begin_need (const Trainer *trainer,
                     PlanningNeed *need)
{
  *need =
      (PlanningNeed){ .own = trainer->device == ebb_device_get_cpu () ? get_own_bytes () + RESERVE + OWN_VARIES : 0 };
}

gboolean
planning_find_need (Trainer *trainer,
                    PlanningNeed *need,
                    GError **error)
{
  const guint64 n_here = (guint64) MAX (trainer->options->ranks.n_ranks, 1);
  g_autoptr (EbbMemoryPlan) least = make_least (trainer, error);
  guint64 peak, extent;

  if (least == NULL || !take_largest (trainer->ranks, &need->own, error)
      || !measure (trainer, least, &peak, &extent, error))
    return FALSE;
  need->tensors = get_bytes (least, "least-bytes");
  extent = MAX (extent, need->tensors); /* a device plans for tensors alone */
  need->gaps = extent - MAX (peak, need->tensors);
  need->own += count_libraries (trainer, extent) * n_here;
  need->all = extent * n_here + need->own;
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
