/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "tensor/ops/loss-private.h"

static gboolean
fused_linear_cross_entropy_run (EbbOpCall *call,
                                GError **error)
{
  return ebb_linear_loss_run (call, ebb_loss_compute, error);
}

static const EbbOp op_fused_linear_cross_entropy = { "fused_linear_cross_entropy", EBB_OP_LOSS,
                                                     EBB_KERNEL_CROSS_ENTROPY, fused_linear_cross_entropy_run,
                                                     ebb_linear_loss_backward };

/**
 * ebb_fused_linear_cross_entropy:
 * @x: (nullable): a tensor [.., C], f32 or bf16
 * @weight: (nullable): a matrix [V, C]: the last layer of a language model
 * @bias: (nullable): a vector [V], f32 or bf16; %NULL for none
 * @targets: (nullable): a tensor [..] or [.., 1] of i64 or i32: the right class of each, in [0, V)
 * @ignore_index: a target that does not count
 * @label_smoothing: the part in [0, 1] of the target distribution that is spread evenly over all classes
 * @reduction: how the losses become one
 * @error: return location for an error
 *
 * Computes ebb_cross_entropy_full() of ebb_linear() of @x, @weight and @bias without ever holding all logits: at most
 * 64 MiB of them, or 16 rows if these are more. With reduction to a mean or a sum the gradients of @x, @weight and
 * @bias are computed along with the loss if they are wanted, and backward keeps them alone; without reduction it keeps
 * the operands and computes the logits again. Under autocast @x and @weight are cast to its dtype and logits are of it.
 *
 * Returns: (transfer full) (nullable): f32: one number [], or [..] without reduction; %NULL with %EBB_ERROR_SHAPE,
 *   %EBB_ERROR_DTYPE, %EBB_ERROR_INDEX if a target is out of range, %EBB_ERROR_INVALID_ARGUMENT
 */
EbbTensor *
ebb_fused_linear_cross_entropy (EbbTensor *x,
                                EbbTensor *weight,
                                EbbTensor *bias,
                                EbbTensor *targets,
                                gint64 ignore_index,
                                double label_smoothing,
                                EbbReduction reduction,
                                GError **error)
{
  EbbOpCall call;
  gint64 n_classes;

  if (!ebb_op_begin (&call, &op_fused_linear_cross_entropy, error, 3, x, weight, targets)
      || !ebb_op_add_optional (&call, bias, error))
    return NULL;
  n_classes = weight->view.n_dims > 0 ? weight->view.shape[0] : 0;
  if (!ebb_linear_loss_describe (&call, n_classes, n_classes, ignore_index, label_smoothing, reduction, error))
    return NULL;
  return ebb_op_finish1 (&call, error);
}
