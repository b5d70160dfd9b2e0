/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "common/option-table.h"

#include <ebb/ebb.h>

/* The command line. */

G_BEGIN_DECLS

typedef struct
{
  OptionState state;            /* first */
  char *preset, *device, *data; /* data: NULL for the built-in text */
  char *model;                  /* a folder with a decoder and its tokenizer; NULL: random weights, bytes as tokens */
  int layers, width, heads;     /* 0: the preset's */
  int batch, sequence, steps;
  int ranks; /* as threads; 0: the processes that a launcher started */
  int threads, prefetch;
  gint64 seed;
  double lr, dropout;
} Options;

void options_init (Options *self);
void options_clear (Options *self);
/* Reads and checks it, and answers --help and --version; FALSE with an error for the user. */
gboolean options_parse (Options *self,
                        int argc,
                        char **argv,
                        GError **error);
/* The sizes of the model, which @n_ranks can divide; NULL with an error if they can't. */
EbbGptConfig *options_find_config (const Options *self,
                                   guint n_ranks,
                                   GError **error);
/* On the CPU: that of the folder, or a new one. */
EbbModule *options_make_model (const Options *self,
                               GError **error);

G_END_DECLS
