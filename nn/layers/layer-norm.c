/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "nn/args-private.h"
#include "nn/layers/layer-private.h"
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
 * The number that is added to the variance.
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

/* As the op takes them: references. */
static gboolean
get_parameters (EbbLayerNorm *self, EbbTensor **weight, EbbTensor **bias, GError **error)
{
  EbbTensor *own[] = { self->weight, self->bias };
  EbbTensor *shared[2] = { NULL, NULL };

  if (!ebb_layer_share_parameters (EBB_MODULE (self), own, 2, shared, error))
    return FALSE;
  *weight = shared[0];
  *bias = shared[1];
  return TRUE;
}

static EbbTensor *
ebb_layer_norm_forward1 (EbbModule *module, EbbTensor *input, GError **error)
{
  EbbLayerNorm *self = EBB_LAYER_NORM (module);
  g_autoptr (EbbTensor) weight = NULL;
  g_autoptr (EbbTensor) bias = NULL;

  if (G_LIKELY (!ebb_layer_is_shared (self)))
    return ebb_layer_norm (input, self->weight, self->bias, self->eps, error);
  return get_parameters (self, &weight, &bias, error) ? ebb_layer_norm (input, weight, bias, self->eps, error) : NULL;
}

EbbTensor *
ebb_layer_norm_add (EbbModule *module,
                    EbbTensor *x,
                    EbbTensor *residual,
                    double dropout,
                    gboolean training,
                    EbbTensor **sum,
                    GError **error)
{
  EbbLayerNorm *self = EBB_LAYER_NORM (module);
  EbbTensor *normalized = NULL;
  g_autoptr (EbbTensor) weight = NULL;
  g_autoptr (EbbTensor) bias = NULL;

  if (G_LIKELY (!ebb_layer_is_shared (self)))
    ebb_residual_dropout_layer_norm (x, residual, self->weight, self->bias, self->eps, dropout, training, NULL, sum,
                                     &normalized, error);
  else if (get_parameters (self, &weight, &bias, error))
    ebb_residual_dropout_layer_norm (x, residual, weight, bias, self->eps, dropout, training, NULL, sum, &normalized,
                                     error);
  return normalized;
}

/* Beside forward1: (x, residual=, dropout=, training=) gives residual + dropout (x), normalized and as it is. */
static EbbArgs *
ebb_layer_norm_forward (EbbModule *module, EbbArgs *args, GError **error)
{
  if (ebb_args_find (args, "residual") < 0)
    return EBB_MODULE_CLASS (ebb_layer_norm_parent_class)->forward (module, args, error);
  return ebb_norm_forward_after_residual (module, args, ebb_layer_norm_add, error);
}

static void
ebb_layer_norm_class_init (EbbLayerNormClass *klass)
{
  EbbModuleClass *module_class = EBB_MODULE_CLASS (klass);

  module_class->build = ebb_layer_norm_build;
  module_class->forward = ebb_layer_norm_forward;
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
