/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "offload/shared-block-private.h"

#include "tensor/backend/backend-private.h"
#include "tensor/error-private.h"
#include "tensor/tensor-private.h"
#include "tensor/thread-private.h"

/* Puts blocks of memory into a store and gets them back, for the store's own pack or for a store in front of it. Here
 * they are counted, and go to the fallback. */

static void stored_block_clear (gpointer data);

/* A block that this file makes itself: in place, in the fallback, or of a store that returns a handle of its own. */
typedef struct
{
  EbbStoredBlock base;
  EbbHandle *inner;
} Wrapper;

/* -- failures ------------------------------------------------------------------------------------------------------ */

/* A device returns an error once, so it must not be lost: the next caller gets it where this one can't take it. */
static void
return_failure (EbbActivationStore *self,
                GError *failure,
                GError **error)
{
  if (error == NULL && failure != NULL && failure->domain == EBB_ERROR
      && (failure->code == EBB_ERROR_DEVICE || failure->code == EBB_ERROR_RACE))
    ebb_activation_store_note_failure (self, failure);
  else if (failure != NULL)
    g_propagate_error (error, failure);
}

static gpointer
require (EbbActivationStore *self,
         const char *what,
         gpointer result,
         GError *local,
         GError **error)
{
  if (result == NULL && local == NULL)
    ebb_error_set (&local, EBB_ERROR_CALLBACK, "%s of %s failed without saying why", what, G_OBJECT_TYPE_NAME (self));
  return_failure (self, local, error);
  return result;
}

/* -- putting ------------------------------------------------------------------------------------------------------- */

static EbbTensor *
wrapper_get (EbbStoredBlock *self,
             GError **error)
{
  return EBB_ACTIVATION_STORE_GET_CLASS (self->store)->get (self->store, ((Wrapper *) self)->inner, error);
}

static void
wrapper_prefetch (EbbStoredBlock *self)
{
  EBB_ACTIVATION_STORE_GET_CLASS (self->store)->prefetch (self->store, ((Wrapper *) self)->inner);
}

static EbbTensor *
get_spilled (EbbStoredBlock *self,
             GError **error)
{
  return ebb_stored_block_get (((Wrapper *) self)->inner, error);
}

static void
prefetch_spilled (EbbStoredBlock *self)
{
  ebb_stored_block_prefetch (((Wrapper *) self)->inner);
}

static EbbTensor *
get_in_place (EbbStoredBlock *self,
              GError **error)
{
  return ebb_handle_get_tensor (((Wrapper *) self)->inner);
}

static void
wrapper_clear (EbbStoredBlock *self)
{
  g_clear_pointer (&((Wrapper *) self)->inner, ebb_handle_unref);
}

static const EbbStoredBlockFuncs foreign = { sizeof (Wrapper), wrapper_get, wrapper_prefetch, wrapper_clear };
static const EbbStoredBlockFuncs spilled = { sizeof (Wrapper), get_spilled, prefetch_spilled, wrapper_clear };
static const EbbStoredBlockFuncs in_place_funcs = { sizeof (Wrapper), get_in_place, NULL, wrapper_clear };
static const EbbStoredBlockFuncs foreign_room = { sizeof (Wrapper), NULL, NULL, wrapper_clear };

static EbbStoredBlock *
wrap (EbbActivationStore *self,
      const EbbStoredBlockFuncs *funcs,
      EbbHandle *inner)
{
  Wrapper *wrapper = ebb_stored_block_new (funcs, self);

  wrapper->inner = inner;
  return &wrapper->base;
}

static gboolean
is_stored_block (EbbHandle *handle)
{
  return handle->destroy == stored_block_clear;
}

/* The block that put of @self has just made; one around @handle where that is something else. */
static EbbStoredBlock *
adopt (EbbActivationStore *self,
       const EbbStoredBlockFuncs *funcs,
       EbbHandle *handle)
{
  EbbStoredBlock *block = (EbbStoredBlock *) handle;

  return is_stored_block (handle) && block->store == self && !block->is_counted ? block : wrap (self, funcs, handle);
}

/* @n_moved: bytes that were put into the store. */
static EbbHandle *
count (EbbStoredBlock *self,
       guint64 birth,
       gsize n_bytes,
       gsize n_moved)
{
  EbbStoreCounters *counters = &ebb_activation_store_peek (self->store)->counters;

  self->birth = birth;
  self->n_bytes = n_bytes;
  self->is_counted = TRUE;
  EBB_AUTO_LOCK (&ebb_activation_store_peek (self->store)->lock);
  counters->put += n_moved;
  counters->held += n_bytes;
  counters->peak = MAX (counters->peak, counters->held);
  return &self->handle;
}

static gboolean
falls_back (EbbActivationStore *self,
            const GError *error)
{
  return g_error_matches (error, EBB_ERROR, EBB_ERROR_IO)
         || (g_error_matches (error, EBB_ERROR, EBB_ERROR_NO_MEMORY)
             && !EBB_READ (ebb_activation_store_peek (self)->never_spills));
}

EbbHandle *
ebb_activation_store_put_instead (EbbActivationStore *self,
                                  EbbTensor *block,
                                  GError *why,
                                  GError **error)
{
  EbbActivationStorePrivate *priv = ebb_activation_store_peek (self);
  g_autoptr (EbbActivationStore) fallback =
      falls_back (self, why) ? ebb_activation_store_ref_fallback (self) : NULL;
  EbbHandle *handle;

  if (fallback == NULL)
    {
      g_propagate_error (error, g_error_copy (why));
      return NULL;
    }
  handle = ebb_activation_store_put_block (fallback, block, error);
  if (handle == NULL)
    {
      g_prefix_error (error, "%s; and the fallback: ", why->message);
      return NULL;
    }
  EBB_AUTO_LOCK (&ebb_activation_store_peek (self)->lock);
  priv->counters.spilled += ebb_tensor_get_n_bytes (block);
  return handle;
}

/* Kernels that a store launches to move a block don't part the blocks of one module. */
static EbbHandle *
put (EbbActivationStore *self,
     EbbTensor *block,
     GError **error)
{
  const guint64 n_launches = ebb_thread.n_launches;
  GError *local = NULL;
  EbbHandle *handle = EBB_ACTIVATION_STORE_GET_CLASS (self)->put (self, block, &local);

  ebb_thread.n_launches = n_launches;
  if (local != NULL)
    g_clear_pointer (&handle, ebb_handle_unref);
  return require (self, "put", handle, local, error);
}

/**
 * ebb_activation_store_put_block:
 * @self: a store
 * @block: a contiguous tensor of one dimension
 * @error: return location for an error
 *
 * Puts a block of memory into the store, or into its fallback, as the store's own pack does; for stores that stand in
 * front of another one. The block must stay as it is. A block on a device whose tensors the store leaves in place is
 * kept as it is.
 *
 * Returns: (transfer full) (nullable): the handle for ebb_activation_store_get_block(), which holds the bytes
 */
EbbHandle *
ebb_activation_store_put_block (EbbActivationStore *self,
                                EbbTensor *block,
                                GError **error)
{
  g_autoptr (GError) why = NULL;
  GError *local = NULL;
  guint64 birth;
  gsize n_bytes;
  EbbHandle *handle;
  EbbStoredBlock *stored;

  EBB_RETURN_UNLESS_BEGUN (NULL, error, self, block);
  if (block->view.n_dims != 1 || !ebb_view_is_contiguous (&block->view))
    {
      g_autofree char *shape = ebb_tensor_shape_to_string (block);

      return ebb_fail_null (error, EBB_ERROR_SHAPE,
                            "put_block of %s: a block of shape %s: it must be contiguous and of one dimension",
                            G_OBJECT_TYPE_NAME (self), shape);
    }
  n_bytes = ebb_tensor_get_n_bytes (block);
  birth = block->storage->birth;
  if (!EBB_ACTIVATION_STORE_GET_CLASS (self)->moves (self, block->storage->device))
    return count (wrap (self, &in_place_funcs, ebb_handle_new (block)), birth, n_bytes, 0);
  if (!ebb_activation_store_begin_put (self, error))
    return NULL;
  handle = put (self, block, &why);
  if (handle != NULL)
    {
      stored = adopt (self, &foreign, handle);
      return count (stored, birth, stored->n_bytes > 0 ? stored->n_bytes : n_bytes, n_bytes);
    }
  if (ebb_activation_store_peek (self)->shards)
    local = g_steal_pointer (&why);
  else
    handle = ebb_activation_store_put_instead (self, block, why, &local);
  if (handle != NULL)
    return count (wrap (self, &spilled, handle), birth, n_bytes, 0);
  return_failure (self, local, error);
  return NULL;
}

/* -- getting ------------------------------------------------------------------------------------------------------- */

static EbbStoredBlock *
check_handle (EbbActivationStore *self,
              EbbHandle *handle,
              gboolean is_room,
              GError **error)
{
  EbbStoredBlock *block = is_stored_block (handle) ? (EbbStoredBlock *) handle : NULL;

  if (block != NULL && block->store == self && (block->funcs->get == NULL) == is_room)
    return block;
  return ebb_fail_null (error, EBB_ERROR_INVALID_ARGUMENT, "the handle was not returned by %s of this %s",
                        is_room ? "reserve" : "put_block", G_OBJECT_TYPE_NAME (self));
}

static EbbTensor *
get (EbbStoredBlock *self,
     GError **error)
{
  const guint64 n_launches = ebb_thread.n_launches;
  GError *local = NULL;
  EbbTensor *tensor = self->funcs->get (self, &local);

  ebb_thread.n_launches = n_launches;
  if (local != NULL)
    g_clear_pointer (&tensor, ebb_tensor_unref);
  return require (self->store, "get", tensor, local, error);
}

/**
 * ebb_activation_store_get_block:
 * @self: a store
 * @handle: a handle that ebb_activation_store_put_block() of @self returned
 * @error: return location for an error
 *
 * Brings a block back, with the bytes that it had; it may be the same tensor, so it must not be changed.
 *
 * Returns: (transfer full) (nullable): a tensor of the same size and element type on the same device
 */
EbbTensor *
ebb_activation_store_get_block (EbbActivationStore *self,
                                EbbHandle *handle,
                                GError **error)
{
  EbbStoreCounters *counters;
  EbbStoredBlock *block;
  EbbTensor *tensor;

  EBB_RETURN_UNLESS_BEGUN (NULL, error, self, handle);
  counters = &ebb_activation_store_peek (self)->counters;
  block = check_handle (self, handle, FALSE, error);
  if (block == NULL || (error != NULL && !ebb_activation_store_return_failure (self, error)))
    return NULL;
  ebb_activation_store_sweep (self);
  if (block->funcs == &spilled) /* the fallback counts it */
    return get_spilled (block, error);
  tensor = get (block, error);
  if (tensor != NULL && tensor->storage->birth != block->birth)
    {
      ebb_activation_store_lock (self);
      counters->got += ebb_tensor_get_n_bytes (tensor);
      ebb_activation_store_unlock (self);
    }
  return tensor;
}

EbbTensor *
ebb_stored_block_get (EbbHandle *handle,
                      GError **error)
{
  return is_stored_block (handle)
             ? ebb_activation_store_get_block (((EbbStoredBlock *) handle)->store, handle, error)
             : ebb_handle_get_tensor (handle);
}

EbbTensor *
ebb_activation_store_real_get (EbbActivationStore *self,
                               EbbHandle *handle,
                               GError **error)
{
  EbbStoredBlock *block = (EbbStoredBlock *) handle;

  if (!is_stored_block (handle) || block->store != self)
    return ebb_stored_block_get (handle, error);
  return check_handle (self, handle, FALSE, error) != NULL ? block->funcs->get (block, error) : NULL;
}

void
ebb_activation_store_real_prefetch (EbbActivationStore *self,
                                    EbbHandle *handle)
{
  EbbStoredBlock *block = (EbbStoredBlock *) handle;

  if (!is_stored_block (handle) || block->store != self)
    ebb_stored_block_prefetch (handle);
  else if (block->funcs->prefetch != NULL)
    block->funcs->prefetch (block);
}

/**
 * ebb_activation_store_prefetch_block:
 * @self: a store
 * @handle: a handle that ebb_activation_store_put_block() of @self returned
 *
 * Says that the block will soon be asked for, so that the store may begin to bring it.
 */
void
ebb_activation_store_prefetch_block (EbbActivationStore *self,
                                     EbbHandle *handle)
{
  const guint64 n_launches = ebb_thread.n_launches;
  EbbStoredBlock *block;

  g_return_if_fail (EBB_IS_ACTIVATION_STORE (self) && handle != NULL);

  block = check_handle (self, handle, FALSE, NULL);
  if (block != NULL && block->funcs->prefetch != NULL)
    block->funcs->prefetch (block);
  ebb_thread.n_launches = n_launches;
}

void
ebb_stored_block_prefetch (EbbHandle *handle)
{
  if (is_stored_block (handle))
    ebb_activation_store_prefetch_block (((EbbStoredBlock *) handle)->store, handle);
}

/* -- rooms --------------------------------------------------------------------------------------------------------- */

/**
 * ebb_activation_store_reserve:
 * @self: a store
 * @device: where the tensors are
 * @n_bytes: how many
 * @error: return location for an error
 *
 * Takes room for tensors of a device, for a store that lays them out itself by ebb_activation_store_put_at(). There is
 * no fallback for it.
 *
 * Returns: (transfer full) (nullable): the room, which is freed with the handle and the last block in it; %NULL with
 *   %EBB_ERROR_NOT_SUPPORTED if this kind of store has no such rooms
 */
EbbHandle *
ebb_activation_store_reserve (EbbActivationStore *self,
                              EbbDevice *device,
                              guint64 n_bytes,
                              GError **error)
{
  GError *local = NULL;
  EbbHandle *room;

  EBB_RETURN_UNLESS_BEGUN (NULL, error, self, device);
  room = EBB_ACTIVATION_STORE_GET_CLASS (self)->reserve (self, device, n_bytes, &local);
  if (local != NULL)
    g_clear_pointer (&room, ebb_handle_unref);
  room = require (self, "reserve", room, local, error);
  return room != NULL ? count (adopt (self, &foreign_room, room), 0, n_bytes, 0) : NULL;
}

/**
 * ebb_activation_store_put_at:
 * @self: a store
 * @room: a handle that ebb_activation_store_reserve() of @self returned
 * @offset: bytes from its beginning
 * @block: a contiguous tensor of one dimension, on the device that the room was reserved for
 * @error: return location for an error
 *
 * Puts a block of memory into a reserved room, over the bytes that are there; see ebb_activation_store_put_block().
 *
 * Returns: (transfer full) (nullable): the handle for ebb_activation_store_get_block()
 */
EbbHandle *
ebb_activation_store_put_at (EbbActivationStore *self,
                             EbbHandle *room,
                             guint64 offset,
                             EbbTensor *block,
                             GError **error)
{
  const guint64 n_launches = ebb_thread.n_launches;
  EbbStoredBlock *reserved;
  GError *local = NULL;
  EbbHandle *handle;
  gsize n_bytes;

  EBB_RETURN_UNLESS_BEGUN (NULL, error, self, room, block);
  reserved = check_handle (self, room, TRUE, error);
  n_bytes = ebb_tensor_get_n_bytes (block);
  if (reserved == NULL || !ebb_activation_store_begin_put (self, error))
    return NULL;
  if (n_bytes > reserved->n_bytes || offset > reserved->n_bytes - n_bytes)
    return ebb_fail_null (error, EBB_ERROR_INVALID_ARGUMENT,
                          "put_at of %s: %" G_GSIZE_FORMAT " bytes at %" G_GUINT64_FORMAT
                          " exceed a room of %" G_GSIZE_FORMAT,
                          G_OBJECT_TYPE_NAME (self), n_bytes, offset, reserved->n_bytes);
  if (reserved->funcs == &foreign_room)
    room = ((Wrapper *) reserved)->inner;
  handle = EBB_ACTIVATION_STORE_GET_CLASS (self)->put_at (self, room, offset, block, &local);
  ebb_thread.n_launches = n_launches;
  if (local != NULL)
    g_clear_pointer (&handle, ebb_handle_unref);
  handle = require (self, "put_at", handle, local, error);
  return handle != NULL ? count (adopt (self, &foreign, handle), block->storage->birth, 0, n_bytes) : NULL;
}

/**
 * ebb_activation_store_synchronize:
 * @self: a store
 * @error: return location for an error
 *
 * Waits until all that the store and its fallback have begun is done; the counters are then exact.
 *
 * Returns: %FALSE with the error of the work that failed
 */
gboolean
ebb_activation_store_synchronize (EbbActivationStore *self,
                                  GError **error)
{
  g_autoptr (EbbActivationStore) fallback = NULL;
  EbbActivationStoreClass *klass;
  GError *local = NULL;
  gboolean ok;

  EBB_RETURN_UNLESS_BEGUN (FALSE, error, self);
  klass = EBB_ACTIVATION_STORE_GET_CLASS (self);
  ok = klass->synchronize == NULL || klass->synchronize (self, error != NULL ? &local : NULL);
  if (!ok && error != NULL && local == NULL)
    ebb_error_set (&local, EBB_ERROR_CALLBACK, "synchronize of %s failed without saying why",
                   G_OBJECT_TYPE_NAME (self));
  ok = ebb_activation_store_wait (self, error != NULL && local == NULL ? &local : NULL) && ok;
  fallback = ebb_activation_store_ref_fallback (self);
  if (fallback != NULL)
    ok = ebb_activation_store_synchronize (fallback, error != NULL && local == NULL ? &local : NULL) && ok;
  if (local != NULL)
    g_propagate_error (error, local);
  return ok;
}

/* -- blocks -------------------------------------------------------------------------------------------------------- */

gpointer
ebb_stored_block_new (const EbbStoredBlockFuncs *funcs,
                      EbbActivationStore *store)
{
  EbbStoredBlock *self = ebb_handle_alloc (funcs->size, stored_block_clear);

  self->funcs = funcs;
  self->store = g_object_ref (store);
  return self;
}

static void
stored_block_clear (gpointer data)
{
  EbbStoredBlock *self = data;

  if (self->is_counted && self->n_bytes > 0)
    ebb_activation_store_count_held (self->store, -(gint64) self->n_bytes);
  if (self->funcs->clear != NULL)
    self->funcs->clear (self);
  g_object_unref (self->store);
}

/* -- shared blocks ------------------------------------------------------------------------------------------------- */

/* The memory that a store answers for, the memory that it brought back, and the blocks that backward will ask for next.
 */

/* A view that covers less than this part of its storage is stored alone. */
#define SMALL_PART 8

/* Ties a block to the memory that it was brought back into, without keeping that memory. */
struct _EbbRestored
{
  int ref_count; /* of the block, and of the storage */
  pthread_mutex_t lock;
  EbbStorage *storage; /* under the lock; NULL: it is gone */
  guint version;       /* of the storage, when it came */
  EbbDevice *device;
  EbbMemoryAccount *account; /* of the storage, which holds it */
  void *data;
  gsize size;
  gsize offset; /* bytes of the storage before the block */
};

static __thread EbbPacking packing __attribute__ ((tls_model ("initial-exec")));

/* -- which memory -------------------------------------------------------------------------------------------------- */

/* Which part of its storage stands for @tensor. */
static void
key_init (EbbSharedBlockKey *key,
          EbbTensor *tensor,
          gboolean in_place)
{
  const gsize element = ebb_dtype_get_size (tensor->view.dtype), size = tensor->storage->size;
  gint64 last = 0;

  *key = (EbbSharedBlockKey){ .birth = tensor->storage->birth, .end = size, .in_place = in_place };
  if (in_place)
    return;
  key->version = tensor->storage->version;
  for (int i = 0; i < tensor->view.n_dims; i++)
    last += (tensor->view.shape[i] - 1) * tensor->view.strides[i];
  if ((gsize) (last + 1) * element < size / SMALL_PART || size % element != 0)
    {
      key->start = (gsize) tensor->offset * element;
      key->end = key->start + (gsize) (last + 1) * element;
    }
}

guint
ebb_shared_block_hash (gconstpointer key)
{
  const EbbSharedBlockKey *self = key;

  return (guint) ((self->birth * 31 + self->start * 17 + self->end) * 0x9e3779b97f4a7c15 >> 32);
}

gboolean
ebb_shared_block_equal (gconstpointer a,
                        gconstpointer b)
{
  const EbbSharedBlockKey *one = a, *other = b;

  return one->birth == other->birth && one->start == other->start && one->end == other->end
         && one->version == other->version && one->in_place == other->in_place && one->is_apart == other->is_apart
         && one->call == other->call;
}

/* -- in and out ---------------------------------------------------------------------------------------------------- */

static gsize
get_size (const EbbSharedBlock *self)
{
  return self->key.end - self->key.start;
}

static void
restored_unref (EbbRestored *self)
{
  if (__atomic_sub_fetch (&self->ref_count, 1, __ATOMIC_ACQ_REL) != 0)
    return;
  pthread_mutex_destroy (&self->lock);
  g_free (self);
}

static void
shared_block_free (EbbSharedBlock *self)
{
  g_clear_pointer (&self->restored, restored_unref);
  g_clear_pointer (&self->held, ebb_storage_unref);
  g_clear_pointer (&self->stored, ebb_handle_unref);
  g_object_unref (self->store);
  g_free (self);
}

/* The block that already holds @tensor, with one more user. A part may lie in a block of the full storage. */
static EbbSharedBlock *
find (EbbActivationStore *store,
      const EbbSharedBlockKey *key,
      gsize storage_size)
{
  GHashTable *blocks = ebb_activation_store_peek (store)->blocks;
  EbbSharedBlockKey full = *key;
  EbbSharedBlock *self;

  full.start = 0;
  full.end = storage_size;
  EBB_AUTO_LOCK (&ebb_activation_store_peek (store)->lock);
  self = g_hash_table_lookup (blocks, &full);
  if (self == NULL)
    self = g_hash_table_lookup (blocks, key);
  if (self != NULL)
    self->n_users++;
  return self;
}

static void
add (EbbSharedBlock *self)
{
  EbbActivationStorePrivate *priv = ebb_activation_store_peek (self->store);

  EBB_AUTO_LOCK (&ebb_activation_store_peek (self->store)->lock);
  if (!g_hash_table_contains (priv->blocks, self))
    g_hash_table_add (priv->blocks, self);
  if (!self->key.in_place)
    g_queue_push_tail_link (&priv->moved, &self->link);
  else
    {
      priv->counters.held += get_size (self);
      priv->counters.peak = MAX (priv->counters.peak, priv->counters.held);
    }
}

const EbbPacking *
ebb_activation_store_get_packing (void)
{
  return &packing;
}

void
ebb_activation_store_note_sharded (void)
{
  packing.is_sharded = TRUE;
}

static gboolean
put_memory (EbbSharedBlock *self,
            EbbTensor *tensor,
            GError **error)
{
  const gsize element = ebb_dtype_get_size (self->dtype);
  const gint64 n = (gint64) (get_size (self) / element);
  const EbbPacking outer = packing;
  g_autoptr (EbbTensor) bytes =
      ebb_tensor_new_view (tensor->storage, (gint64) (self->key.start / element), &n, NULL, 1, self->dtype);

  packing = (EbbPacking){ self->store, tensor, FALSE };
  self->stored = ebb_activation_store_put_block (self->store, bytes, error);
  self->is_sharded = packing.is_sharded;
  packing = outer;
  self->group = ebb_activation_store_get_group (self->store);
  return self->stored != NULL;
}

EbbSharedBlock *
ebb_shared_block_enter (EbbActivationStore *store,
                        EbbTensor *tensor,
                        GError **error)
{
  const gboolean in_place = !EBB_ACTIVATION_STORE_GET_CLASS (store)->moves (store, tensor->storage->device);
  const gboolean shards = ebb_activation_store_peek (store)->shards;
  EbbSharedBlockKey key;
  EbbSharedBlock *self;

  key_init (&key, tensor, in_place);
  key.is_apart = shards && (tensor->is_local_shard || ebb_save_has_hint (EBB_SAVE_HINT_RESULT));
  key.call = shards && !in_place ? ebb_modes.call : 0;
  self = find (store, &key, tensor->storage->size);
  if (self != NULL)
    return self;
  self = g_new0 (EbbSharedBlock, 1);
  *self = (EbbSharedBlock){ .key = key,
                            .store = g_object_ref (store),
                            .device = tensor->storage->device,
                            .dtype = tensor->view.dtype,
                            .link.data = self,
                            .n_users = 1 };
  if (in_place || put_memory (self, tensor, error))
    {
      add (self);
      return self;
    }
  shared_block_free (self);
  return NULL;
}

void
ebb_shared_block_leave (EbbSharedBlock *self)
{
  EbbActivationStorePrivate *priv = ebb_activation_store_peek (self->store);
  gboolean last;

  ebb_activation_store_lock (self->store);
  last = --self->n_users == 0;
  if (last)
    {
      for (guint i = 0; i < EBB_N_LATEST; i++)
        if (priv->latest[i] == self)
          priv->latest[i] = NULL;
      if (g_hash_table_lookup (priv->blocks, self) == self)
        g_hash_table_remove (priv->blocks, self);
      if (!self->key.in_place)
        g_queue_unlink (&priv->moved, &self->link);
      else
        priv->counters.held -= get_size (self);
    }
  ebb_activation_store_unlock (self->store);
  if (last)
    shared_block_free (self);
}

/* -- bringing back ------------------------------------------------------------------------------------------------- */

/* In place of the storage's own way to free its memory. */
static void
restored_free (gpointer data)
{
  EbbRestored *self = data;

  pthread_mutex_lock (&self->lock);
  __atomic_store_n (&self->storage, NULL, __ATOMIC_RELAXED);
  pthread_mutex_unlock (&self->lock);
  ebb_device_free_uncounted (self->device, self->data, self->size, self->account);
  restored_unref (self);
}

/* Memory that only @tensor holds is tied to the block. It counts as pinned, so that nothing is computed into it in
 * place: another view of it may still be wanted. */
static void
tie (EbbSharedBlock *self,
     EbbTensor *tensor)
{
  EbbStorage *storage = tensor->storage;
  EbbRestored *restored, *old;

  if (storage->destroy != NULL || storage->data == NULL || !ebb_tensor_is_unshared (tensor))
    return;
  restored = g_new0 (EbbRestored, 1);
  *restored = (EbbRestored){ .ref_count = 2,
                             .storage = storage,
                             .version = storage->version,
                             .device = storage->device,
                             .account = storage->account,
                             .data = storage->data,
                             .size = storage->size,
                             .offset = (gsize) tensor->offset * ebb_dtype_get_size (tensor->view.dtype) };
  pthread_mutex_init (&restored->lock, NULL);
  storage->destroy = restored_free;
  storage->destroy_data = restored;
  storage->pinned = TRUE;
  ebb_activation_store_lock (self->store);
  old = self->restored;
  self->restored = restored;
  ebb_activation_store_unlock (self->store);
  g_clear_pointer (&old, restored_unref);
}

/* Whether a tensor that was brought back still lives differs from rank to rank, so the store holds it until it has
 * brought two others: a checkpoint may ask for the same tensor twice, first to recompute. */
static EbbStorage *
find_held (EbbSharedBlock *self,
           gsize *offset)
{
  EbbStorage *storage = NULL;

  EBB_AUTO_LOCK (&ebb_activation_store_peek (self->store)->lock);
  if (self->held != NULL && self->held->version == self->held_version)
    {
      storage = ebb_storage_ref (self->held);
      *offset = self->held_offset;
    }
  return storage;
}

/* Takes @self out of the blocks that are held; returns its storage, to be released outside of the lock. */
static EbbStorage *
release (EbbSharedBlock *self)
{
  EbbActivationStorePrivate *priv = ebb_activation_store_peek (self->store);

  for (guint i = 0; i < EBB_N_LATEST; i++)
    if (priv->latest[i] == self)
      priv->latest[i] = NULL;
  return g_steal_pointer (&self->held);
}

/* Before memory is taken for @self: it and the oldest one are held no longer. Blocks that are freed leave their slots
 * empty, so that which one is the oldest doesn't depend on them. */
static void
make_space (EbbSharedBlock *self)
{
  EbbActivationStorePrivate *priv = ebb_activation_store_peek (self->store);
  EbbStorage *own, *old = NULL;
  EbbSharedBlock *oldest;

  ebb_activation_store_lock (self->store);
  own = release (self);
  oldest = priv->latest[priv->n_brought % EBB_N_LATEST];
  if (oldest != NULL)
    old = release (oldest);
  ebb_activation_store_unlock (self->store);
  g_clear_pointer (&own, ebb_storage_unref);
  g_clear_pointer (&old, ebb_storage_unref);
}

static void
hold (EbbSharedBlock *self,
      EbbStorage *storage,
      gsize offset)
{
  EbbActivationStorePrivate *priv = ebb_activation_store_peek (self->store);

  make_space (self); /* another thread may have taken it */
  EBB_AUTO_LOCK (&ebb_activation_store_peek (self->store)->lock);
  if (priv->latest[priv->n_brought % EBB_N_LATEST] == NULL)
    {
      priv->latest[priv->n_brought % EBB_N_LATEST] = self;
      self->held = ebb_storage_ref (storage);
      self->held_offset = offset;
      self->held_version = storage->version;
    }
  priv->n_brought++;
}

static EbbStorage *
find_restored (EbbSharedBlock *self,
               gsize *offset)
{
  EbbRestored *changed = NULL;
  EbbStorage *storage = NULL;

  ebb_activation_store_lock (self->store);
  if (self->restored != NULL)
    {
      pthread_mutex_lock (&self->restored->lock);
      storage = ebb_storage_try_ref (self->restored->storage);
      pthread_mutex_unlock (&self->restored->lock);
    }
  if (storage != NULL)
    {
      *offset = self->restored->offset;
      if (storage->version != self->restored->version) /* by a caller that got it: no longer what was stored */
        changed = g_steal_pointer (&self->restored);
    }
  ebb_activation_store_unlock (self->store);
  if (changed != NULL)
    {
      restored_unref (changed);
      g_clear_pointer (&storage, ebb_storage_unref);
    }
  return storage;
}

static EbbTensor *
bring (EbbSharedBlock *self,
       GError **error)
{
  const gsize size = get_size (self);
  EbbTensor *tensor = ebb_activation_store_get_block (self->store, self->stored, error);

  if (tensor == NULL
      || (tensor->storage->device == self->device && tensor->view.dtype == self->dtype
          && ebb_tensor_get_n_bytes (tensor) == size && ebb_view_is_contiguous (&tensor->view)))
    return tensor;
  ebb_error_set (error, EBB_ERROR_CALLBACK,
                 "get of %s gave %" G_GUINT64_FORMAT " bytes of %s on %s: it must give the %" G_GSIZE_FORMAT
                 " bytes of %s on %s that were put, contiguous",
                 G_OBJECT_TYPE_NAME (self->store), (guint64) ebb_tensor_get_n_bytes (tensor),
                 ebb_dtype_get_name (tensor->view.dtype), ebb_device_get_name (tensor->storage->device), size,
                 ebb_dtype_get_name (self->dtype), ebb_device_get_name (self->device));
  ebb_tensor_unref (tensor);
  return NULL;
}

static gboolean
is_away (EbbSharedBlock *self)
{
  const gboolean is_here =
      self->is_sharded ? self->held != NULL
                       : self->restored != NULL && __atomic_load_n (&self->restored->storage, __ATOMIC_RELAXED) != NULL;

  return !is_here && !self->is_coming;
}

static void
expect (EbbSharedBlock *self,
        GPtrArray *expected)
{
  if (!is_away (self))
    return;
  self->n_users++;
  self->is_coming = TRUE;
  g_ptr_array_add (expected, self);
}

/* Sharded blocks are expected with one another, and only inside of one outermost module call: which others live differs
 * from rank to rank. Where no call was open a block is alone. */
static gboolean
goes_with (const EbbSharedBlock *self,
           const EbbSharedBlock *other)
{
  if (self->is_sharded != other->is_sharded)
    return FALSE;
  return !self->is_sharded || (self->key.call != 0 && self->key.call == other->key.call);
}

/* The blocks that were put together with @self, and in the groups just before it; under the lock. */
static void
find_expected (EbbSharedBlock *self,
               guint n_groups,
               GPtrArray *expected)
{
  guint64 group = self->group;

  for (GList *l = self->link.next; l != NULL && ((EbbSharedBlock *) l->data)->group == group; l = l->next)
    if (goes_with (self, l->data))
      expect (l->data, expected);
  for (GList *l = self->link.prev; l != NULL; l = l->prev)
    {
      EbbSharedBlock *block = l->data;

      if (!goes_with (self, block))
        continue;
      if (block->group != group && n_groups-- == 0)
        return;
      group = block->group;
      expect (block, expected);
    }
}

/* Backward runs the other way: the blocks that were put before @self come next. */
static void
prefetch (EbbSharedBlock *self)
{
  const guint n_groups = EBB_READ (ebb_activation_store_peek (self->store)->prefetch);
  g_autoptr (GPtrArray) expected = NULL;

  if (n_groups == 0)
    return;
  expected = g_ptr_array_new_with_free_func ((GDestroyNotify) ebb_shared_block_leave);
  ebb_activation_store_lock (self->store);
  find_expected (self, n_groups, expected);
  ebb_activation_store_unlock (self->store);
  for (guint i = 0; i < expected->len; i++)
    {
      EbbSharedBlock *block = g_ptr_array_index (expected, i);

      ebb_activation_store_prefetch_block (self->store, block->stored);
    }
}

static EbbStorage *
bring_storage (EbbSharedBlock *self,
               gsize *offset,
               GError **error)
{
  g_autoptr (EbbTensor) brought = NULL;
  EbbStorage *storage;

  ebb_activation_store_lock (self->store);
  self->is_coming = FALSE;
  ebb_activation_store_unlock (self->store);
  if (self->is_sharded)
    make_space (self);
  brought = bring (self, error);
  if (brought == NULL)
    return NULL;
  *offset = (gsize) brought->offset * ebb_dtype_get_size (self->dtype);
  tie (self, brought);
  storage = ebb_storage_ref (brought->storage);
  if (self->is_sharded)
    hold (self, storage, *offset);
  prefetch (self);
  return storage;
}

EbbTensor *
ebb_shared_block_get_view (EbbSharedBlock *self,
                           const EbbView *view,
                           gsize offset,
                           GError **error)
{
  gsize before = 0;
  EbbStorage *storage = self->is_sharded ? find_held (self, &before) : find_restored (self, &before);
  EbbTensor *tensor;

  if (storage == NULL)
    storage = bring_storage (self, &before, error);
  if (storage == NULL)
    return NULL;
  tensor = ebb_tensor_new_view (storage, (gint64) ((before + offset) / ebb_dtype_get_size (view->dtype)), view->shape,
                                view->strides, (guint) view->n_dims, view->dtype);
  ebb_storage_unref (storage);
  return tensor;
}
