/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Cross entropy over classes that are sharded over ranks. */
#include "dist/tensor-parallel/vocab-loss.h"

#include "dist/init.h"
#include "dist/tensor-parallel/ops-private.h"
#include "dist/group/process-group-private.h"
#include "tensor/ops/loss-private.h"
#include "tensor/autograd/op-support-private.h"

/* The softmax of a row over classes that are on several ranks needs the logsumexp of each rank's classes, and the logit
 * of the target from the rank that has it (Megatron-LM, arXiv 1909.08053, section 3, communicates as much). All ranks
 * combine them in the order of the ranks, so all have the same bits. Then each goes on alone: the gradient of a logit
 * needs the logsumexp of all classes and whether the target is its own. */

/* Numbers of a row that a rank sends: see EBB_KERNEL_CROSS_ENTROPY_PART. */
#define PART_SIZE 3

static gboolean
launch (EbbOpCall *call,
        EbbKernel kernel,
        const EbbView *from,
        const EbbView *targets,
        EbbView *to,
        EbbView *also_to,
        GError **error)
{
  EbbLaunch launch;

  ebb_launch_init (&launch, kernel);
  launch.op = call->op->name;
  launch.params.xent = call->params.xent;
  launch.inputs[launch.n_inputs++] = from;
  launch.inputs[launch.n_inputs++] = targets;
  launch.outputs[launch.n_outputs++] = to;
  if (also_to != NULL)
    launch.outputs[launch.n_outputs++] = also_to;
  return ebb_launch (EBB_DEVICE_OF (call->inputs[0]), &launch, error);
}

/* All ranks' numbers of these rows, gathered by one call: [ranks, rows, PART_SIZE]. */
static EbbTensor *
gather_parts (EbbOpCall *call,
              const EbbView *logits,
              const EbbView *targets,
              GError **error)
{
  EbbProcessGroup *group = EBB_PROCESS_GROUP (call->owner);
  const gint64 shape[] = { ebb_process_group_get_size (group), logits->shape[0], PART_SIZE };
  const gint64 start = ebb_process_group_get_rank (group) * shape[1] * shape[2];
  g_autoptr (EbbTensor) parts =
      ebb_tensor_new_uninitialized (shape, 3, EBB_DTYPE_F32, EBB_DEVICE_OF (call->inputs[0]), error);
  g_autoptr (EbbTensor) own = NULL;

  if (parts == NULL)
    return NULL;
  own = ebb_tensor_new_view (parts->storage, start, &shape[1], NULL, 2, EBB_DTYPE_F32);
  if (!launch (call, EBB_KERNEL_CROSS_ENTROPY_PART, logits, targets, &own->view, NULL, error)
      || !ebb_process_group_run (group, EBB_COLLECTIVE_ALL_GATHER, EBB_REDUCE_OP_SUM,
                                 &(const EbbCollectivePart){ .full = parts, .shard = own }, 1, 0, call->op->name,
                                 error))
    return NULL;
  return g_steal_pointer (&parts);
}

static gboolean
join_losses (EbbOpCall *call,
             const EbbView *logits,
             const EbbView *targets,
             EbbView *losses,
             EbbView *logsumexps,
             GError **error)
{
  g_autoptr (EbbTensor) parts = NULL;

  if (logits->shape[0] == 0)
    return TRUE;
  parts = gather_parts (call, logits, targets, error);
  return parts != NULL
         && launch (call, EBB_KERNEL_CROSS_ENTROPY_JOIN, &parts->view, targets, losses, logsumexps, error);
}

static gboolean
vocab_parallel_cross_entropy_run (EbbOpCall *call,
                                  GError **error)
{
  return ebb_logits_loss_run (call, join_losses, error);
}

static gboolean
vocab_parallel_linear_cross_entropy_run (EbbOpCall *call,
                                         GError **error)
{
  return ebb_linear_loss_run (call, join_losses, error);
}

/* The gradients that are computed with the loss are local shards. */
static const EbbOp op_logits_loss = { "vocab_parallel_cross_entropy",
                                      EBB_OP_LOSS,
                                      EBB_KERNEL_CROSS_ENTROPY,
                                      vocab_parallel_cross_entropy_run,
                                      ebb_logits_loss_backward,
                                      .shard = EBB_OP_GIVES_SHARD };
static const EbbOp op_linear_loss = { "vocab_parallel_linear_cross_entropy",
                                      EBB_OP_LOSS,
                                      EBB_KERNEL_CROSS_ENTROPY,
                                      vocab_parallel_linear_cross_entropy_run,
                                      ebb_linear_loss_backward,
                                      .shard = EBB_OP_GIVES_SHARD };

/* Sets which classes are this rank's: as many as @operand, an input, has. */
static gboolean
take_classes (EbbOpCall *call,
              EbbProcessGroup *group,
              const char *operand_name,
              EbbTensor *operand,
              int dim,
              gint64 n_classes,
              GError **error)
{
  const guint size = ebb_process_group_get_size (group), rank = ebb_process_group_get_rank (group);
  gint64 count;

  call->owner = G_OBJECT (group);
  if (n_classes < (gint64) size)
    return ebb_op_fail (call, error, EBB_ERROR_INVALID_ARGUMENT,
                        "%" G_GINT64_FORMAT " classes can't be divided among %u ranks; each must have one at least",
                        n_classes, size);
  ebb_parallel_get_part (n_classes, size, rank, &call->params.xent.first, &count);
  if (operand->view.n_dims == 0 || ebb_tensor_get_dim (operand, dim) != count)
    {
      g_autofree char *shape = ebb_tensor_shape_to_string (operand);

      return ebb_op_fail (call, error, EBB_ERROR_SHAPE,
                          "%s is %s; rank %u of %u has %" G_GINT64_FORMAT " of %" G_GINT64_FORMAT " classes",
                          operand_name, shape, rank, size, count, n_classes);
    }
  return TRUE;
}

static EbbTensor *
finish (EbbOpCall *call,
        GError **error)
{
  EbbTensor *loss = ebb_op_finish1 (call, error);

  if (loss != NULL)
    loss->is_local_shard = FALSE;
  return loss;
}

/**
 * ebb_vocab_parallel_cross_entropy:
 * @logits: (nullable): a tensor [.., n], f32 or bf16: scores for this rank's shard of the classes
 * @targets: (nullable): a tensor [..] or [.., 1] of i64 or i32, the same on all ranks: the right class of each, in
 *   [0, @n_classes)
 * @n_classes: the classes of all ranks, of which the first @n_classes % ranks ranks have one more than the others, in
 *   the order of the ranks
 * @ignore_index: a target that does not count
 * @reduction: how the losses become one
 * @group: (nullable): the ranks; %NULL for the default group
 * @error: return location for an error
 *
 * Computes ebb_cross_entropy_full() of logits whose classes are sharded over ranks, without gathering them: the ranks
 * exchange three numbers a row, in one call. The loss has the same bits on all of them. The gradient of @logits is that
 * of this rank's shard, and takes no call. Backward saves as much as this rank's shard.
 *
 * Returns: (transfer full) (nullable): f32, the same on all ranks: one number [], or [..] without reduction; %NULL with
 *   %EBB_ERROR_SHAPE, %EBB_ERROR_DTYPE, %EBB_ERROR_INDEX if a target is out of range, %EBB_ERROR_INVALID_ARGUMENT if
 *   there are fewer classes than ranks, %EBB_ERROR_PROCESS_GROUP if the ranks didn't come together
 */
EbbTensor *
ebb_vocab_parallel_cross_entropy (EbbTensor *logits,
                                  EbbTensor *targets,
                                  gint64 n_classes,
                                  gint64 ignore_index,
                                  EbbReduction reduction,
                                  EbbProcessGroup *group,
                                  GError **error)
{
  EbbOpCall call;

  group = group != NULL ? group : ebb_process_group_get_default ();
  if (!ebb_op_begin (&call, &op_logits_loss, error, 2, logits, targets)
      || !take_classes (&call, group, "logits", logits, -1, n_classes, error))
    return NULL;
  if (ebb_process_group_get_size (group) == 1)
    return ebb_cross_entropy_full (logits, targets, ignore_index, 0.0, reduction, error);
  if (!ebb_logits_loss_describe (&call, n_classes, ignore_index, 0.0, reduction, error))
    return NULL;
  return finish (&call, error);
}

/**
 * ebb_vocab_parallel_linear_cross_entropy:
 * @x: (nullable): a tensor [.., C], f32 or bf16, the same on all ranks
 * @weight: (nullable): a matrix [n, C]: the rows of the last layer's weight for this rank's shard of the classes
 * @bias: (nullable): a vector [n], f32 or bf16; %NULL for none
 * @targets: (nullable): a tensor [..] or [.., 1] of i64 or i32, the same on all ranks: the right class of each, in
 *   [0, @n_classes)
 * @n_classes: the classes of all ranks, of which the first @n_classes % ranks ranks have one more than the others, in
 *   the order of the ranks
 * @ignore_index: a target that does not count
 * @reduction: how the losses become one
 * @group: (nullable): the ranks; %NULL for the default group
 * @error: return location for an error
 *
 * Computes ebb_vocab_parallel_cross_entropy() of ebb_linear() of @x, @weight and @bias without ever holding all
 * logits of this rank's shard: at most 64 MiB of them, or 16 rows if these are more, as
 * ebb_fused_linear_cross_entropy() does. The ranks make one call for each such chunk of rows; there are equally many on
 * all ranks. With reduction to a mean or a sum gradients are computed along with the loss, and backward keeps them
 * alone.
 *
 * The gradient of @x is this rank's summand: that of all ranks is their sum, as ebb_parallel_copy() or a summing
 * ebb_parallel_gather() before it gives.
 *
 * Returns: (transfer full) (nullable): f32, the same on all ranks: one number [], or [..] without reduction; %NULL with
 *   %EBB_ERROR_SHAPE, %EBB_ERROR_DTYPE, %EBB_ERROR_INDEX if a target is out of range, %EBB_ERROR_INVALID_ARGUMENT if
 *   there are fewer classes than ranks, %EBB_ERROR_PROCESS_GROUP if the ranks didn't come together
 */
EbbTensor *
ebb_vocab_parallel_linear_cross_entropy (EbbTensor *x,
                                         EbbTensor *weight,
                                         EbbTensor *bias,
                                         EbbTensor *targets,
                                         gint64 n_classes,
                                         gint64 ignore_index,
                                         EbbReduction reduction,
                                         EbbProcessGroup *group,
                                         GError **error)
{
  return ebb_vocab_parallel_linear_cross_entropy_full (x, weight, bias, targets, n_classes, ignore_index, 0.0,
                                                       reduction, group, error);
}

/**
 * ebb_vocab_parallel_linear_cross_entropy_full:
 * @x: (nullable): a tensor [.., C], f32 or bf16, the same on all ranks
 * @weight: (nullable): a matrix [n, C]: the rows of the last layer's weight for this rank's shard of the classes
 * @bias: (nullable): a vector [n], f32 or bf16; %NULL for none
 * @targets: (nullable): a tensor [..] or [.., 1] of i64 or i32, the same on all ranks: the right class of each, in
 *   [0, @n_classes)
 * @n_classes: the classes of all ranks
 * @ignore_index: a target that does not count
 * @softcap: the bound of ebb_soft_cap(), which is applied to the logits; 0 for none
 * @reduction: how the losses become one
 * @group: (nullable): the ranks; %NULL for the default group
 * @error: return location for an error
 *
 * The same as ebb_vocab_parallel_linear_cross_entropy(), with all its choices.
 *
 * Returns: (transfer full) (nullable): f32, the same on all ranks: one number [], or [..] without reduction; %NULL with
 *   @error set
 */
EbbTensor *
ebb_vocab_parallel_linear_cross_entropy_full (EbbTensor *x,
                                              EbbTensor *weight,
                                              EbbTensor *bias,
                                              EbbTensor *targets,
                                              gint64 n_classes,
                                              gint64 ignore_index,
                                              double softcap,
                                              EbbReduction reduction,
                                              EbbProcessGroup *group,
                                              GError **error)
{
  EbbOpCall call;
  guint size;

  group = group != NULL ? group : ebb_process_group_get_default ();
  if (!ebb_op_begin (&call, &op_linear_loss, error, 3, x, weight, targets)
      || !ebb_op_add_optional (&call, bias, error) || !ebb_loss_set_softcap (&call, softcap, error)
      || !take_classes (&call, group, "weight", weight, 0, n_classes, error))
    return NULL;
  size = ebb_process_group_get_size (group);
  if (size == 1)
    return ebb_fused_linear_cross_entropy_full (x, weight, bias, targets, ignore_index, 0.0, softcap, reduction, error);
  /* By the largest part, so that all ranks have the same chunks. */
  if (!ebb_linear_loss_describe (&call, n_classes, (n_classes + size - 1) / size, ignore_index, 0.0, reduction, error))
    return NULL;
  return finish (&call, error);
}
