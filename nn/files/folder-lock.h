/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#if !defined(EBB_INSIDE) && !defined(EBB_COMPILATION)
#error "Only <ebb/ebb.h> can be included directly."
#endif

#include "tensor/error.h"
#include "tensor/version.h"

#include <glib-object.h>

G_BEGIN_DECLS

#define EBB_TYPE_FOLDER_LOCK (ebb_folder_lock_get_type ())

/**
 * EbbFolderLock:
 *
 * Keeps other programs from training in the same folder: as long as the object lives, no other can be made for that
 * folder, in any process. It ends with the process too, however that ends.
 */
EBB_AVAILABLE_IN_ALL
G_DECLARE_FINAL_TYPE (EbbFolderLock, ebb_folder_lock, EBB, FOLDER_LOCK, GObject)

EBB_AVAILABLE_IN_ALL
EbbFolderLock *ebb_folder_lock_new (const char *folder,
                                    GError **error);

EBB_AVAILABLE_IN_ALL
void ebb_folder_lock_release (EbbFolderLock *self);

G_END_DECLS
