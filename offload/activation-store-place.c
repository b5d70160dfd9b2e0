/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "offload/stored-block-private.h"

#include "tensor/autograd/autograd-private.h"
#include "tensor/backend/backend-private.h"
#include "tensor/error-private.h"
#include "tensor/thread-private.h"

/* Blocks of memory in and out of a store, whoever brings them: the store itself, for the tensors at its door, or a
 * store that stands in front of it. Here they are counted, and go to the fallback. */

typedef enum
{
  MOVED,    /* the handle is of the store's put or put_at */
  SPILLED,  /* of the fallback's put_block */
  IN_PLACE, /* of the block itself */
  ROOM      /* of the store's reserve */
} PlaceKind;

typedef struct
{
  PlaceKind kind;
  EbbActivationStore *store;
  EbbHandle *handle;
  EbbActivationStore *fallback; /* where the block was spilled to */
  guint64 birth;                /* of the block's storage */
  gsize n_bytes;                /* that count as held */
} Place;

void
ebb_activation_store_count_held (EbbActivationStore *self,
                                 gint64 n_bytes)
{
  EbbActivationStorePrivate *priv = ebb_activation_store_peek (self);

  ebb_blocks_lock ();
  priv->counters.held += (guint64) n_bytes;
  priv->counters.peak = MAX (priv->counters.peak, priv->counters.held);
  ebb_blocks_unlock ();
}

/* -- handles ------------------------------------------------------------------------------------------------------- */

static void
place_free (gpointer data)
{
  Place *self = data;

  ebb_blocks_lock ();
  g_hash_table_remove (ebb_activation_store_peek (self->store)->places, self);
  ebb_blocks_unlock ();
  ebb_activation_store_count_held (self->store, -(gint64) self->n_bytes);
  ebb_handle_unref (self->handle);
  g_clear_object (&self->fallback);
  g_object_unref (self->store);
  g_free (self);
}

static EbbHandle *
place_new (EbbActivationStore *self,
           PlaceKind kind,
           EbbHandle *handle,
           guint64 birth,
           gsize n_bytes)
{
  Place *place = g_new0 (Place, 1);

  *place = (Place){
    .kind = kind,
    .store = g_object_ref (self),
    .handle = handle,
    .birth = birth,
    .n_bytes = n_bytes
  };
  ebb_activation_store_count_held (self, (gint64) n_bytes);
  ebb_blocks_lock ();
  g_hash_table_add (ebb_activation_store_peek (self)->places, place);
  ebb_blocks_unlock ();
  return ebb_handle_new_for_data (place, place_free);
}

static Place *
find_place (EbbActivationStore *self,
            EbbHandle *handle,
            gboolean is_room,
            GError **error)
{
  Place *place = ebb_handle_get_data (handle);
  gboolean known;

  ebb_blocks_lock ();
  known = place != NULL && g_hash_table_contains (ebb_activation_store_peek (self)->places, place);
  ebb_blocks_unlock ();
  if (known && (place->kind == ROOM) == is_room)
    return place;
  g_set_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT, "a handle that %s of this %s did not give",
               is_room ? "reserve" : "put_block", G_OBJECT_TYPE_NAME (self));
  return NULL;
}

/* What a device tells once reaches somebody: who asks next, where this caller has no place for it. */
static void
hand_out (EbbActivationStore *self,
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
  hand_out (self, local, error);
  return result;
}

/* -- in ------------------------------------------------------------------------------------------------------------ */

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
                                  EbbActivationStore **fallback,
                                  GError **error)
{
  EbbActivationStorePrivate *priv = ebb_activation_store_peek (self);
  EbbHandle *handle = NULL;

  *fallback = falls_back (self, why) ? ebb_activation_store_ref_fallback (self) : NULL;
  if (*fallback == NULL)
    {
      g_propagate_error (error, g_error_copy (why));
      return NULL;
    }
  handle = ebb_activation_store_put_block (*fallback, block, error);
  if (handle == NULL)
    {
      g_prefix_error (error, "%s; and the fallback: ", why->message);
      g_clear_object (fallback);
      return NULL;
    }
  ebb_blocks_lock ();
  priv->counters.spilled += ebb_tensor_get_n_bytes (block);
  ebb_blocks_unlock ();
  return handle;
}

/* What a store launches to move a block doesn't part the blocks of one module. */
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

/* For a block that the store's put has refused. */
static EbbHandle *
spill (EbbActivationStore *self,
       EbbTensor *block,
       GError *why,
       GError **error)
{
  EbbActivationStore *fallback;
  GError *local = NULL;
  EbbHandle *placed, *handle = ebb_activation_store_put_instead (self, block, why, &fallback, &local);

  if (handle == NULL)
    {
      hand_out (self, local, error);
      return NULL;
    }
  placed = place_new (self, SPILLED, handle, block->storage->birth, ebb_tensor_get_n_bytes (block));
  ((Place *) ebb_handle_get_data (placed))->fallback = fallback;
  return placed;
}

static guint64
get_held_bytes (EbbActivationStore *self,
                EbbHandle *handle,
                EbbTensor *block)
{
  const EbbActivationStoreClass *klass = EBB_ACTIVATION_STORE_GET_CLASS (self);

  return klass->get_held_bytes != NULL ? klass->get_held_bytes (self, handle) : ebb_tensor_get_n_bytes (block);
}

/**
 * ebb_activation_store_put_block:
 * @self: a store
 * @block: a contiguous tensor of one dimension
 * @error: return location for an error
 *
 * Puts a block of memory into the store, or into its fallback, as the store's own pack does; for stores that stand in
 * front of another one. The block must stay as it is. One on a device whose tensors the store leaves in place is kept
 * as it is.
 *
 * Returns: (transfer full) (nullable): what ebb_activation_store_get_block() is given; the block goes with it
 */
EbbHandle *
ebb_activation_store_put_block (EbbActivationStore *self,
                                EbbTensor *block,
                                GError **error)
{
  g_autoptr (GError) local = NULL;
  gsize n_bytes;
  EbbHandle *handle;

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
  if (!EBB_ACTIVATION_STORE_GET_CLASS (self)->moves (self, block->storage->device))
    return place_new (self, IN_PLACE, ebb_handle_new (block), block->storage->birth, n_bytes);
  if (!ebb_activation_store_begin_put (self, error))
    return NULL;
  handle = put (self, block, &local);
  if (handle == NULL)
    {
      if (!ebb_activation_store_peek (self)->divides)
        return spill (self, block, local, error);
      hand_out (self, g_steal_pointer (&local), error);
      return NULL;
    }
  ebb_blocks_lock ();
  ebb_activation_store_peek (self)->counters.put += n_bytes;
  ebb_blocks_unlock ();
  return place_new (self, MOVED, handle, block->storage->birth, get_held_bytes (self, handle, block));
}

/* -- out ----------------------------------------------------------------------------------------------------------- */

static EbbTensor *
get (EbbActivationStore *self,
     EbbHandle *handle,
     GError **error)
{
  const guint64 n_launches = ebb_thread.n_launches;
  GError *local = NULL;
  EbbTensor *tensor = EBB_ACTIVATION_STORE_GET_CLASS (self)->get (self, handle, &local);

  ebb_thread.n_launches = n_launches;
  if (local != NULL)
    g_clear_pointer (&tensor, ebb_tensor_unref);
  return require (self, "get", tensor, local, error);
}

/**
 * ebb_activation_store_get_block:
 * @self: a store
 * @handle: what ebb_activation_store_put_block() of @self gave
 * @error: return location for an error
 *
 * Brings a block back, with the bytes that it had; it may be the same tensor, so nobody must change it.
 *
 * Returns: (transfer full) (nullable): a tensor of the same size and element type on the same device
 */
EbbTensor *
ebb_activation_store_get_block (EbbActivationStore *self,
                                EbbHandle *handle,
                                GError **error)
{
  EbbActivationStorePrivate *priv;
  EbbTensor *tensor;
  Place *place;

  if (!EBB_MAY_BEGIN (error, self, handle))
    return NULL;
  priv = ebb_activation_store_peek (self);
  place = find_place (self, handle, FALSE, error);
  if (place == NULL || (error != NULL && !ebb_activation_store_tell_failure (self, error)))
    return NULL;
  ebb_activation_store_sweep (self);
  if (place->kind == IN_PLACE)
    return ebb_handle_get_tensor (place->handle);
  if (place->kind == SPILLED)
    return ebb_activation_store_get_block (place->fallback, place->handle, error);
  tensor = get (self, place->handle, error);
  if (tensor != NULL && tensor->storage->birth != place->birth)
    {
      ebb_blocks_lock ();
      priv->counters.got += ebb_tensor_get_n_bytes (tensor);
      ebb_blocks_unlock ();
    }
  return tensor;
}

/**
 * ebb_activation_store_prefetch_block:
 * @self: a store
 * @handle: what ebb_activation_store_put_block() of @self gave
 *
 * Says that the block will soon be asked for, so that the store may begin to bring it.
 */
void
ebb_activation_store_prefetch_block (EbbActivationStore *self,
                                     EbbHandle *handle)
{
  const guint64 n_launches = ebb_thread.n_launches;
  Place *place;

  g_return_if_fail (EBB_IS_ACTIVATION_STORE (self) && handle != NULL);

  place = find_place (self, handle, FALSE, NULL);
  if (place == NULL)
    return;
  if (place->kind == SPILLED)
    ebb_activation_store_prefetch_block (place->fallback, place->handle);
  else if (place->kind == MOVED && EBB_ACTIVATION_STORE_GET_CLASS (self)->prefetch != NULL)
    EBB_ACTIVATION_STORE_GET_CLASS (self)->prefetch (self, place->handle);
  ebb_thread.n_launches = n_launches;
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
 * Returns: (transfer full) (nullable): the room, which goes with the handle and with the last block in it; %NULL with
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
  return room != NULL ? place_new (self, ROOM, room, 0, n_bytes) : NULL;
}

/**
 * ebb_activation_store_put_at:
 * @self: a store
 * @room: what ebb_activation_store_reserve() of @self gave
 * @offset: bytes from its beginning
 * @block: a contiguous tensor of one dimension, on the device that the room was reserved for
 * @error: return location for an error
 *
 * Puts a block of memory into a reserved room, over whatever is there; see ebb_activation_store_put_block().
 *
 * Returns: (transfer full) (nullable): what ebb_activation_store_get_block() is given
 */
EbbHandle *
ebb_activation_store_put_at (EbbActivationStore *self,
                             EbbHandle *room,
                             guint64 offset,
                             EbbTensor *block,
                             GError **error)
{
  const guint64 n_launches = ebb_thread.n_launches;
  GError *local = NULL;
  EbbHandle *handle;
  gsize n_bytes;
  Place *place;

  if (!EBB_MAY_BEGIN (error, self, room, block))
    return NULL;
  place = find_place (self, room, TRUE, error);
  n_bytes = ebb_tensor_get_n_bytes (block);
  if (place == NULL || !ebb_activation_store_begin_put (self, error))
    return NULL;
  if (n_bytes > place->n_bytes || offset > place->n_bytes - n_bytes)
    {
      g_set_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT,
                   "put_at of %s: %" G_GSIZE_FORMAT " bytes at %" G_GUINT64_FORMAT " of a room of %" G_GSIZE_FORMAT,
                   G_OBJECT_TYPE_NAME (self), n_bytes, offset, place->n_bytes);
      return NULL;
    }
  handle = EBB_ACTIVATION_STORE_GET_CLASS (self)->put_at (self, place->handle, offset, block, &local);
  ebb_thread.n_launches = n_launches;
  if (local != NULL)
    g_clear_pointer (&handle, ebb_handle_unref);
  handle = require (self, "put_at", handle, local, error);
  if (handle == NULL)
    return NULL;
  ebb_blocks_lock ();
  ebb_activation_store_peek (self)->counters.put += n_bytes;
  ebb_blocks_unlock ();
  return place_new (self, MOVED, handle, block->storage->birth, 0);
}

/**
 * ebb_activation_store_synchronize:
 * @self: a store
 * @error: return location for an error
 *
 * Waits until all that the store and its fallback have begun is done; the counters are then exact.
 *
 * Returns: %FALSE with the error of what failed
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
