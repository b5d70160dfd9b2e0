/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "tensor/util/json-private.h"

/* The regular expressions of tokenizers, run by PCRE2.
 *
 * They are written for Oniguruma with Ruby's syntax. Where the same text means something else to PCRE2 it is
 * translated: \s, \w and \d, \uHHHH, scripts, and characters whose case folding has several characters. Where that
 * can't be done the expression is refused. */

G_BEGIN_DECLS

typedef struct _EbbPattern EbbPattern;
typedef struct _EbbPatternSpace EbbPatternSpace;

/* @is_literal: @expression stands for itself. */
EbbPattern *ebb_pattern_new (const char *expression,
                             gboolean is_literal,
                             GError **error);
/* The {"Regex": "..."} or {"String": "..."} of a tokenizer.json. */
EbbPattern *ebb_pattern_read (const EbbJson *json,
                              GError **error);
/* The expression as PCRE2 has it. @counts: with callouts around repeated characters and at the beginning of groups,
 * which have these numbers. */
#define EBB_PATTERN_BEHIND_SCAN 1
#define EBB_PATTERN_IN_GROUP 2
#define EBB_PATTERN_BEFORE_SCAN 3 /* plus the fewest characters that the scan takes */
#define EBB_PATTERN_MOST_REPEATS 250
char *ebb_pattern_translate (const char *expression,
                             gboolean counts,
                             GError **error);
const char *ebb_pattern_get_expression (const EbbPattern *self);
void ebb_pattern_free (EbbPattern *self);

/* The scratch memory of searches, one for each thread. It counts the steps of all searches through one text and its
 * parts, which have a limit by the text's bytes. */
EbbPatternSpace *ebb_pattern_space_new (void);
/* The next search is through another text. */
void ebb_pattern_space_begin_text (EbbPatternSpace *self);
void ebb_pattern_space_free (EbbPatternSpace *self);

/* Where a search through one text stands. */
typedef struct
{
  const EbbPattern *pattern;
  EbbPatternSpace *space;
  const char *text; /* UTF-8 */
  gsize length;
  gsize next;
  gsize last_end; /* of the last match; G_MAXSIZE: there is none yet */
} EbbPatternSearch;

/* Begins with the first match. */
EbbPatternSearch ebb_pattern_search_new (const EbbPattern *pattern,
                                         EbbPatternSpace *space,
                                         const char *text,
                                         gsize length);
/* The next match. An empty one right behind the last match doesn't count. @start is @length if there is none. */
gboolean ebb_pattern_search_next (EbbPatternSearch *self,
                                  gsize *start,
                                  gsize *end,
                                  GError **error);

/* Appends the text with @content for each match to @result. FALSE with @error unset if there was no match: then nothing
 * is appended. More than @max_length bytes are an error. */
gboolean ebb_pattern_replace (const EbbPattern *self,
                              EbbPatternSpace *space,
                              const char *text,
                              gsize length,
                              const char *content,
                              gsize max_length,
                              GString *result,
                              GError **error);

G_DEFINE_AUTOPTR_CLEANUP_FUNC (EbbPattern, ebb_pattern_free)

G_END_DECLS
