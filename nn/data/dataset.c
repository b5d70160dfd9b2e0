/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* The base class of datasets: batches, the order of the rows, and the state to go on from. */
#include "nn/data/dataset-private.h"

#include "nn/files/state-tree-private.h"
#include "tensor/dry-run-private.h"
#include "tensor/error-private.h"
#include "tensor/util/atomic-file-private.h"
#include "tensor/util/property-private.h"

#include <gio/gio.h>

static void ebb_dataset_initable_init (GInitableIface *iface);

G_DEFINE_ABSTRACT_TYPE_WITH_CODE (EbbDataset,
                                  ebb_dataset,
                                  G_TYPE_OBJECT,
                                  G_ADD_PRIVATE (EbbDataset)
                                      G_IMPLEMENT_INTERFACE (G_TYPE_INITABLE, ebb_dataset_initable_init))

EbbDatasetPrivate *
ebb_dataset_get_private (EbbDataset *self)
{
  return ebb_dataset_get_instance_private (self);
}

static const EbbDatasetKind *
get_kind (EbbDataset *self)
{
  return EBB_DATASET_GET_CLASS (self)->kind;
}

/**
 * ebb_dataset_get_n_tokens:
 * @self: a dataset
 *
 * Returns: how many tokens it has
 */
gint64
ebb_dataset_get_n_tokens (EbbDataset *self)
{
  g_return_val_if_fail (EBB_IS_DATASET (self), 0);

  return get_kind (self)->get_n_tokens (self);
}

/**
 * ebb_dataset_check_context:
 * @self: a dataset
 * @context: tokens in a row
 * @error: return location for an error
 *
 * Says before training whether there is a row to train on.
 *
 * Returns: %FALSE with %EBB_ERROR_INVALID_ARGUMENT if the dataset has no row of that many tokens
 */
gboolean
ebb_dataset_check_context (EbbDataset *self,
                           gint64 context,
                           GError **error)
{
  EBB_RETURN_UNLESS_BEGUN (FALSE, error, self);
  g_return_val_if_fail (EBB_IS_DATASET (self), FALSE);

  return get_kind (self)->check_context (self, context, error);
}

gboolean
ebb_dataset_fail_empty (const char *name,
                        GError **error)
{
  return ebb_fail (error, EBB_ERROR_FORMAT, "%s is empty: there is nothing to train on", ebb_show_text (name));
}

gboolean
ebb_tokens_store (void *storage,
                  guint width,
                  gint64 place,
                  const gint64 *tokens,
                  gint64 n,
                  gint64 vocab_size,
                  GError **error)
{
  for (gint64 i = 0; i < n; i++)
    {
      if (tokens[i] < 0 || tokens[i] >= vocab_size)
        return ebb_fail (error, EBB_ERROR_INDEX,
                         "the tokenizer gave the token %" G_GINT64_FORMAT ": its vocabulary has %" G_GINT64_FORMAT,
                         tokens[i], vocab_size);
      if (width == 1)
        ((guint8 *) storage)[place + i] = (guint8) tokens[i];
      else if (width == 2)
        ((guint16 *) storage)[place + i] = (guint16) tokens[i];
      else
        ((gint32 *) storage)[place + i] = (gint32) tokens[i];
    }
  return TRUE;
}

void
ebb_tokens_load (const void *storage,
                 guint width,
                 gint64 place,
                 gint64 n,
                 gint64 *tokens)
{
  if (width == 1)
    for (gint64 i = 0; i < n; i++)
      tokens[i] = ((const guint8 *) storage)[place + i];
  else if (width == 2)
    for (gint64 i = 0; i < n; i++)
      tokens[i] = ((const guint16 *) storage)[place + i];
  else
    for (gint64 i = 0; i < n; i++)
      tokens[i] = ((const gint32 *) storage)[place + i];
}

gboolean
ebb_dataset_check_positive_context (gint64 context,
                                    GError **error)
{
  return context > 0
         || ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT,
                      "a context of %" G_GINT64_FORMAT " tokens: it must be 1 or more", context);
}

/**
 * ebb_dataset_get_n_rows:
 * @self: a dataset
 * @context: tokens in a row, 1 or more
 *
 * Returns: how many rows an epoch has
 */
gint64
ebb_dataset_get_n_rows (EbbDataset *self,
                        gint64 context)
{
  g_return_val_if_fail (EBB_IS_DATASET (self), 0);
  g_return_val_if_fail (context > 0, 0);

  return get_kind (self)->get_n_rows (self, context);
}

/* -- dry runs ------------------------------------------------------------------------------------------------------ */

/* Where a dataset stood before a dry run. */
typedef struct
{
  EbbDataset *dataset;
  EbbDatasetPrivate before;
} Before;

static void
leave_dry_run (gpointer data)
{
  Before *self = data;

  *ebb_dataset_get_private (self->dataset) = self->before;
  g_object_unref (self->dataset);
  g_free (self);
}

/* Before anything of @self changes: at the end of a dry run it is as it was. */
static void
join_dry_run (EbbDataset *self)
{
  EbbDatasetPrivate *priv = ebb_dataset_get_instance_private (self);
  EbbDryRun *run = ebb_dry_run_get_current ();
  Before *before;

  if (G_LIKELY (run == NULL) || run == priv->run)
    return;
  before = g_new (Before, 1);
  *before = (Before){ g_object_ref (self), *priv };
  priv->run = run;
  ebb_dry_run_at_end (run, leave_dry_run, before);
}

/* -- batches ------------------------------------------------------------------------------------------------------- */

static gboolean
check_rows (EbbDataset *self,
            gint64 n_rows,
            gint64 context,
            GError **error)
{
  EbbDatasetPrivate *priv = ebb_dataset_get_instance_private (self);

  if (n_rows <= 0)
    return ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT,
                     "a batch of %" G_GINT64_FORMAT " windows: it must be 1 or more", n_rows);
  if (!get_kind (self)->check_context (self, context, error))
    return FALSE;
  return priv->position <= G_MAXINT64 - n_rows
         || ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT,
                      "%" G_GINT64_FORMAT " windows at position %" G_GINT64_FORMAT
                      ": positions end at %" G_GINT64_FORMAT,
                      n_rows, priv->position, G_MAXINT64);
}

static EbbTensor *
make_rows (gint64 n_rows,
           gint64 context,
           gint64 **data,
           GError **error)
{
  const gint64 shape[] = { n_rows, context };
  g_autoptr (EbbTensor) rows = ebb_tensor_new_empty (shape, 2, EBB_DTYPE_I64, ebb_device_get_cpu (), error);

  *data = rows != NULL ? ebb_tensor_get_data (rows, error) : NULL;
  return *data != NULL ? g_steal_pointer (&rows) : NULL;
}

/**
 * ebb_dataset_get_rows:
 * @self: a dataset
 * @n_rows: how many rows, B
 * @context: how many tokens in each, T
 * @tokens: (out) (transfer full): return location for the tokens, i64 [B, T], on the CPU
 * @targets: (out) (transfer full): return location for what each of them is to predict, i64 [B, T]; -100: nothing
 * @starts: (out) (optional) (nullable) (transfer full): return location for the index in its row at which each token's
 *   document begins, i64 [B, T]; %NULL from a dataset whose rows are not documents
 * @error: return location for an error
 *
 * Takes the next rows and moves #EbbDataset:position on by @n_rows. Which rows these are depends on the data,
 * #EbbDataset:seed, @context and the position alone.
 *
 * Returns: %FALSE with %EBB_ERROR_INVALID_ARGUMENT if the data is too short, a number is not positive or the position
 *   would pass 2^63, %EBB_ERROR_FORMAT if a file has been cut meanwhile
 */
gboolean
ebb_dataset_get_rows (EbbDataset *self,
                      gint64 n_rows,
                      gint64 context,
                      EbbTensor **tokens,
                      EbbTensor **targets,
                      EbbTensor **starts,
                      GError **error)
{
  EbbDatasetPrivate *priv;
  const EbbDatasetKind *kind;
  g_autoptr (EbbTensor) inputs = NULL;
  g_autoptr (EbbTensor) nexts = NULL;
  g_autoptr (EbbTensor) begins = NULL;
  EbbDatasetRow row = { 0 };

  *tokens = NULL;
  *targets = NULL;
  if (starts != NULL)
    *starts = NULL;
  EBB_RETURN_UNLESS_BEGUN (FALSE, error, self);
  g_return_val_if_fail (EBB_IS_DATASET (self), FALSE);

  priv = ebb_dataset_get_instance_private (self);
  kind = get_kind (self);
  if (!check_rows (self, n_rows, context, error))
    return FALSE;
  inputs = make_rows (n_rows, context, &row.tokens, error);
  nexts = inputs != NULL ? make_rows (n_rows, context, &row.targets, error) : NULL;
  if (nexts != NULL && kind->has_starts)
    begins = make_rows (n_rows, context, &row.starts, error);
  if (nexts == NULL || (kind->has_starts && begins == NULL))
    return FALSE;
  for (gint64 b = 0; b < n_rows; b++)
    {
      if (!kind->read_row (self, priv->position + b, context, &row, error))
        return FALSE;
      row.tokens += context;
      row.targets += context;
      if (row.starts != NULL)
        row.starts += context;
    }
  join_dry_run (self);
  priv->position += n_rows;
  *tokens = g_steal_pointer (&inputs);
  *targets = g_steal_pointer (&nexts);
  if (starts != NULL)
    *starts = g_steal_pointer (&begins);
  return TRUE;
}

/**
 * ebb_dataset_hold_out:
 * @self: a dataset
 * @share: which share of it, more than 0 and less than 1
 * @error: return location for an error
 *
 * Takes a share of the data out of @self, to measure the model on what it was not trained on: the last tokens of a
 * text, or documents that #EbbDataset:seed chooses. Both share the memory of their tokens. Call it before the first
 * row is taken, and again, with the same share, before a state is loaded.
 *
 * Returns: (transfer full) (nullable): the held-out part, which comes in order; %NULL with %EBB_ERROR_INVALID_ARGUMENT
 *   if it or the rest would be empty
 */
EbbDataset *
ebb_dataset_hold_out (EbbDataset *self,
                      double share,
                      GError **error)
{
  EbbDataset *held;

  EBB_RETURN_UNLESS_BEGUN (NULL, error, self);
  g_return_val_if_fail (EBB_IS_DATASET (self), NULL);

  if (!(share > 0 && share < 1))
    return ebb_fail_null (error, EBB_ERROR_INVALID_ARGUMENT,
                          "a held-out share of %g: it must be more than 0 and less than 1", share);
  held = get_kind (self)->hold_out (self, share, error);
  if (held != NULL)
    g_object_set (held, "shuffle", FALSE, NULL);
  return held;
}

/* -- the order of the rows ----------------------------------------------------------------------------------------- */

/* Each epoch has an order of its own. The order is a permutation that is computed, not stored: a Feistel network over
 * the next power of four, walked until the result is in range. So a position is one integer, and reaching it costs
 * nothing. */

gint64
ebb_dataset_find_row (EbbDataset *self,
                      gint64 position,
                      gint64 n_rows,
                      guint64 *key)
{
  EbbDatasetPrivate *priv = ebb_dataset_get_instance_private (self);
  gint64 epoch = position / n_rows, index = position % n_rows;
  guint64 order = ebb_dataset_mix (priv->seed ^ ebb_dataset_mix ((guint64) epoch));

  if (key != NULL)
    *key = order;
  return priv->shuffle ? (gint64) ebb_dataset_permute ((guint64) index, (guint64) n_rows, order) : index;
}

guint64
ebb_dataset_permute (guint64 index,
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

          right = left ^ (ebb_dataset_mix (right ^ ebb_dataset_mix (key + round)) & mask);
          left = old;
        }
      index = left << half | right;
    }
  while (index >= n);
  return index;
}

guint64
ebb_dataset_mix (guint64 x)
{
  x += G_GUINT64_CONSTANT (0x9e3779b97f4a7c15);
  x = (x ^ (x >> 30)) * G_GUINT64_CONSTANT (0xbf58476d1ce4e5b9);
  x = (x ^ (x >> 27)) * G_GUINT64_CONSTANT (0x94d049bb133111eb);
  return x ^ (x >> 31);
}

char *
ebb_dataset_join_paths (char *const *paths,
                        const char *other)
{
  g_autofree char *names = paths != NULL ? g_strjoinv (", ", (char **) paths) : g_strdup (other);

  return ebb_escape_text (names);
}

/* -- the state ----------------------------------------------------------------------------------------------------- */

/**
 * ebb_dataset_get_state:
 * @self: a dataset
 *
 * Returns: (transfer full): a dictionary with the position, the seed, the order, how many tokens there are and
 *   a checksum of them
 */
EbbArgs *
ebb_dataset_get_state (EbbDataset *self)
{
  EbbDatasetPrivate *priv;
  EbbArgs *state;

  g_return_val_if_fail (EBB_IS_DATASET (self), NULL);

  priv = ebb_dataset_get_instance_private (self);
  state = ebb_args_new (EBB_ARGS_DICT);
  ebb_args_add_int (state, "n_tokens", get_kind (self)->get_n_tokens (self));
  ebb_args_add_int (state, "checksum", get_kind (self)->get_checksum (self));
  ebb_args_add_int (state, "seed", (gint64) priv->seed);
  ebb_args_add_int (state, "position", priv->position);
  ebb_args_add_boolean (state, "shuffle", priv->shuffle);
  return state;
}

static gboolean
check_text (EbbDataset *self,
            EbbArgs *state,
            GError **error)
{
  gint64 n_tokens = ebb_args_get_int (state, (guint) ebb_args_find (state, "n_tokens"));
  gint64 checksum = ebb_args_get_int (state, (guint) ebb_args_find (state, "checksum"));
  gint64 present = get_kind (self)->get_n_tokens (self);
  g_autofree char *names = NULL;

  if (n_tokens != present)
    {
      names = get_kind (self)->get_names (self);
      return ebb_fail (error, EBB_ERROR_STATE,
                       "%s: %" G_GINT64_FORMAT " tokens, but the state is of a text of %" G_GINT64_FORMAT
                       ": go on with the text it was saved with",
                       names, present, n_tokens);
    }
  if (checksum == get_kind (self)->get_checksum (self))
    return TRUE;
  names = get_kind (self)->get_names (self);
  return ebb_fail (error, EBB_ERROR_STATE,
                   "%s: the state is of another text of %" G_GINT64_FORMAT
                   " tokens: go on with the text it was saved with",
                   names, n_tokens);
}

gboolean
ebb_dataset_check_state (EbbDataset *self,
                         EbbArgs *state,
                         GError **error)
{
  static const char *const names[] = { "n_tokens", "checksum", "seed", "position", "shuffle" };
  gint64 position;

  for (guint i = 0; i < G_N_ELEMENTS (names); i++)
    {
      int index = ebb_args_find (state, names[i]);

      if (index < 0 || ebb_args_get_value_kind (state, (guint) index) != (i == 4 ? EBB_VALUE_BOOL : EBB_VALUE_INT))
        return ebb_fail (error, EBB_ERROR_STATE, "the state of the text has no %s", names[i]);
    }
  position = ebb_args_get_int (state, (guint) ebb_args_find (state, "position"));
  if (position >= 0 && position <= EBB_STATE_MAX_COUNT)
    return check_text (self, state, error);
  return ebb_fail (error, EBB_ERROR_STATE,
                   "the state of the text is of position %" G_GINT64_FORMAT ": it must be from 0 to %" G_GINT64_FORMAT,
                   position, EBB_STATE_MAX_COUNT);
}

/**
 * ebb_dataset_load_state:
 * @self: a dataset
 * @state: the result of ebb_dataset_get_state()
 * @error: return location for an error
 *
 * Goes on where another one was, over the same data.
 *
 * Returns: %FALSE with %EBB_ERROR_STATE if it is other data
 */
gboolean
ebb_dataset_load_state (EbbDataset *self,
                        EbbArgs *state,
                        GError **error)
{
  EbbDatasetPrivate *priv;

  EBB_RETURN_UNLESS_BEGUN (FALSE, error, self, state);
  g_return_val_if_fail (EBB_IS_DATASET (self), FALSE);

  if (!ebb_dataset_check_state (self, state, error))
    return FALSE;
  join_dry_run (self);
  priv = ebb_dataset_get_instance_private (self);
  priv->seed = (guint64) ebb_args_get_int (state, (guint) ebb_args_find (state, "seed"));
  g_object_set (self, "shuffle", ebb_args_get_boolean (state, (guint) ebb_args_find (state, "shuffle")), "position",
                ebb_args_get_int (state, (guint) ebb_args_find (state, "position")), NULL);
  return TRUE;
}

/* -- the class ----------------------------------------------------------------------------------------------------- */

static gboolean
ebb_dataset_open (GInitable *initable,
                  GCancellable *cancellable,
                  GError **error)
{
  EbbDataset *self = EBB_DATASET (initable);

  return get_kind (self)->open (self, error);
}

static void
ebb_dataset_initable_init (GInitableIface *iface)
{
  iface->init = ebb_dataset_open;
}

static void
ebb_dataset_constructed (GObject *object)
{
  G_OBJECT_CLASS (ebb_dataset_parent_class)->constructed (object);
  ebb_dataset_get_private (EBB_DATASET (object))->is_constructed = TRUE;
}

static void
set_property (GObject *object,
              guint id,
              const GValue *value,
              GParamSpec *pspec)
{
  if (ebb_dataset_get_private (EBB_DATASET (object))->is_constructed)
    join_dry_run (EBB_DATASET (object));
  ebb_property_set_field (object, id, value, pspec);
}

static void
ebb_dataset_class_init (EbbDatasetClass *klass)
{
  GObjectClass *object_class = G_OBJECT_CLASS (klass);
  const GParamFlags flags = G_PARAM_READWRITE | G_PARAM_STATIC_STRINGS;

  object_class->get_property = ebb_property_get_field;
  object_class->set_property = set_property;
  object_class->constructed = ebb_dataset_constructed;

  /**
   * EbbDataset:seed:
   *
   * Which orders of rows the epochs have.
   */
  g_object_class_install_property (
      object_class, G_PRIVATE_OFFSET (EbbDataset, seed),
      g_param_spec_uint64 ("seed", NULL, NULL, 0, G_MAXUINT64, 0, flags | G_PARAM_CONSTRUCT_ONLY));
  /**
   * EbbDataset:shuffle:
   *
   * Whether each epoch has an order of its own; else rows come in the order of the data.
   */
  g_object_class_install_property (object_class, G_PRIVATE_OFFSET (EbbDataset, shuffle),
                                   g_param_spec_boolean ("shuffle", NULL, NULL, TRUE, flags));
  /**
   * EbbDataset:position:
   *
   * How many rows were taken. The next one is taken from there.
   */
  g_object_class_install_property (object_class, G_PRIVATE_OFFSET (EbbDataset, position),
                                   g_param_spec_int64 ("position", NULL, NULL, 0, G_MAXINT64, 0, flags));
}

static void
ebb_dataset_init (EbbDataset *self)
{
  EbbDatasetPrivate *priv = ebb_dataset_get_instance_private (self);

  priv->shuffle = TRUE;
}
