/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "offload/shared-block-private.h"

#include "tensor/autograd/autograd-private.h"
#include "tensor/backend/backend-private.h"
#include "tensor/thread-private.h"

/* The base class of stores as hooks: which saved tensors are stored, and how their handles lead back to them. */

G_DEFINE_ABSTRACT_TYPE_WITH_PRIVATE (EbbActivationStore, ebb_activation_store, EBB_TYPE_SAVED_TENSOR_HOOKS)

#define DEFAULT_LEAST_SIZE (64 * 1024)
#define PRIVATE(self) ((EbbActivationStorePrivate *) ebb_activation_store_get_instance_private (self))

/* The handle that pack returns: how the tensor looked, and where its bytes are. */
typedef struct
{
  EbbHandle handle; /* keeps the tensor itself, if the block stays in place */
  EbbSharedBlock *block;
  EbbView view;
  gsize offset; /* bytes, from the block's start */
  gboolean is_local_shard;
} PackedHandle;

EbbActivationStorePrivate *
ebb_activation_store_peek (EbbActivationStore *self)
{
  return PRIVATE (self);
}

void
ebb_activation_store_lock (EbbActivationStore *self)
{
  pthread_mutex_lock (&PRIVATE (self)->lock);
}

void
ebb_activation_store_unlock (EbbActivationStore *self)
{
  pthread_mutex_unlock (&PRIVATE (self)->lock);
}

void
ebb_activation_store_set_shards (EbbActivationStore *self)
{
  PRIVATE (self)->shards = TRUE;
}

void
ebb_activation_store_count_held (EbbActivationStore *self,
                                 gint64 n_bytes)
{
  EbbStoreCounters *counters = &PRIVATE (self)->counters;

  ebb_activation_store_lock (self);
  counters->held += (guint64) n_bytes;
  counters->peak = MAX (counters->peak, counters->held);
  ebb_activation_store_unlock (self);
}

/* -- saved tensors ------------------------------------------------------------------------------------------------- */

/* Tensors of the model or the optimizer, those whose memory code outside looks at, and small ones stay as they are.
 * After the early stop of a recompute no tensor will be asked for. */
static gboolean
is_worth_storing (EbbActivationStore *self,
                  EbbTensor *tensor,
                  GError **error)
{
  const EbbStorage *storage = tensor->storage;
  const EbbPurpose purpose = ebb_storage_get_purpose (storage);

  return !tensor->is_parameter && !tensor->is_buffer && !storage->placeholder && !storage->pinned && !ebb_is_stopped ()
         && (purpose == EBB_PURPOSE_WORKSPACE || purpose == EBB_PURPOSE_ACTIVATION)
         && tensor->n_elements > 0 && ebb_tensor_get_n_bytes (tensor) >= EBB_READ (PRIVATE (self)->least_size)
         && ebb_activation_store_passes_filter (self, tensor, error);
}

static void
packed_handle_clear (gpointer data)
{
  ebb_shared_block_leave (((PackedHandle *) data)->block);
}

static EbbHandle *
pack_block (EbbActivationStore *self,
            EbbTensor *tensor,
            gboolean *in_place,
            GError **error)
{
  EbbSharedBlock *block = ebb_shared_block_enter (self, tensor, error);
  PackedHandle *packed;

  if (block == NULL)
    return NULL;
  *in_place = block->key.in_place;
  packed = ebb_handle_alloc (sizeof *packed, packed_handle_clear);
  packed->block = block;
  packed->view = tensor->view;
  packed->view.data = NULL;
  packed->is_local_shard = tensor->is_local_shard;
  packed->offset = (gsize) tensor->offset * ebb_dtype_get_size (tensor->view.dtype) - block->key.start;
  if (*in_place)
    ebb_handle_keep (&packed->handle, tensor);
  return &packed->handle;
}

static EbbHandle *
ebb_activation_store_pack (EbbSavedTensorHooks *hooks,
                           EbbTensor *tensor,
                           GError **error)
{
  EbbActivationStore *self = EBB_ACTIVATION_STORE (hooks);
  GError *local = NULL;
  gboolean stores = is_worth_storing (self, tensor, &local), in_place = TRUE;
  EbbHandle *handle = NULL;

  if (local != NULL)
    g_propagate_error (error, local);
  else
    handle = stores ? pack_block (self, tensor, &in_place, error) : ebb_handle_new (tensor);
  if (handle == NULL)
    return NULL;
  ebb_activation_store_lock (self);
  PRIVATE (self)->counters.n_packed++;
  PRIVATE (self)->counters.n_kept += in_place;
  ebb_activation_store_unlock (self);
  return handle;
}

static EbbTensor *
get_view (PackedHandle *self,
          GError **error)
{
  const int stopped = ebb_modes.stopped;
  EbbTensor *tensor;

  /* A tensor that comes back has data, even where a recompute needs nothing more. */
  ebb_modes.stopped = 0;
  tensor = ebb_shared_block_get_view (self->block, &self->view, self->offset, error);
  ebb_modes.stopped = stopped;
  if (tensor != NULL)
    tensor->is_local_shard = self->is_local_shard != FALSE;
  return tensor;
}

static EbbTensor *
ebb_activation_store_unpack (EbbSavedTensorHooks *hooks,
                             EbbHandle *handle,
                             GError **error)
{
  EbbActivationStore *self = EBB_ACTIVATION_STORE (hooks);
  PackedHandle *packed = handle->destroy == packed_handle_clear ? (PackedHandle *) handle : NULL;
  EbbTensor *tensor = NULL;

  if (packed != NULL ? packed->block->store != self : handle->tensor == NULL)
    g_set_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT, "this %s did not return the handle",
                 G_OBJECT_TYPE_NAME (self));
  else
    tensor = handle->tensor != NULL ? ebb_handle_get_tensor (handle) : get_view (packed, error);
  if (tensor == NULL)
    return NULL;
  ebb_activation_store_lock (self);
  PRIVATE (self)->counters.n_unpacked++;
  ebb_activation_store_unlock (self);
  return tensor;
}

static gboolean
ebb_activation_store_moves (EbbActivationStore *self,
                            EbbDevice *device)
{
  return TRUE;
}

static EbbHandle *
ebb_activation_store_put (EbbActivationStore *self,
                          EbbTensor *block,
                          GError **error)
{
  return ebb_handle_new (block);
}

static EbbHandle *
ebb_activation_store_real_reserve (EbbActivationStore *self,
                                   EbbDevice *device,
                                   guint64 n_bytes,
                                   GError **error)
{
  g_set_error (error, EBB_ERROR, EBB_ERROR_NOT_SUPPORTED,
               "%s can't reserve a room, here of %" G_GUINT64_FORMAT " bytes for %s; use a host or disk store",
               G_OBJECT_TYPE_NAME (self), n_bytes, ebb_device_get_name (device));
  return NULL;
}

static EbbHandle *
ebb_activation_store_real_put_at (EbbActivationStore *self,
                                  EbbHandle *room,
                                  guint64 offset,
                                  EbbTensor *block,
                                  GError **error)
{
  g_set_error (error, EBB_ERROR, EBB_ERROR_NOT_SUPPORTED, "%s can't put a block into a reserved room",
               G_OBJECT_TYPE_NAME (self));
  return NULL;
}

gboolean
ebb_activation_store_can_reserve (const EbbActivationStoreClass *klass)
{
  return klass->reserve != ebb_activation_store_real_reserve && klass->put_at != ebb_activation_store_real_put_at;
}

/* -- object -------------------------------------------------------------------------------------------------------- */

/* The fallback is under the lock. */
static void
get_property (GObject *object,
              guint id,
              GValue *value,
              GParamSpec *spec)
{
  if (id == (guint) G_PRIVATE_OFFSET (EbbActivationStore, fallback))
    g_value_take_object (value, ebb_activation_store_ref_fallback (EBB_ACTIVATION_STORE (object)));
  else
    ebb_setting_get_property (object, id, value, spec);
}

static void
set_property (GObject *object,
              guint id,
              const GValue *value,
              GParamSpec *spec)
{
  g_autoptr (GError) refused = NULL;

  if (id != (guint) G_PRIVATE_OFFSET (EbbActivationStore, fallback))
    ebb_setting_set_property (object, id, value, spec);
  else if (!ebb_activation_store_set_fallback (EBB_ACTIVATION_STORE (object), g_value_get_object (value), &refused))
    g_warning ("%s", refused->message);
}

static void
install_settings (GObjectClass *object_class)
{
  const GParamFlags flags = G_PARAM_READWRITE | G_PARAM_STATIC_STRINGS | G_PARAM_EXPLICIT_NOTIFY;

  /**
   * EbbActivationStore:least-size:
   *
   * Tensors of fewer bytes are kept where they are.
   */
  g_object_class_install_property (
      object_class, G_PRIVATE_OFFSET (EbbActivationStore, least_size),
      g_param_spec_uint64 ("least-size", NULL, NULL, 0, G_MAXUINT64, DEFAULT_LEAST_SIZE, flags));
  /**
   * EbbActivationStore:prefetch:
   *
   * How many groups of tensors are brought back ahead of the one that backward asks for. A group is the tensors that
   * were stored between two kernels, as the inputs of one checkpointed module. So at most `prefetch` + 1 groups lie in
   * the memory of the device; with 0, computing waits for each.
   */
  g_object_class_install_property (object_class, G_PRIVATE_OFFSET (EbbActivationStore, prefetch),
                                   g_param_spec_uint ("prefetch", NULL, NULL, 0, G_MAXUINT, 1, flags));
  /**
   * EbbActivationStore:in-flight:
   *
   * How many groups of tensors, see #EbbActivationStore:prefetch, may lie in the memory of the device while they are
   * copied away. When another one comes, computing waits for the oldest copy, and its source is freed. With 1 a copy
   * overlaps the module that follows; where single ops store, some more give the copies time. With 0 nothing overlaps.
   */
  g_object_class_install_property (object_class, G_PRIVATE_OFFSET (EbbActivationStore, in_flight),
                                   g_param_spec_uint ("in-flight", NULL, NULL, 0, G_MAXUINT, 1, flags));
  /**
   * EbbActivationStore:fallback:
   *
   * The store for tensors that this store has no room for, or can't write. Without one they are an error.
   */
  g_object_class_install_property (object_class, G_PRIVATE_OFFSET (EbbActivationStore, fallback),
                                   g_param_spec_object ("fallback", NULL, NULL, EBB_TYPE_ACTIVATION_STORE, flags));
}

static void
ebb_activation_store_dispose (GObject *object)
{
  ebb_activation_store_dispose_settings (EBB_ACTIVATION_STORE (object));
  G_OBJECT_CLASS (ebb_activation_store_parent_class)->dispose (object);
}

/* Every block holds a reference to the store, so none is left. */
static void
ebb_activation_store_finalize (GObject *object)
{
  EbbActivationStorePrivate *priv = PRIVATE (EBB_ACTIVATION_STORE (object));

  g_hash_table_unref (priv->blocks);
  g_queue_clear_full (&priv->transfers, (GDestroyNotify) ebb_transfer_unref);
  g_queue_clear_full (&priv->settled, (GDestroyNotify) ebb_transfer_unref);
  g_clear_error (&priv->failure);
  pthread_mutex_destroy (&priv->flight_lock);
  pthread_mutex_destroy (&priv->lock);
  G_OBJECT_CLASS (ebb_activation_store_parent_class)->finalize (object);
}

static void
ebb_activation_store_class_init (EbbActivationStoreClass *klass)
{
  EbbSavedTensorHooksClass *hooks_class = EBB_SAVED_TENSOR_HOOKS_CLASS (klass);
  GObjectClass *object_class = G_OBJECT_CLASS (klass);

  object_class->get_property = get_property;
  object_class->set_property = set_property;
  object_class->dispose = ebb_activation_store_dispose;
  object_class->finalize = ebb_activation_store_finalize;
  hooks_class->pack = ebb_activation_store_pack;
  hooks_class->unpack = ebb_activation_store_unpack;
  klass->moves = ebb_activation_store_moves;
  klass->put = ebb_activation_store_put;
  klass->get = ebb_activation_store_real_get;
  klass->prefetch = ebb_activation_store_real_prefetch;
  klass->reserve = ebb_activation_store_real_reserve;
  klass->put_at = ebb_activation_store_real_put_at;
  install_settings (object_class);
}

static void
ebb_activation_store_init (EbbActivationStore *self)
{
  EbbActivationStorePrivate *priv = PRIVATE (self);

  priv->least_size = DEFAULT_LEAST_SIZE;
  priv->prefetch = priv->in_flight = 1;
  priv->blocks = g_hash_table_new (ebb_shared_block_hash, ebb_shared_block_equal);
  pthread_mutex_init (&priv->lock, NULL);
  pthread_mutex_init (&priv->flight_lock, NULL);
}

/* -- hints --------------------------------------------------------------------------------------------------------- */

static guint hints_slot;

static void __attribute__ ((constructor))
register_hints (void)
{
  hints_slot = ebb_modes_register_slot (NULL, NULL);
}

gboolean
ebb_save_has_hint (EbbSaveHint hint)
{
  return (GPOINTER_TO_UINT (ebb_modes.slots[hints_slot]) & hint) != 0;
}

void
ebb_modes_set_save_hints (EbbModes *modes,
                          guint hints)
{
  modes->slots[hints_slot] = GUINT_TO_POINTER (hints);
}
