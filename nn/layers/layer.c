/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "nn/layers/layer-private.h"

#include "nn/initialization-private.h"
#include "tensor/autograd/autograd.h"
#include "tensor/autograd/op-private.h"
#include "tensor/error-private.h"
#include "tensor/ops/in-place.h"
#include "tensor/ops/loss.h"
#include "tensor/ops/product.h"
#include "tensor/thread-private.h"
#include "tensor/util/property-private.h"

/* Shared by layers: properties that are fields, initial values, children, and products that models reach into. */

static GParamSpec *
make_spec (const EbbLayerProperty *property)
{
  const GParamFlags flags = G_PARAM_READWRITE | G_PARAM_CONSTRUCT_ONLY | G_PARAM_STATIC_STRINGS;

  switch (property->kind)
    {
    case EBB_LAYER_INT:
      return g_param_spec_int (property->name, NULL, property->blurb, G_MININT, G_MAXINT, (int) property->initial,
                               flags);
    case EBB_LAYER_DOUBLE: /* lax: what is not a number comes to build, which refuses it */
      return g_param_spec_double (property->name, NULL, property->blurb, -G_MAXDOUBLE, G_MAXDOUBLE, property->initial,
                                  flags | G_PARAM_LAX_VALIDATION);
    case EBB_LAYER_BOOLEAN:
      return g_param_spec_boolean (property->name, NULL, property->blurb, property->initial != 0, flags);
    case EBB_LAYER_ENUM:
      return g_param_spec_enum (property->name, NULL, property->blurb, property->get_type (), (int) property->initial,
                                flags);
    }
  g_assert_not_reached ();
}

void
ebb_layer_class_install_properties (GObjectClass *klass, const EbbLayerProperty *properties, guint n_properties)
{
  klass->get_property = ebb_property_get_field;
  klass->set_property = ebb_property_set_field;
  for (guint i = 0; i < n_properties; i++)
    g_object_class_install_property (klass, (guint) properties[i].offset, make_spec (&properties[i]));
}

EbbModule *
ebb_layer_new (GType type, GError **error, const char *first_property, ...)
{
  GObject *layer;
  va_list arguments;

  if (error != NULL && *error != NULL)
    return NULL;
  va_start (arguments, first_property);
  layer = g_initable_new_valist (type, first_property, arguments, NULL, error);
  va_end (arguments);
  return (EbbModule *) layer;
}

EbbModule *
ebb_layer_build (EbbModule *layer, GError **error)
{
  if (!g_initable_init (G_INITABLE (layer), NULL, error))
    g_clear_object (&layer);
  return layer;
}

/* Drawn on the CPU, so that a seed stands for the same values wherever the layer is. */
static gboolean
draw (EbbTensor *parameter, EbbInit init, double value, GError **error)
{
  gboolean elsewhere = ebb_tensor_get_device (parameter) != ebb_device_get_cpu ();
  g_autoptr (EbbTensor) drawn =
      !elsewhere ? ebb_tensor_ref (parameter)
                 : ebb_tensor_new_uninitialized (parameter->view.shape, (guint) parameter->view.n_dims,
                                                 parameter->view.dtype, ebb_device_get_cpu (), error);

  if (drawn == NULL
      || !(init == EBB_INIT_UNIFORM ? ebb_tensor_fill_uniform (drawn, -value, value, NULL, error)
                                    : ebb_tensor_fill_normal (drawn, 0, value, NULL, error)))
    return FALSE;
  return !elsewhere || ebb_tensor_upload (parameter, drawn->view.data, error);
}

static gboolean
set_values (EbbTensor *parameter, EbbInit init, double value, GError **error)
{
  gboolean done;

  if (init != EBB_INIT_CONSTANT && ebb_is_initialization_skipped ())
    {
      ebb_generator_take (NULL, (guint64) ebb_tensor_get_n_elements (parameter));
      return TRUE;
    }
  ebb_push_grad_enabled (FALSE);
  done = init == EBB_INIT_CONSTANT ? ebb_tensor_fill (parameter, value, error) : draw (parameter, init, value, error);
  ebb_pop_grad_enabled ();
  return done;
}

gboolean
ebb_layer_reinitialize (EbbTensor *parameter, EbbInit init, double value, GError **error)
{
  EbbDType dtype;

  return EBB_MAY_BEGIN (error, parameter)
         && (ebb_get_parameters_unset (&dtype) || set_values (parameter, init, value, error));
}

gboolean
ebb_layer_add_parameter (EbbModule *self,
                         const char *name,
                         EbbInit init,
                         double value,
                         const gint64 *shape,
                         guint n_dims,
                         GError **error)
{
  EbbDType dtype;
  const gboolean is_unset = ebb_get_parameters_unset (&dtype), is_absent = ebb_are_parameters_absent ();
  g_autoptr (EbbTensor) tensor = NULL;

  ebb_modes.stopped += is_absent;
  tensor = ebb_tensor_new_empty (shape, n_dims, dtype, NULL, error);
  ebb_modes.stopped -= is_absent;
  return tensor != NULL && (is_unset || set_values (tensor, init, value, error))
         && ebb_module_register_parameter (self, name, tensor, error);
}

gboolean
ebb_layer_add_buffer (EbbModule *self,
                      const char *name,
                      double value,
                      const gint64 *shape,
                      guint n_dims,
                      GError **error)
{
  g_autoptr (EbbTensor) tensor = ebb_tensor_new_empty (shape, n_dims, EBB_DTYPE_F32, NULL, error);

  return tensor != NULL && set_values (tensor, EBB_INIT_CONSTANT, value, error)
         && ebb_module_register_buffer (self, name, tensor, TRUE, error);
}

gboolean
ebb_layer_add_child (EbbModule *self, const char *name, EbbModule *child, GError **error)
{
  gboolean added;

  if (child == NULL)
    return FALSE;
  added = ebb_module_register_child (self, name, child, error);
  g_object_unref (child);
  return added;
}

gboolean
ebb_layer_append_child (EbbModule *self, EbbModule *child, GError **error)
{
  guint number;

  EBB_RETURN_UNLESS_BEGUN (FALSE, error, self, child);
  for (number = ebb_module_get_n_children (self);; number++)
    {
      g_autofree char *name = g_strdup_printf ("%u", number);
      g_autoptr (EbbModule) taken = ebb_module_get_child (self, name); /* where one in between was removed */

      if (taken == NULL)
        return ebb_module_register_child (self, name, child, error);
    }
}

/* -- parameters on their way to ops -------------------------------------------------------------------------------- */

struct _EbbLayerShare
{
  EbbLayerShareFunc func;
  gpointer user_data;
  GDestroyNotify destroy;
};

static void
share_free (EbbLayerShare *share)
{
  if (share->destroy != NULL)
    share->destroy (share->user_data);
  g_free (share);
}

void
ebb_layer_set_share (EbbModule *self, EbbLayerShareFunc func, gpointer user_data, GDestroyNotify destroy)
{
  EbbModulePrivate *priv = ebb_module_get_private (self);

  g_clear_pointer (&priv->share, share_free);
  if (func == NULL)
    return;
  priv->share = g_new (EbbLayerShare, 1);
  *priv->share = (EbbLayerShare){ func, user_data, destroy };
  priv->free_share = share_free;
}

gboolean
ebb_layer_share_parameters (EbbModule *self,
                            EbbTensor **parameters,
                            guint n_parameters,
                            EbbTensor **shared,
                            GError **error)
{
  EbbLayerShare *share = ebb_module_get_private (self)->share;

  return share->func (self, parameters, n_parameters, shared, share->user_data, error);
}

EbbTensor *
ebb_layer_share_input (EbbModule *self, EbbTensor *x, GError **error)
{
  EbbTensor *shared = NULL;

  if (x == NULL || !ebb_layer_is_shared (self))
    return x != NULL ? ebb_tensor_ref (x) : NULL;
  return ebb_layer_share_parameters (self, &x, 1, &shared, error) ? shared : NULL;
}

gboolean
ebb_layer_check_positive (EbbModule *self, const char *property, int value, GError **error)
{
  return value >= 1
         || ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT, "%s: %s is %d, it must be at least 1",
                      ebb_module_get_type_name (self), property, value);
}

gboolean
ebb_layer_check_probability (EbbModule *self, const char *property, double value, GError **error)
{
  return (value >= 0 && value <= 1)
         || ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT, "%s: %s is %g, it must be a probability from 0 to 1",
                      ebb_module_get_type_name (self), property, value);
}

gboolean
ebb_layer_check_eps (EbbModule *self, double eps, GError **error)
{
  return eps >= 0
         || ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT, "%s: eps is %g, it must not be negative",
                      ebb_module_get_type_name (self), eps);
}

G_DEFINE_INTERFACE (EbbOutputLayer, ebb_output_layer, EBB_TYPE_MODULE)

static void
ebb_output_layer_default_init (EbbOutputLayerInterface *interface)
{
}

gboolean
ebb_output_layer_is_open (EbbModule *module)
{
  EbbOutputLayerInterface *interface;
  GType type;

  if (module == NULL || !EBB_IS_OUTPUT_LAYER (module))
    return FALSE;
  interface = EBB_OUTPUT_LAYER_GET_IFACE (module);
  type = G_OBJECT_TYPE (module);
  return interface->parent_interface.g_instance_type == type
         && (ebb_module_is_plain (module, type) || ebb_module_is_only_wrapped (module, type));
}

EbbTensor *
ebb_output_layer_full_loss (EbbTensor *x,
                            EbbTensor *weight,
                            EbbTensor *bias,
                            EbbTensor *targets,
                            double softcap,
                            GError **error)
{
  return ebb_fused_linear_cross_entropy_full (x, weight, bias, targets, EBB_IGNORED_TARGET, 0, softcap,
                                              EBB_REDUCTION_MEAN, error);
}

/* Ranks that shard a layer by itself gather its weight for its own calls alone. */
static EbbTensor *
call_for_output (EbbModule *module,
                 EbbTensor *x,
                 EbbTensor *bias,
                 EbbTensor *targets,
                 double softcap,
                 GError **error)
{
  g_autoptr (EbbArgs) args = NULL;

  if (x == NULL)
    return NULL;
  if (!ebb_output_layer_is_open (module))
    return ebb_fail_null (
        error, EBB_ERROR_NOT_SUPPORTED,
        "%s: an output shares the weight of this module, which is sharded as a unit of its own and has hooks "
        "or a forward of its own; shard it with the module around it",
        ebb_module_get_type_name (module));
  args = ebb_args_new (EBB_ARGS_TUPLE);
  ebb_args_add_tensor (args, NULL, x);
  ebb_args_add_boolean (args, "output", TRUE);
  if (bias != NULL)
    ebb_args_add_tensor (args, "bias", bias);
  if (targets != NULL)
    ebb_args_add_tensor (args, "targets", targets);
  if (softcap != 0)
    ebb_args_add_double (args, "softcap", softcap);
  return ebb_module_call_for_tensor (module, args, error);
}

EbbTensor *
ebb_output_layer_logits (EbbModule *module, EbbTensor *x, EbbTensor *bias, GError **error)
{
  g_autoptr (EbbTensor) weight = NULL;

  if (ebb_module_get_parameter_owner (module) != NULL)
    return call_for_output (module, x, bias, NULL, 0, error);
  if (EBB_IS_OUTPUT_LAYER (module))
    return EBB_OUTPUT_LAYER_GET_IFACE (module)->logits ((EbbOutputLayer *) module, x, bias, error);
  weight = ebb_module_get_parameter (module, "weight");
  return ebb_linear (x, weight, bias, error);
}

EbbTensor *
ebb_output_layer_loss (EbbModule *module,
                       EbbTensor *x,
                       EbbTensor *bias,
                       EbbTensor *targets,
                       double softcap,
                       GError **error)
{
  g_autoptr (EbbTensor) weight = NULL;

  if (ebb_module_get_parameter_owner (module) != NULL)
    return call_for_output (module, x, bias, targets, softcap, error);
  if (EBB_IS_OUTPUT_LAYER (module))
    return EBB_OUTPUT_LAYER_GET_IFACE (module)->loss ((EbbOutputLayer *) module, x, bias, targets, softcap, error);
  weight = ebb_module_get_parameter (module, "weight");
  return ebb_output_layer_full_loss (x, weight, bias, targets, softcap, error);
}
