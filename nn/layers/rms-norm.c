/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "nn/layers/rms-norm.h"

#include "nn/args-private.h"
#include "nn/layers/layer-private.h"
#include "tensor/ops/normalization.h"

#include <float.h>

/**
 * EbbRmsNorm:
 *
 * Normalisation by the root mean square over the last dimension (Zhang and Sennrich, 2019):
 * x / sqrt (mean (x^2) + eps) * weight, for x `[..., width]`. Parameter: `weight` `[width]`, ones at first. With a
 * unit offset (Gemma) the factor is 1 + weight, and the weight is zeros at first.
 */
G_DEFINE_TYPE (EbbRmsNorm, ebb_rms_norm, EBB_TYPE_MODULE)

/**
 * EbbRmsNorm:width:
 *
 * The size of the last dimension.
 */
/**
 * EbbRmsNorm:eps:
 *
 * The number that is added to the mean square: 1.2e-7, the distance of 1 to the next number of f32, unless it is given.
 */
/**
 * EbbRmsNorm:unit-offset:
 *
 * Whether the factor is 1 + weight rather than weight.
 */
static const EbbLayerProperty properties[] = {
  { "width", "Size of the last dimension", EBB_LAYER_INT, offsetof (EbbRmsNorm, width), 0 },
  { "eps", "What is added to the mean square", EBB_LAYER_DOUBLE, offsetof (EbbRmsNorm, eps), FLT_EPSILON },
  { "unit-offset", "Whether the factor is 1 + weight", EBB_LAYER_BOOLEAN, offsetof (EbbRmsNorm, unit_offset), FALSE },
};

static gboolean
ebb_rms_norm_build (EbbModule *module, GError **error)
{
  EbbRmsNorm *self = EBB_RMS_NORM (module);
  gint64 shape[] = { self->width };

  return ebb_layer_check_positive (module, "width", self->width, error)
         && ebb_layer_check_eps (module, self->eps, error)
         && ebb_layer_add_parameter (module, "weight", EBB_INIT_CONSTANT, self->unit_offset ? 0 : 1, shape, 1,
                                     error);
}

/* As the op takes it: a reference. NULL with @error set. */
static EbbTensor *
get_weight (EbbRmsNorm *self, GError **error)
{
  EbbTensor *weight = NULL;

  if (G_LIKELY (!ebb_layer_is_shared (self)))
    return ebb_tensor_ref (self->weight);
  return ebb_layer_share_parameters (EBB_MODULE (self), &self->weight, 1, &weight, error) ? weight : NULL;
}

static EbbTensor *
ebb_rms_norm_forward1 (EbbModule *module, EbbTensor *input, GError **error)
{
  EbbRmsNorm *self = EBB_RMS_NORM (module);
  g_autoptr (EbbTensor) weight = get_weight (self, error);

  if (weight == NULL)
    return NULL;
  return self->unit_offset ? ebb_unit_offset_rms_norm (input, weight, self->eps, error)
                           : ebb_rms_norm (input, weight, self->eps, error);
}

EbbTensor *
ebb_rms_norm_add (EbbModule *module,
                  EbbModule *branch_norm,
                  EbbTensor *x,
                  EbbTensor *residual,
                  double dropout,
                  gboolean training,
                  EbbTensor **sum,
                  GError **error)
{
  EbbRmsNorm *self = EBB_RMS_NORM (module);
  EbbTensor *normalized = NULL;
  g_autoptr (EbbTensor) weight = get_weight (self, error);
  g_autoptr (EbbTensor) branch_weight =
      weight != NULL && branch_norm != NULL ? get_weight (EBB_RMS_NORM (branch_norm), error) : NULL;

  if (weight != NULL && (branch_norm == NULL || branch_weight != NULL))
    ebb_residual_dropout_rms_norm (x, residual, branch_weight, weight, self->eps, self->unit_offset, dropout, training,
                                   NULL, sum, &normalized, error);
  return normalized;
}

static EbbTensor *
add_without_branch_norm (EbbModule *module,
                         EbbTensor *x,
                         EbbTensor *residual,
                         double dropout,
                         gboolean training,
                         EbbTensor **sum,
                         GError **error)
{
  return ebb_rms_norm_add (module, NULL, x, residual, dropout, training, sum, error);
}

/* Beside forward1: (x, residual=, dropout=, training=) gives residual + dropout (x), normalized and as it is. */
static EbbArgs *
ebb_rms_norm_forward (EbbModule *module, EbbArgs *args, GError **error)
{
  if (ebb_args_find (args, "residual") < 0)
    return EBB_MODULE_CLASS (ebb_rms_norm_parent_class)->forward (module, args, error);
  return ebb_norm_forward_after_residual (module, args, add_without_branch_norm, error);
}

static void
ebb_rms_norm_class_init (EbbRmsNormClass *klass)
{
  EbbModuleClass *module_class = EBB_MODULE_CLASS (klass);

  module_class->build = ebb_rms_norm_build;
  module_class->forward = ebb_rms_norm_forward;
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
 * @eps: the number that is added to the mean square, as 1e-5 in Llama
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
