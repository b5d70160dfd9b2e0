/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <ebb/ebb.h>

/* The options of ranks, sharding and tensor parallelism. */

G_BEGIN_DECLS

typedef enum
{
  SHARD_FULL,
  SHARD_NONE,
  SHARD_HYBRID
} ShardKind;

typedef struct
{
  char *backend;
  int n_ranks; /* of --backend thread; 0 with others */
  double timeout;

  char *shard, *wrap, *reshard, *nesting, *reduce;
  char *compute_dtype, *reduce_dtype;
  int shard_size; /* of --shard hybrid; 0 with others */
  gboolean flatten, offload_parameters;

  /* ranks that share the layers of one model; 1: each rank has all layers */
  int tensor_parallel;
  gboolean sequence_parallel, partition;
  gboolean keeps_sequence_parallel,
      keeps_partition; /* of the resumed state: unused on one rank, kept for later ranks */

  ShardKind shard_kind;
  EbbReshard reshard_kind;
  gboolean wraps_blocks;
  guint64 wrap_least; /* least parameters of a unit, unless blocks are the units; 0: the model is one unit */
  gboolean checkpoint_outside;
  gboolean reduces_each_batch;
} RankOptions;

typedef struct _Options Options;

/* Finds what the names mean, and checks, if all options are known by now, whether they go together. */
gboolean rank_options_check (Options *options,
                             gboolean all_known,
                             GError **error);
/* The same for a program of one model, whose ranks are those of --tensor-parallel. */
gboolean rank_options_check_alone (Options *options,
                                   GError **error);
/* Checks the options of ranks that share layers, together with how the blocks are checkpointed. */
gboolean rank_options_check_tensor (const RankOptions *self,
                                    gboolean checkpoints_all,
                                    GError **error);

G_END_DECLS
