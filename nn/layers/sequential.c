/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "nn/layers/sequential.h"

#include "nn/layers/layer-private.h"
#include "nn/layers/stack-private.h"

/**
 * EbbSequential:
 *
 * Modules one after the other: the first gets the arguments, each other what the one before gave. The children are
 * named "0", "1" and so on. Without children the arguments are the result.
 */
struct _EbbSequential
{
  EbbModule parent_instance;
};

G_DEFINE_TYPE (EbbSequential, ebb_sequential, EBB_TYPE_MODULE)

static EbbTensor *
ebb_sequential_forward1 (EbbModule *module, EbbTensor *input, GError **error)
{
  return ebb_stack_call1 (module, ebb_tensor_ref (input), error);
}

static EbbArgs *
ebb_sequential_forward (EbbModule *module, EbbArgs *args, GError **error)
{
  return ebb_stack_call (module, EBB_STACK_PIPE, args, error);
}

static void
ebb_sequential_class_init (EbbSequentialClass *klass)
{
  EbbModuleClass *module_class = EBB_MODULE_CLASS (klass);

  module_class->forward = ebb_sequential_forward;
  module_class->forward1 = ebb_sequential_forward1;
}

static void
ebb_sequential_init (EbbSequential *self)
{
}

/**
 * ebb_sequential_new:
 *
 * Makes an empty sequence.
 *
 * Returns: (transfer full) (type EbbSequential): the sequence
 */
EbbModule *
ebb_sequential_new (void)
{
  return ebb_layer_new (EBB_TYPE_SEQUENTIAL, NULL, NULL, NULL);
}

/**
 * ebb_sequential_append:
 * @self: a sequence
 * @module: a module that does not hold the sequence
 * @error: return location for an error
 *
 * Adds a module at the end.
 *
 * Returns: %TRUE if it was added, %FALSE with @error set
 */
gboolean
ebb_sequential_append (EbbSequential *self, EbbModule *module, GError **error)
{
  return ebb_layer_append_child ((EbbModule *) self, module, error);
}

/**
 * ebb_sequential_get_length:
 * @self: a sequence
 *
 * Returns: how many modules it has
 */
guint
ebb_sequential_get_length (EbbSequential *self)
{
  g_return_val_if_fail (EBB_IS_SEQUENTIAL (self), 0);

  return ebb_module_get_n_children (EBB_MODULE (self));
}

/**
 * ebb_sequential_get:
 * @self: a sequence
 * @index: a position
 *
 * Returns: (transfer full) (nullable): the module there, %NULL past the end
 */
EbbModule *
ebb_sequential_get (EbbSequential *self, guint index)
{
  EbbModule *module;

  g_return_val_if_fail (EBB_IS_SEQUENTIAL (self), NULL);

  module = ebb_module_peek_child (EBB_MODULE (self), index);
  return module != NULL ? g_object_ref (module) : NULL;
}
