/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#if !defined(EBB_INSIDE) && !defined(EBB_COMPILATION)
#error "Only <ebb/ebb.h> can be included directly."
#endif

#include "nn/data/tokenizer.h"

G_BEGIN_DECLS

#define EBB_TYPE_BPE_TOKENIZER (ebb_bpe_tokenizer_get_type ())

/**
 * EbbBpeTokenizer:
 *
 * GPT-2's byte-level byte-pair encoding.
 */
EBB_AVAILABLE_IN_ALL
G_DECLARE_FINAL_TYPE (EbbBpeTokenizer, ebb_bpe_tokenizer, EBB, BPE_TOKENIZER, EbbTokenizer)

EBB_AVAILABLE_IN_ALL
EbbTokenizer *ebb_bpe_tokenizer_new (const char *vocab_path,
                                     const char *merges_path,
                                     GError **error);

EBB_AVAILABLE_IN_ALL
gint64 ebb_bpe_tokenizer_find_token (EbbBpeTokenizer *self,
                                     const char *text);

G_END_DECLS
