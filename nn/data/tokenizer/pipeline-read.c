/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Makes a tokenizer's parts from its tokenizer.json. */
#include "nn/data/tokenizer/json-parts-private.h"
#include "nn/data/tokenizer/pipeline-private.h"
#include "nn/data/utf8-private.h"
#include "tensor/error-private.h"
#include "tensor/util/json-scanner-private.h"
#include "tensor/util/atomic-file-private.h"

#include <string.h>

EbbTokenizerPipeline *
ebb_tokenizer_pipeline_new (const char *name)
{
  EbbTokenizerPipeline *self = g_new0 (EbbTokenizerPipeline, 1);

  self->name = g_strdup (name);
  self->added_by_content = g_hash_table_new (g_str_hash, g_str_equal);
  self->added_by_id = g_hash_table_new (NULL, NULL);
  for (guint i = 0; i < EBB_N_SPECIAL_TOKENS; i++)
    self->special_tokens[i] = -1;
  return self;
}

/* -- added tokens -------------------------------------------------------------------------------------------------- */

static gboolean
fail_added (const EbbAddedToken *token,
            const char *other,
            GError **error)
{
  g_autofree char *content = ebb_json_quote (token->content);
  g_autofree char *second = other != NULL ? ebb_json_quote (other) : NULL;

  if (other != NULL)
    ebb_error_set (error, EBB_ERROR_FORMAT, "added_tokens: %s has the id %d, which %s has too", content, token->id,
                   second);
  else
    ebb_error_set (error, EBB_ERROR_FORMAT, "added_tokens: %s is there twice, or has another id in the vocabulary",
                   content);
  return FALSE;
}

/* The id must be free, or be that of the same token in the vocabulary. */
static gboolean
check_added (EbbTokenizerPipeline *self,
             const EbbAddedToken *token,
             GError **error)
{
  const EbbAddedToken *other = g_hash_table_lookup (self->added_by_id, GINT_TO_POINTER (token->id));
  const char *spelling = ebb_vocabulary_get (&self->model.vocabulary, token->id);
  gint32 id = ebb_vocabulary_find (&self->model.vocabulary, token->content, strlen (token->content));

  if (other != NULL)
    return fail_added (token, other->content, error);
  if (spelling != NULL && strcmp (spelling, token->content) != 0)
    return fail_added (token, spelling, error);
  if ((id >= 0 && id != token->id) || g_hash_table_contains (self->added_by_content, token->content))
    return fail_added (token, NULL, error);
  return TRUE;
}

/* Sets the normalized spelling of an added token. */
static gboolean
normalize_content (const EbbTokenizerPipeline *self,
                   EbbAddedToken *token,
                   GError **error)
{
  EbbPatternSpace *space = ebb_pattern_space_new ();
  GString *buffers[3] = { g_string_new (NULL), g_string_new (NULL), g_string_new (NULL) };
  g_autoptr (GString) content = g_string_new (NULL);
  const char *text;
  gsize length, room;
  gboolean has_moved, ok;

  ebb_utf8_append_unspelled (content, token->content, strlen (token->content));
  text = content->str;
  length = content->len;
  room = ebb_normalizer_get_room (length);
  ok = ebb_normalizer_list_run (&self->normalizers, space, buffers, &text, &length, &room, &has_moved, error);
  if (ok)
    token->decoded = ebb_utf8_spell_nul (text, length, NULL);
  for (guint i = 0; i < G_N_ELEMENTS (buffers); i++)
    g_string_free (buffers[i], TRUE);
  ebb_pattern_space_free (space);
  return ok;
}

static gboolean
check_length (const char *text,
              GError **error)
{
  return strlen (text) <= EBB_MAX_ADDED_TOKEN
         || ebb_fail (error, EBB_ERROR_FORMAT,
                      "added_tokens: a token of %" G_GSIZE_FORMAT " bytes: at most %" G_GSIZE_FORMAT " are allowed",
                      strlen (text), EBB_MAX_ADDED_TOKEN);
}

static gboolean
read_added_token (EbbTokenizerPipeline *self,
                  const EbbJson *json,
                  gint64 max_id,
                  GError **error)
{
  EbbAddedToken *token = &self->added[self->n_added];
  const char *content = NULL;
  gint64 id = -1;

  *token = (EbbAddedToken){ 0 }; /* one without a content may have been read into it */
  if (!ebb_json_part_get_token (json, "content", &content, error)
      || !ebb_json_part_get_count (json, "id", &id, error)
      || !ebb_json_part_get_boolean (json, "special", &token->is_special, error)
      || !ebb_json_part_get_boolean (json, "normalized", &token->is_normalized, error)
      || !ebb_json_part_get_boolean (json, "lstrip", &token->takes_left, error)
      || !ebb_json_part_get_boolean (json, "rstrip", &token->takes_right, error)
      || !ebb_json_part_get_boolean (json, "single_word", &token->is_single_word, error))
    return FALSE;
  if (content == NULL || id < 0 || id >= max_id)
    return ebb_json_part_fail (json, error,
                               content == NULL || id < 0 ? "an added token needs a content and an id"
                                                         : "the id of an added token is too large");
  if (*content == '\0')
    return TRUE;
  if (!check_length (content, error))
    return FALSE;
  token->content = g_strdup (content);
  token->id = (gint32) id;
  self->n_added++;
  if (!check_added (self, token, error))
    return FALSE;
  if (!token->is_normalized)
    token->decoded = g_strdup (content);
  else if (!normalize_content (self, token, error) || !check_length (token->decoded, error))
    return FALSE;
  g_hash_table_insert (self->added_by_id, GINT_TO_POINTER (token->id), token);
  g_hash_table_insert (self->added_by_content, token->content, token);
  if (!ebb_added_token_tree_add (token->is_normalized ? &self->normalized_tree : &self->raw_tree, token,
                                 token->decoded))
    return ebb_fail (error, EBB_ERROR_FORMAT, "added_tokens: more than 16 million bytes of tokens");
  self->vocab_size = MAX (self->vocab_size, (guint) id + 1);
  return TRUE;
}

static gboolean
read_added_tokens (EbbTokenizerPipeline *self,
                   const EbbJson *json,
                   GError **error)
{
  gint64 max_id;

  if (json == NULL || json->kind == EBB_JSON_NULL)
    return TRUE;
  if (json->kind != EBB_JSON_LIST)
    return ebb_json_part_fail (json, error, "added_tokens must be a list");
  max_id = 2 * ((gint64) self->vocab_size + (gint64) json->n_items) + 65536;
  self->added = g_new0 (EbbAddedToken, json->n_items + 1);
  for (gsize i = 0; i < json->n_items; i++)
    if (!read_added_token (self, &json->items[i], max_id, error))
      return FALSE;
  return TRUE;
}

/* -- the template of special tokens -------------------------------------------------------------------------- */

/* Tokens that a text may have around it. */
#define MAX_TEMPLATE 4096

static gboolean
append_to_template (GArray *template,
                    const gint64 *tokens,
                    guint n,
                    GError **error)
{
  if (template->len + n > MAX_TEMPLATE)
    return ebb_fail (error, EBB_ERROR_FORMAT, "a template of more than %d tokens", MAX_TEMPLATE);
  g_array_append_vals (template, tokens, n);
  return TRUE;
}

static gboolean
append_special_token (EbbTokenizerPipeline *self,
                      GArray *template,
                      const EbbJson *json,
                      GError **error)
{
  gint64 id = -1;

  if (!ebb_json_as_int (json, &id) || id < 0 || id >= self->vocab_size)
    return ebb_json_part_fail (json, error, "a special token around a text must have an id of the vocabulary");
  return append_to_template (template, &id, 1, error);
}

static gboolean
append_template_part (EbbTokenizerPipeline *self,
                      GArray *template,
                      const EbbJson *part,
                      const EbbJson *special_tokens,
                      GError **error)
{
  const EbbJson *special = ebb_json_get (part, "SpecialToken"), *sequence = ebb_json_get (part, "Sequence"), *ids;
  const char *name = NULL;

  if (!ebb_json_part_get_string (special != NULL ? special : sequence, "id", &name, error))
    return FALSE;
  if (special == NULL && g_strcmp0 (name, "A") == 0)
    return append_to_template (template, self->template, self->n_template, error);
  if (special == NULL || name == NULL)
    return ebb_json_part_fail (part, error, "the part of a template must be a SpecialToken or the Sequence A");
  ids = ebb_json_get (ebb_json_get (special_tokens, name), "ids");
  if (ids == NULL || ids->kind != EBB_JSON_LIST)
    return ebb_json_part_fail (part, error, "the template's special_tokens lack ids of");
  for (gsize i = 0; i < ids->n_items; i++)
    if (!append_special_token (self, template, &ids->items[i], error))
      return FALSE;
  return TRUE;
}

/* ["<s>", 0]. */
static gboolean
append_pair (EbbTokenizerPipeline *self,
             GArray *template,
             const EbbJson *pair,
             GError **error)
{
  if (pair == NULL || pair->kind != EBB_JSON_LIST || pair->n_items != 2)
    return ebb_json_part_fail (pair, error, "cls and sep must be a token and its id");
  return append_special_token (self, template, &pair->items[1], error);
}

static gboolean
read_post_processor (const EbbJson *json,
                     const char *type,
                     gpointer data,
                     GError **error)
{
  EbbTokenizerPipeline *self = data;
  const EbbJson *single = ebb_json_get (json, "single");
  g_autoptr (GArray) template = g_array_new (FALSE, FALSE, sizeof (gint64));

  if (strcmp (type, "ByteLevel") == 0)
    return TRUE;
  if (strcmp (type, "BertProcessing") == 0 || strcmp (type, "RobertaProcessing") == 0)
    {
      if (!append_pair (self, template, ebb_json_get (json, "cls"), error)
          || !append_to_template (template, self->template, self->n_template, error)
          || !append_pair (self, template, ebb_json_get (json, "sep"), error))
        return FALSE;
    }
  else if (strcmp (type, "TemplateProcessing") != 0)
    return ebb_json_part_refuse (type, "ByteLevel, TemplateProcessing, BertProcessing, RobertaProcessing", error);
  else if (single == NULL || single->kind != EBB_JSON_LIST)
    return ebb_json_part_fail (single, error, "the template single must be a list");
  else
    for (gsize i = 0; i < single->n_items; i++)
      if (!append_template_part (self, template, &single->items[i], ebb_json_get (json, "special_tokens"), error))
        return FALSE;
  g_free (self->template);
  self->template = g_memdup2 (template->data, template->len * sizeof (gint64));
  self->n_template = template->len;
  return TRUE;
}

/* -- the whole ----------------------------------------------------------------------------------------------------- */

static gboolean
read_parts (EbbTokenizerPipeline *self,
            const EbbJson *json,
            const char **part,
            GError **error)
{
  const gint64 text = -1;

  *part = "normalizer";
  if (!ebb_normalizer_list_read (&self->normalizers, ebb_json_get (json, *part), error))
    return FALSE;
  *part = "pre_tokenizer";
  if (!ebb_pre_tokenizer_list_read (&self->pre_tokenizers, ebb_json_get (json, *part), error))
    return FALSE;
  *part = "model";
  if (!ebb_token_model_read (&self->model, ebb_json_get (json, *part), self->pre_tokenizers.is_byte_level, error))
    return FALSE;
  self->vocab_size = self->model.vocabulary.size;
  *part = "decoder";
  if (!ebb_decoder_list_read (&self->decoders, ebb_json_get (json, *part), error))
    return FALSE;
  *part = NULL;
  if (!read_added_tokens (self, ebb_json_get (json, "added_tokens"), error))
    return FALSE;
  if (self->vocab_size == 0)
    return ebb_fail (error, EBB_ERROR_FORMAT, "the vocabulary is empty");
  *part = "post_processor";
  self->template = g_memdup2 (&text, sizeof text);
  self->n_template = 1;
  return ebb_json_part_foreach (ebb_json_get (json, *part), "processors", read_post_processor, self, error);
}

gboolean
ebb_tokenizer_pipeline_read (EbbTokenizerPipeline *self,
                             const EbbJson *json,
                             GError **error)
{
  const char *part = NULL, *version = "1.0";
  g_autofree char *name = ebb_escape_text (self->name);

  if (json->kind != EBB_JSON_OBJECT)
    return ebb_fail (error, EBB_ERROR_FORMAT, "%s: it must be an object", name);
  if (!ebb_json_part_get_string (json, "version", &version, error))
    ;
  else if (strcmp (version, "1.0") != 0)
    ebb_json_part_refuse (version, "files of version 1.0", error);
  else if (read_parts (self, json, &part, error))
    {
      ebb_tokenizer_pipeline_finish (self);
      return TRUE;
    }
  if (part != NULL)
    g_prefix_error (error, "%s: %s: ", name, part);
  else
    g_prefix_error (error, "%s: ", name);
  return FALSE;
}

/* Whether a cut could fall inside of an added token. */
static gboolean
has_token_across_cuts (const EbbTokenizerPipeline *self)
{
  for (guint i = 0; i < self->n_added; i++)
    {
      const char *text = self->added[i].decoded, *newline = strrchr (text, '\n');

      if (self->cut == EBB_TEXT_CUT_BEHIND_NEWLINE ? newline != NULL && newline > text && newline[1] != '\0'
                                                   : *text != '\0' && strchr (text + 1, ' ') != NULL)
        return TRUE;
      if (self->cut == EBB_TEXT_CUT_BEHIND_NEWLINE && newline == text && text[1] != '\0')
        return TRUE;
    }
  return FALSE;
}

void
ebb_tokenizer_pipeline_finish (EbbTokenizerPipeline *self)
{
  g_autoptr (GHashTable) special = g_hash_table_new (g_str_hash, g_str_equal);

  self->is_added = g_new0 (guint8, self->vocab_size + 1);
  self->is_special = g_new0 (guint8, self->vocab_size + 1);
  for (guint i = 0; i < self->n_added; i++)
    if (self->added[i].is_special)
      g_hash_table_add (special, self->added[i].content);
  for (guint i = 0; i < self->n_added; i++)
    {
      const EbbAddedToken *token = &self->added[i];

      self->is_added[token->id] = TRUE;
      self->is_special[token->id] = g_hash_table_contains (special, token->decoded);
    }
  self->special_tokens[EBB_SPECIAL_TOKEN_UNK] = self->model.unknown;
  self->cut = ebb_pre_tokenizer_list_get_cut (&self->pre_tokenizers);
  if (!ebb_normalizer_list_works_on_lines (&self->normalizers) || has_token_across_cuts (self))
    self->cut = EBB_TEXT_CUT_NONE;
}

void
ebb_tokenizer_pipeline_free (EbbTokenizerPipeline *self)
{
  if (self == NULL)
    return;
  ebb_tokenizer_pipeline_space_free (self->spare_space);
  for (guint i = 0; i < self->n_added; i++)
    {
      g_free (self->added[i].content);
      g_free (self->added[i].decoded);
    }
  g_free (self->added);
  ebb_added_token_tree_clear (&self->raw_tree);
  ebb_added_token_tree_clear (&self->normalized_tree);
  g_hash_table_unref (self->added_by_content);
  g_hash_table_unref (self->added_by_id);
  g_free (self->is_added);
  g_free (self->is_special);
  ebb_normalizer_list_clear (&self->normalizers);
  ebb_pre_tokenizer_list_clear (&self->pre_tokenizers);
  ebb_token_model_clear (&self->model);
  ebb_decoder_list_clear (&self->decoders);
  g_free (self->template);
  g_free (self->chat_template);
  g_free (self->name);
  g_free (self);
}
