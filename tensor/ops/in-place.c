/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "tensor/ops/in-place.h"
#include "tensor/autograd/autograd-private.h"
#include "tensor/error-private.h"
#include "tensor/autograd/op-support-private.h"
#include "tensor/ops/pointwise.h"
#include "tensor/thread-private.h"

#include <math.h>
#include <string.h>

/* Changes of data in place. They are not recorded; each launch counts the storage's version up, so that backward
 * notices when something it had kept was changed. After the early stop of a recompute they do nothing. */

/* TRUE if @tensor may be changed: each of its elements lies in a place of its own and no graph forbids it. */
static gboolean
check_target (EbbTensor *tensor, const char *op_name, GError **error)
{
  if (!ebb_tensor_check_writable (tensor, op_name, error))
    return FALSE;
  for (int i = 0; i < tensor->view.n_dims; i++)
    if (tensor->view.shape[i] > 1 && tensor->view.strides[i] == 0)
      return ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT,
                       "%s: a tensor expanded to shape %s has elements that share memory; change a copy of it", op_name,
                       ebb_show_shape (tensor));
  return TRUE;
}

static gboolean
is_idle (EbbTensor *tensor)
{
  return ebb_is_stopped () || tensor->n_elements == 0;
}

static gboolean
check_floating (EbbTensor *tensor, const char *op_name, GError **error)
{
  return tensor->view.dtype == EBB_DTYPE_F32 || tensor->view.dtype == EBB_DTYPE_BF16
         || ebb_fail (error, EBB_ERROR_DTYPE, "%s: needs a tensor of f32 or bf16, not %s", op_name,
                      ebb_dtype_get_name (tensor->view.dtype));
}

static gboolean
check_source (EbbTensor *tensor, EbbTensor *source, const char *op_name, GError **error)
{
  int missing = tensor->view.n_dims - source->view.n_dims;
  gboolean ok = missing >= 0;

  if (EBB_DEVICE_OF (tensor) != EBB_DEVICE_OF (source))
    return ebb_fail (error, EBB_ERROR_DEVICE, "%s: tensors on %s and %s; move one with to_device", op_name,
                     ebb_device_get_name (EBB_DEVICE_OF (tensor)), ebb_device_get_name (EBB_DEVICE_OF (source)));
  if (ebb_is_grad_enabled () && ebb_tensor_needs_grad (source))
    return ebb_fail (error, EBB_ERROR_GRAPH,
                     "%s: the operand requires a gradient, which a change in place does not pass on; detach it or turn "
                     "gradients off",
                     op_name);
  for (int i = 0; ok && i < source->view.n_dims; i++)
    ok = source->view.shape[i] == 1 || source->view.shape[i] == tensor->view.shape[i + missing];
  if (ok)
    return TRUE;
  return ebb_fail (error, EBB_ERROR_SHAPE,
                   "%s: a tensor of shape %s does not broadcast to %s; sizes must be equal or 1", op_name,
                   ebb_show_shape (source), ebb_show_shape (tensor));
}

static gboolean
is_same_view (EbbTensor *a, EbbTensor *b)
{
  return a->storage == b->storage && a->offset == b->offset && a->view.dtype == b->view.dtype
         && ebb_shapes_equal (&a->view, &b->view)
         && memcmp (a->view.strides, b->view.strides, sizeof (gint64) * (gsize) a->view.n_dims) == 0;
}

/* @source, or a copy of it when writing to @tensor could change what is still to be read. */
static EbbTensor *
get_readable (EbbTensor *tensor, EbbTensor *source, GError **error)
{
  if (tensor->storage != source->storage || is_same_view (tensor, source))
    return ebb_tensor_ref (source);
  return ebb_tensor_convert (source, source->view.dtype, error);
}

/**
 * ebb_tensor_fill:
 * @tensor: a tensor of any dtype, which is changed
 * @value: what each element becomes; converted to the dtype
 * @error: return location for an error
 *
 * Sets all elements to one value.
 *
 * Fails with %EBB_ERROR_INVALID_ARGUMENT when elements of @tensor share memory, and with %EBB_ERROR_GRAPH when @tensor
 * requires a gradient and gradients are being recorded.
 *
 * Returns: %TRUE, or %FALSE with @error set
 */
gboolean
ebb_tensor_fill (EbbTensor *tensor, double value, GError **error)
{
  if (!check_target (tensor, "fill", error))
    return FALSE;
  return is_idle (tensor)
         || ebb_launch_in_place (EBB_KERNEL_FILL, &(EbbKernelParams){ .fill = { value } }, tensor, NULL, 0, error);
}

/**
 * ebb_tensor_copy_from:
 * @tensor: a tensor of any dtype, which is changed
 * @source: a tensor of any dtype on the same device, whose shape broadcasts to that of @tensor
 * @error: return location for an error
 *
 * Copies the elements of @source, converting their dtype. A source that is the same part of the same memory is there
 * already: then nothing is written, and no change is counted.
 *
 * Fails with %EBB_ERROR_SHAPE when @source does not broadcast, with %EBB_ERROR_DEVICE when it is elsewhere, and with
 * %EBB_ERROR_GRAPH when @tensor or @source requires a gradient and gradients are being recorded.
 *
 * Returns: %TRUE, or %FALSE with @error set
 */
gboolean
ebb_tensor_copy_from (EbbTensor *tensor, EbbTensor *source, GError **error)
{
  g_autoptr (EbbTensor) readable = NULL;

  if (!EBB_MAY_BEGIN (error, tensor, source) || !check_target (tensor, "copy_from", error)
      || !check_source (tensor, source, "copy_from", error))
    return FALSE;
  if (is_idle (tensor) || is_same_view (tensor, source))
    return TRUE;
  readable = get_readable (tensor, source, error);
  return readable != NULL && EBB_LAUNCH_IN_PLACE (EBB_KERNEL_COPY, EBB_NO_PARAMS, tensor, error, readable);
}

/**
 * ebb_tensor_add_scaled:
 * @tensor: a tensor of f32 or bf16, which is changed
 * @other: a tensor of f32 or bf16 on the same device, whose shape broadcasts to that of @tensor
 * @alpha: what @other is multiplied by
 * @error: return location for an error
 *
 * Adds @alpha times @other to @tensor.
 *
 * Fails with %EBB_ERROR_SHAPE when @other does not broadcast, with %EBB_ERROR_DTYPE for other dtypes, with
 * %EBB_ERROR_DEVICE when @other is elsewhere, and with %EBB_ERROR_GRAPH when @tensor requires a gradient and gradients
 * are
 * being recorded.
 *
 * Returns: %TRUE, or %FALSE with @error set
 */
gboolean
ebb_tensor_add_scaled (EbbTensor *tensor, EbbTensor *other, double alpha, GError **error)
{
  const EbbKernelParams params = { .add_scaled = { 1.0, alpha } };
  g_autoptr (EbbTensor) readable = NULL;

  if (!EBB_MAY_BEGIN (error, tensor, other) || !check_target (tensor, "add_scaled", error)
      || !check_floating (tensor, "add_scaled", error) || !check_floating (other, "add_scaled", error)
      || !check_source (tensor, other, "add_scaled", error))
    return FALSE;
  if (is_idle (tensor))
    return TRUE;
  readable = get_readable (tensor, other, error);
  if (readable != NULL)
    readable = ebb_tensor_into_dtype (readable, tensor->view.dtype, error);
  return readable != NULL && EBB_LAUNCH_IN_PLACE (EBB_KERNEL_ADD_SCALED, &params, tensor, error, tensor, readable);
}

static gboolean
apply_scalar (EbbTensor *tensor, EbbBinaryOp op, double value, GError **error)
{
  const EbbKernelParams params = { .binary = { op, value, FALSE } };

  return EBB_LAUNCH_IN_PLACE (EBB_KERNEL_BINARY_SCALAR, &params, tensor, error, tensor);
}

/**
 * ebb_tensor_scale:
 * @tensor: a tensor of f32 or bf16, which is changed
 * @factor: what each element is multiplied by
 * @error: return location for an error
 *
 * Multiplies all elements by one number.
 *
 * Fails with %EBB_ERROR_DTYPE for other dtypes and with %EBB_ERROR_GRAPH when @tensor requires a gradient and gradients
 * are being recorded.
 *
 * Returns: %TRUE, or %FALSE with @error set
 */
gboolean
ebb_tensor_scale (EbbTensor *tensor, double factor, GError **error)
{
  if (!check_target (tensor, "scale", error) || !check_floating (tensor, "scale", error))
    return FALSE;
  return is_idle (tensor) || apply_scalar (tensor, EBB_BINARY_MUL, factor, error);
}

gboolean
ebb_tensor_scale_by (EbbTensor *tensor, EbbTensor *factor, GError **error)
{
  if (!check_target (tensor, "scale", error) || !check_floating (tensor, "scale", error))
    return FALSE;
  return is_idle (tensor) || ebb_launch_scalar_of (EBB_BINARY_MUL, tensor, factor, tensor, error);
}

/* -- arithmetic --------------------------------------------------------------------------------------------------- */

typedef EbbTensor *(*BinaryFunc) (EbbTensor *a, EbbTensor *b, GError **error);
typedef EbbTensor *(*ScalarFunc) (EbbTensor *a, double b, GError **error);

/* Copies @result, computed apart, unless @tensor can't hold it: integers no fractions, bool no numbers. */
static gboolean
take_result (EbbTensor *tensor, EbbTensor *result, const char *op_name, GError **error)
{
  if (result == NULL)
    return FALSE;
  if (ebb_dtype_is_floating_point (tensor->view.dtype) || tensor->view.dtype == result->view.dtype
      || (tensor->view.dtype != EBB_DTYPE_BOOL && !ebb_dtype_is_floating_point (result->view.dtype)))
    return is_idle (tensor) || EBB_LAUNCH_IN_PLACE (EBB_KERNEL_COPY, EBB_NO_PARAMS, tensor, error, result);
  return ebb_fail (error, EBB_ERROR_DTYPE,
                   "%s: the result is of %s, which a tensor of %s can't hold; cast it to %s first", op_name,
                   ebb_dtype_get_name (result->view.dtype), ebb_dtype_get_name (tensor->view.dtype),
                   ebb_dtype_get_name (result->view.dtype));
}

/* The kernel may write to its operand. */
static gboolean
is_direct (EbbTensor *tensor)
{
  return tensor->view.dtype == EBB_DTYPE_F32 || tensor->view.dtype == EBB_DTYPE_BF16;
}

static gboolean
change (EbbTensor *tensor, EbbTensor *other, EbbBinaryOp op, BinaryFunc func, const char *op_name, GError **error)
{
  g_autoptr (EbbTensor) readable = NULL;
  g_autoptr (EbbTensor) result = NULL;

  if (!ebb_may_begin (error, op_name, "tensor, other", (const gconstpointer[]){ tensor, other }, 2)
      || !check_target (tensor, op_name, error) || !check_source (tensor, other, op_name, error))
    return FALSE;
  if (is_direct (tensor) && tensor->view.dtype == other->view.dtype)
    {
      if (is_idle (tensor))
        return TRUE;
      readable = get_readable (tensor, other, error);
      return readable != NULL
             && EBB_LAUNCH_IN_PLACE (EBB_KERNEL_BINARY, &(EbbKernelParams){ .binary = { op } }, tensor, error, tensor,
                                     readable);
    }
  ebb_push_grad_enabled (FALSE);
  result = func (tensor, other, error);
  ebb_pop_grad_enabled ();
  return take_result (tensor, result, op_name, error);
}

static gboolean
change_by_scalar (EbbTensor *tensor, double value, EbbBinaryOp op, ScalarFunc func, const char *op_name, GError **error)
{
  g_autoptr (EbbTensor) result = NULL;

  if (!check_target (tensor, op_name, error))
    return FALSE;
  if (is_direct (tensor))
    return is_idle (tensor) || apply_scalar (tensor, op, value, error);
  ebb_push_grad_enabled (FALSE);
  result = func (tensor, value, error);
  ebb_pop_grad_enabled ();
  return take_result (tensor, result, op_name, error);
}

/**
 * ebb_tensor_add_in_place:
 * @tensor: a tensor of f32, bf16 or integers, which is changed
 * @other: a tensor of f32, bf16, integers or bool on the same device, whose shape broadcasts to that of @tensor
 * @error: return location for an error
 *
 * Adds @other to @tensor, element by element: the values are those of ebb_add(), in the dtype of @tensor.
 *
 * Fails with %EBB_ERROR_SHAPE when @other does not broadcast, with %EBB_ERROR_DTYPE when the result is
 * floating-point and @tensor is not, with %EBB_ERROR_DEVICE when @other is elsewhere, and with %EBB_ERROR_GRAPH when
 * @tensor or @other requires a gradient and gradients are being recorded.
 *
 * Returns: %TRUE, or %FALSE with @error set
 */
gboolean
ebb_tensor_add_in_place (EbbTensor *tensor, EbbTensor *other, GError **error)
{
  return change (tensor, other, EBB_BINARY_ADD, ebb_add, "add_in_place", error);
}

/**
 * ebb_tensor_sub_in_place:
 * @tensor: a tensor of f32, bf16 or integers, which is changed
 * @other: a tensor of f32, bf16, integers or bool on the same device, whose shape broadcasts to that of @tensor
 * @error: return location for an error
 *
 * Subtracts @other from @tensor, element by element: the values are those of ebb_sub(), in the dtype of @tensor.
 *
 * Fails with %EBB_ERROR_SHAPE when @other does not broadcast, with %EBB_ERROR_DTYPE when the result is
 * floating-point and @tensor is not, with %EBB_ERROR_DEVICE when @other is elsewhere, and with %EBB_ERROR_GRAPH when
 * @tensor or @other requires a gradient and gradients are being recorded.
 *
 * Returns: %TRUE, or %FALSE with @error set
 */
gboolean
ebb_tensor_sub_in_place (EbbTensor *tensor, EbbTensor *other, GError **error)
{
  return change (tensor, other, EBB_BINARY_SUB, ebb_sub, "sub_in_place", error);
}

/**
 * ebb_tensor_mul_in_place:
 * @tensor: a tensor of f32, bf16 or integers, which is changed
 * @other: a tensor of f32, bf16, integers or bool on the same device, whose shape broadcasts to that of @tensor
 * @error: return location for an error
 *
 * Multiplies @tensor by @other, element by element: the values are those of ebb_mul(), in the dtype of @tensor.
 *
 * Fails with %EBB_ERROR_SHAPE when @other does not broadcast, with %EBB_ERROR_DTYPE when the result is
 * floating-point and @tensor is not, with %EBB_ERROR_DEVICE when @other is elsewhere, and with %EBB_ERROR_GRAPH when
 * @tensor or @other requires a gradient and gradients are being recorded.
 *
 * Returns: %TRUE, or %FALSE with @error set
 */
gboolean
ebb_tensor_mul_in_place (EbbTensor *tensor, EbbTensor *other, GError **error)
{
  return change (tensor, other, EBB_BINARY_MUL, ebb_mul, "mul_in_place", error);
}

/**
 * ebb_tensor_div_in_place:
 * @tensor: a tensor of f32, bf16 or integers, which is changed
 * @other: a tensor of f32, bf16, integers or bool on the same device, whose shape broadcasts to that of @tensor
 * @error: return location for an error
 *
 * Divides @tensor by @other, element by element: the values are those of ebb_div(), in the dtype of @tensor.
 *
 * Fails with %EBB_ERROR_SHAPE when @other does not broadcast, with %EBB_ERROR_DTYPE when the result is
 * floating-point and @tensor is not, with %EBB_ERROR_DEVICE when @other is elsewhere, and with %EBB_ERROR_GRAPH when
 * @tensor or @other requires a gradient and gradients are being recorded.
 *
 * Returns: %TRUE, or %FALSE with @error set
 */
gboolean
ebb_tensor_div_in_place (EbbTensor *tensor, EbbTensor *other, GError **error)
{
  return change (tensor, other, EBB_BINARY_DIV, ebb_div, "div_in_place", error);
}

/**
 * ebb_tensor_add_scalar_in_place:
 * @tensor: a tensor of f32, bf16 or integers, which is changed
 * @value: a number
 * @error: return location for an error
 *
 * Adds a number to each element: the values are those of ebb_add_scalar(), in the dtype of @tensor.
 *
 * Fails with %EBB_ERROR_DTYPE when the result is floating-point and @tensor is not, and with %EBB_ERROR_GRAPH when
 * @tensor requires a gradient and gradients are being recorded.
 *
 * Returns: %TRUE, or %FALSE with @error set
 */
gboolean
ebb_tensor_add_scalar_in_place (EbbTensor *tensor, double value, GError **error)
{
  return change_by_scalar (tensor, value, EBB_BINARY_ADD, ebb_add_scalar, "add_scalar_in_place", error);
}

/**
 * ebb_tensor_sub_scalar_in_place:
 * @tensor: a tensor of f32, bf16 or integers, which is changed
 * @value: a number
 * @error: return location for an error
 *
 * Subtracts a number from each element: the values are those of ebb_sub_scalar(), in the dtype of @tensor.
 *
 * Fails with %EBB_ERROR_DTYPE when the result is floating-point and @tensor is not, and with %EBB_ERROR_GRAPH when
 * @tensor requires a gradient and gradients are being recorded.
 *
 * Returns: %TRUE, or %FALSE with @error set
 */
gboolean
ebb_tensor_sub_scalar_in_place (EbbTensor *tensor, double value, GError **error)
{
  return change_by_scalar (tensor, value, EBB_BINARY_SUB, ebb_sub_scalar, "sub_scalar_in_place", error);
}

/**
 * ebb_tensor_mul_scalar_in_place:
 * @tensor: a tensor of f32, bf16 or integers, which is changed
 * @value: a number
 * @error: return location for an error
 *
 * Multiplies each element by a number: the values are those of ebb_mul_scalar(), in the dtype of @tensor.
 *
 * Fails with %EBB_ERROR_DTYPE when the result is floating-point and @tensor is not, and with %EBB_ERROR_GRAPH when
 * @tensor requires a gradient and gradients are being recorded.
 *
 * Returns: %TRUE, or %FALSE with @error set
 */
gboolean
ebb_tensor_mul_scalar_in_place (EbbTensor *tensor, double value, GError **error)
{
  return change_by_scalar (tensor, value, EBB_BINARY_MUL, ebb_mul_scalar, "mul_scalar_in_place", error);
}

/**
 * ebb_tensor_div_scalar_in_place:
 * @tensor: a tensor of f32, bf16 or integers, which is changed
 * @value: a number
 * @error: return location for an error
 *
 * Divides each element by a number: the values are those of ebb_div_scalar(), in the dtype of @tensor.
 *
 * Fails with %EBB_ERROR_DTYPE when the result is floating-point and @tensor is not, and with %EBB_ERROR_GRAPH when
 * @tensor requires a gradient and gradients are being recorded.
 *
 * Returns: %TRUE, or %FALSE with @error set
 */
gboolean
ebb_tensor_div_scalar_in_place (EbbTensor *tensor, double value, GError **error)
{
  return change_by_scalar (tensor, value, EBB_BINARY_DIV, ebb_div_scalar, "div_scalar_in_place", error);
}

/* Draws are named by the position in row-major order, so what is not contiguous is drawn elsewhere and copied. */
static gboolean
fill_random (EbbTensor *tensor, EbbKernel kernel, EbbKernelParams params, EbbGenerator *generator, GError **error)
{
  g_autoptr (EbbTensor) drawn = NULL;

  /* A stopped recompute must leave the generator where the whole forward would. */
  params.random.philox = ebb_generator_take (generator, (guint64) tensor->n_elements);
  if (ebb_is_stopped () || tensor->n_elements == 0)
    return TRUE;
  if (ebb_view_is_contiguous (&tensor->view))
    return ebb_launch_in_place (kernel, &params, tensor, NULL, 0, error);
  drawn = ebb_tensor_new_like (tensor, error);
  return drawn != NULL && EBB_LAUNCH (kernel, &params, 0, error, drawn)
         && EBB_LAUNCH_IN_PLACE (EBB_KERNEL_COPY, EBB_NO_PARAMS, tensor, error, drawn);
}

/**
 * ebb_tensor_fill_uniform:
 * @tensor: a tensor of f32 or bf16, which is changed
 * @low: the least value
 * @high: the value that is not reached
 * @generator: (nullable): where the draws come from, or %NULL for the thread's default
 * @error: return location for an error
 *
 * Sets the elements to numbers drawn uniformly from [@low, @high), also after they are rounded to the tensor's dtype.
 * If the dtype has no number in that range, all elements are the one nearest @low.
 *
 * Fails with %EBB_ERROR_INVALID_ARGUMENT when @low exceeds @high or f32 does not hold their difference, with
 * %EBB_ERROR_DTYPE for other dtypes and with %EBB_ERROR_GRAPH when @tensor requires a gradient and gradients are being
 * recorded.
 *
 * Returns: %TRUE, or %FALSE with @error set
 */
gboolean
ebb_tensor_fill_uniform (EbbTensor *tensor, double low, double high, EbbGenerator *generator, GError **error)
{
  const EbbKernelParams params = { .random = { .low = low, .high = high } };

  if (!check_target (tensor, "fill_uniform", error) || !check_floating (tensor, "fill_uniform", error))
    return FALSE;
  if (!(low <= high && fabs (low) <= G_MAXFLOAT && high - low <= G_MAXFLOAT))
    return ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT,
                     "fill_uniform: from %g to %g is no range; low must not exceed high, and f32 must hold high - low",
                     low, high);
  return fill_random (tensor, EBB_KERNEL_UNIFORM, params, generator, error);
}

/**
 * ebb_tensor_fill_normal:
 * @tensor: a tensor of f32 or bf16, which is changed
 * @mean: the mean of the distribution
 * @std: its standard deviation
 * @generator: (nullable): where the draws come from, or %NULL for the thread's default
 * @error: return location for an error
 *
 * Sets the elements to numbers drawn from a normal distribution.
 *
 * Fails with %EBB_ERROR_INVALID_ARGUMENT when @std is negative, with %EBB_ERROR_DTYPE for other dtypes and with
 * %EBB_ERROR_GRAPH when @tensor requires a gradient and gradients are being recorded.
 *
 * Returns: %TRUE, or %FALSE with @error set
 */
gboolean
ebb_tensor_fill_normal (EbbTensor *tensor, double mean, double std, EbbGenerator *generator, GError **error)
{
  const EbbKernelParams params = { .random = { .mean = mean, .std = std } };

  if (!check_target (tensor, "fill_normal", error) || !check_floating (tensor, "fill_normal", error))
    return FALSE;
  if (!(std >= 0.0))
    return ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT,
                     "fill_normal: a standard deviation of %g; it must be zero or more", std);
  return fill_random (tensor, EBB_KERNEL_NORMAL, params, generator, error);
}
