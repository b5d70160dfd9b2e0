/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Runs the parts of a tokenizer over a text. */
#include "nn/data/tokenizer/pipeline-private.h"

#include "nn/data/tokenizer/characters-private.h"
#include "nn/data/utf8-private.h"
#include "tensor/error-private.h"
#include "tensor/util/atomic-file-private.h"

#include <string.h>

/* Buffers of a longer text are freed behind it: they are several times as large. */
#define MAX_KEPT_TEXT ((gsize) 1 << 20)

/* The scratch memory of an encoding. The next one uses it again, with the words that its cache knows. */
typedef struct
{
  EbbPatternSpace *patterns;
  EbbTokenModelSpace *model;
  GString *normalized[3];
  GString **cut; /* for each pre-tokenizer */
  guint n_cut;
  GString *valid; /* the text as UTF-8 */
  GString *word;
} Space;

typedef struct
{
  EbbTokenizerPipeline *pipeline;
  Space *space;
  const char *text;
  gsize length;
  gboolean has_byte_characters; /* EBB_BYTE_CHARACTER stands for bytes that are not UTF-8 */
  gboolean is_first;            /* the part begins where the text does */
  gsize room;                   /* bytes that the normalizers may still make */
  EbbTokenBuffer *tokens;
} Encoding;

static Space *
take_space (EbbTokenizerPipeline *pipeline)
{
  Space *self = g_atomic_pointer_exchange (&pipeline->spare_space, NULL);

  if (self != NULL)
    {
      ebb_pattern_space_begin_text (self->patterns);
      return self;
    }
  self = g_new0 (Space, 1);
  self->patterns = ebb_pattern_space_new ();
  self->model = ebb_token_model_space_new ();
  for (guint i = 0; i < G_N_ELEMENTS (self->normalized); i++)
    self->normalized[i] = g_string_new (NULL);
  self->n_cut = pipeline->pre_tokenizers.n_steps;
  self->cut = g_new (GString *, self->n_cut + 1);
  for (guint i = 0; i < self->n_cut; i++)
    self->cut[i] = g_string_new (NULL);
  self->valid = g_string_new (NULL);
  self->word = g_string_new (NULL);
  return self;
}

static void
give_space (EbbTokenizerPipeline *pipeline,
            Space *self,
            gsize length)
{
  if (length > MAX_KEPT_TEXT || !g_atomic_pointer_compare_and_exchange (&pipeline->spare_space, NULL, self))
    ebb_tokenizer_pipeline_space_free (self);
}

void
ebb_tokenizer_pipeline_space_free (gpointer space)
{
  Space *self = space;

  if (self == NULL)
    return;
  ebb_pattern_space_free (self->patterns);
  ebb_token_model_space_free (self->model);
  for (guint i = 0; i < G_N_ELEMENTS (self->normalized); i++)
    g_string_free (self->normalized[i], TRUE);
  for (guint i = 0; i < self->n_cut; i++)
    g_string_free (self->cut[i], TRUE);
  g_free (self->cut);
  g_string_free (self->valid, TRUE);
  g_string_free (self->word, TRUE);
  g_free (self);
}

/* -- bytes that are not UTF-8 -------------------------------------------------------------------------------------- */

static void
append_byte_characters (GString *result,
                        const guint8 *bytes,
                        gsize n)
{
  for (gsize i = 0; i < n; i++)
    g_string_append_unichar (result, EBB_BYTE_CHARACTER + bytes[i]);
}

/* Spells the bytes of @text that are no character as EBB_BYTE_CHARACTER. */
static void
spell_bytes (GString *result,
             const guint8 *text,
             gsize length)
{
  gsize done = 0, next;

  g_string_truncate (result, 0);
  for (gsize i = 0; i < length; i = next)
    {
      int n = ebb_utf8_measure (text + i, length - i);
      gboolean is_byte_character = n == 4 && text[i] == 0xf4 && text[i + 1] == 0x8f && text[i + 2] >= 0xbc;

      next = i + (n > 0 ? (gsize) n : 1);
      if (n > 0 && !is_byte_character)
        continue;
      g_string_append_len (result, (const char *) text + done, (gssize) (i - done));
      append_byte_characters (result, text + i, next - i);
      done = next;
    }
  g_string_append_len (result, (const char *) text + done, (gssize) (length - done));
}

/* The bytes of a word in which EBB_BYTE_CHARACTER stands for some. */
static void
unspell_bytes (GString *result,
               const char *word,
               gsize length)
{
  const guint8 *bytes = (const guint8 *) word;

  g_string_truncate (result, 0);
  for (gsize i = 0; i < length; i++)
    if (bytes[i] == 0xf4 && bytes[i + 1] == 0x8f && bytes[i + 2] >= 0xbc)
      {
        g_string_append_c (result, (char) ((bytes[i + 2] - 0xbc) << 6 | (bytes[i + 3] - 0x80)));
        i += 3;
      }
    else
      g_string_append_c (result, word[i]);
}

/* -- encoding ------------------------------------------------------------------------------------------------------ */

static gboolean
fail_word (Encoding *self,
           const char *place,
           GError **error)
{
  g_autofree char *name = ebb_escape_text (self->pipeline->name);
  g_autofree char *where = NULL;

  if (place >= self->text && place < self->text + self->length)
    where = g_strdup_printf (", which the text has at %" G_GSIZE_FORMAT, (gsize) (place - self->text));
  if (self->pipeline->model.is_byte_level)
    ebb_error_set (error, EBB_ERROR_FORMAT, "%s has no token for byte 0x%02x%s", name, (guint8) *place,
                   where != NULL ? where : "");
  else
    ebb_error_set (error, EBB_ERROR_FORMAT, "%s has no token for U+%04X and none for the unknown%s", name,
                   g_utf8_get_char (place), where != NULL ? where : "");
  return FALSE;
}

static gboolean
encode_word (gpointer data,
             const char *word,
             gsize length,
             GError **error)
{
  Encoding *self = data;
  const char *problem;

  if (self->has_byte_characters)
    {
      unspell_bytes (self->space->word, word, length);
      word = self->space->word->str;
      length = self->space->word->len;
    }
  problem = ebb_token_model_encode (&self->pipeline->model, self->space->model, word, length, self->tokens);
  return problem == NULL || fail_word (self, problem, error);
}

static gboolean
encode_normalized_part (gpointer data,
                        const EbbAddedToken *token,
                        const char *text,
                        gsize length,
                        GError **error)
{
  Encoding *self = data;
  gboolean is_first = self->is_first;

  self->is_first = FALSE;
  if (token != NULL)
    {
      ebb_token_buffer_append (self->tokens, token->id);
      return TRUE;
    }
  return ebb_pre_tokenizer_list_run (&self->pipeline->pre_tokenizers, self->space->patterns, self->space->cut, text,
                                     length, is_first, encode_word, self, error);
}

static gboolean
encode_part (gpointer data,
             const EbbAddedToken *token,
             const char *text,
             gsize length,
             GError **error)
{
  Encoding *self = data;
  const EbbTokenizerPipeline *pipeline = self->pipeline;
  gboolean has_moved = FALSE;

  if (token != NULL)
    {
      self->is_first = FALSE;
      ebb_token_buffer_append (self->tokens, token->id);
      return TRUE;
    }
  if (!ebb_normalizer_list_run (&pipeline->normalizers, self->space->patterns, self->space->normalized, &text, &length,
                                &self->room, &has_moved, error))
    {
      g_autofree char *name = ebb_escape_text (pipeline->name);

      g_prefix_error (error, "%s: ", name);
      return FALSE;
    }
  self->is_first = self->is_first && !has_moved;
  if (!ebb_added_token_tree_foreach (&pipeline->normalized_tree, text, length, encode_normalized_part, self, error))
    return FALSE;
  self->is_first = FALSE;
  return TRUE;
}

static gboolean
encode_in_space (Encoding *self,
                 GError **error)
{
  const char *text = self->text;
  gsize length = self->length, invalid = ebb_utf8_find_invalid ((const guint8 *) text, length);

  if (invalid < length)
    {
      if (!self->pipeline->model.is_byte_level)
        return ebb_fail (error, EBB_ERROR_FORMAT,
                         "the text is not UTF-8 at byte %" G_GSIZE_FORMAT ": 0x%02x", invalid, (guint8) text[invalid]);
      self->has_byte_characters = TRUE;
      spell_bytes (self->space->valid, (const guint8 *) text, length);
      text = self->space->valid->str;
      length = self->space->valid->len;
    }
  return ebb_added_token_tree_foreach (&self->pipeline->raw_tree, text, length, encode_part, self, error);
}

gboolean
ebb_tokenizer_pipeline_encode (EbbTokenizerPipeline *self,
                               const char *text,
                               gsize length,
                               EbbTokenBuffer *tokens,
                               GError **error)
{
  Encoding encoding = { self, NULL, text, length, FALSE, TRUE, ebb_normalizer_get_room (length), tokens };
  gboolean ok;

  if (length >= G_MAXUINT32)
    return ebb_fail (error, EBB_ERROR_NO_MEMORY,
                     "a text of %" G_GSIZE_FORMAT " bytes is too long to be encoded at once", length);
  encoding.space = take_space (self);
  ebb_token_buffer_grow (tokens, length / 3);
  ok = encode_in_space (&encoding, error);
  give_space (self, encoding.space, length);
  return ok;
}

/* -- cutting long texts -------------------------------------------------------------------------------------------- */

/* Whether an added token takes the blanks beside it, so that a cut there could part them. */
static gboolean
is_beside_added_token (const EbbTokenizerPipeline *self,
                       char before,
                       char after)
{
  for (guint i = 0; i < self->n_added; i++)
    {
      const EbbAddedToken *token = &self->added[i];
      const char *text = token->decoded;

      if (*text != '\0'
          && ((token->takes_left && *text == after) || (token->takes_right && text[strlen (text) - 1] == before)))
        return TRUE;
    }
  return FALSE;
}

gssize
ebb_tokenizer_pipeline_find_cut (const EbbTokenizerPipeline *self,
                                 const char *text,
                                 gsize length,
                                 gsize from)
{
  if (self->cut == EBB_TEXT_CUT_NONE)
    return -1;
  for (gsize i = MAX (from, 2); i + 1 < length; i++)
    {
      gboolean is_cut = self->cut == EBB_TEXT_CUT_BEHIND_NEWLINE
                            ? text[i - 1] == '\n' && g_ascii_isgraph (text[i - 2]) && g_ascii_isgraph (text[i])
                                  && text[i] != '/'
                            : text[i] == ' ' && g_ascii_isgraph (text[i - 1]) && g_ascii_isgraph (text[i + 1]);
      char before = self->cut == EBB_TEXT_CUT_BEHIND_NEWLINE ? text[i - 2] : text[i - 1];
      char after = self->cut == EBB_TEXT_CUT_BEHIND_NEWLINE ? text[i] : text[i + 1];

      if (is_cut && !is_beside_added_token (self, before, after))
        return (gssize) i;
    }
  return -1;
}

/* -- single tokens ------------------------------------------------------------------------------------------------- */

static const EbbAddedToken *
get_added (const EbbTokenizerPipeline *self,
           gint64 token)
{
  return self->is_added[token] ? g_hash_table_lookup (self->added_by_id, GINT_TO_POINTER ((int) token)) : NULL;
}

const char *
ebb_tokenizer_pipeline_get_decoded (const EbbTokenizerPipeline *self,
                                    gint64 token)
{
  const EbbAddedToken *added = get_added (self, token);

  return added != NULL ? added->decoded : ebb_vocabulary_get (&self->model.vocabulary, token);
}

const char *
ebb_tokenizer_pipeline_get_token (const EbbTokenizerPipeline *self,
                                  gint64 token)
{
  const EbbAddedToken *added = get_added (self, token);

  return added != NULL ? added->content : ebb_vocabulary_get (&self->model.vocabulary, token);
}

gint64
ebb_tokenizer_pipeline_find_token (const EbbTokenizerPipeline *self,
                                   const char *text)
{
  const EbbAddedToken *added = g_hash_table_lookup (self->added_by_content, text);

  return added != NULL ? added->id : ebb_vocabulary_find (&self->model.vocabulary, text, strlen (text));
}
