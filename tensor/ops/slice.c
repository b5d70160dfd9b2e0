/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "tensor/autograd/op-support-private.h"
#include "tensor/error-private.h"
#include "tensor/ops/shape.h"

#include <string.h>

/* Views of a part of a tensor along one dimension. */

/* The slice as backward needs it, kept in extra.i. */
typedef struct
{
  gint64 shape[EBB_MAX_DIMS]; /* of the whole */
  gint64 n_dims;
  gint64 dim;
  gint64 start;
  gint64 step; /* 0: the dimension is left out */
} Window;

G_STATIC_ASSERT (sizeof (Window) == sizeof (((EbbOpCall *) NULL)->extra.i));

/* The part of @whole that @window shows, with @length elements along its dimension. */
static EbbTensor *
new_window (EbbTensor *whole, const Window *window, gint64 length)
{
  EbbView view = whole->view;
  int dim = (int) window->dim;
  gint64 offset = whole->offset + (whole->n_elements > 0 ? window->start * view.strides[dim] : 0);

  view.shape[dim] = length;
  view.strides[dim] *= MAX (window->step, 1);
  if (window->step == 0)
    {
      view.n_dims--;
      for (int i = dim; i < view.n_dims; i++)
        {
          view.shape[i] = view.shape[i + 1];
          view.strides[i] = view.strides[i + 1];
        }
    }
  return ebb_tensor_new_from_view (whole, &view, offset);
}

/* Zeros outside the window. */
static gboolean
window_backward (EbbBackward *ctx, GError **error)
{
  g_autoptr (EbbTensor) dy = ebb_backward_steal_grad (ctx, 0);
  g_autoptr (EbbTensor) part = NULL;
  Window window;
  EbbTensor *dx;

  if (dy == NULL)
    return TRUE;
  memcpy (&window, ctx->extra_i, sizeof window);
  ctx->grad_inputs[0] = dx = ebb_tensor_new_uninitialized (window.shape, (guint) window.n_dims, dy->view.dtype,
                                                           EBB_DEVICE_OF (dy), error);
  if (dx == NULL)
    return FALSE;
  part = new_window (dx, &window, window.step == 0 ? 1 : dy->view.shape[window.dim]);
  return (part->n_elements == dx->n_elements || ebb_launch_fill (dx, 0.0, error)) && ebb_launch_copy (dy, part, error);
}

static const EbbOp narrow_op = { "narrow", EBB_OP_VIEW, EBB_N_KERNELS, NULL, window_backward };
static const EbbOp select_op = { "select", EBB_OP_VIEW, EBB_N_KERNELS, NULL, window_backward };
static const EbbOp slice_op = { "slice", EBB_OP_VIEW, EBB_N_KERNELS, NULL, window_backward };

/* Begins a call on @x, which must have a dimension @dim. */
static gboolean
begin (EbbOpCall *call, const EbbOp *op, EbbTensor *x, int *dim, GError **error)
{
  if (!ebb_op_begin (call, op, error, 1, x))
    return FALSE;
  if (x->view.n_dims == 0)
    return ebb_op_fail (call, error, EBB_ERROR_SHAPE, "a tensor of shape [] has no dimension to take a part of");
  return ebb_op_normalize_dim (call, dim, error);
}

static EbbTensor *
finish_window (EbbOpCall *call, EbbTensor *x, int dim, gint64 start, gint64 length, gint64 step, GError **error)
{
  Window window = { .n_dims = x->view.n_dims, .dim = dim, .start = start, .step = step };

  memcpy (window.shape, x->view.shape, sizeof (gint64) * (gsize) x->view.n_dims);
  memcpy (call->extra.i, &window, sizeof window);
  return ebb_op_finish_view (call, new_window (x, &window, length), error);
}

/**
 * ebb_narrow:
 * @x: a tensor of any dtype
 * @dim: the dimension to narrow; negative ones count from the end
 * @start: the first index along it
 * @length: how many
 * @error: return location for an error
 *
 * The elements of @x with indices in [@start, @start + @length) along @dim. The result shares the data of @x.
 *
 * Fails with %EBB_ERROR_INDEX when @dim or the range is out of range.
 *
 * Returns: (transfer full) (nullable): a view of @x, or %NULL with @error set
 */
EbbTensor *
ebb_narrow (EbbTensor *x, int dim, gint64 start, gint64 length, GError **error)
{
  EbbOpCall call;
  gint64 size;

  if (!begin (&call, &narrow_op, x, &dim, error))
    return NULL;
  size = x->view.shape[dim];
  if (start < 0 || length < 0 || start > size || length > size - start)
    return ebb_op_fail_null (&call, error, EBB_ERROR_INDEX,
                             "%" G_GINT64_FORMAT " elements from %" G_GINT64_FORMAT
                             " are out of range; dimension %d has "
                             "%" G_GINT64_FORMAT,
                             length, start, dim, size);
  return finish_window (&call, x, dim, start, length, 1, error);
}

/**
 * ebb_select:
 * @x: a tensor of any dtype
 * @dim: the dimension to leave out; negative ones count from the end
 * @index: which index along it; negative ones count from the end
 * @error: return location for an error
 *
 * The elements of @x at @index along @dim, which the result does not have. The result shares the data of @x.
 *
 * Fails with %EBB_ERROR_INDEX when @dim or @index is out of range.
 *
 * Returns: (transfer full) (nullable): a view of @x, or %NULL with @error set
 */
EbbTensor *
ebb_select (EbbTensor *x, int dim, gint64 index, GError **error)
{
  EbbOpCall call;
  gint64 size;

  if (!begin (&call, &select_op, x, &dim, error))
    return NULL;
  size = x->view.shape[dim];
  if (index < -size || index >= size)
    return ebb_op_fail_null (&call, error, EBB_ERROR_INDEX,
                             "index %" G_GINT64_FORMAT
                             " is out of range; along dimension %d it must be in [%" G_GINT64_FORMAT
                             ", %" G_GINT64_FORMAT ")",
                             index, dim, -size, size);
  return finish_window (&call, x, dim, index < 0 ? index + size : index, 1, 0, error);
}

/**
 * ebb_slice:
 * @x: a tensor of any dtype
 * @dim: the dimension to slice; negative ones count from the end
 * @start: the first index; negative ones count from the end, and what is beyond an end is moved there
 * @end: where to stop, not reached; as @start
 * @step: the distance of two indices, one or more
 * @error: return location for an error
 *
 * The slice that `start:end:step` gives in Python. The result shares the data of @x.
 *
 * Fails with %EBB_ERROR_INDEX when @dim is out of range, and with %EBB_ERROR_INVALID_ARGUMENT when @step is less than
 * one.
 *
 * Returns: (transfer full) (nullable): a view of @x, or %NULL with @error set
 */
EbbTensor *
ebb_slice (EbbTensor *x, int dim, gint64 start, gint64 end, gint64 step, GError **error)
{
  EbbOpCall call;
  gint64 size, length;

  if (!begin (&call, &slice_op, x, &dim, error))
    return NULL;
  if (step < 1)
    return ebb_op_fail_null (&call, error, EBB_ERROR_INVALID_ARGUMENT,
                             "a step of %" G_GINT64_FORMAT "; it must be one or more", step);
  size = x->view.shape[dim];
  start = CLAMP (start < 0 ? start + size : start, 0, size);
  end = CLAMP (end < 0 ? end + size : end, start, size);
  length = end > start ? (end - start - 1) / step + 1 : 0;
  /* The step of a single element says nothing, and might not fit a stride. */
  return finish_window (&call, x, dim, start, length, length > 1 ? step : 1, error);
}

/* -- many parts --------------------------------------------------------------------------------------------------- */

/* All parts in one tensor, which takes no sum. extra.i as of the first part; its step is the size of a part. */
static gboolean
split_backward (EbbBackward *ctx, GError **error)
{
  Window window;
  EbbTensor *dx = NULL;
  gint64 size;

  memcpy (&window, ctx->extra_i, sizeof window);
  size = window.step;
  window.step = 1;
  for (guint i = 0; i < ctx->n_outputs && dx == NULL; i++)
    if (ctx->grad_outputs[i] != NULL)
      {
        EbbTensor *dy = ctx->grad_outputs[i];

        dx = ebb_tensor_new_uninitialized (window.shape, (guint) window.n_dims, dy->view.dtype, EBB_DEVICE_OF (dy),
                                           error);
        if (dx == NULL)
          return FALSE;
      }
  ctx->grad_inputs[0] = dx;
  for (guint i = 0; i < ctx->n_outputs && dx != NULL; i++)
    {
      g_autoptr (EbbTensor) part = NULL;

      window.start = i * size;
      part = new_window (dx, &window, MIN (size, window.shape[window.dim] - window.start));
      if (ctx->grad_outputs[i] != NULL ? !ebb_launch_copy (ctx->grad_outputs[i], part, error)
                                       : !ebb_launch_fill (part, 0.0, error))
        return FALSE;
    }
  return TRUE;
}

static const EbbOp split_op = { "split", EBB_OP_VIEW, EBB_N_KERNELS, NULL, split_backward };

/* A few parts are one op, so that their gradients need not be added. */
static gboolean
split_together (EbbTensor *x, int dim, gint64 size, guint n, EbbTensor **parts, GError **error)
{
  EbbOpCall call;
  Window window = { .n_dims = x->view.n_dims, .dim = dim, .step = size };

  if (!ebb_op_begin (&call, &split_op, error, 1, x))
    return FALSE;
  memcpy (window.shape, x->view.shape, sizeof (gint64) * (gsize) x->view.n_dims);
  memcpy (call.extra.i, &window, sizeof window);
  window.step = 1;
  for (; call.n_outputs < n; window.start += size)
    call.outputs[call.n_outputs++] = new_window (x, &window, MIN (size, x->view.shape[dim] - window.start));
  if (!ebb_op_finish_views (&call, error))
    return FALSE;
  memcpy (parts, call.outputs, sizeof (EbbTensor *) * n);
  return TRUE;
}

static void
free_parts (EbbTensor **parts, guint n)
{
  for (guint i = 0; i < n; i++)
    ebb_tensor_unref (parts[i]);
  g_free (parts);
}

static EbbTensor **
split (EbbTensor *x, gint64 size, int dim, guint *n_parts, GError **error)
{
  gint64 whole = x->view.shape[dim];
  gint64 n = MAX ((whole + size - 1) / size, 1);
  EbbTensor **parts;

  if (n > G_MAXUINT32 / 2)
    return ebb_fail_null (error, EBB_ERROR_INVALID_ARGUMENT,
                          "split: %" G_GINT64_FORMAT " parts are too many; make them larger", n);
  parts = g_new0 (EbbTensor *, n + 1);
  if (n <= EBB_OP_MAX_OUTPUTS)
    {
      if (!split_together (x, dim, size, (guint) n, parts, error))
        g_clear_pointer (&parts, g_free);
    }
  else
    for (gint64 i = 0; i < n; i++)
      {
        parts[i] = ebb_narrow (x, dim, i * size, MIN (size, whole - i * size), error);
        if (parts[i] == NULL)
          {
            free_parts (parts, (guint) i);
            return NULL;
          }
      }
  if (parts != NULL)
    *n_parts = (guint) n;
  return parts;
}

/* TRUE if @x has a dimension @dim, which is made non-negative. */
static gboolean
check_split (const char *op_name, EbbTensor *x, int *dim, guint *n_parts, GError **error)
{
  if (!ebb_may_begin (error, op_name, "x", (const gconstpointer[]){ x }, 1))
    return FALSE;
  g_return_val_if_fail (n_parts != NULL, FALSE);
  if (x->view.n_dims == 0)
    return ebb_fail (error, EBB_ERROR_SHAPE, "%s: a tensor of shape [] has no dimension to split", op_name);
  return ebb_normalize_dim (op_name, dim, (guint) x->view.n_dims, error);
}

/**
 * ebb_split:
 * @x: a tensor of any dtype
 * @size: the size of each part along @dim; the last one may be smaller
 * @dim: the dimension to split; negative ones count from the end
 * @n_parts: (out): return location for the number of parts
 * @error: return location for an error
 *
 * Splits @x into parts of one size. They share the data of @x.
 *
 * Fails with %EBB_ERROR_INDEX when @dim is out of range, and with %EBB_ERROR_INVALID_ARGUMENT when @size is less than
 * one.
 *
 * Returns: (transfer full) (array length=n_parts) (nullable): views of @x, or %NULL with @error set
 */
EbbTensor **
ebb_split (EbbTensor *x, gint64 size, int dim, guint *n_parts, GError **error)
{
  if (!check_split ("split", x, &dim, n_parts, error))
    return NULL;
  if (size < 1)
    return ebb_fail_null (error, EBB_ERROR_INVALID_ARGUMENT,
                          "split: parts of size %" G_GINT64_FORMAT "; it must be one or more", size);
  /* A greater size than the whole is as good as the whole, and does not overflow. */
  return split (x, MIN (size, MAX (x->view.shape[dim], 1)), dim, n_parts, error);
}

/**
 * ebb_chunk:
 * @x: a tensor of any dtype
 * @n_chunks: how many parts
 * @dim: the dimension to split; negative ones count from the end
 * @n_parts: (out): return location for the number of parts
 * @error: return location for an error
 *
 * Splits @x into @n_chunks parts of one size, of which the last is smaller, or missing, when the dimension can't be
 * divided evenly. They share the data of @x.
 *
 * Fails with %EBB_ERROR_INDEX when @dim is out of range, and with %EBB_ERROR_INVALID_ARGUMENT when @n_chunks is less
 * than one.
 *
 * Returns: (transfer full) (array length=n_parts) (nullable): views of @x, or %NULL with @error set
 */
EbbTensor **
ebb_chunk (EbbTensor *x, gint64 n_chunks, int dim, guint *n_parts, GError **error)
{
  gint64 whole;

  if (!check_split ("chunk", x, &dim, n_parts, error))
    return NULL;
  if (n_chunks < 1)
    return ebb_fail_null (error, EBB_ERROR_INVALID_ARGUMENT,
                          "chunk: %" G_GINT64_FORMAT " parts; there must be one or more", n_chunks);
  whole = x->view.shape[dim];
  return split (x, MAX (whole / n_chunks + (whole % n_chunks != 0), 1), dim, n_parts, error);
}
