/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "nn/module-instance-private.h"
#include "tensor/autograd/autograd.h"
#include "tensor/autograd/op-private.h"
#include "tensor/autograd/parameter-owner-private.h"
#include "tensor/error-private.h"
#include "tensor/ops/pointwise.h"
#include "tensor/tensor-private.h"

/* Walks a tree of modules: lists, names, counts, describes and changes its modules, parameters and buffers. */

typedef struct
{
  GPtrArray *values;
  GPtrArray *names;
  GHashTable *seen;
  gboolean buffers;
} Collection;

static gboolean
collect_tensors (EbbModule *module, const char *path, gpointer user_data)
{
  EbbModulePrivate *priv = ebb_module_get_private (module);
  Collection *collection = user_data;
  EbbTensorRegistry *registry = collection->buffers ? &priv->buffers : &priv->parameters;

  for (guint i = 0; i < registry->n_items; i++)
    {
      EbbNamedTensor *item = &registry->items[i];

      if (item->tensor == NULL || !g_hash_table_add (collection->seen, item->tensor))
        continue;
      if (collection->values != NULL)
        g_ptr_array_add (collection->values, ebb_tensor_ref (item->tensor));
      if (collection->names != NULL)
        g_ptr_array_add (collection->names, ebb_module_join_path (path, item->name));
    }
  return TRUE;
}

static void
collect (EbbModule *self, gboolean recurse, Collection *collection)
{
  g_autoptr (GHashTable) seen = g_hash_table_new (NULL, NULL);

  collection->seen = seen;
  if (recurse)
    ebb_module_visit (self, collect_tensors, collection);
  else
    collect_tensors (self, "", collection);
}

/* Ends an array of pointers with a NULL and hands it over. */
static gpointer
finish_array (GPtrArray *array, guint *length)
{
  if (length != NULL)
    *length = array->len;
  g_ptr_array_add (array, NULL);
  return g_ptr_array_free (array, FALSE);
}

GPtrArray *
ebb_module_list_parameters (EbbModule *self)
{
  Collection collection = { .values = g_ptr_array_new_with_free_func ((GDestroyNotify) ebb_tensor_unref) };

  collect (self, TRUE, &collection);
  return collection.values;
}

EbbDevice *
ebb_module_find_device (EbbModule *self, EbbDevice *otherwise)
{
  g_autoptr (GPtrArray) parameters = ebb_module_list_parameters (self);

  return parameters->len > 0 ? ebb_parameter_get_device (parameters->pdata[0]) : otherwise;
}

static EbbTensor **
get_tensors (EbbModule *self, gboolean recurse, gboolean buffers, guint *length)
{
  Collection collection = { .values = g_ptr_array_new (), .buffers = buffers };

  collect (self, recurse, &collection);
  return finish_array (collection.values, length);
}

static char **
get_tensor_names (EbbModule *self, gboolean recurse, gboolean buffers)
{
  Collection collection = { .names = g_ptr_array_new (), .buffers = buffers };

  collect (self, recurse, &collection);
  return finish_array (collection.names, NULL);
}

/**
 * ebb_module_get_parameters:
 * @self: a module
 * @recurse: whether to include those of the modules below
 * @n_parameters: (out): how many there are
 *
 * Lists the parameters, each once, those of a module before those of its children. The array ends with a %NULL that is
 * not counted.
 *
 * Returns: (transfer full) (array length=n_parameters): the parameters themselves
 */
EbbTensor **
ebb_module_get_parameters (EbbModule *self, gboolean recurse, guint *n_parameters)
{
  g_return_val_if_fail (EBB_IS_MODULE (self), NULL);

  return get_tensors (self, recurse, FALSE, n_parameters);
}

/**
 * ebb_module_get_parameter_names:
 * @self: a module
 * @recurse: whether to include those of the modules below
 *
 * Names the parameters that ebb_module_get_parameters() lists, in the same order: a shared one by its first name.
 *
 * Returns: (transfer full) (array zero-terminated=1): paths like `h.0.attn.c_attn.weight`
 */
char **
ebb_module_get_parameter_names (EbbModule *self, gboolean recurse)
{
  g_return_val_if_fail (EBB_IS_MODULE (self), NULL);

  return get_tensor_names (self, recurse, FALSE);
}

/**
 * ebb_module_get_buffers:
 * @self: a module
 * @recurse: whether to include those of the modules below
 * @n_buffers: (out): how many there are
 *
 * Lists the buffers, each once, those of a module before those of its children. The array ends with a %NULL that is not
 * counted.
 *
 * Returns: (transfer full) (array length=n_buffers): the buffers themselves
 */
EbbTensor **
ebb_module_get_buffers (EbbModule *self, gboolean recurse, guint *n_buffers)
{
  g_return_val_if_fail (EBB_IS_MODULE (self), NULL);

  return get_tensors (self, recurse, TRUE, n_buffers);
}

/**
 * ebb_module_get_buffer_names:
 * @self: a module
 * @recurse: whether to include those of the modules below
 *
 * Names the buffers that ebb_module_get_buffers() lists, in the same order.
 *
 * Returns: (transfer full) (array zero-terminated=1): paths like `norm.running_mean`
 */
char **
ebb_module_get_buffer_names (EbbModule *self, gboolean recurse)
{
  g_return_val_if_fail (EBB_IS_MODULE (self), NULL);

  return get_tensor_names (self, recurse, TRUE);
}

/**
 * ebb_module_get_children:
 * @self: a module
 * @n_children: (out): how many there are
 *
 * Lists the children, in the order in which they were registered. The array ends with a %NULL that is not counted.
 *
 * Returns: (transfer full) (array length=n_children): the children
 */
EbbModule **
ebb_module_get_children (EbbModule *self, guint *n_children)
{
  EbbModulePrivate *priv;
  GPtrArray *children;

  g_return_val_if_fail (EBB_IS_MODULE (self), NULL);

  priv = ebb_module_get_private (self);
  children = g_ptr_array_new ();
  for (guint i = 0; i < priv->n_children; i++)
    if (priv->children[i].module != NULL)
      g_ptr_array_add (children, g_object_ref (priv->children[i].module));
  return finish_array (children, n_children);
}

/**
 * ebb_module_get_child_names:
 * @self: a module
 *
 * Names the children that ebb_module_get_children() lists, in the same order.
 *
 * Returns: (transfer full) (array zero-terminated=1): the names
 */
char **
ebb_module_get_child_names (EbbModule *self)
{
  EbbModulePrivate *priv;
  GPtrArray *names;

  g_return_val_if_fail (EBB_IS_MODULE (self), NULL);

  priv = ebb_module_get_private (self);
  names = g_ptr_array_new ();
  for (guint i = 0; i < priv->n_children; i++)
    if (priv->children[i].module != NULL)
      g_ptr_array_add (names, g_strdup (priv->children[i].name));
  return finish_array (names, NULL);
}

static gboolean
add_module (EbbModule *module, const char *path, gpointer user_data)
{
  g_ptr_array_add (user_data, g_object_ref (module));
  return TRUE;
}

static gboolean
add_path (EbbModule *module, const char *path, gpointer user_data)
{
  g_ptr_array_add (user_data, g_strdup (path));
  return TRUE;
}

/**
 * ebb_module_get_modules:
 * @self: a module
 * @n_modules: (out): how many there are
 *
 * Lists the module and all below it, each once, parents first. The array ends with a %NULL that is not counted.
 *
 * Returns: (transfer full) (array length=n_modules): the modules
 */
EbbModule **
ebb_module_get_modules (EbbModule *self, guint *n_modules)
{
  GPtrArray *modules;

  g_return_val_if_fail (EBB_IS_MODULE (self), NULL);

  modules = g_ptr_array_new ();
  ebb_module_visit (self, add_module, modules);
  return finish_array (modules, n_modules);
}

/**
 * ebb_module_get_module_names:
 * @self: a module
 *
 * Names the modules that ebb_module_get_modules() lists, in the same order; the module itself is "".
 *
 * Returns: (transfer full) (array zero-terminated=1): paths like `h.0.attn`
 */
char **
ebb_module_get_module_names (EbbModule *self)
{
  GPtrArray *names;

  g_return_val_if_fail (EBB_IS_MODULE (self), NULL);

  names = g_ptr_array_new ();
  ebb_module_visit (self, add_path, names);
  return finish_array (names, NULL);
}

/**
 * ebb_module_count_parameters:
 * @self: a module
 *
 * Returns: how many numbers the parameters of the module and of all below it hold, shared ones counted once, and those
 *   that are split over ranks with all their parts
 */
guint64
ebb_module_count_parameters (EbbModule *self)
{
  g_autoptr (GPtrArray) parameters = NULL;
  guint64 count = 0;

  g_return_val_if_fail (EBB_IS_MODULE (self), 0);

  parameters = ebb_module_list_parameters (self);
  for (guint i = 0; i < parameters->len; i++)
    count += (guint64) ebb_parameter_get_n_elements (parameters->pdata[i]);
  return count;
}

typedef struct
{
  gboolean always, tensor_parallel;
  char *found; /* the first parameter of which this rank has a shard */
} ShardSearch;

static gboolean
is_shard (const ShardSearch *check, EbbTensor *parameter)
{
  if (check->tensor_parallel)
    return parameter->partition != NULL && parameter->partition->n_parts > 1;
  return check->always ? ebb_parameter_is_sharded (parameter) : !ebb_parameter_is_full (parameter);
}

static gboolean
look_for_shard (EbbModule *module, const char *path, gpointer user_data)
{
  ShardSearch *check = user_data;
  EbbTensorRegistry *parameters = &ebb_module_get_private (module)->parameters;

  for (guint i = 0; check->found == NULL && i < parameters->n_items; i++)
    {
      EbbTensor *parameter = parameters->items[i].tensor;

      if (parameter != NULL && is_shard (check, parameter))
        check->found = ebb_module_join_path (path, parameters->items[i].name);
    }
  return check->found == NULL;
}

gboolean
ebb_module_check_full (EbbModule *self, gboolean always, const char *advice, GError **error)
{
  ShardSearch check = { .always = always };

  ebb_module_visit (self, look_for_shard, &check);
  return check.found == NULL
         || ebb_fail (error, EBB_ERROR_STATE, "%s: the parameter %s is split over ranks; %s",
                      ebb_module_get_type_name (self), ebb_in_message (check.found), advice);
}

gboolean
ebb_module_check_not_tensor_parallel (EbbModule *self, const char *advice, GError **error)
{
  ShardSearch check = { .tensor_parallel = TRUE };

  ebb_module_visit (self, look_for_shard, &check);
  return check.found == NULL
         || ebb_fail (error, EBB_ERROR_STATE, "%s: tensor-parallel ranks have parts of the parameter %s; %s",
                      ebb_module_get_type_name (self), ebb_in_message (check.found), advice);
}

/* By its name, as bindings write it. */
static char *
show_choice (GParamSpecEnum *spec, const GValue *value)
{
  const int number = g_value_get_enum (value);
  const GEnumValue *found = g_enum_get_value (spec->enum_class, number);

  return found != NULL ? g_strdup (found->value_nick) : g_strdup_printf ("%d", number);
}

static void
append_properties (GString *text, EbbModule *self)
{
  guint n;
  g_autofree GParamSpec **specs = g_object_class_list_properties (G_OBJECT_GET_CLASS (self), &n);
  gboolean any = FALSE;

  for (guint i = 0; i < n; i++)
    {
      GType type = G_PARAM_SPEC_VALUE_TYPE (specs[i]);
      g_auto (GValue) value = G_VALUE_INIT;
      g_autofree char *shown = NULL;

      if (specs[i]->owner_type == EBB_TYPE_MODULE || !(specs[i]->flags & G_PARAM_READABLE)
          || !(g_type_is_a (type, G_TYPE_ENUM) || type == G_TYPE_INT || type == G_TYPE_UINT || type == G_TYPE_INT64
               || type == G_TYPE_BOOLEAN || type == G_TYPE_DOUBLE))
        continue;
      g_value_init (&value, type);
      g_object_get_property (G_OBJECT (self), specs[i]->name, &value);
      if (type == G_TYPE_DOUBLE)
        shown = g_strdup_printf ("%g", g_value_get_double (&value));
      else if (type == G_TYPE_BOOLEAN)
        shown = g_strdup (g_value_get_boolean (&value) ? "true" : "false");
      else if (g_type_is_a (type, G_TYPE_ENUM))
        shown = show_choice (G_PARAM_SPEC_ENUM (specs[i]), &value);
      else
        shown = g_strdup_value_contents (&value);
      g_string_append_printf (text, "%s%s=%s", any ? ", " : "", specs[i]->name, shown);
      any = TRUE;
    }
}

/* A module of an adapter has no properties, but a factor whose shape says its rank. */
static void
append_factors (GString *text, const EbbTensorRegistry *factors)
{
  gboolean any = FALSE;

  for (guint i = 0; i < factors->n_items; i++)
    if (factors->items[i].tensor != NULL)
      {
        EbbTensor *factor = factors->items[i].tensor;
        g_autofree char *shape = ebb_shape_to_string (factor->view.shape, factor->view.n_dims);

        g_string_append_printf (text, "%s%s=%s", any ? ", " : "", factors->items[i].name, shape);
        any = TRUE;
      }
}

static void
append_module (GString *text, EbbModule *self, guint depth)
{
  EbbModulePrivate *priv = ebb_module_get_private (self);

  g_string_append_printf (text, "%s (", ebb_module_get_type_name (self));
  append_properties (text, self);
  if (priv->is_adapter)
    append_factors (text, &priv->parameters);
  g_string_append_c (text, ')');
  for (guint i = 0; i < priv->n_children; i++)
    if (priv->children[i].module != NULL)
      {
        g_string_append_printf (text, "\n%*s%s: ", (int) (2 * depth + 2), "", priv->children[i].name);
        append_module (text, priv->children[i].module, depth + 1);
      }
}

/**
 * ebb_module_to_string:
 * @self: a module
 *
 * Describes the module and all below it for people, one a line, with the properties that they were made with.
 *
 * Returns: (transfer full): the text
 */
char *
ebb_module_to_string (EbbModule *self)
{
  GString *text;

  g_return_val_if_fail (EBB_IS_MODULE (self), NULL);

  text = g_string_new (NULL);
  append_module (text, self, 0);
  return g_string_free (text, FALSE);
}

GPtrArray *
ebb_module_select (EbbModule *root, EbbModulePickFunc pick, gpointer user_data)
{
  GPtrArray *selected = g_ptr_array_new_with_free_func (g_object_unref);
  g_auto (GStrv) paths = ebb_module_get_module_names (root);
  guint n;
  g_autofree EbbModule **modules = ebb_module_get_modules (root, &n);

  for (guint i = 0; i < n; i++)
    if (pick (modules[i], paths[i], user_data))
      g_ptr_array_add (selected, modules[i]);
    else
      g_object_unref (modules[i]);
  return selected;
}

static gboolean
is_of_type (EbbModule *module, const char *path, gpointer type)
{
  return g_type_is_a (G_OBJECT_TYPE (module), *(const GType *) type);
}

GPtrArray *
ebb_module_select_each (EbbModule *root, GType type, GError **error)
{
  g_autoptr (GPtrArray) selected = ebb_module_select (root, is_of_type, &type);

  if (selected->len > 0)
    return g_steal_pointer (&selected);
  return ebb_fail_null (error, EBB_ERROR_INVALID_ARGUMENT, "there is no %s in this %s", ebb_type_get_short_name (type),
                        ebb_module_get_type_name (root));
}

/* -- changes of all parameters and buffers ------------------------------------------------------------------------- */

/**
 * ebb_module_set_requires_grad:
 * @self: a module
 * @requires_grad: whether gradients are computed for the parameters
 * @error: return location for an error
 *
 * Freezes or unfreezes all parameters of the module and of all below it.
 *
 * Returns: %TRUE if it was done, %FALSE with @error set
 */
gboolean
ebb_module_set_requires_grad (EbbModule *self, gboolean requires_grad, GError **error)
{
  EbbTensor **parameters;
  gboolean done = TRUE;
  guint n;

  EBB_RETURN_UNLESS_BEGUN (FALSE, error, self);
  g_return_val_if_fail (EBB_IS_MODULE (self), FALSE);

  parameters = ebb_module_get_parameters (self, TRUE, &n);
  for (guint i = 0; i < n; i++)
    {
      done = done && ebb_tensor_set_requires_grad (parameters[i], requires_grad, error);
      ebb_tensor_unref (parameters[i]);
    }
  g_free (parameters);
  return done;
}

/**
 * ebb_module_zero_grad:
 * @self: a module
 *
 * Drops the gradients of all parameters of the module and of all below it.
 */
void
ebb_module_zero_grad (EbbModule *self)
{
  EbbTensor **parameters;
  guint n;

  g_return_if_fail (EBB_IS_MODULE (self));

  parameters = ebb_module_get_parameters (self, TRUE, &n);
  for (guint i = 0; i < n; i++)
    {
      ebb_tensor_zero_grad (parameters[i]);
      ebb_tensor_unref (parameters[i]);
    }
  g_free (parameters);
}

typedef struct
{
  GPtrArray *tensors;     /* parameters, their gradients, buffers */
  GPtrArray *conversions; /* in the same order; NULL: stays as it is */
  EbbDevice *device;      /* NULL: a change of dtype */
  EbbDType dtype;
} Conversion;

/* Adds the buffers of one module; in a change of dtype those that it concerns. */
static gboolean
add_buffers (EbbModule *module, const char *path, gpointer user_data)
{
  Conversion *conversion = user_data;
  const EbbTensorRegistry *buffers = &ebb_module_get_private (module)->buffers;

  for (guint i = 0; i < buffers->n_items; i++)
    {
      EbbTensor *tensor = buffers->items[i].tensor;

      if (tensor != NULL && (conversion->device != NULL || !buffers->items[i].is_exact)
          && !g_ptr_array_find (conversion->tensors, tensor, NULL))
        g_ptr_array_add (conversion->tensors, ebb_tensor_ref (tensor));
    }
  return TRUE;
}

static void
add_tensors (Conversion *conversion, EbbTensor **tensors, guint n)
{
  for (guint i = 0; i < n; i++)
    {
      g_ptr_array_add (conversion->tensors, tensors[i]);
      if (tensors[i]->grad != NULL)
        g_ptr_array_add (conversion->tensors, ebb_tensor_ref (tensors[i]->grad));
    }
  g_free (tensors);
}

static gboolean
convert_one (Conversion *conversion, EbbTensor *tensor, GError **error)
{
  g_autoptr (EbbTensor) alias = ebb_tensor_alias (tensor);
  gboolean stays = conversion->device != NULL ? ebb_tensor_get_device (tensor) == conversion->device
                                              : ebb_tensor_get_dtype (tensor) == conversion->dtype
                                                    || !ebb_dtype_is_floating_point (ebb_tensor_get_dtype (tensor));
  EbbTensor *converted = NULL;

  if (!stays)
    {
      converted = conversion->device != NULL ? ebb_to_device (alias, conversion->device, error)
                                             : ebb_cast (alias, conversion->dtype, error);
      if (converted == NULL)
        return FALSE;
      ebb_storage_set_purpose (converted->storage, (EbbPurpose) tensor->storage->purpose);
    }
  g_ptr_array_add (conversion->conversions, converted);
  return TRUE;
}

static void
drop_tensor (gpointer data)
{
  if (data != NULL)
    ebb_tensor_unref (data);
}

/* All are converted before the first is exchanged: a failure changes nothing. */
static gboolean
convert_module (EbbModule *self, EbbDevice *device, EbbDType dtype, GError **error)
{
  g_autoptr (GPtrArray) tensors = g_ptr_array_new_with_free_func (drop_tensor);
  g_autoptr (GPtrArray) conversions = g_ptr_array_new_with_free_func (drop_tensor);
  Conversion conversion = { tensors, conversions, device, dtype };
  gboolean done = TRUE;
  EbbTensor **list;
  guint n;

  if (!ebb_module_check_full (self, TRUE, "convert the module before ebb_fully_shard(), or take that off before",
                              error))
    return FALSE;
  list = ebb_module_get_parameters (self, TRUE, &n);
  add_tensors (&conversion, list, n);
  ebb_module_visit (self, add_buffers, &conversion);

  ebb_push_grad_enabled (FALSE);
  for (guint i = 0; done && i < tensors->len; i++)
    done = convert_one (&conversion, g_ptr_array_index (tensors, i), error);
  ebb_pop_grad_enabled ();
  for (guint i = 0; done && i < tensors->len; i++)
    if (g_ptr_array_index (conversions, i) != NULL)
      ebb_tensor_swap_storage (g_ptr_array_index (tensors, i), g_ptr_array_index (conversions, i));
  return done;
}

/**
 * ebb_module_to_device:
 * @self: a module
 * @device: where to
 * @error: return location for an error
 *
 * Moves the parameters, their gradients and the buffers of the module and of all below it. They stay the same tensors,
 * with other memory. With an error nothing is moved.
 *
 * Returns: %TRUE if all is there, %FALSE with @error set
 */
gboolean
ebb_module_to_device (EbbModule *self, EbbDevice *device, GError **error)
{
  EBB_RETURN_UNLESS_BEGUN (FALSE, error, self, device);
  g_return_val_if_fail (EBB_IS_MODULE (self), FALSE);

  return convert_module (self, device, EBB_DTYPE_F32, error);
}

/**
 * ebb_module_to_dtype:
 * @self: a module
 * @dtype: a floating dtype
 * @error: return location for an error
 *
 * Casts the floating parameters, their gradients and the floating buffers of the module and of all below it. They stay
 * the same tensors, with other memory. With an error nothing is cast.
 *
 * Returns: %TRUE if it was done, %FALSE with @error set
 */
gboolean
ebb_module_to_dtype (EbbModule *self, EbbDType dtype, GError **error)
{
  EBB_RETURN_UNLESS_BEGUN (FALSE, error, self);
  g_return_val_if_fail (EBB_IS_MODULE (self), FALSE);

  if (!ebb_dtype_is_floating_point (dtype))
    return ebb_fail (error, EBB_ERROR_DTYPE, "%s: can't be of %s, parameters are of a floating dtype",
                     ebb_module_get_type_name (self), ebb_dtype_get_name (dtype));
  return convert_module (self, NULL, dtype, error);
}
