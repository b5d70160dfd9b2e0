/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* The keys and values of earlier tokens, which attention reads again for each token that is generated. */
#include "nn/layers/key-value-cache.h"

#include "tensor/autograd/autograd.h"
#include "tensor/error-private.h"
#include "tensor/ops/in-place.h"
#include "tensor/ops/shape.h"
#include "tensor/tensor-private.h"

/**
 * EbbKeyValueCache:
 *
 * Keys and values of the tokens that a model has seen, for each of its attention layers: a later call computes those of
 * new tokens alone. Give it to the model as the argument `cache`, in evaluation mode and without gradients.
 *
 * The buffers of a layer are `[B, G, n, D]` for batch, groups and width of a head. They have the type of the first
 * keys, grow by doubling up to the capacity, and count as %EBB_PURPOSE_CACHE. After a call that failed the tokens of
 * that call are not in the cache; call ebb_key_value_cache_truncate() with the length before the next call.
 */
struct _EbbKeyValueCache
{
  GObject parent_instance;

  gint64 capacity;
  gint64 length;
  gint64 n_rows;      /* 0: no layer has keys yet */
  GHashTable *layers; /* EbbModule, owned: Layer */
};

typedef struct
{
  EbbTensor *keys, *values; /* [B, G, n, D], with n up to the capacity; rows from the cache's n_rows on are unused */
  gint64 end;               /* tokens with keys; more than the cache's length until it is advanced */
} Layer;

G_DEFINE_TYPE (EbbKeyValueCache, ebb_key_value_cache, G_TYPE_OBJECT)

#define LEAST_TOKENS 64 /* of a new buffer */

static void
layer_free (gpointer data)
{
  Layer *layer = data;

  g_clear_pointer (&layer->keys, ebb_tensor_unref);
  g_clear_pointer (&layer->values, ebb_tensor_unref);
  g_free (layer);
}

static void
ebb_key_value_cache_finalize (GObject *object)
{
  g_clear_pointer (&EBB_KEY_VALUE_CACHE (object)->layers, g_hash_table_unref);
  G_OBJECT_CLASS (ebb_key_value_cache_parent_class)->finalize (object);
}

static void
ebb_key_value_cache_class_init (EbbKeyValueCacheClass *klass)
{
  G_OBJECT_CLASS (klass)->finalize = ebb_key_value_cache_finalize;
}

static void
ebb_key_value_cache_init (EbbKeyValueCache *self)
{
  self->layers = g_hash_table_new_full (NULL, NULL, g_object_unref, layer_free);
}

/**
 * ebb_key_value_cache_new:
 * @capacity: the most tokens of a row that it holds, at least 1
 *
 * Makes an empty cache. No memory is used until a layer appends its first keys.
 *
 * Returns: (transfer full): the cache
 */
EbbKeyValueCache *
ebb_key_value_cache_new (gint64 capacity)
{
  EbbKeyValueCache *self;

  g_return_val_if_fail (capacity >= 1, NULL);

  self = g_object_new (EBB_TYPE_KEY_VALUE_CACHE, NULL);
  self->capacity = capacity;
  return self;
}

/**
 * ebb_key_value_cache_get_capacity:
 * @self: a cache
 *
 * Returns: the most tokens of a row that it holds
 */
gint64
ebb_key_value_cache_get_capacity (EbbKeyValueCache *self)
{
  g_return_val_if_fail (EBB_IS_KEY_VALUE_CACHE (self), 0);

  return self->capacity;
}

/**
 * ebb_key_value_cache_get_length:
 * @self: a cache
 *
 * Returns: how many tokens of each row it holds; during a call of the model, those before the call
 */
gint64
ebb_key_value_cache_get_length (EbbKeyValueCache *self)
{
  g_return_val_if_fail (EBB_IS_KEY_VALUE_CACHE (self), 0);

  return self->length;
}

/**
 * ebb_key_value_cache_get_n_bytes:
 * @self: a cache
 *
 * Returns: the bytes of its buffers
 */
guint64
ebb_key_value_cache_get_n_bytes (EbbKeyValueCache *self)
{
  GHashTableIter iter;
  gpointer value;
  guint64 n_bytes = 0;

  g_return_val_if_fail (EBB_IS_KEY_VALUE_CACHE (self), 0);

  g_hash_table_iter_init (&iter, self->layers);
  while (g_hash_table_iter_next (&iter, NULL, &value))
    n_bytes += ebb_tensor_get_n_bytes (((Layer *) value)->keys) + ebb_tensor_get_n_bytes (((Layer *) value)->values);
  return n_bytes;
}

/* -- appending ----------------------------------------------------------------------------------------------------- */

/* FALSE with @error where keys and values are not [B, G, T, D], the layer has others, or there is no room. */
static gboolean
check_append (EbbKeyValueCache *self,
              const Layer *layer,
              EbbTensor *keys,
              EbbTensor *values,
              GError **error)
{
  g_autofree char *keys_shape = ebb_tensor_shape_to_string (keys);
  g_autofree char *values_shape = ebb_tensor_shape_to_string (values);
  gint64 n_tokens;

  if (ebb_tensor_get_n_dims (keys) != 4 || ebb_tensor_get_n_dims (values) != 4
      || ebb_tensor_get_dim (keys, 0) != ebb_tensor_get_dim (values, 0)
      || ebb_tensor_get_dim (keys, 1) != ebb_tensor_get_dim (values, 1)
      || ebb_tensor_get_dim (keys, 2) != ebb_tensor_get_dim (values, 2) || ebb_tensor_get_dim (keys, 0) < 1)
    return ebb_fail (error, EBB_ERROR_SHAPE,
                     "KeyValueCache: keys %s and values %s; they must be [B, G, T, D] with the same B, G and T",
                     keys_shape, values_shape);
  n_tokens = ebb_tensor_get_dim (keys, 2);
  if (n_tokens > self->capacity - self->length)
    return ebb_fail (error, EBB_ERROR_INDEX,
                     "KeyValueCache: %" G_GINT64_FORMAT " tokens after %" G_GINT64_FORMAT
                     " are more than its capacity of %" G_GINT64_FORMAT,
                     n_tokens, self->length, self->capacity);
  if (self->n_rows != 0 && ebb_tensor_get_dim (keys, 0) != self->n_rows)
    return ebb_fail (error, EBB_ERROR_SHAPE,
                     "KeyValueCache: keys %s; it holds %" G_GINT64_FORMAT " rows", keys_shape, self->n_rows);
  if (ebb_tensor_get_requires_grad (keys) || ebb_tensor_get_requires_grad (values))
    return ebb_fail (error, EBB_ERROR_GRAPH,
                     "KeyValueCache: gradients are recorded; use a cache without gradients alone");
  if ((layer != NULL ? layer->end : 0) != self->length)
    return ebb_fail (error, EBB_ERROR_STATE,
                     "KeyValueCache: the layer holds %" G_GINT64_FORMAT " tokens and the cache %" G_GINT64_FORMAT
                     ": each layer must append once in a call, and a failed call must be followed by truncate ()",
                     layer != NULL ? layer->end : 0, self->length);
  if (layer == NULL)
    return TRUE;
  if (ebb_tensor_get_dim (keys, 1) != ebb_tensor_get_dim (layer->keys, 1)
      || ebb_tensor_get_dim (keys, 3) != ebb_tensor_get_dim (layer->keys, 3)
      || ebb_tensor_get_dim (values, 3) != ebb_tensor_get_dim (layer->values, 3))
    {
      return ebb_fail (error, EBB_ERROR_SHAPE, "KeyValueCache: keys %s do not follow keys %s", keys_shape,
                       ebb_show_shape (layer->keys));
    }
  return (ebb_tensor_get_dtype (keys) == ebb_tensor_get_dtype (layer->keys)
          && ebb_tensor_get_dtype (values) == ebb_tensor_get_dtype (layer->values))
         || ebb_fail (error, EBB_ERROR_DTYPE, "KeyValueCache: keys of %s do not follow keys of %s",
                      ebb_dtype_get_name (ebb_tensor_get_dtype (keys)),
                      ebb_dtype_get_name (ebb_tensor_get_dtype (layer->keys)));
}

/* Room for @n_tokens tokens: the next power of two, but not more than the capacity. */
static gint64
get_room (EbbKeyValueCache *self,
          gint64 n_tokens)
{
  gint64 room = LEAST_TOKENS;

  while (room < n_tokens && room < self->capacity)
    room *= 2;
  return MIN (room, self->capacity);
}

/* A buffer of @n_tokens like @like [B, G, T, D], with the first @n_used tokens of @old, which may be NULL. */
static EbbTensor *
make_buffer (EbbTensor *like,
             EbbTensor *old,
             gint64 n_tokens,
             gint64 n_used,
             GError **error)
{
  gint64 shape[] = { ebb_tensor_get_dim (like, 0), ebb_tensor_get_dim (like, 1), n_tokens,
                     ebb_tensor_get_dim (like, 3) };
  EbbTensor *buffer =
      ebb_tensor_new_empty (shape, 4, ebb_tensor_get_dtype (like), ebb_tensor_get_device (like), error);
  gboolean copied = TRUE;

  if (buffer == NULL)
    return NULL;
  ebb_storage_set_purpose (buffer->storage, EBB_PURPOSE_CACHE);
  if (old != NULL && n_used > 0)
    {
      g_autoptr (EbbTensor) rows = ebb_narrow (old, 0, 0, shape[0], error);
      g_autoptr (EbbTensor) source = ebb_narrow (rows, 2, 0, n_used, error);
      g_autoptr (EbbTensor) target = ebb_narrow (buffer, 2, 0, n_used, error);

      copied = source != NULL && target != NULL && ebb_tensor_copy_from (target, source, error);
    }
  if (!copied)
    g_clear_pointer (&buffer, ebb_tensor_unref);
  return buffer;
}

static gboolean
grow (EbbKeyValueCache *self,
      Layer *layer,
      EbbTensor *keys,
      EbbTensor *values,
      gint64 end,
      GError **error)
{
  gint64 n_tokens = get_room (self, end);
  g_autoptr (EbbTensor) new_keys = make_buffer (keys, layer->keys, n_tokens, self->length, error);
  g_autoptr (EbbTensor) new_values = NULL;

  if (new_keys == NULL)
    return FALSE;
  new_values = make_buffer (values, layer->values, n_tokens, self->length, error);
  if (new_values == NULL)
    return FALSE;
  g_clear_pointer (&layer->keys, ebb_tensor_unref);
  g_clear_pointer (&layer->values, ebb_tensor_unref);
  layer->keys = g_steal_pointer (&new_keys);
  layer->values = g_steal_pointer (&new_values);
  return TRUE;
}

/* Writes @tokens behind the first @begin tokens of @buffer; the tokens up to and with them. */
static EbbTensor *
write_tokens (EbbTensor *buffer,
              EbbTensor *tokens,
              gint64 begin,
              GError **error)
{
  gint64 n_tokens = ebb_tensor_get_dim (tokens, 2);
  g_autoptr (EbbTensor) rows = ebb_narrow (buffer, 0, 0, ebb_tensor_get_dim (tokens, 0), error);
  g_autoptr (EbbTensor) target = ebb_narrow (rows, 2, begin, n_tokens, error);

  if (target == NULL || !ebb_tensor_copy_from (target, tokens, error))
    return NULL;
  return ebb_narrow (rows, 2, 0, begin + n_tokens, error);
}

/**
 * ebb_key_value_cache_append:
 * @self: a cache
 * @layer: the attention whose keys and values these are
 * @keys: `[B, G, T, D]`: the keys of the tokens of this call
 * @values: their values
 * @all_keys: (out) (transfer full): return location for the keys of all tokens so far, `[B, G, S, D]`: a view of the
 *   cache, valid until the next call
 * @all_values: (out) (transfer full): return location for their values
 * @error: return location for an error
 *
 * Adds the keys and values of a call's tokens. Attention calls it once in each call, between two calls of
 * ebb_key_value_cache_advance().
 *
 * Returns: %TRUE, or %FALSE with @error set: to %EBB_ERROR_INDEX if the tokens are more than the capacity
 */
gboolean
ebb_key_value_cache_append (EbbKeyValueCache *self,
                            EbbModule *layer,
                            EbbTensor *keys,
                            EbbTensor *values,
                            EbbTensor **all_keys,
                            EbbTensor **all_values,
                            GError **error)
{
  Layer *own, *added = NULL;
  gint64 end;

  *all_keys = NULL;
  *all_values = NULL;
  EBB_RETURN_UNLESS_BEGUN (FALSE, error, self, layer, keys, values);
  g_return_val_if_fail (EBB_IS_KEY_VALUE_CACHE (self) && EBB_IS_MODULE (layer), FALSE);

  own = g_hash_table_lookup (self->layers, layer);
  if (!check_append (self, own, keys, values, error))
    return FALSE;
  end = self->length + ebb_tensor_get_dim (keys, 2);
  if (own == NULL)
    own = added = g_new0 (Layer, 1);
  if ((own->keys == NULL || end > ebb_tensor_get_dim (own->keys, 2)) && !grow (self, own, keys, values, end, error))
    {
      g_clear_pointer (&added, layer_free);
      return FALSE;
    }
  if (added != NULL)
    g_hash_table_insert (self->layers, g_object_ref (layer), added);
  self->n_rows = ebb_tensor_get_dim (keys, 0);
  *all_keys = write_tokens (own->keys, keys, self->length, error);
  if (*all_keys != NULL)
    *all_values = write_tokens (own->values, values, self->length, error);
  if (*all_values == NULL)
    {
      g_clear_pointer (all_keys, ebb_tensor_unref);
      return FALSE;
    }
  own->end = end;
  return TRUE;
}

/**
 * ebb_key_value_cache_advance:
 * @self: a cache
 * @n_tokens: how many tokens of each row the call had
 *
 * Ends a call: the tokens that the layers appended count from now on. The model calls it, after its last layer.
 */
void
ebb_key_value_cache_advance (EbbKeyValueCache *self,
                             gint64 n_tokens)
{
  g_return_if_fail (EBB_IS_KEY_VALUE_CACHE (self));
  g_return_if_fail (n_tokens >= 0 && n_tokens <= self->capacity - self->length);

  self->length += n_tokens;
}

/* -- rows and lengths ---------------------------------------------------------------------------------------------- */

static gboolean
move_rows (EbbTensor *buffer,
           const gint64 *rows,
           gsize n_rows,
           gint64 length,
           GError **error)
{
  g_autoptr (EbbTensor) used = ebb_narrow (buffer, 2, 0, length, error);

  if (used == NULL)
    return FALSE;
  for (gsize i = 0; i < n_rows; i++)
    if (rows[i] != (gint64) i)
      {
        g_autoptr (EbbTensor) source = ebb_narrow (used, 0, rows[i], 1, error);
        g_autoptr (EbbTensor) target = ebb_narrow (used, 0, (gint64) i, 1, error);

        if (source == NULL || target == NULL || !ebb_tensor_copy_from (target, source, error))
          return FALSE;
      }
  return TRUE;
}

/**
 * ebb_key_value_cache_keep_rows:
 * @self: a cache
 * @rows: (array length=n_rows): the rows that go on, in ascending order
 * @n_rows: how many, at least 1
 * @error: return location for an error
 *
 * Drops all other rows, which have come to their end: row @i is row @rows[i] from now on. The buffers keep their size.
 *
 * Returns: %TRUE, or %FALSE with @error set
 */
gboolean
ebb_key_value_cache_keep_rows (EbbKeyValueCache *self,
                               const gint64 *rows,
                               gsize n_rows,
                               GError **error)
{
  GHashTableIter iter;
  gpointer value;

  EBB_RETURN_UNLESS_BEGUN (FALSE, error, self, rows);
  g_return_val_if_fail (EBB_IS_KEY_VALUE_CACHE (self), FALSE);

  for (gsize i = 0; i < n_rows; i++)
    if (rows[i] < 0 || rows[i] >= self->n_rows || (i > 0 && rows[i] <= rows[i - 1]))
      return ebb_fail (error, EBB_ERROR_INDEX,
                       "KeyValueCache: row %" G_GINT64_FORMAT " at %" G_GSIZE_FORMAT
                       "; rows must ascend and be in [0, %" G_GINT64_FORMAT ")",
                       rows[i], i, self->n_rows);
  if (n_rows == 0)
    return ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT,
                     "KeyValueCache: no row is kept; reset () drops all of them");
  g_hash_table_iter_init (&iter, self->layers);
  while (g_hash_table_iter_next (&iter, NULL, &value))
    if (!move_rows (((Layer *) value)->keys, rows, n_rows, self->length, error)
        || !move_rows (((Layer *) value)->values, rows, n_rows, self->length, error))
      return FALSE;
  self->n_rows = (gint64) n_rows;
  return TRUE;
}

/**
 * ebb_key_value_cache_truncate:
 * @self: a cache
 * @length: how many tokens of each row stay, at most those that there are
 *
 * Forgets the last tokens of each row, and those of a call that failed. The buffers keep their size.
 */
void
ebb_key_value_cache_truncate (EbbKeyValueCache *self,
                              gint64 length)
{
  GHashTableIter iter;
  gpointer value;

  g_return_if_fail (EBB_IS_KEY_VALUE_CACHE (self));
  g_return_if_fail (length >= 0 && length <= self->length);

  if (length == 0) /* a layer that failed in the first call has no tokens, and the next may have other rows */
    {
      ebb_key_value_cache_reset (self);
      return;
    }
  self->length = length;
  g_hash_table_iter_init (&iter, self->layers);
  while (g_hash_table_iter_next (&iter, NULL, &value))
    ((Layer *) value)->end = length;
}

/**
 * ebb_key_value_cache_reset:
 * @self: a cache
 *
 * Forgets all tokens and frees the buffers. The next call may have another number of rows.
 */
void
ebb_key_value_cache_reset (EbbKeyValueCache *self)
{
  g_return_if_fail (EBB_IS_KEY_VALUE_CACHE (self));

  g_hash_table_remove_all (self->layers);
  self->length = 0;
  self->n_rows = 0;
}
