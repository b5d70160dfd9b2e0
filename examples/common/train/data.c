/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Opens the text or the documents to train on, and the held-out part. */
#include "common/train/data.h"

#include "common/read-file.h"

#include <json-glib/json-glib.h>
#include <stdio.h>
#include <string.h>

#define JSON_LINES ".jsonl"
#define PEEKED ((gsize) 1 << 20)

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

/* In small or capital letters. */
static gboolean
has_suffix (const char *path,
            const char *suffix)
{
  const gsize length = strlen (path), n = strlen (suffix);

  return length >= n && g_ascii_strcasecmp (path + length - n, suffix) == 0;
}

static gboolean
is_lines (const char *path)
{
  return has_suffix (path, JSON_LINES);
}

gboolean
data_is_packed (const Options *options)
{
  return options->pack || is_lines (options->data != NULL ? options->data[0] : options->eval);
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
    if (is_lines (options->data[i]) != data_is_packed (options))
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
      && is_lines (options->eval) != data_is_packed (options))
    return options_refuse (error, "--eval %s: it must be %s, as --data %s is", options->eval,
                           data_is_packed (options) ? "JSON lines" : "text", options->data[0]);
  return TRUE;
}

/* Whether a line is what JSON lines have. */
static gboolean
looks_like_lines (const char *line)
{
  static const char *const keys[] = { "text", "prompt", "completion", "messages", NULL };
  g_autoptr (JsonParser) parser = json_parser_new ();
  JsonNode *root;

  if (*line != '{' || !json_parser_load_from_data (parser, line, (gssize) strcspn (line, "\n"), NULL))
    return FALSE;
  root = json_parser_get_root (parser);
  for (guint i = 0; root != NULL && JSON_NODE_HOLDS_OBJECT (root) && keys[i] != NULL; i++)
    if (json_object_has_member (json_node_get_object (root), keys[i]))
      return TRUE;
  return FALSE;
}

/* Trained as text, JSON would teach its brackets and keys. */
static gboolean
check_is_text (const char *option,
               const char *path,
               GError **error)
{
  g_autofree char *text = g_malloc (PEEKED + 1);
  const gsize n = read_start (path, text, PEEKED); /* what can't be read is reported where all of it is */
  const char *begin = text;
  g_autoptr (GError) failure = NULL;

  text[n] = '\0';
  if (!ebb_check_text_format (path, (const guint8 *) text, n, FALSE, &failure))
    return options_refuse (error, "--%s %s", option, failure->message);
  if (is_lines (path))
    return TRUE;
  if (g_str_has_prefix (begin, "\357\273\277")) /* a byte order mark */
    begin += 3;
  begin += strspn (begin, " \t\r\n");
  if (looks_like_lines (begin))
    return options_refuse (error, "--%s %s: it has JSON lines: give it a name that ends in " JSON_LINES, option, path);
  if (has_suffix (path, ".json") && (*begin == '[' || *begin == '{'))
    return options_refuse (
        error,
        "--%s %s: it is one JSON %s, which is not trained on: write an object with text, with prompt "
        "and completion, or with messages on each line of a file whose name ends in " JSON_LINES,
        option, path, *begin == '[' ? "array" : "object");
  return TRUE;
}

static gboolean
check_texts (const Options *options,
             GError **error)
{
  double share;

  for (guint i = 0; options->data != NULL && options->data[i] != NULL; i++)
    if (!check_is_text ("data", options->data[i], error))
      return FALSE;
  return !has_eval (options) || get_share (options, &share) || check_is_text ("eval", options->eval, error);
}

gboolean
data_check (const Options *options,
            GError **error)
{
  return check_kinds (options, error) && check_eval (options, error) && check_texts (options, error);
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
      *data = open_files (options, options->data, tokenizer, error);
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
