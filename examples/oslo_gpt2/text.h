/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "options.h"

/* The text that the model reads: one token a byte, or lines that a folder's tokenizer makes tokens of. */

G_BEGIN_DECLS

typedef struct
{
  char *bytes;
  gsize length;
  EbbTokenizer *tokenizer; /* NULL: bytes are tokens */
  gint64 padding;          /* the token that fills short lines */
  char **lines;            /* those that aren't empty */
  guint n_lines;
} Text;

typedef struct
{
  EbbTensor *tokens, *targets; /* [rows, tokens] */
  EbbTensor *mask;             /* of tokens that aren't padding; NULL: all are text */
} Batch;

void batch_clear (Batch *self);
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC (Batch, batch_clear)

gboolean text_init (Text *self,
                    const Options *options,
                    GError **error);
void text_clear (Text *self);
/* The rows of @step, at most options->sequence tokens each, and the token after each of theirs, on @device. */
gboolean text_get_batch (const Text *self,
                         const Options *options,
                         int step,
                         int rows,
                         EbbDevice *device,
                         Batch *batch,
                         GError **error);

G_END_DECLS
