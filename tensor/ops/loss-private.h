/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "tensor/autograd/op-private.h"
#include "tensor/ops/loss.h"

/* Shared by the cross entropies. Views are of contiguous memory: logits [rows, n], targets [rows], losses f32 [rows],
 * logsumexps f32 [rows, 2], the sum of two numbers each. */

G_BEGIN_DECLS

/* Checks targets (input @index) against the leading dimensions of @rows and the number of classes, and the rest. */
gboolean ebb_loss_check (EbbOpCall *call,
                         guint index,
                         EbbTensor *rows,
                         gint64 n_classes,
                         gint64 ignore_index,
                         double label_smoothing,
                         EbbReduction reduction,
                         GError **error);
/* Bounds the logits, unless @softcap is 0. FALSE: error, call cleared. */
gboolean ebb_loss_set_softcap (EbbOpCall *call,
                               double softcap,
                               GError **error);
/* Describes the loss: one f32 for all, or one for each row of input 0, [..]. */
void ebb_loss_add_output (EbbOpCall *call,
                          EbbReduction reduction);
/* Describes what the loss keeps of each row: f32 [.., 2], whose sum is the logsumexp. */
void ebb_loss_add_logsumexp (EbbOpCall *call);
/* New memory for one f32 a target. */
EbbTensor *ebb_loss_new_rows (EbbTensor *targets,
                              GError **error);
/* The elements of @tensor as one dimension. */
void ebb_loss_flatten (EbbView *view,
                       EbbTensor *tensor);

/* Gives the losses and logsumexps of logits: of the call's, or of a chunk of them. */
typedef gboolean (*EbbLossFunc) (EbbOpCall *call,
                                 const EbbView *logits,
                                 const EbbView *targets,
                                 EbbView *losses,
                                 EbbView *logsumexps,
                                 GError **error);
/* From all classes at once. */
gboolean ebb_loss_compute (EbbOpCall *call,
                           const EbbView *logits,
                           const EbbView *targets,
                           EbbView *losses,
                           EbbView *logsumexps,
                           GError **error);
/* @grad is f32 [rows], with stride 0 where all rows have one gradient. */
gboolean ebb_loss_launch_grad (EbbDevice *device,
                               const char *op_name,
                               const EbbKernelParams *params,
                               const EbbView *grad,
                               const EbbView *logits,
                               const EbbView *targets,
                               const EbbView *logsumexp,
                               EbbView *logits_grad,
                               GError **error);

/* How many targets are not ignored, as one f32 on the targets' device: no host waits for it. */
EbbTensor *ebb_loss_count (EbbTensor *targets,
                           gint64 ignore_index,
                           GError **error);
/* Sums @rows into @loss, divided by @count if that is given. */
gboolean ebb_loss_reduce (EbbTensor *rows,
                          EbbTensor *count,
                          EbbTensor *loss,
                          GError **error);

/* -- the op on logits, for all classes and for those of one rank: inputs logits [.., n] and targets [..] or [.., 1] */

/* Checks the operands of a call that has begun, describes its outputs and what backward needs. Targets are of
 * @n_classes. FALSE: error, call cleared. */
gboolean ebb_logits_loss_describe (EbbOpCall *call,
                                   gint64 n_classes,
                                   gint64 ignore_index,
                                   double label_smoothing,
                                   EbbReduction reduction,
                                   GError **error);
gboolean ebb_logits_loss_run (EbbOpCall *call,
                              EbbLossFunc func,
                              GError **error);
gboolean ebb_logits_loss_backward (EbbBackward *ctx,
                                   GError **error);

/* -- the same with the product before it, whose logits exist for a chunk of rows at a time: inputs x [.., C], weight
 * [n, C], targets [..] or [.., 1] and, optional, bias [n] */

/* As above. Rows of a chunk are as many as have room for logits of @n_chunk_classes. */
gboolean ebb_linear_loss_describe (EbbOpCall *call,
                                   gint64 n_classes,
                                   gint64 n_chunk_classes,
                                   gint64 ignore_index,
                                   double label_smoothing,
                                   EbbReduction reduction,
                                   GError **error);
/* @func is called once for each chunk, in their order. */
gboolean ebb_linear_loss_run (EbbOpCall *call,
                              EbbLossFunc func,
                              GError **error);
gboolean ebb_linear_loss_backward (EbbBackward *ctx,
                                   GError **error);

G_END_DECLS
