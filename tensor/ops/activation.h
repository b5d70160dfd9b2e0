/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#if !defined(EBB_INSIDE) && !defined(EBB_COMPILATION)
#error "Only <ebb/ebb.h> can be included directly."
#endif

#include "tensor/tensor.h"
#include "tensor/random.h"

G_BEGIN_DECLS

/**
 * EbbGeluKind:
 * @EBB_GELU_EXACT: x * Phi (x), by the error function
 * @EBB_GELU_TANH: the tanh approximation that GPT-2 uses
 *
 * The two usual forms of GELU (Hendrycks and Gimpel, 2016).
 */
typedef enum
{
  EBB_GELU_EXACT,
  EBB_GELU_TANH
} EbbGeluKind;

/**
 * EbbActivation:
 * @EBB_ACTIVATION_GELU: GELU by the error function, x * Phi (x)
 * @EBB_ACTIVATION_GELU_TANH: the tanh approximation of GELU
 * @EBB_ACTIVATION_SILU: x / (1 + e^-x), also known as swish
 *
 * The activation of a feed-forward layer.
 */
typedef enum
{
  EBB_ACTIVATION_GELU,
  EBB_ACTIVATION_GELU_TANH,
  EBB_ACTIVATION_SILU
} EbbActivation;

EBB_AVAILABLE_IN_ALL
EbbTensor *ebb_tanh (EbbTensor *x,
                     GError **error);

EBB_AVAILABLE_IN_ALL
EbbTensor *ebb_relu (EbbTensor *x,
                     GError **error);

EBB_AVAILABLE_IN_ALL
EbbTensor *ebb_silu (EbbTensor *x,
                     GError **error);

EBB_AVAILABLE_IN_ALL
EbbTensor *ebb_sigmoid (EbbTensor *x,
                        GError **error);

EBB_AVAILABLE_IN_ALL
EbbTensor *ebb_gelu (EbbTensor *x,
                     EbbGeluKind kind,
                     GError **error);

EBB_AVAILABLE_IN_ALL
EbbTensor *ebb_bias_gelu (EbbTensor *x,
                          EbbTensor *bias,
                          EbbGeluKind kind,
                          GError **error);

EBB_AVAILABLE_IN_ALL
EbbTensor *ebb_gated_activation (EbbTensor *gate,
                                 EbbTensor *up,
                                 EbbActivation kind,
                                 GError **error);

EBB_AVAILABLE_IN_ALL
EbbTensor *ebb_softmax (EbbTensor *x,
                        int dim,
                        GError **error);

EBB_AVAILABLE_IN_ALL
EbbTensor *ebb_log_softmax (EbbTensor *x,
                            int dim,
                            GError **error);

EBB_AVAILABLE_IN_ALL
EbbTensor *ebb_dropout (EbbTensor *x,
                        double p,
                        gboolean training,
                        EbbGenerator *generator,
                        GError **error);

G_END_DECLS
