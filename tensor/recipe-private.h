/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "tensor/autograd-private.h"

/* A tensor that one cheap kernel makes again, bit for bit, from tensors that backward keeps anyway (a GELU's result, a
 * normalisation's) need not be kept itself. It carries its recipe while it is alive; a node that would keep the tensor
 * keeps what the recipe takes instead, through the same door, and has the tensor made again when it needs it. */

G_BEGIN_DECLS

/* Hangs the recipe that @call describes on its output; the call has run. */
void ebb_recipe_attach (EbbOpCall *call);
void ebb_recipe_free (EbbRecipe *recipe);
void ebb_tensor_drop_recipe (EbbTensor *tensor);

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
