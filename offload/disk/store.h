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

EBB_AVAILABLE_IN_ALL
const char *ebb_disk_store_get_folder (EbbDiskStore *self);

EBB_AVAILABLE_IN_ALL
guint64 ebb_disk_store_get_byte_limit (EbbDiskStore *self);

EBB_AVAILABLE_IN_ALL
void ebb_disk_store_set_byte_limit (EbbDiskStore *self,
                                    guint64 n_bytes);

EBB_AVAILABLE_IN_ALL
guint64 ebb_disk_store_get_staging_limit (EbbDiskStore *self);

EBB_AVAILABLE_IN_ALL
void ebb_disk_store_set_staging_limit (EbbDiskStore *self,
                                       guint64 n_bytes);

G_END_DECLS
