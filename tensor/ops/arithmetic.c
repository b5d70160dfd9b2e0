/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "tensor/ops/pointwise.h"
#include "tensor/autograd/op-support-private.h"

/* Operations on two tensors that give numbers, with their gradients. What was broadcast is in extra_i[0] and [1]; a
 * gradient is summed over it. */

/* -- backward ----------------------------------------------------------------------------------------------------- */

/* Where the gradient of operand @index is computed: over the memory of @dy if nobody reads that afterwards. */
static EbbTensor *
new_result (EbbBackward *ctx, guint index, EbbTensor *dy, GError **error)
{
  gboolean is_last = (ctx->needs >> (index + 1)) == 0;

  return is_last ? ebb_tensor_new_reusing (dy, error) : ebb_tensor_new_like (dy, error);
}

/* Takes @grad, which has the shape of the output, as the gradient of operand @index. */
static gboolean
set_grad (EbbBackward *ctx, guint index, EbbTensor *grad, GError **error)
{
  ctx->grad_inputs[index] = ebb_broadcast_reverse (grad, ctx->extra_i[index], error);
  return ctx->grad_inputs[index] != NULL;
}

/* A saved operand in the dtype of @dy: a parameter comes back as itself where a cast had stood in for it. */
static EbbTensor *
get_operand (EbbBackward *ctx, guint index, EbbTensor *dy, GError **error)
{
  return ebb_tensor_into_dtype (ebb_tensor_ref (ctx->saved[index]), dy->view.dtype, error);
}

static gboolean
add_backward (EbbBackward *ctx, GError **error)
{
  g_autoptr (EbbTensor) dy = ebb_backward_steal_grad (ctx, 0);

  if (dy == NULL)
    return TRUE;
  if ((ctx->needs & 1) && !set_grad (ctx, 0, ebb_tensor_ref (dy), error))
    return FALSE;
  return !(ctx->needs & 2) || set_grad (ctx, 1, g_steal_pointer (&dy), error);
}

static gboolean
sub_backward (EbbBackward *ctx, GError **error)
{
  g_autoptr (EbbTensor) dy = ebb_backward_steal_grad (ctx, 0);
  g_autoptr (EbbTensor) sum = NULL;

  if (dy == NULL)
    return TRUE;
  if ((ctx->needs & 1) && !set_grad (ctx, 0, ebb_tensor_ref (dy), error))
    return FALSE;
  if (!(ctx->needs & 2))
    return TRUE;
  sum = ebb_broadcast_reverse (g_steal_pointer (&dy), ctx->extra_i[1], error);
  if (sum == NULL || (ctx->grad_inputs[1] = ebb_tensor_new_reusing (sum, error)) == NULL)
    return FALSE;
  return ebb_launch_unary (EBB_UNARY_NEG, sum, ctx->grad_inputs[1], error);
}

/* The gradient of each factor is dy times the other one, which saved[] holds at the factor's own index. */
static gboolean
mul_backward (EbbBackward *ctx, GError **error)
{
  g_autoptr (EbbTensor) dy = ebb_backward_steal_grad (ctx, 0);

  for (guint i = 0; dy != NULL && i < 2; i++)
    if ((ctx->needs >> i) & 1)
      {
        g_autoptr (EbbTensor) other = get_operand (ctx, i, dy, error);
        g_autoptr (EbbTensor) grad = other != NULL ? new_result (ctx, i, dy, error) : NULL;

        if (grad == NULL || !ebb_launch_binary (EBB_BINARY_MUL, dy, other, grad, error)
            || !set_grad (ctx, i, g_steal_pointer (&grad), error))
          return FALSE;
      }
  return TRUE;
}

/* da = dy / b; db = -da * y, with y kept only for it. */
static gboolean
div_backward (EbbBackward *ctx, GError **error)
{
  g_autoptr (EbbTensor) dy = ebb_backward_steal_grad (ctx, 0);
  g_autoptr (EbbTensor) b = NULL;
  g_autoptr (EbbTensor) da = NULL;
  g_autoptr (EbbTensor) db = NULL;
  g_autoptr (EbbTensor) sum = NULL;

  if (dy == NULL)
    return TRUE;
  if ((b = get_operand (ctx, 0, dy, error)) == NULL || (da = ebb_tensor_new_reusing (dy, error)) == NULL
      || !ebb_launch_binary (EBB_BINARY_DIV, dy, b, da, error))
    return FALSE;
  g_clear_pointer (&dy, ebb_tensor_unref);
  if (ctx->needs & 2)
    {
      db = ctx->needs & 1 ? ebb_tensor_new_like (da, error) : ebb_tensor_new_reusing (da, error);
      if (db == NULL || !ebb_launch_binary (EBB_BINARY_MUL, da, ctx->saved[1], db, error)
          || (sum = ebb_broadcast_reverse (g_steal_pointer (&db), ctx->extra_i[1], error)) == NULL
          || (ctx->grad_inputs[1] = ebb_tensor_new_reusing (sum, error)) == NULL
          || !ebb_launch_unary (EBB_UNARY_NEG, sum, ctx->grad_inputs[1], error))
        return FALSE;
    }
  return !(ctx->needs & 1) || set_grad (ctx, 0, g_steal_pointer (&da), error);
}

/* Where @x compares with 0 as @op says, as bool. */
static EbbTensor *
compare_with_zero (EbbBinaryOp op, EbbTensor *x, GError **error)
{
  EbbTensor *mask = ebb_tensor_new_uninitialized (EBB_FULL_SHAPE (x), EBB_DTYPE_BOOL, EBB_DEVICE_OF (x), error);

  if (mask != NULL && !ebb_launch_scalar (op, x, 0.0, mask, error))
    g_clear_pointer (&mask, ebb_tensor_unref);
  return mask;
}

/* da = dy * b * a^(b - 1), and 0 where b is 0: there the formula may have 0 * infinity. */
static gboolean
pow_base_backward (EbbBackward *ctx, EbbTensor *dy, EbbTensor *a, EbbTensor *b, GError **error)
{
  g_autoptr (EbbTensor) exponent = ebb_tensor_new_like (b, error);
  g_autoptr (EbbTensor) da = exponent != NULL ? ebb_tensor_new_like (dy, error) : NULL;
  g_autoptr (EbbTensor) is_zero = da != NULL ? compare_with_zero (EBB_BINARY_EQ, b, error) : NULL;

  return is_zero != NULL && ebb_launch_scalar (EBB_BINARY_SUB, b, 1.0, exponent, error)
         && ebb_launch_binary (EBB_BINARY_POW, a, exponent, da, error)
         && ebb_launch_binary (EBB_BINARY_MUL, da, b, da, error)
         && ebb_launch_binary (EBB_BINARY_MUL, da, dy, da, error) && ebb_launch_where (is_zero, NULL, da, da, error)
         && set_grad (ctx, 0, g_steal_pointer (&da), error);
}

/* Sets @grad to zero where both masks are true; each broadcasts to it. */
static gboolean
clear_where_both (EbbTensor *grad, EbbTensor *a, EbbTensor *b, GError **error)
{
  g_autoptr (EbbTensor) both =
      ebb_tensor_new_uninitialized (EBB_FULL_SHAPE (grad), EBB_DTYPE_BOOL, EBB_DEVICE_OF (grad), error);

  return both != NULL && ebb_launch_binary (EBB_BINARY_AND, a, b, both, error)
         && ebb_launch_where (both, NULL, grad, grad, error);
}

/* db = dy * y * log (a), and 0 where a is 0 and b is not negative: there y is 0, or 1 whatever b is near it. */
static gboolean
pow_exponent_backward (EbbBackward *ctx, EbbTensor *dy, EbbTensor *a, EbbTensor *b, EbbTensor *y, GError **error)
{
  g_autoptr (EbbTensor) log = ebb_tensor_new_like (a, error);
  g_autoptr (EbbTensor) db = log != NULL ? ebb_tensor_new_like (dy, error) : NULL;
  g_autoptr (EbbTensor) is_zero = db != NULL ? compare_with_zero (EBB_BINARY_EQ, a, error) : NULL;
  g_autoptr (EbbTensor) is_positive = is_zero != NULL ? compare_with_zero (EBB_BINARY_GE, b, error) : NULL;

  return is_positive != NULL && ebb_launch_unary (EBB_UNARY_LOG, a, log, error)
         && ebb_launch_binary (EBB_BINARY_MUL, y, log, db, error)
         && clear_where_both (db, is_zero, is_positive, error)
         && ebb_launch_binary (EBB_BINARY_MUL, db, dy, db, error) && set_grad (ctx, 1, g_steal_pointer (&db), error);
}

static gboolean
pow_backward (EbbBackward *ctx, GError **error)
{
  g_autoptr (EbbTensor) dy = ebb_backward_steal_grad (ctx, 0);
  g_autoptr (EbbTensor) a = NULL;
  g_autoptr (EbbTensor) b = NULL;

  if (dy == NULL)
    return TRUE;
  if ((a = get_operand (ctx, 0, dy, error)) == NULL || (b = get_operand (ctx, 1, dy, error)) == NULL)
    return FALSE;
  return (!(ctx->needs & 1) || pow_base_backward (ctx, dy, a, b, error))
         && (!(ctx->needs & 2) || pow_exponent_backward (ctx, dy, a, b, ctx->saved[2], error));
}

/* The operand that lost gets nothing; at a tie each has half of the gradient, and both have it all where one is NaN. */
static gboolean
extremum_backward (EbbBackward *ctx, GError **error)
{
  EbbBinaryOp loses[2] = { EBB_BINARY_LT, EBB_BINARY_GT };
  g_autoptr (EbbTensor) dy = ebb_backward_steal_grad (ctx, 0);
  g_autoptr (EbbTensor) a = NULL;
  g_autoptr (EbbTensor) b = NULL;
  g_autoptr (EbbTensor) half = NULL;
  g_autoptr (EbbTensor) mask = NULL;

  if (dy == NULL)
    return TRUE;
  if (ctx->params->binary.op == EBB_BINARY_MINIMUM)
    {
      loses[0] = EBB_BINARY_GT;
      loses[1] = EBB_BINARY_LT;
    }
  if ((a = get_operand (ctx, 0, dy, error)) == NULL || (b = get_operand (ctx, 1, dy, error)) == NULL
      || (half = ebb_tensor_new_like (dy, error)) == NULL
      || (mask = ebb_tensor_new_uninitialized (EBB_FULL_SHAPE (dy), EBB_DTYPE_BOOL, EBB_DEVICE_OF (dy), error)) == NULL
      || !ebb_launch_scalar (EBB_BINARY_MUL, dy, 0.5, half, error)
      || !ebb_launch_binary (EBB_BINARY_EQ, a, b, mask, error) || !ebb_launch_where (mask, half, dy, half, error))
    return FALSE;
  for (guint i = 0; i < 2; i++)
    if ((ctx->needs >> i) & 1)
      {
        g_autoptr (EbbTensor) grad = ebb_tensor_new_like (dy, error);

        if (grad == NULL || !ebb_launch_binary (loses[i], a, b, mask, error)
            || !ebb_launch_where (mask, NULL, half, grad, error) || !set_grad (ctx, i, g_steal_pointer (&grad), error))
          return FALSE;
      }
  return TRUE;
}

/* -- forward ------------------------------------------------------------------------------------------------------ */

static const EbbOp ops[] = {
  [EBB_BINARY_ADD] = { "add", EBB_OP_POINTWISE, EBB_KERNEL_BINARY, NULL, add_backward },
  [EBB_BINARY_SUB] = { "sub", EBB_OP_POINTWISE, EBB_KERNEL_BINARY, NULL, sub_backward },
  [EBB_BINARY_MUL] = { "mul", EBB_OP_POINTWISE, EBB_KERNEL_BINARY, NULL, mul_backward },
  [EBB_BINARY_DIV] = { "div", EBB_OP_POINTWISE, EBB_KERNEL_BINARY, NULL, div_backward },
  [EBB_BINARY_POW] = { "pow", EBB_OP_POINTWISE, EBB_KERNEL_BINARY, NULL, pow_backward },
  [EBB_BINARY_MAXIMUM] = { "maximum", EBB_OP_POINTWISE, EBB_KERNEL_BINARY, NULL, extremum_backward },
  [EBB_BINARY_MINIMUM] = { "minimum", EBB_OP_POINTWISE, EBB_KERNEL_BINARY, NULL, extremum_backward },
};

/* Saves the operands that the gradients above read, and no others, before they are expanded. */
static void
save_operands (EbbOpCall *call, EbbBinaryOp which)
{
  gboolean needs_a = ebb_tensor_needs_grad (call->edges[0]);
  gboolean needs_b = ebb_tensor_needs_grad (call->edges[1]);

  switch (which)
    {
    case EBB_BINARY_MUL:
      if (needs_a)
        ebb_op_save_input (call, 1);
      else
        ebb_op_save_nothing (call);
      if (needs_b)
        ebb_op_save_input (call, 0);
      break;
    case EBB_BINARY_DIV:
      ebb_op_save_input (call, 1);
      break;
    case EBB_BINARY_POW:
    case EBB_BINARY_MAXIMUM:
    case EBB_BINARY_MINIMUM:
      ebb_op_save_input (call, 0);
      ebb_op_save_input (call, 1);
      break;
    default:
      break;
    }
}

/* The gradient of a divisor or an exponent reads the result too. */
static EbbTensor *
finish (EbbOpCall *call, EbbBinaryOp which, GError **error)
{
  if ((which == EBB_BINARY_DIV || which == EBB_BINARY_POW) && ebb_tensor_needs_grad (call->edges[1]))
    ebb_op_save_output (call, 0);
  return ebb_op_finish1 (call, error);
}

/* Casts the operands to the dtype in which they meet. */
static gboolean
promote (EbbOpCall *call, EbbBinaryOp which, GError **error)
{
  EbbDType dtype = ebb_op_promote (call, 0, 1);

  if (!ebb_op_check_not_f16 (call, error))
    return FALSE;
  if (dtype == EBB_DTYPE_BOOL)
    return ebb_op_fail (call, error, EBB_ERROR_DTYPE, "bool holds no numbers; cast to i64 or f32 first");
  if (which == EBB_BINARY_DIV && !ebb_dtype_is_floating_point (dtype))
    dtype = EBB_DTYPE_F32;
  return ebb_op_cast (call, 0, dtype, error) && ebb_op_cast (call, 1, dtype, error);
}

static EbbTensor *
arithmetic (EbbBinaryOp which, EbbTensor *a, EbbTensor *b, GError **error)
{
  EbbOpCall call;
  gint64 shape[EBB_MAX_DIMS];
  guint n_dims;

  if (!ebb_op_begin (&call, &ops[which], error, 2, a, b))
    return NULL;
  if ((a->view.dtype != b->view.dtype || (a->view.dtype != EBB_DTYPE_F32 && a->view.dtype != EBB_DTYPE_BF16))
      && !promote (&call, which, error))
    return NULL;
  if (call.needs_grad)
    save_operands (&call, which);
  call.params.binary.op = which;
  if (ebb_shapes_equal (&a->view, &b->view))
    {
      call.extra.i[0] = call.extra.i[1] = 0;
      ebb_op_add_output_like (&call, call.inputs[0]);
      return finish (&call, which, error);
    }
  if (!ebb_op_broadcast (&call, 0, 1, shape, &n_dims, error))
    return NULL;
  ebb_op_add_output (&call, call.inputs[0]->view.dtype, shape, n_dims);
  return finish (&call, which, error);
}

/**
 * ebb_add:
 * @a: a tensor of f32, bf16 or integers
 * @b: a tensor of f32, bf16 or integers, whose shape broadcasts with that of @a
 * @error: return location for an error
 *
 * The sum of both, element by element.
 *
 * Operands of different dtypes are cast as ebb_dtype_promote () says; a 0-dimensional one takes the dtype of the other
 * if both are floating-point or both are integers.
 *
 * Fails with %EBB_ERROR_SHAPE when the shapes do not broadcast, and with %EBB_ERROR_DTYPE for f16 and for two tensors
 * of bool.
 *
 * Returns: (transfer full) (nullable): a tensor of the broadcast shape, or %NULL with @error set
 */
EbbTensor *
ebb_add (EbbTensor *a, EbbTensor *b, GError **error)
{
  return arithmetic (EBB_BINARY_ADD, a, b, error);
}

/**
 * ebb_sub:
 * @a: a tensor of f32, bf16 or integers
 * @b: a tensor of f32, bf16 or integers, whose shape broadcasts with that of @a
 * @error: return location for an error
 *
 * The difference @a - @b, element by element.
 *
 * Operands of different dtypes are cast as ebb_dtype_promote () says; a 0-dimensional one takes the dtype of the other
 * if both are floating-point or both are integers.
 *
 * Fails with %EBB_ERROR_SHAPE when the shapes do not broadcast, and with %EBB_ERROR_DTYPE for f16 and for two tensors
 * of bool.
 *
 * Returns: (transfer full) (nullable): a tensor of the broadcast shape, or %NULL with @error set
 */
EbbTensor *
ebb_sub (EbbTensor *a, EbbTensor *b, GError **error)
{
  return arithmetic (EBB_BINARY_SUB, a, b, error);
}

/**
 * ebb_mul:
 * @a: a tensor of f32, bf16 or integers
 * @b: a tensor of f32, bf16 or integers, whose shape broadcasts with that of @a
 * @error: return location for an error
 *
 * The product of both, element by element.
 *
 * Operands of different dtypes are cast as ebb_dtype_promote () says; a 0-dimensional one takes the dtype of the other
 * if both are floating-point or both are integers.
 *
 * Fails with %EBB_ERROR_SHAPE when the shapes do not broadcast, and with %EBB_ERROR_DTYPE for f16 and for two tensors
 * of bool.
 *
 * Returns: (transfer full) (nullable): a tensor of the broadcast shape, or %NULL with @error set
 */
EbbTensor *
ebb_mul (EbbTensor *a, EbbTensor *b, GError **error)
{
  return arithmetic (EBB_BINARY_MUL, a, b, error);
}

/**
 * ebb_div:
 * @a: a tensor of f32, bf16 or integers
 * @b: a tensor of f32, bf16 or integers, whose shape broadcasts with that of @a
 * @error: return location for an error
 *
 * The quotient @a / @b, element by element.
 *
 * Operands of different dtypes are cast as ebb_dtype_promote () says; a 0-dimensional one takes the dtype of the other
 * if both are floating-point or both are integers. Integers are divided as f32.
 *
 * Fails with %EBB_ERROR_SHAPE when the shapes do not broadcast, and with %EBB_ERROR_DTYPE for f16 and for two tensors
 * of bool.
 *
 * Returns: (transfer full) (nullable): a tensor of the broadcast shape, or %NULL with @error set
 */
EbbTensor *
ebb_div (EbbTensor *a, EbbTensor *b, GError **error)
{
  return arithmetic (EBB_BINARY_DIV, a, b, error);
}

/**
 * ebb_pow:
 * @a: a tensor of f32, bf16 or integers
 * @b: a tensor of f32, bf16 or integers, whose shape broadcasts with that of @a
 * @error: return location for an error
 *
 * @a to the power of @b, element by element. Where @a is 0 the gradient of @b is 0.
 *
 * Operands of different dtypes are cast as ebb_dtype_promote () says; a 0-dimensional one takes the dtype of the other
 * if both are floating-point or both are integers.
 *
 * Fails with %EBB_ERROR_SHAPE when the shapes do not broadcast, and with %EBB_ERROR_DTYPE for f16 and for two tensors
 * of bool.
 *
 * Returns: (transfer full) (nullable): a tensor of the broadcast shape, or %NULL with @error set
 */
EbbTensor *
ebb_pow (EbbTensor *a, EbbTensor *b, GError **error)
{
  return arithmetic (EBB_BINARY_POW, a, b, error);
}

/**
 * ebb_maximum:
 * @a: a tensor of f32, bf16 or integers
 * @b: a tensor of f32, bf16 or integers, whose shape broadcasts with that of @a
 * @error: return location for an error
 *
 * The greater of both, element by element. Where they are equal the gradient is halved between them; where one is NaN
 * the result is NaN and both get the whole gradient.
 *
 * Operands of different dtypes are cast as ebb_dtype_promote () says; a 0-dimensional one takes the dtype of the other
 * if both are floating-point or both are integers.
 *
 * Fails with %EBB_ERROR_SHAPE when the shapes do not broadcast, and with %EBB_ERROR_DTYPE for f16 and for two tensors
 * of bool.
 *
 * Returns: (transfer full) (nullable): a tensor of the broadcast shape, or %NULL with @error set
 */
EbbTensor *
ebb_maximum (EbbTensor *a, EbbTensor *b, GError **error)
{
  return arithmetic (EBB_BINARY_MAXIMUM, a, b, error);
}

/**
 * ebb_minimum:
 * @a: a tensor of f32, bf16 or integers
 * @b: a tensor of f32, bf16 or integers, whose shape broadcasts with that of @a
 * @error: return location for an error
 *
 * The lesser of both, element by element. Where they are equal the gradient is halved between them.
 *
 * Operands of different dtypes are cast as ebb_dtype_promote () says; a 0-dimensional one takes the dtype of the other
 * if both are floating-point or both are integers.
 *
 * Fails with %EBB_ERROR_SHAPE when the shapes do not broadcast, and with %EBB_ERROR_DTYPE for f16 and for two tensors
 * of bool.
 *
 * Returns: (transfer full) (nullable): a tensor of the broadcast shape, or %NULL with @error set
 */
EbbTensor *
ebb_minimum (EbbTensor *a, EbbTensor *b, GError **error)
{
  return arithmetic (EBB_BINARY_MINIMUM, a, b, error);
}
