/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* The result of a generation: tokens and text of each row, and why it ended. */
#include "nn/models/generation-private.h"

#include "tensor/error-private.h"
#include "tensor/ops/pointwise.h"
#include "tensor/ops/shape.h"
#include "tensor/tensor-private.h"

#include <string.h>

/**
 * EbbGeneration:
 *
 * The result of ebb_model_generate(): the tokens after each prompt, their text, and why the row ended.
 */
G_DEFINE_TYPE (EbbGeneration, ebb_generation, G_TYPE_OBJECT)

static void
ebb_generation_finalize (GObject *object)
{
  EbbGeneration *self = EBB_GENERATION (object);

  for (guint i = 0; i < self->n_rows; i++)
    {
      g_array_unref (self->rows[i].tokens);
      g_clear_object (&self->rows[i].decoder);
      if (self->rows[i].text != NULL)
        g_string_free (self->rows[i].text, TRUE);
    }
  g_free (self->rows);
  G_OBJECT_CLASS (ebb_generation_parent_class)->finalize (object);
}

static void
ebb_generation_class_init (EbbGenerationClass *klass)
{
  G_OBJECT_CLASS (klass)->finalize = ebb_generation_finalize;
}

static void
ebb_generation_init (EbbGeneration *self)
{
}

/* -- prompts ------------------------------------------------------------------------------------------------------- */

static gboolean
check_prompt (EbbTensor *prompt, guint i, GError **error)
{
  g_autofree char *shape = NULL;

  if (prompt == NULL)
    ebb_error_set (error, EBB_ERROR_INVALID_ARGUMENT, "generate: prompt %u is missing", i);
  else if (ebb_dtype_is_floating_point (ebb_tensor_get_dtype (prompt)))
    ebb_error_set (error, EBB_ERROR_DTYPE, "generate: prompt %u is of %s; tokens must be of i64 or i32", i,
                   ebb_dtype_get_name (ebb_tensor_get_dtype (prompt)));
  else if (ebb_tensor_get_n_dims (prompt) != 1)
    {
      shape = ebb_tensor_shape_to_string (prompt);
      ebb_error_set (error, EBB_ERROR_SHAPE, "generate: prompt %u is %s; it must be [n]", i, shape);
    }
  else if (ebb_tensor_get_dim (prompt, 0) == 0)
    ebb_error_set (error, EBB_ERROR_SHAPE, "generate: prompt %u is empty; it must have a token at least", i);
  else
    return TRUE;
  return FALSE;
}

/* The decoder sees the prompt too: whether a token begins with a space may depend on what comes before it. */
static gboolean
begin_text (EbbGenerationRow *row, EbbTokenizer *tokenizer, GError **error)
{
  const gint64 size = ebb_tokenizer_get_vocab_size (tokenizer);

  row->text = g_string_new (NULL);
  row->decoder = ebb_token_decoder_new (tokenizer, TRUE);
  for (guint i = 0; i < row->tokens->len; i++)
    {
      const gint64 token = g_array_index (row->tokens, gint64, i);
      g_autofree char *text = token < size ? ebb_token_decoder_push (row->decoder, token, error) : g_strdup ("");

      if (text == NULL)
        return FALSE;
    }
  return TRUE;
}

static gboolean
begin_row (EbbGenerationRow *row, EbbTensor *prompt, guint i, gint64 vocab, EbbTokenizer *tokenizer, GError **error)
{
  g_autoptr (EbbTensor) wide = NULL;
  g_autoptr (EbbTensor) host = NULL;
  g_autoptr (EbbTensor) contiguous = NULL;
  const gint64 *tokens;

  if (!check_prompt (prompt, i, error))
    return FALSE;
  wide = ebb_cast (prompt, EBB_DTYPE_I64, error);
  host = ebb_to_device (wide, ebb_device_get_cpu (), error);
  contiguous = ebb_contiguous (host, error);
  tokens = contiguous != NULL ? ebb_tensor_get_data (contiguous, error) : NULL;
  if (tokens == NULL)
    return FALSE;
  row->n_prompt = (guint) ebb_tensor_get_dim (contiguous, 0);
  for (guint j = 0; j < row->n_prompt; j++)
    if (tokens[j] < 0 || tokens[j] >= vocab)
      return ebb_fail (error, EBB_ERROR_INDEX,
                       "generate: token %" G_GINT64_FORMAT " at %u of prompt %u; it must be in [0, %" G_GINT64_FORMAT
                       ")",
                       tokens[j], j, i, vocab);
  g_array_append_vals (row->tokens, tokens, row->n_prompt);
  return tokenizer == NULL || begin_text (row, tokenizer, error);
}

EbbGeneration *
ebb_generation_new (EbbTensor **prompts, gsize n_prompts, gint64 vocab, EbbTokenizer *tokenizer, GError **error)
{
  g_autoptr (EbbGeneration) self = g_object_new (EBB_TYPE_GENERATION, NULL);

  if (n_prompts == 0)
    return ebb_fail_null (error, EBB_ERROR_INVALID_ARGUMENT, "generate: there is no prompt");
  self->n_rows = (guint) n_prompts;
  self->rows = g_new0 (EbbGenerationRow, n_prompts);
  for (guint i = 0; i < self->n_rows; i++)
    self->rows[i].tokens = g_array_new (FALSE, FALSE, sizeof (gint64));
  for (guint i = 0; i < self->n_rows; i++)
    {
      if (!begin_row (&self->rows[i], prompts[i], i, vocab, tokenizer, error))
        return NULL;
      self->n_prompt_tokens += self->rows[i].n_prompt;
    }
  return g_steal_pointer (&self);
}

/* -- text ---------------------------------------------------------------------------------------------------------- */

/* Ends the text before the first stop string that begins at @from or later. */
static gboolean
cut_at_stop_string (GString *text, gsize from, const char *const *stop_strings)
{
  const char *first = NULL;

  for (guint i = 0; stop_strings != NULL && stop_strings[i] != NULL; i++)
    {
      const char *found = strstr (text->str + from, stop_strings[i]);

      if (found != NULL && (first == NULL || found < first))
        first = found;
    }
  if (first != NULL)
    g_string_truncate (text, (gsize) (first - text->str));
  return first != NULL;
}

gboolean
ebb_generation_row_push (EbbGenerationRow *row,
                         gint64 token,
                         gboolean is_stop_token,
                         EbbTokenizer *tokenizer,
                         const char *const *stop_strings,
                         gboolean *stopped,
                         GError **error)
{
  g_autofree char *text = NULL;

  *stopped = FALSE;
  g_array_append_val (row->tokens, token);
  if (row->decoder == NULL || is_stop_token)
    return TRUE;
  if (token < ebb_tokenizer_get_vocab_size (tokenizer))
    text = ebb_token_decoder_push (row->decoder, token, error);
  else /* a vocabulary may be larger than its tokenizer's, whose text has nothing for it */
    text = g_strdup ("");
  if (text == NULL)
    return FALSE;
  g_string_append (row->text, text);
  *stopped = cut_at_stop_string (row->text, row->n_passed, stop_strings);
  return TRUE;
}

gboolean
ebb_generation_row_finish (EbbGenerationRow *row, const char *const *stop_strings, gboolean *stopped, GError **error)
{
  g_autofree char *rest = NULL;

  if (row->decoder == NULL)
    return TRUE;
  rest = ebb_token_decoder_finish (row->decoder, error);
  g_clear_object (&row->decoder);
  if (rest == NULL)
    return FALSE;
  if (*stopped)
    return TRUE;
  g_string_append (row->text, rest);
  *stopped = cut_at_stop_string (row->text, row->n_passed, stop_strings);
  return TRUE;
}

/* How many bytes at the end of @text begin a stop string. */
static gsize
count_held (const char *text, gsize length, const char *const *stop_strings)
{
  gsize held = 0;

  for (guint i = 0; stop_strings != NULL && stop_strings[i] != NULL; i++)
    for (gsize n = MIN (strlen (stop_strings[i]) - 1, length); n > held; n--)
      if (memcmp (text + length - n, stop_strings[i], n) == 0)
        held = n;
  return held;
}

char *
ebb_generation_row_take_text (EbbGenerationRow *row, const char *const *stop_strings, gboolean is_over)
{
  const char *fresh;
  gsize length, begin;

  if (row->text == NULL)
    return NULL;
  begin = MIN (row->n_passed, row->text->len);
  fresh = row->text->str + begin;
  length = row->text->len - begin;
  if (!is_over)
    length -= count_held (fresh, length, stop_strings);
  row->n_passed = begin + length;
  return g_strndup (fresh, length);
}

/* -- results ------------------------------------------------------------------------------------------------------- */

/**
 * ebb_generation_get_n_rows:
 * @self: what was generated
 *
 * Returns: how many rows there are, one for each prompt
 */
guint
ebb_generation_get_n_rows (EbbGeneration *self)
{
  g_return_val_if_fail (EBB_IS_GENERATION (self), 0);

  return self->n_rows;
}

/**
 * ebb_generation_get_tokens:
 * @self: what was generated
 * @row: a row
 *
 * Returns: (transfer full): the tokens that follow the prompt, i64 `[n]` on the CPU; a stop token is the last of them
 */
EbbTensor *
ebb_generation_get_tokens (EbbGeneration *self,
                           guint row)
{
  const EbbGenerationRow *it;
  gint64 n;

  g_return_val_if_fail (EBB_IS_GENERATION (self) && row < self->n_rows, NULL);

  it = &self->rows[row];
  n = it->tokens->len - it->n_prompt;
  return ebb_tensor_new_from_values (&g_array_index (it->tokens, gint64, it->n_prompt), (gsize) n, &n, 1, EBB_DTYPE_I64,
                                     ebb_device_get_cpu (), NULL);
}

/**
 * ebb_generation_get_text:
 * @self: what was generated
 * @row: a row
 *
 * Returns: (nullable): the text that follows the prompt, without stop token or stop string; %NULL if the options had no
 *   tokenizer
 */
const char *
ebb_generation_get_text (EbbGeneration *self,
                         guint row)
{
  g_return_val_if_fail (EBB_IS_GENERATION (self) && row < self->n_rows, NULL);

  return self->rows[row].text != NULL ? self->rows[row].text->str : NULL;
}

/**
 * ebb_generation_get_end:
 * @self: what was generated
 * @row: a row
 *
 * Returns: why the row ended
 */
EbbGenerationEnd
ebb_generation_get_end (EbbGeneration *self,
                        guint row)
{
  g_return_val_if_fail (EBB_IS_GENERATION (self) && row < self->n_rows, EBB_GENERATION_END_LENGTH);

  return self->rows[row].end;
}

/**
 * ebb_generation_get_prompt_tokens:
 * @self: what was generated
 *
 * Returns: how many tokens all prompts had together
 */
guint64
ebb_generation_get_prompt_tokens (EbbGeneration *self)
{
  g_return_val_if_fail (EBB_IS_GENERATION (self), 0);

  return self->n_prompt_tokens;
}

/**
 * ebb_generation_get_prompt_seconds:
 * @self: what was generated
 *
 * Returns: how long it took to the first token of each row
 */
double
ebb_generation_get_prompt_seconds (EbbGeneration *self)
{
  g_return_val_if_fail (EBB_IS_GENERATION (self), 0);

  return self->prompt_seconds;
}

/**
 * ebb_generation_get_token_seconds:
 * @self: what was generated
 *
 * Returns: how long all further tokens took
 */
double
ebb_generation_get_token_seconds (EbbGeneration *self)
{
  g_return_val_if_fail (EBB_IS_GENERATION (self), 0);

  return self->token_seconds;
}

/**
 * ebb_generation_get_cache_bytes:
 * @self: what was generated
 *
 * Returns: the most bytes that the cache of keys and values had
 */
guint64
ebb_generation_get_cache_bytes (EbbGeneration *self)
{
  g_return_val_if_fail (EBB_IS_GENERATION (self), 0);

  return self->cache_bytes;
}
