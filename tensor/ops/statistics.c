/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "tensor/ops/reduction.h"
#include "tensor/ops/reduction-private.h"

/* -- variance ----------------------------------------------------------------------------------------------------- */

static gboolean
var_run (EbbOpCall *call, GError **error)
{
  EbbTensor *x = call->inputs[0];
  EbbLaunch launch;
  EbbView views[3];

  ebb_launch_init (&launch, EBB_KERNEL_VAR);
  launch.params.reduce = call->params.reduce;
  ebb_launch_input (&launch, x);
  for (guint i = 0; i < 3; i++)
    {
      ebb_view_keep_dims (&views[i], &call->outputs[i]->view, call->params.reduce.dims, (guint) x->view.n_dims);
      launch.outputs[launch.n_outputs++] = &views[i];
    }
  return ebb_launch (EBB_DEVICE_OF (x), &launch, error);
}

/* dx = dy * 2 (x - mean) / (n - correction), in f32; the mean is the sum of two numbers. */
static gboolean
var_backward (EbbBackward *ctx, GError **error)
{
  double scale = 2.0 / ((double) ctx->extra_i[EBB_MAX_DIMS + 1] - ctx->params->reduce.correction);
  g_autoptr (EbbTensor) dy = ebb_backward_steal_grad (ctx, 0);
  g_autoptr (EbbTensor) x = NULL;
  g_autoptr (EbbTensor) mean = NULL;
  g_autoptr (EbbTensor) rest = NULL;
  g_autoptr (EbbTensor) factor = NULL;
  EbbTensor *dx;

  if (dy == NULL)
    return TRUE;
  if ((dy = ebb_tensor_into_dtype (g_steal_pointer (&dy), EBB_DTYPE_F32, error)) == NULL
      || (x = ebb_tensor_into_dtype (ebb_tensor_ref (ctx->saved[0]), EBB_DTYPE_F32, error)) == NULL
      || (factor = ebb_tensor_new_like (dy, error)) == NULL
      || (ctx->grad_inputs[0] = dx = ebb_tensor_new_like (x, error)) == NULL
      || !ebb_launch_scalar (EBB_BINARY_MUL, dy, scale, factor, error))
    return FALSE;
  mean = ebb_backward_unreduce (ctx, ebb_tensor_ref (ctx->saved[1]));
  rest = ebb_backward_unreduce (ctx, ebb_tensor_ref (ctx->saved[2]));
  factor = ebb_backward_unreduce (ctx, g_steal_pointer (&factor));
  return ebb_launch_binary (EBB_BINARY_SUB, x, mean, dx, error)
         && ebb_launch_binary (EBB_BINARY_SUB, dx, rest, dx, error)
         && ebb_launch_binary (EBB_BINARY_MUL, dx, factor, dx, error);
}

static const EbbOp var_op = { "var", EBB_OP_REDUCTION, EBB_KERNEL_VAR, var_run, var_backward };

/**
 * ebb_var:
 * @x: a tensor of f32 or bf16
 * @dims: (array length=n_dims) (nullable): the dimensions to reduce; negative ones count from the end
 * @n_dims: how many; 0 for all dimensions of @x
 * @correction: what is taken from the number of elements: 1 for the unbiased estimate, 0 for the population's variance
 * @keep_dims: whether the result keeps these dimensions with size 1
 * @error: return location for an error
 *
 * The variance along some dimensions, or of all: sum ((x - mean)^2) / (n - @correction). It
 * is as exact far from zero as near it: equal elements give 0.
 *
 * Fails with %EBB_ERROR_INDEX when a dimension is out of range, with %EBB_ERROR_INVALID_ARGUMENT when it is given
 * twice, and with %EBB_ERROR_DTYPE when @x is not f32 or bf16.
 *
 * Returns: (transfer full) (nullable): a tensor of the dtype of @x, or %NULL with @error set
 */
EbbTensor *
ebb_var (EbbTensor *x, const int *dims, guint n_dims, double correction, gboolean keep_dims, GError **error)
{
  EbbOpCall call;
  gint64 shape[EBB_MAX_DIMS];
  guint n_kept;

  if (!ebb_op_begin (&call, &var_op, error, 1, x) || !ebb_op_check_floating (&call, error)
      || !ebb_op_reduce_dims (&call, dims, n_dims, keep_dims, shape, &n_kept, error))
    return NULL;
  call.params.reduce.correction = correction;
  ebb_op_add_output (&call, x->view.dtype, shape, n_kept);
  for (guint i = 1; i < 3; i++)
    {
      ebb_op_add_output (&call, EBB_DTYPE_F32, shape, n_kept);
      call.non_differentiable |= 1u << i;
    }
  ebb_op_save_input (&call, 0);
  ebb_op_save_output (&call, 1);
  ebb_op_save_output (&call, 2);
  return ebb_op_finish1 (&call, error);
}

/* -- norm --------------------------------------------------------------------------------------------------------- */

static gboolean
norm_run (EbbOpCall *call, GError **error)
{
  EbbTensor *x = call->inputs[0], *y = call->outputs[0];
  g_autoptr (EbbTensor) squares = ebb_tensor_new_uninitialized (NULL, 0, EBB_DTYPE_F32, EBB_DEVICE_OF (x), error);

  return squares != NULL && ebb_launch_reduce (EBB_REDUCE_SUM_SQUARES, x, (1u << x->view.n_dims) - 1, squares, error)
         && ebb_launch_unary (EBB_UNARY_SQRT, squares, squares, error) && ebb_launch_copy (squares, y, error);
}

/* dx = x * dy / y, and 0 where the norm is 0: 0 * dy, which keeps a NaN */
static gboolean
norm_backward (EbbBackward *ctx, GError **error)
{
  EbbTensor *x = ctx->saved[0], *y = ctx->saved[1];
  g_autoptr (EbbTensor) dy = ebb_backward_steal_grad (ctx, 0);
  g_autoptr (EbbTensor) scale = NULL;
  g_autoptr (EbbTensor) is_zero = NULL;

  if (dy == NULL)
    return TRUE;
  if ((scale = ebb_tensor_new_like (y, error)) == NULL
      || (is_zero = ebb_tensor_new_uninitialized (NULL, 0, EBB_DTYPE_BOOL, EBB_DEVICE_OF (y), error)) == NULL
      || (ctx->grad_inputs[0] = ebb_tensor_new_like (x, error)) == NULL)
    return FALSE;
  return ebb_launch_binary (EBB_BINARY_DIV, dy, y, scale, error)
         && ebb_launch_scalar (EBB_BINARY_EQ, y, 0.0, is_zero, error)
         && ebb_launch_where (is_zero, dy, scale, scale, error)
         && ebb_launch_binary (EBB_BINARY_MUL, x, scale, ctx->grad_inputs[0], error);
}

static const EbbOp norm_op = { "norm", EBB_OP_REDUCTION, EBB_KERNEL_REDUCE, norm_run, norm_backward };

/**
 * ebb_norm:
 * @x: a tensor of f32 or bf16, of any shape
 * @error: return location for an error
 *
 * The Euclidean norm of all elements, sqrt (sum (x^2)), summed in f32 or better.
 *
 * Fails with %EBB_ERROR_DTYPE when @x is not f32 or bf16.
 *
 * Returns: (transfer full) (nullable): a 0-dimensional tensor of the dtype of @x, or %NULL with @error set
 */
EbbTensor *
ebb_norm (EbbTensor *x, GError **error)
{
  EbbOpCall call;

  if (!ebb_op_begin (&call, &norm_op, error, 1, x) || !ebb_op_check_floating (&call, error))
    return NULL;
  ebb_op_add_output (&call, x->view.dtype, NULL, 0);
  ebb_op_save_input (&call, 0);
  ebb_op_save_output (&call, 0);
  return ebb_op_finish1 (&call, error);
}
