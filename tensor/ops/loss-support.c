/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "tensor/ops/loss-private.h"

#include <string.h>

#include "tensor/autograd/op-support-private.h"
#include "tensor/ops/product-private.h"

gboolean
ebb_loss_check (EbbOpCall *call,
                guint index,
                EbbTensor *rows,
                gint64 n_classes,
                gint64 ignore_index,
                double label_smoothing,
                EbbReduction reduction,
                GError **error)
{
  EbbTensor *targets = call->inputs[index];
  const int n_leading = rows->view.n_dims - 1, n_more = targets->view.n_dims - n_leading;
  gboolean fits = n_leading >= 0 && (n_more == 0 || (n_more == 1 && targets->view.shape[n_leading] == 1));

  for (int i = 0; fits && i < n_leading; i++)
    fits = targets->view.shape[i] == rows->view.shape[i];
  if (!fits)
    {
      g_autofree char *rows_shape = ebb_tensor_shape_to_string (rows);
      g_autofree char *targets_shape = ebb_tensor_shape_to_string (targets);

      return ebb_op_fail (call, error, EBB_ERROR_SHAPE,
                          "%s is %s and targets is %s; targets must have its shape without the last "
                          "dimension, or with 1 there",
                          rows == call->inputs[0] && index == 1 ? "logits" : "x", rows_shape, targets_shape);
    }
  if (n_classes <= 0)
    return ebb_op_fail (call, error, EBB_ERROR_SHAPE, "there are no classes; must be one at least");
  if (!(label_smoothing >= 0.0 && label_smoothing <= 1.0))
    return ebb_op_fail (call, error, EBB_ERROR_INVALID_ARGUMENT, "label_smoothing is %g; must be in [0, 1]",
                        label_smoothing);
  if ((guint) reduction > EBB_REDUCTION_NONE)
    return ebb_op_fail (call, error, EBB_ERROR_INVALID_ARGUMENT, "there is no reduction %d", (int) reduction);
  call->params.xent.ignore_index = ignore_index;
  call->params.xent.smoothing = label_smoothing;
  return ebb_op_check_indices (call, index, n_classes, &ignore_index, error);
}

void
ebb_loss_add_output (EbbOpCall *call,
                     EbbReduction reduction)
{
  const EbbView *view = &call->inputs[0]->view;

  ebb_op_add_output (call, EBB_DTYPE_F32, view->shape, reduction == EBB_REDUCTION_NONE ? (guint) view->n_dims - 1 : 0);
}

void
ebb_loss_add_logsumexp (EbbOpCall *call)
{
  const EbbView *view = &call->inputs[0]->view;
  gint64 shape[EBB_MAX_DIMS];

  memcpy (shape, view->shape, sizeof (gint64) * (gsize) view->n_dims);
  shape[view->n_dims - 1] = 2;
  ebb_op_add_output (call, EBB_DTYPE_F32, shape, (guint) view->n_dims);
}

EbbTensor *
ebb_loss_new_rows (EbbTensor *targets,
                   GError **error)
{
  return ebb_tensor_new_uninitialized (EBB_FULL_SHAPE (targets), EBB_DTYPE_F32, EBB_DEVICE_OF (targets), error);
}

void
ebb_loss_flatten (EbbView *view,
                  EbbTensor *tensor)
{
  ebb_view_init (view, tensor->view.data, tensor->view.dtype, &tensor->n_elements, 1);
}

gboolean
ebb_loss_compute (EbbOpCall *call,
                  const EbbView *logits,
                  const EbbView *targets,
                  EbbView *losses,
                  EbbView *logsumexps,
                  GError **error)
{
  EbbLaunch launch;

  ebb_launch_init (&launch, EBB_KERNEL_CROSS_ENTROPY);
  launch.params.xent = call->params.xent;
  launch.inputs[0] = logits;
  launch.inputs[1] = targets;
  launch.inputs[2] = NULL;
  launch.n_inputs = 3;
  launch.outputs[0] = losses;
  launch.outputs[1] = logsumexps;
  launch.n_outputs = 2;
  return ebb_launch (EBB_DEVICE_OF (call->inputs[0]), &launch, error);
}

gboolean
ebb_loss_launch_grad (EbbDevice *device,
                      const EbbKernelParams *params,
                      const EbbView *grad,
                      const EbbView *logits,
                      const EbbView *targets,
                      const EbbView *logsumexp,
                      EbbView *logits_grad,
                      GError **error)
{
  EbbLaunch launch;

  ebb_launch_init (&launch, EBB_KERNEL_CROSS_ENTROPY_GRAD);
  launch.params.xent = params->xent;
  launch.inputs[0] = grad;
  launch.inputs[1] = logits;
  launch.inputs[2] = targets;
  launch.inputs[3] = logsumexp;
  launch.n_inputs = 4;
  launch.outputs[0] = logits_grad;
  launch.n_outputs = 1;
  return ebb_launch (device, &launch, error);
}

/* -- reduction ---------------------------------------------------------------------------------------------------- */

EbbTensor *
ebb_loss_count (EbbTensor *targets,
                gint64 ignore_index,
                GError **error)
{
  EbbDevice *device = EBB_DEVICE_OF (targets);
  g_autoptr (EbbTensor) counts = NULL;
  g_autoptr (EbbTensor) numbers = NULL;
  g_autoptr (EbbTensor) count = NULL;

  if ((count = ebb_tensor_new_uninitialized (NULL, 0, EBB_DTYPE_F32, device, error)) == NULL
      || (counts = ebb_tensor_new_uninitialized (EBB_FULL_SHAPE (targets), EBB_DTYPE_BOOL, device, error)) == NULL
      || (numbers = ebb_tensor_new_uninitialized (EBB_FULL_SHAPE (targets), EBB_DTYPE_F32, device, error)) == NULL
      || !ebb_launch_scalar (EBB_BINARY_NE, targets, (double) ignore_index, counts, error)
      || !ebb_launch_copy (counts, numbers, error) || !ebb_loss_reduce (numbers, NULL, count, error))
    return NULL;
  return g_steal_pointer (&count);
}

gboolean
ebb_loss_reduce (EbbTensor *rows,
                 EbbTensor *count,
                 EbbTensor *loss,
                 GError **error)
{
  EbbView flat, sum;
  EbbLaunch launch;

  ebb_loss_flatten (&flat, rows);
  ebb_loss_flatten (&sum, loss);
  ebb_launch_init (&launch, EBB_KERNEL_REDUCE);
  launch.params.reduce.op = EBB_REDUCE_SUM;
  launch.params.reduce.dims = 1;
  launch.inputs[launch.n_inputs++] = &flat;
  launch.outputs[launch.n_outputs++] = &sum;
  return ebb_launch (EBB_DEVICE_OF (loss), &launch, error)
         && (count == NULL || ebb_launch_binary (EBB_BINARY_DIV, loss, count, loss, error));
}
