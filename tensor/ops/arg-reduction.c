/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "tensor/ops/reduction.h"
#include "tensor/ops/reduction-private.h"

/* Reductions that tell where: the index is what the gradient needs. */

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
      || !ebb_op_reduce_dims (call, &dim, 1, keep_dim, shape, n_kept, error))
    return FALSE;
  call->params.reduce.op = EBB_REDUCE_MAX;
  if (call->extra.i[EBB_MAX_DIMS + 1] == 0)
    {
      g_autofree char *text = ebb_tensor_shape_to_string (x);

      return ebb_op_fail (call, error, EBB_ERROR_SHAPE,
                          "dimension %d of shape %s has no elements; there must be one or more", dim, text);
    }
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
  guint n_kept;

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
  guint n_kept;

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
