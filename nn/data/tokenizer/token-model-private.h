/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "nn/data/tokenizer/vocabulary-private.h"

/* The model of a tokenizer turns one word of the pre-tokenizers into tokens: byte-pair encoding or WordPiece. */

G_BEGIN_DECLS

typedef struct
{
  gint64 *tokens;
  gsize n;
  gsize room;
} EbbTokenBuffer;

typedef struct
{
  guint64 key; /* left token << 32 | right token; G_MAXUINT64: empty */
  gint32 rank;
  gint32 merged;
} EbbTokenMerge;

typedef struct
{
  EbbVocabulary vocabulary;
  gboolean is_word_piece;
  gboolean is_byte_level; /* words are bytes, which the vocabulary spells in the byte alphabet */
  gint32 unknown;         /* -1: none */

  /* Byte-pair encoding. */
  EbbTokenMerge *merges; /* open addressing */
  guint64 merges_mask;
  gint32 byte_tokens[256];  /* of single bytes, -1: none: byte-level, or for characters that have no token */
  gint32 *character_tokens; /* of the characters below U+10000, -1: none; not byte-level */
  guint64 *joined;          /* bits of pairs of characters: whether a merge may join them; NULL: any may */
  gboolean byte_fallback;
  gboolean fuse_unknown;
  gboolean ignore_merges; /* a word that is a token is that token */

  /* WordPiece. */
  char *prefix; /* of tokens that continue a word */
  gsize prefix_length;
  gint64 max_characters; /* in a word: longer ones are unknown */
} EbbTokenModel;

/* The scratch memory of encoding, one for each thread: a cache of words, and the arrays of a merge. */
typedef struct _EbbTokenModelSpace EbbTokenModelSpace;

gboolean ebb_token_model_read (EbbTokenModel *self,
                               const EbbJson *json,
                               gboolean is_byte_level,
                               GError **error);
/* Makes byte-level BPE of a vocabulary and the text of a merges.txt. Takes @vocabulary. */
gboolean ebb_token_model_read_merges (EbbTokenModel *self,
                                      EbbVocabulary *vocabulary,
                                      const char *path,
                                      const char *text,
                                      gsize length,
                                      GError **error);
void ebb_token_model_clear (EbbTokenModel *self);

EbbTokenModelSpace *ebb_token_model_space_new (void);
void ebb_token_model_space_free (EbbTokenModelSpace *self);

/* Appends the tokens of @word. Returns NULL, or the place in @word that the vocabulary has no token for. */
const char *ebb_token_model_encode (const EbbTokenModel *self,
                                    EbbTokenModelSpace *space,
                                    const char *word,
                                    gsize length,
                                    EbbTokenBuffer *tokens);

/* -- between the files of the model -------------------------------------------------------------------------------- */

typedef struct
{
  gint32 rank;
  guint32 place;
  gint32 merged;
} EbbMergeCandidate;

/* Room for the symbols of one word. */
typedef struct
{
  gint32 *ids;       /* -1: merged away */
  gint32 *ranks;     /* short words: of the merge with the next symbol */
  guint32 *previous; /* long words: G_MAXUINT32: none */
  guint32 *next;
  EbbMergeCandidate *heap;
  gsize n_heap;
  gsize room;
} EbbMergeSpace;

/* Makes room for @n more tokens. */
static inline void
ebb_token_buffer_grow (EbbTokenBuffer *self,
                       gsize n)
{
  self->room = MAX (self->n + n, MAX (64, self->room + self->room / 2));
  self->tokens = g_renew (gint64, self->tokens, self->room);
}

static inline void
ebb_token_buffer_append (EbbTokenBuffer *self,
                         gint32 token)
{
  if (G_UNLIKELY (self->n == self->room))
    ebb_token_buffer_grow (self, 1);
  self->tokens[self->n++] = token;
}

/* Sets up the tables for merging, @vocabulary included; merges are added by ebb_bpe_add_merge (). */
gboolean ebb_bpe_prepare (EbbTokenModel *self,
                          gsize n_merges);
/* The token that is missing, newly allocated; NULL if the merge was added. A merge that is there takes the new rank and
 * sets @is_known. */
char *ebb_bpe_add_merge (EbbTokenModel *self,
                         const char *left,
                         gsize left_length,
                         const char *right,
                         gsize right_length,
                         gint32 rank,
                         gboolean *is_known);
const char *ebb_bpe_encode (const EbbTokenModel *self,
                            EbbMergeSpace *space,
                            const char *word,
                            gsize length,
                            EbbTokenBuffer *tokens);
/* The token of a character; -1 if it has none. */
gint32 ebb_bpe_find_character (const EbbTokenModel *self,
                               gunichar c,
                               const char *text,
                               gsize length);
/* Where a word that begins at @word may end so that its tokens are those that it has in the whole: at a place that no
 * merge reaches across. */
gsize ebb_bpe_find_word_end (const EbbTokenModel *self,
                             const char *word,
                             gsize length);
const char *ebb_word_piece_encode (const EbbTokenModel *self,
                                   GString *scratch,
                                   const char *word,
                                   gsize length,
                                   EbbTokenBuffer *tokens);

G_END_DECLS
