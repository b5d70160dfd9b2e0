/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */

#include "tensor/cpu/simd/gelu-private.h"
#include "tensor/cpu/simd/cursor-private.h"
#include "tensor/cpu/simd/simd-private.h"

#include "tensor/cpu/parallel-private.h"

/* GELU after a bias, and its gradient. */

typedef struct
{
  gint64 columns;
  const void *dy;
  const void *x;
  const float *bias;
  void *y;
} BiasGelu;

EBB_VEC_INLINE void
bias_gelu_rows (const BiasGelu *work,
                EbbDType dtype,
                gboolean is_grad,
                gboolean tanh,
                gboolean has_bias,
                gint64 begin,
                gint64 end)
{
  gint64 columns = work->columns;

  for (gint64 row = begin; row < end; row++)
    EBB_VEC_FOR (i, m, columns)
      {
        EbbVec x = vec_load_as (dtype, work->x, row * columns + i, m);
        EbbVec result;

        if (has_bias)
          x += vec_load_as (EBB_DTYPE_F32, work->bias, i, m);
        if (is_grad)
          result = vec_load_as (dtype, work->dy, row * columns + i, m) * vec_gelu_slope (tanh, x);
        else
          result = vec_gelu (tanh, x);
        vec_store_as (dtype, work->y, row * columns + i, m, result);
      }
}

#define ROW_FUNC(name, dtype, is_grad, tanh)                          \
  static void                                                         \
  name (gint64 begin,                                                 \
        gint64 end,                                                   \
        void *data)                                                   \
  {                                                                   \
    const BiasGelu *work = data;                                      \
                                                                      \
    if (work->bias != NULL)                                           \
      bias_gelu_rows (work, dtype, is_grad, tanh, TRUE, begin, end);  \
    else                                                              \
      bias_gelu_rows (work, dtype, is_grad, tanh, FALSE, begin, end); \
  }

ROW_FUNC (gelu_f32, EBB_DTYPE_F32, FALSE, FALSE)
ROW_FUNC (gelu_bf16, EBB_DTYPE_BF16, FALSE, FALSE)
ROW_FUNC (gelu_tanh_f32, EBB_DTYPE_F32, FALSE, TRUE)
ROW_FUNC (gelu_tanh_bf16, EBB_DTYPE_BF16, FALSE, TRUE)
ROW_FUNC (gelu_grad_f32, EBB_DTYPE_F32, TRUE, FALSE)
ROW_FUNC (gelu_grad_bf16, EBB_DTYPE_BF16, TRUE, FALSE)
ROW_FUNC (gelu_tanh_grad_f32, EBB_DTYPE_F32, TRUE, TRUE)
ROW_FUNC (gelu_tanh_grad_bf16, EBB_DTYPE_BF16, TRUE, TRUE)

static gboolean
run_bias_gelu (BiasGelu *work,
               const EbbView *x,
               const EbbView *bias,
               EbbParallelFunc func,
               GError **error)
{
  gint64 rows;
  float *copy;

  ebb_view_get_rows (x, &rows, &work->columns);
  if (rows == 0 || work->columns == 0)
    return TRUE;
  if (!ebb_vector_as_f32 (bias, &work->bias, &copy, error))
    return FALSE;
  work->x = x->data;
  ebb_cpu_parallel_for (rows, MAX (1, EBB_CPU_GRAIN / 4 / work->columns), func, work);
  ebb_cpu_workspace_free (copy);
  return TRUE;
}

gboolean
EBB_SIMD_NAME (ebb_cpu_bias_gelu) (const EbbLaunch *launch,
                                   GError **error)
{
  static const EbbParallelFunc funcs[2][2] = { { gelu_f32, gelu_bf16 }, { gelu_tanh_f32, gelu_tanh_bf16 } };
  const EbbView *x = launch->inputs[0];
  BiasGelu work = { .y = launch->outputs[0]->data };

  return run_bias_gelu (&work, x, ebb_launch_get_input (launch, 1),
                        funcs[launch->params.gelu.tanh != FALSE][x->dtype == EBB_DTYPE_BF16], error);
}

gboolean
EBB_SIMD_NAME (ebb_cpu_bias_gelu_grad) (const EbbLaunch *launch,
                                        GError **error)
{
  static const EbbParallelFunc funcs[2][2] = { { gelu_grad_f32, gelu_grad_bf16 },
                                               { gelu_tanh_grad_f32, gelu_tanh_grad_bf16 } };
  const EbbView *x = launch->inputs[1];
  BiasGelu work = { .dy = launch->inputs[0]->data, .y = launch->outputs[0]->data };

  return run_bias_gelu (&work, x, ebb_launch_get_input (launch, 2),
                        funcs[launch->params.gelu.tanh != FALSE][x->dtype == EBB_DTYPE_BF16], error);
}
