/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "nn/layers/output-layer-private.h"

#include "tensor/ops/loss.h"
#include "tensor/ops/product.h"

G_DEFINE_INTERFACE (EbbOutputLayer, ebb_output_layer, EBB_TYPE_MODULE)

static void
ebb_output_layer_default_init (EbbOutputLayerInterface *interface)
{
}

gboolean
ebb_output_layer_is_open (EbbModule *module)
{
  EbbOutputLayerInterface *interface;
  GType type;

  if (module == NULL || !EBB_IS_OUTPUT_LAYER (module))
    return FALSE;
  interface = EBB_OUTPUT_LAYER_GET_IFACE (module);
  type = G_OBJECT_TYPE (module);
  return interface->parent_interface.g_instance_type == type
         && (ebb_module_is_plain (module, type) || ebb_module_is_only_wrapped (module, type));
}

EbbTensor *
ebb_output_layer_whole_loss (EbbTensor *x, EbbTensor *weight, EbbTensor *bias, EbbTensor *targets, GError **error)
{
  return ebb_fused_linear_cross_entropy (x, weight, bias, targets, EBB_IGNORED_TARGET, 0, EBB_REDUCTION_MEAN, error);
}

EbbTensor *
ebb_output_layer_logits (EbbModule *module, EbbTensor *x, EbbTensor *bias, GError **error)
{
  g_autoptr (EbbTensor) weight = NULL;

  if (EBB_IS_OUTPUT_LAYER (module))
    return EBB_OUTPUT_LAYER_GET_IFACE (module)->logits ((EbbOutputLayer *) module, x, bias, error);
  weight = ebb_module_get_parameter (module, "weight");
  return ebb_linear (x, weight, bias, error);
}

EbbTensor *
ebb_output_layer_loss (EbbModule *module, EbbTensor *x, EbbTensor *bias, EbbTensor *targets, GError **error)
{
  g_autoptr (EbbTensor) weight = NULL;

  if (EBB_IS_OUTPUT_LAYER (module))
    return EBB_OUTPUT_LAYER_GET_IFACE (module)->loss ((EbbOutputLayer *) module, x, bias, targets, error);
  weight = ebb_module_get_parameter (module, "weight");
  return ebb_output_layer_whole_loss (x, weight, bias, targets, error);
}
