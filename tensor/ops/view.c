/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "tensor/autograd/op-support-private.h"
#include "tensor/autograd/rematerialization-private.h"
#include "tensor/error-private.h"
#include "tensor/ops/pointwise.h"
#include "tensor/ops/shape.h"

#include <string.h>

/* Ops that see the same storage in another shape. Their gradients are views as well, wherever they can be. */

/* -- the same order of elements ----------------------------------------------------------------------------------- */

/* Keeps the shape of @x for the backward pass: extra.i is the number of dimensions and their sizes. */
static void
keep_shape (EbbOpCall *call, EbbTensor *x)
{
  call->extra.i[0] = x->view.n_dims;
  memcpy (call->extra.i + 1, x->view.shape, sizeof (gint64) * (gsize) x->view.n_dims);
}

static gboolean
reshape_backward (EbbBackward *ctx, GError **error)
{
  EbbTensor *dy = ebb_backward_steal_grad (ctx, 0);

  if (dy == NULL)
    return TRUE;
  ctx->grad_inputs[0] = ebb_tensor_into_shape (dy, ctx->extra_i + 1, (guint) ctx->extra_i[0], error);
  return ctx->grad_inputs[0] != NULL;
}

static const EbbOp reshape_op = { "reshape", EBB_OP_VIEW, EBB_N_KERNELS, NULL, reshape_backward };
static const EbbOp view_op = { "view", EBB_OP_VIEW, EBB_N_KERNELS, NULL, reshape_backward };
static const EbbOp squeeze_op = { "squeeze", EBB_OP_VIEW, EBB_N_KERNELS, NULL, reshape_backward };
static const EbbOp unsqueeze_op = { "unsqueeze", EBB_OP_VIEW, EBB_N_KERNELS, NULL, reshape_backward };

/* Records @x as seen in @shape with @strides (NULL: contiguous); the call has begun. */
static EbbTensor *
finish_reshaped (EbbOpCall *call,
                 EbbTensor *x,
                 const gint64 *shape,
                 const gint64 *strides,
                 guint n_dims,
                 GError **error)
{
  keep_shape (call, x);
  return ebb_op_finish_view (call, ebb_tensor_new_view (x->storage, x->offset, shape, strides, n_dims, x->view.dtype),
                             error);
}

/* @requested with its -1, if any, replaced by what is left of the elements of @x. */
static gboolean
resolve_shape (EbbOpCall *call, EbbTensor *x, const gint64 *requested, guint n_dims, gint64 *shape, GError **error)
{
  gint64 n_elements = 1;
  int unknown = -1;
  gboolean ok = n_dims <= EBB_MAX_DIMS;

  for (guint i = 0; ok && i < n_dims; i++)
    {
      shape[i] = requested[i];
      if (requested[i] == -1 && unknown < 0)
        unknown = (int) i;
      else
        ok = requested[i] >= 0 && !__builtin_mul_overflow (n_elements, requested[i], &n_elements);
    }
  if (ok && unknown >= 0)
    {
      ok = n_elements > 0 && x->n_elements % n_elements == 0;
      if (ok)
        shape[unknown] = x->n_elements / n_elements;
    }
  else
    ok = ok && n_elements == x->n_elements;
  if (!ok)
    return ebb_op_fail (call, error, EBB_ERROR_SHAPE,
                        "shape %s has %" G_GINT64_FORMAT " elements and can't be seen as %s; the number must be the "
                        "same, with one -1 at most, in at most %d dimensions",
                        ebb_show_shape (x), x->n_elements, ebb_in_message (ebb_shape_to_string (requested, n_dims)),
                        EBB_MAX_DIMS);
  return TRUE;
}

/**
 * ebb_view:
 * @x: a tensor of any dtype
 * @shape: (array length=n_dims): the size of each dimension; one may be -1, for what is left
 * @n_dims: how many dimensions, at most 8
 * @error: return location for an error
 *
 * Sees the elements of @x, in row-major order, in another shape. The result shares the data of @x.
 *
 * Fails with %EBB_ERROR_SHAPE when the number of elements differs, or when it would take a copy: see ebb_reshape ().
 *
 * Returns: (transfer full) (nullable): a view of @x, or %NULL with @error set
 */
EbbTensor *
ebb_view (EbbTensor *x, const gint64 *shape, guint n_dims, GError **error)
{
  EbbOpCall call;
  gint64 resolved[EBB_MAX_DIMS], strides[EBB_MAX_DIMS];
  gboolean dense;

  if (!ebb_op_begin (&call, &view_op, error, 1, x) || !resolve_shape (&call, x, shape, n_dims, resolved, error))
    return NULL;
  dense = ebb_view_is_contiguous (&x->view);
  if (!dense && !ebb_view_compute_strides (&x->view, resolved, n_dims, strides))
    return ebb_op_fail_null (
        &call, error, EBB_ERROR_SHAPE,
        "a tensor of shape %s, as it lies in memory, can't be seen as %s without a copy; use reshape",
        ebb_show_shape (x), ebb_in_message (ebb_shape_to_string (resolved, n_dims)));
  return finish_reshaped (&call, x, resolved, dense ? NULL : strides, n_dims, error);
}

/**
 * ebb_reshape:
 * @x: a tensor of any dtype
 * @shape: (array length=n_dims): the size of each dimension; one may be -1, for what is left
 * @n_dims: how many dimensions, at most 8
 * @error: return location for an error
 *
 * The elements of @x, in row-major order, in another shape. The result shares the data of @x if it can, else it is a
 * copy.
 *
 * Fails with %EBB_ERROR_SHAPE when the number of elements differs.
 *
 * Returns: (transfer full) (nullable): a tensor of the new shape, or %NULL with @error set
 */
EbbTensor *
ebb_reshape (EbbTensor *x, const gint64 *shape, guint n_dims, GError **error)
{
  EbbOpCall call;
  gint64 resolved[EBB_MAX_DIMS], strides[EBB_MAX_DIMS];

  if (!ebb_op_begin (&call, &reshape_op, error, 1, x) || !resolve_shape (&call, x, shape, n_dims, resolved, error))
    return NULL;
  if (ebb_view_is_contiguous (&x->view))
    return finish_reshaped (&call, x, resolved, NULL, n_dims, error);
  if (ebb_view_compute_strides (&x->view, resolved, n_dims, strides))
    return finish_reshaped (&call, x, resolved, strides, n_dims, error);
  else
    {
      g_autoptr (EbbTensor) copy = NULL;

      ebb_op_clear (&call);
      copy = ebb_contiguous (x, error);
      return ebb_reshape (copy, resolved, n_dims, error);
    }
}

/**
 * ebb_squeeze:
 * @x: a tensor of any dtype
 * @dim: a dimension; negative ones count from the end
 * @error: return location for an error
 *
 * Leaves out dimension @dim if its size is 1. The result shares the data of @x.
 *
 * Fails with %EBB_ERROR_INDEX when @dim is out of range.
 *
 * Returns: (transfer full) (nullable): a view of @x, or %NULL with @error set
 */
EbbTensor *
ebb_squeeze (EbbTensor *x, int dim, GError **error)
{
  EbbOpCall call;
  gint64 shape[EBB_MAX_DIMS], strides[EBB_MAX_DIMS];
  guint n = 0;

  if (!ebb_op_begin (&call, &squeeze_op, error, 1, x))
    return NULL;
  if (!ebb_op_normalize_dim (&call, &dim, error))
    return NULL;
  for (int i = 0; i < x->view.n_dims; i++)
    if (i != dim || x->view.shape[i] != 1)
      {
        shape[n] = x->view.shape[i];
        strides[n++] = x->view.strides[i];
      }
  return finish_reshaped (&call, x, shape, strides, n, error);
}

/**
 * ebb_unsqueeze:
 * @x: a tensor of any dtype
 * @dim: where the new dimension is to be in the result; negative ones count from its end
 * @error: return location for an error
 *
 * Inserts a dimension of size 1. The result shares the data of @x.
 *
 * Fails with %EBB_ERROR_INDEX when @dim is out of range, and with %EBB_ERROR_SHAPE when @x has 8 dimensions already.
 *
 * Returns: (transfer full) (nullable): a view of @x, or %NULL with @error set
 */
EbbTensor *
ebb_unsqueeze (EbbTensor *x, int dim, GError **error)
{
  EbbOpCall call;
  gint64 shape[EBB_MAX_DIMS], strides[EBB_MAX_DIMS];
  guint n_dims;

  if (!ebb_op_begin (&call, &unsqueeze_op, error, 1, x))
    return NULL;
  n_dims = (guint) x->view.n_dims + 1;
  if (n_dims > EBB_MAX_DIMS)
    return ebb_op_fail_null (&call, error, EBB_ERROR_SHAPE,
                             "the tensor has %d dimensions already; more are not possible", EBB_MAX_DIMS);
  if (!ebb_normalize_dim ("unsqueeze", &dim, n_dims, error))
    {
      ebb_op_clear (&call);
      return NULL;
    }
  for (int i = 0; i < (int) n_dims; i++)
    {
      int from = i < dim ? i : i - 1;

      shape[i] = i == dim ? 1 : x->view.shape[from];
      strides[i] = i == dim ? 1 : x->view.strides[from];
    }
  if (dim + 1 < (int) n_dims)
    strides[dim] = shape[dim + 1] * strides[dim + 1];
  return finish_reshaped (&call, x, shape, strides, n_dims, error);
}

/**
 * ebb_flatten:
 * @x: a tensor of any dtype
 * @start_dim: the first dimension to join; negative ones count from the end
 * @end_dim: the last dimension to join; negative ones count from the end
 * @error: return location for an error
 *
 * Joins dimensions into one. The result shares the data of @x if it can, else it is a copy. A 0-dimensional tensor
 * becomes `[1]`.
 *
 * Fails with %EBB_ERROR_INDEX when a dimension is out of range, and with %EBB_ERROR_INVALID_ARGUMENT when @end_dim is
 * before @start_dim.
 *
 * Returns: (transfer full) (nullable): a tensor with the dimensions joined, or %NULL with @error set
 */
EbbTensor *
ebb_flatten (EbbTensor *x, int start_dim, int end_dim, GError **error)
{
  gint64 shape[EBB_MAX_DIMS];
  guint n_dims;
  guint n = 0;

  EBB_RETURN_UNLESS_BEGUN (NULL, error, x);
  n_dims = MAX ((guint) x->view.n_dims, 1);
  if (!ebb_normalize_dim ("flatten", &start_dim, n_dims, error)
      || !ebb_normalize_dim ("flatten", &end_dim, n_dims, error))
    return NULL;
  if (end_dim < start_dim)
    return ebb_fail_null (error, EBB_ERROR_INVALID_ARGUMENT,
                          "flatten: dimension %d is before dimension %d; give the first one first", end_dim, start_dim);
  shape[0] = 1;
  for (int i = 0; i < x->view.n_dims; i++)
    if (i > start_dim && i <= end_dim)
      shape[n - 1] *= x->view.shape[i];
    else
      shape[n++] = x->view.shape[i];
  return ebb_reshape (x, shape, MAX (n, 1), error);
}

/* -- another order of dimensions ---------------------------------------------------------------------------------- */

static EbbTensor *
new_permuted (EbbTensor *x, const gint64 *dims)
{
  EbbView view = x->view;
  EbbTensor *permuted;

  for (int i = 0; i < x->view.n_dims; i++)
    {
      view.shape[i] = x->view.shape[dims[i]];
      view.strides[i] = x->view.strides[dims[i]];
    }
  permuted = ebb_tensor_new_from_view (x, &view, x->offset);
  ebb_tensor_share_rematerialization (permuted, x);
  return permuted;
}

static gboolean
permute_backward (EbbBackward *ctx, GError **error)
{
  g_autoptr (EbbTensor) dy = ebb_backward_steal_grad (ctx, 0);
  gint64 inverse[EBB_MAX_DIMS];

  if (dy == NULL)
    return TRUE;
  for (int i = 0; i < dy->view.n_dims; i++)
    inverse[ctx->extra_i[i]] = i;
  ctx->grad_inputs[0] = new_permuted (dy, inverse);
  return TRUE;
}

static const EbbOp permute_op = { "permute", EBB_OP_VIEW, EBB_N_KERNELS, NULL, permute_backward };
static const EbbOp transpose_op = { "transpose", EBB_OP_VIEW, EBB_N_KERNELS, NULL, permute_backward };

/**
 * ebb_permute:
 * @x: a tensor of any dtype
 * @dims: (array length=n_dims): for each dimension of the result which one of @x it is; negative ones count from the
 *   end
 * @n_dims: how many; as many as @x has
 * @error: return location for an error
 *
 * Puts the dimensions in another order. The result shares the data of @x.
 *
 * Fails with %EBB_ERROR_INDEX when a dimension is out of range, and with %EBB_ERROR_INVALID_ARGUMENT when @dims do not
 * name each one once.
 *
 * Returns: (transfer full) (nullable): a view of @x, or %NULL with @error set
 */
EbbTensor *
ebb_permute (EbbTensor *x, const int *dims, guint n_dims, GError **error)
{
  EbbOpCall call;
  guint32 seen = 0;

  if (!ebb_op_begin (&call, &permute_op, error, 1, x))
    return NULL;
  for (guint i = 0; i < n_dims && n_dims == (guint) x->view.n_dims; i++)
    {
      int dim = dims[i];

      if (!ebb_op_normalize_dim (&call, &dim, error))
        return NULL;
      seen |= 1u << dim;
      call.extra.i[i] = dim;
    }
  if (n_dims != (guint) x->view.n_dims || seen != (1u << n_dims) - 1)
    return ebb_op_fail_null (&call, error, EBB_ERROR_INVALID_ARGUMENT,
                             "the tensor has %d dimensions; each of them must be given once", x->view.n_dims);
  return ebb_op_finish_view (&call, new_permuted (x, call.extra.i), error);
}

/**
 * ebb_transpose:
 * @x: a tensor of any dtype
 * @dim0: a dimension; negative ones count from the end
 * @dim1: the dimension to exchange it with
 * @error: return location for an error
 *
 * Exchanges two dimensions. The result shares the data of @x.
 *
 * Fails with %EBB_ERROR_INDEX when a dimension is out of range.
 *
 * Returns: (transfer full) (nullable): a view of @x, or %NULL with @error set
 */
EbbTensor *
ebb_transpose (EbbTensor *x, int dim0, int dim1, GError **error)
{
  EbbOpCall call;

  if (!ebb_op_begin (&call, &transpose_op, error, 1, x))
    return NULL;
  if (!ebb_op_normalize_dim (&call, &dim0, error) || !ebb_op_normalize_dim (&call, &dim1, error))
    return NULL;
  for (int i = 0; i < x->view.n_dims; i++)
    call.extra.i[i] = i == dim0 ? dim1 : i == dim1 ? dim0
                                                   : i;
  return ebb_op_finish_view (&call, new_permuted (x, call.extra.i), error);
}

/* -- repetition --------------------------------------------------------------------------------------------------- */

static gboolean
expand_backward (EbbBackward *ctx, GError **error)
{
  EbbTensor *dy = ebb_backward_steal_grad (ctx, 0);

  if (dy == NULL)
    return TRUE;
  ctx->grad_inputs[0] = ebb_broadcast_reverse (dy, ctx->extra_i[0], error);
  return ctx->grad_inputs[0] != NULL;
}

static const EbbOp expand_op = { "expand", EBB_OP_VIEW, EBB_N_KERNELS, NULL, expand_backward };

/**
 * ebb_expand:
 * @x: a tensor of any dtype
 * @shape: (array length=n_dims): the size of each dimension; -1 leaves that of @x
 * @n_dims: how many dimensions, at most 8 and at least as many as @x has
 * @error: return location for an error
 *
 * Repeats dimensions of size 1, and new ones in front, without a copy: the result shares the data of @x.
 *
 * Fails with %EBB_ERROR_SHAPE when a dimension has another size than 1 or the one asked for.
 *
 * Returns: (transfer full) (nullable): a view of @x, or %NULL with @error set
 */
EbbTensor *
ebb_expand (EbbTensor *x, const gint64 *shape, guint n_dims, GError **error)
{
  EbbOpCall call;
  EbbView view;
  gint64 resolved[EBB_MAX_DIMS];
  gint64 n_elements = 1;
  int missing;
  gboolean ok;

  if (!ebb_op_begin (&call, &expand_op, error, 1, x))
    return NULL;
  missing = (int) n_dims - x->view.n_dims;
  ok = missing >= 0 && n_dims <= EBB_MAX_DIMS;
  for (int i = 0; ok && i < (int) n_dims; i++)
    {
      gint64 old = i < missing ? 1 : x->view.shape[i - missing];

      resolved[i] = shape[i] == -1 && i >= missing ? old : shape[i];
      ok = resolved[i] >= 0 && (old == 1 || old == resolved[i])
           && !__builtin_mul_overflow (n_elements, MAX (resolved[i], 1), &n_elements);
    }
  if (!ok)
    return ebb_op_fail_null (&call, error, EBB_ERROR_SHAPE,
                             "shape %s can't be expanded to %s; from the right, sizes must be equal or 1",
                             ebb_show_shape (x), ebb_in_message (ebb_shape_to_string (shape, n_dims)));
  call.extra.i[0] = ebb_broadcast_encode (&x->view, resolved, n_dims);
  ebb_view_expand_to (&view, &x->view, resolved, n_dims);
  return ebb_op_finish_view (&call, ebb_tensor_new_from_view (x, &view, x->offset), error);
}

/* -- nothing ------------------------------------------------------------------------------------------------------ */

static gboolean
identity_backward (EbbBackward *ctx, GError **error)
{
  ctx->grad_inputs[0] = ebb_backward_steal_grad (ctx, 0);
  return TRUE;
}

static const EbbOp identity_op = { "identity", EBB_OP_VIEW, EBB_N_KERNELS, NULL, identity_backward };

EbbTensor *
ebb_identity (EbbTensor *x, GError **error)
{
  EbbOpCall call;

  if (!ebb_op_begin (&call, &identity_op, error, 1, x))
    return NULL;
  return ebb_op_finish_view (&call, ebb_tensor_alias (x), error);
}
