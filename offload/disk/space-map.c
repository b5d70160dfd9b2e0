/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Allocates ranges of a file: best fit among the free ranges, then the end of the file. */
#include "offload/disk/space-map-private.h"

typedef struct
{
  guint64 offset, size;
} Hole;

#define hole_at(self, i) (&g_array_index ((self)->holes, Hole, i))

void
ebb_space_map_init (EbbSpaceMap *self)
{
  *self = (EbbSpaceMap){ .holes = g_array_new (FALSE, FALSE, sizeof (Hole)) };
}

void
ebb_space_map_clear (EbbSpaceMap *self)
{
  g_array_unref (self->holes);
}

/* Best fit: activations come in a few sizes, and a step gives back what it took. */
gboolean
ebb_space_map_take (EbbSpaceMap *self,
                    guint64 size,
                    guint64 limit,
                    guint64 *offset)
{
  Hole *best = NULL;

  for (guint i = 0; i < self->holes->len; i++)
    if (hole_at (self, i)->size >= size && (best == NULL || hole_at (self, i)->size < best->size))
      best = hole_at (self, i);
  if (best != NULL)
    {
      *offset = best->offset;
      best->offset += size;
      best->size -= size;
      if (best->size == 0)
        g_array_remove_index (self->holes, (guint) (best - hole_at (self, 0)));
    }
  else
    {
      if (size > limit || self->end > limit - size)
        return FALSE;
      *offset = self->end;
      self->end += size;
    }
  self->in_use += size;
  return TRUE;
}

void
ebb_space_map_give (EbbSpaceMap *self,
                    guint64 offset,
                    guint64 size)
{
  Hole hole = { offset, size };
  guint i = 0;

  self->in_use -= size;
  while (i < self->holes->len && hole_at (self, i)->offset < offset)
    i++;
  if (i < self->holes->len && hole_at (self, i)->offset == offset + size)
    {
      hole.size += hole_at (self, i)->size;
      g_array_remove_index (self->holes, i);
    }
  if (i > 0 && hole_at (self, i - 1)->offset + hole_at (self, i - 1)->size == offset)
    {
      i--;
      hole.offset = hole_at (self, i)->offset;
      hole.size += hole_at (self, i)->size;
      g_array_remove_index (self->holes, i);
    }
  if (hole.offset + hole.size == self->end)
    self->end = hole.offset;
  else
    g_array_insert_val (self->holes, i, hole);
}
