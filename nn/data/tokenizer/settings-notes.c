/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Names the settings beside a tokenizer.json that have no effect here. */
#include "nn/data/tokenizer-settings-private.h"
#include "nn/data/tokenizer/pipeline-private.h"
#include "tensor/util/json-scanner-private.h"
#include "tensor/util/atomic-file-private.h"

#include <string.h>

static void
add_note (GString *notes,
          const char *format,
          ...) G_GNUC_PRINTF (2, 3);

static void
add_note (GString *notes,
          const char *format,
          ...)
{
  va_list arguments;

  g_string_append (notes, notes->len > 0 ? "; " : "");
  va_start (arguments, format);
  g_string_append_vprintf (notes, format, arguments);
  va_end (arguments);
}

/* The token that a member of a list or object stands for: a string, an object with its content, or a key. */
static const char *
get_content (const EbbJson *item)
{
  const char *text = NULL;

  if (!ebb_json_as_string (item, &text) && !ebb_json_as_string (ebb_json_get (item, "content"), &text)
      && item->kind == EBB_JSON_NUMBER)
    text = item->key;
  return text;
}

/* Names the first token of the list or object @items that the tokenizer lacks, and how many more there are. */
static void
note_missing_tokens (const EbbTokenizerPipeline *self,
                     const char *key,
                     const EbbJson *items,
                     GString *notes)
{
  g_autofree char *first = NULL;
  gsize n = 0;

  if (items == NULL || (items->kind != EBB_JSON_LIST && items->kind != EBB_JSON_OBJECT))
    return;
  for (gsize i = 0; i < items->n_items; i++)
    {
      const char *text = get_content (&items->items[i]);

      if (text == NULL || *text == '\0' || ebb_tokenizer_pipeline_find_token (self, text) >= 0)
        continue;
      if (n++ == 0)
        first = ebb_json_quote (text);
    }
  if (n == 1)
    add_note (notes, "%s: %s is no token of tokenizer.json", key, first);
  else if (n > 1)
    add_note (notes, "%s: %s and %" G_GSIZE_FORMAT " more are no tokens of tokenizer.json", key, first, n - 1);
}

/* Names the token of a task that the tokenizer lacks, from @map only where @config doesn't say. */
static void
note_missing_token (const EbbTokenizerPipeline *self,
                    const EbbJson *config,
                    const EbbJson *map,
                    const char *key,
                    GString *notes)
{
  const char *text = ebb_tokenizer_settings_find_token (config, map, key);
  g_autofree char *quoted = NULL;

  if (text == NULL || *text == '\0' || ebb_tokenizer_pipeline_find_token (self, text) >= 0)
    return;
  quoted = ebb_json_quote (text);
  add_note (notes, "%s: %s is no token of tokenizer.json", key, quoted);
}

/* Names add_bos_token or add_eos_token if texts get the token although the setting says no, or the reverse. */
static void
note_frame (const EbbTokenizerPipeline *self,
            const EbbJson *config,
            const char *key,
            EbbSpecialToken which,
            GString *notes)
{
  const gint64 token = self->special_tokens[which];
  gboolean is_wanted, is_there = FALSE;

  for (guint i = 0; token >= 0 && i < self->n_template; i++)
    is_there = is_there || self->template[i] == token;
  if (ebb_json_as_boolean (ebb_json_get (config, key), &is_wanted) && is_wanted != is_there)
    add_note (notes, "%s is %s: %s", key, is_wanted ? "true" : "false",
              token >= 0 ? "the special tokens that tokenizer.json puts around a text stay" : "there is no such token");
}

/* Names a side other than that of rows and texts here. tokenizer.json says it where @config does not. */
static void
note_side (const EbbJson *config,
           const char *key,
           const EbbJson *json,
           const char *part,
           const char *instead,
           GString *notes)
{
  const char *side = NULL;

  if (ebb_json_as_string (ebb_json_get (config, key), &side))
    {
      if (strcmp (side, "left") == 0)
        add_note (notes, "%s is left: %s", key, instead);
    }
  else if (ebb_json_as_string (ebb_json_get (ebb_json_get (json, part), "direction"), &side)
           && strcmp (side, "Left") == 0)
    add_note (notes, "the direction of %s in tokenizer.json is Left: %s", part, instead);
}

static void
note_true (const EbbJson *config,
           const char *key,
           const char *instead,
           GString *notes)
{
  gboolean is_set = FALSE;

  if (ebb_json_as_boolean (ebb_json_get (config, key), &is_set) && is_set)
    add_note (notes, "%s is true: %s", key, instead);
}

gboolean
ebb_tokenizer_pipeline_note_settings (const EbbTokenizerPipeline *self,
                                      const char *folder,
                                      const EbbJson *json,
                                      const EbbJson *config,
                                      const EbbJson *map,
                                      GError **error)
{
  static const char *const tokens[] = { "bos_token", "eos_token", "pad_token", "unk_token",
                                        "sep_token", "cls_token", "mask_token" };
  static const char *const lists[] = { "added_tokens_decoder", "additional_special_tokens", "extra_special_tokens" };
  g_autoptr (EbbJson) added = NULL;
  g_autoptr (GString) notes = g_string_new (NULL);
  g_autofree char *shown = ebb_escape_text (folder);

  if (!ebb_tokenizer_settings_read (folder, "added_tokens.json", &added, error))
    return FALSE;
  for (guint i = 0; i < G_N_ELEMENTS (tokens); i++)
    note_missing_token (self, config, map, tokens[i], notes);
  for (guint i = 0; i < G_N_ELEMENTS (lists); i++)
    {
      const EbbJson *items = ebb_json_get (config, lists[i]);

      note_missing_tokens (self, lists[i], items != NULL ? items : ebb_json_get (map, lists[i]), notes);
    }
  note_missing_tokens (self, "added_tokens.json", added, notes);
  note_frame (self, config, "add_bos_token", EBB_SPECIAL_TOKEN_BOS, notes);
  note_frame (self, config, "add_eos_token", EBB_SPECIAL_TOKEN_EOS, notes);
  note_side (config, "padding_side", json, "padding", "rows are padded on the right unless a call says otherwise",
             notes);
  note_side (config, "truncation_side", json, "truncation", "texts are cut at their end", notes);
  note_true (config, "split_special_tokens", "special tokens in a text are recognized", notes);
  if (!ebb_decoder_list_cleans_up (&self->decoders))
    note_true (config, "clean_up_tokenization_spaces", "decoded texts keep their blanks", notes);
  if (notes->len > 0)
    g_message ("%s: settings of the tokenizer without effect: %s", shown, notes->str);
  return TRUE;
}
