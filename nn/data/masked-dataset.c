/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Masks tokens of another dataset's rows, for a masked language model. */
#include "nn/data/masked-dataset.h"

#include "nn/data/dataset-private.h"
#include "tensor/error-private.h"
#include "tensor/util/property-private.h"

#include <gio/gio.h>

#define NO_TOKEN ((gint64) -1)

struct _EbbMaskedDataset
{
  EbbDataset parent_instance;

  EbbDataset *source;
  EbbTokenizer *tokenizer;
  double share;
  gint64 n_tokenizer; /* tokens that the tokenizer knows */
  gint64 mask_token, first_token, last_token;
  guint8 *special; /* by token */
};

G_DEFINE_FINAL_TYPE (EbbMaskedDataset, ebb_masked_dataset, EBB_TYPE_DATASET)

/* -- one row ------------------------------------------------------------------------------------------------------- */

/* Numbers that the seed and the position of the row name: they need no state to go on from. */
typedef struct
{
  guint64 key;
  guint64 n_drawn;
} Draws;

/* A number from 0 to @limit - 1, which is below 2^32. */
static gint64
draw (Draws *self,
      gint64 limit)
{
  return (gint64) ((ebb_dataset_mix (self->key + self->n_drawn++) >> 32) * (guint64) limit >> 32);
}

static gboolean
is_special (const EbbMaskedDataset *self,
            gint64 token)
{
  return token < self->n_tokenizer && self->special[token];
}

/* Any token but a special one. */
static gint64
draw_token (const EbbMaskedDataset *self,
            Draws *draws,
            gint64 otherwise)
{
  for (int i = 0; i < 100; i++)
    {
      gint64 token = draw (draws, self->n_tokenizer);

      if (!is_special (self, token))
        return token;
    }
  return otherwise;
}

/* Of the tokens to predict 80 % become the mask, 10 % a random token, 10 % stay. */
static gint64
mask_token (const EbbMaskedDataset *self,
            Draws *draws,
            gint64 token)
{
  gint64 choice = draw (draws, 10);

  return choice < 8 ? self->mask_token : choice == 8 ? draw_token (self, draws, token)
                                                     : token;
}

/* Chooses as many of the @n tokens as the share says, at least one, and none that is special. */
static void
mask_some (const EbbMaskedDataset *self,
           gint64 position,
           gint64 n,
           gint64 *tokens,
           gint64 *targets)
{
  const guint64 seed = ebb_dataset_get_private (EBB_DATASET ((gpointer) self))->seed;
  Draws draws = { .key = ebb_dataset_mix (ebb_dataset_mix (~seed) ^ ebb_dataset_mix ((guint64) position)) };
  g_autofree gint64 *places = g_new (gint64, (gsize) n);
  gint64 n_places = 0, n_masked;

  for (gint64 i = 0; i < n; i++)
    {
      targets[i] = EBB_DATASET_NO_TARGET;
      if (!is_special (self, tokens[i]))
        places[n_places++] = i;
    }
  n_masked = MIN (MAX ((gint64) (self->share * (double) n_places + 0.5), 1), n_places);
  for (gint64 i = 0; i < n_masked; i++)
    {
      gint64 other = i + draw (&draws, n_places - i), place = places[other];

      places[other] = places[i];
      targets[place] = tokens[place];
      tokens[place] = mask_token (self, &draws, tokens[place]);
    }
}

/* How many tokens of a row are not the source's. */
static gint64
count_framing (const EbbMaskedDataset *self)
{
  return (self->first_token != NO_TOKEN) + (self->last_token != NO_TOKEN);
}

static gboolean
ebb_masked_dataset_read_row (EbbDataset *dataset,
                             gint64 position,
                             gint64 context,
                             const EbbDatasetRow *row,
                             GError **error)
{
  EbbMaskedDataset *self = EBB_MASKED_DATASET (dataset);
  EbbDatasetPrivate *priv = ebb_dataset_get_private (dataset), *source = ebb_dataset_get_private (self->source);
  const EbbDatasetKind *kind = EBB_DATASET_GET_CLASS (self->source)->kind;
  const gint64 first = self->first_token != NO_TOKEN, n = context - count_framing (self);
  const EbbDatasetRow inside = { .tokens = row->tokens + first, .targets = row->targets + first };

  source->seed = priv->seed;
  source->shuffle = priv->shuffle;
  if (!kind->read_row (self->source, position, n, &inside, error))
    return FALSE;
  mask_some (self, position, n, inside.tokens, inside.targets);
  if (first)
    {
      row->tokens[0] = self->first_token;
      row->targets[0] = EBB_DATASET_NO_TARGET;
    }
  if (self->last_token != NO_TOKEN)
    {
      row->tokens[context - 1] = self->last_token;
      row->targets[context - 1] = EBB_DATASET_NO_TARGET;
    }
  return TRUE;
}

/* -- the dataset --------------------------------------------------------------------------------------------------- */

static gint64
ebb_masked_dataset_get_n_tokens (EbbDataset *dataset)
{
  EbbDataset *source = EBB_MASKED_DATASET (dataset)->source;

  return source != NULL ? ebb_dataset_get_n_tokens (source) : 0;
}

static gboolean
ebb_masked_dataset_check_context (EbbDataset *dataset,
                                  gint64 context,
                                  GError **error)
{
  EbbMaskedDataset *self = EBB_MASKED_DATASET (dataset);
  const gint64 framing = count_framing (self);

  if (!ebb_dataset_check_positive_context (context, error))
    return FALSE;
  if (context > framing)
    return ebb_dataset_check_context (self->source, context - framing, error);
  return ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT,
                   "a context of %" G_GINT64_FORMAT " tokens has no room for text beside %" G_GINT64_FORMAT
                   " special tokens",
                   context, framing);
}

static gint64
ebb_masked_dataset_get_n_rows (EbbDataset *dataset,
                               gint64 context)
{
  EbbMaskedDataset *self = EBB_MASKED_DATASET (dataset);
  const gint64 framing = count_framing (self);

  return self->source != NULL && context > framing ? ebb_dataset_get_n_rows (self->source, context - framing) : 0;
}

static EbbDataset *
ebb_masked_dataset_hold_out (EbbDataset *dataset,
                             double share,
                             GError **error)
{
  EbbMaskedDataset *self = EBB_MASKED_DATASET (dataset);
  g_autoptr (EbbDataset) held = ebb_dataset_hold_out (self->source, share, error);

  return held != NULL ? g_initable_new (EBB_TYPE_MASKED_DATASET, NULL, error, "source", held, "tokenizer",
                                        self->tokenizer, "share", self->share, NULL)
                      : NULL;
}

static gint64
ebb_masked_dataset_get_checksum (EbbDataset *dataset)
{
  EbbDataset *source = EBB_MASKED_DATASET (dataset)->source;

  return source != NULL ? ((const EbbDatasetKind *) EBB_DATASET_GET_CLASS (source)->kind)->get_checksum (source) : 0;
}

static char *
ebb_masked_dataset_get_names (EbbDataset *dataset)
{
  EbbDataset *source = EBB_MASKED_DATASET (dataset)->source;

  return source != NULL ? ((const EbbDatasetKind *) EBB_DATASET_GET_CLASS (source)->kind)->get_names (source)
                        : g_strdup ("the rows");
}

/**
 * ebb_masked_dataset_get_mask_token:
 * @self: rows with masked tokens
 *
 * Returns: the token in place of masked ones: the tokenizer's, or, if it has none, the number of its tokens
 */
gint64
ebb_masked_dataset_get_mask_token (EbbMaskedDataset *self)
{
  g_return_val_if_fail (EBB_IS_MASKED_DATASET (self), -1);

  return self->mask_token;
}

/**
 * ebb_masked_dataset_get_vocab_size:
 * @self: rows with masked tokens
 *
 * Returns: the least vocabulary of a model for these rows: the tokenizer's, and the mask if that is not among it
 */
guint
ebb_masked_dataset_get_vocab_size (EbbMaskedDataset *self)
{
  g_return_val_if_fail (EBB_IS_MASKED_DATASET (self), 0);

  return (guint) MAX (self->n_tokenizer, self->mask_token + 1);
}

/* -- the object ---------------------------------------------------------------------------------------------------- */

static void
find_special_tokens (EbbMaskedDataset *self)
{
  const gint64 n = ebb_tokenizer_get_vocab_size (self->tokenizer);

  self->n_tokenizer = n;
  self->mask_token = ebb_tokenizer_get_special_token (self->tokenizer, EBB_SPECIAL_TOKEN_MASK);
  if (self->mask_token < 0)
    self->mask_token = n;
  self->first_token = ebb_tokenizer_get_special_token (self->tokenizer, EBB_SPECIAL_TOKEN_CLS);
  self->last_token = ebb_tokenizer_get_special_token (self->tokenizer, EBB_SPECIAL_TOKEN_SEP);
  self->special = g_new0 (guint8, (gsize) n + 1);
  for (gint64 token = 0; token < n; token++)
    self->special[token] = ebb_tokenizer_is_special (self->tokenizer, token);
}

static gboolean
ebb_masked_dataset_open (EbbDataset *dataset,
                         GError **error)
{
  EbbMaskedDataset *self = EBB_MASKED_DATASET (dataset);

  if (self->source == NULL || self->tokenizer == NULL)
    return ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT,
                     "a masked dataset needs a dataset to take rows of, and the tokenizer that made its tokens");
  if (((const EbbDatasetKind *) EBB_DATASET_GET_CLASS (self->source)->kind)->has_starts
      || EBB_IS_MASKED_DATASET (self->source))
    return ebb_fail (error, EBB_ERROR_NOT_SUPPORTED,
                     "a masked dataset takes rows of text: %s has packed documents or masked tokens",
                     G_OBJECT_TYPE_NAME (self->source));
  find_special_tokens (self);
  ebb_dataset_get_private (EBB_DATASET (self))->seed = ebb_dataset_get_private (self->source)->seed;
  return TRUE;
}

static const EbbDatasetKind masked_kind = {
  .open = ebb_masked_dataset_open,
  .get_n_tokens = ebb_masked_dataset_get_n_tokens,
  .check_context = ebb_masked_dataset_check_context,
  .get_n_rows = ebb_masked_dataset_get_n_rows,
  .read_row = ebb_masked_dataset_read_row,
  .hold_out = ebb_masked_dataset_hold_out,
  .get_checksum = ebb_masked_dataset_get_checksum,
  .get_names = ebb_masked_dataset_get_names,
};

static void
ebb_masked_dataset_finalize (GObject *object)
{
  EbbMaskedDataset *self = EBB_MASKED_DATASET (object);

  g_clear_object (&self->source);
  g_clear_object (&self->tokenizer);
  g_free (self->special);
  G_OBJECT_CLASS (ebb_masked_dataset_parent_class)->finalize (object);
}

static void
ebb_masked_dataset_class_init (EbbMaskedDatasetClass *klass)
{
  GObjectClass *object_class = G_OBJECT_CLASS (klass);
  const GParamFlags flags = G_PARAM_READWRITE | G_PARAM_CONSTRUCT_ONLY | G_PARAM_STATIC_STRINGS;

  EBB_DATASET_CLASS (klass)->kind = &masked_kind;
  object_class->get_property = ebb_property_get_field;
  object_class->set_property = ebb_property_set_field;
  object_class->finalize = ebb_masked_dataset_finalize;

  /**
   * EbbMaskedDataset:source:
   *
   * The dataset whose rows these are.
   */
  g_object_class_install_property (object_class, offsetof (EbbMaskedDataset, source),
                                   g_param_spec_object ("source", NULL, NULL, EBB_TYPE_DATASET, flags));
  /**
   * EbbMaskedDataset:tokenizer:
   *
   * The tokenizer that made the tokens; it says which of them are special.
   */
  g_object_class_install_property (object_class, offsetof (EbbMaskedDataset, tokenizer),
                                   g_param_spec_object ("tokenizer", NULL, NULL, EBB_TYPE_TOKENIZER, flags));
  /**
   * EbbMaskedDataset:share:
   *
   * The share of a row's tokens, without special ones, that the model predicts.
   */
  g_object_class_install_property (object_class, offsetof (EbbMaskedDataset, share),
                                   g_param_spec_double ("share", NULL, NULL, 0, 1, 0.15, flags));
}

static void
ebb_masked_dataset_init (EbbMaskedDataset *self)
{
  self->share = 0.15;
  self->first_token = self->last_token = NO_TOKEN;
}

/**
 * ebb_masked_dataset_new:
 * @source: rows of text, from #EbbTextDataset
 * @tokenizer: the tokenizer that made its tokens
 * @error: return location for an error
 *
 * Prepares rows for a masked language model as BERT (Devlin et al., 2019) does. 15 % of a row's tokens
 * (#EbbMaskedDataset:share), at least one, are its targets: of these 80 % become the mask, 10 % another token, 10 %
 * stay. All other targets are -100. Special tokens are never masked, and where the tokenizer has those around a
 * text in BERT, each row begins and ends with them. Which tokens are masked depends on the seed and the position of
 * the row, so each epoch masks others. @source follows the position, the seed and the order of this dataset.
 *
 * Returns: (transfer full) (nullable): the rows, with the seed of @source; %NULL with %EBB_ERROR_NOT_SUPPORTED if
 *   @source has packed documents
 */
EbbMaskedDataset *
ebb_masked_dataset_new (EbbDataset *source,
                        EbbTokenizer *tokenizer,
                        GError **error)
{
  EBB_RETURN_UNLESS_BEGUN (NULL, error, source, tokenizer);

  return g_initable_new (EBB_TYPE_MASKED_DATASET, NULL, error, "source", source, "tokenizer", tokenizer, NULL);
}
