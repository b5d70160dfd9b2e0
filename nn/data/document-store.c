/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Documents as tokens in narrow storage. */
#include "nn/data/document-store-private.h"

#include "nn/data/dataset-private.h"
#include "tensor/error-private.h"

EbbDocumentStore *
ebb_document_store_new (EbbTokenizer *tokenizer)
{
  EbbDocumentStore *self = g_atomic_rc_box_new0 (EbbDocumentStore);

  self->vocab_size = ebb_tokenizer_get_vocab_size (tokenizer);
  self->width = self->vocab_size <= 1 << 8 ? 1 : self->vocab_size <= 1 << 16 ? 2
                                                                             : 4;
  self->ends = g_array_new (FALSE, FALSE, sizeof (gint64));
  return self;
}

/* Makes room for @n more tokens. */
static gboolean
reserve (EbbDocumentStore *self,
         gint64 n,
         GError **error)
{
  gint64 wanted = self->n_tokens + n;
  void *tokens;
  guint8 *learned;

  if (wanted <= self->room)
    return TRUE;
  wanted = MAX (wanted, self->room + self->room / 2);
  wanted = (wanted + 63) / 64 * 64;
  tokens = g_try_realloc_n (self->tokens, (gsize) wanted, self->width);
  if (tokens != NULL)
    self->tokens = tokens;
  learned = tokens != NULL ? g_try_realloc (self->learned, (gsize) wanted / 8) : NULL;
  if (learned == NULL)
    return ebb_fail (error, EBB_ERROR_NO_MEMORY, "no memory for %" G_GINT64_FORMAT " tokens of %u bytes each",
                     wanted, self->width);
  self->learned = learned;
  self->room = wanted;
  return TRUE;
}

gboolean
ebb_document_store_append (EbbDocumentStore *self,
                           const gint64 *tokens,
                           gint64 n,
                           gboolean learned,
                           GError **error)
{
  if (!reserve (self, n, error)
      || !ebb_tokens_store (self->tokens, self->width, self->n_tokens, tokens, n, self->vocab_size, error))
    return FALSE;
  for (gint64 place = self->n_tokens; place < self->n_tokens + n; place++)
    {
      const guint8 bit = (guint8) (1u << (place % 8));

      if (learned)
        self->learned[place / 8] |= bit;
      else
        self->learned[place / 8] &= (guint8) ~bit;
    }
  self->n_tokens += n;
  return TRUE;
}

void
ebb_document_store_end (EbbDocumentStore *self)
{
  g_array_append_val (self->ends, self->n_tokens);
}

gint64
ebb_document_store_count (const EbbDocumentStore *self)
{
  return self->ends->len;
}

void
ebb_document_store_find (const EbbDocumentStore *self,
                         gint64 document,
                         gint64 *begin,
                         gint64 *end)
{
  *begin = document > 0 ? g_array_index (self->ends, gint64, document - 1) : 0;
  *end = g_array_index (self->ends, gint64, document);
}

void
ebb_document_store_read (const EbbDocumentStore *self,
                         gint64 begin,
                         gint64 n,
                         gint64 *tokens)
{
  ebb_tokens_load (self->tokens, self->width, begin, n, tokens);
}

gboolean
ebb_document_store_is_learned (const EbbDocumentStore *self,
                               gint64 token)
{
  return (self->learned[token / 8] >> (token % 8) & 1) != 0;
}

static void
clear (gpointer data)
{
  EbbDocumentStore *self = data;

  g_free (self->tokens);
  g_free (self->learned);
  g_array_unref (self->ends);
}

void
ebb_document_store_release (EbbDocumentStore *self)
{
  g_atomic_rc_box_release_full (self, clear);
}
