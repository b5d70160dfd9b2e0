/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "tensor/tensor-private.h"

#include "tensor/autograd/autograd-private.h"
#include "tensor/error-private.h"
#include "tensor/autograd/parameter-owner-private.h"
#include "tensor/backend/backend-private.h"
#include "tensor/autograd/op-private.h"
#include "tensor/thread-private.h"
#include "tensor/util/half-private.h"

#include <math.h>
#include <string.h>

/* Reading data on the host, and what belongs to gradients. */

static gboolean
check_present (EbbTensor *tensor,
               GError **error)
{
  if (!ebb_may_begin (error, "reading values", "tensor", (const gconstpointer[]){ tensor }, 1))
    return FALSE;
  if (tensor->storage->placeholder)
    return ebb_fail (error, EBB_ERROR_STOP,
                     "the tensor has no data: it was made after a recompute had all it needed");
  if (G_UNLIKELY (tensor->storage->no_data))
    return ebb_fail (
        error, EBB_ERROR_DRY_RUN,
        "the values of the %s tensor %s are read, and a dry run has none: read them outside of the step, or "
        "take real steps: ebb_memory_plan_new_measured (), in Python plan_memory (…, measured=True), plans "
        "by them, and an EbbMemoryTimeline records one",
        ebb_dtype_get_name (tensor->view.dtype), ebb_show_shape (tensor));
  if (G_UNLIKELY (ebb_modes.observers != NULL))
    ebb_thread_touch (tensor->view.data);
  return ebb_storage_map (tensor->storage, error);
}

static gboolean
check_readable (EbbTensor *tensor,
                GError **error)
{
  if (!check_present (tensor, error))
    return FALSE;
  if (!tensor->storage->device->backend->host_memory)
    return ebb_fail (error, EBB_ERROR_DEVICE, "the host can't read the memory of %s; copy the tensor to cpu",
                     tensor->storage->device->name);
  return TRUE;
}

/* Reads a contiguous tensor; from a device, what was enqueued before is waited for. */
static gboolean
download (EbbTensor *tensor,
          gpointer values,
          GError **error)
{
  EbbDevice *device = tensor->storage->device;
  gsize size = ebb_tensor_get_n_bytes (tensor);

  if (size == 0)
    return TRUE;
  if (!device->backend->host_memory)
    return device->backend->copy (device->index, values, tensor->view.data, size, TRUE, error);
  memcpy (values, tensor->view.data, size);
  return TRUE;
}

/**
 * ebb_tensor_get_data: (skip)
 * @tensor: a tensor on the CPU
 * @error: return location for an error
 *
 * Looks at the data in place; see ebb_tensor_get_strides() for its order. Languages other than C use
 * ebb_tensor_get_address() or ebb_tensor_get_bytes().
 *
 * Returns: (nullable): the first element; valid as long as @tensor. %NULL with an error if the host can't read it, and
 *   without one if it has no elements
 */
gpointer
ebb_tensor_get_data (EbbTensor *tensor,
                     GError **error)
{
  return check_readable (tensor, error) ? tensor->view.data : NULL;
}

/**
 * ebb_tensor_get_address:
 * @tensor: a tensor on the CPU
 * @error: return location for an error
 *
 * The address of the first element, for bindings that look at data in place (numpy, DLPack). From then on the storage
 * is pinned: no strategy moves or frees it while a tensor holds it.
 *
 * Returns: the address; 0 with an error if the host can't read it
 */
guint64
ebb_tensor_get_address (EbbTensor *tensor,
                        GError **error)
{
  if (!check_readable (tensor, error))
    return 0;
  tensor->storage->pinned = TRUE;
  return (guint64) (gsize) tensor->view.data;
}

/* A dry run copies what it has as well. */
static EbbTensor *
copy_dense (EbbTensor *tensor,
            GError **error)
{
  const gboolean outer = ebb_thread.computes_dry;
  g_autoptr (EbbTensor) copy = NULL;
  gboolean ok = FALSE;
  EbbLaunch launch;

  ebb_thread.computes_dry = ebb_is_dry ();
  copy = ebb_tensor_new_uninitialized (tensor->view.shape, (guint) tensor->view.n_dims, tensor->view.dtype,
                                       tensor->storage->device, error);
  if (copy != NULL)
    {
      ebb_launch_init (&launch, EBB_KERNEL_COPY);
      ebb_launch_input (&launch, tensor);
      ebb_launch_output (&launch, copy);
      ok = ebb_launch (tensor->storage->device, &launch, error);
    }
  ebb_thread.computes_dry = outer;
  return ok ? g_steal_pointer (&copy) : NULL;
}

/* @pins: the caller may keep the bytes, so their memory must not move. */
static GBytes *
get_bytes (EbbTensor *tensor,
           gboolean pins,
           GError **error)
{
  g_autoptr (EbbTensor) copy = NULL;

  if (!check_present (tensor, error))
    return NULL;
  copy = ebb_view_is_contiguous (&tensor->view) ? ebb_tensor_alias (tensor) : copy_dense (tensor, error);
  if (copy == NULL)
    return NULL;
  if (!copy->storage->device->backend->host_memory)
    {
      gsize size = ebb_tensor_get_n_bytes (copy);
      g_autofree void *values = g_malloc (size);

      return download (copy, values, error) ? g_bytes_new_take (g_steal_pointer (&values), size) : NULL;
    }
  if (pins)
    copy->storage->pinned = TRUE;
  return g_bytes_new_with_free_func (copy->view.data, ebb_tensor_get_n_bytes (copy),
                                     (GDestroyNotify) ebb_tensor_unref, ebb_tensor_ref (copy));
}

/**
 * ebb_tensor_get_bytes:
 * @tensor: a tensor
 * @error: return location for an error
 *
 * The elements in row-major order: without a copy if @tensor is contiguous and on the CPU (the bytes then hold its
 * storage), else copied.
 *
 * Returns: (transfer full) (nullable): the bytes
 */
GBytes *
ebb_tensor_get_bytes (EbbTensor *tensor,
                      GError **error)
{
  return get_bytes (tensor, TRUE, error);
}

/* The single element as a double or an i64. */
static gboolean
read_item (EbbTensor *tensor,
           double *real,
           gint64 *integer,
           GError **error)
{
  union
  {
    float f32;
    guint16 half;
    gint32 i32;
    gint64 i64;
    guint8 u8;
  } element;
  guint32 bits;
  float value;

  if (!check_present (tensor, error))
    return FALSE;
  if (tensor->n_elements != 1)
    return ebb_fail (error, EBB_ERROR_SHAPE, "item () of a tensor of shape %s: it must have one element",
                     ebb_show_shape (tensor));
  if (!download (tensor, &element, error))
    return FALSE;
  *real = 0;
  *integer = 0;
  switch (tensor->view.dtype)
    {
    case EBB_DTYPE_F32:
      *real = element.f32;
      break;
    case EBB_DTYPE_BF16:
      bits = (guint32) element.half << 16;
      memcpy (&value, &bits, 4);
      *real = value;
      break;
    case EBB_DTYPE_F16:
      *real = ebb_f16_to_float (element.half);
      break;
    case EBB_DTYPE_I32:
      *integer = element.i32;
      break;
    case EBB_DTYPE_I64:
      *integer = element.i64;
      break;
    case EBB_DTYPE_U8:
    case EBB_DTYPE_BOOL:
      *integer = element.u8;
      break;
    }
  if (ebb_dtype_is_floating_point (tensor->view.dtype))
    *integer = *real >= -9.2e18 && *real <= 9.2e18 ? (gint64) *real : 0;
  else
    *real = (double) *integer;
  return TRUE;
}

/**
 * ebb_tensor_get_item:
 * @tensor: a tensor with one element
 * @value: (out): return location for the value
 * @error: return location for an error
 *
 * Reads the one element. On a device that computes behind the caller's back, this waits for it.
 *
 * Returns: %FALSE with %EBB_ERROR_SHAPE if there is more than one
 */
gboolean
ebb_tensor_get_item (EbbTensor *tensor,
                     double *value,
                     GError **error)
{
  gint64 integer;

  return read_item (tensor, value, &integer, error);
}

/**
 * ebb_tensor_get_item_int:
 * @tensor: a tensor with one element
 * @value: (out): return location for the value
 * @error: return location for an error
 *
 * Reads the one element as an integer; exact for integer types. On a device that computes behind the caller's back,
 * this waits for it.
 *
 * Returns: %FALSE with %EBB_ERROR_SHAPE if there is more than one
 */
gboolean
ebb_tensor_get_item_int (EbbTensor *tensor,
                         gint64 *value,
                         GError **error)
{
  double real;

  return read_item (tensor, &real, value, error);
}

/**
 * ebb_tensor_equal:
 * @a: a tensor
 * @b: another, which may be on another device
 *
 * Returns: %TRUE if shapes, types and the bytes of all elements are equal
 */
gboolean
ebb_tensor_equal (EbbTensor *a,
                  EbbTensor *b)
{
  g_autoptr (GBytes) x = NULL;
  g_autoptr (GBytes) y = NULL;

  g_return_val_if_fail (a != NULL && b != NULL, FALSE);

  if (a->view.dtype != b->view.dtype || !ebb_shapes_equal (&a->view, &b->view))
    return FALSE;
  x = get_bytes (a, FALSE, NULL);
  y = get_bytes (b, FALSE, NULL);
  return x != NULL && y != NULL && g_bytes_equal (x, y);
}

static void
append_element (GString *text,
                EbbTensor *tensor,
                gint64 offset)
{
  EbbTensor *element =
      ebb_tensor_new_view (tensor->storage, tensor->offset + offset, NULL, NULL, 0, tensor->view.dtype);
  double real = 0;
  gint64 integer = 0;

  read_item (element, &real, &integer, NULL);
  if (tensor->view.dtype == EBB_DTYPE_BOOL)
    g_string_append (text, integer ? "true" : "false");
  else if (ebb_dtype_is_floating_point (tensor->view.dtype))
    g_string_append_printf (text, "%.6g", real);
  else
    g_string_append_printf (text, "%" G_GINT64_FORMAT, integer);
  ebb_tensor_unref (element);
}

/* At most the first and last three of each dimension. */
static void
append_values (GString *text,
               EbbTensor *tensor,
               int dim,
               gint64 offset)
{
  gint64 n;

  if (dim == tensor->view.n_dims)
    {
      append_element (text, tensor, offset);
      return;
    }
  n = tensor->view.shape[dim];
  g_string_append_c (text, '[');
  for (gint64 i = 0; i < n; i++)
    {
      if (n > 8 && i == 3)
        {
          g_string_append (text, ", ...");
          i = n - 3;
        }
      g_string_append (text, i ? ", " : "");
      append_values (text, tensor, dim + 1, offset + i * tensor->view.strides[dim]);
    }
  g_string_append_c (text, ']');
}

/* @tensor itself if the host can read it; NULL if there is nothing to be read. */
static EbbTensor *
get_host_copy (EbbTensor *tensor)
{
  g_autoptr (GBytes) bytes = NULL;

  if (tensor->storage->device->backend->host_memory)
    return check_present (tensor, NULL) ? ebb_tensor_ref (tensor) : NULL;
  bytes = ebb_tensor_get_bytes (tensor, NULL);
  return ebb_tensor_new_from_bytes (bytes, 0, tensor->view.shape, (guint) tensor->view.n_dims, tensor->view.dtype,
                                    NULL);
}

/**
 * ebb_tensor_to_string:
 * @tensor: a tensor
 *
 * Returns: (transfer full): its values (the first and last of long dimensions), type and device, for people
 */
char *
ebb_tensor_to_string (EbbTensor *tensor)
{
  GString *text = g_string_new ("tensor (");
  g_autoptr (EbbTensor) host = NULL;

  g_return_val_if_fail (tensor != NULL, NULL);

  host = get_host_copy (tensor);
  if (host != NULL)
    append_values (text, host, 0, 0);
  else
    {
      g_autofree char *shape = ebb_tensor_shape_to_string (tensor);

      g_string_append_printf (text, "shape %s, no data", shape);
    }
  g_string_append_printf (text, ", %s, %s)", ebb_dtype_get_name (tensor->view.dtype), tensor->storage->device->name);
  return g_string_free (text, FALSE);
}

/**
 * ebb_tensor_get_requires_grad:
 * @tensor: a tensor
 *
 * Returns: %TRUE if gradients flow to it
 */
gboolean
ebb_tensor_get_requires_grad (EbbTensor *tensor)
{
  g_return_val_if_fail (tensor != NULL, FALSE);

  return ebb_tensor_needs_grad (tensor);
}

/**
 * ebb_tensor_set_requires_grad:
 * @tensor: a leaf
 * @requires_grad: whether ops on it are recorded and its gradient is wanted
 * @error: return location for an error
 *
 * Asks for the gradient of a leaf, or freezes it.
 *
 * Returns: %FALSE with %EBB_ERROR_GRAPH if @tensor was made by an op, with %EBB_ERROR_DTYPE if it is not floating
 */
gboolean
ebb_tensor_set_requires_grad (EbbTensor *tensor,
                              gboolean requires_grad,
                              GError **error)
{
  EBB_RETURN_UNLESS_BEGUN (FALSE, error, tensor);
  if (tensor->node != NULL && !requires_grad)
    return ebb_fail (error, EBB_ERROR_GRAPH,
                     "the tensor was made by an op (%s); use detach () to leave the graph",
                     ebb_node_get_op (tensor->node)->name);
  if (requires_grad && !ebb_dtype_is_floating_point (tensor->view.dtype))
    return ebb_fail (error, EBB_ERROR_DTYPE,
                     "a tensor of %s can't require a gradient; only floating ones can%s",
                     ebb_dtype_get_name (tensor->view.dtype),
                     tensor->is_buffer ? "; a quantised weight is trained by an adapter, see ebb_lora_wrap ()" : "");
  if (tensor->node == NULL)
    tensor->requires_grad = requires_grad != FALSE;
  return TRUE;
}

/**
 * ebb_tensor_is_parameter:
 * @tensor: a tensor
 *
 * Returns: %TRUE once the tensor was registered as a parameter of a module
 */
gboolean
ebb_tensor_is_parameter (EbbTensor *tensor)
{
  return tensor->is_parameter;
}

/**
 * ebb_tensor_is_buffer:
 * @tensor: a tensor
 *
 * Returns: %TRUE once the tensor was registered as a buffer of a module
 */
gboolean
ebb_tensor_is_buffer (EbbTensor *tensor)
{
  return tensor->is_buffer;
}

/**
 * ebb_tensor_is_leaf:
 * @tensor: a tensor
 *
 * Returns: %TRUE if it was not made by a recorded op
 */
gboolean
ebb_tensor_is_leaf (EbbTensor *tensor)
{
  g_return_val_if_fail (tensor != NULL, FALSE);

  return tensor->node == NULL;
}

/**
 * ebb_tensor_get_grad:
 * @tensor: a leaf
 *
 * Returns: (transfer full) (nullable): its gradient, summed up over the backward passes so far; %NULL if there is none
 */
EbbTensor *
ebb_tensor_get_grad (EbbTensor *tensor)
{
  g_return_val_if_fail (tensor != NULL, NULL);

  return tensor->grad ? ebb_tensor_ref (tensor->grad) : NULL;
}

/**
 * ebb_tensor_set_grad:
 * @tensor: a leaf
 * @grad: (nullable): a tensor of the same shape, or %NULL to drop the gradient
 * @error: return location for an error
 *
 * Replaces the gradient.
 *
 * Returns: %FALSE with %EBB_ERROR_SHAPE, %EBB_ERROR_DTYPE or %EBB_ERROR_DEVICE if @grad does not fit
 */
gboolean
ebb_tensor_set_grad (EbbTensor *tensor,
                     EbbTensor *grad,
                     GError **error)
{
  EBB_RETURN_UNLESS_BEGUN (FALSE, error, tensor);
  if (grad != NULL && !ebb_shapes_equal (&grad->view, &tensor->view))
    return ebb_fail (error, EBB_ERROR_SHAPE, "the gradient has shape %s, but the tensor has shape %s",
                     ebb_show_shape (grad), ebb_show_shape (tensor));
  if (grad != NULL && grad->view.dtype != tensor->view.dtype
      && (grad->view.dtype != EBB_DTYPE_F32 || tensor->view.dtype != EBB_DTYPE_BF16))
    return ebb_fail (error, EBB_ERROR_DTYPE, "the gradient is of %s, but the tensor is of %s",
                     ebb_dtype_get_name (grad->view.dtype), ebb_dtype_get_name (tensor->view.dtype));
  if (grad != NULL && grad->storage->device != tensor->storage->device)
    return ebb_fail (error, EBB_ERROR_DEVICE, "the gradient is on %s, but the tensor is on %s",
                     grad->storage->device->name, tensor->storage->device->name);
  ebb_parameter_drop_grads (tensor);
  if (grad != NULL)
    ebb_tensor_ref (grad);
  if (tensor->grad != NULL)
    ebb_tensor_unref (tensor->grad);
  tensor->grad = grad;
  return TRUE;
}

void
ebb_tensor_zero_grad (EbbTensor *tensor)
{
  tensor->n_zeroed++;
  ebb_tensor_set_grad (tensor, NULL, NULL);
}

gboolean
ebb_tensor_check_writable (EbbTensor *tensor,
                           const char *op_name,
                           GError **error)
{
  if (!ebb_may_begin (error, op_name, "tensor", (const gconstpointer[]){ tensor }, 1))
    return FALSE;
  if (ebb_is_grad_enabled () && ebb_tensor_needs_grad (tensor))
    return ebb_fail (
        error, EBB_ERROR_GRAPH,
        "%s: a tensor that requires a gradient can't be changed in place while gradients are recorded; do it "
        "with gradients off",
        op_name);
  return TRUE;
}
