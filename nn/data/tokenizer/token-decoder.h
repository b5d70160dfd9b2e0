/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#if !defined(EBB_INSIDE) && !defined(EBB_COMPILATION)
#error "Only <ebb/ebb.h> can be included directly."
#endif

#include "nn/data/tokenizer.h"

G_BEGIN_DECLS

#define EBB_TYPE_TOKEN_DECODER (ebb_token_decoder_get_type ())

/**
 * EbbTokenDecoder:
 *
 * Turns tokens into text as they come, one by one.
 */
EBB_AVAILABLE_IN_ALL
G_DECLARE_FINAL_TYPE (EbbTokenDecoder, ebb_token_decoder, EBB, TOKEN_DECODER, GObject)

EBB_AVAILABLE_IN_ALL
EbbTokenDecoder *ebb_token_decoder_new (EbbTokenizer *tokenizer,
                                        gboolean skip_special_tokens);

EBB_AVAILABLE_IN_ALL
char *ebb_token_decoder_push (EbbTokenDecoder *self,
                              gint64 token,
                              GError **error);

EBB_AVAILABLE_IN_ALL
char *ebb_token_decoder_finish (EbbTokenDecoder *self,
                                GError **error);

G_END_DECLS
