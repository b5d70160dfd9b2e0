/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#if !defined(EBB_INSIDE) && !defined(EBB_COMPILATION)
#error "Only <ebb/ebb.h> can be included directly."
#endif

#include "nn/args.h"
#include "nn/layers/block-parts.h"
#include "nn/layers/rotary.h"
#include "tensor/error.h"
#include "tensor/ops/activation.h"

G_BEGIN_DECLS

#define EBB_TYPE_GPT_CONFIG (ebb_gpt_config_get_type ())

/**
 * EbbPositions:
 * @EBB_POSITIONS_LEARNED: a learned vector for each position is added to the embeddings, as in GPT-2
 * @EBB_POSITIONS_ROTARY: queries and keys are rotated by angles that grow with their position, as in Llama
 * @EBB_POSITIONS_NONE: none
 *
 * How a decoder knows the positions of tokens.
 */
typedef enum
{
  EBB_POSITIONS_LEARNED,
  EBB_POSITIONS_ROTARY,
  EBB_POSITIONS_NONE
} EbbPositions;

/**
 * EbbGptConfig:
 * @vocab: the number of different tokens
 * @context: the most tokens in a row
 * @width: the size of a token's vector
 * @heads: the number of attention heads, which divides the width
 * @layers: the number of blocks
 * @dropout: the probability of dropout on embeddings and on each part's result
 * @tied: whether the output product shares the weight of the token embedding
 * @activation: the activation inside the MLPs
 * @norm_eps: what the normalisations add to the variance or mean square
 * @bias: whether linear layers and normalisations have biases
 * @residual_dtype: in which type the residual stream is stored while autocast lowers products to bf16:
 *   %EBB_DTYPE_F32 (the default) or %EBB_DTYPE_BF16
 * @layout: how modules and parameters are named and divided
 * @kv_heads: the number of heads of keys and values, each for heads / kv_heads heads of queries; 0 for @heads
 * @head_width: the width of a head; 0 for @width / @heads
 * @hidden: the size between the products of an MLP; 0 for four times @width
 * @gated: whether the activation of one product multiplies the result of another inside an MLP
 * @norm: which normalisation
 * @norm_order: where the normalisations of a block stand; after the last block there is always one
 * @qkv_bias: whether queries, keys and values have biases, where @bias is %FALSE
 * @output_bias: the same of the output product of attention
 * @mlp_bias: the same of the products of an MLP
 * @qk_norm: whether each head's queries and keys are normalised, before they are rotated
 * @positions: how positions are known
 * @rotary: the rotary positions, where @positions has them
 * @local_rotary: those of sliding layers; theta 0 for @rotary
 * @window: how many positions a query of a sliding layer sees, its own included; 0 for all
 * @attention_scale: what scores are multiplied by; 0 for 1 / sqrt (head width)
 * @attention_softcap: the bound c of scores s, which become c tanh (s / c); 0 for none
 * @logit_softcap: the same of logits
 * @embedding_scale: what the embeddings of tokens are multiplied by; 0 for 1
 * @attention_dropout: the probability with which a weight of attention is dropped; below 0 for @dropout
 *
 * The sizes and choices that make a decoder: by default GPT-2, and by other choices Llama, Mistral, Qwen, Gemma, Phi-3
 * or SmolLM. Set the fields as you like; ebb_gpt_config_check() and ebb_gpt_new() report values that make no model.
 * Which layers are sliding says ebb_gpt_config_set_layer_pattern().
 *
 * The residual stream runs from the embeddings through all blocks. With a bf16 @residual_dtype the sum of the
 * embeddings is cast once, and blocks follow the dtype of their input: sums, norms and their gradients are stored in
 * bf16 and computed in f32, and no tensor is cast on the way. That halves the bytes of the stream that are saved for
 * backward and moved through memory, and each sum has eight bits of mantissa. Parameters, their gradients and logsumexp
 * stay f32. Without autocast it has no effect. (Megatron's `fp32_residual_connection` is the opposite switch.)
 */
typedef struct
{
  int vocab;
  int context;
  int width;
  int heads;
  int layers;
  double dropout;
  gboolean tied;
  EbbActivation activation;
  double norm_eps;
  gboolean bias;
  EbbDType residual_dtype;
  EbbGptLayout layout;
  int kv_heads;
  int head_width;
  int hidden;
  gboolean gated;
  EbbNormKind norm;
  EbbNormOrder norm_order;
  gboolean qkv_bias;
  gboolean output_bias;
  gboolean mlp_bias;
  gboolean qk_norm;
  EbbPositions positions;
  EbbRotaryConfig rotary;
  EbbRotaryConfig local_rotary;
  int window;
  double attention_scale;
  double attention_softcap;
  double logit_softcap;
  double embedding_scale;
  double attention_dropout;

  /*< private >*/
  char *unknown_preset;
  char *layer_pattern;
} EbbGptConfig;

EBB_AVAILABLE_IN_ALL
GType ebb_gpt_config_get_type (void);

EBB_AVAILABLE_IN_ALL
EbbGptConfig *ebb_gpt_config_new (void);

EBB_AVAILABLE_IN_ALL
EbbGptConfig *ebb_gpt_config_new_preset (const char *name);

EBB_AVAILABLE_IN_ALL
EbbGptConfig *ebb_gpt_config_new_from_gpt2 (EbbArgs *state,
                                            EbbArgs *metadata,
                                            const char *config_path,
                                            GError **error);

EBB_AVAILABLE_IN_ALL
EbbArgs *ebb_gpt_config_to_gpt2_metadata (const EbbGptConfig *self);

EBB_AVAILABLE_IN_ALL
const char *const *ebb_gpt_config_get_preset_names (void);

EBB_AVAILABLE_IN_ALL
void ebb_gpt_config_set_layer_pattern (EbbGptConfig *self,
                                       const char *pattern);

EBB_AVAILABLE_IN_ALL
const char *ebb_gpt_config_get_layer_pattern (const EbbGptConfig *self);

EBB_AVAILABLE_IN_ALL
gboolean ebb_gpt_config_is_sliding_layer (const EbbGptConfig *self,
                                          guint layer);

EBB_AVAILABLE_IN_ALL
gboolean ebb_gpt_config_is_rotary_layer (const EbbGptConfig *self,
                                         guint layer);

EBB_AVAILABLE_IN_ALL
EbbGptConfig *ebb_gpt_config_copy (const EbbGptConfig *self);

EBB_AVAILABLE_IN_ALL
void ebb_gpt_config_free (EbbGptConfig *self);

EBB_AVAILABLE_IN_ALL
gboolean ebb_gpt_config_check (const EbbGptConfig *self,
                               GError **error);

G_DEFINE_AUTOPTR_CLEANUP_FUNC (EbbGptConfig, ebb_gpt_config_free)

G_END_DECLS
