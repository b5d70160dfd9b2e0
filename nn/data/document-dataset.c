/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Rows of documents that don't see each other, in an order that a seed and a position name. */
#include "nn/data/document-dataset.h"

#include "nn/data/dataset-private.h"
#include "nn/data/json-lines-private.h"
#include "nn/data/packing-private.h"
#include "tensor/error-private.h"
#include "tensor/util/property-private.h"

#include <gio/gio.h>

struct _EbbDocumentDataset
{
  EbbDataset parent_instance;

  char **paths;
  GBytes *lines;
  EbbTokenizer *tokenizer;
  EbbChatTemplate *template;
  gboolean special_tokens;
  EbbDocumentStore *store; /* a held-out part has the same one */
  gint64 *documents;       /* this dataset's part of the store; NULL: all */
  gint64 n_documents, n_tokens;
  gint64 checksum;
  EbbPacking *packing; /* for the context that was asked for last */
};

G_DEFINE_FINAL_TYPE (EbbDocumentDataset, ebb_document_dataset, EBB_TYPE_DATASET)

/* -- rows ---------------------------------------------------------------------------------------------------------- */

static char *
ebb_document_dataset_get_names (EbbDataset *dataset)
{
  return ebb_dataset_join_paths (EBB_DOCUMENT_DATASET (dataset)->paths, "the lines");
}

/* Packs the documents for @context, unless they are. */
static EbbPacking *
get_packing (EbbDocumentDataset *self,
             gint64 context,
             GError **error)
{
  EbbPacking *packing;

  if (self->packing != NULL && self->packing->context == context)
    return self->packing;
  packing = ebb_packing_new (self->store, self->documents, self->n_documents, context, error);
  if (packing == NULL)
    return NULL;
  g_clear_pointer (&self->packing, ebb_packing_free);
  return self->packing = packing;
}

static gboolean
ebb_document_dataset_check_context (EbbDataset *dataset,
                                    gint64 context,
                                    GError **error)
{
  EbbDocumentDataset *self = EBB_DOCUMENT_DATASET (dataset);
  EbbPacking *packing;

  if (!ebb_dataset_check_positive_context (context, error))
    return FALSE;
  if (context > G_MAXINT32)
    return ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT,
                     "a context of %" G_GINT64_FORMAT " tokens: rows of documents have %d at most", context,
                     G_MAXINT32);
  packing = self->store != NULL ? get_packing (self, context, error) : NULL;
  if (packing == NULL)
    return FALSE;
  return packing->n_rows > 0
         || ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT, "%s: no document has a token to learn after its first one",
                      ebb_in_message (ebb_document_dataset_get_names (dataset)));
}

static gint64
ebb_document_dataset_count_rows (EbbDataset *dataset,
                                 gint64 context)
{
  EbbDocumentDataset *self = EBB_DOCUMENT_DATASET (dataset);
  EbbPacking *packing = self->store != NULL && context <= G_MAXINT32 ? get_packing (self, context, NULL) : NULL;

  return packing != NULL ? packing->n_rows : 0;
}

static void
read_segment (const EbbDocumentStore *store,
              const EbbSegment *segment,
              gint64 at,
              const EbbDatasetRow *row)
{
  ebb_document_store_read (store, segment->begin, segment->n, row->tokens + at);
  ebb_document_store_read (store, segment->begin + 1, segment->n, row->targets + at);
  for (gint64 i = 0; i < segment->n; i++)
    {
      if (!ebb_document_store_is_learned (store, segment->begin + 1 + i))
        row->targets[at + i] = EBB_DATASET_NO_TARGET;
      row->starts[at + i] = at;
    }
}

/* The room that is left at the end is a document of its own, of tokens that have nothing to predict. */
static gboolean
ebb_document_dataset_read_row (EbbDataset *dataset,
                               gint64 position,
                               gint64 context,
                               const EbbDatasetRow *row,
                               GError **error)
{
  EbbDocumentDataset *self = EBB_DOCUMENT_DATASET (dataset);
  const EbbPacking *packing = self->packing;
  gint64 index = ebb_dataset_find_row (dataset, position, packing->n_rows, NULL), at = 0;

  for (guint32 i = index > 0 ? packing->ends[index - 1] : 0; i < packing->ends[index]; i++)
    {
      read_segment (self->store, &packing->segments[i], at, row);
      at += packing->segments[i].n;
    }
  for (gint64 i = at; i < context; i++)
    {
      row->tokens[i] = 0;
      row->targets[i] = EBB_DATASET_NO_TARGET;
      row->starts[i] = at;
    }
  return TRUE;
}

/* -- which documents ----------------------------------------------------------------------------------------------- */

/* Counts the tokens, and makes a checksum of them and of where they are learned. */
static void
look_through (EbbDocumentDataset *self)
{
  guint64 sum = ebb_dataset_mix ((guint64) self->n_documents);

  self->n_tokens = 0;
  for (gint64 i = 0; i < self->n_documents; i++)
    {
      gint64 begin, end, token;

      ebb_document_store_find (self->store, self->documents != NULL ? self->documents[i] : i, &begin, &end);
      self->n_tokens += end - begin;
      sum = ebb_dataset_mix (sum ^ (guint64) (end - begin));
      for (; begin < end; begin++)
        {
          ebb_document_store_read (self->store, begin, 1, &token);
          sum = ebb_dataset_mix (sum ^ (guint64) (token * 2 + ebb_document_store_is_learned (self->store, begin)));
        }
    }
  self->checksum = (gint64) sum;
}

static gint64
ebb_document_dataset_get_checksum (EbbDataset *dataset)
{
  return EBB_DOCUMENT_DATASET (dataset)->checksum;
}

static gint64
ebb_document_dataset_get_n_tokens (EbbDataset *dataset)
{
  return EBB_DOCUMENT_DATASET (dataset)->n_tokens;
}

static void
take_documents (EbbDocumentDataset *self,
                gint64 *documents,
                gint64 n)
{
  g_free (self->documents);
  self->documents = documents;
  self->n_documents = n;
  g_clear_pointer (&self->packing, ebb_packing_free);
  look_through (self);
}

static EbbDataset *
ebb_document_dataset_hold_out (EbbDataset *dataset,
                               double share,
                               GError **error)
{
  EbbDocumentDataset *self = EBB_DOCUMENT_DATASET (dataset);
  const guint64 seed = ebb_dataset_get_private (dataset)->seed;
  const gint64 n = self->n_documents, n_held = MAX ((gint64) (share * (double) n + 0.5), 1);
  g_autofree guint8 *is_held = NULL;
  EbbDocumentDataset *held;
  gint64 *parts[2];
  gint64 ends[2] = { 0, 0 };

  if (n - n_held < 1)
    return ebb_fail_null (error, EBB_ERROR_INVALID_ARGUMENT,
                          "%s: a share of %g can't be held out of %" G_GINT64_FORMAT " document%s: none would be left",
                          ebb_in_message (ebb_document_dataset_get_names (dataset)), share, n, n == 1 ? "" : "s");
  is_held = g_new0 (guint8, (gsize) n);
  for (gint64 i = 0; i < n_held; i++)
    is_held[ebb_dataset_permute ((guint64) i, (guint64) n, ebb_dataset_mix (~seed))] = 1;
  parts[0] = g_new (gint64, (gsize) (n - n_held));
  parts[1] = g_new (gint64, (gsize) n_held);
  for (gint64 i = 0; i < n; i++)
    parts[is_held[i]][ends[is_held[i]]++] = self->documents != NULL ? self->documents[i] : i;
  held = g_object_new (EBB_TYPE_DOCUMENT_DATASET, "paths", self->paths, "tokenizer", self->tokenizer, "seed", seed,
                       "template", self->template, "special-tokens", self->special_tokens, NULL);
  held->store = g_atomic_rc_box_acquire (self->store);
  take_documents (held, parts[1], n_held);
  take_documents (self, parts[0], n - n_held);
  return EBB_DATASET (held);
}

/**
 * ebb_document_dataset_get_n_documents:
 * @self: documents
 *
 * Returns: how many documents there are
 */
gint64
ebb_document_dataset_get_n_documents (EbbDocumentDataset *self)
{
  g_return_val_if_fail (EBB_IS_DOCUMENT_DATASET (self), 0);

  return self->n_documents;
}

/**
 * ebb_document_dataset_get_n_left_out:
 * @self: documents
 *
 * Returns: how many conversations of the files are no documents, because the weights of all their answers are 0, or
 *   "train" is false; a held-out part counts those of the whole
 */
gint64
ebb_document_dataset_get_n_left_out (EbbDocumentDataset *self)
{
  g_return_val_if_fail (EBB_IS_DOCUMENT_DATASET (self), 0);

  return self->store != NULL ? self->store->n_left_out : 0;
}

/**
 * ebb_document_dataset_count_split:
 * @self: documents
 * @context: tokens in a row, 1 or more
 *
 * Returns: how many documents are split because they are longer than a row
 */
gint64
ebb_document_dataset_count_split (EbbDocumentDataset *self,
                                  gint64 context)
{
  g_return_val_if_fail (EBB_IS_DOCUMENT_DATASET (self), 0);
  g_return_val_if_fail (context > 0, 0);

  return ebb_document_dataset_count_rows (EBB_DATASET (self), context) > 0 ? self->packing->n_split : 0;
}

/* -- the object ---------------------------------------------------------------------------------------------------- */

/* The token that begins a text, if the tokenizer puts one there; -1: it doesn't. */
static gint64
find_begin_token (EbbTokenizer *tokenizer)
{
  const gint64 begin = ebb_tokenizer_get_special_token (tokenizer, EBB_SPECIAL_TOKEN_BOS);
  gsize n;
  g_autofree gint64 *framing = ebb_tokenizer_encode_text_full (tokenizer, "", TRUE, &n, NULL);

  return framing != NULL && framing[0] == begin ? begin : -1;
}

/* The date that a template names if it would name today's: a run that is resumed tomorrow has the same tokens. */
#define MESSAGES_DATE "26 Jul 2024"

/* The template of the tokenizer's folder. NULL, with an error if it has one that is not known. */
static EbbChatTemplate *
make_template (EbbTokenizer *tokenizer,
               GError **error)
{
  const char *text = ebb_tokenizer_get_chat_template (tokenizer);
  g_autofree char *begin =
      ebb_tokenizer_get_token (tokenizer, ebb_tokenizer_get_special_token (tokenizer, EBB_SPECIAL_TOKEN_BOS));
  g_autofree char *end =
      ebb_tokenizer_get_token (tokenizer, ebb_tokenizer_get_special_token (tokenizer, EBB_SPECIAL_TOKEN_EOS));

  EbbChatTemplate *template =
      text != NULL ? ebb_chat_template_new_from_text (text, begin, end, error) : NULL;

  if (template != NULL)
    g_object_set (template, "date", MESSAGES_DATE, NULL);
  return template;
}

static gboolean
read_all (EbbDocumentDataset *self,
          GError **error)
{
  g_autoptr (GError) failure = NULL;
  g_autoptr (EbbChatTemplate) template =
      self->template != NULL ? g_object_ref (self->template) : make_template (self->tokenizer, &failure);
  const EbbDocumentReader reader = {
    .tokenizer = self->tokenizer,
    .begin_token = self->special_tokens ? find_begin_token (self->tokenizer) : -1,
    .end_token = self->special_tokens ? ebb_tokenizer_get_special_token (self->tokenizer, EBB_SPECIAL_TOKEN_EOS) : -1,
    .template = template,
    .template_failure = failure != NULL ? failure->message : NULL,
    .store = self->store,
  };

  if (self->lines != NULL)
    return ebb_read_document_lines (&reader, self->lines, "the lines", error);
  for (guint i = 0; self->paths[i] != NULL; i++)
    if (!ebb_read_documents (&reader, self->paths[i], error))
      return FALSE;
  return TRUE;
}

static gboolean
ebb_document_dataset_open (EbbDataset *dataset,
                           GError **error)
{
  EbbDocumentDataset *self = EBB_DOCUMENT_DATASET (dataset);

  if (self->store != NULL)
    return TRUE;
  if (self->tokenizer == NULL || (self->paths == NULL || self->paths[0] == NULL) == (self->lines == NULL))
    return ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT,
                     "a document dataset needs a tokenizer and either files or lines");
  self->store = ebb_document_store_new (self->tokenizer);
  if (!read_all (self, error))
    {
      g_clear_pointer (&self->store, ebb_document_store_release);
      return FALSE;
    }
  take_documents (self, NULL, ebb_document_store_count (self->store));
  return TRUE;
}

static const EbbDatasetKind document_kind = {
  .open = ebb_document_dataset_open,
  .get_n_tokens = ebb_document_dataset_get_n_tokens,
  .check_context = ebb_document_dataset_check_context,
  .get_n_rows = ebb_document_dataset_count_rows,
  .read_row = ebb_document_dataset_read_row,
  .hold_out = ebb_document_dataset_hold_out,
  .get_checksum = ebb_document_dataset_get_checksum,
  .get_names = ebb_document_dataset_get_names,
  .has_starts = TRUE,
};

static void
ebb_document_dataset_finalize (GObject *object)
{
  EbbDocumentDataset *self = EBB_DOCUMENT_DATASET (object);

  g_clear_pointer (&self->packing, ebb_packing_free);
  g_clear_pointer (&self->store, ebb_document_store_release);
  g_clear_pointer (&self->lines, g_bytes_unref);
  g_free (self->documents);
  g_strfreev (self->paths);
  g_clear_object (&self->template);
  g_clear_object (&self->tokenizer);
  G_OBJECT_CLASS (ebb_document_dataset_parent_class)->finalize (object);
}

static void
ebb_document_dataset_class_init (EbbDocumentDatasetClass *klass)
{
  GObjectClass *object_class = G_OBJECT_CLASS (klass);
  const GParamFlags flags = G_PARAM_READWRITE | G_PARAM_CONSTRUCT_ONLY | G_PARAM_STATIC_STRINGS;

  EBB_DATASET_CLASS (klass)->kind = &document_kind;
  object_class->get_property = ebb_property_get_field;
  object_class->set_property = ebb_property_set_field;
  object_class->finalize = ebb_document_dataset_finalize;

  /**
   * EbbDocumentDataset:paths:
   *
   * The files: JSON lines if a name ends in `.jsonl`, else one document each.
   */
  g_object_class_install_property (object_class, offsetof (EbbDocumentDataset, paths),
                                   g_param_spec_boxed ("paths", NULL, NULL, G_TYPE_STRV, flags));
  /**
   * EbbDocumentDataset:lines:
   *
   * JSON lines themselves, in place of files.
   */
  g_object_class_install_property (object_class, offsetof (EbbDocumentDataset, lines),
                                   g_param_spec_boxed ("lines", NULL, NULL, G_TYPE_BYTES, flags));
  /**
   * EbbDocumentDataset:tokenizer:
   *
   * The tokenizer that encodes the documents.
   */
  g_object_class_install_property (object_class, offsetof (EbbDocumentDataset, tokenizer),
                                   g_param_spec_object ("tokenizer", NULL, NULL, EBB_TYPE_TOKENIZER, flags));
  /**
   * EbbDocumentDataset:template:
   *
   * The form of `messages`; %NULL: that of the tokenizer's folder, with the date 26 Jul 2024. A template that is given
   * should have its #EbbChatTemplate:date set if it names the day, so that the tokens are the same tomorrow.
   */
  g_object_class_install_property (object_class, offsetof (EbbDocumentDataset, template),
                                   g_param_spec_object ("template", NULL, NULL, EBB_TYPE_CHAT_TEMPLATE, flags));
  /**
   * EbbDocumentDataset:special-tokens:
   *
   * Whether texts, prompts and completions get the tokenizer's tokens that begin and end a text, where it has them.
   * Messages have those of their template.
   */
  g_object_class_install_property (object_class, offsetof (EbbDocumentDataset, special_tokens),
                                   g_param_spec_boolean ("special-tokens", NULL, NULL, TRUE, flags));
}

static void
ebb_document_dataset_init (EbbDocumentDataset *self)
{
}

/**
 * ebb_document_dataset_new:
 * @paths: (array zero-terminated=1): the files: JSON lines if a name ends in `.jsonl`, else one document each
 * @tokenizer: the tokenizer that encodes the documents
 * @seed: which orders of rows the epochs have
 * @error: return location for an error
 *
 * Reads documents and keeps their tokens in memory, in 1, 2 or 4 bytes each; the text is read in blocks and is not
 * kept. All lines of a file have the same keys: `text`, of which each token is learned; `prompt` and `completion`, of
 * which the completion is learned; or `messages`, a list of objects with `role` and `content`, of which the messages of
 * the assistant are learned. Tokens that are not learned have the target -100.
 *
 * Documents are packed into rows by the best fit, and share no attention there if the model is called with the row's
 * starts. Texts, and prompts with their completions, get the tokenizer's tokens that begin and end a text, where it has
 * them; messages have the form of the chat template of the tokenizer's folder, in which the date, if it has one, is
 * 26 Jul 2024 on every day. A document that is longer than a row is split into segments that share no attention either.
 * An epoch takes each row once, in an order that depends on @seed and the epoch.
 *
 * Returns: (transfer full) (nullable): the documents; %NULL with %EBB_ERROR_IO if a file can't be read,
 *   %EBB_ERROR_FORMAT with its name and the number of the line if a line is no such object or the file has none
 */
EbbDocumentDataset *
ebb_document_dataset_new (const char *const *paths,
                          EbbTokenizer *tokenizer,
                          guint64 seed,
                          GError **error)
{
  EBB_RETURN_UNLESS_BEGUN (NULL, error, paths, tokenizer);

  return g_initable_new (EBB_TYPE_DOCUMENT_DATASET, NULL, error, "paths", paths, "tokenizer", tokenizer, "seed", seed,
                         NULL);
}

/**
 * ebb_document_dataset_new_from_bytes:
 * @lines: JSON lines
 * @tokenizer: the tokenizer that encodes the documents
 * @seed: which orders of rows the epochs have
 * @error: return location for an error
 *
 * Does as ebb_document_dataset_new() does with JSON lines in memory.
 *
 * Returns: (transfer full) (nullable): the documents; %NULL with %EBB_ERROR_FORMAT if a line is not as it must be
 */
EbbDocumentDataset *
ebb_document_dataset_new_from_bytes (GBytes *lines,
                                     EbbTokenizer *tokenizer,
                                     guint64 seed,
                                     GError **error)
{
  EBB_RETURN_UNLESS_BEGUN (NULL, error, lines, tokenizer);

  return g_initable_new (EBB_TYPE_DOCUMENT_DATASET, NULL, error, "lines", lines, "tokenizer", tokenizer, "seed", seed,
                         NULL);
}
