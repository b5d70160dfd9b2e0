/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "nn/models/generation-options.h"
#include "nn/module.h"

/* The fields of generation options, which the generation reads, and where those that were not set come from. */

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
  guint64 given;           /* which of the fields above were set: a bit for every four bytes of the struct */
};

/* Has @model remember the defaults of @folder, which it was opened from. */
void ebb_generation_options_attach (EbbModule *model,
                                    const char *folder);
/* A copy of @self (NULL: nothing is set) in which the model's folder, if it came from one, gives what was not set.
 * Where neither names a stop token, the tokenizer's token for the end of a text is one. */
EbbGenerationOptions *ebb_generation_options_complete (EbbGenerationOptions *self,
                                                       EbbModule *model,
                                                       GError **error);

G_END_DECLS
