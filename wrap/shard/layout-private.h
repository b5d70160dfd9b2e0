/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "tensor/backend/kernel-private.h"

/* How the parameters of a unit are split over ranks. Either each by the rows of its first dimension: rank r of n holds
 * the rows [floor (r R / n), floor ((r + 1) R / n)); or flattened: the parameters follow each other in one buffer,
 * which is split evenly, wherever a parameter begins or ends.
 *
 * A collective moves full buffers: the shards of all ranks, one after the other. Unflattened there is one buffer for
 * each parameter. Flattened there is one for each class of parameters. Those that tensor parallelism splits are a
 * class: their size differs by rank, while the others must be split at the same places on all ranks. So are frozen
 * ones, since a buffer's gradients are reduced as a whole, and those of each dtype. */

G_BEGIN_DECLS

typedef struct
{
  gint64 shape[EBB_MAX_DIMS]; /* of the full parameter */
  guint n_dims;
  gint64 n_elements;
  guint buffer; /* that the full parameter lies in */
  gint64 start; /* where it begins there */
} EbbShardParameter;

typedef struct
{
  guint n_ranks;
  gboolean flatten;
  guint n_parameters;
  EbbShardParameter *parameters;
  guint n_buffers;
  gint64 *n_elements; /* [n_buffers] */
  gint64 *counts;     /* [n_buffers][n_ranks] */
} EbbShardLayout;

/* @shapes and @n_dims are those of the full parameters; those with different @classes don't share a buffer; NULL: all
 * may. */
EbbShardLayout *ebb_shard_layout_new (guint n_ranks,
                                      gboolean flatten,
                                      guint n_parameters,
                                      const gint64 *const *shapes,
                                      const guint *n_dims,
                                      const guint *classes);
void ebb_shard_layout_free (EbbShardLayout *self);
/* [n_ranks]: how many elements of @buffer each rank holds. */
const gint64 *ebb_shard_layout_get_counts (const EbbShardLayout *self,
                                           guint buffer);
/* The elements of the flattened parameter that @rank holds; without any, @begin and @end are equal. */
void ebb_shard_layout_get_range (const EbbShardLayout *self,
                                 guint parameter,
                                 guint rank,
                                 gint64 *begin,
                                 gint64 *end);
/* The shape of that shard: rows, or { 1, ..., k } if flattened. Returns the number of dimensions, which is that of the
 * full parameter, but at least 1. */
guint ebb_shard_layout_get_shape (const EbbShardLayout *self,
                                  guint parameter,
                                  guint rank,
                                  gint64 *shape);
/* Where the shard begins among @rank's elements of its buffer. */
gint64 ebb_shard_layout_get_shard_offset (const EbbShardLayout *self,
                                          guint parameter,
                                          guint rank);

G_DEFINE_AUTOPTR_CLEANUP_FUNC (EbbShardLayout, ebb_shard_layout_free)

G_END_DECLS
