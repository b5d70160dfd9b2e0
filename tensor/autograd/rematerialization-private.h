/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "tensor/autograd/autograd-private.h"

/* A tensor that one cheap kernel makes again, bit for bit, from tensors that backward keeps anyway, and small
 * parameters (a GELU's result, a normalisation's), need not be kept itself. It carries its recipe while it is alive and
 * its node has not been let go; a node that would keep the tensor keeps what the recipe takes instead, through the same
 * door, and has the tensor made again when it needs it. */

G_BEGIN_DECLS

/* Which results were derived in a checkpointed forward, one after another. Whether a recipe holds may depend on what a
 * recompute does not repeat (a look at the data, say), so that a recompute does as it was done. */
struct _EbbRecipeLog
{
  GByteArray *derived;
  guint next; /* in the recompute */
  gboolean repeats;
};

/* Hangs the recipe that @call describes on its output; the call has run. */
void ebb_recipe_attach (EbbOpCall *call);
/* Empties the recipe, which then applies no more, and drops the reference of its node. */
void ebb_recipe_give_up (EbbRecipe *recipe);
/* Drops the reference of a tensor that carries it; with the last one it is empty. */
void ebb_recipe_put_down (EbbRecipe *recipe);
/* @view, which sees the same elements of the same storage in the same order, is made again as @tensor is. */
void ebb_tensor_share_recipe (EbbTensor *view,
                              EbbTensor *tensor);
/* Takes the recipe from @tensor if it was made in the checkpointed forward that has the number @frame. */
void ebb_tensor_drop_recipe (EbbTensor *tensor,
                             guint64 frame);

/* What a node holds in place of @tensor, which is @made, or a cast of it. NULL in @derived: it has no recipe, or a
 * change in place has made it untrue. FALSE with @error if an operand can't be kept. */
gboolean ebb_derived_save (EbbDerived **derived,
                           const EbbOp *op,
                           EbbTensor *tensor,
                           EbbTensor *made,
                           GError **error);
EbbTensor *ebb_derived_make (EbbDerived *derived,
                             const EbbOp *op,
                             GError **error);
void ebb_derived_free (EbbDerived *derived);

G_END_DECLS
