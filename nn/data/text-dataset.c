/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Windows of tokens out of text files, in an order that a seed and a position name. */
#include "nn/data/text-dataset.h"

#include "nn/data/dataset-private.h"
#include "nn/data/token-stream-private.h"
#include "tensor/error-private.h"
#include "tensor/util/property-private.h"

#include <gio/gio.h>
#include <string.h>

struct _EbbTextDataset
{
  EbbDataset parent_instance;

  char **paths;
  GBytes *text;
  EbbTokenizer *tokenizer;
  EbbTokenStream *stream; /* counted by references: a held-out part reads the same one */
  gint64 first, n_tokens; /* its part of the stream */
  gint64 checksum;
};

G_DEFINE_FINAL_TYPE (EbbTextDataset, ebb_text_dataset, EBB_TYPE_DATASET)

/* -- which window -------------------------------------------------------------------------------------------------- */

/* Each epoch reads the text once, in windows that follow each other without overlap. Where the tokens are no multiple
 * of the context, each epoch begins at a place of its own among those that are left over. */
static gint64
find_window (EbbTextDataset *self,
             gint64 position,
             gint64 context)
{
  gint64 n_windows = (self->n_tokens - 1) / context;
  gint64 slack = self->n_tokens - 1 - n_windows * context;
  guint64 key;
  gint64 index = ebb_dataset_find_row (EBB_DATASET (self), position, n_windows, &key);

  if (!ebb_dataset_get_private (EBB_DATASET (self))->shuffle)
    return self->first + index * context;
  return self->first + index * context + (gint64) (ebb_dataset_mix (~key) % (guint64) (slack + 1));
}

static gboolean
ebb_text_dataset_read_row (EbbDataset *dataset,
                           gint64 position,
                           gint64 context,
                           const EbbDatasetRow *row,
                           GError **error)
{
  EbbTextDataset *self = EBB_TEXT_DATASET (dataset);
  gint64 begin = find_window (self, position, context);

  if (!ebb_token_stream_read (self->stream, begin, context, row->tokens, error)
      || !ebb_token_stream_read (self->stream, begin + context, 1, row->targets + context - 1, error))
    return FALSE;
  memcpy (row->targets, row->tokens + 1, sizeof (gint64) * (gsize) (context - 1));
  return TRUE;
}

/* -- which text ---------------------------------------------------------------------------------------------------- */

/* As many tokens at each end are in the checksum: enough to tell texts apart, and quick however long they are. */
#define CHECKED_TOKENS ((gint64) 1 << 20)

static gboolean
add_to_checksum (const EbbTokenStream *stream,
                 gint64 begin,
                 gint64 end,
                 guint64 *sum,
                 GError **error)
{
  gint64 tokens[1024];

  while (begin < end)
    {
      gint64 n = MIN (end - begin, (gint64) G_N_ELEMENTS (tokens));

      if (!ebb_token_stream_read (stream, begin, n, tokens, error))
        return FALSE;
      for (gint64 i = 0; i < n; i++)
        *sum = ebb_dataset_mix (*sum ^ (guint64) tokens[i]);
      begin += n;
    }
  return TRUE;
}

static gboolean
make_checksum (EbbTextDataset *self,
               GError **error)
{
  gint64 n = self->n_tokens, first = self->first, first_end = MIN (n, CHECKED_TOKENS);
  guint64 sum = ebb_dataset_mix ((guint64) n);
  gboolean ok = add_to_checksum (self->stream, first, first + first_end, &sum, error)
                && add_to_checksum (self->stream, first + MAX (first_end, n - CHECKED_TOKENS), first + n, &sum, error);

  self->checksum = (gint64) sum;
  return ok;
}

static gint64
ebb_text_dataset_get_checksum (EbbDataset *dataset)
{
  return EBB_TEXT_DATASET (dataset)->checksum;
}

static char *
ebb_text_dataset_get_names (EbbDataset *dataset)
{
  return ebb_dataset_join_paths (EBB_TEXT_DATASET (dataset)->paths, "the text");
}

static gint64
ebb_text_dataset_count_tokens (EbbDataset *dataset)
{
  return EBB_TEXT_DATASET (dataset)->n_tokens;
}

static gboolean
ebb_text_dataset_find_context (EbbDataset *dataset,
                               gint64 context,
                               GError **error)
{
  EbbTextDataset *self = EBB_TEXT_DATASET (dataset);

  if (!ebb_dataset_check_positive_context (context, error))
    return FALSE;
  return context < self->n_tokens
         || ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT,
                      "%s: %" G_GINT64_FORMAT " tokens are too few: a context of %" G_GINT64_FORMAT
                      " needs one more than that",
                      ebb_in_message (ebb_text_dataset_get_names (dataset)), self->n_tokens, context);
}

static gint64
ebb_text_dataset_count_rows (EbbDataset *dataset,
                             gint64 context)
{
  return MAX (0, EBB_TEXT_DATASET (dataset)->n_tokens - 1) / context;
}

static EbbDataset *
ebb_text_dataset_hold_out (EbbDataset *dataset,
                           double share,
                           GError **error)
{
  EbbTextDataset *self = EBB_TEXT_DATASET (dataset);
  gint64 n_held = (gint64) (share * (double) self->n_tokens + 0.5);
  g_autoptr (EbbTextDataset) held = NULL;

  if (n_held < 2 || self->n_tokens - n_held < 2)
    return ebb_fail_null (error, EBB_ERROR_INVALID_ARGUMENT,
                          "%s: a share of %g can't be held out of %" G_GINT64_FORMAT
                          " tokens: it and the rest must be 2 tokens or more",
                          ebb_in_message (ebb_text_dataset_get_names (dataset)), share, self->n_tokens);
  held = g_object_new (EBB_TYPE_TEXT_DATASET, "paths", self->paths, "tokenizer", self->tokenizer, "seed",
                       ebb_dataset_get_private (dataset)->seed, NULL);
  held->stream = g_atomic_rc_box_acquire (self->stream);
  held->n_tokens = n_held;
  held->first = self->first + self->n_tokens - n_held;
  self->n_tokens -= n_held;
  return make_checksum (held, error) && make_checksum (self, error) ? EBB_DATASET (g_steal_pointer (&held)) : NULL;
}

/* -- using it ------------------------------------------------------------------------------------------------------ */

/**
 * ebb_text_dataset_get_batch:
 * @self: a text
 * @batch: how many windows, B
 * @context: how many tokens in each, T
 * @tokens: (out) (transfer full): return location for the tokens, i64 [B, T], on the CPU
 * @targets: (out) (transfer full): return location for the token that follows each of them, i64 [B, T]
 * @error: return location for an error
 *
 * Takes the next windows and moves #EbbDataset:position on by @batch. Which windows these are depends on the text,
 * #EbbDataset:seed, @context and the position alone. Windows may reach from one file into the next.
 *
 * Returns: %FALSE with %EBB_ERROR_INVALID_ARGUMENT if the text is too short, a number is not positive or the position
 *   would pass 2^63, %EBB_ERROR_FORMAT if a file has been cut meanwhile
 */
gboolean
ebb_text_dataset_get_batch (EbbTextDataset *self,
                            gint64 batch,
                            gint64 context,
                            EbbTensor **tokens,
                            EbbTensor **targets,
                            GError **error)
{
  *tokens = NULL;
  *targets = NULL;
  EBB_RETURN_UNLESS_BEGUN (FALSE, error, self);
  g_return_val_if_fail (EBB_IS_TEXT_DATASET (self), FALSE);

  return ebb_dataset_get_rows (EBB_DATASET (self), batch, context, tokens, targets, NULL, error);
}

/* -- the object ---------------------------------------------------------------------------------------------------- */

static void
clear_stream (gpointer stream)
{
  ebb_token_stream_clear (stream);
}

static void
release_stream (EbbTokenStream *stream)
{
  g_atomic_rc_box_release_full (stream, clear_stream);
}

static gboolean
read_paths (EbbTextDataset *self,
            GError **error)
{
  for (guint i = 0; self->paths[i] != NULL; i++)
    if (!ebb_token_stream_append_file (self->stream, self->paths[i], self->tokenizer, error))
      return FALSE;
  return TRUE;
}

static gboolean
ebb_text_dataset_open (EbbDataset *dataset,
                       GError **error)
{
  EbbTextDataset *self = EBB_TEXT_DATASET (dataset);

  if (self->stream != NULL)
    return TRUE;
  if (self->tokenizer == NULL || (self->paths == NULL || self->paths[0] == NULL) == (self->text == NULL))
    return ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT,
                     "a text dataset needs a tokenizer and either files or a text");
  self->stream = g_atomic_rc_box_new0 (EbbTokenStream);
  if ((self->text ? ebb_token_stream_append (self->stream, self->text, "the text", self->tokenizer, error)
                  : read_paths (self, error))
      && (self->n_tokens = self->stream->n_tokens) > 0 && make_checksum (self, error))
    return TRUE;
  g_clear_pointer (&self->stream, release_stream);
  self->n_tokens = 0;
  return FALSE;
}

static const EbbDatasetKind text_kind = {
  .open = ebb_text_dataset_open,
  .get_n_tokens = ebb_text_dataset_count_tokens,
  .check_context = ebb_text_dataset_find_context,
  .get_n_rows = ebb_text_dataset_count_rows,
  .read_row = ebb_text_dataset_read_row,
  .hold_out = ebb_text_dataset_hold_out,
  .get_checksum = ebb_text_dataset_get_checksum,
  .get_names = ebb_text_dataset_get_names,
};

static void
ebb_text_dataset_finalize (GObject *object)
{
  EbbTextDataset *self = EBB_TEXT_DATASET (object);

  g_clear_pointer (&self->stream, release_stream);
  g_clear_pointer (&self->text, g_bytes_unref);
  g_strfreev (self->paths);
  g_clear_object (&self->tokenizer);
  G_OBJECT_CLASS (ebb_text_dataset_parent_class)->finalize (object);
}

static void
install_construct_properties (GObjectClass *object_class)
{
  const GParamFlags flags = G_PARAM_READWRITE | G_PARAM_CONSTRUCT_ONLY | G_PARAM_STATIC_STRINGS;

  /**
   * EbbTextDataset:paths:
   *
   * The files, read one after the other as one text.
   */
  g_object_class_install_property (object_class, offsetof (EbbTextDataset, paths),
                                   g_param_spec_boxed ("paths", NULL, NULL, G_TYPE_STRV, flags));
  /**
   * EbbTextDataset:text:
   *
   * The text itself, in place of files.
   */
  g_object_class_install_property (object_class, offsetof (EbbTextDataset, text),
                                   g_param_spec_boxed ("text", NULL, NULL, G_TYPE_BYTES, flags));
  /**
   * EbbTextDataset:tokenizer:
   *
   * The tokenizer that encodes the text.
   */
  g_object_class_install_property (object_class, offsetof (EbbTextDataset, tokenizer),
                                   g_param_spec_object ("tokenizer", NULL, NULL, EBB_TYPE_TOKENIZER, flags));
}

static void
ebb_text_dataset_class_init (EbbTextDatasetClass *klass)
{
  GObjectClass *object_class = G_OBJECT_CLASS (klass);

  EBB_DATASET_CLASS (klass)->kind = &text_kind;
  object_class->get_property = ebb_property_get_field;
  object_class->set_property = ebb_property_set_field;
  object_class->finalize = ebb_text_dataset_finalize;
  install_construct_properties (object_class);
}

static void
ebb_text_dataset_init (EbbTextDataset *self)
{
}

/**
 * ebb_text_dataset_new:
 * @paths: (array zero-terminated=1): the files
 * @tokenizer: what makes tokens of them
 * @seed: which orders of windows the epochs have
 * @error: return location for an error
 *
 * Opens files as one stream of tokens. With #EbbByteTokenizer files of more than 1 MiB stay open, and each window is
 * read from them; with other tokenizers the tokens are kept in memory, in 2 or 4 bytes each. An epoch takes each window
 * of the text once, in an order that depends on @seed and the epoch.
 *
 * Returns: (transfer full) (nullable): the text; %NULL with %EBB_ERROR_IO if a file can't be read, %EBB_ERROR_FORMAT if
 *   it is empty
 */
EbbTextDataset *
ebb_text_dataset_new (const char *const *paths,
                      EbbTokenizer *tokenizer,
                      guint64 seed,
                      GError **error)
{
  EBB_RETURN_UNLESS_BEGUN (NULL, error, paths, tokenizer);

  return g_initable_new (EBB_TYPE_TEXT_DATASET, NULL, error, "paths", paths, "tokenizer", tokenizer, "seed", seed,
                         NULL);
}

/**
 * ebb_text_dataset_new_from_bytes:
 * @text: the text
 * @tokenizer: what makes tokens of it
 * @seed: which orders of windows the epochs have
 * @error: return location for an error
 *
 * Does as ebb_text_dataset_new() does with a text in memory, which is kept.
 *
 * Returns: (transfer full) (nullable): the text; %NULL with %EBB_ERROR_FORMAT if it is empty
 */
EbbTextDataset *
ebb_text_dataset_new_from_bytes (GBytes *text,
                                 EbbTokenizer *tokenizer,
                                 guint64 seed,
                                 GError **error)
{
  EBB_RETURN_UNLESS_BEGUN (NULL, error, text, tokenizer);

  return g_initable_new (EBB_TYPE_TEXT_DATASET, NULL, error, "text", text, "tokenizer", tokenizer, "seed", seed, NULL);
}
