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
 * EbbTokenizerClass:
 * @encode: makes an i64 tensor [n] of tokens out of any bytes
 * @decode: makes bytes out of an i64 tensor [n] of tokens, all of which are in [0, vocabulary size)
 * @get_vocab_size: how many tokens there are
 * @find_cut: a place in @text, at least at @from, where it may be cut so that the parts encode to the same tokens as
 * the whole; -1 if there is none. The default knows of none.
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

  /*< private >*/
  gpointer padding[4];
};

EBB_AVAILABLE_IN_ALL
EbbTensor *ebb_tokenizer_encode (EbbTokenizer *self,
                                 GBytes *text,
                                 GError **error);

EBB_AVAILABLE_IN_ALL
gint64 *ebb_tokenizer_encode_text (EbbTokenizer *self,
                                   const char *text,
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
guint ebb_tokenizer_get_vocab_size (EbbTokenizer *self);

EBB_AVAILABLE_IN_ALL
gssize ebb_tokenizer_find_cut (EbbTokenizer *self,
                               GBytes *text,
                               gsize from);

G_END_DECLS
