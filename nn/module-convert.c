/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "nn/module-instance-private.h"
#include "tensor/autograd/autograd.h"
#include "tensor/error-private.h"
#include "tensor/ops/pointwise.h"

/* Changes of all parameters and buffers of a module at once. */

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

  if (!EBB_MAY_BEGIN (error, self))
    return FALSE;
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
  if (!EBB_MAY_BEGIN (error, self, device))
    return FALSE;
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
  if (!EBB_MAY_BEGIN (error, self))
    return FALSE;
  g_return_val_if_fail (EBB_IS_MODULE (self), FALSE);

  if (!ebb_dtype_is_floating_point (dtype))
    {
      g_set_error (error, EBB_ERROR, EBB_ERROR_DTYPE, "%s: can't be of %s, parameters are of a floating dtype",
                   ebb_module_get_type_name (self), ebb_dtype_get_name (dtype));
      return FALSE;
    }
  return convert_module (self, NULL, dtype, error);
}
