/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "nn/tokenizer.h"

/* Tokens in the narrowest storage that holds them; bytes stay where they are, in a mapped file. */

G_BEGIN_DECLS

typedef struct
{
  gint64 begin; /* of its first token in the stream */
  gint64 n_tokens;
  guint width;  /* bytes of a token: 1, 2 or 4 */
  GBytes *data; /* width 1 */
  void *tokens; /* else */
} EbbTokenSegment;

typedef struct
{
  EbbTokenSegment *segments;
  guint n_segments;
  gint64 n_tokens;
} EbbTokenStream;

/* Appends the tokens of @text; @name says what it is in errors. */
gboolean ebb_token_stream_append (EbbTokenStream *self,
                                  GBytes *text,
                                  const char *name,
                                  EbbTokenizer *tokenizer,
                                  GError **error);
/* Copies the tokens from @begin on, which must be there. */
void ebb_token_stream_read (const EbbTokenStream *self,
                            gint64 begin,
                            gint64 n,
                            gint64 *tokens);
void ebb_token_stream_clear (EbbTokenStream *self);

G_END_DECLS
