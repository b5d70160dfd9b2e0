/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "tensor/ops/pointwise.h"
#include "tensor/autograd/op-support-private.h"
#include "tensor/ops/product-private.h"

/* Arithmetic of a tensor and a number. */

static gboolean
pass_backward (EbbBackward *ctx, GError **error)
{
  ctx->grad_inputs[0] = ebb_backward_steal_grad (ctx, 0);
  return TRUE;
}

static gboolean
negate_backward (EbbBackward *ctx, GError **error)
{
  g_autoptr (EbbTensor) dy = ebb_backward_steal_grad (ctx, 0);

  if (dy == NULL)
    return TRUE;
  ctx->grad_inputs[0] = ebb_tensor_new_reusing (dy, error);
  return ctx->grad_inputs[0] != NULL && ebb_launch_unary (EBB_UNARY_NEG, dy, ctx->grad_inputs[0], error);
}

/* dx = dy * b for y = x * b, dx = dy / b for y = x / b */
static gboolean
scale_backward (EbbBackward *ctx, GError **error)
{
  g_autoptr (EbbTensor) dy = ebb_backward_steal_grad (ctx, 0);

  if (dy == NULL)
    return TRUE;
  ctx->grad_inputs[0] = ebb_tensor_new_reusing (dy, error);
  return ctx->grad_inputs[0] != NULL
         && ebb_launch_scalar (ctx->params->binary.op, dy, ctx->params->binary.value, ctx->grad_inputs[0], error);
}

/* dx = dy * b * x^(b - 1), and 0 for b = 0, also where x is 0 */
static gboolean
pow_backward (EbbBackward *ctx, GError **error)
{
  double exponent = ctx->params->binary.value;
  g_autoptr (EbbTensor) dy = ebb_backward_steal_grad (ctx, 0);
  g_autoptr (EbbTensor) dx = dy != NULL ? ebb_tensor_new_like (dy, error) : NULL;
  gboolean ok;

  if (dy == NULL)
    return TRUE;
  if (dx == NULL)
    return FALSE;
  if (exponent == 0.0)
    ok = ebb_launch_fill (dx, 0.0, error);
  else
    ok = ebb_launch_scalar (EBB_BINARY_POW, ctx->saved[0], exponent - 1.0, dx, error)
         && ebb_launch_scalar (EBB_BINARY_MUL, dx, exponent, dx, error)
         && ebb_launch_binary (EBB_BINARY_MUL, dx, dy, dx, error);
  ctx->grad_inputs[0] = g_steal_pointer (&dx);
  return ok;
}

/* dx = -dy * b / x / x for y = b / x: not over x * x, which may be beyond the dtype */
static gboolean
rdiv_backward (EbbBackward *ctx, GError **error)
{
  g_autoptr (EbbTensor) dy = ebb_backward_steal_grad (ctx, 0);
  EbbTensor *dx;

  if (dy == NULL)
    return TRUE;
  ctx->grad_inputs[0] = dx = ebb_tensor_new_reusing (dy, error);
  return dx != NULL && ebb_launch_binary (EBB_BINARY_DIV, dy, ctx->saved[0], dx, error)
         && ebb_launch_scalar (EBB_BINARY_MUL, dx, -ctx->params->binary.value, dx, error)
         && ebb_launch_binary (EBB_BINARY_DIV, dx, ctx->saved[0], dx, error);
}

static const EbbOp add_op = { "add_scalar", EBB_OP_POINTWISE, EBB_KERNEL_BINARY_SCALAR, NULL, pass_backward };
static const EbbOp sub_op = { "sub_scalar", EBB_OP_POINTWISE, EBB_KERNEL_BINARY_SCALAR, NULL, pass_backward };
static const EbbOp mul_op = { "mul_scalar", EBB_OP_POINTWISE, EBB_KERNEL_BINARY_SCALAR, NULL, scale_backward };
static const EbbOp div_op = { "div_scalar", EBB_OP_POINTWISE, EBB_KERNEL_BINARY_SCALAR, NULL, scale_backward };
static const EbbOp pow_op = { "pow_scalar", EBB_OP_POINTWISE, EBB_KERNEL_BINARY_SCALAR, NULL, pow_backward };
static const EbbOp rsub_op = { "rsub_scalar", EBB_OP_POINTWISE, EBB_KERNEL_BINARY_SCALAR, NULL, negate_backward };
static const EbbOp rdiv_op = { "rdiv_scalar", EBB_OP_POINTWISE, EBB_KERNEL_BINARY_SCALAR, NULL, rdiv_backward };

/* Casts bool to f32, and integers where the result is not an integer. */
static gboolean
promote (EbbOpCall *call, EbbBinaryOp which, double value, GError **error)
{
  if (!ebb_op_check_not_f16 (call, error))
    return FALSE;
  if (call->inputs[0]->view.dtype == EBB_DTYPE_BOOL || which == EBB_BINARY_DIV
      || (which == EBB_BINARY_POW && value < 0.0))
    return ebb_op_cast (call, 0, EBB_DTYPE_F32, error);
  return ebb_op_promote_to_scalar (call, value, error);
}

static EbbTensor *
arithmetic_of (const EbbOp *op,
               EbbBinaryOp which,
               gboolean reverse,
               EbbTensor *a,
               double value,
               gboolean saves_result,
               GError **error)
{
  EbbOpCall call;

  if (!ebb_op_begin (&call, op, error, 1, a))
    return NULL;
  if (a->view.dtype != EBB_DTYPE_F32 && a->view.dtype != EBB_DTYPE_BF16 && !promote (&call, which, value, error))
    return NULL;
  call.params.binary.op = which;
  call.params.binary.value = value;
  call.params.binary.reverse = reverse;
  ebb_op_add_output_like (&call, call.inputs[0]);
  if (which == EBB_BINARY_POW || (which == EBB_BINARY_DIV && reverse))
    ebb_op_save_input (&call, 0);
  if (saves_result)
    ebb_op_save_output (&call, 0);
  return ebb_op_finish1 (&call, error);
}

static EbbTensor *
arithmetic (const EbbOp *op, EbbBinaryOp which, gboolean reverse, EbbTensor *a, double value, GError **error)
{
  return arithmetic_of (op, which, reverse, a, value, FALSE, error);
}

EbbTensor *
ebb_mul_scalar_saved (EbbTensor *a, double b, GError **error)
{
  return arithmetic_of (&mul_op, EBB_BINARY_MUL, FALSE, a, b, TRUE, error);
}

/**
 * ebb_add_scalar:
 * @a: a tensor of any dtype but f16
 * @b: a number
 * @error: return location for an error
 *
 * The sum of each element of @a and @b. The result has the dtype of @a, but f32 when @a is of bool, or of integers and
 * @b is not an integer of that dtype.
 *
 * Fails with %EBB_ERROR_DTYPE for f16.
 *
 * Returns: (transfer full) (nullable): a tensor of the shape of @a, or %NULL with @error set
 */
EbbTensor *
ebb_add_scalar (EbbTensor *a, double b, GError **error)
{
  return arithmetic (&add_op, EBB_BINARY_ADD, FALSE, a, b, error);
}

/**
 * ebb_sub_scalar:
 * @a: a tensor of any dtype but f16
 * @b: a number
 * @error: return location for an error
 *
 * The difference of each element of @a and @b. The result has the dtype of @a, but f32 when @a is of bool, or of
 * integers and @b is not an integer of that dtype.
 *
 * Fails with %EBB_ERROR_DTYPE for f16.
 *
 * Returns: (transfer full) (nullable): a tensor of the shape of @a, or %NULL with @error set
 */
EbbTensor *
ebb_sub_scalar (EbbTensor *a, double b, GError **error)
{
  return arithmetic (&sub_op, EBB_BINARY_SUB, FALSE, a, b, error);
}

/**
 * ebb_mul_scalar:
 * @a: a tensor of any dtype but f16
 * @b: a number
 * @error: return location for an error
 *
 * The product of each element of @a and @b. The result has the dtype of @a, but f32 when @a is of bool, or of integers
 * and @b is not an integer of that dtype.
 *
 * Fails with %EBB_ERROR_DTYPE for f16.
 *
 * Returns: (transfer full) (nullable): a tensor of the shape of @a, or %NULL with @error set
 */
EbbTensor *
ebb_mul_scalar (EbbTensor *a, double b, GError **error)
{
  return arithmetic (&mul_op, EBB_BINARY_MUL, FALSE, a, b, error);
}

/**
 * ebb_div_scalar:
 * @a: a tensor of any dtype but f16
 * @b: a number
 * @error: return location for an error
 *
 * The quotient of each element of @a and @b. Integers are divided as f32. The result has the dtype of @a, but f32 when
 * @a is of bool, or of integers and @b is not an integer of that dtype.
 *
 * Fails with %EBB_ERROR_DTYPE for f16.
 *
 * Returns: (transfer full) (nullable): a tensor of the shape of @a, or %NULL with @error set
 */
EbbTensor *
ebb_div_scalar (EbbTensor *a, double b, GError **error)
{
  return arithmetic (&div_op, EBB_BINARY_DIV, FALSE, a, b, error);
}

/**
 * ebb_pow_scalar:
 * @a: a tensor of any dtype but f16
 * @b: a number
 * @error: return location for an error
 *
 * Each element of @a to the power of @b. The result has the dtype of @a, but f32 when @a is of bool, or of integers and
 * @b is not an integer of that dtype.
 *
 * Fails with %EBB_ERROR_DTYPE for f16.
 *
 * Returns: (transfer full) (nullable): a tensor of the shape of @a, or %NULL with @error set
 */
EbbTensor *
ebb_pow_scalar (EbbTensor *a, double b, GError **error)
{
  return arithmetic (&pow_op, EBB_BINARY_POW, FALSE, a, b, error);
}

/**
 * ebb_rsub_scalar:
 * @a: a tensor of any dtype but f16
 * @b: a number
 * @error: return location for an error
 *
 * The difference @b - @a for each element of @a. The result has the dtype of @a, but f32 when @a is of bool, or of
 * integers and @b is not an integer of that dtype.
 *
 * Fails with %EBB_ERROR_DTYPE for f16.
 *
 * Returns: (transfer full) (nullable): a tensor of the shape of @a, or %NULL with @error set
 */
EbbTensor *
ebb_rsub_scalar (EbbTensor *a, double b, GError **error)
{
  return arithmetic (&rsub_op, EBB_BINARY_SUB, TRUE, a, b, error);
}

/**
 * ebb_rdiv_scalar:
 * @a: a tensor of any dtype but f16
 * @b: a number
 * @error: return location for an error
 *
 * The quotient @b / @a for each element of @a. Integers are divided as f32. The result has the dtype of @a, but f32
 * when @a is of bool, or of integers and @b is not an integer of that dtype.
 *
 * Fails with %EBB_ERROR_DTYPE for f16.
 *
 * Returns: (transfer full) (nullable): a tensor of the shape of @a, or %NULL with @error set
 */
EbbTensor *
ebb_rdiv_scalar (EbbTensor *a, double b, GError **error)
{
  return arithmetic (&rdiv_op, EBB_BINARY_DIV, TRUE, a, b, error);
}
