/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "nn/data/tokenizer/pattern-private.h"

/* Pre-tokenizers: they cut a text into words, which the model turns into tokens one by one. */

G_BEGIN_DECLS

typedef struct _EbbPreTokenizer EbbPreTokenizer;

typedef struct
{
  EbbPreTokenizer *steps;
  guint n_steps;
  gboolean is_byte_level; /* words are bytes, which the vocabulary spells in the byte alphabet */
} EbbPreTokenizerList;

/* Where long texts may be cut. */
typedef enum
{
  EBB_TEXT_CUT_NONE,
  EBB_TEXT_CUT_BEHIND_NEWLINE, /* one between two visible characters of ASCII, the second of which is no '/' */
  EBB_TEXT_CUT_BEFORE_BLANK    /* one between two visible characters of ASCII */
} EbbTextCut;

typedef gboolean (*EbbWordFunc) (gpointer data,
                                 const char *word,
                                 gsize length,
                                 GError **error);

gboolean ebb_pre_tokenizer_list_read (EbbPreTokenizerList *self,
                                      const EbbJson *json,
                                      GError **error);
/* GPT-2's: byte-level, by its expression. */
void ebb_pre_tokenizer_list_make_gpt2 (EbbPreTokenizerList *self);
void ebb_pre_tokenizer_list_clear (EbbPreTokenizerList *self);

/* Calls @function for each word. @buffers has one for each step. @is_first: the text begins where the whole does. */
gboolean ebb_pre_tokenizer_list_run (const EbbPreTokenizerList *self,
                                     EbbPatternSpace *space,
                                     GString **buffers,
                                     const char *text,
                                     gsize length,
                                     gboolean is_first,
                                     EbbWordFunc function,
                                     gpointer data,
                                     GError **error);
EbbTextCut ebb_pre_tokenizer_list_get_cut (const EbbPreTokenizerList *self);

G_END_DECLS
