/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "nn/args-private.h"
#include "nn/layers/layer-private.h"
#include "nn/module-private.h"
#include "tensor/autograd/parameter-owner-private.h"
#include "tensor/ops/loss.h"
#include "tensor/ops/pointwise.h"
#include "tensor/ops/product.h"
#include "tensor/ops/quantized-private.h"

#include <math.h>

/**
 * EbbLinear:
 *
 * y = x W^T + b, for x `[..., in-features]`. Parameters: `weight` `[out-features, in-features]` and `bias`
 * `[out-features]`, both uniform within ±1 / sqrt (in-features) at first.
 */
static void output_layer_interface_init (EbbOutputLayerInterface *interface);

G_DEFINE_TYPE_WITH_CODE (EbbLinear,
                         ebb_linear,
                         EBB_TYPE_MODULE,
                         G_IMPLEMENT_INTERFACE (EBB_TYPE_OUTPUT_LAYER, output_layer_interface_init))

/**
 * EbbLinear:in-features:
 *
 * The size of the input's last dimension.
 */
/**
 * EbbLinear:out-features:
 *
 * The size of the output's last dimension.
 */
/**
 * EbbLinear:bias:
 *
 * Whether a bias is added.
 */
static const EbbLayerProperty properties[] = {
  { "in-features", "Size of the input's last dimension", EBB_LAYER_INT, offsetof (EbbLinear, in_features), 0 },
  { "out-features", "Size of the output's last dimension", EBB_LAYER_INT, offsetof (EbbLinear, out_features), 0 },
  { "bias", "Whether a bias is added", EBB_LAYER_BOOLEAN, offsetof (EbbLinear, has_bias), TRUE },
};

static gboolean
ebb_linear_build (EbbModule *module, GError **error)
{
  EbbLinear *self = EBB_LINEAR (module);
  gint64 shape[] = { self->out_features, self->in_features };
  double bound;

  if (!ebb_layer_check_positive (module, "in-features", self->in_features, error)
      || !ebb_layer_check_positive (module, "out-features", self->out_features, error))
    return FALSE;
  bound = 1 / sqrt (self->in_features);
  return ebb_layer_add_parameter (module, "weight", EBB_INIT_UNIFORM, bound, shape, 2, error)
         && (!self->has_bias || ebb_layer_add_parameter (module, "bias", EBB_INIT_UNIFORM, bound, shape, 1, error));
}

EbbTensor *
ebb_linear_multiply (EbbLinear *self, EbbTensor *x, EbbTensor *bias, GError **error)
{
  return ebb_linear_is_quantized (self) ? ebb_quantized_linear (x, &self->quantized, bias, error)
                                        : ebb_linear (x, self->weight, bias, error);
}

static EbbTensor *
ebb_linear_forward1 (EbbModule *module, EbbTensor *input, GError **error)
{
  EbbLinear *self = EBB_LINEAR (module);

  return ebb_linear_multiply (self, input, self->bias, error);
}

static EbbTensor *
ebb_linear_logits (EbbOutputLayer *layer, EbbTensor *x, EbbTensor *bias, GError **error)
{
  return ebb_linear_multiply ((EbbLinear *) layer, x, bias, error);
}

/* Models don't quantise the layer that gives logits, so what makes all of them is not worth more. */
static EbbTensor *
quantized_loss (EbbLinear *self, EbbTensor *x, EbbTensor *bias, EbbTensor *targets, double softcap, GError **error)
{
  g_autoptr (EbbTensor) logits = ebb_linear_multiply (self, x, bias, error);
  g_autoptr (EbbTensor) capped = NULL;

  if (logits != NULL)
    capped = softcap != 0 ? ebb_soft_cap (logits, softcap, error) : ebb_tensor_ref (logits);
  return capped != NULL
             ? ebb_cross_entropy_full (capped, targets, EBB_IGNORED_TARGET, 0, EBB_REDUCTION_MEAN, error)
             : NULL;
}

static EbbTensor *
ebb_linear_loss (EbbOutputLayer *layer,
                 EbbTensor *x,
                 EbbTensor *bias,
                 EbbTensor *targets,
                 double softcap,
                 GError **error)
{
  EbbLinear *self = (EbbLinear *) layer;

  if (ebb_linear_is_quantized (self))
    return quantized_loss (self, x, bias, targets, softcap, error);
  return ebb_output_layer_full_loss (x, self->weight, bias, targets, softcap, error);
}

static gboolean
ebb_linear_has_bias (EbbOutputLayer *layer)
{
  return ((EbbLinear *) layer)->bias != NULL;
}

static void
output_layer_interface_init (EbbOutputLayerInterface *interface)
{
  interface->logits = ebb_linear_logits;
  interface->loss = ebb_linear_loss;
  interface->lends_bias = ebb_linear_has_bias;
}

/* Three arguments more than forward1. With "add_bias" FALSE it gives the product alone, because the next op adds the
 * bias. With "targets" it gives the loss of the product as logits, bounded by "softcap" if that is not 0. */
static EbbArgs *
ebb_linear_forward (EbbModule *module, EbbArgs *args, GError **error)
{
  EbbLinear *self = EBB_LINEAR (module);
  EbbOutputLayerInterface *interface;
  EbbTensor *input, *targets, *bias;
  gboolean add_bias = TRUE;
  double softcap = 0;
  const EbbParameterSpec specs[] = { { "input", EBB_PARAMETER_TENSOR, &input },
                                     { "add_bias", EBB_PARAMETER_FLAG, &add_bias },
                                     { "targets", EBB_PARAMETER_OPTIONAL_TENSOR, &targets },
                                     { "softcap", EBB_PARAMETER_DOUBLE, &softcap } };
  g_autoptr (EbbTensor) output = NULL;

  if (ebb_args_find (args, "add_bias") < 0 && ebb_args_find (args, "targets") < 0)
    return EBB_MODULE_CLASS (ebb_linear_parent_class)->forward (module, args, error);
  if (!ebb_args_parse (args, ebb_module_get_type_name (module), specs, G_N_ELEMENTS (specs), error))
    return NULL;
  bias = add_bias ? self->bias : NULL;
  interface = EBB_OUTPUT_LAYER_GET_IFACE (module);
  output = targets != NULL ? interface->loss ((EbbOutputLayer *) module, input, bias, targets, softcap, error)
                           : interface->logits ((EbbOutputLayer *) module, input, bias, error);
  return output != NULL ? ebb_args_new_for_tensor (output) : NULL;
}

/* Ranks that shard the layer by itself gather its bias for its own calls alone. Whether it is gathered at this moment
 * does not count: in a recompute, or in the next step, it may be. */
static gboolean
has_bias_in_calls_alone (EbbModule *module)
{
  EbbTensor *bias = EBB_LINEAR (module)->bias;

  return bias != NULL && ebb_parameter_is_sharded (bias) && ebb_module_get_parameter_owner (module) != NULL;
}

gboolean
ebb_linear_lends_bias (EbbModule *module)
{
  EbbOutputLayerInterface *interface;

  if (!ebb_output_layer_is_open (module) || !EBB_IS_LINEAR (module) || has_bias_in_calls_alone (module))
    return FALSE;
  interface = EBB_OUTPUT_LAYER_GET_IFACE (module);
  return interface->lends_bias != NULL && interface->lends_bias ((EbbOutputLayer *) module);
}

EbbTensor *
ebb_linear_call_without_bias (EbbModule *module, EbbTensor *input, GError **error)
{
  g_autoptr (EbbArgs) args = NULL;

  if (input == NULL || ebb_module_is_plain (module, G_OBJECT_TYPE (module)))
    return ebb_output_layer_logits (module, input, NULL, error);
  args = ebb_args_new (EBB_ARGS_TUPLE);
  ebb_args_add_tensor (args, NULL, input);
  ebb_args_add_boolean (args, "add_bias", FALSE);
  return ebb_module_call_for_tensor (module, args, error);
}

EbbTensor *
ebb_linear_call_for_loss (EbbModule *module, EbbTensor *input, EbbTensor *targets, double softcap, GError **error)
{
  EbbLinear *self = EBB_LINEAR (module);
  g_autoptr (EbbArgs) args = NULL;

  if (input == NULL || ebb_module_is_plain (module, G_OBJECT_TYPE (module)))
    return ebb_output_layer_loss (module, input, self->bias, targets, softcap, error);
  args = ebb_args_new (EBB_ARGS_TUPLE);
  ebb_args_add_tensor (args, NULL, input);
  ebb_args_add_tensor (args, "targets", targets);
  if (softcap != 0)
    ebb_args_add_double (args, "softcap", softcap);
  return ebb_module_call_for_tensor (module, args, error);
}

static void
ebb_linear_class_init (EbbLinearClass *klass)
{
  EbbModuleClass *module_class = EBB_MODULE_CLASS (klass);

  module_class->build = ebb_linear_build;
  module_class->forward = ebb_linear_forward;
  module_class->forward1 = ebb_linear_forward1;
  ebb_layer_class_install_properties (G_OBJECT_CLASS (klass), properties, G_N_ELEMENTS (properties));
}

static void
ebb_linear_init (EbbLinear *self)
{
  ebb_module_bind_parameter (EBB_MODULE (self), "weight", &self->weight);
  ebb_module_bind_parameter (EBB_MODULE (self), "bias", &self->bias);
}

/**
 * ebb_linear_new:
 * @in_features: the size of the input's last dimension
 * @out_features: the size of the output's last dimension
 * @bias: whether a bias is added
 * @error: return location for an error
 *
 * Makes a linear layer, drawn from the thread's default generator.
 *
 * Returns: (transfer full) (type EbbLinear) (nullable): the layer, or %NULL with @error set
 */
EbbModule *
ebb_linear_new (int in_features, int out_features, gboolean bias, GError **error)
{
  return ebb_layer_new (EBB_TYPE_LINEAR, error, "in-features", in_features, "out-features", out_features, "bias", bias,
                        NULL);
}
