/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "options.h"

/* The text that the model reads: one token a byte. */

G_BEGIN_DECLS

typedef struct
{
  char *bytes;
  gsize length;
} Text;

gboolean text_init (Text *self,
                    const Options *options,
                    GError **error);
void text_clear (Text *self);
/* The rows of @step as [rows, sequence], and the token after each of theirs, on @device. */
gboolean text_get_batch (const Text *self,
                         const Options *options,
                         int step,
                         int rows,
                         EbbDevice *device,
                         EbbTensor **tokens,
                         EbbTensor **targets,
                         GError **error);

G_END_DECLS
