/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "tensor/autograd/op-support-private.h"
#include "tensor/error-private.h"
#include "tensor/ops/shape.h"

/* Tensors put together along a dimension. */

/* The part of @whole with @length elements from @start along @dim. */
static EbbTensor *
new_part (EbbTensor *whole, int dim, gint64 start, gint64 length)
{
  EbbView view = whole->view;

  view.shape[dim] = length;
  return ebb_tensor_new_from_view (whole, &view, whole->offset + start * view.strides[dim]);
}

static gboolean
cat_run (EbbOpCall *call, GError **error)
{
  int dim = (int) call->extra.i[EBB_OP_MAX_INPUTS];
  gint64 start = 0;

  for (guint i = 0; i < call->n_inputs; i++)
    {
      gint64 length = call->inputs[i]->view.shape[dim];
      g_autoptr (EbbTensor) part = new_part (call->outputs[0], dim, start, length);

      if (!ebb_launch_copy (call->inputs[i], part, error))
        return FALSE;
      start += length;
    }
  return TRUE;
}

/* The gradients are views of that of the whole. */
static gboolean
cat_backward (EbbBackward *ctx, GError **error)
{
  g_autoptr (EbbTensor) dy = ebb_backward_steal_grad (ctx, 0);
  int dim = (int) ctx->extra_i[EBB_OP_MAX_INPUTS];
  gint64 start = 0;

  for (guint i = 0; dy != NULL && i < ctx->n_inputs; i++)
    {
      if ((ctx->needs >> i) & 1)
        ctx->grad_inputs[i] = new_part (dy, dim, start, ctx->extra_i[i]);
      start += ctx->extra_i[i];
    }
  return TRUE;
}

static const EbbOp cat_op = { "cat", EBB_OP_COPY, EBB_N_KERNELS, cat_run, cat_backward };

/* The common dtype of all; FALSE with an error unless their shapes are equal except in dimension @dim. */
static gboolean
check_parts (EbbTensor **tensors, guint n_tensors, int dim, EbbDType *dtype, GError **error)
{
  const EbbView *first = &tensors[0]->view;

  *dtype = first->dtype;
  for (guint i = 1; i < n_tensors; i++)
    {
      const EbbView *view = &tensors[i]->view;
      gboolean fits = view->n_dims == first->n_dims;

      for (int d = 0; fits && d < first->n_dims; d++)
        fits = d == dim || view->shape[d] == first->shape[d];
      if (!fits)
        return ebb_fail (
            error, EBB_ERROR_SHAPE,
            "cat: shapes %s and %s (number %u) do not fit; all sizes but that of dimension %d must be equal",
            ebb_show_shape (tensors[0]), ebb_show_shape (tensors[i]), i, dim);
      *dtype = ebb_dtype_promote (*dtype, view->dtype);
    }
  return TRUE;
}

/* At most as many as one op takes; they were checked. */
static EbbTensor *
cat_some (EbbTensor **tensors, guint n_tensors, int dim, EbbDType dtype, GError **error)
{
  EbbOpCall call;
  EbbView view = tensors[0]->view;

  if (!ebb_op_begin (&call, &cat_op, error, 1, tensors[0]))
    return NULL;
  call.extra.i[EBB_OP_MAX_INPUTS] = dim;
  call.extra.i[0] = view.shape[dim];
  for (guint i = 1; i < n_tensors; i++)
    {
      if (!ebb_op_add_optional (&call, tensors[i], error))
        return NULL;
      call.extra.i[i] = tensors[i]->view.shape[dim];
      if (__builtin_add_overflow (view.shape[dim], call.extra.i[i], &view.shape[dim]))
        view.shape[dim] = G_MAXINT64;
    }
  ebb_op_add_output (&call, dtype, view.shape, (guint) view.n_dims);
  return ebb_op_finish1 (&call, error);
}

static EbbTensor *
cat (EbbTensor **tensors, guint n_tensors, int dim, EbbDType dtype, GError **error)
{
  guint n_groups = (n_tensors + EBB_OP_MAX_INPUTS - 1) / EBB_OP_MAX_INPUTS;
  g_autofree EbbTensor **groups = NULL;
  EbbTensor *result = NULL;
  guint n = 0;

  if (n_groups == 1)
    return cat_some (tensors, n_tensors, dim, dtype, error);
  groups = g_new0 (EbbTensor *, n_groups);
  for (; n < n_groups; n++)
    {
      guint from = n * EBB_OP_MAX_INPUTS;

      groups[n] = cat_some (tensors + from, MIN (n_tensors - from, EBB_OP_MAX_INPUTS), dim, dtype, error);
      if (groups[n] == NULL)
        break;
    }
  if (n == n_groups)
    result = cat (groups, n_groups, dim, dtype, error);
  for (guint i = 0; i < n; i++)
    ebb_tensor_unref (groups[i]);
  return result;
}

static gboolean
check_list (const char *op_name, EbbTensor **tensors, guint n_tensors, GError **error)
{
  if (error != NULL && *error != NULL)
    return FALSE;
  if (n_tensors == 0 || tensors == NULL)
    return ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT, "%s: no tensors; there must be one or more", op_name);
  for (guint i = 0; i < n_tensors; i++)
    if (tensors[i] == NULL)
      {
        ebb_error_set_null (error, op_name, "a tensor");
        return FALSE;
      }
  return TRUE;
}

/**
 * ebb_cat:
 * @tensors: (array length=n_tensors): tensors whose shapes are equal except in @dim
 * @n_tensors: how many, one or more
 * @dim: the dimension along which they are joined; negative ones count from the end
 * @error: return location for an error
 *
 * Joins tensors one after another along @dim. Different dtypes are cast as ebb_dtype_promote () says.
 *
 * Fails with %EBB_ERROR_SHAPE when the shapes do not fit, with %EBB_ERROR_INDEX when @dim is out of range, with
 * %EBB_ERROR_DEVICE when the tensors are not on one device, and with %EBB_ERROR_INVALID_ARGUMENT when there are none.
 *
 * Returns: (transfer full) (nullable): a tensor with all elements, or %NULL with @error set
 */
EbbTensor *
ebb_cat (EbbTensor **tensors, guint n_tensors, int dim, GError **error)
{
  EbbDType dtype;

  if (!check_list ("cat", tensors, n_tensors, error))
    return NULL;
  if (tensors[0]->view.n_dims == 0)
    return ebb_fail_null (error, EBB_ERROR_SHAPE,
                          "cat: a tensor of shape [] has no dimension to be joined along; use stack");
  if (!ebb_normalize_dim ("cat", &dim, (guint) tensors[0]->view.n_dims, error)
      || !check_parts (tensors, n_tensors, dim, &dtype, error))
    return NULL;
  return cat (tensors, n_tensors, dim, dtype, error);
}

/**
 * ebb_stack:
 * @tensors: (array length=n_tensors): tensors of one shape
 * @n_tensors: how many, one or more
 * @dim: where the new dimension is to be in the result; negative ones count from its end
 * @error: return location for an error
 *
 * Joins tensors along a new dimension of size @n_tensors. Different dtypes are cast as ebb_dtype_promote () says.
 *
 * Fails with %EBB_ERROR_SHAPE when the shapes differ, with %EBB_ERROR_INDEX when @dim is out of range, with
 * %EBB_ERROR_DEVICE when the tensors are not on one device, and with %EBB_ERROR_INVALID_ARGUMENT when there are none.
 *
 * Returns: (transfer full) (nullable): a tensor with all elements, or %NULL with @error set
 */
EbbTensor *
ebb_stack (EbbTensor **tensors, guint n_tensors, int dim, GError **error)
{
  g_autofree EbbTensor **rows = NULL;
  EbbTensor *result = NULL;
  guint n = 0;

  if (!check_list ("stack", tensors, n_tensors, error))
    return NULL;
  for (guint i = 1; i < n_tensors; i++)
    if (!ebb_shapes_equal (&tensors[i]->view, &tensors[0]->view))
      return ebb_fail_null (error, EBB_ERROR_SHAPE, "stack: shapes %s and %s (number %u) differ; all must be equal",
                            ebb_show_shape (tensors[0]), ebb_show_shape (tensors[i]), i);
  rows = g_new0 (EbbTensor *, n_tensors);
  for (; n < n_tensors; n++)
    {
      rows[n] = ebb_unsqueeze (tensors[n], dim, error);
      if (rows[n] == NULL)
        break;
    }
  if (n == n_tensors)
    result = ebb_cat (rows, n_tensors, dim, error);
  for (guint i = 0; i < n; i++)
    ebb_tensor_unref (rows[i]);
  return result;
}
