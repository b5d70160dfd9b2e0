/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#if !defined(EBB_INSIDE) && !defined(EBB_COMPILATION)
#error "Only <ebb/ebb.h> can be included directly."
#endif

#include "offload/activation-store.h"

G_BEGIN_DECLS

#define EBB_TYPE_HOST_STORE (ebb_host_store_get_type ())

EBB_AVAILABLE_IN_ALL
G_DECLARE_FINAL_TYPE (EbbHostStore, ebb_host_store, EBB, HOST_STORE, EbbActivationStore)

EBB_AVAILABLE_IN_ALL
EbbSavedTensorHooks *ebb_host_store_new (void);

EBB_AVAILABLE_IN_ALL
EbbSavedTensorHooks *ebb_host_store_get_default (void);

G_END_DECLS
