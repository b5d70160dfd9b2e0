/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "dist/tensor-parallel/ops.h"
#include "tensor/partition-private.h"

/* Functions for parallel layers in addition to the public ops. */

G_BEGIN_DECLS

/* Shard @index of @n elements in @n_parts: the first (n % n_parts) shards have one more. */
void ebb_parallel_get_part (gint64 n,
                            guint n_parts,
                            guint index,
                            gint64 *first,
                            gint64 *count);
/* ebb_parallel_gather () to a known number of elements along @dim, so that the ranks need not exchange it. */
EbbTensor *ebb_parallel_gather_sized (EbbTensor *x,
                                      int dim,
                                      gint64 n,
                                      gboolean sum_gradient,
                                      EbbProcessGroup *group,
                                      GError **error);
/* ebb_parallel_reduce () of a tensor that only the caller holds and reads no more: the sum lies in its memory.
 * @purpose: appears in errors and is compared between the ranks; NULL: the op's name. */
EbbTensor *ebb_parallel_reduce_over (EbbTensor *x,
                                     EbbProcessGroup *group,
                                     const char *purpose,
                                     GError **error);
/* ebb_parallel_copy () of several tensors (NULL: left out, gives NULL), whose gradients are summed in one call: to
 * copies[0 .. n), owned by the caller. FALSE: none of them. */
gboolean ebb_parallel_copy_all (EbbTensor **tensors,
                                guint n_tensors,
                                EbbTensor **copies,
                                EbbProcessGroup *group,
                                GError **error);

/* -- without a graph: tensors to tensors, in backward and outside of ops ------------------------------------------- */

/* Sums contiguous tensors; @purpose appears in errors and is compared between the ranks. */
gboolean ebb_parallel_sum (EbbTensor **tensors,
                           guint n_tensors,
                           EbbProcessGroup *group,
                           const char *purpose,
                           GError **error);
/* An all_gather of @shard to @full, or a reduce_scatter (sum) of @full to @shard. @full has the shards of all ranks
 * along
 * @dim by ebb_parallel_get_part (). */
gboolean ebb_parallel_move (EbbCollective which,
                            EbbTensor *full,
                            EbbTensor *shard,
                            int dim,
                            EbbProcessGroup *group,
                            const char *purpose,
                            GError **error);
/* This rank's shard of @full along @dim, a view. */
EbbTensor *ebb_parallel_view_part (EbbTensor *full,
                                   int dim,
                                   EbbProcessGroup *group);

G_END_DECLS
