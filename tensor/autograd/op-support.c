/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Shared by the families of ops: checks of operands, broadcasting, casts and sums of gradients. */
#include "tensor/autograd/autograd-private.h"
#include "tensor/autograd/op-support-private.h"
#include "tensor/thread-private.h"

#include <math.h>
#include <string.h>

/* -- checks ------------------------------------------------------------------------------------------------------- */

static gboolean
fail_on_dtype (EbbOpCall *call, EbbDType dtype, GError **error)
{
  if (dtype == EBB_DTYPE_F16)
    return ebb_op_fail (call, error, EBB_ERROR_DTYPE, "f16 holds data only; cast to f32 or bf16 first");
  return ebb_op_fail (call, error, EBB_ERROR_DTYPE, "needs a floating-point tensor, not %s; cast to f32 or bf16 first",
                      ebb_dtype_get_name (dtype));
}

gboolean
ebb_op_check_floating (EbbOpCall *call, GError **error)
{
  for (guint i = 0; i < call->n_inputs; i++)
    {
      const EbbTensor *x = call->inputs[i];

      if (x != NULL && x->view.dtype != EBB_DTYPE_F32 && x->view.dtype != EBB_DTYPE_BF16)
        return fail_on_dtype (call, x->view.dtype, error);
    }
  return TRUE;
}

gboolean
ebb_op_check_not_f16 (EbbOpCall *call, GError **error)
{
  for (guint i = 0; i < call->n_inputs; i++)
    if (call->inputs[i] != NULL && call->inputs[i]->view.dtype == EBB_DTYPE_F16)
      return fail_on_dtype (call, EBB_DTYPE_F16, error);
  return TRUE;
}

EbbDType
ebb_op_promote (const EbbOpCall *call, guint a, guint b)
{
  const EbbView *va = &call->inputs[a]->view, *vb = &call->inputs[b]->view;

  if ((va->n_dims == 0) != (vb->n_dims == 0) && va->dtype != EBB_DTYPE_BOOL && vb->dtype != EBB_DTYPE_BOOL
      && ebb_dtype_is_floating_point (va->dtype) == ebb_dtype_is_floating_point (vb->dtype))
    return va->n_dims == 0 ? vb->dtype : va->dtype;
  return ebb_dtype_promote (va->dtype, vb->dtype);
}

static gboolean
integer_holds (EbbDType dtype, double value)
{
  if (value != trunc (value))
    return FALSE;
  switch (dtype)
    {
    case EBB_DTYPE_I64: return value >= -0x1p63 && value < 0x1p63;
    case EBB_DTYPE_I32: return value >= G_MININT32 && value <= G_MAXINT32;
    case EBB_DTYPE_U8: return value >= 0.0 && value <= 255.0;
    default: return FALSE;
    }
}

gboolean
ebb_op_promote_to_scalar (EbbOpCall *call, double value, GError **error)
{
  EbbDType dtype = call->inputs[0]->view.dtype;

  return ebb_dtype_is_floating_point (dtype) || integer_holds (dtype, value)
         || ebb_op_cast (call, 0, EBB_DTYPE_F32, error);
}

gboolean
ebb_op_broadcast (EbbOpCall *call, guint a, guint b, gint64 *shape, guint *n_dims, GError **error)
{
  if (!ebb_broadcast_shapes (call->op->name, call->inputs[a], call->inputs[b], shape, n_dims, error))
    return ebb_op_clear (call);
  call->extra.i[a] = ebb_broadcast_encode (&call->inputs[a]->view, shape, *n_dims);
  call->extra.i[b] = ebb_broadcast_encode (&call->inputs[b]->view, shape, *n_dims);
  if (call->extra.i[a] != 0)
    ebb_op_expand (call, a, shape, *n_dims);
  if (call->extra.i[b] != 0)
    ebb_op_expand (call, b, shape, *n_dims);
  return TRUE;
}

gboolean
ebb_op_dense_rows (EbbOpCall *call, guint index, GError **error)
{
  const EbbView *view = &call->inputs[index]->view;

  return (view->n_dims > 0 && view->strides[view->n_dims - 1] == 1) || ebb_op_contiguous (call, index, error);
}

void
ebb_op_save_nothing (EbbOpCall *call)
{
  call->saved[call->n_saved++] = NULL;
}

void
ebb_op_save_optional (EbbOpCall *call,
                      guint index)
{
  if (call->inputs[index] != NULL)
    ebb_op_save_input (call, index);
  else
    ebb_op_save_nothing (call);
}

gboolean
ebb_op_prepare_indices (EbbOpCall *call, guint index, GError **error)
{
  const EbbDType dtype = call->inputs[index]->view.dtype;

  if (dtype != EBB_DTYPE_I64 && dtype != EBB_DTYPE_I32)
    return ebb_op_fail (call, error, EBB_ERROR_DTYPE, "indices must be i64 or i32, not %s", ebb_dtype_get_name (dtype));
  return ebb_op_contiguous (call, index, error);
}

/* -- views -------------------------------------------------------------------------------------------------------- */

void
ebb_view_expand_to (EbbView *view, const EbbView *source, const gint64 *shape, guint n_dims)
{
  int missing = (int) n_dims - source->n_dims;

  view->data = source->data;
  view->dtype = source->dtype;
  view->n_dims = (int) n_dims;
  for (int i = 0; i < (int) n_dims; i++)
    {
      gboolean repeats = i < missing || source->shape[i - missing] != shape[i];

      view->shape[i] = shape[i];
      view->strides[i] = repeats ? 0 : source->strides[i - missing];
    }
}

void
ebb_view_around_dim (EbbView *view, const EbbView *source, int dim)
{
  gint64 outer = 1, inner = 1;
  gint64 size = source->n_dims > 0 ? source->shape[dim] : 1;

  for (int i = 0; i < dim; i++)
    outer *= source->shape[i];
  for (int i = dim + 1; i < source->n_dims; i++)
    inner *= source->shape[i];
  view->data = source->data;
  view->dtype = source->dtype;
  view->n_dims = 3;
  view->shape[0] = outer;
  view->shape[1] = size;
  view->shape[2] = inner;
  view->strides[0] = size * inner;
  view->strides[1] = inner;
  view->strides[2] = 1;
}

void
ebb_view_keep_dims (EbbView *view, const EbbView *source, guint32 dims, guint n_dims)
{
  gboolean kept = source->n_dims == (int) n_dims;
  int next = 0;

  view->data = source->data;
  view->dtype = source->dtype;
  view->n_dims = (int) n_dims;
  for (guint i = 0; i < n_dims; i++)
    {
      gboolean reduced = (dims >> i) & 1;

      view->shape[i] = reduced ? 1 : source->shape[next];
      view->strides[i] = reduced ? 1 : source->strides[next];
      if (kept || !reduced)
        next++;
    }
  /* A dense view stays one in the eyes of kernels that look at strides: those of size 1 are as if contiguous. */
  for (int i = (int) n_dims - 1; i >= 0; i--)
    if ((dims >> i) & 1)
      view->strides[i] = i + 1 < (int) n_dims ? view->strides[i + 1] * view->shape[i + 1] : 1;
}

gboolean
ebb_view_compute_strides (const EbbView *view, const gint64 *shape, guint n_dims, gint64 *strides)
{
  gint64 old_shape[EBB_MAX_DIMS], old_strides[EBB_MAX_DIMS];
  int n_old = 0, from = 0;
  guint to = 0;

  for (int i = 0; i < view->n_dims; i++)
    if (view->shape[i] != 1)
      {
        old_shape[n_old] = view->shape[i];
        old_strides[n_old++] = view->strides[i];
      }
  /* Groups of old and new dimensions that hold the same number of elements are matched from the left; within a group
   * the old ones must lie as one. */
  while (to < n_dims && from < n_old)
    {
      int first_old = from;
      guint first_new = to;
      gint64 n_in_old = old_shape[from++], n_in_new = shape[to++];
      gint64 stride;

      while (n_in_old != n_in_new)
        if (n_in_new < n_in_old)
          n_in_new *= shape[to++];
        else
          n_in_old *= old_shape[from++];
      for (int i = first_old; i + 1 < from; i++)
        if (old_strides[i] != old_shape[i + 1] * old_strides[i + 1])
          return FALSE;
      stride = old_strides[from - 1];
      for (guint i = to; i-- > first_new;)
        {
          strides[i] = stride;
          stride *= shape[i];
        }
    }
  for (guint i = n_dims; i-- > to;)
    strides[i] = 1;
  return TRUE;
}

/* -- tensors ------------------------------------------------------------------------------------------------------ */

EbbTensor *
ebb_tensor_new_checked (const char *op_name,
                        const gint64 *shape,
                        guint n_dims,
                        EbbDType dtype,
                        EbbDevice *device,
                        GError **error)
{
  EbbTensor *tensor;

  if (error != NULL && *error != NULL)
    return NULL;
  tensor = ebb_tensor_new_empty (shape, n_dims, dtype, device, error);
  if (tensor == NULL)
    g_prefix_error (error, "%s: ", op_name);
  return tensor;
}

EbbTensor *
ebb_tensor_new_like (EbbTensor *tensor, GError **error)
{
  return ebb_tensor_new_uninitialized (EBB_FULL_SHAPE (tensor), tensor->view.dtype, EBB_DEVICE_OF (tensor), error);
}

static EbbTensor *
into_copy (EbbTensor *tensor, EbbDType dtype, GError **error)
{
  EbbTensor *copy = ebb_tensor_convert (tensor, dtype, error);

  ebb_tensor_unref (tensor);
  return copy;
}

EbbTensor *
ebb_tensor_into_dtype (EbbTensor *tensor, EbbDType dtype, GError **error)
{
  return tensor->view.dtype == dtype ? tensor : into_copy (tensor, dtype, error);
}

static EbbTensor *
into_contiguous (EbbTensor *tensor, GError **error)
{
  return ebb_view_is_contiguous (&tensor->view) ? tensor : into_copy (tensor, tensor->view.dtype, error);
}

EbbTensor *
ebb_tensor_into_shape (EbbTensor *tensor, const gint64 *shape, guint n_dims, GError **error)
{
  gint64 strides[EBB_MAX_DIMS];
  EbbTensor *result;

  if (tensor->n_elements == 0 || !ebb_view_compute_strides (&tensor->view, shape, n_dims, strides))
    {
      tensor = into_contiguous (tensor, error);
      if (tensor == NULL)
        return NULL;
      result = ebb_tensor_new_view (tensor->storage, tensor->offset, shape, NULL, n_dims, tensor->view.dtype);
    }
  else
    result = ebb_tensor_new_view (tensor->storage, tensor->offset, shape, strides, n_dims, tensor->view.dtype);
  ebb_tensor_unref (tensor);
  return result;
}

EbbTensor *
ebb_tensor_new_from_view (EbbTensor *tensor, const EbbView *view, gint64 offset)
{
  return ebb_tensor_new_view (tensor->storage, offset, view->shape, view->strides, (guint) view->n_dims, view->dtype);
}

/* -- backward ----------------------------------------------------------------------------------------------------- */

gint64
ebb_broadcast_encode (const EbbView *operand, const gint64 *shape, guint n_dims)
{
  int missing = (int) n_dims - operand->n_dims;
  gint64 code = missing;

  for (int i = 0; i < operand->n_dims; i++)
    if (operand->shape[i] != shape[i + missing])
      code |= (gint64) 1 << (8 + i + missing);
  return code;
}

EbbTensor *
ebb_broadcast_reverse (EbbTensor *grad, gint64 code, GError **error)
{
  gint64 shape[EBB_MAX_DIMS];
  guint missing = code & 0xff;
  guint n_dims;
  EbbTensor *sum;

  if (code == 0 || grad == NULL)
    return grad;
  n_dims = (guint) grad->view.n_dims - missing;
  for (guint i = 0; i < n_dims; i++)
    shape[i] = (code >> (8 + i + missing)) & 1 ? 1 : grad->view.shape[i + missing];
  sum = ebb_sum_to_shape (grad, shape, n_dims, error);
  ebb_tensor_unref (grad);
  return sum;
}

EbbTensor *
ebb_backward_steal_grad (EbbBackward *ctx, guint index)
{
  return g_steal_pointer (&ctx->grad_outputs[index]);
}

EbbTensor *
ebb_backward_sum_buffer (EbbBackward *ctx,
                         guint index,
                         EbbDType dtype,
                         const gint64 *shape,
                         guint n_dims,
                         GError **error)
{
  gboolean accumulate = FALSE;
  EbbTensor *buffer = ebb_backward_grad_buffer (ctx, index, dtype, shape, n_dims, &accumulate, error);

  if (buffer != NULL && !accumulate && !ebb_launch_fill (buffer, 0.0, error))
    g_clear_pointer (&buffer, ebb_tensor_unref);
  return buffer;
}

/* -- launches ----------------------------------------------------------------------------------------------------- */

/* Adds @x as it is seen in the shape of @y; @view is where that lives until the launch. */
static void
add_input (EbbLaunch *launch, EbbView *view, EbbTensor *x, EbbTensor *y)
{
  if (ebb_shapes_equal (&x->view, &y->view))
    {
      launch->inputs[launch->n_inputs++] = &x->view;
      return;
    }
  ebb_view_expand_to (view, &x->view, EBB_FULL_SHAPE (y));
  launch->inputs[launch->n_inputs++] = view;
}

static gboolean
launch_onto (EbbKernel kernel,
             const EbbKernelParams *params,
             gboolean changes,
             EbbTensor *y,
             EbbTensor *const *inputs,
             guint n_inputs,
             GError **error)
{
  EbbLaunch launch;
  EbbView views[3];

  g_assert (n_inputs <= G_N_ELEMENTS (views));
  ebb_launch_init (&launch, kernel);
  launch.params = *params;
  launch.changes = changes;
  for (guint i = 0; i < n_inputs; i++)
    add_input (&launch, &views[i], inputs[i], y);
  ebb_launch_output (&launch, y);
  return ebb_launch (EBB_DEVICE_OF (y), &launch, error);
}

gboolean
ebb_launch_onto (EbbKernel kernel,
                 const EbbKernelParams *params,
                 EbbTensor *y,
                 EbbTensor *const *inputs,
                 guint n_inputs,
                 GError **error)
{
  return launch_onto (kernel, params, FALSE, y, inputs, n_inputs, error);
}

gboolean
ebb_launch_in_place (EbbKernel kernel,
                     const EbbKernelParams *params,
                     EbbTensor *y,
                     EbbTensor *const *inputs,
                     guint n_inputs,
                     GError **error)
{
  const EbbStorage *storage = y->storage;
  const gsize start = (gsize) y->view.data - (gsize) storage->data;

  return launch_onto (kernel, params, start < storage->size - storage->n_blank, y, inputs, n_inputs, error);
}

gboolean
ebb_launch_tensors (EbbKernel kernel,
                    const EbbKernelParams *params,
                    guint n_inputs,
                    EbbTensor *const *operands,
                    guint n_operands,
                    GError **error)
{
  EbbLaunch launch;

  ebb_launch_init (&launch, kernel);
  launch.params = *params;
  for (guint i = 0; i < n_operands; i++)
    (i < n_inputs ? ebb_launch_input : ebb_launch_output) (&launch, operands[i]);
  return ebb_launch (EBB_DEVICE_OF (operands[n_inputs]), &launch, error);
}

gboolean
ebb_launch_views (EbbDevice *device,
                  EbbKernel kernel,
                  const EbbKernelParams *params,
                  guint n_inputs,
                  const EbbView *const *operands,
                  guint n_operands,
                  GError **error)
{
  EbbLaunch launch;

  ebb_launch_init (&launch, kernel);
  launch.params = *params;
  for (guint i = 0; i < n_inputs; i++)
    launch.inputs[launch.n_inputs++] = operands[i];
  for (guint i = n_inputs; i < n_operands; i++)
    launch.outputs[launch.n_outputs++] = (EbbView *) operands[i];
  return ebb_launch (device, &launch, error);
}

gboolean
ebb_launch_copy (EbbTensor *x, EbbTensor *y, GError **error)
{
  return EBB_LAUNCH_ONTO (EBB_KERNEL_COPY, EBB_NO_PARAMS, y, error, x);
}

gboolean
ebb_launch_fill (EbbTensor *y, double value, GError **error)
{
  return EBB_LAUNCH (EBB_KERNEL_FILL, &(EbbKernelParams){ .fill = { value } }, 0, error, y);
}

gboolean
ebb_launch_unary (EbbUnaryOp op, EbbTensor *x, EbbTensor *y, GError **error)
{
  return EBB_LAUNCH_ONTO (EBB_KERNEL_UNARY, &(EbbKernelParams){ .unary = { op } }, y, error, x);
}

gboolean
ebb_launch_binary (EbbBinaryOp op, EbbTensor *a, EbbTensor *b, EbbTensor *y, GError **error)
{
  return EBB_LAUNCH_ONTO (EBB_KERNEL_BINARY, &(EbbKernelParams){ .binary = { op } }, y, error, a, b);
}

gboolean
ebb_launch_scalar (EbbBinaryOp op, EbbTensor *a, double value, EbbTensor *y, GError **error)
{
  const EbbKernelParams params = { .binary = { op, value, FALSE } };

  return EBB_LAUNCH_ONTO (EBB_KERNEL_BINARY_SCALAR, &params, y, error, a);
}

gboolean
ebb_launch_scalar_of (EbbBinaryOp op, EbbTensor *a, EbbTensor *scalar, EbbTensor *y, GError **error)
{
  const EbbKernelParams params = { .binary = { .op = op } };
  EbbLaunch launch;
  EbbView view;

  ebb_launch_init (&launch, EBB_KERNEL_BINARY_SCALAR);
  launch.params = params;
  add_input (&launch, &view, a, y);
  ebb_launch_input (&launch, scalar);
  ebb_launch_output (&launch, y);
  return ebb_launch (EBB_DEVICE_OF (y), &launch, error);
}

gboolean
ebb_launch_where (EbbTensor *condition, EbbTensor *a, EbbTensor *b, EbbTensor *y, GError **error)
{
  g_autoptr (EbbTensor) zero = NULL;

  if (a == NULL || b == NULL)
    {
      zero = ebb_tensor_new_uninitialized (NULL, 0, y->view.dtype, EBB_DEVICE_OF (y), error);
      if (zero == NULL || !ebb_launch_fill (zero, 0.0, error))
        return FALSE;
    }
  return EBB_LAUNCH_ONTO (EBB_KERNEL_WHERE, EBB_NO_PARAMS, y, error, condition, a != NULL ? a : zero,
                          b != NULL ? b : zero);
}

gboolean
ebb_launch_reduce (EbbReduceKind op, EbbTensor *x, guint32 dims, EbbTensor *y, GError **error)
{
  const EbbKernelParams params = { .reduce = { op, dims, 0.0 } };
  EbbView view;

  ebb_view_keep_dims (&view, &y->view, dims, (guint) x->view.n_dims);
  return EBB_LAUNCH_VIEWS (EBB_DEVICE_OF (y), EBB_KERNEL_REDUCE, &params, 1, error, &x->view, &view);
}
