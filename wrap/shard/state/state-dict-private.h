/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "nn/optim/optimizer.h"
#include "wrap/shard/place-private.h"

G_BEGIN_DECLS

/* One name of a state dict. */
typedef struct
{
  char *name;
  EbbTensor *tensor; /* of the module, not owned */
  guint first;       /* the number of the first entry of the same tensor */
  EbbLocalShard place;
  gboolean done;
  EbbTensor *whole; /* what was gathered, of first entries; NULL: nothing is kept */
} EbbStateEntry;

/* An array of EbbStateEntry, in the order of the state dict; valid as long as the module stays as it is. */
GArray *ebb_state_entries_new (EbbModule *module);
/* Whole parameters that were changed, but not written back, belong to no state. */
gboolean ebb_state_check_released (GArray *entries,
                                   GError **error);
/* Before shards are changed: what was gathered from them goes, of the entries and of the optimizer's parameters; either
 * may be NULL. */
gboolean ebb_state_reshard (GArray *entries,
                            EbbOptimizer *optimizer,
                            GError **error);
/* Rank 0's @source as @dtype, in the host's memory, on all ranks; NULL on the others. All fail together, and with
 * @failure (taken) of any of them, before anything is sent. */
EbbTensor *ebb_broadcast_whole (EbbProcessGroup *group,
                                EbbTensor *source,
                                const gint64 *shape,
                                guint n_dims,
                                EbbDType dtype,
                                GError *failure,
                                GError **error);

G_END_DECLS
