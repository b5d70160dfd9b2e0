/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* The text that the model reads: one token a byte, or lines that a folder's tokenizer makes tokens of. */
#include "text.h"

static const char own[] =
    "At high water the channels are one sheet, and a boat can cross anywhere. Six hours later the same water is gone "
    "and the way is found again by its banks: what was covered has not moved, it only was not seen. Nobody carries "
    "the sea out and back. It leaves, and what is needed of it returns in time for the next boat, to the inch, "
    "because the same moon draws it over the same ground.\n";

static gboolean
read_bytes (Text *self,
            const Options *options,
            GError **error)
{
  if (options->data == NULL)
    {
      self->bytes = g_strdup (own);
      self->length = sizeof own - 1;
      return TRUE;
    }
  self->bytes = ebb_read_file (options->data, G_MAXSIZE - 1, &self->length, error);
  if (self->bytes == NULL)
    {
      g_prefix_error (error, "--data %s: ", options->data);
      return FALSE;
    }
  if (self->length > 0)
    return TRUE;
  g_set_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT, "--data %s: there is nothing in it", options->data);
  return FALSE;
}

/* The sentences of the built-in text stand on one line. */
static gboolean
split_lines (Text *self,
             const Options *options,
             GError **error)
{
  g_auto (GStrv) lines = NULL;
  g_autoptr (GPtrArray) kept = g_ptr_array_new_with_free_func (g_free);
  const char *where = options->data != NULL ? options->data : "the built-in text";

  if (!g_utf8_validate (self->bytes, (gssize) self->length, NULL))
    {
      g_set_error (error, EBB_ERROR, EBB_ERROR_FORMAT, "--data %s: it must be UTF-8", where);
      return FALSE;
    }
  lines = g_strsplit (self->bytes, options->data != NULL ? "\n" : ". ", -1);
  for (guint i = 0; lines[i] != NULL; i++)
    if (*g_strchomp (lines[i]) != '\0')
      g_ptr_array_add (kept, g_strdup (lines[i]));
  self->n_lines = kept->len;
  g_ptr_array_add (kept, NULL);
  self->lines = (char **) g_ptr_array_free (g_steal_pointer (&kept), FALSE);
  if (self->n_lines > 0)
    return TRUE;
  g_set_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT, "--data %s: there is no line of text in it", where);
  return FALSE;
}

/* GPT-2's tokenizer has no token for padding: the one that ends a text serves, as in the tutorial. */
static gboolean
open_tokenizer (Text *self,
                const Options *options,
                GError **error)
{
  self->tokenizer = ebb_tokenizer_open (options->model, error);
  if (self->tokenizer == NULL)
    return FALSE;
  self->padding = ebb_tokenizer_get_special_token (self->tokenizer, EBB_SPECIAL_TOKEN_EOS);
  if (self->padding >= 0)
    return TRUE;
  g_set_error (error, EBB_ERROR, EBB_ERROR_STATE, "--model %s: its tokenizer has no token that ends a text",
               options->model);
  return FALSE;
}

gboolean
text_init (Text *self,
           const Options *options,
           GError **error)
{
  *self = (Text){ 0 };
  if (!read_bytes (self, options, error))
    return FALSE;
  return options->model == NULL || (open_tokenizer (self, options, error) && split_lines (self, options, error));
}

void
text_clear (Text *self)
{
  g_clear_pointer (&self->bytes, g_free);
  g_clear_pointer (&self->lines, g_strfreev);
  g_clear_object (&self->tokenizer);
}

/* -- bytes --------------------------------------------------------------------------------------------------------- */

static EbbTensor *
make (const gint64 *values,
      gint64 rows,
      gint64 width,
      EbbDevice *device,
      GError **error)
{
  const gint64 shape[] = { rows, width };
  g_autoptr (EbbTensor) host =
      ebb_tensor_new_from_ints (values, (gsize) (rows * width), shape, G_N_ELEMENTS (shape), error);

  return host != NULL ? ebb_to_device (host, device, error) : NULL;
}

static EbbTensor *
make_bytes (const Text *self,
            const Options *options,
            gsize first,
            int rows,
            EbbDevice *device,
            GError **error)
{
  const gsize n = (gsize) rows * (gsize) options->sequence;
  g_autofree gint64 *values = g_new (gint64, n);

  for (gsize i = 0; i < n; i++)
    values[i] = (guchar) self->bytes[(first + i) % self->length];
  return make (values, rows, options->sequence, device, error);
}

/* -- lines --------------------------------------------------------------------------------------------------------- */

typedef struct
{
  gint64 *tokens;
  gsize n;
} Line;

static void
lines_free (Line *lines,
            int rows)
{
  for (int i = 0; i < rows; i++)
    g_free (lines[i].tokens);
  g_free (lines);
}

/* The labels are the tokens themselves, padding included, as the tutorial has it; the model is to give each before it
 * has read it. */
static gboolean
fill_batch (const Text *self,
            const Line *lines,
            int rows,
            gint64 width,
            EbbDevice *device,
            Batch *batch,
            GError **error)
{
  const gsize n = (gsize) rows * (gsize) width;
  g_autofree gint64 *tokens = g_new (gint64, n);
  g_autofree gint64 *targets = g_new (gint64, n);
  g_autofree gint64 *is_text = g_new (gint64, n);
  g_autoptr (EbbTensor) numbers = NULL;

  for (int row = 0; row < rows; row++)
    for (gint64 i = 0; i < width; i++)
      {
        const gsize place = (gsize) (row * width + i);

        is_text[place] = (gsize) i < lines[row].n;
        tokens[place] = is_text[place] ? lines[row].tokens[i] : self->padding;
      }
  for (gsize i = 0; i < n; i++)
    targets[i] = (gint64) (i + 1) % width != 0 ? tokens[i + 1] : -100;
  batch->tokens = make (tokens, rows, width, device, error);
  batch->targets = batch->tokens != NULL ? make (targets, rows, width, device, error) : NULL;
  numbers = batch->targets != NULL ? make (is_text, rows, width, device, error) : NULL;
  batch->mask = numbers != NULL ? ebb_cast (numbers, EBB_DTYPE_BOOL, error) : NULL;
  return batch->mask != NULL;
}

/* Lines are cut at options->sequence tokens, and padded to the longest. */
static gboolean
get_lines (const Text *self,
           const Options *options,
           gsize first,
           int rows,
           EbbDevice *device,
           Batch *batch,
           GError **error)
{
  Line *lines = g_new0 (Line, rows);
  GError *failure = NULL;
  gsize width = 2;
  gboolean ok;

  for (int i = 0; failure == NULL && i < rows; i++)
    {
      lines[i].tokens = ebb_tokenizer_encode_text_full (
          self->tokenizer, self->lines[(first + (gsize) i) % self->n_lines], TRUE, &lines[i].n, &failure);
      lines[i].n = MIN (lines[i].n, (gsize) options->sequence);
      width = MAX (width, lines[i].n);
    }
  ok = failure == NULL;
  if (!ok)
    g_propagate_error (error, failure);
  ok = ok && fill_batch (self, lines, rows, (gint64) width, device, batch, error);
  lines_free (lines, rows);
  return ok;
}

gboolean
text_get_batch (const Text *self,
                const Options *options,
                int step,
                int rows,
                EbbDevice *device,
                Batch *batch,
                GError **error)
{
  const gsize first_row = (gsize) step * (gsize) options->batch;
  const gsize first = first_row * (gsize) options->sequence;

  if (self->tokenizer != NULL)
    return get_lines (self, options, first_row, rows, device, batch, error);
  batch->tokens = make_bytes (self, options, first, rows, device, error);
  batch->targets = make_bytes (self, options, first + 1, rows, device, error);
  return batch->tokens != NULL && batch->targets != NULL;
}

void
batch_clear (Batch *self)
{
  g_clear_pointer (&self->tokens, ebb_tensor_unref);
  g_clear_pointer (&self->targets, ebb_tensor_unref);
  g_clear_pointer (&self->mask, ebb_tensor_unref);
}
