/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "tensor/op-private.h"
#include "tensor/ops/loss.h"

/* What the two cross entropies share. Views are of contiguous memory: logits [rows, n], targets [rows], f32 [rows]. */

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
/* Describes the loss: one f32 for all, or one for each target. */
void ebb_loss_add_output (EbbOpCall *call,
                          guint targets,
                          EbbReduction reduction);
/* The elements of @tensor as one dimension. */
void ebb_loss_flatten (EbbView *view,
                       EbbTensor *tensor);

gboolean ebb_loss_launch (EbbDevice *device,
                          const EbbKernelParams *params,
                          const EbbView *logits,
                          const EbbView *targets,
                          EbbView *loss,
                          EbbView *logsumexp,
                          GError **error);
/* @grad is f32 [rows], with stride 0 where all rows have one gradient. */
gboolean ebb_loss_launch_grad (EbbDevice *device,
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

G_END_DECLS
