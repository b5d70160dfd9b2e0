/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "nn/layers/activations.h"
#include "nn/module-instance-private.h"

/* What layers have in common: construct properties that are fields, parameters with their initial values, children. */

G_BEGIN_DECLS

typedef enum
{
  EBB_LAYER_INT,     /* int; a bad value is refused in build, with an error, rather than clamped */
  EBB_LAYER_DOUBLE,  /* double */
  EBB_LAYER_BOOLEAN, /* gboolean */
  EBB_LAYER_GELU     /* EbbGeluKind */
} EbbLayerPropertyKind;

typedef struct
{
  const char *name;
  const char *blurb;
  EbbLayerPropertyKind kind;
  gsize offset; /* of the field in the instance */
  double initial;
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

typedef enum
{
  EBB_INIT_CONSTANT, /* all of the value given */
  EBB_INIT_UNIFORM,  /* between minus and plus the value given */
  EBB_INIT_NORMAL    /* mean 0, the value given is the standard deviation */
} EbbInit;

/* Registers a new f32 parameter under a name. */
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

/* What stands between a layer's own parameters and its op: puts a tensor of the same shape and values (a reference)
 * into shared[i] for each parameter, NULL for one that is NULL. FALSE with @error: none is there. */
typedef gboolean (*EbbLayerShareFunc) (EbbModule *self,
                                       EbbTensor **parameters,
                                       guint n_parameters,
                                       EbbTensor **shared,
                                       gpointer user_data,
                                       GError **error);
/* Of a normalisation; NULL takes it off. Ranks that each have a part of its input have the gradients of its parameters
 * summed so. */
void ebb_layer_set_share (EbbModule *self,
                          EbbLayerShareFunc func,
                          gpointer user_data,
                          GDestroyNotify destroy);
gboolean ebb_layer_share_parameters (EbbModule *self,
                                     EbbTensor **parameters,
                                     guint n_parameters,
                                     EbbTensor **shared,
                                     GError **error);
#define ebb_layer_is_shared(self) (ebb_module_get_private (EBB_MODULE (self))->share != NULL)

/* Adds a child under the next number: what lists and sequences do. */
gboolean ebb_layer_append_child (EbbModule *self,
                                 EbbModule *child,
                                 GError **error);

G_END_DECLS
