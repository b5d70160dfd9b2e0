/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "offload/disk/store.h"

#include "offload/disk/queue-private.h"

#include <gio/gio.h>
#include <pthread.h>

#define DEFAULT_STAGING (32ul << 20)

/**
 * EbbDiskStore:
 *
 * Keeps activations in a file: one in the given folder for each process, without a name, so that it goes with the
 * process however that ends. The space of tensors that nobody wants any more is used again.
 *
 * A thread of the store writes and reads, beside computing. What is put is first copied to staging memory. There stays
 * what this module and the #EbbActivationStore:in-flight ones before it put, or one piece of 4 MiB if that is more, and
 * at most #EbbDiskStore:staging-limit bytes; what was put before leaves it, and a tensor that is put waits until it is
 * written. So the memory in use is the same in every run, however fast the disk is. What is still there when backward
 * asks for it is not read from the file.
 *
 * What is written bypasses the page cache where the file system allows, and a checksum is compared when it is read
 * back. A failure is one line with the folder and the bytes. A tensor that could not be stored is as it was; where a
 * write fails that nobody waits for, the bytes are in staging memory and can be had back, and the next tensor that is
 * put is refused with that error. A disk that fails again and again is left alone: all that is put is refused at once,
 * until ebb_activation_store_synchronize() tries again.
 */
struct _EbbDiskStore
{
  EbbActivationStore parent_instance;

  char *folder;
  guint64 byte_limit;
  guint64 staging_limit;
  pthread_mutex_t lock;
  EbbDiskQueue *queue; /* under the lock; that of another process after a fork, until something is stored */
};

enum
{
  PROP_FOLDER = 1,
  PROP_BYTE_LIMIT,
  PROP_STAGING_LIMIT,
  N_PROPS
};

static GParamSpec *properties[N_PROPS];

static void ebb_disk_store_initable_init (GInitableIface *iface);

G_DEFINE_FINAL_TYPE_WITH_CODE (EbbDiskStore,
                               ebb_disk_store,
                               EBB_TYPE_ACTIVATION_STORE,
                               G_IMPLEMENT_INTERFACE (G_TYPE_INITABLE, ebb_disk_store_initable_init))

static void
count_seconds (EbbDiskStore *self,
               EbbDiskQueue *queue)
{
  double moving, waited;

  ebb_worker_take_seconds (&queue->worker, &moving, &waited);
  ebb_activation_store_count_seconds (EBB_ACTIVATION_STORE (self), moving, waited);
}

/* This process's queue, with a new reference. */
static EbbDiskQueue *
get_queue (EbbDiskStore *self,
           GError **error)
{
  EbbDiskQueue *queue;

  pthread_mutex_lock (&self->lock);
  if (self->queue != NULL && !ebb_worker_is_own (&self->queue->worker))
    g_clear_pointer (&self->queue, ebb_disk_queue_unref);
  if (self->queue == NULL)
    self->queue = ebb_disk_queue_new (self->folder, error);
  queue = self->queue ? ebb_disk_queue_ref (self->queue) : NULL;
  pthread_mutex_unlock (&self->lock);
  return queue;
}

static EbbHandle *
put_record (EbbDiskStore *self,
            EbbDiskRecord *record,
            EbbTensor *block,
            GError **error)
{
  if (record == NULL)
    return NULL;
  if (ebb_disk_record_put (record, block, EBB_READ (self->staging_limit), error))
    return ebb_handle_new_for_data (record, (GDestroyNotify) ebb_disk_record_free);
  ebb_disk_record_free (record);
  return NULL;
}

static EbbHandle *
ebb_disk_store_put (EbbActivationStore *store,
                    EbbTensor *block,
                    GError **error)
{
  EbbDiskStore *self = EBB_DISK_STORE (store);
  EbbDiskQueue *queue = get_queue (self, error);
  EbbDiskRecord *record;
  EbbHandle *handle;

  if (queue == NULL)
    return NULL;
  record = ebb_disk_record_new (queue, store, block, EBB_READ (self->byte_limit), error);
  handle = put_record (self, record, block, error);
  count_seconds (self, queue);
  ebb_disk_queue_unref (queue);
  return handle;
}

static EbbTensor *
ebb_disk_store_get (EbbActivationStore *store,
                    EbbHandle *handle,
                    GError **error)
{
  EbbDiskRecord *record = ebb_handle_get_data (handle);
  EbbTensor *block = ebb_disk_record_get (record, error);

  count_seconds (EBB_DISK_STORE (store), record->queue);
  return block;
}

static void
ebb_disk_store_prefetch (EbbActivationStore *store,
                         EbbHandle *handle)
{
  ebb_disk_record_prefetch (ebb_handle_get_data (handle));
}

static gboolean
ebb_disk_store_synchronize (EbbActivationStore *store,
                            GError **error)
{
  EbbDiskStore *self = EBB_DISK_STORE (store);
  EbbDiskQueue *queue = get_queue (self, error);
  gboolean ok;

  if (queue == NULL)
    return FALSE;
  ok = ebb_disk_queue_flush (queue, error);
  count_seconds (self, queue);
  ebb_disk_queue_unref (queue);
  return ok;
}

static EbbHandle *
ebb_disk_store_reserve (EbbActivationStore *store,
                        EbbDevice *device,
                        guint64 n_bytes,
                        GError **error)
{
  EbbDiskStore *self = EBB_DISK_STORE (store);
  EbbDiskQueue *queue = get_queue (self, error);
  EbbDiskRoom *room;

  if (queue == NULL)
    return NULL;
  room = ebb_disk_room_new (queue, n_bytes, EBB_READ (self->byte_limit), error);
  ebb_disk_queue_unref (queue);
  return room ? ebb_handle_new_for_data (room, (GDestroyNotify) ebb_disk_room_unref) : NULL;
}

static EbbHandle *
ebb_disk_store_put_at (EbbActivationStore *store,
                       EbbHandle *handle,
                       guint64 offset,
                       EbbTensor *block,
                       GError **error)
{
  EbbDiskStore *self = EBB_DISK_STORE (store);
  EbbDiskRoom *room = ebb_handle_get_data (handle);
  EbbHandle *part;

  part = put_record (self, ebb_disk_record_new_in_room (room, store, offset, block, error), block, error);
  count_seconds (self, room->queue);
  return part;
}

/* -- object -------------------------------------------------------------------------------------------------------- */

/* A folder that can't be used is found when the store is made. */
static gboolean
ebb_disk_store_initable_init_instance (GInitable *initable,
                                       GCancellable *cancellable,
                                       GError **error)
{
  EbbDiskQueue *queue = get_queue (EBB_DISK_STORE (initable), error);

  if (queue == NULL)
    return FALSE;
  ebb_disk_queue_unref (queue);
  return TRUE;
}

static void
ebb_disk_store_initable_init (GInitableIface *iface)
{
  iface->init = ebb_disk_store_initable_init_instance;
}

static void
ebb_disk_store_get_property (GObject *object,
                             guint id,
                             GValue *value,
                             GParamSpec *pspec)
{
  EbbDiskStore *self = EBB_DISK_STORE (object);

  switch (id)
    {
    case PROP_FOLDER:
      g_value_set_string (value, self->folder);
      break;
    case PROP_BYTE_LIMIT:
      g_value_set_uint64 (value, EBB_READ (self->byte_limit));
      break;
    case PROP_STAGING_LIMIT:
      g_value_set_uint64 (value, EBB_READ (self->staging_limit));
      break;
    default:
      G_OBJECT_WARN_INVALID_PROPERTY_ID (object, id, pspec);
    }
}

static void
set_folder (EbbDiskStore *self,
            const char *folder)
{
  const char *system = g_getenv ("TMPDIR");

  g_free (self->folder);
  self->folder = g_strdup (folder ? folder : system && *system ? system
                                                               : "/var/tmp");
}

static void
ebb_disk_store_set_property (GObject *object,
                             guint id,
                             const GValue *value,
                             GParamSpec *pspec)
{
  EbbDiskStore *self = EBB_DISK_STORE (object);

  switch (id)
    {
    case PROP_FOLDER:
      set_folder (self, g_value_get_string (value));
      break;
    case PROP_BYTE_LIMIT:
      ebb_disk_store_set_byte_limit (self, g_value_get_uint64 (value));
      break;
    case PROP_STAGING_LIMIT:
      ebb_disk_store_set_staging_limit (self, g_value_get_uint64 (value));
      break;
    default:
      G_OBJECT_WARN_INVALID_PROPERTY_ID (object, id, pspec);
    }
}

static void
ebb_disk_store_finalize (GObject *object)
{
  EbbDiskStore *self = EBB_DISK_STORE (object);

  g_clear_pointer (&self->queue, ebb_disk_queue_unref);
  pthread_mutex_destroy (&self->lock);
  g_free (self->folder);
  G_OBJECT_CLASS (ebb_disk_store_parent_class)->finalize (object);
}

static void
ebb_disk_store_class_init (EbbDiskStoreClass *klass)
{
  EbbActivationStoreClass *store_class = EBB_ACTIVATION_STORE_CLASS (klass);
  GObjectClass *object_class = G_OBJECT_CLASS (klass);

  object_class->get_property = ebb_disk_store_get_property;
  object_class->set_property = ebb_disk_store_set_property;
  object_class->finalize = ebb_disk_store_finalize;
  store_class->put = ebb_disk_store_put;
  store_class->get = ebb_disk_store_get;
  store_class->prefetch = ebb_disk_store_prefetch;
  store_class->synchronize = ebb_disk_store_synchronize;
  store_class->reserve = ebb_disk_store_reserve;
  store_class->put_at = ebb_disk_store_put_at;

  /**
   * EbbDiskStore:folder:
   *
   * Where the file is made; `$TMPDIR` or `/var/tmp` if it is not set.
   */
  properties[PROP_FOLDER] = g_param_spec_string ("folder", NULL, NULL, NULL,
                                                 G_PARAM_READWRITE | G_PARAM_CONSTRUCT_ONLY | G_PARAM_STATIC_STRINGS);
  /**
   * EbbDiskStore:byte-limit:
   *
   * How large the file may become. What would make it larger is an error.
   */
  properties[PROP_BYTE_LIMIT] = g_param_spec_uint64 (
      "byte-limit", NULL, NULL, 0, G_MAXUINT64, G_MAXUINT64,
      G_PARAM_READWRITE | G_PARAM_STATIC_STRINGS | G_PARAM_EXPLICIT_NOTIFY);
  /**
   * EbbDiskStore:staging-limit:
   *
   * How much host memory, in bytes, what is on the way to the file may take.
   */
  properties[PROP_STAGING_LIMIT] = g_param_spec_uint64 (
      "staging-limit", NULL, NULL, 0, G_MAXUINT64, DEFAULT_STAGING,
      G_PARAM_READWRITE | G_PARAM_STATIC_STRINGS | G_PARAM_EXPLICIT_NOTIFY);
  g_object_class_install_properties (object_class, N_PROPS, properties);
}

static void
ebb_disk_store_init (EbbDiskStore *self)
{
  self->byte_limit = G_MAXUINT64;
  self->staging_limit = DEFAULT_STAGING;
  pthread_mutex_init (&self->lock, NULL);
}

/**
 * ebb_disk_store_new:
 * @folder: (type filename) (nullable): a folder that can be written; %NULL for `$TMPDIR`, or `/var/tmp`
 * @error: return location for an error
 *
 * Makes a store that keeps activations in a file in @folder.
 *
 * Returns: (transfer full) (type EbbDiskStore) (nullable): the store; %NULL with %EBB_ERROR_IO if no file can be made
 *   there
 */
EbbSavedTensorHooks *
ebb_disk_store_new (const char *folder,
                    GError **error)
{
  if (error != NULL && *error != NULL)
    return NULL;
  return g_initable_new (EBB_TYPE_DISK_STORE, NULL, error, "folder", folder, NULL);
}

/**
 * ebb_disk_store_get_folder:
 * @self: a disk store
 *
 * Returns: (type filename): where its file is
 */
const char *
ebb_disk_store_get_folder (EbbDiskStore *self)
{
  g_return_val_if_fail (EBB_IS_DISK_STORE (self), NULL);

  return self->folder;
}

/**
 * ebb_disk_store_get_byte_limit:
 * @self: a disk store
 *
 * Returns: how many bytes the file may have
 */
guint64
ebb_disk_store_get_byte_limit (EbbDiskStore *self)
{
  g_return_val_if_fail (EBB_IS_DISK_STORE (self), 0);

  return EBB_READ (self->byte_limit);
}

/**
 * ebb_disk_store_set_byte_limit:
 * @self: a disk store
 * @n_bytes: how many bytes the file may have; sizes in it are rounded up to 4096 bytes
 *
 * Sets a limit: a tensor that doesn't fit below it is an error (%EBB_ERROR_IO) where it is stored. What is stored
 * already stays.
 */
void
ebb_disk_store_set_byte_limit (EbbDiskStore *self,
                               guint64 n_bytes)
{
  g_return_if_fail (EBB_IS_DISK_STORE (self));

  if (EBB_READ (self->byte_limit) == n_bytes)
    return;
  EBB_WRITE (self->byte_limit, n_bytes);
  g_object_notify_by_pspec (G_OBJECT (self), properties[PROP_BYTE_LIMIT]);
}

/**
 * ebb_disk_store_get_staging_limit:
 * @self: a disk store
 *
 * Returns: how many bytes of host memory may be in use on the way to the file
 */
guint64
ebb_disk_store_get_staging_limit (EbbDiskStore *self)
{
  g_return_val_if_fail (EBB_IS_DISK_STORE (self), 0);

  return EBB_READ (self->staging_limit);
}

/**
 * ebb_disk_store_set_staging_limit:
 * @self: a disk store
 * @n_bytes: bytes of host memory, 32 MiB at first
 *
 * Sets how much host memory tensors may take on the way to the file, in pieces of up to 4 MiB. It is an upper bound:
 * beyond one piece, only what this module and the #EbbActivationStore:in-flight ones before it put stays at all. A
 * piece that has no place below the limit is written before the tensor counts as stored: with 0, each is.
 *
 * On the way back up to two pieces more are in use for each tensor that is being read.
 */
void
ebb_disk_store_set_staging_limit (EbbDiskStore *self,
                                  guint64 n_bytes)
{
  g_return_if_fail (EBB_IS_DISK_STORE (self));

  if (EBB_READ (self->staging_limit) == n_bytes)
    return;
  EBB_WRITE (self->staging_limit, n_bytes);
  g_object_notify_by_pspec (G_OBJECT (self), properties[PROP_STAGING_LIMIT]);
}
