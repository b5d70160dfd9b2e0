/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "offload/host/store.h"

#include "offload/host/record-private.h"
#include "tensor/error-private.h"
#include "tensor/tensor-private.h"

/**
 * EbbHostStore:
 *
 * Keeps activations of an accelerator in host memory: they are copied there while computing goes on, and back before
 * backward needs them.
 *
 * A tensor that is in host memory already, as every tensor on the CPU is, stays where it is and is not copied: on the
 * CPU this store saves nothing.
 *
 * The memory of an original is given back at a fixed point of the program, see #EbbActivationStore:in-flight, so that
 * the peak of the device's memory is the same in every run; an original that backward asks for before is given as it
 * is. Host memory is taken from the system once and used again; ebb_host_store_trim() gives it back.
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

GType
ebb_when_full_get_type (void)
{
  static gsize type = 0;

  if (g_once_init_enter (&type))
    {
      static const GEnumValue values[] = { { EBB_WHEN_FULL_WAIT, "EBB_WHEN_FULL_WAIT", "wait" },
                                           { EBB_WHEN_FULL_SPILL, "EBB_WHEN_FULL_SPILL", "spill" },
                                           { EBB_WHEN_FULL_ERROR, "EBB_WHEN_FULL_ERROR", "error" },
                                           { 0, NULL, NULL } };

      g_once_init_leave (&type, g_enum_register_static ("EbbWhenFull", values));
    }
  return type;
}

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

static EbbHostRoom *
new_room (EbbHostStore *self,
          EbbDevice *device,
          gsize size,
          GError **error)
{
  double waited = 0;
  EbbHostRoom *room = ebb_host_room_new (self->pool, device, size, &waited, error);

  ebb_activation_store_count_seconds (EBB_ACTIVATION_STORE (self), 0, waited);
  return room;
}

static EbbHandle *
put (EbbHostStore *self,
     EbbHostRoom *room,
     gsize offset,
     EbbTensor *block,
     GError **error)
{
  EbbHostRecord *record = ebb_host_record_new (EBB_ACTIVATION_STORE (self), room, offset, block, error);

  return record ? ebb_handle_new_for_data (record, (GDestroyNotify) ebb_host_record_free) : NULL;
}

static EbbHandle *
ebb_host_store_put (EbbActivationStore *store,
                    EbbTensor *block,
                    GError **error)
{
  EbbHostStore *self = EBB_HOST_STORE (store);
  EbbHostRoom *room = new_room (self, block->storage->device, ebb_tensor_get_n_bytes (block), error);
  EbbHandle *handle;

  if (room == NULL)
    return NULL;
  handle = put (self, room, 0, block, error);
  ebb_host_room_unref (room);
  return handle;
}

static EbbTensor *
ebb_host_store_get (EbbActivationStore *store,
                    EbbHandle *handle,
                    GError **error)
{
  return ebb_host_record_get (ebb_handle_get_data (handle), error);
}

static void
ebb_host_store_prefetch (EbbActivationStore *store,
                         EbbHandle *handle)
{
  ebb_host_record_prefetch (ebb_handle_get_data (handle));
}

static EbbHandle *
ebb_host_store_reserve (EbbActivationStore *store,
                        EbbDevice *device,
                        guint64 n_bytes,
                        GError **error)
{
  EbbHostStore *self = EBB_HOST_STORE (store);
  EbbHostRoom *room = new_room (self, device, n_bytes, error);

  return room ? ebb_handle_new_for_data (room, (GDestroyNotify) ebb_host_room_unref) : NULL;
}

static EbbHandle *
ebb_host_store_put_at (EbbActivationStore *store,
                       EbbHandle *handle,
                       guint64 offset,
                       EbbTensor *block,
                       GError **error)
{
  EbbHostRoom *room = ebb_handle_get_data (handle);

  if (room->memory->device != block->storage->device)
    {
      g_set_error (error, EBB_ERROR, EBB_ERROR_DEVICE,
                   "put_at of EbbHostStore: a block on %s for a room that was reserved for %s",
                   ebb_device_get_name (block->storage->device), ebb_device_get_name (room->memory->device));
      return NULL;
    }
  return put (EBB_HOST_STORE (store), room, offset, block, error);
}

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
    case PROP_BYTE_LIMIT:
      g_value_set_uint64 (value, get_limit (self).n_bytes);
      break;
    case PROP_WHEN_FULL:
      g_value_set_enum (value, get_limit (self).when_full);
      break;
    case PROP_PATIENCE:
      g_value_set_double (value, get_limit (self).patience);
      break;
    default:
      G_OBJECT_WARN_INVALID_PROPERTY_ID (object, id, pspec);
    }
}

static void
ebb_host_store_set_property (GObject *object,
                             guint id,
                             const GValue *value,
                             GParamSpec *pspec)
{
  EbbHostStore *self = EBB_HOST_STORE (object);

  switch (id)
    {
    case PROP_BYTE_LIMIT:
      ebb_host_store_set_byte_limit (self, g_value_get_uint64 (value));
      break;
    case PROP_WHEN_FULL:
      ebb_host_store_set_when_full (self, g_value_get_enum (value));
      break;
    case PROP_PATIENCE:
      ebb_host_store_set_patience (self, g_value_get_double (value));
      break;
    default:
      G_OBJECT_WARN_INVALID_PROPERTY_ID (object, id, pspec);
    }
}

static void
ebb_host_store_finalize (GObject *object)
{
  ebb_host_pool_free (EBB_HOST_STORE (object)->pool);
  G_OBJECT_CLASS (ebb_host_store_parent_class)->finalize (object);
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
  store_class->get = ebb_host_store_get;
  store_class->prefetch = ebb_host_store_prefetch;
  store_class->reserve = ebb_host_store_reserve;
  store_class->put_at = ebb_host_store_put_at;

  /**
   * EbbHostStore:byte-limit:
   *
   * How much host memory may be used, what is kept for later included.
   */
  properties[PROP_BYTE_LIMIT] =
      g_param_spec_uint64 ("byte-limit", NULL, NULL, 0, G_MAXUINT64, G_MAXUINT64, flags);
  /**
   * EbbHostStore:when-full:
   *
   * What becomes of a tensor that finds no room below the limit. At first it waits for other threads, see
   * ebb_host_store_set_when_full(): where one thread uses the store there is nobody to wait for, so that it goes to the
   * fallback at once, or is an error if there is none.
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

/* -- settings ------------------------------------------------------------------------------------------------------ */

/* They stand together in the pool, where two threads that each set one would else undo what the other did. */
static pthread_mutex_t setting = PTHREAD_MUTEX_INITIALIZER;

/**
 * ebb_host_store_get_byte_limit:
 * @self: a host store
 *
 * Returns: how many bytes of host memory may be used
 */
guint64
ebb_host_store_get_byte_limit (EbbHostStore *self)
{
  g_return_val_if_fail (EBB_IS_HOST_STORE (self), 0);

  return get_limit (self).n_bytes;
}

/**
 * ebb_host_store_set_byte_limit:
 * @self: a host store
 * @n_bytes: how many bytes of host memory may be used
 *
 * Sets a limit; see #EbbHostStore:when-full for what becomes of a tensor that would go beyond. What is stored already
 * stays.
 */
void
ebb_host_store_set_byte_limit (EbbHostStore *self,
                               guint64 n_bytes)
{
  EbbHostLimit limit;
  gboolean changes;

  g_return_if_fail (EBB_IS_HOST_STORE (self));

  pthread_mutex_lock (&setting);
  limit = get_limit (self);
  changes = limit.n_bytes != n_bytes;
  limit.n_bytes = n_bytes;
  ebb_host_pool_set_limit (self->pool, &limit);
  pthread_mutex_unlock (&setting);
  if (changes)
    g_object_notify_by_pspec (G_OBJECT (self), properties[PROP_BYTE_LIMIT]);
}

/**
 * ebb_host_store_get_when_full:
 * @self: a host store
 *
 * Returns: what becomes of a tensor that finds no room
 */
EbbWhenFull
ebb_host_store_get_when_full (EbbHostStore *self)
{
  g_return_val_if_fail (EBB_IS_HOST_STORE (self), EBB_WHEN_FULL_WAIT);

  return get_limit (self).when_full;
}

/**
 * ebb_host_store_set_when_full:
 * @self: a host store
 * @when_full: what becomes of a tensor that finds no room
 *
 * To wait, the default, means for other threads that use this store: memory that this thread stops using can be used
 * again at once. Waiting that could never end, as all memory is held by this thread or by threads that wait themselves,
 * is no waiting.
 */
void
ebb_host_store_set_when_full (EbbHostStore *self,
                              EbbWhenFull when_full)
{
  EbbHostLimit limit;
  gboolean changes;

  g_return_if_fail (EBB_IS_HOST_STORE (self));

  pthread_mutex_lock (&setting);
  limit = get_limit (self);
  changes = limit.when_full != when_full;
  limit.when_full = when_full;
  ebb_host_pool_set_limit (self->pool, &limit);
  ebb_activation_store_set_spills (EBB_ACTIVATION_STORE (self), when_full != EBB_WHEN_FULL_ERROR);
  pthread_mutex_unlock (&setting);
  if (changes)
    g_object_notify_by_pspec (G_OBJECT (self), properties[PROP_WHEN_FULL]);
}

/**
 * ebb_host_store_get_patience:
 * @self: a host store
 *
 * Returns: how many seconds a thread waits for others
 */
double
ebb_host_store_get_patience (EbbHostStore *self)
{
  g_return_val_if_fail (EBB_IS_HOST_STORE (self), 0);

  return get_limit (self).patience;
}

/**
 * ebb_host_store_set_patience:
 * @self: a host store
 * @seconds: how long a thread waits for others, 60 at first
 *
 * Sets how long a tensor waits for room; then it is as if there were nobody to wait for.
 */
void
ebb_host_store_set_patience (EbbHostStore *self,
                             double seconds)
{
  EbbHostLimit limit;
  gboolean changes;

  g_return_if_fail (EBB_IS_HOST_STORE (self) && seconds >= 0);

  pthread_mutex_lock (&setting);
  limit = get_limit (self);
  changes = limit.patience != seconds;
  limit.patience = seconds;
  ebb_host_pool_set_limit (self->pool, &limit);
  pthread_mutex_unlock (&setting);
  if (changes)
    g_object_notify_by_pspec (G_OBJECT (self), properties[PROP_PATIENCE]);
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
  if (!EBB_MAY_BEGIN (error, self))
    return FALSE;
  return ebb_host_pool_trim (self->pool, error);
}
