/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#if !defined(EBB_INSIDE) && !defined(EBB_COMPILATION)
#error "Only <ebb/ebb.h> can be included directly."
#endif

#include <glib-object.h>

#include "tensor/macros.h"

/* The choices of which transformer blocks are made. */

G_BEGIN_DECLS

/**
 * EbbGptLayout:
 * @EBB_GPT_LAYOUT_GPT2: GPT-2's names; one product computes queries, keys and values (`h.0.attn.c_attn`)
 * @EBB_GPT_LAYOUT_LLAMA: the names that Llama and most models after it have; each product by itself
 *   (`layers.0.self_attn.q_proj`)
 *
 * How the modules and parameters of a decoder are named and divided.
 */
typedef enum
{
  EBB_GPT_LAYOUT_GPT2,
  EBB_GPT_LAYOUT_LLAMA
} EbbGptLayout;

/**
 * EbbNormKind:
 * @EBB_NORM_LAYER: layer normalisation, #EbbLayerNorm
 * @EBB_NORM_RMS: normalisation by the root mean square, #EbbRmsNorm
 * @EBB_NORM_RMS_UNIT: the same, multiplied by 1 + weight, where the weight begins as 0 (Gemma)
 *
 * Which normalisation a block has.
 */
typedef enum
{
  EBB_NORM_LAYER,
  EBB_NORM_RMS,
  EBB_NORM_RMS_UNIT
} EbbNormKind;

/**
 * EbbNormOrder:
 * @EBB_NORM_ORDER_PRE: before attention and before the MLP: x + f (norm (x)), as in GPT-2 and Llama
 * @EBB_NORM_ORDER_POST: after the sums: norm (x + f (x)), as in BERT
 * @EBB_NORM_ORDER_BOTH: before both parts and on their results: x + norm (f (norm (x))), as in Gemma 2
 *
 * Where the normalisations of a block stand.
 */
typedef enum
{
  EBB_NORM_ORDER_PRE,
  EBB_NORM_ORDER_POST,
  EBB_NORM_ORDER_BOTH
} EbbNormOrder;

G_END_DECLS
