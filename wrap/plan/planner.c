/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* The planner: from a budget of bytes to a memory plan. */
#include "wrap/plan/memory-plan-private.h"

#include "tensor/error-private.h"
#include "wrap/plan/choices-chain-private.h"
#include "wrap/plan/estimate-private.h"
#include "wrap/plan/mlp-tiles-private.h"
#include "wrap/plan/on-ranks-private.h"
#include "wrap/plan/segments-private.h"

#include <math.h>
#include <string.h>

#define MIB (1024.0 * 1024.0)
/* How often a plan whose dry step passes the budget is made again. */
#define N_CORRECTIONS 8
/* How long kernels are measured of which nothing is known. */
#define MAX_SECONDS 5
/* Plans between a plan and the least one that it may be lowered to. */
#define N_LOWER 2
/* Measuring stays within the budget, too, unless that is tiny. */
#define LEAST_MEASURED ((guint64) 4 << 20)
/* Of a segment whose blocks keep everything while it is recomputed: more would keep more than they save. */
#define MOST_PLAIN_BLOCKS 4

static guint64
subtract (guint64 a,
          guint64 b)
{
  return a > b ? a - b : 0;
}

/* -- plans --------------------------------------------------------------------------------------------------------- */

/* What checkpoints and copies add to a step: the rest of two steps differs by what lies in the cache, which is noise.
 */
static double
count_added_seconds (const EbbProbeStep *step)
{
  double seconds = 0;

  for (guint i = 0; i < step->n_stages; i++)
    seconds += step->stages[i].seconds[EBB_PROBE_RECOMPUTE] + step->stages[i].waited;
  return seconds;
}

/* What tiles add to a step besides their recomputes: copies, and more launches. */
static double
count_tile_seconds (EbbPlanChoices *self)
{
  const EbbProbeStep *without;

  if (self->untiled == NULL)
    return 0;
  without = self->untiled->none;
  return MAX (0, ebb_probe_get_seconds (self->probe, self->none) - count_added_seconds (self->none)
                     - ebb_probe_get_seconds (self->probe, without) + count_added_seconds (without));
}

/* The plan in which each block makes its choice of @chosen, and the dry step with it. @n_blocks: of a segment; 0: there
 * are none. */
static EbbMemoryPlan *
make_segmented (EbbPlanChoices *self,
                const guint *chosen,
                guint n_blocks,
                EbbProbeStep **step,
                GError **error)
{
  const EbbProbeStep *unplanned = self->untiled != NULL ? self->untiled->none : self->none;
  g_autoptr (EbbMemoryPlan) plan = ebb_memory_plan_new_empty (self->model);

  ebb_plan_choices_fill (self, chosen, plan);
  if (n_blocks > 0)
    ebb_memory_plan_add_rung (plan, EBB_PLAN_SEGMENTS, n_blocks);
  *step = ebb_plan_choices_try (self, plan, error);
  if (*step == NULL)
    return NULL;
  plan->predicted_peak_bytes = (*step)->peak;
  plan->unplanned_peak_bytes = unplanned->peak;
  plan->seconds = MAX (0, count_added_seconds (*step) - count_added_seconds (unplanned))
                  + count_tile_seconds (self);
  plan->step_seconds = ebb_probe_get_seconds (self->probe, unplanned) + plan->seconds;
  g_free (plan->step);
  plan->step = g_strdup (ebb_probe_get_input (self->probe));
  g_free (plan->binds);
  plan->binds = ebb_probe_describe_place (self->probe, (*step)->peak_stage, (*step)->peak_part);
  return g_steal_pointer (&plan);
}

static EbbMemoryPlan *
make_plan (EbbPlanChoices *self,
           const guint *chosen,
           EbbProbeStep **step,
           GError **error)
{
  return make_segmented (self, chosen, 0, step, error);
}

/* The choices of the lowest peak that a chain knows of in which blocks keep or recompute everything. */
static void
find_lowest (EbbPlanChoices *self,
             const EbbPlanChain *chain,
             guint *choices)
{
  g_autofree EbbChainStage *stages = g_memdup2 (chain->stages, chain->n_stages * sizeof *stages);
  g_auto (EbbChainPlan) chosen = { 0 };
  guint64 budget;

  for (guint i = 0; i < chain->n_stages; i++)
    stages[i].n_options = MIN (stages[i].n_options, EBB_PLAN_RECOMPUTE_ALL + 1);
  budget = ebb_chain_get_least (stages, chain->n_stages);
  ebb_chain_solve (stages, chain->n_stages, &budget, 1, &chosen);
  memcpy (choices, chosen.choices + EBB_PLAN_CHAIN_N_BEFORE_BLOCKS, self->blocks->len * sizeof *choices);
}

/* The plan of the lowest peak. What it saves doesn't depend on seconds, which differ from one measurement to the next:
 * the least budget of a step is always the same. */
static EbbMemoryPlan *
make_least (EbbPlanChoices *self,
            const EbbPlanChain *chain,
            EbbProbeStep **step,
            GError **error)
{
  enum
  {
    FULL,
    ALL_BUT_THE_LAST,
    LOWEST,
    N_CANDIDATES
  };
  const guint n = self->blocks->len;
  g_autofree guint *choices = g_new0 (guint, n + 1);
  g_autoptr (EbbMemoryPlan) least = NULL;

  *step = NULL;
  for (guint candidate = 0; candidate < N_CANDIDATES; candidate++)
    {
      g_autoptr (EbbProbeStep) other = NULL;
      g_autoptr (EbbMemoryPlan) plan = NULL;

      for (guint i = 0; i < n; i++)
        choices[i] = candidate == ALL_BUT_THE_LAST && i + 1 == n ? EBB_PLAN_KEEP_ALL : EBB_PLAN_RECOMPUTE_ALL;
      if (candidate == LOWEST)
        find_lowest (self, chain, choices);
      plan = make_plan (self, choices, &other, error);
      if (plan == NULL)
        {
          g_clear_pointer (step, ebb_probe_step_free);
          return NULL;
        }
      if (least != NULL && plan->predicted_peak_bytes >= least->predicted_peak_bytes)
        continue;
      g_clear_pointer (step, ebb_probe_step_free);
      *step = g_steal_pointer (&other);
      g_set_object (&least, plan);
    }
  return g_steal_pointer (&least);
}

/* The chain's fastest plan within the budget whose dry step is within it, too: what a step passes the budget by is
 * taken off it. NULL without an error: there is none. */
static EbbMemoryPlan *
make_mixed (EbbPlanChoices *self,
            const EbbPlanChain *chain,
            guint64 budget,
            GError **error)
{
  guint64 allowed = budget;

  for (guint i = 0; i < N_CORRECTIONS; i++)
    {
      g_auto (EbbChainPlan) chosen = { 0 };
      g_autoptr (EbbProbeStep) step = NULL;
      g_autoptr (EbbMemoryPlan) plan = NULL;

      ebb_chain_solve (chain->stages, chain->n_stages, &allowed, 1, &chosen);
      if (!chosen.fits)
        return NULL;
      plan = make_plan (self, chosen.choices + EBB_PLAN_CHAIN_N_BEFORE_BLOCKS, &step, error);
      if (plan == NULL || plan->predicted_peak_bytes <= budget)
        return g_steal_pointer (&plan);
      allowed = subtract (chosen.peak, plan->predicted_peak_bytes - budget);
    }
  return NULL;
}

/* The fastest way within @budget, as the chain knows it, in which all blocks make the same choice; it doesn't fit if
 * none is within it. */
static void
find_uniform (const EbbPlanChain *chain,
              guint64 budget,
              EbbChainPlan *fastest)
{
  g_autofree guint *choices = g_new (guint, chain->n_stages);
  guint n = 0;

  for (guint i = 0; i < chain->n_stages; i++)
    n = MAX (n, chain->stages[i].n_options);
  for (guint k = 0; k < n; k++)
    {
      g_auto (EbbChainPlan) plan = { 0 };

      for (guint i = 0; i < chain->n_stages; i++)
        choices[i] = MIN (k, chain->stages[i].n_options - 1);
      ebb_chain_evaluate (chain->stages, chain->n_stages, choices, &plan);
      if (plan.peak > budget || (fastest->fits && plan.seconds >= fastest->seconds))
        continue;
      ebb_chain_plan_clear (fastest);
      *fastest = plan;
      fastest->fits = TRUE;
      plan.choices = NULL;
    }
}

/* -- with and without tiles ---------------------------------------------------------------------------------------- */

/* The plans of a model, of which some have tiles and others have none. */
typedef struct
{
  EbbPlanChoices *choices;
  EbbPlanChain chain;
  EbbPlanChain moving; /* with choices that move what blocks keep; without stages if there are none */
  GPtrArray *uniform;  /* of EbbMemoryPlan: in which all blocks move, whether copies are hidden or not */
  EbbMemoryPlan *least;
  EbbProbeStep *least_step;
  EbbMemoryPlan *nested; /* the least with segments, if that is less than without; or NULL */
  EbbProbeStep *nested_step;
  GPtrArray *segmented; /* of EbbMemoryPlan: with segments, made when no other plan fits; NULL until then */
} Family;

enum
{
  WITHOUT_TILES,
  WITH_TILES,
  N_FAMILIES
};

typedef struct
{
  Family families[N_FAMILIES];
  guint n_families;
  const EbbProbeStep *least_step; /* of all, not owned, and its plan */
  EbbMemoryPlan *least;
} Planner;

/* Plans in which all blocks make the same choice that moves what they keep, with the last one, whose backward comes
 * next, or without it. */
static gboolean
make_uniform (Family *self,
              GError **error)
{
  const guint n = self->choices->blocks->len;
  g_autofree guint *chosen = g_new0 (guint, n + 1);
  guint n_choices = 0;

  for (guint i = 0; i < self->choices->classes->len; i++)
    {
      const EbbPlanClass *class = self->choices->classes->pdata[i];

      n_choices = MAX (n_choices, class->choices->len - class->n_in_place);
    }
  for (guint k = 0; k < 2 * n_choices; k++)
    {
      g_autoptr (EbbProbeStep) step = NULL;
      EbbMemoryPlan *plan;

      for (guint i = 0; i < n; i++)
        {
          const EbbPlanClass *class = self->choices->class_of[i];

          if (class != NULL && class->choices->len > class->n_in_place)
            chosen[i] = MIN (class->n_in_place + k / 2, class->choices->len - 1);
        }
      if (k % 2 == 1)
        chosen[n - 1] = EBB_PLAN_KEEP_ALL;
      plan = make_plan (self->choices, chosen, &step, error);
      if (plan == NULL)
        return FALSE;
      g_ptr_array_add (self->uniform, plan);
      if (plan->predicted_peak_bytes >= self->least->predicted_peak_bytes)
        continue;
      g_set_object (&self->least, plan);
      ebb_probe_step_free (self->least_step);
      self->least_step = g_steal_pointer (&step);
    }
  if (n_choices > 0)
    ebb_plan_chain_init (&self->moving, self->choices, TRUE);
  return TRUE;
}

/* The plan in which blocks are recomputed one by one within segments that are recomputed, too. With about as many
 * segments as each has blocks the fewest of their inputs exist at one time. */
static gboolean
make_nested (Family *self,
             GError **error)
{
  const guint n_blocks = ebb_plan_segments_count_blocks (self->choices->model, self->choices->blocks);
  const guint size = (guint) ceil (sqrt (n_blocks));
  g_autofree guint *chosen = g_new0 (guint, self->choices->blocks->len + 1);
  g_autoptr (EbbMemoryPlan) plan = NULL;
  g_autoptr (EbbProbeStep) step = NULL;

  if (n_blocks == 0 || (n_blocks + size - 1) / size + size >= n_blocks)
    return TRUE;
  for (guint i = 0; i < self->choices->blocks->len; i++)
    chosen[i] = EBB_PLAN_RECOMPUTE_ALL;
  plan = make_segmented (self->choices, chosen, size, &step, error);
  if (plan == NULL)
    return FALSE;
  if (plan->predicted_peak_bytes >= self->least->predicted_peak_bytes)
    return TRUE;
  self->nested = g_steal_pointer (&plan);
  self->nested_step = g_steal_pointer (&step);
  return TRUE;
}

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
add_family (Planner *self,
            EbbPlanChoices *choices,
            GError **error)
{
  Family *family = &self->families[self->n_families];

  if (choices == NULL)
    return FALSE;
  self->n_families++;
  family->choices = choices;
  family->uniform = g_ptr_array_new_with_free_func (g_object_unref);
  ebb_plan_chain_init (&family->chain, choices, FALSE);
  family->least = make_least (choices, &family->chain, &family->least_step, error);
  if (family->least == NULL || !make_uniform (family, error) || !make_nested (family, error))
    return FALSE;
  take_least (self, family->least, family->least_step);
  take_least (self, family->nested, family->nested_step);
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
  g_autoptr (GArray) sizes = NULL;

  if (!add_family (self, untiled, error))
    return FALSE;
  sizes = ebb_plan_mlp_tiles_list (untiled->model, ebb_probe_get_n_rows (untiled->probe));
  if (sizes->len == 0 || !ebb_plan_mlp_tiles_keep_bits (untiled->model, device))
    return TRUE;
  return add_family (
      self, ebb_plan_choices_new_tiled (untiled, g_array_index (sizes, gint64, 0), max_seconds, max_bytes, error),
      error);
}

static void
planner_clear (Planner *self)
{
  while (self->n_families > 0)
    {
      Family *family = &self->families[--self->n_families];

      ebb_plan_chain_clear (&family->chain);
      ebb_plan_chain_clear (&family->moving);
      g_ptr_array_unref (family->uniform);
      g_clear_object (&family->least);
      g_clear_pointer (&family->least_step, ebb_probe_step_free);
      g_clear_object (&family->nested);
      g_clear_pointer (&family->nested_step, ebb_probe_step_free);
      g_clear_pointer (&family->segmented, g_ptr_array_unref);
      ebb_plan_choices_free (family->choices);
    }
}

G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC (Planner, planner_clear)

/* Of plans that are as fast the one of the lower peak is taken, and else the one that was there first. */
static void
take_faster (EbbMemoryPlan **fastest,
             EbbMemoryPlan *plan,
             guint64 budget)
{
  if (plan != NULL && plan->predicted_peak_bytes <= budget
      && (*fastest == NULL || plan->seconds < (*fastest)->seconds
          || (plan->seconds == (*fastest)->seconds && plan->predicted_peak_bytes < (*fastest)->predicted_peak_bytes)))
    g_set_object (fastest, plan);
}

/* Where recomputing costs time, blocks may move what they keep instead. */
static gboolean
find_moving (Family *self,
             guint64 budget,
             EbbMemoryPlan **fastest,
             GError **error)
{
  g_autoptr (EbbMemoryPlan) mixed = NULL;
  GError *failure = NULL;

  if (self->moving.stages == NULL || (*fastest != NULL && (*fastest)->seconds <= 0))
    return TRUE;
  for (guint i = 0; i < self->uniform->len; i++)
    take_faster (fastest, self->uniform->pdata[i], budget);
  mixed = make_mixed (self->choices, &self->moving, budget, &failure);
  take_faster (fastest, mixed, budget);
  if (failure != NULL)
    g_propagate_error (error, failure);
  return failure == NULL;
}

/* Segments whose blocks keep everything while it is recomputed: one more forward, as where each block is recomputed. */
static gboolean
make_plain_segments (Family *self,
                     GError **error)
{
  const guint n_blocks = ebb_plan_segments_count_blocks (self->choices->model, self->choices->blocks);
  g_autofree guint *chosen = g_new0 (guint, self->choices->blocks->len + 1);

  self->segmented = g_ptr_array_new_with_free_func (g_object_unref);
  for (guint size = 2; size <= MIN (n_blocks / 2, MOST_PLAIN_BLOCKS); size++)
    {
      g_autoptr (EbbProbeStep) step = NULL;
      EbbMemoryPlan *plan = make_segmented (self->choices, chosen, size, &step, error);

      if (plan == NULL)
        return FALSE;
      g_ptr_array_add (self->segmented, plan);
    }
  return TRUE;
}

/* Below what plans of single blocks reach. */
static gboolean
find_segmented (Family *self,
                guint64 budget,
                EbbMemoryPlan **fastest,
                GError **error)
{
  if (self->nested == NULL || budget >= self->least->predicted_peak_bytes)
    return TRUE;
  if (self->segmented == NULL && !make_plain_segments (self, error))
    return FALSE;
  for (guint i = 0; i < self->segmented->len; i++)
    take_faster (fastest, self->segmented->pdata[i], budget);
  take_faster (fastest, self->nested, budget);
  return TRUE;
}

/* What a block keeps may depend on what its neighbors do, which a chain doesn't know: near the least budget it may find
 * nothing where all blocks could do the same, and nothing as fast as the plan of the lowest peak. */
static gboolean
find_fastest (Family *self,
              guint64 budget,
              EbbMemoryPlan **fastest,
              GError **error)
{
  GError *failure = NULL;
  g_autoptr (EbbMemoryPlan) mixed = make_mixed (self->choices, &self->chain, budget, &failure), same = NULL;
  g_autoptr (EbbProbeStep) step = NULL;
  g_auto (EbbChainPlan) uniform = { 0 };

  if (failure != NULL)
    {
      g_propagate_error (error, failure);
      return FALSE;
    }
  take_faster (fastest, mixed, budget);
  take_faster (fastest, self->least, budget);
  find_uniform (&self->chain, budget, &uniform);
  if (!uniform.fits || (*fastest != NULL && (*fastest)->seconds <= uniform.seconds))
    return find_moving (self, budget, fastest, error);
  same = make_plan (self->choices, uniform.choices + EBB_PLAN_CHAIN_N_BEFORE_BLOCKS, &step, error);
  if (same == NULL)
    return FALSE;
  take_faster (fastest, same, budget);
  return find_moving (self, budget, fastest, error);
}

/* What a step takes longer than without a plan at least, whatever the family's blocks do. */
static double
count_least_seconds (const Family *self)
{
  return self->choices->untiled == NULL
             ? 0
             : count_added_seconds (self->choices->none) - count_added_seconds (self->choices->untiled->none)
                   + count_tile_seconds (self->choices);
}

/* NULL without an error: there is no plan. */
static EbbMemoryPlan *
make_fastest (Planner *self,
              guint64 budget,
              GError **error)
{
  g_autoptr (EbbMemoryPlan) fastest = NULL;

  for (guint i = 0; i < self->n_families; i++)
    if ((fastest == NULL || fastest->seconds > count_least_seconds (&self->families[i]))
        && !(find_fastest (&self->families[i], budget, &fastest, error)
             && find_segmented (&self->families[i], budget, &fastest, error)))
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
        {
          g_propagate_error (error, failure);
          return FALSE;
        }
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

  for (guint i = 0; i < EBB_N_PURPOSES; i++)
    if (least->purposes[i] > 0)
      g_string_append_printf (parts, "%s%s %.1f", parts->len > 0 ? ", " : "", ebb_purpose_get_name ((EbbPurpose) i),
                              (double) least->purposes[i] / MIB);
  g_set_error (error, EBB_ERROR, EBB_ERROR_NO_MEMORY,
               "a budget of %.1f MiB is too small: the step needs at least %.1f MiB (%s)", (double) budget / MIB,
               ceil ((double) least->peak / MIB * 10) / 10, parts->str);
}

/* Whether nothing is left to be measured. */
static gboolean
knows_times (EbbPlanChoices *choices)
{
  return ebb_cost_table_get_n_measured (choices->costs) == ebb_cost_table_get_n_launches (choices->costs)
         && ebb_cost_table_get_n_disturbed (choices->costs) == 0;
}

/* @group: NULL, or the ranks of which this is the first. @is_real: by real steps. */
static EbbMemoryPlan *
make_for (EbbModule *model,
          EbbDevice *device,
          EbbSavedTensorHooks *store,
          EbbProcessGroup *group,
          gboolean is_real,
          EbbStepFunc step,
          gpointer user_data,
          guint64 budget_bytes,
          double max_seconds,
          GError **error)
{
  const guint64 max_bytes = MIN (EBB_ESTIMATE_MEASURED_BYTES, MAX (budget_bytes / 4, LEAST_MEASURED));
  EbbPlanChoices *choices;
  gboolean asks_first; /* what the step needs at least, which no time changes */
  EbbMemoryPlace place;
  g_autoptr (EbbMemoryPlan) plan = NULL;
  g_auto (Planner) planner = { 0 };

  if (device == NULL)
    device = ebb_device_get_cpu ();
  /* Where blocks may move what they keep, that depends on rates of copies; and ranks look at one step together. */
  asks_first = max_seconds > 0 && group == NULL && !is_real && ebb_plan_find_place (device, store, &place, NULL)
               && place == EBB_MEMORY_PLACE_DEVICE;
  choices = is_real ? ebb_plan_choices_new_real (model, device, step, user_data, max_seconds, max_bytes, error)
                    : ebb_plan_choices_new (model, device, store, group, step, user_data, asks_first ? 0 : max_seconds,
                                            max_bytes, error);
  if (choices == NULL || !planner_init (&planner, choices, device, asks_first ? 0 : max_seconds, max_bytes, error))
    return NULL;
  if (asks_first && planner.least->predicted_peak_bytes <= budget_bytes && !knows_times (choices))
    {
      planner_clear (&planner);
      planner = (Planner){ 0 };
      choices = ebb_plan_choices_new (model, device, store, group, step, user_data, max_seconds, max_bytes, error);
      if (choices == NULL || !planner_init (&planner, choices, device, max_seconds, max_bytes, error))
        return NULL;
    }
  if (planner.least->predicted_peak_bytes > budget_bytes)
    {
      fail_least (&planner, budget_bytes, error);
      return NULL;
    }
  plan = make_fastest (&planner, budget_bytes, error);
  if (plan == NULL || (plan != planner.least && !add_lower (&planner, plan, error)))
    return NULL;
  plan->budget_bytes = MIN (budget_bytes, (guint64) G_MAXINT64); /* the largest number of a file */
  plan->least_bytes = planner.least->predicted_peak_bytes;
  return g_steal_pointer (&plan);
}

/**
 * ebb_memory_plan_new: (constructor)
 * @model: the model, whose parameters may be on any device, `meta` too
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
 * recomputed together. It runs @step several times as a dry run, which computes
 * nothing, takes no memory and changes nothing, as by ebb_memory_estimate_new(). Kernels that this machine hasn't timed
 * yet are timed, for a few seconds at most. Blocks that you have wrapped yourself are planned around. The plan takes
 * effect by ebb_memory_plan_apply().
 *
 * Returns: (transfer full) (nullable): the plan; %NULL with %EBB_ERROR_NO_MEMORY if the step needs more than the budget
 *   whatever is done, with %EBB_ERROR_INVALID_ARGUMENT if @store is of another kind, with %EBB_ERROR_IO if its folder
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
  guint n;
  g_autofree EbbTensor **parameters = ebb_module_get_parameters (model, TRUE, &n);
  EbbDevice *other = NULL;

  for (guint i = 0; i < n; i++)
    {
      if (ebb_tensor_get_device (parameters[i]) != device)
        other = ebb_tensor_get_device (parameters[i]);
      ebb_tensor_unref (parameters[i]);
    }
  if (other != NULL)
    g_set_error (
        error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT,
        "the plan is for steps on %s, and the model has parameters on %s: name the device that they are on, or "
        "move them",
        ebb_device_get_name (device), ebb_device_get_name (other));
  return other == NULL;
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
 *   whatever is done, with %EBB_ERROR_INVALID_ARGUMENT if the model is on another device, with %EBB_ERROR_STATE if
 *   steps differ, or with what @step reports
 */
EbbMemoryPlan *
ebb_memory_plan_new_measured (EbbModule *model,
                              EbbDevice *device,
                              EbbStepFunc step,
                              gpointer user_data,
                              guint64 budget_bytes,
                              GError **error)
{
  if (!EBB_MAY_BEGIN (error, model))
    return NULL;
  g_return_val_if_fail (EBB_IS_MODULE (model) && step != NULL, NULL);

  if (!check_device (model, device != NULL ? device : ebb_device_get_cpu (), error))
    return NULL;
  return make_for (model, device, NULL, NULL, TRUE, step, user_data, budget_bytes, MAX_SECONDS, error);
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
  if (!EBB_MAY_BEGIN (error, model))
    return NULL;
  g_return_val_if_fail (EBB_IS_MODULE (model) && step != NULL, NULL);

  return make_for (model, device, store, NULL, FALSE, step, user_data, budget_bytes, max_seconds, error);
}

/**
 * ebb_memory_plan_new_on_ranks: (constructor)
 * @model: the model, whose parameters may be on any device, `meta` too
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
  g_autoptr (GArray) blocks = NULL;
  GError *failure = NULL;
  EbbMemoryPlan *plan;

  if (!EBB_MAY_BEGIN (error, model, group))
    return NULL;
  g_return_val_if_fail (EBB_IS_MODULE (model) && EBB_IS_PROCESS_GROUP (group) && step != NULL, NULL);

  blocks = ebb_plan_find_blocks (model);
  if (!ebb_plan_ranks_meet (group, blocks, &budget_bytes, error))
    return NULL;
  if (ebb_process_group_get_rank (group) > 0)
    return ebb_plan_choices_follow (model, device != NULL ? device : ebb_device_get_cpu (), store, group, step,
                                    user_data, error);
  plan = make_for (model, device, store, group, FALSE, step, user_data, budget_bytes, max_seconds, &failure);
  if (plan != NULL)
    ebb_plan_ranks_mark (plan, group);
  return ebb_plan_ranks_give (group, plan, failure, error);
}
