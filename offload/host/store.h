/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#if !defined(EBB_INSIDE) && !defined(EBB_COMPILATION)
#error "Only <ebb/ebb.h> can be included directly."
#endif

#include "offload/activation-store.h"

G_BEGIN_DECLS

#define EBB_TYPE_WHEN_FULL (ebb_when_full_get_type ())

/**
 * EbbWhenFull:
 * @EBB_WHEN_FULL_WAIT: until another thread gives memory back; if none can, as where one thread alone uses the store,
 *   at once to the fallback, or an error if there is none
 * @EBB_WHEN_FULL_SPILL: at once to the fallback; an error if there is none
 * @EBB_WHEN_FULL_ERROR: an error, fallback or not
 *
 * How an #EbbHostStore treats a tensor that finds no room below its byte limit.
 */
typedef enum
{
  EBB_WHEN_FULL_WAIT,
  EBB_WHEN_FULL_SPILL,
  EBB_WHEN_FULL_ERROR
} EbbWhenFull;

EBB_AVAILABLE_IN_ALL
GType ebb_when_full_get_type (void);

#define EBB_TYPE_HOST_STORE (ebb_host_store_get_type ())

EBB_AVAILABLE_IN_ALL
G_DECLARE_FINAL_TYPE (EbbHostStore, ebb_host_store, EBB, HOST_STORE, EbbActivationStore)

EBB_AVAILABLE_IN_ALL
EbbSavedTensorHooks *ebb_host_store_new (void);

EBB_AVAILABLE_IN_ALL
EbbSavedTensorHooks *ebb_host_store_get_default (void);

EBB_AVAILABLE_IN_ALL
guint64 ebb_host_store_get_bytes_reserved (EbbHostStore *self);

EBB_AVAILABLE_IN_ALL
gboolean ebb_host_store_trim (EbbHostStore *self,
                              GError **error);

G_END_DECLS
