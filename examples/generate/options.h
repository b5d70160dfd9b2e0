/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "common/option-table.h"

#include <ebb/ebb.h>

/* The command line. */

G_BEGIN_DECLS

typedef struct
{
  OptionState state;                             /* first */
  char *model, *adapter, *device, *dtype, *base; /* adapter NULL: none */
  char *prompt, *file, *batch, *system, *report;
  char **stop;  /* NULL: none */
  char **words; /* arguments that are no options: the prompt */
  gboolean chat, no_thinking, no_cache, overwrite;
  int tokens, min_tokens, top_k, no_repeat_ngram, threads;
  double temperature, top_p, min_p, repetition_penalty;
  gint64 seed;
} Options;

void options_init (Options *self);
void options_clear (Options *self);
/* Reads and checks it, and answers --help and --version; FALSE with an error for the user. */
gboolean options_parse (Options *self,
                        int argc,
                        char **argv,
                        GError **error);
/* The folder's defaults with what the command line says. */
EbbGenerationOptions *options_make_generation (const Options *self,
                                               EbbTokenizer *tokenizer,
                                               GError **error);

G_END_DECLS
