/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Opens the text or the documents to train on, and the held-out part. */
#include "common/train/data.h"

#include <string.h>

/* Gives an error of the functions that open data the names of the options. */
static void
name_options (GError *error)
{
  static const struct
  {
    const char *from, *to;
  } names[] = {
    { "held-out ", "--eval " },
    { "data ", "--data " },
  };
  GString *text = g_string_new (error->message);

  for (guint i = 0; i < G_N_ELEMENTS (names); i++)
    if (g_str_has_prefix (error->message, names[i].from))
      {
        g_string_erase (text, 0, (gssize) strlen (names[i].from));
        g_string_prepend (text, names[i].to);
      }
  g_string_replace (text, ", as data ", ", as --data ", 1);
  g_string_replace (text, ": without data ", ": without --data ", 1);
  g_string_replace (text, ": with pack each", ": with --pack each", 1);
  g_free (error->message);
  error->message = g_string_free (text, FALSE);
}

static gboolean
has_eval (const Options *options)
{
  return options->eval[0] != '\0';
}

static gboolean
check_eval (const Options *options,
            GError **error)
{
  if (has_eval (options))
    return TRUE;
  if (OPTION_WAS_GIVEN (options, eval))
    return options_refuse (error, "--eval: a file or a share of the text is missing");
  if (OPTION_WAS_GIVEN (options, eval_every))
    return options_refuse (error, "--eval-every %" G_GINT64_FORMAT ": it needs --eval FILE or a share of the text",
                           options->eval_every);
  return options->save_best == NULL
         || options_refuse (error, "--save-best %s: it needs --eval FILE or a share of the text", options->save_best);
}

gboolean
data_check (const Options *options,
            GError **error)
{
  const char *const *paths = (const char *const *) options->data;
  const char *first = paths != NULL ? paths[0] : options->eval;
  const char *ending = strrchr (first, '.');
  g_autoptr (GError) failure = NULL;

  if (options->program->is_masked
      && (options->pack || (ending != NULL && g_ascii_strcasecmp (ending, ".jsonl") == 0)))
    return options_refuse (error, "--data %s: masked tokens are found in text, not in JSON lines", first);
  if (!check_eval (options, error))
    return FALSE;
  if (ebb_dataset_check_files (paths, has_eval (options) ? options->eval : NULL, options->pack, &failure))
    return TRUE;
  name_options (failure);
  return options_refuse (error, "%s", failure->message);
}

/* Masks the tokens of text for a program that learns them. */
static EbbDataset *
mask (const Options *options,
      EbbDataset *data, /* (transfer full) */
      EbbTokenizer *tokenizer,
      GError **error)
{
  g_autoptr (EbbDataset) text = data;

  if (text == NULL || !options->program->is_masked || EBB_IS_MASKED_DATASET (text))
    return g_steal_pointer (&text);
  return EBB_DATASET (ebb_masked_dataset_new (text, tokenizer, error));
}

static EbbDataset *
open_eval (const Options *options,
           EbbTokenizer *tokenizer,
           EbbDataset *data,
           GError **error)
{
  GError *failure = NULL;
  EbbDataset *held_out = ebb_dataset_open_held_out (options->eval, data, tokenizer, options->pack,
                                                    (guint64) options->seed, &failure);

  if (held_out == NULL)
    {
      name_options (failure);
      g_propagate_error (error, failure);
      return NULL;
    }
  held_out = mask (options, held_out, tokenizer, error);
  if (held_out != NULL)
    g_object_set (held_out, "shuffle", FALSE, NULL);
  return held_out;
}

/* A text for an estimate that is given none. */
static EbbDataset *
make_blank (const Options *options,
            GError **error)
{
  const gsize n = (gsize) options->context + 1;
  g_autoptr (GBytes) text = g_bytes_new_take (g_malloc0 (n), n);
  g_autoptr (EbbTokenizer) tokenizer = ebb_byte_tokenizer_new ();

  return EBB_DATASET (ebb_text_dataset_new_from_bytes (text, tokenizer, (guint64) options->seed, error));
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
      *data = mask (options,
                    ebb_dataset_open ((const char *const *) options->data, tokenizer, options->pack,
                                      (guint64) options->seed, error),
                    tokenizer, error);
      if (*data == NULL)
        return FALSE;
    }
  else if (options->estimate)
    {
      *data = make_blank (options, error);
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
