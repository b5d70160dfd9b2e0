/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "nn/layers/mlp.h"

#include "nn/layers/block-private.h"
#include "nn/layers/layer-private.h"
#include "tensor/autograd/op-private.h"
#include "tensor/ops/product.h"

/**
 * EbbMlp:
 *
 * The feed-forward part of a transformer block: linear, activation, linear, on x `[..., width]`. Its children are
 * `c_fc` (width to hidden) and `c_proj` (hidden to width), GPT-2's names. The bias of `c_fc` and a GELU are one pass
 * over memory.
 *
 * In the layout of Llama they are `up_proj` and `down_proj`; a gated one has `gate_proj` too, whose result goes through
 * the activation and multiplies that of `up_proj` (Shazeer, "GLU Variants Improve Transformer", 2020). Backward keeps
 * both and not their product.
 */
struct _EbbMlp
{
  EbbModule parent_instance;

  int width;
  int hidden;
  EbbActivation activation;
  gboolean has_bias;
  EbbBlockConfig *config; /* NULL: by its properties */
  EbbModule *gate;        /* NULL: it is not gated */
  EbbModule *up;
  EbbModule *down;
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
  { "activation", "Activation between the products", EBB_LAYER_ENUM, offsetof (EbbMlp, activation),
    EBB_ACTIVATION_GELU_TANH, ebb_activation_get_type },
  { "bias", "Whether the linear layers have a bias", EBB_LAYER_BOOLEAN, offsetof (EbbMlp, has_bias), TRUE },
};

static gboolean
add_linear (EbbMlp *self, const char *name, EbbModule **field, int n_in, int n_out, GError **error)
{
  EbbModule *module = EBB_MODULE (self);

  ebb_module_bind_child (module, name, field);
  return ebb_layer_add_child (module, name, ebb_linear_new (n_in, n_out, self->has_bias, error), error);
}

static gboolean
ebb_mlp_build (EbbModule *module, GError **error)
{
  EbbMlp *self = EBB_MLP (module);
  gboolean is_llama = self->config != NULL && self->config->layout == EBB_GPT_LAYOUT_LLAMA;

  if (!ebb_layer_check_positive (module, "width", self->width, error))
    return FALSE;
  if (self->hidden == 0 && self->width <= G_MAXINT / 4)
    self->hidden = 4 * self->width;
  return ebb_layer_check_positive (module, "hidden", self->hidden, error)
         && (self->config == NULL || !self->config->gated
             || add_linear (self, "gate_proj", &self->gate, self->width, self->hidden, error))
         && add_linear (self, is_llama ? "up_proj" : "c_fc", &self->up, self->width, self->hidden, error)
         && add_linear (self, is_llama ? "down_proj" : "c_proj", &self->down, self->hidden, self->width, error);
}

/* GELU, which can be one pass with the bias before it, has forms of its own. */
static gboolean
is_gelu (EbbActivation activation, EbbGeluKind *kind)
{
  *kind = activation == EBB_ACTIVATION_GELU_TANH ? EBB_GELU_TANH : EBB_GELU_EXACT;
  return activation != EBB_ACTIVATION_SILU;
}

/* The input of the last product. */
static EbbTensor *
activate (EbbMlp *self, EbbTensor *input, GError **error)
{
  g_autoptr (EbbTensor) hidden = NULL;
  g_autoptr (EbbTensor) gate = NULL;
  g_autoptr (EbbTensor) shared = NULL;
  EbbSharedCast cast;
  EbbGeluKind kind;
  gboolean gelu = is_gelu (self->activation, &kind);

  if (self->gate != NULL)
    {
      shared = ebb_layer_share_input (EBB_MODULE (self), input, error);
      ebb_shared_cast_begin (&cast, shared);
      gate = ebb_module_call1 (self->gate, shared, error);
      hidden = gate != NULL ? ebb_module_call1 (self->up, shared, error) : NULL;
      ebb_shared_cast_end (&cast);
      return ebb_gated_activation (gate, hidden, self->activation, error);
    }
  if (gelu && ebb_linear_lends_bias (self->up))
    {
      hidden = ebb_linear_call_without_bias (self->up, input, error);
      return ebb_bias_gelu (hidden, EBB_LINEAR (self->up)->bias, kind, error);
    }
  hidden = ebb_module_call1 (self->up, input, error);
  return gelu ? ebb_gelu (hidden, kind, error) : ebb_silu (hidden, error);
}

static EbbTensor *
ebb_mlp_forward1 (EbbModule *module, EbbTensor *input, GError **error)
{
  EbbMlp *self = EBB_MLP (module);
  g_autoptr (EbbTensor) activated = activate (self, input, error);

  return ebb_module_call1 (self->down, activated, error);
}

static void
ebb_mlp_finalize (GObject *object)
{
  g_clear_pointer (&EBB_MLP (object)->config, ebb_block_config_unref);
  G_OBJECT_CLASS (ebb_mlp_parent_class)->finalize (object);
}

static void
ebb_mlp_class_init (EbbMlpClass *klass)
{
  EbbModuleClass *module_class = EBB_MODULE_CLASS (klass);

  G_OBJECT_CLASS (klass)->finalize = ebb_mlp_finalize;
  module_class->build = ebb_mlp_build;
  module_class->forward1 = ebb_mlp_forward1;
  ebb_layer_class_install_properties (G_OBJECT_CLASS (klass), properties, G_N_ELEMENTS (properties));
}

static void
ebb_mlp_init (EbbMlp *self)
{
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

EbbModule *
ebb_mlp_new_from (EbbBlockConfig *config, GError **error)
{
  EbbMlp *self = g_object_new (EBB_TYPE_MLP, "width", config->width, "hidden", config->hidden, "activation",
                               config->activation, "bias", config->bias || config->mlp_bias, NULL);

  self->config = ebb_block_config_ref (config);
  return ebb_layer_build (EBB_MODULE (self), error);
}
