/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "tensor/storage-private.h"

#include "tensor/backend/backend-private.h"
#include "tensor/cpu/host-allocator-private.h"
#include "tensor/object-private.h"
#include "tensor/thread-private.h"
#include "tensor/util/lock-private.h"

#include <pthread.h>

/* Reference-counted memory of tensors: versions, purposes, and watches that see a change coming. */

static guint64 last_birth;
static pthread_mutex_t watches_lock = PTHREAD_MUTEX_INITIALIZER;

guint64
ebb_storage_get_next_birth (void)
{
  return __atomic_load_n (&last_birth, __ATOMIC_RELAXED) + 1;
}

static EbbStorage *
storage_make (EbbDevice *device,
              void *data,
              gsize size)
{
  EbbStorage *self = ebb_object_new (EbbStorage);

  *self = (EbbStorage){
    .ref_count = 1,
    .data = data,
    .size = size,
    .birth = __atomic_add_fetch (&last_birth, 1, __ATOMIC_RELAXED),
    .device = device,
    .account = ebb_thread.account,
    .purpose = EBB_PURPOSE_WORKSPACE,
  };
  if (G_UNLIKELY (self->account != NULL))
    ebb_memory_account_ref (self->account);
  return self;
}

EbbStorage *
ebb_storage_new (EbbDevice *device,
                 gsize size,
                 GError **error)
{
  EbbStorage *self;
  void *data = NULL;

  if (G_UNLIKELY (ebb_modes.stopped))
    {
      self = storage_make (device, NULL, size);
      self->placeholder = TRUE;
      return self;
    }
  if (size > 0)
    {
      data = ebb_device_alloc (device, size, EBB_PURPOSE_WORKSPACE, error);
      if (data == NULL)
        return NULL;
    }
  self = storage_make (device, data, size);
  self->no_data = ebb_is_dry () && !device->backend->host_memory;
  return self;
}

static void
keep_foreign (gpointer data)
{
}

EbbStorage *
ebb_storage_new_foreign (EbbDevice *device,
                         EbbPurpose purpose,
                         void *data,
                         gsize size,
                         GDestroyNotify destroy,
                         gpointer destroy_data)
{
  EbbStorage *self = storage_make (device, data, size);

  self->destroy = destroy ? destroy : keep_foreign;
  self->destroy_data = destroy_data;
  self->pinned = TRUE;
  self->purpose = (guint8) purpose;
  ebb_device_change (device, data, EBB_N_PURPOSES, (guint8) purpose, size, self->account);
  return self;
}

EbbStorage *
ebb_storage_ref (EbbStorage *self)
{
  __atomic_add_fetch (&self->ref_count, 1, __ATOMIC_RELAXED);
  return self;
}

EbbStorage *
ebb_storage_try_ref (EbbStorage *self)
{
  int n = self != NULL ? __atomic_load_n (&self->ref_count, __ATOMIC_RELAXED) : 0;

  while (n > 0)
    if (__atomic_compare_exchange_n (&self->ref_count, &n, n + 1, TRUE, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
      return self;
  return NULL;
}

void
ebb_storage_unref (EbbStorage *self)
{
  if (__atomic_sub_fetch (&self->ref_count, 1, __ATOMIC_ACQ_REL) != 0)
    return;

  if (self->destroy != NULL)
    {
      ebb_device_change (self->device, self->data, self->purpose, EBB_N_PURPOSES, self->size, self->account);
      self->destroy (self->destroy_data);
    }
  else if (self->data != NULL)
    ebb_device_free_of (self->device, self->data, self->size, self->purpose, self->account);
  if (G_UNLIKELY (self->account != NULL))
    {
      ebb_memory_account_unref (self->account);
      g_free (self->known);
    }
  ebb_object_free (self, sizeof *self);
}

gboolean
ebb_storage_map (EbbStorage *self,
                 GError **error)
{
  if (G_LIKELY (self->account == NULL || !self->account->is_dry || self->data == NULL || self->destroy != NULL))
    return TRUE;
  return ebb_host_heap_map (self->account->heaps[self->device->number], self->data, self->size, error);
}

void
ebb_storage_set_known (EbbStorage *self,
                       const void *values)
{
  g_free (self->known);
  self->known = g_memdup2 (values, self->size);
  self->known_version = self->version;
}

const void *
ebb_storage_get_known (const EbbStorage *self)
{
  return self->known_version == self->version ? self->known : NULL;
}

/* A store that threads share may free what another thread put while that thread looks: so these are atomic. */
void
ebb_storage_set_purpose (EbbStorage *self,
                         EbbPurpose purpose)
{
  guint8 old = __atomic_exchange_n (&self->purpose, (guint8) purpose, __ATOMIC_RELAXED);

  if (old != purpose && !self->placeholder)
    ebb_device_change (self->device, self->data, old, (guint8) purpose, self->size, self->account);
}

EbbPurpose
ebb_storage_get_purpose (const EbbStorage *self)
{
  return (EbbPurpose) __atomic_load_n (&self->purpose, __ATOMIC_RELAXED);
}

void
ebb_storage_hold_saved (EbbStorage *self)
{
  if (__atomic_fetch_add (&self->saved_count, 1, __ATOMIC_RELAXED) == 0
      && ebb_storage_get_purpose (self) == EBB_PURPOSE_WORKSPACE)
    ebb_storage_set_purpose (self, EBB_PURPOSE_ACTIVATION);
}

void
ebb_storage_drop_saved (EbbStorage *self)
{
  if (__atomic_sub_fetch (&self->saved_count, 1, __ATOMIC_RELAXED) == 0
      && ebb_storage_get_purpose (self) == EBB_PURPOSE_ACTIVATION)
    ebb_storage_set_purpose (self, EBB_PURPOSE_WORKSPACE);
}

/* -- before a change in place -------------------------------------------------------------------------------------- */

void
ebb_storage_add_watch (EbbStorage *self,
                       EbbStorageWatch *watch)
{
  EBB_AUTO_LOCK (&watches_lock);
  watch->next = self->watches;
  __atomic_store_n (&self->watches, watch, __ATOMIC_RELAXED);
}

void
ebb_storage_remove_watch (EbbStorage *self,
                          EbbStorageWatch *watch)
{
  EbbStorageWatch **place = &self->watches;

  EBB_AUTO_LOCK (&watches_lock);
  while (*place != watch)
    place = &(*place)->next;
  __atomic_store_n (place, watch->next, __ATOMIC_RELAXED);
}

typedef struct
{
  void (*before_write) (gpointer taken);
  gpointer taken;
} Notice;

/* A watch may go as soon as the lock is open; and who enqueues may have to wait for room, which must not keep the
 * watches of all other storages. */
static void
notify_watches (EbbStorage *self)
{
  g_autoptr (GArray) notices = g_array_new (FALSE, FALSE, sizeof (Notice));

  pthread_mutex_lock (&watches_lock);
  for (EbbStorageWatch *watch = self->watches; watch != NULL; watch = watch->next)
    {
      const Notice notice = { watch->before_write, watch->take (watch) };

      g_array_append_val (notices, notice);
    }
  pthread_mutex_unlock (&watches_lock);
  for (guint i = 0; i < notices->len; i++)
    g_array_index (notices, Notice, i).before_write (g_array_index (notices, Notice, i).taken);
}

void
ebb_storage_change (EbbStorage *self)
{
  self->version++;
  if (G_LIKELY (__atomic_load_n (&self->watches, __ATOMIC_RELAXED) == NULL))
    return;
  notify_watches (self);
}
