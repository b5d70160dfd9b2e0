/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Tiles of rows of either dtype, from memory to shared memory. */

#include "tensor/cuda/kernels/attention.cuh"

/* Elements from one row to the next: 16 bytes that nobody uses follow a row, so that eight rows begin in different
 * banks. */
#define TILE_PITCH(type, width) ((width) + 16 / (int) sizeof (type))

/* Rows of at most WIDTH elements into shared memory, by all threads of a block, up to the next wait for copies. find
 * (row) is where a row lies, NULL for one that does not exist; that and the columns from width on become 0. */
template <typename T, int ROWS, int WIDTH, typename Find>
static __device__ __forceinline__ void
tile_load (T *shared,
           int width,
           bool is_aligned,
           Find find)
{
  constexpr int CHUNK = 16 / (int) sizeof (T), CHUNKS = WIDTH / CHUNK, ALL = ROWS * CHUNKS;

  if (is_aligned)
    {
#pragma unroll
      for (int first = 0; first < ALL; first += ATTENTION_THREADS)
        {
          int i = first + (int) threadIdx.x, row = i / CHUNKS, column = i % CHUNKS * CHUNK;

          if (ALL % ATTENTION_THREADS != 0 && i >= ALL)
            continue;
          const T *from = find (row);
          T *to = shared + row * TILE_PITCH (T, WIDTH) + column;

          bool is_there = from && column < width;

          cp_async_16 (to, is_there ? from + column : NULL, is_there);
        }
      return;
    }
#pragma unroll 1
  for (int i = threadIdx.x; i < ROWS * WIDTH; i += ATTENTION_THREADS)
    {
      int row = i / WIDTH, column = i % WIDTH;
      const T *from = find (row);

      shared[row * TILE_PITCH (T, WIDTH) + column] = from && column < width ? from[column] : (T) 0;
    }
}

/* Rows one after another in memory: the first, the bytes from one to the next, how many there are. */
typedef struct
{
  const char *data;
  gint64 stride;
  int n_rows;
} TileRun;

static __device__ __forceinline__ TileRun
tile_find_run (const AttentionRows &rows,
               int batch,
               int head,
               int n_rows)
{
  return { rows.data + batch * rows.batch + head * rows.head, rows.row, n_rows };
}

/* As tile_load (), of a run's rows from first_row on. A thread's chunks lie below each other, so it steps from one to
 * the next by an addition: products of 64 bits for each chunk would take as long as those of the tile. */
template <typename T, int ROWS, int WIDTH>
static __device__ __forceinline__ void
tile_load_run (T *shared,
               int width,
               bool is_aligned,
               const TileRun &run,
               int first_row)
{
  constexpr int CHUNK = 16 / (int) sizeof (T), CHUNKS = WIDTH / CHUNK, STEP = ATTENTION_THREADS / CHUNKS;

  if (ATTENTION_THREADS % CHUNKS != 0 || ROWS % STEP != 0 || !is_aligned)
    {
      tile_load<T, ROWS, WIDTH> (shared, width, is_aligned, [&] (int row) {
        return first_row + row < run.n_rows ? (const T *) (run.data + (first_row + row) * run.stride) : NULL;
      });
      return;
    }
  int row = (int) threadIdx.x / CHUNKS, column = (int) threadIdx.x % CHUNKS * CHUNK;
  int n_rows = column < width ? run.n_rows - first_row - row : 0; /* of this thread */
  const char *from = run.data + (first_row + row) * run.stride + column * (int) sizeof (T);

  shared += row * TILE_PITCH (T, WIDTH) + column;
#pragma unroll
  for (int i = 0; i < ROWS; i += STEP, from += STEP * run.stride)
    cp_async_16 (shared + i * TILE_PITCH (T, WIDTH), from, i < n_rows);
}
