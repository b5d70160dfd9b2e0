/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Random numbers and dropout. Draw i of a call is lane i % 4 of Philox block offset + i / 4, i counted over the output
 * in contiguous order: uniform numbers, integers and masks are the CPU's bit for bit. */
#include "tensor/cuda/kernels/element.cuh"
#include "tensor/cuda/kernels/layout.cuh"

typedef struct
{
  Layout<1> layout;
  void *y;
  EbbDType dtype;
  guint64 seed, offset;
  const EbbCudaFault *guard;
} Draws;

static inline bool
draws_init (Draws *self,
            const EbbLaunch *launch,
            const EbbCudaQueue *queue)
{
  EbbView *y = launch->outputs[0];
  const EbbView *const views[] = { y };

  layout_init (&self->layout, y, views);
  self->y = y->data;
  self->dtype = y->dtype;
  self->seed = launch->params.random.philox.seed;
  self->offset = launch->params.random.philox.offset;
  self->guard = queue->guard;
  return self->layout.n_elements > 0;
}

static __device__ __forceinline__ void
store_draw (const Draws &self,
            gint64 i,
            float value)
{
  gint64 at[1];

  if (i >= self.layout.n_elements)
    return;
  layout_find<guint64> (self.layout, (guint64) i, at);
  store_float (self.dtype, self.y, at[0], value);
}

/* Each thread takes whole blocks of four draws. */
static inline unsigned
count_draw_blocks (const Draws &self,
                   gint64 numbers_of_a_block,
                   const EbbCudaQueue *queue)
{
  return count_blocks ((self.layout.n_elements + numbers_of_a_block - 1) / numbers_of_a_block, queue);
}

/* -- uniform ------------------------------------------------------------------------------------------------------- */

__global__ void __launch_bounds__ (ELEMENTWISE_THREADS)
draw_uniform (Draws self,
              float low,
              float width,
              float least,
              float greatest)
{
  if (fault_is_set (self.guard))
    return;
  for (gint64 block = get_thread (); block * 4 < self.layout.n_elements; block += count_threads ())
    {
      guint32 draws[4];

      philox_block (self.seed, self.offset + (guint64) block, draws);
#pragma unroll
      for (int k = 0; k < 4; k++)
        {
          /* Rounded twice, as on the CPU. */
          float u = (float) (draws[k] >> 8) * 5.9604644775390625e-8f, value = __fadd_rn (low, __fmul_rn (u, width));

          store_draw (self, block * 4 + k, fminf (greatest, fmaxf (least, value)));
        }
    }
}

/* The number next to x of those that a dtype can hold. */
static float
find_neighbour (EbbDType dtype,
                float x,
                bool is_above)
{
  const guint32 step = dtype == EBB_DTYPE_BF16 ? 0x10000 : 1;
  union
  {
    float value;
    guint32 word;
  } bits = { x };

  if (x == 0.0f)
    bits.word = step | (is_above ? 0 : 0x80000000u);
  else
    bits.word += is_above == (x > 0.0f) ? step : 0 - step;
  return bits.value;
}

static float
round_to (EbbDType dtype,
          double value)
{
  union
  {
    float value;
    guint32 word;
  } bits = { (float) value };

  if (dtype == EBB_DTYPE_BF16)
    bits.word = (bits.word + 0x7fff + (bits.word >> 16 & 1)) & 0xffff0000u;
  return bits.value;
}

EBB_CUDA_KERNEL (uniform)
{
  const double low = launch->params.random.low, high = launch->params.random.high;
  const EbbDType dtype = launch->outputs[0]->dtype;
  float least = round_to (dtype, low), greatest = round_to (dtype, high);
  Draws self;

  if (least < low)
    least = find_neighbour (dtype, least, true);
  if (greatest >= high)
    greatest = find_neighbour (dtype, greatest, false);
  if (least > greatest) /* the dtype holds none of the range */
    least = greatest = round_to (dtype, low);
  if (!draws_init (&self, launch, queue))
    return cudaSuccess;
  return EBB_CUDA_LAUNCH (draw_uniform, count_draw_blocks (self, 4, queue), ELEMENTWISE_THREADS, 0, queue->stream, self,
                          (float) low, (float) (high - low), least, greatest);
}

/* -- normal -------------------------------------------------------------------------------------------------------- */

/* Box, Muller 1958: lanes 0 and 1 of a block give two numbers, lanes 2 and 3 two more. */
__global__ void __launch_bounds__ (ELEMENTWISE_THREADS)
draw_normal (Draws self,
             float mean,
             float std)
{
  if (fault_is_set (self.guard))
    return;
  for (gint64 block = get_thread (); block * 4 < self.layout.n_elements; block += count_threads ())
    {
      guint32 draws[4];

      philox_block (self.seed, self.offset + (guint64) block, draws);
#pragma unroll
      for (int k = 0; k < 4; k += 2)
        {
          float u = (float) draws[k] * 2.3283064365386963e-10f + 1.1641532182693481e-10f; /* in (0, 1] */
          float radius = sqrtf (-2.0f * logf (u)), sine, cosine;

          sincospif (2.0f * ((float) (draws[k + 1] >> 8) * 5.9604644775390625e-8f), &sine, &cosine);
          store_draw (self, block * 4 + k, fmaf (radius * cosine, std, mean));
          store_draw (self, block * 4 + k + 1, fmaf (radius * sine, std, mean));
        }
    }
}

EBB_CUDA_KERNEL (normal)
{
  Draws self;

  if (!draws_init (&self, launch, queue))
    return cudaSuccess;
  return EBB_CUDA_LAUNCH (draw_normal, count_draw_blocks (self, 4, queue), ELEMENTWISE_THREADS, 0, queue->stream, self,
                          (float) launch->params.random.mean, (float) launch->params.random.std);
}

/* -- integers ------------------------------------------------------------------------------------------------------ */

__global__ void __launch_bounds__ (ELEMENTWISE_THREADS)
draw_integers (Draws self,
               gint64 low,
               guint64 range)
{
  if (fault_is_set (self.guard))
    return;
  for (gint64 block = get_thread (); block * 2 < self.layout.n_elements; block += count_threads ())
    {
      guint32 draws[4];

      philox_block (self.seed, self.offset + (guint64) block, draws);
#pragma unroll
      for (int k = 0; k < 2; k++)
        {
          guint64 draw = draws[2 * k] | (guint64) draws[2 * k + 1] << 32;
          gint64 i = block * 2 + k, at[1];

          if (i >= self.layout.n_elements)
            break;
          layout_find<guint64> (self.layout, (guint64) i, at);
          store_integer (self.dtype, self.y, at[0], (gint64) ((guint64) low + (range == 0 ? 0 : draw % range)));
        }
    }
}

EBB_CUDA_KERNEL (randint)
{
  const gint64 low = double_to_i64 (launch->params.random.low), high = double_to_i64 (launch->params.random.high);
  Draws self;

  if (!draws_init (&self, launch, queue))
    return cudaSuccess;
  return EBB_CUDA_LAUNCH (draw_integers, count_draw_blocks (self, 2, queue), ELEMENTWISE_THREADS, 0, queue->stream,
                          self, low, (guint64) high - (guint64) low);
}

/* -- dropout ------------------------------------------------------------------------------------------------------- */

typedef struct
{
  const void *x;
  void *y;
  gint64 n;
  guint64 seed, offset, threshold;
  float scale;
} Dropout;

static __device__ __forceinline__ float
drop_element (const Dropout &self,
              guint32 draw,
              float x)
{
  return draw >= self.threshold ? x * self.scale : 0.0f;
}

/* x and y are contiguous. n_runs: of 16 bytes, with a block of draws for four elements; 0 where an address isn't
 * aligned. */
template <typename T>
__global__ void __launch_bounds__ (ELEMENTWISE_THREADS)
drop (Dropout self,
      gint64 n_runs)
{
  const int run = VectorSize<T>::value;
  const T *x = (const T *) self.x;
  T *y = (T *) self.y;

  for (gint64 i = get_thread (); i < n_runs; i += count_threads ())
    {
      float values[run];

      load_run (x + i * run, values);
#pragma unroll
      for (int k = 0; k < run; k += 4)
        {
          guint32 draws[4];

          philox_block (self.seed, self.offset + (guint64) (i * run + k) / 4, draws);
#pragma unroll
          for (int j = 0; j < 4; j++)
            values[k + j] = drop_element (self, draws[j], values[k + j]);
        }
      store_run (y + i * run, values);
    }
  for (gint64 i = n_runs * run + get_thread (); i < self.n; i += count_threads ())
    store (y + i, drop_element (self, philox_draw (self.seed, self.offset, (guint64) i), load (x + i)));
}

EBB_CUDA_KERNEL (dropout)
{
  const EbbView *x = launch->inputs[0];
  void *y = launch->outputs[0]->data;
  const double p = launch->params.random.p;
  const EbbPhilox philox = launch->params.random.philox;
  const guint64 threshold = dropout_threshold (p);
  const float scale = threshold >> 32 != 0 ? 0.0f : (float) (1.0 / (1.0 - p));
  const Dropout self = { x->data, y, ebb_view_count_elements (x), philox.seed, philox.offset, threshold, scale };
  const bool is_aligned = is_vector_aligned (x->data) && is_vector_aligned (y);
  const gint64 n_runs = is_aligned ? self.n / (x->dtype == EBB_DTYPE_F32 ? 4 : 8) : 0;
  const unsigned n_blocks = count_blocks (is_aligned ? n_runs + 1 : self.n, queue);

  if (self.n == 0)
    return cudaSuccess;
  if (x->dtype == EBB_DTYPE_BF16)
    return EBB_CUDA_LAUNCH (drop<Bf16>, n_blocks, ELEMENTWISE_THREADS, 0, queue->stream, self, n_runs);
  return EBB_CUDA_LAUNCH (drop<float>, n_blocks, ELEMENTWISE_THREADS, 0, queue->stream, self, n_runs);
}

/* -- multinomial --------------------------------------------------------------------------------------------------- */

/* A block for a row. Each thread sums a run of weights; the sums of the runs before it, in order, say where a target
 * lies, and a walk through that run finds the index. */
__global__ void __launch_bounds__ (ELEMENTWISE_THREADS)
draw_indices (const float *weights,
              gint64 *indices,
              gint64 n,
              gint64 n_samples,
              guint64 seed,
              guint64 offset,
              EbbCudaFault *fault,
              guint32 serial)
{
  EBB_SHARED_ARRAY (double, cumulative, [ELEMENTWISE_THREADS]);
  const gint64 row = blockIdx.x, run = (n + ELEMENTWISE_THREADS - 1) / ELEMENTWISE_THREADS;
  const gint64 begin = threadIdx.x * run < n ? threadIdx.x * run : n, end = begin + run < n ? begin + run : n;
  const float *own = weights + row * n;
  double sum = 0, total;
  int is_bad = 0;

  for (gint64 i = begin; i < end; i++)
    {
      is_bad |= !(own[i] >= 0.0f && own[i] <= G_MAXFLOAT);
      sum += own[i];
    }
  cumulative[threadIdx.x] = sum;
  is_bad = __syncthreads_or (is_bad);
  if (threadIdx.x == 0)
    for (int i = 1; i < ELEMENTWISE_THREADS; i++)
      cumulative[i] += cumulative[i - 1];
  __syncthreads ();
  total = cumulative[ELEMENTWISE_THREADS - 1];
  is_bad = is_bad || !(total > 0);
  if (is_bad && threadIdx.x == 0)
    fault_report (fault, serial, row, 0, 0);
  for (gint64 s = threadIdx.x; s < n_samples; s += ELEMENTWISE_THREADS)
    {
      const gint64 sample = row * n_samples + s;
      const double target = philox_draw (seed, offset, (guint64) sample) * 2.3283064365386963e-10 * total;
      gint64 low = 0, high = ELEMENTWISE_THREADS - 1, i;
      double reached;

      while (low < high)
        {
          gint64 middle = (low + high) / 2;

          if (cumulative[middle] > target)
            high = middle;
          else
            low = middle + 1;
        }
      reached = low > 0 ? cumulative[low - 1] : 0;
      for (i = low * run; i < n - 1; i++)
        {
          reached += own[i];
          if (reached > target)
            break;
        }
      indices[sample] = is_bad ? 0 : i;
    }
}

EBB_CUDA_KERNEL (multinomial)
{
  const EbbView *weights = launch->inputs[0], *indices = launch->outputs[0];
  const EbbPhilox philox = launch->params.random.philox;
  const gint64 n = weights->shape[weights->n_dims - 1], n_samples = indices->shape[indices->n_dims - 1];

  if (ebb_view_count_elements (weights) == 0 || ebb_view_count_elements (indices) == 0)
    return cudaSuccess;
  return EBB_CUDA_LAUNCH (draw_indices, (unsigned) (ebb_view_count_elements (weights) / n), ELEMENTWISE_THREADS, 0,
                          queue->stream, (const float *) weights->data, (gint64 *) indices->data, n, n_samples,
                          philox.seed, philox.offset, queue->fault, queue->serial);
}
