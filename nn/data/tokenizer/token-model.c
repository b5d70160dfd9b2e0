/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* The model of a tokenizer: read from JSON, and run with a cache of words. */
#include "nn/data/tokenizer/token-model-private.h"

#include "nn/data/tokenizer/characters-private.h"
#include "nn/data/tokenizer/json-parts-private.h"
#include "tensor/error-private.h"
#include "tensor/util/json-scanner-private.h"
#include "tensor/util/atomic-file-private.h"

/* -- reading ------------------------------------------------------------------------------------------------------- */

static gboolean
fail_merge (gsize number,
            const char *missing,
            GError **error)
{
  return ebb_fail (error, EBB_ERROR_FORMAT, "merge %" G_GSIZE_FORMAT ": the vocabulary has no token: %s", number,
                   ebb_in_message (ebb_json_quote (missing)));
}

/* A merge is two strings in a list, or one with a blank between. */
static gboolean
read_merge (EbbTokenModel *self,
            const EbbJson *json,
            gsize number,
            GError **error)
{
  const char *left, *right, *blank;
  gsize left_length;
  g_autofree char *missing = NULL;
  gboolean is_known;

  if (json->n_items == 2 && ebb_json_as_string (&json->items[0], &left)
      && ebb_json_as_string (&json->items[1], &right))
    left_length = strlen (left);
  else if (ebb_json_as_string (json, &left))
    {
      if (g_str_has_prefix (left, "#version"))
        return TRUE;
      blank = strchr (left, ' ');
      if (blank == NULL || blank == left || blank[1] == '\0' || strchr (blank + 1, ' ') != NULL)
        return ebb_json_part_fail (json, error, "a merge is two tokens with a blank between them");
      left_length = (gsize) (blank - left);
      right = blank + 1;
    }
  else
    return ebb_json_part_fail (json, error, "a merge is two tokens");
  missing = ebb_bpe_add_merge (self, left, left_length, right, strlen (right), (gint32) number, &is_known);
  return missing == NULL || fail_merge (number, missing, error);
}

static gboolean
read_bpe (EbbTokenModel *self,
          const EbbJson *json,
          GError **error)
{
  const EbbJson *merges = ebb_json_get (json, "merges");
  const char *suffix = NULL, *prefix = NULL;
  double dropout = 0;

  if (!ebb_json_part_get_string (json, "end_of_word_suffix", &suffix, error)
      || !ebb_json_part_get_string (json, "continuing_subword_prefix", &prefix, error)
      || !ebb_json_part_get_boolean (json, "byte_fallback", &self->byte_fallback, error)
      || !ebb_json_part_get_boolean (json, "fuse_unk", &self->fuse_unknown, error)
      || !ebb_json_part_get_boolean (json, "ignore_merges", &self->ignore_merges, error))
    return FALSE;
  if ((suffix != NULL && *suffix != '\0') || (prefix != NULL && *prefix != '\0'))
    return ebb_fail (error, EBB_ERROR_NOT_SUPPORTED, "%s is not supported in BPE",
                     suffix != NULL && *suffix != '\0' ? "end_of_word_suffix" : "continuing_subword_prefix");
  if (ebb_json_as_double (ebb_json_get (json, "dropout"), &dropout) && dropout != 0)
    return ebb_fail (error, EBB_ERROR_NOT_SUPPORTED, "a dropout of %g is not supported in BPE", dropout);
  if (merges == NULL || merges->kind != EBB_JSON_LIST || merges->n_items >= G_MAXINT32)
    return ebb_fail (error, EBB_ERROR_FORMAT, "the merges must be a list");
  if (!ebb_bpe_prepare (self, merges->n_items))
    return ebb_fail (error, EBB_ERROR_NO_MEMORY, "no memory for %" G_GSIZE_FORMAT " merges", merges->n_items);
  for (gsize i = 0; i < merges->n_items; i++)
    if (!read_merge (self, &merges->items[i], i, error))
      return FALSE;
  return TRUE;
}

static gboolean
read_word_piece (EbbTokenModel *self,
                 const EbbJson *json,
                 GError **error)
{
  const char *prefix = "##";

  self->is_word_piece = TRUE;
  self->max_characters = 100;
  if (!ebb_json_part_get_string (json, "continuing_subword_prefix", &prefix, error)
      || !ebb_json_part_get_count (json, "max_input_chars_per_word", &self->max_characters, error))
    return FALSE;
  self->prefix = g_strdup (prefix);
  self->prefix_length = strlen (prefix);
  return TRUE;
}

gboolean
ebb_token_model_read (EbbTokenModel *self,
                      const EbbJson *json,
                      gboolean is_byte_level,
                      GError **error)
{
  const char *type = ebb_json_get (json, "merges") != NULL ? "BPE" : "WordPiece", *unknown = NULL;

  if (json == NULL || json->kind != EBB_JSON_OBJECT)
    return ebb_fail (error, EBB_ERROR_FORMAT, "it must be an object");
  if (!ebb_json_part_get_string (json, "type", &type, error))
    return FALSE;
  if (strcmp (type, "BPE") != 0 && strcmp (type, "WordPiece") != 0)
    return ebb_json_part_refuse (type, "BPE and WordPiece", error);
  if (!ebb_json_part_get_token (json, "unk_token", &unknown, error)
      || !ebb_vocabulary_read (&self->vocabulary, ebb_json_get (json, "vocab"), error))
    return FALSE;
  self->is_byte_level = is_byte_level && *type == 'B';
  self->unknown = unknown != NULL ? ebb_vocabulary_find (&self->vocabulary, unknown, strlen (unknown)) : -1;
  return *type == 'B' ? read_bpe (self, json, error) : read_word_piece (self, json, error);
}

static gboolean
fail_at_line (const char *path,
              guint line,
              GError **error,
              const char *problem,
              const char *what,
              gsize length)
{
  g_autofree char *text = g_strndup (what, length);
  g_autofree char *quoted = ebb_json_quote (text);
  g_autofree char *shown = ebb_escape_text (path);

  return ebb_fail (error, EBB_ERROR_FORMAT, "%s: line %u: %s: %s", shown, line, problem, quoted);
}

static gboolean
read_line (EbbTokenModel *self,
           const char *path,
           guint number,
           const char *line,
           gsize length,
           GError **error)
{
  const char *blank = memchr (line, ' ', length), *right = blank != NULL ? blank + 1 : NULL;
  gsize right_length = blank != NULL ? length - (gsize) (right - line) : 0;
  g_autofree char *missing = NULL;
  gboolean is_known = FALSE;

  if (blank == NULL || blank == line || right_length == 0 || memchr (right, ' ', right_length) != NULL)
    return fail_at_line (path, number, error, "a merge is two tokens with a blank between them", line, length);
  missing = ebb_bpe_add_merge (self, line, (gsize) (blank - line), right, right_length, (gint32) number, &is_known);
  if (missing != NULL)
    return fail_at_line (path, number, error, "the vocabulary has no token", missing, strlen (missing));
  return !is_known || fail_at_line (path, number, error, "this merge is there twice", line, length);
}

gboolean
ebb_token_model_read_merges (EbbTokenModel *self,
                             EbbVocabulary *vocabulary,
                             const char *path,
                             const char *text,
                             gsize length,
                             GError **error)
{
  const char *end = text + length, *next;
  gsize n_lines = 1;
  guint number = 1;

  self->vocabulary = *vocabulary;
  *vocabulary = (EbbVocabulary){ 0 };
  self->is_byte_level = TRUE;
  self->unknown = -1;
  for (gsize i = 0; i < length; i++)
    n_lines += text[i] == '\n';
  if (n_lines >= G_MAXINT32 || !ebb_bpe_prepare (self, n_lines))
    return ebb_fail (error, EBB_ERROR_NO_MEMORY, "no memory for %" G_GSIZE_FORMAT " merges", n_lines);
  for (const char *p = text; p < end; p = next, number++)
    {
      const char *newline = memchr (p, '\n', (gsize) (end - p)), *stop = newline != NULL ? newline : end;

      next = newline != NULL ? newline + 1 : end;
      if (stop > p && stop[-1] == '\r')
        stop--;
      if (stop == p || (number == 1 && g_str_has_prefix (p, "#version")))
        continue;
      if (!read_line (self, path, number, p, (gsize) (stop - p), error))
        return FALSE;
    }
  return TRUE;
}

void
ebb_token_model_clear (EbbTokenModel *self)
{
  ebb_vocabulary_clear (&self->vocabulary);
  g_clear_pointer (&self->merges, g_free);
  g_clear_pointer (&self->character_tokens, g_free);
  g_clear_pointer (&self->joined, g_free);
  g_clear_pointer (&self->prefix, g_free);
}

/* -- encoding ------------------------------------------------------------------------------------------------------ */

/* Words come again and again. A word that is kept, with its tokens, takes one line of the processor's cache. */
typedef struct
{
  guint8 length; /* 0: empty */
  guint8 n_tokens;
  char word[30];
  gint32 tokens[8];
} Slot;

#define CACHE_BITS 15

struct _EbbTokenModelSpace
{
  Slot *cache;
  EbbMergeSpace merging;
  GString *scratch;
};

EbbTokenModelSpace *
ebb_token_model_space_new (void)
{
  EbbTokenModelSpace *self = g_new0 (EbbTokenModelSpace, 1);

  self->cache = g_new0 (Slot, 1 << CACHE_BITS);
  self->scratch = g_string_new (NULL);
  return self;
}

void
ebb_token_model_space_free (EbbTokenModelSpace *self)
{
  if (self == NULL)
    return;
  g_free (self->cache);
  g_free (self->merging.ids);
  g_free (self->merging.ranks);
  g_free (self->merging.previous);
  g_free (self->merging.next);
  g_free (self->merging.heap);
  g_string_free (self->scratch, TRUE);
  g_free (self);
}

/* The token of a word that is one as a whole; -1 if it is none. */
static gint32
find_whole (const EbbTokenModel *self,
            GString *scratch,
            const char *word,
            gsize length)
{
  const EbbByteAlphabet *alphabet = ebb_byte_alphabet_get ();

  if (!self->is_byte_level)
    return ebb_vocabulary_find (&self->vocabulary, word, length);
  if (length > self->vocabulary.max_length)
    return -1;
  g_string_truncate (scratch, 0);
  for (gsize i = 0; i < length; i++)
    g_string_append_len (scratch, alphabet->spelling[(guint8) word[i]], alphabet->length[(guint8) word[i]]);
  return ebb_vocabulary_find (&self->vocabulary, scratch->str, scratch->len);
}

static const char *
encode_uncached (const EbbTokenModel *self,
                 EbbTokenModelSpace *space,
                 const char *word,
                 gsize length,
                 EbbTokenBuffer *tokens)
{
  gint32 whole;

  if (self->is_word_piece)
    return ebb_word_piece_encode (self, space->scratch, word, length, tokens);
  whole = self->ignore_merges ? find_whole (self, space->scratch, word, length) : -1;
  if (whole < 0)
    return ebb_bpe_encode (self, &space->merging, word, length, tokens);
  ebb_token_buffer_append (tokens, whole);
  return NULL;
}

static const char *
encode_cached (const EbbTokenModel *self,
               EbbTokenModelSpace *space,
               const char *word,
               gsize length,
               EbbTokenBuffer *tokens)
{
  Slot *slot;
  gsize first = tokens->n;
  const char *problem;

  if (length > sizeof slot->word)
    return encode_uncached (self, space, word, length, tokens);
  slot = &space->cache[ebb_hash_bytes (word, length) >> (64 - CACHE_BITS)];
  if (slot->length == length && memcmp (slot->word, word, length) == 0)
    {
      if (tokens->n + G_N_ELEMENTS (slot->tokens) > tokens->room)
        ebb_token_buffer_grow (tokens, G_N_ELEMENTS (slot->tokens));
      for (guint i = 0; i < slot->n_tokens; i++)
        tokens->tokens[first + i] = slot->tokens[i];
      tokens->n += slot->n_tokens;
      return NULL;
    }
  problem = encode_uncached (self, space, word, length, tokens);
  if (problem != NULL || tokens->n - first > G_N_ELEMENTS (slot->tokens))
    return problem;
  slot->length = (guint8) length;
  slot->n_tokens = (guint8) (tokens->n - first);
  memcpy (slot->word, word, length);
  for (guint i = 0; i < slot->n_tokens; i++)
    slot->tokens[i] = (gint32) tokens->tokens[first + i];
  return NULL;
}

const char *
ebb_token_model_encode (const EbbTokenModel *self,
                        EbbTokenModelSpace *space,
                        const char *word,
                        gsize length,
                        EbbTokenBuffer *tokens)
{
  const char *problem = NULL;

  if (self->joined == NULL || length <= sizeof ((Slot *) NULL)->word)
    return encode_cached (self, space, word, length, tokens);
  for (gsize n; length > 0 && problem == NULL; word += n, length -= n)
    {
      n = ebb_bpe_find_word_end (self, word, length);
      problem = encode_cached (self, space, word, n, tokens);
    }
  return problem;
}
