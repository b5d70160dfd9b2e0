/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "tensor/ops/loss.h"

#include "tensor/autograd/op-support-private.h"
#include "tensor/ops/loss-private.h"
#include "tensor/ops/product-private.h"

#include <math.h>
#include <string.h>

/* Cross entropy of logits, and what it shares with the fused form. */

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
    return ebb_op_fail (call, error, EBB_ERROR_SHAPE,
                        "%s is %s and targets is %s; targets must have its shape without the last "
                        "dimension, or with 1 there",
                        rows == call->inputs[0] && index == 1 ? "logits" : "x", ebb_show_shape (rows),
                        ebb_show_shape (targets));
  if (n_classes <= 0)
    return ebb_op_fail (call, error, EBB_ERROR_SHAPE, "there are no classes; must be one at least");
  if (!(label_smoothing >= 0.0 && label_smoothing <= 1.0))
    return ebb_op_fail (call, error, EBB_ERROR_INVALID_ARGUMENT, "label_smoothing is %g; must be in [0, 1]",
                        label_smoothing);
  if ((guint) reduction > EBB_REDUCTION_NONE)
    return ebb_op_fail (call, error, EBB_ERROR_INVALID_ARGUMENT, "there is no reduction %d", (int) reduction);
  call->params.xent.ignore_index = ignore_index;
  call->params.xent.smoothing = label_smoothing;
  call->params.xent.n_classes = n_classes;
  return ebb_op_prepare_indices (call, index, error);
}

gboolean
ebb_loss_set_softcap (EbbOpCall *call,
                      double softcap,
                      GError **error)
{
  if (!(softcap >= 0.0) || !isfinite (softcap))
    return ebb_op_fail (call, error, EBB_ERROR_INVALID_ARGUMENT, "softcap is %g; must be positive, or 0 for none",
                        softcap);
  call->params.xent.cap = softcap;
  return TRUE;
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
  launch.op = call->op->name;
  launch.params = call->params;
  launch.inputs[launch.n_inputs++] = logits;
  launch.inputs[launch.n_inputs++] = targets;
  launch.inputs[launch.n_inputs++] = NULL;
  launch.outputs[launch.n_outputs++] = losses;
  launch.outputs[launch.n_outputs++] = logsumexps;
  return ebb_launch (EBB_DEVICE_OF (call->inputs[0]), &launch, error);
}

gboolean
ebb_loss_launch_grad (EbbDevice *device,
                      const char *op_name,
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
  launch.op = op_name;
  launch.params = *params;
  launch.inputs[launch.n_inputs++] = grad;
  launch.inputs[launch.n_inputs++] = logits;
  launch.inputs[launch.n_inputs++] = targets;
  launch.inputs[launch.n_inputs++] = logsumexp;
  launch.outputs[launch.n_outputs++] = logits_grad;
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
  const EbbKernelParams params = { .reduce = { .op = EBB_REDUCE_SUM, .dims = 1 } };
  EbbView flat, sum;

  ebb_loss_flatten (&flat, rows);
  ebb_loss_flatten (&sum, loss);
  return EBB_LAUNCH_VIEWS (EBB_DEVICE_OF (loss), EBB_KERNEL_REDUCE, &params, 1, error, &flat, &sum)
         && (count == NULL || ebb_launch_binary (EBB_BINARY_DIV, loss, count, loss, error));
}

#define DEFAULT_IGNORE_INDEX (-100)

enum
{
  SAVED_LOGITS,
  SAVED_TARGETS,
  SAVED_LOGSUMEXP,
  SAVED_COUNT
};

gboolean
ebb_logits_loss_run (EbbOpCall *call,
                     EbbLossFunc func,
                     GError **error)
{
  EbbReduction reduction = (EbbReduction) call->extra.i[0];
  EbbTensor *loss = call->outputs[0];
  g_autoptr (EbbTensor) rows = NULL;
  g_autoptr (EbbTensor) count = NULL;
  EbbView logits, targets, row_losses, logsumexp;

  rows = reduction == EBB_REDUCTION_NONE ? ebb_tensor_ref (loss) : ebb_loss_new_rows (call->inputs[1], error);
  if (rows == NULL)
    return FALSE;
  ebb_view_as_rows (&logits, call->inputs[0]);
  ebb_loss_flatten (&targets, call->inputs[1]);
  ebb_loss_flatten (&row_losses, rows);
  ebb_view_as_rows (&logsumexp, call->outputs[1]);
  if (!func (call, &logits, &targets, &row_losses, &logsumexp, error))
    return FALSE;
  if (reduction == EBB_REDUCTION_NONE)
    return TRUE;
  if (reduction == EBB_REDUCTION_SUM)
    return ebb_loss_reduce (rows, NULL, loss, error);
  count = ebb_loss_count (call->inputs[1], call->params.xent.ignore_index, error);
  return count != NULL && ebb_launch_copy (count, call->outputs[2], error)
         && ebb_loss_reduce (rows, count, loss, error);
}

gboolean
ebb_logits_loss_backward (EbbBackward *ctx,
                          GError **error)
{
  EbbReduction reduction = (EbbReduction) ctx->extra_i[0];
  g_autoptr (EbbTensor) grad = NULL;
  g_autoptr (EbbTensor) logits = NULL;
  EbbView grad_view, logits_view, targets_view, logsumexp_view, result_view;

  if (ctx->grad_outputs[0] == NULL || !(ctx->needs & 1))
    return TRUE;
  grad = ebb_backward_take_grad (ctx, 0, EBB_DTYPE_F32, error);
  if (grad == NULL)
    return FALSE;
  if (reduction == EBB_REDUCTION_MEAN)
    {
      g_autoptr (EbbTensor) scaled = ebb_tensor_new_like (grad, error);

      if (scaled == NULL || !ebb_launch_binary (EBB_BINARY_DIV, grad, ctx->saved[SAVED_COUNT], scaled, error))
        return FALSE;
      ebb_tensor_unref (grad);
      grad = g_steal_pointer (&scaled);
    }
  /* The reference to the logits is dropped here: their gradient takes their memory if nobody else holds them. */
  logits = ebb_backward_take_saved (ctx, SAVED_LOGITS);
  ctx->grad_inputs[0] = ebb_tensor_new_reusing (logits, error);
  if (ctx->grad_inputs[0] == NULL)
    return FALSE;
  ebb_view_as_rows (&logits_view, logits);
  ebb_loss_flatten (&targets_view, ctx->saved[SAVED_TARGETS]);
  ebb_view_as_rows (&logsumexp_view, ctx->saved[SAVED_LOGSUMEXP]);
  ebb_loss_flatten (&grad_view, grad);
  if (reduction != EBB_REDUCTION_NONE)
    {
      grad_view.shape[0] = logits_view.shape[0];
      grad_view.strides[0] = 0;
    }
  ebb_view_as_rows (&result_view, ctx->grad_inputs[0]);
  return ebb_loss_launch_grad (EBB_DEVICE_OF (logits), ctx->op->name, ctx->params, &grad_view, &logits_view,
                               &targets_view, &logsumexp_view, &result_view, error);
}

gboolean
ebb_logits_loss_describe (EbbOpCall *call,
                          gint64 n_classes,
                          gint64 ignore_index,
                          double label_smoothing,
                          EbbReduction reduction,
                          GError **error)
{
  EbbTensor *logits = call->inputs[0];

  if (logits->view.dtype != EBB_DTYPE_F32 && logits->view.dtype != EBB_DTYPE_BF16)
    return ebb_op_fail (call, error, EBB_ERROR_DTYPE, "logits is %s; must be f32 or bf16",
                        ebb_dtype_get_name (logits->view.dtype));
  if (!ebb_loss_check (call, 1, logits, n_classes, ignore_index, label_smoothing, reduction, error)
      || !ebb_op_contiguous (call, 0, error))
    return FALSE;
  call->extra.i[0] = reduction;
  ebb_loss_add_output (call, reduction);
  ebb_loss_add_logsumexp (call);
  if (reduction == EBB_REDUCTION_MEAN)
    ebb_op_add_output (call, EBB_DTYPE_F32, NULL, 0);
  call->non_differentiable = 1u << 1 | 1u << 2;
  ebb_op_save_input (call, 0);
  ebb_op_save_input (call, 1);
  ebb_op_save_output (call, 1);
  if (reduction == EBB_REDUCTION_MEAN)
    ebb_op_save_output (call, 2);
  return TRUE;
}

/* -- all classes here --------------------------------------------------------------------------------------------- */

static gboolean
cross_entropy_run (EbbOpCall *call,
                   GError **error)
{
  return ebb_logits_loss_run (call, ebb_loss_compute, error);
}

static const EbbOp op_cross_entropy = { "cross_entropy", EBB_OP_LOSS, EBB_KERNEL_CROSS_ENTROPY, cross_entropy_run,
                                        ebb_logits_loss_backward };

/**
 * ebb_cross_entropy_full:
 * @logits: (nullable): a tensor [.., V], f32 or bf16: a score for each of V classes
 * @targets: (nullable): a tensor [..] or [.., 1] of i64 or i32: the right class of each, in [0, V)
 * @ignore_index: a target that does not count
 * @label_smoothing: the part in [0, 1] of the target distribution that is spread evenly over all classes (Szegedy et
 * al., Rethinking the Inception Architecture, 2015, section 7)
 * @reduction: how the losses become one
 * @error: return location for an error
 *
 * Computes the cross entropy -log softmax (logits)[target] in f32. The mean is over targets that are not ignored, and
 * NaN if there is none. Backward keeps @logits, @targets and two numbers a row.
 *
 * Returns: (transfer full) (nullable): f32: one number [], or [..] without reduction; %NULL with %EBB_ERROR_SHAPE,
 *   %EBB_ERROR_DTYPE, %EBB_ERROR_INDEX if a target is out of range, %EBB_ERROR_INVALID_ARGUMENT
 */
EbbTensor *
ebb_cross_entropy_full (EbbTensor *logits,
                        EbbTensor *targets,
                        gint64 ignore_index,
                        double label_smoothing,
                        EbbReduction reduction,
                        GError **error)
{
  EbbOpCall call;

  if (!ebb_op_begin (&call, &op_cross_entropy, error, 2, logits, targets)
      || !ebb_logits_loss_describe (&call, logits->view.n_dims > 0 ? ebb_tensor_get_dim (logits, -1) : 0, ignore_index,
                                    label_smoothing, reduction, error))
    return NULL;
  return ebb_op_finish1 (&call, error);
}

/**
 * ebb_cross_entropy:
 * @logits: (nullable): a tensor [.., V], f32 or bf16: a score for each of V classes
 * @targets: (nullable): a tensor [..] or [.., 1] of i64 or i32: the right class of each, in [0, V), or -100 where none
 * counts
 * @error: return location for an error
 *
 * Computes the mean cross entropy: ebb_cross_entropy_full() without label smoothing.
 *
 * Returns: (transfer full) (nullable): one f32 []; %NULL with an error
 */
EbbTensor *
ebb_cross_entropy (EbbTensor *logits,
                   EbbTensor *targets,
                   GError **error)
{
  return ebb_cross_entropy_full (logits, targets, DEFAULT_IGNORE_INDEX, 0.0, EBB_REDUCTION_MEAN, error);
}
