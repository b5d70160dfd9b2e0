/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */

#include "tensor/cpu/simd/gelu-private.h"
#include "tensor/cpu/simd/cursor-private.h"
#include "tensor/cpu/simd/simd-private.h"

#include "tensor/cpu/parallel-private.h"

/* GELU after a bias, the gated activation f (gate) * up (Shazeer, GLU Variants Improve Transformer, 2020), and their
 * gradients. */

/* -- bias and gelu ------------------------------------------------------------------------------------------------- */

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
               const EbbLaunch *launch,
               const EbbView *x,
               const EbbView *bias,
               EbbParallelFunc func)
{
  gsize used = 0;
  gint64 rows;

  ebb_view_get_rows (x, &rows, &work->columns);
  if (rows == 0 || work->columns == 0)
    return TRUE;
  work->bias = ebb_vector_as_f32 (launch, &used, bias, FALSE);
  work->x = x->data;
  ebb_cpu_parallel_for (rows, MAX (1, EBB_CPU_GRAIN / 4 / work->columns), func, work);
  return TRUE;
}

EBB_SIMD_WORKSPACE (bias_gelu)
{
  return ebb_vector_count_workspace (ebb_launch_get_input (launch, 1), FALSE);
}

EBB_SIMD_WORKSPACE (bias_gelu_grad)
{
  return ebb_vector_count_workspace (ebb_launch_get_input (launch, 2), FALSE);
}

EBB_SIMD_KERNEL (bias_gelu)
{
  static const EbbParallelFunc funcs[2][2] = { { gelu_f32, gelu_bf16 }, { gelu_tanh_f32, gelu_tanh_bf16 } };
  const EbbView *x = launch->inputs[0];
  BiasGelu work = { .y = launch->outputs[0]->data };

  return run_bias_gelu (&work, launch, x, ebb_launch_get_input (launch, 1),
                        funcs[launch->params.gelu.tanh != FALSE][x->dtype == EBB_DTYPE_BF16]);
}

EBB_SIMD_KERNEL (bias_gelu_grad)
{
  static const EbbParallelFunc funcs[2][2] = { { gelu_grad_f32, gelu_grad_bf16 },
                                               { gelu_tanh_grad_f32, gelu_tanh_grad_bf16 } };
  const EbbView *x = launch->inputs[1];
  BiasGelu work = { .dy = launch->inputs[0]->data, .y = launch->outputs[0]->data };

  return run_bias_gelu (&work, launch, x, ebb_launch_get_input (launch, 2),
                        funcs[launch->params.gelu.tanh != FALSE][x->dtype == EBB_DTYPE_BF16]);
}

/* -- gated activation ---------------------------------------------------------------------------------------------- */

typedef struct
{
  gint64 columns;
  EbbRows gate_rows, up_rows;
  const void *gate;
  const void *up;
  const void *dy;
  void *y;
  void *dgate;
  void *dup;
} Gated;

EBB_VEC_INLINE EbbVec
activate (EbbUnaryOp op,
          EbbVec x)
{
  if (op == EBB_UNARY_SILU)
    return x * vec_sigmoid (x);
  return vec_gelu (op == EBB_UNARY_GELU_TANH, x);
}

/* The activation and its slope. */
EBB_VEC_INLINE EbbVec
activate_both (EbbUnaryOp op,
               EbbVec x,
               EbbVec *slope)
{
  EbbVec complement, s;

  if (op != EBB_UNARY_SILU)
    {
      *slope = vec_gelu_slope (op == EBB_UNARY_GELU_TANH, x);
      return vec_gelu (op == EBB_UNARY_GELU_TANH, x);
    }
  s = vec_sigmoid_both (x, &complement);
  /* Beyond that the slope is 0 or 1, and infinity times 0 would be neither. */
  *slope = s * vec_fma (vec_min (vec_set1 (200.0f), vec_max (vec_set1 (-200.0f), x)), complement, vec_set1 (1.0f));
  return x * s;
}

EBB_VEC_INLINE void
gated_rows (const Gated *self,
            EbbDType dtype,
            EbbUnaryOp op,
            gint64 begin,
            gint64 end)
{
  for (gint64 row = begin; row < end; row++)
    {
      gint64 gate_at = ebb_rows_get_offset (&self->gate_rows, row);
      gint64 up_at = ebb_rows_get_offset (&self->up_rows, row);
      gint64 at = row * self->columns;

      EBB_VEC_FOR (i, m, self->columns)
        {
          EbbVec gate = vec_load_as (dtype, self->gate, gate_at + i, m);
          EbbVec up = vec_load_as (dtype, self->up, up_at + i, m);

          vec_store_as (dtype, self->y, at + i, m, activate (op, gate) * up);
        }
    }
}

EBB_VEC_INLINE void
gated_grad_rows (const Gated *self,
                 EbbDType dtype,
                 EbbUnaryOp op,
                 gint64 begin,
                 gint64 end)
{
  const Gated local = *self; /* which no store can change: its pointers stay in registers */

  for (gint64 row = begin; row < end; row++)
    {
      gint64 gate_at = ebb_rows_get_offset (&self->gate_rows, row);
      gint64 up_at = ebb_rows_get_offset (&self->up_rows, row);
      gint64 at = row * local.columns;

      EBB_VEC_FOR (i, m, local.columns)
        {
          EbbVec dy = vec_load_as (dtype, local.dy, at + i, m);
          EbbVec gate = vec_load_as (dtype, local.gate, gate_at + i, m);
          EbbVec up = vec_load_as (dtype, local.up, up_at + i, m);
          EbbVec slope, active = activate_both (op, gate, &slope);

          if (local.dgate != NULL)
            vec_store_as (dtype, local.dgate, at + i, m, dy * up * slope);
          if (local.dup != NULL)
            vec_store_as (dtype, local.dup, at + i, m, dy * active);
        }
    }
}

#define GATED_FUNC(name, rows, dtype, op) \
  static void                             \
  name (gint64 begin,                     \
        gint64 end,                       \
        void *data)                       \
  {                                       \
    rows (data, dtype, op, begin, end);   \
  }

GATED_FUNC (gated_gelu_f32, gated_rows, EBB_DTYPE_F32, EBB_UNARY_GELU)
GATED_FUNC (gated_gelu_bf16, gated_rows, EBB_DTYPE_BF16, EBB_UNARY_GELU)
GATED_FUNC (gated_gelu_tanh_f32, gated_rows, EBB_DTYPE_F32, EBB_UNARY_GELU_TANH)
GATED_FUNC (gated_gelu_tanh_bf16, gated_rows, EBB_DTYPE_BF16, EBB_UNARY_GELU_TANH)
GATED_FUNC (gated_silu_f32, gated_rows, EBB_DTYPE_F32, EBB_UNARY_SILU)
GATED_FUNC (gated_silu_bf16, gated_rows, EBB_DTYPE_BF16, EBB_UNARY_SILU)
GATED_FUNC (gated_gelu_grad_f32, gated_grad_rows, EBB_DTYPE_F32, EBB_UNARY_GELU)
GATED_FUNC (gated_gelu_grad_bf16, gated_grad_rows, EBB_DTYPE_BF16, EBB_UNARY_GELU)
GATED_FUNC (gated_gelu_tanh_grad_f32, gated_grad_rows, EBB_DTYPE_F32, EBB_UNARY_GELU_TANH)
GATED_FUNC (gated_gelu_tanh_grad_bf16, gated_grad_rows, EBB_DTYPE_BF16, EBB_UNARY_GELU_TANH)
GATED_FUNC (gated_silu_grad_f32, gated_grad_rows, EBB_DTYPE_F32, EBB_UNARY_SILU)
GATED_FUNC (gated_silu_grad_bf16, gated_grad_rows, EBB_DTYPE_BF16, EBB_UNARY_SILU)

/* By the op, then the dtype. */
static EbbParallelFunc
get_func (const EbbParallelFunc funcs[3][2],
          const EbbLaunch *launch,
          EbbDType dtype)
{
  EbbUnaryOp op = launch->params.gated.op;
  int row = op == EBB_UNARY_SILU ? 2 : op == EBB_UNARY_GELU_TANH;

  return funcs[row][dtype == EBB_DTYPE_BF16];
}

static void
run_gated (Gated *self,
           const EbbView *gate,
           const EbbView *up,
           EbbParallelFunc func)
{
  gint64 rows;

  ebb_view_get_rows (gate, &rows, &self->columns);
  if (self->columns == 0)
    return;
  ebb_rows_init (&self->gate_rows, gate);
  ebb_rows_init (&self->up_rows, up);
  self->gate = gate->data;
  self->up = up->data;
  ebb_cpu_parallel_for (rows, MAX (1, EBB_CPU_GRAIN / 4 / self->columns), func, self);
}

EBB_SIMD_KERNEL (gated_activation)
{
  static const EbbParallelFunc funcs[3][2] = { { gated_gelu_f32, gated_gelu_bf16 },
                                               { gated_gelu_tanh_f32, gated_gelu_tanh_bf16 },
                                               { gated_silu_f32, gated_silu_bf16 } };
  const EbbView *gate = launch->inputs[0];
  Gated self = { .y = launch->outputs[0]->data };

  run_gated (&self, gate, launch->inputs[1], get_func (funcs, launch, gate->dtype));
  return TRUE;
}

EBB_SIMD_KERNEL (gated_activation_grad)
{
  static const EbbParallelFunc funcs[3][2] = { { gated_gelu_grad_f32, gated_gelu_grad_bf16 },
                                               { gated_gelu_tanh_grad_f32, gated_gelu_tanh_grad_bf16 },
                                               { gated_silu_grad_f32, gated_silu_grad_bf16 } };
  const EbbView *gate = launch->inputs[1];
  const EbbView *dgate = ebb_launch_get_output (launch, 0), *dup = ebb_launch_get_output (launch, 1);
  Gated self = {
    .dy = launch->inputs[0]->data,
    .dgate = dgate != NULL ? dgate->data : NULL,
    .dup = dup != NULL ? dup->data : NULL,
  };

  run_gated (&self, gate, launch->inputs[2], get_func (funcs, launch, gate->dtype));
  return TRUE;
}
