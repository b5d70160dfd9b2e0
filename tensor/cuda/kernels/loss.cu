/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Cross entropy of rows of logits, whole or of some of the classes, and its gradient. A row is read once forward: each
 * thread keeps a running maximum and sum of exponentials. Logits may have a soft cap, which is applied wherever one is
 * read. A logarithm of a sum of exponentials is kept as the sum of two numbers. */
#include "tensor/cuda/kernels/math.cuh"
#include "tensor/cuda/kernels/row.cuh"

/* A row of classes is too long for registers, and has a block of its own. */
#define MOST_THREADS 512
#define MOST_WARPS (MOST_THREADS / 32)

#define PART_SIZE 3 /* logsumexp as two numbers, the target's logit */

typedef struct
{
  const void *logits, *target;
  bool is_wide; /* targets are i64, else i32 */
  gint64 n_rows, n, row_stride, first, n_classes, first_row, ignore_index;
  double smoothing;
  float cap;
  float *loss, *logsumexp, *part; /* each may be NULL */
  EbbCudaFault *fault;
  guint32 serial;
} CrossEntropy;

/* The first element of this thread's first run, and the distance between its runs. */
template <typename T>
static __device__ __forceinline__ gint64
get_first_run (void)
{
  return (gint64) threadIdx.x * VectorSize<T>::value;
}

template <typename T>
static __device__ __forceinline__ gint64
get_run_step (void)
{
  return (gint64) blockDim.x * VectorSize<T>::value;
}

static __device__ __forceinline__ float
cap_logit (const CrossEntropy &self,
           float logit)
{
  return self.cap != 0.0f ? soft_cap (logit, self.cap) : logit;
}

/* The class of a row, or ignore_index; one that is out of range is reported and ignored. */
static __device__ __forceinline__ gint64
get_target (const CrossEntropy &self,
            gint64 row)
{
  const gint64 target = self.is_wide ? ((const gint64 *) self.target)[row] : ((const gint32 *) self.target)[row];

  if (target == self.ignore_index || (target >= 0 && target < self.n_classes))
    return target;
  if (threadIdx.x == 0)
    fault_report (self.fault, self.serial, self.first_row + row, target, self.n_classes);
  return self.ignore_index;
}

static __device__ __forceinline__ void
put_logsumexp (float *to,
               double logsumexp)
{
  to[0] = (float) logsumexp;
  to[1] = isfinite (to[0]) ? (float) (logsumexp - to[0]) : 0.0f;
}

/* What a thread has seen of a row. */
typedef struct
{
  float maximum, sum; /* of e^(x - maximum) */
  double plain;       /* the sum of x, where the loss is smoothed */
} LogitSums;

template <int N>
static __device__ __forceinline__ void
add_logits (const CrossEntropy &self,
            LogitSums *sums,
            float (&values)[N])
{
  float best = sums->maximum, shift;

#pragma unroll
  for (int k = 0; k < N; k++)
    {
      values[k] = cap_logit (self, values[k]);
      best = fmaxf (best, values[k]);
    }
  if (self.smoothing > 0)
    {
#pragma unroll
      for (int k = 0; k < N; k++)
        sums->plain += values[k];
    }
  shift = best == -INFINITY ? 0.0f : best;
  sums->sum *= expf (sums->maximum - shift);
  sums->maximum = best;
#pragma unroll
  for (int k = 0; k < N; k++)
    sums->sum += expf (values[k] - shift); /* a NaN stays */
}

/* log (sum (exp (x))) of a row, and the sum of x. */
template <typename T>
static __device__ __forceinline__ double
reduce_logits (const CrossEntropy &self,
               const T *row,
               double *plain_sum,
               float *scratch,
               double *wide_scratch)
{
  const int run = VectorSize<T>::value, n_at_once = 4;
  const gint64 step = get_run_step<T> (), n_whole = self.n - self.n % run;
  gint64 i = get_first_run<T> ();
  LogitSums sums = { -INFINITY, 0.0f, 0 };
  float most;
  double total;

  /* Several runs at a time, so that their loads are in flight together. */
  for (; i + (n_at_once - 1) * step < n_whole; i += n_at_once * step)
    {
      uint4 packed[n_at_once];
      float values[run];

      if (is_vector_aligned (row + i))
        {
#pragma unroll
          for (int r = 0; r < n_at_once; r++)
            packed[r] = *reinterpret_cast<const uint4 *> (row + i + r * step);
        }
      else
        {
#pragma unroll
          for (int r = 0; r < n_at_once; r++)
            packed[r] = load_packed_run (row, i + r * step, self.n);
        }
#pragma unroll
      for (int r = 0; r < n_at_once; r++)
        {
          unpack_run<T> (packed[r], values);
          add_logits (self, &sums, values);
        }
    }
  for (; i < self.n; i += step)
    {
      float values[run];

      if (i < n_whole)
        {
          load_row_run (row, i, self.n, values);
          add_logits (self, &sums, values);
          continue;
        }
      for (int k = 0; i + k < self.n; k++)
        {
          float value[1] = { load (row + i + k) };

          add_logits (self, &sums, value);
        }
    }
  most = block_max (sums.maximum, scratch);
  total = block_reduce<Sum> (
      (double) sums.sum * exp ((double) sums.maximum - (most == -INFINITY ? 0.0 : (double) most)), wide_scratch);
  if (self.smoothing > 0)
    *plain_sum = block_reduce<Sum> (sums.plain, wide_scratch);
  return most + log (total);
}

template <typename T>
__global__ void __launch_bounds__ (MOST_THREADS)
cross_entropy_rows (CrossEntropy self)
{
  EBB_SHARED_ARRAY (float, scratch, [MOST_WARPS]);
  EBB_SHARED_ARRAY (double, wide_scratch, [MOST_WARPS]);

  for (gint64 row = blockIdx.x; row < self.n_rows; row += gridDim.x)
    {
      const T *logits = (const T *) self.logits + row * self.row_stride;
      const gint64 target = get_target (self, row), column = target - self.first;
      double result = 0, value = 0, logit = 0, plain_sum = 0;

      if (target != self.ignore_index)
        {
          result = reduce_logits (self, logits, &plain_sum, scratch, wide_scratch);
          if (column >= 0 && column < self.n)
            logit = cap_logit (self, load (logits + column));
          value = result - logit;
          if (self.smoothing > 0)
            value = (1 - self.smoothing) * value + self.smoothing * (result - plain_sum / (double) self.n);
        }
      if (threadIdx.x != 0)
        continue;
      if (self.loss != NULL)
        self.loss[row] = (float) value;
      if (self.logsumexp != NULL)
        put_logsumexp (self.logsumexp + 2 * row, result);
      if (self.part == NULL)
        continue;
      put_logsumexp (self.part + PART_SIZE * row, result);
      self.part[PART_SIZE * row + 2] = (float) logit;
    }
}

static void
cross_entropy_init (CrossEntropy *self,
                    const EbbLaunch *launch,
                    const EbbView *logits,
                    const EbbView *target,
                    const EbbCudaQueue *queue)
{
  *self = CrossEntropy{};
  self->logits = logits->data;
  self->target = target->data;
  self->is_wide = target->dtype == EBB_DTYPE_I64;
  self->n_rows = count_rows (logits);
  self->n = count_columns (logits);
  self->row_stride = get_row_stride (logits);
  self->first = launch->params.xent.first;
  self->n_classes = launch->params.xent.n_classes;
  self->first_row = launch->params.xent.first_row;
  self->ignore_index = launch->params.xent.ignore_index;
  self->smoothing = launch->params.xent.smoothing;
  self->cap = (float) launch->params.xent.cap;
  self->fault = queue->fault;
  self->serial = queue->serial;
}

/* How many threads a block has: whole warps. */
static inline unsigned
count_threads_of_row (gint64 n_columns,
                      EbbDType dtype)
{
  const gint64 n_runs = (n_columns * get_dtype_size (dtype) + 15) / 16, n = (n_runs + 31) / 32 * 32;

  return (unsigned) (n < 32 ? 32 : (n < MOST_THREADS ? n : MOST_THREADS));
}

static unsigned
limit_blocks (gint64 n)
{
  return (unsigned) (n < G_MAXINT32 ? n : G_MAXINT32);
}

static cudaError_t
launch_rows (const CrossEntropy &self,
             EbbDType dtype,
             const EbbCudaQueue *queue)
{
  if (self.n_rows == 0)
    return cudaSuccess;
  if (dtype == EBB_DTYPE_F32)
    return EBB_CUDA_LAUNCH (cross_entropy_rows<float>, limit_blocks (self.n_rows), count_threads_of_row (self.n, dtype),
                            0, queue->stream, self);
  return EBB_CUDA_LAUNCH (cross_entropy_rows<Bf16>, limit_blocks (self.n_rows), count_threads_of_row (self.n, dtype), 0,
                          queue->stream, self);
}

EBB_CUDA_KERNEL (cross_entropy)
{
  const EbbView *logits = launch->inputs[0];
  CrossEntropy self;

  cross_entropy_init (&self, launch, logits, launch->inputs[1], queue);
  self.loss = get_floats (get_output (launch, 0));
  self.logsumexp = get_floats (get_output (launch, 1));
  return launch_rows (self, logits->dtype, queue);
}

EBB_CUDA_KERNEL (cross_entropy_part)
{
  const EbbView *logits = launch->inputs[0];
  CrossEntropy self;

  cross_entropy_init (&self, launch, logits, launch->inputs[1], queue);
  self.smoothing = 0;
  self.part = get_floats (launch->outputs[0]);
  return launch_rows (self, logits->dtype, queue);
}

/* -- parts --------------------------------------------------------------------------------------------------------- */

__global__ void __launch_bounds__ (ELEMENTWISE_THREADS)
join_parts (CrossEntropy self,
            gint64 n_parts)
{
  const float *parts = (const float *) self.logits;

  for (gint64 row = get_thread (); row < self.n_rows; row += count_threads ())
    {
      const gint64 target = self.is_wide ? ((const gint64 *) self.target)[row] : ((const gint32 *) self.target)[row];
      double maximum = -INFINITY, sum = 0, logit = 0, result = 0;

      if (target != self.ignore_index)
        {
          for (gint64 i = 0; i < n_parts; i++)
            {
              const float *part = parts + (i * self.n_rows + row) * PART_SIZE;

              maximum = fmax (maximum, (double) part[0] + (double) part[1]);
            }
          for (gint64 i = 0; i < n_parts; i++)
            {
              const float *part = parts + (i * self.n_rows + row) * PART_SIZE;

              sum += exp ((double) part[0] + (double) part[1] - (maximum == -INFINITY ? 0.0 : maximum));
              logit += (double) part[2];
            }
          result = maximum + log (sum);
        }
      self.loss[row] = (float) (result - logit);
      put_logsumexp (self.logsumexp + 2 * row, result);
    }
}

EBB_CUDA_KERNEL (cross_entropy_join)
{
  const EbbView *parts = launch->inputs[0];
  CrossEntropy self;

  cross_entropy_init (&self, launch, parts, launch->inputs[1], queue);
  self.n_rows = parts->shape[1];
  self.loss = get_floats (launch->outputs[0]);
  self.logsumexp = get_floats (launch->outputs[1]);
  if (self.n_rows == 0)
    return cudaSuccess;
  return EBB_CUDA_LAUNCH (join_parts, count_blocks (self.n_rows, queue), ELEMENTWISE_THREADS, 0, queue->stream, self,
                          parts->shape[0]);
}

/* -- gradient ------------------------------------------------------------------------------------------------------ */

typedef struct
{
  CrossEntropy of;
  const float *d_loss;
  gint64 d_loss_stride;
  void *d_logits;
  gint64 row_stride; /* of d_logits */
} CrossEntropyGrad;

/* What the gradients of a row's logits have in common. */
typedef struct
{
  float logsumexp[2], uniform, d_loss;
  gint64 column; /* of the target */
} RowOfGrad;

static __device__ __forceinline__ RowOfGrad
get_row_of_grad (const CrossEntropyGrad &self,
                 gint64 row,
                 gint64 target)
{
  const CrossEntropy &of = self.of;

  return RowOfGrad{ { of.logsumexp[2 * row], of.logsumexp[2 * row + 1] },
                    (float) (of.smoothing / (double) of.n),
                    self.d_loss[row * self.d_loss_stride],
                    target - of.first };
}

/* d_logits = (softmax - (1 - smoothing) [target] - smoothing / n) d_loss, times the slope of the cap. The target's
 * difference is taken in f64: near 0 it would lose its digits. */
static __device__ __forceinline__ float
differentiate_logit (const CrossEntropy &self,
                     const RowOfGrad &row,
                     float x,
                     bool is_target)
{
  const float logit = cap_logit (self, x);
  float d;

  if (is_target)
    d = (float) (exp ((double) logit - ((double) row.logsumexp[0] + (double) row.logsumexp[1])) - (1 - self.smoothing)
                 - self.smoothing / (double) self.n);
  else
    d = expf (logit - row.logsumexp[0] - row.logsumexp[1]) - row.uniform;
  if (self.cap != 0.0f)
    d *= soft_cap_slope (logit, self.cap);
  return row.d_loss * d;
}

/* d_logits may be the logits: a thread writes only elements that it has read. */
template <typename From, typename To>
__global__ void __launch_bounds__ (MOST_THREADS)
cross_entropy_grad_rows (CrossEntropyGrad self)
{
  const int run = VectorSize<From>::value < VectorSize<To>::value ? VectorSize<From>::value : VectorSize<To>::value;
  const CrossEntropy &of = self.of;

  for (gint64 row = blockIdx.x; row < of.n_rows; row += gridDim.x)
    {
      const From *logits = (const From *) of.logits + row * of.row_stride;
      To *d_logits = (To *) self.d_logits + row * self.row_stride;
      const gint64 target = get_target (of, row);
      const RowOfGrad of_row = get_row_of_grad (self, row, target);
      const bool is_ignored = target == of.ignore_index;

      for (gint64 i = (gint64) threadIdx.x * run; i < of.n; i += (gint64) blockDim.x * run)
        {
#pragma unroll
          for (int k = 0; k < run; k++)
            if (i + k < of.n)
              store (d_logits + i + k, is_ignored ? 0.0f
                                                  : differentiate_logit (of, of_row, load (logits + i + k),
                                                                         i + k == of_row.column));
        }
    }
}

/* The same, 16 bytes at a time: rows and addresses allow it. */
template <typename T>
__global__ void __launch_bounds__ (MOST_THREADS)
cross_entropy_grad_runs (CrossEntropyGrad self)
{
  const int run = VectorSize<T>::value;
  const CrossEntropy &of = self.of;

  for (gint64 row = blockIdx.x; row < of.n_rows; row += gridDim.x)
    {
      const T *logits = (const T *) of.logits + row * of.row_stride;
      T *d_logits = (T *) self.d_logits + row * self.row_stride;
      const gint64 target = get_target (of, row);
      const RowOfGrad of_row = get_row_of_grad (self, row, target);

      for (gint64 i = get_first_run<T> (); i < of.n; i += get_run_step<T> ())
        {
          float values[run], results[run] = {};

          load_row_run (logits, i, of.n, values);
          if (target != of.ignore_index)
            {
              const gint64 column = of_row.column - i; /* in this run, or outside of it */

#pragma unroll
              for (int k = 0; k < run; k++)
                results[k] = differentiate_logit (of, of_row, values[k], k == column);
            }
          store_row_run (d_logits, i, of.n, results);
        }
    }
}

EBB_CUDA_KERNEL (cross_entropy_grad)
{
  const EbbView *d_loss = launch->inputs[0], *logits = launch->inputs[1], *output = launch->outputs[0];
  const int last = d_loss->n_dims - 1;
  CrossEntropyGrad self;
  unsigned n_blocks, n_threads;

  cross_entropy_init (&self.of, launch, logits, launch->inputs[2], queue);
  self.of.logsumexp = get_floats (launch->inputs[3]);
  self.d_loss = (const float *) d_loss->data;
  self.d_loss_stride = last >= 0 && d_loss->shape[last] > 1 ? d_loss->strides[last] : 0;
  self.d_logits = output->data;
  self.row_stride = get_row_stride (output);
  if (self.of.n_rows == 0 || self.of.n == 0)
    return cudaSuccess;
  n_blocks = limit_blocks (self.of.n_rows);
  n_threads = count_threads_of_row (self.of.n, logits->dtype);
  if (logits->dtype == EBB_DTYPE_F32 && output->dtype == EBB_DTYPE_F32)
    return EBB_CUDA_LAUNCH (cross_entropy_grad_runs<float>, n_blocks, n_threads, 0, queue->stream, self);
  if (logits->dtype == EBB_DTYPE_F32)
    return EBB_CUDA_LAUNCH (cross_entropy_grad_rows<float, Bf16>, n_blocks, n_threads, 0, queue->stream, self);
  if (output->dtype == EBB_DTYPE_F32)
    return EBB_CUDA_LAUNCH (cross_entropy_grad_rows<Bf16, float>, n_blocks, n_threads, 0, queue->stream, self);
  return EBB_CUDA_LAUNCH (cross_entropy_grad_runs<Bf16>, n_blocks, n_threads, 0, queue->stream, self);
}
