/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#if !defined(EBB_INSIDE) && !defined(EBB_COMPILATION)
#error "Only <ebb/ebb.h> can be included directly."
#endif

#include "offload/activation-store.h"

G_BEGIN_DECLS

/**
 * EbbMemoryPlace:
 * @EBB_MEMORY_PLACE_DEVICE: where it is
 * @EBB_MEMORY_PLACE_HOST: in host memory
 * @EBB_MEMORY_PLACE_DISK: on the disk
 * @EBB_MEMORY_PLACE_PARTITIONED: divided among the ranks that have the same tensors
 *
 * Where a plan or a store keeps what a block's backward will need.
 */
typedef enum
{
  EBB_MEMORY_PLACE_DEVICE,
  EBB_MEMORY_PLACE_HOST,
  EBB_MEMORY_PLACE_DISK,
  EBB_MEMORY_PLACE_PARTITIONED
} EbbMemoryPlace;

#define EBB_TYPE_MEMORY_PLACE (ebb_memory_place_get_type ())

EBB_AVAILABLE_IN_ALL
GType ebb_memory_place_get_type (void);

EBB_AVAILABLE_IN_ALL
const char *const *ebb_store_kind_get_names (void);

EBB_AVAILABLE_IN_ALL
GType ebb_store_kind_get_gtype (const char *kind);

EBB_AVAILABLE_IN_ALL
EbbMemoryPlace ebb_store_kind_get_place (const char *kind);

EBB_AVAILABLE_IN_ALL
const char *ebb_store_kind_get_summary (const char *kind);

EBB_AVAILABLE_IN_ALL
gboolean ebb_store_kind_has_setting (const char *kind,
                                     const char *setting);

EBB_AVAILABLE_IN_ALL
EbbSavedTensorHooks *ebb_store_kind_make (const char *kind,
                                          const char *const *names,
                                          const GValue *values,
                                          guint n_values,
                                          GError **error);

G_END_DECLS
