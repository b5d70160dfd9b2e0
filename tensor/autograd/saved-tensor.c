/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Saves tensors for backward, through saved-tensor hooks if there are any, and unpacks them. */
#include "tensor/autograd/saved-tensor.h"

#include "tensor/autograd/autograd-private.h"
#include "tensor/autograd/handle-private.h"
#include "tensor/error-private.h"
#include "tensor/autograd/parameter-owner-private.h"
#include "tensor/object-private.h"
#include "tensor/autograd/rematerialization-private.h"
#include "tensor/thread-private.h"

#include <string.h>

G_DEFINE_BOXED_TYPE (EbbHandle, ebb_handle, ebb_handle_ref, ebb_handle_unref)
G_DEFINE_ABSTRACT_TYPE (EbbSavedTensorHooks, ebb_saved_tensor_hooks, G_TYPE_OBJECT)

gpointer
ebb_handle_alloc (gsize size,
                  GDestroyNotify clear)
{
  EbbHandle *self = memset (ebb_object_alloc (size), 0, size);

  *self = (EbbHandle){ .ref_count = 1, .size = size, .data = clear != NULL ? self : NULL, .destroy = clear };
  return self;
}

void
ebb_handle_keep (EbbHandle *self,
                 EbbTensor *tensor)
{
  self->tensor = ebb_tensor_ref (tensor);
  self->used = tensor->is_parameter;
  if (self->used)
    ebb_parameter_use (tensor);
  else if (!tensor->is_buffer)
    ebb_storage_hold_saved (tensor->storage);
}

/**
 * ebb_handle_new:
 * @tensor: what to keep
 *
 * Makes a handle that keeps a tensor, counted as an activation.
 *
 * Returns: (transfer full): the handle
 */
EbbHandle *
ebb_handle_new (EbbTensor *tensor)
{
  EbbHandle *self;

  g_return_val_if_fail (tensor != NULL, NULL);

  self = ebb_handle_alloc (sizeof *self, NULL);
  ebb_handle_keep (self, tensor);
  return self;
}

/**
 * ebb_handle_new_for_data: (skip)
 * @data: (nullable): anything
 * @destroy: (nullable): frees @data with the handle
 *
 * Makes a handle that keeps something other than a tensor.
 *
 * Returns: (transfer full): the handle
 */
EbbHandle *
ebb_handle_new_for_data (gpointer data,
                         GDestroyNotify destroy)
{
  EbbHandle *self = ebb_handle_alloc (sizeof *self, destroy);

  self->data = data;
  return self;
}

/**
 * ebb_handle_new_for_object:
 * @object: (type GObject.Object): anything
 *
 * Makes a handle that keeps an object.
 *
 * Returns: (transfer full): the handle
 */
EbbHandle *
ebb_handle_new_for_object (GObject *object)
{
  g_return_val_if_fail (G_IS_OBJECT (object), NULL);

  return ebb_handle_new_for_data (g_object_ref (object), g_object_unref);
}

/**
 * ebb_handle_ref:
 * @handle: a handle
 *
 * Returns: (transfer full): @handle
 */
EbbHandle *
ebb_handle_ref (EbbHandle *handle)
{
  g_return_val_if_fail (handle != NULL, NULL);

  __atomic_add_fetch (&handle->ref_count, 1, __ATOMIC_RELAXED);
  return handle;
}

/**
 * ebb_handle_unref:
 * @handle: (transfer full) (nullable): a handle
 *
 * Drops a reference.
 */
void
ebb_handle_unref (EbbHandle *handle)
{
  if (handle == NULL || __atomic_sub_fetch (&handle->ref_count, 1, __ATOMIC_ACQ_REL) != 0)
    return;
  if (handle->tensor != NULL)
    {
      if (handle->used)
        ebb_parameter_drop_use (handle->tensor);
      else if (!handle->tensor->is_buffer)
        ebb_storage_drop_saved (handle->tensor->storage);
      ebb_tensor_unref (handle->tensor);
    }
  if (handle->destroy != NULL)
    handle->destroy (handle->data);
  ebb_object_free (handle, handle->size);
}

/**
 * ebb_handle_get_tensor:
 * @handle: a handle
 *
 * Returns: (transfer full) (nullable): the tensor it keeps, if it keeps one
 */
EbbTensor *
ebb_handle_get_tensor (EbbHandle *handle)
{
  g_return_val_if_fail (handle != NULL, NULL);

  return handle->tensor ? ebb_tensor_ref (handle->tensor) : NULL;
}

/**
 * ebb_handle_get_data: (skip)
 * @handle: a handle
 *
 * Returns: (nullable): what ebb_handle_new_for_data() was given
 */
gpointer
ebb_handle_get_data (EbbHandle *handle)
{
  g_return_val_if_fail (handle != NULL, NULL);

  return handle->data;
}

/**
 * ebb_handle_get_object:
 * @handle: a handle
 *
 * Returns: (type GObject.Object) (transfer full) (nullable): what ebb_handle_new_for_object() was given; %NULL if
 *   @handle keeps something else
 */
GObject *
ebb_handle_get_object (EbbHandle *handle)
{
  g_return_val_if_fail (handle != NULL, NULL);

  return handle->destroy == g_object_unref ? g_object_ref (handle->data) : NULL;
}

/* -- hooks --------------------------------------------------------------------------------------------------------- */

static EbbHandle *
keep (EbbSavedTensorHooks *self,
      EbbTensor *tensor,
      GError **error)
{
  return ebb_handle_new (tensor);
}

static EbbTensor *
give (EbbSavedTensorHooks *self,
      EbbHandle *handle,
      GError **error)
{
  return ebb_handle_get_tensor (handle);
}

static void
ebb_saved_tensor_hooks_class_init (EbbSavedTensorHooksClass *klass)
{
  klass->pack = keep;
  klass->unpack = give;
}

static void
ebb_saved_tensor_hooks_init (EbbSavedTensorHooks *self)
{
}

static void
require_error (gpointer result,
               gpointer self,
               const char *what,
               GError **error)
{
  if (result == NULL && error != NULL && *error == NULL)
    ebb_error_set (error, EBB_ERROR_CALLBACK, "%s of %s failed without saying why", what, G_OBJECT_TYPE_NAME (self));
}

/**
 * ebb_saved_tensor_hooks_pack:
 * @self: hooks
 * @tensor: a tensor that is to be kept for backward
 * @error: return location for an error
 *
 * Packs a tensor.
 *
 * Returns: (transfer full) (nullable): the packed handle that is kept in its place
 */
EbbHandle *
ebb_saved_tensor_hooks_pack (EbbSavedTensorHooks *self,
                             EbbTensor *tensor,
                             GError **error)
{
  GError *local = NULL;
  EbbHandle *handle;

  EBB_RETURN_UNLESS_BEGUN (NULL, error, self, tensor);
  handle = EBB_SAVED_TENSOR_HOOKS_GET_CLASS (self)->pack (self, tensor, &local);
  require_error (handle, self, "pack", &local);
  if (local != NULL)
    {
      g_clear_pointer (&handle, ebb_handle_unref);
      g_propagate_error (error, local);
    }
  return handle;
}

/**
 * ebb_saved_tensor_hooks_unpack:
 * @self: hooks
 * @handle: what pack gave
 * @error: return location for an error
 *
 * Unpacks a tensor.
 *
 * Returns: (transfer full) (nullable): the tensor, with the values it had
 */
EbbTensor *
ebb_saved_tensor_hooks_unpack (EbbSavedTensorHooks *self,
                               EbbHandle *handle,
                               GError **error)
{
  GError *local = NULL;
  EbbTensor *tensor;

  EBB_RETURN_UNLESS_BEGUN (NULL, error, self, handle);
  tensor = EBB_SAVED_TENSOR_HOOKS_GET_CLASS (self)->unpack (self, handle, &local);
  require_error (tensor, self, "unpack", &local);
  if (local != NULL)
    {
      g_clear_pointer (&tensor, ebb_tensor_unref);
      g_propagate_error (error, local);
    }
  return tensor;
}

/* -- tensors that a node saves ------------------------------------------------------------------------------------- */

/* Hooks are user code, and kernels read what they give back as the op left it: a tensor of another size would be read
 * beyond its end. So the packed tensor is described beside the handle, and compared. */
struct _EbbPacked
{
  EbbSavedTensorHooks *hooks;
  EbbDevice *device;
  EbbDType dtype;
  int n_dims;
  gint64 sizes[]; /* the shape, then the strides */
};

static gsize
packed_get_size (gsize n_dims)
{
  return sizeof (EbbPacked) + 2 * n_dims * sizeof (gint64);
}

static EbbPacked *
packed_new (EbbSavedTensorHooks *hooks,
            EbbTensor *tensor)
{
  gsize n = (gsize) tensor->view.n_dims;
  EbbPacked *self = ebb_object_alloc (packed_get_size (n));

  *self = (EbbPacked){
    .hooks = g_object_ref (hooks),
    .device = tensor->storage->device,
    .dtype = tensor->view.dtype,
    .n_dims = tensor->view.n_dims,
  };
  if (n > 0)
    {
      memcpy (self->sizes, tensor->view.shape, n * sizeof self->sizes[0]);
      memcpy (self->sizes + n, tensor->view.strides, n * sizeof self->sizes[0]);
    }
  return self;
}

static void
packed_free (EbbPacked *self)
{
  g_object_unref (self->hooks);
  ebb_object_free (self, packed_get_size ((gsize) self->n_dims));
}

static gboolean
packed_check (EbbPacked *self,
              const EbbOp *op,
              EbbTensor *tensor,
              GError **error)
{
  const EbbView *view = &tensor->view;
  EbbError code;

  if (!ebb_view_has_shape (view, self->sizes, (guint) self->n_dims))
    code = EBB_ERROR_SHAPE;
  else if (view->dtype != self->dtype)
    code = EBB_ERROR_DTYPE;
  else if (tensor->storage->device != self->device)
    code = EBB_ERROR_DEVICE;
  else
    return TRUE;
  return ebb_fail (error, code, "%s: unpack of %s gave %s %s on %s for the %s %s on %s that was packed", op->name,
                   G_OBJECT_TYPE_NAME (self->hooks), ebb_dtype_get_name (view->dtype), ebb_show_shape (tensor),
                   ebb_device_get_name (tensor->storage->device), ebb_dtype_get_name (self->dtype),
                   ebb_in_message (ebb_shape_to_string (self->sizes, (guint) self->n_dims)),
                   ebb_device_get_name (self->device));
}

/* The tensor that the hooks return for @handle, laid out as it was or contiguous: kernels rely on either. */
static EbbTensor *
packed_unpack (EbbPacked *self,
               EbbHandle *handle,
               const EbbOp *op,
               GError **error)
{
  EbbTensor *tensor = ebb_saved_tensor_hooks_unpack (self->hooks, handle, error);
  EbbTensor *copy;

  if (tensor == NULL)
    return NULL;
  if (!ebb_parameter_prepare (tensor, error) || !packed_check (self, op, tensor, error))
    {
      ebb_tensor_unref (tensor);
      return NULL;
    }
  if (ebb_view_is_contiguous (&tensor->view)
      || memcmp (tensor->view.strides, self->sizes + self->n_dims, (gsize) self->n_dims * sizeof (gint64)) == 0)
    return tensor;
  copy = ebb_tensor_convert (tensor, self->dtype, error);
  ebb_tensor_unref (tensor);
  return copy;
}

/* Hooks are user code: what they compute is neither recorded nor observed. */
static EbbHandle *
pack_quietly (EbbSavedTensorHooks *hooks,
              const EbbOp *op,
              EbbTensor *tensor,
              GError **error)
{
  const EbbModes outer = ebb_modes;
  EbbHandle *handle;

  g_object_ref (hooks);
  ebb_modes.no_grad = TRUE;
  ebb_modes.hooks = NULL;
  ebb_modes.observers = NULL;
  ebb_modes.saving = op;
  handle = ebb_saved_tensor_hooks_pack (hooks, tensor, error);
  ebb_modes_leave_forward (&outer); /* an early stop may have begun with this very tensor */
  g_object_unref (hooks);
  return handle;
}

static gboolean
save (EbbSavedTensor *saved,
      const EbbOp *op,
      EbbTensor *tensor,
      GError **error)
{
  /* A parameter is kept as itself, whatever its storage becomes; anything else as a view without graph, so that a node
   * never keeps itself alive through its own output. */
  if (tensor->is_parameter || tensor->is_buffer || tensor->requires_grad)
    ebb_tensor_ref (tensor);
  else
    tensor = ebb_tensor_alias (tensor);

  saved->birth = tensor->storage->birth;
  saved->version = tensor->storage->version;
  /* Hooks would keep the shard in place of a parameter that is sharded by now. */
  if (ebb_modes.hooks != NULL && ebb_parameter_is_available (tensor))
    {
      saved->packed = packed_new (ebb_modes.hooks, tensor);
      saved->handle = pack_quietly (ebb_modes.hooks, op, tensor, error);
      ebb_tensor_unref (tensor);
      if (saved->handle == NULL)
        g_prefix_error (error, "%s: ", op->name);
      return saved->handle != NULL;
    }
  saved->tensor = tensor;
  if (tensor->is_parameter)
    {
      saved->used = TRUE;
      ebb_parameter_use (tensor);
    }
  else if (!tensor->is_buffer)
    {
      saved->held = TRUE;
      ebb_storage_hold_saved (tensor->storage);
    }
  return TRUE;
}

gboolean
ebb_saved_tensor_save_shadow (EbbSavedTensor *saved,
                              const EbbOp *op,
                              EbbTensor *parameter,
                              EbbDType dtype,
                              GError **error)
{
  *saved = (EbbSavedTensor){ .as_shadow = TRUE, .shadow_dtype = dtype & 0xff };
  return save (saved, op, parameter, error);
}

gboolean
ebb_saved_tensor_save (EbbSavedTensor *saved,
                       const EbbOp *op,
                       EbbTensor *tensor,
                       EbbTensor *edge,
                       GError **error)
{
  *saved = (EbbSavedTensor){ 0 };
  if (tensor == NULL)
    return TRUE;
  if (edge != NULL && edge->rematerialization != NULL)
    {
      if (!ebb_rematerialized_save (&saved->rematerialized, op, tensor, edge, error))
        return FALSE;
      if (saved->rematerialized != NULL)
        return TRUE;
    }
  if (edge != NULL && edge->is_parameter && edge->shadow == tensor)
    return ebb_saved_tensor_save_shadow (saved, op, edge, tensor->view.dtype, error);
  return save (saved, op, tensor, error);
}

EbbTensor *
ebb_saved_tensor_unpack (EbbSavedTensor *saved,
                         const EbbOp *op,
                         GError **error)
{
  EbbTensor *tensor, *shadow;

  if (saved->rematerialized != NULL)
    return ebb_rematerialized_make (saved->rematerialized, op, error);
  if (saved->tensor != NULL)
    {
      if (!ebb_parameter_prepare (saved->tensor, error))
        return NULL;
      tensor = ebb_tensor_ref (saved->tensor);
    }
  else
    {
      tensor = packed_unpack (saved->packed, saved->handle, op, error);
      if (tensor == NULL)
        return NULL;
    }
  if (tensor->storage->birth == saved->birth && tensor->storage->version != saved->version)
    {
      g_autofree char *shape = ebb_tensor_shape_to_string (tensor);

      ebb_error_set (
          error, EBB_ERROR_VERSION,
          "%s: a tensor of shape %s that backward needs was changed in place after it was used (version %u, was "
          "%u)",
          op->name, shape, tensor->storage->version, saved->version);
      ebb_tensor_unref (tensor);
      return NULL;
    }
  if (!saved->as_shadow)
    return tensor;
  shadow = ebb_tensor_get_shadow (tensor, (EbbDType) saved->shadow_dtype, error);
  ebb_tensor_unref (tensor);
  return shadow;
}

void
ebb_saved_tensor_clear (EbbSavedTensor *saved)
{
  EbbSavedTensor gone = *saved;

  *saved = (EbbSavedTensor){ 0 };
  if (gone.rematerialized != NULL)
    ebb_rematerialized_free (gone.rematerialized);
  if (gone.tensor != NULL)
    {
      if (gone.held)
        ebb_storage_drop_saved (gone.tensor->storage);
      if (gone.used)
        ebb_parameter_drop_use (gone.tensor);
      ebb_tensor_unref (gone.tensor);
    }
  if (gone.handle != NULL)
    ebb_handle_unref (gone.handle);
  if (gone.packed != NULL)
    packed_free (gone.packed);
}
