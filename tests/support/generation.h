/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <ebb/ebb.h>

/* Text of models in tests, as one tensor. */

G_BEGIN_DECLS

/* The rows of @tokens [B, T], each with @n more tokens, [B, T + n]; rows may be longer than the context. */
EbbTensor *test_generate (EbbModule *model,
                          EbbTensor *tokens,
                          int n,
                          double temperature,
                          int top_k,
                          guint64 seed,
                          GCancellable *cancellable,
                          GError **error);

/* A prompt for ebb_model_generate (): its tokens end with -1. */
EbbTensor *test_prompt (gint64 first,
                        ...);

G_END_DECLS
