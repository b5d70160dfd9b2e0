/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "nn/data/tokenizer/pattern-private.h"
#include "tensor/util/json-private.h"

/* Normalizers: they change a text before it is cut into words, by normal forms, case, accents, replacements. */

G_BEGIN_DECLS

typedef struct _EbbNormalizer EbbNormalizer;

typedef struct
{
  EbbNormalizer *steps;
  guint n_steps;
} EbbNormalizerList;

gboolean ebb_normalizer_list_read (EbbNormalizerList *self,
                                   const EbbJson *json,
                                   GError **error);
void ebb_normalizer_list_clear (EbbNormalizerList *self);

/* How many bytes normalizers may make of all parts of a text: more than any do that people use. */
gsize ebb_normalizer_get_room (gsize length);
/* Sets @text and @length to the result, which is the text itself or lies in one of @buffers. It is taken off @room,
 * which it must not exceed. @moved is set if characters at the beginning were taken away. */
gboolean ebb_normalizer_list_run (const EbbNormalizerList *self,
                                  EbbPatternSpace *space,
                                  GString *buffers[3],
                                  const char **text,
                                  gsize *length,
                                  gsize *room,
                                  gboolean *moved,
                                  GError **error);
/* Whether no step puts something in front of a text, or looks across a newline or blank that stands between two visible
 * characters of ASCII. */
gboolean ebb_normalizer_list_works_on_lines (const EbbNormalizerList *self);

G_END_DECLS
