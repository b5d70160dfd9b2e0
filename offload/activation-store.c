/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "offload/stored-block-private.h"
#include "tensor/thread-private.h"

G_DEFINE_ABSTRACT_TYPE_WITH_PRIVATE (EbbActivationStore, ebb_activation_store, EBB_TYPE_SAVED_TENSOR_HOOKS)

#define PRIVATE(self) ((EbbActivationStorePrivate *) ebb_activation_store_get_instance_private (self))

/* What a handle holds: how the tensor looked, and where its bytes are. */
typedef struct
{
  EbbBlock *block;
  EbbHandle *kept; /* the tensor itself, if the block stays in place */
  EbbView view;
  gsize offset; /* bytes, from the block's start */
  gboolean is_local_shard;
} Ticket;

static __thread EbbAtDoor at_door __attribute__ ((tls_model ("initial-exec")));

EbbActivationStorePrivate *
ebb_activation_store_peek (EbbActivationStore *self)
{
  return PRIVATE (self);
}

const EbbAtDoor *
ebb_activation_store_get_at_door (void)
{
  return &at_door;
}

void
ebb_activation_store_note_divided (void)
{
  at_door.is_divided = TRUE;
}

void
ebb_activation_store_set_divides (EbbActivationStore *self)
{
  PRIVATE (self)->divides = TRUE;
}

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
  const EbbAtDoor outer = at_door;
  g_autoptr (EbbTensor) bytes =
      ebb_tensor_new_view (tensor->storage, (gint64) (block->key.start / element), &n, NULL, 1, block->dtype);

  at_door = (EbbAtDoor){ self, tensor, FALSE };
  block->handle = ebb_activation_store_put_block (self, bytes, error);
  block->is_divided = at_door.is_divided;
  at_door = outer;
  block->group = ebb_activation_store_get_group (self);
  return block->handle != NULL;
}

static void
add_block (EbbActivationStore *self,
           EbbBlock *block)
{
  EbbActivationStorePrivate *priv = PRIVATE (self);

  ebb_blocks_lock ();
  if (!g_hash_table_contains (priv->blocks, block))
    g_hash_table_add (priv->blocks, block);
  if (!block->key.in_place)
    ebb_block_link (block);
  else
    {
      priv->counters.held += block_size (block);
      priv->counters.peak = MAX (priv->counters.peak, priv->counters.held);
    }
  ebb_blocks_unlock ();
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
  key.is_apart = PRIVATE (self)->divides && (tensor->is_local_shard || ebb_thread.saves_result);
  key.call = PRIVATE (self)->divides && !in_place ? ebb_thread.call : 0;
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
                  EbbTensor *tensor,
                  GError **error)
{
  const EbbStorage *storage = tensor->storage;
  const EbbPurpose purpose = ebb_storage_get_purpose (storage);

  return !tensor->is_parameter && !tensor->is_buffer && !storage->placeholder && !storage->pinned && !ebb_is_stopped ()
         && (purpose == EBB_PURPOSE_WORKSPACE || purpose == EBB_PURPOSE_ACTIVATION)
         && tensor->n_elements > 0 && ebb_tensor_get_n_bytes (tensor) >= EBB_READ (PRIVATE (self)->least_size)
         && ebb_activation_store_passes_filter (self, tensor, error);
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
  ebb_block_leave (self->block);
  g_free (self);
}

static EbbHandle *
ebb_activation_store_pack (EbbSavedTensorHooks *hooks,
                           EbbTensor *tensor,
                           GError **error)
{
  EbbActivationStore *self = EBB_ACTIVATION_STORE (hooks);
  EbbActivationStorePrivate *priv = PRIVATE (self);
  GError *local = NULL;
  gboolean store = is_worth_storing (self, tensor, &local);
  EbbBlock *block = NULL;
  Ticket *ticket = NULL;

  if (local != NULL)
    {
      g_propagate_error (error, local);
      return NULL;
    }
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
      ticket->is_local_shard = tensor->is_local_shard;
      ticket->offset = (gsize) tensor->offset * ebb_dtype_get_size (tensor->view.dtype) - block->key.start;
    }
  ebb_blocks_lock ();
  priv->counters.n_packed++;
  if (ticket != NULL)
    g_hash_table_add (priv->tickets, ticket);
  if (!store || block->key.in_place)
    priv->counters.n_kept++;
  ebb_blocks_unlock ();
  return store ? ebb_handle_new_for_data (ticket, ticket_free) : ebb_handle_new (tensor);
}

static EbbTensor *
unpack_ticket (EbbActivationStore *self,
               Ticket *ticket,
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
  tensor = ebb_block_get_view (ticket->block, &ticket->view, ticket->offset, error);
  ebb_thread.stopped = stopped;
  if (tensor != NULL)
    tensor->is_local_shard = ticket->is_local_shard != FALSE;
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

  if (tensor == NULL)
    tensor = unpack_ticket (self, ebb_handle_get_data (handle), error);
  if (tensor == NULL)
    return NULL;
  ebb_blocks_lock ();
  priv->counters.n_unpacked++;
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

static EbbHandle *
ebb_activation_store_real_reserve (EbbActivationStore *self,
                                   EbbDevice *device,
                                   guint64 n_bytes,
                                   GError **error)
{
  g_set_error (error, EBB_ERROR, EBB_ERROR_NOT_SUPPORTED,
               "%s has no room that can be reserved, here of %" G_GUINT64_FORMAT " bytes for %s: an EbbHostStore has",
               G_OBJECT_TYPE_NAME (self), n_bytes, ebb_device_get_name (device));
  return NULL;
}

static EbbHandle *
ebb_activation_store_real_put_at (EbbActivationStore *self,
                                  EbbHandle *room,
                                  guint64 offset,
                                  EbbTensor *block,
                                  GError **error)
{
  g_set_error (error, EBB_ERROR, EBB_ERROR_NOT_SUPPORTED, "%s puts nothing into a reserved room",
               G_OBJECT_TYPE_NAME (self));
  return NULL;
}

/* -- object -------------------------------------------------------------------------------------------------------- */

static void
ebb_activation_store_dispose (GObject *object)
{
  ebb_activation_store_dispose_settings (EBB_ACTIVATION_STORE (object));
  G_OBJECT_CLASS (ebb_activation_store_parent_class)->dispose (object);
}

/* Every block and ticket holds a reference to the store, so none is left. */
static void
ebb_activation_store_finalize (GObject *object)
{
  EbbActivationStorePrivate *priv = PRIVATE (EBB_ACTIVATION_STORE (object));

  g_hash_table_unref (priv->blocks);
  g_hash_table_unref (priv->tickets);
  g_hash_table_unref (priv->places);
  g_queue_clear_full (&priv->transfers, (GDestroyNotify) ebb_transfer_unref);
  g_queue_clear_full (&priv->settled, (GDestroyNotify) ebb_transfer_unref);
  g_clear_error (&priv->failure);
  pthread_mutex_destroy (&priv->flight_lock);
  G_OBJECT_CLASS (ebb_activation_store_parent_class)->finalize (object);
}

static void
ebb_activation_store_class_init (EbbActivationStoreClass *klass)
{
  EbbSavedTensorHooksClass *hooks_class = EBB_SAVED_TENSOR_HOOKS_CLASS (klass);
  GObjectClass *object_class = G_OBJECT_CLASS (klass);

  object_class->dispose = ebb_activation_store_dispose;
  object_class->finalize = ebb_activation_store_finalize;
  hooks_class->pack = ebb_activation_store_pack;
  hooks_class->unpack = ebb_activation_store_unpack;
  klass->moves = ebb_activation_store_moves;
  klass->put = ebb_activation_store_put;
  klass->get = ebb_activation_store_get;
  klass->reserve = ebb_activation_store_real_reserve;
  klass->put_at = ebb_activation_store_real_put_at;
  ebb_activation_store_install_settings (object_class);
}

static void
ebb_activation_store_init (EbbActivationStore *self)
{
  EbbActivationStorePrivate *priv = PRIVATE (self);

  ebb_activation_store_init_settings (self);
  priv->blocks = g_hash_table_new (ebb_block_hash, ebb_block_equal);
  priv->tickets = g_hash_table_new (NULL, NULL);
  priv->places = g_hash_table_new (NULL, NULL);
  pthread_mutex_init (&priv->flight_lock, NULL);
}
