/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "tensor/partition-private.h"

/* Which elements of a flattened tensor one tensor-parallel rank has: of each of @n_rows stretches of @width elements
 * those from @first to @last. Its part, flattened, is these one after the other. */

G_BEGIN_DECLS

typedef struct
{
  gint64 n_rows, width, first, last;
} EbbShardCut;

/* All of @n_elements. */
void ebb_shard_cut_init_whole (EbbShardCut *self,
                               gint64 n_elements);
/* Part @index of @n_parts, as EbbPartition says it; dimension @dim is divisible by @n_sections. */
void ebb_shard_cut_init (EbbShardCut *self,
                         const gint64 *shape,
                         guint n_dims,
                         guint dim,
                         guint n_sections,
                         guint n_parts,
                         guint index);
/* How many elements the part has. */
gint64 ebb_shard_cut_count (const EbbShardCut *self);
/* Copies the elements that both have: of the part @source those from @source_begin to @source_end, which begin at
 * @source_data, of the part @target those from @target_begin to @target_end, to @target_data. Gives their number. Both
 * are of the same whole; @target_data NULL: no more than count. */
gint64 ebb_shard_cut_copy (const EbbShardCut *source,
                           gint64 source_begin,
                           gint64 source_end,
                           const void *source_data,
                           const EbbShardCut *target,
                           gint64 target_begin,
                           gint64 target_end,
                           void *target_data,
                           gsize element);

G_END_DECLS
