/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "offload/activation-store-private.h"

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
    g_set_error (&local, EBB_ERROR, EBB_ERROR_CALLBACK, "%s of %s failed without saying why", what,
                 G_OBJECT_TYPE_NAME (self));
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
static const EbbStoredBlockFuncs in_place = { sizeof (Wrapper), get_in_place, NULL, wrapper_clear };
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
  ebb_activation_store_lock (self->store);
  counters->put += n_moved;
  counters->held += n_bytes;
  counters->peak = MAX (counters->peak, counters->held);
  ebb_activation_store_unlock (self->store);
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
  ebb_activation_store_lock (self);
  priv->counters.spilled += ebb_tensor_get_n_bytes (block);
  ebb_activation_store_unlock (self);
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

  if (!EBB_MAY_BEGIN (error, self, block))
    return NULL;
  if (block->view.n_dims != 1 || !ebb_view_is_contiguous (&block->view))
    {
      g_autofree char *shape = ebb_tensor_shape_to_string (block);

      g_set_error (error, EBB_ERROR, EBB_ERROR_SHAPE,
                   "put_block of %s: a block of shape %s: it must be contiguous and of one dimension",
                   G_OBJECT_TYPE_NAME (self), shape);
      return NULL;
    }
  n_bytes = ebb_tensor_get_n_bytes (block);
  birth = block->storage->birth;
  if (!EBB_ACTIVATION_STORE_GET_CLASS (self)->moves (self, block->storage->device))
    return count (wrap (self, &in_place, ebb_handle_new (block)), birth, n_bytes, 0);
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
  g_set_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT, "the handle was not returned by %s of this %s",
               is_room ? "reserve" : "put_block", G_OBJECT_TYPE_NAME (self));
  return NULL;
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

  if (!EBB_MAY_BEGIN (error, self, handle))
    return NULL;
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

  if (!EBB_MAY_BEGIN (error, self, device))
    return NULL;
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

  if (!EBB_MAY_BEGIN (error, self, room, block))
    return NULL;
  reserved = check_handle (self, room, TRUE, error);
  n_bytes = ebb_tensor_get_n_bytes (block);
  if (reserved == NULL || !ebb_activation_store_begin_put (self, error))
    return NULL;
  if (n_bytes > reserved->n_bytes || offset > reserved->n_bytes - n_bytes)
    {
      g_set_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT,
                   "put_at of %s: %" G_GSIZE_FORMAT " bytes at %" G_GUINT64_FORMAT " exceed a room of %" G_GSIZE_FORMAT,
                   G_OBJECT_TYPE_NAME (self), n_bytes, offset, reserved->n_bytes);
      return NULL;
    }
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

  if (!EBB_MAY_BEGIN (error, self))
    return FALSE;
  klass = EBB_ACTIVATION_STORE_GET_CLASS (self);
  ok = klass->synchronize == NULL || klass->synchronize (self, error != NULL ? &local : NULL);
  if (!ok && error != NULL && local == NULL)
    g_set_error (&local, EBB_ERROR, EBB_ERROR_CALLBACK, "synchronize of %s failed without saying why",
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
