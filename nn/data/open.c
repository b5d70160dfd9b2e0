/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Opens files as text or as documents, with a held-out part, and refuses files that people name by mistake. */
#include "nn/data/open.h"

#include "nn/data/document-dataset.h"
#include "nn/data/text-dataset.h"
#include "nn/data/text-format.h"
#include "tensor/error-private.h"
#include "tensor/util/atomic-file-private.h"
#include "tensor/util/json-private.h"

#include <string.h>
#include <unistd.h>

#define JSON_LINES ".jsonl"
/* The bytes of a file by which its kind is known. */
#define PEEKED ((gsize) 1 << 20)

/* -- kinds of files ------------------------------------------------------------------------------------------------ */

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

/* A number is a share of the data; anything else is a file. */
static gboolean
get_share (const char *held_out,
           double *share)
{
  char *end;

  *share = g_ascii_strtod (held_out, &end);
  return end != held_out && *end == '\0';
}

static gboolean
check_kinds (const char *const *paths,
             GError **error)
{
  for (guint i = 1; paths[0] != NULL && paths[i] != NULL; i++)
    if (is_lines (paths[i]) != is_lines (paths[0]))
      return ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT,
                       "data %s and %s: one is text and one JSON lines: with pack each text is a document", paths[0],
                       paths[i]);
  return TRUE;
}

static gboolean
check_held_out (const char *held_out,
                const char *const *paths,
                gboolean pack,
                GError **error)
{
  const char *first = paths != NULL ? paths[0] : NULL;
  double share;

  if (get_share (held_out, &share))
    {
      if (first == NULL)
        return ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT,
                         "held-out %s: without data there is nothing to take a share of", held_out);
      if (!(share > 0 && share < 1))
        return ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT,
                         "held-out %s: a share of the text must be more than 0 and less than 1", held_out);
      return TRUE;
    }
  return pack || first == NULL || is_lines (held_out) == is_lines (first)
         || ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT, "held-out %s: it must be %s, as data %s is", held_out,
                      is_lines (first) ? "JSON lines" : "text", first);
}

/* -- beginnings of files ------------------------------------------------------------------------------------------- */

/* The first bytes of a regular file, and a byte 0. Nothing of what can't be read: all of it is read later, and reported
 * then. */
static char *
read_beginning (const char *path,
                gsize *n)
{
  gsize size;
  const int fd = ebb_open_regular_file (path, &size, NULL);
  char *text;

  *n = fd >= 0 ? MIN (size, PEEKED) : 0;
  text = g_malloc0 (*n + 1);
  if (fd < 0)
    return text;
  if (!ebb_read_file_part (fd, path, 0, text, *n, NULL))
    *n = 0;
  close (fd);
  return text;
}

/* Whether a line is an object with a key of JSON lines. */
static gboolean
looks_like_lines (const char *line)
{
  static const char *const keys[] = { "text", "prompt", "completion", "messages" };
  g_autoptr (EbbJson) object = *line == '{' ? ebb_json_parse (line, strcspn (line, "\n"), "", NULL) : NULL;

  for (guint i = 0; i < G_N_ELEMENTS (keys); i++)
    if (ebb_json_get (object, keys[i]) != NULL)
      return TRUE;
  return FALSE;
}

/* Trained as text, JSON would teach its brackets and keys. */
static gboolean
check_is_text (const char *argument,
               const char *path,
               GError **error)
{
  gsize n;
  g_autofree char *text = read_beginning (path, &n);
  const char *begin = text;

  if (!ebb_check_text_format (path, (const guint8 *) text, n, FALSE, error))
    {
      g_prefix_error (error, "%s ", argument);
      return FALSE;
    }
  if (is_lines (path))
    return TRUE;
  if (g_str_has_prefix (begin, "\357\273\277")) /* a byte order mark */
    begin += 3;
  begin += strspn (begin, " \t\r\n");
  if (looks_like_lines (begin))
    return ebb_fail (error, EBB_ERROR_FORMAT, "%s %s: it has JSON lines: give it a name that ends in " JSON_LINES,
                     argument, path);
  if (has_suffix (path, ".json") && (*begin == '[' || *begin == '{'))
    return ebb_fail (error, EBB_ERROR_FORMAT,
                     "%s %s: it is one JSON %s, which is not trained on: write an object with text, with prompt and "
                     "completion, or with messages on each line of a file whose name ends in " JSON_LINES,
                     argument, path, *begin == '[' ? "array" : "object");
  return TRUE;
}

/**
 * ebb_dataset_check_files:
 * @paths: (array zero-terminated=1) (nullable): the files to train on, if there are any
 * @held_out: (nullable): what ebb_dataset_open_held_out() is to open, if anything
 * @pack: whether each text is a document
 * @error: return location for an error
 *
 * Checks, before a file is read to its end, that the functions below may open these files: all have text or all have
 * JSON lines, unless @pack is set; none is compressed, an archive, or in another format that is no text; and none has
 * JSON under a name that doesn't end in `.jsonl`. A file that can't be read passes: opening it reports that. Errors
 * begin with `data` or `held-out` and the path.
 *
 * Returns: %FALSE with @error set to %EBB_ERROR_INVALID_ARGUMENT where files don't go together, or a share isn't
 * between 0 and 1; and to %EBB_ERROR_FORMAT for a file of another format
 */
gboolean
ebb_dataset_check_files (const char *const *paths,
                         const char *held_out,
                         gboolean pack,
                         GError **error)
{
  double share;

  EBB_RETURN_UNLESS_BEGUN (FALSE, error);
  if ((paths != NULL && !pack && !check_kinds (paths, error))
      || (held_out != NULL && !check_held_out (held_out, paths, pack, error)))
    return FALSE;
  for (guint i = 0; paths != NULL && paths[i] != NULL; i++)
    if (!check_is_text ("data", paths[i], error))
      return FALSE;
  return held_out == NULL || get_share (held_out, &share) || check_is_text ("held-out", held_out, error);
}

/* -- opening ------------------------------------------------------------------------------------------------------- */

static EbbDataset *
open_files (const char *const *paths,
            EbbTokenizer *tokenizer,
            gboolean pack,
            guint64 seed,
            GError **error)
{
  if (pack || (paths[0] != NULL && is_lines (paths[0])))
    return EBB_DATASET (ebb_document_dataset_new (paths, tokenizer, seed, error));
  return EBB_DATASET (ebb_text_dataset_new (paths, tokenizer, seed, error));
}

/**
 * ebb_dataset_open:
 * @paths: (array zero-terminated=1): paths of files: text, or JSON lines, whose names end in `.jsonl`
 * @tokenizer: (transfer none): the tokenizer
 * @pack: whether each text is a document, which is packed with others as those of JSON lines are
 * @seed: the seed of the order of rows
 * @error: return location for an error
 *
 * Opens files to train on, of the kind that their names say: an #EbbTextDataset for text, an #EbbDocumentDataset for
 * JSON lines and with @pack. ebb_dataset_check_files() says which files are refused.
 *
 * Returns: (transfer full): the dataset, or %NULL with @error set
 */
EbbDataset *
ebb_dataset_open (const char *const *paths,
                  EbbTokenizer *tokenizer,
                  gboolean pack,
                  guint64 seed,
                  GError **error)
{
  if (!EBB_MAY_BEGIN (error, paths, tokenizer) || !ebb_dataset_check_files (paths, NULL, pack, error))
    return NULL;
  return open_files (paths, tokenizer, pack, seed, error);
}

/**
 * ebb_dataset_open_held_out:
 * @held_out: a share of @data between 0 and 1 as text, such as "0.05", or the path of a file
 * @data: (transfer none) (nullable): the dataset to train on, which loses the share; it may be %NULL if @held_out is a
 *   file
 * @tokenizer: (transfer none): the tokenizer
 * @pack: whether a text is a document
 * @seed: a seed, for a dataset over this one that draws random numbers
 * @error: return location for an error
 *
 * Opens data that the model is not trained on. A file gives its rows in order. ebb_dataset_check_files() also checks
 * that a file is of the kind of the files to train on.
 *
 * Returns: (transfer full): the held-out dataset, or %NULL with @error set
 */
EbbDataset *
ebb_dataset_open_held_out (const char *held_out,
                           EbbDataset *data,
                           EbbTokenizer *tokenizer,
                           gboolean pack,
                           guint64 seed,
                           GError **error)
{
  const char *paths[] = { held_out, NULL };
  EbbDataset *self;
  double share;

  EBB_RETURN_UNLESS_BEGUN (NULL, error, held_out, tokenizer);
  if (get_share (held_out, &share))
    {
      self = ebb_dataset_hold_out (data, share, error);
      if (self == NULL)
        g_prefix_error (error, "held-out %s: ", held_out);
      return self;
    }
  if (!check_is_text ("held-out", held_out, error))
    return NULL;
  self = open_files (paths, tokenizer, pack, seed, error);
  if (self != NULL)
    g_object_set (self, "shuffle", FALSE, NULL);
  return self;
}
