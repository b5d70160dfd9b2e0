/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "nn/layers/transformer-block.h"

#include "nn/args-private.h"
#include "nn/layers/block.h"
#include "nn/layers/block-private.h"
#include "nn/layers/layer-private.h"
#include "nn/layers/mlp.h"
#include "nn/layers/module-list.h"
#include "nn/layers/multi-head-attention.h"
#include "tensor/ops/normalization.h"

/**
 * EbbTransformerBlock:
 *
 * One block of a transformer, on x `[B, T, width]`: attention and a feed-forward part, each with dropout, a residual
 * connection and a normalisation, which stands before the part (GPT-2, Llama), after the sum (Vaswani et al., 2017;
 * BERT) or before the part and on its result (Gemma 2). Its children are `ln_1`, `attn`, `ln_2` and `mlp`, GPT-2's
 * names. The blocks of an #EbbGpt with %EBB_GPT_LAYOUT_LLAMA have `input_layernorm`, `self_attn`,
 * `post_attention_layernorm` and `mlp`, and where both sides have norms `pre_feedforward_layernorm` and
 * `post_feedforward_layernorm`.
 *
 * Called with more than x, it takes the arguments `x`, `mask`, `starts` and `cache`, see #EbbMultiHeadAttention.
 */
struct _EbbTransformerBlock
{
  EbbModule parent_instance;

  int width;
  int heads;
  int hidden;
  double dropout, attention_dropout;
  gboolean causal;
  gboolean pre_norm;
  EbbActivation activation;
  double norm_eps;
  gboolean has_bias;
  EbbBlockConfig *config; /* after build never NULL */
  EbbModule *attention;
  EbbModule *mlp;
  EbbModule *before_attention; /* norms; NULL where there is none */
  EbbModule *after_attention;
  EbbModule *before_mlp;
  EbbModule *after_mlp;
};

static void block_interface_init (EbbBlockInterface *interface);

G_DEFINE_TYPE_WITH_CODE (EbbTransformerBlock,
                         ebb_transformer_block,
                         EBB_TYPE_MODULE,
                         G_IMPLEMENT_INTERFACE (EBB_TYPE_BLOCK, block_interface_init))

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
 * The probability of dropout on both parts' results, and in attention unless #EbbTransformerBlock:attention-dropout
 * says otherwise.
 */
/**
 * EbbTransformerBlock:attention-dropout:
 *
 * The probability with which a weight of attention is dropped, below 0 for #EbbTransformerBlock:dropout.
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
 * The number that the normalisations add to the variance.
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
  { "attention-dropout", "Probability of dropping a weight of attention, below 0 for dropout", EBB_LAYER_DOUBLE,
    offsetof (EbbTransformerBlock, attention_dropout), -1 },
  { "causal", "Whether only earlier positions are seen", EBB_LAYER_BOOLEAN, offsetof (EbbTransformerBlock, causal),
    FALSE },
  { "pre-norm", "Whether normalisations stand before the parts", EBB_LAYER_BOOLEAN,
    offsetof (EbbTransformerBlock, pre_norm), TRUE },
  { "activation", "Activation inside the feed-forward part", EBB_LAYER_ENUM,
    offsetof (EbbTransformerBlock, activation), EBB_ACTIVATION_GELU_TANH, ebb_activation_get_type },
  { "norm-eps", "What is added to the variance", EBB_LAYER_DOUBLE, offsetof (EbbTransformerBlock, norm_eps), 1e-5 },
  { "bias", "Whether there are biases", EBB_LAYER_BOOLEAN, offsetof (EbbTransformerBlock, has_bias), TRUE },
};

/* -- parts --------------------------------------------------------------------------------------------------------- */

typedef struct
{
  const char *name;
  gsize offset; /* of the field in the instance */
} Child;

#define MAX_CHILDREN 6
#define NORM_1 offsetof (EbbTransformerBlock, before_attention)
#define NORM_1_AFTER offsetof (EbbTransformerBlock, after_attention)
#define NORM_2 offsetof (EbbTransformerBlock, before_mlp)
#define NORM_2_AFTER offsetof (EbbTransformerBlock, after_mlp)
#define ATTENTION offsetof (EbbTransformerBlock, attention)
#define MLP offsetof (EbbTransformerBlock, mlp)

/* In the order in which they are made, which is that of the state dict. */
static const Child children[2][3][MAX_CHILDREN + 1] = {
  [EBB_GPT_LAYOUT_GPT2][EBB_NORM_ORDER_PRE] = { { "ln_1", NORM_1 },
                                                { "attn", ATTENTION },
                                                { "ln_2", NORM_2 },
                                                { "mlp", MLP } },
  [EBB_GPT_LAYOUT_GPT2][EBB_NORM_ORDER_POST] = { { "ln_1", NORM_1_AFTER },
                                                 { "attn", ATTENTION },
                                                 { "ln_2", NORM_2_AFTER },
                                                 { "mlp", MLP } },
  [EBB_GPT_LAYOUT_LLAMA][EBB_NORM_ORDER_PRE] = { { "input_layernorm", NORM_1 },
                                                 { "self_attn", ATTENTION },
                                                 { "post_attention_layernorm", NORM_2 },
                                                 { "mlp", MLP } },
  [EBB_GPT_LAYOUT_LLAMA][EBB_NORM_ORDER_POST] = { { "self_attn", ATTENTION },
                                                  { "post_attention_layernorm", NORM_1_AFTER },
                                                  { "mlp", MLP },
                                                  { "post_feedforward_layernorm", NORM_2_AFTER } },
  [EBB_GPT_LAYOUT_LLAMA][EBB_NORM_ORDER_BOTH] = { { "input_layernorm", NORM_1 },
                                                  { "self_attn", ATTENTION },
                                                  { "post_attention_layernorm", NORM_1_AFTER },
                                                  { "pre_feedforward_layernorm", NORM_2 },
                                                  { "mlp", MLP },
                                                  { "post_feedforward_layernorm", NORM_2_AFTER } },
};

static EbbModule *
make_child (EbbBlockConfig *config, gsize offset, GError **error)
{
  if (offset == ATTENTION)
    return ebb_multi_head_attention_new_from (config, error);
  if (offset == MLP)
    return ebb_mlp_new_from (config, error);
  return ebb_block_config_new_norm (config, config->width, error);
}

/* The configuration of a block that was made by its properties. */
static EbbBlockConfig *
make_config (EbbTransformerBlock *self)
{
  EbbBlockConfig *config = ebb_block_config_new ();

  config->width = self->width;
  config->heads = self->heads;
  config->hidden = self->hidden;
  config->dropout = self->dropout;
  config->attention_dropout = self->attention_dropout;
  config->causal = self->causal;
  config->norm_order = self->pre_norm ? EBB_NORM_ORDER_PRE : EBB_NORM_ORDER_POST;
  config->activation = self->activation;
  config->norm_eps = self->norm_eps;
  config->bias = self->has_bias;
  return config;
}

static gboolean
ebb_transformer_block_build (EbbModule *module, GError **error)
{
  EbbTransformerBlock *self = EBB_TRANSFORMER_BLOCK (module);
  const Child *child;

  if (!ebb_layer_check_probability (module, "dropout", self->dropout, error)
      || (!(self->attention_dropout < 0)
          && !ebb_layer_check_probability (module, "attention-dropout", self->attention_dropout, error)))
    return FALSE;
  if (self->config == NULL)
    self->config = make_config (self);
  for (child = children[self->config->layout][self->config->norm_order]; child->name != NULL; child++)
    {
      ebb_module_bind_child (module, child->name, G_STRUCT_MEMBER_P (self, child->offset));
      if (!ebb_layer_add_child (module, child->name, make_child (self->config, child->offset, error), error))
        return FALSE;
    }
  return TRUE;
}

/* -- calls --------------------------------------------------------------------------------------------------------- */

static EbbTensor *
call_attention (EbbTransformerBlock *self, EbbTensor *x, const EbbBlockInputs *inputs, GError **error)
{
  g_autoptr (EbbArgs) args = NULL;

  if (x == NULL || ebb_block_inputs_is_empty (inputs))
    return ebb_module_call1 (self->attention, x, error);
  args = ebb_block_inputs_to_args (inputs, x);
  return ebb_module_call_for_tensor (self->attention, args, error);
}

/* *sum = residual + dropout (x), and returns its normalisation by @norm; x is normalised by @branch_norm before, unless
 * that is NULL. Consumes @x. */
static EbbTensor *
add_and_normalize (EbbTransformerBlock *self,
                   EbbTensor *x,
                   EbbTensor *residual,
                   EbbModule *branch_norm,
                   EbbModule *norm,
                   EbbTensor **sum,
                   GError **error)
{
  const EbbResidual connection = { x, residual, self->dropout, ebb_module_get_training (EBB_MODULE (self)) };
  g_autoptr (EbbTensor) consumed = x;

  return ebb_norm_call_after_residual (norm, branch_norm, &connection, sum, error);
}

static EbbTensor *
run_pre_norm (EbbTransformerBlock *self, EbbTensor *x, const EbbBlockInputs *inputs, GError **error)
{
  g_autoptr (EbbTensor) normalized = ebb_module_call1 (self->before_attention, x, error);
  g_autoptr (EbbTensor) sum = NULL;
  g_autoptr (EbbTensor) changed = NULL;
  EbbTensor *attended = call_attention (self, normalized, inputs, error);

  /* Each is freed as soon as the next is there: its node keeps all that backward needs. */
  g_clear_pointer (&normalized, ebb_tensor_unref);
  if (attended == NULL)
    return NULL;
  normalized = add_and_normalize (self, attended, x, self->after_attention, self->before_mlp, &sum, error);
  changed = ebb_module_call1 (self->mlp, normalized, error);
  if (changed != NULL && self->after_mlp != NULL)
    {
      EbbTensor *result = ebb_module_call1 (self->after_mlp, changed, error);

      ebb_tensor_unref (changed);
      changed = result;
    }
  g_clear_pointer (&normalized, ebb_tensor_unref);
  return ebb_residual_dropout (changed, sum, self->dropout, ebb_module_get_training (EBB_MODULE (self)), NULL, error);
}

static EbbTensor *
run_post_norm (EbbTransformerBlock *self, EbbTensor *x, const EbbBlockInputs *inputs, GError **error)
{
  g_autoptr (EbbTensor) normalized = NULL;
  g_autoptr (EbbTensor) sum = NULL;
  g_autoptr (EbbTensor) last_sum = NULL;
  EbbTensor *attended = call_attention (self, x, inputs, error);
  EbbTensor *changed;

  if (attended == NULL)
    return NULL;
  normalized = add_and_normalize (self, attended, x, NULL, self->after_attention, &sum, error);
  g_clear_pointer (&sum, ebb_tensor_unref);
  changed = ebb_module_call1 (self->mlp, normalized, error);
  if (changed == NULL)
    return NULL;
  return add_and_normalize (self, changed, normalized, NULL, self->after_mlp, &last_sum, error);
}

static EbbTensor *
run_block (EbbTransformerBlock *self, EbbTensor *x, const EbbBlockInputs *inputs, GError **error)
{
  return self->config->norm_order == EBB_NORM_ORDER_POST ? run_post_norm (self, x, inputs, error)
                                                         : run_pre_norm (self, x, inputs, error);
}

static EbbTensor *
ebb_transformer_block_forward1 (EbbModule *module, EbbTensor *input, GError **error)
{
  return run_block (EBB_TRANSFORMER_BLOCK (module), input, EBB_NO_BLOCK_INPUTS, error);
}

static EbbArgs *
ebb_transformer_block_forward (EbbModule *module, EbbArgs *args, GError **error)
{
  EbbTensor *x;
  EbbBlockInputs inputs = { 0 };
  const EbbParameterSpec specs[] = {
    { "x", EBB_PARAMETER_TENSOR, &x },
    { "mask", EBB_PARAMETER_OPTIONAL_TENSOR, &inputs.mask },
    { "starts", EBB_PARAMETER_OPTIONAL_TENSOR, &inputs.starts },
    { "cache", EBB_PARAMETER_OPTIONAL_OBJECT, &inputs.cache, EBB_TYPE_KEY_VALUE_CACHE },
  };
  g_autoptr (EbbTensor) result = NULL;

  if (!ebb_args_parse (args, ebb_module_get_type_name (module), specs, G_N_ELEMENTS (specs), error))
    return NULL;
  result = run_block (EBB_TRANSFORMER_BLOCK (module), x, &inputs, error);
  return result != NULL ? ebb_args_new_for_tensor (result) : NULL;
}

/* By layout. A gate's rule is the first and left out where there is no gate. */
static const char *const parallel_rules[][9] = {
  [EBB_GPT_LAYOUT_GPT2] = { NULL, "attn: attention", "attn.c_attn: column_qkv", "attn.c_proj: row",
                            "mlp.c_fc: column", "mlp.c_proj: row" },
  [EBB_GPT_LAYOUT_LLAMA] = { "mlp.gate_proj: column", "self_attn: attention", "self_attn.q_proj: column",
                             "self_attn.k_proj: column", "self_attn.v_proj: column", "self_attn.o_proj: row",
                             "mlp.up_proj: column", "mlp.down_proj: row" },
};

static char **
ebb_transformer_block_list_parallel_rules (EbbBlock *block)
{
  const EbbBlockConfig *config = EBB_TRANSFORMER_BLOCK (block)->config;

  return g_strdupv ((char **) parallel_rules[config->layout] + (config->gated ? 0 : 1));
}

static void
block_interface_init (EbbBlockInterface *interface)
{
  interface->list_parallel_rules = ebb_transformer_block_list_parallel_rules;
}

static void
ebb_transformer_block_finalize (GObject *object)
{
  g_clear_pointer (&EBB_TRANSFORMER_BLOCK (object)->config, ebb_block_config_unref);
  G_OBJECT_CLASS (ebb_transformer_block_parent_class)->finalize (object);
}

static void
ebb_transformer_block_class_init (EbbTransformerBlockClass *klass)
{
  EbbModuleClass *module_class = EBB_MODULE_CLASS (klass);

  G_OBJECT_CLASS (klass)->finalize = ebb_transformer_block_finalize;
  module_class->build = ebb_transformer_block_build;
  module_class->forward = ebb_transformer_block_forward;
  module_class->forward1 = ebb_transformer_block_forward1;
  ebb_layer_class_install_properties (G_OBJECT_CLASS (klass), properties, G_N_ELEMENTS (properties));
}

static void
ebb_transformer_block_init (EbbTransformerBlock *self)
{
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

EbbModule *
ebb_transformer_block_new_from (EbbBlockConfig *config, GError **error)
{
  EbbTransformerBlock *self =
      g_object_new (EBB_TYPE_TRANSFORMER_BLOCK, "width", config->width, "heads", config->heads, "hidden",
                    config->hidden, "dropout", config->dropout, "attention-dropout", config->attention_dropout,
                    "causal", config->causal, "pre-norm", config->norm_order != EBB_NORM_ORDER_POST, "activation",
                    config->activation, "norm-eps", config->norm_eps, "bias", config->bias, NULL);

  self->config = ebb_block_config_ref (config);
  return ebb_layer_build (EBB_MODULE (self), error);
}

void
ebb_transformer_blocks_set_dropout (EbbModule *list, double dropout, double attention_dropout)
{
  for (guint i = 0; i < ebb_module_list_get_length (EBB_MODULE_LIST (list)); i++)
    {
      g_autoptr (EbbModule) module = ebb_module_list_get (EBB_MODULE_LIST (list), i);
      EbbTransformerBlock *block = EBB_IS_TRANSFORMER_BLOCK (module) ? EBB_TRANSFORMER_BLOCK (module) : NULL;

      if (block == NULL) /* somebody put another module there, which has its own dropout */
        continue;
      block->dropout = dropout;
      block->attention_dropout = attention_dropout;
      if (EBB_IS_MULTI_HEAD_ATTENTION (block->attention))
        ebb_multi_head_attention_set_dropout (block->attention, attention_dropout < 0 ? dropout : attention_dropout);
    }
}
