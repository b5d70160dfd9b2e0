/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* WordPiece: a word is its longest beginning that is a token, and so on with the rest, which tokens with a prefix
 * continue. A word that can't be made of tokens is unknown.
 *
 * Devlin et al., "BERT: pre-training of deep bidirectional transformers for language understanding" (2019). */
#include "nn/data/tokenizer/token-model-private.h"

const char *
ebb_word_piece_encode (const EbbTokenModel *self,
                       GString *scratch,
                       const char *word,
                       gsize length,
                       EbbTokenBuffer *tokens)
{
  const gsize n_before = tokens->n;
  gsize longest = self->vocabulary.max_length;
  gsize start = 0;
  gboolean is_known = g_utf8_strlen (word, (gssize) length) <= self->max_characters;

  while (is_known && start < length)
    {
      gsize skipped = start > 0 ? self->prefix_length : 0;
      gsize end = MIN (length, start + (longest > skipped ? longest - skipped : 0));
      gint32 id = -1;

      g_string_truncate (scratch, 0);
      if (start > 0)
        g_string_append_len (scratch, self->prefix, (gssize) self->prefix_length);
      g_string_append_len (scratch, word + start, (gssize) (end - start));
      for (; end > start; end--)
        {
          /* Only between characters. */
          if (end < length && ((guint8) word[end] & 0xc0) == 0x80)
            continue;
          id = ebb_vocabulary_find (&self->vocabulary, scratch->str, skipped + end - start);
          if (id >= 0)
            break;
        }
      if (id >= 0)
        ebb_token_buffer_append (tokens, id);
      else
        is_known = FALSE;
      start = end;
    }
  if (is_known)
    return NULL;
  tokens->n = n_before;
  if (self->unknown < 0)
    return word;
  ebb_token_buffer_append (tokens, self->unknown);
  return NULL;
}
