/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#if !defined(EBB_INSIDE) && !defined(EBB_COMPILATION)
#error "Only <ebb/ebb.h> can be included directly."
#endif

#include "nn/data/tokenizer.h"

G_BEGIN_DECLS

#define EBB_TYPE_BYTE_TOKENIZER (ebb_byte_tokenizer_get_type ())

/**
 * EbbByteTokenizer:
 *
 * A token for each byte: 256 in all. Takes any text in any encoding, and any other file.
 */
EBB_AVAILABLE_IN_ALL
G_DECLARE_FINAL_TYPE (EbbByteTokenizer, ebb_byte_tokenizer, EBB, BYTE_TOKENIZER, EbbTokenizer)

EBB_AVAILABLE_IN_ALL
EbbTokenizer *ebb_byte_tokenizer_new (void);

G_END_DECLS
