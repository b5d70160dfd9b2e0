/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "nn/args-private.h"
#include "nn/layers/layer-private.h"
#include "tensor/ops/indexing.h"
#include "tensor/ops/product.h"

/**
 * EbbEmbedding:
 *
 * Rows of a table: indices `[...]` of i64 or i32 give `[..., embedding-dim]`. Parameter: `weight`
 * `[num-embeddings, embedding-dim]`, normal with standard deviation 1 at first.
 */
static void output_layer_interface_init (EbbOutputLayerInterface *interface);

G_DEFINE_TYPE_WITH_CODE (EbbEmbedding,
                         ebb_embedding,
                         EBB_TYPE_MODULE,
                         G_IMPLEMENT_INTERFACE (EBB_TYPE_OUTPUT_LAYER, output_layer_interface_init))

/**
 * EbbEmbedding:num-embeddings:
 *
 * The number of rows.
 */
/**
 * EbbEmbedding:embedding-dim:
 *
 * The size of a row.
 */
static const EbbLayerProperty properties[] = {
  { "num-embeddings", "Number of rows", EBB_LAYER_INT, offsetof (EbbEmbedding, num_embeddings), 0 },
  { "embedding-dim", "Size of a row", EBB_LAYER_INT, offsetof (EbbEmbedding, embedding_dim), 0 },
};

static gboolean
ebb_embedding_build (EbbModule *module, GError **error)
{
  EbbEmbedding *self = EBB_EMBEDDING (module);
  gint64 shape[] = { self->num_embeddings, self->embedding_dim };

  return ebb_layer_check_positive (module, "num-embeddings", self->num_embeddings, error)
         && ebb_layer_check_positive (module, "embedding-dim", self->embedding_dim, error)
         && ebb_layer_add_parameter (module, "weight", EBB_INIT_NORMAL, 1, shape, 2, error);
}

static EbbTensor *
ebb_embedding_forward1 (EbbModule *module, EbbTensor *input, GError **error)
{
  return ebb_embedding (EBB_EMBEDDING (module)->weight, input, error);
}

/* Of a model whose output shares the weight. */
static EbbTensor *
ebb_embedding_logits (EbbOutputLayer *layer, EbbTensor *x, EbbTensor *bias, GError **error)
{
  return ebb_linear (x, ((EbbEmbedding *) layer)->weight, bias, error);
}

static EbbTensor *
ebb_embedding_loss (EbbOutputLayer *layer,
                    EbbTensor *x,
                    EbbTensor *bias,
                    EbbTensor *targets,
                    double softcap,
                    GError **error)
{
  return ebb_output_layer_full_loss (x, ((EbbEmbedding *) layer)->weight, bias, targets, softcap, error);
}

/* With "output" it gives the product of "input" and the weight, as ebb_output_layer_logits () does, or with "targets"
 * the loss of this product as logits. */
static EbbArgs *
ebb_embedding_forward (EbbModule *module, EbbArgs *args, GError **error)
{
  EbbOutputLayerInterface *interface = EBB_OUTPUT_LAYER_GET_IFACE (module);
  EbbTensor *input, *bias, *targets;
  gboolean is_output;
  double softcap = 0;
  const EbbParameterSpec specs[] = { { "input", EBB_PARAMETER_TENSOR, &input },
                                     { "output", EBB_PARAMETER_FLAG, &is_output },
                                     { "bias", EBB_PARAMETER_OPTIONAL_TENSOR, &bias },
                                     { "targets", EBB_PARAMETER_OPTIONAL_TENSOR, &targets },
                                     { "softcap", EBB_PARAMETER_DOUBLE, &softcap } };
  g_autoptr (EbbTensor) output = NULL;

  if (ebb_args_find (args, "output") < 0)
    return EBB_MODULE_CLASS (ebb_embedding_parent_class)->forward (module, args, error);
  if (!ebb_args_parse (args, ebb_module_get_type_name (module), specs, G_N_ELEMENTS (specs), error))
    return NULL;
  output = targets != NULL ? interface->loss ((EbbOutputLayer *) module, input, bias, targets, softcap, error)
                           : interface->logits ((EbbOutputLayer *) module, input, bias, error);
  return output != NULL ? ebb_args_new_for_tensor (output) : NULL;
}

static void
output_layer_interface_init (EbbOutputLayerInterface *interface)
{
  interface->logits = ebb_embedding_logits;
  interface->loss = ebb_embedding_loss;
}

static void
ebb_embedding_class_init (EbbEmbeddingClass *klass)
{
  EbbModuleClass *module_class = EBB_MODULE_CLASS (klass);

  module_class->build = ebb_embedding_build;
  module_class->forward = ebb_embedding_forward;
  module_class->forward1 = ebb_embedding_forward1;
  ebb_layer_class_install_properties (G_OBJECT_CLASS (klass), properties, G_N_ELEMENTS (properties));
}

static void
ebb_embedding_init (EbbEmbedding *self)
{
  ebb_module_bind_parameter (EBB_MODULE (self), "weight", &self->weight);
}

/**
 * ebb_embedding_new:
 * @num_embeddings: the number of rows
 * @embedding_dim: the size of a row
 * @error: return location for an error
 *
 * Makes an embedding, drawn from the thread's default generator.
 *
 * Returns: (transfer full) (type EbbEmbedding) (nullable): the layer, or %NULL with @error set
 */
EbbModule *
ebb_embedding_new (int num_embeddings, int embedding_dim, GError **error)
{
  return ebb_layer_new (EBB_TYPE_EMBEDDING, error, "num-embeddings", num_embeddings, "embedding-dim", embedding_dim,
                        NULL);
}
