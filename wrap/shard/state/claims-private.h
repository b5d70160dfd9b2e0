/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "wrap/shard/state/index-private.h"
#include "wrap/shard/state/state-dict-private.h"

/* Which ranks hold the same, so that one of them saves it for all, and where each stands on the mesh of data and tensor
 * ranks. */

G_BEGIN_DECLS

typedef struct
{
  guint rank, n_ranks;
  EbbShardCoordinates *mesh; /* [n_ranks]; NULL: no rank is a tensor-parallel one */
  guint n_data, n_tensor;
  GHashTable *taken; /* what ranks before this one hold */
} EbbShardClaims;

/* Compares what the ranks of @group hold of @entries and of the parameters of @optimizer; either may be NULL.
 * Collective. */
EbbShardClaims *ebb_shard_claims_new (EbbProcessGroup *group,
                                      GArray *entries,
                                      EbbOptimizer *optimizer,
                                      GError **error);
void ebb_shard_claims_free (EbbShardClaims *self);
/* TRUE if no rank before this one holds what lies here of a tensor with that name. */
gboolean ebb_shard_claims_speaks (EbbShardClaims *self,
                                  EbbShardFile table,
                                  const char *name,
                                  const EbbLocalShard *place);
/* Where this rank is. */
EbbShardCoordinates ebb_shard_claims_get_coordinates (EbbShardClaims *self);

G_DEFINE_AUTOPTR_CLEANUP_FUNC (EbbShardClaims, ebb_shard_claims_free)

G_END_DECLS
