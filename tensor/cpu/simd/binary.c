/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */

#include "tensor/cpu/simd/elementwise-private.h"

#include "tensor/cpu/parallel-private.h"

/* Kernels of two operands, element by element: arithmetic and comparisons. */

EBB_BLOCK_BINARY (add, a + b)
EBB_BLOCK_BINARY (subtract, a - b)
EBB_BLOCK_BINARY (multiply, (a) * (b))
EBB_BLOCK_BINARY (divide, a / b)
EBB_BLOCK_BINARY (maximum, vec_max_nan (a, b))
EBB_BLOCK_BINARY (minimum, vec_min_nan (a, b))
EBB_BLOCK_BINARY (equal, EBB_VEC_TRUTH (a == b))
EBB_BLOCK_BINARY (not_equal, EBB_VEC_TRUTH (a != b))
EBB_BLOCK_BINARY (less, EBB_VEC_TRUTH (a < b))
EBB_BLOCK_BINARY (less_equal, EBB_VEC_TRUTH (a <= b))
EBB_BLOCK_BINARY (greater, EBB_VEC_TRUTH (a > b))
EBB_BLOCK_BINARY (greater_equal, EBB_VEC_TRUTH (a >= b))
EBB_BLOCK_BINARY (logical_and, EBB_VEC_TRUTH ((a != 0.0f) & (b != 0.0f)))
EBB_BLOCK_BINARY (logical_or, EBB_VEC_TRUTH ((a != 0.0f) | (b != 0.0f)))

static void
power (const EbbBlockF32 *block)
{
  for (gint64 i = 0; i < block->n; i++)
    block->y[i] = powf (block->in[0][i * block->step[0]], block->in[1][i * block->step[1]]);
}

EBB_BLOCK_UNARY (power_1, a)
EBB_BLOCK_UNARY (power_2, (a) * (a))
EBB_BLOCK_UNARY (power_3, (a) * (a) * (a))
EBB_BLOCK_UNARY (power_half, vec_sqrt (a))
EBB_BLOCK_UNARY (power_minus_1, 1.0f / a)
EBB_BLOCK_UNARY (power_minus_half, 1.0f / vec_sqrt (a))

static EbbBlockFuncF32
get_power (double exponent)
{
  static const struct
  {
    double exponent;
    EbbBlockFuncF32 func;
  } powers[] = {
    { 1, power_1 },
    { 2, power_2 },
    { 3, power_3 },
    { 0.5, power_half },
    { -1, power_minus_1 },
    { -0.5, power_minus_half },
  };

  for (guint k = 0; k < G_N_ELEMENTS (powers); k++)
    if (powers[k].exponent == exponent)
      return powers[k].func;
  return power;
}

static inline gint64
floor_divide (gint64 a,
              gint64 b)
{
  if (b == 0)
    return 0;
  if (b == -1)
    return (gint64) (0 - (guint64) a);
  return a / b - (a % b != 0 && (a < 0) != (b < 0));
}

static inline gint64
integer_power (gint64 base,
               gint64 exponent)
{
  guint64 result = 1;

  if (exponent < 0)
    return base == 1 ? 1 : base == -1 ? (exponent & 1 ? -1 : 1)
                                      : 0;
  for (guint64 square = (guint64) base; exponent > 0; exponent >>= 1, square *= square)
    if (exponent & 1)
      result *= square;
  return (gint64) result;
}

EBB_BLOCK_I64 (add_i64, (gint64) ((guint64) a + (guint64) b))
EBB_BLOCK_I64 (subtract_i64, (gint64) ((guint64) a - (guint64) b))
EBB_BLOCK_I64 (multiply_i64, (gint64) ((guint64) a *(guint64) b))
EBB_BLOCK_I64 (divide_i64, floor_divide (a, b))
EBB_BLOCK_I64 (power_i64, integer_power (a, b))
EBB_BLOCK_I64 (maximum_i64, MAX (a, b))
EBB_BLOCK_I64 (minimum_i64, MIN (a, b))
EBB_BLOCK_I64 (equal_i64, a == b)
EBB_BLOCK_I64 (not_equal_i64, a != b)
EBB_BLOCK_I64 (less_i64, a < b)
EBB_BLOCK_I64 (less_equal_i64, a <= b)
EBB_BLOCK_I64 (greater_i64, a > b)
EBB_BLOCK_I64 (greater_equal_i64, a >= b)
EBB_BLOCK_I64 (and_i64, a &b)
EBB_BLOCK_I64 (or_i64, a | b)

static const struct
{
  EbbBlockFuncF32 f32;
  EbbBlockFuncI64 i64;
} binary_funcs[EBB_N_BINARY_OPS] = {
  [EBB_BINARY_ADD] = { add, add_i64 },
  [EBB_BINARY_SUB] = { subtract, subtract_i64 },
  [EBB_BINARY_MUL] = { multiply, multiply_i64 },
  [EBB_BINARY_DIV] = { divide, divide_i64 },
  [EBB_BINARY_POW] = { power, power_i64 },
  [EBB_BINARY_MAXIMUM] = { maximum, maximum_i64 },
  [EBB_BINARY_MINIMUM] = { minimum, minimum_i64 },
  [EBB_BINARY_EQ] = { equal, equal_i64 },
  [EBB_BINARY_NE] = { not_equal, not_equal_i64 },
  [EBB_BINARY_LT] = { less, less_i64 },
  [EBB_BINARY_LE] = { less_equal, less_equal_i64 },
  [EBB_BINARY_GT] = { greater, greater_i64 },
  [EBB_BINARY_GE] = { greater_equal, greater_equal_i64 },
  [EBB_BINARY_AND] = { logical_and, and_i64 },
  [EBB_BINARY_OR] = { logical_or, or_i64 },
};

EBB_SIMD_KERNEL (binary)
{
  EbbBinaryOp op = launch->params.binary.op;
  EbbElementwise work = {
    .output = launch->outputs[0],
    .n_inputs = 2,
    .inputs = { { launch->inputs[0], 0 }, { launch->inputs[1], 0 } },
    .func_f32 = binary_funcs[op].f32,
    .func_i64 = binary_funcs[op].i64,
    .is_float = ebb_dtype_is_float_ (launch->inputs[0]->dtype),
    .grain = op == EBB_BINARY_POW ? EBB_CPU_GRAIN / 16 : EBB_CPU_GRAIN,
    .params = &launch->params,
  };

  return ebb_elementwise (&work, error);
}

EBB_SIMD_KERNEL (binary_scalar)
{
  EbbBinaryOp op = launch->params.binary.op;
  const EbbView *scalar = ebb_launch_get_input (launch, 1);
  double value = scalar != NULL ? *(const float *) scalar->data : launch->params.binary.value;
  gboolean reverse = launch->params.binary.reverse;
  gboolean is_power = op == EBB_BINARY_POW && !reverse;
  EbbElementwise work = {
    .output = launch->outputs[0],
    .n_inputs = 2,
    .inputs = { { reverse ? NULL : launch->inputs[0], value }, { reverse ? launch->inputs[0] : NULL, value } },
    .func_f32 = is_power ? get_power (value) : binary_funcs[op].f32,
    .func_i64 = binary_funcs[op].i64,
    .is_float = ebb_dtype_is_float_ (launch->inputs[0]->dtype),
    .grain = op == EBB_BINARY_POW ? EBB_CPU_GRAIN / 16 : EBB_CPU_GRAIN,
    .params = &launch->params,
  };

  return ebb_elementwise (&work, error);
}
