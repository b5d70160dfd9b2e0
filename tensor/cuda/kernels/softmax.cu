/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Softmax and log-softmax of rows, and their gradients. */
#include "tensor/cuda/kernels/row.cuh"

template <typename T, bool IS_WHOLE>
__global__ void __launch_bounds__ (TEAM_MOST_THREADS)
softmax_rows (const T *x,
              T *y,
              gint64 n_rows,
              gint64 n,
              bool is_log)
{
  EBB_SHARED_ARRAY (float, scratch, [TEAM_MOST_WARPS]);
  const int run = VectorSize<T>::value;
  const RowTeam<IS_WHOLE> team = get_row_team<IS_WHOLE> (n);

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
template <typename T, bool IS_WHOLE>
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
  const RowTeam<IS_WHOLE> team = get_row_team<IS_WHOLE> (n);

  for (gint64 row = team.row; row < n_rows; row += team.row_step)
    {
      const T *own_dy = dy + row * n, *own_y = y + row * n;
      RowRuns<T> dy_runs, y_runs;
      float sum = 0.0f;

      load_runs (team, own_dy, n, &dy_runs);
      load_runs (team, own_y, n, &y_runs);
      visit_runs (team, y_runs, own_y, n, [&] (gint64 i, int r, const float (&ys)[run]) {
        float dys[run];

        unpack_run<T> (r >= 0 ? dy_runs.of[r] : load_team_run (team, own_dy, i, n), dys);
#pragma unroll
        for (int k = 0; k < run; k++)
          sum = is_log ? sum + dys[k] : fmaf (dys[k], ys[k], sum); /* 0 behind the end */
      });
      sum = team_sum (team, sum, scratch);
      visit_runs (team, y_runs, own_y, n, [&] (gint64 i, int r, const float (&ys)[run]) {
        float dys[run];

        unpack_run<T> (r >= 0 ? dy_runs.of[r] : load_team_run (team, own_dy, i, n), dys);
#pragma unroll
        for (int k = 0; k < run; k++)
          dys[k] = is_log ? dys[k] - expf (ys[k]) * sum : ys[k] * (dys[k] - sum);
        store_team_run (team, dx + row * n, i, n, dys);
      });
    }
}

template <typename T>
static cudaError_t
launch_softmax (const EbbView *x,
                EbbView *y,
                bool is_log,
                const EbbCudaQueue *queue)
{
  const gint64 n_rows = count_rows (x), n = count_columns (x);
  const auto kernel = is_whole (x) && is_whole (y) ? softmax_rows<T, true> : softmax_rows<T, false>;

  if (n_rows == 0 || n == 0)
    return cudaSuccess;
  return EBB_CUDA_LAUNCH (kernel, count_team_blocks (n_rows, n), count_team_threads (n), 0, queue->stream,
                          (const T *) x->data, (T *) y->data, n_rows, n, is_log);
}

EBB_CUDA_KERNEL (softmax)
{
  const EbbView *x = launch->inputs[0];
  const bool is_log = launch->params.softmax.log != FALSE;

  return x->dtype == EBB_DTYPE_F32 ? launch_softmax<float> (x, launch->outputs[0], is_log, queue)
                                   : launch_softmax<Bf16> (x, launch->outputs[0], is_log, queue);
}

template <typename T>
static cudaError_t
launch_softmax_grad (const EbbLaunch *launch,
                     const EbbCudaQueue *queue)
{
  const EbbView *dy = launch->inputs[0], *y = launch->inputs[1];
  EbbView *dx = launch->outputs[0];
  const gint64 n_rows = count_rows (y), n = count_columns (y);
  const bool whole = is_whole (dy) && is_whole (y) && is_whole (dx);
  const auto kernel = whole ? softmax_grad_rows<T, true> : softmax_grad_rows<T, false>;

  if (n_rows == 0 || n == 0)
    return cudaSuccess;
  return EBB_CUDA_LAUNCH (kernel, count_team_blocks (n_rows, n), count_team_threads (n), 0, queue->stream,
                          (const T *) dy->data, (const T *) y->data, (T *) dx->data, n_rows, n,
                          launch->params.softmax.log != FALSE);
}

EBB_CUDA_KERNEL (softmax_grad)
{
  return launch->inputs[1]->dtype == EBB_DTYPE_F32 ? launch_softmax_grad<float> (launch, queue)
                                                   : launch_softmax_grad<Bf16> (launch, queue);
}
