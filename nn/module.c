/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "nn/module-instance-private.h"

#include "nn/args-private.h"
#include "tensor/autograd/parameter-owner-private.h"
#include "tensor/error-private.h"
#include "tensor/util/lock-private.h"

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
static void clear_registry (EbbModulePrivate *priv);

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
        ebb_error_set (error, EBB_ERROR_CALLBACK, "%s: build failed without saying why",
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
  EBB_AUTO_LOCK (&weak->lock);
  weak->module = NULL;
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

  if (priv->plan != NULL)
    priv->free_plan (priv->plan);
  pthread_mutex_destroy (&priv->plan_lock);
  if (priv->share != NULL)
    priv->free_share (priv->share);
  clear_registry (priv);
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
  EBB_RETURN_UNLESS_BEGUN (FALSE, error, self);
  g_return_val_if_fail (EBB_IS_MODULE (self), FALSE);

  if (ebb_module_get_activation_checkpointing (self) == (enabled != FALSE))
    return TRUE;
  if (activation_checkpointing_funcs == NULL)
    return ebb_fail (error, EBB_ERROR_NOT_SUPPORTED,
                     "%s: this build of the library has no activation checkpointing", ebb_module_get_type_name (self));
  return activation_checkpointing_funcs->set (self, enabled != FALSE, error);
}

/* -- what a class has until it overrides it ------------------------------------------------------------------------ */

EbbTensor *
ebb_module_take_only_tensor (EbbModule *self, EbbArgs *result, GError **error)
{
  EbbTensor *tensor = ebb_args_peek_only_tensor (result);

  if (result == NULL)
    return NULL;
  if (tensor != NULL)
    return ebb_tensor_ref (tensor);
  return ebb_fail_null (error, EBB_ERROR_INVALID_ARGUMENT, "%s: one tensor was asked for, but it gave %s",
                        ebb_module_get_type_name (self), ebb_in_message (ebb_args_to_string (result)));
}

EbbArgs *
ebb_module_default_forward (EbbModule *self, EbbArgs *args, GError **error)
{
  EbbModulePrivate *priv = ebb_module_get_private (self);
  EbbModuleClass *klass = EBB_MODULE_GET_CLASS (self);
  EbbTensor *input = ebb_args_peek_only_tensor (args);
  g_autoptr (EbbTensor) output = NULL;
  gboolean outer = priv->in_default_forward;

  if (klass->forward1 == ebb_module_default_forward1)
    return ebb_fail_null (error, EBB_ERROR_CALLBACK, "%s implements neither forward nor forward1",
                          ebb_module_get_type_name (self));
  if (input == NULL)
    return ebb_fail_null (error, EBB_ERROR_INVALID_ARGUMENT, "%s: takes one tensor, but got %s",
                          ebb_module_get_type_name (self), ebb_in_message (ebb_args_to_string (args)));
  priv->in_default_forward = TRUE;
  output = klass->forward1 (self, input, error);
  priv->in_default_forward = outer;
  return output != NULL ? ebb_args_new_for_tensor (output) : NULL;
}

EbbTensor *
ebb_module_default_forward1 (EbbModule *self, EbbTensor *input, GError **error)
{
  EbbModulePrivate *priv = ebb_module_get_private (self);
  EbbModuleClass *klass = EBB_MODULE_GET_CLASS (self);
  g_autoptr (EbbArgs) args = NULL;
  g_autoptr (EbbArgs) result = NULL;

  /* A forward1 that chains up while forward is already here has nobody left to go to. */
  if (klass->forward == ebb_module_default_forward || priv->in_default_forward)
    return ebb_fail_null (error, EBB_ERROR_CALLBACK, "%s implements neither forward nor forward1",
                          ebb_module_get_type_name (self));
  args = ebb_args_new_for_tensor (input);
  result = klass->forward (self, args, error);
  return ebb_module_take_only_tensor (self, result, error);
}

/* -- what a module owns by name ------------------------------------------------------------------------------------ */

/* The arrays are short and ordered as registered; no call of a module looks into them. */

static EbbNamedTensor *
registry_find (EbbTensorRegistry *registry, const char *name)
{
  for (guint i = 0; i < registry->n_items; i++)
    if (strcmp (registry->items[i].name, name) == 0)
      return &registry->items[i];
  return NULL;
}

static EbbNamedTensor *
registry_add (EbbTensorRegistry *registry, const char *name)
{
  EbbNamedTensor *item;

  registry->items = g_renew (EbbNamedTensor, registry->items, registry->n_items + 1);
  item = &registry->items[registry->n_items++];
  *item = (EbbNamedTensor){ .name = g_strdup (name), .persistent = TRUE };
  return item;
}

/* Puts @tensor (NULL: nothing) under @name. A bound name stays, empty, with its place in the order. */
static void
registry_set (EbbTensorRegistry *registry, const char *name, EbbTensor *tensor, gboolean persistent)
{
  EbbNamedTensor *item = registry_find (registry, name);
  EbbTensor *old;

  if (item == NULL && tensor == NULL)
    return;
  if (item == NULL)
    item = registry_add (registry, name);
  old = item->tensor;
  item->tensor = tensor != NULL ? ebb_tensor_ref (tensor) : NULL;
  item->persistent = persistent;
  if (item->field != NULL)
    *item->field = item->tensor;
  else if (tensor == NULL)
    {
      g_free (item->name);
      registry->n_items--;
      memmove (item, item + 1, (gsize) ((registry->items + registry->n_items) - item) * sizeof *item);
    }
  if (old != NULL)
    ebb_tensor_unref (old);
}

static void
registry_clear (EbbTensorRegistry *registry)
{
  for (guint i = 0; i < registry->n_items; i++)
    {
      g_free (registry->items[i].name);
      g_clear_pointer (&registry->items[i].tensor, ebb_tensor_unref);
    }
  g_clear_pointer (&registry->items, g_free);
  registry->n_items = 0;
}

static void
registry_bind (EbbTensorRegistry *registry, const char *name, EbbTensor **field)
{
  EbbNamedTensor *item = registry_find (registry, name);

  if (item == NULL)
    item = registry_add (registry, name);
  item->field = field;
  *field = item->tensor;
}

static EbbNamedModule *
find_child (EbbModulePrivate *priv, const char *name)
{
  for (guint i = 0; i < priv->n_children; i++)
    if (strcmp (priv->children[i].name, name) == 0)
      return &priv->children[i];
  return NULL;
}

static EbbNamedModule *
add_child (EbbModulePrivate *priv, const char *name)
{
  EbbNamedModule *item;

  priv->children = g_renew (EbbNamedModule, priv->children, priv->n_children + 1);
  item = &priv->children[priv->n_children++];
  *item = (EbbNamedModule){ .name = g_strdup (name) };
  return item;
}

/* @child is no longer at this place of @parent, which may have it at another. */
static void
forget_parent (EbbModulePrivate *parent, EbbModule *child)
{
  EbbModulePrivate *priv = ebb_module_get_private (child);

  for (guint i = 0; i < parent->n_children; i++)
    if (parent->children[i].module == child)
      return;
  if (priv->parent != NULL && ebb_module_get_private (priv->parent) == parent)
    priv->parent = NULL;
}

static void
clear_registry (EbbModulePrivate *priv)
{
  registry_clear (&priv->parameters);
  registry_clear (&priv->buffers);
  for (guint i = 0; i < priv->n_children; i++)
    {
      EbbModule *child = g_steal_pointer (&priv->children[i].module);

      g_free (priv->children[i].name);
      if (child != NULL)
        {
          forget_parent (priv, child);
          g_object_unref (child);
        }
    }
  g_clear_pointer (&priv->children, g_free);
  priv->n_children = 0;
}

void
ebb_module_bind_parameter (EbbModule *self, const char *name, EbbTensor **field)
{
  registry_bind (&ebb_module_get_private (self)->parameters, name, field);
}

void
ebb_module_bind_buffer (EbbModule *self, const char *name, EbbTensor **field)
{
  registry_bind (&ebb_module_get_private (self)->buffers, name, field);
}

void
ebb_module_bind_child (EbbModule *self, const char *name, EbbModule **field)
{
  EbbModulePrivate *priv = ebb_module_get_private (self);
  EbbNamedModule *item = find_child (priv, name);

  if (item == NULL)
    item = add_child (priv, name);
  item->field = field;
  *field = item->module;
}

guint
ebb_module_get_n_children (EbbModule *self)
{
  return ebb_module_get_private (self)->n_children;
}

EbbModule *
ebb_module_peek_child (EbbModule *self, guint index)
{
  EbbModulePrivate *priv = ebb_module_get_private (self);

  return index < priv->n_children ? priv->children[index].module : NULL;
}

typedef enum
{
  NAME_PARAMETER,
  NAME_BUFFER,
  NAME_CHILD
} NameKind;

/* A name may stand for one thing only, and a dot would read as a path. */
static gboolean
check_name (EbbModule *self, const char *name, NameKind kind, GError **error)
{
  static const char *const kinds[] = { "parameter", "buffer", "child" };
  EbbModulePrivate *priv = ebb_module_get_private (self);
  EbbNamedTensor *parameter, *buffer;
  EbbNamedModule *child;
  NameKind other;

  if (*name == '\0' || strchr (name, '.') != NULL || !g_utf8_validate (name, -1, NULL))
    return ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT,
                     "%s: \"%s\" can't name a %s; a name has at least one character and no dot",
                     ebb_module_get_type_name (self), ebb_in_message (g_utf8_make_valid (name, -1)), kinds[kind]);
  parameter = registry_find (&priv->parameters, name);
  buffer = registry_find (&priv->buffers, name);
  child = find_child (priv, name);
  /* A quantised weight is a buffer in the place of the parameter, whose bound name has nothing registered then. */
  if (parameter != NULL && (kind != NAME_BUFFER || parameter->tensor != NULL)
      && (buffer == NULL || buffer->tensor == NULL))
    other = NAME_PARAMETER;
  else if (buffer != NULL)
    other = NAME_BUFFER;
  else if (child != NULL)
    other = NAME_CHILD;
  else
    return TRUE;
  return other == kind
         || ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT, "%s: \"%s\" can't name a %s, it is a %s already",
                      ebb_module_get_type_name (self), name, kinds[kind], kinds[other]);
}

static gboolean
check_tensor (EbbModule *self, const char *name, EbbTensor *tensor, NameKind kind, GError **error)
{
  if (kind == NAME_PARAMETER && !ebb_dtype_is_floating_point (ebb_tensor_get_dtype (tensor)))
    return ebb_fail (error, EBB_ERROR_DTYPE,
                     "%s: parameter \"%s\" is of %s; a parameter is of a floating dtype, register others as buffers",
                     ebb_module_get_type_name (self), name, ebb_dtype_get_name (ebb_tensor_get_dtype (tensor)));
  if (tensor->node != NULL)
    return ebb_fail (error, EBB_ERROR_GRAPH,
                     "%s: \"%s\" is the result of an operation that gradients flow through; detach it first",
                     ebb_module_get_type_name (self), name);
  return TRUE;
}

/* A sharded parameter can neither leave its module, nor can a shard of it be used in another one. */
static gboolean
check_not_split (EbbModule *self, const char *name, EbbTensor *parameter, GError **error)
{
  EbbNamedTensor *item = registry_find (&ebb_module_get_private (self)->parameters, name);
  EbbTensor *old = item != NULL ? item->tensor : NULL;

  return parameter == old
         || ((old == NULL || !ebb_parameter_is_sharded (old))
             && (parameter == NULL || !ebb_parameter_is_sharded (parameter)))
         || ebb_fail (error, EBB_ERROR_STATE,
                      "%s: the parameter \"%s\" is split over ranks; register parameters before ebb_fully_shard()",
                      ebb_module_get_type_name (self), name);
}

/**
 * ebb_module_register_parameter:
 * @self: a module
 * @name: the parameter's name, without dots
 * @parameter: (nullable): a tensor of a floating dtype that is not the result of an operation; %NULL removes the
 *   parameter of that name
 * @error: return location for an error
 *
 * Makes a tensor a parameter of the module, in place of the parameter that has the name already. Unless it is a
 * parameter elsewhere, it begins to require a gradient. Its memory counts as parameters from now on.
 *
 * Returns: %TRUE if it was registered, %FALSE with @error set
 */
gboolean
ebb_module_register_parameter (EbbModule *self, const char *name, EbbTensor *parameter, GError **error)
{
  EBB_RETURN_UNLESS_BEGUN (FALSE, error, self, name);
  g_return_val_if_fail (EBB_IS_MODULE (self), FALSE);

  if (!check_name (self, name, NAME_PARAMETER, error) || !check_not_split (self, name, parameter, error))
    return FALSE;
  if (parameter != NULL)
    {
      if (!check_tensor (self, name, parameter, NAME_PARAMETER, error))
        return FALSE;
      if (!parameter->is_parameter && !ebb_tensor_set_requires_grad (parameter, TRUE, error))
        return FALSE;
      parameter->is_parameter = TRUE;
      ebb_storage_set_purpose (parameter->storage, EBB_PURPOSE_PARAMETER);
    }
  registry_set (&ebb_module_get_private (self)->parameters, name, parameter, TRUE);
  return TRUE;
}

/**
 * ebb_module_register_buffer:
 * @self: a module
 * @name: the buffer's name, without dots
 * @buffer: (nullable): a tensor that is not the result of an operation; %NULL removes the buffer of that name
 * @persistent: whether the buffer is part of the state dict
 * @error: return location for an error
 *
 * Makes a tensor a buffer of the module: it moves and is saved with the module, but is not trained.
 *
 * Returns: %TRUE if it was registered, %FALSE with @error set
 */
gboolean
ebb_module_register_buffer (EbbModule *self, const char *name, EbbTensor *buffer, gboolean persistent, GError **error)
{
  EBB_RETURN_UNLESS_BEGUN (FALSE, error, self, name);
  g_return_val_if_fail (EBB_IS_MODULE (self), FALSE);

  if (!check_name (self, name, NAME_BUFFER, error))
    return FALSE;
  if (buffer != NULL)
    {
      if (!check_tensor (self, name, buffer, NAME_BUFFER, error))
        return FALSE;
      buffer->is_buffer = TRUE;
      ebb_storage_set_purpose (buffer->storage, EBB_PURPOSE_PARAMETER);
    }
  registry_set (&ebb_module_get_private (self)->buffers, name, buffer, persistent);
  return TRUE;
}

gboolean
ebb_module_register_exact_buffer (EbbModule *self,
                                  const char *name,
                                  EbbTensor *buffer,
                                  gboolean persistent,
                                  GError **error)
{
  if (!ebb_module_register_buffer (self, name, buffer, persistent, error))
    return FALSE;
  registry_find (&ebb_module_get_private (self)->buffers, name)->is_exact = TRUE;
  return TRUE;
}

/* Modules in each other: what walks the tree, and frees it, needs some of the stack for each. */
#define MAX_DEPTH 500

typedef struct
{
  EbbModule *sought;
  gboolean found;
  guint depth; /* of those below */
} Membership;

static gboolean
look_for_module (EbbModule *module, const char *path, gpointer user_data)
{
  Membership *membership = user_data;

  guint depth = *path != '\0';

  for (const char *dot = path; (dot = strchr (dot, '.')) != NULL; dot++)
    depth++;
  membership->depth = MAX (membership->depth, depth);
  membership->found = module == membership->sought;
  return !membership->found;
}

static guint
count_parents (EbbModule *self)
{
  guint n = 0;

  while ((self = ebb_module_get_private (self)->parent) != NULL)
    n++;
  return n;
}

static gboolean
check_place (EbbModule *self, const char *name, EbbModule *child, GError **error)
{
  Membership membership = { .sought = self };
  guint depth;

  ebb_module_visit (child, look_for_module, &membership);
  if (membership.found)
    return ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT,
                     "%s: \"%s\" can't be a child, it is or holds the module itself", ebb_module_get_type_name (self),
                     name);
  depth = count_parents (self) + 2 + membership.depth;
  return depth <= MAX_DEPTH
         || ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT,
                      "%s: with the child \"%s\" modules would be nested %u deep; at most %d can be",
                      ebb_module_get_type_name (self), name, depth, MAX_DEPTH);
}

/**
 * ebb_module_register_child:
 * @self: a module
 * @name: the child's name, without dots
 * @child: (nullable): a module that is not, and does not hold, @self; %NULL removes the child of that name
 * @error: return location for an error
 *
 * Makes a module a part of this one, in place of the child that has the name already. One module may be a child in
 * several places; its parameters are shared. Modules can be nested 500 deep.
 *
 * Returns: %TRUE if it was registered, %FALSE with @error set
 */
gboolean
ebb_module_register_child (EbbModule *self, const char *name, EbbModule *child, GError **error)
{
  EbbModulePrivate *priv;
  EbbNamedModule *item;
  EbbModule *old;

  EBB_RETURN_UNLESS_BEGUN (FALSE, error, self, name);
  g_return_val_if_fail (EBB_IS_MODULE (self), FALSE);
  g_return_val_if_fail (child == NULL || EBB_IS_MODULE (child), FALSE);

  if (!check_name (self, name, NAME_CHILD, error) || (child != NULL && !check_place (self, name, child, error)))
    return FALSE;
  priv = ebb_module_get_private (self);
  item = find_child (priv, name);
  if (item == NULL && child == NULL)
    return TRUE;
  if (item == NULL)
    item = add_child (priv, name);
  old = item->module;
  item->module = child != NULL ? g_object_ref (child) : NULL;
  if (child != NULL && ebb_module_get_private (child)->parent == NULL)
    ebb_module_get_private (child)->parent = self;
  if (item->field != NULL)
    *item->field = child;
  else if (child == NULL)
    {
      g_free (item->name);
      priv->n_children--;
      memmove (item, item + 1, (gsize) ((priv->children + priv->n_children) - item) * sizeof *item);
    }
  if (old != NULL)
    {
      forget_parent (priv, old);
      g_object_unref (old);
    }
  return TRUE;
}

char *
ebb_module_get_path (EbbModule *self)
{
  char *path = g_strdup ("");

  /* A parent that has the module under no name adds nothing. */
  for (EbbModule *parent; (parent = ebb_module_get_private (self)->parent) != NULL; self = parent)
    {
      EbbModulePrivate *priv = ebb_module_get_private (parent);

      for (guint i = 0; i < priv->n_children; i++)
        if (priv->children[i].module == self)
          {
            g_autofree char *below = path;

            path = *below == '\0' ? g_strdup (priv->children[i].name)
                                  : g_strconcat (priv->children[i].name, ".", below, NULL);
            break;
          }
    }
  return path;
}

/* The module that a dotted path leads to, without a reference; *name is what remains: the last part. */
static EbbModule *
follow_path (EbbModule *self, const char *path, const char **name)
{
  const char *dot;

  while ((dot = strchr (path, '.')) != NULL)
    {
      g_autofree char *part = g_strndup (path, (gsize) (dot - path));
      EbbNamedModule *item = find_child (ebb_module_get_private (self), part);

      if (item == NULL || item->module == NULL)
        return NULL;
      self = item->module;
      path = dot + 1;
    }
  *name = path;
  return self;
}

/**
 * ebb_module_get_parameter:
 * @self: a module
 * @name: a parameter's name, or the path to it: `h.0.attn.c_attn.weight`
 *
 * Returns: (nullable) (transfer full): the parameter itself, %NULL if there is none of that name
 */
EbbTensor *
ebb_module_get_parameter (EbbModule *self, const char *name)
{
  EbbNamedTensor *item;

  g_return_val_if_fail (EBB_IS_MODULE (self), NULL);
  g_return_val_if_fail (name != NULL, NULL);

  self = follow_path (self, name, &name);
  item = self != NULL ? registry_find (&ebb_module_get_private (self)->parameters, name) : NULL;
  return item != NULL && item->tensor != NULL ? ebb_tensor_ref (item->tensor) : NULL;
}

/**
 * ebb_module_get_buffer:
 * @self: a module
 * @name: a buffer's name, or the path to it
 *
 * Returns: (nullable) (transfer full): the buffer itself, %NULL if there is none of that name
 */
EbbTensor *
ebb_module_get_buffer (EbbModule *self, const char *name)
{
  EbbNamedTensor *item;

  g_return_val_if_fail (EBB_IS_MODULE (self), NULL);
  g_return_val_if_fail (name != NULL, NULL);

  self = follow_path (self, name, &name);
  item = self != NULL ? registry_find (&ebb_module_get_private (self)->buffers, name) : NULL;
  return item != NULL && item->tensor != NULL ? ebb_tensor_ref (item->tensor) : NULL;
}

/**
 * ebb_module_get_child:
 * @self: a module
 * @name: a child's name, or the path to a module below: `h.0.attn`
 *
 * Returns: (nullable) (transfer full): the module, %NULL if there is none of that name
 */
EbbModule *
ebb_module_get_child (EbbModule *self, const char *name)
{
  EbbNamedModule *item;

  g_return_val_if_fail (EBB_IS_MODULE (self), NULL);
  g_return_val_if_fail (name != NULL, NULL);

  self = follow_path (self, name, &name);
  item = self != NULL ? find_child (ebb_module_get_private (self), name) : NULL;
  return item != NULL && item->module != NULL ? g_object_ref (item->module) : NULL;
}

/* -- the tree ------------------------------------------------------------------------------------------------------ */

char *
ebb_module_join_path (const char *path, const char *name)
{
  return *path == '\0' ? g_strdup (name) : g_strconcat (path, ".", name, NULL);
}

static gboolean
visit_below (EbbModule *self, const char *path, GHashTable *seen, EbbModuleVisitor visit, gpointer user_data)
{
  EbbModulePrivate *priv = ebb_module_get_private (self);

  if (seen != NULL && !g_hash_table_add (seen, self))
    return TRUE;
  if (!visit (self, path, user_data))
    return FALSE;
  for (guint i = 0; i < priv->n_children; i++)
    if (priv->children[i].module != NULL)
      {
        g_autofree char *child_path = ebb_module_join_path (path, priv->children[i].name);

        if (!visit_below (priv->children[i].module, child_path, seen, visit, user_data))
          return FALSE;
      }
  return TRUE;
}

gboolean
ebb_module_visit (EbbModule *self, EbbModuleVisitor visit, gpointer user_data)
{
  g_autoptr (GHashTable) seen = NULL;

  if (ebb_module_get_private (self)->n_children == 0)
    return visit (self, "", user_data);
  seen = g_hash_table_new (NULL, NULL);
  return visit_below (self, "", seen, visit, user_data);
}

void
ebb_module_visit_paths (EbbModule *self, EbbModuleVisitor visit, gpointer user_data)
{
  visit_below (self, "", NULL, visit, user_data);
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

  EBB_AUTO_LOCK (&weak->lock);
  module = weak->module != NULL ? g_object_ref (weak->module) : NULL;
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
