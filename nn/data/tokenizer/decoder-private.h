/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "nn/data/tokenizer/pattern-private.h"

/* Decoders: they turn the spellings of tokens back into text, one token after the other. */

G_BEGIN_DECLS

typedef struct _EbbDecoderStep EbbDecoderStep;

typedef struct
{
  EbbDecoderStep *steps;
  guint n_steps;
  gboolean is_byte_level; /* the result is bytes that need not be UTF-8 */
} EbbDecoderList;

gboolean ebb_decoder_list_read (EbbDecoderList *self,
                                const EbbJson *json,
                                GError **error);
void ebb_decoder_list_make_byte_level (EbbDecoderList *self);
/* Whether blanks before signs are taken away, as in English. */
gboolean ebb_decoder_list_cleans_up (const EbbDecoderList *self);
void ebb_decoder_list_clear (EbbDecoderList *self);

/* One text on its way through the steps. */
typedef struct _EbbDecoding EbbDecoding;

/* @is_eager: bytes that stand for parts of a character become text when the character is complete, before the run of
 * such bytes is; a run that proves not to be UTF-8 then keeps the characters before it. */
EbbDecoding *ebb_decoding_new (const EbbDecoderList *list,
                               gboolean is_eager);
void ebb_decoding_free (EbbDecoding *self);
/* Appends what becomes certain to @text. */
gboolean ebb_decoding_push (EbbDecoding *self,
                            const char *token,
                            GString *text,
                            GError **error);
/* Appends the rest; the next token begins a new text. */
gboolean ebb_decoding_finish (EbbDecoding *self,
                              GString *text,
                              GError **error);

G_END_DECLS
