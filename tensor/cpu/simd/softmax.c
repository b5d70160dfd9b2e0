/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */

#include "tensor/cpu/simd/cursor-private.h"
#include "tensor/cpu/simd/simd-private.h"

#include "tensor/cpu/parallel-private.h"

/* Softmax and log-softmax of rows, and their gradients. */

typedef struct
{
  gint64 columns;
  const void *dy;
  const void *x; /* the gradient's y */
  void *y;       /* the gradient's dx */
} Softmax;

/* A row of -inf has no softmax: subtracting 0 instead of its maximum gives NaN all the same, as 0 / 0. */
EBB_VEC_INLINE float
find_maximum (EbbDType dtype,
              const void *x,
              gint64 at,
              gint64 n)
{
  EbbVec a = vec_set1 (-INFINITY), b = a;
  gint64 i = 0;

  for (; i + 2 * EBB_VEC_WIDTH <= n; i += 2 * EBB_VEC_WIDTH)
    {
      a = vec_max_nan (a, vec_load_as (dtype, x, at + i, EBB_VEC_WIDTH));
      b = vec_max_nan (b, vec_load_as (dtype, x, at + i + EBB_VEC_WIDTH, EBB_VEC_WIDTH));
    }
  for (; i < n; i += EBB_VEC_WIDTH)
    {
      gint64 m = MIN (n - i, EBB_VEC_WIDTH);

      a = vec_max_nan (a, vec_first (vec_load_as (dtype, x, at + i, m), m, a));
    }
  return vec_reduce_max_nan (vec_max_nan (a, b));
}

EBB_VEC_INLINE void
softmax_row (EbbDType dtype,
             gboolean log,
             const void *x,
             void *y,
             gint64 at,
             gint64 n)
{
  EbbVec maximum = vec_set1 (find_maximum (dtype, x, at, n));
  EbbVec sum = { 0 };

  /* exp stays in y where y is f32 and wanted; a bf16 y would round it before it is scaled. */
  EBB_VEC_FOR (i, m, n)
    {
      EbbVec e = vec_exp (vec_load_as (dtype, x, at + i, m) - maximum);

      sum += vec_first (e, m, (EbbVec){ 0 });
      if (dtype == EBB_DTYPE_F32 && !log)
        vec_store_as (dtype, y, at + i, m, e);
    }
  if (log)
    {
      EbbVec log_sum = vec_set1 (logf (vec_sum (sum)));

      EBB_VEC_FOR (i, m, n)
        vec_store_as (dtype, y, at + i, m, vec_load_as (dtype, x, at + i, m) - maximum - log_sum);
    }
  else
    {
      EbbVec scale = vec_set1 (1.0f / vec_sum (sum));

      EBB_VEC_FOR (i, m, n)
        {
          EbbVec e;

          if (dtype == EBB_DTYPE_F32)
            e = vec_load_as (dtype, y, at + i, m);
          else
            e = vec_exp (vec_load_as (dtype, x, at + i, m) - maximum);
          vec_store_as (dtype, y, at + i, m, e * scale);
        }
    }
}

/* softmax: dx = y (dy - sum (dy y)); log-softmax: dx = dy - exp (y) sum (dy) */
EBB_VEC_INLINE void
softmax_grad_row (EbbDType dtype,
                  gboolean log,
                  const Softmax *work,
                  gint64 at)
{
  gint64 n = work->columns;
  EbbVec sum = { 0 };

  EBB_VEC_FOR (i, m, n)
    {
      EbbVec dy = vec_load_as (dtype, work->dy, at + i, m);

      if (log)
        sum += dy;
      else
        sum = vec_fma (dy, vec_load_as (dtype, work->x, at + i, m), sum);
    }
  sum = vec_set1 (vec_sum (sum));
  EBB_VEC_FOR (i, m, n)
    {
      EbbVec dy = vec_load_as (dtype, work->dy, at + i, m);
      EbbVec y = vec_load_as (dtype, work->x, at + i, m);
      EbbVec dx;

      if (log)
        dx = dy - vec_exp (y) * sum;
      else
        dx = y * (dy - sum);
      vec_store_as (dtype, work->y, at + i, m, dx);
    }
}

#define ROWS(name, row_call)                   \
  static void                                  \
  name (gint64 begin,                          \
        gint64 end,                            \
        void *data)                            \
  {                                            \
    const Softmax *work = data;                \
                                               \
    for (gint64 row = begin; row < end; row++) \
      {                                        \
        gint64 at = row * work->columns;       \
                                               \
        row_call;                              \
      }                                        \
  }

ROWS (softmax_f32, softmax_row (EBB_DTYPE_F32, FALSE, work->x, work->y, at, work->columns))
ROWS (softmax_bf16, softmax_row (EBB_DTYPE_BF16, FALSE, work->x, work->y, at, work->columns))
ROWS (log_softmax_f32, softmax_row (EBB_DTYPE_F32, TRUE, work->x, work->y, at, work->columns))
ROWS (log_softmax_bf16, softmax_row (EBB_DTYPE_BF16, TRUE, work->x, work->y, at, work->columns))
ROWS (softmax_grad_f32, softmax_grad_row (EBB_DTYPE_F32, FALSE, work, at))
ROWS (softmax_grad_bf16, softmax_grad_row (EBB_DTYPE_BF16, FALSE, work, at))
ROWS (log_softmax_grad_f32, softmax_grad_row (EBB_DTYPE_F32, TRUE, work, at))
ROWS (log_softmax_grad_bf16, softmax_grad_row (EBB_DTYPE_BF16, TRUE, work, at))

static void
run_softmax (Softmax *work,
             const EbbView *x,
             EbbParallelFunc func)
{
  gint64 rows;

  ebb_view_get_rows (x, &rows, &work->columns);
  if (work->columns > 0)
    ebb_cpu_parallel_for (rows, MAX (1, EBB_CPU_GRAIN / 4 / work->columns), func, work);
}

EBB_SIMD_KERNEL (softmax)
{
  static const EbbParallelFunc funcs[2][2] = { { softmax_f32, softmax_bf16 }, { log_softmax_f32, log_softmax_bf16 } };
  const EbbView *x = launch->inputs[0];
  Softmax work = { .x = x->data, .y = launch->outputs[0]->data };

  run_softmax (&work, x, funcs[launch->params.softmax.log != FALSE][x->dtype == EBB_DTYPE_BF16]);
  return TRUE;
}

EBB_SIMD_KERNEL (softmax_grad)
{
  static const EbbParallelFunc funcs[2][2] = { { softmax_grad_f32, softmax_grad_bf16 },
                                               { log_softmax_grad_f32, log_softmax_grad_bf16 } };
  const EbbView *y = launch->inputs[1];
  Softmax work = { .dy = launch->inputs[0]->data, .x = y->data, .y = launch->outputs[0]->data };

  run_softmax (&work, y, funcs[launch->params.softmax.log != FALSE][y->dtype == EBB_DTYPE_BF16]);
  return TRUE;
}
