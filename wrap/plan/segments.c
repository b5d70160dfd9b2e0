/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* A plan's segments: which blocks may be divided into some, and how that is done. */
#include "wrap/plan/segments-private.h"

#include "nn/layers/module-list.h"
#include "nn/layers/sequential.h"
#include "nn/module-private.h"
#include "tensor/error-private.h"
#include "wrap/checkpoint/options-private.h"
#include "wrap/checkpoint/stack-private.h"
#include "wrap/checkpoint/wrapper.h"

static gboolean
is_free_block (GArray *blocks,
               EbbModule *module)
{
  for (guint i = 0; i < blocks->len; i++)
    {
      const EbbPlanBlock *block = &g_array_index (blocks, EbbPlanBlock, i);

      if (block->module == module)
        return !block->is_taken;
    }
  return FALSE;
}

static gboolean
is_stack (EbbModule *module,
          const char *path,
          gpointer blocks)
{
  const guint n = ebb_module_get_n_children (module);
  gboolean ok = n > 1 && (EBB_IS_MODULE_LIST (module) || EBB_IS_SEQUENTIAL (module));

  for (guint i = 0; i < n && ok; i++)
    ok = is_free_block (blocks, ebb_module_peek_child (module, i));
  return ok;
}

static GPtrArray *
find_stacks (EbbModule *model,
             GArray *blocks)
{
  return ebb_module_select (model, is_stack, blocks);
}

guint
ebb_plan_segments_count_blocks (EbbModule *model,
                                GArray *blocks)
{
  g_autoptr (GPtrArray) stacks = find_stacks (model, blocks);
  guint n = 0;

  for (guint i = 0; i < stacks->len; i++)
    n = MAX (n, ebb_module_get_n_children (stacks->pdata[i]));
  return n;
}

GPtrArray *
ebb_plan_segments_put (EbbModule *model,
                       GArray *blocks,
                       gint64 n_blocks,
                       GError **error)
{
  g_autoptr (GPtrArray) stacks = find_stacks (model, blocks);
  g_autoptr (EbbCheckpointOptions) options = ebb_checkpoint_options_new ();

  if (stacks->len == 0)
    return ebb_fail_null (error, EBB_ERROR_STATE,
                          "the plan divides blocks that follow each other into segments, and the model has no list of "
                          "blocks that nobody has wrapped: plan again");
  options->is_planned = TRUE;
  for (guint i = 0; i < stacks->len; i++)
    {
      const guint n = ebb_module_get_n_children (stacks->pdata[i]);

      if (ebb_checkpoint_wrap_uniform (stacks->pdata[i], (guint) MIN (n_blocks, n), options, error))
        continue;
      while (i > 0)
        ebb_plan_segments_take_off (stacks->pdata[--i]);
      return NULL;
    }
  return g_steal_pointer (&stacks);
}

void
ebb_plan_segments_take_off (EbbModule *stack)
{
  if (ebb_checkpoint_stack_unwrap (stack) && !ebb_checkpoint_is_wrapped (stack))
    ebb_module_notify_activation_checkpointing (stack);
}
