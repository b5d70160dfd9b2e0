/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "tensor/autograd/autograd-private.h"
#include "tensor/autograd/parameter-owner-private.h"
#include "tensor/autograd/op-support-private.h"
#include "tensor/thread-private.h"

#include <string.h>

/* Helpers of backward functions. */

EbbTensor *
ebb_backward_grad_buffer (EbbBackward *ctx,
                          guint index,
                          EbbDType dtype,
                          const gint64 *shape,
                          guint n_dims,
                          gboolean *accumulate,
                          GError **error)
{
  EbbTensor *leaf = ctx->node->edges[index].leaf;
  gboolean captures = ebb_backward_pass_captures (ctx->node);
  EbbTensor *grad;

  /* Before the gradient is looked at: an owner may have one there that must stay as it is. */
  if (leaf != NULL && !captures && !ebb_parameter_prepare (leaf, error))
    return NULL;
  grad = leaf != NULL && !captures ? leaf->grad : NULL;
  *accumulate = grad != NULL && grad->view.dtype == dtype
                && ebb_view_is_contiguous (&grad->view) && ebb_view_has_shape (&grad->view, shape, n_dims);
  if (*accumulate)
    return ebb_tensor_ref (grad);
  return ebb_tensor_new_uninitialized (shape, n_dims, dtype, ctx->device, error);
}

EbbTensor *
ebb_backward_take_grad (EbbBackward *ctx,
                        guint index,
                        EbbDType dtype,
                        GError **error)
{
  EbbTensor *grad = ctx->grad_outputs[index];
  EbbTensor *converted;

  g_return_val_if_fail (grad != NULL, NULL);

  ctx->grad_outputs[index] = NULL;
  if (grad->view.dtype == dtype && ebb_view_is_contiguous (&grad->view))
    return grad;
  converted = ebb_tensor_convert (grad, dtype, error);
  ebb_tensor_unref (grad);
  return converted;
}

EbbTensor *
ebb_backward_get_saved (EbbBackward *ctx,
                        guint index,
                        GError **error)
{
  EbbSavedTensor *saved = &ctx->node->saved[index];

  if (ctx->saved[index] == NULL && saved->rematerialized != NULL)
    ctx->saved[index] = ebb_saved_tensor_unpack (saved, ctx->op, error);
  return ctx->saved[index];
}

EbbTensor *
ebb_tensor_new_reusing (EbbTensor *tensor,
                        GError **error)
{
  if (ebb_tensor_is_unshared (tensor) && ebb_view_is_contiguous (&tensor->view))
    return ebb_tensor_ref (tensor);
  return ebb_tensor_new_uninitialized (tensor->view.shape, (guint) tensor->view.n_dims, tensor->view.dtype,
                                       tensor->storage->device, error);
}

EbbTensor *
ebb_sum_to_shape (EbbTensor *grad,
                  const gint64 *shape,
                  guint n_dims,
                  GError **error)
{
  EbbLaunch launch;
  gint64 kept[EBB_MAX_DIMS];
  guint lead = (guint) grad->view.n_dims - n_dims;
  guint32 dims = 0;
  EbbTensor *sum, *result;

  for (guint i = 0; i < (guint) grad->view.n_dims; i++)
    {
      gboolean reduced = i < lead || (shape[i - lead] == 1 && grad->view.shape[i] != 1);

      kept[i] = reduced ? 1 : grad->view.shape[i];
      dims |= reduced ? 1u << i : 0;
    }
  if (dims == 0)
    return ebb_tensor_ref (grad);
  sum = ebb_tensor_new_uninitialized (kept, (guint) grad->view.n_dims, grad->view.dtype, grad->storage->device, error);
  if (sum == NULL)
    return NULL;
  ebb_launch_init (&launch, EBB_KERNEL_REDUCE);
  launch.params.reduce.op = EBB_REDUCE_SUM;
  launch.params.reduce.dims = dims;
  ebb_launch_input (&launch, grad);
  ebb_launch_output (&launch, sum);
  if (!ebb_launch (grad->storage->device, &launch, error))
    {
      ebb_tensor_unref (sum);
      return NULL;
    }
  result = ebb_tensor_new_view (sum->storage, 0, shape, NULL, n_dims, sum->view.dtype);
  ebb_tensor_unref (sum);
  return result;
}
