/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "wrap/shard/fully-shard.h"

#include "dist/init.h"
#include "nn/layers/embedding.h"
#include "nn/module-instance-private.h"
#include "nn/layers/module-list.h"
#include "nn/layers/multi-head-attention.h"
#include "tensor/error-private.h"
#include "tensor/ops/pointwise.h"
#include "tensor/thread-private.h"
#include "wrap/shard/unit-private.h"

/* The wrapper: an interceptor that has the unit's parameters gathered for the forward. */

/* -- forward ------------------------------------------------------------------------------------------------------- */

static EbbTensor *
lower (EbbTensor *tensor,
       gpointer data,
       GError **error)
{
  EbbShardUnit *unit = data;

  if (!ebb_dtype_is_floating_point (tensor->view.dtype) || tensor->view.dtype == unit->compute_dtype)
    return ebb_tensor_ref (tensor);
  return ebb_cast (tensor, unit->compute_dtype, error);
}

static EbbArgs *
sharded_forward (EbbModule *module,
                 EbbArgs *args,
                 const EbbForwardChain *inside,
                 gpointer user_data,
                 GError **error)
{
  EbbShardUnit *unit = user_data;
  g_autoptr (EbbArgs) lowered = NULL;
  EbbArgs *result = NULL;

  if (unit->lowers)
    lowered = ebb_args_map_tensors (args, lower, unit, error);
  if ((unit->lowers && lowered == NULL) || !ebb_shard_open (unit, error))
    return NULL;
  result = ebb_forward_chain_call (inside, module, lowered != NULL ? lowered : args, error);
  if (!ebb_shard_close (unit, result != NULL ? error : NULL))
    g_clear_pointer (&result, ebb_args_unref);
  return result;
}

/* -- wrapping ------------------------------------------------------------------------------------------------------ */

EbbShardUnit *
ebb_shard_unit_on (EbbModule *module)
{
  guint id = ebb_module_find_interceptor (module, EBB_SHARD_INTERCEPTOR);

  return id != 0 ? ebb_module_get_interceptor_data (module, id) : NULL;
}

static gboolean
add_unit (EbbModule *module,
          const char *path,
          gpointer user_data)
{
  EbbShardUnit *unit = ebb_shard_unit_on (module);

  if (unit != NULL)
    g_ptr_array_add (user_data, ebb_shard_unit_ref (unit));
  return TRUE;
}

GPtrArray *
ebb_shard_units_below (EbbModule *module)
{
  GPtrArray *units = g_ptr_array_new_with_free_func ((GDestroyNotify) ebb_shard_unit_unref);

  ebb_module_visit (module, add_unit, units);
  return units;
}

/**
 * ebb_fully_shard_is_wrapped:
 * @module: a module
 *
 * Returns: %TRUE if @module itself was sharded by ebb_fully_shard()
 */
gboolean
ebb_fully_shard_is_wrapped (EbbModule *module)
{
  g_return_val_if_fail (EBB_IS_MODULE (module), FALSE);

  return ebb_shard_unit_on (module) != NULL;
}

static gboolean
shard (EbbModule *module,
       EbbProcessGroup *group,
       EbbFullyShardOptions *options,
       GError **error)
{
  g_autoptr (EbbFullyShardOptions) defaults = options == NULL ? ebb_fully_shard_options_new () : NULL;
  EbbShardUnit *unit;

  if (ebb_fully_shard_is_wrapped (module))
    {
      g_set_error (error, EBB_ERROR, EBB_ERROR_STATE, "%s is sharded already", ebb_module_get_type_name (module));
      return FALSE;
    }
  unit = ebb_shard_unit_new (module, group != NULL ? group : ebb_process_group_get_default (),
                             options != NULL ? options : defaults, error);
  if (unit == NULL)
    return FALSE;
  ebb_module_add_interceptor (module, EBB_SHARD_INTERCEPTOR, sharded_forward, unit,
                              (GDestroyNotify) ebb_shard_unit_unref);
  return TRUE;
}

/**
 * ebb_fully_shard:
 * @module: a module
 * @group: (nullable): the ranks among which to split; %NULL for the default group
 * @options: (nullable): how; %NULL for the defaults
 * @error: return location for an error
 *
 * Shards a module in place over the ranks of a group, each of which calls this at the same time: of its parameters,
 * their gradients and so the state of an optimizer each rank keeps its part. The parameters that no module below owns
 * that was sharded before are one unit: they are gathered before the forward, let go after it and gathered again for
 * the backward, whose gradients are averaged over the ranks and split. So shard inner modules first, the whole model
 * last. Type, properties and names of parameters stay what they were, and so do the tensors: an optimizer may be made
 * before or after; between the steps each shows this rank's part. (Rajbhandari et al., "ZeRO: Memory Optimizations
 * Toward Training Trillion Parameter Models", 2020, stage 3; with %EBB_RESHARD_NEVER stage 2.)
 *
 * All ranks must call the same modules in the same order, and their graphs must lead through the same units: what one
 * rank leaves out within a unit counts as zero, and what all leave out has no gradient. Without gradients' sync (see
 * ebb_push_gradient_sync()) they are kept aside, so that a parameter shows none between such passes; those of
 * ebb_backward() with chosen inputs are reduced when an optimizer steps or clips. Checkpointing goes with it inside,
 * outside and between.
 *
 * Returns: (transfer full) (nullable): @module, or %NULL with an error, on all ranks if they don't shard the same
 */
EbbModule *
ebb_fully_shard (EbbModule *module,
                 EbbProcessGroup *group,
                 EbbFullyShardOptions *options,
                 GError **error)
{
  if (!EBB_MAY_BEGIN (error, module))
    return NULL;
  g_return_val_if_fail (EBB_IS_MODULE (module), NULL);

  return shard (module, group, options, error) ? g_object_ref (module) : NULL;
}

/**
 * ebb_fully_shard_unwrap:
 * @module: a module that was sharded
 * @error: return location for an error
 *
 * Makes the parameters of @module and of all sharded modules below it whole again, on all ranks, which call this at the
 * same time, not between a forward and its backward. Gradients are dropped, and the state of an optimizer no longer
 * fits.
 *
 * Returns: %FALSE with an error, %EBB_ERROR_STATE if a graph still holds a parameter
 */
gboolean
ebb_fully_shard_unwrap (EbbModule *module,
                        GError **error)
{
  g_autoptr (GPtrArray) units = NULL;
  g_autofree EbbModule **modules = NULL;
  guint n_modules;
  gboolean ok = TRUE;

  if (!EBB_MAY_BEGIN (error, module))
    return FALSE;
  g_return_val_if_fail (EBB_IS_MODULE (module), FALSE);

  units = ebb_shard_units_below (module);
  for (guint i = 0; i < units->len; i++)
    if (!ebb_shard_unit_check_idle (g_ptr_array_index (units, i), "unwrapping", error))
      return FALSE;
  modules = ebb_module_get_modules (module, &n_modules);
  for (guint i = 0; i < n_modules; i++)
    {
      EbbShardUnit *unit = ebb_shard_unit_on (modules[i]);

      if (ok && unit != NULL)
        {
          ok = ebb_shard_unit_dissolve (unit, error);
          if (ok)
            ebb_module_remove_interceptor (modules[i], ebb_module_find_interceptor (modules[i], EBB_SHARD_INTERCEPTOR));
        }
      g_object_unref (modules[i]);
    }
  return ok;
}

/* The modules of @root that @pick picks, inner ones first; it isn't asked about the root if that is taken in any case.
 */
static gboolean
wrap_picked (EbbModule *root,
             gboolean takes_root,
             EbbFullyShardPickFunc pick,
             gpointer user_data,
             EbbProcessGroup *group,
             EbbFullyShardOptions *options,
             GError **error)
{
  guint n_modules;
  g_autofree EbbModule **modules = ebb_module_get_modules (root, &n_modules);
  g_auto (GStrv) names = ebb_module_get_module_names (root);
  g_autofree gboolean *picked = g_new (gboolean, n_modules + 1);
  gboolean ok = TRUE;

  for (guint i = 0; i < n_modules; i++)
    picked[i] = (i == 0 && takes_root) || pick (modules[i], names[i], user_data);
  /* Parents come first among the modules. */
  for (guint i = n_modules; i-- > 0;)
    {
      ok = ok && (!picked[i] || shard (modules[i], group, options, error));
      g_object_unref (modules[i]);
    }
  return ok;
}

/**
 * ebb_fully_shard_wrap_if:
 * @root: where to look
 * @pick: (scope call) (closure user_data): says which modules to shard by themselves
 * @user_data: user data
 * @group: (nullable): the ranks among which to split; %NULL for the default group
 * @options: (nullable): how; %NULL for the defaults
 * @error: return location for an error
 *
 * Shards every module below @root that @pick picks, inner ones first, and @root last.
 *
 * Returns: %FALSE with an error; modules that were sharded before it stay so until ebb_fully_shard_unwrap() of @root
 */
gboolean
ebb_fully_shard_wrap_if (EbbModule *root,
                         EbbFullyShardPickFunc pick,
                         gpointer user_data,
                         EbbProcessGroup *group,
                         EbbFullyShardOptions *options,
                         GError **error)
{
  if (!EBB_MAY_BEGIN (error, root))
    return FALSE;
  g_return_val_if_fail (EBB_IS_MODULE (root), FALSE);
  g_return_val_if_fail (pick != NULL, FALSE);

  return wrap_picked (root, TRUE, pick, user_data, group, options, error);
}

/**
 * ebb_fully_shard_wrap_each:
 * @root: where to look
 * @type: a type of modules, as %EBB_TYPE_TRANSFORMER_BLOCK
 * @group: (nullable): the ranks among which to split; %NULL for the default group
 * @options: (nullable): how; %NULL for the defaults
 * @error: return location for an error
 *
 * Shards every module of @type (or derived from it) below @root by itself, and @root last.
 *
 * Returns: %FALSE with an error, %EBB_ERROR_INVALID_ARGUMENT if there is no such module; as of
 * ebb_fully_shard_wrap_if()
 */
gboolean
ebb_fully_shard_wrap_each (EbbModule *root,
                           GType type,
                           EbbProcessGroup *group,
                           EbbFullyShardOptions *options,
                           GError **error)
{
  if (!EBB_MAY_BEGIN (error, root))
    return FALSE;
  g_return_val_if_fail (EBB_IS_MODULE (root), FALSE);

  return ebb_module_check_has_type (root, type, error)
         && ebb_fully_shard_wrap_if (root, ebb_module_is_of_type, &type, group, options, error);
}

/* -- by size ------------------------------------------------------------------------------------------------------- */

typedef struct
{
  GHashTable *taken; /* of modules */
  guint64 min;
  const GType *force_leaf, *exclude;
  guint n_force_leaf, n_exclude;
} Sizes;

static gboolean
is_of (EbbModule *module,
       const GType *types,
       guint n_types)
{
  for (guint i = 0; i < n_types; i++)
    if (g_type_is_a (G_OBJECT_TYPE (module), types[i]))
      return TRUE;
  return FALSE;
}

/* Takes what is large enough, from the leaves up; gives how many elements of @module's parameters are in units then. */
static guint64
take_large (Sizes *self,
            EbbModule *module)
{
  const guint64 n = ebb_module_count_parameters (module);
  const guint n_children = ebb_module_get_n_children (module);
  guint64 n_taken = 0;

  if (g_hash_table_contains (self->taken, module))
    return n;
  if (n < self->min || is_of (module, self->force_leaf, self->n_force_leaf))
    return 0;
  for (guint i = 0; i < n_children; i++)
    if (ebb_module_peek_child (module, i) != NULL)
      n_taken += take_large (self, ebb_module_peek_child (module, i));
  /* Parameters that several modules share may have been counted in each. */
  if (n < n_taken || n - n_taken < self->min || is_of (module, self->exclude, self->n_exclude))
    return n_taken;
  g_hash_table_add (self->taken, module);
  return n;
}

static gboolean
is_taken (EbbModule *module,
          const char *name,
          gpointer user_data)
{
  return g_hash_table_contains (((Sizes *) user_data)->taken, module);
}

/**
 * ebb_fully_shard_auto_wrap:
 * @root: where to look
 * @min_parameters: how many elements of parameters make a module worth a unit of its own
 * @group: (nullable): the ranks among which to split; %NULL for the default group
 * @options: (nullable): how; %NULL for the defaults
 * @error: return location for an error
 *
 * As ebb_fully_shard_auto_wrap_types(), where attention (#EbbMultiHeadAttention) is forced to be a leaf, and lists
 * (#EbbModuleList), which are never called, and embeddings (#EbbEmbedding), whose weight models use outside of them,
 * are excluded.
 *
 * Returns: %FALSE with an error; as of ebb_fully_shard_wrap_if()
 */
gboolean
ebb_fully_shard_auto_wrap (EbbModule *root,
                           guint64 min_parameters,
                           EbbProcessGroup *group,
                           EbbFullyShardOptions *options,
                           GError **error)
{
  const GType force_leaf[] = { EBB_TYPE_MULTI_HEAD_ATTENTION };
  const GType exclude[] = { EBB_TYPE_MODULE_LIST, EBB_TYPE_EMBEDDING };

  return ebb_fully_shard_auto_wrap_types (root, min_parameters, force_leaf, G_N_ELEMENTS (force_leaf), exclude,
                                          G_N_ELEMENTS (exclude), group, options, error);
}

/**
 * ebb_fully_shard_auto_wrap_types:
 * @root: where to look
 * @min_parameters: how many elements of parameters make a module worth a unit of its own
 * @force_leaf: (array length=n_force_leaf) (nullable): types of modules below which nothing becomes a unit, nor they
 *   themselves
 * @n_force_leaf: how many
 * @exclude: (array length=n_exclude) (nullable): types of modules that become no unit themselves
 * @n_exclude: how many
 * @group: (nullable): the ranks among which to split; %NULL for the default group
 * @options: (nullable): how; %NULL for the defaults
 * @error: return location for an error
 *
 * Shards, from the leaves up, every module by itself that has at least @min_parameters elements of parameters when
 * those in units below it are left out. Types count with all that derive from them. It is the rule of FairScale's
 * `auto_wrap` and of PyTorch's `size_based_auto_wrap_policy`.
 *
 * @root is judged like all others. If too little is left for it, its remaining parameters are in no unit: they stay
 * whole on each rank, and nobody averages their gradients, until ebb_fully_shard() of @root takes them too. See
 * ebb_fully_shard_is_wrapped().
 *
 * Returns: %FALSE with an error; as of ebb_fully_shard_wrap_if()
 */
gboolean
ebb_fully_shard_auto_wrap_types (EbbModule *root,
                                 guint64 min_parameters,
                                 const GType *force_leaf,
                                 guint n_force_leaf,
                                 const GType *exclude,
                                 guint n_exclude,
                                 EbbProcessGroup *group,
                                 EbbFullyShardOptions *options,
                                 GError **error)
{
  g_autoptr (GHashTable) taken = g_hash_table_new (NULL, NULL);
  Sizes sizes = { taken, min_parameters, force_leaf, exclude, n_force_leaf, n_exclude };

  if (!EBB_MAY_BEGIN (error, root))
    return FALSE;
  g_return_val_if_fail (EBB_IS_MODULE (root), FALSE);

  if (min_parameters == 0)
    {
      g_set_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT,
                   "a unit of at least 0 parameters would be every module: give 1 or more");
      return FALSE;
    }
  take_large (&sizes, root);
  return wrap_picked (root, FALSE, is_taken, &sizes, group, options, error);
}

/* -- whole for a while --------------------------------------------------------------------------------------------- */

/**
 * ebb_summon_full_params:
 * @module: a module with sharded modules in it
 * @error: return location for an error
 *
 * Makes the parameters of @module and below it whole, in their own type, on all ranks, which call this at the same
 * time, until ebb_release_full_params(). In between the model is for looking at and changing, not for training.
 *
 * Returns: %FALSE with an error; nothing is whole then
 */
gboolean
ebb_summon_full_params (EbbModule *module,
                        GError **error)
{
  g_autoptr (GPtrArray) units = NULL;

  if (!EBB_MAY_BEGIN (error, module))
    return FALSE;
  g_return_val_if_fail (EBB_IS_MODULE (module), FALSE);

  units = ebb_shard_units_below (module);
  for (guint i = 0; i < units->len; i++)
    if (!ebb_shard_unit_summon (g_ptr_array_index (units, i), error))
      {
        while (i-- > 0)
          ebb_shard_unit_release (g_ptr_array_index (units, i), FALSE, NULL);
        return FALSE;
      }
  return TRUE;
}

/**
 * ebb_release_full_params:
 * @module: what ebb_summon_full_params() was called with
 * @writeback: whether changes are kept: each rank takes its own part of its own whole parameters
 * @error: return location for an error
 *
 * Ends what ebb_summon_full_params() began.
 *
 * Returns: %FALSE with %EBB_ERROR_STATE if it was not called
 */
gboolean
ebb_release_full_params (EbbModule *module,
                         gboolean writeback,
                         GError **error)
{
  g_autoptr (GPtrArray) units = NULL;
  gboolean ok = TRUE;

  if (!EBB_MAY_BEGIN (error, module))
    return FALSE;
  g_return_val_if_fail (EBB_IS_MODULE (module), FALSE);

  units = ebb_shard_units_below (module);
  for (guint i = 0; i < units->len; i++)
    if (!ebb_shard_unit_release (g_ptr_array_index (units, i), writeback, ok ? error : NULL))
      ok = FALSE;
  return ok;
}
