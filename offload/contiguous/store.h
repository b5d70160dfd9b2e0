/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#if !defined(EBB_INSIDE) && !defined(EBB_COMPILATION)
#error "Only <ebb/ebb.h> can be included directly."
#endif

#include "offload/activation-store.h"

G_BEGIN_DECLS

#define EBB_TYPE_CONTIGUOUS_STORE (ebb_contiguous_store_get_type ())

EBB_AVAILABLE_IN_ALL
G_DECLARE_FINAL_TYPE (EbbContiguousStore, ebb_contiguous_store, EBB, CONTIGUOUS_STORE, EbbActivationStore)

EBB_AVAILABLE_IN_ALL
EbbSavedTensorHooks *ebb_contiguous_store_new (guint n_checkpoints,
                                               EbbActivationStore *next,
                                               GError **error);

EBB_AVAILABLE_IN_ALL
void ebb_contiguous_store_reset (EbbContiguousStore *self);

G_END_DECLS
