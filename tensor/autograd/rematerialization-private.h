/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "tensor/autograd/autograd-private.h"

/* Results that backward recomputes with one cheap kernel, bit for bit, from tensors that it keeps anyway and from small
 * parameters: a GELU's, a normalisation's, a rotation's after that. Such a result carries its rematerialization, which
 * says how, while it is alive and its node has not been released. A node that would save the result saves the operands
 * of its rematerialization instead, through the same hooks, and rematerializes the result when backward needs it. */

G_BEGIN_DECLS

/* Which results of a checkpointed forward were rematerialized, one after another. Whether a rematerialization is valid
 * may depend on something that a recompute does not repeat, such as a look at the data, so a recompute repeats these
 * decisions. */
struct _EbbRematerializationLog
{
  GByteArray *decisions;
  guint next; /* in the recompute */
  gboolean repeats;
  guint64 (*get_checksum) (EbbTensor *tensor); /* by which results are compared that backward makes; NULL: none are */
};

/* Gives the output of @call, which has run, the rematerialization that @call describes. */
void ebb_rematerialization_attach (EbbOpCall *call);
/* Invalidates it, frees its operands and drops the reference of its node. */
void ebb_rematerialization_release (EbbRematerialization *self);
/* Drops the reference of a tensor that carries it, and releases it with the last one. */
void ebb_rematerialization_drop (EbbRematerialization *self);
/* Lets @view, which has the same elements of the same storage, with its dimensions in any order, be rematerialized as
 * @tensor is. */
void ebb_tensor_share_rematerialization (EbbTensor *view,
                                         EbbTensor *tensor);
/* Takes the rematerialization from @tensor if it was made in the checkpointed forward that has the number @frame. */
void ebb_tensor_drop_rematerialization (EbbTensor *tensor,
                                        guint64 frame);

/* Saves what a node holds in place of @tensor, which is @made or a cast of it. Sets @self to NULL if @made has no
 * rematerialization, or a change in place has made it invalid. FALSE with @error if an operand can't be saved. */
gboolean ebb_rematerialized_save (EbbRematerialized **self,
                                  const EbbOp *op,
                                  EbbTensor *tensor,
                                  EbbTensor *made,
                                  GError **error);
EbbTensor *ebb_rematerialized_make (EbbRematerialized *self,
                                    const EbbOp *op,
                                    GError **error);
void ebb_rematerialized_free (EbbRematerialized *self);

G_END_DECLS
