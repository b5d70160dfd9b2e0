/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "nn/files/gguf-private.h"
#include "tensor/util/json-private.h"

/* The tokenizer of a GGUF file, as values of llama.cpp's converter, and as the files of a folder. */

G_BEGIN_DECLS

/* llama.cpp's types of tokens. */
typedef enum
{
  EBB_GGUF_TOKEN_NORMAL = 1,
  EBB_GGUF_TOKEN_UNKNOWN,
  EBB_GGUF_TOKEN_CONTROL,
  EBB_GGUF_TOKEN_USER_DEFINED,
  EBB_GGUF_TOKEN_UNUSED,
  EBB_GGUF_TOKEN_BYTE
} EbbGgufTokenType;

/* How byte-level tokenizers cut words: what "tokenizer.ggml.pre" calls it, and tokenizer.json's parts. */
typedef struct
{
  const char *names[4];                 /* the first one is written */
  const char *expression;               /* of a Split; NULL: that of ByteLevel itself */
  gboolean splits_digits;               /* first */
  gboolean ignores_merges, is_composed; /* composed: NFC comes first */
} EbbGgufPreTokenizer;

extern const EbbGgufPreTokenizer ebb_gguf_pre_tokenizers[]; /* up to one without names */

/* -- gguf-read.c */

gboolean ebb_gguf_has_tokenizer (const EbbGguf *gguf);
/* Appends the text of a tokenizer.json and of a tokenizer_config.json. */
gboolean ebb_gguf_read_tokenizer (const EbbGguf *gguf,
                                  GString *tokenizer,
                                  GString *settings,
                                  GError **error);

/* -- gguf-write.c */

/* Adds the values of the tokenizer at @path, a folder or a GGUF file, for a model of @n_tokens. @config: the model's
 * config.json, whose special tokens count where the tokenizer names none; NULL: there is none. Without a tokenizer.json
 * there, and with @path NULL, the file says that it has no vocabulary, with a message. */
gboolean ebb_gguf_write_tokenizer (EbbGgufWriter *writer,
                                   const char *path,
                                   guint n_tokens,
                                   const EbbJson *config,
                                   GError **error);

G_END_DECLS
