/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Reads the files beside a tokenizer.json. */
#include "nn/data/tokenizer-settings-private.h"

#include "nn/data/utf8-private.h"
#include "nn/files/file-error-private.h"
#include "tensor/error-private.h"
#include "tensor/util/json-scanner-private.h"
#include "tensor/util/atomic-file-private.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#define MAX_FILE_SIZE ((gsize) 16 << 20)

static gboolean
is_missing (const char *path)
{
  return access (path, F_OK) != 0 && errno == ENOENT;
}

gboolean
ebb_tokenizer_settings_read (const char *folder,
                             const char *name,
                             EbbJson **json,
                             GError **error)
{
  g_autofree char *path = g_build_filename (folder, name, NULL);

  *json = NULL;
  if (is_missing (path))
    return TRUE;
  *json = ebb_json_read_file_with_nul (path, MAX_FILE_SIZE, error);
  return *json != NULL;
}

/* A token is a string, or an object with its content. */
static const char *
get_token (const EbbJson *json, const char *key)
{
  const EbbJson *member = ebb_json_get (json, key);
  const char *text = NULL;

  if (!ebb_json_as_string (member, &text))
    ebb_json_as_string (ebb_json_get (member, "content"), &text);
  return text;
}

const char *
ebb_tokenizer_settings_find_token (const EbbJson *config,
                                   const EbbJson *map,
                                   const char *key)
{
  return get_token (ebb_json_get (config, key) != NULL ? config : map, key);
}

/* The template in the settings: a string, or the one of a list that is called "default". */
static const char *
find_chat_template (const EbbJson *config)
{
  const EbbJson *member = ebb_json_get (config, "chat_template");
  const char *text = NULL, *name;

  if (ebb_json_as_string (member, &text) || member == NULL || member->kind != EBB_JSON_LIST)
    return text;
  for (gsize i = 0; i < member->n_items; i++)
    if (ebb_json_as_string (ebb_json_get (&member->items[i], "name"), &name) && strcmp (name, "default") == 0)
      ebb_json_as_string (ebb_json_get (&member->items[i], "template"), &text);
  return text;
}

gboolean
ebb_tokenizer_settings_read_chat_template (const char *folder,
                                           const EbbJson *config,
                                           char **text,
                                           GError **error)
{
  g_autofree char *path = g_build_filename (folder, "chat_template.jinja", NULL);
  g_autofree char *shown = NULL;
  gsize length;

  if (is_missing (path))
    {
      *text = g_strdup (find_chat_template (config));
      return TRUE;
    }
  *text = ebb_read_file (path, MAX_FILE_SIZE, &length, error);
  if (*text == NULL)
    return FALSE;
  if (g_utf8_validate_len (*text, length, NULL))
    return TRUE;
  shown = ebb_escape_text (path);
  ebb_error_set (error, EBB_ERROR_FORMAT, "%s: not UTF-8", shown);
  g_clear_pointer (text, g_free);
  return FALSE;
}

/* -- GGUF ---------------------------------------------------------------------------------------------------------- */

static const char *const gguf_tokens[][2] = {
  { "bos_token", "tokenizer.ggml.bos_token_id" },
  { "eos_token", "tokenizer.ggml.eos_token_id" },
  { "pad_token", "tokenizer.ggml.padding_token_id" },
  { "unk_token", "tokenizer.ggml.unknown_token_id" },
  { "sep_token", "tokenizer.ggml.seperator_token_id" },
  { "mask_token", "tokenizer.ggml.mask_token_id" },
};

/* FALSE with an error if a value has the wrong type. */
static gboolean
append_token (const EbbGguf *gguf,
              const EbbGgufString *tokens,
              gsize n_tokens,
              const char *const names[2],
              GString *json,
              GError **error)
{
  g_autofree char *text = NULL;
  GError *failure = NULL;
  gint64 id;

  if (!ebb_gguf_get_int (gguf, names[1], &id, &failure))
    {
      if (failure != NULL)
        g_propagate_error (error, failure);
      return failure == NULL;
    }
  if (id < 0 || id >= (gint64) n_tokens)
    return TRUE;
  if (ebb_utf8_find_invalid ((const guint8 *) tokens[id].text, tokens[id].length) < tokens[id].length)
    return ebb_file_fail (gguf->tensors->path, error, "token %" G_GINT64_FORMAT " is not UTF-8", id);
  text = ebb_utf8_spell_nul (tokens[id].text, tokens[id].length, NULL);
  g_string_append_printf (json, "%s\"%s\": ", json->len > 1 ? ", " : "", names[0]);
  ebb_json_append_string (json, text);
  return TRUE;
}

/* Whether texts begin and end with special tokens: where the file doesn't say, by the kind of the tokenizer. */
static gboolean
append_frame (const EbbGguf *gguf,
              GString *json,
              GError **error)
{
  static const char *const with_bos[] = { "llama-bpe", "llama3", "llama-v3", "tekken", NULL };
  g_autofree char *model = NULL;
  g_autofree char *pre = NULL;
  GError *failure = NULL;
  gboolean adds_bos, adds_eos = FALSE;

  (void) (ebb_gguf_get_string (gguf, "tokenizer.ggml.model", &model, &failure)
          && ebb_gguf_get_string (gguf, "tokenizer.ggml.pre", &pre, &failure));
  adds_bos = g_strcmp0 (model, "llama") == 0 || (pre != NULL && g_strv_contains (with_bos, pre));
  if (failure == NULL)
    ebb_gguf_get_boolean (gguf, "tokenizer.ggml.add_bos_token", &adds_bos, &failure);
  if (failure == NULL)
    ebb_gguf_get_boolean (gguf, "tokenizer.ggml.add_eos_token", &adds_eos, &failure);
  g_string_append_printf (json, "%s\"add_bos_token\": %s, \"add_eos_token\": %s", json->len > 1 ? ", " : "",
                          adds_bos ? "true" : "false", adds_eos ? "true" : "false");
  if (failure != NULL)
    g_propagate_error (error, failure);
  return failure == NULL;
}

gboolean
ebb_tokenizer_settings_append_gguf (const EbbGguf *gguf,
                                    GString *json,
                                    GError **error)
{
  GError *failure = NULL;
  gsize n_tokens;
  g_autofree EbbGgufString *tokens = ebb_gguf_get_strings (gguf, "tokenizer.ggml.tokens", &n_tokens, &failure);
  g_autofree char *template = NULL;

  g_string_append_c (json, '{');
  for (guint i = 0; failure == NULL && i < G_N_ELEMENTS (gguf_tokens); i++)
    append_token (gguf, tokens, n_tokens, gguf_tokens[i], json, &failure);
  if (failure == NULL && append_frame (gguf, json, &failure)
      && ebb_gguf_get_string (gguf, "tokenizer.chat_template", &template, &failure))
    {
      g_string_append (json, ", \"chat_template\": ");
      ebb_json_append_string (json, template);
    }
  g_string_append (json, "}\n");
  if (failure != NULL)
    g_propagate_error (error, failure);
  return failure == NULL;
}

EbbJson *
ebb_tokenizer_settings_read_gguf (const char *path,
                                  GError **error)
{
  g_autoptr (EbbGguf) gguf = ebb_gguf_open (path, error);
  g_autoptr (GString) text = g_string_new (NULL);

  return gguf != NULL && ebb_tokenizer_settings_append_gguf (gguf, text, error)
             ? ebb_json_parse_with_nul (text->str, text->len, path, error)
             : NULL;
}
