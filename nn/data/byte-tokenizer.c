/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "nn/data/byte-tokenizer.h"

/* A tokenizer whose tokens are the 256 bytes. */

struct _EbbByteTokenizer
{
  EbbTokenizer parent_instance;
};

G_DEFINE_FINAL_TYPE (EbbByteTokenizer, ebb_byte_tokenizer, EBB_TYPE_TOKENIZER)

static EbbTensor *
ebb_byte_tokenizer_encode (EbbTokenizer *tokenizer,
                           GBytes *text,
                           GError **error)
{
  gsize size;
  const guint8 *bytes = g_bytes_get_data (text, &size);
  gint64 n = (gint64) size;
  EbbTensor *tokens = ebb_tensor_new_empty (&n, 1, EBB_DTYPE_I64, ebb_device_get_cpu (), error);
  gint64 *data = tokens ? ebb_tensor_get_data (tokens, NULL) : NULL;

  for (gint64 i = 0; data != NULL && i < n; i++)
    data[i] = bytes[i];
  return tokens;
}

static GBytes *
ebb_byte_tokenizer_decode (EbbTokenizer *tokenizer,
                           EbbTensor *tokens,
                           GError **error)
{
  gsize n = (gsize) ebb_tensor_get_n_elements (tokens);
  const gint64 *data = ebb_tensor_get_data (tokens, NULL);
  guint8 *text = g_malloc (n + 1);

  for (gsize i = 0; i < n; i++)
    text[i] = (guint8) data[i];
  return g_bytes_new_take (text, n);
}

static guint
ebb_byte_tokenizer_get_vocab_size (EbbTokenizer *tokenizer)
{
  return 256;
}

static gssize
ebb_byte_tokenizer_find_cut (EbbTokenizer *tokenizer,
                             GBytes *text,
                             gsize from)
{
  return (gssize) MIN (from, g_bytes_get_size (text));
}

static void
ebb_byte_tokenizer_class_init (EbbByteTokenizerClass *klass)
{
  EbbTokenizerClass *tokenizer_class = EBB_TOKENIZER_CLASS (klass);

  tokenizer_class->encode = ebb_byte_tokenizer_encode;
  tokenizer_class->decode = ebb_byte_tokenizer_decode;
  tokenizer_class->get_vocab_size = ebb_byte_tokenizer_get_vocab_size;
  tokenizer_class->find_cut = ebb_byte_tokenizer_find_cut;
}

static void
ebb_byte_tokenizer_init (EbbByteTokenizer *self)
{
}

/**
 * ebb_byte_tokenizer_new:
 *
 * Returns: (transfer full): a tokenizer with one token for each byte
 */
EbbTokenizer *
ebb_byte_tokenizer_new (void)
{
  return g_object_new (EBB_TYPE_BYTE_TOKENIZER, NULL);
}
