/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "offload/host/store.h"

#include "offload/activation-store-private.h"
#include "offload/host/pool-private.h"
#include "tensor/error-private.h"
#include "tensor/tensor-private.h"

/**
 * EbbHostStore:
 *
 * Keeps activations of an accelerator in host memory: they are copied there and back, overlapped with computing.
 *
 * A tensor that is in host memory already, as every tensor on the CPU is, stays where it is and is not copied: on the
 * CPU this store saves nothing.
 *
 * The source of a copy is freed at a fixed point of the program, see #EbbActivationStore:in-flight, so that the peak of
 * the device's memory is the same in every run; if backward asks for it before that, it gets the source itself.
 *
 * Host memory is taken from the system once and used again, so a step whose sizes repeat takes none. Tensors whose
 * sizes keep changing don't add up: a store has at most 96 MiB, or 5 % if that is more, beyond the most bytes that it
 * has held at one time. ebb_host_store_trim() gives back all that holds nothing.
 */
struct _EbbHostStore
{
  EbbActivationStore parent_instance;

  EbbHostPool *pool;
};

enum
{
  PROP_BYTE_LIMIT = 1,
  PROP_WHEN_FULL,
  PROP_PATIENCE,
  N_PROPS
};

static GParamSpec *properties[N_PROPS];

G_DEFINE_FINAL_TYPE (EbbHostStore, ebb_host_store, EBB_TYPE_ACTIVATION_STORE)

G_DEFINE_ENUM_TYPE (EbbWhenFull,
                    ebb_when_full,
                    G_DEFINE_ENUM_VALUE (EBB_WHEN_FULL_WAIT, "wait"),
                    G_DEFINE_ENUM_VALUE (EBB_WHEN_FULL_SPILL, "spill"),
                    G_DEFINE_ENUM_VALUE (EBB_WHEN_FULL_ERROR, "error"))

static EbbHostLimit
get_limit (EbbHostStore *self)
{
  EbbHostLimit limit;

  ebb_host_pool_get_limit (self->pool, &limit);
  return limit;
}

/* -- the store ----------------------------------------------------------------------------------------------------- */

static gboolean
ebb_host_store_moves (EbbActivationStore *store,
                      EbbDevice *device)
{
  return !device->backend->host_memory;
}

/* A block of a device's memory in host memory: its copy there, and the way back. */
typedef struct
{
  EbbStoredBlock base;
  EbbHostBuffer *buffer;
  gsize offset; /* bytes of the buffer */
  EbbDevice *device;
  gint64 n_elements;
  EbbDType dtype;
  EbbTransfer *out; /* of the device's memory */
  EbbInFlight *source;
  pthread_mutex_t lock;
  /* under the lock: what a prefetch has begun */
  EbbTensor *ahead;
  EbbTransfer *in;
} HostBlock;

typedef struct
{
  EbbStoredBlock base;
  EbbHostBuffer *buffer;
} HostRoom;

static EbbHostBuffer *
take_buffer (EbbActivationStore *store,
             EbbDevice *device,
             gsize size,
             GError **error)
{
  double waited = 0;
  EbbHostBuffer *buffer = ebb_host_pool_take (EBB_HOST_STORE (store)->pool, device, size, &waited, error);

  if (waited > 0)
    ebb_activation_store_count_seconds (store, 0, waited);
  return buffer;
}

/* Notes a copy that has begun, for the counters and for the next user of the host memory. */
static void
note (HostBlock *self,
      EbbTransfer *transfer,
      gboolean to_host)
{
  ebb_host_buffer_note (self->buffer, transfer, to_host);
  ebb_activation_store_count_transfer (self->base.store, transfer);
}

static const EbbStoredBlockFuncs block_funcs, room_funcs;

/* Begins to copy @block to byte @offset of @buffer. */
static EbbHandle *
put (EbbActivationStore *store,
     EbbHostBuffer *buffer,
     gsize offset,
     EbbTensor *block,
     GError **error)
{
  EbbDevice *device = block->storage->device;
  EbbTransfer *reader = ebb_host_buffer_get_reader (buffer);
  EbbTransfer *out = ebb_transfer_to_host_begin (device, (char *) buffer->data + offset, block->view.data,
                                                 ebb_tensor_get_n_bytes (block), reader, error);
  HostBlock *self;

  g_clear_pointer (&reader, ebb_transfer_unref);
  if (out == NULL)
    return NULL;
  self = ebb_stored_block_new (&block_funcs, store);
  self->buffer = ebb_host_buffer_ref (buffer);
  self->offset = offset;
  self->device = device;
  self->n_elements = block->n_elements;
  self->dtype = block->view.dtype;
  self->out = out;
  pthread_mutex_init (&self->lock, NULL);
  note (self, out, TRUE);
  self->source = ebb_activation_store_hold (store, block, out);
  return &self->base.handle;
}

static EbbHandle *
ebb_host_store_put (EbbActivationStore *store,
                    EbbTensor *block,
                    GError **error)
{
  EbbHostBuffer *buffer = take_buffer (store, block->storage->device, ebb_tensor_get_n_bytes (block), error);
  EbbHandle *handle;

  if (buffer == NULL)
    return NULL;
  handle = put (store, buffer, 0, block, error);
  ebb_host_buffer_unref (buffer);
  return handle;
}

static EbbHandle *
ebb_host_store_reserve (EbbActivationStore *store,
                        EbbDevice *device,
                        guint64 n_bytes,
                        GError **error)
{
  EbbHostBuffer *buffer = take_buffer (store, device, n_bytes, error);
  HostRoom *room;

  if (buffer == NULL)
    return NULL;
  room = ebb_stored_block_new (&room_funcs, store);
  room->buffer = buffer;
  return &room->base.handle;
}

static EbbHandle *
ebb_host_store_put_at (EbbActivationStore *store,
                       EbbHandle *handle,
                       guint64 offset,
                       EbbTensor *block,
                       GError **error)
{
  EbbHostBuffer *buffer = ((HostRoom *) handle)->buffer;

  if (buffer->device != block->storage->device)
    return ebb_fail_null (error, EBB_ERROR_DEVICE,
                          "put_at of EbbHostStore: a block on %s for a room that was reserved for %s",
                          ebb_device_get_name (block->storage->device), ebb_device_get_name (buffer->device));
  return put (store, buffer, offset, block, error);
}

/* -- back ---------------------------------------------------------------------------------------------------------- */

static EbbTensor *
bring (HostBlock *self,
       EbbTransfer **in,
       GError **error)
{
  g_autoptr (EbbTensor) block =
      ebb_tensor_new_uninitialized (&self->n_elements, 1, self->dtype, self->device, error);

  if (block == NULL)
    return NULL;
  *in = ebb_transfer_from_host_begin (self->device, block->view.data, (char *) self->buffer->data + self->offset,
                                      ebb_tensor_get_n_bytes (block), self->out, error);
  if (*in == NULL)
    return NULL;
  note (self, *in, FALSE);
  return g_steal_pointer (&block);
}

static EbbTensor *
take_ahead (HostBlock *self,
            EbbTransfer **in)
{
  EBB_AUTO_LOCK (&self->lock);
  *in = g_steal_pointer (&self->in);
  return g_steal_pointer (&self->ahead);
}

/* Memory that a copy may still write to is given back: computing, which may get it next, comes after the copy. */
static void
drop (EbbTensor *block,
      EbbTransfer *in)
{
  if (block == NULL)
    return;
  ebb_transfer_settle (in);
  ebb_transfer_unref (in);
  ebb_tensor_unref (block);
}

static void
prefetch (EbbStoredBlock *base)
{
  HostBlock *self = (HostBlock *) base;
  EbbTransfer *in = NULL;
  EbbTensor *block;

  if (ebb_in_flight_is_held (self->source))
    return;
  block = take_ahead (self, &in);
  /* Where there is no memory yet, there may be when it is asked for; get returns any other failure. */
  if (block == NULL)
    block = bring (self, &in, NULL);
  pthread_mutex_lock (&self->lock);
  if (self->ahead == NULL)
    {
      self->ahead = g_steal_pointer (&block);
      self->in = g_steal_pointer (&in);
    }
  pthread_mutex_unlock (&self->lock);
  drop (block, in);
}

/* The block, which computing may use from now on. */
static EbbTensor *
get (EbbStoredBlock *base,
     GError **error)
{
  HostBlock *self = (HostBlock *) base;
  EbbTensor *block = ebb_in_flight_get (self->source);
  EbbTransfer *in;

  if (block != NULL)
    return block;
  block = take_ahead (self, &in);
  if (block == NULL)
    block = bring (self, &in, error);
  if (block == NULL)
    return NULL;
  if (ebb_transfer_order (in, error))
    {
      ebb_transfer_unref (in);
      return block;
    }
  drop (block, in);
  return NULL;
}

static void
block_clear (EbbStoredBlock *base)
{
  HostBlock *self = (HostBlock *) base;

  ebb_in_flight_free (self->source);
  drop (self->ahead, self->in);
  ebb_transfer_unref (self->out);
  ebb_host_buffer_unref (self->buffer);
  pthread_mutex_destroy (&self->lock);
}

static void
room_clear (EbbStoredBlock *base)
{
  ebb_host_buffer_unref (((HostRoom *) base)->buffer);
}

static const EbbStoredBlockFuncs block_funcs = { sizeof (HostBlock), get, prefetch, block_clear };
static const EbbStoredBlockFuncs room_funcs = { sizeof (HostRoom), NULL, NULL, room_clear };

/* -- object -------------------------------------------------------------------------------------------------------- */

static void
ebb_host_store_get_property (GObject *object,
                             guint id,
                             GValue *value,
                             GParamSpec *pspec)
{
  EbbHostStore *self = EBB_HOST_STORE (object);

  switch (id)
    {
    case PROP_BYTE_LIMIT: g_value_set_uint64 (value, get_limit (self).n_bytes); break;
    case PROP_WHEN_FULL: g_value_set_enum (value, get_limit (self).when_full); break;
    case PROP_PATIENCE: g_value_set_double (value, get_limit (self).patience); break;
    default: G_OBJECT_WARN_INVALID_PROPERTY_ID (object, id, pspec);
    }
}

static void
ebb_host_store_set_property (GObject *object,
                             guint id,
                             const GValue *value,
                             GParamSpec *pspec)
{
  static pthread_mutex_t setting = PTHREAD_MUTEX_INITIALIZER; /* two threads could else undo each other's change */
  EbbHostStore *self = EBB_HOST_STORE (object);
  EbbHostLimit limit, before;

  pthread_mutex_lock (&setting);
  limit = before = get_limit (self);
  switch (id)
    {
    case PROP_BYTE_LIMIT: limit.n_bytes = g_value_get_uint64 (value); break;
    case PROP_WHEN_FULL:
      limit.when_full = g_value_get_enum (value);
      ebb_activation_store_set_spills (EBB_ACTIVATION_STORE (self), limit.when_full != EBB_WHEN_FULL_ERROR);
      break;
    case PROP_PATIENCE: limit.patience = g_value_get_double (value); break;
    default: G_OBJECT_WARN_INVALID_PROPERTY_ID (object, id, pspec);
    }
  ebb_host_pool_set_limit (self->pool, &limit);
  pthread_mutex_unlock (&setting);
  if (limit.n_bytes != before.n_bytes || limit.when_full != before.when_full || limit.patience != before.patience)
    g_object_notify_by_pspec (object, pspec);
}

static void
ebb_host_store_finalize (GObject *object)
{
  ebb_host_pool_free (EBB_HOST_STORE (object)->pool);
  G_OBJECT_CLASS (ebb_host_store_parent_class)->finalize (object);
}

static void
end_dry_run (EbbActivationStore *store)
{
  ebb_host_pool_end_dry_run (EBB_HOST_STORE (store)->pool);
}

static void
ebb_host_store_class_init (EbbHostStoreClass *klass)
{
  const GParamFlags flags = G_PARAM_READWRITE | G_PARAM_STATIC_STRINGS | G_PARAM_EXPLICIT_NOTIFY;
  EbbActivationStoreClass *store_class = EBB_ACTIVATION_STORE_CLASS (klass);
  GObjectClass *object_class = G_OBJECT_CLASS (klass);

  object_class->get_property = ebb_host_store_get_property;
  object_class->set_property = ebb_host_store_set_property;
  object_class->finalize = ebb_host_store_finalize;
  store_class->moves = ebb_host_store_moves;
  store_class->put = ebb_host_store_put;
  store_class->end_dry_run = end_dry_run;
  store_class->reserve = ebb_host_store_reserve;
  store_class->put_at = ebb_host_store_put_at;

  /**
   * EbbHostStore:byte-limit:
   *
   * How much host memory, in bytes, may be used, memory kept for later included.
   */
  properties[PROP_BYTE_LIMIT] =
      g_param_spec_uint64 ("byte-limit", NULL, NULL, 0, G_MAXUINT64, G_MAXUINT64, flags);
  /**
   * EbbHostStore:when-full:
   *
   * The treatment of a tensor that finds no room below the limit. At first it waits for other threads that use this
   * store: memory that this thread stops using can be used again at once. Where waiting could never end, since all
   * memory is held by this thread or by threads that wait themselves, the tensor goes to the fallback at once, or is an
   * error if there is none.
   */
  properties[PROP_WHEN_FULL] =
      g_param_spec_enum ("when-full", NULL, NULL, EBB_TYPE_WHEN_FULL, EBB_WHEN_FULL_WAIT, flags);
  /**
   * EbbHostStore:patience:
   *
   * How many seconds a thread waits for another one to give memory back, with %EBB_WHEN_FULL_WAIT.
   */
  properties[PROP_PATIENCE] = g_param_spec_double ("patience", NULL, NULL, 0, G_MAXDOUBLE, EBB_HOST_PATIENCE, flags);
  g_object_class_install_properties (object_class, N_PROPS, properties);
}

static void
ebb_host_store_init (EbbHostStore *self)
{
  self->pool = ebb_host_pool_new ();
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

/**
 * ebb_host_store_get_bytes_reserved:
 * @self: a host store
 *
 * Returns: how many bytes of host memory the store has taken from the system, in use or kept for later
 */
guint64
ebb_host_store_get_bytes_reserved (EbbHostStore *self)
{
  guint64 in_use, kept;

  g_return_val_if_fail (EBB_IS_HOST_STORE (self), 0);

  ebb_host_pool_get_bytes (self->pool, &in_use, &kept);
  return in_use + kept;
}

/**
 * ebb_host_store_trim:
 * @self: a host store
 * @error: return location for an error
 *
 * Gives host memory that is kept for later back to the system.
 *
 * Returns: %FALSE with an error if a copy that was waited for has failed; the memory is given back all the same
 */
gboolean
ebb_host_store_trim (EbbHostStore *self,
                     GError **error)
{
  EBB_RETURN_UNLESS_BEGUN (FALSE, error, self);
  return ebb_host_pool_trim (self->pool, error);
}
