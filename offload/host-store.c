/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "offload/host-store.h"

#include "offload/transfer-private.h"
#include "tensor/tensor-private.h"

/**
 * EbbHostStore:
 *
 * Keeps activations of an accelerator in host memory: they are copied there, and back when backward needs them.
 *
 * A tensor that is in host memory already, as every tensor on the CPU is, stays where it is and is not copied: on the
 * CPU this store saves nothing.
 */
struct _EbbHostStore
{
  EbbActivationStore parent_instance;
};

G_DEFINE_FINAL_TYPE (EbbHostStore, ebb_host_store, EBB_TYPE_ACTIVATION_STORE)

typedef struct
{
  EbbHandle *copy; /* of a tensor on the CPU */
  EbbDevice *device;
} Record;

static void
record_free (gpointer data)
{
  Record *self = data;

  ebb_handle_unref (self->copy);
  g_free (self);
}

static gboolean
ebb_host_store_moves (EbbActivationStore *store,
                      EbbDevice *device)
{
  return !device->backend->host_memory;
}

static EbbHandle *
ebb_host_store_put (EbbActivationStore *store,
                    EbbTensor *block,
                    GError **error)
{
  EbbDevice *device = block->storage->device;
  g_autoptr (EbbTensor) copy = ebb_tensor_new_uninitialized (block->view.shape, 1, block->view.dtype, NULL, error);
  Record *record;

  if (copy == NULL
      || !ebb_transfer_to_host (device, copy->view.data, block->view.data, ebb_tensor_get_n_bytes (block), error))
    return NULL;
  record = g_new0 (Record, 1);
  record->copy = ebb_handle_new (copy);
  record->device = device;
  return ebb_handle_new_for_data (record, record_free);
}

static EbbTensor *
ebb_host_store_get (EbbActivationStore *store,
                    EbbHandle *handle,
                    GError **error)
{
  const Record *record = ebb_handle_get_data (handle);
  g_autoptr (EbbTensor) copy = ebb_handle_get_tensor (record->copy);
  g_autoptr (EbbTensor) block = ebb_tensor_new_uninitialized (copy->view.shape, 1, copy->view.dtype, record->device,
                                                              error);

  if (block == NULL
      || !ebb_transfer_from_host (record->device, block->view.data, copy->view.data, ebb_tensor_get_n_bytes (copy),
                                  error))
    return NULL;
  return g_steal_pointer (&block);
}

static void
ebb_host_store_class_init (EbbHostStoreClass *klass)
{
  EbbActivationStoreClass *store_class = EBB_ACTIVATION_STORE_CLASS (klass);

  store_class->moves = ebb_host_store_moves;
  store_class->put = ebb_host_store_put;
  store_class->get = ebb_host_store_get;
}

static void
ebb_host_store_init (EbbHostStore *self)
{
}

/**
 * ebb_host_store_new:
 *
 * Makes a store that copies an accelerator's tensors to host memory. Tensors on the CPU stay where they are.
 *
 * Returns: (transfer full) (type EbbHostStore): the store
 */
EbbSavedTensorHooks *
ebb_host_store_new (void)
{
  return g_object_new (EBB_TYPE_HOST_STORE, NULL);
}

/**
 * ebb_host_store_get_default:
 *
 * The store that a program uses when it needs no own one; see ebb_host_store_new().
 *
 * Returns: (transfer none) (type EbbHostStore): the store, which lives as long as the process
 */
EbbSavedTensorHooks *
ebb_host_store_get_default (void)
{
  static gsize store;

  if (g_once_init_enter (&store))
    g_once_init_leave (&store, (gsize) ebb_host_store_new ());
  return (EbbSavedTensorHooks *) store;
}
