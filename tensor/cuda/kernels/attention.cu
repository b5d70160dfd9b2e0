/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* The launches of attention and its gradient: their operands, their workspace, the kernels that bf16 and
 * f32 share. */
#include "tensor/cuda/kernels/attention-forward.cuh"
#include "tensor/cuda/kernels/attention-grad.cuh"

#include <math.h>

/* -- what a launch says -------------------------------------------------------------------------------------------- */

static const EbbView *
get_input (const EbbLaunch *launch,
           guint index)
{
  return index < launch->n_inputs ? launch->inputs[index] : NULL;
}

static gint64
get_element_size (EbbDType dtype)
{
  return dtype == EBB_DTYPE_BF16 ? 2 : 4;
}

static AttentionRows
describe_rows (const EbbView *view)
{
  gint64 size = view ? get_element_size (view->dtype) : 0;
  AttentionRows rows = {};

  if (!view)
    return rows;
  rows.data = (char *) view->data;
  rows.batch = view->strides[0] * size;
  rows.head = view->strides[1] * size;
  rows.row = view->strides[2] * size;
  rows.is_aligned = (gsize) rows.data % 16 == 0 && view->shape[3] * size % 16 == 0;
  for (int dim = 0; dim < 3; dim++)
    if (view->shape[dim] > 1 && view->strides[dim] * size % 16 != 0)
      rows.is_aligned = false;
  return rows;
}

static AttentionMask
describe_mask (const EbbView *view)
{
  AttentionMask mask = {};

  if (!view)
    return mask;
  mask.kind = view->dtype == EBB_DTYPE_F32    ? ATTENTION_MASK_F32
              : view->dtype == EBB_DTYPE_BF16 ? ATTENTION_MASK_BF16
                                              : ATTENTION_MASK_BOOL;
  mask.data = view->data;
  for (int dim = 0; dim < 4; dim++)
    mask.strides[dim] = view->shape[dim] == 1 ? 0 : view->strides[dim];
  return mask;
}

static AttentionStarts
describe_starts (const EbbView *view)
{
  AttentionStarts starts = {};

  if (!view)
    return starts;
  starts.data = view->data;
  for (int dim = 0; dim < 2; dim++)
    starts.strides[dim] = view->shape[dim] == 1 ? 0 : view->strides[dim];
  starts.is_wide = view->dtype == EBB_DTYPE_I64;
  return starts;
}

/* Returns FALSE for sizes and dtypes that the kernels don't have. */
static bool
describe (Attention *a,
          const EbbLaunch *launch,
          guint first,
          guint mask)
{
  const EbbView *q = launch->inputs[first], *k = launch->inputs[first + 1], *v = launch->inputs[first + 2];
  double scale = launch->params.attention.scale, p = launch->params.attention.p;
  double threshold = ceil (p * 4294967296.0);

  *a = {};
  a->q = describe_rows (q);
  a->k = describe_rows (k);
  a->v = describe_rows (v);
  a->mask = describe_mask (get_input (launch, mask));
  a->starts = describe_starts (get_input (launch, mask + 1));
  if ((q->dtype != EBB_DTYPE_F32 && q->dtype != EBB_DTYPE_BF16) || k->dtype != q->dtype || v->dtype != q->dtype
      || q->shape[3] > ATTENTION_MAX_WIDTH)
    return false;
  for (int dim = 0; dim < 3; dim++)
    if (q->shape[dim] > ATTENTION_MAX_LENGTH || k->shape[dim] > ATTENTION_MAX_LENGTH)
      return false;
  if (q->shape[1] * q->shape[2] > G_MAXINT32)
    return false;
  a->n_batches = (int) q->shape[0];
  a->n_heads = (int) q->shape[1];
  a->n_queries = (int) q->shape[2];
  a->width = (int) q->shape[3];
  a->n_key_heads = (int) k->shape[1];
  a->n_keys = (int) k->shape[2];
  a->n_shared = a->n_key_heads > 0 ? a->n_heads / a->n_key_heads : 1;
  a->first_query = launch->params.attention.first_query;
  a->window = launch->params.attention.window;
  a->is_causal = launch->params.attention.causal;
  a->scale = (float) scale;
  a->softcap = (float) launch->params.attention.softcap;
  a->mask_scale = a->softcap > 0.0f ? 1.0f : (float) (scale / G_LN2);
  a->factor = a->mask.kind != ATTENTION_MASK_NONE ? 1.0f : a->mask_scale;
  a->cap_inner = a->softcap > 0.0f ? a->scale / a->softcap : 0.0f;
  a->cap_outer = a->softcap * (float) (1.0 / G_LN2);
  a->drops = p > 0.0;
  a->keep_scale = p < 1.0 ? (float) (1.0 / (1.0 - p)) : 0.0f;
  a->threshold = threshold >= 4294967295.0 ? G_MAXUINT32 : (guint32) threshold;
  a->seed = launch->params.attention.philox.seed;
  a->offset = launch->params.attention.philox.offset;
  return true;
}

static gint64
count_rows (const Attention *a)
{
  return (gint64) a->n_batches * a->n_heads * a->n_queries;
}

/* -- forward ------------------------------------------------------------------------------------------------------- */

/* Joins the results of the splits of keys, in order: a warp for each row. */
template <typename T>
static __global__ void __launch_bounds__ (ATTENTION_THREADS)
join_splits (const Attention a,
             gint64 n_rows)
{
  gint64 row = (gint64) blockIdx.x * ATTENTION_WARPS + threadIdx.x / 32;
  const float *stats = a.partial_stats + 2 * row, *partial = a.partial_o + row * a.width;
  float maximum = -INFINITY, sum = 0.0f, shift, factor;
  int query = (int) (row % a.n_queries), head = (int) (row / a.n_queries % a.n_heads), lane = threadIdx.x % 32;
  T *o;

  if (row >= n_rows)
    return;
  o = attention_row<T> (a.o, (int) (row / a.n_queries / a.n_heads), head, query);
  for (int split = 0; split < a.n_splits; split++)
    maximum = fmaxf (maximum, stats[2 * split * n_rows]);
  shift = attention_shift_of (maximum);
  for (int split = 0; split < a.n_splits; split++)
    sum += stats[2 * split * n_rows + 1] * exp2_fast (stats[2 * split * n_rows] - shift);
  factor = attention_finish_sum (sum);
  for (int column = lane; column < a.width; column += 32)
    {
      float result = 0.0f;

      for (int split = 0; split < a.n_splits; split++)
        result += partial[split * n_rows * a.width + column] * exp2_fast (stats[2 * split * n_rows] - shift);
      store (o + column, result * factor);
    }
  if (lane == 0 && a.logsumexp)
    {
      a.logsumexp[2 * row] = maximum;
      a.logsumexp[2 * row + 1] = sum == 0.0f ? 0.0f : log2f (sum);
    }
}

static bool
plan_forward (Attention *a,
              const EbbLaunch *launch)
{
  gint64 n_shared_rows;

  if (!describe (a, launch, 0, 3))
    return false;
  n_shared_rows = (gint64) a->n_shared * a->n_queries;
  a->n_group_heads = n_shared_rows <= ATTENTION_FEW_ROWS ? a->n_shared : 1;
  a->split_keys = ATTENTION_SPLIT_KEYS;
  a->n_splits = 1;
  if (n_shared_rows <= ATTENTION_FEW_ROWS && a->n_keys > a->split_keys)
    a->n_splits = (a->n_keys + a->split_keys - 1) / a->split_keys;
  /* The second dimension of a grid ends there. */
  while (a->n_splits > G_MAXUINT16)
    {
      a->split_keys *= 2;
      a->n_splits = (a->n_keys + a->split_keys - 1) / a->split_keys;
    }
  return true;
}

EBB_CUDA_WORKSPACE (attention)
{
  Attention a;

  if (!plan_forward (&a, launch) || a.n_splits == 1)
    return 0;
  return (gsize) a.n_splits * count_rows (&a) * (a.width + 2) * sizeof (float);
}

EBB_CUDA_KERNEL (attention)
{
  Attention a;
  cudaError_t error;
  gint64 n_rows;
  dim3 grid;

  if (!plan_forward (&a, launch))
    return cudaErrorNotSupported;
  n_rows = count_rows (&a);
  if (n_rows == 0)
    return cudaSuccess;
  a.o = describe_rows (launch->outputs[0]);
  if (launch->outputs[0]->dtype != launch->inputs[0]->dtype)
    return cudaErrorNotSupported;
  a.logsumexp = launch->outputs[1] ? (float *) launch->outputs[1]->data : NULL;
  if (a.n_splits > 1)
    {
      a.partial_stats = (float *) launch->workspace;
      a.partial_o = a.partial_stats + a.n_splits * n_rows * 2;
    }
  error = launch->inputs[0]->dtype == EBB_DTYPE_BF16 ? ebb_cuda_attention_bf16 (&a, queue)
                                                     : ebb_cuda_attention_f32 (&a, queue);
  if (error != cudaSuccess || a.n_splits == 1)
    return error;
  grid = dim3 ((unsigned) ((n_rows + ATTENTION_WARPS - 1) / ATTENTION_WARPS));
  if (launch->inputs[0]->dtype == EBB_DTYPE_BF16)
    return EBB_CUDA_LAUNCH (join_splits<Bf16>, grid, dim3 (ATTENTION_THREADS), 0, queue->stream, a, n_rows);
  return EBB_CUDA_LAUNCH (join_splits<float>, grid, dim3 (ATTENTION_THREADS), 0, queue->stream, a, n_rows);
}

/* -- backward ------------------------------------------------------------------------------------------------------ */

/* delta = rowsum (d_o * o): n_lanes, a power of two, for each row. */
template <typename T>
static __global__ void __launch_bounds__ (ATTENTION_THREADS)
sum_products (const Attention a,
              gint64 n_rows,
              int n_lanes)
{
  gint64 row = ((gint64) blockIdx.x * ATTENTION_THREADS + threadIdx.x) / n_lanes;
  int first = (int) threadIdx.x % n_lanes * ATTENTION_CHUNK;
  float sum = 0.0f;

  if (row < n_rows)
    {
      int query = (int) (row % a.n_queries), head = (int) (row / a.n_queries % a.n_heads);
      int batch = (int) (row / a.n_queries / a.n_heads);
      const T *o = attention_row<const T> (a.o, batch, head, query) + first;
      const T *d_o = attention_row<const T> (a.d_o, batch, head, query) + first;
      float x[ATTENTION_CHUNK], y[ATTENTION_CHUNK];

      attention_load_chunk (x, o, a.width - first, a.o.is_aligned);
      attention_load_chunk (y, d_o, a.width - first, a.d_o.is_aligned);
#pragma unroll
      for (int i = 0; i < ATTENTION_CHUNK; i++)
        sum = fmaf (x[i], y[i], sum);
    }
  for (int distance = n_lanes / 2; distance > 0; distance /= 2)
    sum += __shfl_xor_sync (EBB_CUDA_ALL_LANES, sum, distance);
  if (row < n_rows && first == 0)
    a.delta[row] = sum;
}

/* The keys that some query of each tile sees: a warp for each tile. */
static __global__ void __launch_bounds__ (ATTENTION_THREADS)
find_ranges (const Attention a,
             int n_tiles,
             gint64 n_all)
{
  gint64 tile = (gint64) blockIdx.x * ATTENTION_WARPS + threadIdx.x / 32;
  int batch = (int) (tile / n_tiles), first = (int) (tile % n_tiles) * ATTENTION_RANGE_QUERIES, lane = threadIdx.x % 32;
  int begin = a.n_keys, end = 0;

  if (tile >= n_all)
    return;
  for (int query = first + lane; query < min (first + ATTENTION_RANGE_QUERIES, a.n_queries); query += 32)
    {
      AttentionBounds bounds = attention_find_bounds (a, batch, query);

      if (bounds.begin < bounds.end)
        {
          begin = min (begin, bounds.begin);
          end = max (end, bounds.end);
        }
    }
  for (int distance = 16; distance > 0; distance /= 2)
    {
      begin = min (begin, __shfl_xor_sync (EBB_CUDA_ALL_LANES, begin, distance));
      end = max (end, __shfl_xor_sync (EBB_CUDA_ALL_LANES, end, distance));
    }
  if (lane == 0)
    a.ranges[tile] = { begin, end };
}

static gint64
count_range_tiles (const Attention *a)
{
  return (a->n_queries + ATTENTION_RANGE_QUERIES - 1) / ATTENTION_RANGE_QUERIES;
}

EBB_CUDA_WORKSPACE (attention_grad)
{
  Attention a;
  gsize size;

  if (!describe (&a, launch, 1, 6))
    return 0;
  size = a.starts.data ? a.n_batches * count_range_tiles (&a) * sizeof (int2) : 0;
  return size + count_rows (&a) * sizeof (float);
}

template <typename T>
static cudaError_t
launch_sums (const Attention *a,
             cudaStream_t stream)
{
  gint64 n_rows = count_rows (a);
  int n_lanes = 1;

  while (n_lanes * ATTENTION_CHUNK < a->width)
    n_lanes *= 2;
  return EBB_CUDA_LAUNCH (sum_products<T>,
                          dim3 ((unsigned) ((n_rows * n_lanes + ATTENTION_THREADS - 1) / ATTENTION_THREADS)),
                          dim3 (ATTENTION_THREADS), 0, stream, *a, n_rows, n_lanes);
}

EBB_CUDA_KERNEL (attention_grad)
{
  bool is_bf16 = launch->inputs[1]->dtype == EBB_DTYPE_BF16;
  cudaError_t error = cudaSuccess;
  gint64 n_tiles, n_all;
  Attention a;

  if (!describe (&a, launch, 1, 6))
    return cudaErrorNotSupported;
  for (int i = 0; i < 3; i++)
    if (launch->outputs[i] && launch->outputs[i]->dtype != launch->inputs[1]->dtype)
      return cudaErrorNotSupported;
  if (launch->inputs[0]->dtype != launch->inputs[1]->dtype || launch->inputs[4]->dtype != launch->inputs[1]->dtype)
    return cudaErrorNotSupported;
  n_tiles = count_range_tiles (&a);
  n_all = a.n_batches * n_tiles;
  a.d_o = describe_rows (launch->inputs[0]);
  a.o = describe_rows (launch->inputs[4]);
  a.logsumexp = (float *) launch->inputs[5]->data;
  a.d_q = describe_rows (launch->outputs[0]);
  a.d_k = describe_rows (launch->outputs[1]);
  a.d_v = describe_rows (launch->outputs[2]);
  a.ranges = a.starts.data ? (int2 *) launch->workspace : NULL;
  a.delta = (float *) ((char *) launch->workspace + (a.ranges ? n_all * sizeof (int2) : 0));
  if (count_rows (&a) > 0)
    error = is_bf16 ? launch_sums<Bf16> (&a, queue->stream) : launch_sums<float> (&a, queue->stream);
  if (error == cudaSuccess && a.ranges && n_all > 0)
    error = EBB_CUDA_LAUNCH (find_ranges, dim3 ((unsigned) ((n_all + ATTENTION_WARPS - 1) / ATTENTION_WARPS)),
                             dim3 (ATTENTION_THREADS), 0, queue->stream, a, (int) n_tiles, n_all);
  if (error == cudaSuccess)
    error = is_bf16 ? ebb_cuda_attention_grad_bf16 (&a, queue)
                    : ebb_cuda_attention_grad_f32 (&a, queue);
  return error;
}
