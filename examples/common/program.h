/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <glib.h>

/* How the programs that share this folder differ. */

G_BEGIN_DECLS

typedef struct
{
  const char *title;    /* the purpose, after the name in the help */
  const char *epilogue; /* the help's last lines, with PROGRAM for the name of the program */
  gboolean on_ranks;    /* whether it trains on many ranks */
  gboolean is_masked;   /* whether it trains BERT to find masked tokens, or else GPT the next ones */
} Program;

G_END_DECLS
