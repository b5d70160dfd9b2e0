/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Finds the blocks of a model for configurations that checkpoint all of them. */
#include "wrap/compat/model-blocks-private.h"

#include "nn/layers/block.h"
#include "nn/layers/module-list.h"
#include "nn/module-private.h"
#include "nn/layers/sequential.h"
#include "tensor/error-private.h"
#include "wrap/checkpoint/wrapper.h"

/* How many blocks are children of @module. */
static guint
count_blocks_in (EbbModule *module)
{
  guint n_children = ebb_module_get_n_children (module), n_blocks = 0;

  for (guint i = 0; i < n_children; i++)
    n_blocks += EBB_IS_BLOCK (ebb_module_peek_child (module, i));
  return n_blocks;
}

static gboolean
is_stack (EbbModule *module,
          const char *path,
          gpointer user_data)
{
  return (EBB_IS_MODULE_LIST (module) || EBB_IS_SEQUENTIAL (module)) && count_blocks_in (module) > 0;
}

static gboolean
check_is_plain (EbbModule *module,
                const char *name,
                GError **error)
{
  return !ebb_checkpoint_is_wrapped (module)
         || ebb_fail (error, EBB_ERROR_STATE, "%s (%s) is checkpointed already; ebb_checkpoint_unwrap () undoes that",
                      name, ebb_module_get_type_name (module));
}

guint
ebb_model_blocks_count (EbbModule *model,
                        GError **error)
{
  guint n_modules, n_blocks = 0;
  g_autofree EbbModule **modules = ebb_module_get_modules (model, &n_modules);
  g_auto (GStrv) names = ebb_module_get_module_names (model);
  gboolean ok = TRUE;

  for (guint i = 0; i < n_modules; i++)
    {
      gboolean is_block = EBB_IS_BLOCK (modules[i]);

      n_blocks += is_block;
      if (ok && (is_block || is_stack (modules[i], names[i], NULL)))
        ok = check_is_plain (modules[i], names[i], error);
      g_object_unref (modules[i]);
    }
  if (!ok)
    return 0;
  if (n_blocks == 0)
    g_set_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT,
                 "%s has no Block, as TransformerBlock is, to checkpoint; ebb_checkpoint_wrapper () takes any module",
                 ebb_module_get_type_name (model));
  return n_blocks;
}

EbbModule *
ebb_model_blocks_get_stack (EbbModule *model,
                            GError **error)
{
  g_autoptr (GPtrArray) stacks = ebb_module_select (model, is_stack, NULL);
  EbbModule *stack = stacks->len == 1 ? stacks->pdata[0] : NULL; /* the model holds it */

  if (stack != NULL && count_blocks_in (stack) == ebb_module_get_n_children (stack))
    return stack;
  return ebb_fail_null (error, EBB_ERROR_NOT_SUPPORTED,
                        "%s has %u stacks of Blocks alone: layers are counted in one stack, so there must be exactly "
                        "one; ebb_checkpoint_wrap_uniform () and _wrap_block () take each by itself",
                        ebb_module_get_type_name (model), stacks->len == 1 ? 0 : stacks->len);
}
