/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "wrap/shard/cut-private.h"
#include "wrap/shard/unit-private.h"

/* What this rank holds of a tensor of a module, and how the whole is made of what all ranks hold. A tensor may be split
 * twice: tensor-parallel ranks have a part of it each, and data-parallel ranks share out what their part is. */

G_BEGIN_DECLS

typedef struct
{
  EbbShardUnit *unit;            /* NULL: not shared out */
  guint entry;                   /* of the unit */
  const EbbPartition *partition; /* NULL: the part is the whole */
  EbbTensor *local;              /* what lies on this rank, not owned */
  const gint64 *shape;           /* of the whole */
  guint n_dims;
  gint64 n_elements;
  const gint64 *part_shape; /* [n_dims] */
  gint64 begin, end;        /* the elements of the flattened part that lie here */
  EbbShardCut cut;          /* which elements of the whole the part has */
} EbbLocalShard;

void ebb_local_shard_init (EbbLocalShard *self,
                           EbbTensor *tensor);
/* FALSE if each rank has the whole. */
gboolean ebb_local_shard_is_split (const EbbLocalShard *self);
/* TRUE if @tensor has the shape of what lies here. */
gboolean ebb_local_shard_fits (const EbbLocalShard *self,
                               EbbTensor *tensor);
/* The shape that a tensor has here. */
void ebb_local_shard_get_shape (const EbbLocalShard *self,
                                gint64 *shape,
                                guint *n_dims);
/* What lies here of @whole, of any device: a view where that can be, else a copy. */
EbbTensor *ebb_local_shard_slice (const EbbLocalShard *self,
                                  EbbTensor *whole,
                                  GError **error);
/* Contiguous and in the host's memory: @tensor itself if it is that. */
EbbTensor *ebb_tensor_to_host (EbbTensor *tensor,
                               GError **error);

/* Makes in the host's memory the parts that all ranks of one unit have together: @locals[i] is this rank's of the
 * parameter @places[i]; NULL where it has no elements. All ranks of @all fail together, and with @failure (taken) of
 * any of them. Collective over @all: the ranks that have the module, of which the unit's group may be a part. */
gboolean ebb_shard_gather (EbbProcessGroup *all,
                           EbbShardUnit *unit,
                           guint n,
                           const EbbLocalShard *places,
                           EbbTensor *const *locals,
                           const EbbDType *dtypes,
                           GError *failure,
                           EbbTensor **wholes,
                           GError **error);
/* Makes the whole in the host's memory out of the parts that tensor-parallel ranks have: @part is this rank's,
 * contiguous, in the host's memory, or NULL with @failure. NULL without an error where the whole isn't to be kept. As
 * to failures as above; collective over @all. */
gboolean ebb_shard_gather_parts (EbbProcessGroup *all,
                                 const EbbLocalShard *place,
                                 EbbTensor *part,
                                 EbbDType dtype,
                                 gboolean keep,
                                 GError *failure,
                                 EbbTensor **whole,
                                 GError **error);

G_END_DECLS
