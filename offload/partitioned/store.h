/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#if !defined(EBB_INSIDE) && !defined(EBB_COMPILATION)
#error "Only <ebb/ebb.h> can be included directly."
#endif

#include "dist/group/process-group.h"
#include "offload/activation-store.h"

G_BEGIN_DECLS

#define EBB_TYPE_PARTITION_CHECK (ebb_partition_check_get_type ())

/**
 * EbbPartitionCheck:
 * @EBB_PARTITION_CHECK_NONE: nothing is compared
 * @EBB_PARTITION_CHECK_SAMPLE: up to 32 elements from all over a tensor, when it is gathered
 * @EBB_PARTITION_CHECK_VALUES: all of it, when it is put: one exchange between the ranks for each tensor; and a sample
 *   when it is gathered
 *
 * How an #EbbPartitionedStore sees whether its ranks put the same tensors.
 */
typedef enum
{
  EBB_PARTITION_CHECK_NONE,
  EBB_PARTITION_CHECK_SAMPLE,
  EBB_PARTITION_CHECK_VALUES
} EbbPartitionCheck;

EBB_AVAILABLE_IN_ALL
GType ebb_partition_check_get_type (void);

#define EBB_TYPE_PARTITIONED_STORE (ebb_partitioned_store_get_type ())

EBB_AVAILABLE_IN_ALL
G_DECLARE_FINAL_TYPE (EbbPartitionedStore, ebb_partitioned_store, EBB, PARTITIONED_STORE, EbbActivationStore)

EBB_AVAILABLE_IN_ALL
EbbSavedTensorHooks *ebb_partitioned_store_new (EbbProcessGroup *group,
                                                EbbActivationStore *next,
                                                GError **error);

G_END_DECLS
