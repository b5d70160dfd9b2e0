/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "offload/stored-block-private.h"
#include "tensor/error-private.h"
#include "tensor/thread-private.h"

/* What may be set of every kind of store. */

#define DEFAULT_LEAST_SIZE (64 * 1024)

#define PRIVATE(self) ebb_activation_store_peek (self)

enum
{
  PROP_LEAST_SIZE = 1,
  PROP_PREFETCH,
  PROP_IN_FLIGHT,
  PROP_FALLBACK,
  N_PROPS
};

static GParamSpec *properties[N_PROPS];

struct _EbbStoreFilter
{
  EbbActivationFilterFunc func;
  gpointer data;
  GDestroyNotify destroy;
};

/* -- filter -------------------------------------------------------------------------------------------------------- */

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

gboolean
ebb_activation_store_passes_filter (EbbActivationStore *self,
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

/* -- properties ---------------------------------------------------------------------------------------------------- */

static void
get_property (GObject *object,
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
set_property (GObject *object,
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

void
ebb_activation_store_install_settings (GObjectClass *object_class)
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
  object_class->get_property = get_property;
  object_class->set_property = set_property;
  g_object_class_install_properties (object_class, N_PROPS, properties);
}

void
ebb_activation_store_init_settings (EbbActivationStore *self)
{
  EbbActivationStorePrivate *priv = PRIVATE (self);

  priv->least_size = DEFAULT_LEAST_SIZE;
  priv->prefetch = priv->in_flight = 1;
}

void
ebb_activation_store_dispose_settings (EbbActivationStore *self)
{
  EbbActivationStorePrivate *priv = PRIVATE (self);
  EbbActivationStore *fallback;
  EbbStoreFilter *filter;

  ebb_blocks_lock ();
  fallback = g_steal_pointer (&priv->fallback);
  filter = g_steal_pointer (&priv->filter);
  ebb_blocks_unlock ();
  g_clear_object (&fallback);
  g_clear_pointer (&filter, filter_unref);
}

/* -- getters and setters ------------------------------------------------------------------------------------------- */

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

  if (!EBB_MAY_BEGIN (error, self))
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
