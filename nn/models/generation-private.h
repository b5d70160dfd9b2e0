/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "nn/data/tokenizer/token-decoder.h"
#include "nn/models/generate.h"

/* The rows of a generation. */

G_BEGIN_DECLS

typedef struct
{
  GArray *tokens; /* gint64: the prompt, then what is generated */
  guint n_prompt;
  EbbTokenDecoder *decoder; /* NULL: there is no tokenizer, or the row has ended */
  GString *text;            /* of what is generated; NULL: there is no tokenizer */
  gsize n_passed;           /* bytes of it that the callback has */
  EbbGenerationEnd end;
} EbbGenerationRow;

struct _EbbGeneration
{
  GObject parent_instance;

  EbbGenerationRow *rows;
  guint n_rows;
  guint64 n_prompt_tokens, cache_bytes;
  double prompt_seconds, token_seconds;
};

/* Checks the prompts, each i64 or i32 [n] with tokens below @vocab, and makes a row of each. */
EbbGeneration *ebb_generation_new (EbbTensor **prompts,
                                   gsize n_prompts,
                                   gint64 vocab,
                                   EbbTokenizer *tokenizer,
                                   GError **error);

/* Adds a token to the row's tokens and its text to the row's text. *stopped: the text has a stop string, and ends
 * before it. */
gboolean ebb_generation_row_push (EbbGenerationRow *row,
                                  gint64 token,
                                  gboolean is_stop_token,
                                  EbbTokenizer *tokenizer,
                                  const char *const *stop_strings,
                                  gboolean *stopped,
                                  GError **error);
/* Ends the row's text: its last bytes become certain, which may complete a stop string. *stopped, if TRUE already: the
 * text has ended before. */
gboolean ebb_generation_row_finish (EbbGenerationRow *row,
                                    const char *const *stop_strings,
                                    gboolean *stopped,
                                    GError **error);
/* The text that has become certain since the last call: without its end that may begin a stop string, unless the row
 * @is_over. NULL without a tokenizer. */
char *ebb_generation_row_take_text (EbbGenerationRow *row,
                                    const char *const *stop_strings,
                                    gboolean is_over);

G_END_DECLS
