/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "offload/activation-store-private.h"

#include "tensor/autograd/autograd-private.h"
#include "tensor/error-private.h"
#include "tensor/util/property-private.h"
#include "tensor/thread-private.h"

/* The settings of every kind of store, and the stores behind a store. */

#define PRIVATE(self) ebb_activation_store_peek (self)

struct _EbbStoreFilter
{
  EbbActivationFilterFunc func;
  gpointer data;
  GDestroyNotify destroy;
};

/* -- filter -------------------------------------------------------------------------------------------------------- */

static void filter_unref (EbbStoreFilter *self);

gboolean
ebb_activation_store_passes_filter (EbbActivationStore *self,
                                    EbbTensor *tensor,
                                    GError **error)
{
  EbbStoreFilter *filter;
  GError *local = NULL;
  gboolean passes;

  ebb_activation_store_lock (self);
  filter = PRIVATE (self)->filter != NULL ? g_atomic_rc_box_acquire (PRIVATE (self)->filter) : NULL;
  ebb_activation_store_unlock (self);
  if (filter == NULL)
    return TRUE;
  passes = filter->func (tensor, ebb_modes.saving ? ebb_modes.saving->name : "", filter->data, &local);
  filter_unref (filter);
  if (local == NULL)
    return passes;
  g_propagate_error (error, local);
  return FALSE;
}

/* -- properties ---------------------------------------------------------------------------------------------------- */

void
ebb_setting_get_property (GObject *object,
                          guint id,
                          GValue *value,
                          GParamSpec *spec)
{
  gpointer field = ebb_property_get_pointer (object, id);

  switch (G_TYPE_FUNDAMENTAL (spec->value_type))
    {
    case G_TYPE_BOOLEAN: g_value_set_boolean (value, EBB_READ (*(gboolean *) field)); break;
    case G_TYPE_UINT: g_value_set_uint (value, EBB_READ (*(guint *) field)); break;
    case G_TYPE_ENUM: g_value_set_enum (value, EBB_READ (*(int *) field)); break;
    case G_TYPE_UINT64: g_value_set_uint64 (value, EBB_READ (*(guint64 *) field)); break;
    default: ebb_property_get_field (object, id, value, spec); /* never changes */
    }
}

#define EXCHANGE(type, value) (__atomic_exchange_n ((type *) field, value, __ATOMIC_RELAXED) != (value))

void
ebb_setting_set_property (GObject *object,
                          guint id,
                          const GValue *value,
                          GParamSpec *spec)
{
  gpointer field = ebb_property_get_pointer (object, id);
  gboolean changes = FALSE;

  switch (G_TYPE_FUNDAMENTAL (spec->value_type))
    {
    case G_TYPE_BOOLEAN: changes = EXCHANGE (gboolean, g_value_get_boolean (value)); break;
    case G_TYPE_UINT: changes = EXCHANGE (guint, g_value_get_uint (value)); break;
    case G_TYPE_ENUM: changes = EXCHANGE (int, g_value_get_enum (value)); break;
    case G_TYPE_UINT64: changes = EXCHANGE (guint64, g_value_get_uint64 (value)); break;
    default: ebb_property_set_field (object, id, value, spec);
    }
  if (changes)
    g_object_notify_by_pspec (object, spec);
}

/* -- stores behind a store ----------------------------------------------------------------------------------------- */

const char *const ebb_store_links[EBB_N_LINKS] = { "next", "fallback" };

EbbActivationStore *
ebb_activation_store_ref_behind (EbbActivationStore *self,
                                 guint i)
{
  GParamSpec *spec = g_object_class_find_property (G_OBJECT_GET_CLASS (self), ebb_store_links[i]);
  EbbActivationStore *store = NULL;

  if (spec != NULL && g_type_is_a (spec->value_type, EBB_TYPE_SAVED_TENSOR_HOOKS))
    g_object_get (self, ebb_store_links[i], &store, NULL);
  if (store != NULL && !EBB_IS_ACTIVATION_STORE (store))
    g_clear_object (&store);
  return store;
}

GPtrArray *
ebb_activation_store_get_chain (EbbActivationStore *self)
{
  GPtrArray *chain = g_ptr_array_new_with_free_func (g_object_unref);

  g_ptr_array_add (chain, g_object_ref (self));
  for (guint n = 0; n < chain->len; n++)
    for (guint i = 0; i < EBB_N_LINKS; i++)
      {
        EbbActivationStore *store = ebb_activation_store_ref_behind (chain->pdata[n], i);

        if (store != NULL && !g_ptr_array_find (chain, store, NULL))
          g_ptr_array_add (chain, store);
        else
          g_clear_object (&store);
      }
  return chain;
}

/* -- getters and setters ------------------------------------------------------------------------------------------- */

/**
 * ebb_activation_store_get_next:
 * @self: a store
 *
 * Returns: (transfer none) (nullable): the store that @self stands in front of
 */
EbbActivationStore *
ebb_activation_store_get_next (EbbActivationStore *self)
{
  EbbActivationStore *next;

  g_return_val_if_fail (EBB_IS_ACTIVATION_STORE (self), NULL);

  next = ebb_activation_store_ref_behind (self, 0);
  if (next != NULL)
    g_object_unref (next); /* @self holds it */
  return next;
}

/**
 * ebb_activation_store_get_fallback:
 * @self: a store
 *
 * Returns: (transfer none) (nullable): the store for tensors that this store can't take
 */
EbbActivationStore *
ebb_activation_store_get_fallback (EbbActivationStore *self)
{
  EbbActivationStore *fallback;

  g_return_val_if_fail (EBB_IS_ACTIVATION_STORE (self), NULL);

  ebb_activation_store_lock (self);
  fallback = PRIVATE (self)->fallback;
  ebb_activation_store_unlock (self);
  return fallback;
}

EbbActivationStore *
ebb_activation_store_ref_fallback (EbbActivationStore *self)
{
  EbbActivationStore *fallback;

  ebb_activation_store_lock (self);
  fallback = PRIVATE (self)->fallback;
  if (fallback != NULL)
    g_object_ref (fallback);
  ebb_activation_store_unlock (self);
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
               "fallback of %s: this %s leads back to this store itself, by its own fallback or its next store; it "
               "must be a store that does not",
               G_OBJECT_TYPE_NAME (self), G_OBJECT_TYPE_NAME (fallback));
  return FALSE;
}

/**
 * ebb_activation_store_set_fallback:
 * @self: a store
 * @fallback: (nullable): another one, from which neither its fallback nor its next store leads back to
 *   @self; %NULL: none
 * @error: return location for an error
 *
 * Sets the store for tensors that this store has no room for or can't write, so that training goes on. Tensors that are
 * stored already stay where they are.
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
      ebb_activation_store_lock (self);
      old = PRIVATE (self)->fallback;
      changes = old != fallback;
      PRIVATE (self)->fallback = fallback != NULL ? g_object_ref (fallback) : NULL;
      ebb_activation_store_unlock (self);
    }
  pthread_mutex_unlock (&setting);
  g_clear_object (&old);
  if (changes)
    g_object_notify (G_OBJECT (self), "fallback");
  return ok;
}

/**
 * ebb_activation_store_set_filter:
 * @self: a store
 * @filter: (nullable) (scope notified) (closure user_data) (destroy destroy): decides whether a tensor is stored;
 * %NULL: all are
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
  ebb_activation_store_lock (self);
  old = PRIVATE (self)->filter;
  PRIVATE (self)->filter = made;
  ebb_activation_store_unlock (self);
  g_clear_pointer (&old, filter_unref);
}

void
ebb_activation_store_set_spills (EbbActivationStore *self,
                                 gboolean spills)
{
  EBB_WRITE (PRIVATE (self)->never_spills, !spills);
}

/* -- freeing ------------------------------------------------------------------------------------------------------- */

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

void
ebb_activation_store_dispose_settings (EbbActivationStore *self)
{
  EbbActivationStorePrivate *priv = PRIVATE (self);
  EbbActivationStore *fallback;
  EbbStoreFilter *filter;

  ebb_activation_store_lock (self);
  fallback = g_steal_pointer (&priv->fallback);
  filter = g_steal_pointer (&priv->filter);
  ebb_activation_store_unlock (self);
  g_clear_object (&fallback);
  g_clear_pointer (&filter, filter_unref);
}
