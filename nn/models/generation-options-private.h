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
  int min_tokens, min_length;
  int no_repeat_ngram_size;
  gint64 forced_bos_token; /* -1: none */
  double temperature;
  int top_k;
  double top_p;
  double min_p;
  double repetition_penalty;
  char **stop_strings; /* NULL: none */
  gboolean use_cache;
  gboolean slides;
  EbbGenerator *generator;                                                           /* NULL: the thread's default */
  EbbTokenizer *tokenizer;                                                           /* NULL: no text */
  GArray *stop_tokens, *forced_eos_tokens, *suppress_tokens, *begin_suppress_tokens; /* gint64 */
  guint64 given; /* which of the fields above were set: a bit for every four bytes of the struct */
};

#define EBB_GENERATION_GIVEN(field) (G_GUINT64_CONSTANT (1) << (offsetof (EbbGenerationOptions, field) / 4))
#define EBB_GENERATION_ALL_GIVEN (EBB_GENERATION_GIVEN (begin_suppress_tokens) * 2 - 1)

G_STATIC_ASSERT (offsetof (EbbGenerationOptions, given) / 4 < 64);

/* As ebb_generation_options_check (). @has_texts: stop strings need the tokenizer. */
gboolean ebb_generation_options_check_values (EbbGenerationOptions *self,
                                              gboolean has_texts,
                                              GError **error);
/* Whether logits alone decide: the likeliest token is taken, and nothing changes the logits before. */
gboolean ebb_generation_options_take_likeliest (const EbbGenerationOptions *self);
/* Has @model remember the defaults of @folder, which it was opened from. */
void ebb_generation_options_attach (EbbModule *model,
                                    const char *folder);
/* A copy of @self (NULL: nothing is set) in which the model's folder, if it came from one, gives what was not set.
 * Where neither names a stop token, the tokenizer's token for the end of a text is one. */
EbbGenerationOptions *ebb_generation_options_complete (EbbGenerationOptions *self,
                                                       EbbModule *model,
                                                       GError **error);

G_END_DECLS
