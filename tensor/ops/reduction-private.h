/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "tensor/autograd/op-support-private.h"

G_BEGIN_DECLS

/* Sets params.reduce.dims from @dims (none: all), the result's @shape, and for the backward pass extra.i: the shape of
 * input 0, at EBB_MAX_DIMS how many dimensions that is, then how many elements make one. FALSE: error, call cleared. */
gboolean ebb_op_reduce_dims (EbbOpCall *call,
                             const int *dims,
                             guint n_dims,
                             gboolean keep_dims,
                             gint64 *shape,
                             guint *n_kept,
                             GError **error);
/* A tensor of the result's shape as it is seen in that of the input, repeated; takes the caller's reference to it. */
EbbTensor *ebb_backward_unreduce (EbbBackward *ctx,
                                  EbbTensor *result);

G_END_DECLS
