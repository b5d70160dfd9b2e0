/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* How forward assigns rows to blocks, and where results go; shared by bf16 and f32. */

#include "tensor/cuda/kernels/attention.cuh"

/* A block of threads takes a tile of the rows of a group: the heads from head on, each with all its queries. */
typedef struct
{
  int batch, head, key_head, first_row;
  AttentionRange range; /* of keys, cut to the block's split */
} AttentionBlock;

/* Tiles of the last queries come first: causal ones have the most keys. */
template <int ROWS>
static __device__ __forceinline__ AttentionBlock
attention_find_block (const Attention &a)
{
  int n_groups = a.n_heads / a.n_group_heads, last_row = a.n_group_heads * a.n_queries - 1;
  unsigned group = blockIdx.x / a.n_tiles;
  int first_query = 0, last_query = a.n_queries - 1, split_end;
  AttentionBlock block;

  block.first_row = (a.n_tiles - 1 - (int) (blockIdx.x % a.n_tiles)) * ROWS;
  block.batch = (int) (group / n_groups);
  block.head = (int) (group % n_groups) * a.n_group_heads;
  block.key_head = block.head / a.n_shared;
  if (a.n_group_heads == 1)
    {
      first_query = block.first_row;
      last_query = block.first_row + ROWS - 1 < last_row ? block.first_row + ROWS - 1 : last_row;
    }
  block.range = attention_find_range (a, block.batch, first_query, last_query);
  if (a.n_splits > 1)
    {
      split_end = ((int) blockIdx.y + 1) * a.split_keys;
      block.range.begin = max (block.range.begin, split_end - a.split_keys);
      block.range.end = min (block.range.end, split_end);
    }
  return block;
}

/* A row of a group: a query of a head. */
typedef struct
{
  int head, query;
  bool is_there;
} AttentionQuery;

static __device__ __forceinline__ AttentionQuery
attention_find_query (const Attention &a,
                      const AttentionBlock &block,
                      int row)
{
  int at = block.first_row + row, head = a.n_group_heads == 1 ? 0 : at / a.n_queries;

  return { block.head + head, at - head * a.n_queries, at < a.n_group_heads * a.n_queries };
}

template <typename T>
static __device__ __forceinline__ T *
attention_query_row (const Attention &a,
                     const AttentionRows &rows,
                     const AttentionBlock &block,
                     int row)
{
  AttentionQuery at = attention_find_query (a, block, row);

  return at.is_there ? attention_row<T> (rows, block.batch, at.head, at.query) : NULL;
}

/* A row's state: its keys, where its mask and its draws begin, its largest score so far and the sum of powers of 2
 * beside that. The lanes that share a row have parts of the sum. */
typedef struct
{
  AttentionBounds bounds;
  gint64 mask_start;
  guint64 draw_start;
  float maximum, sum;
} AttentionRowState;

static __device__ __forceinline__ AttentionRowState
attention_begin_row (const Attention &a,
                     const AttentionBlock &block,
                     int row)
{
  AttentionQuery at = attention_find_query (a, block, row);
  AttentionRowState state = { { 0, 0 }, 0, 0, -INFINITY, 0.0f };

  if (at.is_there)
    {
      state.bounds = attention_find_bounds (a, block.batch, at.query);
      state.mask_start = attention_mask_start (a, block.batch, at.head, at.query);
      state.draw_start = (guint64) attention_row_index (a, block.batch, at.head, at.query) * a.n_keys;
    }
  return state;
}

static __device__ __forceinline__ bool
attention_sees (const AttentionRowState &state,
                int key)
{
  return key >= state.bounds.begin && key < state.bounds.end;
}

/* Raises a row's maximum to found. Returns the factor for the row's results so far. */
static __device__ __forceinline__ float
attention_raise_maximum (AttentionRowState *state,
                         float found)
{
  float before = state->maximum, scale;

  state->maximum = fmaxf (before, found);
  scale = exp2_fast (before - attention_shift_of (state->maximum));
  state->sum *= scale;
  return scale;
}

/* The factor for a row's results at its end; sum: of the whole row. */
static __device__ __forceinline__ float
attention_finish_sum (float sum)
{
  return sum > 0.0f ? 1.0f / sum : sum;
}

static __device__ __forceinline__ void
attention_store_logsumexp (const Attention &a,
                           const AttentionBlock &block,
                           int row,
                           float maximum,
                           float sum)
{
  AttentionQuery at = attention_find_query (a, block, row);
  gint64 index;

  if (!at.is_there)
    return;
  index = 2 * attention_row_index (a, block.batch, at.head, at.query);
  if (a.n_splits > 1)
    {
      index += (gint64) blockIdx.y * 2 * a.n_batches * a.n_heads * a.n_queries;
      a.partial_stats[index] = maximum;
      a.partial_stats[index + 1] = sum;
    }
  else if (a.logsumexp)
    {
      a.logsumexp[index] = maximum;
      a.logsumexp[index + 1] = sum == 0.0f ? 0.0f : log2f (sum);
    }
}

/* Where a row's unfinished results of the block's split go; NULL for a row that isn't there. */
static __device__ __forceinline__ float *
attention_partial_row (const Attention &a,
                       const AttentionBlock &block,
                       int row)
{
  AttentionQuery at = attention_find_query (a, block, row);
  gint64 n_rows = (gint64) a.n_batches * a.n_heads * a.n_queries;

  if (!at.is_there)
    return NULL;
  return a.partial_o + (blockIdx.y * n_rows + attention_row_index (a, block.batch, at.head, at.query)) * a.width;
}

/* A block for each tile of n_rows rows and each split of keys, with size bytes of shared memory. */
static inline cudaError_t
attention_launch_rows (void (*kernel) (const Attention),
                       Attention *a,
                       int n_rows,
                       int size,
                       const EbbCudaQueue *queue)
{
  gint64 n_groups = (gint64) a->n_batches * (a->n_heads / a->n_group_heads);
  gint64 n_tiles = ((gint64) a->n_group_heads * a->n_queries + n_rows - 1) / n_rows;
  cudaError_t error;

  a->n_tiles = (int) n_tiles;
  if (n_tiles * n_groups > G_MAXINT32 || !attention_fits (size, queue))
    return cudaErrorNotSupported;
  error = ebb_cuda_allow_shared (kernel, (size_t) size);
  if (error != cudaSuccess)
    return error;
  return EBB_CUDA_LAUNCH (kernel, dim3 ((unsigned) (n_tiles * n_groups), a->n_splits), dim3 (ATTENTION_THREADS),
                          (size_t) size, queue->stream, *a);
}

/* attention-bf16.cu, attention-f32.cu: launches for a width up to 256. */
cudaError_t ebb_cuda_attention_bf16 (Attention *a, const EbbCudaQueue *queue);
cudaError_t ebb_cuda_attention_f32 (Attention *a, const EbbCudaQueue *queue);
