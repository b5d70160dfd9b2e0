/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Kernels that compute each element of a result from the same element of up to three operands.
 *
 * An operation is a struct that goes to the kernel by value and has a number of operands, N, and
 *   template <int COUNT> void floats (const float (&x)[N][COUNT], float (&y)[COUNT]) const
 *   gint64 integer (const gint64 (&x)[N]) const
 * where integers have no meaning, `integer` is inherited from NoIntegers. */

#include "tensor/cuda/kernels/element.cuh"
#include "tensor/cuda/kernels/layout.cuh"

template <int N>
struct Operands
{
  Layout<N + 1> layout; /* of the operands, then the result */
  const void *in[N];
  void *out;
  EbbDType in_dtypes[N], out_dtype;
  bool is_float; /* how it is computed */
  const EbbCudaFault *guard;
};

struct NoIntegers
{
  template <typename Inputs>
  __device__ gint64
  integer (const Inputs &) const
  {
    return 0;
  }
};

/* RUN elements in f32 or bf16 at an address of 16 bytes. */
template <int RUN>
static __device__ __forceinline__ void
load_floats (EbbDType dtype,
             const void *data,
             gint64 at,
             float (&values)[RUN])
{
  if (RUN == 4 || dtype == EBB_DTYPE_F32)
    {
#pragma unroll
      for (int k = 0; k < RUN; k += 4)
        load_run ((const float *) data + at + k, *reinterpret_cast<float (*)[4]> (values + k));
    }
  else
    load_run ((const Bf16 *) data + at, *reinterpret_cast<float (*)[8]> (values));
}

template <int RUN>
static __device__ __forceinline__ void
store_floats (EbbDType dtype,
              void *data,
              gint64 at,
              const float (&values)[RUN])
{
  if (RUN == 4 || dtype == EBB_DTYPE_F32)
    {
#pragma unroll
      for (int k = 0; k < RUN; k += 4)
        store_run ((float *) data + at + k, *reinterpret_cast<const float (*)[4]> (values + k));
    }
  else
    store_run ((Bf16 *) data + at, *reinterpret_cast<const float (*)[8]> (values));
}

/* Operands and result in f32, or with RUN = 8 some or all in bf16. Along the last dimension the result and the operands
 * are contiguous, or an operand stays where it is; the layout is that of runs of 16 bytes. The few elements behind the
 * last run of a single row go one by one. */
template <int RUN, typename Index, int N, typename Operation>
__global__ void __launch_bounds__ (ELEMENTWISE_THREADS)
elementwise_runs (Operands<N> operands,
                  Operation operation,
                  gint64 n)
{
  const int last = operands.layout.n_dims - 1;
  const gint64 n_runs = operands.layout.n_elements;

  if (fault_is_set (operands.guard))
    return;
  for (gint64 i = get_thread (); i < n_runs; i += count_threads ())
    {
      float x[N][RUN], y[RUN];
      gint64 at[N + 1];

      layout_find<Index> (operands.layout, (Index) i, at);
#pragma unroll
      for (int k = 0; k < N; k++)
        if (operands.layout.strides[k][last] != 0)
          load_floats (operands.in_dtypes[k], operands.in[k], at[k], x[k]);
        else
          {
            const float value = load_float (operands.in_dtypes[k], operands.in[k], at[k]);

#pragma unroll
            for (int j = 0; j < RUN; j++)
              x[k][j] = value;
          }
      operation.floats (x, y);
      store_floats (operands.out_dtype, operands.out, at[N], y);
    }
  for (gint64 i = n_runs * RUN + get_thread (); i < n; i += count_threads ())
    {
      float x[N][1], y[1];

#pragma unroll
      for (int k = 0; k < N; k++)
        x[k][0] = load_float (operands.in_dtypes[k], operands.in[k], operands.layout.strides[k][last] != 0 ? i : 0);
      operation.floats (x, y);
      store_float (operands.out_dtype, operands.out, i, y[0]);
    }
}

/* Any strides and dtypes. */
template <typename Index, int N, typename Operation>
__global__ void __launch_bounds__ (ELEMENTWISE_THREADS)
elementwise_strided (Operands<N> operands,
                     Operation operation)
{
  if (fault_is_set (operands.guard))
    return;
  for (gint64 i = get_thread (); i < operands.layout.n_elements; i += count_threads ())
    {
      gint64 at[N + 1];

      layout_find<Index> (operands.layout, (Index) i, at);
      if (operands.is_float)
        {
          float x[N][1], y[1];

#pragma unroll
          for (int k = 0; k < N; k++)
            x[k][0] = load_float (operands.in_dtypes[k], operands.in[k], at[k]);
          operation.floats (x, y);
          store_float (operands.out_dtype, operands.out, at[N], y[0]);
        }
      else
        {
          gint64 x[N];

#pragma unroll
          for (int k = 0; k < N; k++)
            x[k] = load_integer (operands.in_dtypes[k], operands.in[k], at[k]);
          store_integer (operands.out_dtype, operands.out, at[N], operation.integer (x));
        }
    }
}

static inline bool
is_run_dtype (EbbDType dtype)
{
  return dtype == EBB_DTYPE_F32 || dtype == EBB_DTYPE_BF16;
}

/* Makes the layout one of runs. Returns the elements of one, 0 if the operands have none. */
template <int N>
static inline int
layout_take_runs (Operands<N> *operands)
{
  Layout<N + 1> *layout = &operands->layout;
  const int last = layout->n_dims - 1;
  int run = operands->out_dtype == EBB_DTYPE_F32 ? 4 : 8;

  for (int k = 0; k < N; k++)
    run = operands->in_dtypes[k] == EBB_DTYPE_F32 ? run : 8;
  if (!operands->is_float || !is_run_dtype (operands->out_dtype) || !is_vector_aligned (operands->out)
      || layout->strides[N][last] != 1 || (last > 0 && layout->shape[last] % run != 0))
    return 0;
  for (int k = 0; k <= N; k++)
    {
      const gint64 stride = layout->strides[k][last];

      if (k < N && (!is_run_dtype (operands->in_dtypes[k]) || (stride == 1 && !is_vector_aligned (operands->in[k]))))
        return 0;
      if (stride != 0 && stride != 1)
        return 0;
      for (int d = 0; stride == 1 && d < last; d++)
        if (layout->strides[k][d] % run != 0)
          return 0;
    }
  for (int k = 0; k <= N; k++)
    layout->strides[k][last] *= run;
  layout->shape[last] /= run;
  layout->n_elements /= run; /* of several dimensions a multiple of run */
  return run;
}

template <int RUN, int N, typename Operation>
static inline cudaError_t
launch_runs (const Operands<N> &operands,
             const Operation &operation,
             gint64 n,
             const EbbCudaQueue *queue)
{
  const unsigned n_blocks = count_blocks (operands.layout.n_elements + 1, queue);

  if (n <= G_MAXINT32)
    return EBB_CUDA_LAUNCH (elementwise_runs<RUN, guint32, N, Operation>, n_blocks, ELEMENTWISE_THREADS, 0,
                            queue->stream, operands, operation, n);
  return EBB_CUDA_LAUNCH (elementwise_runs<RUN, guint64, N, Operation>, n_blocks, ELEMENTWISE_THREADS, 0, queue->stream,
                          operands, operation, n);
}

/* views: the operands, then the result. */
template <int N, typename Operation>
static inline cudaError_t
elementwise_launch (const EbbView *const (&views)[N + 1],
                    bool is_float,
                    const Operation &operation,
                    const EbbCudaQueue *queue)
{
  Operands<N> operands;
  gint64 n;
  int run;

  layout_init (&operands.layout, views[N], views);
  n = operands.layout.n_elements;
  if (n == 0)
    return cudaSuccess;
  for (int k = 0; k < N; k++)
    {
      operands.in[k] = views[k]->data;
      operands.in_dtypes[k] = views[k]->dtype;
    }
  operands.out = views[N]->data;
  operands.out_dtype = views[N]->dtype;
  operands.is_float = is_float;
  operands.guard = queue->guard;
  run = layout_take_runs (&operands);
  if (run != 0)
    return run == 4 ? launch_runs<4> (operands, operation, n, queue) : launch_runs<8> (operands, operation, n, queue);
  if (n <= G_MAXINT32)
    return EBB_CUDA_LAUNCH (elementwise_strided<guint32, N, Operation>, count_blocks (n, queue), ELEMENTWISE_THREADS,
                            0, queue->stream, operands, operation);
  return EBB_CUDA_LAUNCH (elementwise_strided<guint64, N, Operation>, count_blocks (n, queue), ELEMENTWISE_THREADS, 0,
                          queue->stream, operands, operation);
}
