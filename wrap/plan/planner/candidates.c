/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "wrap/plan/planner/candidates-private.h"

#include "tensor/error-private.h"
#include "wrap/plan/segments-private.h"

#include <math.h>
#include <string.h>

/* How often a plan whose dry step passes the budget is made again. */
#define N_CORRECTIONS 8
/* Of plans in which all blocks move, by how much of a dry step's figures a chain's may be wrong. Too few bytes are
 * seldom. Too many: bytes that neighbors have in common are counted for both, and a product's workspace where it isn't
 * at the peak. Plans are tried up to the sum of the two above the lowest. */
#define MOST_TOO_FEW_BYTES 0.0125
#define MOST_TOO_MANY_BYTES 0.04
#define MOST_OTHER_SECONDS 0.05
/* Of a segment whose blocks keep everything while it is recomputed: more would keep more than they save. */
#define MOST_PLAIN_BLOCKS 4

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
  const guint most = EBB_PLAN_RECOMPUTE_ALL + 1;
  g_autofree EbbChainStage *stages = g_memdup2 (chain->stages, chain->n_stages * sizeof *stages);
  g_autofree EbbChainOption *options = g_new (EbbChainOption, (gsize) chain->n_stages * most);
  g_auto (EbbChainPlan) chosen = { 0 };
  guint64 budget;

  /* Of choices that need equal bytes the one that recomputes less is taken, not the one that was measured as faster. */
  for (guint i = 0; i < chain->n_stages; i++)
    {
      EbbChainOption *own = options + (gsize) i * most;

      stages[i].n_options = MIN (stages[i].n_options, most);
      for (guint k = 0; k < stages[i].n_options; k++)
        {
          own[k] = stages[i].options[k];
          own[k].seconds = k;
        }
      stages[i].options = own;
    }
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
  g_autofree guint *choices = g_new0 (guint, n + 1), *before = g_new0 (guint, n + 1);
  g_autoptr (EbbMemoryPlan) least = NULL;

  *step = NULL;
  for (guint candidate = 0; candidate < N_CANDIDATES; candidate++)
    {
      g_autoptr (EbbProbeStep) other = NULL;
      g_autoptr (EbbMemoryPlan) plan = NULL;

      memcpy (before, choices, n * sizeof *choices);
      for (guint i = 0; i < n; i++)
        choices[i] = candidate == ALL_BUT_THE_LAST && i + 1 == n ? EBB_PLAN_KEEP_ALL : EBB_PLAN_RECOMPUTE_ALL;
      if (candidate == LOWEST)
        find_lowest (self, chain, choices);
      if (candidate == LOWEST && memcmp (before, choices, n * sizeof *choices) == 0)
        continue;
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
      allowed = chosen.peak - MIN (chosen.peak, plan->predicted_peak_bytes - budget);
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

static void
uniform_clear (gpointer data)
{
  EbbPlanUniform *self = data;

  g_free (self->choices);
  g_clear_object (&self->plan);
}

static guint
count_moved (EbbPlanChoices *self)
{
  guint n = 0;

  for (guint i = 0; i < self->classes->len; i++)
    {
      const EbbPlanClass *class = self->classes->pdata[i];

      n = MAX (n, class->choices->len - class->n_in_place);
    }
  return n;
}

/* All blocks make choice @number of those that move what they keep, with the last one, whose backward comes next, or
 * without it. */
static EbbPlanUniform
describe_uniform (EbbPlanCandidates *self,
                  guint number,
                  gboolean with_last)
{
  const guint n = self->choices->blocks->len;
  g_autofree guint *choices = g_new0 (guint, self->moving.n_stages);
  guint *chosen = choices + EBB_PLAN_CHAIN_N_BEFORE_BLOCKS;
  g_auto (EbbChainPlan) known = { 0 };

  for (guint i = 0; i < n; i++)
    {
      const EbbPlanClass *class = self->choices->class_of[i];

      if (class != NULL && class->choices->len > class->n_in_place && (with_last || i + 1 < n))
        chosen[i] = MIN (class->n_in_place + number, class->choices->len - 1);
    }
  ebb_chain_evaluate (self->moving.stages, self->moving.n_stages, choices, &known);
  return (EbbPlanUniform){ .choices = g_memdup2 (chosen, n * sizeof *chosen),
                           .with_last = with_last,
                           .peak = known.peak,
                           .seconds = known.seconds + count_tile_seconds (self->choices) };
}

/* Makes the plan if it isn't there yet. @step: the dry step with it, if it ran now. */
static gboolean
make_uniform (EbbPlanCandidates *self,
              EbbPlanUniform *uniform,
              EbbProbeStep **step,
              GError **error)
{
  if (uniform->plan == NULL)
    uniform->plan = make_plan (self->choices, uniform->choices, step, error);
  return uniform->plan != NULL;
}

static gboolean
make_lowest (EbbPlanCandidates *self,
             guint64 most,
             GError **error)
{
  for (guint k = 0; k < self->uniform->len; k++)
    {
      EbbPlanUniform *uniform = &g_array_index (self->uniform, EbbPlanUniform, k);
      g_autoptr (EbbProbeStep) step = NULL;

      if (!uniform->with_last || uniform->peak > most)
        continue;
      if (!make_uniform (self, uniform, &step, error))
        return FALSE;
      if (uniform->plan->predicted_peak_bytes >= self->least->predicted_peak_bytes)
        continue;
      g_set_object (&self->least, uniform->plan);
      ebb_probe_step_free (self->least_step);
      self->least_step = g_steal_pointer (&step);
    }
  return TRUE;
}

/* Those that may need least are made at once. One in which the last block keeps everything doesn't need less. */
static gboolean
add_uniform (EbbPlanCandidates *self,
             GError **error)
{
  const guint n_moved = count_moved (self->choices);
  guint64 lowest = G_MAXUINT64;

  if (n_moved == 0)
    return TRUE;
  ebb_plan_chain_init (&self->moving, self->choices, TRUE);
  for (guint k = 0; k < 2 * n_moved; k++)
    {
      const EbbPlanUniform uniform = describe_uniform (self, k / 2, k % 2 == 0);

      g_array_append_val (self->uniform, uniform);
      lowest = MIN (lowest, uniform.peak);
    }
  return make_lowest (self, (guint64) ((double) lowest * (1 + MOST_TOO_FEW_BYTES + MOST_TOO_MANY_BYTES)), error);
}

/* The plan in which blocks are recomputed one by one within segments that are recomputed, too. With about as many
 * segments as each has blocks the fewest of their inputs exist at one time. */
static gboolean
make_nested (EbbPlanCandidates *self,
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

/* -- all candidates ------------------------------------------------------------------------------------------------ */

gboolean
ebb_plan_candidates_init (EbbPlanCandidates *self,
                          EbbPlanChoices *choices,
                          GError **error)
{
  *self = (EbbPlanCandidates){ .choices = choices };
  self->uniform = g_array_new (FALSE, FALSE, sizeof (EbbPlanUniform));
  g_array_set_clear_func (self->uniform, uniform_clear);
  ebb_plan_chain_init (&self->chain, choices, FALSE);
  self->least = make_least (choices, &self->chain, &self->least_step, error);
  return self->least != NULL && add_uniform (self, error) && make_nested (self, error);
}

void
ebb_plan_candidates_clear (EbbPlanCandidates *self)
{
  ebb_plan_chain_clear (&self->chain);
  ebb_plan_chain_clear (&self->moving);
  g_array_unref (self->uniform);
  g_clear_object (&self->least);
  g_clear_pointer (&self->least_step, ebb_probe_step_free);
  g_clear_object (&self->nested);
  g_clear_pointer (&self->nested_step, ebb_probe_step_free);
  g_clear_pointer (&self->segmented, g_ptr_array_unref);
  ebb_plan_choices_free (self->choices);
}

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

/* Those that the chain may be wrong about, too. */
static gboolean
find_all_moving (EbbPlanCandidates *self,
                 guint64 budget,
                 EbbMemoryPlan **fastest,
                 GError **error)
{
  for (guint i = 0; i < self->uniform->len; i++)
    {
      EbbPlanUniform *uniform = &g_array_index (self->uniform, EbbPlanUniform, i);
      g_autoptr (EbbProbeStep) step = NULL;

      if (*fastest != NULL && uniform->seconds * (1 - MOST_OTHER_SECONDS) >= (*fastest)->seconds)
        continue;
      if (!make_uniform (self, uniform, &step, error))
        return FALSE;
      take_faster (fastest, uniform->plan, budget);
    }
  return TRUE;
}

/* Where recomputing costs time, blocks may move what they keep instead. */
static gboolean
find_moving (EbbPlanCandidates *self,
             guint64 budget,
             EbbMemoryPlan **fastest,
             GError **error)
{
  g_autoptr (EbbMemoryPlan) mixed = NULL;
  GError *failure = NULL;

  if (self->moving.stages == NULL || (*fastest != NULL && (*fastest)->seconds <= 0))
    return TRUE;
  mixed = make_mixed (self->choices, &self->moving, budget, &failure);
  take_faster (fastest, mixed, budget);
  if (failure == NULL)
    return find_all_moving (self, budget, fastest, error);
  return ebb_fail_with (error, failure);
}

/* Segments whose blocks keep everything while it is recomputed: one more forward, as where each block is recomputed. */
static gboolean
make_plain_segments (EbbPlanCandidates *self,
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
find_segmented (EbbPlanCandidates *self,
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
find_unsegmented (EbbPlanCandidates *self,
                  guint64 budget,
                  EbbMemoryPlan **fastest,
                  GError **error)
{
  GError *failure = NULL;
  g_autoptr (EbbMemoryPlan) mixed = make_mixed (self->choices, &self->chain, budget, &failure), same = NULL;
  g_autoptr (EbbProbeStep) step = NULL;
  g_auto (EbbChainPlan) uniform = { 0 };

  if (failure != NULL)
    return ebb_fail_with (error, failure);
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
count_least_seconds (const EbbPlanCandidates *self)
{
  return self->choices->untiled == NULL
             ? 0
             : count_added_seconds (self->choices->none) - count_added_seconds (self->choices->untiled->none)
                   + count_tile_seconds (self->choices);
}

gboolean
ebb_plan_candidates_find_fastest (EbbPlanCandidates *self,
                                  guint64 budget,
                                  EbbMemoryPlan **fastest,
                                  GError **error)
{
  if (*fastest != NULL && (*fastest)->seconds <= count_least_seconds (self))
    return TRUE;
  return find_unsegmented (self, budget, fastest, error) && find_segmented (self, budget, fastest, error);
}
