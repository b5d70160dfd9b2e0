/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#if !defined(EBB_INSIDE) && !defined(EBB_COMPILATION)
#error "Only <ebb/ebb.h> can be included directly."
#endif

#include "nn/models/generation-options.h"
#include "nn/module.h"

#include <gio/gio.h>

G_BEGIN_DECLS

/**
 * EbbGenerationEnd:
 * @EBB_GENERATION_END_LENGTH: the row got the most tokens that were asked for
 * @EBB_GENERATION_END_TOKEN: a stop token came
 * @EBB_GENERATION_END_STRING: its text got a stop string
 * @EBB_GENERATION_END_CONTEXT: the model has no more positions
 * @EBB_GENERATION_END_STOPPED: the callback stopped the generation
 *
 * Why a row ended.
 */
typedef enum
{
  EBB_GENERATION_END_LENGTH,
  EBB_GENERATION_END_TOKEN,
  EBB_GENERATION_END_STRING,
  EBB_GENERATION_END_CONTEXT,
  EBB_GENERATION_END_STOPPED
} EbbGenerationEnd;

/**
 * EbbGenerationFunc:
 * @row: which prompt it belongs to
 * @token: the next token of the row
 * @text: (nullable): the text that has become certain by it, "" if there is none yet; %NULL without a tokenizer
 * @user_data: data of the caller
 *
 * Takes tokens as they come, of rows that go on in turn. The last text of a row comes with its last token.
 *
 * Returns: whether to go on; %FALSE ends all rows
 */
typedef gboolean (*EbbGenerationFunc) (guint row,
                                       gint64 token,
                                       const char *text,
                                       gpointer user_data);

#define EBB_TYPE_GENERATION (ebb_generation_get_type ())

EBB_AVAILABLE_IN_ALL
G_DECLARE_FINAL_TYPE (EbbGeneration, ebb_generation, EBB, GENERATION, GObject)

EBB_AVAILABLE_IN_ALL
EbbGeneration *ebb_model_generate (EbbModule *model,
                                   EbbTensor **prompts,
                                   gsize n_prompts,
                                   EbbGenerationOptions *options,
                                   EbbGenerationFunc func,
                                   gpointer user_data,
                                   GCancellable *cancellable,
                                   GError **error);

EBB_AVAILABLE_IN_ALL
EbbGeneration *ebb_model_generate_texts (EbbModule *model,
                                         const char *const *texts,
                                         EbbGenerationOptions *options,
                                         EbbGenerationFunc func,
                                         gpointer user_data,
                                         GCancellable *cancellable,
                                         GError **error);

EBB_AVAILABLE_IN_ALL
guint ebb_generation_get_n_rows (EbbGeneration *self);

EBB_AVAILABLE_IN_ALL
EbbTensor *ebb_generation_get_tokens (EbbGeneration *self,
                                      guint row);

EBB_AVAILABLE_IN_ALL
const char *ebb_generation_get_text (EbbGeneration *self,
                                     guint row);

EBB_AVAILABLE_IN_ALL
EbbGenerationEnd ebb_generation_get_end (EbbGeneration *self,
                                         guint row);

EBB_AVAILABLE_IN_ALL
guint64 ebb_generation_get_prompt_tokens (EbbGeneration *self);

EBB_AVAILABLE_IN_ALL
double ebb_generation_get_prompt_seconds (EbbGeneration *self);

EBB_AVAILABLE_IN_ALL
double ebb_generation_get_token_seconds (EbbGeneration *self);

EBB_AVAILABLE_IN_ALL
guint64 ebb_generation_get_cache_bytes (EbbGeneration *self);

G_END_DECLS
