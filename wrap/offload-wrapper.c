/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Wraps modules so that their forward's saved tensors go to a store. */
#include "wrap/offload-wrapper.h"

#include "nn/layers/module-list.h"
#include "nn/module-private.h"
#include "offload/host/store.h"
#include "tensor/error-private.h"
#include "tensor/thread-private.h"
#include "tensor/util/lock-private.h"

#define OFFLOAD_INTERCEPTOR "offload"

/* Several copies at once even out the differences between the time of an op and that of its copies. */
#define GROUPS 4

/* -- calls --------------------------------------------------------------------------------------------------------- */

/* A module may be wrapped again while another thread is in its forward. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

typedef struct
{
  EbbSavedTensorHooks *store; /* under the lock */
} Offload;

static EbbSavedTensorHooks *
ref_store (Offload *self)
{
  EBB_AUTO_LOCK (&lock);
  return g_object_ref (self->store);
}

static void
set_store (Offload *self,
           EbbSavedTensorHooks *store)
{
  g_autoptr (EbbSavedTensorHooks) old = NULL;

  EBB_AUTO_LOCK (&lock);
  old = self->store;
  self->store = g_object_ref (store);
}

static void
offload_free (gpointer data)
{
  Offload *self = data;

  g_object_unref (self->store);
  g_free (self);
}

/* A checkpoint frees the tensors inside it and recomputes them, so there is nothing to store. */
static gboolean
is_idle (gpointer user_data)
{
  return ebb_modes.no_grad || ebb_modes.frame != 0;
}

static EbbArgs *
offloaded_forward (EbbModule *module,
                   EbbArgs *args,
                   const EbbForwardChain *inside,
                   gpointer user_data,
                   GError **error)
{
  Offload *self = user_data;
  EbbSavedTensorHooks *outside = ebb_modes.hooks, *store;
  EbbArgs *result;

  if (is_idle (self))
    return ebb_forward_chain_call (inside, module, args, error);
  store = ref_store (self);
  ebb_modes.hooks = store;
  result = ebb_forward_chain_call (inside, module, args, error);
  ebb_modes.hooks = outside;
  g_object_unref (store);
  return result;
}

/* -- wrapping ------------------------------------------------------------------------------------------------------ */

static EbbSavedTensorHooks *
store_or_default (EbbSavedTensorHooks *store)
{
  if (store != NULL)
    return g_object_ref (store);
  store = ebb_host_store_new ();
  g_object_set (store, "in-flight", GROUPS, NULL);
  g_object_set (store, "prefetch", GROUPS, NULL);
  return store;
}

static Offload *
find (EbbModule *module)
{
  return ebb_module_get_interceptor_data (module, ebb_module_find_interceptor (module, OFFLOAD_INTERCEPTOR));
}

static gboolean
check_is_called (EbbModule *module,
                 GError **error)
{
  return !EBB_IS_MODULE_LIST (module)
         || ebb_fail (error, EBB_ERROR_NOT_SUPPORTED,
                      "%s: an offload wrapper would do nothing, since a list is never called itself: wrap the modules "
                      "of the list, as by ebb_offload_wrap_each ()",
                      ebb_module_get_type_name (module));
}

static void
wrap (EbbModule *module,
      EbbSavedTensorHooks *store)
{
  Offload *self = find (module);

  if (self != NULL)
    {
      set_store (self, store);
      return;
    }
  self = g_new0 (Offload, 1);
  set_store (self, store);
  ebb_module_add_idle_interceptor (module, OFFLOAD_INTERCEPTOR, offloaded_forward, is_idle, self, offload_free, NULL);
}

/**
 * ebb_offload_wrapper:
 * @module: a module
 * @store: (nullable): the store, such as an #EbbHostStore; %NULL for a new host store with four groups of tensors in
 *   flight and four prefetched
 * @error: return location for an error
 *
 * Wraps a module in place: from now on, each tensor that its forward saves for backward goes to @store if its
 * least-size and filter allow. Nothing is computed twice. The module's type, properties, parameter names and state dict
 * do not change.
 *
 * A module inside it that is wrapped too uses its own store. The inputs of a checkpoint inside it go to the
 * checkpoint's own store, or else to @store. Inside a checkpoint, which saves nothing, this wrapper does nothing.
 * Wrapping a module again sets another store.
 *
 * Returns: (transfer full) (nullable): @module; %NULL with %EBB_ERROR_NOT_SUPPORTED for an #EbbModuleList, which is
 *   never called itself
 */
EbbModule *
ebb_offload_wrapper (EbbModule *module,
                     EbbSavedTensorHooks *store,
                     GError **error)
{
  g_autoptr (EbbSavedTensorHooks) used = NULL;

  g_return_val_if_fail (module == NULL || EBB_IS_MODULE (module), NULL);
  g_return_val_if_fail (store == NULL || EBB_IS_SAVED_TENSOR_HOOKS (store), NULL);

  if (!EBB_MAY_BEGIN (error, module) || !check_is_called (module, error))
    return NULL;
  used = store_or_default (store);
  wrap (module, used);
  return g_object_ref (module);
}

static gboolean
is_called_and_of (EbbModule *module,
                  const char *path,
                  gpointer type)
{
  return g_type_is_a (G_OBJECT_TYPE (module), *(const GType *) type) && !EBB_IS_MODULE_LIST (module);
}

/**
 * ebb_offload_wrap_each:
 * @root: where to look
 * @type: a type of modules, as %EBB_TYPE_BLOCK
 * @store: (nullable): where to; %NULL for one host store for all, see ebb_offload_wrapper()
 * @error: return location for an error
 *
 * Wraps every module of @type (or derived from it) below @root, and @root itself. It skips lists, since they are never
 * called.
 *
 * Returns: %FALSE with %EBB_ERROR_INVALID_ARGUMENT if there is none
 */
gboolean
ebb_offload_wrap_each (EbbModule *root,
                       GType type,
                       EbbSavedTensorHooks *store,
                       GError **error)
{
  g_autoptr (EbbSavedTensorHooks) used = NULL;
  g_autoptr (GPtrArray) modules = NULL;

  g_return_val_if_fail (root == NULL || EBB_IS_MODULE (root), FALSE);
  g_return_val_if_fail (store == NULL || EBB_IS_SAVED_TENSOR_HOOKS (store), FALSE);

  if (!EBB_MAY_BEGIN (error, root))
    return FALSE;
  used = store_or_default (store);
  modules = ebb_module_select (root, is_called_and_of, &type);
  for (guint i = 0; i < modules->len; i++)
    wrap (modules->pdata[i], used);
  return modules->len > 0
         || ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT, "there is no %s in this %s that is called",
                      ebb_type_get_short_name (type), ebb_module_get_type_name (root));
}

/**
 * ebb_offload_unwrap:
 * @module: a module
 *
 * Takes the offload wrapper off. What was stored comes back all the same.
 *
 * Returns: %FALSE if there is none
 */
gboolean
ebb_offload_unwrap (EbbModule *module)
{
  g_return_val_if_fail (EBB_IS_MODULE (module), FALSE);

  return ebb_module_remove_interceptor (module, ebb_module_find_interceptor (module, OFFLOAD_INTERCEPTOR));
}

/**
 * ebb_offload_is_wrapped:
 * @module: a module
 *
 * Returns: %TRUE if an offload wrapper is on @module
 */
gboolean
ebb_offload_is_wrapped (EbbModule *module)
{
  g_return_val_if_fail (EBB_IS_MODULE (module), FALSE);

  return find (module) != NULL;
}

/**
 * ebb_offload_get_store:
 * @module: a module
 *
 * Returns: (transfer full) (nullable): the store of the offload wrapper on @module, to look at its counters; %NULL if
 *   there is no wrapper
 */
EbbSavedTensorHooks *
ebb_offload_get_store (EbbModule *module)
{
  Offload *self;

  g_return_val_if_fail (EBB_IS_MODULE (module), NULL);

  self = find (module);
  return self != NULL ? ref_store (self) : NULL;
}
