/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */

#include "tensor/cpu/simd/elementwise-private.h"
#include "tensor/cpu/simd/gelu-private.h"

#include "tensor/cpu/parallel-private.h"

/* Kernels of one operand, element by element, and their gradients. */

EBB_BLOCK_UNARY (negate, -a)
EBB_BLOCK_UNARY (absolute, vec_abs (a))
EBB_BLOCK_UNARY (exponential, vec_exp (a))
EBB_BLOCK_UNARY (logarithm, vec_log (a))
EBB_BLOCK_UNARY (square_root, vec_sqrt (a))
EBB_BLOCK_UNARY (reciprocal_root, 1.0f / vec_sqrt (a))
EBB_BLOCK_UNARY (square, a *a)
EBB_BLOCK_UNARY (hyperbolic_tangent, vec_tanh (a))
EBB_BLOCK_UNARY (relu, vec_select (a <= 0.0f, (EbbVec){ 0 }, a))
EBB_BLOCK_UNARY (gelu, vec_gelu (FALSE, a))
EBB_BLOCK_UNARY (gelu_tanh, vec_gelu (TRUE, a))
EBB_BLOCK_UNARY (silu, vec_sigmoid (a) * a)
EBB_BLOCK_UNARY (sigmoid, vec_sigmoid (a))
EBB_BLOCK_UNARY (soft_cap, vec_soft_cap (a, (float) block->params->unary.cap))
EBB_BLOCK_UNARY (logical_not, EBB_VEC_TRUTH (a == 0.0f))

/* Arguments of any size need a reduction of many bits: left to libm. */
static void
sine (const EbbBlockF32 *block)
{
  for (gint64 i = 0; i < block->n; i++)
    block->y[i] = sinf (block->in[0][i * block->step[0]]);
}

static void
cosine (const EbbBlockF32 *block)
{
  for (gint64 i = 0; i < block->n; i++)
    block->y[i] = cosf (block->in[0][i * block->step[0]]);
}

EBB_BLOCK_I64 (negate_i64, (gint64) (0 - (guint64) a))
EBB_BLOCK_I64 (absolute_i64, a < 0 ? (gint64) (0 - (guint64) a) : a)
EBB_BLOCK_I64 (square_i64, (gint64) ((guint64) a *(guint64) a))
EBB_BLOCK_I64 (relu_i64, MAX (a, 0))
EBB_BLOCK_I64 (logical_not_i64, a == 0)

static const EbbBlockFuncF32 unary_f32[EBB_N_UNARY_OPS] = {
  [EBB_UNARY_NEG] = negate,
  [EBB_UNARY_ABS] = absolute,
  [EBB_UNARY_EXP] = exponential,
  [EBB_UNARY_LOG] = logarithm,
  [EBB_UNARY_SQRT] = square_root,
  [EBB_UNARY_RSQRT] = reciprocal_root,
  [EBB_UNARY_SQUARE] = square,
  [EBB_UNARY_SIN] = sine,
  [EBB_UNARY_COS] = cosine,
  [EBB_UNARY_TANH] = hyperbolic_tangent,
  [EBB_UNARY_RELU] = relu,
  [EBB_UNARY_GELU] = gelu,
  [EBB_UNARY_GELU_TANH] = gelu_tanh,
  [EBB_UNARY_SILU] = silu,
  [EBB_UNARY_SIGMOID] = sigmoid,
  [EBB_UNARY_SOFT_CAP] = soft_cap,
  [EBB_UNARY_LOGICAL_NOT] = logical_not,
};

static const EbbBlockFuncI64 unary_i64[EBB_N_UNARY_OPS] = {
  [EBB_UNARY_NEG] = negate_i64,
  [EBB_UNARY_ABS] = absolute_i64,
  [EBB_UNARY_SQUARE] = square_i64,
  [EBB_UNARY_RELU] = relu_i64,
  [EBB_UNARY_LOGICAL_NOT] = logical_not_i64,
};

/* Cheap ones move memory; the others compute for some nanoseconds an element. */
static gint64
get_grain (EbbUnaryOp op)
{
  switch (op)
    {
    case EBB_UNARY_NEG:
    case EBB_UNARY_ABS:
    case EBB_UNARY_SQUARE:
    case EBB_UNARY_RELU:
    case EBB_UNARY_LOGICAL_NOT:
      return EBB_CPU_GRAIN;
    case EBB_UNARY_SIN:
    case EBB_UNARY_COS:
      return EBB_CPU_GRAIN / 16;
    default:
      return EBB_CPU_GRAIN / 4;
    }
}

EBB_SIMD_KERNEL (unary)
{
  EbbUnaryOp op = launch->params.unary.op;
  EbbElementwise work = {
    .output = launch->outputs[0],
    .n_inputs = 1,
    .inputs = { { launch->inputs[0], 0 } },
    .func_f32 = unary_f32[op],
    .func_i64 = unary_i64[op],
    .is_float = ebb_dtype_is_float_ (launch->inputs[0]->dtype),
    .grain = get_grain (op),
    .params = &launch->params,
  };

  return ebb_elementwise (&work, error);
}

/* Gradients: a is dy, b is x or y. */
EBB_BLOCK_UNARY (negate_grad, -a)
/* Times the sign, which is 0 of 0 and of NaN. */
EBB_BLOCK_BINARY (absolute_grad, vec_select (b > 0.0f, a, vec_select (b < 0.0f, -a, a * 0.0f)))
EBB_BLOCK_BINARY (times, (a) * (b))
EBB_BLOCK_BINARY (divided, a / b)
EBB_BLOCK_BINARY (square_root_grad, 0.5f * a / b)
EBB_BLOCK_BINARY (reciprocal_root_grad, -0.5f * a * (b * b * b))
EBB_BLOCK_BINARY (square_grad, 2.0f * a * b)
EBB_BLOCK_BINARY (tanh_grad, (1.0f - b * b) * a)
EBB_BLOCK_BINARY (relu_grad, vec_select (b <= 0.0f, (EbbVec){ 0 }, a)) /* NaN lets it pass */
EBB_BLOCK_BINARY (gelu_grad, vec_gelu_slope (FALSE, b) * a)
EBB_BLOCK_BINARY (gelu_tanh_grad, vec_gelu_slope (TRUE, b) * a)
EBB_BLOCK_BINARY (sigmoid_grad, a *b *(1.0f - b))
EBB_BLOCK_BINARY (soft_cap_grad, a *vec_soft_cap_slope (b, (float) block->params->unary.cap))

static void
silu_grad (const EbbBlockF32 *block)
{
  EBB_VEC_FOR (i, m, block->n)
    {
      EbbVec dy = EBB_BLOCK_LOAD (block, 0, i, m);
      EbbVec x = EBB_BLOCK_LOAD (block, 1, i, m);
      EbbVec complement, s = vec_sigmoid_both (x, &complement);

      vec_store_as (EBB_DTYPE_F32, block->y, i, m, dy * s * vec_fma (x, complement, vec_set1 (1.0f)));
    }
}

static void
sine_grad (const EbbBlockF32 *block)
{
  for (gint64 i = 0; i < block->n; i++)
    block->y[i] = block->in[0][i * block->step[0]] * cosf (block->in[1][i * block->step[1]]);
}

static void
cosine_grad (const EbbBlockF32 *block)
{
  for (gint64 i = 0; i < block->n; i++)
    block->y[i] = -block->in[0][i * block->step[0]] * sinf (block->in[1][i * block->step[1]]);
}

static const struct
{
  EbbBlockFuncF32 func;
  gboolean uses_y;
} unary_grads[EBB_N_UNARY_OPS] = {
  [EBB_UNARY_NEG] = { negate_grad, FALSE },
  [EBB_UNARY_ABS] = { absolute_grad, FALSE },
  [EBB_UNARY_EXP] = { times, TRUE },
  [EBB_UNARY_LOG] = { divided, FALSE },
  [EBB_UNARY_SQRT] = { square_root_grad, TRUE },
  [EBB_UNARY_RSQRT] = { reciprocal_root_grad, TRUE },
  [EBB_UNARY_SQUARE] = { square_grad, FALSE },
  [EBB_UNARY_SIN] = { sine_grad, FALSE },
  [EBB_UNARY_COS] = { cosine_grad, FALSE },
  [EBB_UNARY_TANH] = { tanh_grad, TRUE },
  [EBB_UNARY_RELU] = { relu_grad, TRUE },
  [EBB_UNARY_GELU] = { gelu_grad, FALSE },
  [EBB_UNARY_GELU_TANH] = { gelu_tanh_grad, FALSE },
  [EBB_UNARY_SILU] = { silu_grad, FALSE },
  [EBB_UNARY_SIGMOID] = { sigmoid_grad, TRUE },
  [EBB_UNARY_SOFT_CAP] = { soft_cap_grad, TRUE },
};

EBB_SIMD_KERNEL (unary_grad)
{
  EbbUnaryOp op = launch->params.unary.op;
  const EbbView *saved = ebb_launch_get_input (launch, unary_grads[op].uses_y ? 2 : 1);
  EbbElementwise work = {
    .output = launch->outputs[0],
    .n_inputs = 2,
    .inputs = { { launch->inputs[0], 0 }, { saved, 0 } },
    .func_f32 = unary_grads[op].func,
    .is_float = TRUE,
    .grain = get_grain (op),
    .params = &launch->params,
  };

  return ebb_elementwise (&work, error);
}
