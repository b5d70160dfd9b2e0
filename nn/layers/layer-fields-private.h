/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "nn/layers/layer-norm.h"
#include "nn/layers/linear.h"
#include "nn/layers/embedding.h"
#include "nn/module-private.h"
#include "nn/layers/output-layer-private.h"

/* The fields of layers whose parameters a fused form reads, and of those that ranks divide among them (dist/). The
 * tensors are bound to the registered parameters. */

G_BEGIN_DECLS

struct _EbbLinear
{
  EbbModule parent_instance;

  int in_features;
  int out_features;
  gboolean has_bias;
  EbbTensor *weight; /* [out, in] */
  EbbTensor *bias;   /* [out] or NULL */
};

struct _EbbEmbedding
{
  EbbModule parent_instance;

  int num_embeddings;
  int embedding_dim;
  EbbTensor *weight; /* [num, dim] */
};

struct _EbbLayerNorm
{
  EbbModule parent_instance;

  int width;
  double eps;
  gboolean has_bias;
  EbbTensor *weight; /* [width] */
  EbbTensor *bias;   /* [width] or NULL */
};

/* Whether what comes next may add the bias itself: nobody looks at the result, and the whole bias is here, not one
 * rank's part of it that is whole inside the layer's own call alone. */
gboolean ebb_linear_lends_bias (EbbModule *module);
/* Then it is left out here. */
EbbTensor *ebb_linear_call_without_bias (EbbModule *module,
                                         EbbTensor *input,
                                         GError **error);
/* The mean cross entropy of the layer's result as logits, which are never all held. */
EbbTensor *ebb_linear_call_for_loss (EbbModule *module,
                                     EbbTensor *input,
                                     EbbTensor *targets,
                                     GError **error);
/* *sum = residual + dropout (x), and returns its normalisation. */
EbbTensor *ebb_layer_norm_call_after_residual (EbbModule *module,
                                               EbbTensor *x,
                                               EbbTensor *residual,
                                               double dropout,
                                               gboolean training,
                                               EbbTensor **sum,
                                               GError **error);

G_END_DECLS
