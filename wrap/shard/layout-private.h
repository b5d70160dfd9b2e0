/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <glib.h>

/* How the parameters of a unit are split over ranks. Either each by the rows of its first dimension: rank r of n holds
 * the rows [floor (r R / n), floor ((r + 1) R / n)); or flattened: the parameters follow each other in one buffer,
 * which is split evenly, wherever a parameter begins or ends.
 *
 * A collective moves whole buffers: the pieces of all ranks, one after the other. Flattened there is one of them, or a
 * second one for the parameters that are parts by tensor parallelism: how long these are differs by rank, and whole
 * parameters are to be split at the same places on all. Else there is one for each parameter. */

G_BEGIN_DECLS

typedef struct _EbbShardLayout EbbShardLayout;

/* @shapes and @n_dims are those of the whole parameters; @are_parts says which go to the second buffer, NULL: none. */
EbbShardLayout *ebb_shard_layout_new (guint n_ranks,
                                      gboolean flatten,
                                      guint n_parameters,
                                      const gint64 *const *shapes,
                                      const guint *n_dims,
                                      const gboolean *are_parts);
EbbShardLayout *ebb_shard_layout_ref (EbbShardLayout *self);
void ebb_shard_layout_unref (EbbShardLayout *self);

guint ebb_shard_layout_get_n_ranks (const EbbShardLayout *self);
guint ebb_shard_layout_get_n_parameters (const EbbShardLayout *self);
gboolean ebb_shard_layout_get_flatten (const EbbShardLayout *self);
/* The shape of the whole parameter. */
const gint64 *ebb_shard_layout_get_whole_shape (const EbbShardLayout *self,
                                                guint parameter,
                                                guint *n_dims);
gint64 ebb_shard_layout_get_n_elements (const EbbShardLayout *self,
                                        guint parameter);

/* The elements of the flattened parameter that @rank holds; none: @begin and @end are equal. */
void ebb_shard_layout_get_range (const EbbShardLayout *self,
                                 guint parameter,
                                 guint rank,
                                 gint64 *begin,
                                 gint64 *end);
/* The shape of that shard has as many dimensions as the whole, but one at least: rows, or { 1, ..., k } if flattened.
 */
guint ebb_shard_layout_get_shard_n_dims (const EbbShardLayout *self,
                                         guint parameter);
void ebb_shard_layout_get_shape (const EbbShardLayout *self,
                                 guint parameter,
                                 guint rank,
                                 gint64 *shape);

guint ebb_shard_layout_get_n_buffers (const EbbShardLayout *self);
/* [n_ranks]: how many elements of @buffer each rank holds. */
const gint64 *ebb_shard_layout_get_counts (const EbbShardLayout *self,
                                           guint buffer);
/* All elements of @buffer. */
gint64 ebb_shard_layout_get_buffer_size (const EbbShardLayout *self,
                                         guint buffer);
/* In which buffer the whole parameter lies, and where it begins there. */
void ebb_shard_layout_locate (const EbbShardLayout *self,
                              guint parameter,
                              guint *buffer,
                              gint64 *offset);
/* Where the shard begins in the piece that @rank holds of that buffer. */
gint64 ebb_shard_layout_get_shard_offset (const EbbShardLayout *self,
                                          guint parameter,
                                          guint rank);

G_DEFINE_AUTOPTR_CLEANUP_FUNC (EbbShardLayout, ebb_shard_layout_unref)

G_END_DECLS
