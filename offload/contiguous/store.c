/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "offload/contiguous/store.h"

#include "offload/activation-store-private.h"
#include "offload/contiguous/pool-private.h"

#include <gio/gio.h>

/**
 * EbbContiguousStore:
 *
 * Keeps activations side by side in large buffers, so that tensors kept from forward to backward do not lie scattered
 * between short-lived ones: the rest of the memory stays in one piece.
 *
 * Each kind of tensor (device, element type, bytes) has a buffer for `n-checkpoints` of them, which is filled in order
 * and given back in reverse; a part is free again when its handle is dropped. Where all parts are in use the next one
 * is an error (%EBB_ERROR_NO_MEMORY), before anything is overwritten, or the store takes another buffer (`grow`).
 * Buffers stay from step to step. They are freed by ebb_contiguous_store_reset(), with the store, or when a tensor of
 * another size needs one while they hold nothing.
 *
 * Without a next store the parts lie on the tensors' own device, and get returns the part itself, not a copy: it must
 * not be changed in place; a change is found when the part is asked for again (%EBB_ERROR_VERSION). With a next store
 * that can reserve room, a host store or a disk store, the buffers lie there. Where the next store would leave tensors
 * of a device in place, as the host store does on the CPU, the parts lie on that device.
 */
struct _EbbContiguousStore
{
  EbbActivationStore parent_instance;

  EbbBufferPool *pool;
  EbbActivationStore *next;
  guint n_checkpoints;
  gboolean grow;
};

enum
{
  PROP_N_BUFFERS = 1, /* no field is there */
  PROP_N_PARTS,
  PROP_N_PARTS_PEAK,
};

static void ebb_contiguous_store_initable_init (GInitableIface *iface);

G_DEFINE_FINAL_TYPE_WITH_CODE (EbbContiguousStore,
                               ebb_contiguous_store,
                               EBB_TYPE_ACTIVATION_STORE,
                               G_IMPLEMENT_INTERFACE (G_TYPE_INITABLE, ebb_contiguous_store_initable_init))

/* -- as a store ---------------------------------------------------------------------------------------------------- */

static gboolean
check (EbbContiguousStore *self,
       GError **error)
{
  if (EBB_READ (self->n_checkpoints) == 0)
    return ebb_fail (
        error, EBB_ERROR_INVALID_ARGUMENT,
        "contiguous store: n-checkpoints is 0; it must be the number of tensors of a kind that are kept at once");
  if (self->next != NULL && !ebb_activation_store_can_reserve (EBB_ACTIVATION_STORE_GET_CLASS (self->next)))
    return ebb_fail (
        error, EBB_ERROR_NOT_SUPPORTED,
        "contiguous store: next is an %s, which can't reserve a room; it must be a store that can, such as "
        "EbbHostStore or EbbDiskStore, or null",
        G_OBJECT_TYPE_NAME (self->next));
  return TRUE;
}

typedef struct
{
  EbbStoredBlock base;
  EbbBufferPart *part;
  EbbHandle *inner; /* in the next store; NULL: on the device */
} ContiguousBlock;

static EbbTensor *
block_get (EbbStoredBlock *base,
           GError **error)
{
  ContiguousBlock *self = (ContiguousBlock *) base;

  return self->inner != NULL ? ebb_stored_block_get (self->inner, error) : ebb_buffer_part_show (self->part, error);
}

static void
block_prefetch (EbbStoredBlock *base)
{
  ContiguousBlock *self = (ContiguousBlock *) base;

  if (self->inner != NULL)
    ebb_stored_block_prefetch (self->inner);
}

static void
block_clear (EbbStoredBlock *base)
{
  ContiguousBlock *self = (ContiguousBlock *) base;

  ebb_handle_unref (self->inner);
  ebb_buffer_part_drop (self->part);
}

static EbbHandle *
ebb_contiguous_store_put (EbbActivationStore *store,
                          EbbTensor *block,
                          GError **error)
{
  static const EbbStoredBlockFuncs funcs = { sizeof (ContiguousBlock), block_get, block_prefetch, block_clear };
  EbbContiguousStore *self = EBB_CONTIGUOUS_STORE (store);
  EbbActivationStore *next = self->next;
  EbbHandle *inner = NULL;
  ContiguousBlock *stored;
  EbbBufferPart *part;

  if (!check (self, error))
    return NULL;
  if (next != NULL && !EBB_ACTIVATION_STORE_GET_CLASS (next)->moves (next, block->storage->device))
    next = NULL;
  part = ebb_buffer_pool_put (self->pool, next, block, EBB_READ (self->n_checkpoints), EBB_READ (self->grow), &inner,
                              error);
  if (part == NULL)
    return NULL;
  stored = ebb_stored_block_new (&funcs, store);
  stored->part = part;
  stored->inner = inner;
  return &stored->base.handle;
}

static gboolean
ebb_contiguous_store_synchronize (EbbActivationStore *store,
                                  GError **error)
{
  EbbContiguousStore *self = EBB_CONTIGUOUS_STORE (store);

  return self->next == NULL || ebb_activation_store_synchronize (self->next, error);
}

/* -- object -------------------------------------------------------------------------------------------------------- */

static gboolean
ebb_contiguous_store_initable_init_instance (GInitable *initable,
                                             GCancellable *cancellable,
                                             GError **error)
{
  return check (EBB_CONTIGUOUS_STORE (initable), error);
}

static void
ebb_contiguous_store_initable_init (GInitableIface *iface)
{
  iface->init = ebb_contiguous_store_initable_init_instance;
}

static void
ebb_contiguous_store_get_property (GObject *object,
                                   guint id,
                                   GValue *value,
                                   GParamSpec *pspec)
{
  EbbBufferCounts counts;

  ebb_buffer_pool_get_counts (EBB_CONTIGUOUS_STORE (object)->pool, &counts);
  switch (id)
    {
    case PROP_N_BUFFERS: g_value_set_uint (value, counts.n_buffers); break;
    case PROP_N_PARTS: g_value_set_uint (value, counts.n_used); break;
    case PROP_N_PARTS_PEAK: g_value_set_uint (value, counts.n_peak); break;
    default: ebb_setting_get_property (object, id, value, pspec);
    }
}

static void
ebb_contiguous_store_finalize (GObject *object)
{
  EbbContiguousStore *self = EBB_CONTIGUOUS_STORE (object);

  ebb_buffer_pool_unref (self->pool);
  g_clear_object (&self->next);
  G_OBJECT_CLASS (ebb_contiguous_store_parent_class)->finalize (object);
}

static void
install_properties (GObjectClass *object_class)
{
  const GParamFlags flags = G_PARAM_READWRITE | G_PARAM_STATIC_STRINGS;

  /**
   * EbbContiguousStore:n-checkpoints:
   *
   * How many parts a buffer has: as many as tensors of one kind are kept at a time. That is the number of checkpoints,
   * where each keeps one tensor of a kind.
   */
  g_object_class_install_property (
      object_class, offsetof (EbbContiguousStore, n_checkpoints),
      g_param_spec_uint ("n-checkpoints", NULL, NULL, 0, G_MAXUINT, 0, flags | G_PARAM_EXPLICIT_NOTIFY));
  /**
   * EbbContiguousStore:next:
   *
   * The store in which the buffers lie: one that can reserve room. None: on the device of the tensors.
   */
  g_object_class_install_property (
      object_class, offsetof (EbbContiguousStore, next),
      g_param_spec_object ("next", NULL, NULL, EBB_TYPE_ACTIVATION_STORE, flags | G_PARAM_CONSTRUCT_ONLY));
  /**
   * EbbContiguousStore:grow:
   *
   * Whether the store takes another buffer of `n-checkpoints` parts when all are in use; if not, that is an error.
   */
  g_object_class_install_property (object_class, offsetof (EbbContiguousStore, grow),
                                   g_param_spec_boolean ("grow", NULL, NULL, FALSE, flags | G_PARAM_EXPLICIT_NOTIFY));
  /**
   * EbbContiguousStore:n-buffers:
   *
   * How many buffers there are now.
   */
  g_object_class_install_property (
      object_class, PROP_N_BUFFERS,
      g_param_spec_uint ("n-buffers", NULL, NULL, 0, G_MAXUINT, 0, G_PARAM_READABLE | G_PARAM_STATIC_STRINGS));
  /**
   * EbbContiguousStore:n-parts:
   *
   * How many parts are in use now.
   */
  g_object_class_install_property (
      object_class, PROP_N_PARTS,
      g_param_spec_uint ("n-parts", NULL, NULL, 0, G_MAXUINT, 0, G_PARAM_READABLE | G_PARAM_STATIC_STRINGS));
  /**
   * EbbContiguousStore:n-parts-peak:
   *
   * The most parts that were in use at one time.
   */
  g_object_class_install_property (
      object_class, PROP_N_PARTS_PEAK,
      g_param_spec_uint ("n-parts-peak", NULL, NULL, 0, G_MAXUINT, 0, G_PARAM_READABLE | G_PARAM_STATIC_STRINGS));
}

static void
end_dry_run (EbbActivationStore *store)
{
  ebb_buffer_pool_end_dry_run (EBB_CONTIGUOUS_STORE (store)->pool);
}

static void
ebb_contiguous_store_class_init (EbbContiguousStoreClass *klass)
{
  EbbActivationStoreClass *store_class = EBB_ACTIVATION_STORE_CLASS (klass);
  GObjectClass *object_class = G_OBJECT_CLASS (klass);

  object_class->get_property = ebb_contiguous_store_get_property;
  object_class->set_property = ebb_setting_set_property;
  object_class->finalize = ebb_contiguous_store_finalize;
  store_class->put = ebb_contiguous_store_put;
  store_class->end_dry_run = end_dry_run;
  store_class->synchronize = ebb_contiguous_store_synchronize;
  install_properties (object_class);
}

static void
ebb_contiguous_store_init (EbbContiguousStore *self)
{
  self->pool = ebb_buffer_pool_new ();
}

/**
 * ebb_contiguous_store_new:
 * @n_checkpoints: how many tensors of a kind are kept at a time, at least 1
 * @next: (nullable): the store in which the buffers lie; %NULL: on the device of the tensors
 * @error: return location for an error
 *
 * Makes a store that keeps tensors side by side.
 *
 * Returns: (transfer full) (type EbbContiguousStore) (nullable): the store; %NULL with %EBB_ERROR_NOT_SUPPORTED if
 *   @next can't reserve room, and with %EBB_ERROR_INVALID_ARGUMENT for 0 checkpoints
 */
EbbSavedTensorHooks *
ebb_contiguous_store_new (guint n_checkpoints,
                          EbbActivationStore *next,
                          GError **error)
{
  g_return_val_if_fail (next == NULL || EBB_IS_ACTIVATION_STORE (next), NULL);

  if (error != NULL && *error != NULL)
    return NULL;
  return g_initable_new (EBB_TYPE_CONTIGUOUS_STORE, NULL, error, "n-checkpoints", n_checkpoints, "next", next, NULL);
}

/**
 * ebb_contiguous_store_reset:
 * @self: a contiguous store
 *
 * Begins anew, with empty buffers that are made when they are needed: between forwards that no backward follows, where
 * the graphs of earlier ones still live. Their handles keep their bytes; the memory is freed with the last of them.
 * Memory of buffers that hold nothing is given back at once.
 */
void
ebb_contiguous_store_reset (EbbContiguousStore *self)
{
  g_return_if_fail (EBB_IS_CONTIGUOUS_STORE (self));

  ebb_buffer_pool_reset (self->pool);
}
