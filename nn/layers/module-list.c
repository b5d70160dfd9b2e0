/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "nn/layers/module-list.h"

#include "nn/layers/layer-private.h"
#include "nn/layers/stack-private.h"
#include "tensor/error-private.h"

/**
 * EbbModuleList:
 *
 * A list of modules, named "0", "1" and so on, for a parent to call as it likes: one by one, or by
 * ebb_module_list_call_in_turn(). The list itself is never called.
 */
struct _EbbModuleList
{
  EbbModule parent_instance;
};

G_DEFINE_TYPE (EbbModuleList, ebb_module_list, EBB_TYPE_MODULE)

static EbbArgs *
ebb_module_list_forward (EbbModule *module, EbbArgs *args, GError **error)
{
  return ebb_fail_null (
      error, EBB_ERROR_NOT_SUPPORTED,
      "%s: a list of modules can't be called, its modules can: each, or all by ebb_module_list_call_in_turn ()",
      ebb_module_get_type_name (module));
}

static void
ebb_module_list_class_init (EbbModuleListClass *klass)
{
  EBB_MODULE_CLASS (klass)->forward = ebb_module_list_forward;
}

static void
ebb_module_list_init (EbbModuleList *self)
{
}

/**
 * ebb_module_list_new:
 *
 * Makes an empty list.
 *
 * Returns: (transfer full) (type EbbModuleList): the list
 */
EbbModule *
ebb_module_list_new (void)
{
  return ebb_layer_new (EBB_TYPE_MODULE_LIST, NULL, NULL, NULL);
}

/**
 * ebb_module_list_append:
 * @self: a list
 * @module: a module that does not hold the list
 * @error: return location for an error
 *
 * Adds a module at the end.
 *
 * Returns: %TRUE if it was added, %FALSE with @error set
 */
gboolean
ebb_module_list_append (EbbModuleList *self, EbbModule *module, GError **error)
{
  return ebb_layer_append_child ((EbbModule *) self, module, error);
}

/**
 * ebb_module_list_get_length:
 * @self: a list
 *
 * Returns: how many modules it has
 */
guint
ebb_module_list_get_length (EbbModuleList *self)
{
  g_return_val_if_fail (EBB_IS_MODULE_LIST (self), 0);

  return ebb_module_get_n_children (EBB_MODULE (self));
}

/**
 * ebb_module_list_get:
 * @self: a list
 * @index: a position
 *
 * Returns: (transfer full) (nullable): the module there, %NULL past the end
 */
EbbModule *
ebb_module_list_get (EbbModuleList *self, guint index)
{
  EbbModule *module;

  g_return_val_if_fail (EBB_IS_MODULE_LIST (self), NULL);

  module = ebb_module_peek_child (EBB_MODULE (self), index);
  return module != NULL ? g_object_ref (module) : NULL;
}

/**
 * ebb_module_list_call_in_turn:
 * @self: a list
 * @args: the first module's arguments, at least one of them by position
 * @error: return location for an error
 *
 * Calls the modules one after the other. Each but the first gets the result of the one before in place of the first
 * argument; the other arguments, as a mask, are the same for all. A model that calls its layers in this way can have
 * several of them checkpointed together, see ebb_checkpoint_wrap_uniform(). Without modules the first argument is the
 * result.
 *
 * Returns: (transfer full) (nullable): the last module's result, or %NULL with @error set
 */
EbbArgs *
ebb_module_list_call_in_turn (EbbModuleList *self, EbbArgs *args, GError **error)
{
  EBB_RETURN_UNLESS_BEGUN (NULL, error, self, args);
  g_return_val_if_fail (EBB_IS_MODULE_LIST (self), NULL);

  return ebb_stack_call (EBB_MODULE (self), EBB_STACK_SHARE, args, error);
}
