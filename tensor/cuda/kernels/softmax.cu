/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Softmax and log-softmax of rows, and their gradients. */
#include "tensor/cuda/kernels/row.cuh"

template <typename T>
__global__ void __launch_bounds__ (TEAM_MOST_THREADS)
softmax_rows (const T *x,
              T *y,
              gint64 n_rows,
              gint64 n,
              bool is_log)
{
  EBB_SHARED_ARRAY (float, scratch, [TEAM_MOST_WARPS]);
  const int run = VectorSize<T>::value;
  const RowTeam team = get_row_team (n);

  for (gint64 row = team.row; row < n_rows; row += team.row_step)
    {
      const T *from = x + row * n;
      float maximum = -INFINITY, sum = 0.0f, scale, log_sum;
      RowRuns<T> runs;

      load_runs (team, from, n, &runs);
      visit_elements (team, runs, from, n, [&] (float value) { maximum = Max::join (value, maximum); });
      maximum = team_reduce<Max> (team, maximum, scratch);
      visit_elements (team, runs, from, n, [&] (float value) { sum += expf (value - maximum); });
      sum = team_sum (team, sum, scratch);
      scale = 1.0f / sum;
      log_sum = logf (sum);
      change_runs (team, &runs, from, n, y + row * n, [&] (gint64, float (&values)[run]) {
#pragma unroll
        for (int k = 0; k < run; k++)
          values[k] = is_log ? values[k] - maximum - log_sum : expf (values[k] - maximum) * scale;
      });
    }
}

/* softmax: dx = y (dy - sum (dy y)); log-softmax: dx = dy - exp (y) sum (dy) */
template <typename T>
__global__ void __launch_bounds__ (TEAM_MOST_THREADS)
softmax_grad_rows (const T *dy,
                   const T *y,
                   T *dx,
                   gint64 n_rows,
                   gint64 n,
                   bool is_log)
{
  EBB_SHARED_ARRAY (float, scratch, [TEAM_MOST_WARPS]);
  const int run = VectorSize<T>::value;
  const RowTeam team = get_row_team (n);

  for (gint64 row = team.row; row < n_rows; row += team.row_step)
    {
      const T *own_dy = dy + row * n, *own_y = y + row * n;
      RowRuns<T> dy_runs, y_runs;
      float sum = 0.0f;

      load_runs (team, own_dy, n, &dy_runs);
      load_runs (team, own_y, n, &y_runs);
      visit_runs (team, y_runs, own_y, n, [&] (gint64 i, int r, const float (&ys)[run]) {
        float dys[run];

        unpack_run<T> (r >= 0 ? dy_runs.of[r] : load_packed_run (own_dy, i, n), dys);
#pragma unroll
        for (int k = 0; k < run; k++)
          sum = is_log ? sum + dys[k] : fmaf (dys[k], ys[k], sum); /* 0 behind the end */
      });
      sum = team_sum (team, sum, scratch);
      visit_runs (team, y_runs, own_y, n, [&] (gint64 i, int r, const float (&ys)[run]) {
        float dys[run];

        unpack_run<T> (r >= 0 ? dy_runs.of[r] : load_packed_run (own_dy, i, n), dys);
#pragma unroll
        for (int k = 0; k < run; k++)
          dys[k] = is_log ? dys[k] - expf (ys[k]) * sum : ys[k] * (dys[k] - sum);
        store_row_run (dx + row * n, i, n, dys);
      });
    }
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
    return EBB_CUDA_LAUNCH (softmax_rows<float>, count_team_blocks (n_rows, n), count_team_threads (n), 0,
                            queue->stream, (const float *) x->data, (float *) y, n_rows, n, is_log);
  return EBB_CUDA_LAUNCH (softmax_rows<Bf16>, count_team_blocks (n_rows, n), count_team_threads (n), 0, queue->stream,
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
    return EBB_CUDA_LAUNCH (softmax_grad_rows<float>, count_team_blocks (n_rows, n), count_team_threads (n), 0,
                            queue->stream, (const float *) dy->data, (const float *) y->data, (float *) dx, n_rows, n,
                            is_log);
  return EBB_CUDA_LAUNCH (softmax_grad_rows<Bf16>, count_team_blocks (n_rows, n), count_team_threads (n), 0,
                          queue->stream, (const Bf16 *) dy->data, (const Bf16 *) y->data, (Bf16 *) dx, n_rows, n,
                          is_log);
}
