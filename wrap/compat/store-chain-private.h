/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "dist/group/process-group.h"
#include "offload/activation-store.h"

G_BEGIN_DECLS

/* Where the systems before keep what checkpoints keep: divided among ranks, side by side, in the host's memory. */
typedef struct
{
  EbbProcessGroup *group; /* not owned; NULL: what this rank has stays whole */
  guint n_checkpoints;    /* of buffers side by side; 0: none */
  gboolean grow;          /* takes another buffer when one is full */
  gboolean host;
} EbbStoreChain;

/* *@store: NULL if @self asks for nothing; else the outermost store, to be let go of by the caller. */
gboolean ebb_store_chain_open (const EbbStoreChain *self,
                               EbbSavedTensorHooks **store,
                               GError **error);
/* The next store inside @store, NULL if there is none; not owned. */
EbbSavedTensorHooks *ebb_store_chain_next (EbbSavedTensorHooks *store);

G_END_DECLS
