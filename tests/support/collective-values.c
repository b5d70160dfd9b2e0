/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/collective-cases.h"
#include "support/device.h"

#include <math.h>
#include <string.h>

/* The values of the ranks, and the reference in double. */

static guint32
hash (guint rank,
      gsize i)
{
  guint64 x = (guint64) i * 2654435761u + rank * 40503u + 12345;

  x = (x ^ (x >> 15)) * 0x2c1b3c6du;
  return (guint32) ((x ^ (x >> 12)) & 0xffffff);
}

double
test_collective_value (guint rank,
                       gsize i,
                       EbbDType dtype)
{
  const guint32 x = hash (rank, i);

  switch (dtype)
    {
    case EBB_DTYPE_F32:
    case EBB_DTYPE_BF16:
    case EBB_DTYPE_F16: return ((double) (x % 255) - 127) / 16;
    case EBB_DTYPE_I32:
    case EBB_DTYPE_I64: return (double) (x % 2001) - 1000;
    case EBB_DTYPE_U8: return x % 60;
    case EBB_DTYPE_BOOL: return x % 3 == 0;
    }
  g_assert_not_reached ();
}

static EbbTensor *
tensor_of_floats (const double *values,
                  gsize n,
                  EbbDType dtype,
                  const gint64 *shape,
                  guint n_dims)
{
  g_autoptr (GError) error = NULL;
  g_autofree float *floats = g_new (float, n + 1);
  g_autoptr (GBytes) bytes = NULL;
  g_autoptr (EbbTensor) exact = NULL;
  g_autoptr (EbbTensor) cast = NULL;

  for (gsize i = 0; i < n; i++)
    floats[i] = (float) values[i];
  bytes = g_bytes_new (floats, n * sizeof (float));
  exact = ebb_tensor_new_from_bytes (bytes, 0, shape, n_dims, EBB_DTYPE_F32, &error);
  cast = ebb_cast (exact, dtype, &error);
  g_assert_no_error (error);
  /* Memory of its own: bytes are not to be written. */
  if (dtype == EBB_DTYPE_F32)
    {
      g_autoptr (EbbTensor) copy = ebb_copy (cast, &error);

      g_assert_no_error (error);
      return test_move (copy);
    }
  return test_move (cast);
}

EbbTensor *
test_collective_tensor (guint rank,
                        EbbDType dtype,
                        const gint64 *shape,
                        guint n_dims)
{
  g_autofree double *values = NULL;
  gsize n = 1;

  for (guint d = 0; d < n_dims; d++)
    n *= (gsize) shape[d];
  values = g_new (double, n + 1);
  for (gsize i = 0; i < n; i++)
    values[i] = test_collective_value (rank, i, dtype);
  return tensor_of_floats (values, n, dtype, shape, n_dims);
}

double
test_collective_reduced (guint n,
                         gsize i,
                         EbbDType dtype,
                         EbbReduceOp op)
{
  double result = test_collective_value (0, i, dtype);

  for (guint r = 1; r < n; r++)
    {
      const double x = test_collective_value (r, i, dtype);

      switch (op)
        {
        case EBB_REDUCE_OP_SUM:
        case EBB_REDUCE_OP_MEAN: result += x; break;
        case EBB_REDUCE_OP_MIN: result = MIN (result, x); break;
        case EBB_REDUCE_OP_MAX: result = MAX (result, x); break;
        }
    }
  if (dtype == EBB_DTYPE_BOOL)
    return result > 0;
  if (op != EBB_REDUCE_OP_MEAN)
    return result;
  return ebb_dtype_is_floating_point (dtype) ? result / n : trunc (result / n);
}

void
test_assert_elements (EbbTensor *tensor,
                      const double *values,
                      gsize n)
{
  const gint64 length = (gint64) n;
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) expected = NULL;
  g_autoptr (GBytes) bytes = NULL;
  g_autoptr (GBytes) expected_bytes = NULL;

  g_assert_nonnull (tensor);
  g_assert_cmpint (ebb_tensor_get_n_elements (tensor), ==, length);
  expected = tensor_of_floats (values, n, ebb_tensor_get_dtype (tensor), &length, 1);
  bytes = ebb_tensor_get_bytes (tensor, &error);
  g_assert_no_error (error);
  expected_bytes = ebb_tensor_get_bytes (expected, &error);
  g_assert_no_error (error);
  g_assert_cmpmem (g_bytes_get_data (bytes, NULL), g_bytes_get_size (bytes), g_bytes_get_data (expected_bytes, NULL),
                   g_bytes_get_size (expected_bytes));
}
