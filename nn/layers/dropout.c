/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "nn/layers/dropout.h"

#include "nn/layers/layer-private.h"

/**
 * EbbDropout:
 *
 * Dropout (Srivastava et al., 2014): in training each element is zero with probability #EbbDropout:p, the others are
 * divided by 1 - p; in evaluation nothing is changed. Draws come from the thread's default generator.
 */
struct _EbbDropout
{
  EbbModule parent_instance;

  double p;
};

G_DEFINE_TYPE (EbbDropout, ebb_dropout, EBB_TYPE_MODULE)

/**
 * EbbDropout:p:
 *
 * The probability of zero.
 */
static const EbbLayerProperty properties[] = {
  { "p", "Probability of zero", EBB_LAYER_DOUBLE, offsetof (EbbDropout, p), 0.5 },
};

static gboolean
ebb_dropout_build (EbbModule *module, GError **error)
{
  return ebb_layer_check_probability (module, "p", EBB_DROPOUT (module)->p, error);
}

static EbbTensor *
ebb_dropout_forward1 (EbbModule *module, EbbTensor *input, GError **error)
{
  return ebb_dropout (input, EBB_DROPOUT (module)->p, ebb_module_get_training (module), NULL, error);
}

static void
ebb_dropout_class_init (EbbDropoutClass *klass)
{
  EbbModuleClass *module_class = EBB_MODULE_CLASS (klass);

  module_class->build = ebb_dropout_build;
  module_class->forward1 = ebb_dropout_forward1;
  ebb_layer_class_install_properties (G_OBJECT_CLASS (klass), properties, G_N_ELEMENTS (properties));
}

static void
ebb_dropout_init (EbbDropout *self)
{
}

/**
 * ebb_dropout_new:
 * @p: the probability of zero
 * @error: return location for an error
 *
 * Makes a dropout.
 *
 * Returns: (transfer full) (type EbbDropout) (nullable): the layer, or %NULL with @error set
 */
EbbModule *
ebb_dropout_new (double p, GError **error)
{
  return ebb_layer_new (EBB_TYPE_DROPOUT, error, "p", p, NULL);
}
