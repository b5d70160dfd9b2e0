/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Tiles of bf16 for attention: products of warps on tensor cores, draws in the order of their fragments, results on
 * their way to memory.
 *
 * A fragment of results [16, 8] gives each lane the rows lane / 4 and lane / 4 + 8 and two columns from
 * 2 (lane % 4) on. Two of them side by side, rounded to bf16, are the left operand [16, 16] of the next product. */

#include "tensor/cuda/kernels/attention-tile.cuh"

/* The rows of a warp from shared memory to where find (row) says, unless that is NULL. */
template <int ROWS, int WIDTH, typename Find>
static __device__ __forceinline__ void
tile_store (const guint16 *shared,
            int width,
            bool is_aligned,
            Find find)
{
  constexpr int CHUNKS = WIDTH / 8;
  int lane = threadIdx.x % 32;

  if (is_aligned)
    {
#pragma unroll 4
      for (int i = lane; i < ROWS * CHUNKS; i += 32)
        {
          int row = i / CHUNKS, column = i % CHUNKS * 8;
          guint16 *to = find (row);

          if (to && column < width)
            *(uint4 *) (to + column) = *(const uint4 *) (shared + row * TILE_PITCH (guint16, WIDTH) + column);
        }
      return;
    }
#pragma unroll 1
  for (int i = lane; i < ROWS * WIDTH; i += 32)
    {
      int row = i / WIDTH, column = i % WIDTH;
      guint16 *to = find (row);

      if (to && column < width)
        to[column] = shared[row * TILE_PITCH (guint16, WIDTH) + column];
    }
}

/* The left operand [16, 16] at that place of a tile. */
template <int WIDTH>
static __device__ __forceinline__ void
tile_load_left (guint32 left[4],
                const guint16 *tile,
                int row,
                int column)
{
  int lane = threadIdx.x % 32;

  ldmatrix_x4 (left, tile + (row + lane % 16) * TILE_PITCH (guint16, WIDTH) + column + lane / 16 * 8);
}

/* The right operands of two fragments, [16, 8] each, whose columns are the tile's rows from row on: the tile is
 * multiplied as if it were transposed. */
template <int WIDTH>
static __device__ __forceinline__ void
tile_load_right_transposed (guint32 right[4],
                            const guint16 *tile,
                            int row,
                            int column)
{
  int lane = threadIdx.x % 32;

  row += lane % 8 + lane / 16 * 8;
  ldmatrix_x4 (right, tile + row * TILE_PITCH (guint16, WIDTH) + column + lane / 8 % 2 * 8);
}

/* The right operands of two fragments, [16, 8] each, whose rows are the tile's from row on. */
template <int WIDTH>
static __device__ __forceinline__ void
tile_load_right (guint32 right[4],
                 const guint16 *tile,
                 int row,
                 int column)
{
  int lane = threadIdx.x % 32;

  ldmatrix_x4_trans (right, tile + (row + lane % 16) * TILE_PITCH (guint16, WIDTH) + column + lane / 16 * 8);
}

/* result [16 M_TILES, COLUMNS] = left [.., WIDTH] right^T: left's rows from left_row on, all rows of right. */
template <int M_TILES, int COLUMNS, int WIDTH>
static __device__ __forceinline__ void
tile_multiply_transposed (float (&result)[M_TILES][COLUMNS / 8][4],
                          const guint16 *left,
                          int left_row,
                          const guint16 *right)
{
#pragma unroll
  for (int m = 0; m < M_TILES; m++)
#pragma unroll
    for (int n = 0; n < COLUMNS / 8; n++)
#pragma unroll
      for (int i = 0; i < 4; i++)
        result[m][n][i] = 0.0f;
#pragma unroll
  for (int inner = 0; inner < WIDTH; inner += 16)
    {
      guint32 a[M_TILES][4];

#pragma unroll
      for (int m = 0; m < M_TILES; m++)
        tile_load_left<WIDTH> (a[m], left, left_row + 16 * m, inner);
#pragma unroll
      for (int n = 0; n < COLUMNS / 8; n += 2)
        {
          guint32 b[4];

          tile_load_right_transposed<WIDTH> (b, right, n * 8, inner);
#pragma unroll
          for (int m = 0; m < M_TILES; m++)
            {
              mma_bf16_16816 (result[m][n], a[m], b);
              mma_bf16_16816 (result[m][n + 1], a[m], b + 2);
            }
        }
    }
}

/* result [16 M_TILES, WIDTH] += left [.., INNER] right [INNER, WIDTH]; left: fragments, which are rounded to bf16. */
template <int M_TILES, int INNER, int WIDTH>
static __device__ __forceinline__ void
tile_multiply_add (float (&result)[M_TILES][WIDTH / 8][4],
                   const float (&left)[M_TILES][INNER / 8][4],
                   const guint16 *right)
{
#pragma unroll
  for (int inner = 0; inner < INNER; inner += 16)
    {
      guint32 a[M_TILES][4];

#pragma unroll
      for (int m = 0; m < M_TILES; m++)
#pragma unroll
        for (int i = 0; i < 4; i++)
          {
            const float *pair = left[m][inner / 8 + i / 2] + i % 2 * 2;

            a[m][i] = pack_bf16 (pair[0], pair[1]);
          }
#pragma unroll
      for (int n = 0; n < WIDTH / 8; n += 2)
        {
          guint32 b[4];

          tile_load_right<WIDTH> (b, right, inner, n * 8);
#pragma unroll
          for (int m = 0; m < M_TILES; m++)
            {
              mma_bf16_16816 (result[m][n], a[m], b);
              mma_bf16_16816 (result[m][n + 1], a[m], b + 2);
            }
        }
    }
}

/* Fragments times factor, rounded, into rows of shared memory that no other warp reads. */
template <int WIDTH>
static __device__ __forceinline__ void
tile_put (guint16 *tile,
          const float (&result)[WIDTH / 8][4],
          float first_factor,
          float second_factor)
{
  int lane = threadIdx.x % 32;
  guint16 *first = tile + lane / 4 * TILE_PITCH (guint16, WIDTH) + lane % 4 * 2;
  guint16 *second = first + 8 * TILE_PITCH (guint16, WIDTH);

#pragma unroll
  for (int n = 0; n < WIDTH / 8; n++)
    {
      *(guint32 *) (first + 8 * n) = pack_bf16 (result[n][0] * first_factor, result[n][1] * first_factor);
      *(guint32 *) (second + 8 * n) = pack_bf16 (result[n][2] * second_factor, result[n][3] * second_factor);
    }
}

/* The factors of dropout for a fragment [16 queries, 8 keys]. first and second: the indices of the draws of the lane's
 * two rows at the fragment's first key. Four lanes share the four blocks of draws that they need, if the rows begin at
 * whole blocks. */
static __device__ __forceinline__ void
tile_draw_keys (const Attention &a,
                guint64 first,
                guint64 second,
                float keep[4])
{
  int quarter = threadIdx.x % 4;
  bool is_odd = quarter & 1;
  guint32 words[4];

  if (a.n_keys % 4 != 0)
    {
#pragma unroll 1
      for (int i = 0; i < 2; i++)
        {
          float low = attention_keep_at (a, (i ? second : first) + 2 * quarter);
          float high = attention_keep_at (a, (i ? second : first) + 2 * quarter + 1);

          keep[0] = i ? keep[0] : low;
          keep[1] = i ? keep[1] : high;
          keep[2] = low;
          keep[3] = high;
        }
      return;
    }
  attention_draw_block (a, (is_odd ? second : first) / 4 + quarter / 2, words);
  guint32 low = __shfl_xor_sync (EBB_CUDA_ALL_LANES, is_odd ? words[0] : words[2], 1);
  guint32 high = __shfl_xor_sync (EBB_CUDA_ALL_LANES, is_odd ? words[1] : words[3], 1);

  keep[0] = attention_keep (a, is_odd ? low : words[0]);
  keep[1] = attention_keep (a, is_odd ? high : words[1]);
  keep[2] = attention_keep (a, is_odd ? words[2] : low);
  keep[3] = attention_keep (a, is_odd ? words[3] : high);
}

/* The factors of dropout for a fragment [16 keys, 8 queries]. first: the index of the draw of the fragment's first
 * query and key. The four lanes whose keys share blocks of draws make one block each. */
static __device__ __forceinline__ void
tile_draw_queries (const Attention &a,
                   guint64 first,
                   float keep[4])
{
  int lane = threadIdx.x % 32, key = lane / 4, query = lane % 4 * 2, place = key % 4;
  guint32 words[4];

  if (a.n_keys % 4 != 0)
    {
#pragma unroll 1
      for (int i = 0; i < 4; i++)
        {
          float value = attention_keep_at (a, first + (guint64) (query + i % 2) * a.n_keys + key + i / 2 * 8);

          keep[0] = i == 0 ? value : keep[0];
          keep[1] = i <= 1 ? value : keep[1];
          keep[2] = i <= 2 ? value : keep[2];
          keep[3] = value;
        }
      return;
    }
  attention_draw_block (a, (first + (guint64) (query + place % 2) * a.n_keys) / 4 + key / 4 + place / 2 * 2, words);
  attention_exchange_draws<4> (words);
#pragma unroll
  for (int i = 0; i < 4; i++)
    keep[i] = attention_keep (a, words[i]);
}
