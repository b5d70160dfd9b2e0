/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#if !defined(EBB_INSIDE) && !defined(EBB_COMPILATION)
#error "Only <ebb/ebb.h> can be included directly."
#endif

#include "nn/module.h"

G_BEGIN_DECLS

#define EBB_TYPE_MULTI_HEAD_ATTENTION (ebb_multi_head_attention_get_type ())

EBB_AVAILABLE_IN_ALL
G_DECLARE_FINAL_TYPE (EbbMultiHeadAttention, ebb_multi_head_attention, EBB, MULTI_HEAD_ATTENTION, EbbModule)

EBB_AVAILABLE_IN_ALL
EbbModule *ebb_multi_head_attention_new (int width,
                                         int heads,
                                         double dropout,
                                         gboolean causal,
                                         GError **error);

EBB_AVAILABLE_IN_ALL
EbbModule *ebb_multi_head_attention_new_cross (int width,
                                               int heads,
                                               int context_width,
                                               double dropout,
                                               GError **error);

G_END_DECLS
