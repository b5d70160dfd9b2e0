/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "nn/data/text-dataset-private.h"

#include "tensor/util/atomic-file-private.h"
#include "nn/files/state-tree-private.h"
#include "nn/data/token-stream-private.h"
#include "tensor/error-private.h"
#include "tensor/util/property-private.h"

#include <gio/gio.h>
#include <string.h>

/* Windows of tokens out of text files, in an order that a seed and a position name. */

struct _EbbTextDataset
{
  GObject parent_instance;

  char **paths;
  GBytes *text;
  EbbTokenizer *tokenizer;
  guint64 seed;
  gboolean shuffle;
  gint64 position;
  EbbTokenStream stream;
  gint64 checksum;
};

static void ebb_text_dataset_initable_init (GInitableIface *iface);

G_DEFINE_FINAL_TYPE_WITH_CODE (EbbTextDataset,
                               ebb_text_dataset,
                               G_TYPE_OBJECT,
                               G_IMPLEMENT_INTERFACE (G_TYPE_INITABLE, ebb_text_dataset_initable_init))

/* -- which window -------------------------------------------------------------------------------------------------- */

/* Each epoch reads the text once, in windows that follow each other without overlap, in an order of its own. The order
 * is a permutation that is computed, not stored: a Feistel network over the next power of four, walked until the result
 * is in range. So a position is one integer, and reaching it costs nothing. */

/* The finaliser of splitmix64 (Steele et al., "Fast splittable pseudorandom number generators", 2014). */
static guint64
mix (guint64 x)
{
  x += G_GUINT64_CONSTANT (0x9e3779b97f4a7c15);
  x = (x ^ (x >> 30)) * G_GUINT64_CONSTANT (0xbf58476d1ce4e5b9);
  x = (x ^ (x >> 27)) * G_GUINT64_CONSTANT (0x94d049bb133111eb);
  return x ^ (x >> 31);
}

static guint64
permute (guint64 index,
         guint64 n,
         guint64 key)
{
  guint half = 1;
  guint64 mask;

  while (half < 32 && (n - 1) >> (2 * half) != 0)
    half++;
  mask = (G_GUINT64_CONSTANT (1) << half) - 1;
  do
    {
      guint64 left = index >> half, right = index & mask;

      for (guint round = 0; round < 4; round++)
        {
          guint64 old = right;

          right = left ^ (mix (right ^ mix (key + round)) & mask);
          left = old;
        }
      index = left << half | right;
    }
  while (index >= n);
  return index;
}

static gint64
find_window (EbbTextDataset *self,
             gint64 position,
             gint64 context)
{
  gint64 n_windows = (self->stream.n_tokens - 1) / context;
  gint64 epoch = position / n_windows, index = position % n_windows;
  gint64 slack = self->stream.n_tokens - 1 - n_windows * context;
  guint64 key = mix (self->seed ^ mix ((guint64) epoch));

  if (!self->shuffle)
    return index * context;
  return (gint64) permute ((guint64) index, (guint64) n_windows, key) * context
         + (gint64) (mix (~key) % (guint64) (slack + 1));
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
        *sum = mix (*sum ^ (guint64) tokens[i]);
      begin += n;
    }
  return TRUE;
}

static gboolean
make_checksum (EbbTextDataset *self,
               GError **error)
{
  gint64 n = self->stream.n_tokens, first_end = MIN (n, CHECKED_TOKENS);
  guint64 sum = mix ((guint64) n);
  gboolean ok = add_to_checksum (&self->stream, 0, first_end, &sum, error)
                && add_to_checksum (&self->stream, MAX (first_end, n - CHECKED_TOKENS), n, &sum, error);

  self->checksum = (gint64) sum;
  return ok;
}

static char *
get_names (EbbTextDataset *self)
{
  g_autofree char *names = self->paths != NULL ? g_strjoinv (", ", self->paths) : g_strdup ("the text");

  return ebb_escape_text (names);
}

/* -- using it ------------------------------------------------------------------------------------------------------ */

/**
 * ebb_text_dataset_get_n_tokens:
 * @self: a text
 *
 * Returns: how many tokens it has
 */
gint64
ebb_text_dataset_get_n_tokens (EbbTextDataset *self)
{
  g_return_val_if_fail (EBB_IS_TEXT_DATASET (self), 0);

  return self->stream.n_tokens;
}

/**
 * ebb_text_dataset_get_n_windows:
 * @self: a text
 * @context: tokens in a window, 1 or more
 *
 * Returns: how many windows an epoch has
 */
gint64
ebb_text_dataset_get_n_windows (EbbTextDataset *self,
                                gint64 context)
{
  g_return_val_if_fail (EBB_IS_TEXT_DATASET (self), 0);
  g_return_val_if_fail (context > 0, 0);

  return MAX (0, self->stream.n_tokens - 1) / context;
}

/**
 * ebb_text_dataset_check_context:
 * @self: a text
 * @context: tokens in a window
 * @error: return location for an error
 *
 * Tells before training whether the text is long enough.
 *
 * Returns: %FALSE with %EBB_ERROR_INVALID_ARGUMENT if the text has no window of that size
 */
gboolean
ebb_text_dataset_check_context (EbbTextDataset *self,
                                gint64 context,
                                GError **error)
{
  g_autofree char *names = NULL;

  if (!EBB_MAY_BEGIN (error, self))
    return FALSE;
  g_return_val_if_fail (EBB_IS_TEXT_DATASET (self), FALSE);

  if (context <= 0)
    {
      g_set_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT,
                   "a context of %" G_GINT64_FORMAT " tokens: it must be 1 or more", context);
      return FALSE;
    }
  if (context < self->stream.n_tokens)
    return TRUE;
  names = get_names (self);
  g_set_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT,
               "%s: %" G_GINT64_FORMAT " tokens are too few: a context of %" G_GINT64_FORMAT
               " needs one more than that",
               names, self->stream.n_tokens, context);
  return FALSE;
}

/**
 * ebb_text_dataset_get_batch:
 * @self: a text
 * @batch: how many windows, B
 * @context: how many tokens in each, T
 * @tokens: (out) (transfer full): return location for the tokens, i64 [B, T], on the CPU
 * @targets: (out) (transfer full): return location for the token that follows each of them, i64 [B, T]
 * @error: return location for an error
 *
 * Takes the next windows and moves #EbbTextDataset:position on by @batch. Which windows these are depends on the text,
 * #EbbTextDataset:seed, @context and the position alone. Windows may reach from one file into the next.
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
  const gint64 shape[] = { batch, context };
  g_autoptr (EbbTensor) inputs = NULL;
  g_autoptr (EbbTensor) nexts = NULL;
  gint64 *x, *y;

  *tokens = NULL;
  *targets = NULL;
  if (!EBB_MAY_BEGIN (error, self))
    return FALSE;
  g_return_val_if_fail (EBB_IS_TEXT_DATASET (self), FALSE);

  if (batch <= 0)
    {
      g_set_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT,
                   "a batch of %" G_GINT64_FORMAT " windows: it must be 1 or more", batch);
      return FALSE;
    }
  if (!ebb_text_dataset_check_context (self, context, error))
    return FALSE;
  if (self->position > G_MAXINT64 - batch)
    {
      g_set_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT,
                   "%" G_GINT64_FORMAT " windows at position %" G_GINT64_FORMAT ": positions end at %" G_GINT64_FORMAT,
                   batch, self->position, G_MAXINT64);
      return FALSE;
    }
  inputs = ebb_tensor_new_empty (shape, 2, EBB_DTYPE_I64, ebb_device_get_cpu (), error);
  nexts = inputs ? ebb_tensor_new_empty (shape, 2, EBB_DTYPE_I64, ebb_device_get_cpu (), error) : NULL;
  x = nexts ? ebb_tensor_get_data (inputs, error) : NULL;
  y = x ? ebb_tensor_get_data (nexts, error) : NULL;
  if (y == NULL)
    return FALSE;
  for (gint64 b = 0; b < batch; b++, x += context, y += context)
    {
      gint64 begin = find_window (self, self->position + b, context);

      if (!ebb_token_stream_read (&self->stream, begin, context, x, error)
          || !ebb_token_stream_read (&self->stream, begin + context, 1, y + context - 1, error))
        return FALSE;
      memcpy (y, x + 1, sizeof (gint64) * (gsize) (context - 1));
    }
  self->position += batch;
  *tokens = g_steal_pointer (&inputs);
  *targets = g_steal_pointer (&nexts);
  return TRUE;
}

/**
 * ebb_text_dataset_get_state:
 * @self: a text
 *
 * Returns: (transfer full): a dictionary with the position, the seed, the order, how many tokens there are and
 *   a checksum of the first and the last of them
 */
EbbArgs *
ebb_text_dataset_get_state (EbbTextDataset *self)
{
  EbbArgs *state;

  g_return_val_if_fail (EBB_IS_TEXT_DATASET (self), NULL);

  state = ebb_args_new (EBB_ARGS_DICT);
  ebb_args_add_int (state, "n_tokens", self->stream.n_tokens);
  ebb_args_add_int (state, "checksum", self->checksum);
  ebb_args_add_int (state, "seed", (gint64) self->seed);
  ebb_args_add_int (state, "position", self->position);
  ebb_args_add_boolean (state, "shuffle", self->shuffle);
  return state;
}

static gboolean
check_text (EbbTextDataset *self,
            EbbArgs *state,
            GError **error)
{
  gint64 n_tokens = ebb_args_get_int (state, (guint) ebb_args_find (state, "n_tokens"));
  gint64 checksum = ebb_args_get_int (state, (guint) ebb_args_find (state, "checksum"));
  g_autofree char *names = NULL;

  if (n_tokens != self->stream.n_tokens)
    {
      names = get_names (self);
      g_set_error (error, EBB_ERROR, EBB_ERROR_STATE,
                   "%s: %" G_GINT64_FORMAT " tokens, but the state is of a text of %" G_GINT64_FORMAT
                   ": go on with the text it was saved with",
                   names, self->stream.n_tokens, n_tokens);
      return FALSE;
    }
  if (checksum == self->checksum)
    return TRUE;
  names = get_names (self);
  g_set_error (error, EBB_ERROR, EBB_ERROR_STATE,
               "%s: the state is of another text of %" G_GINT64_FORMAT " tokens: go on with the text it was saved with",
               names, n_tokens);
  return FALSE;
}

gboolean
ebb_text_dataset_check_state (EbbTextDataset *self,
                              EbbArgs *state,
                              GError **error)
{
  static const char *const names[] = { "n_tokens", "checksum", "seed", "position", "shuffle" };
  gint64 position;

  for (guint i = 0; i < G_N_ELEMENTS (names); i++)
    {
      int index = ebb_args_find (state, names[i]);

      if (index < 0 || ebb_args_get_value_kind (state, (guint) index) != (i == 4 ? EBB_VALUE_BOOL : EBB_VALUE_INT))
        {
          g_set_error (error, EBB_ERROR, EBB_ERROR_STATE, "the state of the text has no %s", names[i]);
          return FALSE;
        }
    }
  position = ebb_args_get_int (state, (guint) ebb_args_find (state, "position"));
  if (position >= 0 && position <= EBB_STATE_MAX_COUNT)
    return check_text (self, state, error);
  g_set_error (error, EBB_ERROR, EBB_ERROR_STATE,
               "the state of the text is of position %" G_GINT64_FORMAT ": it must be from 0 to %" G_GINT64_FORMAT,
               position, EBB_STATE_MAX_COUNT);
  return FALSE;
}

/**
 * ebb_text_dataset_load_state:
 * @self: a text
 * @state: what ebb_text_dataset_get_state() gave
 * @error: return location for an error
 *
 * Goes on where another one was, over the same text.
 *
 * Returns: %FALSE with %EBB_ERROR_STATE if it is another text
 */
gboolean
ebb_text_dataset_load_state (EbbTextDataset *self,
                             EbbArgs *state,
                             GError **error)
{
  if (!EBB_MAY_BEGIN (error, self, state))
    return FALSE;
  g_return_val_if_fail (EBB_IS_TEXT_DATASET (self), FALSE);

  if (!ebb_text_dataset_check_state (self, state, error))
    return FALSE;
  self->seed = (guint64) ebb_args_get_int (state, (guint) ebb_args_find (state, "seed"));
  g_object_set (self, "shuffle", ebb_args_get_boolean (state, (guint) ebb_args_find (state, "shuffle")), "position",
                ebb_args_get_int (state, (guint) ebb_args_find (state, "position")), NULL);
  return TRUE;
}

/* -- the object ---------------------------------------------------------------------------------------------------- */

static gboolean
read_paths (EbbTextDataset *self,
            GError **error)
{
  for (guint i = 0; self->paths[i] != NULL; i++)
    if (!ebb_token_stream_append_file (&self->stream, self->paths[i], self->tokenizer, error))
      return FALSE;
  return TRUE;
}

static gboolean
ebb_text_dataset_initable_init_instance (GInitable *initable,
                                         GCancellable *cancellable,
                                         GError **error)
{
  EbbTextDataset *self = EBB_TEXT_DATASET (initable);

  if (self->stream.n_segments > 0)
    return TRUE;
  if (self->tokenizer == NULL || (self->paths == NULL || self->paths[0] == NULL) == (self->text == NULL))
    {
      g_set_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT,
                   "a text dataset needs a tokenizer and either files or a text");
      return FALSE;
    }
  if ((self->text ? ebb_token_stream_append (&self->stream, self->text, "the text", self->tokenizer, error)
                  : read_paths (self, error))
      && make_checksum (self, error))
    return TRUE;
  ebb_token_stream_clear (&self->stream);
  return FALSE;
}

static void
ebb_text_dataset_initable_init (GInitableIface *iface)
{
  iface->init = ebb_text_dataset_initable_init_instance;
}

static void
ebb_text_dataset_finalize (GObject *object)
{
  EbbTextDataset *self = EBB_TEXT_DATASET (object);

  ebb_token_stream_clear (&self->stream);
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
   * What makes tokens of the text.
   */
  g_object_class_install_property (object_class, offsetof (EbbTextDataset, tokenizer),
                                   g_param_spec_object ("tokenizer", NULL, NULL, EBB_TYPE_TOKENIZER, flags));
  /**
   * EbbTextDataset:seed:
   *
   * Which orders of windows the epochs have.
   */
  g_object_class_install_property (object_class, offsetof (EbbTextDataset, seed),
                                   g_param_spec_uint64 ("seed", NULL, NULL, 0, G_MAXUINT64, 0, flags));
}

static void
ebb_text_dataset_class_init (EbbTextDatasetClass *klass)
{
  GObjectClass *object_class = G_OBJECT_CLASS (klass);
  const GParamFlags flags = G_PARAM_READWRITE | G_PARAM_STATIC_STRINGS;

  object_class->get_property = ebb_property_get_field;
  object_class->set_property = ebb_property_set_field;
  object_class->finalize = ebb_text_dataset_finalize;
  install_construct_properties (object_class);

  /**
   * EbbTextDataset:shuffle:
   *
   * Whether each epoch has an order of its own; else windows come in the order of the text.
   */
  g_object_class_install_property (object_class, offsetof (EbbTextDataset, shuffle),
                                   g_param_spec_boolean ("shuffle", NULL, NULL, TRUE, flags));
  /**
   * EbbTextDataset:position:
   *
   * How many windows were taken. The next one is taken from there.
   */
  g_object_class_install_property (object_class, offsetof (EbbTextDataset, position),
                                   g_param_spec_int64 ("position", NULL, NULL, 0, G_MAXINT64, 0, flags));
}

static void
ebb_text_dataset_init (EbbTextDataset *self)
{
  self->shuffle = TRUE;
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
  if (!EBB_MAY_BEGIN (error, paths, tokenizer))
    return NULL;

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
  if (!EBB_MAY_BEGIN (error, text, tokenizer))
    return NULL;

  return g_initable_new (EBB_TYPE_TEXT_DATASET, NULL, error, "text", text, "tokenizer", tokenizer, "seed", seed, NULL);
}
