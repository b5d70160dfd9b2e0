/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "dist/agree-private.h"
#include "dist/init.h"
#include "nn/layers/layer-private.h"
#include "nn/models/folder/model-private.h"
#include "wrap/shard/state/state-private.h"

/* Saves a model that is split over ranks as a folder, with one full parameter at a time. */

typedef struct
{
  EbbProcessGroup *group;
  GArray *entries; /* of EbbStateEntry */
  gboolean is_writer;
} Split;

static gboolean
get_full (gpointer data,
          guint tensor,
          GError *failure,
          EbbTensor **full,
          GError **error)
{
  Split *split = data;
  const EbbStateEntry *entry = &g_array_index (split->entries, EbbStateEntry, tensor);
  EbbGatherItem *item = g_new0 (EbbGatherItem, 1);
  gboolean ok;

  *item = (EbbGatherItem){ .shard = entry->shard,
                           .local = entry->shard.tensor,
                           .dtype = entry->shard.tensor->view.dtype };
  ok = ebb_gather_full_tensors (split->group, item, 1, split->is_writer, failure, error);
  *full = ok ? g_steal_pointer (&item->full) : NULL;
  ebb_gather_items_free (item, 1);
  return ok;
}

static gboolean
agree (gpointer data,
       GError *failure,
       GError **error)
{
  return ebb_agree_no_failure (((Split *) data)->group, failure, error);
}

static gboolean
is_split_over_ranks (GArray *entries)
{
  for (guint i = 0; i < entries->len; i++)
    if (ebb_local_shard_is_split (&g_array_index (entries, EbbStateEntry, i).shard))
      return TRUE;
  return FALSE;
}

gboolean
ebb_model_save_split (EbbModule *model,
                      const char *folder,
                      int dtype,
                      guint64 max_file_size,
                      gboolean *is_split,
                      GError **error)
{
  g_autoptr (GArray) entries = ebb_state_entries_new (model);
  EbbProcessGroup *group = ebb_process_group_get_default ();
  Split split = { group, entries, ebb_process_group_get_rank (group) == 0 };
  const EbbModelSource source = { get_full, agree, &split, split.is_writer };
  const EbbArchitecture *architecture;
  g_autoptr (EbbWeightMap) map = NULL;
  GError *failure = NULL;

  *is_split = is_split_over_ranks (entries);
  if (!*is_split)
    return FALSE;
  architecture = ebb_model_find_architecture (model, &failure);
  if (architecture != NULL)
    ebb_state_check_released (entries, &failure);
  if (!ebb_agree_no_failure (group, failure, error))
    return FALSE;
  map = ebb_weight_map_new (architecture);
  map->quantization = ebb_get_quantization (model);
  for (guint i = 0; i < entries->len; i++)
    {
      const EbbStateEntry *entry = &g_array_index (entries, EbbStateEntry, i);

      ebb_weight_map_add (map, entry->name, entry->shard.shape, entry->shard.n_dims,
                          entry->shard.tensor->view.dtype);
    }
  return ebb_model_save_from (model, map, &source, folder, dtype, max_file_size, error);
}

/* The static library's users get this file, whether they split models or not: see EbbLibrary.cmake. */
static void __attribute__ ((constructor))
register_save (void)
{
  ebb_model_set_save_split_func (ebb_model_save_split);
}
