/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "nn/layers/activations.h"
#include "nn/layers/embedding.h"
#include "nn/layers/linear.h"
#include "nn/layers/quantize.h"
#include "nn/layers/norm.h"
#include "nn/module-instance-private.h"
#include "nn/module-private.h"
#include "tensor/quantization-private.h"

/* Shared by layers: construct properties that are fields, parameters with their initial values, children. */

G_BEGIN_DECLS

typedef enum
{
  EBB_LAYER_INT,     /* int; a bad value is refused in build, with an error, rather than clamped */
  EBB_LAYER_DOUBLE,  /* double */
  EBB_LAYER_BOOLEAN, /* gboolean */
  EBB_LAYER_ENUM
} EbbLayerPropertyKind;

typedef struct
{
  const char *name;
  const char *blurb;
  EbbLayerPropertyKind kind;
  gsize offset; /* of the field in the instance */
  double initial;
  GType (*get_type) (void); /* of an enumeration */
} EbbLayerProperty;

/* Installs construct-only properties, and the functions that get and set them. */
void ebb_layer_class_install_properties (GObjectClass *klass,
                                         const EbbLayerProperty *properties,
                                         guint n_properties);

/* Makes and initialises a module. */
EbbModule *ebb_layer_new (GType type,
                          GError **error,
                          const char *first_property,
                          ...) G_GNUC_NULL_TERMINATED;

/* Initialises a module that g_object_new () has made, and whose private fields are set since; consumes it. */
EbbModule *ebb_layer_build (EbbModule *layer,
                            GError **error);

typedef enum
{
  EBB_INIT_CONSTANT, /* all of the value given */
  EBB_INIT_UNIFORM,  /* between minus and plus the value given */
  EBB_INIT_NORMAL    /* mean 0, the value given is the standard deviation */
} EbbInit;

/* Registers a new parameter under a name, f32 unless ebb_push_parameter_dtype () says otherwise. */
gboolean ebb_layer_add_parameter (EbbModule *self,
                                  const char *name,
                                  EbbInit init,
                                  double value,
                                  const gint64 *shape,
                                  guint n_dims,
                                  GError **error);
gboolean ebb_layer_add_buffer (EbbModule *self,
                               const char *name,
                               double value,
                               const gint64 *shape,
                               guint n_dims,
                               GError **error);
/* Registers @child, which is consumed; NULL (its construction failed): FALSE. */
gboolean ebb_layer_add_child (EbbModule *self,
                              const char *name,
                              EbbModule *child,
                              GError **error);
/* Draws a parameter anew: for models that begin otherwise than their layers do. */
gboolean ebb_layer_reinitialize (EbbTensor *parameter,
                                 EbbInit init,
                                 double value,
                                 GError **error);

/* Checks of construct properties; FALSE with an error that names the type, the property and the value. */
gboolean ebb_layer_check_positive (EbbModule *self,
                                   const char *property,
                                   int value,
                                   GError **error);
gboolean ebb_layer_check_probability (EbbModule *self,
                                      const char *property,
                                      double value,
                                      GError **error);
gboolean ebb_layer_check_eps (EbbModule *self,
                              double eps,
                              GError **error);

/* Replaces parameters or inputs before the ops of a layer use them: sets shared[i] to a tensor (a reference) of the
 * same values as parameters[i], or to NULL where that is NULL. FALSE with @error: all of @shared are unset. */
typedef gboolean (*EbbLayerShareFunc) (EbbModule *self,
                                       EbbTensor **parameters,
                                       guint n_parameters,
                                       EbbTensor **shared,
                                       gpointer user_data,
                                       GError **error);
/* Of a normalisation, for its parameters; NULL takes it off. Ranks that each have a part of its input have the
 * gradients of its parameters summed so. Of attention and of an MLP with several products of one input, for that input:
 * ranks that share the products have its gradient summed once. */
void ebb_layer_set_share (EbbModule *self,
                          EbbLayerShareFunc func,
                          gpointer user_data,
                          GDestroyNotify destroy);
gboolean ebb_layer_share_parameters (EbbModule *self,
                                     EbbTensor **parameters,
                                     guint n_parameters,
                                     EbbTensor **shared,
                                     GError **error);
/* The input of a layer as its products take it: a reference. */
EbbTensor *ebb_layer_share_input (EbbModule *self,
                                  EbbTensor *x,
                                  GError **error);
#define ebb_layer_is_shared(self) (ebb_module_get_private (EBB_MODULE (self))->share != NULL)

/* Adds a child under the next number: what lists and sequences do. */
gboolean ebb_layer_append_child (EbbModule *self,
                                 EbbModule *child,
                                 GError **error);

/* The fields of layers whose parameters a fused form reads, and of those that ranks divide among them (dist/). The
 * tensors are bound to the registered parameters. */

struct _EbbLinear
{
  EbbModule parent_instance;

  int in_features;
  int out_features;
  gboolean has_bias;
  EbbTensor *weight;            /* [out, in]; NULL if it is quantised */
  EbbQuantizedWeight quantized; /* the weight in its place: buffers, which have no gradient */
  EbbTensor *bias;              /* [out] or NULL */
};

#define ebb_linear_is_quantized(self) ((self)->quantized.quantization != EBB_QUANTIZATION_NONE)
/* The weight as it is held: of a quantised one its codes. To be asked where and whose it is, not for its values. */
#define ebb_linear_peek_weight(self) (ebb_linear_is_quantized (self) ? (self)->quantized.codes : (self)->weight)
/* x W^T + bias by the weight that is here, however it is held. */
EbbTensor *ebb_linear_multiply (EbbLinear *self,
                                EbbTensor *x,
                                EbbTensor *bias,
                                GError **error);
/* Puts a quantised weight, which is taken over, in the place of the layer's. */
void ebb_linear_take_quantized (EbbLinear *self,
                                EbbQuantizedWeight *weight);
/* A linear layer with a weight to quantise, and its path. */
typedef struct
{
  EbbLinear *layer; /* not owned */
  char *path;
} EbbQuantizable;
/* The linear layers of @model that are quantised, in its order: of EbbQuantizable. Others have a head's name or share
 * their weight. NULL with an error if there are none, or if one can't be. */
GArray *ebb_quantize_list_layers (EbbModule *model,
                                  GError **error);
/* Fails, naming the first, if a weight of @module or below is quantised; @what says what takes none. */
gboolean ebb_module_check_not_quantized (EbbModule *module,
                                         const char *what,
                                         GError **error);

struct _EbbEmbedding
{
  EbbModule parent_instance;

  int num_embeddings;
  int embedding_dim;
  EbbTensor *weight; /* [num, dim] */
};

/* Whether the op that comes next may add the bias: nobody looks at the layer's result, and the bias stays available
 * after the layer's own call. It depends on how modules are wrapped, never on the elements that a rank holds. */
gboolean ebb_linear_lends_bias (EbbModule *module);
/* Then it is left out here. */
EbbTensor *ebb_linear_call_without_bias (EbbModule *module,
                                         EbbTensor *input,
                                         GError **error);
/* The mean cross entropy of the layer's result as logits, which are never all held and are bounded by @softcap unless
 * that is 0. */
EbbTensor *ebb_linear_call_for_loss (EbbModule *module,
                                     EbbTensor *input,
                                     EbbTensor *targets,
                                     double softcap,
                                     GError **error);

/* A norm: a layer whose parameters may be shared, and which may normalize a residual connection's sum in the pass that
 * computes the sum. A type of norms implements the interface beside its properties. */

#define EBB_TYPE_NORM (ebb_norm_get_type ())
G_DECLARE_INTERFACE (EbbNorm, ebb_norm, EBB, NORM, EbbModule)

/* A residual connection: residual + dropout (x). */
typedef struct
{
  EbbTensor *x, *residual;
  double dropout;
  gboolean training;
} EbbResidual;

struct _EbbNormInterface
{
  GTypeInterface parent_interface;

  /* @parameters: the weight and the bias, NULL where there is none. */
  EbbTensor *(*normalize) (EbbNorm *self,
                           EbbTensor *x,
                           EbbTensor *const *parameters,
                           GError **error);
  /* Sets @sum and @normalized in one pass over memory. @branch: the parameters of a norm by which x is normalized
   * before; NULL: it isn't. NULL: the sum is computed by itself. */
  gboolean (*add) (EbbNorm *self,
                   const EbbResidual *residual,
                   EbbTensor *const *parameters,
                   EbbTensor *const *branch,
                   EbbTensor **sum,
                   EbbTensor **normalized,
                   GError **error);
  /* Whether add () normalizes x by @branch_norm, which is of the same type. NULL: no. */
  gboolean (*adds_after) (EbbNorm *self,
                          EbbNorm *branch_norm);
};

/* TRUE if @module's own type is one of norms, and not a type that derives from one, with a forward of its own. */
gboolean ebb_module_is_norm (EbbModule *module);

/* Sets @sum, and returns its norm by @norm, which is any module; x is normalized by @branch_norm before, unless that is
 * NULL. In one pass over memory if the norms can and nobody looks at them. */
EbbTensor *ebb_norm_call_after_residual (EbbModule *norm,
                                         EbbModule *branch_norm,
                                         const EbbResidual *residual,
                                         EbbTensor **sum,
                                         GError **error);

/* A layer with a weight [classes, width] whose product with x [..., width] the caller processes further: it adds
 * another bias, or takes the loss of it as logits, which are then never all held. EbbLinear and EbbEmbedding, whose
 * weight a model may share for its output, are such layers; so are the forms of them that ranks divide among them. */

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
  /* The mean cross entropy of all logits, bounded by @softcap unless that is 0, over the targets that are not
   * EBB_IGNORED_TARGET, f32 []. */
  EbbTensor *(*loss) (EbbOutputLayer *self,
                      EbbTensor *x,
                      EbbTensor *bias,
                      EbbTensor *targets,
                      double softcap,
                      GError **error);
  /* Whether the layer has a bias that fits its result, so that the op that comes next may add it. NULL: no. */
  gboolean (*lends_bias) (EbbOutputLayer *self);
};

/* TRUE if @module's own type says how, and not one that it derives from with a forward of its own, and nobody looks at
 * what is called: then the functions of the interface may stand in for a call, or be asked for by one. */
gboolean ebb_output_layer_is_open (EbbModule *module);

/* Of a layer that shares its weight: no call of @module, unless ranks shard it by itself. Of any other layer the
 * parameter "weight" is used. */
EbbTensor *ebb_output_layer_logits (EbbModule *module,
                                    EbbTensor *x,
                                    EbbTensor *bias,
                                    GError **error);
EbbTensor *ebb_output_layer_loss (EbbModule *module,
                                  EbbTensor *x,
                                  EbbTensor *bias,
                                  EbbTensor *targets,
                                  double softcap,
                                  GError **error);

#define EBB_IGNORED_TARGET (-100)
/* The loss by a full weight. */
EbbTensor *ebb_output_layer_full_loss (EbbTensor *x,
                                       EbbTensor *weight,
                                       EbbTensor *bias,
                                       EbbTensor *targets,
                                       double softcap,
                                       GError **error);

G_END_DECLS
