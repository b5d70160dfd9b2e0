/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "nn/data/tokenizer.h"

/* Which tokens of a text are answers: the text is encoded as a whole, as the model will read it, and each of its tokens
 * belongs to an answer or to what stands before it. */

G_BEGIN_DECLS

/* The tokens of @length bytes, without special ones around them. */
EbbTensor *ebb_encode_part (EbbTokenizer *tokenizer,
                            const char *text,
                            gsize length,
                            GError **error);
/* Of @tokens, those of the whole @text, which are answers: bool [n]. @spans: for each answer the byte where it begins
 * and the one behind its end. A token that belongs to an answer and to the text before it counts as the answer's. */
EbbTensor *ebb_mark_answers (EbbTokenizer *tokenizer,
                             const char *text,
                             const gsize *spans,
                             gsize n_spans,
                             EbbTensor *tokens,
                             GError **error);

G_END_DECLS
