/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* The class of tokenizers that are made of parts: EbbTokenizer's functions by a pipeline. */
#include "nn/data/tokenizer/pipeline-private.h"

#include "tensor/util/json-scanner-private.h"
#include "tensor/tensor-private.h"

#include <string.h>

G_DEFINE_TYPE (EbbPipelineTokenizer, ebb_pipeline_tokenizer, EBB_TYPE_TOKENIZER)

static EbbTokenizerPipeline *
get_pipeline (EbbTokenizer *self)
{
  return EBB_PIPELINE_TOKENIZER (self)->pipeline;
}

static EbbTensor *
ebb_pipeline_tokenizer_encode (EbbTokenizer *self,
                               GBytes *text,
                               GError **error)
{
  EbbTokenBuffer tokens = { 0 };
  gsize length;
  const char *data = g_bytes_get_data (text, &length);
  EbbTensor *result = NULL;

  if (ebb_tokenizer_pipeline_encode (get_pipeline (self), data != NULL ? data : "", length, &tokens, error))
    {
      gint64 n = (gint64) tokens.n;

      result = ebb_tensor_new_from_values (tokens.tokens, tokens.n, &n, 1, EBB_DTYPE_I64, ebb_device_get_cpu (), error);
    }
  g_free (tokens.tokens);
  return result;
}

static EbbTensor *
ebb_pipeline_tokenizer_add_special_tokens (EbbTokenizer *self,
                                           EbbTensor *tokens,
                                           GError **error)
{
  const EbbTokenizerPipeline *pipeline = get_pipeline (self);
  gsize n = (gsize) ebb_tensor_get_n_elements (tokens), n_texts = 0, used = 0;
  const gint64 *data = ebb_tensor_get_data (tokens, NULL);
  g_autofree gint64 *all = NULL;
  gint64 size;

  for (guint i = 0; i < pipeline->n_template; i++)
    n_texts += pipeline->template[i] < 0;
  size = (gint64) (pipeline->n_template - n_texts + n_texts * n);
  all = g_new (gint64, (gsize) size + 1);
  for (guint i = 0; i < pipeline->n_template; i++)
    if (pipeline->template[i] >= 0)
      all[used++] = pipeline->template[i];
    else
      {
        if (n > 0)
          memcpy (all + used, data, n * sizeof *data);
        used += n;
      }
  return ebb_tensor_new_from_values (all, used, &size, 1, EBB_DTYPE_I64, ebb_device_get_cpu (), error);
}

static GBytes *
ebb_pipeline_tokenizer_decode (EbbTokenizer *self,
                               EbbTensor *tokens,
                               GError **error)
{
  const EbbTokenizerPipeline *pipeline = get_pipeline (self);
  gint64 n = ebb_tensor_get_n_elements (tokens);
  const gint64 *data = ebb_tensor_get_data (tokens, NULL);
  EbbDecoding *decoding = ebb_decoding_new (&pipeline->decoders, FALSE);
  g_autoptr (GString) text = g_string_new (NULL);
  gboolean ok = TRUE;

  for (gint64 i = 0; ok && i < n; i++)
    {
      const char *spelling = ebb_tokenizer_pipeline_get_decoded (pipeline, data[i]);

      /* Numbers that the vocabulary leaves out stand for nothing. */
      ok = spelling == NULL || ebb_decoding_push (decoding, spelling, text, error);
    }
  ok = ok && ebb_decoding_finish (decoding, text, error);
  ebb_decoding_free (decoding);
  return ok ? g_string_free_to_bytes (g_steal_pointer (&text)) : NULL;
}

static guint
ebb_pipeline_tokenizer_get_vocab_size (EbbTokenizer *self)
{
  return get_pipeline (self)->vocab_size;
}

static gssize
ebb_pipeline_tokenizer_find_cut (EbbTokenizer *self,
                                 GBytes *text,
                                 gsize from)
{
  gsize length;
  const char *data = g_bytes_get_data (text, &length);

  return ebb_tokenizer_pipeline_find_cut (get_pipeline (self), data, length, from);
}

static gint64
ebb_pipeline_tokenizer_find_token (EbbTokenizer *self,
                                   const char *text)
{
  return ebb_tokenizer_pipeline_find_token (get_pipeline (self), text);
}

static char *
ebb_pipeline_tokenizer_get_token (EbbTokenizer *self,
                                  gint64 token)
{
  const char *spelled = ebb_tokenizer_pipeline_get_token (get_pipeline (self), token);
  g_auto (GStrv) parts = spelled != NULL ? g_strsplit (spelled, EBB_JSON_NUL, -1) : NULL;

  return parts != NULL ? g_strjoinv ("\xef\xbf\xbd", parts) : NULL;
}

static gboolean
ebb_pipeline_tokenizer_is_special (EbbTokenizer *self,
                                   gint64 token)
{
  return get_pipeline (self)->is_special[token];
}

static gint64
ebb_pipeline_tokenizer_get_special_token (EbbTokenizer *self,
                                          EbbSpecialToken which)
{
  return (guint) which < EBB_N_SPECIAL_TOKENS ? get_pipeline (self)->special_tokens[which] : -1;
}

static const char *
ebb_pipeline_tokenizer_get_chat_template (EbbTokenizer *self)
{
  return get_pipeline (self)->chat_template;
}

static void
ebb_pipeline_tokenizer_finalize (GObject *object)
{
  ebb_tokenizer_pipeline_free (EBB_PIPELINE_TOKENIZER (object)->pipeline);
  G_OBJECT_CLASS (ebb_pipeline_tokenizer_parent_class)->finalize (object);
}

static void
ebb_pipeline_tokenizer_class_init (EbbPipelineTokenizerClass *klass)
{
  EbbTokenizerClass *tokenizer_class = EBB_TOKENIZER_CLASS (klass);

  G_OBJECT_CLASS (klass)->finalize = ebb_pipeline_tokenizer_finalize;
  tokenizer_class->encode = ebb_pipeline_tokenizer_encode;
  tokenizer_class->add_special_tokens = ebb_pipeline_tokenizer_add_special_tokens;
  tokenizer_class->decode = ebb_pipeline_tokenizer_decode;
  tokenizer_class->get_vocab_size = ebb_pipeline_tokenizer_get_vocab_size;
  tokenizer_class->find_cut = ebb_pipeline_tokenizer_find_cut;
  tokenizer_class->find_token = ebb_pipeline_tokenizer_find_token;
  tokenizer_class->get_token = ebb_pipeline_tokenizer_get_token;
  tokenizer_class->is_special = ebb_pipeline_tokenizer_is_special;
  tokenizer_class->get_special_token = ebb_pipeline_tokenizer_get_special_token;
  tokenizer_class->get_chat_template = ebb_pipeline_tokenizer_get_chat_template;
}

static void
ebb_pipeline_tokenizer_init (EbbPipelineTokenizer *self)
{
}
