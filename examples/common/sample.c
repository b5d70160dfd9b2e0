/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* --sample: prints generated text. */
#include "sample.h"

#include <stdio.h>
#include <string.h>

#define REPLACEMENT "\357\277\275" /* U+FFFD */

/* Prints the whole characters that @pending begins with and leaves the rest, which later tokens may complete. Bytes
 * that are not text, or that would control the terminal, are replaced. */
static void
print_text (GString *pending,
            gboolean at_end)
{
  const char *p = pending->str, *end = p + pending->len;

  while (p < end)
    {
      gunichar c = g_utf8_get_char_validated (p, end - p);

      if (c == (gunichar) -2 && !at_end)
        break;
      if (c == (gunichar) -1 || c == (gunichar) -2)
        {
          fputs (REPLACEMENT, stdout);
          p++;
          continue;
        }
      if (c != '\n' && c != '\t' && g_unichar_iscntrl (c))
        fputs (REPLACEMENT, stdout);
      else
        fwrite (p, 1, (gsize) (g_utf8_next_char (p) - p), stdout);
      p = g_utf8_next_char (p);
    }
  g_string_erase (pending, 0, p - pending->str);
  fflush (stdout);
}

/* The bytes of the last token of @sequence; a vocabulary may be larger than its tokenizer's, then it has none. */
static gboolean
append_last (Trainer *trainer,
             EbbTensor *sequence,
             GString *pending,
             GError **error)
{
  g_autoptr (EbbTensor) last = ebb_select (sequence, 1, -1, error);
  g_autoptr (EbbTensor) host = ebb_to_device (last, ebb_device_get_cpu (), error);
  g_autoptr (GBytes) bytes = NULL;
  gint64 token;
  gsize size;
  const char *data;

  if (host == NULL || !ebb_tensor_get_item_int (host, &token, error))
    return FALSE;
  if (token >= ebb_tokenizer_get_vocab_size (trainer->tokenizer))
    {
      g_string_append (pending, REPLACEMENT);
      return TRUE;
    }
  bytes = ebb_tokenizer_decode (trainer->tokenizer, host, error);
  if (bytes == NULL)
    return FALSE;
  data = g_bytes_get_data (bytes, &size);
  g_string_append_len (pending, data, (gssize) size);
  return TRUE;
}

/* The prompt as tokens [1, T]; a new line if it is empty. */
static EbbTensor *
make_prompt (Trainer *trainer,
             GError **error)
{
  const char *prompt = trainer->options->prompt;
  g_autoptr (GBytes) text = NULL;
  g_autoptr (EbbTensor) tokens = NULL;
  g_autoptr (EbbTensor) row = NULL;

  if (prompt[0] == '\0')
    prompt = "\n";
  text = g_bytes_new_static (prompt, strlen (prompt));
  tokens = ebb_tokenizer_encode (trainer->tokenizer, text, error);
  row = ebb_unsqueeze (tokens, 0, error);
  return ebb_to_device (row, trainer->device, error);
}

/* All ranks compute it, since each may hold a part of the model; the first one prints it. */
gboolean
sample_print (Trainer *trainer,
              GError **error)
{
  const Options *options = trainer->options;
  g_autoptr (EbbGenerator) generator = ebb_generator_new ((guint64) options->seed);
  g_autoptr (GString) pending = g_string_new (NULL);
  EbbTensor *sequence;
  gboolean ok = TRUE;

  if (options->sample == 0)
    return TRUE;
  if (options->ranks.sequence_parallel /* a text that grows token by token is not divisible */
      && !ebb_parallel_set_sequence_parallel (EBB_MODULE (trainer->model), FALSE, error))
    return FALSE;
  sequence = make_prompt (trainer, error);
  if (sequence == NULL)
    return FALSE;
  if (strcmp (options->prompt, "\n") != 0)
    g_string_append (pending, options->prompt);
  for (int i = 0; ok && i < options->sample && trainer_get_interrupt (trainer) == 0; i++)
    {
      EbbTensor *longer = ebb_gpt_generate (EBB_GPT (trainer->model), sequence, 1, options->temperature, options->top_k,
                                            generator, NULL, error);

      ok = longer != NULL && append_last (trainer, longer, pending, error) && trainer_poll (trainer, error);
      if (ok && !options->silenced)
        print_text (pending, FALSE);
      ebb_tensor_unref (sequence);
      sequence = longer;
    }
  if (!options->silenced)
    {
      print_text (pending, TRUE);
      putchar ('\n');
    }
  if (sequence != NULL)
    ebb_tensor_unref (sequence);
  return ok;
}
