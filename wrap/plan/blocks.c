/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Finds the blocks of a model. */
#include "wrap/plan/blocks-private.h"

#include "nn/layers/block.h"
#include "nn/layers/module-list.h"
#include "nn/layers/sequential.h"
#include "nn/module-instance-private.h"
#include "wrap/checkpoint/wrapper.h"
#include "wrap/offload-wrapper.h"

static gboolean
is_wrapped (EbbModule *module)
{
  return ebb_checkpoint_is_wrapped (module) || ebb_offload_is_wrapped (module);
}

static gboolean
is_unwrapped (EbbModule *module,
              const char *path,
              gpointer user_data)
{
  return !is_wrapped (module);
}

static void
block_clear (gpointer data)
{
  EbbPlanBlock *block = data;

  g_object_unref (block->module);
  g_free (block->path);
}

static void
add_block (GArray *blocks,
           EbbModule *module,
           const char *path,
           gboolean is_inside)
{
  const gboolean is_taken = is_inside || !ebb_module_visit (module, is_unwrapped, NULL);
  const EbbPlanBlock block = { g_object_ref (module), g_strdup (path), is_taken };

  g_array_append_val (blocks, block);
}

/* Appends the blocks at @module and below. @is_inside: the user has wrapped something around them. */
static void
collect_blocks (EbbModule *module,
                const char *path,
                gboolean is_inside,
                GArray *blocks)
{
  g_auto (GStrv) names = NULL;

  if (EBB_IS_BLOCK (module))
    {
      add_block (blocks, module, path, is_inside);
      return;
    }
  names = ebb_module_get_child_names (module);
  for (guint i = 0; names[i] != NULL; i++)
    {
      g_autofree char *below = ebb_module_join_path (path, names[i]);

      collect_blocks (ebb_module_peek_child (module, i), below, is_inside || is_wrapped (module), blocks);
    }
}

typedef struct
{
  EbbModule *stack;
  char *path;
  gboolean is_inside;
} Longest;

/* Of lists that are equally long the first is taken, so one that is around others. */
static void
find_longest (EbbModule *module,
              const char *path,
              gboolean is_inside,
              Longest *longest)
{
  g_auto (GStrv) names = ebb_module_get_child_names (module);
  const guint n_most = longest->stack != NULL ? ebb_module_get_n_children (longest->stack) : 1;

  is_inside |= is_wrapped (module);
  if ((EBB_IS_MODULE_LIST (module) || EBB_IS_SEQUENTIAL (module)) && ebb_module_get_n_children (module) > n_most)
    {
      g_free (longest->path);
      *longest = (Longest){ module, g_strdup (path), is_inside };
    }
  for (guint i = 0; names[i] != NULL; i++)
    {
      g_autofree char *below = ebb_module_join_path (path, names[i]);

      find_longest (ebb_module_peek_child (module, i), below, is_inside, longest);
    }
}

GArray *
ebb_plan_find_blocks (EbbModule *model)
{
  GArray *blocks = g_array_new (FALSE, FALSE, sizeof (EbbPlanBlock));
  g_auto (GStrv) names = NULL;
  Longest longest = { 0 };

  g_array_set_clear_func (blocks, block_clear);
  collect_blocks (model, "", FALSE, blocks);
  if (blocks->len > 0)
    return blocks;
  find_longest (model, "", FALSE, &longest);
  if (longest.stack == NULL)
    return blocks;
  names = ebb_module_get_child_names (longest.stack);
  for (guint i = 0; names[i] != NULL; i++)
    {
      g_autofree char *path = ebb_module_join_path (longest.path, names[i]);

      add_block (blocks, ebb_module_peek_child (longest.stack, i), path, longest.is_inside);
    }
  g_free (longest.path);
  return blocks;
}

const char *
ebb_plan_describe_block (const char *path)
{
  return *path != '\0' ? path : "the model";
}
