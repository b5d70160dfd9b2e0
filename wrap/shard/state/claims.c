/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "wrap/shard/state/claims-private.h"

#include "nn/optim/optimizer-private.h"
#include "dist/agree-private.h"

#include <stdlib.h>
#include <string.h>

/* Ranks exchange texts. The first line of each says where it is among the tensor-parallel ranks: the rank of the first
 * of these, and its own number among them. Each line after it is a range of a tensor that the rank holds. */

static char *
make_line (EbbShardFile table,
           const char *name,
           const EbbLocalShard *place)
{
  return g_strdup_printf ("%u %u %" G_GINT64_FORMAT " %" G_GINT64_FORMAT " %s", (guint) table,
                          place->partition != NULL ? place->partition->index : 0, place->begin, place->end, name);
}

static void
append_line (GString *text,
             EbbShardFile table,
             const char *name,
             const EbbLocalShard *place)
{
  g_autofree char *line = make_line (table, name, place);

  if (place->begin < place->end)
    g_string_append_printf (text, "%s\n", line);
}

static void
append_lines (GString *text,
              GArray *entries,
              EbbOptimizer *optimizer)
{
  EbbOptimizerPrivate *priv = optimizer != NULL ? ebb_optimizer_get_private (optimizer) : NULL;

  for (guint i = 0; entries != NULL && i < entries->len; i++)
    {
      const EbbStateEntry *entry = &g_array_index (entries, EbbStateEntry, i);

      if (entry->first == i)
        append_line (text, EBB_SHARD_FILE_MODEL, entry->name, &entry->place);
    }
  for (guint i = 0; priv != NULL && i < priv->n_slots; i++)
    {
      EbbLocalShard place;

      ebb_local_shard_init (&place, priv->slots[i].parameter);
      append_line (text, EBB_SHARD_FILE_OPTIMIZER, priv->slots[i].name, &place);
    }
}

static const EbbPartition *
find_partition (GArray *entries,
                EbbOptimizer *optimizer)
{
  EbbOptimizerPrivate *priv = optimizer != NULL ? ebb_optimizer_get_private (optimizer) : NULL;

  for (guint i = 0; entries != NULL && i < entries->len; i++)
    if (g_array_index (entries, EbbStateEntry, i).place.partition != NULL)
      return g_array_index (entries, EbbStateEntry, i).place.partition;
  for (guint i = 0; priv != NULL && i < priv->n_slots; i++)
    if (priv->slots[i].parameter->partition != NULL && priv->slots[i].parameter->partition->n_parts > 1)
      return priv->slots[i].parameter->partition;
  return NULL;
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
      numbers[r] = self->n_data++;
  for (guint r = 0; r < self->n_ranks; r++)
    self->mesh[r].data = numbers[leaders[r]];
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
  const EbbPartition *partition = find_partition (entries, optimizer);
  g_autoptr (GString) text = g_string_new (NULL);
  g_autofree char *leader = NULL;
  g_auto (GStrv) texts = NULL;

  self->rank = ebb_process_group_get_rank (group);
  self->n_ranks = ebb_process_group_get_size (group);
  self->taken = g_hash_table_new_full (g_str_hash, g_str_equal, g_free, NULL);
  leader = find_leader (self->rank, partition, error);
  if (leader == NULL)
    return NULL;
  g_string_append_printf (text, "%s %u\n", leader, partition != NULL ? partition->index : 0);
  append_lines (text, entries, optimizer);
  texts = ebb_agree_gather_texts (group, text->str, error);
  if (texts == NULL)
    return NULL;
  read_coordinates (self, texts);
  for (guint r = 0; r < self->rank; r++)
    take_lines (self, texts[r]);
  return g_steal_pointer (&self);
}

void
ebb_shard_claims_free (EbbShardClaims *self)
{
  g_hash_table_unref (self->taken);
  g_free (self->mesh);
  g_free (self);
}

gboolean
ebb_shard_claims_speaks (EbbShardClaims *self,
                         EbbShardFile table,
                         const char *name,
                         const EbbLocalShard *place)
{
  g_autofree char *line = make_line (table, name, place);

  return !g_hash_table_contains (self->taken, line);
}

EbbShardCoordinates
ebb_shard_claims_get_coordinates (EbbShardClaims *self)
{
  return self->mesh != NULL ? self->mesh[self->rank] : (EbbShardCoordinates){ self->rank, 0 };
}
