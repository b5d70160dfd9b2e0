/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "offload/activation-store.h"

#include "offload/block-private.h"
#include "tensor/thread-private.h"

#define DEFAULT_LEAST_SIZE (64 * 1024)

typedef struct
{
  guint64 least_size;
  /* under the lock of blocks */
  GHashTable *blocks;  /* of EbbBlock, by itself */
  GHashTable *tickets; /* those that live: a handle from elsewhere is refused */
  guint64 held, peak, put, got;
  guint64 n_packed, n_unpacked, n_kept;
} EbbActivationStorePrivate;

G_DEFINE_ABSTRACT_TYPE_WITH_PRIVATE (EbbActivationStore, ebb_activation_store, EBB_TYPE_SAVED_TENSOR_HOOKS)

#define PRIVATE(self) ((EbbActivationStorePrivate *) ebb_activation_store_get_instance_private (self))

enum
{
  PROP_LEAST_SIZE = 1,
  N_PROPS
};

static GParamSpec *properties[N_PROPS];

/* What a handle holds: how the tensor looked, and where its bytes are. */
typedef struct
{
  EbbBlock *block;
  EbbHandle *kept; /* the tensor itself, if the block stays in place */
  EbbView view;
  gsize offset; /* bytes, from the block's start */
} Ticket;

/* -- blocks -------------------------------------------------------------------------------------------------------- */

static gsize
block_size (const EbbBlock *block)
{
  return block->key.end - block->key.start;
}

/* The block that already holds @tensor, with one more user. A part may lie in a block of the whole. */
static EbbBlock *
find_block (EbbActivationStore *self,
            const EbbBlockKey *key,
            gsize storage_size)
{
  EbbBlockKey whole = *key;
  EbbBlock *block;

  whole.start = 0;
  whole.end = storage_size;
  ebb_blocks_lock ();
  block = g_hash_table_lookup (PRIVATE (self)->blocks, &whole);
  if (block == NULL)
    block = g_hash_table_lookup (PRIVATE (self)->blocks, key);
  if (block != NULL)
    block->n_users++;
  ebb_blocks_unlock ();
  return block;
}

static gboolean
put_block (EbbActivationStore *self,
           EbbBlock *block,
           EbbTensor *tensor,
           GError **error)
{
  const gsize element = ebb_dtype_get_size (block->dtype);
  const gint64 n = (gint64) (block_size (block) / element);
  g_autoptr (EbbTensor) bytes =
      ebb_tensor_new_view (tensor->storage, (gint64) (block->key.start / element), &n, NULL, 1, block->dtype);
  GError *local = NULL;

  block->handle = EBB_ACTIVATION_STORE_GET_CLASS (self)->put (self, bytes, &local);
  if (block->handle == NULL && local == NULL)
    g_set_error (&local, EBB_ERROR, EBB_ERROR_CALLBACK, "put of %s failed without saying why",
                 G_OBJECT_TYPE_NAME (self));
  if (local == NULL)
    return TRUE;
  g_propagate_error (error, local);
  return FALSE;
}

static void
add_block (EbbActivationStore *self,
           EbbBlock *block)
{
  EbbActivationStorePrivate *priv = PRIVATE (self);

  ebb_blocks_lock ();
  if (!g_hash_table_contains (priv->blocks, block))
    g_hash_table_add (priv->blocks, block);
  priv->held += block_size (block);
  priv->peak = MAX (priv->peak, priv->held);
  if (!block->key.in_place)
    priv->put += block_size (block);
  ebb_blocks_unlock ();
}

static void
leave_block (EbbBlock *block)
{
  EbbActivationStorePrivate *priv = PRIVATE (block->store);
  gboolean last;

  ebb_blocks_lock ();
  last = --block->n_users == 0;
  if (last)
    {
      priv->held -= block_size (block);
      if (g_hash_table_lookup (priv->blocks, block) == block)
        g_hash_table_remove (priv->blocks, block);
    }
  ebb_blocks_unlock ();
  if (last)
    ebb_block_free (block);
}

static EbbBlock *
enter_block (EbbActivationStore *self,
             EbbTensor *tensor,
             GError **error)
{
  gboolean in_place = !EBB_ACTIVATION_STORE_GET_CLASS (self)->moves (self, tensor->storage->device);
  EbbBlockKey key;
  EbbBlock *block;

  ebb_block_key_init (&key, tensor, in_place);
  block = find_block (self, &key, tensor->storage->size);
  if (block != NULL)
    return block;
  block = ebb_block_new (self, &key, tensor);
  if (!in_place && !put_block (self, block, tensor, error))
    {
      ebb_block_free (block);
      return NULL;
    }
  add_block (self, block);
  return block;
}

/* -- the door ------------------------------------------------------------------------------------------------------ */

/* What belongs to the model or to the optimizer, what somebody outside looks at, and what is too small to be worth it
 * stays as it is. After the early stop of a recompute nobody will ask for it at all. */
static gboolean
is_worth_storing (EbbActivationStore *self,
                  EbbTensor *tensor)
{
  const EbbStorage *storage = tensor->storage;

  return !tensor->is_parameter && !tensor->is_buffer && !storage->phantom && !storage->pinned && !ebb_is_stopped ()
         && (storage->purpose == EBB_PURPOSE_WORKSPACE || storage->purpose == EBB_PURPOSE_ACTIVATION)
         && tensor->n_elements > 0 && ebb_tensor_get_n_bytes (tensor) >= PRIVATE (self)->least_size;
}

static void
ticket_free (gpointer data)
{
  Ticket *self = data;

  ebb_blocks_lock ();
  g_hash_table_remove (PRIVATE (self->block->store)->tickets, self);
  ebb_blocks_unlock ();
  if (self->kept != NULL)
    ebb_handle_unref (self->kept);
  leave_block (self->block);
  g_free (self);
}

static EbbHandle *
ebb_activation_store_pack (EbbSavedTensorHooks *hooks,
                           EbbTensor *tensor,
                           GError **error)
{
  EbbActivationStore *self = EBB_ACTIVATION_STORE (hooks);
  EbbActivationStorePrivate *priv = PRIVATE (self);
  gboolean store = is_worth_storing (self, tensor);
  EbbBlock *block = NULL;
  Ticket *ticket = NULL;

  if (store)
    {
      block = enter_block (self, tensor, error);
      if (block == NULL)
        return NULL;
      ticket = g_new0 (Ticket, 1);
      ticket->block = block;
      ticket->kept = block->key.in_place ? ebb_handle_new (tensor) : NULL;
      ticket->view = tensor->view;
      ticket->view.data = NULL;
      ticket->offset = (gsize) tensor->offset * ebb_dtype_get_size (tensor->view.dtype) - block->key.start;
    }
  ebb_blocks_lock ();
  priv->n_packed++;
  if (ticket != NULL)
    g_hash_table_add (priv->tickets, ticket);
  if (!store || block->key.in_place)
    priv->n_kept++;
  ebb_blocks_unlock ();
  return store ? ebb_handle_new_for_data (ticket, ticket_free) : ebb_handle_new (tensor);
}

static EbbTensor *
unpack_ticket (EbbActivationStore *self,
               Ticket *ticket,
               gsize *n_got,
               GError **error)
{
  EbbTensor *tensor;
  gboolean known;
  int stopped = ebb_thread.stopped;

  ebb_blocks_lock ();
  known = ticket != NULL && g_hash_table_contains (PRIVATE (self)->tickets, ticket);
  ebb_blocks_unlock ();
  if (!known)
    {
      g_set_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT, "a handle that this %s did not give",
                   G_OBJECT_TYPE_NAME (self));
      return NULL;
    }
  if (ticket->kept != NULL)
    return ebb_handle_get_tensor (ticket->kept);
  /* What comes back has data, even where a recompute needs nothing more. */
  ebb_thread.stopped = 0;
  tensor = ebb_block_get_view (ticket->block, &ticket->view, ticket->offset, n_got, error);
  ebb_thread.stopped = stopped;
  return tensor;
}

static EbbTensor *
ebb_activation_store_unpack (EbbSavedTensorHooks *hooks,
                             EbbHandle *handle,
                             GError **error)
{
  EbbActivationStore *self = EBB_ACTIVATION_STORE (hooks);
  EbbActivationStorePrivate *priv = PRIVATE (self);
  EbbTensor *tensor = ebb_handle_get_tensor (handle);
  gsize n_got = 0;

  if (tensor == NULL)
    tensor = unpack_ticket (self, ebb_handle_get_data (handle), &n_got, error);
  if (tensor == NULL)
    return NULL;
  ebb_blocks_lock ();
  priv->n_unpacked++;
  priv->got += n_got;
  ebb_blocks_unlock ();
  return tensor;
}

static gboolean
ebb_activation_store_moves (EbbActivationStore *self,
                            EbbDevice *device)
{
  return TRUE;
}

static EbbHandle *
ebb_activation_store_put (EbbActivationStore *self,
                          EbbTensor *block,
                          GError **error)
{
  return ebb_handle_new (block);
}

static EbbTensor *
ebb_activation_store_get (EbbActivationStore *self,
                          EbbHandle *handle,
                          GError **error)
{
  return ebb_handle_get_tensor (handle);
}

/* -- object -------------------------------------------------------------------------------------------------------- */

static void
ebb_activation_store_get_property (GObject *object,
                                   guint id,
                                   GValue *value,
                                   GParamSpec *pspec)
{
  if (id == PROP_LEAST_SIZE)
    g_value_set_uint64 (value, ebb_activation_store_get_least_size (EBB_ACTIVATION_STORE (object)));
  else
    G_OBJECT_WARN_INVALID_PROPERTY_ID (object, id, pspec);
}

static void
ebb_activation_store_set_property (GObject *object,
                                   guint id,
                                   const GValue *value,
                                   GParamSpec *pspec)
{
  if (id == PROP_LEAST_SIZE)
    ebb_activation_store_set_least_size (EBB_ACTIVATION_STORE (object), g_value_get_uint64 (value));
  else
    G_OBJECT_WARN_INVALID_PROPERTY_ID (object, id, pspec);
}

/* Every block and ticket holds a reference to the store, so none is left. */
static void
ebb_activation_store_finalize (GObject *object)
{
  EbbActivationStorePrivate *priv = PRIVATE (EBB_ACTIVATION_STORE (object));

  g_hash_table_unref (priv->blocks);
  g_hash_table_unref (priv->tickets);
  G_OBJECT_CLASS (ebb_activation_store_parent_class)->finalize (object);
}

static void
ebb_activation_store_class_init (EbbActivationStoreClass *klass)
{
  EbbSavedTensorHooksClass *hooks_class = EBB_SAVED_TENSOR_HOOKS_CLASS (klass);
  GObjectClass *object_class = G_OBJECT_CLASS (klass);

  object_class->get_property = ebb_activation_store_get_property;
  object_class->set_property = ebb_activation_store_set_property;
  object_class->finalize = ebb_activation_store_finalize;
  hooks_class->pack = ebb_activation_store_pack;
  hooks_class->unpack = ebb_activation_store_unpack;
  klass->moves = ebb_activation_store_moves;
  klass->put = ebb_activation_store_put;
  klass->get = ebb_activation_store_get;

  /**
   * EbbActivationStore:least-size:
   *
   * Tensors of fewer bytes are kept where they are.
   */
  properties[PROP_LEAST_SIZE] = g_param_spec_uint64 (
      "least-size", NULL, NULL, 0, G_MAXUINT64, DEFAULT_LEAST_SIZE,
      G_PARAM_READWRITE | G_PARAM_STATIC_STRINGS | G_PARAM_EXPLICIT_NOTIFY);
  g_object_class_install_properties (object_class, N_PROPS, properties);
}

static void
ebb_activation_store_init (EbbActivationStore *self)
{
  EbbActivationStorePrivate *priv = PRIVATE (self);

  priv->least_size = DEFAULT_LEAST_SIZE;
  priv->blocks = g_hash_table_new (ebb_block_hash, ebb_block_equal);
  priv->tickets = g_hash_table_new (NULL, NULL);
}

/**
 * ebb_activation_store_get_least_size:
 * @self: a store
 *
 * Returns: how many bytes a tensor must have to be stored
 */
guint64
ebb_activation_store_get_least_size (EbbActivationStore *self)
{
  g_return_val_if_fail (EBB_IS_ACTIVATION_STORE (self), 0);

  return PRIVATE (self)->least_size;
}

/**
 * ebb_activation_store_set_least_size:
 * @self: a store
 * @n_bytes: a size in bytes, 64 KiB at first
 *
 * Has tensors of fewer bytes kept where they are. They count as kept, and not in the bytes held.
 */
void
ebb_activation_store_set_least_size (EbbActivationStore *self,
                                     guint64 n_bytes)
{
  g_return_if_fail (EBB_IS_ACTIVATION_STORE (self));

  if (PRIVATE (self)->least_size == n_bytes)
    return;
  PRIVATE (self)->least_size = n_bytes;
  g_object_notify_by_pspec (G_OBJECT (self), properties[PROP_LEAST_SIZE]);
}

/* -- statistics ---------------------------------------------------------------------------------------------------- */

static guint64
read_counter (EbbActivationStore *self,
              gsize offset)
{
  guint64 value;

  g_return_val_if_fail (EBB_IS_ACTIVATION_STORE (self), 0);

  ebb_blocks_lock ();
  value = *(guint64 *) ((char *) PRIVATE (self) + offset);
  ebb_blocks_unlock ();
  return value;
}

/**
 * ebb_activation_store_get_bytes_held:
 * @self: a store
 *
 * The bytes that the store answers for now, memory that several tensors share counted once. Parameters, buffers and
 * small tensors are not among them.
 *
 * Returns: bytes
 */
guint64
ebb_activation_store_get_bytes_held (EbbActivationStore *self)
{
  return read_counter (self, G_STRUCT_OFFSET (EbbActivationStorePrivate, held));
}

/**
 * ebb_activation_store_get_bytes_peak:
 * @self: a store
 *
 * Returns: the most bytes held at one time
 */
guint64
ebb_activation_store_get_bytes_peak (EbbActivationStore *self)
{
  return read_counter (self, G_STRUCT_OFFSET (EbbActivationStorePrivate, peak));
}

/**
 * ebb_activation_store_get_bytes_put:
 * @self: a store
 *
 * Returns: how many bytes were moved into the store; none where tensors stay where they are
 */
guint64
ebb_activation_store_get_bytes_put (EbbActivationStore *self)
{
  return read_counter (self, G_STRUCT_OFFSET (EbbActivationStorePrivate, put));
}

/**
 * ebb_activation_store_get_bytes_got:
 * @self: a store
 *
 * Returns: how many bytes were moved back out of the store
 */
guint64
ebb_activation_store_get_bytes_got (EbbActivationStore *self)
{
  return read_counter (self, G_STRUCT_OFFSET (EbbActivationStorePrivate, got));
}

/**
 * ebb_activation_store_get_n_packed:
 * @self: a store
 *
 * Returns: how many tensors came in, those that were kept included
 */
guint64
ebb_activation_store_get_n_packed (EbbActivationStore *self)
{
  return read_counter (self, G_STRUCT_OFFSET (EbbActivationStorePrivate, n_packed));
}

/**
 * ebb_activation_store_get_n_unpacked:
 * @self: a store
 *
 * Returns: how many tensors were given back
 */
guint64
ebb_activation_store_get_n_unpacked (EbbActivationStore *self)
{
  return read_counter (self, G_STRUCT_OFFSET (EbbActivationStorePrivate, n_unpacked));
}

/**
 * ebb_activation_store_get_n_kept:
 * @self: a store
 *
 * Returns: how many of the tensors that came in were left where they are
 */
guint64
ebb_activation_store_get_n_kept (EbbActivationStore *self)
{
  return read_counter (self, G_STRUCT_OFFSET (EbbActivationStorePrivate, n_kept));
}

/**
 * ebb_activation_store_reset_stats:
 * @self: a store
 *
 * Sets the counters to 0, and the peak to the bytes held now.
 */
void
ebb_activation_store_reset_stats (EbbActivationStore *self)
{
  EbbActivationStorePrivate *priv;

  g_return_if_fail (EBB_IS_ACTIVATION_STORE (self));

  priv = PRIVATE (self);
  ebb_blocks_lock ();
  priv->peak = priv->held;
  priv->put = priv->got = 0;
  priv->n_packed = priv->n_unpacked = priv->n_kept = 0;
  ebb_blocks_unlock ();
}
