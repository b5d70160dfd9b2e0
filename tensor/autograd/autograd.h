/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#if !defined(EBB_INSIDE) && !defined(EBB_COMPILATION)
#error "Only <ebb/ebb.h> can be included directly."
#endif

#include "tensor/tensor.h"

G_BEGIN_DECLS

EBB_AVAILABLE_IN_ALL
gboolean ebb_tensor_backward (EbbTensor *tensor,
                              GError **error);

EBB_AVAILABLE_IN_ALL
gboolean ebb_backward (EbbTensor **outputs,
                       guint n_outputs,
                       EbbTensor **grad_outputs,
                       guint n_grad_outputs,
                       EbbTensor **inputs,
                       guint n_inputs,
                       gboolean retain_graph,
                       GError **error);

EBB_AVAILABLE_IN_ALL
EbbTensor **ebb_grad (EbbTensor **outputs,
                      guint n_outputs,
                      EbbTensor **inputs,
                      guint n_inputs,
                      EbbTensor **grad_outputs,
                      guint n_grad_outputs,
                      gboolean retain_graph,
                      guint *n_grads,
                      GError **error);

EBB_AVAILABLE_IN_ALL
gboolean ebb_is_grad_enabled (void);

EBB_AVAILABLE_IN_ALL
void ebb_push_grad_enabled (gboolean enabled);

EBB_AVAILABLE_IN_ALL
void ebb_pop_grad_enabled (void);

EBB_AVAILABLE_IN_ALL
void ebb_push_autocast (gboolean enabled,
                        EbbDType dtype);

EBB_AVAILABLE_IN_ALL
void ebb_pop_autocast (void);

EBB_AVAILABLE_IN_ALL
gboolean ebb_is_autocast_enabled (void);

G_END_DECLS
