/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "tensor/ops/creation.h"
#include "tensor/autograd/op-support-private.h"
#include "tensor/error-private.h"

#include <math.h>

/* New tensors have no history, so these are launches and not ops that are recorded. */

static EbbTensor *
new_filled (const char *op_name,
            const gint64 *shape,
            guint n_dims,
            double value,
            EbbDType dtype,
            EbbDevice *device,
            GError **error)
{
  EbbTensor *tensor = ebb_tensor_new_checked (op_name, shape, n_dims, dtype, device, error);

  if (tensor != NULL && tensor->n_elements > 0 && !ebb_launch_fill (tensor, value, error))
    g_clear_pointer (&tensor, ebb_tensor_unref);
  return tensor;
}

/**
 * ebb_zeros:
 * @shape: (array length=n_dims): the size of each dimension
 * @n_dims: how many dimensions, at most 8
 * @dtype: the element type
 * @device: (nullable): where, or %NULL for the default device
 * @error: return location for an error
 *
 * Makes a tensor of zeros.
 *
 * Fails with %EBB_ERROR_SHAPE on negative sizes or too many dimensions and with %EBB_ERROR_NO_MEMORY when the memory
 * can't be had.
 *
 * Returns: (transfer full) (nullable): the tensor, or %NULL with @error set
 */
EbbTensor *
ebb_zeros (const gint64 *shape, guint n_dims, EbbDType dtype, EbbDevice *device, GError **error)
{
  return new_filled ("zeros", shape, n_dims, 0.0, dtype, device, error);
}

/**
 * ebb_ones:
 * @shape: (array length=n_dims): the size of each dimension
 * @n_dims: how many dimensions, at most 8
 * @dtype: the element type
 * @device: (nullable): where, or %NULL for the default device
 * @error: return location for an error
 *
 * Makes a tensor of ones.
 *
 * Fails with %EBB_ERROR_SHAPE on negative sizes or too many dimensions and with %EBB_ERROR_NO_MEMORY when the memory
 * can't be had.
 *
 * Returns: (transfer full) (nullable): the tensor, or %NULL with @error set
 */
EbbTensor *
ebb_ones (const gint64 *shape, guint n_dims, EbbDType dtype, EbbDevice *device, GError **error)
{
  return new_filled ("ones", shape, n_dims, 1.0, dtype, device, error);
}

/**
 * ebb_full:
 * @shape: (array length=n_dims): the size of each dimension
 * @n_dims: how many dimensions, at most 8
 * @value: what each element is; converted to @dtype
 * @dtype: the element type
 * @device: (nullable): where, or %NULL for the default device
 * @error: return location for an error
 *
 * Makes a tensor of one value.
 *
 * Fails with %EBB_ERROR_SHAPE on negative sizes or too many dimensions and with %EBB_ERROR_NO_MEMORY when the memory
 * can't be had.
 *
 * Returns: (transfer full) (nullable): the tensor, or %NULL with @error set
 */
EbbTensor *
ebb_full (const gint64 *shape, guint n_dims, double value, EbbDType dtype, EbbDevice *device, GError **error)
{
  return new_filled ("full", shape, n_dims, value, dtype, device, error);
}

/**
 * ebb_scalar:
 * @value: what the element is; converted to @dtype
 * @dtype: the element type
 * @device: (nullable): where, or %NULL for the default device
 * @error: return location for an error
 *
 * Makes a 0-dimensional tensor: one number, which gives way to other dtypes of its kind in arithmetic.
 *
 * Returns: (transfer full) (nullable): the tensor, or %NULL with @error set
 */
EbbTensor *
ebb_scalar (double value, EbbDType dtype, EbbDevice *device, GError **error)
{
  return new_filled ("scalar", NULL, 0, value, dtype, device, error);
}

/**
 * ebb_arange:
 * @start: the first value
 * @end: where the values end; not reached
 * @step: the distance of two values; may be negative
 * @dtype: the element type; any but bool
 * @device: (nullable): where, or %NULL for the default device
 * @error: return location for an error
 *
 * Makes the values @start + i * @step for i from 0 to ceil ((@end - @start) / @step), without this, a tensor of one
 * dimension.
 *
 * Fails with %EBB_ERROR_INVALID_ARGUMENT when @step does not lead from @start to @end, with %EBB_ERROR_DTYPE for bool
 * and with %EBB_ERROR_NO_MEMORY when the memory can't be had.
 *
 * Returns: (transfer full) (nullable): the tensor, or %NULL with @error set
 */
EbbTensor *
ebb_arange (double start, double end, double step, EbbDType dtype, EbbDevice *device, GError **error)
{
  g_autoptr (EbbTensor) tensor = NULL;
  const EbbKernelParams params = { .arange = { start, step } };
  double n = ceil ((end - start) / step);
  gint64 size;

  if (error != NULL && *error != NULL)
    return NULL;
  if (dtype == EBB_DTYPE_BOOL)
    return ebb_fail_null (error, EBB_ERROR_DTYPE, "arange: bool holds no numbers; use i64 or f32");
  if (step == 0.0 || !(n >= 0.0) || !isfinite (start) || !isfinite (step) || !isfinite (end))
    return ebb_fail_null (
        error, EBB_ERROR_INVALID_ARGUMENT,
        "arange: a step of %g does not lead from %g to %g; all must be finite and the step have the sign of "
        "end - start",
        step, start, end);
  size = n < 0x1p62 ? (gint64) n : G_GINT64_CONSTANT (1) << 62;
  tensor = ebb_tensor_new_checked ("arange", &size, 1, dtype, device, error);
  if (tensor == NULL || size == 0 || EBB_LAUNCH (EBB_KERNEL_ARANGE, &params, 0, error, tensor))
    return g_steal_pointer (&tensor);
  return NULL;
}
