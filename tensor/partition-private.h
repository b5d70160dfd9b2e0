/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "tensor/backend/kernel-private.h"
#include "tensor/tensor-private.h"

/* How a parameter of which this rank has one part by tensor parallelism was cut from the whole. Another thing than a
 * owner, which is data parallel's: a parameter may have both. The tensor doesn't own its partition; who has made it
 * takes it away before it goes, and has tensor->is_local_shard set with it. */

G_BEGIN_DECLS

typedef struct _EbbPartition EbbPartition;

typedef struct
{
  /* Replaces each of @values, f64 [n] on any device (i64, see kernel-private.h), by its sum (EBB_REDUCE_SUM) or its
   * largest (EBB_REDUCE_MAX) over the ranks. Collective. */
  gboolean (*reduce) (EbbPartition *self,
                      EbbReduceKind op,
                      EbbTensor *values,
                      GError **error);
} EbbPartitionFuncs;

struct _EbbPartition
{
  const EbbPartitionFuncs *funcs;
  gpointer ranks; /* the process group: the same pointer for all parameters that are split over the same ranks */
  guint n_parts, index;
  guint dim;
  guint n_sections; /* of dimension @dim of the whole, equally long (3: queries, keys, values); each is split in
                     * n_parts, the first (length % n_parts) of them one longer; this rank's parts of them follow each
                     * other */
  guint n_dims;
  gint64 shape[EBB_MAX_DIMS]; /* of the whole */
};

/* Of the largest part. */
static inline gint64
ebb_partition_get_max_elements (const EbbPartition *self)
{
  gint64 n = 1;

  for (guint d = 0; d < self->n_dims; d++)
    n *= d != self->dim ? self->shape[d]
                        : (self->shape[d] / self->n_sections + self->n_parts - 1) / self->n_parts * self->n_sections;
  return n;
}

G_END_DECLS
