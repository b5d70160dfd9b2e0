/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Divides the bytes of a budget between the program itself and the heap, and finds the fastest plan for the heap. */
#include "train/memory-budget-private.h"

#include "dist/agree-private.h"
#include "nn/state/training-state-private.h"
#include "tensor/autograd/parameter-owner-private.h"
#include "tensor/cpu/host-allocator-private.h"
#include "tensor/cpu/matmul-private.h"
#include "tensor/error-private.h"
#include "train/concessions-private.h"
#include "wrap/plan/estimate-private.h"
#include "wrap/plan/memory-plan-private.h"
#include "wrap/plan/planner/choices-private.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define MIB (1024.0 * 1024.0)
/* Own bytes vary by this much between starts of the same program. */
#define OWN_VARIES ((guint64) 1 << 20)
/* Own bytes that ranks add while they train: they don't correct a plan, so all of it is held back. */
#define RANKS_RESERVE ((guint64) 18 << 20)
/* Limits that are tried before the plan that needs least is taken. */
#define N_LIMITS 10
/* oneDNN packs matrices on each thread, in memory of malloc (): at most these bytes, and of a small model's heap at
 * most this part. */
#define PACKED ((guint64) 10 << 20)
#define PART_PACKED 16
/* Ranks that are threads have one heap, in which blocks of one are in the way of others'. This part of it is lost. */
#define PART_LOST_AMONG_THREADS 8

guint64
ebb_budget_get_bytes (EbbMemoryPlan *plan,
                      const char *property)
{
  guint64 n_bytes;

  g_object_get (plan, property, &n_bytes, NULL);
  return n_bytes;
}

/* -- what is exchanged --------------------------------------------------------------------------------------------- */

static gboolean
poll (EbbMemoryBudget *self,
      GError **error)
{
  return self->poll == NULL || self->poll (self->poll_data, error);
}

/* The largest of all ranks. */
static gboolean
take_largest (EbbMemoryBudget *self,
              guint64 *number,
              GError **error)
{
  g_autofree char *own = g_strdup_printf ("%" G_GUINT64_FORMAT, *number);
  g_auto (GStrv) all = NULL;

  if (self->group == NULL)
    return poll (self, error);
  all = ebb_agree_gather_texts (self->group, own, error);
  for (guint i = 0; all != NULL && all[i] != NULL; i++)
    *number = MAX (*number, g_ascii_strtoull (all[i], NULL, 10));
  return all != NULL && poll (self, error);
}

/* The ranks that give the same text as this one. */
static gboolean
count_same (EbbMemoryBudget *self,
            const char *text,
            guint *n,
            GError **error)
{
  g_auto (GStrv) all = NULL;

  *n = self->group == NULL;
  if (self->group == NULL)
    return TRUE;
  all = ebb_agree_gather_texts (self->group, text, error);
  for (guint i = 0; all != NULL && all[i] != NULL; i++)
    *n += strcmp (all[i], text) == 0;
  return all != NULL;
}

/* -- what is planned for ------------------------------------------------------------------------------------------- */

gboolean
ebb_budget_subject_init (EbbBudgetSubject *self,
                         EbbMemoryBudget *budget,
                         EbbTrainingState *training,
                         EbbStepFunc step,
                         gpointer data,
                         GError **error)
{
  guint n;
  g_autofree EbbTensor **parameters = NULL;

  if (training->module == NULL)
    return ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT, "memory budget: the training has no model");
  parameters = ebb_module_get_parameters (training->module, TRUE, &n);
  *self = (EbbBudgetSubject){ training->module, budget->device, FALSE, step, data };
  if (self->device == NULL)
    self->device = n > 0 ? ebb_parameter_get_device (parameters[0]) : ebb_device_get_cpu ();
  for (guint i = 0; i < n; i++)
    ebb_tensor_unref (parameters[i]);
  self->is_process = budget->scope == EBB_MEMORY_SCOPE_PROCESS
                     || (budget->scope == EBB_MEMORY_SCOPE_AUTO && self->device == ebb_device_get_cpu ());
  if (!self->is_process || self->device == ebb_device_get_cpu ())
    return TRUE;
  return ebb_fail (
      error, EBB_ERROR_INVALID_ARGUMENT,
      "memory budget: resident bytes are limited where the CPU computes, and this training's device is %s: "
      "leave out the scope, or write \"device\"",
      ebb_device_get_name (self->device));
}

/* The store that the budget names takes the place of one that the plan would make. */
gboolean
ebb_budget_set_store (EbbMemoryBudget *self,
                      const EbbBudgetSubject *subject,
                      EbbMemoryPlan *plan,
                      GError **error)
{
  EbbMemoryPlace place;

  if (self->store == NULL)
    return TRUE;
  if (!ebb_plan_find_place (subject->device, self->store, &place, error))
    return FALSE;
  for (; plan != NULL && place != EBB_MEMORY_PLACE_DEVICE; plan = plan->lower)
    ebb_memory_plan_set_store (plan, place, self->store);
  return TRUE;
}

/* -- the budget's bytes -------------------------------------------------------------------------------------------- */

/* Resident bytes of the process, nearly: the system counts some pages of each thread later. */
guint64
ebb_budget_read_resident (void)
{
  g_autofree char *text = NULL;
  guint64 n_all, n_resident = 0;

  if (!g_file_get_contents ("/proc/self/statm", &text, NULL, NULL)
      || sscanf (text, "%" G_GUINT64_FORMAT " %" G_GUINT64_FORMAT, &n_all, &n_resident) != 2)
    return 0;
  return n_resident * (guint64) sysconf (_SC_PAGESIZE);
}

/* The same exactly, which takes longer. */
static guint64
read_resident (void)
{
  g_autofree char *text = NULL;
  const char *line;

  if (g_file_get_contents ("/proc/self/smaps_rollup", &text, NULL, NULL) && (line = strstr (text, "\nRss:")) != NULL)
    return g_ascii_strtoull (line + strlen ("\nRss:"), NULL, 10) << 10;
  return ebb_budget_read_resident ();
}

guint64
ebb_memory_budget_count_own_bytes (void)
{
  const guint64 resident = read_resident ();

  return ebb_budget_subtract (resident, ebb_host_heap_get_resident (ebb_host_heap_get_own ()));
}

/* Own bytes without what lies free. */
static void
recount_own_bytes (EbbMemoryBudget *self,
                   const EbbBudgetSubject *subject)
{
  ebb_memory_trim (subject->device);
  self->own_bytes = ebb_memory_budget_count_own_bytes ();
}

/* The bytes that libraries take beside a heap of @extent bytes, where products weren't run to know it. */
static guint64
bound_packed (EbbMemoryBudget *self,
              guint64 extent)
{
  return MIN (extent / PART_PACKED, (guint64) self->n_threads * PACKED);
}

/* Runs the products of a step, so that what libraries keep for them is there, and counts own bytes with it. Products
 * whose results the budget has no room for are left out. */
static gboolean
run_products (EbbMemoryBudget *self,
              const EbbBudgetSubject *subject,
              GError **error)
{
  const guint64 room = ebb_budget_subtract (self->total, self->own_bytes + bound_packed (self, self->total));
  g_autoptr (EbbMemoryEstimate) estimate = NULL;
  guint64 before;

  if (room == 0)
    return TRUE;
  estimate = ebb_memory_estimate_new (subject->model, subject->device, subject->step, subject->data, error);
  if (estimate == NULL || !ebb_memory_estimate_run_products (estimate, room, &self->transient, error))
    return FALSE;
  g_clear_object (&estimate);
  before = ebb_memory_budget_count_own_bytes ();
  recount_own_bytes (self, subject);
  self->retained = MAX (self->retained, ebb_budget_subtract (before, self->own_bytes));
  return TRUE;
}

/* Own bytes at first: what planning leaves behind is used again by the training. */
static gboolean
find_own_bytes (EbbMemoryBudget *self,
                const EbbBudgetSubject *subject,
                GError **error)
{
  g_autofree char *process = g_strdup_printf ("%s %d", g_get_host_name (), (int) getpid ());
  guint64 n_threads = (guint64) ebb_get_num_threads ();

  if (!count_same (self, process, &self->n_here, error) || !take_largest (self, &n_threads, error))
    return FALSE;
  self->n_threads = (guint) n_threads;
  if (!subject->is_process)
    return TRUE;
  if (self->group != NULL && self->own_bytes > 0)
    return TRUE;
  if (self->group == NULL)
    ebb_product_forget_dnnl (); /* of earlier attempts, whose products had other shapes */
  recount_own_bytes (self, subject);
  return take_largest (self, &self->own_bytes, error);
}

/* All that is free where the training computes; of what other processes' ranks share, this one's part. */
static gboolean
find_total (EbbMemoryBudget *self,
            const EbbBudgetSubject *subject,
            GError **error)
{
  g_autofree char *place = g_strdup_printf ("%s %s", g_get_host_name (), ebb_device_get_name (subject->device));
  guint n_sharers;

  self->total = self->bytes;
  if (self->bytes > 0)
    return TRUE;
  if (!count_same (self, place, &n_sharers, error))
    return FALSE;
  self->total = ebb_memory_get_available (subject->device) / n_sharers * self->n_here
                + (subject->is_process ? read_resident () : 0);
  return TRUE;
}

/* Own bytes with what is held back beside the heap. */
static guint64
count_own (EbbMemoryBudget *self,
           const EbbBudgetSubject *subject)
{
  if (!subject->is_process)
    return 0;
  return self->own_bytes + self->retained + self->transient + self->lost + (self->group != NULL ? RANKS_RESERVE : 0);
}

/* Divides the budget between the heap of each rank and what is beside it. */
static void
divide (EbbMemoryBudget *self,
        const EbbBudgetSubject *subject)
{
  const guint64 room = ebb_budget_subtract (self->total, count_own (self, subject)) / self->n_here;

  self->heap = self->most = room;
  if (subject->is_process && self->group != NULL) /* the inverse of bound_packed () */
    self->heap = self->most = room - MIN (room / (PART_PACKED + 1), (guint64) self->n_threads * PACKED);
  else if (subject->is_process)
    self->heap = ebb_budget_subtract (room, self->n_steps > 0 ? EBB_BUDGET_LATER_RESERVE : EBB_BUDGET_RESERVE);
  self->limit = self->heap;
}

/* -- planning ------------------------------------------------------------------------------------------------------ */

static EbbMemoryPlan *
plan_limit (EbbMemoryBudget *self,
            const EbbBudgetSubject *subject,
            GError **error)
{
  return self->group != NULL
             ? ebb_memory_plan_new_on_ranks (subject->model, subject->device, self->store, self->group, subject->step,
                                             subject->data, self->limit, error)
             : ebb_memory_plan_new (subject->model, subject->device, self->store, subject->step, subject->data,
                                    self->limit, error);
}

/* The bytes of a dry run with a plan, of the rank that needs most, and those that its heap needs. */
static gboolean
measure (EbbMemoryBudget *self,
         const EbbBudgetSubject *subject,
         EbbMemoryPlan *plan,
         guint64 *peak,
         guint64 *extent,
         GError **error)
{
  g_autoptr (EbbMemoryEstimate) estimate = NULL;
  GError *failure = NULL;

  if (ebb_memory_plan_apply (plan, &failure))
    {
      estimate = ebb_memory_estimate_new (subject->model, subject->device, subject->step, subject->data, &failure);
      ebb_memory_plan_unapply (plan);
    }
  if (self->group != NULL)
    {
      if (!ebb_agree_no_failure (self->group, failure, error))
        return FALSE;
    }
  else if (failure != NULL)
    {
      g_propagate_error (error, failure);
      return FALSE;
    }
  *peak = ebb_memory_estimate_get_peak_total (estimate);
  *extent = subject->is_process ? ebb_memory_estimate_get_extent (estimate) : *peak;
  if (subject->is_process && self->n_here > 1)
    *extent += *extent / PART_LOST_AMONG_THREADS;
  return take_largest (self, peak, error) && take_largest (self, extent, error);
}

/* A plan for the limit, and the bytes of a dry run of the step with it. */
static EbbMemoryPlan *
plan_within (EbbMemoryBudget *self,
             const EbbBudgetSubject *subject,
             guint64 *peak,
             guint64 *extent,
             GError **error)
{
  g_autoptr (EbbMemoryPlan) plan = plan_limit (self, subject, error);

  return plan != NULL && measure (self, subject, plan, peak, extent, error) ? g_steal_pointer (&plan) : NULL;
}

/* The bytes of all ranks of this process. */
static double
count_mib (const EbbMemoryBudget *self,
           guint64 n_bytes)
{
  return (double) n_bytes * self->n_here / MIB;
}

/* The plan that needs least, for which no kernels are timed: timing takes memory that a small budget doesn't have. */
static EbbMemoryPlan *
make_least (EbbMemoryBudget *self,
            const EbbBudgetSubject *subject,
            GError **error)
{
  return ebb_memory_plan_new_least (subject->model, subject->device, self->store, self->group, subject->step,
                                    subject->data, error);
}

/* A budget that rounds to 0.0 MiB is mostly a number whose unit was forgotten: it is named in bytes. */
static char *
describe_bytes (guint64 n_bytes)
{
  if (n_bytes < MIB / 20)
    return g_strdup_printf ("%" G_GUINT64_FORMAT " byte%s", n_bytes, n_bytes == 1 ? "" : "s");
  return g_strdup_printf ("%.1f MiB", (double) n_bytes / MIB);
}

/* Notes the smallest budget, by the plan that needs least. */
static void
note_least (EbbMemoryBudget *self,
            const EbbBudgetSubject *subject,
            guint64 peak,
            guint64 extent)
{
  self->least = (EbbBudgetLeast){ peak, extent - peak, 0 };
  if (subject->is_process)
    self->least.own = count_own (self, subject) + OWN_VARIES
                      + (self->retained == 0 || self->group != NULL ? bound_packed (self, extent) * self->n_here : 0)
                      + (self->group == NULL ? EBB_BUDGET_RESERVE : 0);
  self->least_bytes = extent * self->n_here + self->least.own;
}

/* The plan that needs least, or a faster plan for the same tensors. Where even the least is too much, the error says
 * what would do: the figures of the plan that needs least, which are always the same. */
static EbbMemoryPlan *
plan_least (EbbMemoryBudget *self,
            const EbbBudgetSubject *subject,
            guint64 *extent,
            GError **error)
{
  g_autoptr (EbbMemoryPlan) least = make_least (self, subject, error), faster = NULL;
  guint64 peak, other_extent, other_peak;
  g_autofree char *budget = describe_bytes (self->total);
  GError *failure = NULL;
  double own;

  if (least == NULL || !measure (self, subject, least, &peak, extent, error))
    return NULL;
  if (self->group == NULL) /* the first dry step of a process makes threads and code */
    {
      recount_own_bytes (self, subject);
      self->most = ebb_budget_subtract (self->total, count_own (self, subject));
    }
  self->limit = ebb_budget_get_bytes (least, "least-bytes");
  if (self->limit <= self->most)
    faster = plan_within (self, subject, &other_peak, &other_extent, &failure);
  if (failure != NULL && !g_error_matches (failure, EBB_ERROR, EBB_ERROR_NO_MEMORY))
    {
      g_propagate_error (error, failure);
      return NULL;
    }
  g_clear_error (&failure);
  note_least (self, subject, peak, *extent);
  /* What is held back for growth is no reason to refuse. */
  self->heap = self->most;
  if (faster != NULL && other_extent <= self->most)
    {
      *extent = other_extent;
      return g_steal_pointer (&faster);
    }
  if (*extent <= self->most)
    return g_steal_pointer (&least);
  own = (double) self->least.own / MIB;
  return ebb_fail_null (error, EBB_ERROR_NO_MEMORY,
                        "a budget of %s is too little: the training needs at least %.1f MiB (tensors%s %.1f, gaps "
                        "between them %.1f, the program itself %.1f)",
                        budget, ceil ((count_mib (self, *extent) + own) * 10) / 10,
                        self->n_here > 1 ? " of its ranks" : "", count_mib (self, peak),
                        count_mib (self, *extent - peak), own);
}

/* A budget of resident bytes has the gaps between tensors, too. Each limit may have another plan with other gaps,
 * larger or smaller: limits are tried from the highest one down, since a lower one has no faster plan. Near the least
 * budget only the plan that needs least may be left. */
static EbbMemoryPlan *
plan_with_gaps (EbbMemoryBudget *self,
                const EbbBudgetSubject *subject,
                guint64 *extent,
                GError **error)
{
  const guint64 room = self->heap;

  for (guint i = 0; i < N_LIMITS; i++)
    {
      guint64 peak;
      GError *failure = NULL;
      g_autoptr (EbbMemoryPlan) plan = plan_within (self, subject, &peak, extent, &failure);

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
      if (*extent <= room)
        return g_steal_pointer (&plan);
      self->limit = MIN (self->limit, peak) - MIN (self->limit / 2, MAX ((*extent - room) / 3, room / 128));
    }
  return plan_least (self, subject, extent, error);
}

static EbbMemoryPlan *
plan_process (EbbMemoryBudget *self,
              const EbbBudgetSubject *subject,
              GError **error)
{
  g_autoptr (EbbMemoryPlan) plan = NULL;

  if (self->group == NULL && self->n_steps == 0)
    {
      if (!run_products (self, subject, error))
        return NULL;
      divide (self, subject);
    }
  plan = plan_with_gaps (self, subject, &self->extent, error);
  if (plan == NULL || self->group != NULL)
    return g_steal_pointer (&plan);
  /* Planning itself leaves some behind: tables, and the times of kernels. */
  recount_own_bytes (self, subject);
  divide (self, subject);
  if (self->extent <= self->most)
    return g_steal_pointer (&plan);
  g_clear_object (&plan);
  return plan_with_gaps (self, subject, &self->extent, error);
}

/* Memory that runs out while kernels are timed is another failure than a budget that no plan keeps. Ranks that are
 * threads share a budget, and the planner names the least bytes of one rank: this adds the budget. */
static EbbMemoryPlan *
plan_device (EbbMemoryBudget *self,
             const EbbBudgetSubject *subject,
             GError **error)
{
  GError *failure = NULL;
  EbbMemoryPlan *plan = plan_limit (self, subject, &failure);
  g_autoptr (EbbMemoryPlan) least = NULL;

  if (plan != NULL)
    {
      self->extent = ebb_budget_get_bytes (plan, "predicted-peak-bytes");
      self->least_bytes = ebb_budget_get_bytes (plan, "least-bytes") * self->n_here;
      return plan;
    }
  if (g_error_matches (failure, EBB_ERROR, EBB_ERROR_NO_MEMORY))
    least = make_least (self, subject, NULL);
  if (least != NULL && ebb_budget_get_bytes (least, "least-bytes") > self->limit)
    {
      self->least = (EbbBudgetLeast){ .tensors = ebb_budget_get_bytes (least, "least-bytes") };
      self->least_bytes = self->least.tensors * self->n_here;
    }
  if (self->least_bytes > 0 && self->n_here > 1)
    {
      g_set_error (error, EBB_ERROR, EBB_ERROR_NO_MEMORY, "%s; %u ranks together need a budget of %.1f MiB",
                   failure->message, self->n_here, ceil (count_mib (self, self->least.tensors) * 10) / 10);
      g_error_free (failure);
      return NULL;
    }
  g_propagate_error (error, failure);
  return NULL;
}

static gboolean
make_plan (EbbMemoryBudget *self,
           const EbbBudgetSubject *subject,
           GError **error)
{
  if (!find_total (self, subject, error))
    return FALSE;
  divide (self, subject);
  self->plan = subject->is_process ? plan_process (self, subject, error) : plan_device (self, subject, error);
  return self->plan != NULL;
}

/* -- plans of files ------------------------------------------------------------------------------------------------ */

/* Whether there is a plan to read; on ranks the first one reads it. */
static gboolean
find_file (EbbMemoryBudget *self,
           gboolean *is_there,
           GError **error)
{
  g_auto (GStrv) all = NULL;

  *is_there = self->plan_file != NULL && g_file_test (self->plan_file, G_FILE_TEST_EXISTS);
  if (self->group == NULL)
    return TRUE;
  all = ebb_agree_gather_texts (self->group, *is_there ? "there" : "", error);
  *is_there = all != NULL && *all[0] != '\0';
  return all != NULL;
}

/* A plan that was made with changes keeps its budget only with them. */
static gboolean
check_changes (EbbMemoryBudget *self,
               EbbMemoryPlan *plan,
               GError **error)
{
  for (guint i = 0; plan->needs != NULL && plan->needs[i] != NULL; i++)
    if ((ebb_concessions_find (plan->needs[i]) & (self->has | self->taken)) == 0)
      return ebb_fail (error, EBB_ERROR_NO_MEMORY,
                       "plan-file %s: the plan was made with %s, which this training doesn't have", self->plan_file,
                       plan->needs[i]);
  return TRUE;
}

/* A plan that was made earlier must do for this training. Without a budget it brings its own. */
static gboolean
load_plan (EbbMemoryBudget *self,
           const EbbBudgetSubject *subject,
           GError **error)
{
  g_autoptr (EbbMemoryPlan) plan =
      self->group != NULL
          ? ebb_memory_plan_load_on_ranks (subject->model, self->group, self->plan_file, error)
          : ebb_memory_plan_load (subject->model, self->plan_file, error);
  g_autofree char *budget = describe_bytes (self->bytes);
  guint64 peak, extent, all;

  if (plan == NULL || !ebb_budget_set_store (self, subject, plan, error))
    return FALSE;
  if (!check_changes (self, plan, error))
    {
      self->least_bytes = G_MAXUINT64;
      return FALSE;
    }
  if (!measure (self, subject, plan, &peak, &extent, error))
    return FALSE;
  self->is_from_file = TRUE;
  self->total = self->bytes;
  self->limit = ebb_budget_get_bytes (plan, "budget-bytes");
  self->heap = self->most = MAX (self->limit, extent);
  self->extent = extent;
  all = extent * self->n_here + count_own (self, subject);
  if (peak > self->limit || (self->bytes > 0 && all > self->bytes + (subject->is_process ? OWN_VARIES : 0)))
    self->least_bytes = MAX (peak, all);
  if (peak > self->limit)
    return ebb_fail (error, EBB_ERROR_NO_MEMORY,
                     "plan-file %s: with it a step of this training needs %.1f MiB, and it was made for %.1f MiB: "
                     "remove the file to plan again",
                     self->plan_file, (double) peak / MIB, (double) self->limit / MIB);
  if (self->least_bytes > 0)
    return ebb_fail (error, EBB_ERROR_NO_MEMORY,
                     "plan-file %s: with it a training needs %.1f MiB, and the budget is %s: remove the file to plan "
                     "again",
                     self->plan_file, (double) all / MIB, budget);
  if (self->bytes > 0)
    divide (self, subject);
  else
    self->total = self->limit * self->n_here + count_own (self, subject);
  self->limit = MAX (peak, self->limit);
  self->heap = MAX (extent, self->heap);
  self->least_bytes = ebb_budget_get_bytes (plan, "least-bytes");
  self->plan = g_steal_pointer (&plan);
  return TRUE;
}

/* -- for the budget ------------------------------------------------------------------------------------------------ */

gboolean
ebb_budget_find_plan (EbbMemoryBudget *self,
                      const EbbBudgetSubject *subject,
                      GError **error)
{
  gboolean has_file;

  self->least_bytes = 0;
  self->is_from_file = FALSE;
  return find_file (self, &has_file, error) && find_own_bytes (self, subject, error)
         && (has_file ? load_plan : make_plan) (self, subject, error);
}

EbbMemoryPlan *
ebb_budget_plan_again (EbbMemoryBudget *self,
                       const EbbBudgetSubject *subject,
                       GError **error)
{
  divide (self, subject);
  return subject->is_process ? plan_with_gaps (self, subject, &self->extent, error) : plan_limit (self, subject, error);
}
