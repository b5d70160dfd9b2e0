/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Adds a tokenizer to the values of a GGUF file. */
#include "nn/data/tokenizer/gguf-private.h"

#include "nn/data/tokenizer/json-parts-private.h"
#include "nn/data/tokenizer/pipeline-private.h"
#include "tensor/util/json-scanner-private.h"
#include "tensor/error-private.h"

#include <string.h>

#define MAX_FILE_SIZE ((gsize) 256 << 20)
#define BLANK "\xe2\x96\x81"

typedef struct
{
  EbbGgufWriter *writer;
  const char *path;
  const EbbTokenizerPipeline *pipeline;
  const EbbJson *json; /* tokenizer.json */
  guint n_tokens;
  gboolean has_prefix; /* a text gets a blank before it */
  GError **error;
} Writing;

#define refuse(self, format, ...)                                                                 \
  ebb_fail ((self)->error, EBB_ERROR_NOT_SUPPORTED,                                               \
            "the tokenizer of %s can't be saved as GGUF: " format "; save the model as a folder", \
            ebb_show_text ((self)->path), ##__VA_ARGS__)

/* -- tokens -------------------------------------------------------------------------------------------------------- */

static const EbbAddedToken *
find_added (const Writing *self,
            guint id)
{
  return g_hash_table_lookup (self->pipeline->added_by_id, GINT_TO_POINTER ((gint) id));
}

static gboolean
is_byte (const char *text)
{
  return strlen (text) == 6 && g_str_has_prefix (text, "<0x") && g_ascii_isxdigit (text[3])
         && g_ascii_isxdigit (text[4]) && text[5] == '>';
}

static EbbGgufTokenType
get_type (const Writing *self,
          guint id,
          const char *text)
{
  const EbbAddedToken *added = find_added (self, id);

  if (text == NULL)
    return EBB_GGUF_TOKEN_UNUSED;
  if ((gint32) id == self->pipeline->model.unknown)
    return EBB_GGUF_TOKEN_UNKNOWN;
  if (added != NULL)
    return added->is_special ? EBB_GGUF_TOKEN_CONTROL : EBB_GGUF_TOKEN_USER_DEFINED;
  return self->pipeline->model.byte_fallback && is_byte (text) ? EBB_GGUF_TOKEN_BYTE : EBB_GGUF_TOKEN_NORMAL;
}

static gboolean
add_tokens (Writing *self,
            gint32 *types)
{
  g_autoptr (GPtrArray) tokens = g_ptr_array_new_with_free_func (g_free);

  if (self->pipeline->vocab_size > self->n_tokens)
    return refuse (self, "it has %u tokens, and the model %u", self->pipeline->vocab_size, self->n_tokens);
  for (guint id = 0; id < self->n_tokens; id++)
    {
      const char *text =
          id < self->pipeline->vocab_size ? ebb_tokenizer_pipeline_get_token (self->pipeline, (gint64) id) : NULL;

      if (text != NULL && strstr (text, EBB_JSON_NUL) != NULL)
        return refuse (self, "token %u has U+0000", id);
      types[id] = get_type (self, id, text);
      g_ptr_array_add (tokens, text != NULL ? g_strdup (text) : g_strdup_printf ("[PAD%u]", id));
    }
  ebb_gguf_writer_add_strings (self->writer, "tokenizer.ggml.tokens", tokens);
  return TRUE;
}

/* The two tokens of a merge: "a b", or ["a", "b"]. */
static gboolean
get_pair (const EbbJson *merge,
          char **left,
          char **right)
{
  const char *blank;

  if (merge->kind == EBB_JSON_LIST && merge->n_items == 2 && merge->items[0].text != NULL
      && merge->items[1].text != NULL)
    {
      *left = g_strdup (merge->items[0].text);
      *right = g_strdup (merge->items[1].text);
      return TRUE;
    }
  blank = merge->kind == EBB_JSON_STRING && *merge->text != '\0' ? strchr (merge->text + 1, ' ') : NULL;
  if (blank == NULL)
    return FALSE;
  *left = g_strndup (merge->text, (gsize) (blank - merge->text));
  *right = g_strdup (blank + 1);
  return TRUE;
}

/* -- byte-level ---------------------------------------------------------------------------------------------------- */

/* The parts of a pre-tokenizer, without sequences. */
static gboolean
add_part (const EbbJson *part,
          const char *type,
          gpointer data,
          GError **error)
{
  g_ptr_array_add (data, (gpointer) part);
  return TRUE;
}

static gboolean
is_part (const EbbJson *part,
         const char *type)
{
  const char *text = NULL;

  return ebb_json_as_string (ebb_json_get (part, "type"), &text) && strcmp (text, type) == 0;
}

static gboolean
is_set (const EbbJson *part,
        const char *key,
        gboolean initial)
{
  ebb_json_as_boolean (ebb_json_get (part, key), &initial);
  return initial;
}

static gboolean
is_expression (const EbbJson *part,
               const char *expression)
{
  const char *text = NULL, *behavior = NULL;

  return is_part (part, "Split") && ebb_json_as_string (ebb_json_get (ebb_json_get (part, "pattern"), "Regex"), &text)
         && strcmp (text, expression) == 0 && ebb_json_as_string (ebb_json_get (part, "behavior"), &behavior)
         && strcmp (behavior, "Isolated") == 0 && !is_set (part, "invert", FALSE);
}

static gboolean
matches (const EbbGgufPreTokenizer *pre,
         const GPtrArray *parts)
{
  const EbbJson *last = parts->len > 0 ? g_ptr_array_index (parts, parts->len - 1) : NULL;
  const EbbJson *first = parts->len > 0 ? g_ptr_array_index (parts, 0) : NULL;

  if (parts->len != (pre->expression != NULL || pre->splits_digits ? 2 : 1) || !is_part (last, "ByteLevel")
      || is_set (last, "add_prefix_space", TRUE) || is_set (last, "use_regex", TRUE) != (pre->expression == NULL))
    return FALSE;
  if (pre->splits_digits)
    return is_part (first, "Digits") && is_set (first, "individual_digits", FALSE);
  return pre->expression == NULL || is_expression (first, pre->expression);
}

static gboolean
add_merges (Writing *self)
{
  const EbbJson *merges = ebb_json_get (ebb_json_get (self->json, "model"), "merges");
  g_autoptr (GPtrArray) texts = g_ptr_array_new_with_free_func (g_free);

  for (gsize i = 0; merges != NULL && i < merges->n_items; i++)
    {
      g_autofree char *left = NULL;
      g_autofree char *right = NULL;

      if (get_pair (&merges->items[i], &left, &right))
        g_ptr_array_add (texts, g_strconcat (left, " ", right, NULL));
    }
  ebb_gguf_writer_add_strings (self->writer, "tokenizer.ggml.merges", texts);
  return TRUE;
}

/* llama.cpp changes no text, or composes it. */
static gboolean
check_composes (const EbbJson *part,
                const char *type,
                gpointer data,
                GError **error)
{
  return strcmp (type, "NFC") == 0
         || refuse ((Writing *) data, "its normalizer is %s: a byte-level one must have NFC or none", type);
}

static gboolean
write_byte_level (Writing *self,
                  gint32 *types)
{
  g_autoptr (GPtrArray) parts = g_ptr_array_new ();
  const EbbGgufPreTokenizer *pre = ebb_gguf_pre_tokenizers;

  const gboolean ignores_merges = is_set (ebb_json_get (self->json, "model"), "ignore_merges", FALSE);

  if (!ebb_json_part_foreach (ebb_json_get (self->json, "normalizer"), "normalizers", check_composes, self, self->error)
      || !ebb_json_part_foreach (ebb_json_get (self->json, "pre_tokenizer"), "pretokenizers", add_part, parts,
                                 self->error))
    return FALSE;
  while (pre->names[0] != NULL && !matches (pre, parts))
    pre++;
  if (pre->names[0] == NULL)
    return refuse (self, "it cuts words in a way for which Ebb knows no name of llama.cpp's");
  if (ignores_merges != pre->ignores_merges)
    return refuse (self, "its ignore_merges is %s: llama.cpp has it %s where words are cut as for %s",
                   ignores_merges ? "true" : "false", pre->ignores_merges ? "true" : "false", pre->names[0]);
  ebb_gguf_writer_add_string (self->writer, "tokenizer.ggml.model", "gpt2");
  ebb_gguf_writer_add_string (self->writer, "tokenizer.ggml.pre", pre->names[0]);
  if (!add_tokens (self, types))
    return FALSE;
  ebb_gguf_writer_add_array (self->writer, "tokenizer.ggml.token_type", EBB_GGUF_I32, types, self->n_tokens);
  return add_merges (self);
}

/* -- SentencePiece ------------------------------------------------------------------------------------------------- */

/* How many pairs of normal tokens are a normal token. */
static gsize
count_pairs (const Writing *self,
             const gint32 *types)
{
  const EbbVocabulary *vocabulary = &self->pipeline->model.vocabulary;
  gsize n = 0;

  for (guint id = 0; id < self->n_tokens; id++)
    {
      const char *text = types[id] == EBB_GGUF_TOKEN_NORMAL ? ebb_vocabulary_get (vocabulary, (gint32) id) : NULL;
      const gsize length = text != NULL ? strlen (text) : 0;

      for (const char *cut = text; cut != NULL && *cut != '\0' && (cut = g_utf8_next_char (cut)) < text + length;)
        {
          const gint32 left = ebb_vocabulary_find (vocabulary, text, (gsize) (cut - text));
          const gint32 right = ebb_vocabulary_find (vocabulary, cut, length - (gsize) (cut - text));

          n += left >= 0 && right >= 0 && types[left] == EBB_GGUF_TOKEN_NORMAL && types[right] == EBB_GGUF_TOKEN_NORMAL;
        }
    }
  return n;
}

/* llama.cpp merges two tokens if they are a third, the best score first. So all such pairs must be merges, and merges
 * in the order of what they make; scores then count down in this order. */
static gboolean
set_scores (Writing *self,
            const gint32 *types,
            float *scores)
{
  const EbbVocabulary *vocabulary = &self->pipeline->model.vocabulary;
  const EbbJson *merges = ebb_json_get (ebb_json_get (self->json, "model"), "merges");
  const gsize n_merges = merges != NULL ? merges->n_items : 0, n_pairs = count_pairs (self, types);
  g_autofree guint8 *is_scored = g_new0 (guint8, self->n_tokens);
  gint32 last = -1;
  float next = 0;

  for (gsize i = 0; i < n_merges; i++)
    {
      g_autofree char *left = NULL;
      g_autofree char *right = NULL;
      g_autofree char *both = NULL;
      gint32 made;

      if (!get_pair (&merges->items[i], &left, &right))
        continue;
      both = g_strconcat (left, right, NULL);
      made = ebb_vocabulary_find (vocabulary, both, strlen (both));
      if (made < 0 || made == last)
        continue;
      if (is_scored[made])
        return refuse (self, "its merges are not in the order of the tokens that they make, as SentencePiece's are");
      last = made;
      is_scored[made] = TRUE;
      scores[made] = next;
      next -= 1;
    }
  if (n_pairs != n_merges)
    return refuse (self,
                   "%" G_GSIZE_FORMAT " pairs of its tokens make a token, and %" G_GSIZE_FORMAT
                   " of them are merges: with SentencePiece's all are",
                   n_pairs, n_merges);
  for (guint id = 0; id < self->n_tokens; id++)
    if (types[id] == EBB_GGUF_TOKEN_NORMAL && !is_scored[id])
      {
        scores[id] = next;
        next -= 1;
      }
    else if (types[id] == EBB_GGUF_TOKEN_CONTROL || types[id] == EBB_GGUF_TOKEN_USER_DEFINED)
      scores[id] = -1000;
    else if (types[id] == EBB_GGUF_TOKEN_UNUSED)
      scores[id] = -10000;
  return TRUE;
}

static gboolean
is_text (const EbbJson *json,
         const char *text)
{
  const char *found = NULL;

  return ebb_json_as_string (json, &found) && strcmp (found, text) == 0;
}

/* Those of SentencePiece: its sign of a blank before the text, and for each blank. */
static gboolean
take_normalizer (const EbbJson *part,
                 const char *type,
                 gpointer data,
                 GError **error)
{
  Writing *self = data;

  if (strcmp (type, "Prepend") == 0 && is_text (ebb_json_get (part, "prepend"), BLANK))
    self->has_prefix = TRUE;
  else if (strcmp (type, "Replace") != 0 || !is_text (ebb_json_get (ebb_json_get (part, "pattern"), "String"), " ")
           || !is_text (ebb_json_get (part, "content"), BLANK))
    return refuse (self, "a normalizer of it, %s, is none of SentencePiece's: a \"" BLANK "\" before the text, and for "
                         "each blank",
                   type);
  return TRUE;
}

/* Metaspace may put a blank before the text as well. */
static gboolean
take_pre_tokenizer (const EbbJson *part,
                    const char *type,
                    gpointer data,
                    GError **error)
{
  Writing *self = data;
  const char *scheme = "always";

  if (strcmp (type, "Metaspace") == 0)
    {
      ebb_json_as_string (ebb_json_get (part, "prepend_scheme"), &scheme);
      self->has_prefix = strcmp (scheme, "never") != 0;
    }
  return TRUE;
}

static gboolean
write_sentence_piece (Writing *self,
                      gint32 *types)
{
  g_autofree float *scores = g_new0 (float, self->n_tokens);

  ebb_gguf_writer_add_string (self->writer, "tokenizer.ggml.model", "llama");
  ebb_gguf_writer_add_string (self->writer, "tokenizer.ggml.pre", "default");
  if (!add_tokens (self, types) || !set_scores (self, types, scores)
      || !ebb_json_part_foreach (ebb_json_get (self->json, "normalizer"), "normalizers", take_normalizer, self,
                                 self->error)
      || !ebb_json_part_foreach (ebb_json_get (self->json, "pre_tokenizer"), "pretokenizers", take_pre_tokenizer, self,
                                 self->error))
    return FALSE;
  ebb_gguf_writer_add_array (self->writer, "tokenizer.ggml.scores", EBB_GGUF_F32, scores, self->n_tokens);
  ebb_gguf_writer_add_array (self->writer, "tokenizer.ggml.token_type", EBB_GGUF_I32, types, self->n_tokens);
  ebb_gguf_writer_add_boolean (self->writer, "tokenizer.ggml.add_space_prefix", self->has_prefix);
  return TRUE;
}

/* -- the whole ----------------------------------------------------------------------------------------------------- */

/* Returns the token that ends a text; -1 without one. */
static gint64
add_special_tokens (Writing *self,
                    const EbbJson *config)
{
  static const struct
  {
    EbbSpecialToken which;
    const char *key, *config_key;
  } tokens[] = {
    { EBB_SPECIAL_TOKEN_BOS, "tokenizer.ggml.bos_token_id", "bos_token_id" },
    { EBB_SPECIAL_TOKEN_EOS, "tokenizer.ggml.eos_token_id", "eos_token_id" },
    { EBB_SPECIAL_TOKEN_UNK, "tokenizer.ggml.unknown_token_id", "unk_token_id" },
    { EBB_SPECIAL_TOKEN_SEP, "tokenizer.ggml.seperator_token_id", "sep_token_id" },
    { EBB_SPECIAL_TOKEN_PAD, "tokenizer.ggml.padding_token_id", "pad_token_id" },
    { EBB_SPECIAL_TOKEN_MASK, "tokenizer.ggml.mask_token_id", "mask_token_id" },
  };
  const EbbTokenizerPipeline *pipeline = self->pipeline;
  gboolean is_before = TRUE, adds_bos = FALSE, adds_eos = FALSE;
  gint64 eos = -1;

  for (guint i = 0; i < G_N_ELEMENTS (tokens); i++)
    {
      gint64 id = pipeline->special_tokens[tokens[i].which];
      const EbbJson *member = ebb_json_get (config, tokens[i].config_key);

      if (id < 0 && member != NULL && member->kind == EBB_JSON_LIST && member->n_items > 0)
        member = &member->items[0];
      if (id < 0)
        ebb_json_as_int (member, &id);
      if (id >= 0 && id < (gint64) self->n_tokens)
        {
          ebb_gguf_writer_add_u32 (self->writer, tokens[i].key, (guint32) id);
          eos = tokens[i].which == EBB_SPECIAL_TOKEN_EOS ? id : eos;
        }
    }
  for (guint i = 0; i < pipeline->n_template; i++)
    {
      is_before = is_before && pipeline->template[i] >= 0;
      adds_bos = adds_bos || (is_before && pipeline->template[i] == pipeline->special_tokens[EBB_SPECIAL_TOKEN_BOS]);
      adds_eos = adds_eos
                 || (!is_before && pipeline->template[i] >= 0
                     && pipeline->template[i] == pipeline->special_tokens[EBB_SPECIAL_TOKEN_EOS]);
    }
  ebb_gguf_writer_add_boolean (self->writer, "tokenizer.ggml.add_bos_token", adds_bos);
  ebb_gguf_writer_add_boolean (self->writer, "tokenizer.ggml.add_eos_token", adds_eos);
  if (pipeline->chat_template != NULL)
    ebb_gguf_writer_add_string (self->writer, "tokenizer.chat_template", pipeline->chat_template);
  return eos;
}

/* The tokens beside @eos at which generation stops: files have a key for the end of a turn and one for that of a
 * message. */
static gboolean
add_stop_tokens (Writing *self,
                 const EbbJson *config,
                 gint64 eos)
{
  static const char *const keys[] = { "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id" };
  g_autofree char *file = g_build_filename (self->path, "generation_config.json", NULL);
  g_autoptr (EbbJson) generation = NULL;
  const EbbJson *stops;
  gsize n;
  guint n_written = 0;

  if (g_file_test (file, G_FILE_TEST_EXISTS)
      && (generation = ebb_json_read_file (file, MAX_FILE_SIZE, self->error)) == NULL)
    return FALSE;
  stops = ebb_json_get (generation, "eos_token_id");
  if (stops == NULL)
    stops = ebb_json_get (config, "eos_token_id");
  n = stops == NULL ? 0 : stops->kind == EBB_JSON_LIST ? stops->n_items
                                                       : 1;
  for (gsize i = 0; i < n; i++)
    {
      gint64 id = -1;

      ebb_json_as_int (stops->kind == EBB_JSON_LIST ? &stops->items[i] : stops, &id);
      if (id < 0 || id >= (gint64) self->n_tokens || id == eos)
        continue;
      if (n_written == G_N_ELEMENTS (keys))
        {
          g_message ("the GGUF file has no place for the stop token %" G_GINT64_FORMAT, id);
          break;
        }
      ebb_gguf_writer_add_u32 (self->writer, keys[n_written++], (guint32) id);
    }
  return TRUE;
}

static gboolean
write_tokenizer (Writing *self,
                 const EbbJson *config)
{
  const EbbTokenModel *model = &self->pipeline->model;
  g_autofree gint32 *types = g_new0 (gint32, self->n_tokens + 1);

  if (model->is_word_piece || (!model->is_byte_level && !model->byte_fallback))
    return refuse (self, "it is neither byte-level nor one with bytes for what the vocabulary lacks");
  if (model->is_byte_level ? !write_byte_level (self, types) : !write_sentence_piece (self, types))
    return FALSE;
  return add_stop_tokens (self, config, add_special_tokens (self, config));
}

/* Reads the tokenizer.json at @path. NULL without @error: the file does not exist. */
static EbbJson *
read_json (const char *path,
           GError **error)
{
  g_autoptr (EbbGguf) gguf = NULL;
  g_autoptr (GString) tokenizer = NULL;
  g_autoptr (GString) settings = NULL;
  g_autofree char *file = NULL;

  if (!ebb_gguf_is_path (path))
    {
      file = g_build_filename (path, "tokenizer.json", NULL);
      return g_file_test (file, G_FILE_TEST_EXISTS) ? ebb_json_read_file (file, MAX_FILE_SIZE, error) : NULL;
    }
  gguf = ebb_gguf_open (path, error);
  if (gguf == NULL || !ebb_gguf_has_tokenizer (gguf))
    return NULL;
  tokenizer = g_string_new (NULL);
  settings = g_string_new (NULL);
  return ebb_gguf_read_tokenizer (gguf, tokenizer, settings, error)
             ? ebb_json_parse (tokenizer->str, tokenizer->len, path, error)
             : NULL;
}

gboolean
ebb_gguf_write_tokenizer (EbbGgufWriter *writer,
                          const char *path,
                          guint n_tokens,
                          const EbbJson *config,
                          GError **error)
{
  GError *failure = NULL;
  g_autoptr (EbbJson) json = path != NULL ? read_json (path, &failure) : NULL;
  g_autoptr (EbbTokenizer) tokenizer = NULL;
  Writing self = { .writer = writer, .path = path, .json = json, .n_tokens = n_tokens, .error = error };

  if (failure != NULL)
    {
      g_propagate_error (error, failure);
      return FALSE;
    }
  if (json == NULL)
    {
      g_message ("the GGUF file has no tokenizer: %s",
                 path != NULL ? "there is no tokenizer.json where the model is from"
                              : "there is no folder with the files of the model's tokenizer");
      ebb_gguf_writer_add_string (writer, "tokenizer.ggml.model", "no_vocab");
      return TRUE;
    }
  tokenizer = ebb_tokenizer_open (path, error);
  if (tokenizer == NULL)
    return FALSE;
  self.pipeline = EBB_PIPELINE_TOKENIZER (tokenizer)->pipeline;
  return write_tokenizer (&self, config);
}
