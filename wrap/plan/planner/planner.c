/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* The planner: from a budget of bytes to a memory plan. */
#include "wrap/plan/memory-plan-private.h"

#include "nn/module-private.h"
#include "tensor/autograd/parameter-owner-private.h"
#include "tensor/error-private.h"
#include "wrap/plan/estimate-private.h"
#include "wrap/plan/mlp-tiles-private.h"
#include "wrap/plan/planner/candidates-private.h"
#include "wrap/plan/planner/on-ranks-private.h"

#include <math.h>

#define MIB (1024.0 * 1024.0)
/* How long kernels are measured of which nothing is known. */
#define MAX_SECONDS 5
/* Plans between a plan and the least one that it may be lowered to. */
#define N_LOWER 2
/* Measuring stays within the budget, too, unless that is tiny. */
#define LEAST_MEASURED ((guint64) 4 << 20)

static guint64
subtract (guint64 a,
          guint64 b)
{
  return a > b ? a - b : 0;
}

enum
{
  WITHOUT_TILES,
  WITH_TILES,
  N_SETS
};

typedef struct
{
  EbbPlanCandidates sets[N_SETS];
  guint n_sets;
  const EbbProbeStep *least_step; /* of all, not owned, and its plan */
  EbbMemoryPlan *least;
} Planner;

static void
take_least (Planner *self,
            EbbMemoryPlan *plan,
            const EbbProbeStep *step)
{
  if (plan == NULL || (self->least != NULL && plan->predicted_peak_bytes >= self->least->predicted_peak_bytes))
    return;
  self->least = plan;
  self->least_step = step;
}

static gboolean
add_candidates (Planner *self,
                EbbPlanChoices *choices,
                GError **error)
{
  EbbPlanCandidates *added = &self->sets[self->n_sets];

  if (choices == NULL)
    return FALSE;
  self->n_sets++;
  if (!ebb_plan_candidates_init (added, choices, error))
    return FALSE;
  take_least (self, added->least, added->least_step);
  take_least (self, added->nested, added->nested_step);
  return TRUE;
}

/* Tiles change no bits, so they need no leave. */
static gboolean
planner_init (Planner *self,
              EbbPlanChoices *untiled,
              EbbDevice *device,
              double max_seconds,
              guint64 max_bytes,
              GError **error)
{
  gint64 n_rows;

  if (!add_candidates (self, untiled, error))
    return FALSE;
  n_rows = ebb_plan_mlp_tiles_choose (untiled->model, ebb_probe_get_n_rows (untiled->probe));
  if (n_rows == 0 || !ebb_plan_mlp_tiles_keep_bits (untiled->model, device))
    return TRUE;
  return add_candidates (self, ebb_plan_choices_new_tiled (untiled, n_rows, max_seconds, max_bytes, error), error);
}

static void
planner_clear (Planner *self)
{
  while (self->n_sets > 0)
    ebb_plan_candidates_clear (&self->sets[--self->n_sets]);
}

G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC (Planner, planner_clear)

/* NULL without an error: there is no plan. */
static EbbMemoryPlan *
make_fastest (Planner *self,
              guint64 budget,
              GError **error)
{
  g_autoptr (EbbMemoryPlan) fastest = NULL;

  for (guint i = 0; i < self->n_sets; i++)
    if (!ebb_plan_candidates_find_fastest (&self->sets[i], budget, &fastest, error))
      return NULL;
  return g_steal_pointer (&fastest);
}

/* Plans to step down to, each about in the middle between the one above it and the least, which comes last. */
static gboolean
add_lower (Planner *self,
           EbbMemoryPlan *plan,
           GError **error)
{
  EbbMemoryPlan *above = plan, *least = self->least;

  for (guint i = 0; i < N_LOWER; i++)
    {
      const guint64 budget = least->predicted_peak_bytes
                             + subtract (above->predicted_peak_bytes, least->predicted_peak_bytes) / 2;
      GError *failure = NULL;
      g_autoptr (EbbMemoryPlan) lower = make_fastest (self, budget, &failure);

      if (failure != NULL)
        return ebb_fail_with (error, failure);
      if (lower == NULL || lower->predicted_peak_bytes >= above->predicted_peak_bytes
          || lower->predicted_peak_bytes <= least->predicted_peak_bytes)
        break;
      above->lower = g_steal_pointer (&lower);
      above = above->lower;
    }
  if (least->predicted_peak_bytes < above->predicted_peak_bytes)
    above->lower = g_object_ref (least);
  return TRUE;
}

static void
fail_least (const Planner *planner,
            guint64 budget,
            GError **error)
{
  const EbbProbeStep *least = planner->least_step;
  g_autoptr (GString) parts = g_string_new (NULL);
  /* A budget that rounds to 0.0 MiB is mostly a number whose unit was forgotten. */
  g_autofree char *shown = budget < MIB / 20
                               ? g_strdup_printf ("%" G_GUINT64_FORMAT " byte%s", budget, budget == 1 ? "" : "s")
                               : g_strdup_printf ("%.1f MiB", (double) budget / MIB);

  for (guint i = 0; i < EBB_N_PURPOSES; i++)
    if (least->purposes[i] > 0)
      g_string_append_printf (parts, "%s%s %.1f", parts->len > 0 ? ", " : "", ebb_purpose_get_name ((EbbPurpose) i),
                              (double) least->purposes[i] / MIB);
  g_set_error (error, EBB_ERROR, EBB_ERROR_NO_MEMORY,
               "a budget of %s is too small: the step needs at least %.1f MiB (%s)", shown,
               ceil ((double) least->peak / MIB * 10) / 10, parts->str);
}

/* Whether nothing is left to be measured. */
static gboolean
knows_times (EbbPlanChoices *choices)
{
  return ebb_cost_table_get_n_measured (choices->costs) == ebb_cost_table_get_n_launches (choices->costs)
         && ebb_cost_table_get_n_disturbed (choices->costs) == 0;
}

/* What is asked of the planner. */
typedef struct
{
  EbbPlanRequest step;
  guint64 budget_bytes;
  double max_seconds;
  gboolean is_least; /* the plan that needs least, whatever the budget is */
} Request;

/* Refuses a budget that is less than the least plan needs. */
static EbbMemoryPlan *
take_plan (Planner *planner,
           const Request *request,
           GError **error)
{
  const guint64 least = planner->least->predicted_peak_bytes;
  g_autoptr (EbbMemoryPlan) plan = NULL;

  if (request->is_least)
    plan = g_object_ref (planner->least);
  else if (least > request->budget_bytes)
    fail_least (planner, request->budget_bytes, error);
  else
    plan = make_fastest (planner, request->budget_bytes, error);
  if (plan == NULL || (plan != planner->least && !add_lower (planner, plan, error)))
    return NULL;
  plan->budget_bytes = request->is_least ? least : MIN (request->budget_bytes, (guint64) G_MAXINT64);
  plan->least_bytes = least;
  return g_steal_pointer (&plan);
}

static EbbMemoryPlan *
make_for (Request *request,
          GError **error)
{
  const guint64 budget_bytes = request->budget_bytes;
  const guint64 max_bytes = MIN (EBB_ESTIMATE_MEASURED_BYTES, MAX (budget_bytes / 4, LEAST_MEASURED));
  const double max_seconds = request->max_seconds;
  EbbPlanRequest *step = &request->step;
  EbbPlanChoices *choices;
  gboolean asks_first; /* Find the least plan before kernels are timed: times don't change it. */
  EbbMemoryPlace place;
  g_auto (Planner) planner = { 0 };

  if (step->device == NULL)
    step->device = ebb_device_get_cpu ();
  /* Where blocks may move what they keep, that depends on rates of copies. */
  asks_first = max_seconds > 0 && !step->is_real && ebb_plan_find_place (step->device, step->store, &place, NULL)
               && place == EBB_MEMORY_PLACE_DEVICE;
  choices = ebb_plan_choices_new (step, asks_first ? 0 : max_seconds, max_bytes, error);
  if (choices == NULL
      || !planner_init (&planner, choices, step->device, asks_first ? 0 : max_seconds, max_bytes, error))
    return NULL;
  if (asks_first && planner.least->predicted_peak_bytes <= budget_bytes && !knows_times (choices))
    {
      planner_clear (&planner);
      planner = (Planner){ 0 };
      if (!ebb_plan_ranks_announce (step->group, EBB_PLAN_STEP_AGAIN, error))
        return NULL;
      choices = ebb_plan_choices_new (step, max_seconds, max_bytes, error);
      if (choices == NULL || !planner_init (&planner, choices, step->device, max_seconds, max_bytes, error))
        return NULL;
    }
  return take_plan (&planner, request, error);
}

/* On all ranks of the group. */
static EbbMemoryPlan *
make_on_ranks (Request *request,
               GError **error)
{
  g_autoptr (GArray) blocks = ebb_plan_find_blocks (request->step.model);
  EbbProcessGroup *group = request->step.group;
  GError *failure = NULL;
  EbbMemoryPlan *plan;

  if (request->step.device == NULL)
    request->step.device = ebb_device_get_cpu ();
  if (!ebb_plan_ranks_meet (group, blocks, &request->budget_bytes, error))
    return NULL;
  if (ebb_process_group_get_rank (group) > 0)
    return ebb_plan_choices_follow (&request->step, error);
  plan = make_for (request, &failure);
  if (plan != NULL)
    ebb_plan_ranks_mark (plan, group);
  return ebb_plan_ranks_give (group, plan, failure, error);
}

/**
 * ebb_memory_plan_new: (constructor)
 * @model: the model, whose parameters may be on any device
 * @device: (nullable): the device that the step is to run on; %NULL for the CPU
 * @store: (nullable): an #EbbDiskStore or #EbbHostStore to which blocks may move what they keep; %NULL for a host store
 *   of the plan's own on an accelerator, and none on the CPU
 * @step: (scope call) (closure user_data): one training step
 * @user_data: user data of @step
 * @budget_bytes: the most bytes of the device that the step may take at one time, everything included
 * @error: return location for an error
 *
 * Makes the fastest plan that keeps the step within the budget: each block keeps, recomputes or saves some results, and
 * moves what it keeps to @store and back where that is faster than recomputing it. MLPs are called on tiles of their
 * rows if that is faster and changes no bit. Where even that is too much, several blocks that follow each other are
 * recomputed together. It runs @step several times as a dry run, which computes nothing, takes no memory and changes
 * nothing, as by ebb_memory_estimate_new(). Kernels that this machine hasn't timed yet are timed, for a few seconds at
 * most. Blocks that you have wrapped yourself are planned around. The plan takes effect by ebb_memory_plan_apply().
 *
 * Returns: (transfer full) (nullable): the plan; %NULL with %EBB_ERROR_NO_MEMORY if the step needs more than the budget
 *   whatever is done, with %EBB_ERROR_INVALID_ARGUMENT if @store is of another kind or @step runs
 *   no backward pass, with %EBB_ERROR_IO if its folder
 *   can't be written, or with what @step reports: %EBB_ERROR_DRY_RUN if it reads values, for which there is
 *   ebb_memory_plan_new_measured()
 */
EbbMemoryPlan *
ebb_memory_plan_new (EbbModule *model,
                     EbbDevice *device,
                     EbbSavedTensorHooks *store,
                     EbbStepFunc step,
                     gpointer user_data,
                     guint64 budget_bytes,
                     GError **error)
{
  return ebb_memory_plan_make (model, device, store, step, user_data, budget_bytes, MAX_SECONDS, error);
}

/* On another device than the step's nothing would be seen of what it takes. */
static gboolean
check_device (EbbModule *model,
              EbbDevice *device,
              GError **error)
{
  g_autoptr (GPtrArray) parameters = ebb_module_list_parameters (model);
  EbbDevice *other = device;

  for (guint i = 0; i < parameters->len && other == device; i++)
    other = ebb_parameter_get_device (parameters->pdata[i]);
  return other == device
         || ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT,
                      "the plan is for steps on %s, and the model has parameters on %s: name the device that they are "
                      "on, or move them",
                      ebb_device_get_name (device), ebb_device_get_name (other));
}

/**
 * ebb_memory_plan_new_measured: (constructor)
 * @model: the model, whose parameters are on @device
 * @device: (nullable): the device that the step runs on; %NULL for the CPU
 * @step: (scope call) (closure user_data): one training step
 * @user_data: user data of @step
 * @budget_bytes: the most bytes of the device that may be in use at one time, everything included
 * @error: return location for an error
 *
 * The same as ebb_memory_plan_new() for a step that reads values of its tensors, which a dry run hasn't got. @step runs
 * for real, some tens of times, and trains: its bits don't depend on what is tried, so these are the first steps of the
 * training. Planning needs the memory of the step without a plan once. All steps have the same shapes. Blocks move
 * nothing to a store.
 *
 * Returns: (transfer full) (nullable): the plan; %NULL with %EBB_ERROR_NO_MEMORY if the step needs more than the budget
 *   whatever is done, with %EBB_ERROR_INVALID_ARGUMENT if the model is on another device or
 *   @step runs no backward pass, with %EBB_ERROR_STATE if steps differ, or with what @step reports
 */
EbbMemoryPlan *
ebb_memory_plan_new_measured (EbbModule *model,
                              EbbDevice *device,
                              EbbStepFunc step,
                              gpointer user_data,
                              guint64 budget_bytes,
                              GError **error)
{
  Request request = {
    { model, device, .step = step, .user_data = user_data, .is_real = TRUE },
    budget_bytes,
    MAX_SECONDS
  };

  if (!EBB_MAY_BEGIN (error, model))
    return NULL;
  g_return_val_if_fail (EBB_IS_MODULE (model) && step != NULL, NULL);

  return check_device (model, device != NULL ? device : ebb_device_get_cpu (), error) ? make_for (&request, error)
                                                                                      : NULL;
}

EbbMemoryPlan *
ebb_memory_plan_make (EbbModule *model,
                      EbbDevice *device,
                      EbbSavedTensorHooks *store,
                      EbbStepFunc step,
                      gpointer user_data,
                      guint64 budget_bytes,
                      double max_seconds,
                      GError **error)
{
  Request request = { { model, device, store, NULL, step, user_data }, budget_bytes, max_seconds };

  if (!EBB_MAY_BEGIN (error, model))
    return NULL;
  g_return_val_if_fail (EBB_IS_MODULE (model) && step != NULL, NULL);

  return make_for (&request, error);
}

/**
 * ebb_memory_plan_new_on_ranks: (constructor)
 * @model: the model, whose parameters may be on any device
 * @device: (nullable): the device that this rank's step is to run on; %NULL for the CPU
 * @store: (nullable): this rank's store to which blocks may move what they keep, as for ebb_memory_plan_new(), of the
 *   same kind on all ranks
 * @group: the ranks that train together
 * @step: (scope call) (closure user_data): one training step of this rank
 * @user_data: user data of @step
 * @budget_bytes: the most bytes of the device that this rank's step may take at one time; the smallest of all ranks
 *   counts
 * @error: return location for an error
 *
 * The same as ebb_memory_plan_new() for a step that ranks run together, sharded for example: all ranks call it, and all
 * get the same plan, which keeps each within the budget. Where ranks need different numbers of bytes, the plan has the
 * largest. Times are those of the first rank. Collectives of floating-point numbers are left out of the dry runs, those
 * of integers are sent. A step that lacks memory doesn't run again, as ebb_memory_plan_run_step() says.
 *
 * Returns: (transfer full) (nullable): the plan; %NULL on all ranks, with what ebb_memory_plan_new() reports on any of
 *   them, or with %EBB_ERROR_PROCESS_GROUP if they have other blocks
 */
EbbMemoryPlan *
ebb_memory_plan_new_on_ranks (EbbModule *model,
                              EbbDevice *device,
                              EbbSavedTensorHooks *store,
                              EbbProcessGroup *group,
                              EbbStepFunc step,
                              gpointer user_data,
                              guint64 budget_bytes,
                              GError **error)
{
  return ebb_memory_plan_make_on_ranks (model, device, store, group, step, user_data, budget_bytes, MAX_SECONDS,
                                        error);
}

EbbMemoryPlan *
ebb_memory_plan_make_on_ranks (EbbModule *model,
                               EbbDevice *device,
                               EbbSavedTensorHooks *store,
                               EbbProcessGroup *group,
                               EbbStepFunc step,
                               gpointer user_data,
                               guint64 budget_bytes,
                               double max_seconds,
                               GError **error)
{
  Request request = { { model, device, store, group, step, user_data }, budget_bytes, max_seconds };

  if (!EBB_MAY_BEGIN (error, model, group))
    return NULL;
  g_return_val_if_fail (EBB_IS_MODULE (model) && EBB_IS_PROCESS_GROUP (group) && step != NULL, NULL);

  return make_on_ranks (&request, error);
}

/**
 * ebb_memory_plan_new_least: (constructor)
 * @model: the model, whose parameters may be on any device
 * @device: (nullable): the device that this rank's step is to run on; %NULL for the CPU
 * @store: (nullable): the store to which blocks may move what they keep, as for ebb_memory_plan_new()
 * @group: (nullable): the ranks that train together, all of which call it, as for ebb_memory_plan_new_on_ranks(); %NULL
 *   for one process
 * @step: (scope call) (closure user_data): one training step
 * @user_data: user data of @step
 * @error: return location for an error
 *
 * Finds the least budget for which there is a plan, and makes the plan that needs least. It asks for no times, so no
 * kernels are timed: where there is so little memory that timing would take too much, and where only
 * #EbbMemoryPlan:least-bytes is wanted. #EbbMemoryPlan:seconds is an estimate. Within the same budget
 * ebb_memory_plan_new() may find a faster plan.
 *
 * Returns: (transfer full) (nullable): the plan, whose #EbbMemoryPlan:budget-bytes is the least; %NULL with what
 *   ebb_memory_plan_new() and ebb_memory_plan_new_on_ranks() report
 */
EbbMemoryPlan *
ebb_memory_plan_new_least (EbbModule *model,
                           EbbDevice *device,
                           EbbSavedTensorHooks *store,
                           EbbProcessGroup *group,
                           EbbStepFunc step,
                           gpointer user_data,
                           GError **error)
{
  Request request = {
    { model, device, store, group, step, user_data },
    G_MAXINT64,
    EBB_PLAN_TIMES_COPIES,
    .is_least = TRUE
  };

  if (!EBB_MAY_BEGIN (error, model))
    return NULL;
  g_return_val_if_fail (EBB_IS_MODULE (model) && (group == NULL || EBB_IS_PROCESS_GROUP (group)) && step != NULL, NULL);

  return group != NULL ? make_on_ranks (&request, error) : make_for (&request, error);
}
