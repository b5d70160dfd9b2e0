/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#if !defined(EBB_INSIDE) && !defined(EBB_COMPILATION)
#error "Only <ebb/ebb.h> can be included directly."
#endif

#include "nn/layers/linear.h"
#include "tensor/quantization.h"

G_BEGIN_DECLS

EBB_AVAILABLE_IN_ALL
gboolean ebb_quantize (EbbModule *model,
                       EbbQuantization quantization,
                       GError **error);

EBB_AVAILABLE_IN_ALL
EbbQuantization ebb_get_quantization (EbbModule *model);

EBB_AVAILABLE_IN_ALL
EbbTensor *ebb_linear_dequantize (EbbLinear *self,
                                  EbbDType dtype,
                                  GError **error);

G_END_DECLS
