/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "dist/tensor-parallel/options.h"

struct _EbbParallelOptions
{
  GObject parent_instance;

  EbbParallelPlan *plan;
  gboolean sequence_parallel;
  gboolean synchronize_weights;
};

enum
{
  PROP_PLAN = 1,
  PROP_SEQUENCE_PARALLEL,
  PROP_SYNCHRONIZE_WEIGHTS,
  N_PROPERTIES
};

static GParamSpec *properties[N_PROPERTIES];

G_DEFINE_FINAL_TYPE (EbbParallelOptions, ebb_parallel_options, G_TYPE_OBJECT)

static void
ebb_parallel_options_get_property (GObject *object, guint id, GValue *value, GParamSpec *spec)
{
  EbbParallelOptions *self = EBB_PARALLEL_OPTIONS (object);

  switch (id)
    {
    case PROP_PLAN: g_value_set_boxed (value, self->plan); break;
    case PROP_SEQUENCE_PARALLEL: g_value_set_boolean (value, self->sequence_parallel); break;
    case PROP_SYNCHRONIZE_WEIGHTS: g_value_set_boolean (value, self->synchronize_weights); break;
    default: G_OBJECT_WARN_INVALID_PROPERTY_ID (object, id, spec);
    }
}

static void
ebb_parallel_options_set_property (GObject *object, guint id, const GValue *value, GParamSpec *spec)
{
  EbbParallelOptions *self = EBB_PARALLEL_OPTIONS (object);

  switch (id)
    {
    case PROP_PLAN: ebb_parallel_options_set_plan (self, g_value_get_boxed (value)); break;
    case PROP_SEQUENCE_PARALLEL: self->sequence_parallel = g_value_get_boolean (value); break;
    case PROP_SYNCHRONIZE_WEIGHTS: self->synchronize_weights = g_value_get_boolean (value); break;
    default: G_OBJECT_WARN_INVALID_PROPERTY_ID (object, id, spec);
    }
}

static void
ebb_parallel_options_finalize (GObject *object)
{
  ebb_parallel_plan_free (EBB_PARALLEL_OPTIONS (object)->plan);
  G_OBJECT_CLASS (ebb_parallel_options_parent_class)->finalize (object);
}

static void
ebb_parallel_options_class_init (EbbParallelOptionsClass *klass)
{
  const GParamFlags flags = G_PARAM_READWRITE | G_PARAM_STATIC_STRINGS;
  GObjectClass *object_class = G_OBJECT_CLASS (klass);

  object_class->get_property = ebb_parallel_options_get_property;
  object_class->set_property = ebb_parallel_options_set_property;
  object_class->finalize = ebb_parallel_options_finalize;

  /**
   * EbbParallelOptions:plan:
   *
   * Which modules are divided, and how; %NULL, the default: as ebb_parallel_plan_new_for() says.
   */
  properties[PROP_PLAN] =
      g_param_spec_boxed ("plan", NULL, "Which modules are divided", EBB_TYPE_PARALLEL_PLAN, flags);
  /**
   * EbbParallelOptions:sequence-parallel:
   *
   * Whether what lies between the divided layers (norms, dropout, residuals) is divided as well, along the sequence
   * (Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models", 2022). %FALSE by default.
   */
  properties[PROP_SEQUENCE_PARALLEL] =
      g_param_spec_boolean ("sequence-parallel", NULL, "Whether the sequence is divided", FALSE, flags);
  /**
   * EbbParallelOptions:synchronize-weights:
   *
   * Whether all ranks begin with the first rank's parameters and buffers, and their default generators where its
   * stands. %TRUE by default; without it they must be the same on all ranks, which is checked.
   */
  properties[PROP_SYNCHRONIZE_WEIGHTS] =
      g_param_spec_boolean ("synchronize-weights", NULL, "Whether all begin with the first rank's values", TRUE, flags);
  g_object_class_install_properties (object_class, N_PROPERTIES, properties);
}

static void
ebb_parallel_options_init (EbbParallelOptions *self)
{
  self->synchronize_weights = TRUE;
}

/**
 * ebb_parallel_options_new:
 *
 * Makes options with the defaults.
 *
 * Returns: (transfer full): the options
 */
EbbParallelOptions *
ebb_parallel_options_new (void)
{
  return g_object_new (EBB_TYPE_PARALLEL_OPTIONS, NULL);
}

/**
 * ebb_parallel_options_set_plan:
 * @self: options
 * @plan: (nullable): which modules are divided, and how, which is copied; %NULL: as ebb_parallel_plan_new_for() says
 *
 * Sets #EbbParallelOptions:plan.
 */
void
ebb_parallel_options_set_plan (EbbParallelOptions *self, const EbbParallelPlan *plan)
{
  EbbParallelPlan *copy;

  g_return_if_fail (EBB_IS_PARALLEL_OPTIONS (self));

  copy = plan != NULL ? ebb_parallel_plan_copy (plan) : NULL;
  ebb_parallel_plan_free (self->plan);
  self->plan = copy;
}

/**
 * ebb_parallel_options_get_plan:
 * @self: options
 *
 * Returns: (transfer full) (nullable): a copy of #EbbParallelOptions:plan
 */
EbbParallelPlan *
ebb_parallel_options_get_plan (EbbParallelOptions *self)
{
  g_return_val_if_fail (EBB_IS_PARALLEL_OPTIONS (self), NULL);

  return self->plan != NULL ? ebb_parallel_plan_copy (self->plan) : NULL;
}

/**
 * ebb_parallel_options_set_sequence_parallel:
 * @self: options
 * @sequence_parallel: whether the sequence is divided between the divided layers
 *
 * Sets #EbbParallelOptions:sequence-parallel.
 */
void
ebb_parallel_options_set_sequence_parallel (EbbParallelOptions *self, gboolean sequence_parallel)
{
  g_return_if_fail (EBB_IS_PARALLEL_OPTIONS (self));

  self->sequence_parallel = sequence_parallel != FALSE;
}

/**
 * ebb_parallel_options_get_sequence_parallel:
 * @self: options
 *
 * Returns: #EbbParallelOptions:sequence-parallel
 */
gboolean
ebb_parallel_options_get_sequence_parallel (EbbParallelOptions *self)
{
  g_return_val_if_fail (EBB_IS_PARALLEL_OPTIONS (self), FALSE);

  return self->sequence_parallel;
}

/**
 * ebb_parallel_options_set_synchronize_weights:
 * @self: options
 * @synchronize_weights: whether all ranks begin with the first rank's values
 *
 * Sets #EbbParallelOptions:synchronize-weights.
 */
void
ebb_parallel_options_set_synchronize_weights (EbbParallelOptions *self, gboolean synchronize_weights)
{
  g_return_if_fail (EBB_IS_PARALLEL_OPTIONS (self));

  self->synchronize_weights = synchronize_weights != FALSE;
}

/**
 * ebb_parallel_options_get_synchronize_weights:
 * @self: options
 *
 * Returns: #EbbParallelOptions:synchronize-weights
 */
gboolean
ebb_parallel_options_get_synchronize_weights (EbbParallelOptions *self)
{
  g_return_val_if_fail (EBB_IS_PARALLEL_OPTIONS (self), FALSE);

  return self->synchronize_weights;
}
