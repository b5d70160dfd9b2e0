/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* The chain of stages that a model's step is, with the options that its blocks have. */
#include "wrap/plan/planner/choices-chain-private.h"

static EbbChainOption *
add_options (EbbPlanChain *self,
             guint stage,
             guint n_options)
{
  EbbChainOption *options = g_new0 (EbbChainOption, n_options);

  g_ptr_array_add (self->options, options);
  self->stages[stage].options = options;
  self->stages[stage].n_options = n_options;
  return options;
}

static guint64
subtract (guint64 a,
          guint64 b)
{
  return a > b ? a - b : 0;
}

/* The options of a block whose choices are known. Blocks of a class share them. */
static void
add_block (EbbPlanChain *self,
           guint stage,
           EbbPlanClass *class,
           GHashTable *options_of)
{
  const guint n = self->moves ? class->choices->len : class->n_in_place;
  EbbChainOption *options = g_hash_table_lookup (options_of, class);

  if (options != NULL)
    {
      self->stages[stage].options = options;
      self->stages[stage].n_options = n;
      return;
    }
  options = add_options (self, stage, n);
  g_hash_table_insert (options_of, class, options);
  for (guint i = 0; i < n; i++)
    {
      const EbbPlanChoice *choice = &g_array_index (class->choices, EbbPlanChoice, i);

      options[i] = (EbbChainOption){ .kept = choice->kept,
                                     .forward = choice->rise,
                                     .backward = choice->kept + choice->back_rise,
                                     .moving = choice->moving,
                                     .out_seconds = choice->out_seconds,
                                     .back_seconds = choice->back_seconds,
                                     .seconds = choice->seconds,
                                     .n_wrapped = i > EBB_PLAN_KEEP_ALL };
    }
}

void
ebb_plan_chain_init (EbbPlanChain *self,
                     EbbPlanChoices *choices,
                     gboolean moves)
{
  const EbbProbeStep *none = choices->none;
  const EbbProbeStage *stages = none->stages;
  const guint64 base = stages[0].start;
  g_autoptr (GHashTable) options_of = g_hash_table_new (NULL, NULL);
  EbbChainOption *option;

  self->moves = moves;
  self->n_stages = none->n_stages + 1;
  self->stages = g_new0 (EbbChainStage, self->n_stages);
  self->options = g_ptr_array_new_with_free_func (g_free);
  add_options (self, 0, 1)->forward = none->rest_peak;
  for (guint i = 0; i < none->n_stages; i++)
    {
      EbbChainStage *stage = &self->stages[i + 1];
      const gboolean is_block = i > 0 && i + 1 < none->n_stages;
      const guint64 after = i + 1 < none->n_stages ? stages[i + 1].start : stages[i].start;
      const guint64 kept = subtract (after, stages[i].start);

      stage->forward_base = base;
      stage->backward_base = subtract (stages[i].back_start, subtract (after, base));
      stage->forward_seconds = stages[i].seconds[EBB_PROBE_FORWARD];
      stage->backward_seconds = stages[i].seconds[EBB_PROBE_BACKWARD];
      if (is_block && choices->class_of[i - 1] != NULL)
        {
          add_block (self, i + 1, choices->class_of[i - 1], options_of);
          continue;
        }
      option = add_options (self, i + 1, 1);
      option->kept = kept;
      option->forward = stages[i].rise;
      option->backward = kept + stages[i].back_rise;
    }
}

void
ebb_plan_chain_clear (EbbPlanChain *self)
{
  g_clear_pointer (&self->options, g_ptr_array_unref);
  g_free (self->stages);
}
