/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "dist/tensor-parallel/options.h"

#include "tensor/util/property-private.h"

/* The options of ebb_parallelize (). */

struct _EbbParallelOptions
{
  GObject parent_instance;

  EbbParallelPlan *plan;
  gboolean sequence_parallel;
  gboolean synchronize_weights;
};

G_DEFINE_FINAL_TYPE (EbbParallelOptions, ebb_parallel_options, G_TYPE_OBJECT)

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

static void
ebb_parallel_options_finalize (GObject *object)
{
  ebb_parallel_plan_free (EBB_PARALLEL_OPTIONS (object)->plan);
  G_OBJECT_CLASS (ebb_parallel_options_parent_class)->finalize (object);
}

static void
ebb_parallel_options_class_init (EbbParallelOptionsClass *klass)
{
  const GParamFlags flags = G_PARAM_READWRITE | G_PARAM_CONSTRUCT | G_PARAM_STATIC_STRINGS;
  GObjectClass *object_class = G_OBJECT_CLASS (klass);

  object_class->get_property = ebb_property_get_field;
  object_class->set_property = ebb_property_set_field;
  object_class->finalize = ebb_parallel_options_finalize;

  /**
   * EbbParallelOptions:plan:
   *
   * Which modules are divided, and how, as a copy; %NULL, the default: as ebb_parallel_plan_new_for() says.
   */
  g_object_class_install_property (object_class, offsetof (EbbParallelOptions, plan),
                                   g_param_spec_boxed ("plan", NULL, NULL, EBB_TYPE_PARALLEL_PLAN, flags));
  /**
   * EbbParallelOptions:sequence-parallel:
   *
   * Whether the layers between the divided ones (norms, dropout, residuals) are divided as well, along the sequence
   * (Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models", 2022). %FALSE by default.
   */
  g_object_class_install_property (object_class, offsetof (EbbParallelOptions, sequence_parallel),
                                   g_param_spec_boolean ("sequence-parallel", NULL, NULL, FALSE, flags));
  /**
   * EbbParallelOptions:synchronize-weights:
   *
   * Whether all ranks begin with the first rank's parameters and buffers, and with the state of its default generator.
   * %TRUE by default; without it they must be the same on all ranks, which is checked.
   */
  g_object_class_install_property (object_class, offsetof (EbbParallelOptions, synchronize_weights),
                                   g_param_spec_boolean ("synchronize-weights", NULL, NULL, TRUE, flags));
}

static void
ebb_parallel_options_init (EbbParallelOptions *self)
{
}
