/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "nn/module-private.h"

G_BEGIN_DECLS

/* The mask of a call as attention takes it, [B, H or 1, T or 1, S]: [B, S] (padding) and [B, T, S] get the dimensions
 * that they lack. FALSE with @error for any other number of dimensions; *expanded is NULL if @mask is. */
gboolean ebb_attention_expand_mask (EbbModule *module,
                                    EbbTensor *mask,
                                    EbbTensor **expanded,
                                    GError **error);

G_END_DECLS
