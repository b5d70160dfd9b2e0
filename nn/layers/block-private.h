/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "nn/layers/block-parts.h"
#include "nn/layers/key-value-cache.h"
#include "nn/layers/rotary.h"
#include "nn/module.h"
#include "tensor/ops/activation.h"

/* The choices of a transformer block, which it and its parts are made of, and the inputs that they are called with. */

G_BEGIN_DECLS

/* A block, its attention and its MLP share one. Sizes mean what they mean in an EbbGptConfig, where 0 stands for the
 * usual one. */
typedef struct
{
  EbbGptLayout layout;
  int width, heads, kv_heads, head_width, hidden;
  double dropout;
  double attention_dropout; /* below 0: dropout's */
  gboolean causal;
  EbbActivation activation;
  gboolean gated;
  EbbNormKind norm;
  EbbNormOrder norm_order;
  double norm_eps;
  gboolean bias, qkv_bias, output_bias, mlp_bias; /* bias: all of them, and the norms' */
  gboolean qk_norm;
  gboolean is_rotary;
  EbbRotaryConfig rotary;
  int context; /* of the model; for rotary positions */
  int window;
  double attention_scale, attention_softcap;
} EbbBlockConfig;

/* With GPT-2's choices and no sizes. Reference-counted: nobody changes it once something was made of it. */
EbbBlockConfig *ebb_block_config_new (void);
EbbBlockConfig *ebb_block_config_ref (EbbBlockConfig *self);
void ebb_block_config_unref (EbbBlockConfig *self);

EbbModule *ebb_transformer_block_new_from (EbbBlockConfig *config,
                                           GError **error);
EbbModule *ebb_multi_head_attention_new_from (EbbBlockConfig *config,
                                              GError **error);
EbbModule *ebb_mlp_new_from (EbbBlockConfig *config,
                             GError **error);
/* A normalisation of the kind that the block has. */
EbbModule *ebb_block_config_new_norm (const EbbBlockConfig *self,
                                      int width,
                                      GError **error);

/* Changes the probabilities of dropout of the blocks in a list, or of attention alone. */
void ebb_transformer_blocks_set_dropout (EbbModule *list,
                                         double dropout,
                                         double attention_dropout);
void ebb_multi_head_attention_set_dropout (EbbModule *self,
                                           double dropout);
/* Of attention: how many heads of keys and values there are, on all ranks together. */
int ebb_multi_head_attention_get_kv_heads (EbbModule *self);

/* The inputs of a block and of attention beside x; NULL: there is none. */
typedef struct
{
  EbbTensor *mask, *starts;
  EbbKeyValueCache *cache;
} EbbBlockInputs;

#define EBB_NO_BLOCK_INPUTS ((const EbbBlockInputs *) &(EbbBlockInputs){ 0 })

#define ebb_block_inputs_is_empty(self) ((self)->mask == NULL && (self)->starts == NULL && (self)->cache == NULL)
/* A call's arguments: x and those that there are, by name. */
EbbArgs *ebb_block_inputs_to_args (const EbbBlockInputs *self,
                                   EbbTensor *x);
G_DEFINE_AUTOPTR_CLEANUP_FUNC (EbbBlockConfig, ebb_block_config_unref)

G_END_DECLS
