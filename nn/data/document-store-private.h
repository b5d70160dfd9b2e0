/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "nn/data/tokenizer.h"

/* Documents as tokens in the narrowest storage that holds them, with a bit for each token that says whether it is to be
 * learned. The text itself is not kept. */

G_BEGIN_DECLS

typedef struct
{
  void *tokens;    /* of 1, 2 or 4 bytes */
  guint8 *learned; /* a bit a token */
  guint width;
  gint64 vocab_size;
  gint64 n_tokens, room;
  GArray *ends;      /* of gint64: where the documents end */
  gint64 n_left_out; /* conversations that aren't stored, since none of their answers is learned */
} EbbDocumentStore;

/* Counted by references; they are given back by ebb_document_store_release (). */
EbbDocumentStore *ebb_document_store_new (EbbTokenizer *tokenizer);
void ebb_document_store_release (EbbDocumentStore *self);
/* Appends tokens to the document that ebb_document_store_end () ends. */
gboolean ebb_document_store_append (EbbDocumentStore *self,
                                    const gint64 *tokens,
                                    gint64 n,
                                    gboolean learned,
                                    GError **error);
void ebb_document_store_end (EbbDocumentStore *self);
gint64 ebb_document_store_count (const EbbDocumentStore *self);
void ebb_document_store_find (const EbbDocumentStore *self,
                              gint64 document,
                              gint64 *begin,
                              gint64 *end);
void ebb_document_store_read (const EbbDocumentStore *self,
                              gint64 begin,
                              gint64 n,
                              gint64 *tokens);
gboolean ebb_document_store_is_learned (const EbbDocumentStore *self,
                                        gint64 token);

G_END_DECLS
