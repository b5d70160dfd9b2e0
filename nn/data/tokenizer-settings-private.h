/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "nn/files/gguf-private.h"
#include "tensor/util/json-private.h"

/* The files beside a tokenizer.json: tokenizer_config.json, special_tokens_map.json, chat_template.jinja. */

G_BEGIN_DECLS

/* The JSON of a file in @folder; @json is NULL if there is no such file. */
gboolean ebb_tokenizer_settings_read (const char *folder,
                                      const char *name,
                                      EbbJson **json,
                                      GError **error);
/* The token that @key names in @config, the tokenizer_config.json, or where it lacks the key in @map, the older
 * special_tokens_map.json; NULL if there is none. */
const char *ebb_tokenizer_settings_find_token (const EbbJson *config,
                                               const EbbJson *map,
                                               const char *key);
/* The text of chat_template.jinja, or that in @config, the tokenizer_config.json. @text is NULL if there is none. */
gboolean ebb_tokenizer_settings_read_chat_template (const char *folder,
                                                    const EbbJson *config,
                                                    char **text,
                                                    GError **error);
/* Appends the tokenizer_config.json that a GGUF file stands for: special tokens, those around a text, the template. */
gboolean ebb_tokenizer_settings_append_gguf (const EbbGguf *gguf,
                                             GString *json,
                                             GError **error);
/* The same, read. */
EbbJson *ebb_tokenizer_settings_read_gguf (const char *path,
                                           GError **error);

G_END_DECLS
