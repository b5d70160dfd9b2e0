/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "nn/layers/batch-norm1d.h"

#include "nn/layers/layer-private.h"
#include "tensor/ops/normalization.h"

/**
 * EbbBatchNorm1d:
 *
 * Batch normalisation (Ioffe and Szegedy, 2015) of each feature of `[N, num-features]` or `[N, num-features, L]` over
 * all other dimensions. In training by the batch's mean and variance, which also move the running ones by
 * #EbbBatchNorm1d:momentum; in evaluation by the running ones. Parameters: `weight` and `bias` `[num-features]`, ones
 * and zeros at first. Buffers: `running_mean` and `running_var` `[num-features]`, zeros and ones at first.
 */
struct _EbbBatchNorm1d
{
  EbbModule parent_instance;

  int num_features;
  double eps;
  double momentum;
  gboolean affine;
  gboolean track_running_stats;
  EbbTensor *weight;
  EbbTensor *bias;
  EbbTensor *running_mean;
  EbbTensor *running_var;
};

G_DEFINE_TYPE (EbbBatchNorm1d, ebb_batch_norm1d, EBB_TYPE_MODULE)

/**
 * EbbBatchNorm1d:num-features:
 *
 * The size of the second dimension.
 */
/**
 * EbbBatchNorm1d:eps:
 *
 * The number that is added to the variance.
 */
/**
 * EbbBatchNorm1d:momentum:
 *
 * The weight of a batch in the running statistics.
 */
/**
 * EbbBatchNorm1d:affine:
 *
 * Whether there are a weight and a bias.
 */
/**
 * EbbBatchNorm1d:track-running-stats:
 *
 * Whether there are running statistics; without them the batch's are used in evaluation too.
 */
static const EbbLayerProperty properties[] = {
  { "num-features", "Size of the second dimension", EBB_LAYER_INT, offsetof (EbbBatchNorm1d, num_features), 0 },
  { "eps", "What is added to the variance", EBB_LAYER_DOUBLE, offsetof (EbbBatchNorm1d, eps), 1e-5 },
  { "momentum", "Weight of a batch", EBB_LAYER_DOUBLE, offsetof (EbbBatchNorm1d, momentum), 0.1 },
  { "affine", "Whether there are a weight and a bias", EBB_LAYER_BOOLEAN, offsetof (EbbBatchNorm1d, affine), TRUE },
  { "track-running-stats", "Whether there are running statistics", EBB_LAYER_BOOLEAN,
    offsetof (EbbBatchNorm1d, track_running_stats), TRUE },
};

static gboolean
ebb_batch_norm1d_build (EbbModule *module, GError **error)
{
  EbbBatchNorm1d *self = EBB_BATCH_NORM1D (module);
  gint64 shape[] = { self->num_features };

  if (!ebb_layer_check_positive (module, "num-features", self->num_features, error)
      || !ebb_layer_check_eps (module, self->eps, error)
      || !ebb_layer_check_probability (module, "momentum", self->momentum, error))
    return FALSE;
  if (self->affine
      && (!ebb_layer_add_parameter (module, "weight", EBB_INIT_CONSTANT, 1, shape, 1, error)
          || !ebb_layer_add_parameter (module, "bias", EBB_INIT_CONSTANT, 0, shape, 1, error)))
    return FALSE;
  return !self->track_running_stats
         || (ebb_layer_add_buffer (module, "running_mean", 0, shape, 1, error)
             && ebb_layer_add_buffer (module, "running_var", 1, shape, 1, error));
}

static EbbTensor *
ebb_batch_norm1d_forward1 (EbbModule *module, EbbTensor *input, GError **error)
{
  EbbBatchNorm1d *self = EBB_BATCH_NORM1D (module);
  gboolean use_batch = ebb_module_get_training (module) || self->running_mean == NULL;

  return ebb_batch_norm (input, self->weight, self->bias, self->running_mean, self->running_var, use_batch,
                         self->momentum, self->eps, error);
}

static void
ebb_batch_norm1d_class_init (EbbBatchNorm1dClass *klass)
{
  EbbModuleClass *module_class = EBB_MODULE_CLASS (klass);

  module_class->build = ebb_batch_norm1d_build;
  module_class->forward1 = ebb_batch_norm1d_forward1;
  ebb_layer_class_install_properties (G_OBJECT_CLASS (klass), properties, G_N_ELEMENTS (properties));
}

static void
ebb_batch_norm1d_init (EbbBatchNorm1d *self)
{
  EbbModule *module = EBB_MODULE (self);

  ebb_module_bind_parameter (module, "weight", &self->weight);
  ebb_module_bind_parameter (module, "bias", &self->bias);
  ebb_module_bind_buffer (module, "running_mean", &self->running_mean);
  ebb_module_bind_buffer (module, "running_var", &self->running_var);
}

/**
 * ebb_batch_norm1d_new:
 * @num_features: the size of the second dimension
 * @eps: what is added to the variance, 1e-5 as a rule
 * @momentum: the weight of a batch in the running statistics, 0.1 as a rule
 * @error: return location for an error
 *
 * Makes a batch normalisation.
 *
 * Returns: (transfer full) (type EbbBatchNorm1d) (nullable): the layer, or %NULL with @error set
 */
EbbModule *
ebb_batch_norm1d_new (int num_features, double eps, double momentum, GError **error)
{
  return ebb_layer_new (EBB_TYPE_BATCH_NORM1D, error, "num-features", num_features, "eps", eps, "momentum", momentum,
                        NULL);
}
