/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "offload/keep-store.h"

/**
 * EbbKeepStore:
 *
 * Keeps every tensor where it is, as if there were no store, and counts.
 */
struct _EbbKeepStore
{
  EbbActivationStore parent_instance;
};

G_DEFINE_FINAL_TYPE (EbbKeepStore, ebb_keep_store, EBB_TYPE_ACTIVATION_STORE)

static gboolean
ebb_keep_store_moves (EbbActivationStore *store,
                      EbbDevice *device)
{
  return FALSE;
}

static void
ebb_keep_store_class_init (EbbKeepStoreClass *klass)
{
  EBB_ACTIVATION_STORE_CLASS (klass)->moves = ebb_keep_store_moves;
}

static void
ebb_keep_store_init (EbbKeepStore *self)
{
}

/**
 * ebb_keep_store_new:
 *
 * Makes a store that keeps tensors where they are.
 *
 * Returns: (transfer full) (type EbbKeepStore): the store
 */
EbbSavedTensorHooks *
ebb_keep_store_new (void)
{
  return g_object_new (EBB_TYPE_KEEP_STORE, NULL);
}
