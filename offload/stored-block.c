/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "offload/stored-block-private.h"

#include "tensor/backend/backend-private.h"

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
         && one->version == other->version && one->in_place == other->in_place && one->is_apart == other->is_apart
         && one->call == other->call;
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
  if (self->held != NULL)
    ebb_storage_unref (self->held);
  if (self->handle != NULL)
    ebb_handle_unref (self->handle);
  g_object_unref (self->store);
  g_free (self);
}

/* -- order --------------------------------------------------------------------------------------------------------- */

void
ebb_block_link (EbbBlock *self)
{
  EbbActivationStorePrivate *priv = ebb_activation_store_peek (self->store);

  self->previous = priv->last;
  if (priv->last != NULL)
    priv->last->next = self;
  else
    priv->first = self;
  priv->last = self;
}

void
ebb_block_unlink (EbbBlock *self)
{
  EbbActivationStorePrivate *priv = ebb_activation_store_peek (self->store);

  if (self->previous != NULL)
    self->previous->next = self->next;
  else
    priv->first = self->next;
  if (self->next != NULL)
    self->next->previous = self->previous;
  else
    priv->last = self->previous;
}

void
ebb_block_leave (EbbBlock *self)
{
  EbbActivationStorePrivate *priv = ebb_activation_store_peek (self->store);
  gboolean last;

  ebb_blocks_lock ();
  last = --self->n_users == 0;
  if (last)
    {
      for (guint i = 0; i < EBB_N_LATEST; i++)
        if (priv->latest[i] == self)
          priv->latest[i] = NULL;
      if (g_hash_table_lookup (priv->blocks, self) == self)
        g_hash_table_remove (priv->blocks, self);
      if (!self->key.in_place)
        ebb_block_unlink (self);
      else
        priv->counters.held -= self->key.end - self->key.start;
    }
  ebb_blocks_unlock ();
  if (last)
    ebb_block_free (self);
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

/* Whether somebody still looks at what was brought back differs from rank to rank, so the store does, until it has
 * brought two others: what a checkpoint is given it may ask for twice, first to recompute. */
static EbbStorage *
find_held (EbbBlock *self,
           gsize *offset)
{
  EbbStorage *storage = NULL;

  ebb_blocks_lock ();
  if (self->held != NULL && self->held->version == self->held_version)
    {
      storage = ebb_storage_ref (self->held);
      *offset = self->held_offset;
    }
  ebb_blocks_unlock ();
  return storage;
}

/* Takes @self out of those that are held; with what it has to let go, outside of the lock. */
static EbbStorage *
let_go (EbbBlock *self)
{
  EbbActivationStorePrivate *priv = ebb_activation_store_peek (self->store);

  for (guint i = 0; i < EBB_N_LATEST; i++)
    if (priv->latest[i] == self)
      priv->latest[i] = NULL;
  return g_steal_pointer (&self->held);
}

/* Before memory is taken for @self: it and the oldest one are held no longer. Blocks that are freed leave their places
 * empty, so that which one is the oldest doesn't depend on them. */
static void
make_place (EbbBlock *self)
{
  EbbActivationStorePrivate *priv = ebb_activation_store_peek (self->store);
  EbbStorage *own, *old = NULL;
  EbbBlock *oldest;

  ebb_blocks_lock ();
  own = let_go (self);
  oldest = priv->latest[priv->n_brought % EBB_N_LATEST];
  if (oldest != NULL)
    old = let_go (oldest);
  ebb_blocks_unlock ();
  g_clear_pointer (&own, ebb_storage_unref);
  g_clear_pointer (&old, ebb_storage_unref);
}

static void
hold (EbbBlock *self,
      EbbStorage *storage,
      gsize offset)
{
  EbbActivationStorePrivate *priv = ebb_activation_store_peek (self->store);

  make_place (self); /* another thread may have taken it */
  ebb_blocks_lock ();
  if (priv->latest[priv->n_brought % EBB_N_LATEST] == NULL)
    {
      priv->latest[priv->n_brought % EBB_N_LATEST] = self;
      self->held = ebb_storage_ref (storage);
      self->held_offset = offset;
      self->held_version = storage->version;
    }
  priv->n_brought++;
  ebb_blocks_unlock ();
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
  EbbTensor *tensor = ebb_activation_store_get_block (self->store, self->handle, error);

  if (tensor == NULL
      || (tensor->storage->device == self->device && tensor->view.dtype == self->dtype
          && ebb_tensor_get_n_bytes (tensor) == size && ebb_view_is_contiguous (&tensor->view)))
    return tensor;
  g_set_error (error, EBB_ERROR, EBB_ERROR_CALLBACK,
               "get of %s gave %" G_GUINT64_FORMAT " bytes of %s on %s: it must give the %" G_GSIZE_FORMAT
               " bytes of %s on %s that were put, contiguous",
               G_OBJECT_TYPE_NAME (self->store), (guint64) ebb_tensor_get_n_bytes (tensor),
               ebb_dtype_get_name (tensor->view.dtype), ebb_device_get_name (tensor->storage->device), size,
               ebb_dtype_get_name (self->dtype), ebb_device_get_name (self->device));
  ebb_tensor_unref (tensor);
  return NULL;
}

static gboolean
is_away (EbbBlock *self)
{
  return (self->is_divided ? self->held == NULL : self->restored == NULL) && !self->is_coming;
}

static void
expect (EbbBlock *self,
        GPtrArray *expected)
{
  if (!is_away (self))
    return;
  self->n_users++;
  self->is_coming = TRUE;
  g_ptr_array_add (expected, self);
}

/* Divided blocks are expected with one another, and only inside of one outermost module call: which others live differs
 * from rank to rank. Where no call was open a block is alone. */
static gboolean
goes_with (const EbbBlock *self,
           const EbbBlock *other)
{
  if (self->is_divided != other->is_divided)
    return FALSE;
  return !self->is_divided || (self->key.call != 0 && self->key.call == other->key.call);
}

/* What was put together with @self, and in the groups just before it; under the lock. */
static void
find_expected (EbbBlock *self,
               guint n_groups,
               GPtrArray *expected)
{
  guint64 group = self->group;

  for (EbbBlock *block = self->next; block != NULL && block->group == group; block = block->next)
    if (goes_with (self, block))
      expect (block, expected);
  for (EbbBlock *block = self->previous; block != NULL; block = block->previous)
    {
      if (!goes_with (self, block))
        continue;
      if (block->group != group && n_groups-- == 0)
        return;
      group = block->group;
      expect (block, expected);
    }
}

/* Backward goes the other way: what was put before @self comes next. */
static void
prefetch (EbbBlock *self)
{
  const guint n_groups = EBB_READ (ebb_activation_store_peek (self->store)->prefetch);
  g_autoptr (GPtrArray) expected = NULL;

  if (n_groups == 0)
    return;
  expected = g_ptr_array_new_with_free_func ((GDestroyNotify) ebb_block_leave);
  ebb_blocks_lock ();
  find_expected (self, n_groups, expected);
  ebb_blocks_unlock ();
  for (guint i = 0; i < expected->len; i++)
    {
      EbbBlock *block = g_ptr_array_index (expected, i);

      ebb_activation_store_prefetch_block (self->store, block->handle);
    }
}

static EbbStorage *
bring_storage (EbbBlock *self,
               gsize *offset,
               GError **error)
{
  g_autoptr (EbbTensor) brought = NULL;
  EbbStorage *storage;

  ebb_blocks_lock ();
  self->is_coming = FALSE;
  ebb_blocks_unlock ();
  if (self->is_divided)
    make_place (self);
  brought = bring (self, error);
  if (brought == NULL)
    return NULL;
  *offset = (gsize) brought->offset * ebb_dtype_get_size (self->dtype);
  tie (self, brought);
  storage = ebb_storage_ref (brought->storage);
  if (self->is_divided)
    hold (self, storage, *offset);
  prefetch (self);
  return storage;
}

EbbTensor *
ebb_block_get_view (EbbBlock *self,
                    const EbbView *view,
                    gsize offset,
                    GError **error)
{
  gsize before = 0;
  EbbStorage *storage = self->is_divided ? find_held (self, &before) : find_restored (self, &before);
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
