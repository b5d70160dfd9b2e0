/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Attention of f32, backward: a kernel whose blocks own keys, for the gradients of keys and values, and one whose
 * blocks own queries. Both have scores [queries, keys], which pass through shared memory to the next product. */
#include "tensor/cuda/kernels/attention-fma.cuh"
#include "tensor/cuda/kernels/attention-grad.cuh"

/* A thread's rows of a tile of queries. */
template <int N_ROWS>
struct QueryRows
{
  AttentionGradQuery queries[N_ROWS];
  gint64 mask_start; /* of the tile's first query, as is the next */
  guint64 draw_start;
};

template <int N_ROWS>
static __device__ __forceinline__ void
load_query_rows (const Attention &a,
                 int batch,
                 int head,
                 int first_query,
                 QueryRows<N_ROWS> *rows)
{
#pragma unroll
  for (int i = 0; i < N_ROWS; i++)
    rows->queries[i] = attention_load_grad_query (a, batch, head, first_query + fma_row<N_ROWS> (i));
  rows->mask_start = attention_mask_start (a, batch, head, first_query);
  rows->draw_start = (guint64) attention_row_index (a, batch, head, first_query) * a.n_keys;
}

/* Products become probabilities after dropout, and the derivatives by them those by the products; both in shared
 * memory, the first unless p is NULL. */
template <int N_ROWS, int KEYS>
static __device__ __forceinline__ void
differentiate (const Attention &a,
               int key,
               const QueryRows<N_ROWS> &rows,
               float (&scores)[N_ROWS][KEYS / 16],
               float (&d_scores)[N_ROWS][KEYS / 16],
               float *p,
               float *d_s)
{
#pragma unroll
  for (int first = 0; first < N_ROWS; first += 4)
#pragma unroll
    for (int j = 0; j < KEYS / 16; j++)
      {
        int at = key + fma_column () + 16 * j;
        float keep[4] = { 1.0f, 1.0f, 1.0f, 1.0f };

        if (a.drops)
          {
            guint64 starts[4];

#pragma unroll
            for (int i = 0; i < 4; i++)
              starts[i] = rows.draw_start + (guint64) fma_row<N_ROWS> (first + i) * a.n_keys + key + 16 * j;
            fma_draw (a, starts, keep);
          }
#pragma unroll
        for (int i = first; i < first + 4; i++)
          {
            const AttentionGradQuery &query = rows.queries[i];
            bool is_seen = at >= query.bounds.begin && at < query.bounds.end;
            float slope;

            scores[i][j] = attention_finish_score (a, scores[i][j], is_seen,
                                                   rows.mask_start + fma_row<N_ROWS> (i) * a.mask.strides[2], at,
                                                   &slope);
            attention_differentiate (a, query.maximum, query.log_sum, query.delta, keep[i - first], slope,
                                     &scores[i][j], &d_scores[i][j]);
          }
      }
  if (p)
    fma_put<N_ROWS, KEYS> (p, scores);
  fma_put<N_ROWS, KEYS> (d_s, d_scores);
}

/* -- keys and values ----------------------------------------------------------------------------------------------- */

template <int N_ROWS, int WIDTH>
static __device__ __forceinline__ void
store_keys (const Attention &a,
            const AttentionRows &to,
            int batch,
            int key_head,
            int first_key,
            const float (&result)[N_ROWS][WIDTH / 16],
            float factor)
{
  if (!to.data)
    return;
#pragma unroll
  for (int i = 0; i < N_ROWS; i++)
    {
      int key = first_key + fma_key_row<N_ROWS> () + i;
      float *row = attention_row<float> (to, batch, key_head, key);

#pragma unroll
      for (int j = 0; j < WIDTH / 16; j++)
        if (key < a.n_keys && fma_column () + 16 * j < a.width)
          row[fma_column () + 16 * j] = result[i][j] * factor;
    }
}

template <int WIDTH, int KEYS, int QUERIES>
static __global__ void __launch_bounds__ (ATTENTION_THREADS)
differentiate_by_keys (const Attention a,
                       int n_tiles)
{
  constexpr int PITCH = TILE_PITCH (float, WIDTH);
  EBB_SHARED (float, shared);
  float *k = shared, *v = k + KEYS * PITCH, *q = v + KEYS * PITCH, *d_o = q + QUERIES * PITCH;
  float *p = d_o + QUERIES * PITCH, *d_s = p + QUERIES * TILE_PITCH (float, KEYS);
  int key_head = (int) (blockIdx.x / n_tiles % a.n_key_heads), batch = (int) (blockIdx.x / n_tiles / a.n_key_heads);
  int key = (int) (blockIdx.x % n_tiles) * KEYS;
  AttentionQueries queries = attention_find_queries (a, key, KEYS);
  AttentionStep step = attention_find_step<QUERIES> (a, batch, queries, key, KEYS, { 0, 0 });
  float d_k[KEYS / 8][WIDTH / 16] = { 0 }, d_v[KEYS / 8][WIDTH / 16] = { 0 };
  auto load_keys = [&] (float *to, const AttentionRows &from) {
    tile_load<float, KEYS, WIDTH> (to, a.width, from.is_aligned, [&] (int i) {
      return key + i < a.n_keys ? attention_row<const float> (from, batch, key_head, key + i) : NULL;
    });
  };
  auto load_queries = [&] (float *to, const AttentionRows &from, int head, int query) {
    tile_load<float, QUERIES, WIDTH> (to, a.width, from.is_aligned, [&] (int i) {
      return query + i < a.n_queries ? attention_row<const float> (from, batch, head, query + i) : NULL;
    });
  };

  load_keys (k, a.k);
  load_keys (v, a.v);
#pragma unroll 1
  for (; step.head < a.n_shared;
       step = attention_find_step<QUERIES> (a, batch, queries, key, KEYS, { step.head, step.query + QUERIES }))
    {
      int head = key_head * a.n_shared + step.head;
      float scores[QUERIES / 8][KEYS / 16], d_scores[QUERIES / 8][KEYS / 16];
      QueryRows<QUERIES / 8> rows;

      load_queries (q, a.q, head, step.query);
      load_queries (d_o, a.d_o, head, step.query);
      cp_async_commit ();
      load_query_rows (a, batch, head, step.query, &rows);
      cp_async_wait<0> ();
      __syncthreads ();
      fma_multiply_transposed<QUERIES / 8, KEYS / 16, WIDTH> (scores, q, k);
      fma_multiply_transposed<QUERIES / 8, KEYS / 16, WIDTH> (d_scores, d_o, v);
      differentiate<QUERIES / 8, KEYS> (a, key, rows, scores, d_scores, p, d_s);
      __syncthreads ();
      fma_multiply_add_left_transposed<KEYS / 8, QUERIES, WIDTH> (d_v, p, d_o);
      fma_multiply_add_left_transposed<KEYS / 8, QUERIES, WIDTH> (d_k, d_s, q);
      __syncthreads ();
    }
  cp_async_wait<0> ();
  store_keys<KEYS / 8, WIDTH> (a, a.d_k, batch, key_head, key, d_k, a.scale);
  store_keys<KEYS / 8, WIDTH> (a, a.d_v, batch, key_head, key, d_v, 1.0f);
}

/* -- queries ------------------------------------------------------------------------------------------------------- */

template <int WIDTH, int QUERIES, int KEYS>
static __global__ void __launch_bounds__ (ATTENTION_THREADS)
differentiate_by_queries (const Attention a,
                          int n_tiles)
{
  constexpr int PITCH = TILE_PITCH (float, WIDTH), N_ROWS = QUERIES / 8;
  EBB_SHARED (float, shared);
  float *q = shared, *d_o = q + QUERIES * PITCH, *k = d_o + QUERIES * PITCH, *v = k + KEYS * PITCH;
  float *d_s = v + KEYS * PITCH;
  int head = (int) (blockIdx.x / n_tiles % a.n_heads), batch = (int) (blockIdx.x / n_tiles / a.n_heads);
  int query = (n_tiles - 1 - (int) (blockIdx.x % n_tiles)) * QUERIES;
  AttentionRange range = attention_find_range (a, batch, query, min (query + QUERIES, a.n_queries) - 1);
  QueryRows<N_ROWS> rows;
  float d_q[N_ROWS][WIDTH / 16] = { 0 };
  auto load_queries = [&] (float *to, const AttentionRows &from) {
    tile_load<float, QUERIES, WIDTH> (to, a.width, from.is_aligned, [&] (int i) {
      return query + i < a.n_queries ? attention_row<const float> (from, batch, head, query + i) : NULL;
    });
  };
  auto load_keys = [&] (float *to, const AttentionRows &from, int key) {
    tile_load<float, KEYS, WIDTH> (to, a.width, from.is_aligned, [&] (int i) {
      return key + i < a.n_keys ? attention_row<const float> (from, batch, head / a.n_shared, key + i) : NULL;
    });
  };

  load_queries (q, a.q);
  load_queries (d_o, a.d_o);
  load_query_rows (a, batch, head, query, &rows);
#pragma unroll 1
  for (int key = range.begin / KEYS * KEYS; key < range.end; key += KEYS)
    {
      float scores[N_ROWS][KEYS / 16], d_scores[N_ROWS][KEYS / 16];

      load_keys (k, a.k, key);
      load_keys (v, a.v, key);
      cp_async_commit ();
      cp_async_wait<0> ();
      __syncthreads ();
      fma_multiply_transposed<N_ROWS, KEYS / 16, WIDTH> (scores, q, k);
      fma_multiply_transposed<N_ROWS, KEYS / 16, WIDTH> (d_scores, d_o, v);
      differentiate<N_ROWS, KEYS> (a, key, rows, scores, d_scores, NULL, d_s);
      /* A row of d_s is read by the half warp that wrote it. */
      __syncwarp ();
      fma_multiply_add<N_ROWS, KEYS, WIDTH> (d_q, d_s, k);
      __syncthreads ();
    }
  cp_async_wait<0> ();
#pragma unroll
  for (int i = 0; i < N_ROWS; i++)
    {
      int at = query + fma_row<N_ROWS> (i);
      float *row = attention_row<float> (a.d_q, batch, head, at);

#pragma unroll
      for (int j = 0; j < WIDTH / 16; j++)
        if (at < a.n_queries && fma_column () + 16 * j < a.width)
          row[fma_column () + 16 * j] = d_q[i][j] * a.scale;
    }
}

/* -- launches ------------------------------------------------------------------------------------------------------ */

/* Blocks own ROWS rows and meet OTHERS rows of the other side at a time. */
template <int WIDTH, int ROWS, int OTHERS>
static cudaError_t
launch_width (const Attention *a,
              const EbbCudaQueue *queue)
{
  constexpr int ALL = 2 * (ROWS + OTHERS) * TILE_PITCH (float, WIDTH);
  constexpr int KEYS_SIZE = (ALL + 2 * OTHERS * TILE_PITCH (float, ROWS)) * (int) sizeof (float);
  constexpr int QUERIES_SIZE = (ALL + ROWS * TILE_PITCH (float, OTHERS)) * (int) sizeof (float);
  cudaError_t error = cudaSuccess;

  if constexpr (WIDTH == 128 && ROWS > 32)
    if (!attention_fits (KEYS_SIZE, queue))
      return launch_width<WIDTH, ROWS / 2, OTHERS> (a, queue);
  if (a->d_k.data || a->d_v.data)
    error = attention_launch_tiles (differentiate_by_keys<WIDTH, ROWS, OTHERS>, a,
                                    ((gint64) a->n_keys + ROWS - 1) / ROWS, a->n_key_heads, KEYS_SIZE, queue);
  if (error != cudaSuccess || !a->d_q.data)
    return error;
  return attention_launch_tiles (differentiate_by_queries<WIDTH, ROWS, OTHERS>, a,
                                 ((gint64) a->n_queries + ROWS - 1) / ROWS, a->n_heads, QUERIES_SIZE, queue);
}

cudaError_t
ebb_cuda_attention_grad_f32 (const Attention *a,
                             const EbbCudaQueue *queue)
{
  if (a->width <= 32)
    return launch_width<32, 64, 32> (a, queue);
  if (a->width <= 64)
    return launch_width<64, 64, 32> (a, queue);
  if (a->width <= 128)
    return launch_width<128, 64, 32> (a, queue);
  return launch_width<256, 32, 32> (a, queue);
}
