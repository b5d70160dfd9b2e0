/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "tensor/ops/reduction.h"
#include "tensor/ops/reduction-private.h"

#include <string.h>

/* Of an extremum, behind what ebb_op_reduce_dims () notes: no dimensions were named. */
#define EXTRA_WHOLE (EBB_MAX_DIMS + 2)

/* -- what reductions share ---------------------------------------------------------------------------------------- */

gboolean
ebb_op_reduce_dims (EbbOpCall *call,
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

      if (!ebb_normalize_dim (call->op->name, &dim, (guint) x->n_dims, error))
        return ebb_op_clear (call);
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

EbbTensor *
ebb_backward_unreduce (EbbBackward *ctx, EbbTensor *result)
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
    ctx->grad_inputs[0] = ebb_backward_unreduce (ctx, dy);
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
  ctx->grad_inputs[0] = ebb_backward_unreduce (ctx, share);
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
  g_autoptr (EbbTensor) y = ebb_backward_unreduce (ctx, ebb_tensor_ref (ctx->saved[1]));
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
  dy = ebb_backward_unreduce (ctx, g_steal_pointer (&dy));
  count = ebb_backward_unreduce (ctx, g_steal_pointer (&count));
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
      || !ebb_op_reduce_dims (&call, dims, n_dims, keep_dims, shape, &n_kept, error))
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
      || !ebb_op_reduce_dims (&call, dims, n_dims, keep_dims, shape, &n_kept, error))
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
      || !ebb_op_reduce_dims (&call, dims, n_dims, keep_dims, shape, &n_kept, error))
    return NULL;
  if (call.extra.i[EBB_MAX_DIMS + 1] == 0)
    {
      g_autofree char *text = ebb_tensor_shape_to_string (x);

      ebb_op_fail (&call, error, EBB_ERROR_SHAPE,
                   "a tensor of shape %s has no elements along the reduced dimensions; there must be one or more",
                   text);
      return NULL;
    }
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
