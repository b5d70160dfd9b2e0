/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Attention of f32, forward: half a warp multiplies its rows of queries with all keys of a tile. Keys are copied while
 * values are multiplied, and values while keys are. */
#include "tensor/cuda/kernels/attention-fma.cuh"
#include "tensor/cuda/kernels/attention-forward.cuh"

/* Scores become powers of 2, after dropout if there is any; result is scaled as the maxima rise. */
template <int N_ROWS, int N_COLUMNS, int WIDTH>
static __device__ __forceinline__ void
exponentiate (const Attention &a,
              int key,
              AttentionRowState (&rows)[N_ROWS],
              float (&scores)[N_ROWS][N_COLUMNS],
              float (&result)[N_ROWS][WIDTH / 16])
{
#pragma unroll
  for (int i = 0; i < N_ROWS; i++)
    {
      float found = -INFINITY, shift, scale;

#pragma unroll
      for (int j = 0; j < N_COLUMNS; j++)
        {
          int at = key + fma_column () + 16 * j;
          float slope;

          scores[i][j] = attention_finish_score (a, scores[i][j], attention_sees (rows[i], at), rows[i].mask_start, at,
                                                 &slope);
          found = fmaxf (found, scores[i][j]);
        }
#pragma unroll
      for (int distance = 8; distance > 0; distance /= 2)
        found = fmaxf (found, __shfl_xor_sync (EBB_CUDA_ALL_LANES, found, distance));
      scale = attention_raise_maximum (&rows[i], found * a.factor);
      shift = attention_shift_of (rows[i].maximum);
#pragma unroll
      for (int j = 0; j < N_COLUMNS; j++)
        {
          scores[i][j] = exp2_fast (fmaf (scores[i][j], a.factor, -shift));
          rows[i].sum += scores[i][j];
        }
#pragma unroll
      for (int j = 0; j < WIDTH / 16; j++)
        result[i][j] *= scale;
    }
  if (a.drops)
#pragma unroll
    for (int first = 0; first < N_ROWS; first += 4)
#pragma unroll
      for (int j = 0; j < N_COLUMNS; j++)
        {
          guint64 starts[4];
          float keep[4];

#pragma unroll
          for (int i = 0; i < 4; i++)
            starts[i] = rows[first + i].draw_start + key + 16 * j;
          fma_draw (a, starts, keep);
#pragma unroll
          for (int i = 0; i < 4; i++)
            scores[first + i][j] *= keep[i];
        }
}

template <int WIDTH, int ROWS, int KEYS>
static __global__ void __launch_bounds__ (ATTENTION_THREADS)
attend (const Attention a)
{
  constexpr int PITCH = TILE_PITCH (float, WIDTH), N_ROWS = ROWS / 8;
  EBB_SHARED (float, shared);
  float *q = shared, *k = q + ROWS * PITCH, *v = k + KEYS * PITCH, *p = v + KEYS * PITCH;
  AttentionBlock block = attention_find_block<ROWS> (a);
  bool has_rows = attention_find_query (a, block, (int) threadIdx.x / 32 * 2 * N_ROWS).is_there;
  AttentionRowState rows[N_ROWS];
  float result[N_ROWS][WIDTH / 16] = { 0 };
  auto load_keys = [&] (float *to, const AttentionRows &from, int key) {
    tile_load<float, KEYS, WIDTH> (to, a.width, from.is_aligned, [&] (int row) {
      return key + row < a.n_keys ? attention_row<const float> (from, block.batch, block.key_head, key + row) : NULL;
    });
  };

#pragma unroll
  for (int i = 0; i < N_ROWS; i++)
    rows[i] = attention_begin_row (a, block, fma_row<N_ROWS> (i));
  tile_load<float, ROWS, WIDTH> (q, a.width, a.q.is_aligned,
                                 [&] (int row) { return attention_query_row<const float> (a, a.q, block, row); });
  block.range.begin = block.range.begin / KEYS * KEYS;
  if (block.range.begin < block.range.end)
    load_keys (k, a.k, block.range.begin);
  cp_async_commit ();
#pragma unroll 1
  for (int key = block.range.begin; key < block.range.end; key += KEYS)
    {
      /* The keys are there, and all warps are through with the last values. */
      cp_async_wait<0> ();
      __syncthreads ();
      load_keys (v, a.v, key);
      cp_async_commit ();
      if (has_rows)
        {
          float scores[N_ROWS][KEYS / 16];

          fma_multiply_transposed<N_ROWS, KEYS / 16, WIDTH> (scores, q, k);
          exponentiate<N_ROWS, KEYS / 16, WIDTH> (a, key, rows, scores, result);
          fma_put<N_ROWS, KEYS> (p, scores);
        }
      cp_async_wait<0> ();
      __syncthreads ();
      if (key + KEYS < block.range.end)
        load_keys (k, a.k, key + KEYS);
      cp_async_commit ();
      if (has_rows)
        fma_multiply_add<N_ROWS, KEYS, WIDTH> (result, p, v);
    }
  cp_async_wait<0> ();
  if (!has_rows)
    return;
#pragma unroll
  for (int i = 0; i < N_ROWS; i++)
    {
      int row = fma_row<N_ROWS> (i);
      float sum = rows[i].sum, factor = 1.0f, *to;

#pragma unroll
      for (int distance = 8; distance > 0; distance /= 2)
        sum += __shfl_xor_sync (EBB_CUDA_ALL_LANES, sum, distance);
      if (fma_column () == 0)
        attention_store_logsumexp (a, block, row, rows[i].maximum, sum);
      if (a.n_splits > 1)
        to = attention_partial_row (a, block, row);
      else
        {
          to = attention_query_row<float> (a, a.o, block, row);
          factor = attention_finish_sum (sum);
        }
#pragma unroll
      for (int j = 0; j < WIDTH / 16; j++)
        if (to && fma_column () + 16 * j < a.width)
          to[fma_column () + 16 * j] = result[i][j] * factor;
    }
}

template <int WIDTH, int ROWS, int KEYS>
static cudaError_t
launch (Attention *a,
        const EbbCudaQueue *queue)
{
  constexpr int SIZE =
      ((ROWS + 2 * KEYS) * TILE_PITCH (float, WIDTH) + ROWS * TILE_PITCH (float, KEYS)) * (int) sizeof (float);

  if constexpr (WIDTH > 128 && KEYS > 16)
    if (!attention_fits (SIZE, queue))
      return launch<WIDTH, ROWS, KEYS / 2> (a, queue);
  return attention_launch_rows (attend<WIDTH, ROWS, KEYS>, a, ROWS, SIZE, queue);
}

cudaError_t
ebb_cuda_attention_f32 (Attention *a,
                        const EbbCudaQueue *queue)
{
  if (a->width <= 32)
    return launch<32, 64, 64> (a, queue);
  if (a->width <= 64)
    return launch<64, 64, 64> (a, queue);
  if (a->width <= 128)
    return launch<128, 64, 32> (a, queue);
  return launch<256, 32, 32> (a, queue);
}
