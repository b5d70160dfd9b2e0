/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* A linear layer whose outputs are sharded. */
#include "dist/tensor-parallel/column.h"

#include "dist/tensor-parallel/layer-private.h"
#include "dist/tensor-parallel/ops-private.h"
#include "dist/tensor-parallel/vocab-loss.h"
#include "nn/layers/layer-private.h"
#include "tensor/ops/pointwise.h"
#include "tensor/tensor-private.h"
#include "tensor/util/property-private.h"

static void output_layer_interface_init (EbbOutputLayerInterface *interface);

G_DEFINE_TYPE_WITH_CODE (EbbColumnParallelLinear,
                         ebb_column_parallel_linear,
                         EBB_TYPE_LINEAR,
                         G_IMPLEMENT_INTERFACE (EBB_TYPE_OUTPUT_LAYER, output_layer_interface_init))

/**
 * ebb_column_parallel_linear_new:
 * @in_features: the size of the input's last dimension
 * @out_features: the size of the full output's last dimension, at least the number of ranks
 * @bias: whether a bias is added
 * @gather_output: whether all ranks get the full result, rather than each its shard
 * @group: (nullable): the ranks; %NULL for the default group
 * @error: return location for an error
 *
 * Makes this rank's shard of a linear layer. The full layer is drawn from the thread's default generator, as by
 * ebb_linear_new(), and then sharded: ranks whose generators have the same state have shards of one layer, and the
 * numbers don't depend on how many ranks there are.
 *
 * Returns: (transfer full) (type EbbColumnParallelLinear) (nullable): the layer, or %NULL with @error set
 */
EbbModule *
ebb_column_parallel_linear_new (int in_features,
                                int out_features,
                                gboolean bias,
                                gboolean gather_output,
                                EbbProcessGroup *group,
                                GError **error)
{
  return ebb_layer_new (EBB_TYPE_COLUMN_PARALLEL_LINEAR, error, "in-features", in_features, "out-features",
                        out_features, "bias", bias, "gather-output", gather_output, "group", group, NULL);
}

static gboolean
ebb_column_parallel_linear_build (EbbModule *module, GError **error)
{
  return ebb_parallel_layer_build (&EBB_COLUMN_PARALLEL_LINEAR (module)->layer, module,
                                   ebb_column_parallel_linear_parent_class, 0, error);
}

static EbbTensor *
ebb_column_parallel_linear_logits (EbbOutputLayer *module, EbbTensor *x, EbbTensor *bias, GError **error)
{
  EbbColumnParallelLinear *self = (EbbColumnParallelLinear *) module;
  g_autoptr (EbbTensor) entered = ebb_parallel_layer_enter (&self->layer, x, error);
  g_autoptr (EbbTensor) part = ebb_linear_multiply (&self->parent_instance, entered, bias, error);

  if (!self->gather_output || part == NULL)
    return g_steal_pointer (&part);
  return ebb_parallel_gather_sized (part, -1, self->parent_instance.out_features, FALSE, self->layer.group, error);
}

/* Models don't quantise the layer that gives logits, so what makes all of them is not worth more. */
static EbbTensor *
quantized_loss (EbbColumnParallelLinear *self,
                EbbTensor *x,
                EbbTensor *bias,
                EbbTensor *targets,
                double softcap,
                GError **error)
{
  g_autoptr (EbbTensor) logits = ebb_linear_multiply (&self->parent_instance, x, bias, error);
  g_autoptr (EbbTensor) capped = NULL;

  if (logits != NULL)
    capped = softcap != 0 ? ebb_soft_cap (logits, softcap, error) : ebb_tensor_ref (logits);
  return capped != NULL
             ? ebb_vocab_parallel_cross_entropy (capped, targets, self->parent_instance.out_features,
                                                 EBB_IGNORED_TARGET, EBB_REDUCTION_MEAN, self->layer.group, error)
             : NULL;
}

static EbbTensor *
ebb_column_parallel_linear_loss (EbbOutputLayer *module,
                                 EbbTensor *x,
                                 EbbTensor *bias,
                                 EbbTensor *targets,
                                 double softcap,
                                 GError **error)
{
  EbbColumnParallelLinear *self = (EbbColumnParallelLinear *) module;
  g_autoptr (EbbTensor) entered = ebb_parallel_layer_enter (&self->layer, x, error);

  if (ebb_linear_is_quantized (&self->parent_instance))
    return quantized_loss (self, entered, bias, targets, softcap, error);
  return ebb_vocab_parallel_linear_cross_entropy_full (entered, self->parent_instance.weight, bias, targets,
                                                       self->parent_instance.out_features, EBB_IGNORED_TARGET, softcap,
                                                       EBB_REDUCTION_MEAN, self->layer.group, error);
}

/* The shard of the bias goes with that of the result. */
static gboolean
ebb_column_parallel_linear_lends_bias (EbbOutputLayer *module)
{
  EbbColumnParallelLinear *self = (EbbColumnParallelLinear *) module;
  EbbTensor *bias = self->parent_instance.bias;

  return !self->gather_output && bias != NULL && bias->partition != NULL;
}

static void
output_layer_interface_init (EbbOutputLayerInterface *interface)
{
  interface->logits = ebb_column_parallel_linear_logits;
  interface->loss = ebb_column_parallel_linear_loss;
  interface->lends_bias = ebb_column_parallel_linear_lends_bias;
}

static EbbTensor *
ebb_column_parallel_linear_forward1 (EbbModule *module, EbbTensor *input, GError **error)
{
  return ebb_column_parallel_linear_logits ((EbbOutputLayer *) module, input, ((EbbLinear *) module)->bias, error);
}

static void
ebb_column_parallel_linear_finalize (GObject *object)
{
  ebb_parallel_layer_clear (&EBB_COLUMN_PARALLEL_LINEAR (object)->layer);
  G_OBJECT_CLASS (ebb_column_parallel_linear_parent_class)->finalize (object);
}

static void
ebb_column_parallel_linear_class_init (EbbColumnParallelLinearClass *klass)
{
  const GParamFlags flags = G_PARAM_READWRITE | G_PARAM_CONSTRUCT_ONLY | G_PARAM_STATIC_STRINGS;
  GObjectClass *object_class = G_OBJECT_CLASS (klass);
  EbbModuleClass *module_class = EBB_MODULE_CLASS (klass);

  object_class->get_property = ebb_property_get_field;
  object_class->set_property = ebb_property_set_field;
  object_class->finalize = ebb_column_parallel_linear_finalize;
  module_class->build = ebb_column_parallel_linear_build;
  module_class->forward1 = ebb_column_parallel_linear_forward1;

  /**
   * EbbColumnParallelLinear:gather-output:
   *
   * Whether all ranks get the full result.
   */
  g_object_class_install_property (
      object_class, offsetof (EbbColumnParallelLinear, gather_output),
      g_param_spec_boolean ("gather-output", NULL, "Whether all ranks get the full result", FALSE, flags));
  /**
   * EbbColumnParallelLinear:group:
   *
   * The ranks; the default group if none is given.
   */
  g_object_class_install_property (object_class, offsetof (EbbColumnParallelLinear, layer.group),
                                   g_param_spec_object ("group", NULL, "The ranks", EBB_TYPE_PROCESS_GROUP, flags));
}

static void
ebb_column_parallel_linear_init (EbbColumnParallelLinear *self)
{
}
