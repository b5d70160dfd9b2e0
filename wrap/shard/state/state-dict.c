/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "wrap/shard/state/state-dict.h"

#include "dist/init.h"
#include "dist/agree-private.h"
#include "nn/args-private.h"
#include "nn/state/state-dict-private.h"
#include "tensor/autograd/autograd-private.h"
#include "tensor/error-private.h"
#include "tensor/ops/in-place.h"
#include "tensor/ops/pointwise.h"
#include "wrap/shard/state/state-private.h"

/* Gets and loads the full state dict of a module whose tensors are split over ranks. */

/* -- entries ------------------------------------------------------------------------------------------------------- */

static void entry_clear (gpointer data);

static void
add_entry (const char *name,
           EbbTensor *tensor,
           gpointer user_data)
{
  GArray *entries = user_data;
  EbbStateEntry entry = { .name = g_strdup (name), .tensor = tensor, .first = entries->len };

  for (guint i = 0; i < entries->len; i++)
    if (g_array_index (entries, EbbStateEntry, i).tensor == tensor)
      {
        entry.first = i;
        break;
      }
  ebb_local_shard_init (&entry.shard, tensor);
  g_array_append_val (entries, entry);
}

GArray *
ebb_state_entries_new_part (EbbModule *module,
                            EbbStatePart part,
                            GHashTable *trained)
{
  GArray *entries = g_array_new (FALSE, FALSE, sizeof (EbbStateEntry));

  g_array_set_clear_func (entries, entry_clear);
  ebb_module_visit_state_part (module, part, trained, add_entry, entries);
  return entries;
}

GArray *
ebb_state_entries_new (EbbModule *module)
{
  return ebb_state_entries_new_part (module, EBB_STATE_ALL, NULL);
}

void
ebb_state_entries_describe (GArray *entries,
                            guint rank,
                            EbbShardIndex *index)
{
  index->has_files[EBB_SHARD_FILE_MODEL] = TRUE;
  for (guint i = 0; i < entries->len; i++)
    {
      const EbbStateEntry *entry = &g_array_index (entries, EbbStateEntry, i);
      const EbbLocalShard *shard = &entry->shard;
      EbbShardRecord *record = ebb_shard_index_add (index, EBB_SHARD_FILE_MODEL, entry->name,
                                                    shard->tensor->view.dtype, shard->shape, shard->n_dims);

      g_free (record->stored_as);
      record->stored_as = g_strdup (g_array_index (entries, EbbStateEntry, entry->first).name);
      record->split = shard->split;
      ebb_shard_record_add_range (record, rank, shard->begin, shard->end, shard->index);
    }
}

gboolean
ebb_state_check_released (GArray *entries,
                          GError **error)
{
  for (guint i = 0; i < entries->len; i++)
    {
      const EbbStateEntry *entry = &g_array_index (entries, EbbStateEntry, i);

      if (entry->shard.unit != NULL && entry->shard.unit->n_summoned > 0)
        return ebb_fail (error, EBB_ERROR_STATE,
                         "the full parameter %s is summoned: call ebb_release_full_params() first", entry->name);
    }
  return TRUE;
}

/* -- get ----------------------------------------------------------------------------------------------------------- */

/**
 * ebb_get_full_state_dict:
 * @module: a module: fully sharded, replicated, tensor-parallel, or none of these
 * @rank0_only: whether rank 0 alone keeps it
 * @error: return location for an error
 *
 * Collects the state dict that ebb_module_get_state_dict() would return if the module were not split over ranks: the
 * same names and order, shared parameters under each of their names, persistent buffers included (each rank's own). The
 * tensors are copies in host memory; weights that are kept in f32 and lowered for compute are returned in f32.
 *
 * All ranks of the process' default group call it together. Units are gathered one after the other, and so are
 * tensor-parallel parameters, so a rank that keeps nothing needs memory for the largest unit and the largest full
 * parameter.
 *
 * Returns: (transfer full) (nullable): an %EBB_ARGS_DICT of tensors by path; with @rank0_only one that is empty on the
 *   ranks other than 0
 */
EbbArgs *
ebb_get_full_state_dict (EbbModule *module,
                         gboolean rank0_only,
                         GError **error)
{
  EbbProcessGroup *group = ebb_process_group_get_default ();
  g_autoptr (GArray) entries = NULL;
  EbbGatherItem *items;
  GError *failure = NULL;
  EbbArgs *state = NULL;
  gboolean keep;
  guint n = 0;

  if (!EBB_MAY_BEGIN (error, module))
    return NULL;
  g_return_val_if_fail (EBB_IS_MODULE (module), NULL);

  keep = !rank0_only || ebb_process_group_get_rank (group) == 0;
  entries = ebb_state_entries_new (module);
  items = g_new0 (EbbGatherItem, entries->len + 1);
  for (guint i = 0; i < entries->len; i++)
    {
      EbbStateEntry *entry = &g_array_index (entries, EbbStateEntry, i);
      EbbTensor *local = entry->shard.tensor;

      if (entry->first != i)
        continue;
      entry->item = n;
      items[n++] = (EbbGatherItem){ .shard = entry->shard, .local = local, .dtype = local->view.dtype };
    }
  ebb_state_check_released (entries, &failure);
  if (ebb_gather_full_tensors (group, items, n, keep, failure, error))
    state = ebb_args_new (EBB_ARGS_DICT);
  for (guint i = 0; state != NULL && keep && i < entries->len; i++)
    {
      const EbbStateEntry *entry = &g_array_index (entries, EbbStateEntry, i);

      ebb_args_add_tensor (state, entry->name, items[g_array_index (entries, EbbStateEntry, entry->first).item].full);
    }
  ebb_gather_items_free (items, n);
  return state;
}

/* -- load ---------------------------------------------------------------------------------------------------------- */

static const gint64 *
get_full_shape (EbbTensor *target,
                guint *n_dims)
{
  EbbLocalShard shard;

  ebb_local_shard_init (&shard, target);
  *n_dims = shard.n_dims;
  return shard.shape;
}

static gboolean
reshard (EbbShardUnit *unit,
         GError **error)
{
  if (unit == NULL)
    return TRUE;
  if (unit->n_summoned == 0)
    return ebb_shard_unit_reshard (unit, error);
  return ebb_fail (error, EBB_ERROR_STATE, "%s has full parameters summoned: call ebb_release_full_params() first",
                   unit->name);
}

gboolean
ebb_state_reshard (GArray *entries,
                   EbbOptimizer *optimizer,
                   GError **error)
{
  EbbOptimizerPrivate *priv = optimizer != NULL ? ebb_optimizer_get_private (optimizer) : NULL;

  for (guint i = 0; entries != NULL && i < entries->len; i++)
    if (!reshard (g_array_index (entries, EbbStateEntry, i).shard.unit, error))
      return FALSE;
  for (guint i = 0; priv != NULL && i < priv->n_slots; i++)
    if (!reshard (ebb_shard_unit_of (priv->slots[i].parameter, NULL), error))
      return FALSE;
  return TRUE;
}

/* The copies by which this rank takes its shards of @state, full tensors by name. */
static GArray *
match_own (EbbModule *module,
           GArray *entries,
           EbbArgs *state,
           gboolean strict,
           GError **error)
{
  g_autoptr (EbbArgs) targets = ebb_args_new (EBB_ARGS_DICT);
  g_autoptr (GArray) transfers = NULL;

  for (guint i = 0; i < entries->len; i++)
    ebb_args_add_tensor (targets, g_array_index (entries, EbbStateEntry, i).name,
                         g_array_index (entries, EbbStateEntry, i).tensor);
  transfers = ebb_module_match_state (module, targets, state, strict, get_full_shape, error);
  for (guint i = 0; transfers != NULL && i < transfers->len; i++)
    {
      EbbStateTransfer *transfer = &g_array_index (transfers, EbbStateTransfer, i);
      EbbTensor *local;
      EbbLocalShard shard;

      ebb_local_shard_init (&shard, transfer->target);
      local = ebb_local_shard_extract (&shard, transfer->source, error);
      if (local == NULL)
        return NULL;
      ebb_tensor_unref (transfer->source);
      transfer->source = local;
      transfer->target = shard.tensor;
    }
  return g_steal_pointer (&transfers);
}

/* Every rank has the full state: each takes its shards. */
static gboolean
load_own (EbbModule *module,
          GArray *entries,
          EbbArgs *state,
          EbbProcessGroup *group,
          gboolean strict,
          GError **error)
{
  GError *failure = NULL;
  g_autoptr (GArray) transfers = NULL;

  if (ebb_state_reshard (entries, NULL, &failure)
      && (state != NULL
          || ebb_fail (&failure, EBB_ERROR_INVALID_ARGUMENT,
                       "load_full_state_dict: no state is given, and nothing is broadcast")))
    transfers = match_own (module, entries, state, strict, &failure);
  if (!ebb_agree_no_failure (group, failure, error))
    return FALSE;
  failure = NULL;
  ebb_state_transfers_run (transfers, &failure);
  return ebb_agree_no_failure (group, failure, error);
}

/* Returns for which entries rank 0 has values, as "0110...", with the sources of these. */
static char *
match_entries (EbbModule *module,
               GArray *entries,
               EbbArgs *state,
               gboolean strict,
               EbbTensor **sources,
               GError **error)
{
  g_autoptr (GArray) transfers = NULL;
  char *flags;

  if (state == NULL)
    return ebb_fail_null (error, EBB_ERROR_INVALID_ARGUMENT, "load_full_state_dict: rank 0 has no state");
  transfers = ebb_module_match_state (module, NULL, state, strict, get_full_shape, error);
  if (transfers == NULL)
    return NULL;
  flags = g_strnfill (entries->len, '0');
  for (guint t = 0; t < transfers->len; t++)
    for (guint i = 0; i < entries->len; i++)
      if (g_array_index (entries, EbbStateEntry, i).tensor == g_array_index (transfers, EbbStateTransfer, t).target)
        {
          flags[i] = '1';
          g_clear_pointer (&sources[i], ebb_tensor_unref);
          sources[i] = ebb_tensor_ref (g_array_index (transfers, EbbStateTransfer, t).source);
          break;
        }
  return flags;
}

EbbTensor *
ebb_broadcast_full (EbbProcessGroup *group,
                    EbbTensor *source,
                    const gint64 *shape,
                    guint n_dims,
                    EbbDType dtype,
                    GError *failure,
                    GError **error)
{
  g_autoptr (EbbTensor) cast = NULL;
  g_autoptr (EbbTensor) full = NULL;

  if (failure == NULL && source != NULL)
    {
      cast = ebb_cast (source, dtype, &failure);
      full = cast != NULL ? ebb_tensor_to_host (cast, &failure) : NULL;
    }
  else if (failure == NULL)
    full = ebb_tensor_new_empty (shape, n_dims, dtype, ebb_device_get_cpu (), &failure);
  if (!ebb_agree_no_failure (group, failure, error)
      || (full->n_elements > 0 && !ebb_process_group_broadcast (group, full, 0, error)))
    return NULL;
  return g_steal_pointer (&full);
}

/* Sets @failure if this rank alone fails. */
static gboolean
load_entry (EbbProcessGroup *group,
            const EbbLocalShard *shard,
            EbbTensor *source,
            GError **failure,
            GError **error)
{
  g_autoptr (EbbTensor) full = ebb_broadcast_full (group, source, shard->shape, shard->n_dims,
                                                   shard->tensor->view.dtype, g_steal_pointer (failure), error);
  g_autoptr (EbbTensor) local = NULL;
  g_autoptr (EbbTensor) moved = NULL;

  if (full == NULL)
    return FALSE;
  local = ebb_local_shard_extract (shard, full, failure);
  moved = local != NULL ? ebb_to_device (local, shard->tensor->storage->device, failure) : NULL;
  if (moved != NULL)
    ebb_tensor_copy_from (shard->tensor, moved, failure);
  return TRUE;
}

/* Rank 0 alone has the state. */
static gboolean
load_from_rank0 (EbbModule *module,
                 GArray *entries,
                 EbbArgs *state,
                 EbbProcessGroup *group,
                 gboolean strict,
                 GError **error)
{
  GError *failure = NULL;
  g_autofree EbbTensor **sources = g_new0 (EbbTensor *, entries->len + 1);
  g_autofree char *flags = NULL;
  g_auto (GStrv) texts = NULL;
  gboolean ok = ebb_state_reshard (entries, NULL, &failure);

  if (ok && ebb_process_group_get_rank (group) == 0)
    flags = match_entries (module, entries, state, strict, sources, &failure);
  ok = ebb_agree_no_failure (group, g_steal_pointer (&failure), error)
       && (texts = ebb_agree_gather_texts (group, flags != NULL ? flags : "", error)) != NULL;
  for (guint i = 0; ok && i < entries->len && texts[0][i] != '\0'; i++)
    if (texts[0][i] == '1')
      ok = load_entry (group, &g_array_index (entries, EbbStateEntry, i).shard, sources[i], &failure, error);
  ok = ok && ebb_agree_no_failure (group, failure, error);
  for (guint i = 0; i < entries->len; i++)
    g_clear_pointer (&sources[i], ebb_tensor_unref);
  return ok;
}

/**
 * ebb_load_full_state_dict:
 * @module: a module: fully sharded, replicated, tensor-parallel, or none of these
 * @state: (nullable): full tensors by path, as ebb_get_full_state_dict() and ebb_module_get_state_dict() return; %NULL
 * on ranks other than 0 if it is broadcast
 * @broadcast: whether the state of rank 0 is loaded on all ranks, one tensor after the other
 * @strict: whether names that are missing or unexpected are an error
 * @error: return location for an error
 *
 * Loads as ebb_module_load_state_dict() does; each rank takes its shards. All ranks of the process' default group call
 * it together. An error that one rank finds before anything is changed keeps all ranks from changing anything.
 *
 * Returns: %TRUE if all was copied, %FALSE with @error set to %EBB_ERROR_STATE and a list of the names that do not fit
 */
gboolean
ebb_load_full_state_dict (EbbModule *module,
                          EbbArgs *state,
                          gboolean broadcast,
                          gboolean strict,
                          GError **error)
{
  EbbProcessGroup *group = ebb_process_group_get_default ();
  g_autoptr (GArray) entries = NULL;

  if (!EBB_MAY_BEGIN (error, module))
    return FALSE;
  g_return_val_if_fail (EBB_IS_MODULE (module), FALSE);

  entries = ebb_state_entries_new (module);
  EBB_AUTO_NO_GRAD ();
  return (broadcast ? load_from_rank0 : load_own) (module, entries, state, group, strict, error);
}

static void
entry_clear (gpointer data)
{
  g_free (((EbbStateEntry *) data)->name);
}
