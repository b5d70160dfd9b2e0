/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "tensor/ops/reduction.h"
#include "tensor/autograd/op-support-private.h"

#include <string.h>

/* Reductions along dimensions: sums, means, extremes and their indices, variance, norm. */

/* Of an extremum, behind what reduce_dims () notes: no dimensions were named. */
#define EXTRA_WHOLE (EBB_MAX_DIMS + 2)

/* -- what reductions share ---------------------------------------------------------------------------------------- */

/* Sets params.reduce.dims from @dims (none: all), the result's @shape, and for the backward pass extra.i: the shape of
 * input 0, at EBB_MAX_DIMS how many dimensions that is, then how many elements make one. FALSE: error, call cleared. */
static gboolean
reduce_dims (EbbOpCall *call,
             const int *dims,
             guint n_dims,
             gboolean keep_dims,
             gint64 *shape,
             guint *n_kept,
             GError **error)
{
  const EbbView *x = &call->inputs[0]->view;
  guint32 mask = n_dims == 0 ? (1u << x->n_dims) - 1 : 0;
  gint64 count = 1;

  for (guint i = 0; i < n_dims; i++)
    {
      int dim = dims[i];

      if (!ebb_op_normalize_dim (call, &dim, error))
        return FALSE;
      if ((mask >> dim) & 1)
        return ebb_op_fail (call, error, EBB_ERROR_INVALID_ARGUMENT, "dimension %d is given twice", dims[i]);
      mask |= 1u << dim;
    }
  *n_kept = 0;
  for (int i = 0; i < x->n_dims; i++)
    {
      gboolean reduced = (mask >> i) & 1;

      if (reduced)
        count *= x->shape[i];
      if (!reduced || keep_dims)
        shape[(*n_kept)++] = reduced ? 1 : x->shape[i];
      call->extra.i[i] = x->shape[i];
    }
  call->extra.i[EBB_MAX_DIMS] = x->n_dims;
  call->extra.i[EBB_MAX_DIMS + 1] = count;
  /* A scalar has no dimension 0, but may be reduced along it. */
  call->params.reduce.dims = x->n_dims > 0 ? mask : 0;
  return TRUE;
}

/* A tensor of the result's shape as it is seen in that of the input, repeated; takes the caller's reference to it. */
static EbbTensor *
unreduce (EbbBackward *ctx, EbbTensor *result)
{
  guint32 dims = ctx->params->reduce.dims;
  guint n_dims = (guint) ctx->extra_i[EBB_MAX_DIMS];
  EbbTensor *expanded;
  EbbView view;

  ebb_view_keep_dims (&view, &result->view, dims, n_dims);
  for (guint i = 0; i < n_dims; i++)
    if ((dims >> i) & 1)
      {
        view.shape[i] = ctx->extra_i[i];
        view.strides[i] = 0;
      }
  expanded = ebb_tensor_new_from_view (result, &view, result->offset);
  ebb_tensor_unref (result);
  return expanded;
}

/* -- backward ----------------------------------------------------------------------------------------------------- */

static gboolean
sum_backward (EbbBackward *ctx, GError **error)
{
  EbbTensor *dy = ebb_backward_steal_grad (ctx, 0);

  if (dy != NULL)
    ctx->grad_inputs[0] = unreduce (ctx, dy);
  return TRUE;
}

static gboolean
mean_backward (EbbBackward *ctx, GError **error)
{
  g_autoptr (EbbTensor) dy = ebb_backward_steal_grad (ctx, 0);
  EbbTensor *share;

  if (dy == NULL)
    return TRUE;
  share = ebb_tensor_new_reusing (dy, error);
  if (share == NULL)
    return FALSE;
  ctx->grad_inputs[0] = share;
  if (!ebb_launch_scalar (EBB_BINARY_DIV, dy, (double) ctx->extra_i[EBB_MAX_DIMS + 1], share, error))
    return FALSE;
  ctx->grad_inputs[0] = unreduce (ctx, share);
  return TRUE;
}

/* Where x is the extremum, as bool. Of a whole tensor NaN is one like any other; along dimensions it is equal to
 * nothing: as in PyTorch's max and amax. */
static EbbTensor *
find_extremum (EbbBackward *ctx, EbbTensor *x, EbbTensor *y, GError **error)
{
  g_autoptr (EbbTensor) mask =
      ebb_tensor_new_uninitialized (EBB_FULL_SHAPE (x), EBB_DTYPE_BOOL, EBB_DEVICE_OF (x), error);
  g_autoptr (EbbTensor) is_nan = NULL;

  if (mask == NULL || !ebb_launch_binary (EBB_BINARY_EQ, x, y, mask, error))
    return NULL;
  if (!ctx->extra_i[EXTRA_WHOLE])
    return g_steal_pointer (&mask);
  is_nan = ebb_tensor_new_like (mask, error);
  if (is_nan == NULL || !ebb_launch_binary (EBB_BINARY_NE, x, x, is_nan, error)
      || !ebb_launch_binary (EBB_BINARY_OR, mask, is_nan, mask, error))
    return NULL;
  return g_steal_pointer (&mask);
}

/* Where x is the extremum the gradient is shared out evenly, in f32: a count of more than 256 is not exact in bf16. */
static gboolean
extremum_backward (EbbBackward *ctx, GError **error)
{
  EbbTensor *x = ctx->saved[0], *dx;
  g_autoptr (EbbTensor) y = unreduce (ctx, ebb_tensor_ref (ctx->saved[1]));
  g_autoptr (EbbTensor) dy = ebb_backward_steal_grad (ctx, 0);
  g_autoptr (EbbTensor) is_extremum = NULL;
  g_autoptr (EbbTensor) count = NULL;

  if (dy == NULL)
    return TRUE;
  if ((is_extremum = find_extremum (ctx, x, y, error)) == NULL
      || (count = ebb_tensor_new_uninitialized (EBB_FULL_SHAPE (dy), EBB_DTYPE_I64, EBB_DEVICE_OF (x), error)) == NULL
      || !ebb_launch_reduce (EBB_REDUCE_SUM, is_extremum, ctx->params->reduce.dims, count, error)
      || (count = ebb_tensor_into_dtype (g_steal_pointer (&count), EBB_DTYPE_F32, error)) == NULL
      || (dy = ebb_tensor_into_dtype (g_steal_pointer (&dy), EBB_DTYPE_F32, error)) == NULL
      || (dx = ebb_tensor_new_uninitialized (EBB_FULL_SHAPE (x), EBB_DTYPE_F32, EBB_DEVICE_OF (x), error)) == NULL)
    return FALSE;
  ctx->grad_inputs[0] = dx;
  dy = unreduce (ctx, g_steal_pointer (&dy));
  count = unreduce (ctx, g_steal_pointer (&count));
  /* A product with the mask and not a choice: without an extremum, which is NaN then, all of the slice is 0 / 0. */
  if (!ctx->extra_i[EXTRA_WHOLE])
    return ebb_launch_copy (is_extremum, dx, error) && ebb_launch_binary (EBB_BINARY_MUL, dx, dy, dx, error)
           && ebb_launch_binary (EBB_BINARY_DIV, dx, count, dx, error);
  return ebb_launch_binary (EBB_BINARY_DIV, dy, count, dx, error)
         && ebb_launch_where (is_extremum, dx, NULL, dx, error);
}

/* -- forward ------------------------------------------------------------------------------------------------------ */

static gboolean
reduce_run (EbbOpCall *call, GError **error)
{
  return ebb_launch_reduce (call->params.reduce.op, call->inputs[0], call->params.reduce.dims, call->outputs[0], error);
}

static const EbbOp sum_op = { "sum", EBB_OP_REDUCTION, EBB_KERNEL_REDUCE, reduce_run, sum_backward };
static const EbbOp mean_op = { "mean", EBB_OP_REDUCTION, EBB_KERNEL_REDUCE, reduce_run, mean_backward };
static const EbbOp max_op = { "max", EBB_OP_REDUCTION, EBB_KERNEL_REDUCE, reduce_run, extremum_backward };
static const EbbOp min_op = { "min", EBB_OP_REDUCTION, EBB_KERNEL_REDUCE, reduce_run, extremum_backward };

/**
 * ebb_sum:
 * @x: a tensor of any dtype but f16
 * @dims: (array length=n_dims) (nullable): the dimensions to sum over; negative ones count from the end
 * @n_dims: how many; 0 for all dimensions of @x
 * @keep_dims: whether the result keeps these dimensions with size 1
 * @error: return location for an error
 *
 * The sum over some dimensions, or over all. Integers and bool are summed as i64.
 *
 * Fails with %EBB_ERROR_INDEX when a dimension is out of range, with %EBB_ERROR_INVALID_ARGUMENT when it is given
 * twice, and with %EBB_ERROR_DTYPE for f16.
 *
 * Returns: (transfer full) (nullable): a tensor of the dtype of @x or of i64, or %NULL with @error set
 */
EbbTensor *
ebb_sum (EbbTensor *x, const int *dims, guint n_dims, gboolean keep_dims, GError **error)
{
  EbbOpCall call;
  gint64 shape[EBB_MAX_DIMS];
  guint n_kept;

  if (!ebb_op_begin (&call, &sum_op, error, 1, x) || !ebb_op_check_not_f16 (&call, error)
      || !reduce_dims (&call, dims, n_dims, keep_dims, shape, &n_kept, error))
    return NULL;
  call.params.reduce.op = EBB_REDUCE_SUM;
  ebb_op_add_output (&call, ebb_dtype_is_floating_point (x->view.dtype) ? x->view.dtype : EBB_DTYPE_I64, shape, n_kept);
  return ebb_op_finish1 (&call, error);
}

/**
 * ebb_mean:
 * @x: a tensor of f32 or bf16
 * @dims: (array length=n_dims) (nullable): the dimensions to average over; negative ones count from the end
 * @n_dims: how many; 0 for all dimensions of @x
 * @keep_dims: whether the result keeps these dimensions with size 1
 * @error: return location for an error
 *
 * The mean over some dimensions, or over all. The mean of nothing is NaN.
 *
 * Fails with %EBB_ERROR_INDEX when a dimension is out of range, with %EBB_ERROR_INVALID_ARGUMENT when it is given
 * twice, and with %EBB_ERROR_DTYPE when @x is not f32 or bf16.
 *
 * Returns: (transfer full) (nullable): a tensor of the dtype of @x, or %NULL with @error set
 */
EbbTensor *
ebb_mean (EbbTensor *x, const int *dims, guint n_dims, gboolean keep_dims, GError **error)
{
  EbbOpCall call;
  gint64 shape[EBB_MAX_DIMS];
  guint n_kept;

  if (!ebb_op_begin (&call, &mean_op, error, 1, x) || !ebb_op_check_floating (&call, error)
      || !reduce_dims (&call, dims, n_dims, keep_dims, shape, &n_kept, error))
    return NULL;
  call.params.reduce.op = EBB_REDUCE_MEAN;
  ebb_op_add_output (&call, x->view.dtype, shape, n_kept);
  return ebb_op_finish1 (&call, error);
}

static EbbTensor *
reduce_extremum (const EbbOp *op,
                 EbbReduceKind which,
                 EbbTensor *x,
                 const int *dims,
                 guint n_dims,
                 gboolean keep_dims,
                 GError **error)
{
  EbbOpCall call;
  gint64 shape[EBB_MAX_DIMS];
  guint n_kept;

  if (!ebb_op_begin (&call, op, error, 1, x) || !ebb_op_check_not_f16 (&call, error)
      || !reduce_dims (&call, dims, n_dims, keep_dims, shape, &n_kept, error))
    return NULL;
  if (call.extra.i[EBB_MAX_DIMS + 1] == 0)
    return ebb_op_fail_null (
        &call, error, EBB_ERROR_SHAPE,
        "a tensor of shape %s has no elements along the reduced dimensions; there must be one or more",
        ebb_show_shape (x));
  call.params.reduce.op = which;
  call.extra.i[EXTRA_WHOLE] = n_dims == 0;
  ebb_op_add_output (&call, x->view.dtype, shape, n_kept);
  ebb_op_save_input (&call, 0);
  ebb_op_save_output (&call, 0);
  return ebb_op_finish1 (&call, error);
}

/**
 * ebb_max:
 * @x: a tensor of any dtype but f16
 * @dims: (array length=n_dims) (nullable): the dimensions to reduce; negative ones count from the end
 * @n_dims: how many; 0 for all dimensions of @x
 * @keep_dims: whether the result keeps these dimensions with size 1
 * @error: return location for an error
 *
 * The greatest value along some dimensions, or of all. Where several elements are the greatest the gradient is shared
 * out evenly among them; ebb_max_along () gives it to the first one. NaN is greater than all: of all elements those
 * that are NaN share the gradient, and along dimensions a slice with NaN has NaN as its gradient, as in PyTorch.
 *
 * Fails with %EBB_ERROR_INDEX when a dimension is out of range, with %EBB_ERROR_INVALID_ARGUMENT when it is given
 * twice, with %EBB_ERROR_SHAPE when there is nothing to choose from, and with %EBB_ERROR_DTYPE for f16.
 *
 * Returns: (transfer full) (nullable): a tensor of the dtype of @x, or %NULL with @error set
 */
EbbTensor *
ebb_max (EbbTensor *x, const int *dims, guint n_dims, gboolean keep_dims, GError **error)
{
  return reduce_extremum (&max_op, EBB_REDUCE_MAX, x, dims, n_dims, keep_dims, error);
}

/**
 * ebb_min:
 * @x: a tensor of any dtype but f16
 * @dims: (array length=n_dims) (nullable): the dimensions to reduce; negative ones count from the end
 * @n_dims: how many; 0 for all dimensions of @x
 * @keep_dims: whether the result keeps these dimensions with size 1
 * @error: return location for an error
 *
 * The least value along some dimensions, or of all. Where several elements are the least the gradient is shared out
 * evenly among them.
 *
 * Fails with %EBB_ERROR_INDEX when a dimension is out of range, with %EBB_ERROR_INVALID_ARGUMENT when it is given
 * twice, with %EBB_ERROR_SHAPE when there is nothing to choose from, and with %EBB_ERROR_DTYPE for f16.
 *
 * Returns: (transfer full) (nullable): a tensor of the dtype of @x, or %NULL with @error set
 */
EbbTensor *
ebb_min (EbbTensor *x, const int *dims, guint n_dims, gboolean keep_dims, GError **error)
{
  return reduce_extremum (&min_op, EBB_REDUCE_MIN, x, dims, n_dims, keep_dims, error);
}

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
  mean = unreduce (ctx, ebb_tensor_ref (ctx->saved[1]));
  rest = unreduce (ctx, ebb_tensor_ref (ctx->saved[2]));
  factor = unreduce (ctx, g_steal_pointer (&factor));
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
      || !reduce_dims (&call, dims, n_dims, keep_dims, shape, &n_kept, error))
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

/* Reductions with an index, which the gradient needs. */

/* Checks for one dimension with elements, for a result without it or with size 1 there. */
static gboolean
begin (EbbOpCall *call,
       const EbbOp *op,
       EbbTensor *x,
       int dim,
       gboolean keep_dim,
       gint64 *shape,
       guint *n_kept,
       GError **error)
{
  if (!ebb_op_begin (call, op, error, 1, x) || !ebb_op_check_not_f16 (call, error)
      || !reduce_dims (call, &dim, 1, keep_dim, shape, n_kept, error))
    return FALSE;
  call->params.reduce.op = EBB_REDUCE_MAX;
  if (call->extra.i[EBB_MAX_DIMS + 1] == 0)
    return ebb_op_fail (call, error, EBB_ERROR_SHAPE,
                        "dimension %d of shape %s has no elements; there must be one or more", dim, ebb_show_shape (x));
  return TRUE;
}

static gboolean
launch_arg_reduce (EbbOpCall *call, EbbTensor *values, EbbTensor *indices, GError **error)
{
  EbbTensor *x = call->inputs[0];
  guint n_dims = (guint) x->view.n_dims;
  EbbLaunch launch;
  EbbView values_view, indices_view;

  ebb_launch_init (&launch, EBB_KERNEL_ARG_REDUCE);
  launch.params.reduce = call->params.reduce;
  ebb_launch_input (&launch, x);
  if (values != NULL)
    ebb_view_keep_dims (&values_view, &values->view, call->params.reduce.dims, n_dims);
  ebb_view_keep_dims (&indices_view, &indices->view, call->params.reduce.dims, n_dims);
  launch.outputs[launch.n_outputs++] = values != NULL ? &values_view : NULL;
  launch.outputs[launch.n_outputs++] = &indices_view;
  return ebb_launch (EBB_DEVICE_OF (x), &launch, error);
}

static gboolean
argmax_run (EbbOpCall *call, GError **error)
{
  return launch_arg_reduce (call, NULL, call->outputs[0], error);
}

static gboolean
max_along_run (EbbOpCall *call, GError **error)
{
  return launch_arg_reduce (call, call->outputs[0], call->outputs[1], error);
}

/* Adds @dy where @indices say, along @dim of zeros of the shape in extra_i; both as seen with that dimension. */
static gboolean
scatter (EbbBackward *ctx, EbbTensor *like, const EbbView *dy, const EbbView *indices, int dim, GError **error)
{
  EbbLaunch launch;

  ctx->grad_inputs[0] =
      ebb_backward_sum_buffer (ctx, 0, EBB_DTYPE_F32, ctx->extra_i, (guint) ctx->extra_i[EBB_MAX_DIMS], error);
  if (ctx->grad_inputs[0] == NULL)
    return FALSE;
  ebb_launch_init (&launch, EBB_KERNEL_SCATTER_ADD);
  launch.params.index.dim = dim;
  launch.inputs[launch.n_inputs++] = dy;
  launch.inputs[launch.n_inputs++] = indices;
  ebb_launch_output (&launch, ctx->grad_inputs[0]);
  return ebb_launch (EBB_DEVICE_OF (like), &launch, error);
}

static gboolean
max_along_backward (EbbBackward *ctx, GError **error)
{
  EbbTensor *dy = ctx->grad_outputs[0];
  guint32 dims = ctx->params->reduce.dims;
  guint n_dims = (guint) ctx->extra_i[EBB_MAX_DIMS];
  EbbView dy_view, indices_view;

  if (dy == NULL)
    return TRUE;
  ebb_view_keep_dims (&dy_view, &dy->view, dims, n_dims);
  ebb_view_keep_dims (&indices_view, &ctx->saved[0]->view, dims, n_dims);
  return scatter (ctx, dy, &dy_view, &indices_view, dims != 0 ? g_bit_nth_lsf (dims, -1) : 0, error);
}

static gboolean
topk_backward (EbbBackward *ctx, GError **error)
{
  EbbTensor *dy = ctx->grad_outputs[0];

  return dy == NULL || scatter (ctx, dy, &dy->view, &ctx->saved[0]->view, dy->view.n_dims - 1, error);
}

static const EbbOp argmax_op = { "argmax", EBB_OP_REDUCTION, EBB_KERNEL_ARG_REDUCE, argmax_run, NULL };
static const EbbOp max_along_op = { "max_along", EBB_OP_REDUCTION, EBB_KERNEL_ARG_REDUCE, max_along_run,
                                    max_along_backward };
static const EbbOp topk_op = { "topk", EBB_OP_REDUCTION, EBB_KERNEL_TOPK, NULL, topk_backward };

/**
 * ebb_argmax:
 * @x: a tensor of any dtype but f16
 * @dim: the dimension to search; negative ones count from the end
 * @keep_dim: whether the result keeps it with size 1
 * @error: return location for an error
 *
 * The index of the greatest element along @dim, the first one where there are several.
 *
 * Fails with %EBB_ERROR_INDEX when @dim is out of range, with %EBB_ERROR_SHAPE when it has no elements, and with
 * %EBB_ERROR_DTYPE for f16.
 *
 * Returns: (transfer full) (nullable): a tensor of i64, or %NULL with @error set
 */
EbbTensor *
ebb_argmax (EbbTensor *x, int dim, gboolean keep_dim, GError **error)
{
  EbbOpCall call;
  gint64 shape[EBB_MAX_DIMS];
  guint n_kept = 0;

  if (!begin (&call, &argmax_op, x, dim, keep_dim, shape, &n_kept, error))
    return NULL;
  ebb_op_add_output (&call, EBB_DTYPE_I64, shape, n_kept);
  return ebb_op_finish1 (&call, error);
}

/* Hands the two results out, or drops what is not wanted. */
static gboolean
give (EbbOpCall *call, EbbTensor **values, EbbTensor **indices, GError **error)
{
  if (!ebb_op_finish (call, error))
    return FALSE;
  if (values != NULL)
    *values = call->outputs[0];
  else
    ebb_tensor_unref (call->outputs[0]);
  if (indices != NULL)
    *indices = call->outputs[1];
  else
    ebb_tensor_unref (call->outputs[1]);
  return TRUE;
}

/**
 * ebb_max_along:
 * @x: a tensor of any dtype but f16
 * @dim: the dimension to search; negative ones count from the end
 * @keep_dim: whether the results keep it with size 1
 * @values: (out) (optional) (transfer full): return location for the greatest elements, of the dtype of @x
 * @indices: (out) (optional) (transfer full): return location for where they are, of i64
 * @error: return location for an error
 *
 * The greatest element along @dim and its index, the first one where there are several; that one has the gradient.
 *
 * Fails with %EBB_ERROR_INDEX when @dim is out of range, with %EBB_ERROR_SHAPE when it has no elements, and with
 * %EBB_ERROR_DTYPE for f16. On failure the results are not touched.
 *
 * Returns: %TRUE, or %FALSE with @error set
 */
gboolean
ebb_max_along (EbbTensor *x, int dim, gboolean keep_dim, EbbTensor **values, EbbTensor **indices, GError **error)
{
  EbbOpCall call;
  gint64 shape[EBB_MAX_DIMS];
  guint n_kept = 0;

  if (!begin (&call, &max_along_op, x, dim, keep_dim, shape, &n_kept, error))
    return FALSE;
  ebb_op_add_output (&call, x->view.dtype, shape, n_kept);
  ebb_op_add_output (&call, EBB_DTYPE_I64, shape, n_kept);
  ebb_op_save_output (&call, 1);
  return give (&call, values, indices, error);
}

/**
 * ebb_topk:
 * @x: a tensor `[…, N]` of f32 or bf16
 * @k: how many elements of each row, from 1 to N
 * @largest: whether the largest or the smallest ones are wanted
 * @values: (out) (optional) (transfer full): return location for the elements, `[…, k]`, of the dtype of @x
 * @indices: (out) (optional) (transfer full): return location for where they are, `[…, k]`, of i64
 * @error: return location for an error
 *
 * The @k largest elements of each row from the largest on, or the smallest from the smallest on, and their indices.
 * Equal ones come in the order of their indices.
 *
 * Fails with %EBB_ERROR_SHAPE when @x has no dimension, with %EBB_ERROR_INVALID_ARGUMENT when @k is out of range, and
 * with %EBB_ERROR_DTYPE when @x is not f32 or bf16. On failure the results are not touched.
 *
 * Returns: %TRUE, or %FALSE with @error set
 */
gboolean
ebb_topk (EbbTensor *x, gint64 k, gboolean largest, EbbTensor **values, EbbTensor **indices, GError **error)
{
  EbbOpCall call;
  gint64 shape[EBB_MAX_DIMS];
  int last = x != NULL ? x->view.n_dims - 1 : -1;

  if (!ebb_op_begin (&call, &topk_op, error, 1, x) || !ebb_op_check_floating (&call, error))
    return FALSE;
  if (last < 0)
    return ebb_op_fail (&call, error, EBB_ERROR_SHAPE, "a tensor of shape [] has no rows; it needs a dimension");
  if (k < 1 || k > x->view.shape[last])
    return ebb_op_fail (&call, error, EBB_ERROR_INVALID_ARGUMENT,
                        "k is %" G_GINT64_FORMAT "; rows of %" G_GINT64_FORMAT
                        " elements have from 1 to %" G_GINT64_FORMAT,
                        k, x->view.shape[last], x->view.shape[last]);
  if (!ebb_op_contiguous (&call, 0, error))
    return FALSE;
  for (int i = 0; i <= last; i++)
    {
      call.extra.i[i] = x->view.shape[i];
      shape[i] = i == last ? k : x->view.shape[i];
    }
  call.extra.i[EBB_MAX_DIMS] = x->view.n_dims;
  call.params.topk.k = k;
  call.params.topk.largest = largest;
  ebb_op_add_output (&call, x->view.dtype, shape, (guint) last + 1);
  ebb_op_add_output (&call, EBB_DTYPE_I64, shape, (guint) last + 1);
  ebb_op_save_output (&call, 1);
  return give (&call, values, indices, error);
}
