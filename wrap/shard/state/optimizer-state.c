/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "wrap/shard/state/state-dict.h"

#include "nn/files/state-tree-private.h"
#include "tensor/autograd/autograd.h"
#include "tensor/error-private.h"
#include "tensor/ops/pointwise.h"
#include "dist/init.h"
#include "dist/agree-private.h"
#include "wrap/shard/state/optimizer-private.h"
#include "wrap/shard/state/state-dict-private.h"

#include <string.h>

/* The whole state of an optimizer over parameters that are split over ranks. */

/* -- get ----------------------------------------------------------------------------------------------------------- */

/* One tensor of the state, as all ranks know it. */
typedef struct
{
  const EbbShardRecord *record;
  EbbLocalShard place; /* of the parameter */
  EbbTensor *local;    /* not owned; NULL: this rank has none */
} Part;

/* What all ranks have: one whose part of a parameter is empty may have no state for it. */
static EbbShardIndex *
agree_on_records (EbbOptimizer *optimizer,
                  GArray *items,
                  EbbProcessGroup *group,
                  GError *failure,
                  GError **error)
{
  g_autoptr (EbbShardIndex) own = ebb_shard_index_new (1, 1);
  g_autoptr (EbbShardIndex) all = ebb_shard_index_new (1, 1);
  g_autofree char *text = NULL;
  g_auto (GStrv) texts = NULL;

  if (failure == NULL)
    ebb_optimizer_items_describe (optimizer, items, NULL, own, &failure);
  if (!ebb_agree_no_failure (group, failure, error))
    return NULL;
  text = ebb_shard_index_to_text (own);
  texts = ebb_agree_gather_texts (group, text, error);
  for (guint r = 0; texts != NULL && texts[r] != NULL; r++)
    {
      g_autofree char *what = g_strdup_printf ("the optimizer's state on rank %u", r);
      g_autoptr (EbbShardIndex) index = ebb_shard_index_parse (texts[r], what, error);

      if (index == NULL || !ebb_shard_index_merge (all, index, error))
        return NULL;
    }
  return texts != NULL ? g_steal_pointer (&all) : NULL;
}

static EbbTensor *
find_local (GArray *items,
            const char *name)
{
  const char *key;
  g_autofree char *parameter = ebb_optimizer_item_parse_name (name, &key);

  for (guint i = 0; i < items->len; i++)
    {
      const EbbOptimizerItem *item = &g_array_index (items, EbbOptimizerItem, i);

      if (strcmp (item->key, key) == 0 && strcmp (item->parameter, parameter) == 0)
        return item->tensor;
    }
  return NULL;
}

static gboolean
check_part (const Part *part,
            GError **error)
{
  if (ebb_local_shard_is_split (&part->place) && part->record->per_rank)
    g_set_error (error, EBB_ERROR, EBB_ERROR_NOT_SUPPORTED,
                 "the optimizer's state %s has a scale for each block of elements, and the blocks of each rank are "
                 "others: such a state has no whole (save it by ebb_save_sharded_state(), or keep moments in f32 or "
                 "bf16)",
                 part->record->name);
  else if (part->local == NULL
           && (!ebb_local_shard_is_split (&part->place) || part->place.begin < part->place.end))
    g_set_error (error, EBB_ERROR, EBB_ERROR_STATE, "this rank has no %s, but others have", part->record->name);
  else
    return TRUE;
  return FALSE;
}

/* Appends to @wholes what @gathered, which is taken, is the whole of, or of what @local is a copy; nothing unless
 * @keep.
 */
static gboolean
add_whole (const Part *part,
           EbbTensor *gathered,
           EbbProcessGroup *group,
           gboolean keep,
           GError **failure,
           GArray *wholes,
           GError **error)
{
  const char *key;
  g_autofree char *parameter = ebb_optimizer_item_parse_name (part->record->name, &key);
  g_autoptr (EbbTensor) own = gathered;
  g_autoptr (EbbTensor) whole = NULL;

  if (part->place.partition != NULL)
    {
      if (own == NULL && *failure == NULL && part->local != NULL)
        own = ebb_tensor_to_host (part->local, failure);
      if (!ebb_shard_gather_parts (group, &part->place, own, part->record->dtype, keep, g_steal_pointer (failure),
                                   &whole, error))
        return FALSE;
    }
  else if (own != NULL)
    whole = g_steal_pointer (&own);
  else if (keep && *failure == NULL)
    {
      g_autoptr (EbbTensor) host = ebb_tensor_to_host (part->local, failure);

      whole = host != NULL ? ebb_copy (host, failure) : NULL;
    }
  if (keep && whole != NULL)
    ebb_optimizer_items_add (wholes, parameter, key, part->record->n_steps, g_steal_pointer (&whole));
  return TRUE;
}

/* Gathers parts of one unit, or copies those of none; appends the wholes to @wholes unless @keep is FALSE. */
static gboolean
gather_parts (const Part *parts,
              guint n,
              EbbProcessGroup *group,
              gboolean keep,
              GError **failure,
              GArray *wholes,
              GError **error)
{
  g_autofree EbbLocalShard *places = g_new (EbbLocalShard, n);
  g_autofree EbbTensor **locals = g_new0 (EbbTensor *, n);
  g_autofree EbbTensor **gathered = g_new0 (EbbTensor *, n);
  g_autofree EbbDType *dtypes = g_new (EbbDType, n);
  gboolean ok = TRUE;

  for (guint i = 0; i < n && *failure == NULL; i++)
    check_part (&parts[i], failure);
  for (guint i = 0; i < n; i++)
    {
      places[i] = parts[i].place;
      locals[i] = parts[i].local;
      dtypes[i] = parts[i].record->dtype;
    }
  if (parts[0].place.unit != NULL
      && !ebb_shard_gather (group, parts[0].place.unit, n, places, locals, dtypes, g_steal_pointer (failure), gathered,
                            error))
    return FALSE;
  for (guint i = 0; i < n; i++)
    if (ok)
      ok = add_whole (&parts[i], gathered[i], group, keep, failure, wholes, error);
    else
      g_clear_pointer (&gathered[i], ebb_tensor_unref);
  return ok;
}

static gboolean
gather_records (EbbOptimizer *optimizer,
                EbbShardIndex *index,
                GArray *items,
                EbbProcessGroup *group,
                gboolean keep,
                GArray *wholes,
                GError **error)
{
  GPtrArray *records = index->records[EBB_SHARD_FILE_OPTIMIZER];
  g_autofree Part *parts = g_new0 (Part, records->len + 1);
  GError *failure = NULL;
  guint n;

  for (guint i = 0; i < records->len && failure == NULL; i++)
    {
      const char *key;
      g_autofree char *name = NULL;
      EbbTensor *parameter;

      parts[i].record = g_ptr_array_index (records, i);
      name = ebb_optimizer_item_parse_name (parts[i].record->name, &key);
      parameter = ebb_optimizer_find_parameter (optimizer, name);
      if (parameter == NULL)
        {
          g_set_error (&failure, EBB_ERROR, EBB_ERROR_STATE, "another rank's optimizer has a parameter %s", name);
          break;
        }
      ebb_local_shard_init (&parts[i].place, parameter);
      parts[i].local = find_local (items, parts[i].record->name);
    }
  if (!ebb_agree_no_failure (group, g_steal_pointer (&failure), error))
    return FALSE;
  for (guint i = 0; i < records->len; i += n)
    {
      for (n = 1; i + n < records->len && parts[i + n].place.unit == parts[i].place.unit;)
        n++;
      if (!gather_parts (&parts[i], n, group, keep, &failure, wholes, error))
        return FALSE;
    }
  return ebb_agree_no_failure (group, failure, error);
}

/**
 * ebb_get_full_optimizer_state:
 * @optimizer: an optimizer
 * @rank0_only: whether rank 0 alone keeps it
 * @error: return location for an error
 *
 * Collects what ebb_optimizer_get_state() would give if the parameters were not split over ranks. The tensors are
 * copies in the host's memory. All ranks of the process' default group call it together; one unit's state is gathered
 * after the other.
 *
 * Returns: (transfer full) (nullable): a dictionary; with @rank0_only one that is empty on the ranks other than 0.
 * %NULL with %EBB_ERROR_NOT_SUPPORTED if parameters are split and moments are kept in 8 bits: their blocks are each
 * rank's
 */
EbbArgs *
ebb_get_full_optimizer_state (EbbOptimizer *optimizer,
                              gboolean rank0_only,
                              GError **error)
{
  EbbProcessGroup *group = ebb_process_group_get_default ();
  g_autoptr (GArray) items = ebb_optimizer_items_new ();
  g_autoptr (GArray) wholes = ebb_optimizer_items_new ();
  g_autoptr (EbbArgs) state = NULL;
  g_autoptr (EbbArgs) rest = NULL;
  g_autoptr (EbbShardIndex) index = NULL;
  GError *failure = NULL;
  gboolean keep, ok;

  if (!EBB_MAY_BEGIN (error, optimizer))
    return NULL;
  g_return_val_if_fail (EBB_IS_OPTIMIZER (optimizer), NULL);

  keep = !rank0_only || ebb_process_group_get_rank (group) == 0;
  state = ebb_optimizer_get_state (optimizer);
  rest = ebb_optimizer_state_split (state, items, &failure);
  index = agree_on_records (optimizer, items, group, failure, error);
  if (index == NULL)
    return NULL;
  ebb_push_grad_enabled (FALSE);
  ok = gather_records (optimizer, index, items, group, keep, wholes, error);
  ebb_pop_grad_enabled ();
  if (!ok)
    return NULL;
  return keep ? ebb_optimizer_state_join (rest, wholes) : ebb_args_new (EBB_ARGS_DICT);
}

/* -- load ---------------------------------------------------------------------------------------------------------- */

/* What of @whole lies on this rank; a copy of its own if @copy. */
static EbbTensor *
slice_item (EbbOptimizer *optimizer,
            const char *name,
            const char *key,
            EbbTensor *whole,
            gboolean copy,
            GError **error)
{
  EbbTensor *parameter = ebb_optimizer_find_parameter (optimizer, name);
  g_autoptr (EbbTensor) part = NULL;
  EbbLocalShard place;

  if (parameter == NULL)
    {
      g_set_error (error, EBB_ERROR, EBB_ERROR_STATE,
                   "the optimizer's state is for a parameter %s, which the module does not have", name);
      return NULL;
    }
  ebb_local_shard_init (&place, parameter);
  if (ebb_local_shard_is_split (&place)
      && (!ebb_optimizer_state_follows_elements (optimizer, parameter, key, whole->view.dtype)
          || !ebb_view_has_shape (&whole->view, place.shape, place.n_dims)))
    {
      g_autofree char *shape = ebb_tensor_shape_to_string (whole);

      g_set_error (error, EBB_ERROR, EBB_ERROR_STATE,
                   "the optimizer's state %s of %s is %s %s: it can't be split as the parameter is", key, name,
                   ebb_dtype_get_name (whole->view.dtype), shape);
      return NULL;
    }
  part = ebb_local_shard_slice (&place, whole, error);
  /* What tensor-parallel ranks split is a copy already. */
  return copy && part != NULL && place.unit != NULL && place.partition == NULL ? ebb_copy (part, error)
                                                                               : g_steal_pointer (&part);
}

/* Replaces the tensors of @items by this rank's parts. */
static gboolean
slice_items (EbbOptimizer *optimizer,
             GArray *items,
             GError **error)
{
  for (guint i = 0; i < items->len; i++)
    {
      EbbOptimizerItem *item = &g_array_index (items, EbbOptimizerItem, i);
      EbbTensor *part = slice_item (optimizer, item->parameter, item->key, item->tensor, FALSE, error);

      if (part == NULL)
        return FALSE;
      ebb_tensor_unref (item->tensor);
      item->tensor = part;
    }
  return TRUE;
}

/* Rank 0's rest of the state and the list of its tensors, as texts on all ranks. */
static gboolean
spread_texts (EbbProcessGroup *group,
              EbbArgs *rest,
              GArray *items,
              char **rest_text,
              char **list_text,
              GError *failure,
              GError **error)
{
  g_autoptr (EbbShardIndex) list = ebb_shard_index_new (1, 1);
  g_autoptr (EbbArgs) no_tensors = ebb_args_new (EBB_ARGS_DICT);
  g_autofree char *text = NULL;
  g_autofree char *list_own = NULL;
  g_auto (GStrv) rests = NULL;
  g_auto (GStrv) lists = NULL;

  for (guint i = 0; failure == NULL && i < items->len; i++)
    {
      const EbbOptimizerItem *item = &g_array_index (items, EbbOptimizerItem, i);
      g_autofree char *name = ebb_optimizer_item_make_name (item->parameter, item->key);

      if (ebb_shard_index_find (list, EBB_SHARD_FILE_OPTIMIZER, name) != NULL)
        g_set_error (&failure, EBB_ERROR, EBB_ERROR_STATE, "the optimizer's state has twice %s", name);
      else
        ebb_shard_index_add (list, EBB_SHARD_FILE_OPTIMIZER, name, item->tensor->view.dtype, item->tensor->view.shape,
                             (guint) item->tensor->view.n_dims)
            ->n_steps = item->n_steps;
    }
  if (failure == NULL)
    text = rest != NULL ? ebb_state_tree_flatten (rest, no_tensors, &failure) : g_strdup ("");
  if (!ebb_agree_no_failure (group, failure, error))
    return FALSE;
  list_own = rest != NULL ? ebb_shard_index_to_text (list) : g_strdup ("");
  rests = ebb_agree_gather_texts (group, text, error);
  lists = rests != NULL ? ebb_agree_gather_texts (group, list_own, error) : NULL;
  if (lists == NULL)
    return FALSE;
  *rest_text = g_strdup (rests[0]);
  *list_text = g_strdup (lists[0]);
  return TRUE;
}

/* Sends rank 0's tensors, the @own ones, one after the other; appends this rank's parts to @parts. */
static gboolean
spread_tensors (EbbOptimizer *optimizer,
                EbbProcessGroup *group,
                EbbShardIndex *list,
                GArray *own,
                GArray *parts,
                GError **failure,
                GError **error)
{
  GPtrArray *records = list->records[EBB_SHARD_FILE_OPTIMIZER];

  for (guint i = 0; i < records->len; i++)
    {
      const EbbShardRecord *record = g_ptr_array_index (records, i);
      const char *key;
      g_autofree char *name = ebb_optimizer_item_parse_name (record->name, &key);
      EbbTensor *source = i < own->len ? g_array_index (own, EbbOptimizerItem, i).tensor : NULL;
      g_autoptr (EbbTensor) whole = ebb_broadcast_whole (group, source, record->shape, record->n_dims, record->dtype,
                                                         g_steal_pointer (failure), error);
      EbbTensor *part;

      if (whole == NULL)
        return FALSE;
      part = slice_item (optimizer, name, key, whole, TRUE, failure);
      if (part != NULL)
        ebb_optimizer_items_add (parts, name, key, record->n_steps, part);
    }
  return TRUE;
}

/* Replaces what rank 0 has given by what each rank has to hold. */
static EbbArgs *
receive (EbbOptimizer *optimizer,
         EbbProcessGroup *group,
         EbbArgs *rest,
         GArray *items,
         GError *failure,
         GError **error)
{
  g_autoptr (GArray) parts = ebb_optimizer_items_new ();
  g_autoptr (EbbArgs) no_tensors = ebb_args_new (EBB_ARGS_DICT);
  g_autoptr (EbbArgs) received = NULL;
  g_autoptr (EbbShardIndex) list = NULL;
  g_autofree char *rest_text = NULL;
  g_autofree char *list_text = NULL;

  if (!spread_texts (group, rest, items, &rest_text, &list_text, failure, error))
    return NULL;
  failure = NULL;
  received = ebb_state_tree_restore (rest_text, no_tensors, "rank 0's state of the optimizer", error);
  list = received != NULL ? ebb_shard_index_parse (list_text, "rank 0's state of the optimizer", error) : NULL;
  if (list == NULL || !spread_tensors (optimizer, group, list, items, parts, &failure, error)
      || !ebb_agree_no_failure (group, failure, error))
    return NULL;
  return ebb_optimizer_state_join (received, parts);
}

static gboolean
load (EbbOptimizer *optimizer,
      EbbArgs *state,
      gboolean broadcast,
      GError **error)
{
  EbbProcessGroup *group = ebb_process_group_get_default ();
  gboolean gives = !broadcast || ebb_process_group_get_rank (group) == 0;
  g_autoptr (GArray) items = ebb_optimizer_items_new ();
  g_autoptr (EbbArgs) rest = NULL;
  g_autoptr (EbbArgs) local = NULL;
  GError *failure = NULL;

  if (gives && state == NULL)
    g_set_error (&failure, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT, "load_full_optimizer_state: no state is given");
  else if (gives)
    rest = ebb_optimizer_state_split (state, items, &failure);
  if (broadcast)
    {
      local = receive (optimizer, group, rest, items, failure, error);
      if (local == NULL)
        return FALSE;
      failure = NULL;
    }
  else if (failure == NULL && slice_items (optimizer, items, &failure))
    local = ebb_optimizer_state_join (rest, items);
  if (local != NULL && ebb_state_reshard (NULL, optimizer, &failure))
    ebb_optimizer_check_state (optimizer, local, &failure);
  if (!ebb_agree_no_failure (group, failure, error))
    return FALSE;
  failure = NULL;
  ebb_optimizer_load_state (optimizer, local, &failure);
  return ebb_agree_no_failure (group, failure, error);
}

/**
 * ebb_load_full_optimizer_state:
 * @optimizer: an optimizer
 * @state: (nullable): what ebb_get_full_optimizer_state() or ebb_optimizer_get_state() gave; %NULL on ranks other than
 * 0 if it is broadcast
 * @broadcast: whether the state of rank 0 is loaded on all ranks, one tensor after the other
 * @error: return location for an error
 *
 * Loads as ebb_optimizer_load_state() does; each rank takes what it has to hold. All ranks of the process' default
 * group call it together, and with an error that is found before anything is changed, nothing is changed on any.
 *
 * Returns: %FALSE with %EBB_ERROR_STATE if @state is of another kind of optimizer or of other parameters
 */
gboolean
ebb_load_full_optimizer_state (EbbOptimizer *optimizer,
                               EbbArgs *state,
                               gboolean broadcast,
                               GError **error)
{
  gboolean ok;

  if (!EBB_MAY_BEGIN (error, optimizer))
    return FALSE;
  g_return_val_if_fail (EBB_IS_OPTIMIZER (optimizer), FALSE);

  ebb_push_grad_enabled (FALSE);
  ok = load (optimizer, state, broadcast, error);
  ebb_pop_grad_enabled ();
  return ok;
}
