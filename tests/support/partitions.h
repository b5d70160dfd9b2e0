/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <ebb/ebb.h>

/* Checkpointed blocks on ranks that all compute the same, whose inputs are kept in pieces. */

G_BEGIN_DECLS

#define TEST_PARTITION_WIDTH 18
#define TEST_PARTITION_ROWS 35 /* 630 elements: no four ranks have the same number */
#define TEST_PARTITION_BLOCKS 4

typedef enum
{
  TEST_BEHIND_NOTHING, /* pieces stay on the device */
  TEST_BEHIND_KEEP,
  TEST_BEHIND_HOST,
  TEST_BEHIND_DISK,
  TEST_BEHIND_CONTIGUOUS,
  TEST_BEHIND_CONTIGUOUS_HOST,
  TEST_BEHIND_CONTIGUOUS_DISK,
  TEST_N_BEHIND
} TestBehind;

extern const char *const test_behind_names[TEST_N_BEHIND];

/* Keeps blocks; counts what it is told to prefetch, and fails at get number @failing_get, from 1 (0: none). */
EbbSavedTensorHooks *test_watched_store_new (guint failing_get);
guint test_watched_store_get_n_prefetched (EbbSavedTensorHooks *store);
/* For tensors of any size. */
EbbSavedTensorHooks *test_partitioned_store_new (EbbProcessGroup *group,
                                                 TestBehind behind);
#define test_partitioned(store) EBB_PARTITIONED_STORE (store)

/* A linear layer, a dropout and an Mlp with a residual around them; the same for the same seed. */
EbbModule *test_partition_block_new (guint seed);
/* Such blocks in a row, each behind a checkpoint with @options, unless that is NULL. */
EbbModule *test_partition_model_new (EbbCheckpointOptions *options);
EbbCheckpointOptions *test_partition_options_new (EbbSavedTensorHooks *store);
EbbTensor *test_partition_input (guint seed);
/* The mean of the squares of what the model gives, dropout always the same. */
EbbTensor *test_partition_forward (EbbModule *model,
                                   EbbTensor *input,
                                   GError **error);
/* Fails unless both models have the same gradients, which are then dropped. */
void test_partition_assert_same_grads (EbbModule *a,
                                       EbbModule *b);

G_END_DECLS
