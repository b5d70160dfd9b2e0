/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#if !defined(EBB_INSIDE) && !defined(EBB_COMPILATION)
#error "Only <ebb/ebb.h> can be included directly."
#endif

#include "nn/module.h"
#include "tensor/ops/activation.h"

G_BEGIN_DECLS

#define EBB_TYPE_GELU_KIND (ebb_gelu_kind_get_type ())

EBB_AVAILABLE_IN_ALL
GType ebb_gelu_kind_get_type (void);

#define EBB_TYPE_ACTIVATION (ebb_activation_get_type ())

EBB_AVAILABLE_IN_ALL
GType ebb_activation_get_type (void);

#define EBB_TYPE_GELU (ebb_gelu_get_type ())

EBB_AVAILABLE_IN_ALL
G_DECLARE_FINAL_TYPE (EbbGelu, ebb_gelu, EBB, GELU, EbbModule)

EBB_AVAILABLE_IN_ALL
EbbModule *ebb_gelu_new (EbbGeluKind kind);

#define EBB_TYPE_RELU (ebb_relu_get_type ())

EBB_AVAILABLE_IN_ALL
G_DECLARE_FINAL_TYPE (EbbRelu, ebb_relu, EBB, RELU, EbbModule)

EBB_AVAILABLE_IN_ALL
EbbModule *ebb_relu_new (void);

#define EBB_TYPE_TANH (ebb_tanh_get_type ())

EBB_AVAILABLE_IN_ALL
G_DECLARE_FINAL_TYPE (EbbTanh, ebb_tanh, EBB, TANH, EbbModule)

EBB_AVAILABLE_IN_ALL
EbbModule *ebb_tanh_new (void);

#define EBB_TYPE_SILU (ebb_silu_get_type ())

EBB_AVAILABLE_IN_ALL
G_DECLARE_FINAL_TYPE (EbbSilu, ebb_silu, EBB, SILU, EbbModule)

EBB_AVAILABLE_IN_ALL
EbbModule *ebb_silu_new (void);

#define EBB_TYPE_SIGMOID (ebb_sigmoid_get_type ())

EBB_AVAILABLE_IN_ALL
G_DECLARE_FINAL_TYPE (EbbSigmoid, ebb_sigmoid, EBB, SIGMOID, EbbModule)

EBB_AVAILABLE_IN_ALL
EbbModule *ebb_sigmoid_new (void);

G_END_DECLS
