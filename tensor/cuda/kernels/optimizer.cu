/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Optimizers and what they need of gradients: AdamW over many tensors at once, SGD, moments in 8 bits, squared norms,
 * the factor of clipping. The order of operations is tensor/cpu/simd/optimizer.c's, except
 * that AdamW divides where the CPU multiplies by a reciprocal. After an index fault
 * parameters and moments stay as they are. */
#include "tensor/cuda/kernels/layout.cuh"
#include "tensor/cuda/kernels/moment.cuh"

/* -- many tensors -------------------------------------------------------------------------------------------------- */

/* A launch's parameters are 4 KiB at most: so many tensors go at once. */
#define ITEMS 48
#define ADAMW_BLOCKS 8 /* moment blocks of a block of threads, one of a warp: 2048 elements */
#define NORM_BLOCKS 16 /* the same where each block of threads ends in a sum */
#define WARPS (ELEMENTWISE_THREADS / 32)

typedef struct
{
  EbbLaunchItem items[ITEMS];
  unsigned ends[ITEMS]; /* of each, the number after its last block of threads */
  guint n;
} Items;

/* Takes items from first on, whose moment blocks are shared out by @of_block. Returns how many, and the blocks of
 * threads that they need. */
static guint
items_init (Items *self,
            const EbbLaunch *launch,
            guint first,
            int of_block,
            unsigned *n_blocks)
{
  const gint64 chunk = of_block * EBB_MOMENT_BLOCK;
  guint n = launch->n_items - first < ITEMS ? launch->n_items - first : ITEMS;
  unsigned end = 0;

  for (guint i = 0; i < n; i++)
    {
      self->items[i] = launch->items[first + i];
      end += (unsigned) ((self->items[i].n_elements + chunk - 1) / chunk);
      self->ends[i] = end;
    }
  self->n = n;
  *n_blocks = end;
  return n;
}

/* The item of this block of threads, and which of the item's chunks is its. */
static __device__ __forceinline__ guint
find_item (const Items &self,
           gint64 *chunk)
{
  guint i = 0;

  while (blockIdx.x >= self.ends[i])
    i++;
  *chunk = blockIdx.x - (i > 0 ? self.ends[i - 1] : 0);
  return i;
}

/* Rounded down or up by draw, or to the nearest. */
template <typename Parameter>
static __device__ __forceinline__ Parameter
round_parameter (float value,
                 bool rounds_at_random,
                 guint32 draw)
{
  if constexpr (sizeof (Parameter) == 2)
    return rounds_at_random ? to_bf16_stochastic (value, draw) : from_float<Bf16> (value);
  else
    return value;
}

/* -- AdamW --------------------------------------------------------------------------------------------------------- */

typedef struct
{
  const float *scale; /* of the gradient, on the device; NULL: 1 */
  double grad_scale;
  float beta1_rest, beta2, beta2_rest, eps, decay, l2, step_size, correction2;
  EbbPhilox philox, rounding;
  bool rounds_at_random;
  const EbbCudaFault *fault;
} Adamw;

static __device__ __forceinline__ float
find_scale (double scale,
            const float *on_device)
{
  return (float) (on_device != NULL ? scale * *on_device : scale);
}

/* One block of a tensor's moments, in f32, bf16 or 8 bits; a warp has all of it. */
struct MomentBlock
{
  void *data;    /* of the whole tensor */
  float *absmax; /* of each block in 8 bits */
  bool is_signed;
  gint64 block;
  int n; /* elements of the block */
  unsigned lane;
};

/* which: 0 for the first moment of an item, 1 for the second, which has no signs. */
static __device__ __forceinline__ MomentBlock
get_moment (const EbbLaunchItem &item,
            int which,
            gint64 block,
            int n,
            unsigned lane)
{
  return { item.data[2 + which], (float *) item.data[4 + which], which == 0, block, n, lane };
}

template <typename T>
static __device__ __forceinline__ void
load_lane_floats (const T *block,
                  int n,
                  unsigned lane,
                  float (&values)[MOMENT_LANE])
{
  T own[MOMENT_LANE];

  load_lane (block, n, lane, own);
#pragma unroll
  for (int k = 0; k < MOMENT_LANE; k++)
    values[k] = to_float (own[k]);
}

/* Those in bf16 are rounded by the draws, or to the nearest. */
template <typename T>
static __device__ __forceinline__ void
store_lane_floats (T *block,
                   int n,
                   unsigned lane,
                   const float (&values)[MOMENT_LANE],
                   bool rounds_at_random,
                   const guint32 (&draws)[MOMENT_LANE])
{
  T own[MOMENT_LANE];

#pragma unroll
  for (int k = 0; k < MOMENT_LANE; k++)
    own[k] = round_parameter<T> (values[k], rounds_at_random, draws[k]);
  store_lane (block, n, lane, own);
}

template <typename Moment>
static __device__ __forceinline__ void
load_moment (const MomentBlock &self,
             float (&values)[MOMENT_LANE])
{
  const Moment *from = (const Moment *) self.data + self.block * EBB_MOMENT_BLOCK;

  if constexpr (sizeof (Moment) == 1)
    moment_decode_block (self.is_signed, from, self.absmax[self.block], self.n, self.lane, values);
  else
    load_lane_floats (from, self.n, self.lane, values);
}

/* The second moment in bf16 is rounded at random, by draws. */
template <typename Moment>
static __device__ __forceinline__ void
store_moment (const MomentBlock &self,
              const float (&values)[MOMENT_LANE],
              const guint32 (&draws)[MOMENT_LANE])
{
  Moment *to = (Moment *) self.data + self.block * EBB_MOMENT_BLOCK;

  if constexpr (sizeof (Moment) == 1)
    moment_encode_block (self.is_signed, values, self.n, self.lane, to, self.absmax + self.block);
  else
    store_lane_floats (to, self.n, self.lane, values, !self.is_signed, draws);
}

/* One block of an item's moments, by a whole warp. Loshchilov, Hutter: Decoupled weight decay regularization, 2019:
 * algorithm 2 */
template <typename Grad, typename Parameter, typename Moment>
static __device__ __forceinline__ void
adamw_block (const Adamw &self,
             const EbbLaunchItem &item,
             gint64 block,
             float scale,
             unsigned lane)
{
  const gint64 first = block * EBB_MOMENT_BLOCK, rest = item.n_elements - first;
  const int n = (int) (rest < EBB_MOMENT_BLOCK ? rest : EBB_MOMENT_BLOCK);
  const Grad *grad = (const Grad *) item.data[0] + first;
  Parameter *parameter = (Parameter *) item.data[1] + first;
  float g[MOMENT_LANE], w[MOMENT_LANE], m[MOMENT_LANE], v[MOMENT_LANE];
  guint32 draws[MOMENT_LANE] = {};
  const bool rounds = sizeof (Parameter) == 2 && self.rounds_at_random;

  load_lane_floats (grad, n, lane, g);
  load_lane_floats ((const Parameter *) parameter, n, lane, w);
  load_moment<Moment> (get_moment (item, 0, block, n, lane), m);
  load_moment<Moment> (get_moment (item, 1, block, n, lane), v);
#pragma unroll
  for (int k = 0; k < MOMENT_LANE; k++)
    {
      g[k] *= scale;
      if (self.l2 != 0.0f)
        g[k] = fmaf (self.l2, w[k], g[k]);
      m[k] = fmaf (self.beta1_rest, g[k] - m[k], m[k]);
      v[k] = fmaf (self.beta2_rest * g[k], g[k], __fmul_rn (self.beta2, v[k]));
      w[k] = self.decay * w[k] - self.step_size * m[k] / (sqrtf (v[k]) / self.correction2 + self.eps);
    }
  if (rounds)
    moment_draw (self.rounding.seed ^ item.philox_seed, self.rounding.offset, item.first_element + first, lane, draws);
  store_lane_floats (parameter, n, lane, w, rounds, draws);
  if (sizeof (Moment) == 2)
    moment_draw (self.philox.seed ^ item.philox_seed, self.philox.offset, item.first_element + first, lane, draws);
  store_moment<Moment> (get_moment (item, 0, block, n, lane), m, draws);
  store_moment<Moment> (get_moment (item, 1, block, n, lane), v, draws);
}

template <typename Grad, typename Parameter, typename Moment>
__global__ void __launch_bounds__ (ELEMENTWISE_THREADS)
adamw (Items items,
       Adamw self)
{
  const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const float scale = find_scale (self.grad_scale, self.scale);
  gint64 chunk;
  const EbbLaunchItem &item = items.items[find_item (items, &chunk)];

  if (fault_is_set (self.fault))
    return;
  for (int i = (int) warp; i < ADAMW_BLOCKS; i += WARPS)
    {
      gint64 block = chunk * ADAMW_BLOCKS + i;

      if (block * EBB_MOMENT_BLOCK < item.n_elements)
        adamw_block<Grad, Parameter, Moment> (self, item, block, scale, lane);
    }
}

template <typename Grad, typename Parameter>
static cudaError_t
launch_adamw (EbbDType moments,
              const Items &items,
              const Adamw &self,
              unsigned n_blocks,
              const EbbCudaQueue *queue)
{
  if (moments == EBB_DTYPE_F32)
    return EBB_CUDA_LAUNCH (adamw<Grad, Parameter, float>, n_blocks, ELEMENTWISE_THREADS, 0, queue->stream, items,
                            self);
  if (moments == EBB_DTYPE_BF16)
    return EBB_CUDA_LAUNCH (adamw<Grad, Parameter, Bf16>, n_blocks, ELEMENTWISE_THREADS, 0, queue->stream, items, self);
  return EBB_CUDA_LAUNCH (adamw<Grad, Parameter, guint8>, n_blocks, ELEMENTWISE_THREADS, 0, queue->stream, items, self);
}

EBB_CUDA_KERNEL (adamw)
{
  const EbbView *scale = launch->n_inputs > 0 ? launch->inputs[0] : NULL;
  const double lr = launch->params.adamw.lr, step = (double) launch->params.adamw.step;
  const double beta1 = launch->params.adamw.beta1, beta2 = launch->params.adamw.beta2;
  const EbbDType moments = launch->params.adamw.moment_dtype;
  cudaError_t status = cudaSuccess;
  Adamw self;
  Items items;

  self.scale = scale != NULL ? (const float *) scale->data : NULL;
  self.grad_scale = launch->params.adamw.grad_scale;
  self.beta1_rest = (float) (1.0 - beta1);
  self.beta2 = (float) beta2;
  self.beta2_rest = (float) (1.0 - beta2);
  self.eps = (float) launch->params.adamw.eps;
  self.decay = (float) (1.0 - lr * launch->params.adamw.weight_decay);
  self.l2 = (float) launch->params.adamw.l2;
  self.step_size = (float) (lr / (1.0 - pow (beta1, step)));
  self.correction2 = (float) sqrt (1.0 - pow (beta2, step));
  self.philox = launch->params.adamw.philox;
  self.rounding = launch->params.adamw.rounding;
  self.rounds_at_random = launch->params.adamw.rounds_at_random != FALSE;
  self.fault = queue->fault;
  for (guint first = 0; first < launch->n_items && status == cudaSuccess;)
    {
      unsigned n_blocks;

      first += items_init (&items, launch, first, ADAMW_BLOCKS, &n_blocks);
      if (n_blocks == 0)
        continue;
      if (launch->params.adamw.dtype == EBB_DTYPE_F32)
        status = launch->params.adamw.grad_dtype == EBB_DTYPE_F32
                     ? launch_adamw<float, float> (moments, items, self, n_blocks, queue)
                     : launch_adamw<Bf16, float> (moments, items, self, n_blocks, queue);
      else
        status = launch->params.adamw.grad_dtype == EBB_DTYPE_F32
                     ? launch_adamw<float, Bf16> (moments, items, self, n_blocks, queue)
                     : launch_adamw<Bf16, Bf16> (moments, items, self, n_blocks, queue);
    }
  return status;
}

/* -- SGD ----------------------------------------------------------------------------------------------------------- */

typedef struct
{
  const void *grad;
  const float *scale;
  void *parameter;
  float *momentum_buffer; /* NULL: none */
  gint64 n;
  double grad_scale;
  float lr, momentum, weight_decay, dampening_rest;
  bool is_nesterov, is_first, rounds_at_random;
  EbbPhilox rounding;
  gint64 first_element;
  const EbbCudaFault *fault;
} Sgd;

template <typename Grad, typename Parameter>
__global__ void __launch_bounds__ (ELEMENTWISE_THREADS)
sgd (Sgd self)
{
  const float scale = find_scale (self.grad_scale, self.scale);

  if (fault_is_set (self.fault))
    return;
  for (gint64 i = get_thread (); i < self.n; i += count_threads ())
    {
      Parameter *place = (Parameter *) self.parameter + i;
      float p = load (place), g = fmaf (self.weight_decay, p, scale * load ((const Grad *) self.grad + i));

      if (self.momentum_buffer != NULL)
        {
          float m =
              self.is_first ? g : fmaf (self.dampening_rest, g, __fmul_rn (self.momentum, self.momentum_buffer[i]));

          self.momentum_buffer[i] = m;
          g = self.is_nesterov ? fmaf (self.momentum, m, g) : m;
        }
      *place = round_parameter<Parameter> (
          fmaf (-self.lr, g, p), self.rounds_at_random,
          self.rounds_at_random ? moment_draw_one (self.rounding.seed, self.rounding.offset, self.first_element + i)
                                : 0);
    }
}

EBB_CUDA_KERNEL (sgd)
{
  const EbbView *scale = launch->inputs[0], *grad = launch->inputs[1], *parameter = launch->outputs[0];
  const EbbView *buffer = launch->n_outputs > 1 ? launch->outputs[1] : NULL;
  Sgd self;
  unsigned n_blocks;

  self.grad = grad->data;
  self.scale = scale != NULL ? (const float *) scale->data : NULL;
  self.parameter = parameter->data;
  self.momentum_buffer = buffer != NULL ? (float *) buffer->data : NULL;
  self.n = ebb_view_count_elements (parameter);
  self.grad_scale = launch->params.sgd.grad_scale;
  self.lr = (float) launch->params.sgd.lr;
  self.momentum = (float) launch->params.sgd.momentum;
  self.weight_decay = (float) launch->params.sgd.weight_decay;
  self.dampening_rest = (float) (1.0 - launch->params.sgd.dampening);
  self.is_nesterov = launch->params.sgd.nesterov != FALSE;
  self.is_first = launch->params.sgd.first != FALSE;
  self.rounds_at_random = parameter->dtype == EBB_DTYPE_BF16 && launch->params.sgd.rounds_at_random;
  self.rounding = launch->params.sgd.rounding;
  self.first_element = launch->params.sgd.first_element;
  self.fault = queue->fault;
  if (self.n == 0)
    return cudaSuccess;
  n_blocks = count_blocks (self.n, queue);
  if (parameter->dtype == EBB_DTYPE_F32)
    return grad->dtype == EBB_DTYPE_F32
               ? EBB_CUDA_LAUNCH (sgd<float, float>, n_blocks, ELEMENTWISE_THREADS, 0, queue->stream, self)
               : EBB_CUDA_LAUNCH (sgd<Bf16, float>, n_blocks, ELEMENTWISE_THREADS, 0, queue->stream, self);
  return grad->dtype == EBB_DTYPE_F32
             ? EBB_CUDA_LAUNCH (sgd<float, Bf16>, n_blocks, ELEMENTWISE_THREADS, 0, queue->stream, self)
             : EBB_CUDA_LAUNCH (sgd<Bf16, Bf16>, n_blocks, ELEMENTWISE_THREADS, 0, queue->stream, self);
}

/* -- moments in 8 bits and back ------------------------------------------------------------------------------------ */

/* A warp for a block of moments. */
template <bool ENCODES>
__global__ void __launch_bounds__ (ELEMENTWISE_THREADS)
convert_moments (float *values,
                 guint8 *codes,
                 float *absmax,
                 gint64 n,
                 bool is_signed)
{
  const gint64 block = (gint64) blockIdx.x * WARPS + threadIdx.x / 32, first = block * EBB_MOMENT_BLOCK;
  const int rest = (int) (n - first < EBB_MOMENT_BLOCK ? n - first : EBB_MOMENT_BLOCK);
  const unsigned lane = threadIdx.x % 32;
  const MomentBlock floats = { values, NULL, is_signed, block, rest, lane };
  const guint32 draws[MOMENT_LANE] = {};
  float own[MOMENT_LANE];

  if (first >= n)
    return;
  if (ENCODES)
    {
      load_moment<float> (floats, own);
      moment_encode_block (is_signed, own, rest, lane, codes + first, absmax + block);
    }
  else
    {
      moment_decode_block (is_signed, codes + first, absmax[block], rest, lane, own);
      store_moment<float> (floats, own, draws);
    }
}

template <bool ENCODES>
static cudaError_t
launch_moments (const EbbLaunch *launch,
                const EbbView *values,
                const EbbView *codes,
                const EbbView *absmax,
                const EbbCudaQueue *queue)
{
  const gint64 n = ebb_view_count_elements (values), chunk = WARPS * EBB_MOMENT_BLOCK;

  if (n == 0)
    return cudaSuccess;
  return EBB_CUDA_LAUNCH (convert_moments<ENCODES>, (unsigned) ((n + chunk - 1) / chunk), ELEMENTWISE_THREADS, 0,
                          queue->stream, (float *) values->data, (guint8 *) codes->data, (float *) absmax->data, n,
                          launch->params.moment.is_signed != FALSE);
}

EBB_CUDA_KERNEL (moment_encode)
{
  return launch_moments<true> (launch, launch->inputs[0], launch->outputs[0], launch->outputs[1], queue);
}

EBB_CUDA_KERNEL (moment_decode)
{
  return launch_moments<false> (launch, launch->outputs[0], launch->inputs[0], launch->inputs[1], queue);
}

/* -- norms of gradients -------------------------------------------------------------------------------------------- */

/* Each block of threads sums the squares of a chunk in f64; then one block for each item sums those of its chunks. */
template <typename T>
__global__ void __launch_bounds__ (ELEMENTWISE_THREADS)
sum_squares (Items items,
             double *partials)
{
  EBB_SHARED_ARRAY (double, scratch, [WARPS]);
  gint64 chunk, end, begin;
  const EbbLaunchItem &item = items.items[find_item (items, &chunk)];
  double sum = 0;

  begin = chunk * NORM_BLOCKS * EBB_MOMENT_BLOCK;
  end = begin + NORM_BLOCKS * EBB_MOMENT_BLOCK;
  end = end < item.n_elements ? end : item.n_elements;
  for (gint64 i = begin + threadIdx.x; i < end; i += ELEMENTWISE_THREADS)
    {
      double x = load ((const T *) item.data[0] + i);

      sum += x * x;
    }
  sum = block_reduce<Sum> (sum, scratch);
  if (threadIdx.x == 0)
    partials[blockIdx.x] = sum;
}

__global__ void __launch_bounds__ (ELEMENTWISE_THREADS)
sum_partials (Items items,
              const double *partials,
              float *y)
{
  EBB_SHARED_ARRAY (double, scratch, [WARPS]);
  const unsigned begin = blockIdx.x > 0 ? items.ends[blockIdx.x - 1] : 0;
  double sum = 0;

  for (unsigned i = begin + threadIdx.x; i < items.ends[blockIdx.x]; i += ELEMENTWISE_THREADS)
    sum += partials[i];
  sum = block_reduce<Sum> (sum, scratch);
  if (threadIdx.x == 0)
    y[blockIdx.x] = (float) sum;
}

/* Enough for the chunks of each group of items. */
EBB_CUDA_WORKSPACE (squared_norm)
{
  gsize most = 0;
  Items items;

  for (guint first = 0; first < launch->n_items;)
    {
      unsigned n_blocks;

      first += items_init (&items, launch, first, NORM_BLOCKS, &n_blocks);
      most = n_blocks > most ? n_blocks : most;
    }
  return most * sizeof (double);
}

EBB_CUDA_KERNEL (squared_norm)
{
  double *partials = (double *) launch->workspace;
  float *y = (float *) launch->outputs[0]->data;
  cudaError_t status = cudaSuccess;
  Items items;

  for (guint first = 0; first < launch->n_items && status == cudaSuccess;)
    {
      unsigned n_blocks;
      guint n = items_init (&items, launch, first, NORM_BLOCKS, &n_blocks);

      if (n_blocks > 0 && launch->params.squared_norm.dtype == EBB_DTYPE_F32)
        status = EBB_CUDA_LAUNCH (sum_squares<float>, n_blocks, ELEMENTWISE_THREADS, 0, queue->stream, items, partials);
      else if (n_blocks > 0)
        status = EBB_CUDA_LAUNCH (sum_squares<Bf16>, n_blocks, ELEMENTWISE_THREADS, 0, queue->stream, items, partials);
      if (status == cudaSuccess)
        status = EBB_CUDA_LAUNCH (sum_partials, n, ELEMENTWISE_THREADS, 0, queue->stream, items,
                                  (const double *) partials, y + first);
      first += n;
    }
  return status;
}

/* One thread for each of the n results: there are few. */
__global__ void __launch_bounds__ (ELEMENTWISE_THREADS)
norm_sum (const void *x,
          bool is_f32,
          gint64 k,
          gint64 n,
          gint64 stride_k,
          gint64 stride_n,
          double *y,
          gint64 y_stride,
          bool is_max)
{
  for (gint64 column = get_thread (); column < n; column += count_threads ())
    {
      double result = 0;

      for (gint64 i = 0; i < k; i++)
        {
          const gint64 at = i * stride_k + column * stride_n;
          const double value = is_f32 ? ((const float *) x)[at] : ((const double *) x)[at];

          if (i == 0)
            result = value;
          else if (is_max)
            result = Max::join (value, result);
          else
            result += value;
        }
      y[column * y_stride] = result;
    }
}

EBB_CUDA_KERNEL (norm_sum)
{
  const EbbView *x = launch->inputs[0], *y = launch->outputs[0];
  const gint64 n = x->shape[1];

  if (n == 0)
    return cudaSuccess;
  return EBB_CUDA_LAUNCH (norm_sum, count_blocks (n, queue), ELEMENTWISE_THREADS, 0, queue->stream,
                          (const void *) x->data, x->dtype == EBB_DTYPE_F32, x->shape[0], n, x->strides[0],
                          x->strides[1], (double *) y->data, y->strides[0], launch->params.norm_sum.max != FALSE);
}

__global__ void
find_clip_factor (const double *total,
                  const float *earlier,
                  float *norm,
                  float *factor,
                  double own_scale,
                  double max_norm,
                  double p)
{
  const double scale = earlier != NULL ? own_scale * *earlier : own_scale;
  const double root = p == 2 ? sqrt (*total) : (p == 1 || isinf (p) ? *total : pow (*total, 1 / p));
  const double result = fabs (scale) * root, f = max_norm / (result + 1e-6);

  *norm = (float) result;
  *factor = (float) (isfinite (result) && f < 1 ? scale * f : scale);
}

EBB_CUDA_KERNEL (clip_factor)
{
  const EbbView *earlier = launch->n_inputs > 1 ? launch->inputs[1] : NULL;

  return EBB_CUDA_LAUNCH (find_clip_factor, 1, 1, 0, queue->stream, (const double *) launch->inputs[0]->data,
                          earlier != NULL ? (const float *) earlier->data : NULL, (float *) launch->outputs[0]->data,
                          (float *) launch->outputs[1]->data, launch->params.clip.scale, launch->params.clip.max_norm,
                          launch->params.clip.p);
}
