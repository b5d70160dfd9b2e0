/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "nn/data/tokenizer.h"

#include "nn/data/utf8-private.h"
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

static EbbTensor *
ebb_tokenizer_real_add_special_tokens (EbbTokenizer *self,
                                       EbbTensor *tokens,
                                       GError **error)
{
  return ebb_tensor_ref (tokens);
}

static gint64
ebb_tokenizer_real_find_token (EbbTokenizer *self,
                               const char *text)
{
  return -1;
}

static char *
ebb_tokenizer_real_get_token (EbbTokenizer *self,
                              gint64 token)
{
  return NULL;
}

static gboolean
ebb_tokenizer_real_is_special (EbbTokenizer *self,
                               gint64 token)
{
  return FALSE;
}

static gint64
ebb_tokenizer_real_get_special_token (EbbTokenizer *self,
                                      EbbSpecialToken which)
{
  return -1;
}

static const char *
ebb_tokenizer_real_get_chat_template (EbbTokenizer *self)
{
  return NULL;
}

static void
ebb_tokenizer_class_init (EbbTokenizerClass *klass)
{
  klass->find_cut = ebb_tokenizer_real_find_cut;
  klass->add_special_tokens = ebb_tokenizer_real_add_special_tokens;
  klass->find_token = ebb_tokenizer_real_find_token;
  klass->get_token = ebb_tokenizer_real_get_token;
  klass->is_special = ebb_tokenizer_real_is_special;
  klass->get_special_token = ebb_tokenizer_real_get_special_token;
  klass->get_chat_template = ebb_tokenizer_real_get_chat_template;
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
  return ebb_fail (error, EBB_ERROR_CALLBACK, "%s () of %s failed without an error", what,
                   G_OBJECT_TYPE_NAME (self));
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

/* Checks the tokens @made that a class returned, or its error @failure, and moves them to the CPU. Takes both. */
static EbbTensor *
take_tokens (EbbTokenizer *self,
             const char *what,
             EbbTensor *made,
             GError *failure,
             GError **error)
{
  g_autoptr (EbbTensor) tokens = made;

  if (failure != NULL)
    {
      g_propagate_error (error, failure);
      return NULL;
    }
  if (tokens == NULL)
    {
      fail_without_error (self, what, error);
      return NULL;
    }
  if (ebb_tensor_get_dtype (tokens) == EBB_DTYPE_I64 && ebb_tensor_get_n_dims (tokens) == 1
      && ebb_tensor_is_contiguous (tokens))
    return ebb_to_device (tokens, ebb_device_get_cpu (), error);
  return ebb_fail_null (
      error, EBB_ERROR_CALLBACK, "%s () of %s gave %s %s: it must give a contiguous i64 tensor with one dimension",
      what, G_OBJECT_TYPE_NAME (self), ebb_dtype_get_name (ebb_tensor_get_dtype (tokens)), ebb_show_shape (tokens));
}

/**
 * ebb_tokenizer_encode:
 * @self: a tokenizer
 * @text: any bytes
 * @error: return location for an error
 *
 * Turns text into tokens, without the special tokens around a text (see ebb_tokenizer_encode_text_full()). Special
 * tokens that are spelt out in @text are recognised.
 *
 * Returns: (transfer full) (nullable): an i64 tensor [n] on the CPU
 */
EbbTensor *
ebb_tokenizer_encode (EbbTokenizer *self,
                      GBytes *text,
                      GError **error)
{
  GError *failure = NULL;
  EbbTensor *tokens;

  EBB_RETURN_UNLESS_BEGUN (NULL, error, self, text);
  g_return_val_if_fail (EBB_IS_TOKENIZER (self), NULL);
  g_return_val_if_fail (EBB_TOKENIZER_GET_CLASS (self)->encode != NULL, NULL);

  tokens = EBB_TOKENIZER_GET_CLASS (self)->encode (self, text, &failure);
  return take_tokens (self, "encode", tokens, failure, error);
}

/**
 * ebb_tokenizer_encode_full:
 * @self: a tokenizer
 * @text: any bytes, also U+0000, at which a string would end
 * @special_tokens: whether to add the special tokens around a text, such as the one that begins it
 * @error: return location for an error
 *
 * Does what ebb_tokenizer_encode() does, with or without the special tokens around a text.
 *
 * Returns: (transfer full) (nullable): an i64 tensor [n] on the CPU
 */
EbbTensor *
ebb_tokenizer_encode_full (EbbTokenizer *self,
                           GBytes *text,
                           gboolean special_tokens,
                           GError **error)
{
  g_autoptr (EbbTensor) plain = ebb_tokenizer_encode (self, text, error);
  GError *failure = NULL;
  EbbTensor *whole;

  if (plain == NULL || !special_tokens)
    return g_steal_pointer (&plain);
  whole = EBB_TOKENIZER_GET_CLASS (self)->add_special_tokens (self, plain, &failure);
  return take_tokens (self, "add_special_tokens", whole, failure, error);
}

/**
 * ebb_tokenizer_encode_text:
 * @self: a tokenizer
 * @text: a text
 * @n_tokens: (out): return location for how many tokens it has
 * @error: return location for an error
 *
 * Turns text into tokens, without the special tokens around a text.
 *
 * Returns: (array length=n_tokens) (transfer full) (nullable): the tokens; %NULL with @error set, or if @text is empty
 */
gint64 *
ebb_tokenizer_encode_text (EbbTokenizer *self,
                           const char *text,
                           gsize *n_tokens,
                           GError **error)
{
  return ebb_tokenizer_encode_text_full (self, text, FALSE, n_tokens, error);
}

/**
 * ebb_tokenizer_encode_text_full:
 * @self: a tokenizer
 * @text: a text
 * @special_tokens: whether to add the special tokens around a text, such as the one that begins it
 * @n_tokens: (out): return location for how many tokens there are
 * @error: return location for an error
 *
 * Turns text into tokens.
 *
 * Returns: (array length=n_tokens) (transfer full) (nullable): the tokens; %NULL with @error set, or if there are none
 */
gint64 *
ebb_tokenizer_encode_text_full (EbbTokenizer *self,
                                const char *text,
                                gboolean special_tokens,
                                gsize *n_tokens,
                                GError **error)
{
  g_autoptr (GBytes) bytes = NULL;
  g_autoptr (EbbTensor) tokens = NULL;

  *n_tokens = 0;
  EBB_RETURN_UNLESS_BEGUN (NULL, error, self, text);
  bytes = g_bytes_new_static (text, strlen (text));
  tokens = ebb_tokenizer_encode_full (self, bytes, special_tokens, error);
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
      return ebb_fail (error, EBB_ERROR_INDEX,
                       "token %" G_GINT64_FORMAT " at %" G_GINT64_FORMAT ": it must be in [0, %" G_GINT64_FORMAT ")",
                       tokens[i], i, size);
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

  EBB_RETURN_UNLESS_BEGUN (NULL, error, self, tokens);
  g_return_val_if_fail (EBB_IS_TOKENIZER (self), NULL);
  g_return_val_if_fail (EBB_TOKENIZER_GET_CLASS (self)->decode != NULL, NULL);

  if (ebb_tensor_get_dtype (tokens) != EBB_DTYPE_I64 || ebb_tensor_get_n_dims (tokens) != 1)
    return ebb_fail_null (error, EBB_ERROR_SHAPE, "tokens are %s %s: they must be an i64 tensor with one dimension",
                          ebb_dtype_get_name (ebb_tensor_get_dtype (tokens)), ebb_show_shape (tokens));
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
 * Turns tokens into text, special tokens included. Bytes that are not UTF-8 become U+FFFD, and so do those of value 0;
 * ebb_tokenizer_decode() gives the bytes themselves.
 *
 * Returns: (transfer full) (nullable): the text; %NULL with %EBB_ERROR_INDEX if there is no such token
 */
char *
ebb_tokenizer_decode_text (EbbTokenizer *self,
                           const gint64 *tokens,
                           gsize n_tokens,
                           GError **error)
{
  return ebb_tokenizer_decode_text_full (self, tokens, n_tokens, FALSE, error);
}

/**
 * ebb_tokenizer_decode_text_full:
 * @self: a tokenizer
 * @tokens: (array length=n_tokens): the tokens
 * @n_tokens: how many
 * @skip_special_tokens: whether special tokens are left out
 * @error: return location for an error
 *
 * Does what ebb_tokenizer_decode_text() does, with or without special tokens.
 *
 * Returns: (transfer full) (nullable): the text; %NULL with %EBB_ERROR_INDEX if there is no such token
 */
char *
ebb_tokenizer_decode_text_full (EbbTokenizer *self,
                                const gint64 *tokens,
                                gsize n_tokens,
                                gboolean skip_special_tokens,
                                GError **error)
{
  g_autofree gint64 *kept = NULL;
  gint64 n = 0;
  g_autoptr (EbbTensor) tensor = NULL;
  g_autoptr (GBytes) bytes = NULL;
  const guint8 *data;
  gsize size;
  GString *text;

  if ((error != NULL && *error != NULL) || self == NULL || (tokens == NULL && n_tokens > 0)
      || !check_tokens (self, tokens, (gint64) n_tokens, error))
    return NULL;
  kept = g_new (gint64, n_tokens + 1);
  for (gsize i = 0; i < n_tokens; i++)
    if (!skip_special_tokens || !ebb_tokenizer_is_special (self, tokens[i]))
      kept[n++] = tokens[i];
  tensor = ebb_tensor_new_from_values (kept, (gsize) n, &n, 1, EBB_DTYPE_I64, ebb_device_get_cpu (), error);
  bytes = ebb_tokenizer_decode (self, tensor, error);
  if (bytes == NULL)
    return NULL;
  data = g_bytes_get_data (bytes, &size);
  text = g_string_sized_new (size + 1);
  ebb_utf8_append (text, data, size, TRUE);
  return g_string_free (text, FALSE);
}

/**
 * ebb_tokenizer_find_token:
 * @self: a tokenizer
 * @text: a token as the vocabulary spells it, like "<|endoftext|>"
 *
 * Returns: its number; -1 if there is no such token
 */
gint64
ebb_tokenizer_find_token (EbbTokenizer *self,
                          const char *text)
{
  g_return_val_if_fail (EBB_IS_TOKENIZER (self) && text != NULL, -1);

  return EBB_TOKENIZER_GET_CLASS (self)->find_token (self, text);
}

/**
 * ebb_tokenizer_get_token:
 * @self: a tokenizer
 * @token: its number
 *
 * Returns: (transfer full) (nullable): how the vocabulary spells the token, which ebb_tokenizer_decode_text() may turn
 *   into other text, with U+FFFD for U+0000; %NULL if no token has that number
 */
char *
ebb_tokenizer_get_token (EbbTokenizer *self,
                         gint64 token)
{
  g_return_val_if_fail (EBB_IS_TOKENIZER (self), NULL);

  return token < 0 || token >= ebb_tokenizer_get_vocab_size (self)
             ? NULL
             : EBB_TOKENIZER_GET_CLASS (self)->get_token (self, token);
}

/**
 * ebb_tokenizer_is_special:
 * @self: a tokenizer
 * @token: its number
 *
 * Returns: whether the token is special, like the one that ends a text: text without special tokens lacks it
 */
gboolean
ebb_tokenizer_is_special (EbbTokenizer *self,
                          gint64 token)
{
  g_return_val_if_fail (EBB_IS_TOKENIZER (self), FALSE);

  return token >= 0 && token < ebb_tokenizer_get_vocab_size (self)
         && EBB_TOKENIZER_GET_CLASS (self)->is_special (self, token);
}

/**
 * ebb_tokenizer_get_special_token:
 * @self: a tokenizer
 * @which: a task
 *
 * Returns: the number of the token with that task; -1 if there is none
 */
gint64
ebb_tokenizer_get_special_token (EbbTokenizer *self,
                                 EbbSpecialToken which)
{
  g_return_val_if_fail (EBB_IS_TOKENIZER (self), -1);

  return EBB_TOKENIZER_GET_CLASS (self)->get_special_token (self, which);
}

/**
 * ebb_tokenizer_get_chat_template:
 * @self: a tokenizer
 *
 * Returns: (nullable): the template that turns messages into text, as the tokenizer's folder has it; %NULL if it has
 *   none
 */
const char *
ebb_tokenizer_get_chat_template (EbbTokenizer *self)
{
  g_return_val_if_fail (EBB_IS_TOKENIZER (self), NULL);

  return EBB_TOKENIZER_GET_CLASS (self)->get_chat_template (self);
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
