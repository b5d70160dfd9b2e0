/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "nn/layers/rms-norm.h"

#include "nn/layers/layer-private.h"
#include "tensor/ops/normalization.h"

/**
 * EbbRmsNorm:
 *
 * Normalisation by the root mean square over the last dimension (Zhang and Sennrich, 2019):
 * x / sqrt (mean (x^2) + eps) * weight, for x `[..., width]`. Parameter: `weight` `[width]`, ones at first.
 */
struct _EbbRmsNorm
{
  EbbModule parent_instance;

  int width;
  double eps;
  EbbTensor *weight;
};

G_DEFINE_TYPE (EbbRmsNorm, ebb_rms_norm, EBB_TYPE_MODULE)

/**
 * EbbRmsNorm:width:
 *
 * The size of the last dimension.
 */
/**
 * EbbRmsNorm:eps:
 *
 * What is added to the mean square.
 */
static const EbbLayerProperty properties[] = {
  { "width", "Size of the last dimension", EBB_LAYER_INT, offsetof (EbbRmsNorm, width), 0 },
  { "eps", "What is added to the mean square", EBB_LAYER_DOUBLE, offsetof (EbbRmsNorm, eps), 1e-5 },
};

static gboolean
ebb_rms_norm_build (EbbModule *module, GError **error)
{
  EbbRmsNorm *self = EBB_RMS_NORM (module);
  gint64 shape[] = { self->width };

  return ebb_layer_check_positive (module, "width", self->width, error)
         && ebb_layer_check_eps (module, self->eps, error)
         && ebb_layer_add_parameter (module, "weight", EBB_INIT_CONSTANT, 1, shape, 1, error);
}

static EbbTensor *
ebb_rms_norm_forward1 (EbbModule *module, EbbTensor *input, GError **error)
{
  EbbRmsNorm *self = EBB_RMS_NORM (module);
  g_autoptr (EbbTensor) weight = NULL;

  if (G_LIKELY (!ebb_layer_is_shared (self)))
    return ebb_rms_norm (input, self->weight, self->eps, error);
  return ebb_layer_share_parameters (module, &self->weight, 1, &weight, error)
             ? ebb_rms_norm (input, weight, self->eps, error)
             : NULL;
}

static void
ebb_rms_norm_class_init (EbbRmsNormClass *klass)
{
  EbbModuleClass *module_class = EBB_MODULE_CLASS (klass);

  module_class->build = ebb_rms_norm_build;
  module_class->forward1 = ebb_rms_norm_forward1;
  ebb_layer_class_install_properties (G_OBJECT_CLASS (klass), properties, G_N_ELEMENTS (properties));
}

static void
ebb_rms_norm_init (EbbRmsNorm *self)
{
  ebb_module_bind_parameter (EBB_MODULE (self), "weight", &self->weight);
}

/**
 * ebb_rms_norm_new:
 * @width: the size of the last dimension
 * @eps: what is added to the mean square, 1e-5 as a rule
 * @error: return location for an error
 *
 * Makes a normalisation by the root mean square.
 *
 * Returns: (transfer full) (type EbbRmsNorm) (nullable): the layer, or %NULL with @error set
 */
EbbModule *
ebb_rms_norm_new (int width, double eps, GError **error)
{
  return ebb_layer_new (EBB_TYPE_RMS_NORM, error, "width", width, "eps", eps, NULL);
}
