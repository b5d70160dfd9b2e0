/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Attention of bf16, forward: each warp multiplies its rows of queries with all keys of a tile. Keys are copied while
 * values are multiplied, and values while keys are. */
#include "tensor/cuda/kernels/attention-forward.cuh"
#include "tensor/cuda/kernels/attention-mma.cuh"

/* Scores of a warp's rows and a tile of keys become powers of 2, after dropout if there is any; result is scaled as
 * the maxima rise. is_edge: not all rows see all keys. */
template <int M_TILES, int KEYS, int WIDTH, bool IS_GENERAL>
static __device__ __forceinline__ void
exponentiate (const Attention &a,
              int key,
              bool is_edge,
              AttentionRowState (&rows)[M_TILES][2],
              float (&scores)[M_TILES][KEYS / 8][4],
              float (&result)[M_TILES][WIDTH / 8][4])
{
  int first_key = key + (int) threadIdx.x % 4 * 2;
  float scale[M_TILES][2];
  bool rises = false;

  if (IS_GENERAL || is_edge)
#pragma unroll
    for (int m = 0; m < M_TILES; m++)
#pragma unroll
      for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
          {
            const AttentionRowState &row = rows[m][i / 2];
            int at = first_key + 8 * n + i % 2;
            bool is_seen = attention_sees (row, at);
            float slope;

            if (IS_GENERAL)
              scores[m][n][i] = attention_finish_score (a, scores[m][n][i], is_seen, row.mask_start, at, &slope);
            else if (!is_seen)
              scores[m][n][i] = -INFINITY;
          }
#pragma unroll
  for (int m = 0; m < M_TILES; m++)
#pragma unroll
    for (int half = 0; half < 2; half++)
      {
        float found = -INFINITY;

#pragma unroll
        for (int n = 0; n < KEYS / 8; n++)
          found = fmaxf (found, fmaxf (scores[m][n][2 * half], scores[m][n][2 * half + 1]));
        found = fmaxf (found, __shfl_xor_sync (EBB_CUDA_ALL_LANES, found, 1));
        found = fmaxf (found, __shfl_xor_sync (EBB_CUDA_ALL_LANES, found, 2));
        scale[m][half] = attention_raise_maximum (&rows[m][half], found * a.factor);
        rises = rises || scale[m][half] != 1.0f;
      }
#pragma unroll
  for (int m = 0; m < M_TILES; m++)
    {
      float shifts[2] = { attention_shift_of (rows[m][0].maximum), attention_shift_of (rows[m][1].maximum) };

#pragma unroll
      for (int n = 0; n < KEYS / 8; n++)
        {
#pragma unroll
          for (int i = 0; i < 4; i++)
            {
              scores[m][n][i] = exp2_fast (fmaf (scores[m][n][i], a.factor, -shifts[i / 2]));
              rows[m][i / 2].sum += scores[m][n][i];
            }
          if (IS_GENERAL && a.drops)
            {
              float keep[4];

              tile_draw_keys (a, rows[m][0].draw_start + key + 8 * n, rows[m][1].draw_start + key + 8 * n, keep);
#pragma unroll
              for (int i = 0; i < 4; i++)
                scores[m][n][i] *= keep[i];
            }
        }
    }
  /* Most tiles raise no maximum: then every factor is 1. */
  if (__ballot_sync (EBB_CUDA_ALL_LANES, rises) != 0)
#pragma unroll
    for (int m = 0; m < M_TILES; m++)
#pragma unroll
      for (int n = 0; n < WIDTH / 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
          result[m][n][i] *= scale[m][i / 2];
}

/* Stores the results of a warp's rows; q: shared memory of those rows, which the results pass through. */
template <int M_TILES, int WIDTH>
static __device__ __forceinline__ void
finish (const Attention &a,
        const AttentionBlock &block,
        int first_row,
        const AttentionRowState (&rows)[M_TILES][2],
        const float (&result)[M_TILES][WIDTH / 8][4],
        guint16 *q)
{
  int lane = threadIdx.x % 32;

#pragma unroll
  for (int m = 0; m < M_TILES; m++)
    {
      float factors[2];

#pragma unroll
      for (int half = 0; half < 2; half++)
        {
          int row = first_row + 16 * m + 8 * half + lane / 4;
          float sum = rows[m][half].sum;

          sum += __shfl_xor_sync (EBB_CUDA_ALL_LANES, sum, 1);
          sum += __shfl_xor_sync (EBB_CUDA_ALL_LANES, sum, 2);
          factors[half] = attention_finish_sum (sum);
          if (lane % 4 == 0)
            attention_store_logsumexp (a, block, row, rows[m][half].maximum, sum);
          if (a.n_splits > 1)
            {
              float *to = attention_partial_row (a, block, row);

#pragma unroll
              for (int n = 0; n < WIDTH / 8; n++)
#pragma unroll
                for (int i = 0; i < 2; i++)
                  if (to && 8 * n + lane % 4 * 2 + i < a.width)
                    to[8 * n + lane % 4 * 2 + i] = result[m][n][2 * half + i];
            }
        }
      tile_put<WIDTH> (q + 16 * m * TILE_PITCH (guint16, WIDTH), result[m], factors[0], factors[1]);
    }
  if (a.n_splits > 1)
    return;
  __syncwarp ();
  tile_store<16 * M_TILES, WIDTH> (q, a.width, a.o.is_aligned, [&] (int row) {
    return attention_query_row<guint16> (a, a.o, block, first_row + row);
  });
}

/* IS_GENERAL: with a mask, a soft cap or dropout */
template <int WIDTH, int M_TILES, int KEYS, bool IS_GENERAL>
static __global__ void __launch_bounds__ (ATTENTION_THREADS)
attend (const Attention a)
{
  constexpr int PITCH = TILE_PITCH (guint16, WIDTH), ROWS = 16 * M_TILES * ATTENTION_WARPS;
  EBB_SHARED (guint16, shared);
  guint16 *q = shared, *k = q + ROWS * PITCH, *v = k + KEYS * PITCH;
  int lane = threadIdx.x % 32, first_row = (int) threadIdx.x / 32 * 16 * M_TILES;
  AttentionBlock block = attention_find_block<ROWS> (a);
  bool has_rows = attention_find_query (a, block, first_row).is_there;
  AttentionRange seen = { a.n_keys, 0, 0, a.n_keys }; /* by the warp's rows */
  AttentionRowState rows[M_TILES][2];
  float result[M_TILES][WIDTH / 8][4] = { 0 }, scores[M_TILES][KEYS / 8][4];
  TileRun keys = tile_find_run (a.k, block.batch, block.key_head, a.n_keys);
  TileRun values = tile_find_run (a.v, block.batch, block.key_head, a.n_keys);

#pragma unroll
  for (int m = 0; m < M_TILES; m++)
#pragma unroll
    for (int half = 0; half < 2; half++)
      {
        rows[m][half] = attention_begin_row (a, block, first_row + 16 * m + 8 * half + lane / 4);
        attention_add_bounds (&seen, rows[m][half].bounds);
      }
  seen = attention_join_ranges (seen);
  tile_load<guint16, ROWS, WIDTH> (q, a.width, a.q.is_aligned,
                                   [&] (int row) { return attention_query_row<const guint16> (a, a.q, block, row); });
  block.range.begin = block.range.begin / KEYS * KEYS;
  if (block.range.begin < block.range.end)
    tile_load_run<guint16, KEYS, WIDTH> (k, a.width, a.k.is_aligned, keys, block.range.begin);
  cp_async_commit ();
#pragma unroll 1
  for (int key = block.range.begin; key < block.range.end; key += KEYS)
    {
      bool sees = key < seen.end && key + KEYS > seen.begin;

      /* The keys are there, and all warps are through with the last values. */
      cp_async_wait<0> ();
      __syncthreads ();
      tile_load_run<guint16, KEYS, WIDTH> (v, a.width, a.v.is_aligned, values, key);
      cp_async_commit ();
      if (sees)
        {
          tile_multiply_transposed<M_TILES, KEYS, WIDTH> (scores, q, first_row, k);
          exponentiate<M_TILES, KEYS, WIDTH, IS_GENERAL> (a, key, key < seen.all_begin || key + KEYS > seen.all_end,
                                                          rows, scores, result);
        }
      cp_async_wait<0> ();
      __syncthreads ();
      if (key + KEYS < block.range.end)
        tile_load_run<guint16, KEYS, WIDTH> (k, a.width, a.k.is_aligned, keys, key + KEYS);
      cp_async_commit ();
      if (sees)
        tile_multiply_add<M_TILES, KEYS, WIDTH> (result, scores, v);
    }
  cp_async_wait<0> ();
  __syncthreads ();
  if (has_rows)
    finish<M_TILES, WIDTH> (a, block, first_row, rows, result, q + first_row * PITCH);
}

template <int WIDTH, int M_TILES, int KEYS, bool IS_GENERAL>
static cudaError_t
launch (Attention *a,
        const EbbCudaQueue *queue)
{
  constexpr int ROWS = 16 * M_TILES * ATTENTION_WARPS;
  constexpr int SIZE = (ROWS + 2 * KEYS) * TILE_PITCH (guint16, WIDTH) * (int) sizeof (guint16);

  return attention_launch_rows (attend<WIDTH, M_TILES, KEYS, IS_GENERAL>, a, ROWS, SIZE, queue);
}

template <int WIDTH, int M_TILES, int KEYS, int GENERAL_KEYS>
static cudaError_t
launch_width (Attention *a,
              const EbbCudaQueue *queue)
{
  bool is_few = a->n_group_heads * a->n_queries <= ATTENTION_FEW_ROWS;

  if (is_few || a->drops || a->softcap > 0.0f || a->mask.kind != ATTENTION_MASK_NONE)
    return launch<WIDTH, 1, GENERAL_KEYS, true> (a, queue);
  return launch<WIDTH, M_TILES, KEYS, false> (a, queue);
}

cudaError_t
ebb_cuda_attention_bf16 (Attention *a,
                         const EbbCudaQueue *queue)
{
  if (a->width <= 32)
    return launch_width<32, 1, 64, 64> (a, queue);
  if (a->width <= 64)
    return launch_width<64, 2, 64, 64> (a, queue);
  if (a->width <= 96)
    return launch_width<96, 2, 64, 64> (a, queue);
  if (a->width <= 128)
    return launch_width<128, 2, 32, 64> (a, queue);
  return launch_width<256, 1, 32, 32> (a, queue);
}
