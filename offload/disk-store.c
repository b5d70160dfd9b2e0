/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "offload/disk-store.h"

#include "offload/disk-file-private.h"
#include "tensor/tensor-private.h"

#include <gio/gio.h>
#include <pthread.h>

/**
 * EbbDiskStore:
 *
 * Keeps activations in a file: one in the given folder for each process, without a name, so that it goes with the
 * process however that ends. The space of tensors that nobody wants any more is used again.
 *
 * What is written bypasses the page cache where the file system allows, and a checksum is compared when it is read
 * back. A failure is one line with the folder and the bytes; the tensor that could not be stored is as it was, and so
 * is what was stored before.
 */
struct _EbbDiskStore
{
  EbbActivationStore parent_instance;

  char *folder;
  guint64 byte_limit;
  pthread_mutex_t lock;
  EbbDiskFile *file; /* under the lock; that of another process after a fork, until something is stored */
};

enum
{
  PROP_FOLDER = 1,
  PROP_BYTE_LIMIT,
  N_PROPS
};

static GParamSpec *properties[N_PROPS];

static void ebb_disk_store_initable_init (GInitableIface *iface);

G_DEFINE_FINAL_TYPE_WITH_CODE (EbbDiskStore,
                               ebb_disk_store,
                               EBB_TYPE_ACTIVATION_STORE,
                               G_IMPLEMENT_INTERFACE (G_TYPE_INITABLE, ebb_disk_store_initable_init))

typedef struct
{
  EbbDiskPart part;
  EbbDevice *device;
  gint64 n;
  EbbDType dtype;
} Record;

/* This process's file, with a new reference. */
static EbbDiskFile *
get_file (EbbDiskStore *self,
          GError **error)
{
  EbbDiskFile *file;

  pthread_mutex_lock (&self->lock);
  if (self->file != NULL && !ebb_disk_file_is_own (self->file))
    g_clear_pointer (&self->file, ebb_disk_file_unref);
  if (self->file == NULL)
    self->file = ebb_disk_file_new (self->folder, error);
  file = self->file ? ebb_disk_file_ref (self->file) : NULL;
  pthread_mutex_unlock (&self->lock);
  return file;
}

static void
record_free (gpointer data)
{
  Record *self = data;

  ebb_disk_part_clear (&self->part);
  g_free (self);
}

static EbbHandle *
ebb_disk_store_put (EbbActivationStore *store,
                    EbbTensor *block,
                    GError **error)
{
  EbbDiskStore *self = EBB_DISK_STORE (store);
  EbbDiskFile *file = get_file (self, error);
  Record record = { .device = block->storage->device, .n = block->n_elements, .dtype = block->view.dtype };
  gboolean ok;

  if (file == NULL)
    return NULL;
  ok = ebb_disk_file_write (file, self->byte_limit, record.device, block->view.data, ebb_tensor_get_n_bytes (block),
                            &record.part, error);
  ebb_disk_file_unref (file);
  return ok ? ebb_handle_new_for_data (g_memdup2 (&record, sizeof record), record_free) : NULL;
}

static EbbTensor *
ebb_disk_store_get (EbbActivationStore *store,
                    EbbHandle *handle,
                    GError **error)
{
  const Record *record = ebb_handle_get_data (handle);
  g_autoptr (EbbTensor) block = ebb_tensor_new_uninitialized (&record->n, 1, record->dtype, record->device, error);

  if (block == NULL || !ebb_disk_part_read (&record->part, record->device, block->view.data, error))
    return NULL;
  return g_steal_pointer (&block);
}

/* -- object -------------------------------------------------------------------------------------------------------- */

/* A folder that can't be used is found when the store is made. */
static gboolean
ebb_disk_store_initable_init_instance (GInitable *initable,
                                       GCancellable *cancellable,
                                       GError **error)
{
  EbbDiskFile *file = get_file (EBB_DISK_STORE (initable), error);

  if (file == NULL)
    return FALSE;
  ebb_disk_file_unref (file);
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
      g_value_set_uint64 (value, self->byte_limit);
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
    default:
      G_OBJECT_WARN_INVALID_PROPERTY_ID (object, id, pspec);
    }
}

static void
ebb_disk_store_finalize (GObject *object)
{
  EbbDiskStore *self = EBB_DISK_STORE (object);

  g_clear_pointer (&self->file, ebb_disk_file_unref);
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
  g_object_class_install_properties (object_class, N_PROPS, properties);
}

static void
ebb_disk_store_init (EbbDiskStore *self)
{
  self->byte_limit = G_MAXUINT64;
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

  return self->byte_limit;
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

  if (self->byte_limit == n_bytes)
    return;
  self->byte_limit = n_bytes;
  g_object_notify_by_pspec (G_OBJECT (self), properties[PROP_BYTE_LIMIT]);
}
