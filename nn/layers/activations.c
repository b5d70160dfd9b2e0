/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "nn/layers/activations.h"

#include "nn/layers/layer-private.h"

/* Activations as modules, for sequences; they have no parameters. */

G_DEFINE_ENUM_TYPE (EbbGeluKind,
                    ebb_gelu_kind,
                    G_DEFINE_ENUM_VALUE (EBB_GELU_EXACT, "exact"),
                    G_DEFINE_ENUM_VALUE (EBB_GELU_TANH, "tanh"))

G_DEFINE_ENUM_TYPE (EbbActivation,
                    ebb_activation,
                    G_DEFINE_ENUM_VALUE (EBB_ACTIVATION_GELU, "gelu"),
                    G_DEFINE_ENUM_VALUE (EBB_ACTIVATION_GELU_TANH, "gelu-tanh"),
                    G_DEFINE_ENUM_VALUE (EBB_ACTIVATION_SILU, "silu"))

/**
 * EbbGelu:
 *
 * GELU (Hendrycks and Gimpel, 2016) as a module.
 */
struct _EbbGelu
{
  EbbModule parent_instance;

  EbbGeluKind kind;
};

G_DEFINE_TYPE (EbbGelu, ebb_gelu, EBB_TYPE_MODULE)

/**
 * EbbGelu:kind:
 *
 * Which of the two usual forms.
 */
static const EbbLayerProperty gelu_properties[] = {
  { "kind", "Which of the two usual forms", EBB_LAYER_ENUM, offsetof (EbbGelu, kind), EBB_GELU_EXACT,
    ebb_gelu_kind_get_type },
};

static EbbTensor *
ebb_gelu_forward1 (EbbModule *module, EbbTensor *input, GError **error)
{
  return ebb_gelu (input, EBB_GELU (module)->kind, error);
}

static void
ebb_gelu_class_init (EbbGeluClass *klass)
{
  EBB_MODULE_CLASS (klass)->forward1 = ebb_gelu_forward1;
  ebb_layer_class_install_properties (G_OBJECT_CLASS (klass), gelu_properties, G_N_ELEMENTS (gelu_properties));
}

static void
ebb_gelu_init (EbbGelu *self)
{
}

/**
 * ebb_gelu_new:
 * @kind: which of the two usual forms
 *
 * Makes a GELU.
 *
 * Returns: (transfer full) (type EbbGelu): the module
 */
EbbModule *
ebb_gelu_new (EbbGeluKind kind)
{
  return ebb_layer_new (EBB_TYPE_GELU, NULL, "kind", kind, NULL);
}

/* A module whose forward is one op of one operand. */
#define DEFINE_ACTIVATION(TypeName, type_name)                                   \
  struct _##TypeName                                                             \
  {                                                                              \
    EbbModule parent_instance;                                                   \
  };                                                                             \
                                                                                 \
  G_DEFINE_TYPE (TypeName, type_name, EBB_TYPE_MODULE)                           \
                                                                                 \
  static EbbTensor *                                                             \
      type_name##_forward1 (EbbModule *module, EbbTensor *input, GError **error) \
  {                                                                              \
    return type_name (input, error);                                             \
  }                                                                              \
                                                                                 \
  static void                                                                    \
      type_name##_class_init (TypeName##Class *klass)                            \
  {                                                                              \
    EBB_MODULE_CLASS (klass)->forward1 = type_name##_forward1;                   \
  }                                                                              \
                                                                                 \
  static void                                                                    \
      type_name##_init (TypeName *self)                                          \
  {                                                                              \
  }

/**
 * EbbRelu:
 *
 * max (x, 0) as a module.
 */
DEFINE_ACTIVATION (EbbRelu, ebb_relu)

/**
 * ebb_relu_new:
 *
 * Makes a rectifier.
 *
 * Returns: (transfer full) (type EbbRelu): the module
 */
EbbModule *
ebb_relu_new (void)
{
  return ebb_layer_new (EBB_TYPE_RELU, NULL, NULL, NULL);
}

/**
 * EbbTanh:
 *
 * tanh (x) as a module.
 */
DEFINE_ACTIVATION (EbbTanh, ebb_tanh)

/**
 * ebb_tanh_new:
 *
 * Makes a hyperbolic tangent.
 *
 * Returns: (transfer full) (type EbbTanh): the module
 */
EbbModule *
ebb_tanh_new (void)
{
  return ebb_layer_new (EBB_TYPE_TANH, NULL, NULL, NULL);
}

/**
 * EbbSilu:
 *
 * x / (1 + exp (-x)) as a module.
 */
DEFINE_ACTIVATION (EbbSilu, ebb_silu)

/**
 * ebb_silu_new:
 *
 * Makes a SiLU.
 *
 * Returns: (transfer full) (type EbbSilu): the module
 */
EbbModule *
ebb_silu_new (void)
{
  return ebb_layer_new (EBB_TYPE_SILU, NULL, NULL, NULL);
}

/**
 * EbbSigmoid:
 *
 * 1 / (1 + exp (-x)) as a module.
 */
DEFINE_ACTIVATION (EbbSigmoid, ebb_sigmoid)

/**
 * ebb_sigmoid_new:
 *
 * Makes a logistic function.
 *
 * Returns: (transfer full) (type EbbSigmoid): the module
 */
EbbModule *
ebb_sigmoid_new (void)
{
  return ebb_layer_new (EBB_TYPE_SIGMOID, NULL, NULL, NULL);
}
