/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "wrap/shard/state/state-dict.h"

#include "dist/init.h"
#include "dist/agree-private.h"
#include "nn/args-private.h"
#include "tensor/util/json-scanner-private.h"
#include "nn/files/state-tree-private.h"
#include "tensor/autograd/autograd-private.h"
#include "tensor/error-private.h"
#include "tensor/ops/pointwise.h"
#include "wrap/shard/state/state-private.h"

#include <string.h>

/* Gets and loads the full state of an optimizer whose parameters are split over ranks, and takes such a state apart
 * into its tensors and the rest. */

/* -- get ----------------------------------------------------------------------------------------------------------- */

/* The records of all ranks: a rank that holds no elements of a parameter may have no state for it. */
static EbbShardIndex *
agree_on_records (EbbOptimizer *optimizer,
                  GArray *items,
                  EbbProcessGroup *group,
                  GError *failure,
                  GError **error)
{
  g_autoptr (EbbShardIndex) own = ebb_shard_index_new (1, 1);

  if (failure == NULL)
    ebb_optimizer_items_describe (optimizer, items, 0, own, &failure);
  return ebb_agree_no_failure (group, failure, error) ? ebb_shard_index_gather (own, group, error) : NULL;
}

static EbbTensor *
find_local (GArray *items,
            const char *parameter,
            const char *key)
{
  for (guint i = 0; i < items->len; i++)
    {
      const EbbOptimizerItem *item = &g_array_index (items, EbbOptimizerItem, i);

      if (strcmp (item->key, key) == 0 && strcmp (item->parameter, parameter) == 0)
        return item->tensor;
    }
  return NULL;
}

static gboolean
check_item (const EbbGatherItem *item,
            const EbbShardRecord *record,
            GError **error)
{
  const gboolean is_split = ebb_local_shard_is_split (&item->shard);

  if (is_split && record->per_rank)
    return ebb_fail (error, EBB_ERROR_NOT_SUPPORTED,
                     "the optimizer's state %s has a scale for each block of elements, and each rank has blocks of its "
                     "own: there is no full state (save it by ebb_save_sharded_state(), or keep moments in f32 or "
                     "bf16)",
                     record->name);
  if (item->local == NULL && (!is_split || item->shard.begin < item->shard.end))
    return ebb_fail (error, EBB_ERROR_STATE, "this rank has no %s, but others have", record->name);
  return TRUE;
}

/* Finds this rank's elements of a record's tensor. */
static gboolean
make_item (EbbGatherItem *item,
           const EbbShardRecord *record,
           EbbOptimizer *optimizer,
           GArray *locals,
           GError **error)
{
  const char *key;
  g_autofree char *name = ebb_optimizer_item_parse_name (record->name, &key);
  EbbTensor *parameter = ebb_optimizer_find_parameter (optimizer, name);

  if (parameter == NULL)
    return ebb_fail (error, EBB_ERROR_STATE, "another rank's optimizer has a parameter %s", name);
  ebb_local_shard_init (&item->shard, parameter);
  item->local = find_local (locals, name, key);
  item->dtype = record->dtype;
  return check_item (item, record, error);
}

/* Appends the full tensors to @full on ranks that @keep them. */
static gboolean
gather_records (EbbOptimizer *optimizer,
                GPtrArray *records,
                GArray *locals,
                EbbProcessGroup *group,
                gboolean keep,
                GArray *full,
                GError **error)
{
  EbbGatherItem *items = g_new0 (EbbGatherItem, records->len + 1);
  GError *failure = NULL;
  gboolean ok;

  for (guint i = 0; i < records->len && failure == NULL; i++)
    make_item (&items[i], g_ptr_array_index (records, i), optimizer, locals, &failure);
  ok = ebb_agree_no_failure (group, failure, error)
       && ebb_gather_full_tensors (group, items, records->len, keep, NULL, error);
  for (guint i = 0; ok && keep && i < records->len; i++)
    {
      const EbbShardRecord *record = g_ptr_array_index (records, i);
      const char *key;
      g_autofree char *name = ebb_optimizer_item_parse_name (record->name, &key);

      ebb_optimizer_items_add (full, name, key, record->n_steps, g_steal_pointer (&items[i].full));
    }
  ebb_gather_items_free (items, records->len);
  return ok;
}

/**
 * ebb_get_full_optimizer_state:
 * @optimizer: an optimizer
 * @rank0_only: whether rank 0 alone keeps it
 * @error: return location for an error
 *
 * Collects the state that ebb_optimizer_get_state() would return if the parameters were not split over ranks. The
 * tensors are copies in host memory. All ranks of the process' default group call it together; the state of one unit is
 * gathered after the other.
 *
 * Returns: (transfer full) (nullable): a dictionary; with @rank0_only one that is empty on the ranks other than 0.
 * %NULL with %EBB_ERROR_NOT_SUPPORTED if parameters are split and moments are kept in 8 bits: each rank has blocks of
 * its own
 */
EbbArgs *
ebb_get_full_optimizer_state (EbbOptimizer *optimizer,
                              gboolean rank0_only,
                              GError **error)
{
  EbbProcessGroup *group = ebb_process_group_get_default ();
  g_autoptr (GArray) items = ebb_optimizer_items_new ();
  g_autoptr (GArray) full = ebb_optimizer_items_new ();
  g_autoptr (EbbArgs) state = NULL;
  g_autoptr (EbbArgs) rest = NULL;
  g_autoptr (EbbShardIndex) index = NULL;
  GError *failure = NULL;
  gboolean keep;

  if (!EBB_MAY_BEGIN (error, optimizer))
    return NULL;
  g_return_val_if_fail (EBB_IS_OPTIMIZER (optimizer), NULL);

  keep = !rank0_only || ebb_process_group_get_rank (group) == 0;
  state = ebb_optimizer_get_state (optimizer);
  rest = ebb_optimizer_state_split (state, items, &failure);
  index = agree_on_records (optimizer, items, group, failure, error);
  if (index == NULL)
    return NULL;
  if (!gather_records (optimizer, index->records[EBB_SHARD_FILE_OPTIMIZER], items, group, keep, full, error))
    return NULL;
  return keep ? ebb_optimizer_state_join (rest, full) : ebb_args_new (EBB_ARGS_DICT);
}

/* -- load ---------------------------------------------------------------------------------------------------------- */

/* Returns this rank's elements of @full; as a copy of its own if @copy. */
static EbbTensor *
extract_item (EbbOptimizer *optimizer,
              const char *name,
              const char *key,
              EbbTensor *full,
              gboolean copy,
              GError **error)
{
  EbbTensor *parameter = ebb_optimizer_find_parameter (optimizer, name);
  g_autoptr (EbbTensor) local = NULL;
  EbbLocalShard shard;

  if (parameter == NULL)
    return ebb_fail_null (error, EBB_ERROR_STATE,
                          "the optimizer's state is for a parameter %s, which the module does not have", name);
  ebb_local_shard_init (&shard, parameter);
  if (ebb_local_shard_is_split (&shard)
      && (!ebb_optimizer_state_follows_elements (optimizer, parameter, key, full->view.dtype)
          || !ebb_view_has_shape (&full->view, shard.shape, shard.n_dims)))
    return ebb_fail_null (error, EBB_ERROR_STATE,
                          "the optimizer's state %s of %s is %s %s: it can't be split as the parameter is", key, name,
                          ebb_dtype_get_name (full->view.dtype), ebb_show_shape (full));
  local = ebb_local_shard_extract (&shard, full, error);
  /* A slice of a tensor-parallel parameter is a copy already. */
  return copy && local != NULL && shard.unit != NULL && shard.ranks == NULL ? ebb_copy (local, error)
                                                                            : g_steal_pointer (&local);
}

/* Replaces the tensors of @items by this rank's elements of them. */
static gboolean
extract_items (EbbOptimizer *optimizer,
               GArray *items,
               GError **error)
{
  for (guint i = 0; i < items->len; i++)
    {
      EbbOptimizerItem *item = &g_array_index (items, EbbOptimizerItem, i);
      EbbTensor *local = extract_item (optimizer, item->parameter, item->key, item->tensor, FALSE, error);

      if (local == NULL)
        return FALSE;
      ebb_tensor_unref (item->tensor);
      item->tensor = local;
    }
  return TRUE;
}

/* Returns @state, which is full, with this rank's elements. */
static EbbArgs *
take_own (EbbOptimizer *optimizer,
          EbbArgs *state,
          GError **error)
{
  g_autoptr (GArray) items = ebb_optimizer_items_new ();
  g_autoptr (EbbArgs) rest = ebb_optimizer_state_split (state, items, error);

  return rest != NULL && extract_items (optimizer, items, error) ? ebb_optimizer_state_join (rest, items) : NULL;
}

/* Rank 0's rest of the state and the list of its tensors, as texts on all ranks. */
static gboolean
broadcast_texts (EbbProcessGroup *group,
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
      g_autofree char *name = ebb_optimizer_item_make_name (item);

      if (ebb_shard_index_find (list, EBB_SHARD_FILE_OPTIMIZER, name) != NULL)
        g_set_error (&failure, EBB_ERROR, EBB_ERROR_STATE, "the optimizer's state has %s twice", name);
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

/* Sends rank 0's tensors, which are its @own ones, one after the other; appends this rank's elements to @locals. */
static gboolean
broadcast_tensors (EbbOptimizer *optimizer,
                   EbbProcessGroup *group,
                   EbbShardIndex *list,
                   GArray *own,
                   GArray *locals,
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
      g_autoptr (EbbTensor) full = ebb_broadcast_full (group, source, record->shape, record->n_dims, record->dtype,
                                                       g_steal_pointer (failure), error);
      EbbTensor *local;

      if (full == NULL)
        return FALSE;
      local = extract_item (optimizer, name, key, full, TRUE, failure);
      if (local != NULL)
        ebb_optimizer_items_add (locals, name, key, record->n_steps, local);
    }
  return TRUE;
}

/* Returns the state with this rank's elements of the tensors that rank 0 has. */
static EbbArgs *
receive (EbbOptimizer *optimizer,
         EbbProcessGroup *group,
         EbbArgs *rest,
         GArray *items,
         GError *failure,
         GError **error)
{
  g_autoptr (GArray) locals = ebb_optimizer_items_new ();
  g_autoptr (EbbArgs) no_tensors = ebb_args_new (EBB_ARGS_DICT);
  g_autoptr (EbbArgs) received = NULL;
  g_autoptr (EbbShardIndex) list = NULL;
  g_autofree char *rest_text = NULL;
  g_autofree char *list_text = NULL;

  if (!broadcast_texts (group, rest, items, &rest_text, &list_text, failure, error))
    return NULL;
  failure = NULL;
  received = ebb_state_tree_restore (rest_text, no_tensors, "rank 0's state of the optimizer", error);
  list = received != NULL ? ebb_shard_index_parse (list_text, "rank 0's state of the optimizer", error) : NULL;
  if (list == NULL || !broadcast_tensors (optimizer, group, list, items, locals, &failure, error)
      || !ebb_agree_no_failure (group, failure, error))
    return NULL;
  return ebb_optimizer_state_join (received, locals);
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
  else if (broadcast && gives)
    rest = ebb_optimizer_state_split (state, items, &failure);
  if (broadcast)
    {
      local = receive (optimizer, group, rest, items, failure, error);
      if (local == NULL)
        return FALSE;
      failure = NULL;
    }
  else if (failure == NULL)
    local = take_own (optimizer, state, &failure);
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
 * @state: (nullable): a state from ebb_get_full_optimizer_state() or ebb_optimizer_get_state(); %NULL on ranks other
 * than 0 if it is broadcast
 * @broadcast: whether the state of rank 0 is loaded on all ranks, one tensor after the other
 * @error: return location for an error
 *
 * Loads as ebb_optimizer_load_state() does; each rank takes its shards. All ranks of the process' default group call it
 * together. An error that one rank finds before anything is changed keeps all ranks from changing anything.
 *
 * Returns: %FALSE with %EBB_ERROR_STATE if @state is of another kind of optimizer or of other parameters
 */
gboolean
ebb_load_full_optimizer_state (EbbOptimizer *optimizer,
                               EbbArgs *state,
                               gboolean broadcast,
                               GError **error)
{
  if (!EBB_MAY_BEGIN (error, optimizer))
    return FALSE;
  g_return_val_if_fail (EBB_IS_OPTIMIZER (optimizer), FALSE);

  EBB_AUTO_NO_GRAD ();
  return load (optimizer, state, broadcast, error);
}

/* -- taking a state apart ------------------------------------------------------------------------------------------ */

/* The state's entries of parameters; NULL: it has none. */
static EbbArgs *
peek_slots (EbbArgs *state)
{
  int index = ebb_args_find (state, "state");

  return index >= 0 ? ebb_args_peek_args (state, (guint) index) : NULL;
}

static gint64
get_n_steps (EbbArgs *values)
{
  int index = ebb_args_find (values, "n_steps");

  return index >= 0 && ebb_args_get_value_kind (values, (guint) index) == EBB_VALUE_INT
             ? ebb_args_get_int (values, (guint) index)
             : 0;
}

static EbbArgs *
split_slot (const char *parameter,
            EbbArgs *values,
            GArray *items)
{
  EbbArgs *rest = ebb_args_new (EBB_ARGS_DICT);

  for (guint i = 0; i < ebb_args_get_length (values); i++)
    {
      EbbTensor *tensor = ebb_args_peek_tensor (values, i);
      const char *key = ebb_args_get_key (values, i);

      if (tensor == NULL)
        ebb_args_add_value (rest, key, values, i);
      else
        {
          ebb_args_add_none (rest, key);
          ebb_optimizer_items_add (items, parameter, key != NULL ? key : "", get_n_steps (values),
                                   ebb_tensor_ref (tensor));
        }
    }
  return rest;
}

EbbArgs *
ebb_optimizer_state_split (EbbArgs *state,
                           GArray *items,
                           GError **error)
{
  EbbArgs *slots = peek_slots (state);
  g_autoptr (EbbArgs) rest = ebb_args_new (EBB_ARGS_DICT);
  g_autoptr (EbbArgs) slots_rest = ebb_args_new (EBB_ARGS_DICT);

  if (slots == NULL)
    return ebb_fail_null (error, EBB_ERROR_STATE, "the optimizer's state has no \"state\"");
  for (guint i = 0; i < ebb_args_get_length (slots); i++)
    {
      const char *name = ebb_args_get_key (slots, i);
      EbbArgs *values = ebb_args_peek_args (slots, i);
      g_autoptr (EbbArgs) slot_rest = NULL;

      if (name == NULL || values == NULL || ebb_args_get_kind (values) != EBB_ARGS_DICT)
        return ebb_fail_null (error, EBB_ERROR_STATE, "the optimizer's state of %s is no dictionary",
                              name != NULL ? name : "a parameter without a name");
      slot_rest = split_slot (name, values, items);
      ebb_args_add_args (slots_rest, name, slot_rest);
    }
  for (guint i = 0; i < ebb_args_get_length (state); i++)
    if (g_strcmp0 (ebb_args_get_key (state, i), "state") == 0)
      ebb_args_add_args (rest, "state", slots_rest);
    else
      ebb_args_add_value (rest, ebb_args_get_key (state, i), state, i);
  return g_steal_pointer (&rest);
}

/* Joins the values of one parameter: the tensors, and the steps that the most advanced rank has counted (a rank without
 * elements counts none). */
static void
join_slot (EbbArgs *joined,
           const char *parameter,
           EbbArgs *rest,
           GArray *items)
{
  g_autoptr (EbbArgs) values = ebb_args_new (EBB_ARGS_DICT);
  gint64 n_steps = rest != NULL ? get_n_steps (rest) : 0;

  if (parameter == NULL || ebb_args_find (joined, parameter) >= 0)
    return;
  for (guint i = 0; i < items->len; i++)
    {
      const EbbOptimizerItem *item = &g_array_index (items, EbbOptimizerItem, i);

      if (strcmp (item->parameter, parameter) == 0)
        n_steps = MAX (n_steps, item->n_steps);
    }
  ebb_args_add_int (values, "n_steps", n_steps);
  for (guint i = 0; i < items->len; i++)
    {
      const EbbOptimizerItem *item = &g_array_index (items, EbbOptimizerItem, i);

      if (item->tensor != NULL && strcmp (item->parameter, parameter) == 0)
        ebb_args_add_tensor (values, item->key, item->tensor);
    }
  ebb_args_add_args (joined, parameter, values);
}

EbbArgs *
ebb_optimizer_state_join (EbbArgs *rest,
                          GArray *items)
{
  EbbArgs *slots = peek_slots (rest);
  g_autoptr (EbbArgs) joined = ebb_args_new (EBB_ARGS_DICT);
  EbbArgs *state = ebb_args_new (EBB_ARGS_DICT);

  for (guint i = 0; slots != NULL && i < ebb_args_get_length (slots); i++)
    join_slot (joined, ebb_args_get_key (slots, i), ebb_args_peek_args (slots, i), items);
  for (guint i = 0; i < items->len; i++)
    join_slot (joined, g_array_index (items, EbbOptimizerItem, i).parameter, NULL, items);
  for (guint i = 0; i < ebb_args_get_length (rest); i++)
    if (g_strcmp0 (ebb_args_get_key (rest, i), "state") != 0)
      ebb_args_add_value (state, ebb_args_get_key (rest, i), rest, i);
  ebb_args_add_args (state, "state", joined);
  return state;
}

gboolean
ebb_optimizer_rest_check (EbbArgs *rest,
                          EbbShardIndex *index,
                          const char *folder,
                          GError **error)
{
  EbbArgs *slots = peek_slots (rest);

  for (guint i = 0; slots != NULL && i < ebb_args_get_length (slots); i++)
    {
      const char *name = ebb_args_get_key (slots, i);
      EbbArgs *values = ebb_args_peek_args (slots, i);

      for (guint k = 0; name != NULL && values != NULL && k < ebb_args_get_length (values); k++)
        {
          const char *key = ebb_args_get_key (values, k);
          g_autofree char *item = key != NULL ? g_strconcat (name, "/", key, NULL) : NULL;

          if (item == NULL || ebb_args_get_value_kind (values, k) != EBB_VALUE_NONE
              || ebb_shard_index_find (index, EBB_SHARD_FILE_OPTIMIZER, item) != NULL)
            continue;
          return ebb_fail (error, EBB_ERROR_FORMAT,
                           "%s: the optimizer had %s, which the index of the state does not have", folder,
                           ebb_in_message (ebb_json_quote (item)));
        }
    }
  return TRUE;
}

/* -- names --------------------------------------------------------------------------------------------------------- */

EbbTensor *
ebb_optimizer_find_parameter (EbbOptimizer *optimizer,
                              const char *name)
{
  EbbOptimizerPrivate *priv = ebb_optimizer_get_private (optimizer);

  for (guint i = 0; i < priv->n_slots; i++)
    if (strcmp (priv->slots[i].name, name) == 0)
      return priv->slots[i].parameter;
  return NULL;
}

char *
ebb_optimizer_item_make_name (const EbbOptimizerItem *item)
{
  return g_strconcat (item->parameter, "/", item->key, NULL);
}

char *
ebb_optimizer_item_parse_name (const char *name,
                               const char **key)
{
  const char *slash = strrchr (name, '/');

  *key = slash != NULL ? slash + 1 : "";
  return slash != NULL ? g_strndup (name, (gsize) (slash - name)) : g_strdup (name);
}

/* -- description --------------------------------------------------------------------------------------------------- */

static void
describe_item (EbbOptimizer *optimizer,
               const EbbOptimizerItem *item,
               EbbTensor *parameter,
               guint rank,
               EbbShardIndex *index)
{
  g_autofree char *name = ebb_optimizer_item_make_name (item);
  EbbTensor *tensor = item->tensor;
  EbbShardRecord *record;
  EbbLocalShard shard;

  ebb_local_shard_init (&shard, parameter);
  if (!ebb_local_shard_is_split (&shard))
    {
      record = ebb_shard_index_add (index, EBB_SHARD_FILE_OPTIMIZER, name, tensor->view.dtype, tensor->view.shape,
                                    (guint) tensor->view.n_dims);
      record->n_steps = item->n_steps;
      ebb_shard_record_add_range (record, rank, 0, tensor->n_elements, 0);
      return;
    }
  /* Only ranks that have elements know how they are stored. */
  if (shard.n_elements > 0 && shard.begin == shard.end)
    return;
  record = ebb_shard_index_add (index, EBB_SHARD_FILE_OPTIMIZER, name, tensor->view.dtype, shard.shape, shard.n_dims);
  record->n_steps = item->n_steps;
  record->split = shard.split;
  record->per_rank =
      !ebb_optimizer_state_follows_elements (optimizer, parameter, item->key, tensor->view.dtype)
      || !ebb_local_shard_fits (&shard, tensor);
  if (record->per_rank)
    record->dtype = EBB_DTYPE_U8;
  ebb_shard_record_add_range (record, rank, shard.begin, shard.end, shard.index);
}

gboolean
ebb_optimizer_items_describe (EbbOptimizer *optimizer,
                              GArray *items,
                              guint rank,
                              EbbShardIndex *index,
                              GError **error)
{
  for (guint i = 0; i < items->len; i++)
    {
      const EbbOptimizerItem *item = &g_array_index (items, EbbOptimizerItem, i);
      EbbTensor *parameter = ebb_optimizer_find_parameter (optimizer, item->parameter);

      if (parameter == NULL)
        return ebb_fail (error, EBB_ERROR_STATE, "the optimizer has no parameter %s", item->parameter);
      describe_item (optimizer, item, parameter, rank, index);
    }
  return TRUE;
}

/* -- items --------------------------------------------------------------------------------------------------------- */

static void
item_clear (gpointer data)
{
  EbbOptimizerItem *item = data;

  g_free (item->parameter);
  g_free (item->key);
  g_clear_pointer (&item->tensor, ebb_tensor_unref);
}

GArray *
ebb_optimizer_items_new (void)
{
  GArray *items = g_array_new (FALSE, FALSE, sizeof (EbbOptimizerItem));

  g_array_set_clear_func (items, item_clear);
  return items;
}

void
ebb_optimizer_items_add (GArray *items,
                         const char *parameter,
                         const char *key,
                         gint64 n_steps,
                         EbbTensor *tensor)
{
  EbbOptimizerItem item = { g_strdup (parameter), g_strdup (key), n_steps, tensor };

  g_array_append_val (items, item);
}
