/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "offload/disk/store.h"

#include "offload/disk/block-private.h"
#include "tensor/thread-private.h"

#include <gio/gio.h>
#include <pthread.h>

#define DEFAULT_STAGING (32ul << 20)

/**
 * EbbDiskStore:
 *
 * Keeps activations in a file: one in the given folder for each process, without a name, so that the system frees it
 * with the process, however that ends. The space of dropped tensors is used again.
 *
 * A thread of the store writes and reads, overlapped with computing. A tensor that is put is first copied to staging
 * memory. The tensors of this module and of the #EbbActivationStore:in-flight ones before it stay there, or one piece
 * of 4 MiB if that is more, and at most #EbbDiskStore:staging-limit bytes; older tensors leave it, and put waits until
 * they are written. So the memory in use is the same in every run, however fast the disk is. A tensor that is still
 * there when backward asks for it is not read from the file.
 *
 * Writes bypass the page cache where the file system allows, and a checksum is compared when bytes are read back. A
 * failure is one line with the folder and the bytes. A tensor that could not be stored is as it was. Where a write
 * fails that no caller waits for, the bytes are in staging memory and can be had back, and the next tensor that is put
 * is refused with that error. A disk that fails again and again is left alone: put refuses every tensor at once, until
 * ebb_activation_store_synchronize() tries again.
 */
struct _EbbDiskStore
{
  EbbActivationStore parent_instance;

  char *folder;
  guint64 byte_limit;
  guint64 staging_limit;
  pthread_mutex_t lock;
  EbbDiskQueue *queue;     /* under the lock; that of another process after a fork, until something is stored */
  EbbDiskQueue *dry_queue; /* of the dry run that this store takes part in, until that ends; nothing is written */
};

static void ebb_disk_store_initable_init (GInitableIface *iface);

G_DEFINE_FINAL_TYPE_WITH_CODE (EbbDiskStore,
                               ebb_disk_store,
                               EBB_TYPE_ACTIVATION_STORE,
                               G_IMPLEMENT_INTERFACE (G_TYPE_INITABLE, ebb_disk_store_initable_init))

static EbbDiskQueue *
get_dry_queue (EbbDiskStore *self,
               GError **error)
{
  if (self->dry_queue == NULL)
    self->dry_queue = ebb_disk_queue_new (self->folder, error);
  return self->dry_queue != NULL ? ebb_disk_queue_ref (self->dry_queue) : NULL;
}

static void
end_dry_run (EbbActivationStore *store)
{
  g_clear_pointer (&EBB_DISK_STORE (store)->dry_queue, ebb_disk_queue_unref);
}

/* This process's queue, with a new reference. */
static EbbDiskQueue *
get_queue (EbbDiskStore *self,
           GError **error)
{
  if (ebb_is_dry ())
    return get_dry_queue (self, error);
  EBB_AUTO_LOCK (&self->lock);
  if (self->queue != NULL && !ebb_worker_is_own (&self->queue->worker))
    g_clear_pointer (&self->queue, ebb_disk_queue_unref);
  if (self->queue == NULL)
    self->queue = ebb_disk_queue_new (self->folder, error);
  return self->queue ? ebb_disk_queue_ref (self->queue) : NULL;
}

static EbbDiskSpace *
take_space (EbbDiskStore *self,
            guint64 n_bytes,
            GError **error)
{
  EbbDiskQueue *queue = get_queue (self, error);
  EbbDiskSpace *space;

  if (queue == NULL)
    return NULL;
  space = ebb_disk_space_new (queue, n_bytes, EBB_READ (self->byte_limit), error);
  ebb_disk_queue_unref (queue);
  return space;
}

static EbbHandle *
put (EbbDiskStore *self,
     EbbDiskSpace *space,
     guint64 offset,
     EbbTensor *source,
     GError **error)
{
  EbbDiskBlock *block = ebb_disk_block_new (EBB_ACTIVATION_STORE (self), space, offset, source, error);
  gboolean ok = block != NULL && ebb_disk_block_put (block, source, EBB_READ (self->staging_limit), error);

  ebb_disk_count_seconds (EBB_ACTIVATION_STORE (self), space->queue);
  if (ok)
    return &block->base.handle;
  ebb_handle_unref ((EbbHandle *) block);
  return NULL;
}

static EbbHandle *
ebb_disk_store_put (EbbActivationStore *store,
                    EbbTensor *block,
                    GError **error)
{
  EbbDiskStore *self = EBB_DISK_STORE (store);
  EbbDiskSpace *space = take_space (self, ebb_tensor_get_n_bytes (block), error);
  EbbHandle *handle;

  if (space == NULL)
    return NULL;
  handle = put (self, space, 0, block, error);
  ebb_disk_space_unref (space);
  return handle;
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
  ebb_disk_count_seconds (store, queue);
  ebb_disk_queue_unref (queue);
  return ok;
}

typedef struct
{
  EbbStoredBlock base;
  EbbDiskSpace *space;
} DiskRoom;

static void
room_clear (EbbStoredBlock *self)
{
  ebb_disk_space_unref (((DiskRoom *) self)->space);
}

static EbbHandle *
ebb_disk_store_reserve (EbbActivationStore *store,
                        EbbDevice *device,
                        guint64 n_bytes,
                        GError **error)
{
  static const EbbStoredBlockFuncs funcs = { sizeof (DiskRoom), NULL, NULL, room_clear };
  EbbDiskSpace *space = take_space (EBB_DISK_STORE (store), n_bytes, error);
  DiskRoom *room;

  if (space == NULL)
    return NULL;
  space->is_room = TRUE;
  room = ebb_stored_block_new (&funcs, store);
  room->space = space;
  return &room->base.handle;
}

static EbbHandle *
ebb_disk_store_put_at (EbbActivationStore *store,
                       EbbHandle *handle,
                       guint64 offset,
                       EbbTensor *block,
                       GError **error)
{
  return put (EBB_DISK_STORE (store), ((DiskRoom *) handle)->space, offset, block, error);
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
  if (id == offsetof (EbbDiskStore, folder))
    set_folder (EBB_DISK_STORE (object), g_value_get_string (value));
  else
    ebb_setting_set_property (object, id, value, pspec);
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

  object_class->get_property = ebb_setting_get_property;
  object_class->set_property = ebb_disk_store_set_property;
  object_class->finalize = ebb_disk_store_finalize;
  store_class->put = ebb_disk_store_put;
  store_class->synchronize = ebb_disk_store_synchronize;
  store_class->end_dry_run = end_dry_run;
  store_class->reserve = ebb_disk_store_reserve;
  store_class->put_at = ebb_disk_store_put_at;

  /**
   * EbbDiskStore:folder:
   *
   * Where the file is made; `$TMPDIR` or `/var/tmp` if it is not set.
   */
  g_object_class_install_property (
      object_class, offsetof (EbbDiskStore, folder),
      g_param_spec_string ("folder", NULL, NULL, NULL,
                           G_PARAM_READWRITE | G_PARAM_CONSTRUCT_ONLY | G_PARAM_STATIC_STRINGS));
  /**
   * EbbDiskStore:byte-limit:
   *
   * How large the file may become, in bytes; sizes in it are rounded up to 4096 bytes. A tensor that does not fit is an
   * error (%EBB_ERROR_IO) where it is stored.
   */
  g_object_class_install_property (
      object_class, offsetof (EbbDiskStore, byte_limit),
      g_param_spec_uint64 ("byte-limit", NULL, NULL, 0, G_MAXUINT64, G_MAXUINT64,
                           G_PARAM_READWRITE | G_PARAM_STATIC_STRINGS | G_PARAM_EXPLICIT_NOTIFY));
  /**
   * EbbDiskStore:staging-limit:
   *
   * How much host memory, in bytes, tensors on the way to the file may take, in pieces of up to 4 MiB. A piece that has
   * no space below the limit is written before the tensor counts as stored: with 0, each is. On the way back up to two
   * more pieces are in use for each tensor that is being read.
   */
  g_object_class_install_property (
      object_class, offsetof (EbbDiskStore, staging_limit),
      g_param_spec_uint64 ("staging-limit", NULL, NULL, 0, G_MAXUINT64, DEFAULT_STAGING,
                           G_PARAM_READWRITE | G_PARAM_STATIC_STRINGS | G_PARAM_EXPLICIT_NOTIFY));
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
