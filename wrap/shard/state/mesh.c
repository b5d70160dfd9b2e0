/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "wrap/shard/state/state-private.h"

#include "dist/agree-private.h"

#include <stdlib.h>
#include <string.h>

/* Finds out where each rank is among the data-parallel and the tensor-parallel ranks. */

static const EbbPartition *
find_partition (GArray *entries,
                EbbOptimizer *optimizer)
{
  EbbOptimizerPrivate *priv = optimizer != NULL ? ebb_optimizer_get_private (optimizer) : NULL;

  for (guint i = 0; entries != NULL && i < entries->len; i++)
    if (g_array_index (entries, EbbStateEntry, i).shard.ranks != NULL)
      return g_array_index (entries, EbbStateEntry, i).tensor->partition;
  for (guint i = 0; priv != NULL && i < priv->n_slots; i++)
    if (priv->slots[i].parameter->partition != NULL && priv->slots[i].parameter->partition->n_parts > 1)
      return priv->slots[i].parameter->partition;
  return NULL;
}

/* The rank that is the first of this rank's tensor-parallel ranks. */
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
read_coordinates (EbbShardMesh *self,
                  char **texts)
{
  g_autofree guint *leaders = g_new (guint, self->n_ranks);
  g_autofree guint *numbers = g_new0 (guint, self->n_ranks); /* of leaders */
  guint n_data = 0;

  self->ranks = g_new0 (EbbShardCoordinates, self->n_ranks);
  self->n_tensor = 1;
  for (guint r = 0; r < self->n_ranks; r++)
    {
      char *rest;

      leaders[r] = MIN ((guint) strtoul (texts[r], &rest, 10), self->n_ranks - 1);
      self->ranks[r].tensor = (guint) strtoul (rest, NULL, 10);
      self->n_tensor = MAX (self->n_tensor, self->ranks[r].tensor + 1);
    }
  for (guint r = 0; r < self->n_ranks; r++)
    if (leaders[r] == r)
      numbers[r] = n_data++;
  for (guint r = 0; r < self->n_ranks; r++)
    self->ranks[r].data = numbers[leaders[r]];
}

gboolean
ebb_shard_mesh_init (EbbShardMesh *self,
                     EbbProcessGroup *group,
                     GArray *entries,
                     EbbOptimizer *optimizer,
                     const char *text,
                     char ***texts,
                     GError **error)
{
  const EbbPartition *partition = find_partition (entries, optimizer);
  const guint rank = ebb_process_group_get_rank (group);
  g_autofree char *leader = find_leader (rank, partition, error);
  g_autofree char *own = NULL;
  g_auto (GStrv) gathered = NULL;

  if (leader == NULL)
    return FALSE;
  own = g_strdup_printf ("%s %u\n%s", leader, partition != NULL ? partition->index : 0, text);
  gathered = ebb_agree_gather_texts (group, own, error);
  if (gathered == NULL)
    return FALSE;
  self->n_ranks = ebb_process_group_get_size (group);
  read_coordinates (self, gathered);
  self->own = self->ranks[rank];
  for (guint r = 0; texts != NULL && r < self->n_ranks; r++)
    {
      const char *line_end = strchr (gathered[r], '\n');

      if (line_end != NULL)
        memmove (gathered[r], line_end + 1, strlen (line_end));
    }
  if (texts != NULL)
    *texts = g_steal_pointer (&gathered);
  return TRUE;
}
