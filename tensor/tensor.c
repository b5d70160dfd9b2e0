/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "tensor/tensor-private.h"

#include "tensor/autograd/autograd-private.h"
#include "tensor/error-private.h"
#include "tensor/autograd/rematerialization-private.h"
#include "tensor/backend/backend-private.h"
#include "tensor/object-private.h"
#include "tensor/autograd/op-private.h"
#include "tensor/thread-private.h"

#include <string.h>

/* Tensors: views of a storage with a shape, strides and a place in the graph. */

G_DEFINE_BOXED_TYPE (EbbTensor, ebb_tensor, ebb_tensor_ref, ebb_tensor_unref)

/* -- making -------------------------------------------------------------------------------------------------------- */

EbbTensor *
ebb_tensor_new_view (EbbStorage *storage,
                     gint64 offset,
                     const gint64 *shape,
                     const gint64 *strides,
                     guint n_dims,
                     EbbDType dtype)
{
  EbbTensor *self = ebb_object_new (EbbTensor);
  gint64 n = 1;

  g_assert (n_dims <= EBB_MAX_DIMS);
  for (guint i = n_dims; i-- > 0;)
    {
      self->view.shape[i] = shape[i];
      self->view.strides[i] = strides ? strides[i] : n;
      n *= shape[i];
    }
  self->view.dtype = dtype;
  self->view.n_dims = (int) n_dims;
  self->ref_count = 1;
  self->requires_grad = self->is_parameter = self->is_buffer = self->is_local_shard = 0;
  self->output_index = 0;
  self->storage = storage ? ebb_storage_ref (storage) : NULL;
  self->offset = offset;
  self->view.data =
      storage && storage->data ? (char *) storage->data + offset * (gint64) ebb_dtype_get_size (dtype) : NULL;
  self->n_elements = n;
  self->node = NULL;
  self->grad = NULL;
  self->rematerialization = NULL;
  self->original = NULL;
  self->shadow = NULL;
  self->n_uses = 0;
  self->owner = NULL;
  self->partition = NULL;
  return self;
}

/* Bytes of a tensor of @shape; FALSE with @error on negative sizes, too many dimensions or an overflow. */
static gboolean
count_bytes (const gint64 *shape,
             guint n_dims,
             EbbDType dtype,
             gsize *size,
             GError **error)
{
  gint64 n = 1;
  gboolean ok = TRUE;

  if (n_dims > EBB_MAX_DIMS)
    return ebb_fail (error, EBB_ERROR_SHAPE, "a tensor of %u dimensions: at most %d are possible", n_dims,
                     EBB_MAX_DIMS);
  if ((guint) dtype >= EBB_N_DTYPES)
    return ebb_fail (error, EBB_ERROR_DTYPE, "dtype number %d: there is none", (int) dtype);
  for (guint i = 0; i < n_dims; i++)
    if (shape[i] < 0)
      return ebb_fail (error, EBB_ERROR_SHAPE, "shape %s: sizes must be 0 or more",
                       ebb_in_message (ebb_shape_to_string (shape, n_dims)));
    else if (shape[i] == 0)
      {
        *size = 0;
        return TRUE;
      }
  for (guint i = 0; i < n_dims; i++)
    ok = ok && !__builtin_mul_overflow (n, shape[i], &n);
  ok = ok && !__builtin_mul_overflow (n, (gint64) ebb_dtype_get_size (dtype), &n);
  if (!ok)
    return ebb_fail (error, EBB_ERROR_NO_MEMORY, "shape %s has more bytes than can be counted",
                     ebb_in_message (ebb_shape_to_string (shape, n_dims)));
  *size = (gsize) n;
  return TRUE;
}

EbbTensor *
ebb_tensor_new_uninitialized (const gint64 *shape,
                              guint n_dims,
                              EbbDType dtype,
                              EbbDevice *device,
                              GError **error)
{
  EbbTensor *self = ebb_tensor_new_view (NULL, 0, shape, NULL, n_dims, dtype);

  self->storage = ebb_storage_new (device ? device : ebb_device_get_cpu (),
                                   (gsize) self->n_elements * ebb_dtype_get_size (dtype), error);
  if (self->storage == NULL)
    {
      ebb_tensor_unref (self);
      return NULL;
    }
  self->view.data = self->storage->data;
  return self;
}

/**
 * ebb_tensor_new_empty:
 * @shape: (array length=n_dims): the size of each dimension
 * @n_dims: how many dimensions, at most 8
 * @dtype: the element type
 * @device: (nullable): where, %NULL for the default device
 * @error: return location for an error
 *
 * Makes a tensor whose values are whatever the memory held.
 *
 * Returns: (transfer full) (nullable): the tensor; %NULL with %EBB_ERROR_SHAPE or %EBB_ERROR_NO_MEMORY
 */
EbbTensor *
ebb_tensor_new_empty (const gint64 *shape,
                      guint n_dims,
                      EbbDType dtype,
                      EbbDevice *device,
                      GError **error)
{
  EbbTensor *self;
  gsize size;

  if ((error != NULL && *error != NULL) || !count_bytes (shape, n_dims, dtype, &size, error))
    return NULL;
  self = ebb_tensor_new_uninitialized (shape, n_dims, dtype, ebb_device_or_default (device), error);
  if (self != NULL)
    self->storage->n_blank = self->storage->size;
  return self;
}

gboolean
ebb_tensor_upload (EbbTensor *tensor,
                   const void *values,
                   GError **error)
{
  EbbDevice *device = tensor->storage->device;
  gsize size = ebb_tensor_get_n_bytes (tensor);

  if (size == 0 || tensor->storage->placeholder)
    return TRUE;
  tensor->storage->version++;
  tensor->storage->n_blank = 0;
  if (G_UNLIKELY (ebb_storage_is_dry (tensor->storage)))
    {
      /* Numbers that the program may look at are there: tokens, scalars. */
      const gboolean is_integer = !ebb_dtype_is_floating_point (tensor->view.dtype);

      tensor->storage->no_data = !device->backend->host_memory || (!is_integer && tensor->n_elements > 1);
      if (tensor->storage->no_data && is_integer && size == tensor->storage->size)
        ebb_storage_set_known (tensor->storage, values);
      if (tensor->storage->no_data)
        return TRUE;
      if (!ebb_storage_map (tensor->storage, error))
        return FALSE;
    }
  if (!device->backend->host_memory)
    return device->backend->copy (device->index, tensor->view.data, values, size, FALSE, error);
  memcpy (tensor->view.data, values, size);
  return TRUE;
}

EbbTensor *
ebb_tensor_new_from_values (const void *values,
                            gsize n_values,
                            const gint64 *shape,
                            guint n_dims,
                            EbbDType dtype,
                            EbbDevice *device,
                            GError **error)
{
  g_autoptr (EbbTensor) self = ebb_tensor_new_empty (shape, n_dims, dtype, device, error);

  if (self == NULL)
    return NULL;
  if ((gsize) self->n_elements != n_values)
    return ebb_fail_null (error, EBB_ERROR_SHAPE,
                          "%" G_GSIZE_FORMAT " values for a tensor of shape %s, which has %" G_GINT64_FORMAT, n_values,
                          ebb_show_shape (self), self->n_elements);
  return ebb_tensor_upload (self, values, error) ? g_steal_pointer (&self) : NULL;
}

/**
 * ebb_tensor_new_from_floats:
 * @values: (array length=n_values): the values, in row-major order
 * @n_values: how many; the product of @shape
 * @shape: (array length=n_dims): the size of each dimension
 * @n_dims: how many dimensions
 * @error: return location for an error
 *
 * Makes an f32 tensor on the default device with a copy of @values.
 *
 * Returns: (transfer full) (nullable): the tensor; %NULL with %EBB_ERROR_SHAPE
 */
EbbTensor *
ebb_tensor_new_from_floats (const float *values,
                            gsize n_values,
                            const gint64 *shape,
                            guint n_dims,
                            GError **error)
{
  return ebb_tensor_new_from_values (values, n_values, shape, n_dims, EBB_DTYPE_F32, ebb_get_default_device (),
                                     error);
}

/**
 * ebb_tensor_new_from_ints:
 * @values: (array length=n_values): the values, in row-major order
 * @n_values: how many; the product of @shape
 * @shape: (array length=n_dims): the size of each dimension
 * @n_dims: how many dimensions
 * @error: return location for an error
 *
 * Makes an i64 tensor on the default device with a copy of @values.
 *
 * Returns: (transfer full) (nullable): the tensor; %NULL with %EBB_ERROR_SHAPE
 */
EbbTensor *
ebb_tensor_new_from_ints (const gint64 *values,
                          gsize n_values,
                          const gint64 *shape,
                          guint n_dims,
                          GError **error)
{
  return ebb_tensor_new_from_values (values, n_values, shape, n_dims, EBB_DTYPE_I64, ebb_get_default_device (),
                                     error);
}

/**
 * ebb_tensor_new_from_bytes:
 * @bytes: memory to look at
 * @offset: where in @bytes the first element is, aligned to the element's size
 * @shape: (array length=n_dims): the size of each dimension
 * @n_dims: how many dimensions
 * @dtype: the element type
 * @error: return location for an error
 *
 * Makes a tensor on the CPU over @bytes without a copy; it keeps a reference to @bytes. Changing it in place changes
 * them.
 *
 * Returns: (transfer full) (nullable): the tensor; %NULL with %EBB_ERROR_SHAPE if @bytes are too few or not aligned
 */
EbbTensor *
ebb_tensor_new_from_bytes (GBytes *bytes,
                           gsize offset,
                           const gint64 *shape,
                           guint n_dims,
                           EbbDType dtype,
                           GError **error)
{
  gsize size, available;
  const char *data;

  if (!EBB_MAY_BEGIN (error, bytes) || !count_bytes (shape, n_dims, dtype, &size, error))
    return NULL;
  data = g_bytes_get_data (bytes, &available);
  if (offset > available || size > available - offset || ((gsize) data + offset) % ebb_dtype_get_size (dtype) != 0)
    {
      return ebb_fail_null (error, EBB_ERROR_SHAPE,
                            "shape %s of %s at offset %" G_GSIZE_FORMAT " of %" G_GSIZE_FORMAT
                            " bytes: must lie inside and be aligned to the element's size",
                            ebb_in_message (ebb_shape_to_string (shape, n_dims)), ebb_dtype_get_name (dtype), offset,
                            available);
    }
  return ebb_tensor_new_from_pointer ((guint64) (gsize) (data + offset), shape, n_dims, NULL, 0, dtype,
                                      (GDestroyNotify) g_bytes_unref, g_bytes_ref (bytes), error);
}

/* ebb_tensor_new_from_pointer () on any device that can use the memory. */
EbbTensor *
ebb_tensor_new_over_memory (EbbDevice *device,
                            guint64 address,
                            const gint64 *shape,
                            guint n_dims,
                            const gint64 *strides,
                            guint n_strides,
                            EbbDType dtype,
                            GDestroyNotify destroy,
                            gpointer user_data,
                            GError **error)
{
  EbbStorage *storage;
  EbbTensor *self;
  gsize size, before = 0;
  gint64 last = 0;
  gboolean ok = n_strides == 0 || n_strides == n_dims;

  for (guint i = 0; ok && i < n_strides; i++)
    ok = strides[i] >= 0;
  if (!ok)
    ebb_error_set (error, EBB_ERROR_SHAPE,
                   "%u strides were given for %u dimensions; each dimension must have one, of 0 or more", n_strides,
                   n_dims);
  if (!ok || (error != NULL && *error != NULL) || !count_bytes (shape, n_dims, dtype, &size, error))
    {
      if (destroy != NULL)
        destroy (user_data);
      return NULL;
    }
  if (n_strides > 0 && size > 0)
    {
      for (guint i = 0; i < n_dims; i++)
        last += (shape[i] - 1) * strides[i];
      size = (gsize) (last + 1) * ebb_dtype_get_size (dtype);
    }
  /* A GPU's storages begin where its driver's blocks may: what kernels do with a view that begins elsewhere follows
   * from the view, also when its storage has left the device and come back to another address. */
  if (!device->backend->host_memory && size > 0)
    before = (gsize) address % EBB_DEVICE_ALIGNMENT;
  storage = ebb_storage_new_foreign (device, EBB_PURPOSE_WORKSPACE, (void *) ((gsize) address - before), size + before,
                                     destroy, user_data);
  self = ebb_tensor_new_view (storage, (gint64) (before / ebb_dtype_get_size (dtype)), shape,
                              n_strides ? strides : NULL, n_dims, dtype);
  ebb_storage_unref (storage);
  return self;
}

/**
 * ebb_tensor_new_from_pointer: (skip)
 * @address: where the first element is
 * @shape: (array length=n_dims): the size of each dimension
 * @n_dims: how many dimensions
 * @strides: (array length=n_strides) (nullable): the stride of each dimension in elements; %NULL for row-major order
 * @n_strides: @n_dims or 0
 * @dtype: the element type
 * @destroy: (nullable): called when no tensor needs the memory any more; at once on an error
 * @user_data: for @destroy
 * @error: return location for an error
 *
 * Makes a tensor on the CPU over foreign memory.
 *
 * Returns: (transfer full) (nullable): the tensor; %NULL with %EBB_ERROR_SHAPE
 */
EbbTensor *
ebb_tensor_new_from_pointer (guint64 address,
                             const gint64 *shape,
                             guint n_dims,
                             const gint64 *strides,
                             guint n_strides,
                             EbbDType dtype,
                             GDestroyNotify destroy,
                             gpointer user_data,
                             GError **error)
{
  return ebb_tensor_new_over_memory (ebb_device_get_cpu (), address, shape, n_dims, strides, n_strides, dtype, destroy,
                                     user_data, error);
}

/**
 * ebb_tensor_new_from_address:
 * @address: where the first element is, aligned to the element's size
 * @shape: (array length=n_dims): the size of each dimension
 * @n_dims: how many dimensions
 * @strides: (array length=n_strides) (nullable): the stride of each dimension in elements; %NULL for row-major order
 * @n_strides: @n_dims or 0
 * @dtype: the element type
 * @owner: (type GObject.Object): what keeps the memory alive; a reference is held as long as a tensor needs the memory
 * @error: return location for an error
 *
 * Makes a tensor on the CPU over foreign memory, as a binding sees it. The memory must hold what @shape and @strides
 * say.
 *
 * Returns: (transfer full) (nullable): the tensor; %NULL with %EBB_ERROR_SHAPE or %EBB_ERROR_INVALID_ARGUMENT
 */
EbbTensor *
ebb_tensor_new_from_address (guint64 address,
                             const gint64 *shape,
                             guint n_dims,
                             const gint64 *strides,
                             guint n_strides,
                             EbbDType dtype,
                             GObject *owner,
                             GError **error)
{
  gsize size;

  if ((error != NULL && *error != NULL) || !G_IS_OBJECT (owner) || !count_bytes (shape, n_dims, dtype, &size, error))
    return NULL;
  if (size > 0 && (address == 0 || address % ebb_dtype_get_size (dtype) != 0))
    return ebb_fail_null (error, EBB_ERROR_INVALID_ARGUMENT,
                          "address 0x%" G_GINT64_MODIFIER "x for elements of %s: must be aligned to %" G_GSIZE_FORMAT
                          " bytes and not 0",
                          address, ebb_dtype_get_name (dtype), ebb_dtype_get_size (dtype));
  return ebb_tensor_new_from_pointer (address, shape, n_dims, strides, n_strides, dtype, g_object_unref,
                                      g_object_ref (owner), error);
}

/**
 * ebb_tensor_ref:
 * @tensor: a tensor
 *
 * Returns: (transfer full): @tensor
 */
EbbTensor *
ebb_tensor_ref (EbbTensor *tensor)
{
  g_return_val_if_fail (tensor != NULL, NULL);

  __atomic_add_fetch (&tensor->ref_count, 1, __ATOMIC_RELAXED);
  return tensor;
}

static void
drop_contents (EbbTensor *tensor)
{
  if (tensor->node != NULL)
    ebb_node_unref (tensor->node);
  if (tensor->grad != NULL)
    ebb_tensor_unref (tensor->grad);
  if (tensor->original != NULL)
    ebb_tensor_unref (tensor->original);
  if (tensor->shadow != NULL)
    ebb_tensor_unref (tensor->shadow);
  if (tensor->rematerialization != NULL)
    ebb_rematerialization_drop (tensor->rematerialization);
  if (tensor->storage != NULL)
    ebb_storage_unref (tensor->storage);
}

/**
 * ebb_tensor_unref:
 * @tensor: (transfer full) (nullable): a tensor
 *
 * Drops a reference. The storage goes with its last tensor.
 */
void
ebb_tensor_unref (EbbTensor *tensor)
{
  if (tensor == NULL || __atomic_sub_fetch (&tensor->ref_count, 1, __ATOMIC_ACQ_REL) != 0)
    return;

  drop_contents (tensor);
  ebb_object_free (tensor, sizeof *tensor);
}

/**
 * ebb_tensor_dispose:
 * @tensor: a tensor
 *
 * Lets go of the data, the graph and the gradient of a tensor that its one holder is done with, without waiting for a
 * garbage collector that does not see how large tensors are. The tensor is empty (shape `[0]`) from then on. Nothing
 * happens to a tensor that somebody else holds too, nor to parameters and buffers.
 */
void
ebb_tensor_dispose (EbbTensor *tensor)
{
  EbbTensor gone;

  g_return_if_fail (tensor != NULL);

  if (__atomic_load_n (&tensor->ref_count, __ATOMIC_ACQUIRE) != 1 || tensor->is_parameter || tensor->is_buffer)
    return;
  gone = *tensor;
  tensor->storage = ebb_storage_new (gone.storage->device, 0, NULL);
  tensor->view = (EbbView){ .dtype = gone.view.dtype, .n_dims = 1, .strides = { 1 } };
  tensor->offset = tensor->n_elements = 0;
  tensor->requires_grad = 0;
  tensor->node = NULL;
  tensor->rematerialization = NULL;
  tensor->grad = tensor->original = tensor->shadow = NULL;
  drop_contents (&gone);
}

EbbTensor *
ebb_tensor_alias (EbbTensor *tensor)
{
  EbbTensor *alias = ebb_tensor_new_view (tensor->storage, tensor->offset, tensor->view.shape, tensor->view.strides,
                                          (guint) tensor->view.n_dims, tensor->view.dtype);

  alias->is_local_shard = tensor->is_local_shard;
  return alias;
}

/**
 * ebb_tensor_detach:
 * @tensor: (nullable): a tensor
 *
 * Returns: (transfer full) (nullable): the same view of the same storage, outside the graph
 */
EbbTensor *
ebb_tensor_detach (EbbTensor *tensor)
{
  return tensor ? ebb_tensor_alias (tensor) : NULL;
}

void
ebb_tensor_swap_storage (EbbTensor *tensor,
                         EbbTensor *other)
{
  EbbStorage *old = tensor->storage;
  EbbPurpose purpose = (EbbPurpose) old->purpose;
  EbbView view = other->view;

  tensor->storage = ebb_storage_ref (other->storage);
  tensor->offset = other->offset;
  tensor->view = view;
  tensor->n_elements = other->n_elements;
  g_clear_pointer (&tensor->shadow, ebb_tensor_unref);
  ebb_storage_unref (old);
  ebb_storage_set_purpose (tensor->storage, purpose);
}

/* -- converting ---------------------------------------------------------------------------------------------------- */

static gboolean
convert_into (EbbTensor *tensor,
              EbbTensor *copy,
              GError **error)
{
  EbbLaunch launch;

  ebb_launch_init (&launch, EBB_KERNEL_COPY);
  ebb_launch_input (&launch, tensor);
  ebb_launch_output (&launch, copy);
  return ebb_launch (tensor->storage->device, &launch, error);
}

EbbTensor *
ebb_tensor_convert (EbbTensor *tensor,
                    EbbDType dtype,
                    GError **error)
{
  EbbTensor *copy = ebb_tensor_new_uninitialized (tensor->view.shape, (guint) tensor->view.n_dims, dtype,
                                                  tensor->storage->device, error);

  if (copy != NULL && !convert_into (tensor, copy, error))
    g_clear_pointer (&copy, ebb_tensor_unref);
  return copy;
}

static gboolean
can_overwrite (EbbTensor *shadow,
               EbbTensor *parameter,
               EbbDType dtype)
{
  return !ebb_modes.stopped && !shadow->storage->placeholder && shadow->view.dtype == dtype
         && shadow->storage->device == parameter->storage->device
         && ebb_shapes_equal (&shadow->view, &parameter->view)
         && ebb_tensor_is_unshared (shadow);
}

EbbTensor *
ebb_tensor_get_shadow (EbbTensor *parameter,
                       EbbDType dtype,
                       GError **error)
{
  EbbStorage *storage = parameter->storage;
  EbbTensor *shadow = parameter->shadow;

  if (shadow != NULL && shadow->view.dtype == dtype && parameter->shadow_birth == storage->birth
      && parameter->shadow_version == storage->version && !shadow->storage->placeholder)
    return ebb_tensor_ref (shadow);

  /* Over the old one if nobody looks at it: so that a step leaves the heap as it found it. */
  if (shadow != NULL && can_overwrite (shadow, parameter, dtype))
    {
      if (!convert_into (parameter, shadow, error))
        return NULL;
      parameter->shadow_birth = storage->birth;
      parameter->shadow_version = storage->version;
      return ebb_tensor_ref (shadow);
    }
  shadow = ebb_tensor_convert (parameter, dtype, error);
  if (shadow == NULL)
    return NULL;
  if (!shadow->storage->placeholder)
    ebb_storage_set_purpose (shadow->storage, EBB_PURPOSE_PARAMETER);
  if (parameter->shadow != NULL)
    ebb_tensor_unref (parameter->shadow);
  parameter->shadow = ebb_tensor_ref (shadow);
  parameter->shadow_birth = storage->birth;
  parameter->shadow_version = storage->version;
  return shadow;
}

/* -- looking ------------------------------------------------------------------------------------------------------- */

gboolean
ebb_view_has_shape (const EbbView *view,
                    const gint64 *shape,
                    guint n_dims)
{
  return (guint) view->n_dims == n_dims && memcmp (view->shape, shape, n_dims * sizeof shape[0]) == 0;
}

gboolean
ebb_tensor_is_unshared (EbbTensor *tensor)
{
  return __atomic_load_n (&tensor->ref_count, __ATOMIC_ACQUIRE) == 1
         && __atomic_load_n (&tensor->storage->ref_count, __ATOMIC_ACQUIRE) == 1 && !tensor->storage->pinned
         && tensor->node == NULL && !tensor->requires_grad;
}

gboolean
ebb_tensor_is_spent (EbbTensor *tensor)
{
  return __atomic_load_n (&tensor->ref_count, __ATOMIC_ACQUIRE) == 1
         && __atomic_load_n (&tensor->storage->ref_count, __ATOMIC_ACQUIRE) == 1 && !tensor->storage->pinned
         && !tensor->storage->placeholder && !tensor->requires_grad && !tensor->is_parameter && !tensor->is_buffer
         && tensor->rematerialization == NULL && ebb_view_is_contiguous (&tensor->view);
}

/**
 * ebb_tensor_get_n_dims:
 * @tensor: a tensor
 *
 * Returns: how many dimensions it has
 */
guint
ebb_tensor_get_n_dims (EbbTensor *tensor)
{
  g_return_val_if_fail (tensor != NULL, 0);

  return (guint) tensor->view.n_dims;
}

/**
 * ebb_tensor_get_shape:
 * @tensor: a tensor
 * @n_dims: (out) (optional): return location for the number of dimensions
 *
 * Returns: (array length=n_dims) (transfer none): the size of each dimension
 */
const gint64 *
ebb_tensor_get_shape (EbbTensor *tensor,
                      guint *n_dims)
{
  if (n_dims != NULL)
    *n_dims = 0;
  g_return_val_if_fail (tensor != NULL, NULL);

  if (n_dims != NULL)
    *n_dims = (guint) tensor->view.n_dims;
  return tensor->view.shape;
}

/**
 * ebb_tensor_get_strides:
 * @tensor: a tensor
 * @n_dims: (out) (optional): return location for the number of dimensions
 *
 * Returns: (array length=n_dims) (transfer none): the stride of each dimension, in elements
 */
const gint64 *
ebb_tensor_get_strides (EbbTensor *tensor,
                        guint *n_dims)
{
  if (n_dims != NULL)
    *n_dims = 0;
  g_return_val_if_fail (tensor != NULL, NULL);

  if (n_dims != NULL)
    *n_dims = (guint) tensor->view.n_dims;
  return tensor->view.strides;
}

/**
 * ebb_tensor_get_dim:
 * @tensor: a tensor
 * @dim: a dimension; negative ones count from the last
 *
 * Returns: its size; -1 if there is no such dimension
 */
gint64
ebb_tensor_get_dim (EbbTensor *tensor,
                    int dim)
{
  g_return_val_if_fail (tensor != NULL, -1);

  if (dim < 0)
    dim += tensor->view.n_dims;
  return dim >= 0 && dim < tensor->view.n_dims ? tensor->view.shape[dim] : -1;
}

/**
 * ebb_tensor_get_n_elements:
 * @tensor: a tensor
 *
 * Returns: how many elements it has: the product of its shape
 */
gint64
ebb_tensor_get_n_elements (EbbTensor *tensor)
{
  g_return_val_if_fail (tensor != NULL, 0);

  return tensor->n_elements;
}

/**
 * ebb_tensor_get_n_bytes:
 * @tensor: a tensor
 *
 * Returns: the bytes of its elements
 */
gsize
ebb_tensor_get_n_bytes (EbbTensor *tensor)
{
  g_return_val_if_fail (tensor != NULL, 0);

  return (gsize) tensor->n_elements * ebb_dtype_get_size (tensor->view.dtype);
}

/**
 * ebb_tensor_get_dtype:
 * @tensor: a tensor
 *
 * Returns: the type of its elements
 */
EbbDType
ebb_tensor_get_dtype (EbbTensor *tensor)
{
  g_return_val_if_fail (tensor != NULL, EBB_DTYPE_F32);

  return tensor->view.dtype;
}

/**
 * ebb_tensor_get_device:
 * @tensor: a tensor
 *
 * Returns: (transfer none): where its storage is
 */
EbbDevice *
ebb_tensor_get_device (EbbTensor *tensor)
{
  g_return_val_if_fail (tensor != NULL, NULL);

  return tensor->storage->device;
}

/**
 * ebb_tensor_is_contiguous:
 * @tensor: a tensor
 *
 * Returns: %TRUE if its elements lie in row-major order without gaps
 */
gboolean
ebb_tensor_is_contiguous (EbbTensor *tensor)
{
  g_return_val_if_fail (tensor != NULL, FALSE);

  return ebb_view_is_contiguous (&tensor->view);
}

/**
 * ebb_tensor_shares_storage:
 * @a: a tensor
 * @b: another
 *
 * Returns: %TRUE if both are views of one storage
 */
gboolean
ebb_tensor_shares_storage (EbbTensor *a,
                           EbbTensor *b)
{
  g_return_val_if_fail (a != NULL && b != NULL, FALSE);

  return a->storage == b->storage;
}

/**
 * ebb_tensor_get_storage_id:
 * @tensor: a tensor
 *
 * Returns: a number that only views of the same storage share; later storages have greater ones
 */
guint64
ebb_tensor_get_storage_id (EbbTensor *tensor)
{
  g_return_val_if_fail (tensor != NULL, 0);

  return tensor->storage->birth;
}

/**
 * ebb_tensor_get_version:
 * @tensor: a tensor
 *
 * Returns: how often its storage was changed in place
 */
guint
ebb_tensor_get_version (EbbTensor *tensor)
{
  g_return_val_if_fail (tensor != NULL, 0);

  return tensor->storage->version;
}

char *
ebb_shape_to_string (const gint64 *shape,
                     guint n_dims)
{
  GString *text = g_string_new ("[");

  for (guint i = 0; i < n_dims; i++)
    g_string_append_printf (text, "%s%" G_GINT64_FORMAT, i ? ", " : "", shape[i]);
  g_string_append_c (text, ']');
  return g_string_free (text, FALSE);
}

/**
 * ebb_tensor_shape_to_string:
 * @tensor: a tensor
 *
 * Returns: (transfer full): its shape as text, like "[2, 3]"
 */
char *
ebb_tensor_shape_to_string (EbbTensor *tensor)
{
  g_return_val_if_fail (tensor != NULL, NULL);

  return ebb_shape_to_string (tensor->view.shape, (guint) tensor->view.n_dims);
}
