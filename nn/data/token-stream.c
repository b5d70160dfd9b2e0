/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "nn/data/token-stream-private.h"

#include "nn/data/byte-tokenizer.h"
#include "nn/data/dataset-private.h"
#include "nn/data/text-format.h"
#include "tensor/error-private.h"
#include "tensor/util/atomic-file-private.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The tokens of one text after another, in memory or read from their file. */

/* A long text is encoded in parts: tokens as the tokenizer gives them take 8 bytes each. */
#define PART_SIZE ((gsize) 1 << 20)
/* Files up to this size are read at once, so that a text of many small files doesn't hold as many open. */
#define SMALL_FILE ((gsize) 1 << 20)

/* Makes room for @n more tokens. */
static gboolean
reserve (EbbTokenSegment *segment,
         gsize *capacity,
         gsize n,
         GError **error)
{
  gsize wanted = (gsize) segment->n_tokens + n;
  void *tokens;

  if (wanted <= *capacity)
    return TRUE;
  wanted = MAX (wanted, *capacity + *capacity / 2);
  tokens = g_try_realloc_n (segment->tokens, wanted, segment->width);
  if (tokens == NULL)
    return ebb_fail (error, EBB_ERROR_NO_MEMORY,
                     "no memory for %" G_GSIZE_FORMAT " tokens of %u bytes each", wanted, segment->width);
  segment->tokens = tokens;
  *capacity = wanted;
  return TRUE;
}

static gboolean
append_tokens (EbbTokenSegment *segment,
               gsize *capacity,
               EbbTensor *tensor,
               gint64 vocab_size,
               GError **error)
{
  gsize n = (gsize) ebb_tensor_get_n_elements (tensor);
  const gint64 *tokens = ebb_tensor_get_data (tensor, NULL);

  if (!reserve (segment, capacity, n, error)
      || !ebb_tokens_store (segment->tokens, segment->width, segment->n_tokens, tokens, (gint64) n, vocab_size, error))
    return FALSE;
  segment->n_tokens += (gint64) n;
  return TRUE;
}

static gboolean
encode_text (EbbTokenSegment *segment,
             GBytes *text,
             EbbTokenizer *tokenizer,
             GError **error)
{
  gint64 vocab_size = ebb_tokenizer_get_vocab_size (tokenizer);
  gsize size = g_bytes_get_size (text), capacity = 0;

  segment->width = vocab_size <= 1 << 16 ? 2 : 4;
  for (gsize begin = 0; begin < size;)
    {
      g_autoptr (GBytes) rest = g_bytes_new_from_bytes (text, begin, size - begin);
      gssize cut = size - begin > PART_SIZE ? ebb_tokenizer_find_cut (tokenizer, rest, PART_SIZE) : -1;
      gsize length = cut > 0 ? (gsize) cut : size - begin;
      g_autoptr (GBytes) part = g_bytes_new_from_bytes (rest, 0, length);
      g_autoptr (EbbTensor) tokens = ebb_tokenizer_encode (tokenizer, part, error);

      if (tokens == NULL || !append_tokens (segment, &capacity, tokens, vocab_size, error))
        return FALSE;
      begin += length;
    }
  if (segment->n_tokens > 0 && (gsize) segment->n_tokens < capacity)
    segment->tokens = g_realloc_n (segment->tokens, (gsize) segment->n_tokens, segment->width);
  return TRUE;
}

static void
clear_segment (EbbTokenSegment *segment)
{
  g_clear_pointer (&segment->data, g_bytes_unref);
  g_clear_pointer (&segment->tokens, g_free);
  g_clear_pointer (&segment->path, g_free);
  if (segment->fd >= 0)
    close (segment->fd);
}

/* Takes @segment over. */
static void
append_segment (EbbTokenStream *self,
                const EbbTokenSegment *segment)
{
  self->segments = g_renew (EbbTokenSegment, self->segments, self->n_segments + 1);
  self->segments[self->n_segments++] = *segment;
  self->n_tokens += segment->n_tokens;
}

gboolean
ebb_token_stream_append (EbbTokenStream *self,
                         GBytes *text,
                         const char *name,
                         EbbTokenizer *tokenizer,
                         GError **error)
{
  EbbTokenSegment segment = { .begin = self->n_tokens, .fd = -1 };

  if (g_bytes_get_size (text) == 0)
    return ebb_dataset_fail_empty (name, error);
  if (EBB_IS_BYTE_TOKENIZER (tokenizer))
    {
      segment.width = 1;
      segment.data = g_bytes_ref (text);
      segment.n_tokens = (gint64) g_bytes_get_size (text);
    }
  else if (!encode_text (&segment, text, tokenizer, error))
    {
      g_autofree char *shown = ebb_escape_text (name);

      clear_segment (&segment);
      g_prefix_error (error, "%s: ", shown);
      return FALSE;
    }
  append_segment (self, &segment);
  return TRUE;
}

gboolean
ebb_token_stream_append_file (EbbTokenStream *self,
                              const char *path,
                              EbbTokenizer *tokenizer,
                              GError **error)
{
  EbbTokenSegment segment = { .begin = self->n_tokens, .width = 1 };
  g_autofree char *start = NULL;
  g_autoptr (GBytes) text = NULL;
  char *data;
  gsize size;

  segment.fd = ebb_open_regular_file (path, &size, error);
  if (segment.fd < 0)
    return FALSE;
  if (EBB_IS_BYTE_TOKENIZER (tokenizer) && size > SMALL_FILE)
    {
      start = g_malloc (SMALL_FILE);
      if (!ebb_read_file_part (segment.fd, path, 0, start, SMALL_FILE, error)
          || !ebb_check_text_format (path, (const guint8 *) start, SMALL_FILE, TRUE, error))
        {
          close (segment.fd);
          return FALSE;
        }
      segment.path = g_strdup (path);
      segment.n_tokens = (gint64) size;
      append_segment (self, &segment);
      return TRUE;
    }
  close (segment.fd);
  data = ebb_read_file (path, G_MAXSIZE - 1, &size, error);
  if (data == NULL)
    return FALSE;
  text = g_bytes_new_take (data, size);
  if (!ebb_check_text_format (path, (const guint8 *) data, MIN (size, SMALL_FILE), TRUE, error))
    return FALSE;
  return ebb_token_stream_append (self, text, path, tokenizer, error);
}

static gboolean
read_segment (const EbbTokenSegment *segment,
              gint64 first,
              gint64 n,
              gint64 *tokens,
              GError **error)
{
  /* Bytes of a file are read to the end of the room for their tokens, and are made wider from the first one on. */
  guint8 *read = (guint8 *) tokens + 7 * n;
  const guint8 *bytes = segment->data != NULL ? (const guint8 *) g_bytes_get_data (segment->data, NULL) + first : read;

  if (segment->width == 1 && segment->data == NULL
      && !ebb_read_file_part (segment->fd, segment->path, (guint64) first, read, (gsize) n, error))
    return FALSE;
  if (segment->width == 1)
    ebb_tokens_load (bytes, 1, 0, n, tokens);
  else
    ebb_tokens_load (segment->tokens, segment->width, first, n, tokens);
  return TRUE;
}

gboolean
ebb_token_stream_read (const EbbTokenStream *self,
                       gint64 begin,
                       gint64 n,
                       gint64 *tokens,
                       GError **error)
{
  guint s = 0;

  while (begin >= self->segments[s].begin + self->segments[s].n_tokens)
    s++;
  for (; n > 0; s++)
    {
      gint64 first = begin - self->segments[s].begin;
      gint64 here = MIN (n, self->segments[s].n_tokens - first);

      if (!read_segment (&self->segments[s], first, here, tokens, error))
        return FALSE;
      tokens += here;
      begin += here;
      n -= here;
    }
  return TRUE;
}

void
ebb_token_stream_clear (EbbTokenStream *self)
{
  for (guint i = 0; i < self->n_segments; i++)
    clear_segment (&self->segments[i]);
  g_clear_pointer (&self->segments, g_free);
  self->n_segments = 0;
  self->n_tokens = 0;
}
