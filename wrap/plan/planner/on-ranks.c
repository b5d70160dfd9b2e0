/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* What ranks that plan together send each other. */
#include "wrap/plan/planner/on-ranks-private.h"

#include "dist/agree-private.h"
#include "tensor/error-private.h"

#include <stdlib.h>
#include <string.h>

/* How a text begins that is no announced step. */
#define PLAN "plan "
#define FAILURE "failure "

/* -- meeting ------------------------------------------------------------------------------------------------------- */

gboolean
ebb_plan_ranks_meet (EbbProcessGroup *group,
                     GArray *blocks,
                     guint64 *budget,
                     GError **error)
{
  g_autofree char *own = g_strdup_printf ("%" G_GUINT64_FORMAT, *budget);
  g_autoptr (GString) names = g_string_new (NULL);
  g_auto (GStrv) budgets = NULL;

  for (guint i = 0; i < blocks->len; i++)
    {
      const EbbPlanBlock *block = &g_array_index (blocks, EbbPlanBlock, i);

      g_string_append_printf (names, "%s%s\n", block->path, block->is_taken ? ", which is wrapped" : "");
    }
  if (!ebb_agree_same_text (group, "the blocks of the model", names->str, error))
    return FALSE;
  budgets = ebb_agree_gather_texts (group, own, error);
  for (guint i = 0; budgets != NULL && budgets[i] != NULL; i++)
    *budget = MIN (*budget, g_ascii_strtoull (budgets[i], NULL, 10));
  return budgets != NULL;
}

/* -- steps --------------------------------------------------------------------------------------------------------- */

gboolean
ebb_plan_ranks_announce (EbbProcessGroup *group,
                         const char *step,
                         GError **error)
{
  g_auto (GStrv) texts = NULL;

  if (group == NULL)
    return TRUE;
  texts = ebb_agree_gather_texts (group, step, error);
  return texts != NULL;
}

/* The figures of a step, in one order. Returns how many there are. */
static guint
list_figures (EbbProbeStep *step,
              guint64 ***figures)
{
  guint n = 0;

  *figures = g_new (guint64 *, 3 + 4 * step->n_stages);
  (*figures)[n++] = &step->start;
  (*figures)[n++] = &step->peak;
  (*figures)[n++] = &step->rest_peak;
  for (guint i = 0; i < step->n_stages; i++)
    {
      EbbProbeStage *stage = &step->stages[i];

      (*figures)[n++] = &stage->start;
      (*figures)[n++] = &stage->rise;
      (*figures)[n++] = &stage->back_start;
      (*figures)[n++] = &stage->back_rise;
    }
  return n;
}

/* Where and for what the peak is, then the figures. */
static char *
write_step (EbbProbeStep *step)
{
  GString *text = g_string_new (NULL);
  g_autofree guint64 **figures = NULL;
  const guint n = list_figures (step, &figures);

  g_string_append_printf (text, "%u %u", step->peak_stage, (guint) step->peak_part);
  for (guint i = 0; i < EBB_N_PURPOSES; i++)
    g_string_append_printf (text, " %" G_GUINT64_FORMAT, step->purposes[i]);
  for (guint i = 0; i < n; i++)
    g_string_append_printf (text, " %" G_GUINT64_FORMAT, *figures[i]);
  return g_string_free (text, FALSE);
}

/* Makes the figures of @step no smaller than those of @text. The peak is where the largest one is. */
static void
add_step (EbbProbeStep *step,
          const char *text)
{
  char *at = (char *) text;
  const guint stage = (guint) g_ascii_strtoull (at, &at, 10);
  const EbbProbePart part = (EbbProbePart) g_ascii_strtoull (at, &at, 10);
  const guint64 peak = step->peak;
  g_autofree guint64 **figures = NULL;
  const guint n = list_figures (step, &figures);
  guint64 purposes[EBB_N_PURPOSES];

  for (guint i = 0; i < EBB_N_PURPOSES; i++)
    purposes[i] = g_ascii_strtoull (at, &at, 10);
  for (guint i = 0; i < n; i++)
    {
      const guint64 figure = g_ascii_strtoull (at, &at, 10);

      *figures[i] = MAX (*figures[i], figure);
    }
  if (step->peak == peak)
    return;
  step->peak_stage = stage;
  step->peak_part = part;
  memcpy (step->purposes, purposes, sizeof purposes);
}

gboolean
ebb_plan_ranks_agree (EbbProcessGroup *group,
                      GError *failure,
                      GError **error)
{
  if (group != NULL)
    return ebb_agree_no_failure (group, failure, error);
  if (failure != NULL)
    g_propagate_error (error, failure);
  return failure == NULL;
}

EbbProbeStep *
ebb_plan_ranks_merge (EbbProcessGroup *group,
                      EbbProbeStep *step,
                      GError *failure,
                      GError **error)
{
  g_autoptr (EbbProbeStep) merged = step;
  g_autofree char *text = NULL;
  g_auto (GStrv) texts = NULL;

  if (!ebb_plan_ranks_agree (group, failure, error))
    return NULL;
  if (group == NULL)
    return g_steal_pointer (&merged);
  text = write_step (merged);
  texts = ebb_agree_gather_texts (group, text, error);
  for (guint i = 0; texts != NULL && texts[i] != NULL; i++)
    add_step (merged, texts[i]);
  return texts != NULL ? g_steal_pointer (&merged) : NULL;
}

/* -- the end ------------------------------------------------------------------------------------------------------- */

EbbMemoryPlan *
ebb_plan_ranks_give (EbbProcessGroup *group,
                     EbbMemoryPlan *plan,
                     GError *failure,
                     GError **error)
{
  g_autofree char *json = plan != NULL ? ebb_memory_plan_to_json (plan) : NULL;
  g_autofree char *text = plan != NULL ? g_strconcat (PLAN, json, NULL)
                                       : g_strdup_printf (FAILURE "%d %s", failure->code, failure->message);
  g_autoptr (GError) broken = NULL;

  if (!ebb_plan_ranks_announce (group, text, &broken) && failure == NULL)
    g_clear_object (&plan);
  if (failure != NULL)
    g_propagate_error (error, failure);
  else if (broken != NULL)
    g_propagate_error (error, g_steal_pointer (&broken));
  return plan;
}

char *
ebb_plan_ranks_receive (EbbProcessGroup *group,
                        EbbModule *model,
                        EbbMemoryPlan **plan,
                        GError **error)
{
  g_auto (GStrv) texts = ebb_agree_gather_texts (group, "", error);
  char *message;

  if (texts == NULL)
    return NULL;
  if (g_str_has_prefix (texts[0], PLAN))
    {
      *plan = ebb_memory_plan_new_of_rank (model, texts[0] + strlen (PLAN), error);
      return NULL;
    }
  if (g_str_has_prefix (texts[0], FAILURE))
    {
      const int code = (int) strtol (texts[0] + strlen (FAILURE), &message, 10);

      return ebb_fail_null (error, code, "%s", g_strchug (message));
    }
  return g_strdup (texts[0]);
}

void
ebb_plan_ranks_mark (EbbMemoryPlan *plan,
                     EbbProcessGroup *group)
{
  if (ebb_process_group_get_size (group) > 1)
    for (; plan != NULL; plan = plan->lower)
      plan->is_on_ranks = TRUE;
}

/**
 * ebb_memory_plan_load_on_ranks: (constructor)
 * @model: the model that the plan is for
 * @group: the ranks that train together
 * @path: a file that ebb_memory_plan_save() has written on the first rank; the others don't read it
 * @error: return location for an error
 *
 * The same as ebb_memory_plan_load() on ranks: all call it, and all get the plan of the first one's file.
 *
 * Returns: (transfer full) (nullable): the plan; %NULL on all ranks, with what ebb_memory_plan_load() reports on the
 *   first one
 */
EbbMemoryPlan *
ebb_memory_plan_load_on_ranks (EbbModule *model,
                               EbbProcessGroup *group,
                               const char *path,
                               GError **error)
{
  EbbMemoryPlan *plan = NULL;
  GError *failure = NULL;

  if (!EBB_MAY_BEGIN (error, model, group, path))
    return NULL;
  g_return_val_if_fail (EBB_IS_MODULE (model) && EBB_IS_PROCESS_GROUP (group), NULL);

  if (ebb_process_group_get_rank (group) > 0)
    {
      ebb_plan_ranks_receive (group, model, &plan, error);
      return plan;
    }
  plan = ebb_memory_plan_load (model, path, &failure);
  if (plan != NULL)
    ebb_plan_ranks_mark (plan, group);
  return ebb_plan_ranks_give (group, plan, failure, error);
}
