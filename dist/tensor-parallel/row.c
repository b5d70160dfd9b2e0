/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* A linear layer whose inputs are sharded. */
#include "dist/tensor-parallel/row.h"

#include "dist/tensor-parallel/layer-private.h"
#include "dist/tensor-parallel/ops-private.h"
#include "nn/layers/layer-private.h"
#include "tensor/ops/loss.h"
#include "tensor/ops/pointwise.h"
#include "tensor/util/property-private.h"

static void output_layer_interface_init (EbbOutputLayerInterface *interface);

G_DEFINE_TYPE_WITH_CODE (EbbRowParallelLinear,
                         ebb_row_parallel_linear,
                         EBB_TYPE_LINEAR,
                         G_IMPLEMENT_INTERFACE (EBB_TYPE_OUTPUT_LAYER, output_layer_interface_init))

/**
 * ebb_row_parallel_linear_new:
 * @in_features: the size of the full input's last dimension, at least the number of ranks
 * @out_features: the size of the output's last dimension
 * @bias: whether a bias is added
 * @input_is_parallel: whether each rank's input is its shard already, as an #EbbColumnParallelLinear returns it, rather
 *   than the full input
 * @group: (nullable): the ranks; %NULL for the default group
 * @error: return location for an error
 *
 * Makes this rank's shard of a linear layer. The full layer is drawn from the thread's default generator, as by
 * ebb_linear_new(), and then sharded: ranks whose generators have the same state have shards of one layer, and the
 * numbers don't depend on how many ranks there are.
 *
 * Returns: (transfer full) (type EbbRowParallelLinear) (nullable): the layer, or %NULL with @error set
 */
EbbModule *
ebb_row_parallel_linear_new (int in_features,
                             int out_features,
                             gboolean bias,
                             gboolean input_is_parallel,
                             EbbProcessGroup *group,
                             GError **error)
{
  return ebb_layer_new (EBB_TYPE_ROW_PARALLEL_LINEAR, error, "in-features", in_features, "out-features", out_features,
                        "bias", bias, "input-is-parallel", input_is_parallel, "group", group, NULL);
}

static gboolean
ebb_row_parallel_linear_build (EbbModule *module, GError **error)
{
  return ebb_parallel_layer_build (&EBB_ROW_PARALLEL_LINEAR (module)->layer, module,
                                   ebb_row_parallel_linear_parent_class, 1, error);
}

/* Each rank adds the bias to the full sum, or to its shard of the sequence. */
static EbbTensor *
add_bias (EbbRowParallelLinear *self, EbbTensor *sum, EbbTensor *bias, GError **error)
{
  g_autoptr (EbbTensor) shared = NULL;

  if (bias == NULL || sum == NULL)
    return sum != NULL ? ebb_tensor_ref (sum) : NULL;
  if (!ebb_parallel_model_is_sequence_sharded (self->layer.model))
    shared = ebb_tensor_ref (bias);
  else if (!ebb_parallel_copy_all (&bias, 1, &shared, self->layer.group, error))
    return NULL;
  if (shared->view.dtype != sum->view.dtype) /* as the product adds it under autocast */
    {
      EbbTensor *cast = ebb_cast (shared, sum->view.dtype, error);

      ebb_tensor_unref (shared);
      shared = cast;
    }
  return ebb_add (sum, shared, error);
}

static EbbTensor *
ebb_row_parallel_linear_logits (EbbOutputLayer *module, EbbTensor *x, EbbTensor *bias, GError **error)
{
  EbbRowParallelLinear *self = (EbbRowParallelLinear *) module;
  const gboolean is_part = self->input_is_parallel || self->layer.is_entered;
  g_autoptr (EbbTensor) part = x != NULL && !is_part ? ebb_parallel_scatter (x, -1, self->layer.group, error)
                               : x != NULL           ? ebb_tensor_ref (x)
                                                     : NULL;
  g_autoptr (EbbTensor) summand = ebb_linear_multiply (&self->parent_instance, part, NULL, error);
  g_autoptr (EbbTensor) sum = NULL;

  g_clear_pointer (&part, ebb_tensor_unref); /* what backward needs of it is kept there */
  sum = ebb_parallel_layer_leave (&self->layer, summand, error);
  g_clear_pointer (&summand, ebb_tensor_unref);
  return add_bias (self, sum, bias, error);
}

static EbbTensor *
ebb_row_parallel_linear_loss (EbbOutputLayer *module,
                              EbbTensor *x,
                              EbbTensor *bias,
                              EbbTensor *targets,
                              double softcap,
                              GError **error)
{
  g_autoptr (EbbTensor) logits = ebb_row_parallel_linear_logits (module, x, bias, error);

  if (softcap != 0 && logits != NULL)
    {
      EbbTensor *capped = ebb_soft_cap (logits, softcap, error);

      ebb_tensor_unref (logits);
      logits = capped;
    }
  return ebb_cross_entropy_full (logits, targets, EBB_IGNORED_TARGET, 0, EBB_REDUCTION_MEAN, error);
}

/* The bias comes after the sum: no one else adds it. */
static void
output_layer_interface_init (EbbOutputLayerInterface *interface)
{
  interface->logits = ebb_row_parallel_linear_logits;
  interface->loss = ebb_row_parallel_linear_loss;
  interface->lends_bias = NULL;
}

static EbbTensor *
ebb_row_parallel_linear_forward1 (EbbModule *module, EbbTensor *input, GError **error)
{
  return ebb_row_parallel_linear_logits ((EbbOutputLayer *) module, input, ((EbbLinear *) module)->bias, error);
}

static void
ebb_row_parallel_linear_finalize (GObject *object)
{
  ebb_parallel_layer_clear (&EBB_ROW_PARALLEL_LINEAR (object)->layer);
  G_OBJECT_CLASS (ebb_row_parallel_linear_parent_class)->finalize (object);
}

static void
ebb_row_parallel_linear_class_init (EbbRowParallelLinearClass *klass)
{
  const GParamFlags flags = G_PARAM_READWRITE | G_PARAM_CONSTRUCT_ONLY | G_PARAM_STATIC_STRINGS;
  GObjectClass *object_class = G_OBJECT_CLASS (klass);
  EbbModuleClass *module_class = EBB_MODULE_CLASS (klass);

  object_class->get_property = ebb_property_get_field;
  object_class->set_property = ebb_property_set_field;
  object_class->finalize = ebb_row_parallel_linear_finalize;
  module_class->build = ebb_row_parallel_linear_build;
  module_class->forward1 = ebb_row_parallel_linear_forward1;

  /**
   * EbbRowParallelLinear:input-is-parallel:
   *
   * Whether each rank's input is its shard already.
   */
  g_object_class_install_property (
      object_class, offsetof (EbbRowParallelLinear, input_is_parallel),
      g_param_spec_boolean ("input-is-parallel", NULL, "Whether each rank's input is its part already", TRUE, flags));
  /**
   * EbbRowParallelLinear:group:
   *
   * The ranks; the default group if none is given.
   */
  g_object_class_install_property (object_class, offsetof (EbbRowParallelLinear, layer.group),
                                   g_param_spec_object ("group", NULL, "The ranks", EBB_TYPE_PROCESS_GROUP, flags));
}

static void
ebb_row_parallel_linear_init (EbbRowParallelLinear *self)
{
}
