/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Tiles of f32 for attention: products by fused multiply-adds.
 *
 * Half a warp shares ROWS / 8 rows of a tile of scores [queries, keys], every second one of the warp's, and each of its
 * lanes has every 16th column. */

#include "tensor/cuda/kernels/attention-tile.cuh"

static __device__ __forceinline__ int
fma_column (void)
{
  return (int) threadIdx.x % 16;
}

/* A thread's row i of n. */
template <int N_ROWS>
static __device__ __forceinline__ int
fma_row (int i)
{
  return (int) threadIdx.x / 32 * 2 * N_ROWS + (int) threadIdx.x % 32 / 16 + 2 * i;
}

/* result = left [.., WIDTH] right^T [WIDTH, ..]: a thread's rows of left and columns of right, which are its rows. */
template <int N_ROWS, int N_COLUMNS, int WIDTH>
static __device__ __forceinline__ void
fma_multiply_transposed (float (&result)[N_ROWS][N_COLUMNS],
                         const float *left,
                         const float *right)
{
  constexpr int PITCH = TILE_PITCH (float, WIDTH);

#pragma unroll
  for (int i = 0; i < N_ROWS; i++)
#pragma unroll
    for (int j = 0; j < N_COLUMNS; j++)
      result[i][j] = 0.0f;
#pragma unroll 1
  for (int inner = 0; inner < WIDTH; inner += 4)
    {
      float4 b[N_COLUMNS];

#pragma unroll
      for (int j = 0; j < N_COLUMNS; j++)
        b[j] = *(const float4 *) (right + (fma_column () + 16 * j) * PITCH + inner);
#pragma unroll
      for (int i = 0; i < N_ROWS; i++)
        {
          float4 a = *(const float4 *) (left + fma_row<N_ROWS> (i) * PITCH + inner);

#pragma unroll
          for (int j = 0; j < N_COLUMNS; j++)
            {
              result[i][j] = fmaf (a.x, b[j].x, result[i][j]);
              result[i][j] = fmaf (a.y, b[j].y, result[i][j]);
              result[i][j] = fmaf (a.z, b[j].z, result[i][j]);
              result[i][j] = fmaf (a.w, b[j].w, result[i][j]);
            }
        }
    }
}

/* Scores or probabilities into shared memory [queries, COLUMNS]. */
template <int N_ROWS, int COLUMNS>
static __device__ __forceinline__ void
fma_put (float *tile,
         const float (&values)[N_ROWS][COLUMNS / 16])
{
#pragma unroll
  for (int i = 0; i < N_ROWS; i++)
#pragma unroll
    for (int j = 0; j < COLUMNS / 16; j++)
      tile[fma_row<N_ROWS> (i) * TILE_PITCH (float, COLUMNS) + fma_column () + 16 * j] = values[i][j];
}

/* result += left [.., INNER] right [INNER, WIDTH]: a thread's rows of left, every 16th column. */
template <int N_ROWS, int INNER, int WIDTH>
static __device__ __forceinline__ void
fma_multiply_add (float (&result)[N_ROWS][WIDTH / 16],
                  const float *left,
                  const float *right)
{
#pragma unroll 1
  for (int inner = 0; inner < INNER; inner += 4)
    {
      float4 a[N_ROWS];

#pragma unroll
      for (int i = 0; i < N_ROWS; i++)
        a[i] = *(const float4 *) (left + fma_row<N_ROWS> (i) * TILE_PITCH (float, INNER) + inner);
#pragma unroll
      for (int k = 0; k < 4; k++)
#pragma unroll
        for (int j = 0; j < WIDTH / 16; j++)
          {
            float b = right[(inner + k) * TILE_PITCH (float, WIDTH) + fma_column () + 16 * j];

#pragma unroll
            for (int i = 0; i < N_ROWS; i++)
              result[i][j] = fmaf (k == 0   ? a[i].x
                                   : k == 1 ? a[i].y
                                   : k == 2 ? a[i].z
                                            : a[i].w,
                                   b, result[i][j]);
          }
    }
}

/* result += left^T [.., INNER] right [INNER, WIDTH], left [INNER, 8 N_ROWS]: the rows of the result are columns of
 * left, N_ROWS side by side of each thread from fma_key_row () on. */
template <int N_ROWS>
static __device__ __forceinline__ int
fma_key_row (void)
{
  return (int) threadIdx.x / 16 * N_ROWS;
}

template <int N_ROWS, int INNER, int WIDTH>
static __device__ __forceinline__ void
fma_multiply_add_left_transposed (float (&result)[N_ROWS][WIDTH / 16],
                                  const float *left,
                                  const float *right)
{
#pragma unroll 1
  for (int inner = 0; inner < INNER; inner++)
    {
      float a[N_ROWS];

#pragma unroll
      for (int i = 0; i < N_ROWS; i += 4)
        *(float4 *) (a + i) =
            *(const float4 *) (left + inner * TILE_PITCH (float, 8 * N_ROWS) + fma_key_row<N_ROWS> () + i);
#pragma unroll
      for (int j = 0; j < WIDTH / 16; j++)
        {
          float b = right[inner * TILE_PITCH (float, WIDTH) + fma_column () + 16 * j];

#pragma unroll
          for (int i = 0; i < N_ROWS; i++)
            result[i][j] = fmaf (a[i], b, result[i][j]);
        }
    }
}

/* The factors of dropout for a column of four of a thread's rows; starts: the indices of these rows' draws at the
 * column of lane 0. Four lanes share the blocks of draws of the four rows, if these begin at whole blocks. */
static __device__ __forceinline__ void
fma_draw (const Attention &a,
          const guint64 (&starts)[4],
          float (&keep)[4])
{
  int column = fma_column (), place = column % 4;
  guint32 words[4];

  if (a.n_keys % 4 != 0)
    {
#pragma unroll
      for (int i = 0; i < 4; i++)
        keep[i] = attention_keep_at (a, starts[i] + column);
      return;
    }
  attention_draw_block (a,
                        (place & 2 ? (place & 1 ? starts[3] : starts[2]) : (place & 1 ? starts[1] : starts[0])) / 4
                            + column / 4,
                        words);
  attention_exchange_draws<1> (words);
#pragma unroll
  for (int i = 0; i < 4; i++)
    keep[i] = attention_keep (a, words[i]);
}
