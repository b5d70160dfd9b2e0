/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#if !defined(EBB_INSIDE) && !defined(EBB_COMPILATION)
#error "Only <ebb/ebb.h> can be included directly."
#endif

#include "offload/activation-store.h"

G_BEGIN_DECLS

#define EBB_TYPE_KEEP_STORE (ebb_keep_store_get_type ())

EBB_AVAILABLE_IN_ALL
G_DECLARE_FINAL_TYPE (EbbKeepStore, ebb_keep_store, EBB, KEEP_STORE, EbbActivationStore)

EBB_AVAILABLE_IN_ALL
EbbSavedTensorHooks *ebb_keep_store_new (void);

G_END_DECLS
