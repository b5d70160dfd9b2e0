/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "nn/data/bpe-tokenizer.h"

#include "nn/data/bpe-private.h"
#include "nn/files/json-scanner-private.h"
#include "tensor/error-private.h"
#include "tensor/util/property-private.h"
#include "tensor/tensor-private.h"

#include <gio/gio.h>
#include <string.h>

/* Radford et al., "Language models are unsupervised multitask learners" (2019), section 2.2; Sennrich et al., "Neural
 * machine translation of rare words with subword units" (2016). */

struct _EbbBpeTokenizer
{
  EbbTokenizer parent_instance;

  char *vocab_path;
  char *merges_path;
  EbbBpeTables tables;
};

static void ebb_bpe_tokenizer_initable_init (GInitableIface *iface);

G_DEFINE_FINAL_TYPE_WITH_CODE (EbbBpeTokenizer,
                               ebb_bpe_tokenizer,
                               EBB_TYPE_TOKENIZER,
                               G_IMPLEMENT_INTERFACE (G_TYPE_INITABLE, ebb_bpe_tokenizer_initable_init))

/* -- encoding ------------------------------------------------------------------------------------------------------ */

/* Words come again and again: the tokens of each piece of a text are kept while it is encoded. */
typedef struct
{
  const guint8 *text;
  gsize length;
  gsize first, n; /* of its tokens in the output */
} Piece;

#define CACHE_BITS 14
#define MAX_CACHED_LENGTH 32

typedef struct
{
  const EbbBpeTables *tables;
  gint64 *tokens;
  gsize n_tokens;
  Piece *cache;
} Encoding;

static Piece *
find_cached (Encoding *self,
             const guint8 *piece,
             gsize length)
{
  guint64 hash = length;

  for (gsize i = 0; i < length; i++)
    hash = (hash ^ piece[i]) * G_GUINT64_CONSTANT (0x100000001b3);
  hash *= G_GUINT64_CONSTANT (0x9e3779b97f4a7c15);
  return &self->cache[hash >> (64 - CACHE_BITS)];
}

static gboolean
encode_piece (Encoding *self,
              const guint8 *piece,
              gsize length)
{
  Piece *cached = length <= MAX_CACHED_LENGTH ? find_cached (self, piece, length) : NULL;
  gint64 *tokens = self->tokens + self->n_tokens;
  gssize n;

  if (cached != NULL && cached->length == length && memcmp (cached->text, piece, length) == 0)
    {
      memmove (tokens, self->tokens + cached->first, cached->n * sizeof *tokens);
      self->n_tokens += cached->n;
      return TRUE;
    }
  n = ebb_bpe_encode_piece (self->tables, piece, length, tokens);
  if (n < 0)
    return FALSE;
  if (cached != NULL)
    *cached = (Piece){ piece, length, self->n_tokens, (gsize) n };
  self->n_tokens += (gsize) n;
  return TRUE;
}

static void
fail_byte (EbbBpeTokenizer *self,
           const guint8 *piece,
           gsize length,
           gsize position,
           GError **error)
{
  gsize i = 0;

  while (i + 1 < length && self->tables.byte_tokens[piece[i]] >= 0)
    i++;
  g_set_error (error, EBB_ERROR, EBB_ERROR_FORMAT,
               "%s has no token for byte 0x%02x, which the text has at %" G_GSIZE_FORMAT, self->vocab_path, piece[i],
               position + i);
}

static EbbTensor *
ebb_bpe_tokenizer_encode (EbbTokenizer *tokenizer,
                          GBytes *text,
                          GError **error)
{
  EbbBpeTokenizer *self = EBB_BPE_TOKENIZER (tokenizer);
  gsize length;
  const guint8 *data = g_bytes_get_data (text, &length);
  g_autofree gint64 *tokens = g_try_new (gint64, length + 1);
  g_autofree Piece *cache = g_new0 (Piece, 1 << CACHE_BITS);
  Encoding encoding = { .tables = &self->tables, .tokens = tokens, .cache = cache };
  gint64 n;

  if (tokens == NULL || length >= G_MAXUINT32)
    {
      g_set_error (error, EBB_ERROR, EBB_ERROR_NO_MEMORY,
                   "a text of %" G_GSIZE_FORMAT " bytes is too long to be encoded at once", length);
      return NULL;
    }
  for (gsize position = 0; position < length;)
    {
      gsize end = ebb_bpe_find_piece_end (data, length, position);

      if (!encode_piece (&encoding, data + position, end - position))
        {
          fail_byte (self, data + position, end - position, position, error);
          return NULL;
        }
      position = end;
    }
  n = (gint64) encoding.n_tokens;
  return ebb_tensor_new_from_values (tokens, encoding.n_tokens, &n, 1, EBB_DTYPE_I64, ebb_device_get_cpu (), error);
}

static GBytes *
ebb_bpe_tokenizer_decode (EbbTokenizer *tokenizer,
                          EbbTensor *tokens,
                          GError **error)
{
  EbbBpeTokenizer *self = EBB_BPE_TOKENIZER (tokenizer);
  gint64 n = ebb_tensor_get_n_elements (tokens);
  const gint64 *data = ebb_tensor_get_data (tokens, NULL);
  GByteArray *text = g_byte_array_new ();

  for (gint64 i = 0; i < n; i++)
    g_byte_array_append (text, self->tables.tokens[data[i]].bytes, self->tables.tokens[data[i]].length);
  return g_byte_array_free_to_bytes (text);
}

static guint
ebb_bpe_tokenizer_get_vocab_size (EbbTokenizer *tokenizer)
{
  return EBB_BPE_TOKENIZER (tokenizer)->tables.n_tokens;
}

/* Behind a newline that stands alone between two visible ASCII characters: the expression matches the newline by itself
 * and nothing across it, with or without what follows. */
static gssize
ebb_bpe_tokenizer_find_cut (EbbTokenizer *tokenizer,
                            GBytes *text,
                            gsize from)
{
  gsize length;
  const guint8 *data = g_bytes_get_data (text, &length);

  for (gsize i = MAX (from, 2); i < length; i++)
    if (data[i - 1] == '\n' && g_ascii_isgraph ((char) data[i - 2]) && g_ascii_isgraph ((char) data[i]))
      return (gssize) i;
  return -1;
}

/**
 * ebb_bpe_tokenizer_find_token:
 * @self: a tokenizer
 * @text: a token as its vocab.json spells it, like "<|endoftext|>"
 *
 * Returns: its number; -1 if there is no such token
 */
gint64
ebb_bpe_tokenizer_find_token (EbbBpeTokenizer *self,
                              const char *text)
{
  g_return_val_if_fail (EBB_IS_BPE_TOKENIZER (self), -1);
  g_return_val_if_fail (text != NULL, -1);

  return (gint64) GPOINTER_TO_UINT (g_hash_table_lookup (self->tables.by_spelling, text)) - 1;
}

/* -- the object ---------------------------------------------------------------------------------------------------- */

static gboolean
ebb_bpe_tokenizer_initable_init_instance (GInitable *initable,
                                          GCancellable *cancellable,
                                          GError **error)
{
  EbbBpeTokenizer *self = EBB_BPE_TOKENIZER (initable);

  if (self->tables.by_spelling != NULL)
    return TRUE;
  if (self->vocab_path == NULL || self->merges_path == NULL)
    {
      g_set_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT,
                   "a BPE tokenizer needs the paths of its vocab.json and merges.txt");
      return FALSE;
    }
  return ebb_bpe_tables_load (&self->tables, self->vocab_path, self->merges_path, error);
}

static void
ebb_bpe_tokenizer_initable_init (GInitableIface *iface)
{
  iface->init = ebb_bpe_tokenizer_initable_init_instance;
}

static void
ebb_bpe_tokenizer_finalize (GObject *object)
{
  EbbBpeTokenizer *self = EBB_BPE_TOKENIZER (object);

  ebb_bpe_tables_clear (&self->tables);
  g_free (self->vocab_path);
  g_free (self->merges_path);
  G_OBJECT_CLASS (ebb_bpe_tokenizer_parent_class)->finalize (object);
}

static void
ebb_bpe_tokenizer_class_init (EbbBpeTokenizerClass *klass)
{
  GObjectClass *object_class = G_OBJECT_CLASS (klass);
  EbbTokenizerClass *tokenizer_class = EBB_TOKENIZER_CLASS (klass);
  const GParamFlags flags = G_PARAM_READWRITE | G_PARAM_CONSTRUCT_ONLY | G_PARAM_STATIC_STRINGS;

  object_class->get_property = ebb_property_get_field;
  object_class->set_property = ebb_property_set_field;
  object_class->finalize = ebb_bpe_tokenizer_finalize;
  tokenizer_class->encode = ebb_bpe_tokenizer_encode;
  tokenizer_class->decode = ebb_bpe_tokenizer_decode;
  tokenizer_class->get_vocab_size = ebb_bpe_tokenizer_get_vocab_size;
  tokenizer_class->find_cut = ebb_bpe_tokenizer_find_cut;

  /**
   * EbbBpeTokenizer:vocab-path:
   *
   * The file with the tokens and their numbers.
   */
  g_object_class_install_property (object_class, offsetof (EbbBpeTokenizer, vocab_path),
                                   g_param_spec_string ("vocab-path", NULL, NULL, NULL, flags));
  /**
   * EbbBpeTokenizer:merges-path:
   *
   * The file with the merges, most important first.
   */
  g_object_class_install_property (object_class, offsetof (EbbBpeTokenizer, merges_path),
                                   g_param_spec_string ("merges-path", NULL, NULL, NULL, flags));
}

static void
ebb_bpe_tokenizer_init (EbbBpeTokenizer *self)
{
}

/**
 * ebb_bpe_tokenizer_new:
 * @vocab_path: (type filename): the model's `vocab.json`: an object with each token's number
 * @merges_path: (type filename): the model's `merges.txt`: two tokens a line, most important first
 * @error: return location for an error
 *
 * Makes GPT-2's byte-level byte-pair encoding, given the files that are published with a model. Encoding splits the
 * text with GPT-2's expression and merges bytes by rank; special tokens such as `<|endoftext|>` are text like any other
 * (see ebb_bpe_tokenizer_find_token()). Bytes that are not UTF-8 are encoded too, and come back from
 * ebb_tokenizer_decode().
 *
 * Returns: (transfer full) (nullable): the tokenizer; %NULL with %EBB_ERROR_IO if a file can't be read,
 * %EBB_ERROR_FORMAT if something in it is wrong
 */
EbbTokenizer *
ebb_bpe_tokenizer_new (const char *vocab_path,
                       const char *merges_path,
                       GError **error)
{
  if (!EBB_MAY_BEGIN (error, vocab_path, merges_path))
    return NULL;

  return g_initable_new (EBB_TYPE_BPE_TOKENIZER, NULL, error, "vocab-path", vocab_path, "merges-path", merges_path,
                         NULL);
}
