/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Makes a tokenizer.json of the values of a GGUF file. */
#include "nn/data/tokenizer/gguf-private.h"

#include "nn/data/tokenizer-settings-private.h"
#include "nn/data/utf8-private.h"
#include "nn/files/file-error-private.h"
#include "tensor/error-private.h"
#include "tensor/util/json-scanner-private.h"

#include <string.h>

#define ENDINGS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define REST "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define SLASH_REST "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define BEFORE "[^\\r\\n\\p{L}\\p{N}]?"

const EbbGgufPreTokenizer ebb_gguf_pre_tokenizers[] = {
  { .names = { "gpt-2", "phi-2" } },
  { .names = { "llama-bpe", "llama3", "llama-v3" },
    .expression = ENDINGS "|" BEFORE "\\p{L}+|\\p{N}{1,3}" REST,
    .ignores_merges = TRUE },
  { .names = { "qwen2", "deepseek-r1-qwen" },
    .expression = ENDINGS "|" BEFORE "\\p{L}+|\\p{N}" REST,
    .is_composed = TRUE },
  { .names = { "smollm" }, .splits_digits = TRUE },
  { .names = { "tekken" },
    .expression = BEFORE UPPER "*" LOWER "+|" BEFORE UPPER "+" LOWER "*|\\p{N}" SLASH_REST,
    .ignores_merges = TRUE },
  { .names = { "gpt-4o", "llama4" },
    .expression = BEFORE UPPER "*" LOWER "+" ENDINGS "?|" BEFORE UPPER "+" LOWER "*" ENDINGS
                               "?|\\p{N}{1,3}" SLASH_REST },
  { .names = { NULL } },
};

/* "▁", which stands for a blank in SentencePiece's vocabularies. */
#define BLANK "\xe2\x96\x81"

typedef struct
{
  const EbbGguf *gguf;
  EbbGgufString *tokens;
  gsize n_tokens;
  double *types; /* NULL: all are normal */
  gint64 unknown;
  GString *json;
  GError *error;
} Reading;

static EbbGgufTokenType
get_type (const Reading *self,
          gsize i)
{
  return self->types != NULL ? (EbbGgufTokenType) (int) self->types[i] : EBB_GGUF_TOKEN_NORMAL;
}

/* Always FALSE; an error that is set already stays. */
static gboolean
fail (Reading *self,
      const char *problem)
{
  if (self->error == NULL)
    ebb_file_fail (self->gguf->tensors->path, &self->error, "%s", problem);
  return FALSE;
}

/* The string as JSON has it, with U+0000 spelt EBB_JSON_NUL; NULL if the string is not UTF-8. */
static char *
spell (const char *text,
       gsize length)
{
  return ebb_utf8_find_invalid ((const guint8 *) text, length) == length ? ebb_utf8_spell_nul (text, length, NULL)
                                                                         : NULL;
}

static gboolean
append_token (Reading *self,
              gsize i)
{
  g_autofree char *text = spell (self->tokens[i].text, self->tokens[i].length);

  if (text == NULL)
    return ebb_file_fail (self->gguf->tensors->path, &self->error,
                          "token %" G_GSIZE_FORMAT " of \"tokenizer.ggml.tokens\" is not UTF-8", i);
  ebb_json_append_string (self->json, text);
  return TRUE;
}

/* -- parts --------------------------------------------------------------------------------------------------------- */

static gboolean
append_added_tokens (Reading *self)
{
  gboolean is_first = TRUE;

  g_string_append (self->json, "\"added_tokens\": [");
  for (gsize i = 0; i < self->n_tokens; i++)
    {
      const EbbGgufTokenType type = get_type (self, i);

      if (type != EBB_GGUF_TOKEN_CONTROL && type != EBB_GGUF_TOKEN_USER_DEFINED && type != EBB_GGUF_TOKEN_UNKNOWN)
        continue;
      g_string_append_printf (self->json, "%s{\"id\": %" G_GSIZE_FORMAT ", \"content\": ", is_first ? "" : ", ", i);
      if (!append_token (self, i))
        return FALSE;
      g_string_append_printf (self->json,
                              ", \"single_word\": false, \"lstrip\": false, \"rstrip\": false, \"normalized\": false, "
                              "\"special\": %s}",
                              type == EBB_GGUF_TOKEN_USER_DEFINED ? "false" : "true");
      is_first = FALSE;
    }
  g_string_append (self->json, "],\n");
  return TRUE;
}

static gboolean
fail_twice (Reading *self,
            gsize first,
            gsize second,
            char *text)
{
  g_autofree char *quoted = ebb_json_quote (text);

  g_free (text);
  return ebb_file_fail (self->gguf->tensors->path, &self->error,
                        "tokens %" G_GSIZE_FORMAT " and %" G_GSIZE_FORMAT
                        " of \"tokenizer.ggml.tokens\" are both %s; each must stand once",
                        first, second, quoted);
}

static gboolean
append_vocabulary (Reading *self)
{
  g_autoptr (GHashTable) places = g_hash_table_new_full (g_str_hash, g_str_equal, g_free, NULL);
  gboolean is_first = TRUE;

  g_string_append (self->json, "\"vocab\": {");
  for (gsize i = 0; i < self->n_tokens; i++)
    {
      const EbbGgufTokenType type = get_type (self, i);
      char *text;

      if (type != EBB_GGUF_TOKEN_NORMAL && type != EBB_GGUF_TOKEN_BYTE && (gint64) i != self->unknown)
        continue;
      text = ebb_utf8_spell_nul (self->tokens[i].text, self->tokens[i].length, NULL);
      if (g_hash_table_contains (places, text))
        return fail_twice (self, GPOINTER_TO_SIZE (g_hash_table_lookup (places, text)), i, text);
      g_hash_table_insert (places, text, GSIZE_TO_POINTER (i));
      g_string_append (self->json, is_first ? "" : ", ");
      if (!append_token (self, i))
        return FALSE;
      g_string_append_printf (self->json, ": %" G_GSIZE_FORMAT, i);
      is_first = FALSE;
    }
  g_string_append (self->json, "},\n");
  return TRUE;
}

/* -- byte-level ---------------------------------------------------------------------------------------------------- */

static const EbbGgufPreTokenizer *
find_pre_tokenizer (Reading *self)
{
  g_autofree char *name = NULL;
  g_autofree char *quoted = NULL;
  g_autofree char *shown = ebb_escape_text (self->gguf->tensors->path);
  g_autoptr (GString) known = g_string_new (NULL);

  if (!ebb_gguf_get_string (self->gguf, "tokenizer.ggml.pre", &name, &self->error) && self->error != NULL)
    return NULL;
  for (const EbbGgufPreTokenizer *pre = ebb_gguf_pre_tokenizers; pre->names[0] != NULL; pre++)
    {
      for (guint i = 0; i < G_N_ELEMENTS (pre->names) && pre->names[i] != NULL; i++)
        if (g_strcmp0 (pre->names[i], name) == 0)
          return pre;
      g_string_append_printf (known, "%s%s", known->len > 0 ? ", " : "", pre->names[0]);
    }
  quoted = name != NULL ? ebb_json_quote (name) : g_strdup ("missing");
  return ebb_fail_null (&self->error, EBB_ERROR_NOT_SUPPORTED,
                        "%s: the value \"tokenizer.ggml.pre\" is %s: it must be one of %s", shown, quoted, known->str);
}

static gboolean
append_merges (Reading *self)
{
  gsize n;
  g_autofree EbbGgufString *merges =
      ebb_gguf_get_strings (self->gguf, "tokenizer.ggml.merges", &n, &self->error);

  if (merges == NULL)
    return fail (self, "there are no values \"tokenizer.ggml.merges\", which a byte-level tokenizer needs");
  g_string_append (self->json, "\"merges\": [");
  for (gsize i = 0; i < n; i++)
    {
      g_autofree char *text = spell (merges[i].text, merges[i].length);
      char *blank = text != NULL && *text != '\0' ? strchr (text + 1, ' ') : NULL;

      if (blank == NULL)
        return ebb_file_fail (self->gguf->tensors->path, &self->error,
                              "merge %" G_GSIZE_FORMAT " of \"tokenizer.ggml.merges\" must be two tokens with a blank "
                              "between them",
                              i);
      *blank = '\0';
      g_string_append (self->json, i > 0 ? ", [" : "[");
      ebb_json_append_string (self->json, text);
      g_string_append (self->json, ", ");
      ebb_json_append_string (self->json, blank + 1);
      g_string_append_c (self->json, ']');
    }
  g_string_append (self->json, "]");
  return TRUE;
}

static gboolean
append_byte_level (Reading *self)
{
  const EbbGgufPreTokenizer *pre = find_pre_tokenizer (self);
  GString *json = self->json;

  if (pre == NULL)
    return FALSE;
  g_string_append_printf (json, "\"normalizer\": %s,\n\"pre_tokenizer\": {\"type\": \"Sequence\", \"pretokenizers\": [",
                          pre->is_composed ? "{\"type\": \"NFC\"}" : "null");
  if (pre->splits_digits)
    g_string_append (json, "{\"type\": \"Digits\", \"individual_digits\": true}, ");
  if (pre->expression != NULL)
    {
      g_string_append (json, "{\"type\": \"Split\", \"pattern\": {\"Regex\": ");
      ebb_json_append_string (json, pre->expression);
      g_string_append (json, "}, \"behavior\": \"Isolated\", \"invert\": false}, ");
    }
  g_string_append_printf (json,
                          "{\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"trim_offsets\": true, "
                          "\"use_regex\": %s}]},\n\"decoder\": {\"type\": \"ByteLevel\", \"add_prefix_space\": true, "
                          "\"trim_offsets\": true, \"use_regex\": true},\n\"post_processor\": null,\n"
                          "\"model\": {\"type\": \"BPE\", \"dropout\": null, \"unk_token\": null, "
                          "\"continuing_subword_prefix\": null, \"end_of_word_suffix\": null, \"fuse_unk\": false, "
                          "\"byte_fallback\": false, \"ignore_merges\": %s,\n",
                          pre->expression == NULL ? "true" : "false", pre->ignores_merges ? "true" : "false");
  return append_vocabulary (self) && append_merges (self);
}

/* -- SentencePiece ------------------------------------------------------------------------------------------------- */

typedef struct
{
  double score;
  gsize token, left; /* the token that results, and how many of its bytes are the left one's */
} Merge;

/* The best score first; of one token's the longest left part first, as transformers has them. */
static int
compare_merges (gconstpointer a,
                gconstpointer b)
{
  const Merge *x = a, *y = b;

  if (x->score != y->score)
    return x->score > y->score ? -1 : 1;
  if (x->token != y->token)
    return x->token < y->token ? -1 : 1;
  return x->left > y->left ? -1 : x->left < y->left;
}

static GHashTable *
index_tokens (const Reading *self)
{
  GHashTable *known = g_hash_table_new_full (g_str_hash, g_str_equal, g_free, NULL);

  for (gsize i = 0; i < self->n_tokens; i++)
    if (get_type (self, i) == EBB_GGUF_TOKEN_NORMAL)
      g_hash_table_add (known, ebb_utf8_spell_nul (self->tokens[i].text, self->tokens[i].length, NULL));
  return known;
}

/* Every way in which two tokens become a third: llama.cpp merges by the score of the result. */
static GArray *
collect_merges (const Reading *self,
                const double *scores)
{
  g_autoptr (GHashTable) known = index_tokens (self);
  GArray *merges = g_array_new (FALSE, FALSE, sizeof (Merge));

  for (gsize i = 0; i < self->n_tokens; i++)
    {
      const char *text = self->tokens[i].text;
      const gsize length = self->tokens[i].length;

      if (get_type (self, i) != EBB_GGUF_TOKEN_NORMAL || length == 0 || length > 1024
          || ebb_utf8_find_invalid ((const guint8 *) text, length) < length)
        continue;
      for (const char *cut = text; (cut = g_utf8_next_char (cut)) < text + length;)
        {
          g_autofree char *left = ebb_utf8_spell_nul (text, (gsize) (cut - text), NULL);
          g_autofree char *right = ebb_utf8_spell_nul (cut, length - (gsize) (cut - text), NULL);
          const Merge merge = { scores[i], i, (gsize) (cut - text) };

          if (g_hash_table_contains (known, left) && g_hash_table_contains (known, right))
            g_array_append_val (merges, merge);
        }
    }
  g_array_sort (merges, compare_merges);
  return merges;
}

static gboolean
append_scored_merges (Reading *self)
{
  gsize n;
  g_autofree double *scores = ebb_gguf_get_numbers (self->gguf, "tokenizer.ggml.scores", &n, &self->error);
  g_autoptr (GArray) merges = NULL;

  if (scores == NULL || n != self->n_tokens)
    return fail (self, "there must be a score for each token in \"tokenizer.ggml.scores\"");
  merges = collect_merges (self, scores);
  g_string_append (self->json, "\"merges\": [");
  for (guint i = 0; i < merges->len; i++)
    {
      const Merge *merge = &g_array_index (merges, Merge, i);
      const EbbGgufString *token = &self->tokens[merge->token];
      g_autofree char *left = ebb_utf8_spell_nul (token->text, merge->left, NULL);
      g_autofree char *right = ebb_utf8_spell_nul (token->text + merge->left, token->length - merge->left, NULL);

      g_string_append (self->json, i > 0 ? ", [" : "[");
      ebb_json_append_string (self->json, left);
      g_string_append (self->json, ", ");
      ebb_json_append_string (self->json, right);
      g_string_append_c (self->json, ']');
    }
  g_string_append (self->json, "]");
  return TRUE;
}

static gboolean
append_sentence_piece (Reading *self)
{
  GString *json = self->json;
  gboolean has_prefix = TRUE;

  ebb_gguf_get_boolean (self->gguf, "tokenizer.ggml.add_space_prefix", &has_prefix, &self->error);
  if (self->error != NULL)
    return FALSE;
  g_string_append_printf (json,
                          "\"normalizer\": {\"type\": \"Sequence\", \"normalizers\": [%s{\"type\": \"Replace\", "
                          "\"pattern\": {\"String\": \" \"}, \"content\": \"" BLANK "\"}]},\n"
                          "\"pre_tokenizer\": null,\n\"decoder\": {\"type\": \"Sequence\", \"decoders\": [{\"type\": "
                          "\"Replace\", \"pattern\": {\"String\": \"" BLANK "\"}, \"content\": \" \"}, {\"type\": "
                          "\"ByteFallback\"}, {\"type\": \"Fuse\"}%s]},\n\"post_processor\": null,\n",
                          has_prefix ? "{\"type\": \"Prepend\", \"prepend\": \"" BLANK "\"}, " : "",
                          has_prefix ? ", {\"type\": \"Strip\", \"content\": \" \", \"start\": 1, \"stop\": 0}" : "");
  g_string_append (json, "\"model\": {\"type\": \"BPE\", \"dropout\": null, \"unk_token\": ");
  if (self->unknown < 0)
    g_string_append (json, "null");
  else if (!append_token (self, (gsize) self->unknown))
    return FALSE;
  g_string_append (json, ", \"continuing_subword_prefix\": null, \"end_of_word_suffix\": null, \"fuse_unk\": true, "
                         "\"byte_fallback\": true, \"ignore_merges\": false,\n");
  return append_vocabulary (self) && append_scored_merges (self);
}

/* -- the whole ----------------------------------------------------------------------------------------------------- */

gboolean
ebb_gguf_has_tokenizer (const EbbGguf *gguf)
{
  return ebb_gguf_find (gguf, "tokenizer.ggml.tokens") != NULL;
}

static gboolean
read_lists (Reading *self)
{
  gsize n_types;

  self->tokens = ebb_gguf_get_strings (self->gguf, "tokenizer.ggml.tokens", &self->n_tokens, &self->error);
  if (self->tokens == NULL || self->n_tokens == 0 || self->n_tokens > G_MAXINT)
    return fail (self, "there are no tokens in \"tokenizer.ggml.tokens\"");
  self->types = ebb_gguf_get_numbers (self->gguf, "tokenizer.ggml.token_type", &n_types, &self->error);
  if (self->error != NULL || (self->types != NULL && n_types != self->n_tokens))
    return fail (self, "there must be a type for each token in \"tokenizer.ggml.token_type\"");
  for (gsize i = 0; self->types != NULL && i < n_types; i++)
    if (!(self->types[i] >= 0 && self->types[i] <= EBB_GGUF_TOKEN_BYTE))
      return fail (self, "the types in \"tokenizer.ggml.token_type\" must be 0 to 6");
  self->unknown = -1;
  ebb_gguf_get_int (self->gguf, "tokenizer.ggml.unknown_token_id", &self->unknown, &self->error);
  for (gsize i = 0; self->unknown < 0 && i < self->n_tokens; i++)
    if (get_type (self, i) == EBB_GGUF_TOKEN_UNKNOWN)
      self->unknown = (gint64) i;
  if (self->unknown < 0 || self->unknown >= (gint64) self->n_tokens)
    self->unknown = -1;
  return self->error == NULL;
}

static gboolean
append_all (Reading *self)
{
  g_autofree char *model = NULL;
  gboolean ok;

  if (!ebb_gguf_get_string (self->gguf, "tokenizer.ggml.model", &model, &self->error))
    return fail (self, "there is no value \"tokenizer.ggml.model\"");
  if (!read_lists (self))
    return FALSE;
  g_string_append (self->json, "{\"version\": \"1.0\", \"truncation\": null, \"padding\": null,\n");
  if (!append_added_tokens (self))
    return FALSE;
  if (strcmp (model, "gpt2") == 0)
    ok = append_byte_level (self);
  else if (strcmp (model, "llama") == 0)
    ok = append_sentence_piece (self);
  else
    {
      return ebb_fail (&self->error, EBB_ERROR_NOT_SUPPORTED,
                       "%s: the value \"tokenizer.ggml.model\" is %s: it must be gpt2 or llama",
                       ebb_show_text (self->gguf->tensors->path), ebb_in_message (ebb_json_quote (model)));
    }
  g_string_append (self->json, "}}\n");
  return ok;
}

gboolean
ebb_gguf_read_tokenizer (const EbbGguf *gguf,
                         GString *tokenizer,
                         GString *settings,
                         GError **error)
{
  Reading self = { .gguf = gguf, .json = tokenizer };
  const gboolean done =
      append_all (&self) && ebb_tokenizer_settings_append_gguf (gguf, settings, &self.error);

  g_free (self.tokens);
  g_free (self.types);
  if (!done)
    g_propagate_error (error, self.error);
  return done;
}
