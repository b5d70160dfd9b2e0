/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* The checksum of the base of a training whose module is split over ranks. */
#include "wrap/shard/state/state-private.h"

#include "dist/agree-private.h"
#include "nn/state/training-state-private.h"
#include "tensor/autograd/autograd.h"
#include "tensor/dry-run.h"

/* The ranges of all ranks, each for the first rank that holds it; NULL with an error. */
static EbbShardIndex *
share_out (GArray *entries,
           EbbProcessGroup *group,
           GError **error)
{
  g_autoptr (EbbShardIndex) own = ebb_shard_index_new (1, ebb_process_group_get_size (group));
  EbbShardIndex *all;

  ebb_state_entries_describe (entries, ebb_process_group_get_rank (group), own);
  all = ebb_shard_index_gather (own, group, error);
  if (all != NULL)
    ebb_shard_index_drop_duplicates (all);
  return all;
}

static gboolean
sum_own (GArray *entries,
         EbbShardIndex *index,
         guint rank,
         guint64 *sum,
         GError **error)
{
  for (guint i = 0; i < entries->len; i++)
    {
      const EbbStateEntry *entry = &g_array_index (entries, EbbStateEntry, i);
      const EbbLocalShard *shard = &entry->shard;
      const EbbShardRecord *record = ebb_shard_index_find (index, EBB_SHARD_FILE_MODEL, entry->name);
      const EbbTrainingBasePart part = { shard->slice.last - shard->slice.first, shard->slice.width,
                                         shard->slice.first, shard->begin, shard->end };

      for (guint r = 0; entry->first == i && record != NULL && r < record->ranges->len; r++)
        if (g_array_index (record->ranges, EbbSavedRange, r).rank == rank
            && !ebb_training_base_add (sum, entry->name, shard->tensor, &part, error))
          return FALSE;
    }
  return TRUE;
}

gboolean
ebb_state_find_base (EbbTrainingState *training,
                     GHashTable *trained,
                     EbbProcessGroup *group,
                     GError **error)
{
  g_autoptr (GArray) entries = NULL;
  g_autoptr (EbbShardIndex) index = NULL;
  g_autofree char *text = NULL;
  g_auto (GStrv) texts = NULL;
  GError *failure = NULL;
  guint64 sum = 0, total = 0;
  const gboolean is_left_out = training->trained_only && training->module != NULL;

  if (!ebb_agree_same_text (group, "trained-only", is_left_out ? "TRUE" : "FALSE", error))
    return FALSE;
  if (!is_left_out || ebb_is_dry_run ()) /* a dry run has no values */
    return TRUE;
  entries = ebb_state_entries_new_part (training->module, EBB_STATE_FROZEN, trained);
  if (ebb_state_check_released (entries, &failure))
    ebb_state_reshard (entries, NULL, &failure);
  if (!ebb_agree_no_failure (group, failure, error))
    return FALSE;
  failure = NULL;
  index = share_out (entries, group, error);
  if (index == NULL)
    return FALSE;
  ebb_push_grad_enabled (FALSE);
  sum_own (entries, index, ebb_process_group_get_rank (group), &sum, &failure);
  ebb_pop_grad_enabled ();
  if (!ebb_agree_no_failure (group, failure, error))
    return FALSE;
  text = g_strdup_printf ("%" G_GUINT64_FORMAT, sum);
  texts = ebb_agree_gather_texts (group, text, error);
  if (texts == NULL)
    return FALSE;
  for (guint r = 0; texts[r] != NULL; r++)
    total += g_ascii_strtoull (texts[r], NULL, 10);
  training->base = total;
  return TRUE;
}
