/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Finds which tokens of a text are answers, whose loss is learned. */
#include "nn/data/answers-private.h"

#include "tensor/tensor-private.h"

#include <string.h>

EbbTensor *
ebb_encode_part (EbbTokenizer *tokenizer,
                 const char *text,
                 gsize length,
                 GError **error)
{
  g_autoptr (GBytes) bytes = g_bytes_new_static (text, length);

  return ebb_tokenizer_encode (tokenizer, bytes, error);
}

/* A special token and its text. */
typedef struct
{
  gint64 token;
  gsize begin, end;
} Special;

/* Up to the first one that the text does not spell. */
static GArray *
find_special_tokens (EbbTokenizer *tokenizer, const char *text, const gint64 *tokens, gint64 n)
{
  GArray *result = g_array_new (FALSE, FALSE, sizeof (Special));
  const char *from = text;

  for (gint64 i = 0; i < n; i++)
    if (ebb_tokenizer_is_special (tokenizer, tokens[i]))
      {
        g_autofree char *spelling = ebb_tokenizer_get_token (tokenizer, tokens[i]);
        const char *found = spelling != NULL && *spelling != '\0' ? strstr (from, spelling) : NULL;
        Special special = { i, 0, 0 };

        if (found == NULL)
          break;
        from = found + strlen (spelling);
        special.begin = (gsize) (found - text);
        special.end = (gsize) (from - text);
        g_array_append_val (result, special);
      }
  return result;
}

/* A place of the text that begins a token and that nothing is encoded across: the text before it and the text from it
 * on have the tokens that they have alone. It moves through the text, so that the tokens up to an answer need not be
 * made from the beginning. */
typedef struct
{
  EbbTokenizer *tokenizer;
  const char *text;
  gsize length;
  const gint64 *tokens;
  gint64 n;
  GArray *special;
  guint n_passed; /* of them */
  gint64 token;   /* that begins at @place */
  gsize place;
} Alignment;

/* To the last special token that ends at @end or before. */
static void
align_to_special_token (Alignment *self, gsize end)
{
  for (; self->n_passed < self->special->len; self->n_passed++)
    {
      const Special *special = &g_array_index (self->special, Special, self->n_passed);

      if (special->end > end)
        return;
      if (special->begin >= self->place)
        {
          self->token = special->token;
          self->place = special->begin;
        }
    }
}

/* To the last place before @end where the tokenizer cuts the text up to there and all of it. */
static gboolean
align_to_cut (Alignment *self, gsize end, GError **error)
{
  g_autoptr (GBytes) part = g_bytes_new_static (self->text + self->place, end - self->place);
  g_autoptr (GBytes) rest = g_bytes_new_static (self->text + self->place, self->length - self->place);
  g_autoptr (EbbTensor) passed = NULL;
  gsize last = 0;
  gssize cut;

  while ((cut = ebb_tokenizer_find_cut (self->tokenizer, part, last + 1)) > 0)
    last = (gsize) cut;
  if (last == 0 || ebb_tokenizer_find_cut (self->tokenizer, rest, last) != (gssize) last)
    return TRUE;
  passed = ebb_encode_part (self->tokenizer, self->text + self->place, last, error);
  if (passed == NULL)
    return FALSE;
  self->token += ebb_tensor_get_n_elements (passed);
  self->place += last;
  return TRUE;
}

/* How many tokens the texts up to @end and of the whole have in common at their beginning; -1 with @error. */
static gint64
count_common (Alignment *self, gsize end, GError **error)
{
  g_autoptr (EbbTensor) part = NULL;
  const gint64 *data;
  gint64 common = 0, most;

  align_to_special_token (self, end);
  if (end == self->place)
    return self->token;
  if (!align_to_cut (self, end, error))
    return -1;
  part = ebb_encode_part (self->tokenizer, self->text + self->place, end - self->place, error);
  if (part == NULL)
    return -1;
  data = ebb_tensor_get_data (part, NULL);
  most = MIN (self->n - self->token, ebb_tensor_get_n_elements (part));
  while (common < most && data[common] == self->tokens[self->token + common])
    common++;
  return self->token + common;
}

EbbTensor *
ebb_mark_answers (EbbTokenizer *tokenizer,
                  const char *text,
                  const gsize *spans,
                  gsize n_spans,
                  EbbTensor *tokens,
                  GError **error)
{
  gint64 n = ebb_tensor_get_n_elements (tokens);
  const gint64 *data = n > 0 ? ebb_tensor_get_data (tokens, NULL) : NULL;
  g_autoptr (GArray) special = find_special_tokens (tokenizer, text, data, n);
  Alignment alignment = { tokenizer, text, strlen (text), data, n, special, 0, 0, 0 };
  g_autofree guint8 *marks = g_new0 (guint8, n + 1);

  for (gsize i = 0; i < n_spans; i += 2)
    {
      gint64 begin = count_common (&alignment, spans[i], error);
      gint64 end = begin >= 0 ? count_common (&alignment, spans[i + 1], error) : -1;

      if (end < 0)
        return NULL;
      for (gint64 j = begin; j < end; j++)
        marks[j] = TRUE;
    }
  return ebb_tensor_new_from_values (marks, (gsize) n, &n, 1, EBB_DTYPE_BOOL, ebb_device_get_cpu (), error);
}
