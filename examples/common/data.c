/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Opens the text or the documents to train on, and the held-out part. */
#include "data.h"

#include <string.h>

#define JSON_LINES ".jsonl"

/* A number is a share of the data; anything else is a file. */
static gboolean
get_share (const Options *options,
           double *share)
{
  char *end;

  *share = g_ascii_strtod (options->eval, &end);
  return end != options->eval && *end == '\0';
}

static gboolean
has_eval (const Options *options)
{
  return options->eval[0] != '\0';
}

gboolean
data_is_packed (const Options *options)
{
  return options->pack || g_str_has_suffix (options->data != NULL ? options->data[0] : options->eval, JSON_LINES);
}

static gboolean
check_kinds (const Options *options,
             GError **error)
{
  if (options->program->is_masked && data_is_packed (options))
    return options_refuse (error, "--data %s: masked tokens are found in text, not in JSON lines",
                           options->data != NULL ? options->data[0] : options->eval);
  if (options->data == NULL || options->pack)
    return TRUE;
  for (guint i = 1; options->data[i] != NULL; i++)
    if (g_str_has_suffix (options->data[i], JSON_LINES) != data_is_packed (options))
      return options_refuse (error,
                             "--data %s and %s: one is text and one JSON lines: with --pack each text is a document",
                             options->data[0], options->data[i]);
  return TRUE;
}

static gboolean
check_eval (const Options *options,
            GError **error)
{
  double share;

  if (!has_eval (options))
    {
      if (OPTION_WAS_GIVEN (options, eval))
        return options_refuse (error, "--eval: a file or a share of the text is missing");
      if (OPTION_WAS_GIVEN (options, eval_every))
        return options_refuse (error, "--eval-every %" G_GINT64_FORMAT ": it needs --eval FILE or a share of the text",
                               options->eval_every);
      if (options->save_best != NULL)
        return options_refuse (error, "--save-best %s: it needs --eval FILE or a share of the text",
                               options->save_best);
      return TRUE;
    }
  if (options->data == NULL && get_share (options, &share))
    return options_refuse (error, "--eval %s: without --data there is nothing to take a share of", options->eval);
  if (get_share (options, &share))
    return (share > 0 && share < 1)
           || options_refuse (error, "--eval %s: a share of the text must be more than 0 and less than 1",
                              options->eval);
  if (!options->pack && options->data != NULL
      && g_str_has_suffix (options->eval, JSON_LINES) != data_is_packed (options))
    return options_refuse (error, "--eval %s: it must be %s, as --data %s is", options->eval,
                           data_is_packed (options) ? "JSON lines" : "text", options->data[0]);
  return TRUE;
}

gboolean
data_check (const Options *options,
            GError **error)
{
  return check_kinds (options, error) && check_eval (options, error);
}

static EbbDataset *
open_files (const Options *options,
            char **paths,
            EbbTokenizer *tokenizer,
            GError **error)
{
  const char *const *names = (const char *const *) paths;
  const guint64 seed = (guint64) options->seed;

  g_autoptr (EbbDataset) data = NULL;

  if (data_is_packed (options))
    return EBB_DATASET (ebb_document_dataset_new (names, tokenizer, seed, error));
  data = EBB_DATASET (ebb_text_dataset_new (names, tokenizer, seed, error));
  if (data == NULL || !options->program->is_masked)
    return g_steal_pointer (&data);
  return EBB_DATASET (ebb_masked_dataset_new (data, tokenizer, error));
}

static EbbDataset *
open_eval (const Options *options,
           EbbTokenizer *tokenizer,
           EbbDataset *data,
           GError **error)
{
  char *paths[] = { options->eval, NULL };
  EbbDataset *held_out;
  double share;

  if (get_share (options, &share))
    {
      held_out = ebb_dataset_hold_out (data, share, error);
      if (held_out == NULL)
        g_prefix_error (error, "--eval %s: ", options->eval);
      return held_out;
    }
  held_out = open_files (options, paths, tokenizer, error);
  if (held_out != NULL)
    g_object_set (held_out, "shuffle", FALSE, NULL);
  return held_out;
}

gboolean
data_open (const Options *options,
           EbbTokenizer *tokenizer,
           EbbDataset **data,
           EbbDataset **held_out,
           GError **error)
{
  *data = NULL;
  *held_out = NULL;
  if (options->data != NULL)
    {
      *data = open_files (options, options->data, tokenizer, error);
      if (*data == NULL)
        return FALSE;
    }
  if (has_eval (options))
    {
      *held_out = open_eval (options, tokenizer, *data, error);
      if (*held_out == NULL)
        return FALSE;
    }
  if (options->steps > 0 && !ebb_dataset_check_context (*data, options->context, error))
    return FALSE;
  if (*held_out == NULL || ebb_dataset_check_context (*held_out, options->context, error))
    return TRUE;
  g_prefix_error (error, "--eval %s: ", options->eval);
  return FALSE;
}
