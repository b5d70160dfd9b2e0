/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "nn/module-private.h"

/* A layer with a weight [classes, width] whose product with x [..., width] whoever calls it goes on with: adds another
 * bias, or takes the loss of it as logits, which are then never all held. EbbLinear and EbbEmbedding, whose weight a
 * model may share for its output, are such layers; so are the forms of them that ranks divide among them. */

G_BEGIN_DECLS

#define EBB_TYPE_OUTPUT_LAYER (ebb_output_layer_get_type ())
G_DECLARE_INTERFACE (EbbOutputLayer, ebb_output_layer, EBB, OUTPUT_LAYER, EbbModule)

struct _EbbOutputLayerInterface
{
  GTypeInterface parent_interface;

  /* x W^T + bias, [..., classes]; of the classes that this rank has where the layer's result is divided. @bias: for the
   * same classes as the weight that is here; NULL: none. */
  EbbTensor *(*logits) (EbbOutputLayer *self,
                        EbbTensor *x,
                        EbbTensor *bias,
                        GError **error);
  /* The mean cross entropy of all logits over the targets that are not EBB_IGNORED_TARGET, f32 []. */
  EbbTensor *(*loss) (EbbOutputLayer *self,
                      EbbTensor *x,
                      EbbTensor *bias,
                      EbbTensor *targets,
                      GError **error);
  /* Whether what comes next may add the layer's own bias in its place: it is there, and fits the result. NULL: no. */
  gboolean (*lends_bias) (EbbOutputLayer *self);
};

/* TRUE if @module's own type says how, and not one that it derives from with a forward of its own, and nobody looks at
 * what is called: then the functions of the interface may stand in for a call, or be asked for by one. */
gboolean ebb_output_layer_is_open (EbbModule *module);

/* Of a layer that shares its weight: not a call of @module. One that is no such layer is taken for its parameter
 * "weight". */
EbbTensor *ebb_output_layer_logits (EbbModule *module,
                                    EbbTensor *x,
                                    EbbTensor *bias,
                                    GError **error);
EbbTensor *ebb_output_layer_loss (EbbModule *module,
                                  EbbTensor *x,
                                  EbbTensor *bias,
                                  EbbTensor *targets,
                                  GError **error);

#define EBB_IGNORED_TARGET (-100)
/* The loss by a weight that is all here. */
EbbTensor *ebb_output_layer_whole_loss (EbbTensor *x,
                                        EbbTensor *weight,
                                        EbbTensor *bias,
                                        EbbTensor *targets,
                                        GError **error);

G_END_DECLS
