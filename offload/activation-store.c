/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "offload/block-private.h"
#include "tensor/thread-private.h"

#define DEFAULT_LEAST_SIZE (64 * 1024)

G_DEFINE_ABSTRACT_TYPE_WITH_PRIVATE (EbbActivationStore, ebb_activation_store, EBB_TYPE_SAVED_TENSOR_HOOKS)

#define PRIVATE(self) ((EbbActivationStorePrivate *) ebb_activation_store_get_instance_private (self))

enum
{
  PROP_LEAST_SIZE = 1,
  PROP_PREFETCH,
  PROP_IN_FLIGHT,
  PROP_FALLBACK,
  N_PROPS
};

static GParamSpec *properties[N_PROPS];

/* What a handle holds: how the tensor looked, and where its bytes are. */
typedef struct
{
  EbbBlock *block;
  EbbHandle *kept; /* the tensor itself, if the block stays in place */
  EbbView view;
  gsize offset; /* bytes, from the block's start */
} Ticket;

struct _EbbStoreFilter
{
  EbbActivationFilterFunc func;
  gpointer data;
  GDestroyNotify destroy;
};

EbbActivationStorePrivate *
ebb_activation_store_peek (EbbActivationStore *self)
{
  return PRIVATE (self);
}

/* -- blocks -------------------------------------------------------------------------------------------------------- */

static gsize
block_size (const EbbBlock *block)
{
  return block->key.end - block->key.start;
}

/* The block that already holds @tensor, with one more user. A part may lie in a block of the whole. */
static EbbBlock *
find_block (EbbActivationStore *self,
            const EbbBlockKey *key,
            gsize storage_size)
{
  EbbBlockKey whole = *key;
  EbbBlock *block;

  whole.start = 0;
  whole.end = storage_size;
  ebb_blocks_lock ();
  block = g_hash_table_lookup (PRIVATE (self)->blocks, &whole);
  if (block == NULL)
    block = g_hash_table_lookup (PRIVATE (self)->blocks, key);
  if (block != NULL)
    block->n_users++;
  ebb_blocks_unlock ();
  return block;
}

static gboolean
put_block (EbbActivationStore *self,
           EbbBlock *block,
           EbbTensor *tensor,
           GError **error)
{
  const gsize element = ebb_dtype_get_size (block->dtype);
  const gint64 n = (gint64) (block_size (block) / element);
  g_autoptr (EbbTensor) bytes =
      ebb_tensor_new_view (tensor->storage, (gint64) (block->key.start / element), &n, NULL, 1, block->dtype);

  block->handle = ebb_activation_store_put_block (self, bytes, error);
  block->group = ebb_activation_store_get_group (self);
  return block->handle != NULL;
}

static void
add_block (EbbActivationStore *self,
           EbbBlock *block)
{
  EbbActivationStorePrivate *priv = PRIVATE (self);

  ebb_blocks_lock ();
  if (!g_hash_table_contains (priv->blocks, block))
    g_hash_table_add (priv->blocks, block);
  if (!block->key.in_place)
    ebb_block_link (block);
  else
    {
      priv->counters.held += block_size (block);
      priv->counters.peak = MAX (priv->counters.peak, priv->counters.held);
    }
  ebb_blocks_unlock ();
}

static EbbBlock *
enter_block (EbbActivationStore *self,
             EbbTensor *tensor,
             GError **error)
{
  gboolean in_place = !EBB_ACTIVATION_STORE_GET_CLASS (self)->moves (self, tensor->storage->device);
  EbbBlockKey key;
  EbbBlock *block;

  ebb_block_key_init (&key, tensor, in_place);
  block = find_block (self, &key, tensor->storage->size);
  if (block != NULL)
    return block;
  block = ebb_block_new (self, &key, tensor);
  if (!in_place && !put_block (self, block, tensor, error))
    {
      ebb_block_free (block);
      return NULL;
    }
  add_block (self, block);
  return block;
}

/* -- the door ------------------------------------------------------------------------------------------------------ */

static void
filter_clear (gpointer data)
{
  EbbStoreFilter *self = data;

  if (self->destroy != NULL)
    self->destroy (self->data);
}

static void
filter_unref (EbbStoreFilter *self)
{
  g_atomic_rc_box_release_full (self, filter_clear);
}

/* FALSE, with @error set if the filter failed. */
static gboolean
passes_filter (EbbActivationStore *self,
               EbbTensor *tensor,
               GError **error)
{
  EbbStoreFilter *filter;
  GError *local = NULL;
  gboolean passes;

  ebb_blocks_lock ();
  filter = PRIVATE (self)->filter != NULL ? g_atomic_rc_box_acquire (PRIVATE (self)->filter) : NULL;
  ebb_blocks_unlock ();
  if (filter == NULL)
    return TRUE;
  passes = filter->func (tensor, ebb_thread.saving ? ebb_thread.saving->name : "", filter->data, &local);
  filter_unref (filter);
  if (local == NULL)
    return passes;
  g_propagate_error (error, local);
  return FALSE;
}

/* What belongs to the model or to the optimizer, what somebody outside looks at, and what is too small to be worth it
 * stays as it is. After the early stop of a recompute nobody will ask for it at all. */
static gboolean
is_worth_storing (EbbActivationStore *self,
                  EbbTensor *tensor,
                  GError **error)
{
  const EbbStorage *storage = tensor->storage;
  const EbbPurpose purpose = ebb_storage_get_purpose (storage);

  return !tensor->is_parameter && !tensor->is_buffer && !storage->phantom && !storage->pinned && !ebb_is_stopped ()
         && (purpose == EBB_PURPOSE_WORKSPACE || purpose == EBB_PURPOSE_ACTIVATION)
         && tensor->n_elements > 0 && ebb_tensor_get_n_bytes (tensor) >= EBB_READ (PRIVATE (self)->least_size)
         && passes_filter (self, tensor, error);
}

static void
ticket_free (gpointer data)
{
  Ticket *self = data;

  ebb_blocks_lock ();
  g_hash_table_remove (PRIVATE (self->block->store)->tickets, self);
  ebb_blocks_unlock ();
  if (self->kept != NULL)
    ebb_handle_unref (self->kept);
  ebb_block_leave (self->block);
  g_free (self);
}

static EbbHandle *
ebb_activation_store_pack (EbbSavedTensorHooks *hooks,
                           EbbTensor *tensor,
                           GError **error)
{
  EbbActivationStore *self = EBB_ACTIVATION_STORE (hooks);
  EbbActivationStorePrivate *priv = PRIVATE (self);
  GError *local = NULL;
  gboolean store = is_worth_storing (self, tensor, &local);
  EbbBlock *block = NULL;
  Ticket *ticket = NULL;

  if (local != NULL)
    {
      g_propagate_error (error, local);
      return NULL;
    }
  if (store)
    {
      block = enter_block (self, tensor, error);
      if (block == NULL)
        return NULL;
      ticket = g_new0 (Ticket, 1);
      ticket->block = block;
      ticket->kept = block->key.in_place ? ebb_handle_new (tensor) : NULL;
      ticket->view = tensor->view;
      ticket->view.data = NULL;
      ticket->offset = (gsize) tensor->offset * ebb_dtype_get_size (tensor->view.dtype) - block->key.start;
    }
  ebb_blocks_lock ();
  priv->counters.n_packed++;
  if (ticket != NULL)
    g_hash_table_add (priv->tickets, ticket);
  if (!store || block->key.in_place)
    priv->counters.n_kept++;
  ebb_blocks_unlock ();
  return store ? ebb_handle_new_for_data (ticket, ticket_free) : ebb_handle_new (tensor);
}

static EbbTensor *
unpack_ticket (EbbActivationStore *self,
               Ticket *ticket,
               GError **error)
{
  EbbTensor *tensor;
  gboolean known;
  int stopped = ebb_thread.stopped;

  ebb_blocks_lock ();
  known = ticket != NULL && g_hash_table_contains (PRIVATE (self)->tickets, ticket);
  ebb_blocks_unlock ();
  if (!known)
    {
      g_set_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT, "a handle that this %s did not give",
                   G_OBJECT_TYPE_NAME (self));
      return NULL;
    }
  if (ticket->kept != NULL)
    return ebb_handle_get_tensor (ticket->kept);
  /* What comes back has data, even where a recompute needs nothing more. */
  ebb_thread.stopped = 0;
  tensor = ebb_block_get_view (ticket->block, &ticket->view, ticket->offset, error);
  ebb_thread.stopped = stopped;
  return tensor;
}

static EbbTensor *
ebb_activation_store_unpack (EbbSavedTensorHooks *hooks,
                             EbbHandle *handle,
                             GError **error)
{
  EbbActivationStore *self = EBB_ACTIVATION_STORE (hooks);
  EbbActivationStorePrivate *priv = PRIVATE (self);
  EbbTensor *tensor = ebb_handle_get_tensor (handle);

  if (tensor == NULL)
    tensor = unpack_ticket (self, ebb_handle_get_data (handle), error);
  if (tensor == NULL)
    return NULL;
  ebb_blocks_lock ();
  priv->counters.n_unpacked++;
  ebb_blocks_unlock ();
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

static EbbTensor *
ebb_activation_store_get (EbbActivationStore *self,
                          EbbHandle *handle,
                          GError **error)
{
  return ebb_handle_get_tensor (handle);
}

static EbbHandle *
ebb_activation_store_real_reserve (EbbActivationStore *self,
                                   EbbDevice *device,
                                   guint64 n_bytes,
                                   GError **error)
{
  g_set_error (error, EBB_ERROR, EBB_ERROR_NOT_SUPPORTED,
               "%s has no room that can be reserved, here of %" G_GUINT64_FORMAT " bytes for %s: an EbbHostStore has",
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
  g_set_error (error, EBB_ERROR, EBB_ERROR_NOT_SUPPORTED, "%s puts nothing into a reserved room",
               G_OBJECT_TYPE_NAME (self));
  return NULL;
}

/* -- object -------------------------------------------------------------------------------------------------------- */

static void
ebb_activation_store_get_property (GObject *object,
                                   guint id,
                                   GValue *value,
                                   GParamSpec *pspec)
{
  EbbActivationStorePrivate *priv = PRIVATE (EBB_ACTIVATION_STORE (object));

  switch (id)
    {
    case PROP_LEAST_SIZE:
      g_value_set_uint64 (value, EBB_READ (priv->least_size));
      break;
    case PROP_PREFETCH:
      g_value_set_uint (value, EBB_READ (priv->prefetch));
      break;
    case PROP_IN_FLIGHT:
      g_value_set_uint (value, EBB_READ (priv->in_flight));
      break;
    case PROP_FALLBACK:
      g_value_take_object (value, ebb_activation_store_ref_fallback (EBB_ACTIVATION_STORE (object)));
      break;
    default:
      G_OBJECT_WARN_INVALID_PROPERTY_ID (object, id, pspec);
    }
}

static void
ebb_activation_store_set_property (GObject *object,
                                   guint id,
                                   const GValue *value,
                                   GParamSpec *pspec)
{
  EbbActivationStore *self = EBB_ACTIVATION_STORE (object);
  g_autoptr (GError) refused = NULL;

  switch (id)
    {
    case PROP_LEAST_SIZE:
      ebb_activation_store_set_least_size (self, g_value_get_uint64 (value));
      break;
    case PROP_PREFETCH:
      ebb_activation_store_set_prefetch (self, g_value_get_uint (value));
      break;
    case PROP_IN_FLIGHT:
      ebb_activation_store_set_in_flight (self, g_value_get_uint (value));
      break;
    case PROP_FALLBACK:
      ebb_activation_store_set_fallback (self, g_value_get_object (value), &refused);
      if (refused != NULL)
        g_warning ("%s", refused->message);
      break;
    default:
      G_OBJECT_WARN_INVALID_PROPERTY_ID (object, id, pspec);
    }
}

static void
ebb_activation_store_dispose (GObject *object)
{
  EbbActivationStorePrivate *priv = PRIVATE (EBB_ACTIVATION_STORE (object));
  EbbActivationStore *fallback;

  ebb_blocks_lock ();
  fallback = g_steal_pointer (&priv->fallback);
  ebb_blocks_unlock ();
  g_clear_object (&fallback);
  G_OBJECT_CLASS (ebb_activation_store_parent_class)->dispose (object);
}

/* Every block and ticket holds a reference to the store, so none is left. */
static void
ebb_activation_store_finalize (GObject *object)
{
  EbbActivationStorePrivate *priv = PRIVATE (EBB_ACTIVATION_STORE (object));

  g_hash_table_unref (priv->blocks);
  g_hash_table_unref (priv->tickets);
  g_hash_table_unref (priv->places);
  g_queue_clear_full (&priv->transfers, (GDestroyNotify) ebb_transfer_unref);
  g_queue_clear_full (&priv->settled, (GDestroyNotify) ebb_transfer_unref);
  g_clear_pointer (&priv->filter, filter_unref);
  g_clear_error (&priv->failure);
  pthread_mutex_destroy (&priv->flight_lock);
  G_OBJECT_CLASS (ebb_activation_store_parent_class)->finalize (object);
}

static void
install_properties (GObjectClass *object_class)
{
  const GParamFlags flags = G_PARAM_READWRITE | G_PARAM_STATIC_STRINGS | G_PARAM_EXPLICIT_NOTIFY;

  /**
   * EbbActivationStore:least-size:
   *
   * Tensors of fewer bytes are kept where they are.
   */
  properties[PROP_LEAST_SIZE] =
      g_param_spec_uint64 ("least-size", NULL, NULL, 0, G_MAXUINT64, DEFAULT_LEAST_SIZE, flags);
  /**
   * EbbActivationStore:prefetch:
   *
   * How many groups of tensors are brought back ahead of the one that backward asks for. A group is what was stored
   * between two kernels, as the inputs of one checkpointed module. So at most so many and one lie in the memory of the
   * device; with 0, computing waits for each.
   */
  properties[PROP_PREFETCH] = g_param_spec_uint ("prefetch", NULL, NULL, 0, G_MAXUINT, 1, flags);
  /**
   * EbbActivationStore:in-flight:
   *
   * How many groups of tensors, see #EbbActivationStore:prefetch, may lie in the memory of the device while they are
   * copied away. When another one comes, computing waits for the oldest copy, and its original goes. 1 has a copy run
   * beside the module that follows; where single ops store, some more give the copies time. 0: beside nothing.
   */
  properties[PROP_IN_FLIGHT] = g_param_spec_uint ("in-flight", NULL, NULL, 0, G_MAXUINT, 1, flags);
  /**
   * EbbActivationStore:fallback:
   *
   * Where a tensor goes that this store has no room for, or can't write; none: that is an error.
   */
  properties[PROP_FALLBACK] = g_param_spec_object ("fallback", NULL, NULL, EBB_TYPE_ACTIVATION_STORE, flags);
  g_object_class_install_properties (object_class, N_PROPS, properties);
}

static void
ebb_activation_store_class_init (EbbActivationStoreClass *klass)
{
  EbbSavedTensorHooksClass *hooks_class = EBB_SAVED_TENSOR_HOOKS_CLASS (klass);
  GObjectClass *object_class = G_OBJECT_CLASS (klass);

  object_class->get_property = ebb_activation_store_get_property;
  object_class->set_property = ebb_activation_store_set_property;
  object_class->dispose = ebb_activation_store_dispose;
  object_class->finalize = ebb_activation_store_finalize;
  hooks_class->pack = ebb_activation_store_pack;
  hooks_class->unpack = ebb_activation_store_unpack;
  klass->moves = ebb_activation_store_moves;
  klass->put = ebb_activation_store_put;
  klass->get = ebb_activation_store_get;
  klass->reserve = ebb_activation_store_real_reserve;
  klass->put_at = ebb_activation_store_real_put_at;
  install_properties (object_class);
}

static void
ebb_activation_store_init (EbbActivationStore *self)
{
  EbbActivationStorePrivate *priv = PRIVATE (self);

  priv->least_size = DEFAULT_LEAST_SIZE;
  priv->prefetch = priv->in_flight = 1;
  priv->blocks = g_hash_table_new (ebb_block_hash, ebb_block_equal);
  priv->tickets = g_hash_table_new (NULL, NULL);
  priv->places = g_hash_table_new (NULL, NULL);
  pthread_mutex_init (&priv->flight_lock, NULL);
}

/* -- settings ------------------------------------------------------------------------------------------------------ */

/**
 * ebb_activation_store_get_least_size:
 * @self: a store
 *
 * Returns: how many bytes a tensor must have to be stored
 */
guint64
ebb_activation_store_get_least_size (EbbActivationStore *self)
{
  g_return_val_if_fail (EBB_IS_ACTIVATION_STORE (self), 0);

  return EBB_READ (PRIVATE (self)->least_size);
}

/**
 * ebb_activation_store_set_least_size:
 * @self: a store
 * @n_bytes: a size in bytes, 64 KiB at first
 *
 * Has tensors of fewer bytes kept where they are. They count as kept, and not in the bytes held.
 */
void
ebb_activation_store_set_least_size (EbbActivationStore *self,
                                     guint64 n_bytes)
{
  g_return_if_fail (EBB_IS_ACTIVATION_STORE (self));

  if (EBB_READ (PRIVATE (self)->least_size) == n_bytes)
    return;
  EBB_WRITE (PRIVATE (self)->least_size, n_bytes);
  g_object_notify_by_pspec (G_OBJECT (self), properties[PROP_LEAST_SIZE]);
}

/**
 * ebb_activation_store_get_prefetch:
 * @self: a store
 *
 * Returns: how many groups of tensors are brought ahead
 */
guint
ebb_activation_store_get_prefetch (EbbActivationStore *self)
{
  g_return_val_if_fail (EBB_IS_ACTIVATION_STORE (self), 0);

  return EBB_READ (PRIVATE (self)->prefetch);
}

/**
 * ebb_activation_store_set_prefetch:
 * @self: a store
 * @n_groups: how many, 1 at first
 *
 * Sets how many groups of tensors are brought back before backward asks for them; see #EbbActivationStore:prefetch.
 */
void
ebb_activation_store_set_prefetch (EbbActivationStore *self,
                                   guint n_groups)
{
  g_return_if_fail (EBB_IS_ACTIVATION_STORE (self));

  if (EBB_READ (PRIVATE (self)->prefetch) == n_groups)
    return;
  EBB_WRITE (PRIVATE (self)->prefetch, n_groups);
  g_object_notify_by_pspec (G_OBJECT (self), properties[PROP_PREFETCH]);
}

/**
 * ebb_activation_store_get_in_flight:
 * @self: a store
 *
 * Returns: how many groups of tensors may be on their way out of the device's memory
 */
guint
ebb_activation_store_get_in_flight (EbbActivationStore *self)
{
  g_return_val_if_fail (EBB_IS_ACTIVATION_STORE (self), 0);

  return EBB_READ (PRIVATE (self)->in_flight);
}

/**
 * ebb_activation_store_set_in_flight:
 * @self: a store
 * @n_groups: how many, 1 at first
 *
 * Sets how many groups of tensors may still lie in the memory of the device while they are copied away; see
 * #EbbActivationStore:in-flight.
 */
void
ebb_activation_store_set_in_flight (EbbActivationStore *self,
                                    guint n_groups)
{
  g_return_if_fail (EBB_IS_ACTIVATION_STORE (self));

  if (EBB_READ (PRIVATE (self)->in_flight) == n_groups)
    return;
  EBB_WRITE (PRIVATE (self)->in_flight, n_groups);
  g_object_notify_by_pspec (G_OBJECT (self), properties[PROP_IN_FLIGHT]);
}

/**
 * ebb_activation_store_get_fallback:
 * @self: a store
 *
 * Returns: (transfer none) (nullable): where a tensor goes that this store can't take
 */
EbbActivationStore *
ebb_activation_store_get_fallback (EbbActivationStore *self)
{
  EbbActivationStore *fallback;

  g_return_val_if_fail (EBB_IS_ACTIVATION_STORE (self), NULL);

  ebb_blocks_lock ();
  fallback = PRIVATE (self)->fallback;
  ebb_blocks_unlock ();
  return fallback;
}

EbbActivationStore *
ebb_activation_store_ref_fallback (EbbActivationStore *self)
{
  EbbActivationStore *fallback;

  ebb_blocks_lock ();
  fallback = PRIVATE (self)->fallback;
  if (fallback != NULL)
    g_object_ref (fallback);
  ebb_blocks_unlock ();
  return fallback;
}

/* FALSE with @error set if @store leads to @self. */
static gboolean
check_fallback (EbbActivationStore *self,
                EbbActivationStore *fallback,
                GError **error)
{
  g_autoptr (GPtrArray) chain = ebb_activation_store_get_chain (fallback);

  if (!g_ptr_array_find (chain, self, NULL))
    return TRUE;
  g_set_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT,
               "fallback of %s: an %s that leads back to this store itself, by its own fallback or the store that it "
               "stands in front of: must be one that does not",
               G_OBJECT_TYPE_NAME (self), G_OBJECT_TYPE_NAME (fallback));
  return FALSE;
}

/**
 * ebb_activation_store_set_fallback:
 * @self: a store
 * @fallback: (nullable): another one, from which neither its fallback nor what it stands in front of leads back to
 *   @self; %NULL: none
 * @error: return location for an error
 *
 * Sets where a tensor goes that this store has no room for or can't write, so that training goes on. What is stored
 * already stays where it is.
 *
 * To set #EbbActivationStore:fallback as a property does the same, but there is no place for an error: a store that
 * leads back is refused with a warning.
 *
 * Returns: %FALSE with %EBB_ERROR_INVALID_ARGUMENT if @fallback leads back to @self; nothing is changed then
 */
gboolean
ebb_activation_store_set_fallback (EbbActivationStore *self,
                                   EbbActivationStore *fallback,
                                   GError **error)
{
  static pthread_mutex_t setting = PTHREAD_MUTEX_INITIALIZER; /* two threads could else tie a knot */
  EbbActivationStore *old = NULL;
  gboolean changes = FALSE, ok;

  g_return_val_if_fail (fallback == NULL || EBB_IS_ACTIVATION_STORE (fallback), FALSE);

  if ((error != NULL && *error != NULL) || self == NULL)
    return FALSE;
  pthread_mutex_lock (&setting);
  ok = fallback == NULL || check_fallback (self, fallback, error);
  if (ok)
    {
      ebb_blocks_lock ();
      old = PRIVATE (self)->fallback;
      changes = old != fallback;
      PRIVATE (self)->fallback = fallback != NULL ? g_object_ref (fallback) : NULL;
      ebb_blocks_unlock ();
    }
  pthread_mutex_unlock (&setting);
  g_clear_object (&old);
  if (changes)
    g_object_notify_by_pspec (G_OBJECT (self), properties[PROP_FALLBACK]);
  return ok;
}

/**
 * ebb_activation_store_set_filter:
 * @self: a store
 * @filter: (nullable) (scope notified) (closure user_data) (destroy destroy): says what to store; %NULL: all
 * @user_data: user data
 * @destroy: frees @user_data
 *
 * Has a function asked about each tensor that would be stored: not about parameters, buffers and those below the least
 * size, which are kept anyway.
 */
void
ebb_activation_store_set_filter (EbbActivationStore *self,
                                 EbbActivationFilterFunc filter,
                                 gpointer user_data,
                                 GDestroyNotify destroy)
{
  EbbStoreFilter *made = NULL, *old;

  g_return_if_fail (EBB_IS_ACTIVATION_STORE (self));

  if (filter != NULL)
    {
      made = g_atomic_rc_box_new0 (EbbStoreFilter);
      *made = (EbbStoreFilter){ filter, user_data, destroy };
    }
  ebb_blocks_lock ();
  old = PRIVATE (self)->filter;
  PRIVATE (self)->filter = made;
  ebb_blocks_unlock ();
  g_clear_pointer (&old, filter_unref);
}

void
ebb_activation_store_set_spills (EbbActivationStore *self,
                                 gboolean spills)
{
  EBB_WRITE (PRIVATE (self)->never_spills, !spills);
}
