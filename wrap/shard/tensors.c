/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "wrap/shard/tensors-private.h"

#include "nn/module-instance-private.h"
#include "tensor/autograd/autograd-private.h"
#include "tensor/ops/pointwise.h"
#include "tensor/ops/shape.h"
#include "dist/rank-state-private.h"

#include <string.h>

/* -- which parameters ---------------------------------------------------------------------------------------------- */

typedef struct
{
  GArray *found;
  GHashTable *seen; /* modules and parameters */
  GPtrArray *borrowed;
} Search;

static void
found_clear (gpointer data)
{
  EbbShardFound *found = data;

  ebb_tensor_unref (found->tensor);
  g_free (found->name);
}

static gboolean
take_parameter (Search *search,
                EbbTensor *tensor,
                const char *path,
                const char *name,
                GError **error)
{
  EbbShardUnit *owner = ebb_shard_unit_of (tensor, NULL);
  g_autofree char *full = ebb_module_join_path (path, name);
  EbbShardFound found;

  if (!g_hash_table_add (search->seen, tensor))
    return TRUE;
  if (owner != NULL)
    {
      if (!g_ptr_array_find (search->borrowed, owner, NULL))
        g_ptr_array_add (search->borrowed, ebb_shard_unit_ref (owner));
      return TRUE;
    }
  if (tensor->owner != NULL)
    {
      g_set_error (error, EBB_ERROR, EBB_ERROR_STATE,
                   "%s is replicated already: a module is sharded or replicated, not both; hybrid sharding takes the "
                   "option replicate-group",
                   full);
      return FALSE;
    }
  found = (EbbShardFound){ ebb_tensor_ref (tensor), g_steal_pointer (&full) };
  g_array_append_val (search->found, found);
  return TRUE;
}

/* What is below a unit further inside is that unit's. */
static gboolean
search_module (Search *search,
               EbbModule *module,
               const char *path,
               GError **error)
{
  EbbModulePrivate *priv = ebb_module_get_private (module);

  if (!g_hash_table_add (search->seen, module) || (*path != '\0' && ebb_shard_unit_on (module) != NULL))
    return TRUE;
  for (guint i = 0; i < priv->parameters.n_items; i++)
    if (priv->parameters.items[i].tensor != NULL
        && !take_parameter (search, priv->parameters.items[i].tensor, path, priv->parameters.items[i].name, error))
      return FALSE;
  for (guint i = 0; i < priv->n_children; i++)
    if (priv->children[i].module != NULL)
      {
        g_autofree char *below = ebb_module_join_path (path, priv->children[i].name);

        if (!search_module (search, priv->children[i].module, below, error))
          return FALSE;
      }
  return TRUE;
}

GArray *
ebb_shard_collect (EbbModule *module,
                   GPtrArray *borrowed,
                   GError **error)
{
  g_autoptr (GHashTable) seen = g_hash_table_new (NULL, NULL);
  g_autoptr (GArray) found = g_array_new (FALSE, FALSE, sizeof (EbbShardFound));
  Search search = { found, seen, borrowed };

  g_array_set_clear_func (found, found_clear);
  return search_module (&search, module, "", error) ? g_steal_pointer (&found) : NULL;
}

static gboolean
check_parameter (const EbbShardFound *found,
                 GError **error)
{
  EbbTensor *tensor = found->tensor;

  if (!ebb_dtype_is_floating_point (tensor->view.dtype))
    g_set_error (error, EBB_ERROR, EBB_ERROR_DTYPE, "%s is of %s: a parameter that is sharded has floating elements",
                 found->name, ebb_dtype_get_name (tensor->view.dtype));
  else if (!ebb_view_is_contiguous (&tensor->view))
    g_set_error (error, EBB_ERROR, EBB_ERROR_NOT_SUPPORTED, "%s is not contiguous: make it so first", found->name);
  else if (tensor->grad != NULL)
    g_set_error (error, EBB_ERROR, EBB_ERROR_STATE, "%s has a gradient: drop it first by ebb_module_zero_grad ()",
                 found->name);
  else if (__atomic_load_n (&tensor->n_uses, __ATOMIC_RELAXED) > 0)
    g_set_error (error, EBB_ERROR, EBB_ERROR_STATE,
                 "%s belongs to a graph whose backward is still to come: shard before the forward", found->name);
  else
    return TRUE;
  return FALSE;
}

gboolean
ebb_shard_check_alike (GArray *found,
                       gboolean flatten,
                       const char *unit,
                       GError **error)
{
  const EbbShardFound *first = (const EbbShardFound *) (gpointer) found->data;

  for (guint i = 0; i < found->len; i++)
    {
      const EbbShardFound *it = &g_array_index (found, EbbShardFound, i);

      if (!check_parameter (it, error))
        return FALSE;
      if (it->tensor->storage->device != first->tensor->storage->device)
        {
          g_set_error (error, EBB_ERROR, EBB_ERROR_DEVICE, "%s is on %s and %s on %s: a unit is on one device",
                       first->name, ebb_device_get_name (first->tensor->storage->device), it->name,
                       ebb_device_get_name (it->tensor->storage->device));
          return FALSE;
        }
      if (flatten && it->tensor->view.dtype != first->tensor->view.dtype)
        {
          g_set_error (error, EBB_ERROR, EBB_ERROR_DTYPE,
                       "%s is of %s and %s of %s: what is flattened together is of one type", first->name,
                       ebb_dtype_get_name (first->tensor->view.dtype), it->name,
                       ebb_dtype_get_name (it->tensor->view.dtype));
          return FALSE;
        }
    }
  return TRUE;
}

/* -- the same on all ranks ----------------------------------------------------------------------------------------- */

static EbbRankState *
get_state (EbbShardUnit *unit,
           EbbModule *module)
{
  EbbRankState *state = ebb_rank_state_new ();

  for (guint i = 0; i < unit->n_entries; i++)
    ebb_rank_state_add_parameter (state, unit->entries[i].name, unit->entries[i].tensor);
  ebb_rank_state_add_buffers (state, module);
  return state;
}

static char *
describe (EbbShardUnit *unit,
          gboolean flatten)
{
  GString *text = g_string_new (NULL);
  g_autoptr (EbbModule) module = ebb_module_weak_get (unit->module);
  g_autoptr (EbbRankState) state = get_state (unit, module);

  g_string_append_printf (text, "%s: flatten %d, reshard %d, compute %d, reduce %d, predivide %g, prefetch %d\n",
                          unit->name, flatten, unit->reshard, unit->lowers ? (int) unit->compute_dtype : -1,
                          unit->reduce_dtype, unit->predivide, unit->prefetch);
  ebb_rank_state_describe (state, text);
  return g_string_free (text, FALSE);
}

gboolean
ebb_shard_check_ranks (EbbShardUnit *unit,
                       gboolean flatten,
                       const GError *failure,
                       GError **error)
{
  g_autofree char *text = failure != NULL ? g_strdup (failure->message) : describe (unit, flatten);
  g_autoptr (GError) first = NULL;

  /* Those who wait must not wait for a rank that has given up: what one group has found, its ranks tell the replicas.
   */
  ebb_process_group_check_same (unit->group, "the module to shard", text, &first);
  if (failure != NULL)
    {
      g_clear_error (&first);
      first = g_error_copy (failure);
    }
  if (unit->replicas != NULL)
    ebb_process_group_check_same (unit->replicas, "the module to shard", first != NULL ? first->message : text,
                                  first == NULL ? &first : NULL);
  if (first == NULL)
    return TRUE;
  g_propagate_error (error, g_steal_pointer (&first));
  return FALSE;
}

/* -- the first rank's values --------------------------------------------------------------------------------------- */

gboolean
ebb_shard_broadcast_state (EbbShardUnit *unit,
                           EbbModule *module,
                           GError **error)
{
  g_autoptr (EbbRankState) state = get_state (unit, module);
  g_autofree char *purpose = g_strdup_printf ("the first values of %s", unit->name);

  /* First over the replicas, so that the first rank of each group of shards has them to give. */
  return ebb_rank_state_broadcast (state, unit->replicas, G_MAXUINT64, purpose, error)
         && ebb_rank_state_broadcast (state, unit->group, G_MAXUINT64, purpose, error);
}

/* -- elements ------------------------------------------------------------------------------------------------------ */

static EbbTensor *
view_elements (EbbTensor *tensor,
               gint64 begin,
               gint64 n)
{
  return ebb_tensor_new_view (tensor->storage, tensor->offset + begin, &n, NULL, 1, tensor->view.dtype);
}

gboolean
ebb_shard_copy_elements (EbbTensor *source,
                         gint64 source_begin,
                         gint64 n,
                         EbbTensor *target,
                         gint64 target_begin,
                         GError **error)
{
  g_autoptr (EbbTensor) from = view_elements (source, source_begin, n);
  g_autoptr (EbbTensor) to = view_elements (target, target_begin, n);
  g_autoptr (EbbTensor) near = NULL;
  EbbLaunch launch;

  if (n == 0)
    return TRUE;
  near = ebb_to_device (from, target->storage->device, error);
  if (near == NULL)
    return FALSE;
  ebb_launch_init (&launch, EBB_KERNEL_COPY);
  ebb_launch_input (&launch, near);
  ebb_launch_output (&launch, to);
  return ebb_launch (target->storage->device, &launch, error);
}

gboolean
ebb_shard_reduce_doubles (EbbProcessGroup *group,
                          EbbReduceKind op,
                          double *values,
                          guint n_values,
                          GError **error)
{
  const gsize size = ebb_process_group_get_size (group), n_bytes = n_values * sizeof (double);
  const gint64 n_own = (gint64) n_bytes, n_all = (gint64) (size * n_bytes);
  g_autoptr (EbbTensor) own =
      ebb_tensor_new_from_values (values, n_bytes, &n_own, 1, EBB_DTYPE_U8, ebb_device_get_cpu (), error);
  g_autoptr (EbbTensor) all =
      ebb_tensor_new_uninitialized (&n_all, 1, EBB_DTYPE_U8, ebb_device_get_cpu (), error);
  const EbbCollectivePart part = { .whole = all, .piece = own };

  if (own == NULL || all == NULL)
    return FALSE;
  if (!ebb_process_group_run (group, EBB_COLLECTIVE_ALL_GATHER, EBB_REDUCE_OP_SUM, &part, 1, 0, "a norm over shards",
                              error))
    return FALSE;
  memcpy (values, all->view.data, n_bytes);
  for (gsize rank = 1; rank < size; rank++)
    for (guint i = 0; i < n_values; i++)
      {
        double value;

        memcpy (&value, (const char *) all->view.data + rank * n_bytes + i * sizeof value, sizeof value);
        values[i] = ebb_reduce_double (op, values[i], value);
      }
  return TRUE;
}
