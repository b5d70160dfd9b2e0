/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "dist/group/process-group.h"
#include "offload/activation-store-private.h"

/* The stored blocks of a partitioned store. Each rank keeps its own shard, and behind it a sample of the full block, a
 * few elements from all over it. A gather brings the shards together and the samples with them, so that all ranks see
 * whether they had the same, and fail alike if not.
 *
 * All ranks begin the same gathers in the same order: blocks are put, asked for and prefetched in the order of the
 * program, and nothing else begins one; dropping a block never does. A rank that can't begin one ahead, for want of
 * memory say, reports that to the others at once. */

G_BEGIN_DECLS

/* Shared by the blocks of a store. */
typedef struct
{
  EbbProcessGroup *group;
  EbbActivationStore *next; /* NULL: shards stay on the device */
  pthread_mutex_t lock;
  /* under the lock */
  GQueue blocks;                    /* as they were put */
  guint64 bytes_full;               /* of the blocks that are held as shards... */
  guint64 bytes_kept;               /* ...and of this rank's shards */
  guint64 n_partitioned, n_gathers; /* so far */
} EbbPartitionState;

/* For @store, whose blocks share @partition. @tensor: the one that @source is put for. @is_sampled: a sample is kept.
 */
EbbHandle *ebb_partitioned_block_new (EbbActivationStore *store,
                                      EbbPartitionState *partition,
                                      EbbTensor *source,
                                      EbbTensor *tensor,
                                      gboolean is_sampled,
                                      GError **error);
/* The full block, as it is. */
EbbHandle *ebb_partitioned_block_new_full (EbbActivationStore *store,
                                           EbbPartitionState *partition,
                                           EbbTensor *source,
                                           GError **error);

/* check.c */

/* "f32 [8, 128], kept by checkpoint" */
char *ebb_partition_describe (EbbTensor *tensor);
/* A few elements from all over @view, as a view. */
void ebb_partition_sample (const EbbView *view,
                           EbbView *sample);
/* FALSE with @error set, on all ranks, unless the samples of all of them, one after another, are the same. */
gboolean ebb_partition_compare_samples (EbbTensor *samples,
                                        guint n_ranks,
                                        const char *what,
                                        GError **error);
/* The same for all values of @tensor. Collective. */
gboolean ebb_partition_compare_values (EbbProcessGroup *group,
                                       EbbTensor *tensor,
                                       GError **error);

G_END_DECLS
