/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "nn/data/tokenizer/bpe-tokenizer-private.h"

#include "nn/data/tokenizer/characters-private.h"
#include "nn/data/tokenizer/pipeline-private.h"
#include "tensor/util/json-scanner-private.h"
#include "tensor/error-private.h"
#include "tensor/util/atomic-file-private.h"
#include "tensor/util/property-private.h"

#include <gio/gio.h>

/* GPT-2's tokenizer out of its two files: the parts of a tokenizer.json that they stand for. */

struct _EbbBpeTokenizer
{
  EbbPipelineTokenizer parent_instance;

  char *vocab_path;
  char *merges_path;
};

static void ebb_bpe_tokenizer_initable_init (GInitableIface *iface);

G_DEFINE_FINAL_TYPE_WITH_CODE (EbbBpeTokenizer,
                               ebb_bpe_tokenizer,
                               EBB_TYPE_PIPELINE_TOKENIZER,
                               G_IMPLEMENT_INTERFACE (G_TYPE_INITABLE, ebb_bpe_tokenizer_initable_init))

/**
 * ebb_bpe_tokenizer_find_token:
 * @self: a tokenizer
 * @text: a token as its vocab.json spells it, like "<|endoftext|>"
 *
 * Returns: its number; -1 if there is no such token
 */
gint64
ebb_bpe_tokenizer_find_token (EbbBpeTokenizer *self,
                              const char *text)
{
  g_return_val_if_fail (EBB_IS_BPE_TOKENIZER (self), -1);
  g_return_val_if_fail (text != NULL, -1);

  return ebb_tokenizer_find_token (EBB_TOKENIZER (self), text);
}

/* -- the object ---------------------------------------------------------------------------------------------------- */

#define MAX_FILE_SIZE ((gsize) 256 << 20)

/* Each id in [0, size) must have a token. */
static gboolean
read_vocab (const char *path,
            EbbVocabulary *vocabulary,
            GError **error)
{
  g_autoptr (EbbJson) json = ebb_json_read_file (path, MAX_FILE_SIZE, error);
  g_autofree char *shown = ebb_escape_text (path);

  if (json == NULL)
    return FALSE;
  if (!ebb_vocabulary_read (vocabulary, json, error))
    {
      g_prefix_error (error, "%s: ", shown);
      return FALSE;
    }
  if (vocabulary->size == 0)
    return ebb_fail (error, EBB_ERROR_FORMAT, "%s: the vocabulary is empty", shown);
  for (guint32 i = 0; vocabulary->n_tokens < vocabulary->size && i < vocabulary->size; i++)
    if (ebb_vocabulary_get (vocabulary, i) == NULL)
      return ebb_fail (error, EBB_ERROR_FORMAT, "%s: no token has the id %u: ids must be 0 to %u, each once",
                       shown, i, vocabulary->size - 1);
  return TRUE;
}

static EbbTokenizerPipeline *
read_files (const char *vocab_path,
            const char *merges_path,
            GError **error)
{
  g_autoptr (EbbTokenizerPipeline) pipeline = ebb_tokenizer_pipeline_new (vocab_path);
  const gint64 whole = -1;
  EbbVocabulary vocabulary = { 0 };
  g_autofree char *merges = NULL;
  gsize length;
  gboolean ok = read_vocab (vocab_path, &vocabulary, error);

  merges = ok ? ebb_read_file (merges_path, MAX_FILE_SIZE, &length, error) : NULL;
  pipeline->vocab_size = vocabulary.size;
  ok = merges != NULL
       && ebb_token_model_read_merges (&pipeline->model, &vocabulary, merges_path, merges, length, error);
  ebb_vocabulary_clear (&vocabulary);
  if (!ok)
    return NULL;
  ebb_pre_tokenizer_list_make_gpt2 (&pipeline->pre_tokenizers);
  ebb_decoder_list_make_byte_level (&pipeline->decoders);
  pipeline->template = g_memdup2 (&whole, sizeof whole);
  pipeline->n_template = 1;
  ebb_tokenizer_pipeline_finish (pipeline);
  return g_steal_pointer (&pipeline);
}

static gboolean
ebb_bpe_tokenizer_initable_init_instance (GInitable *initable,
                                          GCancellable *cancellable,
                                          GError **error)
{
  EbbBpeTokenizer *self = EBB_BPE_TOKENIZER (initable);
  EbbTokenizerPipeline **pipeline = &self->parent_instance.pipeline;

  if (*pipeline != NULL)
    return TRUE;
  if (self->vocab_path == NULL || self->merges_path == NULL)
    return ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT,
                     "a BPE tokenizer needs the paths of its vocab.json and merges.txt");
  *pipeline = read_files (self->vocab_path, self->merges_path, error);
  return *pipeline != NULL;
}

static void
ebb_bpe_tokenizer_initable_init (GInitableIface *iface)
{
  iface->init = ebb_bpe_tokenizer_initable_init_instance;
}

static void
ebb_bpe_tokenizer_finalize (GObject *object)
{
  EbbBpeTokenizer *self = EBB_BPE_TOKENIZER (object);

  g_free (self->vocab_path);
  g_free (self->merges_path);
  G_OBJECT_CLASS (ebb_bpe_tokenizer_parent_class)->finalize (object);
}

static void
ebb_bpe_tokenizer_class_init (EbbBpeTokenizerClass *klass)
{
  GObjectClass *object_class = G_OBJECT_CLASS (klass);
  const GParamFlags flags = G_PARAM_READWRITE | G_PARAM_CONSTRUCT_ONLY | G_PARAM_STATIC_STRINGS;

  object_class->get_property = ebb_property_get_field;
  object_class->set_property = ebb_property_set_field;
  object_class->finalize = ebb_bpe_tokenizer_finalize;

  /**
   * EbbBpeTokenizer:vocab-path:
   *
   * The file with the tokens and their numbers.
   */
  g_object_class_install_property (object_class, offsetof (EbbBpeTokenizer, vocab_path),
                                   g_param_spec_string ("vocab-path", NULL, NULL, NULL, flags));
  /**
   * EbbBpeTokenizer:merges-path:
   *
   * The file with the merges, most important first.
   */
  g_object_class_install_property (object_class, offsetof (EbbBpeTokenizer, merges_path),
                                   g_param_spec_string ("merges-path", NULL, NULL, NULL, flags));
}

static void
ebb_bpe_tokenizer_init (EbbBpeTokenizer *self)
{
}

/**
 * ebb_bpe_tokenizer_new:
 * @vocab_path: (type filename): the model's `vocab.json`: an object with each token's number
 * @merges_path: (type filename): the model's `merges.txt`: two tokens a line, most important first
 * @error: return location for an error
 *
 * Makes GPT-2's byte-level byte-pair encoding, given the files that are published with a model. Encoding splits the
 * text with GPT-2's expression and merges bytes by rank; special tokens such as `<|endoftext|>` are text like any other
 * (see ebb_bpe_tokenizer_find_token()). Bytes that are not UTF-8 are encoded too, and come back from
 * ebb_tokenizer_decode().
 *
 * Returns: (transfer full) (nullable): the tokenizer; %NULL with %EBB_ERROR_IO if a file can't be read,
 * %EBB_ERROR_FORMAT if something in it is wrong
 */
EbbTokenizer *
ebb_bpe_tokenizer_new (const char *vocab_path,
                       const char *merges_path,
                       GError **error)
{
  EBB_RETURN_UNLESS_BEGUN (NULL, error, vocab_path, merges_path);

  return g_initable_new (EBB_TYPE_BPE_TOKENIZER, NULL, error, "vocab-path", vocab_path, "merges-path", merges_path,
                         NULL);
}

/* -- as a tokenizer.json ------------------------------------------------------------------------------------------- */

/* Without merges, the words that GPT-2's expression finds change no token: they let a text be encoded in parts. */
static void
append_bytes (GString *json)
{
  const EbbByteAlphabet *alphabet = ebb_byte_alphabet_get ();

  for (guint byte = 0; byte < 256; byte++)
    {
      g_autofree char *character = g_strndup (alphabet->spelling[byte], alphabet->length[byte]);

      g_string_append (json, byte == 0 ? "{" : ", ");
      ebb_json_append_string (json, character);
      g_string_append_printf (json, ": %u", byte);
    }
  g_string_append (json, "},\n\"merges\": [");
}

static gboolean
append_files (const char *folder,
              GString *json,
              GError **error)
{
  g_autofree char *vocab_path = g_build_filename (folder, "vocab.json", NULL);
  g_autofree char *merges_path = g_build_filename (folder, "merges.txt", NULL);
  g_autofree char *vocab = NULL;
  g_autofree char *merges = NULL;
  g_auto (GStrv) lines = NULL;
  gboolean has_one = FALSE;
  gsize length;

  vocab = ebb_read_file (vocab_path, MAX_FILE_SIZE, &length, error);
  merges = vocab != NULL ? ebb_read_file (merges_path, MAX_FILE_SIZE, &length, error) : NULL;
  if (merges == NULL)
    return FALSE;
  g_string_append_printf (json, "%s,\n\"merges\": [", vocab);
  lines = g_strsplit (merges, "\n", -1);
  for (guint i = 0; lines[i] != NULL; i++)
    {
      g_strchomp (lines[i]);
      if (*lines[i] == '\0' || (i == 0 && g_str_has_prefix (lines[i], "#version")))
        continue;
      g_string_append (json, has_one ? ",\n" : "");
      ebb_json_append_string (json, lines[i]);
      has_one = TRUE;
    }
  return TRUE;
}

gboolean
ebb_bpe_tokenizer_write (const char *folder,
                         GString *json,
                         GString *settings,
                         GError **error)
{
  g_string_append (json,
                   "{\"version\": \"1.0\", \"truncation\": null, \"padding\": null, \"added_tokens\": [],\n"
                   "\"normalizer\": null,\n\"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": "
                   "false, \"trim_offsets\": true, \"use_regex\": true},\n\"post_processor\": null,\n"
                   "\"decoder\": {\"type\": \"ByteLevel\", \"add_prefix_space\": true, \"trim_offsets\": true, "
                   "\"use_regex\": true},\n\"model\": {\"type\": \"BPE\", \"dropout\": null, \"unk_token\": null, "
                   "\"continuing_subword_prefix\": null, \"end_of_word_suffix\": null, \"fuse_unk\": false, "
                   "\"byte_fallback\": false, \"ignore_merges\": false,\n\"vocab\": ");
  g_string_append (settings, "{\"tokenizer_class\": \"PreTrainedTokenizerFast\", "
                             "\"clean_up_tokenization_spaces\": false}\n");
  if (folder == NULL)
    append_bytes (json);
  else if (!append_files (folder, json, error))
    return FALSE;
  g_string_append (json, "]}}\n");
  return TRUE;
}
