/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "tensor/ops/indexing.h"
#include "tensor/autograd/autograd-private.h"
#include "tensor/autograd/op-support-private.h"

#include <string.h>

/* Ops that select elements by indices. These are data, which the kernels check before they trust them. */

static void
keep_shape (EbbOpCall *call, EbbTensor *x, int dim)
{
  memcpy (call->extra.i, x->view.shape, sizeof (gint64) * (gsize) x->view.n_dims);
  call->extra.i[EBB_MAX_DIMS] = x->view.n_dims;
  call->extra.i[EBB_MAX_DIMS + 1] = dim;
}

/* -- rows --------------------------------------------------------------------------------------------------------- */

/* Contiguous indices of any shape in one line. */
static void
flatten_indices (EbbView *view, EbbTensor *indices)
{
  view->data = indices->view.data;
  view->dtype = indices->view.dtype;
  view->n_dims = 1;
  view->shape[0] = indices->n_elements;
  view->strides[0] = 1;
}

/* @tensor, which has those of @n_indices indices in place of one dimension, as [outer, k, inner]. */
static void
view_selected (EbbView *view, const EbbView *whole, EbbTensor *selected, gint64 n_indices)
{
  *view = *whole;
  view->data = selected->view.data;
  view->dtype = selected->view.dtype;
  view->shape[1] = n_indices;
  view->strides[0] = n_indices * whole->shape[2];
}

static gboolean
select_run (EbbOpCall *call, GError **error)
{
  EbbLaunch launch;
  EbbView x, indices, y;

  ebb_view_around_dim (&x, &call->inputs[0]->view, (int) call->extra.i[EBB_MAX_DIMS + 1]);
  flatten_indices (&indices, call->inputs[1]);
  view_selected (&y, &x, call->outputs[0], call->inputs[1]->n_elements);
  ebb_launch_init (&launch, EBB_KERNEL_INDEX_SELECT);
  launch.op = call->op->name;
  launch.inputs[launch.n_inputs++] = &x;
  launch.inputs[launch.n_inputs++] = &indices;
  launch.outputs[launch.n_outputs++] = &y;
  return ebb_launch (EBB_DEVICE_OF (call->inputs[0]), &launch, error);
}

/* Adds the gradient of each selected row to that of the row it came from. */
static gboolean
select_backward (EbbBackward *ctx, GError **error)
{
  g_autoptr (EbbTensor) dy = NULL;
  EbbTensor *dx;
  EbbLaunch launch;
  EbbView dx_view, indices, dy_view;
  EbbDType dtype;

  if (ctx->grad_outputs[0] == NULL)
    return TRUE;
  dtype = ctx->grad_outputs[0]->view.dtype == EBB_DTYPE_BF16 ? EBB_DTYPE_BF16 : EBB_DTYPE_F32;
  dx = ebb_backward_sum_buffer (ctx, 0, EBB_DTYPE_F32, ctx->extra_i, (guint) ctx->extra_i[EBB_MAX_DIMS], error);
  ctx->grad_inputs[0] = dx;
  if (dx == NULL || (dy = ebb_backward_take_grad (ctx, 0, dtype, error)) == NULL)
    return FALSE;
  ebb_view_around_dim (&dx_view, &dx->view, (int) ctx->extra_i[EBB_MAX_DIMS + 1]);
  flatten_indices (&indices, ctx->saved[0]);
  view_selected (&dy_view, &dx_view, dy, ctx->saved[0]->n_elements);
  ebb_launch_init (&launch, EBB_KERNEL_INDEX_ADD);
  launch.op = ctx->op->name;
  launch.inputs[launch.n_inputs++] = &dy_view;
  launch.inputs[launch.n_inputs++] = &indices;
  ebb_launch_output (&launch, dx);
  launch.outputs[0] = &dx_view;
  return ebb_launch (EBB_DEVICE_OF (dx), &launch, error);
}

static const EbbOp embedding_op = { "embedding", EBB_OP_INDEXING, EBB_KERNEL_INDEX_SELECT, select_run,
                                    select_backward };
static const EbbOp index_select_op = { "index_select", EBB_OP_INDEXING, EBB_KERNEL_INDEX_SELECT, select_run,
                                       select_backward };

/**
 * ebb_embedding:
 * @weight: a tensor `[V, C]` of any dtype: one row for each index
 * @indices: a tensor of i64 or i32, of any shape: which rows, in [0, V)
 * @error: return location for an error
 *
 * The row of @weight for each index.
 *
 * Fails with %EBB_ERROR_INDEX when an index is out of range, with %EBB_ERROR_SHAPE when @weight is no matrix, and with
 * %EBB_ERROR_DTYPE when @indices are not i64 or i32.
 *
 * Returns: (transfer full) (nullable): a tensor of the shape of @indices and, last, C, of the dtype of @weight, or
 *   %NULL with @error set
 */
EbbTensor *
ebb_embedding (EbbTensor *weight, EbbTensor *indices, GError **error)
{
  EbbOpCall call;
  gint64 shape[EBB_MAX_DIMS];
  int n_dims;

  if (!ebb_op_begin (&call, &embedding_op, error, 2, weight, indices))
    return NULL;
  n_dims = indices->view.n_dims;
  if (weight->view.n_dims != 2 || n_dims >= EBB_MAX_DIMS)
    return ebb_op_fail_null (&call, error, EBB_ERROR_SHAPE,
                             "weight of shape %s and indices of shape %s; must be [V, C] and at most %d dimensions",
                             ebb_show_shape (weight), ebb_show_shape (indices), EBB_MAX_DIMS - 1);
  if (!ebb_op_prepare_indices (&call, 1, error) || !ebb_op_contiguous (&call, 0, error))
    return NULL;
  memcpy (shape, indices->view.shape, sizeof (gint64) * (gsize) n_dims);
  shape[n_dims] = weight->view.shape[1];
  keep_shape (&call, weight, 0);
  ebb_op_add_output (&call, weight->view.dtype, shape, (guint) n_dims + 1);
  ebb_op_save_input (&call, 1);
  return ebb_op_finish1 (&call, error);
}

/**
 * ebb_index_select:
 * @x: a tensor of any dtype
 * @dim: the dimension along which to select; negative ones count from the end
 * @indices: a tensor `[K]` of i64 or i32: which elements along @dim
 * @error: return location for an error
 *
 * The parts of @x at @indices along @dim, in that order. An index may come more than once.
 *
 * Fails with %EBB_ERROR_INDEX when @dim or an index is out of range, with %EBB_ERROR_SHAPE when @x has no dimension or
 * @indices more than one, and with %EBB_ERROR_DTYPE when @indices are not i64 or i32.
 *
 * Returns: (transfer full) (nullable): a tensor of the shape of @x but with K in place of the size of @dim, or %NULL
 *   with @error set
 */
EbbTensor *
ebb_index_select (EbbTensor *x, int dim, EbbTensor *indices, GError **error)
{
  EbbOpCall call;
  EbbView view;

  if (!ebb_op_begin (&call, &index_select_op, error, 2, x, indices))
    return NULL;
  if (x->view.n_dims == 0 || indices->view.n_dims != 1)
    return ebb_op_fail_null (&call, error, EBB_ERROR_SHAPE,
                             "x of shape %s and indices of shape %s; x must have a dimension, and indices one",
                             ebb_show_shape (x), ebb_show_shape (indices));
  if (!ebb_op_normalize_dim (&call, &dim, error))
    return NULL;
  if (!ebb_op_prepare_indices (&call, 1, error) || !ebb_op_contiguous (&call, 0, error))
    return NULL;
  view = x->view;
  view.shape[dim] = indices->n_elements;
  keep_shape (&call, x, dim);
  ebb_op_add_output (&call, x->view.dtype, view.shape, (guint) view.n_dims);
  ebb_op_save_input (&call, 1);
  return ebb_op_finish1 (&call, error);
}

/* -- elements ----------------------------------------------------------------------------------------------------- */

/* @view cut to the shape of @indices, which is not greater. */
static EbbView
cut_to (const EbbView *view, const EbbView *indices)
{
  EbbView cut = *view;

  memcpy (cut.shape, indices->shape, sizeof (gint64) * (gsize) indices->n_dims);
  return cut;
}

static gboolean
launch_indexed (EbbKernel kernel,
                const char *op_name,
                const EbbView *from,
                EbbTensor *indices,
                EbbTensor *to,
                EbbView *to_view,
                int dim,
                GError **error)
{
  EbbLaunch launch;

  ebb_launch_init (&launch, kernel);
  launch.op = op_name;
  launch.params.index.dim = dim;
  launch.inputs[launch.n_inputs++] = from;
  ebb_launch_input (&launch, indices);
  ebb_launch_output (&launch, to);
  launch.outputs[0] = to_view;
  return ebb_launch (EBB_DEVICE_OF (to), &launch, error);
}

static gboolean
gather_run (EbbOpCall *call, GError **error)
{
  return launch_indexed (EBB_KERNEL_GATHER, call->op->name, &call->inputs[0]->view, call->inputs[1], call->outputs[0],
                         &call->outputs[0]->view, (int) call->extra.i[EBB_MAX_DIMS + 1], error);
}

static gboolean
gather_backward (EbbBackward *ctx, GError **error)
{
  g_autoptr (EbbTensor) dy = ebb_backward_steal_grad (ctx, 0);
  EbbTensor *dx;

  if (dy == NULL)
    return TRUE;
  if (dy->view.dtype == EBB_DTYPE_F16)
    dy = ebb_tensor_into_dtype (g_steal_pointer (&dy), EBB_DTYPE_F32, error);
  dx = ebb_backward_sum_buffer (ctx, 0, EBB_DTYPE_F32, ctx->extra_i, (guint) ctx->extra_i[EBB_MAX_DIMS], error);
  ctx->grad_inputs[0] = dx;
  return dy != NULL && dx != NULL
         && launch_indexed (EBB_KERNEL_SCATTER_ADD, ctx->op->name, &dy->view, ctx->saved[0], dx, &dx->view,
                            (int) ctx->extra_i[EBB_MAX_DIMS + 1], error);
}

/* @y += @source at @indices; for 16-bit floats by way of f32, so that sums are not rounded at each step. */
static gboolean
scatter_add_run (EbbOpCall *call, GError **error)
{
  EbbTensor *x = call->inputs[0], *indices = call->inputs[1], *y = call->outputs[0];
  EbbView source = cut_to (&call->inputs[2]->view, &indices->view);
  g_autoptr (EbbTensor) sum = NULL;

  sum = y->view.dtype == EBB_DTYPE_BF16 ? ebb_tensor_convert (x, EBB_DTYPE_F32, error) : ebb_tensor_ref (y);
  if (sum == NULL || (sum == y && !ebb_launch_copy (x, y, error)))
    return FALSE;
  return launch_indexed (EBB_KERNEL_SCATTER_ADD, call->op->name, &source, indices, sum, &sum->view,
                         (int) call->extra.i[EBB_MAX_DIMS + 1], error)
         && (sum == y || ebb_launch_copy (sum, y, error));
}

/* The source's gradient is gathered; what of the source had no index has none. */
static gboolean
scatter_add_backward (EbbBackward *ctx, GError **error)
{
  EbbTensor *dy = ctx->grad_outputs[0], *indices = ctx->saved[0];

  if (dy == NULL)
    return TRUE;
  if (ctx->needs & 4)
    {
      EbbTensor *grad = ebb_tensor_new_uninitialized (ctx->extra_i, (guint) ctx->extra_i[EBB_MAX_DIMS], dy->view.dtype,
                                                      EBB_DEVICE_OF (dy), error);
      EbbView part;

      ctx->grad_inputs[2] = grad;
      if (grad == NULL)
        return FALSE;
      part = cut_to (&grad->view, &indices->view);
      if ((!ebb_shapes_equal (&part, &grad->view) && !ebb_launch_fill (grad, 0.0, error))
          || !launch_indexed (EBB_KERNEL_GATHER, ctx->op->name, &dy->view, indices, grad, &part,
                              (int) ctx->extra_i[EBB_MAX_DIMS + 1], error))
        return FALSE;
    }
  if (ctx->needs & 1)
    ctx->grad_inputs[0] = ebb_backward_steal_grad (ctx, 0);
  return TRUE;
}

static const EbbOp gather_op = { "gather", EBB_OP_INDEXING, EBB_KERNEL_GATHER, gather_run, gather_backward };
static const EbbOp scatter_add_op = { "scatter_add", EBB_OP_INDEXING, EBB_KERNEL_SCATTER_ADD, scatter_add_run,
                                      scatter_add_backward };

/* TRUE if @indices fit into @other, along each dimension but @but (-1: all). */
static gboolean
check_fits (EbbOpCall *call, EbbTensor *indices, EbbTensor *other, const char *name, int but, GError **error)
{
  gboolean fits = indices->view.n_dims == other->view.n_dims;

  for (int i = 0; fits && i < indices->view.n_dims; i++)
    fits = i == but || indices->view.shape[i] <= other->view.shape[i];
  if (!fits)
    return ebb_op_fail (call, error, EBB_ERROR_SHAPE,
                        "indices of shape %s do not fit %s of shape %s; dimensions must be as many, and not larger",
                        ebb_show_shape (indices), name, ebb_show_shape (other));
  return TRUE;
}

/**
 * ebb_gather:
 * @x: a tensor of any dtype
 * @dim: the dimension that @indices are about; negative ones count from the end
 * @indices: a tensor of i64 or i32 with as many dimensions as @x, of which none but @dim is larger
 * @error: return location for an error
 *
 * For each index the element of @x at the index's own position, except in @dim, where the index is taken. With @dim 1:
 * y[i, j] = x[i, indices[i, j]].
 *
 * Fails with %EBB_ERROR_INDEX when @dim or an index is out of range, with %EBB_ERROR_SHAPE when @indices do not fit,
 * and with %EBB_ERROR_DTYPE when they are not i64 or i32.
 *
 * Returns: (transfer full) (nullable): a tensor of the shape of @indices and the dtype of @x, or %NULL with @error set
 */
EbbTensor *
ebb_gather (EbbTensor *x, int dim, EbbTensor *indices, GError **error)
{
  EbbOpCall call;

  if (!ebb_op_begin (&call, &gather_op, error, 2, x, indices))
    return NULL;
  if (!ebb_op_normalize_dim (&call, &dim, error))
    return NULL;
  if (!check_fits (&call, indices, x, "x", dim, error)
      || !ebb_op_prepare_indices (&call, 1, error)
      || !ebb_op_cast (&call, 1, EBB_DTYPE_I64, error))
    return NULL;
  keep_shape (&call, x, dim);
  ebb_op_add_output (&call, x->view.dtype, EBB_FULL_SHAPE (indices));
  ebb_op_save_input (&call, 1);
  return ebb_op_finish1 (&call, error);
}

/**
 * ebb_scatter_add:
 * @x: a tensor of any dtype but f16 and bool
 * @dim: the dimension that @indices are about; negative ones count from the end
 * @indices: a tensor of i64 or i32 with as many dimensions as @x, of which none but @dim is larger than that of @x
 * @source: a tensor of the dtype of @x, in no dimension smaller than @indices
 * @error: return location for an error
 *
 * @x with elements of @source added where @indices say. With @dim 1: y = x, then y[i, indices[i, j]] += source[i, j].
 *   The order of additions is fixed.
 *
 * Fails with %EBB_ERROR_INDEX when @dim or an index is out of range, with %EBB_ERROR_SHAPE when @indices do not fit,
 * and with %EBB_ERROR_DTYPE when they are not i64 or i32 or when the dtypes of @x and @source differ.
 *
 * Returns: (transfer full) (nullable): a tensor of the shape and dtype of @x, or %NULL with @error set
 */
EbbTensor *
ebb_scatter_add (EbbTensor *x, int dim, EbbTensor *indices, EbbTensor *source, GError **error)
{
  EbbOpCall call;

  if (!ebb_op_begin (&call, &scatter_add_op, error, 3, x, indices, source) || !ebb_op_check_not_f16 (&call, error))
    return NULL;
  if (x->view.dtype != source->view.dtype || x->view.dtype == EBB_DTYPE_BOOL)
    return ebb_op_fail_null (&call, error, EBB_ERROR_DTYPE, "can't add %s to %s; cast both to one dtype of numbers",
                             ebb_dtype_get_name (source->view.dtype), ebb_dtype_get_name (x->view.dtype));
  if (!ebb_op_normalize_dim (&call, &dim, error))
    return NULL;
  if (!check_fits (&call, indices, x, "x", dim, error) || !check_fits (&call, indices, source, "the source", -1, error)
      || !ebb_op_prepare_indices (&call, 1, error)
      || !ebb_op_cast (&call, 1, EBB_DTYPE_I64, error))
    return NULL;
  keep_shape (&call, source, dim);
  ebb_op_add_output_like (&call, x);
  ebb_op_save_input (&call, 1);
  return ebb_op_finish1 (&call, error);
}
