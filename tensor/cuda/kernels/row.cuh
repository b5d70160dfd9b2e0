/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Kernels of rows: a block of threads for a row, of which each thread has runs of 16 bytes, always the same ones
 * whether an address allows a load of 16 bytes or not, so that sums have one order. A thread that reads a row again
 * reads its own runs, from the cache. */

#include "tensor/cuda/kernels/element.cuh"
#include "tensor/cuda/kernels/layout.cuh"

#define ROW_MOST_THREADS 512
#define ROW_MOST_WARPS (ROW_MOST_THREADS / 32)

/* The rows of a contiguous view: all of its dimensions but the last. */
static inline gint64
count_rows (const EbbView *view)
{
  gint64 n = 1;

  for (int i = 0; i < view->n_dims - 1; i++)
    n *= view->shape[i];
  return n;
}

static inline gint64
count_columns (const EbbView *view)
{
  return view->n_dims > 0 ? view->shape[view->n_dims - 1] : 1;
}

/* From one row to the next of a contiguous view, or of a matrix whose rows are apart. */
static inline gint64
get_row_stride (const EbbView *view)
{
  return view->n_dims == 2 ? view->strides[0] : count_columns (view);
}

static inline const EbbView *
get_input (const EbbLaunch *launch,
           guint i)
{
  return i < launch->n_inputs ? launch->inputs[i] : NULL;
}

static inline EbbView *
get_output (const EbbLaunch *launch,
            guint i)
{
  return i < launch->n_outputs ? launch->outputs[i] : NULL;
}

static inline const void *
get_data (const EbbView *view)
{
  return view != NULL ? view->data : NULL;
}

static inline float *
get_floats (const EbbView *view)
{
  return view != NULL ? (float *) view->data : NULL;
}

/* Threads for a row of so many columns, by whole warps. */
static inline unsigned
count_row_threads (gint64 n_columns,
                   EbbDType dtype)
{
  const gint64 n_runs = (n_columns * get_dtype_size (dtype) + 15) / 16, n = (n_runs + 31) / 32 * 32;

  return (unsigned) (n < 32 ? 32 : (n < ROW_MOST_THREADS ? n : ROW_MOST_THREADS));
}

/* Elements [i, i + run) of a row of n; those behind its end become 0. */
template <typename T>
static __device__ __forceinline__ void
load_row_run (const T *row,
              gint64 i,
              gint64 n,
              float (&values)[VectorSize<T>::value])
{
  if (i + VectorSize<T>::value <= n && is_vector_aligned (row + i))
    {
      load_run (row + i, values);
      return;
    }
#pragma unroll
  for (int k = 0; k < VectorSize<T>::value; k++)
    values[k] = i + k < n ? load (row + i + k) : 0.0f;
}

template <typename T>
static __device__ __forceinline__ void
store_row_run (T *row,
               gint64 i,
               gint64 n,
               const float (&values)[VectorSize<T>::value])
{
  if (i + VectorSize<T>::value <= n && is_vector_aligned (row + i))
    {
      store_run (row + i, values);
      return;
    }
#pragma unroll
  for (int k = 0; k < VectorSize<T>::value; k++)
    if (i + k < n)
      store (row + i + k, values[k]);
}

/* The first element of this thread's next run, and how far apart its runs are. */
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

/* visit (x) for each element of a row of n that is this thread's. */
template <typename T, typename Visit>
static __device__ __forceinline__ void
visit_row (const T *row,
           gint64 n,
           Visit visit)
{
  for (gint64 i = get_first_run<T> (); i < n; i += get_run_step<T> ())
    {
      float values[VectorSize<T>::value];

      load_row_run (row, i, n, values);
#pragma unroll
      for (int k = 0; k < VectorSize<T>::value; k++)
        if (i + k < n)
          visit (values[k]);
    }
}

/* A vector of parameters of either dtype, with any stride. */
typedef struct
{
  const void *data; /* NULL: left out */
  EbbDType dtype;
  gint64 stride;
} Vector;

static inline Vector
get_vector (const EbbView *view)
{
  Vector vector = { NULL, EBB_DTYPE_F32, 0 };

  if (view != NULL)
    {
      vector.data = view->data;
      vector.dtype = view->dtype;
      vector.stride = view->n_dims > 0 ? view->strides[view->n_dims - 1] : 0;
    }
  return vector;
}

static __device__ __forceinline__ float
load_vector_element (const Vector &vector,
                     gint64 i)
{
  return load_float (vector.dtype, vector.data, i * vector.stride);
}

/* -- mean and variance --------------------------------------------------------------------------------------------- */

/* From the sums of distances to a centre and of their squares, see tensor/cpu/simd/statistics-private.h. */
typedef struct
{
  float centre, mean, rest, variance;
} Statistics;

/* False: the distances are to be summed once more, to the new centre. */
static __device__ __forceinline__ bool
statistics_take (Statistics *self,
                 double sum,
                 double squares,
                 double n)
{
  double distance = sum / n, mean = self->centre + distance, variance = squares / n - distance * distance;

  self->mean = self->centre = (float) mean;
  self->rest = (float) (mean - self->mean);
  self->variance = (float) (variance < 0 ? 0 : variance); /* a NaN is not less */
  return !(distance * distance > 4 * variance) && !isinf (squares);
}

/* -- sums over rows ------------------------------------------------------------------------------------------------ */

#define PARTIAL_COLUMNS 32
#define PARTIAL_LANES 8
#define PARTIAL_THREADS (PARTIAL_COLUMNS * PARTIAL_LANES)

/* Adds partials [n_partials, stride] for each of n columns: eight threads take every eighth, and their sums are added
 * in order. */
static __global__ void __launch_bounds__ (PARTIAL_THREADS)
sum_partials_of_columns (const float *partials,
                         gint64 n_partials,
                         gint64 stride,
                         gint64 n,
                         bool accumulates,
                         float *sums)
{
  EBB_SHARED_ARRAY (float, lanes, [PARTIAL_LANES][PARTIAL_COLUMNS]);
  const unsigned column_of_block = threadIdx.x % PARTIAL_COLUMNS, lane = threadIdx.x / PARTIAL_COLUMNS;
  const gint64 column = (gint64) blockIdx.x * PARTIAL_COLUMNS + column_of_block;
  float sum = 0.0f;

  if (column < n)
    for (gint64 i = lane; i < n_partials; i += PARTIAL_LANES)
      sum += partials[i * stride + column];
  lanes[lane][column_of_block] = sum;
  __syncthreads ();
  if (lane != 0 || column >= n)
    return;
  for (int i = 1; i < PARTIAL_LANES; i++)
    sum += lanes[i][column_of_block];
  sums[column] = accumulates ? sums[column] + sum : sum;
}

static inline cudaError_t
launch_sum_partials (const float *partials,
                     gint64 n_partials,
                     gint64 stride,
                     gint64 n,
                     bool accumulates,
                     float *sums,
                     const EbbCudaQueue *queue)
{
  return EBB_CUDA_LAUNCH (sum_partials_of_columns, (unsigned) ((n + PARTIAL_COLUMNS - 1) / PARTIAL_COLUMNS),
                          PARTIAL_THREADS, 0, queue->stream, partials, n_partials, stride, n,
                          accumulates, sums);
}

/* Rows are summed in so many blocks at most. */
#define ROW_BLOCKS 512

static inline gint64
count_rows_of_block (gint64 n_rows)
{
  return n_rows > ROW_BLOCKS ? (n_rows + ROW_BLOCKS - 1) / ROW_BLOCKS : 1;
}
