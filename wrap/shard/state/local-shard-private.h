/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "wrap/shard/unit-private.h"

/* This rank's shard of a tensor of a module, and how the shards of all ranks make the full tensor. A tensor may be
 * split twice: each tensor-parallel rank has a slice of it, and data-parallel ranks shard that slice. */

G_BEGIN_DECLS

/* How tensor-parallel ranks split a tensor, as EbbPartition does; n_parts is 1 where each has the full tensor. */
typedef struct
{
  guint dim, n_sections, n_parts;
} EbbTensorSplit;

/* Which elements of a flattened tensor one tensor-parallel rank has: of each of @n_rows rows of @width elements those
 * from @first to @last. The slice, flattened, is these one after the other. */
typedef struct
{
  gint64 n_rows, width, first, last;
} EbbShardSlice;

/* A slice of all of @n elements. */
static inline EbbShardSlice
ebb_shard_slice_all (gint64 n)
{
  return (EbbShardSlice){ 1, n, 0, n };
}

/* The slice of part @index of @split; dimension @split->dim is divisible by @split->n_sections. */
EbbShardSlice ebb_shard_slice_of (const gint64 *shape,
                                  guint n_dims,
                                  gint64 n_elements,
                                  const EbbTensorSplit *split,
                                  guint index);
/* How many elements the slice has. */
gint64 ebb_shard_slice_count (const EbbShardSlice *self);
/* Copies the elements that both slices of one tensor have: of @source those from @source_begin to @source_end, which
 * begin at @source_data, of @target those from @target_begin to @target_end, to @target_data. Returns their number;
 * @target_data NULL: only counts them. */
gint64 ebb_shard_slice_copy (const EbbShardSlice *source,
                             gint64 source_begin,
                             gint64 source_end,
                             const void *source_data,
                             const EbbShardSlice *target,
                             gint64 target_begin,
                             gint64 target_end,
                             void *target_data,
                             gsize element);

typedef struct
{
  EbbShardUnit *unit;  /* NULL: not sharded */
  guint entry;         /* of the unit */
  EbbTensor *tensor;   /* this rank's, not owned */
  const gint64 *shape; /* of the full tensor */
  guint n_dims;
  gint64 n_elements;
  EbbProcessGroup *ranks; /* that split the tensor; NULL: none */
  EbbTensorSplit split;   /* among @ranks */
  guint index;            /* of this rank's slice among @ranks */
  EbbShardSlice slice;
  const gint64 *slice_shape; /* [n_dims] */
  gint64 begin, end;         /* the elements of the flattened slice that this rank holds */
} EbbLocalShard;

void ebb_local_shard_init (EbbLocalShard *self,
                           EbbTensor *tensor);
/* FALSE if each rank has the full tensor. */
gboolean ebb_local_shard_is_split (const EbbLocalShard *self);
/* TRUE if @tensor has the shape of the local shard. */
gboolean ebb_local_shard_fits (const EbbLocalShard *self,
                               EbbTensor *tensor);
/* Returns the number of dimensions. */
guint ebb_local_shard_get_shape (const EbbLocalShard *self,
                                 gint64 *shape);
/* This rank's elements of @full, which is on any device: a view where that can be, else a copy. */
EbbTensor *ebb_local_shard_extract (const EbbLocalShard *self,
                                    EbbTensor *full,
                                    GError **error);
/* Contiguous and in host memory: @tensor itself if it is that. */
EbbTensor *ebb_tensor_to_host (EbbTensor *tensor,
                               GError **error);

/* A tensor that is split over ranks as a parameter is: the parameter, its moments. */
typedef struct
{
  EbbLocalShard shard; /* of the parameter */
  EbbTensor *local;    /* this rank's elements, not owned; NULL: it has none */
  EbbDType dtype;
  gboolean done;
  EbbTensor *full; /* in host memory; NULL: not kept */
} EbbGatherItem;

/* Makes the full tensors of @items, one unit and one split tensor after the other, on ranks that @keep them. Collective
 * over @all, the ranks that have the module: they fail together, and with @failure (taken) of any of them. */
gboolean ebb_gather_full_tensors (EbbProcessGroup *all,
                                  EbbGatherItem *items,
                                  guint n,
                                  gboolean keep,
                                  GError *failure,
                                  GError **error);
void ebb_gather_items_free (EbbGatherItem *items,
                            guint n);

G_END_DECLS
