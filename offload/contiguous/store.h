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
guint ebb_contiguous_store_get_n_checkpoints (EbbContiguousStore *self);

EBB_AVAILABLE_IN_ALL
void ebb_contiguous_store_set_n_checkpoints (EbbContiguousStore *self,
                                             guint n_checkpoints);

EBB_AVAILABLE_IN_ALL
EbbActivationStore *ebb_contiguous_store_get_next (EbbContiguousStore *self);

EBB_AVAILABLE_IN_ALL
gboolean ebb_contiguous_store_get_grow (EbbContiguousStore *self);

EBB_AVAILABLE_IN_ALL
void ebb_contiguous_store_set_grow (EbbContiguousStore *self,
                                    gboolean grow);

EBB_AVAILABLE_IN_ALL
void ebb_contiguous_store_reset (EbbContiguousStore *self);

EBB_AVAILABLE_IN_ALL
guint ebb_contiguous_store_get_n_buffers (EbbContiguousStore *self);

EBB_AVAILABLE_IN_ALL
guint ebb_contiguous_store_get_n_parts (EbbContiguousStore *self);

EBB_AVAILABLE_IN_ALL
guint ebb_contiguous_store_get_n_parts_peak (EbbContiguousStore *self);

G_END_DECLS
