/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#if !defined(EBB_INSIDE) && !defined(EBB_COMPILATION)
#error "Only <ebb/ebb.h> can be included directly."
#endif

#include "tensor/error.h"

G_BEGIN_DECLS

/**
 * EbbQuantization:
 * @EBB_QUANTIZATION_NONE: not quantised: f32 or bf16
 * @EBB_QUANTIZATION_INT8: 8 bits: a signed byte times the largest magnitude of its row / 127, as in bitsandbytes'
 *   LLM.int8 (Dettmers et al., arXiv 2208.07339)
 * @EBB_QUANTIZATION_NF4: 4 bits: NormalFloat in blocks of 64 with double quantisation (Dettmers et al., QLoRA, arXiv
 *   2305.14314), as bitsandbytes has it
 *
 * How the elements of a frozen weight are held.
 */
typedef enum
{
  EBB_QUANTIZATION_NONE,
  EBB_QUANTIZATION_INT8,
  EBB_QUANTIZATION_NF4
} EbbQuantization;

EBB_AVAILABLE_IN_ALL
const char *ebb_quantization_get_name (EbbQuantization quantization);

EBB_AVAILABLE_IN_ALL
gboolean ebb_quantization_from_name (const char *name,
                                     EbbQuantization *quantization,
                                     GError **error);

G_END_DECLS
