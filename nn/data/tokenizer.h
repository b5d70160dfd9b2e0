/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#if !defined(EBB_INSIDE) && !defined(EBB_COMPILATION)
#error "Only <ebb/ebb.h> can be included directly."
#endif

#include "tensor/tensor.h"

G_BEGIN_DECLS

#define EBB_TYPE_TOKENIZER (ebb_tokenizer_get_type ())

/**
 * EbbTokenizer:
 *
 * Turns text into tokens, the integers that a language model reads and writes, and back.
 */
EBB_AVAILABLE_IN_ALL
G_DECLARE_DERIVABLE_TYPE (EbbTokenizer, ebb_tokenizer, EBB, TOKENIZER, GObject)

/**
 * EbbSpecialToken:
 * @EBB_SPECIAL_TOKEN_BOS: begins a text
 * @EBB_SPECIAL_TOKEN_EOS: ends a text
 * @EBB_SPECIAL_TOKEN_PAD: fills the short rows of a batch
 * @EBB_SPECIAL_TOKEN_UNK: stands for text that the vocabulary lacks
 * @EBB_SPECIAL_TOKEN_SEP: ends each sentence, in BERT
 * @EBB_SPECIAL_TOKEN_CLS: begins a text, in BERT
 * @EBB_SPECIAL_TOKEN_MASK: masks a token, in BERT
 *
 * The tokens that a tokenizer knows by their task.
 */
typedef enum
{
  EBB_SPECIAL_TOKEN_BOS,
  EBB_SPECIAL_TOKEN_EOS,
  EBB_SPECIAL_TOKEN_PAD,
  EBB_SPECIAL_TOKEN_UNK,
  EBB_SPECIAL_TOKEN_SEP,
  EBB_SPECIAL_TOKEN_CLS,
  EBB_SPECIAL_TOKEN_MASK
} EbbSpecialToken;

/**
 * EbbTokenizerClass:
 * @encode: makes an i64 tensor [n] of tokens out of any bytes, without the special tokens around a text
 * @decode: makes bytes out of an i64 tensor [n] of tokens, all of which are in [0, vocabulary size)
 * @get_vocab_size: how many tokens there are
 * @find_cut: a place in @text, at least at @from, where it may be cut so that the parts encode to the same tokens as
 * the whole; -1 if there is none. The default knows of none.
 * @add_special_tokens: an i64 tensor [m] of @tokens and the special tokens around a text. The default adds none.
 * @find_token: the number of a token as the vocabulary spells it; -1 if there is none. The default knows of none.
 * @get_token: how the vocabulary spells a token in [0, vocabulary size); %NULL if no token has that number. The default
 * knows of none.
 * @is_special: whether a token in [0, vocabulary size) is special: it stands for no text. By default none is.
 * @get_special_token: the token with that task; -1 if there is none. The default knows of none.
 * @get_chat_template: the template that turns messages into text; %NULL if there is none, as by default
 *
 * The class of tokenizers.
 */
struct _EbbTokenizerClass
{
  GObjectClass parent_class;

  EbbTensor *(*encode) (EbbTokenizer *self,
                        GBytes *text,
                        GError **error);
  GBytes *(*decode) (EbbTokenizer *self,
                     EbbTensor *tokens,
                     GError **error);
  guint (*get_vocab_size) (EbbTokenizer *self);
  gssize (*find_cut) (EbbTokenizer *self,
                      GBytes *text,
                      gsize from);
  EbbTensor *(*add_special_tokens) (EbbTokenizer *self,
                                    EbbTensor *tokens,
                                    GError **error);
  gint64 (*find_token) (EbbTokenizer *self,
                        const char *text);
  char *(*get_token) (EbbTokenizer *self,
                      gint64 token);
  gboolean (*is_special) (EbbTokenizer *self,
                          gint64 token);
  gint64 (*get_special_token) (EbbTokenizer *self,
                               EbbSpecialToken which);
  const char *(*get_chat_template) (EbbTokenizer *self);

  /*< private >*/
  gpointer padding[4];
};

EBB_AVAILABLE_IN_ALL
EbbTokenizer *ebb_tokenizer_open (const char *folder,
                                  GError **error);

EBB_AVAILABLE_IN_ALL
EbbTensor *ebb_tokenizer_encode (EbbTokenizer *self,
                                 GBytes *text,
                                 GError **error);

EBB_AVAILABLE_IN_ALL
EbbTensor *ebb_tokenizer_encode_full (EbbTokenizer *self,
                                      GBytes *text,
                                      gboolean special_tokens,
                                      GError **error);

EBB_AVAILABLE_IN_ALL
gint64 *ebb_tokenizer_encode_text (EbbTokenizer *self,
                                   const char *text,
                                   gsize *n_tokens,
                                   GError **error);

EBB_AVAILABLE_IN_ALL
gint64 *ebb_tokenizer_encode_text_full (EbbTokenizer *self,
                                        const char *text,
                                        gboolean special_tokens,
                                        gsize *n_tokens,
                                        GError **error);

EBB_AVAILABLE_IN_ALL
GBytes *ebb_tokenizer_decode (EbbTokenizer *self,
                              EbbTensor *tokens,
                              GError **error);

EBB_AVAILABLE_IN_ALL
char *ebb_tokenizer_decode_text (EbbTokenizer *self,
                                 const gint64 *tokens,
                                 gsize n_tokens,
                                 GError **error);

EBB_AVAILABLE_IN_ALL
char *ebb_tokenizer_decode_text_full (EbbTokenizer *self,
                                      const gint64 *tokens,
                                      gsize n_tokens,
                                      gboolean skip_special_tokens,
                                      GError **error);

EBB_AVAILABLE_IN_ALL
guint ebb_tokenizer_get_vocab_size (EbbTokenizer *self);

EBB_AVAILABLE_IN_ALL
gint64 ebb_tokenizer_find_token (EbbTokenizer *self,
                                 const char *text);

EBB_AVAILABLE_IN_ALL
char *ebb_tokenizer_get_token (EbbTokenizer *self,
                               gint64 token);

EBB_AVAILABLE_IN_ALL
gboolean ebb_tokenizer_is_special (EbbTokenizer *self,
                                   gint64 token);

EBB_AVAILABLE_IN_ALL
gint64 ebb_tokenizer_get_special_token (EbbTokenizer *self,
                                        EbbSpecialToken which);

EBB_AVAILABLE_IN_ALL
const char *ebb_tokenizer_get_chat_template (EbbTokenizer *self);

EBB_AVAILABLE_IN_ALL
gssize ebb_tokenizer_find_cut (EbbTokenizer *self,
                               GBytes *text,
                               gsize from);

G_END_DECLS
