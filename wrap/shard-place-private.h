/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "wrap/shard-unit-private.h"

/* What this rank holds of a tensor of a module, and how the whole is made of what all ranks hold. */

G_BEGIN_DECLS

typedef struct
{
  EbbShardUnit *unit;  /* NULL: each rank has the whole */
  guint entry;         /* of the unit */
  EbbTensor *local;    /* what lies on this rank, not owned */
  const gint64 *shape; /* of the whole */
  guint n_dims;
  gint64 n_elements;
  gint64 begin, end; /* the elements of the flattened whole that lie here */
} EbbShardPlace;

void ebb_shard_place_init (EbbShardPlace *self,
                           EbbTensor *tensor);
/* Of those ranks of @group that hold the same, one speaks for all. */
gboolean ebb_shard_place_speaks (const EbbShardPlace *self,
                                 EbbProcessGroup *group);
/* TRUE if @tensor has the shape of what lies here. */
gboolean ebb_shard_place_fits (const EbbShardPlace *self,
                               EbbTensor *tensor);
/* The shape that a tensor has here. */
void ebb_shard_place_get_shape (const EbbShardPlace *self,
                                gint64 *shape,
                                guint *n_dims);
/* What lies here of @whole, of any device: a view where that can be, else a copy. */
EbbTensor *ebb_shard_place_slice (const EbbShardPlace *self,
                                  EbbTensor *whole,
                                  GError **error);
/* Contiguous and in the host's memory: @tensor itself if it is that. */
EbbTensor *ebb_tensor_to_host (EbbTensor *tensor,
                               GError **error);

/* Makes wholes in the host's memory out of what all ranks of one unit have: @locals[i] is this rank's of the parameter
 * @places[i]; NULL where it has no elements. All ranks of @all fail together, and with @failure (taken) of any of them.
 * Collective over @all: the ranks that have the module, of which the unit's group may be a part. */
gboolean ebb_shard_gather (EbbProcessGroup *all,
                           EbbShardUnit *unit,
                           guint n,
                           const EbbShardPlace *places,
                           EbbTensor *const *locals,
                           const EbbDType *dtypes,
                           GError *failure,
                           EbbTensor **wholes,
                           GError **error);

G_END_DECLS
