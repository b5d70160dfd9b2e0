/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "tensor/ops/pointwise.h"
#include "tensor/autograd/op-support-private.h"

#include <math.h>

/* Ops element by element with parameters: where, clamp, triangles. */

/* -- where -------------------------------------------------------------------------------------------------------- */

static gboolean
where_backward (EbbBackward *ctx, GError **error)
{
  g_autoptr (EbbTensor) dy = ebb_backward_steal_grad (ctx, 0);

  for (guint i = 1; dy != NULL && i <= 2; i++)
    if ((ctx->needs >> i) & 1)
      {
        g_autoptr (EbbTensor) grad = ebb_tensor_new_like (dy, error);

        if (grad == NULL || !ebb_launch_where (ctx->saved[0], i == 1 ? dy : NULL, i == 1 ? NULL : dy, grad, error)
            || (ctx->grad_inputs[i] = ebb_broadcast_reverse (g_steal_pointer (&grad), ctx->extra_i[i], error)) == NULL)
          return FALSE;
      }
  return TRUE;
}

static const EbbOp where_op = { "where", EBB_OP_POINTWISE, EBB_KERNEL_WHERE, NULL, where_backward };

/**
 * ebb_where:
 * @condition: a tensor of bool
 * @a: a tensor of any dtype
 * @b: a tensor of any dtype
 * @error: return location for an error
 *
 * Takes each element from @a where @condition is true and from @b where it is false. The three shapes are broadcast;
 * different dtypes of @a and @b are cast as ebb_dtype_promote () says.
 *
 * Fails with %EBB_ERROR_SHAPE when the shapes do not broadcast, and with %EBB_ERROR_DTYPE when @condition is not of
 * bool.
 *
 * Returns: (transfer full) (nullable): a tensor of the broadcast shape, or %NULL with @error set
 */
EbbTensor *
ebb_where (EbbTensor *condition, EbbTensor *a, EbbTensor *b, GError **error)
{
  EbbOpCall call;
  EbbDType dtype;
  gint64 shape[EBB_MAX_DIMS];
  guint n_dims;

  if (!ebb_op_begin (&call, &where_op, error, 3, condition, a, b))
    return NULL;
  if (condition->view.dtype != EBB_DTYPE_BOOL)
    return ebb_op_fail_null (&call, error, EBB_ERROR_DTYPE,
                             "the condition must be of bool, not %s; compare first, as with ne",
                             ebb_dtype_get_name (condition->view.dtype));
  dtype = ebb_op_promote (&call, 1, 2);
  if (!ebb_op_cast (&call, 1, dtype, error) || !ebb_op_cast (&call, 2, dtype, error))
    return NULL;
  ebb_op_save_input (&call, 0);
  /* First a and b with each other, then both with the condition. */
  if (!ebb_op_broadcast (&call, 1, 2, shape, &n_dims, error) || !ebb_op_broadcast (&call, 0, 1, shape, &n_dims, error))
    return NULL;
  ebb_op_expand (&call, 2, shape, n_dims);
  call.extra.i[1] = ebb_broadcast_encode (&a->view, shape, n_dims);
  call.extra.i[2] = ebb_broadcast_encode (&b->view, shape, n_dims);
  ebb_op_add_output (&call, dtype, shape, n_dims);
  return ebb_op_finish1 (&call, error);
}

/* -- clamp -------------------------------------------------------------------------------------------------------- */

static gboolean
clamp_backward (EbbBackward *ctx, GError **error)
{
  g_autoptr (EbbTensor) dy = ebb_backward_steal_grad (ctx, 0);

  return dy == NULL
         || ((ctx->grad_inputs[0] = ebb_tensor_new_reusing (dy, error)) != NULL
             && EBB_LAUNCH (EBB_KERNEL_CLAMP_GRAD, ctx->params, 2, error, dy, ctx->saved[0], ctx->grad_inputs[0]));
}

static const EbbOp clamp_op = { "clamp", EBB_OP_POINTWISE, EBB_KERNEL_CLAMP, NULL, clamp_backward };

/* The least and the greatest number of an integer dtype, as doubles that convert back without overflow. */
static void
get_integer_range (EbbDType dtype, double *least, double *greatest)
{
  *least = dtype == EBB_DTYPE_I64 ? -0x1p63 : dtype == EBB_DTYPE_I32 ? G_MININT32
                                                                     : 0.0;
  *greatest = dtype == EBB_DTYPE_I64 ? 0x1p63 - 1024.0 : dtype == EBB_DTYPE_I32 ? G_MAXINT32
                                                                                : 255.0;
}

static gboolean
is_fraction (double bound)
{
  return isfinite (bound) && bound != trunc (bound);
}

/**
 * ebb_clamp:
 * @x: a tensor of f32, bf16 or integers
 * @min: the least value that stays; minus infinity for no bound
 * @max: the greatest value that stays; infinity for no bound
 * @error: return location for an error
 *
 * Moves each element into [@min, @max]. The gradient is passed on where @min < x < @max; elsewhere, at a bound and at
 * NaN it is 0, as in PyTorch 2.15.
 *
 * Fails with %EBB_ERROR_INVALID_ARGUMENT when @min is greater than @max or one of both is NaN, and with
 * %EBB_ERROR_DTYPE for f16 and bool.
 *
 * Returns: (transfer full) (nullable): a tensor of the shape of @x and of its dtype, but of f32 when @x is of integers
 *   and a bound is a fraction; or %NULL with @error set
 */
EbbTensor *
ebb_clamp (EbbTensor *x, double min, double max, GError **error)
{
  EbbOpCall call;

  if (!ebb_op_begin (&call, &clamp_op, error, 1, x) || !ebb_op_check_not_f16 (&call, error))
    return NULL;
  if (x->view.dtype == EBB_DTYPE_BOOL)
    return ebb_op_fail_null (&call, error, EBB_ERROR_DTYPE, "bool holds no numbers; cast to i64 or f32 first");
  if (!(min <= max))
    return ebb_op_fail_null (&call, error, EBB_ERROR_INVALID_ARGUMENT,
                             "from %g to %g is no range; min must not exceed max", min, max);
  if (!ebb_dtype_is_floating_point (x->view.dtype) && (is_fraction (min) || is_fraction (max)))
    {
      if (!ebb_op_cast (&call, 0, EBB_DTYPE_F32, error))
        return NULL;
    }
  else if (!ebb_dtype_is_floating_point (x->view.dtype))
    {
      double least, greatest;

      get_integer_range (x->view.dtype, &least, &greatest);
      min = CLAMP (min, least, greatest);
      max = CLAMP (max, least, greatest);
    }
  call.params.clamp.min = min;
  call.params.clamp.max = max;
  ebb_op_add_output_like (&call, call.inputs[0]);
  ebb_op_save_input (&call, 0);
  return ebb_op_finish1 (&call, error);
}

/* -- triangles ---------------------------------------------------------------------------------------------------- */

static gboolean
triangle_backward (EbbBackward *ctx, GError **error)
{
  g_autoptr (EbbTensor) dy = ebb_backward_steal_grad (ctx, 0);

  return dy == NULL
         || ((ctx->grad_inputs[0] = ebb_tensor_new_reusing (dy, error)) != NULL
             && EBB_LAUNCH (EBB_KERNEL_TRIANGLE, ctx->params, 1, error, dy, ctx->grad_inputs[0]));
}

static const EbbOp tril_op = { "tril", EBB_OP_POINTWISE, EBB_KERNEL_TRIANGLE, NULL, triangle_backward };
static const EbbOp triu_op = { "triu", EBB_OP_POINTWISE, EBB_KERNEL_TRIANGLE, NULL, triangle_backward };

static EbbTensor *
triangle (const EbbOp *op, EbbTensor *x, gint64 diagonal, gboolean upper, GError **error)
{
  EbbOpCall call;

  if (!ebb_op_begin (&call, op, error, 1, x) || !ebb_op_check_not_f16 (&call, error))
    return NULL;
  if (x->view.n_dims < 2)
    return ebb_op_fail_null (&call, error, EBB_ERROR_SHAPE,
                             "needs matrices, two dimensions or more, not a tensor of shape %s", ebb_show_shape (x));
  call.params.triangle.diagonal = diagonal;
  call.params.triangle.upper = upper;
  ebb_op_add_output_like (&call, x);
  return ebb_op_finish1 (&call, error);
}

/**
 * ebb_tril:
 * @x: a tensor `[…, M, N]` of any dtype but f16
 * @diagonal: the last diagonal that stays: 0 is the main one, positive ones are above it
 * @error: return location for an error
 *
 * Keeps the lower triangle of each matrix, column - row <= @diagonal, and sets the rest to 0.
 *
 * Fails with %EBB_ERROR_SHAPE when @x has less than two dimensions, and with %EBB_ERROR_DTYPE for f16.
 *
 * Returns: (transfer full) (nullable): a tensor of the shape and dtype of @x, or %NULL with @error set
 */
EbbTensor *
ebb_tril (EbbTensor *x, gint64 diagonal, GError **error)
{
  return triangle (&tril_op, x, diagonal, FALSE, error);
}

/**
 * ebb_triu:
 * @x: a tensor `[…, M, N]` of any dtype but f16
 * @diagonal: the first diagonal that stays: 0 is the main one, positive ones are above it
 * @error: return location for an error
 *
 * Keeps the upper triangle of each matrix, column - row >= @diagonal, and sets the rest to 0.
 *
 * Fails with %EBB_ERROR_SHAPE when @x has less than two dimensions, and with %EBB_ERROR_DTYPE for f16.
 *
 * Returns: (transfer full) (nullable): a tensor of the shape and dtype of @x, or %NULL with @error set
 */
EbbTensor *
ebb_triu (EbbTensor *x, gint64 diagonal, GError **error)
{
  return triangle (&triu_op, x, diagonal, TRUE, error);
}
