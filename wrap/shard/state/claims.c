/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "wrap/shard/state/state-private.h"

#include "dist/agree-private.h"

#include <stdlib.h>
#include <string.h>

/* Finds out which ranks hold the same elements, so that only the first of them saves these. Ranks exchange texts. The
 * first line of each has the rank that is the first of its tensor-parallel ranks, and its own number among these. Each
 * line after it is a range of a tensor that the rank holds. */

static char *
make_line (EbbShardFile table,
           const char *name,
           const EbbLocalShard *shard)
{
  return g_strdup_printf ("%u %u %" G_GINT64_FORMAT " %" G_GINT64_FORMAT " %s", (guint) table, shard->index,
                          shard->begin, shard->end, name);
}

static void
append_line (GString *text,
             EbbShardFile table,
             const char *name,
             const EbbLocalShard *shard)
{
  g_autofree char *line = make_line (table, name, shard);

  if (shard->begin < shard->end)
    g_string_append_printf (text, "%s\n", line);
}

/* Returns the partition of one of the tensors; NULL: none is split over tensor-parallel ranks. */
static const EbbPartition *
append_lines (GString *text,
              GArray *entries,
              EbbOptimizer *optimizer)
{
  EbbOptimizerPrivate *priv = optimizer != NULL ? ebb_optimizer_get_private (optimizer) : NULL;
  const EbbPartition *partition = NULL;

  for (guint i = 0; entries != NULL && i < entries->len; i++)
    {
      const EbbStateEntry *entry = &g_array_index (entries, EbbStateEntry, i);

      if (entry->first == i)
        append_line (text, EBB_SHARD_FILE_MODEL, entry->name, &entry->shard);
      if (partition == NULL && entry->shard.ranks != NULL)
        partition = entry->tensor->partition;
    }
  for (guint i = 0; priv != NULL && i < priv->n_slots; i++)
    {
      EbbLocalShard shard;

      ebb_local_shard_init (&shard, priv->slots[i].parameter);
      append_line (text, EBB_SHARD_FILE_OPTIMIZER, priv->slots[i].name, &shard);
      if (partition == NULL && shard.ranks != NULL)
        partition = priv->slots[i].parameter->partition;
    }
  return partition;
}

static char *
find_leader (guint rank,
             const EbbPartition *partition,
             GError **error)
{
  g_autofree char *own = g_strdup_printf ("%u", rank);
  g_auto (GStrv) ranks = NULL;

  if (partition == NULL)
    return g_steal_pointer (&own);
  ranks = ebb_agree_gather_texts (partition->ranks, own, error);
  return ranks != NULL ? g_strdup (ranks[0]) : NULL;
}

/* Groups of tensor-parallel ranks are numbered in the order of the first rank of each. */
static void
read_coordinates (EbbShardClaims *self,
                  char **texts)
{
  g_autofree guint *leaders = g_new (guint, self->n_ranks);
  g_autofree guint *numbers = g_new0 (guint, self->n_ranks); /* of leaders */
  guint n_data = 0;

  self->mesh = g_new0 (EbbShardCoordinates, self->n_ranks);
  self->n_tensor = 1;
  for (guint r = 0; r < self->n_ranks; r++)
    {
      char *rest;

      leaders[r] = MIN ((guint) strtoul (texts[r], &rest, 10), self->n_ranks - 1);
      self->mesh[r].tensor = (guint) strtoul (rest, NULL, 10);
      self->n_tensor = MAX (self->n_tensor, self->mesh[r].tensor + 1);
    }
  for (guint r = 0; r < self->n_ranks; r++)
    if (leaders[r] == r)
      numbers[r] = n_data++;
  for (guint r = 0; r < self->n_ranks; r++)
    self->mesh[r].data = numbers[leaders[r]];
  self->own = self->mesh[self->rank];
  if (self->n_tensor == 1)
    g_clear_pointer (&self->mesh, g_free);
}

static void
take_lines (EbbShardClaims *self,
            const char *text)
{
  g_auto (GStrv) lines = g_strsplit (text, "\n", -1);

  for (guint i = 1; lines[0] != NULL && lines[i] != NULL; i++)
    if (*lines[i] != '\0')
      g_hash_table_add (self->taken, g_strdup (lines[i]));
}

EbbShardClaims *
ebb_shard_claims_new (EbbProcessGroup *group,
                      GArray *entries,
                      EbbOptimizer *optimizer,
                      GError **error)
{
  g_autoptr (EbbShardClaims) self = g_new0 (EbbShardClaims, 1);
  g_autoptr (GString) lines = g_string_new (NULL);
  const EbbPartition *partition = append_lines (lines, entries, optimizer);
  g_autofree char *text = NULL;
  g_autofree char *leader = NULL;
  g_auto (GStrv) texts = NULL;

  self->rank = ebb_process_group_get_rank (group);
  self->n_ranks = ebb_process_group_get_size (group);
  self->taken = g_hash_table_new_full (g_str_hash, g_str_equal, g_free, NULL);
  leader = find_leader (self->rank, partition, error);
  if (leader == NULL)
    return NULL;
  text = g_strdup_printf ("%s %u\n%s", leader, partition != NULL ? partition->index : 0, lines->str);
  texts = ebb_agree_gather_texts (group, text, error);
  if (texts == NULL)
    return NULL;
  read_coordinates (self, texts);
  for (guint r = 0; r < self->rank; r++)
    take_lines (self, texts[r]);
  return g_steal_pointer (&self);
}

gboolean
ebb_shard_claims_saves (EbbShardClaims *self,
                        EbbShardFile table,
                        const char *name,
                        const EbbLocalShard *shard)
{
  g_autofree char *line = make_line (table, name, shard);

  return !g_hash_table_contains (self->taken, line);
}

void
ebb_shard_claims_free (EbbShardClaims *self)
{
  g_hash_table_unref (self->taken);
  g_free (self->mesh);
  g_free (self);
}
