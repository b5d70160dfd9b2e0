/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "tensor/ops/creation.h"
#include "tensor/autograd/op-support-private.h"
#include "tensor/error-private.h"

/* Random tensors. Each takes as many draws from the generator as its shape says, whatever the values are. */

static gboolean
check_sampled_dtype (const char *op_name, EbbDType dtype, gboolean floating, GError **error)
{
  gboolean ok = floating ? dtype == EBB_DTYPE_F32 || dtype == EBB_DTYPE_BF16
                         : dtype == EBB_DTYPE_I64 || dtype == EBB_DTYPE_I32;

  if (error != NULL && *error != NULL)
    return FALSE;
  if (!ok)
    ebb_error_set (error, EBB_ERROR_DTYPE, "%s: gives %s, not %s; cast the result", op_name,
                   floating ? "f32 or bf16" : "i64 or i32",
                   (guint) dtype < EBB_N_DTYPES ? ebb_dtype_get_name (dtype) : "an unknown dtype");
  return ok;
}

static EbbTensor *
new_sampled (const char *op_name,
             EbbKernel kernel,
             EbbKernelParams params,
             const gint64 *shape,
             guint n_dims,
             EbbDType dtype,
             EbbDevice *device,
             EbbGenerator *generator,
             GError **error)
{
  EbbTensor *tensor = ebb_tensor_new_checked (op_name, shape, n_dims, dtype, device, error);
  guint64 draws_each = kernel == EBB_KERNEL_RANDINT ? 2 : 1;

  if (tensor == NULL || tensor->n_elements == 0)
    return tensor;
  params.random.philox = ebb_generator_take (generator, draws_each * (guint64) tensor->n_elements);
  if (!EBB_LAUNCH (kernel, &params, 0, error, tensor))
    g_clear_pointer (&tensor, ebb_tensor_unref);
  return tensor;
}

/**
 * ebb_rand:
 * @shape: (array length=n_dims): the size of each dimension
 * @n_dims: how many dimensions, at most 8
 * @dtype: %EBB_DTYPE_F32 or %EBB_DTYPE_BF16
 * @device: (nullable): where, or %NULL for the default device
 * @generator: (nullable): where the draws come from, or %NULL for the thread's default
 * @error: return location for an error
 *
 * Makes a tensor of numbers drawn uniformly from [0, 1): 1 is not among them in bf16 either.
 *
 * Fails with %EBB_ERROR_DTYPE for another dtype, with %EBB_ERROR_SHAPE on negative sizes or too many dimensions and
 * with %EBB_ERROR_NO_MEMORY when the memory can't be had.
 *
 * Returns: (transfer full) (nullable): the tensor, or %NULL with @error set
 */
EbbTensor *
ebb_rand (const gint64 *shape,
          guint n_dims,
          EbbDType dtype,
          EbbDevice *device,
          EbbGenerator *generator,
          GError **error)
{
  const EbbKernelParams params = { .random = { .low = 0.0, .high = 1.0 } };

  if (!check_sampled_dtype ("rand", dtype, TRUE, error))
    return NULL;
  return new_sampled ("rand", EBB_KERNEL_UNIFORM, params, shape, n_dims, dtype, device, generator, error);
}

/**
 * ebb_randn:
 * @shape: (array length=n_dims): the size of each dimension
 * @n_dims: how many dimensions, at most 8
 * @dtype: %EBB_DTYPE_F32 or %EBB_DTYPE_BF16
 * @device: (nullable): where, or %NULL for the default device
 * @generator: (nullable): where the draws come from, or %NULL for the thread's default
 * @error: return location for an error
 *
 * Makes a tensor of numbers drawn from the normal distribution with mean 0 and variance 1 (Box and Muller, 1958).
 *
 * Fails with %EBB_ERROR_DTYPE for another dtype, with %EBB_ERROR_SHAPE on negative sizes or too many dimensions and
 * with %EBB_ERROR_NO_MEMORY when the memory can't be had.
 *
 * Returns: (transfer full) (nullable): the tensor, or %NULL with @error set
 */
EbbTensor *
ebb_randn (const gint64 *shape,
           guint n_dims,
           EbbDType dtype,
           EbbDevice *device,
           EbbGenerator *generator,
           GError **error)
{
  const EbbKernelParams params = { .random = { .mean = 0.0, .std = 1.0 } };

  if (!check_sampled_dtype ("randn", dtype, TRUE, error))
    return NULL;
  return new_sampled ("randn", EBB_KERNEL_NORMAL, params, shape, n_dims, dtype, device, generator, error);
}

/**
 * ebb_randint:
 * @low: the least number
 * @high: one more than the greatest number
 * @shape: (array length=n_dims): the size of each dimension
 * @n_dims: how many dimensions, at most 8
 * @dtype: %EBB_DTYPE_I64 or %EBB_DTYPE_I32
 * @device: (nullable): where, or %NULL for the default device
 * @generator: (nullable): where the draws come from, or %NULL for the thread's default
 * @error: return location for an error
 *
 * Makes a tensor of integers drawn uniformly from [@low, @high), both within 2^53.
 *
 * Fails with %EBB_ERROR_INVALID_ARGUMENT when the range is empty or beyond @dtype, with %EBB_ERROR_DTYPE for another
 * dtype, with %EBB_ERROR_SHAPE on negative sizes or too many dimensions and with %EBB_ERROR_NO_MEMORY when the memory
 * can't be had.
 *
 * Returns: (transfer full) (nullable): the tensor, or %NULL with @error set
 */
EbbTensor *
ebb_randint (gint64 low,
             gint64 high,
             const gint64 *shape,
             guint n_dims,
             EbbDType dtype,
             EbbDevice *device,
             EbbGenerator *generator,
             GError **error)
{
  const gint64 limit = G_GINT64_CONSTANT (1) << (dtype == EBB_DTYPE_I32 ? 31 : 53);
  const EbbKernelParams params = { .random = { .low = (double) low, .high = (double) high } };

  if (!check_sampled_dtype ("randint", dtype, FALSE, error))
    return NULL;
  if (low >= high || low < -limit || high > limit)
    return ebb_fail_null (error, EBB_ERROR_INVALID_ARGUMENT,
                          "randint: can't draw %s from [%" G_GINT64_FORMAT ", %" G_GINT64_FORMAT
                          "); low must be less than high, "
                          "both within %" G_GINT64_FORMAT,
                          ebb_dtype_get_name (dtype), low, high, limit);
  return new_sampled ("randint", EBB_KERNEL_RANDINT, params, shape, n_dims, dtype, device, generator, error);
}

static const EbbOp multinomial_op = { "multinomial", EBB_OP_RANDOM, EBB_KERNEL_MULTINOMIAL, NULL, NULL };

/**
 * ebb_multinomial:
 * @weights: a tensor `[N]` or `[R, N]` of f32 or bf16: how likely each index is, in any scale
 * @n_samples: how many indices to draw for each row
 * @generator: (nullable): where the draws come from, or %NULL for the thread's default
 * @error: return location for an error
 *
 * Draws indices in [0, N) with replacement, with probabilities proportional to @weights.
 *
 * Fails with %EBB_ERROR_SHAPE when @weights have another number of dimensions or no columns, with %EBB_ERROR_DTYPE when
 * they are not floating-point, and with %EBB_ERROR_INVALID_ARGUMENT when @n_samples is less than one, or a row of
 * @weights has negative or non-finite weights or only zeros. On a device that computes behind the caller's back such
 * a row is found later: a function that is called then, at the latest one that reads values, fails with that error.
 *
 * Returns: (transfer full) (nullable): a tensor `[n_samples]` or `[R, n_samples]` of i64, or %NULL with @error set
 */
EbbTensor *
ebb_multinomial (EbbTensor *weights, gint64 n_samples, EbbGenerator *generator, GError **error)
{
  EbbOpCall call;
  gint64 shape[2];
  guint n_dims;
  gint64 rows;

  if (!ebb_op_begin (&call, &multinomial_op, error, 1, weights) || !ebb_op_check_floating (&call, error))
    return NULL;
  n_dims = (guint) weights->view.n_dims;
  if (n_dims < 1 || n_dims > 2 || weights->view.shape[n_dims - 1] == 0)
    return ebb_op_fail_null (&call, error, EBB_ERROR_SHAPE, "weights of shape %s; must be [N] or [R, N] with N > 0",
                             ebb_show_shape (weights));
  rows = n_dims == 2 ? weights->view.shape[0] : 1;
  if (n_samples < 1 || n_samples > G_MAXINT64 / 16 / MAX (rows, 1))
    return ebb_op_fail_null (&call, error, EBB_ERROR_INVALID_ARGUMENT,
                             "%" G_GINT64_FORMAT " samples of %" G_GINT64_FORMAT " rows can't be drawn; one or more "
                             "that memory holds",
                             n_samples, rows);
  if (!ebb_op_cast (&call, 0, EBB_DTYPE_F32, error) || !ebb_op_contiguous (&call, 0, error))
    return NULL;
  call.params.random.philox = ebb_generator_take (generator, (guint64) (rows * n_samples));
  shape[0] = rows;
  shape[n_dims - 1] = n_samples;
  ebb_op_add_output (&call, EBB_DTYPE_I64, shape, n_dims);
  return ebb_op_finish1 (&call, error);
}
