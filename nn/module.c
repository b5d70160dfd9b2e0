/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "nn/module-instance-private.h"

#include "tensor/error-private.h"

#include <pthread.h>
#include <string.h>

/**
 * EbbModule:
 *
 * A part of a model: named parameters, buffers and children, and a forward computation. Derive from it and implement
 * forward (or forward1, where one tensor comes in and one goes out); call it by ebb_module_call() or
 * ebb_module_call1(), which see to hooks and to whatever wraps the module.
 *
 * Modules implement #GInitable: what can fail in making one (sizes that make no sense, memory) fails in its
 * initialisation. The `ebb_*_new ()` functions do both; after g_object_new() call g_initable_init().
 */

/* Not a GWeakRef: getting that takes a reference under a lock of GLib's own, which notifies a binding's wrapper, which
 * waits for its interpreter, while another thread of the interpreter waits for the lock. Here the lock is the module's.
 */
struct _EbbModuleWeak
{
  int ref_count;
  pthread_mutex_t lock;
  EbbModule *module; /* NULL: gone */
};

enum
{
  PROP_TRAINING = 1,
  PROP_FORWARD_COUNTER,
  PROP_ACTIVATION_CHECKPOINTING,
  N_PROPERTIES
};

gssize ebb_module_private_offset;

static GParamSpec *properties[N_PROPERTIES];
static const EbbActivationCheckpointingFuncs *activation_checkpointing_funcs;

static void initable_interface_init (GInitableIface *interface);

G_DEFINE_TYPE_WITH_CODE (EbbModule,
                         ebb_module,
                         G_TYPE_OBJECT,
                         G_ADD_PRIVATE (EbbModule) G_IMPLEMENT_INTERFACE (G_TYPE_INITABLE, initable_interface_init))

static gboolean
ebb_module_initable_init (GInitable *initable, GCancellable *cancellable, GError **error)
{
  EbbModule *self = EBB_MODULE (initable);
  EbbModulePrivate *priv = ebb_module_get_instance_private (self);

  if (error != NULL && *error != NULL)
    return FALSE;
  if (priv->is_built)
    return TRUE;
  if (!EBB_MODULE_GET_CLASS (self)->build (self, error))
    {
      if (error != NULL && *error == NULL)
        g_set_error (error, EBB_ERROR, EBB_ERROR_CALLBACK, "%s: build failed without saying why",
                     ebb_module_get_type_name (self));
      return FALSE;
    }
  priv->is_built = TRUE;
  return TRUE;
}

static void
initable_interface_init (GInitableIface *interface)
{
  interface->init = ebb_module_initable_init;
}

static gboolean
ebb_module_default_build (EbbModule *self, GError **error)
{
  return TRUE;
}

static void
ebb_module_get_property (GObject *object, guint id, GValue *value, GParamSpec *spec)
{
  EbbModule *self = EBB_MODULE (object);

  switch (id)
    {
    case PROP_TRAINING: g_value_set_boolean (value, ebb_module_get_training (self)); break;
    case PROP_FORWARD_COUNTER: g_value_set_uint (value, ebb_module_get_forward_counter (self)); break;
    case PROP_ACTIVATION_CHECKPOINTING:
      g_value_set_boolean (value, ebb_module_get_activation_checkpointing (self));
      break;
    default: G_OBJECT_WARN_INVALID_PROPERTY_ID (object, id, spec);
    }
}

static void
ebb_module_set_property (GObject *object, guint id, const GValue *value, GParamSpec *spec)
{
  EbbModule *self = EBB_MODULE (object);
  g_autoptr (GError) error = NULL;

  switch (id)
    {
    case PROP_TRAINING: ebb_module_set_training (self, g_value_get_boolean (value)); break;
    case PROP_ACTIVATION_CHECKPOINTING:
      if (!ebb_module_set_activation_checkpointing (self, g_value_get_boolean (value), &error))
        g_warning ("%s", error->message);
      break;
    default: G_OBJECT_WARN_INVALID_PROPERTY_ID (object, id, spec);
    }
}

static void
weak_clear (EbbModulePrivate *priv)
{
  EbbModuleWeak *weak = g_atomic_pointer_get (&priv->weak);

  if (weak == NULL)
    return;
  pthread_mutex_lock (&weak->lock);
  weak->module = NULL;
  pthread_mutex_unlock (&weak->lock);
}

static void
ebb_module_dispose (GObject *object)
{
  weak_clear (ebb_module_get_instance_private (EBB_MODULE (object)));
  G_OBJECT_CLASS (ebb_module_parent_class)->dispose (object);
}

static void
ebb_module_finalize (GObject *object)
{
  EbbModulePrivate *priv = ebb_module_get_instance_private (EBB_MODULE (object));

  g_clear_pointer (&priv->plan, ebb_call_plan_unref);
  pthread_mutex_destroy (&priv->plan_lock);
  g_clear_pointer (&priv->share, ebb_layer_share_free);
  ebb_module_clear_registry (priv);
  g_clear_pointer (&priv->weak, ebb_module_weak_free);
  G_OBJECT_CLASS (ebb_module_parent_class)->finalize (object);
}

static void
ebb_module_class_init (EbbModuleClass *klass)
{
  GObjectClass *object_class = G_OBJECT_CLASS (klass);

  ebb_module_private_offset = g_type_class_get_instance_private_offset (klass);
  object_class->get_property = ebb_module_get_property;
  object_class->set_property = ebb_module_set_property;
  object_class->dispose = ebb_module_dispose;
  object_class->finalize = ebb_module_finalize;
  klass->build = ebb_module_default_build;
  klass->forward = ebb_module_default_forward;
  klass->forward1 = ebb_module_default_forward1;

  /**
   * EbbModule:training:
   *
   * Whether the module and all below it behave as in training (dropout drops, batch statistics move) or in evaluation.
   */
  properties[PROP_TRAINING] =
      g_param_spec_boolean ("training", NULL, "Whether the module is in training mode", TRUE,
                            G_PARAM_READWRITE | G_PARAM_EXPLICIT_NOTIFY | G_PARAM_STATIC_STRINGS);
  /**
   * EbbModule:forward-counter:
   *
   * Forwards of the module whose backward is still to come; counted where the module is wrapped.
   */
  properties[PROP_FORWARD_COUNTER] = g_param_spec_uint ("forward-counter", NULL,
                                                        "Forwards whose backward is still to come", 0, G_MAXUINT, 0,
                                                        G_PARAM_READABLE | G_PARAM_STATIC_STRINGS);
  /**
   * EbbModule:activation-checkpointing:
   *
   * Whether the module keeps only its inputs in the forward pass and recomputes the rest when the backward pass needs
   * it. It is the same as the wrapper, and follows it: see ebb_module_set_activation_checkpointing().
   */
  properties[PROP_ACTIVATION_CHECKPOINTING] = g_param_spec_boolean ("activation-checkpointing", NULL,
                                                                    "Whether activations are recomputed", FALSE,
                                                                    G_PARAM_READWRITE | G_PARAM_EXPLICIT_NOTIFY
                                                                        | G_PARAM_STATIC_STRINGS);
  g_object_class_install_properties (object_class, N_PROPERTIES, properties);
}

static void
ebb_module_init (EbbModule *self)
{
  EbbModulePrivate *priv = ebb_module_get_instance_private (self);

  priv->training = TRUE;
  pthread_mutex_init (&priv->plan_lock, NULL);
}

const char *
ebb_module_get_type_name (EbbModule *self)
{
  return ebb_type_get_short_name (G_OBJECT_TYPE (self));
}

const char *
ebb_type_get_short_name (GType type)
{
  const char *name = g_type_name (type);
  const char *plus = name != NULL ? strrchr (name, '+') : NULL; /* Python's types are named "module+Class" */

  if (name == NULL)
    return "module of an unknown type";
  if (plus != NULL)
    return plus + 1;
  return strncmp (name, "Ebb", 3) == 0 && g_ascii_isupper (name[3]) ? name + 3 : name;
}

/**
 * ebb_module_get_training:
 * @self: a module
 *
 * Returns: %TRUE in training mode, %FALSE in evaluation mode
 */
gboolean
ebb_module_get_training (EbbModule *self)
{
  EbbModulePrivate *priv;

  g_return_val_if_fail (EBB_IS_MODULE (self), FALSE);

  priv = ebb_module_get_instance_private (self);
  return priv->training;
}

static gboolean
set_training (EbbModule *module, const char *path, gpointer user_data)
{
  EbbModulePrivate *priv = ebb_module_get_instance_private (module);
  gboolean training = GPOINTER_TO_INT (user_data);

  if (priv->training != training)
    {
      priv->training = training != FALSE;
      g_object_notify_by_pspec (G_OBJECT (module), properties[PROP_TRAINING]);
    }
  return TRUE;
}

/**
 * ebb_module_set_training:
 * @self: a module
 * @training: %TRUE for training, %FALSE for evaluation
 *
 * Switches the module and all below it between training and evaluation.
 */
void
ebb_module_set_training (EbbModule *self, gboolean training)
{
  g_return_if_fail (EBB_IS_MODULE (self));

  ebb_module_visit (self, set_training, GINT_TO_POINTER (training != FALSE));
}

/**
 * ebb_module_get_forward_counter:
 * @self: a module
 *
 * Counts the forwards of the module whose backward is still to come. Forwards without gradients do not count, and only
 * a wrapper counts at all: one more when a forward has ended, one less when its recompute has ended. Inside a forward
 * it is the number of those before it, inside a recompute that of those still to come with this one.
 *
 * Returns: the number of forwards
 */
guint
ebb_module_get_forward_counter (EbbModule *self)
{
  EbbModulePrivate *priv;

  g_return_val_if_fail (EBB_IS_MODULE (self), 0);

  priv = ebb_module_get_instance_private (self);
  return priv->forward_counter;
}

void
ebb_module_add_to_forward_counter (EbbModule *self, int delta)
{
  EbbModulePrivate *priv = ebb_module_get_instance_private (self);

  g_return_if_fail (delta >= 0 || priv->forward_counter >= (guint) -delta);

  priv->forward_counter += (guint) delta;
}

void
ebb_module_set_activation_checkpointing_funcs (const EbbActivationCheckpointingFuncs *funcs)
{
  activation_checkpointing_funcs = funcs;
}

void
ebb_module_notify_activation_checkpointing (EbbModule *self)
{
  g_object_notify_by_pspec (G_OBJECT (self), properties[PROP_ACTIVATION_CHECKPOINTING]);
}

/**
 * ebb_module_get_activation_checkpointing:
 * @self: a module
 *
 * Returns: whether there is a checkpoint wrapper on the module, however it came there and with whatever options, or
 *   a division of its layers into chunks
 */
gboolean
ebb_module_get_activation_checkpointing (EbbModule *self)
{
  g_return_val_if_fail (EBB_IS_MODULE (self), FALSE);

  return activation_checkpointing_funcs != NULL && activation_checkpointing_funcs->get (self);
}

/**
 * ebb_module_set_activation_checkpointing:
 * @self: a module
 * @enabled: whether activations are recomputed
 * @error: return location for an error
 *
 * Wraps the module with default options, or takes off every checkpoint wrapper that is on it, however it came there,
 * and a division of its layers into chunks. Modules below it stay as they are. Nothing happens where it is so already:
 * a module that is wrapped with other options keeps these.
 *
 * A list of modules, which is never called itself, can't be switched on: its modules can.
 *
 * Returns: %TRUE if it is so now, %FALSE with @error set
 */
gboolean
ebb_module_set_activation_checkpointing (EbbModule *self, gboolean enabled, GError **error)
{
  if (!EBB_MAY_BEGIN (error, self))
    return FALSE;
  g_return_val_if_fail (EBB_IS_MODULE (self), FALSE);

  if (ebb_module_get_activation_checkpointing (self) == (enabled != FALSE))
    return TRUE;
  if (activation_checkpointing_funcs == NULL)
    {
      g_set_error (error, EBB_ERROR, EBB_ERROR_NOT_SUPPORTED,
                   "%s: this build of the library has no activation checkpointing", ebb_module_get_type_name (self));
      return FALSE;
    }
  return activation_checkpointing_funcs->set (self, enabled != FALSE, error);
}

/* -- weak references ----------------------------------------------------------------------------------------------- */

static EbbModuleWeak *
weak_ref (EbbModuleWeak *weak)
{
  __atomic_add_fetch (&weak->ref_count, 1, __ATOMIC_RELAXED);
  return weak;
}

EbbModuleWeak *
ebb_module_weak_new (EbbModule *self)
{
  EbbModulePrivate *priv = ebb_module_get_private (self);
  EbbModuleWeak *weak = g_atomic_pointer_get (&priv->weak);

  if (weak == NULL)
    {
      weak = g_new0 (EbbModuleWeak, 1);
      weak->ref_count = 1;
      weak->module = self;
      pthread_mutex_init (&weak->lock, NULL);
      if (!g_atomic_pointer_compare_and_exchange (&priv->weak, NULL, weak))
        {
          ebb_module_weak_free (weak);
          weak = g_atomic_pointer_get (&priv->weak);
        }
    }
  return weak_ref (weak);
}

EbbModule *
ebb_module_weak_get (EbbModuleWeak *weak)
{
  EbbModule *module;

  pthread_mutex_lock (&weak->lock);
  module = weak->module != NULL ? g_object_ref (weak->module) : NULL;
  pthread_mutex_unlock (&weak->lock);
  return module;
}

void
ebb_module_weak_free (EbbModuleWeak *weak)
{
  if (__atomic_sub_fetch (&weak->ref_count, 1, __ATOMIC_ACQ_REL) != 0)
    return;
  pthread_mutex_destroy (&weak->lock);
  g_free (weak);
}
