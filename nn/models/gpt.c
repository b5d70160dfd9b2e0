/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "nn/models/gpt.h"

#include "nn/args-private.h"
#include "nn/initialization.h"
#include "nn/layers/block-private.h"
#include "nn/layers/embedding.h"
#include "nn/layers/layer-private.h"
#include "nn/layers/module-list.h"
#include "nn/layers/rotary-private.h"
#include "nn/layers/stack-private.h"
#include "nn/models/model-config-private.h"
#include "tensor/error-private.h"
#include "tensor/ops/creation.h"
#include "tensor/ops/loss.h"
#include "tensor/ops/pointwise.h"
#include "tensor/ops/shape.h"
#include "tensor/thread-private.h"
#include "tensor/util/half-private.h"
#include "tensor/util/property-private.h"

#include <math.h>

/**
 * EbbGpt:
 *
 * A decoder of transformer blocks: GPT-2 (Radford et al., 2019), and by the choices of its #EbbGptConfig Llama,
 * Mistral, Qwen, Gemma, Phi-3 or SmolLM. Children in the layout of GPT-2: `wte` and `wpe`, the embeddings of tokens and
 * positions; `h`, the list of #EbbTransformerBlock; `ln_f`; and `lm_head` where the output product does not share the
 * weight of `wte`. In the layout of Llama: `embed_tokens`, `layers`, `norm` and `lm_head`.
 *
 * Called with tokens `[B, T]` of i64 or i32 it gives logits `[B, T, vocab]`. Its other arguments, by position or name:
 * `targets` `[B, T]`, with which it gives the mean cross entropy over the targets that are not -100, and never holds
 * all logits; `mask`, see #EbbMultiHeadAttention; `last`, with which the logits are those of the last position alone,
 * `[B, 1, vocab]`; `starts` `[B, T]`, which says for each token at which index of its row its document begins, for
 * documents that share a row or prompts with padding before them; and `cache`, an #EbbKeyValueCache with the tokens of
 * earlier calls, after which these come. Positions count from the starts.
 */
struct _EbbGpt
{
  EbbModule parent_instance;

  EbbGptConfig *config;
  EbbModule *wte;
  EbbModule *wpe; /* NULL where positions are not learned */
  EbbModule *h;
  EbbModule *ln_f;
  EbbModule *lm_head; /* NULL where the weight is that of wte */
};

G_DEFINE_TYPE (EbbGpt, ebb_gpt, EBB_TYPE_MODULE)

static void
ebb_gpt_finalize (GObject *object)
{
  g_clear_pointer (&EBB_GPT (object)->config, ebb_gpt_config_free);
  G_OBJECT_CLASS (ebb_gpt_parent_class)->finalize (object);
}

/* -- building ------------------------------------------------------------------------------------------------------ */

/* The choices of the blocks of sliding layers, or of the others. */
static EbbBlockConfig *
make_block_config (const EbbGptConfig *config, gboolean is_sliding, gboolean is_rotary)
{
  EbbBlockConfig *block = ebb_block_config_new ();

  block->layout = config->layout;
  block->width = config->width;
  block->heads = config->heads;
  block->kv_heads = config->kv_heads;
  block->head_width = config->head_width;
  block->hidden = config->hidden;
  block->dropout = config->dropout;
  block->attention_dropout = config->attention_dropout;
  block->causal = TRUE;
  block->activation = config->activation;
  block->gated = config->gated;
  block->norm = config->norm;
  block->norm_order = config->norm_order;
  block->norm_eps = config->norm_eps;
  block->bias = config->bias;
  block->qkv_bias = config->qkv_bias;
  block->output_bias = config->output_bias;
  block->mlp_bias = config->mlp_bias;
  block->qk_norm = config->qk_norm;
  block->is_rotary = is_rotary;
  block->rotary = is_sliding && config->local_rotary.theta != 0 ? config->local_rotary : config->rotary;
  block->context = config->context;
  block->window = is_sliding ? config->window : 0;
  block->attention_scale = config->attention_scale;
  block->attention_softcap = config->attention_softcap;
  return block;
}

/* Layers of a kind share their choices. */
static gboolean
add_blocks (EbbGpt *self, GError **error)
{
  EbbGptConfig *config = self->config;
  EbbBlockConfig *kinds[2][2] = { 0 };
  gboolean added = TRUE;

  for (int i = 0; added && i < config->layers; i++)
    {
      gboolean is_sliding = ebb_gpt_config_is_sliding_layer (config, (guint) i);
      gboolean is_rotary = ebb_gpt_config_is_rotary_layer (config, (guint) i);
      EbbBlockConfig **kind = &kinds[is_sliding][is_rotary];
      g_autoptr (EbbModule) block = NULL;

      if (*kind == NULL)
        *kind = make_block_config (config, is_sliding, is_rotary);
      block = ebb_transformer_block_new_from (*kind, error);
      added = block != NULL && ebb_module_list_append (EBB_MODULE_LIST (self->h), block, error);
    }
  for (guint i = 0; i < 4; i++)
    g_clear_pointer (&kinds[i / 2][i % 2], ebb_block_config_unref);
  return added;
}

/* In GPT-2's layout positions begin with 0.01, and the products that end on the residual stream are scaled by
 * 1 / sqrt (their number), two in a block (Radford et al., 2019, section 2.3). */
static double
get_initial_std (EbbModule *module, const char *name)
{
  if (g_str_equal (name, "wpe.weight"))
    return 0.01;
  return g_str_has_suffix (name, ".c_proj.weight") ? 0.02 * (1 / sqrt (2.0 * EBB_GPT (module)->config->layers)) : 0.02;
}

static gboolean
add_child (EbbGpt *self, const char *name, EbbModule **field, EbbModule *child, GError **error)
{
  ebb_module_bind_child (EBB_MODULE (self), name, field);
  return ebb_layer_add_child (EBB_MODULE (self), name, child, error);
}

static gboolean
add_children (EbbGpt *self, GError **error)
{
  EbbGptConfig *config = self->config;
  g_autoptr (EbbBlockConfig) block = make_block_config (config, FALSE, FALSE);
  gboolean is_llama = config->layout == EBB_GPT_LAYOUT_LLAMA;
  int width = config->width;

  return add_child (self, is_llama ? "embed_tokens" : "wte", &self->wte,
                    ebb_embedding_new (config->vocab, width, error), error)
         && (config->positions != EBB_POSITIONS_LEARNED
             || add_child (self, "wpe", &self->wpe, ebb_embedding_new (config->context, width, error), error))
         && add_child (self, is_llama ? "layers" : "h", &self->h, ebb_module_list_new (), error)
         && add_blocks (self, error)
         && add_child (self, is_llama ? "norm" : "ln_f", &self->ln_f, ebb_block_config_new_norm (block, width, error),
                       error)
         && (config->tied
             || add_child (self, "lm_head", &self->lm_head, ebb_linear_new (width, config->vocab, FALSE, error),
                           error));
}

static gboolean
ebb_gpt_build (EbbModule *module, GError **error)
{
  EbbGpt *self = EBB_GPT (module);
  gboolean added;

  if (!ebb_model_check_has_config (module, self->config, error) || !ebb_gpt_config_check (self->config, error))
    return FALSE;
  /* All that the layers would draw is drawn anew. */
  ebb_push_initialization_skipped ();
  added = add_children (self, error);
  ebb_pop_initialization_skipped ();
  return added && ebb_model_initialize (module, get_initial_std, error);
}

/* -- calls --------------------------------------------------------------------------------------------------------- */

static gint64
count_cached (const EbbBlockInputs *inputs)
{
  return inputs->cache != NULL ? ebb_key_value_cache_get_length (inputs->cache) : 0;
}

static gboolean
check_tokens (EbbGpt *self, EbbTensor *tokens, const EbbBlockInputs *inputs, GError **error)
{
  const gint64 limit = ebb_gpt_get_max_positions (self);
  g_autofree char *shape = NULL;

  if (ebb_tensor_get_n_dims (tokens) == 2 && ebb_tensor_get_dim (tokens, 1) <= limit - count_cached (inputs))
    return TRUE;
  shape = ebb_tensor_shape_to_string (tokens);
  if (count_cached (inputs) > 0)
    ebb_error_set (error, EBB_ERROR_SHAPE,
                   "%s: tokens %s after %" G_GINT64_FORMAT
                   " in the cache; they must be [B, T] with at most %" G_GINT64_FORMAT " together, the context",
                   ebb_module_get_type_name (EBB_MODULE (self)), shape, count_cached (inputs), limit);
  else
    ebb_error_set (error, EBB_ERROR_SHAPE,
                   "%s: tokens %s; they must be [B, T] with T at most %" G_GINT64_FORMAT ", the context",
                   ebb_module_get_type_name (EBB_MODULE (self)), shape, limit);
  return FALSE;
}

/* Whether a row has tokens of several documents: starts differ, or are those of tokens that come after others in the
 * cache. */
static gboolean
find_documents (EbbTensor *starts, gint64 n_cached, gboolean *found, GError **error)
{
  const gint64 width = ebb_tensor_get_dim (starts, 1);
  g_autoptr (EbbTensor) wide = ebb_cast (starts, EBB_DTYPE_I64, error);
  g_autoptr (EbbTensor) contiguous = ebb_contiguous (wide, error);
  g_autoptr (EbbTensor) host = ebb_to_device (contiguous, ebb_device_get_cpu (), error);
  const gint64 *values = host != NULL ? ebb_tensor_get_data (host, error) : NULL;

  *found = FALSE;
  for (gint64 i = 0; values != NULL && i < ebb_tensor_get_n_elements (host); i++)
    *found = *found || values[i] != values[i / width * width] || (n_cached > 0 && values[i] >= n_cached);
  return values != NULL;
}

/* These scalings choose one form of the positions for all rows by their length, which is not that of several documents
 * in a row. Generation pads prompts to the longest of them, whose length the rows have. */
static gboolean
check_documents (EbbGpt *self, EbbTensor *tokens, const EbbBlockInputs *inputs, gboolean has_targets, GError **error)
{
  const EbbGptConfig *config = self->config;
  const EbbRotaryConfig *kinds[] = { &config->rotary, &config->local_rotary };
  const gint64 n_cached = count_cached (inputs), length = n_cached + ebb_tensor_get_dim (tokens, 1);
  gboolean found = TRUE;

  if (inputs->starts == NULL || config->positions != EBB_POSITIONS_ROTARY)
    return TRUE;
  for (guint i = 0; i < G_N_ELEMENTS (kinds); i++)
    {
      const gint64 limit = kinds[i]->original_context > 0 ? kinds[i]->original_context : config->context;

      if ((kinds[i]->scaling != EBB_ROTARY_DYNAMIC && kinds[i]->scaling != EBB_ROTARY_LONGROPE)
          || (i == 1 && kinds[i]->theta == 0) || length <= limit)
        continue;
      /* Training has packed documents, and doesn't wait for their values. */
      if (!has_targets && !ebb_is_grad_enabled () && !find_documents (inputs->starts, n_cached, &found, error))
        return FALSE;
      return !found
             || ebb_fail (error, EBB_ERROR_NOT_SUPPORTED,
                          "%s: starts in rows of %" G_GINT64_FORMAT " tokens; with %s rotary scaling rows of documents "
                          "have at most %" G_GINT64_FORMAT ", the original context",
                          ebb_module_get_type_name (EBB_MODULE (self)), length,
                          kinds[i]->scaling == EBB_ROTARY_DYNAMIC ? "dynamic" : "longrope", limit);
    }
  return TRUE;
}

/* [T], or with starts [B, T]: the index in the row, or from where the token's document begins. Padding has 0. */
static EbbTensor *
make_positions (EbbTensor *tokens, const EbbBlockInputs *inputs, GError **error)
{
  gint64 first = count_cached (inputs);
  g_autoptr (EbbTensor) indices =
      ebb_arange ((double) first, (double) (first + ebb_tensor_get_dim (tokens, 1)), 1, EBB_DTYPE_I64,
                  ebb_tensor_get_device (tokens), error);
  g_autoptr (EbbTensor) starts = NULL;
  g_autoptr (EbbTensor) positions = NULL;

  if (inputs->starts == NULL)
    return g_steal_pointer (&indices);
  starts = ebb_cast (inputs->starts, EBB_DTYPE_I64, error);
  positions = ebb_sub (indices, starts, error);
  return ebb_clamp (positions, 0, (double) G_MAXINT, error);
}

/* As a tensor of @dtype holds it: transformers multiplies by such a tensor. */
static double
round_scale (double scale, EbbDType dtype)
{
  return dtype == EBB_DTYPE_BF16 ? ebb_bf16_to_float (ebb_bf16_from_float ((float) scale)) : scale;
}

static EbbTensor *
embed_tokens (EbbGpt *self, EbbTensor *tokens, const EbbBlockInputs *inputs, GError **error)
{
  double scale = self->config->embedding_scale;
  g_autoptr (EbbTensor) words = NULL;
  g_autoptr (EbbTensor) indices = NULL;
  g_autoptr (EbbTensor) positions = NULL;

  if (self->wpe != NULL)
    {
      indices = make_positions (tokens, inputs, error);
      positions = ebb_module_call1 (self->wpe, indices, error);
      if (positions == NULL)
        return NULL;
    }
  words = ebb_module_call1 (self->wte, tokens, error);
  if (words != NULL && scale != 0)
    {
      EbbTensor *scaled = ebb_mul_scalar (words, round_scale (scale, ebb_tensor_get_dtype (words)), error);

      ebb_tensor_unref (words);
      words = scaled;
    }
  return positions != NULL ? ebb_add (words, positions, error) : g_steal_pointer (&words);
}

static EbbTensor *
embed (EbbGpt *self, EbbTensor *tokens, const EbbBlockInputs *inputs, GError **error)
{
  EbbDType dtype = self->config->residual_dtype, autocast_dtype; /* f32 even if the embeddings are bf16 */
  g_autoptr (EbbTensor) sum = embed_tokens (self, tokens, inputs, error);

  if (sum != NULL && ebb_autocast_get (&autocast_dtype) && (dtype == autocast_dtype || dtype == EBB_DTYPE_F32))
    {
      EbbTensor *lowered = ebb_cast (sum, dtype, error);

      ebb_tensor_unref (sum);
      sum = lowered;
    }
  return ebb_dropout (sum, self->config->dropout, ebb_module_get_training (EBB_MODULE (self)), NULL,
                      error);
}

/* Consumes @x. */
static EbbTensor *
call_blocks (EbbGpt *self, EbbTensor *x, const EbbBlockInputs *inputs, GError **error)
{
  g_autoptr (EbbModule) h = self->h != NULL ? g_object_ref (self->h) : NULL;

  return x != NULL && h != NULL ? ebb_stack_call_blocks (h, x, inputs, error) : x;
}

/* The input of the output product: [B, T, width], or [B, 1, width] of the last position. */
static EbbTensor *
run_blocks (EbbGpt *self, EbbTensor *tokens, const EbbBlockInputs *inputs, gboolean last, GError **error)
{
  EbbTensor *x;

  if (!check_tokens (self, tokens, inputs, error))
    return NULL;
  x = call_blocks (self, embed (self, tokens, inputs, error), inputs, error);
  if (x != NULL && last)
    {
      EbbTensor *end = ebb_narrow (x, 1, ebb_tensor_get_dim (x, 1) - 1, 1, error);

      ebb_tensor_unref (x);
      x = end;
    }
  if (x != NULL)
    {
      EbbTensor *normalized = ebb_module_call1 (self->ln_f, x, error);

      ebb_tensor_unref (x);
      x = normalized;
    }
  return x;
}

static EbbTensor *
compute_logits (EbbGpt *self, EbbTensor *x, GError **error)
{
  double softcap = self->config->logit_softcap;
  g_autoptr (EbbTensor) logits = self->lm_head != NULL ? ebb_module_call1 (self->lm_head, x, error)
                                                       : ebb_output_layer_logits (self->wte, x, NULL, error);

  return softcap > 0 && logits != NULL ? ebb_soft_cap (logits, softcap, error) : g_steal_pointer (&logits);
}

static EbbTensor *
compute_loss (EbbGpt *self, EbbTensor *x, EbbTensor *targets, GError **error)
{
  double softcap = self->config->logit_softcap;
  g_autoptr (EbbTensor) logits = NULL;

  if (self->lm_head == NULL)
    return ebb_output_layer_loss (self->wte, x, NULL, targets, softcap, error);
  if (ebb_output_layer_is_open (self->lm_head) && EBB_IS_LINEAR (self->lm_head))
    return ebb_linear_call_for_loss (self->lm_head, x, targets, softcap, error);
  logits = compute_logits (self, x, error);
  return ebb_cross_entropy_full (logits, targets, EBB_IGNORED_TARGET, 0, EBB_REDUCTION_MEAN, error);
}

static EbbTensor *
ebb_gpt_forward1 (EbbModule *module, EbbTensor *input, GError **error)
{
  EbbGpt *self = EBB_GPT (module);
  g_autoptr (EbbTensor) x = run_blocks (self, input, EBB_NO_BLOCK_INPUTS, FALSE, error);

  return x != NULL ? compute_logits (self, x, error) : NULL;
}

static EbbArgs *
ebb_gpt_forward (EbbModule *module, EbbArgs *args, GError **error)
{
  EbbGpt *self = EBB_GPT (module);
  EbbTensor *tokens, *targets;
  EbbBlockInputs inputs = { 0 };
  gboolean last = FALSE;
  const EbbParameterSpec specs[] = {
    { "tokens", EBB_PARAMETER_TENSOR, &tokens },
    { "targets", EBB_PARAMETER_OPTIONAL_TENSOR, &targets },
    { "mask", EBB_PARAMETER_OPTIONAL_TENSOR, &inputs.mask },
    { "last", EBB_PARAMETER_FLAG, &last },
    { "starts", EBB_PARAMETER_OPTIONAL_TENSOR, &inputs.starts },
    { "cache", EBB_PARAMETER_OPTIONAL_OBJECT, &inputs.cache, EBB_TYPE_KEY_VALUE_CACHE },
  };
  g_autoptr (EbbTensor) x = NULL;
  g_autoptr (EbbTensor) result = NULL;

  if (!ebb_args_parse (args, ebb_module_get_type_name (module), specs, G_N_ELEMENTS (specs), error))
    return NULL;
  if (targets != NULL && last)
    return ebb_fail_null (error, EBB_ERROR_INVALID_ARGUMENT, "%s: targets and last can't be given together",
                          ebb_module_get_type_name (module));
  if (ebb_tensor_get_n_dims (tokens) == 2
      && (!ebb_model_check_like_tokens (EBB_MODULE (self), "starts", inputs.starts, tokens, error)
          || !check_documents (self, tokens, &inputs, targets != NULL, error)))
    return NULL;
  x = run_blocks (self, tokens, &inputs, last, error);
  if (x != NULL)
    result = targets != NULL ? compute_loss (self, x, targets, error) : compute_logits (self, x, error);
  if (inputs.cache != NULL && result != NULL)
    ebb_key_value_cache_advance (inputs.cache, ebb_tensor_get_dim (tokens, 1));
  else if (inputs.cache != NULL)
    ebb_key_value_cache_truncate (inputs.cache, count_cached (&inputs));
  return result != NULL ? ebb_args_new_for_tensor (result) : NULL;
}

static void
ebb_gpt_class_init (EbbGptClass *klass)
{
  GObjectClass *object_class = G_OBJECT_CLASS (klass);
  EbbModuleClass *module_class = EBB_MODULE_CLASS (klass);

  object_class->get_property = ebb_property_get_field;
  object_class->set_property = ebb_property_set_field;
  object_class->finalize = ebb_gpt_finalize;
  module_class->build = ebb_gpt_build;
  module_class->forward = ebb_gpt_forward;
  module_class->forward1 = ebb_gpt_forward1;

  /**
   * EbbGpt:config:
   *
   * The sizes and choices that the model was made with.
   */
  g_object_class_install_property (
      object_class, offsetof (EbbGpt, config),
      g_param_spec_boxed ("config", NULL, "The sizes and choices of the model", EBB_TYPE_GPT_CONFIG,
                          G_PARAM_READWRITE | G_PARAM_CONSTRUCT_ONLY | G_PARAM_STATIC_STRINGS));
}

static void
ebb_gpt_init (EbbGpt *self)
{
}

/**
 * ebb_gpt_new:
 * @config: the sizes and choices; the model keeps a copy
 * @error: return location for an error
 *
 * Makes a decoder with the initial weights of its kind, drawn from the thread's default generator.
 *
 * Returns: (transfer full) (type EbbGpt) (nullable): the model, or %NULL with @error set, to
 * %EBB_ERROR_INVALID_ARGUMENT if ebb_gpt_config_check() finds something
 */
EbbModule *
ebb_gpt_new (EbbGptConfig *config, GError **error)
{
  return EBB_MAY_BEGIN (error, config) ? ebb_layer_new (EBB_TYPE_GPT, error, "config", config, NULL) : NULL;
}

/**
 * ebb_gpt_get_config:
 * @self: a model
 *
 * Returns: (transfer full) (nullable): a copy of the configuration that the model was made with
 */
EbbGptConfig *
ebb_gpt_get_config (EbbGpt *self)
{
  g_return_val_if_fail (EBB_IS_GPT (self), NULL);

  return self->config != NULL ? ebb_gpt_config_copy (self->config) : NULL;
}

/**
 * ebb_gpt_set_dropout:
 * @self: a model
 * @dropout: the probability of dropout on embeddings and on each part's result
 * @attention_dropout: that of a weight of attention, below 0 for @dropout
 * @error: return location for an error
 *
 * Changes the dropout of a model that is there, as one from a folder is.
 *
 * Returns: %TRUE, or %FALSE with @error set to %EBB_ERROR_INVALID_ARGUMENT if one of them is no probability below 1
 */
gboolean
ebb_gpt_set_dropout (EbbGpt *self, double dropout, double attention_dropout, GError **error)
{
  EBB_RETURN_UNLESS_BEGUN (FALSE, error, self);
  g_return_val_if_fail (EBB_IS_GPT (self), FALSE);

  if (!ebb_model_config_check_dropout ("Gpt", dropout, attention_dropout, error))
    return FALSE;
  self->config->dropout = dropout;
  self->config->attention_dropout = attention_dropout;
  ebb_transformer_blocks_set_dropout (self->h, dropout, attention_dropout);
  return TRUE;
}

/**
 * ebb_gpt_set_residual_dtype:
 * @self: a model
 * @dtype: the type, f32 or bf16
 * @error: return location for an error
 *
 * Changes the type in which a model that is there stores its residual stream while autocast lowers products to bf16;
 * see #EbbGptConfig.
 *
 * Returns: %TRUE, or %FALSE with @error set to %EBB_ERROR_INVALID_ARGUMENT for another type
 */
gboolean
ebb_gpt_set_residual_dtype (EbbGpt *self, EbbDType dtype, GError **error)
{
  g_autoptr (EbbGptConfig) config = NULL;

  EBB_RETURN_UNLESS_BEGUN (FALSE, error, self);
  g_return_val_if_fail (EBB_IS_GPT (self), FALSE);

  config = ebb_gpt_config_copy (self->config);
  config->residual_dtype = dtype;
  if (!ebb_gpt_config_check (config, error))
    return FALSE;
  self->config->residual_dtype = dtype;
  return TRUE;
}

/**
 * ebb_gpt_get_max_positions:
 * @self: a model
 *
 * Returns: how many tokens a row may have: the context, or more with rotary positions that are scaled
 */
gint64
ebb_gpt_get_max_positions (EbbGpt *self)
{
  const EbbGptConfig *config;

  g_return_val_if_fail (EBB_IS_GPT (self), 0);

  config = self->config;
  return config->positions == EBB_POSITIONS_ROTARY ? ebb_rotary_config_get_limit (&config->rotary, config->context)
                                                   : config->context;
}

/**
 * ebb_gpt_loss:
 * @self: a model
 * @tokens: `[B, T]` of i64 or i32
 * @targets: `[B, T]`, the token that follows each; -100 where there is none
 * @error: return location for an error
 *
 * Calls the model for its loss: the mean cross entropy, in nats, over the targets that there are.
 *
 * Returns: (transfer full) (nullable): the loss, f32 `[]`, or %NULL with @error set
 */
EbbTensor *
ebb_gpt_loss (EbbGpt *self, EbbTensor *tokens, EbbTensor *targets, GError **error)
{
  g_autoptr (EbbArgs) args = NULL;

  EBB_RETURN_UNLESS_BEGUN (NULL, error, self, tokens, targets);
  g_return_val_if_fail (EBB_IS_GPT (self), NULL);

  args = ebb_args_new (EBB_ARGS_TUPLE);
  ebb_args_add_tensor (args, NULL, tokens);
  ebb_args_add_tensor (args, "targets", targets);
  return ebb_module_call_for_tensor (EBB_MODULE (self), args, error);
}
