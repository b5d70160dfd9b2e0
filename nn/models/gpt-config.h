/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#if !defined(EBB_INSIDE) && !defined(EBB_COMPILATION)
#error "Only <ebb/ebb.h> can be included directly."
#endif

#include "nn/args.h"
#include "tensor/error.h"
#include "tensor/ops/activation.h"

G_BEGIN_DECLS

#define EBB_TYPE_GPT_CONFIG (ebb_gpt_config_get_type ())

/**
 * EbbGptConfig:
 * @vocab: the number of different tokens
 * @context: the most tokens in a row
 * @width: the size of a token's vector
 * @heads: the number of attention heads, which divides the width
 * @layers: the number of blocks
 * @dropout: the probability of dropout on embeddings, in attention and on each part's result
 * @tied: whether the output product shares the weight of the token embedding
 * @gelu: which of the two usual forms of GELU
 * @norm_eps: what the normalisations add to the variance
 * @bias: whether linear layers and normalisations have biases
 * @residual_dtype: in which type the residual stream is stored while autocast lowers products to bf16:
 *   %EBB_DTYPE_F32 (the default) or %EBB_DTYPE_BF16
 *
 * The sizes and choices that make a GPT. Set the fields as you like; ebb_gpt_config_check() and ebb_gpt_new() report
 * values that make no model.
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
  EbbGeluKind gelu;
  double norm_eps;
  gboolean bias;
  EbbDType residual_dtype;

  /*< private >*/
  char *unknown_preset;
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
EbbGptConfig *ebb_gpt_config_copy (const EbbGptConfig *self);

EBB_AVAILABLE_IN_ALL
void ebb_gpt_config_free (EbbGptConfig *self);

EBB_AVAILABLE_IN_ALL
gboolean ebb_gpt_config_check (const EbbGptConfig *self,
                               GError **error);

G_DEFINE_AUTOPTR_CLEANUP_FUNC (EbbGptConfig, ebb_gpt_config_free)

G_END_DECLS
