/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "offload/block-private.h"

#include "tensor/backend-private.h"

#include <pthread.h>

/* A view that covers less than this part of its storage is stored alone. */
#define SMALL_PART 8

/* Ties a block to the memory that it was brought back into, without keeping that memory: the storage takes the tie
 * along when it goes. */
struct _EbbRestored
{
  EbbBlock *block; /* NULL: the block went first */
  EbbStorage *storage;
  guint version; /* of the storage, when it came */
  EbbDevice *device;
  void *data;
  gsize size;
  gsize offset; /* bytes of the storage before the block */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void
ebb_blocks_lock (void)
{
  pthread_mutex_lock (&lock);
}

void
ebb_blocks_unlock (void)
{
  pthread_mutex_unlock (&lock);
}

/* -- which memory -------------------------------------------------------------------------------------------------- */

void
ebb_block_key_init (EbbBlockKey *key,
                    EbbTensor *tensor,
                    gboolean in_place)
{
  const gsize element = ebb_dtype_get_size (tensor->view.dtype), size = tensor->storage->size;
  gint64 last = 0;

  *key = (EbbBlockKey){ .birth = tensor->storage->birth, .end = size, .in_place = in_place };
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
ebb_block_hash (gconstpointer key)
{
  const EbbBlockKey *self = key;

  return (guint) ((self->birth * 31 + self->start * 17 + self->end) * 0x9e3779b97f4a7c15 >> 32);
}

gboolean
ebb_block_equal (gconstpointer a,
                 gconstpointer b)
{
  const EbbBlockKey *one = a, *other = b;

  return one->birth == other->birth && one->start == other->start && one->end == other->end
         && one->version == other->version && one->in_place == other->in_place;
}

EbbBlock *
ebb_block_new (EbbActivationStore *store,
               const EbbBlockKey *key,
               EbbTensor *tensor)
{
  EbbBlock *self = g_new0 (EbbBlock, 1);

  self->key = *key;
  self->store = g_object_ref (store);
  self->device = tensor->storage->device;
  self->dtype = tensor->view.dtype;
  self->n_users = 1;
  return self;
}

void
ebb_block_free (EbbBlock *self)
{
  ebb_blocks_lock ();
  if (self->restored != NULL)
    self->restored->block = NULL;
  ebb_blocks_unlock ();
  if (self->handle != NULL)
    ebb_handle_unref (self->handle);
  g_object_unref (self->store);
  g_free (self);
}

/* -- bringing back ------------------------------------------------------------------------------------------------- */

/* In place of the storage's own way to free its memory. */
static void
restored_free (gpointer data)
{
  EbbRestored *self = data;

  ebb_blocks_lock ();
  if (self->block != NULL && self->block->restored == self)
    self->block->restored = NULL;
  ebb_blocks_unlock ();
  self->device->backend->free (self->device->index, self->data, self->size);
  g_free (self);
}

/* Memory that only @tensor holds is tied to the block. It counts as pinned, so that nothing is computed into it in
 * place: another view of it may still be wanted. */
static void
tie (EbbBlock *self,
     EbbTensor *tensor)
{
  EbbStorage *storage = tensor->storage;
  EbbRestored *restored;

  if (storage->destroy != NULL || storage->data == NULL || !ebb_tensor_is_unshared (tensor))
    return;
  restored = g_new0 (EbbRestored, 1);
  *restored = (EbbRestored){ .block = self,
                             .storage = storage,
                             .version = storage->version,
                             .device = storage->device,
                             .data = storage->data,
                             .size = storage->size,
                             .offset = (gsize) tensor->offset * ebb_dtype_get_size (tensor->view.dtype) };
  storage->destroy = restored_free;
  storage->destroy_data = restored;
  storage->pinned = TRUE;
  ebb_blocks_lock ();
  if (self->restored != NULL)
    self->restored->block = NULL;
  self->restored = restored;
  ebb_blocks_unlock ();
}

/* A reference to @storage, unless its last one is just going. */
static gboolean
try_ref (EbbStorage *storage)
{
  int n = __atomic_load_n (&storage->ref_count, __ATOMIC_RELAXED);

  while (n > 0)
    if (__atomic_compare_exchange_n (&storage->ref_count, &n, n + 1, TRUE, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
      return TRUE;
  return FALSE;
}

static EbbStorage *
find_restored (EbbBlock *self,
               gsize *offset)
{
  EbbStorage *storage = NULL;

  ebb_blocks_lock ();
  if (self->restored != NULL && try_ref (self->restored->storage))
    {
      storage = self->restored->storage;
      *offset = self->restored->offset;
      if (storage->version != self->restored->version)
        {
          /* Changed by whoever got it: no longer what was stored. */
          self->restored->block = NULL;
          self->restored = NULL;
          ebb_blocks_unlock ();
          ebb_storage_unref (storage);
          return NULL;
        }
    }
  ebb_blocks_unlock ();
  return storage;
}

static EbbTensor *
bring (EbbBlock *self,
       GError **error)
{
  const gsize size = self->key.end - self->key.start;
  GError *local = NULL;
  EbbTensor *tensor = EBB_ACTIVATION_STORE_GET_CLASS (self->store)->get (self->store, self->handle, &local);

  if (tensor == NULL && local == NULL)
    g_set_error (&local, EBB_ERROR, EBB_ERROR_CALLBACK, "get of %s failed without saying why",
                 G_OBJECT_TYPE_NAME (self->store));
  if (local == NULL
      && (tensor->storage->device != self->device || tensor->view.dtype != self->dtype
          || ebb_tensor_get_n_bytes (tensor) != size || !ebb_view_is_contiguous (&tensor->view)))
    g_set_error (&local, EBB_ERROR, EBB_ERROR_CALLBACK,
                 "get of %s gave %" G_GUINT64_FORMAT " bytes of %s on %s: it must give the %" G_GSIZE_FORMAT
                 " bytes of %s on %s that were put, contiguous",
                 G_OBJECT_TYPE_NAME (self->store), (guint64) ebb_tensor_get_n_bytes (tensor),
                 ebb_dtype_get_name (tensor->view.dtype), ebb_device_get_name (tensor->storage->device), size,
                 ebb_dtype_get_name (self->dtype), ebb_device_get_name (self->device));
  if (local == NULL)
    return tensor;
  g_clear_pointer (&tensor, ebb_tensor_unref);
  g_propagate_error (error, local);
  return NULL;
}

EbbTensor *
ebb_block_get_view (EbbBlock *self,
                    const EbbView *view,
                    gsize offset,
                    gsize *n_got,
                    GError **error)
{
  gsize before = 0;
  EbbStorage *storage = find_restored (self, &before);
  EbbTensor *tensor;

  *n_got = 0;
  if (storage == NULL)
    {
      g_autoptr (EbbTensor) brought = bring (self, error);

      if (brought == NULL)
        return NULL;
      *n_got = self->key.end - self->key.start;
      before = (gsize) brought->offset * ebb_dtype_get_size (self->dtype);
      tie (self, brought);
      storage = ebb_storage_ref (brought->storage);
    }
  tensor = ebb_tensor_new_view (storage, (gint64) ((before + offset) / ebb_dtype_get_size (view->dtype)), view->shape,
                                view->strides, (guint) view->n_dims, view->dtype);
  ebb_storage_unref (storage);
  return tensor;
}
