/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "wrap/shard/state/state-dict.h"

#include "nn/args-private.h"
#include "nn/optim/optimizer-private.h"
#include "nn/state/state-dict-private.h"
#include "tensor/autograd/autograd.h"
#include "tensor/error-private.h"
#include "tensor/ops/in-place.h"
#include "tensor/ops/pointwise.h"
#include "dist/init.h"
#include "dist/agree-private.h"
#include "wrap/shard/state/state-dict-private.h"

#include <string.h>

/* The whole state dict of a module, wherever its parts lie. */

/* -- what there is ------------------------------------------------------------------------------------------------- */

static void
entry_clear (gpointer data)
{
  EbbStateEntry *entry = data;

  g_free (entry->name);
  g_clear_pointer (&entry->whole, ebb_tensor_unref);
}

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
  ebb_local_shard_init (&entry.place, tensor);
  g_array_append_val (entries, entry);
}

GArray *
ebb_state_entries_new (EbbModule *module)
{
  GArray *entries = g_array_new (FALSE, FALSE, sizeof (EbbStateEntry));

  g_array_set_clear_func (entries, entry_clear);
  ebb_module_visit_state (module, add_entry, entries);
  return entries;
}

gboolean
ebb_state_check_released (GArray *entries,
                          GError **error)
{
  for (guint i = 0; i < entries->len; i++)
    {
      const EbbStateEntry *entry = &g_array_index (entries, EbbStateEntry, i);

      if (entry->place.unit != NULL && entry->place.unit->n_summoned > 0)
        {
          g_set_error (error, EBB_ERROR, EBB_ERROR_STATE,
                       "the parameter %s is summoned: give it back by ebb_release_full_params() first", entry->name);
          return FALSE;
        }
    }
  return TRUE;
}

/* -- get ----------------------------------------------------------------------------------------------------------- */

/* A copy of its own in the host's memory. */
static EbbTensor *
copy_to_host (EbbTensor *tensor,
              GError **error)
{
  g_autoptr (EbbTensor) host = ebb_tensor_to_host (tensor, error);

  return host != NULL && host->storage == tensor->storage ? ebb_copy (host, error) : g_steal_pointer (&host);
}

/* Makes the whole of a first entry, of whose part @part is a copy; takes @part and @failure over. */
static gboolean
finish_entry (EbbStateEntry *entry,
              EbbTensor *part,
              EbbProcessGroup *group,
              gboolean keep,
              GError *failure,
              GError **error)
{
  g_autoptr (EbbTensor) own = part;

  if (entry->place.partition != NULL)
    return ebb_shard_gather_parts (group, &entry->place, own, entry->place.local->view.dtype, keep, failure,
                                   &entry->whole, error);
  if (keep)
    entry->whole = g_steal_pointer (&own);
  return TRUE;
}

/* Gathers all entries from @first on that are of the same unit. */
static gboolean
gather_unit (GArray *entries,
             guint first,
             EbbProcessGroup *group,
             gboolean keep,
             GError *failure,
             GError **error)
{
  EbbShardUnit *unit = g_array_index (entries, EbbStateEntry, first).place.unit;
  g_autofree guint *which = g_new (guint, unit->n_entries);
  g_autofree EbbLocalShard *places = g_new (EbbLocalShard, unit->n_entries);
  g_autofree EbbTensor **locals = g_new (EbbTensor *, unit->n_entries);
  g_autofree EbbTensor **parts = g_new (EbbTensor *, unit->n_entries);
  g_autofree EbbDType *dtypes = g_new (EbbDType, unit->n_entries);
  gboolean ok = TRUE;
  guint n = 0;

  for (guint i = first; i < entries->len; i++)
    {
      EbbStateEntry *entry = &g_array_index (entries, EbbStateEntry, i);

      if (entry->place.unit != unit || entry->first != i)
        continue;
      entry->done = TRUE;
      places[n] = entry->place;
      locals[n] = entry->place.local;
      dtypes[n] = entry->place.local->view.dtype;
      which[n++] = i;
    }
  if (!ebb_shard_gather (group, unit, n, places, locals, dtypes, failure, parts, error))
    return FALSE;
  for (guint i = 0; i < n; i++)
    if (ok)
      ok = finish_entry (&g_array_index (entries, EbbStateEntry, which[i]), parts[i], group, keep, NULL, error);
    else
      ebb_tensor_unref (parts[i]);
  return ok;
}

/* What goes wrong on this rank alone waits for the next moment when ranks speak to each other. */
static gboolean
fill_entries (GArray *entries,
              EbbProcessGroup *group,
              gboolean keep,
              GError **error)
{
  GError *failure = NULL;

  ebb_state_check_released (entries, &failure);
  for (guint i = 0; i < entries->len; i++)
    {
      EbbStateEntry *entry = &g_array_index (entries, EbbStateEntry, i);
      EbbTensor *part = NULL;

      if (entry->done || entry->first != i)
        continue;
      entry->done = TRUE;
      if (entry->place.unit != NULL)
        {
          if (!gather_unit (entries, i, group, keep, g_steal_pointer (&failure), error))
            return FALSE;
          continue;
        }
      if (failure == NULL && entry->place.partition != NULL)
        part = ebb_tensor_to_host (entry->tensor, &failure);
      else if (failure == NULL && keep)
        part = copy_to_host (entry->tensor, &failure);
      if (entry->place.partition == NULL)
        entry->whole = part;
      else if (!finish_entry (entry, part, group, keep, g_steal_pointer (&failure), error))
        return FALSE;
    }
  return ebb_agree_no_failure (group, failure, error);
}

/**
 * ebb_get_full_state_dict:
 * @module: a module: fully sharded, replicated, tensor-parallel, or none of these
 * @rank0_only: whether rank 0 alone keeps it
 * @error: return location for an error
 *
 * Collects what ebb_module_get_state_dict() would give if the module were not split over ranks: the same names and
 * order, shared parameters under each of their names, persistent buffers included (of these, each rank's own). The
 * tensors are copies in the host's memory; weights that are kept in f32 and lowered for computing are given in f32.
 *
 * All ranks of the process' default group call it together. One unit is gathered after the other, and of
 * tensor-parallel parameters one after the other, so a rank that keeps nothing needs memory for the largest unit and
 * the largest whole parameter.
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
  EbbArgs *state;
  gboolean keep, ok;

  if (!EBB_MAY_BEGIN (error, module))
    return NULL;
  g_return_val_if_fail (EBB_IS_MODULE (module), NULL);

  keep = !rank0_only || ebb_process_group_get_rank (group) == 0;
  entries = ebb_state_entries_new (module);
  ebb_push_grad_enabled (FALSE);
  ok = fill_entries (entries, group, keep, error);
  ebb_pop_grad_enabled ();
  if (!ok)
    return NULL;
  state = ebb_args_new (EBB_ARGS_DICT);
  for (guint i = 0; keep && i < entries->len; i++)
    {
      const EbbStateEntry *entry = &g_array_index (entries, EbbStateEntry, i);

      ebb_args_add_tensor (state, entry->name, g_array_index (entries, EbbStateEntry, entry->first).whole);
    }
  return state;
}

/* -- load ---------------------------------------------------------------------------------------------------------- */

static const gint64 *
get_whole_shape (EbbTensor *target,
                 guint *n_dims)
{
  EbbLocalShard place;

  ebb_local_shard_init (&place, target);
  *n_dims = place.n_dims;
  return place.shape;
}

static gboolean
put_away (EbbShardUnit *unit,
          GError **error)
{
  if (unit == NULL)
    return TRUE;
  if (unit->n_summoned == 0)
    return ebb_shard_unit_reshard (unit, error);
  g_set_error (error, EBB_ERROR, EBB_ERROR_STATE,
               "%s is summoned: give it back by ebb_release_full_params() first", unit->name);
  return FALSE;
}

gboolean
ebb_state_reshard (GArray *entries,
                   EbbOptimizer *optimizer,
                   GError **error)
{
  EbbOptimizerPrivate *priv = optimizer != NULL ? ebb_optimizer_get_private (optimizer) : NULL;
  guint entry;

  for (guint i = 0; entries != NULL && i < entries->len; i++)
    if (!put_away (g_array_index (entries, EbbStateEntry, i).place.unit, error))
      return FALSE;
  for (guint i = 0; priv != NULL && i < priv->n_slots; i++)
    if (!put_away (ebb_shard_unit_of (priv->slots[i].parameter, &entry), error))
      return FALSE;
  return TRUE;
}

/* Every rank has the whole state: each takes its parts. */
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
  gboolean ok = ebb_state_reshard (entries, NULL, &failure);

  if (ok && state == NULL)
    {
      g_set_error (&failure, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT,
                   "load_full_state_dict: no state is given, and nothing is broadcast");
      ok = FALSE;
    }
  if (ok)
    transfers = ebb_module_match_state (module, NULL, state, strict, get_whole_shape, &failure);
  for (guint i = 0; transfers != NULL && failure == NULL && i < transfers->len; i++)
    {
      EbbStateTransfer *transfer = &g_array_index (transfers, EbbStateTransfer, i);
      EbbTensor *part;
      EbbLocalShard place;

      ebb_local_shard_init (&place, transfer->target);
      part = ebb_local_shard_slice (&place, transfer->source, &failure);
      ebb_tensor_unref (transfer->source);
      transfer->source = part;
      transfer->target = place.local;
    }
  if (!ebb_agree_no_failure (group, failure, error))
    return FALSE;
  failure = NULL;
  ebb_state_transfers_run (transfers, &failure);
  return ebb_agree_no_failure (group, failure, error);
}

/* Which of the entries rank 0 has values for: "0110...", with the sources. */
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
    {
      g_set_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT, "load_full_state_dict: rank 0 has no state");
      return NULL;
    }
  transfers = ebb_module_match_state (module, NULL, state, strict, get_whole_shape, error);
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
ebb_broadcast_whole (EbbProcessGroup *group,
                     EbbTensor *source,
                     const gint64 *shape,
                     guint n_dims,
                     EbbDType dtype,
                     GError *failure,
                     GError **error)
{
  g_autoptr (EbbTensor) cast = NULL;
  g_autoptr (EbbTensor) whole = NULL;

  if (failure == NULL && source != NULL)
    {
      cast = ebb_cast (source, dtype, &failure);
      whole = cast != NULL ? ebb_tensor_to_host (cast, &failure) : NULL;
    }
  else if (failure == NULL)
    whole = ebb_tensor_new_empty (shape, n_dims, dtype, ebb_device_get_cpu (), &failure);
  if (!ebb_agree_no_failure (group, failure, error)
      || (whole->n_elements > 0 && !ebb_process_group_broadcast (group, whole, 0, error)))
    return NULL;
  return g_steal_pointer (&whole);
}

/* Sets @failure to what goes wrong on this rank alone. */
static gboolean
load_entry (EbbProcessGroup *group,
            const EbbLocalShard *place,
            EbbTensor *source,
            GError **failure,
            GError **error)
{
  g_autoptr (EbbTensor) whole = ebb_broadcast_whole (group, source, place->shape, place->n_dims,
                                                     place->local->view.dtype, g_steal_pointer (failure), error);
  g_autoptr (EbbTensor) part = NULL;
  g_autoptr (EbbTensor) moved = NULL;

  if (whole == NULL)
    return FALSE;
  part = ebb_local_shard_slice (place, whole, failure);
  moved = part != NULL ? ebb_to_device (part, place->local->storage->device, failure) : NULL;
  if (moved != NULL)
    ebb_tensor_copy_from (place->local, moved, failure);
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
      ok = load_entry (group, &g_array_index (entries, EbbStateEntry, i).place, sources[i], &failure, error);
  ok = ok && ebb_agree_no_failure (group, failure, error);
  for (guint i = 0; i < entries->len; i++)
    g_clear_pointer (&sources[i], ebb_tensor_unref);
  return ok;
}

/**
 * ebb_load_full_state_dict:
 * @module: a module: fully sharded, replicated, tensor-parallel, or none of these
 * @state: (nullable): whole tensors by path, as ebb_get_full_state_dict() and ebb_module_get_state_dict() give; %NULL
 * on ranks other than 0 if it is broadcast
 * @broadcast: whether the state of rank 0 is loaded on all ranks, one tensor after the other
 * @strict: whether names that are missing or unexpected are an error
 * @error: return location for an error
 *
 * Loads as ebb_module_load_state_dict() does; each rank takes what it has to hold. All ranks of the process' default
 * group call it together, and with an error that is found before anything is changed, nothing is changed on any.
 *
 * Returns: %TRUE if all was copied, %FALSE with @error set to %EBB_ERROR_STATE and a list of what does not fit
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
  gboolean ok;

  if (!EBB_MAY_BEGIN (error, module))
    return FALSE;
  g_return_val_if_fail (EBB_IS_MODULE (module), FALSE);

  entries = ebb_state_entries_new (module);
  ebb_push_grad_enabled (FALSE);
  ok = broadcast ? load_from_rank0 (module, entries, state, group, strict, error)
                 : load_own (module, entries, state, group, strict, error);
  ebb_pop_grad_enabled ();
  return ok;
}
