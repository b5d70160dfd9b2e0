/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#if !defined(EBB_INSIDE) && !defined(EBB_COMPILATION)
#error "Only <ebb/ebb.h> can be included directly."
#endif

#include "offload/activation-store.h"

G_BEGIN_DECLS

#define EBB_TYPE_DISK_STORE (ebb_disk_store_get_type ())

EBB_AVAILABLE_IN_ALL
G_DECLARE_FINAL_TYPE (EbbDiskStore, ebb_disk_store, EBB, DISK_STORE, EbbActivationStore)

EBB_AVAILABLE_IN_ALL
EbbSavedTensorHooks *ebb_disk_store_new (const char *folder,
                                         GError **error);

G_END_DECLS
