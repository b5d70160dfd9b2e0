/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "tensor/error.h"

/* The tables of a byte-pair encoding, out of vocab.json and merges.txt. */

G_BEGIN_DECLS

typedef struct
{
  guint8 *bytes;
  guint32 length;
} EbbBpeToken;

typedef struct
{
  guint64 key; /* left token << 32 | right token; G_MAXUINT64: empty */
  gint32 rank;
  gint32 merged;
} EbbBpeMerge;

typedef struct
{
  EbbBpeToken *tokens; /* by id */
  guint n_tokens;
  gint32 byte_tokens[256]; /* -1: the vocabulary lacks this byte */
  EbbBpeMerge *merges;     /* open addressing */
  guint64 merges_mask;
  GHashTable *by_spelling; /* as written in vocab.json, to id + 1 */
} EbbBpeTables;

gboolean ebb_bpe_tables_load (EbbBpeTables *self,
                              const char *vocab_path,
                              const char *merges_path,
                              GError **error);
void ebb_bpe_tables_clear (EbbBpeTables *self);

/* The end of the piece that begins at @position, by GPT-2's expression. */
gsize ebb_bpe_find_piece_end (const guint8 *text,
                              gsize length,
                              gsize position);

/* Encodes one piece to @tokens, which has room for @length; the number of tokens, or -1 if a byte has no token. */
gssize ebb_bpe_encode_piece (const EbbBpeTables *tables,
                             const guint8 *piece,
                             gsize length,
                             gint64 *tokens);

G_END_DECLS
