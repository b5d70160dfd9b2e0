/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "dist/group/process-group.h"
#include "offload/activation-store.h"
#include "wrap/checkpoint/options.h"

G_BEGIN_DECLS

/* The store that DeepSpeed, OSLO and Megatron ask for: partitioned over contiguous over host, or some of these. */
typedef struct
{
  EbbProcessGroup *group; /* not owned; NULL: not partitioned */
  guint n_checkpoints;    /* of a contiguous store; 0: not contiguous */
  gboolean grow;          /* the contiguous store takes another buffer when one is full */
  gboolean host;
} EbbStoreChain;

/* Options with the outermost store, or with none if @self asks for none. */
EbbCheckpointOptions *ebb_store_chain_make_options (const EbbStoreChain *self,
                                                    GError **error);
/* The next store inside @store, NULL if there is none; not owned. */
EbbSavedTensorHooks *ebb_store_chain_next (EbbSavedTensorHooks *store);

G_END_DECLS
