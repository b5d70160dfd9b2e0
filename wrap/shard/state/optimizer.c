/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "wrap/shard/state/optimizer-private.h"

#include "nn/args-private.h"
#include "nn/files/json-scanner-private.h"

#include <string.h>

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
  int where = ebb_args_find (state, "state");
  EbbArgs *slots = where >= 0 ? ebb_args_peek_args (state, (guint) where) : NULL;
  g_autoptr (EbbArgs) rest = ebb_args_new (EBB_ARGS_DICT);
  g_autoptr (EbbArgs) slots_rest = ebb_args_new (EBB_ARGS_DICT);

  if (slots == NULL)
    {
      g_set_error (error, EBB_ERROR, EBB_ERROR_STATE, "the optimizer's state has no \"state\"");
      return NULL;
    }
  for (guint i = 0; i < ebb_args_get_length (slots); i++)
    {
      const char *name = ebb_args_get_key (slots, i);
      EbbArgs *values = ebb_args_peek_args (slots, i);
      g_autoptr (EbbArgs) slot_rest = NULL;

      if (name == NULL || values == NULL)
        {
          g_set_error (error, EBB_ERROR, EBB_ERROR_STATE, "the optimizer's state of %s is no dictionary",
                       name != NULL ? name : "a parameter without a name");
          return NULL;
        }
      slot_rest = split_slot (name, values, items);
      ebb_args_add_args (slots_rest, name, slot_rest);
    }
  for (guint i = 0; i < ebb_args_get_length (state); i++)
    if ((int) i == where)
      ebb_args_add_args (rest, "state", slots_rest);
    else
      ebb_args_add_value (rest, ebb_args_get_key (state, i), state, i);
  return g_steal_pointer (&rest);
}

/* The values of one parameter: the steps that the most advanced rank has counted (one whose part is empty counts none),
 * and the tensors. */
static EbbArgs *
join_slot (const char *parameter,
           EbbArgs *rest,
           GArray *items)
{
  EbbArgs *values = ebb_args_new (EBB_ARGS_DICT);
  gint64 n_steps = rest != NULL ? get_n_steps (rest) : 0;

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
  return values;
}

EbbArgs *
ebb_optimizer_state_join (EbbArgs *rest,
                          GArray *items)
{
  int where = ebb_args_find (rest, "state");
  EbbArgs *slots = where >= 0 ? ebb_args_peek_args (rest, (guint) where) : NULL;
  g_autoptr (EbbArgs) joined = ebb_args_new (EBB_ARGS_DICT);
  g_autoptr (GHashTable) done = g_hash_table_new (g_str_hash, g_str_equal);
  EbbArgs *state = ebb_args_new (EBB_ARGS_DICT);

  for (guint i = 0; slots != NULL && i < ebb_args_get_length (slots); i++)
    {
      const char *name = ebb_args_get_key (slots, i);
      g_autoptr (EbbArgs) values = NULL;

      if (name == NULL || !g_hash_table_add (done, (gpointer) name))
        continue;
      values = join_slot (name, ebb_args_peek_args (slots, i), items);
      ebb_args_add_args (joined, name, values);
    }
  for (guint i = 0; i < items->len; i++)
    {
      const EbbOptimizerItem *item = &g_array_index (items, EbbOptimizerItem, i);
      g_autoptr (EbbArgs) values = NULL;

      if (!g_hash_table_add (done, item->parameter))
        continue;
      values = join_slot (item->parameter, NULL, items);
      ebb_args_add_args (joined, item->parameter, values);
    }
  for (guint i = 0; i < ebb_args_get_length (rest); i++)
    if ((int) i != where)
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
  int where = ebb_args_find (rest, "state");
  EbbArgs *slots = where >= 0 ? ebb_args_peek_args (rest, (guint) where) : NULL;

  for (guint i = 0; slots != NULL && i < ebb_args_get_length (slots); i++)
    {
      const char *name = ebb_args_get_key (slots, i);
      EbbArgs *values = ebb_args_peek_args (slots, i);

      for (guint k = 0; name != NULL && values != NULL && k < ebb_args_get_length (values); k++)
        {
          const char *key = ebb_args_get_key (values, k);
          g_autofree char *item = key != NULL ? ebb_optimizer_item_make_name (name, key) : NULL;
          g_autofree char *quoted = NULL;

          if (item == NULL || ebb_args_get_value_kind (values, k) != EBB_VALUE_NONE
              || ebb_shard_index_find (index, EBB_SHARD_FILE_OPTIMIZER, item) != NULL)
            continue;
          quoted = ebb_json_quote (item);
          g_set_error (error, EBB_ERROR, EBB_ERROR_FORMAT,
                       "%s: the optimizer had %s, which the index of the state does not have", folder, quoted);
          return FALSE;
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
ebb_optimizer_item_make_name (const char *parameter,
                              const char *key)
{
  return g_strconcat (parameter, "/", key, NULL);
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
               EbbShardClaims *claims,
               EbbShardIndex *index)
{
  g_autofree char *name = ebb_optimizer_item_make_name (item->parameter, item->key);
  EbbTensor *tensor = item->tensor;
  const guint rank = claims != NULL ? claims->rank : 0;
  gboolean speaks;
  EbbShardRecord *record;
  EbbLocalShard place;

  ebb_local_shard_init (&place, parameter);
  /* Ranks that have elements say how it is kept. */
  if (ebb_local_shard_is_split (&place) && place.n_elements > 0 && place.begin == place.end)
    return;
  speaks = claims != NULL && ebb_shard_claims_speaks (claims, EBB_SHARD_FILE_OPTIMIZER, item->parameter, &place);
  if (!ebb_local_shard_is_split (&place))
    {
      record = ebb_shard_index_add (index, EBB_SHARD_FILE_OPTIMIZER, name, tensor->view.dtype, tensor->view.shape,
                                    (guint) tensor->view.n_dims);
      if (speaks)
        ebb_shard_record_add_part (record, rank, 0, tensor->n_elements, 0);
    }
  else if (ebb_optimizer_state_follows_elements (optimizer, parameter, item->key, tensor->view.dtype)
           && ebb_local_shard_fits (&place, tensor))
    {
      record = ebb_shard_index_add (index, EBB_SHARD_FILE_OPTIMIZER, name, tensor->view.dtype, place.shape,
                                    place.n_dims);
      ebb_shard_record_set_cut (record, &place);
      if (speaks)
        ebb_shard_record_add_part (record, rank, place.begin, place.end,
                                   place.partition != NULL ? place.partition->index : 0);
    }
  else
    {
      const gint64 none = 0;

      record = ebb_shard_index_add (index, EBB_SHARD_FILE_OPTIMIZER, name, tensor->view.dtype, &none, 1);
      record->per_rank = TRUE;
      if (speaks)
        ebb_shard_record_add_part (record, rank, 0, tensor->n_elements, 0);
    }
  record->n_steps = item->n_steps;
}

gboolean
ebb_optimizer_items_describe (EbbOptimizer *optimizer,
                              GArray *items,
                              EbbShardClaims *claims,
                              EbbShardIndex *index,
                              GError **error)
{
  for (guint i = 0; i < items->len; i++)
    {
      const EbbOptimizerItem *item = &g_array_index (items, EbbOptimizerItem, i);
      EbbTensor *parameter = ebb_optimizer_find_parameter (optimizer, item->parameter);

      if (parameter == NULL)
        {
          g_set_error (error, EBB_ERROR, EBB_ERROR_STATE, "the optimizer has no parameter %s", item->parameter);
          return FALSE;
        }
      describe_item (optimizer, item, parameter, claims, index);
    }
  return TRUE;
}
