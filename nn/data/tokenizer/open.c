/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Opens the tokenizer of a model's folder. */
#include "nn/data/tokenizer/gguf-private.h"
#include "nn/data/tokenizer/json-parts-private.h"
#include "nn/data/tokenizer/pipeline-private.h"
#include "nn/data/tokenizer-settings-private.h"
#include "tensor/error-private.h"
#include "tensor/util/atomic-file-private.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#define MAX_FILE_SIZE ((gsize) 256 << 20)

static void
find_special_tokens (EbbTokenizerPipeline *self,
                     const EbbJson *config,
                     const EbbJson *map)
{
  static const char *const keys[] = { "bos_token", "eos_token", "pad_token", "unk_token",
                                      "sep_token", "cls_token", "mask_token" };

  for (guint i = 0; i < G_N_ELEMENTS (keys); i++)
    {
      const char *text = ebb_tokenizer_settings_find_token (config, map, keys[i]);

      if (text != NULL)
        self->special_tokens[i] = ebb_tokenizer_pipeline_find_token (self, text);
    }
}

/* Whether tokenizer.json puts other tokens than those for the begin and the end of a text around a text, as BERT's. */
static gboolean
has_own_template (const EbbTokenizerPipeline *self)
{
  const gint64 *special = self->special_tokens;

  for (guint i = 0; i < self->n_template; i++)
    if (self->template[i] >= 0
        && (self->template[i] == special[EBB_SPECIAL_TOKEN_CLS] || self->template[i] == special[EBB_SPECIAL_TOKEN_SEP]
            || (self->template[i] != special[EBB_SPECIAL_TOKEN_BOS]
                && self->template[i] != special[EBB_SPECIAL_TOKEN_EOS])))
      return TRUE;
  return FALSE;
}

/* The settings say whether a text begins and ends with special tokens: they replace what tokenizer.json says. */
static gboolean
take_template (EbbTokenizerPipeline *self,
               const EbbJson *config,
               GError **error)
{
  gboolean adds_bos = FALSE, adds_eos = FALSE;
  const EbbJson *bos = ebb_json_get (config, "add_bos_token"), *eos = ebb_json_get (config, "add_eos_token");
  gint64 template[3];
  guint n = 0;

  if (!ebb_json_part_get_boolean (config, "add_bos_token", &adds_bos, error)
      || !ebb_json_part_get_boolean (config, "add_eos_token", &adds_eos, error))
    return FALSE;
  if ((bos == NULL || bos->kind == EBB_JSON_NULL) && (eos == NULL || eos->kind == EBB_JSON_NULL))
    return TRUE;
  if (has_own_template (self))
    return TRUE;
  if (adds_bos && self->special_tokens[EBB_SPECIAL_TOKEN_BOS] >= 0)
    template[n++] = self->special_tokens[EBB_SPECIAL_TOKEN_BOS];
  template[n++] = -1;
  if (adds_eos && self->special_tokens[EBB_SPECIAL_TOKEN_EOS] >= 0)
    template[n++] = self->special_tokens[EBB_SPECIAL_TOKEN_EOS];
  g_free (self->template);
  self->template = g_memdup2 (template, n * sizeof *template);
  self->n_template = n;
  return TRUE;
}

static gboolean
read_settings (EbbTokenizerPipeline *self,
               const char *folder,
               const EbbJson *json,
               GError **error)
{
  g_autoptr (EbbJson) config = NULL;
  g_autoptr (EbbJson) map = NULL;

  if (!ebb_tokenizer_settings_read (folder, "tokenizer_config.json", &config, error)
      || !ebb_tokenizer_settings_read (folder, "special_tokens_map.json", &map, error))
    return FALSE;
  find_special_tokens (self, config, map);
  if (!take_template (self, config, error))
    {
      g_autofree char *shown = ebb_escape_text (folder);

      g_prefix_error (error, "%s" G_DIR_SEPARATOR_S "tokenizer_config.json: ", shown);
      return FALSE;
    }
  return ebb_tokenizer_pipeline_note_settings (self, folder, json, config, map, error)
         && ebb_tokenizer_settings_read_chat_template (folder, config, &self->chat_template, error);
}

/* Without tokenizer.json, which files there are says what would be right. */
static gboolean
check_is_there (const char *folder,
                const char *path,
                GError **error)
{
  static const struct
  {
    const char *name, *means;
  } others[] = {
    { "adapter_config.json",
      "the folder is an adapter: open the model that it was trained on, and name this folder as its adapter" },
    { "pytorch_model.bin*",
      "it is of a model whose weights are no safetensors either: open it in transformers and save "
      "model and tokenizer by save_pretrained ()" },
    { "tokenizer.model", "save the tokenizer by transformers' AutoTokenizer, which writes one" },
    { "spiece.model", "save the tokenizer by transformers' AutoTokenizer, which writes one" },
    { "vocab.*", "save the tokenizer by transformers' AutoTokenizer, which writes one" },
  };
  g_auto (GStrv) names = NULL;
  g_autofree char *shown = NULL;

  if (access (path, F_OK) == 0 || errno != ENOENT)
    return TRUE;
  names = ebb_list_folder (folder, error);
  if (names == NULL)
    return FALSE;
  shown = ebb_escape_text (folder);
  for (guint i = 0; i < G_N_ELEMENTS (others); i++)
    for (guint j = 0; names[j] != NULL; j++)
      if (g_pattern_match_simple (others[i].name, names[j]))
        return ebb_fail (error, EBB_ERROR_IO, "%s: there is no tokenizer.json, but %s: %s", shown,
                         ebb_show_text (names[j]), others[i].means);
  return ebb_fail (error, EBB_ERROR_IO,
                   "%s: there is no tokenizer.json; copy there the one that the model was trained with", shown);
}

/* Of a folder. */
static gboolean
read_folder (EbbTokenizerPipeline *self,
             const char *folder,
             GError **error)
{
  g_autoptr (EbbJson) json = ebb_check_folder (folder, error) && check_is_there (folder, self->name, error)
                                 ? ebb_json_read_file_with_nul (self->name, MAX_FILE_SIZE, error)
                                 : NULL;

  return json != NULL && ebb_tokenizer_pipeline_read (self, json, error) && read_settings (self, folder, json, error);
}

static gboolean
read_gguf (EbbTokenizerPipeline *self,
           GError **error)
{
  g_autoptr (EbbGguf) gguf = ebb_gguf_open (self->name, error);
  g_autoptr (GString) tokenizer = g_string_new (NULL);
  g_autoptr (GString) settings = g_string_new (NULL);
  g_autoptr (EbbJson) json = NULL;
  g_autoptr (EbbJson) config = NULL;
  const char *template = NULL;

  if (gguf == NULL || !ebb_gguf_read_tokenizer (gguf, tokenizer, settings, error))
    return FALSE;
  json = ebb_json_parse_with_nul (tokenizer->str, tokenizer->len, self->name, error);
  config = json != NULL ? ebb_json_parse_with_nul (settings->str, settings->len, self->name, error) : NULL;
  if (config == NULL || !ebb_tokenizer_pipeline_read (self, json, error))
    return FALSE;
  find_special_tokens (self, config, NULL);
  ebb_json_as_string (ebb_json_get (config, "chat_template"), &template);
  self->chat_template = g_strdup (template);
  return take_template (self, config, error);
}

/**
 * ebb_tokenizer_open:
 * @folder: (type filename): a folder with a `tokenizer.json`, or a GGUF file, whose name ends with `.gguf`
 * @error: return location for an error
 *
 * Opens the tokenizer of a model's folder, as programs of Hugging Face write it: byte-pair encoding, byte-level or with
 * bytes for characters that the vocabulary lacks, and WordPiece. `tokenizer_config.json` and `special_tokens_map.json`
 * say which token has which task, and whether a text begins and ends with special tokens.
 *
 * A GGUF file has byte-level encoding ("gpt2") or SentencePiece's ("llama"), its special tokens and its chat template.
 *
 * Tokens are those that the Python package `tokenizers` gives. Its settings for padding and cutting are ignored.
 *
 * Returns: (transfer full) (nullable): the tokenizer; %NULL with %EBB_ERROR_IO if a file can't be read,
 *   %EBB_ERROR_FORMAT if something in it is wrong, %EBB_ERROR_NOT_SUPPORTED if the tokenizer has parts of other kinds
 */
EbbTokenizer *
ebb_tokenizer_open (const char *folder,
                    GError **error)
{
  g_autofree char *path = NULL;
  g_autoptr (EbbTokenizerPipeline) pipeline = NULL;
  EbbPipelineTokenizer *self;
  gboolean is_gguf;

  EBB_RETURN_UNLESS_BEGUN (NULL, error, folder);

  is_gguf = ebb_gguf_is_path (folder) && !g_file_test (folder, G_FILE_TEST_IS_DIR);
  path = is_gguf ? g_strdup (folder) : g_build_filename (folder, "tokenizer.json", NULL);
  pipeline = ebb_tokenizer_pipeline_new (path);
  if (is_gguf ? !read_gguf (pipeline, error) : !read_folder (pipeline, folder, error))
    return NULL;
  self = g_object_new (EBB_TYPE_PIPELINE_TOKENIZER, NULL);
  self->pipeline = g_steal_pointer (&pipeline);
  return EBB_TOKENIZER (self);
}
