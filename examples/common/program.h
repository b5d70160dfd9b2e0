/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "common/option-table.h"

/* How the programs that share this folder differ. */

G_BEGIN_DECLS

typedef struct
{
  gboolean on_ranks;  /* whether it trains on many ranks */
  gboolean is_masked; /* whether it trains BERT to find masked tokens, or else GPT the next ones */
  gboolean tunes;     /* whether it goes on with the training of a model in a folder, on many ranks or alone */
} Program;

/* Whether the program has the options of ranks. */
static inline gboolean
program_may_shard (const Program *self)
{
  return self->on_ranks || self->tunes;
}

G_END_DECLS
