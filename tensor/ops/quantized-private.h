/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "tensor/quantization-private.h"

/* Products with quantised weights. */

G_BEGIN_DECLS

/* x W^T + bias as ebb_linear () computes it, of the weight in the dtype of the product. The weight has no gradient. */
EbbTensor *ebb_quantized_linear (EbbTensor *x,
                                 const EbbQuantizedWeight *weight,
                                 EbbTensor *bias,
                                 GError **error);
/* All of the weight, f32 or bf16 [rows, columns]. */
EbbTensor *ebb_quantized_decode (const EbbQuantizedWeight *weight,
                                 EbbDType dtype,
                                 GError **error);

G_END_DECLS
