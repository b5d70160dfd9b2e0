/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "nn/data/tokenizer.h"
#include "nn/data/tokenizer/added-tokens-private.h"
#include "nn/data/tokenizer/decoder-private.h"
#include "nn/data/tokenizer/normalizer-private.h"
#include "nn/data/tokenizer/pre-tokenizer-private.h"
#include "nn/data/tokenizer/token-model-private.h"

/* A tokenizer made of parts: added tokens are found, the text between them is normalized and cut into words, the model
 * turns words into tokens, special tokens stand around the whole; decoders turn tokens back into text. */

G_BEGIN_DECLS

#define EBB_N_SPECIAL_TOKENS (EBB_SPECIAL_TOKEN_MASK + 1)

typedef struct
{
  char *name; /* of the file, in errors */
  EbbAddedToken *added;
  guint n_added;
  EbbAddedTokenTree raw_tree;        /* of tokens that are sought in the text as it is */
  EbbAddedTokenTree normalized_tree; /* and behind the normalizers */
  GHashTable *added_by_content;
  GHashTable *added_by_id;
  guint8 *is_added;   /* by id */
  guint8 *is_special; /* by id */
  EbbNormalizerList normalizers;
  EbbPreTokenizerList pre_tokenizers;
  EbbTokenModel model;
  EbbDecoderList decoders;
  gint64 *template; /* the tokens around a text, which -1 stands for */
  guint n_template;
  guint vocab_size;
  EbbTextCut cut;
  gint64 special_tokens[EBB_N_SPECIAL_TOKENS]; /* -1: none */
  char *chat_template;
  gpointer spare_space; /* of an encoding that has ended, for the next one */
} EbbTokenizerPipeline;

EbbTokenizerPipeline *ebb_tokenizer_pipeline_new (const char *name);
/* Adds what a tokenizer.json says. */
gboolean ebb_tokenizer_pipeline_read (EbbTokenizerPipeline *self,
                                      const EbbJson *json,
                                      GError **error);
/* Prints a message that names the settings without effect in the folder's files: tokenizer.json, tokenizer_config.json
 * and special_tokens_map.json. */
gboolean ebb_tokenizer_pipeline_note_settings (const EbbTokenizerPipeline *self,
                                               const char *folder,
                                               const EbbJson *json,
                                               const EbbJson *config,
                                               const EbbJson *map,
                                               GError **error);
/* Call it when all parts are there. */
void ebb_tokenizer_pipeline_finish (EbbTokenizerPipeline *self);
void ebb_tokenizer_pipeline_free (EbbTokenizerPipeline *self);

/* Appends the tokens of any bytes. */
gboolean ebb_tokenizer_pipeline_encode (EbbTokenizerPipeline *self,
                                        const char *text,
                                        gsize length,
                                        EbbTokenBuffer *tokens,
                                        GError **error);
gssize ebb_tokenizer_pipeline_find_cut (const EbbTokenizerPipeline *self,
                                        const char *text,
                                        gsize length,
                                        gsize from);
/* The token's spelling: as decoders take it, or as the file has it. NULL if there is no such token. */
const char *ebb_tokenizer_pipeline_get_decoded (const EbbTokenizerPipeline *self,
                                                gint64 token);
const char *ebb_tokenizer_pipeline_get_token (const EbbTokenizerPipeline *self,
                                              gint64 token);
gint64 ebb_tokenizer_pipeline_find_token (const EbbTokenizerPipeline *self,
                                          const char *text);

void ebb_tokenizer_pipeline_space_free (gpointer space);

/* Tokenizers whose class is made of such parts. */
#define EBB_TYPE_PIPELINE_TOKENIZER (ebb_pipeline_tokenizer_get_type ())

typedef struct
{
  EbbTokenizer parent_instance;
  EbbTokenizerPipeline *pipeline;
} EbbPipelineTokenizer;

typedef struct
{
  EbbTokenizerClass parent_class;
} EbbPipelineTokenizerClass;

GType ebb_pipeline_tokenizer_get_type (void);

#define EBB_IS_PIPELINE_TOKENIZER(object) G_TYPE_CHECK_INSTANCE_TYPE ((object), EBB_TYPE_PIPELINE_TOKENIZER)
#define EBB_PIPELINE_TOKENIZER(object) \
  G_TYPE_CHECK_INSTANCE_CAST ((object), EBB_TYPE_PIPELINE_TOKENIZER, EbbPipelineTokenizer)

G_DEFINE_AUTOPTR_CLEANUP_FUNC (EbbTokenizerPipeline, ebb_tokenizer_pipeline_free)

G_END_DECLS
