/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#if !defined(EBB_INSIDE) && !defined(EBB_COMPILATION)
#error "Only <ebb/ebb.h> can be included directly."
#endif

#include "offload/activation-store.h"

G_BEGIN_DECLS

#define EBB_TYPE_LOSSY (ebb_lossy_get_type ())

/**
 * EbbLossy:
 * @EBB_LOSSY_NONE: every bit comes back
 * @EBB_LOSSY_BF16: f32 is rounded to bf16, to the nearest and ties to even: 8 bits of the fraction are left; other
 *   element types come back bit by bit
 *
 * What an #EbbCompressedStore may lose.
 */
typedef enum
{
  EBB_LOSSY_NONE,
  EBB_LOSSY_BF16
} EbbLossy;

EBB_AVAILABLE_IN_ALL
GType ebb_lossy_get_type (void);

#define EBB_TYPE_COMPRESSED_STORE (ebb_compressed_store_get_type ())

EBB_AVAILABLE_IN_ALL
G_DECLARE_FINAL_TYPE (EbbCompressedStore, ebb_compressed_store, EBB, COMPRESSED_STORE, EbbActivationStore)

EBB_AVAILABLE_IN_ALL
EbbSavedTensorHooks *ebb_compressed_store_new (EbbActivationStore *next,
                                               GError **error);

EBB_AVAILABLE_IN_ALL
EbbActivationStore *ebb_compressed_store_get_next (EbbCompressedStore *self);

EBB_AVAILABLE_IN_ALL
guint ebb_compressed_store_get_level (EbbCompressedStore *self);

EBB_AVAILABLE_IN_ALL
void ebb_compressed_store_set_level (EbbCompressedStore *self,
                                     guint level);

EBB_AVAILABLE_IN_ALL
EbbLossy ebb_compressed_store_get_lossy (EbbCompressedStore *self);

EBB_AVAILABLE_IN_ALL
void ebb_compressed_store_set_lossy (EbbCompressedStore *self,
                                     EbbLossy lossy);

EBB_AVAILABLE_IN_ALL
guint64 ebb_compressed_store_get_staging_limit (EbbCompressedStore *self);

EBB_AVAILABLE_IN_ALL
void ebb_compressed_store_set_staging_limit (EbbCompressedStore *self,
                                             guint64 n_bytes);

EBB_AVAILABLE_IN_ALL
guint64 ebb_compressed_store_get_bytes_raw (EbbCompressedStore *self);

EBB_AVAILABLE_IN_ALL
guint64 ebb_compressed_store_get_bytes_stored (EbbCompressedStore *self);

EBB_AVAILABLE_IN_ALL
double ebb_compressed_store_get_ratio (EbbCompressedStore *self);

EBB_AVAILABLE_IN_ALL
double ebb_compressed_store_get_largest_error (EbbCompressedStore *self);

G_END_DECLS
