/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "nn/data/tokenizer/bpe-tokenizer.h"

/* Tokenizers that have no tokenizer.json, as the files that stand for them. */

G_BEGIN_DECLS

/* Appends the tokenizer.json and the tokenizer_config.json of GPT-2's vocab.json and merges.txt in @folder; NULL: of
 * the 256 bytes. */
gboolean ebb_bpe_tokenizer_write (const char *folder,
                                  GString *json,
                                  GString *settings,
                                  GError **error);

G_END_DECLS
