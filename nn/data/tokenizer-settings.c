/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Reads the files beside a tokenizer.json. */
#include "nn/data/tokenizer-settings-private.h"

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
  *json = ebb_json_read_file (path, MAX_FILE_SIZE, error);
  return *json != NULL;
}

/* A token is a string, or an object with its content. */
const char *
ebb_tokenizer_settings_get_token (const EbbJson *json,
                                  const char *key)
{
  const EbbJson *member = ebb_json_get (json, key);
  const char *text = NULL;

  if (!ebb_json_as_string (member, &text))
    ebb_json_as_string (ebb_json_get (member, "content"), &text);
  return text;
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
  g_set_error (error, EBB_ERROR, EBB_ERROR_FORMAT, "%s: not UTF-8", shown);
  g_clear_pointer (text, g_free);
  return FALSE;
}
