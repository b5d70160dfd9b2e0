/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "wrap/shard/cut-private.h"

#include "dist/tensor-parallel/ops-private.h"

#include <string.h>

void
ebb_shard_cut_init_whole (EbbShardCut *self,
                          gint64 n_elements)
{
  *self = (EbbShardCut){ 1, n_elements, 0, n_elements };
}

void
ebb_shard_cut_init (EbbShardCut *self,
                    const gint64 *shape,
                    guint n_dims,
                    guint dim,
                    guint n_sections,
                    guint n_parts,
                    guint index)
{
  gint64 section = shape[dim] / n_sections, inner = 1, first, count;

  self->n_rows = n_sections;
  for (guint d = 0; d < dim; d++)
    self->n_rows *= shape[d];
  for (guint d = dim + 1; d < n_dims; d++)
    inner *= shape[d];
  self->width = section * inner;
  ebb_parallel_get_part (section, n_parts, index, &first, &count);
  self->first = first * inner;
  self->last = (first + count) * inner;
}

gint64
ebb_shard_cut_count (const EbbShardCut *self)
{
  return self->n_rows * (self->last - self->first);
}

/* The same, of the elements [from, to) of the whole; @source_data begins with the one at @from. */
static gint64
copy_stretch (gint64 from,
              gint64 to,
              const char *source_data,
              const EbbShardCut *target,
              gint64 target_begin,
              gint64 target_end,
              char *target_data,
              gsize element)
{
  const gint64 n = target->last - target->first;
  gint64 copied = 0;

  for (gint64 row = from / target->width; row * target->width < to; row++)
    {
      /* Where the row's elements lie in the whole, and what of them is wanted. */
      const gint64 start = row * target->width + target->first, at = row * n;
      const gint64 begin = MAX (MAX (from, start), start + target_begin - at);
      const gint64 end = MIN (MIN (to, start + n), start + target_end - at);

      if (begin >= end)
        continue;
      if (target_data != NULL)
        memcpy (target_data + (gsize) (at + begin - start - target_begin) * element,
                source_data + (gsize) (begin - from) * element, (gsize) (end - begin) * element);
      copied += end - begin;
    }
  return copied;
}

gint64
ebb_shard_cut_copy (const EbbShardCut *source,
                    gint64 source_begin,
                    gint64 source_end,
                    const void *source_data,
                    const EbbShardCut *target,
                    gint64 target_begin,
                    gint64 target_end,
                    void *target_data,
                    gsize element)
{
  const gint64 n = source->last - source->first;
  gint64 copied = 0;

  if (target->last <= target->first)
    return 0;
  for (gint64 at = source_begin, next; at < source_end; at = next)
    {
      const gint64 row = at / n, start = row * source->width + source->first - row * n;

      next = MIN (source_end, (row + 1) * n);
      copied +=
          copy_stretch (start + at, start + next, (const char *) source_data + (gsize) (at - source_begin) * element,
                        target, target_begin, target_end, target_data, element);
    }
  return copied;
}
