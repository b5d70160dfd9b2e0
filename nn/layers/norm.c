/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Norms over the last dimension, also of a residual connection's sum. A type is its properties and its EbbNorm. */
#include "nn/args-private.h"
#include "nn/layers/block-private.h"
#include "nn/layers/layer-private.h"
#include "tensor/error-private.h"
#include "tensor/ops/normalization.h"
#include "tensor/tensor-private.h"

#include <float.h>

/* The fields of every norm: parameters that a type has not stay NULL. */
typedef struct
{
  EbbModule parent_instance;

  int width;
  double eps;
  EbbTensor *weight; /* [width] */
  EbbTensor *bias;   /* [width] or NULL */
} Norm;

G_DEFINE_INTERFACE (EbbNorm, ebb_norm, EBB_TYPE_MODULE)

static void
ebb_norm_default_init (EbbNormInterface *interface)
{
}

gboolean
ebb_module_is_norm (EbbModule *module)
{
  return EBB_IS_NORM (module)
         && EBB_NORM_GET_IFACE (module)->parent_interface.g_instance_type == G_OBJECT_TYPE (module);
}

/* -- parameters ---------------------------------------------------------------------------------------------------- */

/* The weight and the bias that an op takes: the norm's own, or references to the tensors that share them. */
typedef struct
{
  EbbTensor *items[2];
  gboolean is_shared;
} Parameters;

static gboolean
parameters_get (Parameters *self, EbbModule *norm, GError **error)
{
  EbbTensor *own[] = { ((Norm *) norm)->weight, ((Norm *) norm)->bias };

  *self = (Parameters){ { own[0], own[1] }, ebb_layer_is_shared (norm) };
  if (G_LIKELY (!self->is_shared) || ebb_layer_share_parameters (norm, own, 2, self->items, error))
    return TRUE;
  self->is_shared = FALSE;
  return FALSE;
}

static void
parameters_clear (Parameters *self)
{
  for (guint i = 0; self->is_shared && i < 2; i++)
    g_clear_pointer (&self->items[i], ebb_tensor_unref);
}
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC (Parameters, parameters_clear)

static gboolean
build (EbbModule *module, double weight, gboolean has_bias, GError **error)
{
  Norm *self = (Norm *) module;
  gint64 shape[] = { self->width };

  return ebb_layer_check_positive (module, "width", self->width, error)
         && ebb_layer_check_eps (module, self->eps, error)
         && ebb_layer_add_parameter (module, "weight", EBB_INIT_CONSTANT, weight, shape, 1, error)
         && (!has_bias || ebb_layer_add_parameter (module, "bias", EBB_INIT_CONSTANT, 0, shape, 1, error));
}

/* -- forward ------------------------------------------------------------------------------------------------------- */

static EbbTensor *
norm_forward1 (EbbModule *module, EbbTensor *input, GError **error)
{
  g_auto (Parameters) parameters = { 0 };

  return parameters_get (&parameters, module, error)
             ? EBB_NORM_GET_IFACE (module)->normalize (EBB_NORM (module), input, parameters.items, error)
             : NULL;
}

static EbbTensor *
add (EbbModule *norm, EbbModule *branch_norm, const EbbResidual *residual, EbbTensor **sum, GError **error)
{
  g_auto (Parameters) parameters = { 0 };
  g_auto (Parameters) branch = { 0 };
  EbbTensor *normalized = NULL;

  if (parameters_get (&parameters, norm, error)
      && (branch_norm == NULL || parameters_get (&branch, branch_norm, error)))
    EBB_NORM_GET_IFACE (norm)->add (EBB_NORM (norm), residual, parameters.items,
                                    branch_norm != NULL ? branch.items : NULL, sum, &normalized, error);
  return normalized;
}

static EbbArgs *
forward_after_residual (EbbModule *module, EbbArgs *args, GError **error)
{
  EbbResidual residual = { .training = ebb_module_get_training (module) };
  const EbbParameterSpec specs[] = { { "input", EBB_PARAMETER_TENSOR, &residual.x },
                                     { "residual", EBB_PARAMETER_TENSOR, &residual.residual },
                                     { "dropout", EBB_PARAMETER_DOUBLE, &residual.dropout },
                                     { "training", EBB_PARAMETER_FLAG, &residual.training } };
  g_autoptr (EbbTensor) sum = NULL;
  g_autoptr (EbbTensor) normalized = NULL;
  EbbArgs *result;

  if (!ebb_args_parse (args, ebb_module_get_type_name (module), specs, G_N_ELEMENTS (specs), error))
    return NULL;
  normalized = add (module, NULL, &residual, &sum, error);
  if (normalized == NULL)
    return NULL;
  result = ebb_args_new (EBB_ARGS_TUPLE);
  ebb_args_add_tensor (result, NULL, normalized);
  ebb_args_add_tensor (result, NULL, sum);
  return result;
}

/* Beside forward1: (x, residual=, dropout=, training=) gives residual + dropout (x), normalized and as it is. */
static EbbArgs *
norm_forward (EbbModule *module, EbbArgs *args, GError **error)
{
  return ebb_args_find (args, "residual") < 0 ? ebb_module_default_forward (module, args, error)
                                              : forward_after_residual (module, args, error);
}

/* -- layer norm ---------------------------------------------------------------------------------------------------- */

/**
 * EbbLayerNorm:
 *
 * Layer normalisation over the last dimension (Ba, Kiros and Hinton, 2016): (x - mean) / sqrt (var + eps) * weight +
 * bias, for x `[..., width]`. Parameters: `weight` `[width]`, ones at first, and `bias` `[width]`, zeros.
 */
struct _EbbLayerNorm
{
  Norm norm;

  gboolean has_bias;
};

/**
 * EbbLayerNorm:width:
 *
 * The size of the last dimension.
 */
/**
 * EbbLayerNorm:eps:
 *
 * The number that is added to the variance.
 */
/**
 * EbbLayerNorm:bias:
 *
 * Whether a bias is added.
 */
static const EbbLayerProperty layer_norm_properties[] = {
  { "width", "Size of the last dimension", EBB_LAYER_INT, offsetof (EbbLayerNorm, norm.width), 0 },
  { "eps", "What is added to the variance", EBB_LAYER_DOUBLE, offsetof (EbbLayerNorm, norm.eps), 1e-5 },
  { "bias", "Whether a bias is added", EBB_LAYER_BOOLEAN, offsetof (EbbLayerNorm, has_bias), TRUE },
};

static EbbTensor *
layer_norm_normalize (EbbNorm *self, EbbTensor *x, EbbTensor *const *parameters, GError **error)
{
  return ebb_layer_norm (x, parameters[0], parameters[1], ((Norm *) self)->eps, error);
}

static gboolean
layer_norm_add (EbbNorm *self,
                const EbbResidual *residual,
                EbbTensor *const *parameters,
                EbbTensor *const *branch,
                EbbTensor **sum,
                EbbTensor **normalized,
                GError **error)
{
  return ebb_residual_dropout_layer_norm (residual->x, residual->residual, parameters[0], parameters[1],
                                          ((Norm *) self)->eps, residual->dropout, residual->training, NULL, sum,
                                          normalized, error);
}

static void
layer_norm_interface_init (EbbNormInterface *interface)
{
  interface->normalize = layer_norm_normalize;
  interface->add = layer_norm_add;
}

G_DEFINE_TYPE_WITH_CODE (EbbLayerNorm,
                         ebb_layer_norm,
                         EBB_TYPE_MODULE,
                         G_IMPLEMENT_INTERFACE (EBB_TYPE_NORM, layer_norm_interface_init))

static gboolean
ebb_layer_norm_build (EbbModule *module, GError **error)
{
  return build (module, 1, EBB_LAYER_NORM (module)->has_bias, error);
}

static void
ebb_layer_norm_class_init (EbbLayerNormClass *klass)
{
  EbbModuleClass *module_class = EBB_MODULE_CLASS (klass);

  module_class->build = ebb_layer_norm_build;
  module_class->forward = norm_forward;
  module_class->forward1 = norm_forward1;
  ebb_layer_class_install_properties (G_OBJECT_CLASS (klass), layer_norm_properties,
                                      G_N_ELEMENTS (layer_norm_properties));
}

static void
ebb_layer_norm_init (EbbLayerNorm *self)
{
  ebb_module_bind_parameter (EBB_MODULE (self), "weight", &self->norm.weight);
  ebb_module_bind_parameter (EBB_MODULE (self), "bias", &self->norm.bias);
}

/**
 * ebb_layer_norm_new:
 * @width: the size of the last dimension
 * @eps: what is added to the variance, 1e-5 as a rule
 * @bias: whether a bias is added
 * @error: return location for an error
 *
 * Makes a layer normalisation.
 *
 * Returns: (transfer full) (type EbbLayerNorm) (nullable): the layer, or %NULL with @error set
 */
EbbModule *
ebb_layer_norm_new (int width, double eps, gboolean bias, GError **error)
{
  return ebb_layer_new (EBB_TYPE_LAYER_NORM, error, "width", width, "eps", eps, "bias", bias, NULL);
}

/* -- RMS norm ------------------------------------------------------------------------------------------------------ */

/**
 * EbbRmsNorm:
 *
 * Normalisation by the root mean square over the last dimension (Zhang and Sennrich, 2019):
 * x / sqrt (mean (x^2) + eps) * weight, for x `[..., width]`. Parameter: `weight` `[width]`, ones at first. With a
 * unit offset (Gemma) the factor is 1 + weight, and the weight is zeros at first.
 */
struct _EbbRmsNorm
{
  Norm norm;

  gboolean unit_offset;
};

/**
 * EbbRmsNorm:width:
 *
 * The size of the last dimension.
 */
/**
 * EbbRmsNorm:eps:
 *
 * The number that is added to the mean square: 1.2e-7, the distance of 1 to the next number of f32, unless it is given.
 */
/**
 * EbbRmsNorm:unit-offset:
 *
 * Whether the factor is 1 + weight rather than weight.
 */
static const EbbLayerProperty rms_norm_properties[] = {
  { "width", "Size of the last dimension", EBB_LAYER_INT, offsetof (EbbRmsNorm, norm.width), 0 },
  { "eps", "What is added to the mean square", EBB_LAYER_DOUBLE, offsetof (EbbRmsNorm, norm.eps), FLT_EPSILON },
  { "unit-offset", "Whether the factor is 1 + weight", EBB_LAYER_BOOLEAN, offsetof (EbbRmsNorm, unit_offset), FALSE },
};

static EbbTensor *
rms_norm_normalize (EbbNorm *self, EbbTensor *x, EbbTensor *const *parameters, GError **error)
{
  return EBB_RMS_NORM (self)->unit_offset
             ? ebb_unit_offset_rms_norm (x, parameters[0], ((Norm *) self)->eps, error)
             : ebb_rms_norm (x, parameters[0], ((Norm *) self)->eps, error);
}

static gboolean
rms_norm_add (EbbNorm *self,
              const EbbResidual *residual,
              EbbTensor *const *parameters,
              EbbTensor *const *branch,
              EbbTensor **sum,
              EbbTensor **normalized,
              GError **error)
{
  return ebb_residual_dropout_rms_norm (residual->x, residual->residual, branch != NULL ? branch[0] : NULL,
                                        parameters[0], ((Norm *) self)->eps, EBB_RMS_NORM (self)->unit_offset,
                                        residual->dropout, residual->training, NULL, sum, normalized, error);
}

static gboolean
rms_norm_adds_after (EbbNorm *self, EbbNorm *branch_norm)
{
  return ((Norm *) self)->eps == ((Norm *) branch_norm)->eps
         && EBB_RMS_NORM (self)->unit_offset == EBB_RMS_NORM (branch_norm)->unit_offset;
}

static void
rms_norm_interface_init (EbbNormInterface *interface)
{
  interface->normalize = rms_norm_normalize;
  interface->add = rms_norm_add;
  interface->adds_after = rms_norm_adds_after;
}

G_DEFINE_TYPE_WITH_CODE (EbbRmsNorm,
                         ebb_rms_norm,
                         EBB_TYPE_MODULE,
                         G_IMPLEMENT_INTERFACE (EBB_TYPE_NORM, rms_norm_interface_init))

static gboolean
ebb_rms_norm_build (EbbModule *module, GError **error)
{
  return build (module, EBB_RMS_NORM (module)->unit_offset ? 0 : 1, FALSE, error);
}

static void
ebb_rms_norm_class_init (EbbRmsNormClass *klass)
{
  EbbModuleClass *module_class = EBB_MODULE_CLASS (klass);

  module_class->build = ebb_rms_norm_build;
  module_class->forward = norm_forward;
  module_class->forward1 = norm_forward1;
  ebb_layer_class_install_properties (G_OBJECT_CLASS (klass), rms_norm_properties, G_N_ELEMENTS (rms_norm_properties));
}

static void
ebb_rms_norm_init (EbbRmsNorm *self)
{
  ebb_module_bind_parameter (EBB_MODULE (self), "weight", &self->norm.weight);
}

/**
 * ebb_rms_norm_new:
 * @width: the size of the last dimension
 * @eps: the number that is added to the mean square, as 1e-5 in Llama
 * @error: return location for an error
 *
 * Makes a normalisation by the root mean square.
 *
 * Returns: (transfer full) (type EbbRmsNorm) (nullable): the layer, or %NULL with @error set
 */
EbbModule *
ebb_rms_norm_new (int width, double eps, GError **error)
{
  return ebb_layer_new (EBB_TYPE_RMS_NORM, error, "width", width, "eps", eps, NULL);
}

/* -- the norm of a block ------------------------------------------------------------------------------------------- */

EbbModule *
ebb_block_config_new_norm (const EbbBlockConfig *self, int width, GError **error)
{
  switch (self->norm)
    {
    case EBB_NORM_LAYER: return ebb_layer_norm_new (width, self->norm_eps, self->bias, error);
    case EBB_NORM_RMS: return ebb_rms_norm_new (width, self->norm_eps, error);
    case EBB_NORM_RMS_UNIT:
      return ebb_layer_new (EBB_TYPE_RMS_NORM, error, "width", width, "eps", self->norm_eps, "unit-offset", TRUE, NULL);
    }
  g_assert_not_reached ();
}

/* -- the norm of a sum --------------------------------------------------------------------------------------------- */

/* Checks the result of a user's wrapper before it is used in place of the fused op's results. */
static gboolean
check_pair (EbbModule *module, EbbArgs *result, EbbTensor *x, GError **error)
{
  gboolean ok = ebb_args_get_length (result) == 2;

  for (guint i = 0; ok && i < 2; i++)
    {
      EbbTensor *tensor = ebb_args_peek_tensor (result, i);

      ok = tensor != NULL && ebb_shapes_equal (&tensor->view, &x->view);
    }
  return ok
         || ebb_fail (error, EBB_ERROR_SHAPE, "%s: it must return two tensors of its input's shape, but it returned %s",
                      ebb_module_get_type_name (module), ebb_in_message (ebb_args_to_string (result)));
}

static EbbTensor *
call_wrapped (EbbModule *norm, const EbbResidual *residual, EbbTensor **sum, GError **error)
{
  g_autoptr (EbbArgs) args = ebb_args_new (EBB_ARGS_TUPLE);
  g_autoptr (EbbArgs) result = NULL;

  ebb_args_add_tensor (args, NULL, residual->x);
  ebb_args_add_tensor (args, "residual", residual->residual);
  ebb_args_add_double (args, "dropout", residual->dropout);
  ebb_args_add_boolean (args, "training", residual->training);
  result = ebb_module_call (norm, args, error);
  if (result == NULL || !check_pair (norm, result, residual->x, error))
    return NULL;
  *sum = ebb_args_get_tensor (result, 1);
  return ebb_args_get_tensor (result, 0);
}

/* Whether one kernel normalizes both the branch and the sum. The kernel works in the dtype of the sum and rounds the
 * normalized branch to this dtype. The branch norm by itself rounds to the dtype of the branch, so both dtypes must be
 * the same: then a wrapper around one of the norms changes no bit. */
static gboolean
are_alike (EbbModule *norm, EbbModule *branch_norm, const EbbResidual *residual)
{
  const EbbDType dtype = residual->x->view.dtype;
  const GType type = G_OBJECT_TYPE (norm);

  return ebb_dtype_promote (dtype, residual->residual->view.dtype) == dtype && ebb_module_is_norm (norm)
         && EBB_NORM_GET_IFACE (norm)->adds_after != NULL
         && ebb_module_is_plain (norm, type) && ebb_module_is_plain (branch_norm, type)
         && EBB_NORM_GET_IFACE (norm)->adds_after (EBB_NORM (norm), EBB_NORM (branch_norm));
}

static EbbTensor *
add_and_normalize (EbbModule *norm,
                   EbbModule *branch_norm,
                   const EbbResidual *residual,
                   EbbTensor **sum,
                   GError **error)
{
  const gboolean is_fused = ebb_module_is_norm (norm) && EBB_NORM_GET_IFACE (norm)->add != NULL;

  if (is_fused && ebb_module_is_plain (norm, G_OBJECT_TYPE (norm)))
    return add (norm, branch_norm, residual, sum, error);
  if (is_fused && ebb_module_is_only_wrapped (norm, G_OBJECT_TYPE (norm)))
    return call_wrapped (norm, residual, sum, error);
  *sum = ebb_residual_dropout (residual->x, residual->residual, residual->dropout, residual->training, NULL, error);
  return ebb_module_call1 (norm, *sum, error);
}

EbbTensor *
ebb_norm_call_after_residual (EbbModule *norm,
                              EbbModule *branch_norm,
                              const EbbResidual *residual,
                              EbbTensor **sum,
                              GError **error)
{
  g_autoptr (EbbTensor) branch = NULL;
  EbbResidual rest = *residual;

  if (rest.x == NULL || rest.residual == NULL) /* which the op reports, unless an error has been reported */
    return ebb_residual_dropout (rest.x, rest.residual, rest.dropout, rest.training, NULL, error);
  if (branch_norm == NULL || are_alike (norm, branch_norm, &rest))
    return add_and_normalize (norm, branch_norm, residual, sum, error);
  rest.x = branch = ebb_module_call1 (branch_norm, rest.x, error);
  return branch != NULL ? add_and_normalize (norm, NULL, &rest, sum, error) : NULL;
}
