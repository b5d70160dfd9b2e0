/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Turns tokens into text as they come: a character may be spread over tokens. */
#include "nn/data/tokenizer/token-decoder.h"

#include "nn/data/tokenizer/pipeline-private.h"
#include "nn/data/utf8-private.h"
#include "tensor/error-private.h"
#include "tensor/tensor-private.h"

struct _EbbTokenDecoder
{
  GObject parent_instance;

  EbbTokenizer *tokenizer;
  gboolean skip_special_tokens;
  EbbDecoding *decoding; /* of a tokenizer made of parts; else NULL: each token is decoded by itself */
  GString *bytes;        /* of a character whose end is still to come */
};

G_DEFINE_FINAL_TYPE (EbbTokenDecoder, ebb_token_decoder, G_TYPE_OBJECT)

/**
 * ebb_token_decoder_new:
 * @tokenizer: a tokenizer
 * @skip_special_tokens: whether special tokens are left out
 *
 * Makes a decoder for one text after the other. The parts of a text that it returns make up what
 * ebb_tokenizer_decode_text_full() gives for all of its tokens. (There is one exception: a vocabulary that spells
 * characters in tokens for bytes replaces a run of such tokens as a whole if it is not UTF-8. Here the characters
 * before the first wrong byte have been returned by then.) The text of tokenizers of your own is decoded token by
 * token.
 *
 * Returns: (transfer full): the decoder
 */
EbbTokenDecoder *
ebb_token_decoder_new (EbbTokenizer *tokenizer,
                       gboolean skip_special_tokens)
{
  EbbTokenDecoder *self;

  g_return_val_if_fail (EBB_IS_TOKENIZER (tokenizer), NULL);

  self = g_object_new (EBB_TYPE_TOKEN_DECODER, NULL);
  self->tokenizer = g_object_ref (tokenizer);
  self->skip_special_tokens = skip_special_tokens;
  if (EBB_IS_PIPELINE_TOKENIZER (tokenizer))
    self->decoding = ebb_decoding_new (&EBB_PIPELINE_TOKENIZER (tokenizer)->pipeline->decoders, TRUE);
  return self;
}

/* Appends the bytes of a token. */
static gboolean
decode (EbbTokenDecoder *self,
        gint64 token,
        GError **error)
{
  const gint64 one = 1;
  const char *spelling;
  g_autoptr (EbbTensor) tensor = NULL;
  g_autoptr (GBytes) bytes = NULL;

  if (self->decoding != NULL)
    {
      spelling = ebb_tokenizer_pipeline_get_decoded (EBB_PIPELINE_TOKENIZER (self->tokenizer)->pipeline, token);
      return spelling == NULL || ebb_decoding_push (self->decoding, spelling, self->bytes, error);
    }
  tensor = ebb_tensor_new_from_values (&token, 1, &one, 1, EBB_DTYPE_I64, ebb_device_get_cpu (), error);
  bytes = ebb_tokenizer_decode (self->tokenizer, tensor, error);
  if (bytes == NULL)
    return FALSE;
  g_string_append_len (self->bytes, g_bytes_get_data (bytes, NULL), (gssize) g_bytes_get_size (bytes));
  return TRUE;
}

static char *
take_text (EbbTokenDecoder *self,
           gboolean is_end)
{
  GString *text = g_string_new (NULL);
  gsize used = ebb_utf8_append (text, (const guint8 *) self->bytes->str, self->bytes->len, is_end);

  g_string_erase (self->bytes, 0, (gssize) used);
  return g_string_free (text, FALSE);
}

/**
 * ebb_token_decoder_push:
 * @self: a decoder
 * @token: the next token of the text
 * @error: return location for an error
 *
 * Takes the next token.
 *
 * Returns: (transfer full) (nullable): the text that has become certain, "" if there is none yet; %NULL with
 *   %EBB_ERROR_INDEX if there is no such token
 */
char *
ebb_token_decoder_push (EbbTokenDecoder *self,
                        gint64 token,
                        GError **error)
{
  gint64 size;

  EBB_RETURN_UNLESS_BEGUN (NULL, error, self);
  g_return_val_if_fail (EBB_IS_TOKEN_DECODER (self), NULL);

  size = ebb_tokenizer_get_vocab_size (self->tokenizer);
  if (token < 0 || token >= size)
    return ebb_fail_null (error, EBB_ERROR_INDEX,
                          "token %" G_GINT64_FORMAT ": it must be in [0, %" G_GINT64_FORMAT ")", token, size);
  if (!(self->skip_special_tokens && ebb_tokenizer_is_special (self->tokenizer, token)) && !decode (self, token, error))
    return NULL;
  return take_text (self, FALSE);
}

/**
 * ebb_token_decoder_finish:
 * @self: a decoder
 * @error: return location for an error
 *
 * Ends the text. The next token begins a new one.
 *
 * Returns: (transfer full) (nullable): the rest of the text, which may be ""
 */
char *
ebb_token_decoder_finish (EbbTokenDecoder *self,
                          GError **error)
{
  EBB_RETURN_UNLESS_BEGUN (NULL, error, self);
  g_return_val_if_fail (EBB_IS_TOKEN_DECODER (self), NULL);

  if (self->decoding != NULL && !ebb_decoding_finish (self->decoding, self->bytes, error))
    return NULL;
  return take_text (self, TRUE);
}

static void
ebb_token_decoder_finalize (GObject *object)
{
  EbbTokenDecoder *self = EBB_TOKEN_DECODER (object);

  ebb_decoding_free (self->decoding);
  g_string_free (self->bytes, TRUE);
  g_clear_object (&self->tokenizer);
  G_OBJECT_CLASS (ebb_token_decoder_parent_class)->finalize (object);
}

static void
ebb_token_decoder_class_init (EbbTokenDecoderClass *klass)
{
  G_OBJECT_CLASS (klass)->finalize = ebb_token_decoder_finalize;
}

static void
ebb_token_decoder_init (EbbTokenDecoder *self)
{
  self->bytes = g_string_new (NULL);
}
