/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* --sample: prints generated text. */
#include "common/train/sample.h"

#include "common/print-text.h"

#include <stdio.h>
#include <string.h>

typedef struct
{
  Trainer *trainer;
  GError *error; /* of a rank that fails while others generate */
} Sampling;

/* Ctrl-C ends the text. */
static gboolean
take_text (guint row,
           gint64 token,
           const char *text,
           gpointer user_data)
{
  Sampling *self = user_data;

  if (!self->trainer->options->silenced)
    print_text (text);
  return trainer_poll (self->trainer, &self->error) && trainer_get_interrupt (self->trainer) == 0;
}

/* The prompt as tokens; a new line if it is empty. */
static EbbTensor *
make_prompt (Trainer *trainer,
             GError **error)
{
  const char *prompt = trainer->options->prompt[0] != '\0' ? trainer->options->prompt : "\n";
  g_autoptr (GBytes) text = g_bytes_new_static (prompt, strlen (prompt));
  g_autoptr (EbbTensor) tokens = ebb_tokenizer_encode (trainer->tokenizer, text, error);

  return ebb_to_device (tokens, trainer->device, error);
}

/* All ranks compute it, since each may hold a part of the model; the first one prints it. */
gboolean
sample_print (Trainer *trainer,
              GError **error)
{
  const Options *options = trainer->options;
  g_autoptr (EbbGenerator) generator = ebb_generator_new ((guint64) options->seed);
  g_autoptr (EbbGenerationOptions) how =
      g_object_new (EBB_TYPE_GENERATION_OPTIONS, "max-tokens", options->sample, "temperature", options->temperature,
                    "top-k", options->top_k, "top-p", 1.0, "min-p", 0.0, "repetition-penalty", 1.0,
                    "no-repeat-ngram-size", 0, "min-tokens", 0, "min-length", 0, "forced-bos-token", (gint64) -1,
                    "stop-strings", NULL, "slides", TRUE, "generator", generator, "tokenizer", trainer->tokenizer,
                    NULL);
  g_autoptr (EbbTensor) prompt = NULL;
  g_autoptr (EbbGeneration) generation = NULL;
  g_autofree char *shown = g_utf8_make_valid (options->prompt, -1);
  Sampling sampling = { trainer, NULL };

  if (options->sample == 0)
    return TRUE;
  ebb_generation_options_set_forced_eos_tokens (how, NULL, 0);
  ebb_generation_options_set_suppress_tokens (how, NULL, 0);
  ebb_generation_options_set_begin_suppress_tokens (how, NULL, 0);
  ebb_generation_options_set_stop_tokens (how, NULL, 0); /* a sample has the length that was asked for */
  if (options->ranks.sequence_parallel                   /* a text that grows token by token is not divisible */
      && !ebb_parallel_set_sequence_parallel (EBB_MODULE (trainer->model), FALSE, error))
    return FALSE;
  prompt = make_prompt (trainer, error);
  if (prompt == NULL)
    return FALSE;
  if (!options->silenced && strcmp (options->prompt, "\n") != 0)
    print_text (shown);
  generation =
      ebb_model_generate (EBB_MODULE (trainer->model), &prompt, 1, how, take_text, &sampling, NULL, error);
  if (!options->silenced)
    putchar ('\n');
  if (sampling.error != NULL)
    {
      g_clear_error (error);
      g_propagate_error (error, sampling.error);
      return FALSE;
    }
  return generation != NULL;
}
