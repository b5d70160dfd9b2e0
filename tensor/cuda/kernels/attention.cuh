/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Attention on the device, common parts: the operands of a launch, which keys a query sees, masks, soft caps, dropout.
 *
 * Scores exist for one tile of queries x keys at a time (Dao: FlashAttention-2, 2023). A block of threads owns a tile
 * of results and loops over the other side in order, so that every sum has one order, which shapes alone decide.
 * Backward has a kernel for the gradients of keys and values, whose blocks own keys, and one for those of queries,
 * whose blocks own queries. Each computes the scores again, so no result is added to from two blocks.
 *
 * Expected on a multiprocessor of an H100 (228 KiB of shared memory; on an A100, with 164 KiB, where it differs), by
 * what ptxas says of the kernels without mask, soft cap and dropout; no architecture spills. Not measured.
 *
 *   bf16 forward       width    rows x keys    registers   shared memory   blocks of 4 warps
 *                      up to 32   64 x 64            96        15 KiB          5
 *                      64        128 x 64           230        36 KiB          2
 *                      96        128 x 64           254        52 KiB          2
 *                      128       128 x 32           246        51 KiB          2
 *                      256        64 x 32           248        66 KiB          2
 *   keys and values    64        128 x 32           255        55 KiB          2
 *                      96         64 x 32           209        53 KiB          2
 *                      128        64 x 32           246        69 KiB          2
 *                      256        64 x 16           234       100 KiB          2 (1); a kernel for each gradient
 *   queries            64        128 x 32           236        54 KiB          2
 *                      96         64 x 32           127        52 KiB          4 (3)
 *                      128        64 x 32           158        68 KiB          3 (2)
 *                      256        64 x 16           237        99 KiB          2 (1)
 *   f32 forward        64         64 x 64           254        68 KiB          2
 *                      128        64 x 32           254        75 KiB          2
 *
 * Each warp reads every right operand from shared memory, which gives 128 bytes a cycle. With 16 rows a warp, that
 * limits a multiprocessor to about 2000 operations a cycle, less than its tensor cores do; with 32 rows the limit
 * doubles. So a warp has 32 rows wherever the registers hold their results: not in the gradients of keys and values
 * 128 wide. */

#include "tensor/cuda/kernels/device.cuh"

#include "tensor/cuda/kernels-private.h"

#define ATTENTION_MAX_WIDTH EBB_CUDA_MAX_HEAD_WIDTH
#define ATTENTION_MAX_LENGTH (G_MAXINT32 - 1024)
#define ATTENTION_THREADS 128
#define ATTENTION_WARPS (ATTENTION_THREADS / 32)
#define ATTENTION_LOG2_E 1.4426950408889634f

/* Few rows: the heads that share keys go together, and the keys are split, where no more rows than this share them. */
#define ATTENTION_FEW_ROWS 64
#define ATTENTION_SPLIT_KEYS 512

/* Queries whose range of keys is found at once for backward where there are starts; a multiple of each tile's. */
#define ATTENTION_RANGE_QUERIES 64

/* GPUs for desktops (8.6, 8.9, 12.0) have 99 KiB of shared memory for a block. Wide heads take smaller tiles there, so
 * their sums may have other bits than on other GPUs; a GPU's own never change. */
#define ATTENTION_STATIC_BYTES 64 /* beside the tiles */

static inline bool
attention_fits (int size,
                const EbbCudaQueue *queue)
{
  return size + ATTENTION_STATIC_BYTES <= queue->shared_bytes;
}

/* An operand [batch, head, row, width] whose last stride is 1. The other strides are bytes. */
typedef struct
{
  char *data;
  gint64 batch, head, row;
  bool is_aligned; /* every row begins at a multiple of 16 bytes and has a multiple of 16 bytes */
} AttentionRows;

typedef enum
{
  ATTENTION_MASK_NONE,
  ATTENTION_MASK_BOOL,
  ATTENTION_MASK_F32,
  ATTENTION_MASK_BF16
} AttentionMaskKind;

/* [batch, head, query, key]; strides are elements, 0 where a dimension has the size 1. */
typedef struct
{
  AttentionMaskKind kind;
  const void *data;
  gint64 strides[4];
} AttentionMask;

/* [batch, query] */
typedef struct
{
  const void *data; /* NULL: there are none */
  gint64 strides[2];
  bool is_wide; /* i64, else i32 */
} AttentionStarts;

typedef struct
{
  AttentionRows q, k, v, o;         /* o is forward's result and an operand of backward */
  AttentionRows d_o, d_q, d_k, d_v; /* backward */
  AttentionMask mask;
  AttentionStarts starts;
  float *logsumexp; /* [B, H, T, 2]; forward: NULL if it is not wanted */
  int n_batches, n_heads, n_key_heads, n_shared, n_queries, n_keys, width;
  gint64 first_query, window; /* window: 0 without */
  bool is_causal;
  float scale;
  float mask_scale; /* of a score before its bias is added */
  float factor;     /* of a score after that: then it is an exponent of 2 */
  float softcap, cap_inner, cap_outer;
  float keep_scale; /* 0 if dropout keeps nothing */
  bool drops;
  guint32 threshold;
  guint64 seed, offset;
  /* forward: how rows are dealt to blocks */
  int n_group_heads; /* whose rows go together */
  int n_tiles;       /* of the rows of a group */
  int n_splits, split_keys;
  float *partial_o, *partial_stats; /* [n_splits, B, H, T, width], [n_splits, B, H, T, 2] of more than one split */
  /* backward */
  float *delta; /* [B, H, T]: rowsum (d_o * o) */
  int2 *ranges; /* [B, tiles of ATTENTION_RANGE_QUERIES]: keys that some query sees; or NULL */
} Attention;

template <typename T>
static __device__ __forceinline__ T *
attention_row (const AttentionRows &rows,
               int batch,
               int head,
               gint64 row)
{
  return (T *) (rows.data + batch * rows.batch + head * rows.head + row * rows.row);
}

/* Where a row of [B, H, T] stands among all of them. */
static __device__ __forceinline__ gint64
attention_row_index (const Attention &a,
                     int batch,
                     int head,
                     int query)
{
  return ((gint64) batch * a.n_heads + head) * a.n_queries + query;
}

/* -- which keys a query sees --------------------------------------------------------------------------------------- */

/* The keys [begin, end) that a query sees, mask aside. One that sees nothing begins where it ends. */
typedef struct
{
  int begin, end;
} AttentionBounds;

static __device__ __forceinline__ AttentionBounds
attention_find_bounds (const Attention &a,
                       int batch,
                       int query)
{
  gint64 position = a.first_query + query;
  gint64 end = a.is_causal && position + 1 < a.n_keys ? position + 1 : a.n_keys;
  gint64 begin = a.window > 0 && position - a.window >= 0 ? position - a.window + 1 : 0;

  if (a.starts.data)
    {
      gint64 at = batch * a.starts.strides[0] + query * a.starts.strides[1];
      gint64 start = a.starts.is_wide ? ((const gint64 *) a.starts.data)[at] : ((const gint32 *) a.starts.data)[at];

      begin = start > position ? end : (start > begin ? start : begin);
    }
  return { (int) (begin < end ? begin : end), (int) end };
}

/* Some of the queries see the keys [begin, end); all of them see [all_begin, all_end). */
typedef struct
{
  int begin, end, all_begin, all_end;
} AttentionRange;

/* The keys that queries first to last see. All threads of a block call it, once in a kernel. */
static __device__ __forceinline__ AttentionRange
attention_find_range (const Attention &a,
                      int batch,
                      int first,
                      int last)
{
  if (!a.starts.data)
    {
      AttentionBounds low = attention_find_bounds (a, batch, first), high = attention_find_bounds (a, batch, last);

      /* Both ends of what a query sees grow with its position. */
      return { low.begin, high.end, high.begin, low.end };
    }
  EBB_SHARED_ARRAY (int, range, [4]);

  if (threadIdx.x == 0)
    {
      range[0] = a.n_keys;
      range[1] = range[2] = 0;
      range[3] = a.n_keys;
    }
  __syncthreads ();
  for (int query = first + (int) threadIdx.x; query <= last; query += ATTENTION_THREADS)
    {
      AttentionBounds bounds = attention_find_bounds (a, batch, query);

      if (bounds.begin < bounds.end)
        {
          atomicMin (&range[0], bounds.begin);
          atomicMax (&range[1], bounds.end);
        }
      atomicMax (&range[2], bounds.begin);
      atomicMin (&range[3], bounds.end);
    }
  __syncthreads ();
  return { range[0], range[1], range[2], range[3] };
}

/* Widens a range by what one more query sees. */
static __device__ __forceinline__ void
attention_add_bounds (AttentionRange *range,
                      const AttentionBounds &bounds)
{
  if (bounds.begin < bounds.end)
    {
      range->begin = min (range->begin, bounds.begin);
      range->end = max (range->end, bounds.end);
    }
  range->all_begin = max (range->all_begin, bounds.begin);
  range->all_end = min (range->all_end, bounds.end);
}

/* The range of all lanes' queries from that of each lane's. */
static __device__ __forceinline__ AttentionRange
attention_join_ranges (AttentionRange range)
{
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2)
    {
      range.begin = min (range.begin, __shfl_xor_sync (EBB_CUDA_ALL_LANES, range.begin, distance));
      range.end = max (range.end, __shfl_xor_sync (EBB_CUDA_ALL_LANES, range.end, distance));
      range.all_begin = max (range.all_begin, __shfl_xor_sync (EBB_CUDA_ALL_LANES, range.all_begin, distance));
      range.all_end = min (range.all_end, __shfl_xor_sync (EBB_CUDA_ALL_LANES, range.all_end, distance));
    }
  return range;
}

/* -- scores -------------------------------------------------------------------------------------------------------- */

static __device__ __forceinline__ gint64
attention_mask_start (const Attention &a,
                      int batch,
                      int head,
                      int query)
{
  const gint64 *strides = a.mask.strides;

  return batch * strides[0] + head * strides[1] + query * strides[2];
}

/* The mask's bias of a score. */
static __device__ __forceinline__ float
attention_load_bias (const AttentionMask &mask,
                     gint64 at)
{
  switch (mask.kind)
    {
    case ATTENTION_MASK_F32: return ((const float *) mask.data)[at];
    case ATTENTION_MASK_BF16: return bf16_to_float (((const guint16 *) mask.data)[at]);
    default: return ((const guint8 *) mask.data)[at] ? 0.0f : -INFINITY;
    }
}

/* A product of a query and a key with its soft cap and mask, -inf if the key is hidden. Times a.factor it is an
 * exponent of 2. slope: its derivative by the scaled product. */
static __device__ __forceinline__ float
attention_finish_score (const Attention &a,
                        float product,
                        bool is_seen,
                        gint64 mask_start,
                        int key,
                        float *slope)
{
  *slope = 1.0f;
  if (!is_seen)
    return -INFINITY;
  if (a.softcap > 0.0f)
    {
      float t = tanhf (product * a.cap_inner);

      *slope = 1.0f - t * t;
      product = t * a.cap_outer;
    }
  if (a.mask.kind != ATTENTION_MASK_NONE)
    product = product * a.mask_scale
              + attention_load_bias (a.mask, mask_start + key * a.mask.strides[3]) * ATTENTION_LOG2_E;
  return product;
}

/* The maximum as subtracted from scores: 0 while the row has seen no key, since -inf - -inf is NaN. */
static __device__ __forceinline__ float
attention_shift_of (float maximum)
{
  return maximum == -INFINITY ? 0.0f : maximum;
}

/* -- dropout ------------------------------------------------------------------------------------------------------- */

static __device__ __forceinline__ void
attention_draw_block (const Attention &a,
                      guint64 block,
                      guint32 words[4])
{
  philox_block (a.seed, a.offset + block, words);
}

static __device__ __forceinline__ float
attention_keep (const Attention &a,
                guint32 draw)
{
  return draw >= a.threshold ? a.keep_scale : 0.0f;
}

/* The factor of the draw with that index. */
static __device__ __forceinline__ float
attention_keep_at (const Attention &a,
                   guint64 index)
{
  guint32 words[4], low, high;

  attention_draw_block (a, index / 4, words);
  low = index & 1 ? words[1] : words[0];
  high = index & 1 ? words[3] : words[2];
  return attention_keep (a, index & 2 ? high : low);
}

/* Four lanes, DISTANCE apart, have four words each; then each has those at its own place from all of them. */
template <int DISTANCE>
static __device__ __forceinline__ void
attention_exchange_draws (guint32 words[4])
{
  int place = (int) threadIdx.x % 32 / DISTANCE % 4;
  bool is_odd = place & 1, is_high = place & 2;
  guint32 other[2];

  other[0] = __shfl_xor_sync (EBB_CUDA_ALL_LANES, is_odd ? words[0] : words[1], DISTANCE);
  other[1] = __shfl_xor_sync (EBB_CUDA_ALL_LANES, is_odd ? words[2] : words[3], DISTANCE);
  words[0] = is_odd ? other[0] : words[0];
  words[1] = is_odd ? words[1] : other[0];
  words[2] = is_odd ? other[1] : words[2];
  words[3] = is_odd ? words[3] : other[1];
  other[0] = __shfl_xor_sync (EBB_CUDA_ALL_LANES, is_high ? words[0] : words[2], 2 * DISTANCE);
  other[1] = __shfl_xor_sync (EBB_CUDA_ALL_LANES, is_high ? words[1] : words[3], 2 * DISTANCE);
  words[2] = is_high ? words[2] : other[0];
  words[3] = is_high ? words[3] : other[1];
  words[0] = is_high ? other[0] : words[0];
  words[1] = is_high ? other[1] : words[1];
}

/* -- rows ---------------------------------------------------------------------------------------------------------- */

#define ATTENTION_CHUNK 8 /* columns of a row that a lane has */

/* Columns of a row, 0 from n_there on, if there are as many. */
template <typename T>
static __device__ __forceinline__ void
attention_load_chunk (float values[ATTENTION_CHUNK],
                      const T *from,
                      int n_there,
                      bool is_aligned)
{
  constexpr int SIZE = VectorSize<T>::value;

#pragma unroll
  for (int first = 0; first < ATTENTION_CHUNK; first += SIZE)
    {
      T vector[SIZE];

      if (is_aligned && first < n_there)
        load_vector (from + first, vector);
#pragma unroll
      for (int i = 0; i < SIZE; i++)
        values[first + i] = first + i >= n_there ? 0.0f : (is_aligned ? to_float (vector[i]) : load (from + first + i));
    }
}
