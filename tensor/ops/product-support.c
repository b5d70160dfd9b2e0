/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Shared by matrix products and the ops that contain them: dtypes, views of matrices, launches. */
#include "tensor/ops/product-private.h"

#include "tensor/autograd/op-support-private.h"
#include "tensor/backend/backend-private.h"
#include "tensor/thread-private.h"

#include <string.h>

gboolean
ebb_op_cast_for_product (EbbOpCall *call,
                         guint n,
                         EbbDType *dtype,
                         GError **error)
{
  gboolean any_f32 = FALSE;

  for (guint i = 0; i < n; i++)
    {
      EbbDType input_dtype = call->inputs[i]->view.dtype;

      if (!ebb_dtype_is_floating_point (input_dtype))
        return ebb_op_fail (call, error, EBB_ERROR_DTYPE, "operand %u is %s; must be f32 or bf16", i,
                            ebb_dtype_get_name (input_dtype));
      any_f32 = any_f32 || input_dtype == EBB_DTYPE_F32;
    }
  if (!ebb_autocast_get (dtype))
    *dtype = any_f32 ? EBB_DTYPE_F32 : call->inputs[0]->view.dtype;
  if (*dtype != EBB_DTYPE_F32 && *dtype != EBB_DTYPE_BF16)
    return ebb_op_fail (call, error, EBB_ERROR_DTYPE, "can't multiply in %s; cast to f32 or bf16",
                        ebb_dtype_get_name (*dtype));
  for (guint i = 0; i < n; i++)
    if (call->inputs[i]->view.dtype != *dtype && !ebb_op_cast (call, i, *dtype, error))
      return FALSE;
  return TRUE;
}

EbbDType
ebb_product_grad_dtype (EbbDType dtype)
{
  return dtype == EBB_DTYPE_BF16 ? EBB_DTYPE_BF16 : EBB_DTYPE_F32;
}

void
ebb_view_init (EbbView *view,
               void *data,
               EbbDType dtype,
               const gint64 *shape,
               guint n_dims)
{
  gint64 stride = 1;

  view->data = data;
  view->dtype = dtype;
  view->n_dims = (int) n_dims;
  for (guint i = n_dims; i-- > 0;)
    {
      view->shape[i] = shape[i];
      view->strides[i] = stride;
      stride *= MAX (shape[i], 1);
    }
}

void
ebb_view_as_rows (EbbView *view,
                  EbbTensor *tensor)
{
  int n_dims = tensor->view.n_dims;
  gint64 columns = n_dims > 0 ? tensor->view.shape[n_dims - 1] : 1;
  gint64 rows = 1;

  for (int i = 0; i + 1 < n_dims; i++)
    rows *= tensor->view.shape[i];
  ebb_view_init (view, tensor->view.data, tensor->view.dtype, (gint64[]){ rows, columns }, 2);
}

void
ebb_view_slice_rows (EbbView *view,
                     const EbbView *matrix,
                     gint64 first,
                     gint64 n)
{
  *view = *matrix;
  view->data = (char *) matrix->data + first * matrix->strides[0] * (gint64) ebb_dtype_get_size (matrix->dtype);
  view->shape[0] = n;
}

void
ebb_view_transpose (EbbView *view)
{
  int last = view->n_dims - 1;
  gint64 size = view->shape[last], stride = view->strides[last];

  view->shape[last] = view->shape[last - 1];
  view->strides[last] = view->strides[last - 1];
  view->shape[last - 1] = size;
  view->strides[last - 1] = stride;
}

gboolean
ebb_launch_matmul (EbbDevice *device,
                   const EbbView *a,
                   const EbbView *b,
                   const EbbView *bias,
                   EbbView *c,
                   gboolean accumulate,
                   GError **error)
{
  const EbbKernelParams params = { .matmul = { accumulate } };

  return EBB_LAUNCH_VIEWS (device, EBB_KERNEL_MATMUL, &params, 3, error, a, b, bias, c);
}
