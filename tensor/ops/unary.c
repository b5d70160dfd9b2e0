/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "tensor/ops/pointwise.h"

#include <math.h>

#include "tensor/autograd/op-support-private.h"
#include "tensor/error-private.h"

/* Ops of one operand, element by element: a table, and one function for all. */

static gboolean
unary_backward (EbbBackward *ctx, GError **error)
{
  g_autoptr (EbbTensor) dy = ebb_backward_steal_grad (ctx, 0);
  EbbUnarySaves saves = ebb_unary_ops[ctx->params->unary.op].saves;

  return dy == NULL
         || ((ctx->grad_inputs[0] = ebb_tensor_new_reusing (dy, error)) != NULL
             && EBB_LAUNCH (EBB_KERNEL_UNARY_GRAD, ctx->params, 3, error, dy,
                            saves == EBB_UNARY_SAVES_X ? ctx->saved[0] : NULL,
                            saves == EBB_UNARY_SAVES_Y ? ctx->saved[0] : NULL, ctx->grad_inputs[0]));
}

/* TRUE for activations, before the second product of a transformer's feed-forward part: the result is large and can be
 * rematerialized from the input, which is saved. */
static gboolean
is_rebuilt (EbbUnaryOp which)
{
  return which == EBB_UNARY_GELU || which == EBB_UNARY_GELU_TANH || which == EBB_UNARY_SILU;
}

static gboolean
rematerialize_unary (const EbbRematerializeArgs *how, EbbTensor **operands, EbbTensor *output, GError **error)
{
  return EBB_LAUNCH (EBB_KERNEL_UNARY, &how->params, 1, error, operands[0], output);
}

#define UNARY(op_name, backward_func, saved, integers)                                                      \
  {                                                                                                         \
    { op_name, EBB_OP_POINTWISE, EBB_KERNEL_UNARY, NULL, backward_func }, EBB_UNARY_SAVES_##saved, integers \
  }

const EbbUnaryInfo ebb_unary_ops[EBB_N_UNARY_OPS] = {
  [EBB_UNARY_NEG] = UNARY ("neg", unary_backward, NOTHING, TRUE),
  [EBB_UNARY_ABS] = UNARY ("abs", unary_backward, X, TRUE),
  [EBB_UNARY_EXP] = UNARY ("exp", unary_backward, Y, FALSE),
  [EBB_UNARY_LOG] = UNARY ("log", unary_backward, X, FALSE),
  [EBB_UNARY_SQRT] = UNARY ("sqrt", unary_backward, Y, FALSE),
  [EBB_UNARY_RSQRT] = UNARY ("rsqrt", unary_backward, Y, FALSE),
  [EBB_UNARY_SQUARE] = UNARY ("square", unary_backward, X, FALSE),
  [EBB_UNARY_SIN] = UNARY ("sin", unary_backward, X, FALSE),
  [EBB_UNARY_COS] = UNARY ("cos", unary_backward, X, FALSE),
  [EBB_UNARY_TANH] = UNARY ("tanh", unary_backward, Y, FALSE),
  [EBB_UNARY_RELU] = UNARY ("relu", unary_backward, Y, FALSE),
  [EBB_UNARY_GELU] = UNARY ("gelu", unary_backward, X, FALSE),
  [EBB_UNARY_GELU_TANH] = UNARY ("gelu", unary_backward, X, FALSE),
  [EBB_UNARY_SILU] = UNARY ("silu", unary_backward, X, FALSE),
  [EBB_UNARY_SIGMOID] = UNARY ("sigmoid", unary_backward, Y, FALSE),
  [EBB_UNARY_SOFT_CAP] = UNARY ("soft_cap", unary_backward, Y, FALSE),
  [EBB_UNARY_LOGICAL_NOT] = UNARY ("logical_not", NULL, NOTHING, TRUE),
};

static EbbTensor *
run_unary (EbbUnaryOp which, EbbTensor *x, double cap, GError **error)
{
  const EbbUnaryInfo *info = &ebb_unary_ops[which];
  EbbOpCall call;

  if (!ebb_op_begin (&call, &info->op, error, 1, x))
    return NULL;
  if (x->view.dtype != EBB_DTYPE_F32 && x->view.dtype != EBB_DTYPE_BF16)
    {
      if (x->view.dtype == EBB_DTYPE_BOOL && info->takes_integers)
        return ebb_op_fail_null (&call, error, EBB_ERROR_DTYPE, "bool holds no numbers; cast to i64 or f32 first");
      if ((!info->takes_integers || x->view.dtype == EBB_DTYPE_F16) && !ebb_op_check_floating (&call, error))
        return NULL;
    }
  call.params.unary.op = which;
  call.params.unary.cap = cap;
  ebb_op_add_output_like (&call, x);
  if (info->saves == EBB_UNARY_SAVES_X)
    ebb_op_save_input (&call, 0);
  else if (info->saves == EBB_UNARY_SAVES_Y)
    ebb_op_save_output (&call, 0);
  if (is_rebuilt (which))
    ebb_op_rematerialize_output (&call, 0, rematerialize_unary, 1, 0);
  return ebb_op_finish1 (&call, error);
}

EbbTensor *
ebb_unary (EbbUnaryOp which, EbbTensor *x, GError **error)
{
  return run_unary (which, x, 0.0, error);
}

/**
 * ebb_neg:
 * @x: a tensor of f32, bf16 or integers, of any shape
 * @error: return location for an error
 *
 * Negates each element: y = -x. Integers too.
 *
 * Fails with %EBB_ERROR_DTYPE for a tensor of another dtype.
 *
 * Returns: (transfer full) (nullable): a tensor of the shape and dtype of @x, or %NULL with @error set
 */
EbbTensor *
ebb_neg (EbbTensor *x, GError **error)
{
  return ebb_unary (EBB_UNARY_NEG, x, error);
}

/**
 * ebb_abs:
 * @x: a tensor of f32, bf16 or integers, of any shape
 * @error: return location for an error
 *
 * The absolute value of each element. Integers too. The gradient at 0 and at NaN is 0.
 *
 * Fails with %EBB_ERROR_DTYPE for a tensor of another dtype.
 *
 * Returns: (transfer full) (nullable): a tensor of the shape and dtype of @x, or %NULL with @error set
 */
EbbTensor *
ebb_abs (EbbTensor *x, GError **error)
{
  return ebb_unary (EBB_UNARY_ABS, x, error);
}

/**
 * ebb_exp:
 * @x: a tensor of f32 or bf16, of any shape
 * @error: return location for an error
 *
 * The exponential of each element: y = e^x.
 *
 * Fails with %EBB_ERROR_DTYPE for a tensor of another dtype.
 *
 * Returns: (transfer full) (nullable): a tensor of the shape and dtype of @x, or %NULL with @error set
 */
EbbTensor *
ebb_exp (EbbTensor *x, GError **error)
{
  return ebb_unary (EBB_UNARY_EXP, x, error);
}

/**
 * ebb_log:
 * @x: a tensor of f32 or bf16, of any shape
 * @error: return location for an error
 *
 * The natural logarithm of each element; NaN for negative ones, -infinity for 0.
 *
 * Fails with %EBB_ERROR_DTYPE for a tensor of another dtype.
 *
 * Returns: (transfer full) (nullable): a tensor of the shape and dtype of @x, or %NULL with @error set
 */
EbbTensor *
ebb_log (EbbTensor *x, GError **error)
{
  return ebb_unary (EBB_UNARY_LOG, x, error);
}

/**
 * ebb_sqrt:
 * @x: a tensor of f32 or bf16, of any shape
 * @error: return location for an error
 *
 * The square root of each element; NaN for negative ones.
 *
 * Fails with %EBB_ERROR_DTYPE for a tensor of another dtype.
 *
 * Returns: (transfer full) (nullable): a tensor of the shape and dtype of @x, or %NULL with @error set
 */
EbbTensor *
ebb_sqrt (EbbTensor *x, GError **error)
{
  return ebb_unary (EBB_UNARY_SQRT, x, error);
}

/**
 * ebb_rsqrt:
 * @x: a tensor of f32 or bf16, of any shape
 * @error: return location for an error
 *
 * The reciprocal of the square root of each element: y = 1 / sqrt (x).
 *
 * Fails with %EBB_ERROR_DTYPE for a tensor of another dtype.
 *
 * Returns: (transfer full) (nullable): a tensor of the shape and dtype of @x, or %NULL with @error set
 */
EbbTensor *
ebb_rsqrt (EbbTensor *x, GError **error)
{
  return ebb_unary (EBB_UNARY_RSQRT, x, error);
}

/**
 * ebb_square:
 * @x: a tensor of f32 or bf16, of any shape
 * @error: return location for an error
 *
 * The square of each element: y = x * x.
 *
 * Fails with %EBB_ERROR_DTYPE for a tensor of another dtype.
 *
 * Returns: (transfer full) (nullable): a tensor of the shape and dtype of @x, or %NULL with @error set
 */
EbbTensor *
ebb_square (EbbTensor *x, GError **error)
{
  return ebb_unary (EBB_UNARY_SQUARE, x, error);
}

/**
 * ebb_sin:
 * @x: a tensor of f32 or bf16, of any shape
 * @error: return location for an error
 *
 * The sine of each element, in radians.
 *
 * Fails with %EBB_ERROR_DTYPE for a tensor of another dtype.
 *
 * Returns: (transfer full) (nullable): a tensor of the shape and dtype of @x, or %NULL with @error set
 */
EbbTensor *
ebb_sin (EbbTensor *x, GError **error)
{
  return ebb_unary (EBB_UNARY_SIN, x, error);
}

/**
 * ebb_cos:
 * @x: a tensor of f32 or bf16, of any shape
 * @error: return location for an error
 *
 * The cosine of each element, in radians.
 *
 * Fails with %EBB_ERROR_DTYPE for a tensor of another dtype.
 *
 * Returns: (transfer full) (nullable): a tensor of the shape and dtype of @x, or %NULL with @error set
 */
EbbTensor *
ebb_cos (EbbTensor *x, GError **error)
{
  return ebb_unary (EBB_UNARY_COS, x, error);
}

/**
 * ebb_soft_cap:
 * @x: a tensor of f32 or bf16, of any shape
 * @cap: the bound, positive
 * @error: return location for an error
 *
 * Bounds each element smoothly: y = cap * tanh (x / cap), which is near x for small ones and in (-cap, cap) for all.
 *
 * Fails with %EBB_ERROR_DTYPE for a tensor of another dtype, and with %EBB_ERROR_INVALID_ARGUMENT when @cap is not
 * positive and finite.
 *
 * Returns: (transfer full) (nullable): a tensor of the shape and dtype of @x, or %NULL with @error set
 */
EbbTensor *
ebb_soft_cap (EbbTensor *x, double cap, GError **error)
{
  EBB_RETURN_UNLESS_BEGUN (NULL, error, x);
  if (!(cap > 0.0) || !isfinite (cap))
    return ebb_fail_null (error, EBB_ERROR_INVALID_ARGUMENT, "soft_cap: cap is %g; must be positive and finite",
                          cap);
  return run_unary (EBB_UNARY_SOFT_CAP, x, cap, error);
}
