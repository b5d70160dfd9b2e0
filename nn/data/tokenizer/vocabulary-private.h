/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "tensor/util/json-private.h"

/* The tokens of a model: how they are spelt, and their numbers. */

G_BEGIN_DECLS

typedef struct
{
  char *spellings;  /* one behind the other, each with a 0; U+0000 is spelt EBB_JSON_NUL */
  guint32 *offsets; /* by id: of its spelling + 1; 0: no token has that id */
  guint32 *lengths;
  guint32 *slots; /* open addressing: id + 1; 0: empty */
  guint64 mask;
  guint32 size; /* the largest id + 1 */
  guint32 n_tokens;
  guint32 max_length;
  gboolean has_nul; /* a token has U+0000 */
} EbbVocabulary;

/* An object of JSON with the id of each token. */
gboolean ebb_vocabulary_read (EbbVocabulary *self,
                              const EbbJson *json,
                              GError **error);
void ebb_vocabulary_clear (EbbVocabulary *self);

/* -1 if there is no such token. */
gint32 ebb_vocabulary_find (const EbbVocabulary *self,
                            const char *text,
                            gsize length);
/* NULL if there is no such token. */
const char *ebb_vocabulary_get (const EbbVocabulary *self,
                                gint64 id);

G_END_DECLS
