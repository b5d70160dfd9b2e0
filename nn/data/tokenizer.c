/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "nn/data/tokenizer.h"

#include "tensor/error-private.h"
#include "tensor/ops/pointwise.h"
#include "tensor/ops/shape.h"
#include "tensor/tensor-private.h"

#include <string.h>

/* The base class of tokenizers: checks around the functions of a class. */

G_DEFINE_ABSTRACT_TYPE (EbbTokenizer, ebb_tokenizer, G_TYPE_OBJECT)

static gssize
ebb_tokenizer_real_find_cut (EbbTokenizer *self,
                             GBytes *text,
                             gsize from)
{
  return -1;
}

static void
ebb_tokenizer_class_init (EbbTokenizerClass *klass)
{
  klass->find_cut = ebb_tokenizer_real_find_cut;
}

static void
ebb_tokenizer_init (EbbTokenizer *self)
{
}

static gboolean
fail_without_error (EbbTokenizer *self,
                    const char *what,
                    GError **error)
{
  g_set_error (error, EBB_ERROR, EBB_ERROR_CALLBACK, "%s () of %s failed without an error", what,
               G_OBJECT_TYPE_NAME (self));
  return FALSE;
}

/**
 * ebb_tokenizer_get_vocab_size:
 * @self: a tokenizer
 *
 * Returns: how many tokens there are: they are 0 to this minus one
 */
guint
ebb_tokenizer_get_vocab_size (EbbTokenizer *self)
{
  g_return_val_if_fail (EBB_IS_TOKENIZER (self), 0);
  g_return_val_if_fail (EBB_TOKENIZER_GET_CLASS (self)->get_vocab_size != NULL, 0);

  return EBB_TOKENIZER_GET_CLASS (self)->get_vocab_size (self);
}

/**
 * ebb_tokenizer_encode:
 * @self: a tokenizer
 * @text: any bytes
 * @error: return location for an error
 *
 * Turns text into tokens.
 *
 * Returns: (transfer full) (nullable): an i64 tensor [n] on the CPU
 */
EbbTensor *
ebb_tokenizer_encode (EbbTokenizer *self,
                      GBytes *text,
                      GError **error)
{
  g_autoptr (GError) failure = NULL;
  EbbTensor *tokens;

  if (!EBB_MAY_BEGIN (error, self, text))
    return NULL;
  g_return_val_if_fail (EBB_IS_TOKENIZER (self), NULL);
  g_return_val_if_fail (EBB_TOKENIZER_GET_CLASS (self)->encode != NULL, NULL);

  tokens = EBB_TOKENIZER_GET_CLASS (self)->encode (self, text, &failure);
  if (failure != NULL)
    {
      g_clear_pointer (&tokens, ebb_tensor_unref);
      g_propagate_error (error, g_steal_pointer (&failure));
    }
  else if (tokens == NULL)
    fail_without_error (self, "encode", error);
  else if (ebb_tensor_get_dtype (tokens) != EBB_DTYPE_I64 || ebb_tensor_get_n_dims (tokens) != 1
           || !ebb_tensor_is_contiguous (tokens))
    {
      g_autofree char *shape = ebb_tensor_shape_to_string (tokens);

      g_set_error (error, EBB_ERROR, EBB_ERROR_CALLBACK,
                   "encode () of %s gave %s %s: it must give a contiguous i64 tensor with one dimension",
                   G_OBJECT_TYPE_NAME (self), ebb_dtype_get_name (ebb_tensor_get_dtype (tokens)), shape);
      g_clear_pointer (&tokens, ebb_tensor_unref);
    }
  if (tokens != NULL)
    {
      g_autoptr (EbbTensor) made = g_steal_pointer (&tokens);

      tokens = ebb_to_device (made, ebb_device_get_cpu (), error);
    }
  return tokens;
}

/**
 * ebb_tokenizer_encode_text:
 * @self: a tokenizer
 * @text: a text
 * @n_tokens: (out): return location for how many tokens it has
 * @error: return location for an error
 *
 * Turns text into tokens.
 *
 * Returns: (array length=n_tokens) (transfer full) (nullable): the tokens; %NULL with @error set, or if @text is empty
 */
gint64 *
ebb_tokenizer_encode_text (EbbTokenizer *self,
                           const char *text,
                           gsize *n_tokens,
                           GError **error)
{
  g_autoptr (GBytes) bytes = NULL;
  g_autoptr (EbbTensor) tokens = NULL;

  *n_tokens = 0;
  if (!EBB_MAY_BEGIN (error, self, text))
    return NULL;
  bytes = g_bytes_new_static (text, strlen (text));
  tokens = ebb_tokenizer_encode (self, bytes, error);
  if (tokens == NULL || ebb_tensor_get_n_elements (tokens) == 0)
    return NULL;
  *n_tokens = (gsize) ebb_tensor_get_n_elements (tokens);
  return g_memdup2 (ebb_tensor_get_data (tokens, NULL), ebb_tensor_get_n_bytes (tokens));
}

static gboolean
check_tokens (EbbTokenizer *self,
              const gint64 *tokens,
              gint64 n_tokens,
              GError **error)
{
  gint64 size = ebb_tokenizer_get_vocab_size (self);

  for (gint64 i = 0; i < n_tokens; i++)
    if (tokens[i] < 0 || tokens[i] >= size)
      {
        g_set_error (error, EBB_ERROR, EBB_ERROR_INDEX,
                     "token %" G_GINT64_FORMAT " at %" G_GINT64_FORMAT ": it must be in [0, %" G_GINT64_FORMAT ")",
                     tokens[i], i, size);
        return FALSE;
      }
  return TRUE;
}

/**
 * ebb_tokenizer_decode:
 * @self: a tokenizer
 * @tokens: an i64 tensor [n]
 * @error: return location for an error
 *
 * Turns tokens into the bytes that they stand for, which need not be UTF-8.
 *
 * Returns: (transfer full) (nullable): the bytes; %NULL with %EBB_ERROR_INDEX if there is no such token
 */
GBytes *
ebb_tokenizer_decode (EbbTokenizer *self,
                      EbbTensor *tokens,
                      GError **error)
{
  g_autoptr (GError) failure = NULL;
  g_autoptr (EbbTensor) contiguous = NULL;
  g_autoptr (EbbTensor) host = NULL;
  const gint64 *data;
  GBytes *text;

  if (!EBB_MAY_BEGIN (error, self, tokens))
    return NULL;
  g_return_val_if_fail (EBB_IS_TOKENIZER (self), NULL);
  g_return_val_if_fail (EBB_TOKENIZER_GET_CLASS (self)->decode != NULL, NULL);

  if (ebb_tensor_get_dtype (tokens) != EBB_DTYPE_I64 || ebb_tensor_get_n_dims (tokens) != 1)
    {
      g_autofree char *shape = ebb_tensor_shape_to_string (tokens);

      g_set_error (error, EBB_ERROR, EBB_ERROR_SHAPE, "tokens are %s %s: they must be an i64 tensor with one dimension",
                   ebb_dtype_get_name (ebb_tensor_get_dtype (tokens)), shape);
      return NULL;
    }
  contiguous = ebb_contiguous (tokens, error);
  host = ebb_to_device (contiguous, ebb_device_get_cpu (), error);
  if (host == NULL)
    return NULL;
  data = ebb_tensor_get_data (host, &failure);
  if (failure != NULL)
    {
      g_propagate_error (error, g_steal_pointer (&failure));
      return NULL;
    }
  if (!check_tokens (self, data, ebb_tensor_get_n_elements (host), error))
    return NULL;
  text = EBB_TOKENIZER_GET_CLASS (self)->decode (self, host, &failure);
  if (failure != NULL)
    {
      g_clear_pointer (&text, g_bytes_unref);
      g_propagate_error (error, g_steal_pointer (&failure));
    }
  else if (text == NULL)
    fail_without_error (self, "decode", error);
  return text;
}

/**
 * ebb_tokenizer_decode_text:
 * @self: a tokenizer
 * @tokens: (array length=n_tokens): the tokens
 * @n_tokens: how many
 * @error: return location for an error
 *
 * Turns tokens into text. Bytes that are not UTF-8 become U+FFFD, and so do those of value 0; ebb_tokenizer_decode()
 * gives the bytes themselves.
 *
 * Returns: (transfer full) (nullable): the text; %NULL with %EBB_ERROR_INDEX if there is no such token
 */
char *
ebb_tokenizer_decode_text (EbbTokenizer *self,
                           const gint64 *tokens,
                           gsize n_tokens,
                           GError **error)
{
  gint64 n = (gint64) n_tokens;
  g_autoptr (EbbTensor) tensor = NULL;
  g_autoptr (GBytes) bytes = NULL;
  gconstpointer data;
  gsize size;

  if ((error != NULL && *error != NULL) || self == NULL || (tokens == NULL && n > 0))
    return NULL;
  tensor = ebb_tensor_new_from_values (tokens, n_tokens, &n, 1, EBB_DTYPE_I64, ebb_device_get_cpu (), error);
  bytes = ebb_tokenizer_decode (self, tensor, error);
  if (bytes == NULL)
    return NULL;
  data = g_bytes_get_data (bytes, &size);
  return size > 0 ? g_utf8_make_valid (data, (gssize) size) : g_strdup ("");
}

/**
 * ebb_tokenizer_find_cut:
 * @self: a tokenizer
 * @text: any bytes
 * @from: a place in them
 *
 * Looks for a place where a long text may be cut, so that its parts can be encoded one by one.
 *
 * Returns: a place, at least @from, where the parts before and after it encode to the same tokens as the whole; -1 if
 *   none is known
 */
gssize
ebb_tokenizer_find_cut (EbbTokenizer *self,
                        GBytes *text,
                        gsize from)
{
  gssize cut;

  g_return_val_if_fail (EBB_IS_TOKENIZER (self) && text != NULL, -1);

  cut = EBB_TOKENIZER_GET_CLASS (self)->find_cut (self, text, from);
  return cut >= 0 && (gsize) cut >= from && (gsize) cut <= g_bytes_get_size (text) ? cut : -1;
}
