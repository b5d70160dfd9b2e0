/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "nn/data/tokenizer.h"

/* Tokens in the narrowest storage that holds them; bytes stay where they are, in memory or in a file, which is read
 * anew for each window: it is not mapped, since a mapped file that is cut ends the processes that read it. */

G_BEGIN_DECLS

typedef struct
{
  gint64 begin; /* of its first token in the stream */
  gint64 n_tokens;
  guint width;  /* bytes of a token: 1, 2 or 4 */
  GBytes *data; /* width 1, in memory */
  int fd;       /* width 1, in the file @path; else -1 */
  char *path;
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
gboolean ebb_token_stream_append_file (EbbTokenStream *self,
                                       const char *path,
                                       EbbTokenizer *tokenizer,
                                       GError **error);
/* Copies the tokens from @begin on, which must be there; fails if a file has lost them. */
gboolean ebb_token_stream_read (const EbbTokenStream *self,
                                gint64 begin,
                                gint64 n,
                                gint64 *tokens,
                                GError **error);
void ebb_token_stream_clear (EbbTokenStream *self);

G_END_DECLS
