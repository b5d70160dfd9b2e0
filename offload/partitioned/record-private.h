/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "dist/group/process-group.h"
#include "offload/activation-store-private.h"

/* What a partitioned store does with a block. Each rank keeps its own piece, and behind it a sample of the whole, a few
 * elements from all over it. A gather brings the pieces together and the samples with them, so that all ranks see
 * whether they had the same, and fail alike if not.
 *
 * All ranks begin the same gathers in the same order: blocks are put, asked for and prefetched in the order of the
 * program, and nothing else begins one, dropping least of all. A rank that can't begin one ahead, for want of memory
 * say, tells the others so at once. */

G_BEGIN_DECLS

typedef struct _EbbPartitionRecord EbbPartitionRecord;

/* The records of a store. */
typedef struct
{
  EbbActivationStore *store; /* whose they are; not held */
  EbbProcessGroup *group;
  EbbActivationStore *next; /* NULL: pieces stay on the device */
  pthread_mutex_t lock;
  /* under the lock */
  GQueue records;                   /* as they were put */
  guint64 bytes_whole;              /* of the blocks that are held in pieces... */
  guint64 bytes_kept;               /* ...and of this rank's pieces */
  guint64 n_partitioned, n_gathers; /* so far */
} EbbPartitionRecords;

/* @tensor: the one that @block is put for. @is_sampled: a sample is kept. */
EbbPartitionRecord *ebb_partition_record_new (EbbPartitionRecords *partition,
                                              EbbTensor *block,
                                              EbbTensor *tensor,
                                              gboolean is_sampled,
                                              GError **error);
/* The block as it is. */
EbbPartitionRecord *ebb_partition_record_new_whole (EbbPartitionRecords *partition,
                                                    EbbTensor *block,
                                                    GError **error);
/* A gather that was begun goes on to its end. */
void ebb_partition_record_free (EbbPartitionRecord *self);
guint64 ebb_partition_record_get_held_bytes (EbbPartitionRecord *self);
/* Begins to gather, and has the next store begin to bring what will be gathered after that. */
void ebb_partition_record_prefetch (EbbPartitionRecord *self);
EbbTensor *ebb_partition_record_get (EbbPartitionRecord *self,
                                     GError **error);

/* partition-check.c */

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
