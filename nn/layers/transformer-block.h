/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#if !defined(EBB_INSIDE) && !defined(EBB_COMPILATION)
#error "Only <ebb/ebb.h> can be included directly."
#endif

#include "nn/module.h"

G_BEGIN_DECLS

#define EBB_TYPE_TRANSFORMER_BLOCK (ebb_transformer_block_get_type ())

EBB_AVAILABLE_IN_ALL
G_DECLARE_FINAL_TYPE (EbbTransformerBlock, ebb_transformer_block, EBB, TRANSFORMER_BLOCK, EbbModule)

EBB_AVAILABLE_IN_ALL
EbbModule *ebb_transformer_block_new (int width,
                                      int heads,
                                      double dropout,
                                      gboolean causal,
                                      gboolean pre_norm,
                                      GError **error);

G_END_DECLS
