/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Attention of bf16, backward: a kernel whose blocks own keys, for the gradients of keys and values, and one whose
 * blocks own queries. Both copy the next tile of the other side while they multiply. */
#include "tensor/cuda/kernels/attention-grad.cuh"
#include "tensor/cuda/kernels/attention-mma.cuh"

/* -- keys and values ----------------------------------------------------------------------------------------------- */

/* A tile of queries in shared memory. */
typedef struct
{
  guint16 *q, *d_o;
  float *maximum, *log_sum, *delta;
  int *begin, *end; /* the keys that a query sees */
} QueryTile;

template <int QUERIES, int WIDTH>
static __device__ __forceinline__ QueryTile
get_query_tile (guint16 *shared,
                int stage)
{
  constexpr int SIZE = 2 * QUERIES * TILE_PITCH (guint16, WIDTH) + 10 * QUERIES;
  guint16 *q = shared + stage * SIZE, *d_o = q + QUERIES * TILE_PITCH (guint16, WIDTH);
  float *numbers = (float *) (d_o + QUERIES * TILE_PITCH (guint16, WIDTH));

  return { q,
           d_o,
           numbers,
           numbers + QUERIES,
           numbers + 2 * QUERIES,
           (int *) (numbers + 3 * QUERIES),
           (int *) (numbers + 4 * QUERIES) };
}

static __device__ __forceinline__ void
put_query (const QueryTile &tile,
           int i,
           const AttentionGradQuery &query)
{
  tile.maximum[i] = query.maximum;
  tile.log_sum[i] = query.log_sum;
  tile.delta[i] = query.delta;
  tile.begin[i] = query.bounds.begin;
  tile.end[i] = query.bounds.end;
}

/* Products [keys, queries] become probabilities after dropout, and the derivatives by them those by the products. */
template <int M_TILES, int QUERIES, bool IS_GENERAL>
static __device__ __forceinline__ void
differentiate_keys (const Attention &a,
                    int batch,
                    int head,
                    int first_key,
                    int first_query,
                    bool is_edge,
                    const QueryTile &tile,
                    float (&scores)[M_TILES][QUERIES / 8][4],
                    float (&d_scores)[M_TILES][QUERIES / 8][4])
{
  int lane = threadIdx.x % 32;
  gint64 mask_start = 0;
  guint64 draw_start = 0;

  if (IS_GENERAL)
    {
      mask_start = attention_mask_start (a, batch, head, first_query);
      draw_start = (guint64) attention_row_index (a, batch, head, first_query) * a.n_keys;
    }
#pragma unroll
  for (int n = 0; n < QUERIES / 8; n++)
    {
      int column = 8 * n + lane % 4 * 2;
      float2 maximum = *(const float2 *) (tile.maximum + column), log_sum = *(const float2 *) (tile.log_sum + column);
      float2 delta = *(const float2 *) (tile.delta + column);
      int2 begin = { 0, 0 }, end = { 0, 0 };

      if (IS_GENERAL || is_edge)
        {
          begin = *(const int2 *) (tile.begin + column);
          end = *(const int2 *) (tile.end + column);
        }
      /* A branch of its own, which most tiles skip; else the compiler would emit a select for each score. */
      if (!IS_GENERAL && is_edge)
#pragma unroll
        for (int m = 0; m < M_TILES; m++)
#pragma unroll
          for (int i = 0; i < 4; i++)
            {
              int key = first_key + 16 * m + lane / 4 + i / 2 * 8;

              if (key < (i % 2 ? begin.y : begin.x) || key >= (i % 2 ? end.y : end.x))
                scores[m][n][i] = -INFINITY;
            }
#pragma unroll
      for (int m = 0; m < M_TILES; m++)
        {
          float keep[4] = { 1.0f, 1.0f, 1.0f, 1.0f };

          if (IS_GENERAL && a.drops)
            tile_draw_queries (a, draw_start + (guint64) (8 * n) * a.n_keys + first_key + 16 * m, keep);
#pragma unroll
          for (int i = 0; i < 4; i++)
            {
              int key = first_key + 16 * m + lane / 4 + i / 2 * 8;
              bool is_seen = key >= (i % 2 ? begin.y : begin.x) && key < (i % 2 ? end.y : end.x);
              float *score = &scores[m][n][i], slope = 1.0f;

              if (IS_GENERAL)
                *score = attention_finish_score (a, *score, is_seen, mask_start + (column + i % 2) * a.mask.strides[2],
                                                 key, &slope);
              attention_differentiate (a, i % 2 ? maximum.y : maximum.x, i % 2 ? log_sum.y : log_sum.x,
                                       i % 2 ? delta.y : delta.x, keep[i], slope, score, &d_scores[m][n][i]);
            }
        }
    }
}

template <int WIDTH, int M_TILES>
static __device__ __forceinline__ void
store_keys (const Attention &a,
            const AttentionRows &to,
            int batch,
            int key_head,
            int first_key,
            const float (&result)[M_TILES][WIDTH / 8][4],
            float factor,
            guint16 *shared)
{
  if (!to.data)
    return;
#pragma unroll
  for (int m = 0; m < M_TILES; m++)
    tile_put<WIDTH> (shared + 16 * m * TILE_PITCH (guint16, WIDTH), result[m], factor, factor);
  __syncwarp ();
  tile_store<16 * M_TILES, WIDTH> (shared, a.width, to.is_aligned, [&] (int row) {
    return first_key + row < a.n_keys ? attention_row<guint16> (to, batch, key_head, first_key + row) : NULL;
  });
}

/* HAS_K, HAS_V: which gradients; the registers don't hold both of wide heads. N_STAGES: with 2 the next tile is copied
 * beside the products of this one, with 1 after them, in its place. */
template <int WIDTH, int M_TILES, int QUERIES, int N_STAGES, bool IS_GENERAL, bool HAS_K, bool HAS_V>
static __global__ void __launch_bounds__ (ATTENTION_THREADS)
differentiate_by_keys (const Attention a,
                       int n_tiles)
{
  constexpr int PITCH = TILE_PITCH (guint16, WIDTH), KEYS = 16 * M_TILES * ATTENTION_WARPS;
  EBB_SHARED (guint16, shared);
  guint16 *k = shared, *v = k + KEYS * PITCH, *tiles = v + KEYS * PITCH;
  int key_head = (int) (blockIdx.x / n_tiles % a.n_key_heads), batch = (int) (blockIdx.x / n_tiles / a.n_key_heads);
  int block_key = (int) (blockIdx.x % n_tiles) * KEYS, row = (int) threadIdx.x / 32 * 16 * M_TILES, stage = 0;
  bool has_keys = block_key + row < a.n_keys;
  AttentionQueries queries = attention_find_queries (a, block_key, KEYS);
  AttentionStep step = attention_find_step<QUERIES> (a, batch, queries, block_key, KEYS, { 0, 0 });
  float d_k[HAS_K ? M_TILES : 1][WIDTH / 8][4] = { 0 }, d_v[HAS_V ? M_TILES : 1][WIDTH / 8][4] = { 0 };
  auto load_keys = [&] (guint16 *to, const AttentionRows &from) {
    tile_load_run<guint16, KEYS, WIDTH> (to, a.width, from.is_aligned,
                                         tile_find_run (from, batch, key_head, a.n_keys), block_key);
  };
  auto load_queries = [&] (guint16 *to, const AttentionRows &from, const AttentionStep &at) {
    tile_load_run<guint16, QUERIES, WIDTH> (
        to, a.width, from.is_aligned, tile_find_run (from, batch, key_head * a.n_shared + at.head, a.n_queries),
        at.query);
  };

  load_keys (k, a.k);
  load_keys (v, a.v);
  if (step.head < a.n_shared)
    {
      QueryTile tile = get_query_tile<QUERIES, WIDTH> (tiles, 0);

      load_queries (tile.q, a.q, step);
      load_queries (tile.d_o, a.d_o, step);
      if (threadIdx.x < QUERIES)
        put_query (tile, threadIdx.x,
                   attention_load_grad_query (a, batch, key_head * a.n_shared + step.head,
                                              step.query + (int) threadIdx.x));
    }
  cp_async_commit ();
#pragma unroll 1
  while (step.head < a.n_shared)
    {
      QueryTile tile = get_query_tile<QUERIES, WIDTH> (tiles, stage);
      int next_stage = N_STAGES - 1 - stage;
      QueryTile next_tile = get_query_tile<QUERIES, WIDTH> (tiles, next_stage);
      AttentionStep next = attention_find_step<QUERIES> (a, batch, queries, block_key, KEYS,
                                                         { step.head, step.query + QUERIES });
      AttentionGradQuery next_query;
      bool loads_query = next.head < a.n_shared && threadIdx.x < QUERIES;
      auto load_next = [&] () {
        if (next.head < a.n_shared)
          {
            load_queries (next_tile.q, a.q, next);
            load_queries (next_tile.d_o, a.d_o, next);
          }
        cp_async_commit ();
      };

      /* This tile is there, and all warps are through with the last one, whose place the next one takes. */
      cp_async_wait<0> ();
      __syncthreads ();
      if (N_STAGES == 2)
        load_next ();
      if (loads_query)
        next_query = attention_load_grad_query (a, batch, key_head * a.n_shared + next.head,
                                                next.query + (int) threadIdx.x);
      /* Without starts both ends of what a query sees grow with its position. */
      int last = min (QUERIES, a.n_queries - step.query) - 1, first_key = block_key + row;
      bool sees = a.starts.data || (tile.end[last] > first_key && tile.begin[0] < first_key + 16 * M_TILES);

      if (has_keys && sees)
        {
          float scores[M_TILES][QUERIES / 8][4], d_scores[M_TILES][QUERIES / 8][4] = { 0 };
          bool is_edge = a.starts.data || last < QUERIES - 1 || tile.end[0] < first_key + 16 * M_TILES
                         || tile.begin[QUERIES - 1] > first_key;

          tile_multiply_transposed<M_TILES, QUERIES, WIDTH> (scores, k, row, tile.q);
          if (HAS_K)
            tile_multiply_transposed<M_TILES, QUERIES, WIDTH> (d_scores, v, row, tile.d_o);
          differentiate_keys<M_TILES, QUERIES, IS_GENERAL> (a, batch, key_head * a.n_shared + step.head, first_key,
                                                            step.query, is_edge, tile, scores, d_scores);
          if (HAS_V)
            tile_multiply_add<M_TILES, QUERIES, WIDTH> (d_v, scores, tile.d_o);
          if (HAS_K)
            tile_multiply_add<M_TILES, QUERIES, WIDTH> (d_k, d_scores, tile.q);
        }
      if (N_STAGES == 1)
        {
          __syncthreads ();
          load_next ();
        }
      if (loads_query)
        put_query (next_tile, threadIdx.x, next_query);
      step = next;
      stage = next_stage;
    }
  cp_async_wait<0> ();
  __syncthreads ();
  if (!has_keys)
    return;
  if (HAS_K)
    store_keys<WIDTH, M_TILES> (a, a.d_k, batch, key_head, block_key + row, d_k, a.scale, k + row * PITCH);
  if (HAS_V)
    store_keys<WIDTH, M_TILES> (a, a.d_v, batch, key_head, block_key + row, d_v, 1.0f, v + row * PITCH);
}

/* -- queries ------------------------------------------------------------------------------------------------------- */

/* A lane's row of queries. */
typedef struct
{
  AttentionGradQuery query;
  gint64 mask_start;
  guint64 draw_start;
} QueryRow;

/* As differentiate_keys (), of products [queries, keys]. */
template <int M_TILES, int KEYS, bool IS_GENERAL>
static __device__ __forceinline__ void
differentiate_queries (const Attention &a,
                       int first_key,
                       bool is_edge,
                       const QueryRow (&rows)[M_TILES][2],
                       float (&scores)[M_TILES][KEYS / 8][4],
                       float (&d_scores)[M_TILES][KEYS / 8][4])
{
  int lane_key = first_key + (int) threadIdx.x % 4 * 2;

  if (!IS_GENERAL && is_edge)
#pragma unroll
    for (int m = 0; m < M_TILES; m++)
#pragma unroll
      for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
          {
            const AttentionBounds &bounds = rows[m][i / 2].query.bounds;
            int key = lane_key + 8 * n + i % 2;

            if (key < bounds.begin || key >= bounds.end)
              scores[m][n][i] = -INFINITY;
          }
#pragma unroll
  for (int m = 0; m < M_TILES; m++)
#pragma unroll
    for (int n = 0; n < KEYS / 8; n++)
      {
        float keep[4] = { 1.0f, 1.0f, 1.0f, 1.0f };

        if (IS_GENERAL && a.drops)
          tile_draw_keys (a, rows[m][0].draw_start + first_key + 8 * n, rows[m][1].draw_start + first_key + 8 * n,
                          keep);
#pragma unroll
        for (int i = 0; i < 4; i++)
          {
            const QueryRow &row = rows[m][i / 2];
            const AttentionGradQuery &query = row.query;
            int key = lane_key + 8 * n + i % 2;
            bool is_seen = key >= query.bounds.begin && key < query.bounds.end;
            float *score = &scores[m][n][i], slope = 1.0f;

            if (IS_GENERAL)
              *score = attention_finish_score (a, *score, is_seen, row.mask_start, key, &slope);
            attention_differentiate (a, query.maximum, query.log_sum, query.delta, keep[i], slope, score,
                                     &d_scores[m][n][i]);
          }
      }
}

template <int WIDTH, int M_TILES, int KEYS, int N_STAGES, bool IS_GENERAL>
static __global__ void __launch_bounds__ (ATTENTION_THREADS)
differentiate_by_queries (const Attention a,
                          int n_tiles)
{
  constexpr int PITCH = TILE_PITCH (guint16, WIDTH), QUERIES = 16 * M_TILES * ATTENTION_WARPS;
  EBB_SHARED (guint16, shared);
  guint16 *q = shared, *d_o = q + QUERIES * PITCH, *tiles = d_o + QUERIES * PITCH;
  int head = (int) (blockIdx.x / n_tiles % a.n_heads), batch = (int) (blockIdx.x / n_tiles / a.n_heads);
  int block_query = (n_tiles - 1 - (int) (blockIdx.x % n_tiles)) * QUERIES, stage = 0;
  int first_row = (int) threadIdx.x / 32 * 16 * M_TILES, first_query = block_query + first_row;
  bool has_queries = first_query < a.n_queries;
  AttentionRange range = attention_find_range (a, batch, block_query, min (block_query + QUERIES, a.n_queries) - 1);
  AttentionRange seen = { a.n_keys, 0, 0, a.n_keys }; /* by the warp's queries */
  QueryRow rows[M_TILES][2];
  float d_q[M_TILES][WIDTH / 8][4] = { 0 };
  TileRun keys = tile_find_run (a.k, batch, head / a.n_shared, a.n_keys);
  TileRun values = tile_find_run (a.v, batch, head / a.n_shared, a.n_keys);
  auto load_queries = [&] (guint16 *to, const AttentionRows &from) {
    tile_load_run<guint16, QUERIES, WIDTH> (to, a.width, from.is_aligned,
                                            tile_find_run (from, batch, head, a.n_queries), block_query);
  };
  auto load_keys = [&] (guint16 *tile, int key) {
    tile_load_run<guint16, KEYS, WIDTH> (tile, a.width, a.k.is_aligned, keys, key);
    tile_load_run<guint16, KEYS, WIDTH> (tile + KEYS * PITCH, a.width, a.v.is_aligned, values, key);
  };

  range.begin = range.begin / KEYS * KEYS;
  load_queries (q, a.q);
  load_queries (d_o, a.d_o);
  if (range.begin < range.end)
    load_keys (tiles, range.begin);
  cp_async_commit ();
#pragma unroll
  for (int m = 0; m < M_TILES; m++)
#pragma unroll
    for (int half = 0; half < 2; half++)
      {
        int query = first_query + 16 * m + 8 * half + (int) threadIdx.x % 32 / 4;

        rows[m][half].query = attention_load_grad_query (a, batch, head, query);
        attention_add_bounds (&seen, rows[m][half].query.bounds);
        rows[m][half].mask_start = attention_mask_start (a, batch, head, query);
        rows[m][half].draw_start = (guint64) attention_row_index (a, batch, head, query) * a.n_keys;
      }
  seen = attention_join_ranges (seen);
#pragma unroll 1
  for (int key = range.begin; key < range.end; key += KEYS, stage = N_STAGES - 1 - stage)
    {
      guint16 *k = tiles + stage * 2 * KEYS * PITCH, *v = k + KEYS * PITCH;
      guint16 *next_k = tiles + (N_STAGES - 1 - stage) * 2 * KEYS * PITCH;
      auto load_next = [&] () {
        if (key + KEYS < range.end)
          load_keys (next_k, key + KEYS);
        cp_async_commit ();
      };

      /* This tile is there, and all warps are through with the last one, whose place the next one takes. */
      cp_async_wait<0> ();
      __syncthreads ();
      if (N_STAGES == 2)
        load_next ();
      if (key < seen.end && key + KEYS > seen.begin)
        {
          float scores[M_TILES][KEYS / 8][4], d_scores[M_TILES][KEYS / 8][4];

          tile_multiply_transposed<M_TILES, KEYS, WIDTH> (scores, q, first_row, k);
          tile_multiply_transposed<M_TILES, KEYS, WIDTH> (d_scores, d_o, first_row, v);
          differentiate_queries<M_TILES, KEYS, IS_GENERAL> (
              a, key, key < seen.all_begin || key + KEYS > seen.all_end, rows, scores, d_scores);
          tile_multiply_add<M_TILES, KEYS, WIDTH> (d_q, d_scores, k);
        }
      if (N_STAGES == 1)
        {
          __syncthreads ();
          load_next ();
        }
    }
  cp_async_wait<0> ();
  __syncthreads ();
  if (!has_queries)
    return;
#pragma unroll
  for (int m = 0; m < M_TILES; m++)
    tile_put<WIDTH> (q + (first_row + 16 * m) * PITCH, d_q[m], a.scale, a.scale);
  __syncwarp ();
  tile_store<16 * M_TILES, WIDTH> (q + first_row * PITCH, a.width, a.d_q.is_aligned, [&] (int row) {
    return first_query + row < a.n_queries ? attention_row<guint16> (a.d_q, batch, head, first_query + row) : NULL;
  });
}

/* -- launches ------------------------------------------------------------------------------------------------------ */

template <int WIDTH, int M_TILES, int QUERIES, bool IS_GENERAL, int N_STAGES = 2>
static cudaError_t
launch_by_keys (const Attention *a,
                const EbbCudaQueue *queue)
{
  constexpr int PITCH = TILE_PITCH (guint16, WIDTH), ROWS = 16 * M_TILES * ATTENTION_WARPS;
  constexpr int SIZE = (2 * (ROWS + N_STAGES * QUERIES) * PITCH + N_STAGES * 10 * QUERIES) * (int) sizeof (guint16);
  gint64 n_tiles = ((gint64) a->n_keys + ROWS - 1) / ROWS;

  if constexpr (WIDTH <= 128)
    return attention_launch_tiles (differentiate_by_keys<WIDTH, M_TILES, QUERIES, N_STAGES, IS_GENERAL, true, true>, a,
                                   n_tiles, a->n_key_heads, SIZE, queue);
  else
    {
      cudaError_t error;

      if constexpr (N_STAGES == 2)
        if (!attention_fits (SIZE, queue))
          return launch_by_keys<WIDTH, M_TILES, QUERIES, IS_GENERAL, 1> (a, queue);
      error = attention_launch_tiles (differentiate_by_keys<WIDTH, M_TILES, QUERIES, N_STAGES, IS_GENERAL, true, false>,
                                      a, n_tiles, a->n_key_heads, SIZE, queue);
      if (error != cudaSuccess)
        return error;
      return attention_launch_tiles (differentiate_by_keys<WIDTH, M_TILES, QUERIES, N_STAGES, IS_GENERAL, false, true>,
                                     a, n_tiles, a->n_key_heads, SIZE, queue);
    }
}

template <int WIDTH, int M_TILES, int KEYS, bool IS_GENERAL, int N_STAGES = 2>
static cudaError_t
launch_by_queries (const Attention *a,
                   const EbbCudaQueue *queue)
{
  constexpr int PITCH = TILE_PITCH (guint16, WIDTH), ROWS = 16 * M_TILES * ATTENTION_WARPS;
  constexpr int SIZE = 2 * (ROWS + N_STAGES * KEYS) * PITCH * (int) sizeof (guint16);

  if constexpr (WIDTH > 128 && N_STAGES == 2)
    if (!attention_fits (SIZE, queue))
      return launch_by_queries<WIDTH, M_TILES, KEYS, IS_GENERAL, 1> (a, queue);
  return attention_launch_tiles (differentiate_by_queries<WIDTH, M_TILES, KEYS, N_STAGES, IS_GENERAL>, a,
                                 ((gint64) a->n_queries + ROWS - 1) / ROWS, a->n_heads, SIZE, queue);
}

/* Tiles of 16 x 4 x M_TILES rows against OTHERS of the other side. */
template <int WIDTH, int KEY_M_TILES, int KEY_OTHERS, int QUERY_M_TILES, int QUERY_OTHERS, int GENERAL_OTHERS>
static cudaError_t
launch_width (const Attention *a,
              const EbbCudaQueue *queue)
{
  bool is_general = a->drops || a->softcap > 0.0f || a->mask.kind != ATTENTION_MASK_NONE;
  cudaError_t error = cudaSuccess;

  if (a->d_k.data || a->d_v.data)
    error = is_general ? launch_by_keys<WIDTH, 1, GENERAL_OTHERS, true> (a, queue)
                       : launch_by_keys<WIDTH, KEY_M_TILES, KEY_OTHERS, false> (a, queue);
  if (error != cudaSuccess || !a->d_q.data)
    return error;
  return is_general ? launch_by_queries<WIDTH, 1, GENERAL_OTHERS, true> (a, queue)
                    : launch_by_queries<WIDTH, QUERY_M_TILES, QUERY_OTHERS, false> (a, queue);
}

cudaError_t
ebb_cuda_attention_grad_bf16 (const Attention *a,
                              const EbbCudaQueue *queue)
{
  if (a->width <= 32)
    return launch_width<32, 1, 64, 1, 64, 64> (a, queue);
  if (a->width <= 64)
    return launch_width<64, 2, 32, 2, 32, 32> (a, queue);
  if (a->width <= 96)
    return launch_width<96, 1, 32, 1, 32, 32> (a, queue);
  if (a->width <= 128)
    return launch_width<128, 1, 32, 1, 32, 32> (a, queue);
  return launch_width<256, 1, 16, 1, 16, 16> (a, queue);
}
