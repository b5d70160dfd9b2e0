/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "nn/layers/transformer-block.h"

#include "nn/args-private.h"
#include "nn/layers/layer-private.h"
#include "nn/layers/mlp.h"
#include "nn/layers/multi-head-attention.h"
#include "tensor/ops/normalization.h"

/**
 * EbbTransformerBlock:
 *
 * One block of a transformer, on x `[B, T, width]`: attention and a feed-forward part, each with dropout, a residual
 * connection and a layer normalisation, which stands before the part (GPT-2) or after the sum (Vaswani et al., 2017;
 * BERT). Its children are `ln_1`, `attn`, `ln_2` and `mlp`, GPT-2's names. Called with more than x, it takes the
 * arguments `x` and `mask`, see #EbbMultiHeadAttention.
 */
struct _EbbTransformerBlock
{
  EbbModule parent_instance;

  int width;
  int heads;
  int hidden;
  double dropout;
  gboolean causal;
  gboolean pre_norm;
  EbbActivation activation;
  double norm_eps;
  gboolean has_bias;
  EbbModule *ln_1;
  EbbModule *attn;
  EbbModule *ln_2;
  EbbModule *mlp;
};

G_DEFINE_TYPE (EbbTransformerBlock, ebb_transformer_block, EBB_TYPE_MODULE)

/**
 * EbbTransformerBlock:width:
 *
 * The size of the last dimension of input and output.
 */
/**
 * EbbTransformerBlock:heads:
 *
 * The number of heads, which divides the width.
 */
/**
 * EbbTransformerBlock:hidden:
 *
 * The size inside the feed-forward part, 0 for four times the width.
 */
/**
 * EbbTransformerBlock:dropout:
 *
 * The probability of dropout in attention and on both parts' results.
 */
/**
 * EbbTransformerBlock:causal:
 *
 * Whether a position attends to itself and earlier ones only.
 */
/**
 * EbbTransformerBlock:pre-norm:
 *
 * Whether the normalisations stand before the parts rather than after the sums.
 */
/**
 * EbbTransformerBlock:activation:
 *
 * The activation inside the feed-forward part.
 */
/**
 * EbbTransformerBlock:norm-eps:
 *
 * What the normalisations add to the variance.
 */
/**
 * EbbTransformerBlock:bias:
 *
 * Whether linear layers and normalisations have a bias.
 */
static const EbbLayerProperty properties[] = {
  { "width", "Size of the last dimension", EBB_LAYER_INT, offsetof (EbbTransformerBlock, width), 0 },
  { "heads", "Number of heads", EBB_LAYER_INT, offsetof (EbbTransformerBlock, heads), 1 },
  { "hidden", "Size inside the feed-forward part, 0 for four times the width", EBB_LAYER_INT,
    offsetof (EbbTransformerBlock, hidden), 0 },
  { "dropout", "Probability of dropout", EBB_LAYER_DOUBLE, offsetof (EbbTransformerBlock, dropout), 0 },
  { "causal", "Whether only earlier positions are seen", EBB_LAYER_BOOLEAN, offsetof (EbbTransformerBlock, causal),
    FALSE },
  { "pre-norm", "Whether normalisations stand before the parts", EBB_LAYER_BOOLEAN,
    offsetof (EbbTransformerBlock, pre_norm), TRUE },
  { "activation", "Activation inside the feed-forward part", EBB_LAYER_ACTIVATION,
    offsetof (EbbTransformerBlock, activation), EBB_ACTIVATION_GELU_TANH },
  { "norm-eps", "What is added to the variance", EBB_LAYER_DOUBLE, offsetof (EbbTransformerBlock, norm_eps), 1e-5 },
  { "bias", "Whether there are biases", EBB_LAYER_BOOLEAN, offsetof (EbbTransformerBlock, has_bias), TRUE },
};

static gboolean
ebb_transformer_block_build (EbbModule *module, GError **error)
{
  EbbTransformerBlock *self = EBB_TRANSFORMER_BLOCK (module);

  return ebb_layer_check_probability (module, "dropout", self->dropout, error)
         && ebb_layer_add_child (module, "ln_1",
                                 ebb_layer_norm_new (self->width, self->norm_eps, self->has_bias, error), error)
         && ebb_layer_add_child (module, "attn",
                                 ebb_layer_new (EBB_TYPE_MULTI_HEAD_ATTENTION, error, "width", self->width, "heads",
                                                self->heads, "dropout", self->dropout, "causal", self->causal, "bias",
                                                self->has_bias, NULL),
                                 error)
         && ebb_layer_add_child (module, "ln_2",
                                 ebb_layer_norm_new (self->width, self->norm_eps, self->has_bias, error), error)
         && ebb_layer_add_child (module, "mlp",
                                 ebb_layer_new (EBB_TYPE_MLP, error, "width", self->width, "hidden", self->hidden,
                                                "activation", self->activation, "bias", self->has_bias, NULL),
                                 error);
}

static EbbTensor *
call_attention (EbbTransformerBlock *self, EbbTensor *x, EbbTensor *mask, GError **error)
{
  g_autoptr (EbbArgs) args = NULL;

  if (mask == NULL || x == NULL)
    return ebb_module_call1 (self->attn, x, error);
  args = ebb_args_new (EBB_ARGS_TUPLE);
  ebb_args_add_tensor (args, NULL, x);
  ebb_args_add_tensor (args, "mask", mask);
  return ebb_module_call_for_tensor (self->attn, args, error);
}

/* *sum = residual + dropout (x), and returns its normalisation: in one pass, unless something stands at the norm's
 * door. Consumes @x. */
static EbbTensor *
add_and_normalize (EbbTransformerBlock *self,
                   EbbTensor *x,
                   EbbTensor *residual,
                   EbbModule *norm,
                   EbbTensor **sum,
                   GError **error)
{
  gboolean training = ebb_module_get_training (EBB_MODULE (self));
  g_autoptr (EbbTensor) consumed = x;

  return ebb_norm_call_after_residual (norm, NULL, x, residual, self->dropout, training, sum, error);
}

static EbbTensor *
run_pre_norm (EbbTransformerBlock *self, EbbTensor *x, EbbTensor *mask, GError **error)
{
  g_autoptr (EbbTensor) normalized = ebb_module_call1 (self->ln_1, x, error);
  g_autoptr (EbbTensor) sum = NULL;
  g_autoptr (EbbTensor) changed = NULL;
  EbbTensor *attended = call_attention (self, normalized, mask, error);

  /* Each is freed as soon as the next is there: its node keeps all that backward needs. */
  g_clear_pointer (&normalized, ebb_tensor_unref);
  if (attended == NULL)
    return NULL;
  normalized = add_and_normalize (self, attended, x, self->ln_2, &sum, error);
  changed = ebb_module_call1 (self->mlp, normalized, error);
  g_clear_pointer (&normalized, ebb_tensor_unref);
  return ebb_residual_dropout (changed, sum, self->dropout, ebb_module_get_training (EBB_MODULE (self)), NULL, error);
}

static EbbTensor *
run_post_norm (EbbTransformerBlock *self, EbbTensor *x, EbbTensor *mask, GError **error)
{
  g_autoptr (EbbTensor) normalized = NULL;
  g_autoptr (EbbTensor) sum = NULL;
  g_autoptr (EbbTensor) last_sum = NULL;
  EbbTensor *attended = call_attention (self, x, mask, error);
  EbbTensor *changed;

  if (attended == NULL)
    return NULL;
  normalized = add_and_normalize (self, attended, x, self->ln_1, &sum, error);
  g_clear_pointer (&sum, ebb_tensor_unref);
  changed = ebb_module_call1 (self->mlp, normalized, error);
  if (changed == NULL)
    return NULL;
  return add_and_normalize (self, changed, normalized, self->ln_2, &last_sum, error);
}

static EbbTensor *
run_block (EbbTransformerBlock *self, EbbTensor *x, EbbTensor *mask, GError **error)
{
  return self->pre_norm ? run_pre_norm (self, x, mask, error) : run_post_norm (self, x, mask, error);
}

static EbbTensor *
ebb_transformer_block_forward1 (EbbModule *module, EbbTensor *input, GError **error)
{
  return run_block (EBB_TRANSFORMER_BLOCK (module), input, NULL, error);
}

static EbbArgs *
ebb_transformer_block_forward (EbbModule *module, EbbArgs *args, GError **error)
{
  EbbTensor *x, *mask;
  const EbbParameterSpec specs[] = { { "x", EBB_PARAMETER_TENSOR, &x },
                                     { "mask", EBB_PARAMETER_OPTIONAL_TENSOR, &mask } };
  g_autoptr (EbbTensor) result = NULL;

  if (!ebb_args_parse (args, ebb_module_get_type_name (module), specs, G_N_ELEMENTS (specs), error))
    return NULL;
  result = run_block (EBB_TRANSFORMER_BLOCK (module), x, mask, error);
  return result != NULL ? ebb_args_new_for_tensor (result) : NULL;
}

static void
ebb_transformer_block_class_init (EbbTransformerBlockClass *klass)
{
  EbbModuleClass *module_class = EBB_MODULE_CLASS (klass);

  module_class->build = ebb_transformer_block_build;
  module_class->forward = ebb_transformer_block_forward;
  module_class->forward1 = ebb_transformer_block_forward1;
  ebb_layer_class_install_properties (G_OBJECT_CLASS (klass), properties, G_N_ELEMENTS (properties));
}

static void
ebb_transformer_block_init (EbbTransformerBlock *self)
{
  EbbModule *module = EBB_MODULE (self);

  ebb_module_bind_child (module, "ln_1", &self->ln_1);
  ebb_module_bind_child (module, "attn", &self->attn);
  ebb_module_bind_child (module, "ln_2", &self->ln_2);
  ebb_module_bind_child (module, "mlp", &self->mlp);
}

/**
 * ebb_transformer_block_new:
 * @width: the size of the last dimension of input and output
 * @heads: the number of heads, which divides @width
 * @dropout: the probability of dropout in attention and on both parts' results
 * @causal: whether a position attends to itself and earlier ones only
 * @pre_norm: whether the normalisations stand before the parts rather than after the sums
 * @error: return location for an error
 *
 * Makes a block; its other properties have their defaults.
 *
 * Returns: (transfer full) (type EbbTransformerBlock) (nullable): the block, or %NULL with @error set
 */
EbbModule *
ebb_transformer_block_new (int width, int heads, double dropout, gboolean causal, gboolean pre_norm, GError **error)
{
  return ebb_layer_new (EBB_TYPE_TRANSFORMER_BLOCK, error, "width", width, "heads", heads, "dropout", dropout, "causal",
                        causal, "pre-norm", pre_norm, NULL);
}
