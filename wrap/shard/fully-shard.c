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
#include "tensor/util/json-writer-private.h"
#include "wrap/shard/unit-private.h"

/* The entry points that shard a module: each call makes a unit, and installs an interceptor that unshards the unit's
 * parameters for the forward. */

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
  if ((unit->lowers && lowered == NULL) || !ebb_shard_unit_pre_forward (unit, error))
    return NULL;
  result = ebb_forward_chain_call (inside, module, lowered != NULL ? lowered : args, error);
  if (!ebb_shard_unit_post_forward (unit, result != NULL ? error : NULL))
    g_clear_pointer (&result, ebb_args_unref);
  return result;
}

/* -- wrapping ------------------------------------------------------------------------------------------------------ */

static gboolean
has_unit (EbbModule *module,
          const char *path,
          gpointer user_data)
{
  return ebb_shard_unit_on (module) != NULL;
}

/* The units on @module and below it, outer ones first; the array holds references. */
static GPtrArray *
find_units (EbbModule *module)
{
  GPtrArray *units = g_ptr_array_new_with_free_func ((GDestroyNotify) ebb_shard_unit_unref);
  g_autoptr (GPtrArray) modules = ebb_module_select (module, has_unit, NULL);

  for (guint i = 0; i < modules->len; i++)
    g_ptr_array_add (units, ebb_shard_unit_ref (ebb_shard_unit_on (modules->pdata[i])));
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

/* FALSE for a module that holds others, or parameters of a layer around it, as those of an adapter: its unit would
 * never be unsharded. */
static gboolean
can_be_called (EbbModule *module)
{
  const EbbModuleClass *klass = EBB_MODULE_GET_CLASS (module);

  return !EBB_IS_MODULE_LIST (module)
         && (klass->forward != ebb_module_default_forward || klass->forward1 != ebb_module_default_forward1);
}

static gboolean
has_parameters_left (EbbModule *module)
{
  g_autoptr (GPtrArray) parameters = ebb_module_list_parameters (module);
  guint n_left = 0;

  for (guint i = 0; i < parameters->len; i++)
    n_left += !ebb_parameter_is_sharded (parameters->pdata[i]);
  return n_left > 0;
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
    return ebb_fail (error, EBB_ERROR_STATE, "%s is sharded already", ebb_module_get_type_name (module));
  if (!can_be_called (module) && has_parameters_left (module))
    {
      g_autofree char *path = ebb_module_get_path (module);

      return ebb_fail (error, EBB_ERROR_NOT_SUPPORTED,
                       "sharding %s%s%s: it is never called, so its parameters would never be gathered: shard the "
                       "module around it, or those in it",
                       ebb_module_get_type_name (module), *path != '\0' ? " " : "",
                       path);
    }
  unit = ebb_shard_unit_new (module, group != NULL ? group : ebb_process_group_get_default (),
                             options != NULL ? options : defaults, error);
  if (unit == NULL)
    return FALSE;
  ebb_module_add_interceptor (module, EBB_PARAMETER_OWNER_INTERCEPTOR, sharded_forward, unit,
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
 * Shards a module in place over the ranks of a group. Each rank keeps its shard of the parameters, of their gradients
 * and so of an optimizer's state. The parameters of @module and below it that belong to no inner sharded module form
 * one unit: they are gathered before the forward, freed after it and gathered again for the backward, whose gradients
 * are averaged and scattered over the ranks. So shard inner modules first and the full model last. The module's type,
 * properties and parameter names don't change, and neither do its tensors: an optimizer may be made before or after.
 * Between steps each parameter shows this rank's shard. (Rajbhandari et al., "ZeRO: Memory Optimizations Toward
 * Training Trillion Parameter Models", 2020, stage 3; with %EBB_RESHARD_NEVER stage 2.)
 *
 * All ranks of the group call this together. They must call the same modules in the same order, and their graphs must
 * reach the same units: a parameter of a unit that one rank leaves out counts as zero there, and one that all ranks
 * leave out gets no gradient. Passes without gradient sync (see ebb_push_gradient_sync()) stash their gradients, so a
 * parameter shows none between them; gradients of ebb_backward() with chosen inputs are reduced when an optimizer steps
 * or clips. Checkpoints may be inside, outside and in between.
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

/* Fails between a forward and its backward, and while full parameters are summoned. */
static gboolean
check_idle (EbbShardUnit *unit,
            GError **error)
{
  const char *why = NULL;

  if (unit->n_forwards > 0)
    why = "its forward is running: wait for its end";
  else if (unit->n_summoned > 0)
    why = "its full parameters are summoned: call ebb_release_full_params () first";
  else if (ebb_shard_unit_is_used (unit))
    why = "a graph holds its parameters: run its backward or drop it first";
  return why == NULL
         || ebb_fail (error, EBB_ERROR_STATE, "unwrapping of %s: %s", unit->name, why);
}

/**
 * ebb_fully_shard_unwrap:
 * @module: a module that was sharded
 * @error: return location for an error
 *
 * Gives @module and all sharded modules below it their full parameters back. All ranks call this together, but not
 * between a forward and its backward. Gradients are dropped, and the state of an optimizer no longer fits.
 *
 * Returns: %FALSE with an error, %EBB_ERROR_STATE if a graph still holds a parameter
 */
gboolean
ebb_fully_shard_unwrap (EbbModule *module,
                        GError **error)
{
  g_autoptr (GPtrArray) modules = NULL;

  if (!EBB_MAY_BEGIN (error, module))
    return FALSE;
  g_return_val_if_fail (EBB_IS_MODULE (module), FALSE);

  modules = ebb_module_select (module, has_unit, NULL);
  for (guint i = 0; i < modules->len; i++)
    if (!check_idle (ebb_shard_unit_on (modules->pdata[i]), error))
      return FALSE;
  for (guint i = 0; i < modules->len; i++)
    {
      EbbModule *it = modules->pdata[i];

      if (!ebb_shard_unit_dissolve (ebb_shard_unit_on (it), error))
        return FALSE;
      ebb_module_remove_interceptor (it, ebb_module_find_interceptor (it, EBB_PARAMETER_OWNER_INTERCEPTOR));
    }
  return TRUE;
}

/* Shards @modules, of which parents come first, from the last to the first. */
static gboolean
shard_all (GPtrArray *modules,
           EbbProcessGroup *group,
           EbbFullyShardOptions *options,
           GError **error)
{
  gboolean ok = TRUE;

  for (guint i = modules->len; i-- > 0 && ok;)
    ok = shard (modules->pdata[i], group, options, error);
  return ok;
}

typedef struct
{
  EbbModule *root; /* picked in any case */
  EbbFullyShardPickFunc pick;
  gpointer user_data;
} Picking;

static gboolean
is_root_or_picked (EbbModule *module,
                   const char *path,
                   gpointer user_data)
{
  const Picking *picking = user_data;

  return module == picking->root || picking->pick (module, path, picking->user_data);
}

/**
 * ebb_fully_shard_wrap_if:
 * @root: where to look
 * @pick: (scope call) (closure user_data): returns whether a module becomes a unit of its own
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
  g_autoptr (GPtrArray) modules = NULL;

  if (!EBB_MAY_BEGIN (error, root))
    return FALSE;
  g_return_val_if_fail (EBB_IS_MODULE (root), FALSE);
  g_return_val_if_fail (pick != NULL, FALSE);

  modules = ebb_module_select (root, is_root_or_picked, &(Picking){ root, pick, user_data });
  return shard_all (modules, group, options, error);
}

/**
 * ebb_fully_shard_wrap_each:
 * @root: where to look
 * @type: a type of modules, as %EBB_TYPE_BLOCK
 * @group: (nullable): the ranks among which to split; %NULL for the default group
 * @options: (nullable): how; %NULL for the defaults
 * @error: return location for an error
 *
 * Shards every module of @type (or derived from it) below @root by itself, and @root last.
 *
 * Returns: %FALSE with an error, %EBB_ERROR_INVALID_ARGUMENT if there is no such module; otherwise as for
 * ebb_fully_shard_wrap_if()
 */
gboolean
ebb_fully_shard_wrap_each (EbbModule *root,
                           GType type,
                           EbbProcessGroup *group,
                           EbbFullyShardOptions *options,
                           GError **error)
{
  g_autoptr (GPtrArray) modules = NULL;

  if (!EBB_MAY_BEGIN (error, root))
    return FALSE;
  g_return_val_if_fail (EBB_IS_MODULE (root), FALSE);

  modules = ebb_module_select_each (root, type, error);
  if (modules != NULL && modules->pdata[0] != root)
    g_ptr_array_insert (modules, 0, g_object_ref (root));
  return modules != NULL && shard_all (modules, group, options, error);
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

/* Picks the modules that are large enough, from the leaves up; returns how many elements of @module's parameters are in
 * units then. */
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
  if (n < n_taken || n - n_taken < self->min || is_of (module, self->exclude, self->n_exclude)
      || !can_be_called (module))
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
 * As ebb_fully_shard_auto_wrap_types(), where attention (#EbbMultiHeadAttention) is forced to be a leaf, and embeddings
 * (#EbbEmbedding), whose weight models use outside of them, are excluded.
 *
 * Returns: %FALSE with an error, as for ebb_fully_shard_wrap_if()
 */
gboolean
ebb_fully_shard_auto_wrap (EbbModule *root,
                           guint64 min_parameters,
                           EbbProcessGroup *group,
                           EbbFullyShardOptions *options,
                           GError **error)
{
  const GType force_leaf[] = { EBB_TYPE_MULTI_HEAD_ATTENTION };
  const GType exclude[] = { EBB_TYPE_EMBEDDING };

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
 * `auto_wrap` and of PyTorch's `size_based_auto_wrap_policy`. Modules that are never called become no unit: lists
 * (#EbbModuleList), and the factors of an adapter, which belong to their layer.
 *
 * @root is judged like all others. If too little is left for it, its remaining parameters are in no unit: each rank
 * keeps them in full, and their gradients are not averaged, until ebb_fully_shard() of @root takes them too. See
 * ebb_fully_shard_is_wrapped().
 *
 * Returns: %FALSE with an error, as for ebb_fully_shard_wrap_if()
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
  g_autoptr (GPtrArray) modules = NULL;
  Sizes sizes = { taken, min_parameters, force_leaf, exclude, n_force_leaf, n_exclude };

  if (!EBB_MAY_BEGIN (error, root))
    return FALSE;
  g_return_val_if_fail (EBB_IS_MODULE (root), FALSE);

  if (min_parameters == 0)
    return ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT,
                     "min_parameters is 0, which would make every module a unit; it must be 1 or more");
  take_large (&sizes, root);
  modules = ebb_module_select (root, is_taken, &sizes);
  return shard_all (modules, group, options, error);
}

/* -- full parameters ----------------------------------------------------------------------------------------------- */

/**
 * ebb_summon_full_params:
 * @module: a module with sharded modules in it
 * @error: return location for an error
 *
 * Gathers the full parameters of @module and below it, in their own dtype, until ebb_release_full_params(). Meanwhile
 * the model can be inspected and changed, but not trained. All ranks call this together.
 *
 * Returns: %FALSE with an error; nothing is summoned then
 */
gboolean
ebb_summon_full_params (EbbModule *module,
                        GError **error)
{
  g_autoptr (GPtrArray) units = NULL;

  if (!EBB_MAY_BEGIN (error, module))
    return FALSE;
  g_return_val_if_fail (EBB_IS_MODULE (module), FALSE);

  units = find_units (module);
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
 * @module: the module that ebb_summon_full_params() was called with
 * @writeback: whether changes are kept: each rank takes its shard from its own full parameters
 * @error: return location for an error
 *
 * Undoes one ebb_summon_full_params().
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

  units = find_units (module);
  for (guint i = 0; i < units->len; i++)
    if (!ebb_shard_unit_release (g_ptr_array_index (units, i), writeback, ok ? error : NULL))
      ok = FALSE;
  return ok;
}

/* -- report -------------------------------------------------------------------------------------------------------- */

enum
{
  PARAMETERS,
  ELEMENTS,
  SHARD_ELEMENTS,
  GATHERS,
  PREFETCHES,
  REDUCTIONS,
  GATHERED_BYTES, /* from here on in MiB in the table */
  REDUCED_BYTES,
  N_COLUMNS
};

static const struct
{
  const char *name, *title;
  int width;
} columns[N_COLUMNS] = {
  [PARAMETERS] = { "parameters", "parameters", 10 },
  [ELEMENTS] = { "elements", "elements", 14 },
  [SHARD_ELEMENTS] = { "shard_elements", "on this rank", 14 },
  [GATHERS] = { "gathers", "gathers", 8 },
  [PREFETCHES] = { "prefetches", "prefetched", 10 },
  [REDUCTIONS] = { "reductions", "reductions", 10 },
  [GATHERED_BYTES] = { "gathered_bytes", "gathered MiB", 12 },
  [REDUCED_BYTES] = { "reduced_bytes", "reduced MiB", 12 },
};

static void
get_counts (const EbbShardUnit *unit,
            gint64 *counts)
{
  counts[PARAMETERS] = unit->n_entries;
  counts[ELEMENTS] = ebb_shard_unit_count_elements (unit);
  counts[SHARD_ELEMENTS] = 0;
  for (guint i = 0; i < unit->n_entries; i++)
    counts[SHARD_ELEMENTS] += unit->entries[i].shard->n_elements;
  counts[GATHERS] = (gint64) unit->n_gathers;
  counts[PREFETCHES] = (gint64) unit->n_prefetches;
  counts[REDUCTIONS] = (gint64) unit->n_reductions;
  counts[GATHERED_BYTES] = (gint64) unit->gathered_bytes;
  counts[REDUCED_BYTES] = (gint64) unit->reduced_bytes;
}

/**
 * ebb_shard_report:
 * @module: a module with sharded modules in it
 *
 * Reports on the units of a module in a table, one line per unit, outer ones first: the number of parameters, their
 * elements in full and on this rank, how often they were gathered and how many of these gathers were prefetched, how
 * often their gradients were reduced, and the MiB of both.
 *
 * Returns: (transfer full): the text
 */
char *
ebb_shard_report (EbbModule *module)
{
  g_autoptr (GPtrArray) units = NULL;
  GString *text;

  g_return_val_if_fail (EBB_IS_MODULE (module), NULL);

  units = find_units (module);
  text = g_string_new (NULL);
  g_string_append_printf (text, "%-36s", "unit");
  for (guint c = 0; c < N_COLUMNS; c++)
    g_string_append_printf (text, " %*s", columns[c].width, columns[c].title);
  g_string_append_c (text, '\n');
  for (guint i = 0; i < units->len; i++)
    {
      const EbbShardUnit *unit = g_ptr_array_index (units, i);
      gint64 counts[N_COLUMNS];

      get_counts (unit, counts);
      g_string_append_printf (text, "%-36s", unit->name);
      for (guint c = 0; c < N_COLUMNS; c++)
        if (c < GATHERED_BYTES)
          g_string_append_printf (text, " %*" G_GINT64_FORMAT, columns[c].width, counts[c]);
        else
          g_string_append_printf (text, " %*.2f", columns[c].width, (double) counts[c] / (1 << 20));
      g_string_append_c (text, '\n');
    }
  return g_string_free (text, FALSE);
}

/**
 * ebb_shard_report_json:
 * @module: a module with sharded modules in it
 *
 * Reports the same as ebb_shard_report() for programs: an array of objects `name`, `parameters`, `elements`,
 * `shard_elements`, `gathers`, `prefetches`, `reductions`, `gathered_bytes`, `reduced_bytes`.
 *
 * Returns: (transfer full): JSON
 */
char *
ebb_shard_report_json (EbbModule *module)
{
  g_auto (EbbJsonWriter) json = { NULL };
  EbbJsonWriter *writer = &json;
  g_autoptr (GPtrArray) units = NULL;

  g_return_val_if_fail (EBB_IS_MODULE (module), NULL);

  units = find_units (module);
  ebb_json_writer_begin (writer, NULL, '[');
  for (guint i = 0; i < units->len; i++)
    {
      const EbbShardUnit *unit = g_ptr_array_index (units, i);
      gint64 counts[N_COLUMNS];

      get_counts (unit, counts);
      ebb_json_writer_begin (writer, NULL, '{');
      ebb_json_writer_add_string (writer, "name", unit->name);
      for (guint c = 0; c < N_COLUMNS; c++)
        ebb_json_writer_add_int (writer, columns[c].name, counts[c]);
      ebb_json_writer_end (writer);
    }
  ebb_json_writer_end (writer);
  return ebb_json_writer_finish (writer);
}
