/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "nn/models/generation-options.h"

/* The fields of generation options, which the generation reads. */

G_BEGIN_DECLS

struct _EbbGenerationOptions
{
  GObject parent_instance;

  int max_tokens;
  double temperature;
  int top_k;
  double top_p;
  double min_p;
  double repetition_penalty;
  char **stop_strings; /* NULL: none */
  gboolean use_cache;
  gboolean slides;
  EbbGenerator *generator; /* NULL: the thread's default */
  EbbTokenizer *tokenizer; /* NULL: no text */
  GArray *stop_tokens;     /* gint64 */
};

G_END_DECLS
