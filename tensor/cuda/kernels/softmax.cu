/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Softmax and log-softmax of rows, and their gradients. */
#include "tensor/cuda/kernels/row.cuh"

template <typename T>
__global__ void __launch_bounds__ (ROW_MOST_THREADS)
softmax_rows (const T *x,
              T *y,
              gint64 n_rows,
              gint64 n,
              bool is_log)
{
  EBB_SHARED_ARRAY (float, scratch, [ROW_MOST_WARPS]);
  const int run = VectorSize<T>::value;

  for (gint64 row = blockIdx.x; row < n_rows; row += gridDim.x)
    {
      const T *from = x + row * n;
      T *to = y + row * n;
      float maximum = -INFINITY, sum = 0.0f, scale, log_sum;

      visit_row (from, n, [&] (float value) { maximum = Max::join (value, maximum); });
      maximum = block_max (maximum, scratch);
      visit_row (from, n, [&] (float value) { sum += expf (value - maximum); });
      sum = block_sum (sum, scratch);
      scale = 1.0f / sum;
      log_sum = logf (sum);
      for (gint64 i = get_first_run<T> (); i < n; i += get_run_step<T> ())
        {
          float values[run];

          load_row_run (from, i, n, values);
#pragma unroll
          for (int k = 0; k < run; k++)
            values[k] = is_log ? values[k] - maximum - log_sum : expf (values[k] - maximum) * scale;
          store_row_run (to, i, n, values);
        }
    }
}

/* softmax: dx = y (dy - sum (dy y)); log-softmax: dx = dy - exp (y) sum (dy) */
template <typename T>
__global__ void __launch_bounds__ (ROW_MOST_THREADS)
softmax_grad_rows (const T *dy,
                   const T *y,
                   T *dx,
                   gint64 n_rows,
                   gint64 n,
                   bool is_log)
{
  EBB_SHARED_ARRAY (float, scratch, [ROW_MOST_WARPS]);
  const int run = VectorSize<T>::value;

  for (gint64 row = blockIdx.x; row < n_rows; row += gridDim.x)
    {
      float sum = 0.0f;

      for (gint64 i = get_first_run<T> (); i < n; i += get_run_step<T> ())
        {
          float dys[run], ys[run];

          load_row_run (dy + row * n, i, n, dys);
          load_row_run (y + row * n, i, n, ys);
#pragma unroll
          for (int k = 0; k < run; k++)
            sum = is_log ? sum + dys[k] : fmaf (dys[k], ys[k], sum); /* 0 behind the end */
        }
      sum = block_sum (sum, scratch);
      for (gint64 i = get_first_run<T> (); i < n; i += get_run_step<T> ())
        {
          float dys[run], ys[run];

          load_row_run (dy + row * n, i, n, dys);
          load_row_run (y + row * n, i, n, ys);
#pragma unroll
          for (int k = 0; k < run; k++)
            dys[k] = is_log ? dys[k] - expf (ys[k]) * sum : ys[k] * (dys[k] - sum);
          store_row_run (dx + row * n, i, n, dys);
        }
    }
}

static unsigned
limit_blocks (gint64 n)
{
  return (unsigned) (n < G_MAXINT32 ? n : G_MAXINT32);
}

EBB_CUDA_KERNEL (softmax)
{
  const EbbView *x = launch->inputs[0];
  const gint64 n_rows = count_rows (x), n = count_columns (x);
  void *y = launch->outputs[0]->data;
  const bool is_log = launch->params.softmax.log != FALSE;

  if (n_rows == 0 || n == 0)
    return cudaSuccess;
  if (x->dtype == EBB_DTYPE_F32)
    return EBB_CUDA_LAUNCH (softmax_rows<float>, limit_blocks (n_rows), count_row_threads (n, x->dtype), 0,
                            queue->stream, (const float *) x->data, (float *) y, n_rows, n, is_log);
  return EBB_CUDA_LAUNCH (softmax_rows<Bf16>, limit_blocks (n_rows), count_row_threads (n, x->dtype), 0, queue->stream,
                          (const Bf16 *) x->data, (Bf16 *) y, n_rows, n, is_log);
}

EBB_CUDA_KERNEL (softmax_grad)
{
  const EbbView *dy = launch->inputs[0], *y = launch->inputs[1];
  const gint64 n_rows = count_rows (y), n = count_columns (y);
  void *dx = launch->outputs[0]->data;
  const bool is_log = launch->params.softmax.log != FALSE;

  if (n_rows == 0 || n == 0)
    return cudaSuccess;
  if (y->dtype == EBB_DTYPE_F32)
    return EBB_CUDA_LAUNCH (softmax_grad_rows<float>, limit_blocks (n_rows), count_row_threads (n, y->dtype), 0,
                            queue->stream, (const float *) dy->data, (const float *) y->data, (float *) dx, n_rows, n,
                            is_log);
  return EBB_CUDA_LAUNCH (softmax_grad_rows<Bf16>, limit_blocks (n_rows), count_row_threads (n, y->dtype), 0,
                          queue->stream, (const Bf16 *) dy->data, (const Bf16 *) y->data, (Bf16 *) dx, n_rows, n,
                          is_log);
}
