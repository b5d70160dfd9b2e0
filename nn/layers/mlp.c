/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "nn/layers/mlp.h"

#include "nn/layers/layer-private.h"
#include "tensor/ops/product.h"

/**
 * EbbMlp:
 *
 * The feed-forward part of a transformer block: linear, activation (GELU), linear, on x `[..., width]`. Its children
 * are `c_fc` (width to hidden) and `c_proj` (hidden to width), GPT-2's names. The bias of `c_fc` and the GELU are one
 * pass over memory.
 */
struct _EbbMlp
{
  EbbModule parent_instance;

  int width;
  int hidden;
  EbbActivation activation;
  gboolean has_bias;
  EbbModule *c_fc;
  EbbModule *c_proj;
};

G_DEFINE_TYPE (EbbMlp, ebb_mlp, EBB_TYPE_MODULE)

/**
 * EbbMlp:width:
 *
 * The size of the last dimension of input and output.
 */
/**
 * EbbMlp:hidden:
 *
 * The size of the last dimension between the two products, 0 for four times the width.
 */
/**
 * EbbMlp:activation:
 *
 * The activation between the products.
 */
/**
 * EbbMlp:bias:
 *
 * Whether the linear layers have a bias.
 */
static const EbbLayerProperty properties[] = {
  { "width", "Size of the last dimension", EBB_LAYER_INT, offsetof (EbbMlp, width), 0 },
  { "hidden", "Size between the products, 0 for four times the width", EBB_LAYER_INT, offsetof (EbbMlp, hidden), 0 },
  { "activation", "Activation between the products", EBB_LAYER_ACTIVATION, offsetof (EbbMlp, activation),
    EBB_ACTIVATION_GELU_TANH },
  { "bias", "Whether the linear layers have a bias", EBB_LAYER_BOOLEAN, offsetof (EbbMlp, has_bias), TRUE },
};

static gboolean
ebb_mlp_build (EbbModule *module, GError **error)
{
  EbbMlp *self = EBB_MLP (module);

  if (!ebb_layer_check_positive (module, "width", self->width, error))
    return FALSE;
  if (self->hidden == 0 && self->width <= G_MAXINT / 4)
    self->hidden = 4 * self->width;
  return ebb_layer_check_positive (module, "hidden", self->hidden, error)
         && ebb_layer_add_child (module, "c_fc", ebb_linear_new (self->width, self->hidden, self->has_bias, error),
                                 error)
         && ebb_layer_add_child (module, "c_proj", ebb_linear_new (self->hidden, self->width, self->has_bias, error),
                                 error);
}

/* GELU, which can be one pass with the bias before it, has forms of its own. */
static gboolean
is_gelu (EbbActivation activation, EbbGeluKind *kind)
{
  *kind = activation == EBB_ACTIVATION_GELU_TANH ? EBB_GELU_TANH : EBB_GELU_EXACT;
  return activation != EBB_ACTIVATION_SILU;
}

static EbbTensor *
ebb_mlp_forward1 (EbbModule *module, EbbTensor *input, GError **error)
{
  EbbMlp *self = EBB_MLP (module);
  g_autoptr (EbbTensor) hidden = NULL;
  g_autoptr (EbbTensor) activated = NULL;
  EbbGeluKind kind;
  gboolean gelu = is_gelu (self->activation, &kind);

  if (gelu && ebb_linear_lends_bias (self->c_fc))
    {
      hidden = ebb_linear_call_without_bias (self->c_fc, input, error);
      activated = ebb_bias_gelu (hidden, EBB_LINEAR (self->c_fc)->bias, kind, error);
    }
  else
    {
      hidden = ebb_module_call1 (self->c_fc, input, error);
      activated = gelu ? ebb_gelu (hidden, kind, error) : ebb_silu (hidden, error);
    }
  g_clear_pointer (&hidden, ebb_tensor_unref);
  return ebb_module_call1 (self->c_proj, activated, error);
}

static void
ebb_mlp_class_init (EbbMlpClass *klass)
{
  EbbModuleClass *module_class = EBB_MODULE_CLASS (klass);

  module_class->build = ebb_mlp_build;
  module_class->forward1 = ebb_mlp_forward1;
  ebb_layer_class_install_properties (G_OBJECT_CLASS (klass), properties, G_N_ELEMENTS (properties));
}

static void
ebb_mlp_init (EbbMlp *self)
{
  ebb_module_bind_child (EBB_MODULE (self), "c_fc", &self->c_fc);
  ebb_module_bind_child (EBB_MODULE (self), "c_proj", &self->c_proj);
}

/**
 * ebb_mlp_new:
 * @width: the size of the last dimension of input and output
 * @hidden: the size of the last dimension between the two products, 0 for four times @width
 * @activation: the activation between the products
 * @error: return location for an error
 *
 * Makes the feed-forward part of a transformer block.
 *
 * Returns: (transfer full) (type EbbMlp) (nullable): the layer, or %NULL with @error set
 */
EbbModule *
ebb_mlp_new (int width, int hidden, EbbActivation activation, GError **error)
{
  return ebb_layer_new (EBB_TYPE_MLP, error, "width", width, "hidden", hidden, "activation", activation, NULL);
}
