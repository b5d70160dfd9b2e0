/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "nn/layer-private.h"
#include "nn/layers-private.h"
#include "tensor/ops/normalization.h"

/**
 * EbbLayerNorm:
 *
 * Layer normalisation over the last dimension (Ba, Kiros and Hinton, 2016): (x - mean) / sqrt (var + eps) * weight +
 * bias, for x `[..., width]`. Parameters: `weight` `[width]`, ones at first, and `bias` `[width]`, zeros.
 */
G_DEFINE_TYPE (EbbLayerNorm, ebb_layer_norm, EBB_TYPE_MODULE)

/**
 * EbbLayerNorm:width:
 *
 * The size of the last dimension.
 */
/**
 * EbbLayerNorm:eps:
 *
 * What is added to the variance.
 */
/**
 * EbbLayerNorm:bias:
 *
 * Whether a bias is added.
 */
static const EbbLayerProperty properties[] = {
  { "width", "Size of the last dimension", EBB_LAYER_INT, offsetof (EbbLayerNorm, width), 0 },
  { "eps", "What is added to the variance", EBB_LAYER_DOUBLE, offsetof (EbbLayerNorm, eps), 1e-5 },
  { "bias", "Whether a bias is added", EBB_LAYER_BOOLEAN, offsetof (EbbLayerNorm, has_bias), TRUE },
};

static gboolean
ebb_layer_norm_build (EbbModule *module, GError **error)
{
  EbbLayerNorm *self = EBB_LAYER_NORM (module);
  gint64 shape[] = { self->width };

  return ebb_layer_check_positive (module, "width", self->width, error)
         && ebb_layer_check_eps (module, self->eps, error)
         && ebb_layer_add_parameter (module, "weight", EBB_INIT_CONSTANT, 1, shape, 1, error)
         && (!self->has_bias || ebb_layer_add_parameter (module, "bias", EBB_INIT_CONSTANT, 0, shape, 1, error));
}

static EbbTensor *
ebb_layer_norm_forward1 (EbbModule *module, EbbTensor *input, GError **error)
{
  EbbLayerNorm *self = EBB_LAYER_NORM (module);

  return ebb_layer_norm (input, self->weight, self->bias, self->eps, error);
}

static void
ebb_layer_norm_class_init (EbbLayerNormClass *klass)
{
  EbbModuleClass *module_class = EBB_MODULE_CLASS (klass);

  module_class->build = ebb_layer_norm_build;
  module_class->forward1 = ebb_layer_norm_forward1;
  ebb_layer_class_install_properties (G_OBJECT_CLASS (klass), properties, G_N_ELEMENTS (properties));
}

static void
ebb_layer_norm_init (EbbLayerNorm *self)
{
  ebb_module_bind_parameter (EBB_MODULE (self), "weight", &self->weight);
  ebb_module_bind_parameter (EBB_MODULE (self), "bias", &self->bias);
}

/**
 * ebb_layer_norm_new:
 * @width: the size of the last dimension
 * @eps: what is added to the variance, 1e-5 as a rule
 * @bias: whether a bias is added
 * @error: return location for an error
 *
 * Makes a layer normalisation.
 *
 * Returns: (transfer full) (type EbbLayerNorm) (nullable): the layer, or %NULL with @error set
 */
EbbModule *
ebb_layer_norm_new (int width, double eps, gboolean bias, GError **error)
{
  return ebb_layer_new (EBB_TYPE_LAYER_NORM, error, "width", width, "eps", eps, "bias", bias, NULL);
}
