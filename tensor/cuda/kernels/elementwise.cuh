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

/* Operands and result are contiguous, of one dtype, and aligned: 16 bytes at a time, and the rest one by one. */
template <typename T, int N, typename Operation>
__global__ void __launch_bounds__ (ELEMENTWISE_THREADS)
elementwise_runs (Operands<N> operands,
                  Operation operation)
{
  const int run = VectorSize<T>::value;
  gint64 n = operands.layout.n_elements, n_runs = n / run;

  if (fault_is_set (operands.guard))
    return;
  for (gint64 i = get_thread (); i < n_runs; i += count_threads ())
    {
      float x[N][run], y[run];

#pragma unroll
      for (int k = 0; k < N; k++)
        load_run ((const T *) operands.in[k] + i * run, x[k]);
      operation.floats (x, y);
      store_run ((T *) operands.out + i * run, y);
    }
  for (gint64 i = n_runs * run + get_thread (); i < n; i += count_threads ())
    {
      float x[N][1], y[1];

#pragma unroll
      for (int k = 0; k < N; k++)
        x[k][0] = to_float (((const T *) operands.in[k])[i]);
      operation.floats (x, y);
      ((T *) operands.out)[i] = from_float<T> (y[0]);
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

template <int N>
static inline bool
are_runs (const Operands<N> &operands,
          const EbbView *const (&views)[N + 1])
{
  EbbDType dtype = operands.out_dtype;

  if (!operands.is_float || (dtype != EBB_DTYPE_F32 && dtype != EBB_DTYPE_BF16))
    return false;
  for (int k = 0; k <= N; k++)
    if (views[k]->dtype != dtype || !is_contiguous (views[k]) || !is_vector_aligned (views[k]->data))
      return false;
  return true;
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
  if (are_runs (operands, views) && operands.out_dtype == EBB_DTYPE_F32)
    return EBB_CUDA_LAUNCH (elementwise_runs<float, N, Operation>, count_blocks ((n + 3) / 4, queue),
                            ELEMENTWISE_THREADS, 0, queue->stream, operands, operation);
  if (are_runs (operands, views))
    return EBB_CUDA_LAUNCH (elementwise_runs<Bf16, N, Operation>, count_blocks ((n + 7) / 8, queue),
                            ELEMENTWISE_THREADS, 0, queue->stream, operands, operation);
  if (n <= G_MAXINT32)
    return EBB_CUDA_LAUNCH (elementwise_strided<guint32, N, Operation>, count_blocks (n, queue), ELEMENTWISE_THREADS,
                            0, queue->stream, operands, operation);
  return EBB_CUDA_LAUNCH (elementwise_strided<guint64, N, Operation>, count_blocks (n, queue), ELEMENTWISE_THREADS, 0,
                          queue->stream, operands, operation);
}
