/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/tensors.h"

#include <math.h>
#include <stdarg.h>

#define MAX_DIMS 8

static guint
read_shape (va_list arguments, gint64 *shape, gsize *count)
{
  guint n = 0;

  *count = 1;
  for (int size = va_arg (arguments, int); size >= 0; size = va_arg (arguments, int))
    {
      g_assert_cmpuint (n, <, MAX_DIMS);
      shape[n++] = size;
      *count *= (gsize) size;
    }
  return n;
}

EbbTensor *
test_floats (const float *values, ...)
{
  g_autoptr (GError) error = NULL;
  gint64 shape[MAX_DIMS];
  gsize count;
  va_list arguments;
  EbbTensor *tensor;
  guint n;

  va_start (arguments, values);
  n = read_shape (arguments, shape, &count);
  va_end (arguments);
  tensor = ebb_tensor_new_from_floats (values, count, shape, n, &error);
  g_assert_no_error (error);
  return tensor;
}

EbbTensor *
test_randn (guint64 seed, ...)
{
  g_autoptr (EbbGenerator) generator = ebb_generator_new (seed);
  g_autoptr (GError) error = NULL;
  gint64 shape[MAX_DIMS];
  gsize count;
  va_list arguments;
  EbbTensor *tensor;
  guint n;

  va_start (arguments, seed);
  n = read_shape (arguments, shape, &count);
  va_end (arguments);
  tensor = ebb_randn (shape, n, EBB_DTYPE_F32, NULL, generator, &error);
  g_assert_no_error (error);
  return tensor;
}

EbbTensor *
test_tokens (guint64 seed, gint64 vocab, ...)
{
  g_autoptr (EbbGenerator) generator = ebb_generator_new (seed);
  g_autoptr (GError) error = NULL;
  gint64 shape[MAX_DIMS];
  gsize count;
  va_list arguments;
  EbbTensor *tensor;
  guint n;

  va_start (arguments, vocab);
  n = read_shape (arguments, shape, &count);
  va_end (arguments);
  tensor = ebb_randint (0, vocab, shape, n, EBB_DTYPE_I64, NULL, generator, &error);
  g_assert_no_error (error);
  return tensor;
}

/* A contiguous copy in f32 on the CPU, whatever the tensor is. */
static EbbTensor *
plain (EbbTensor *tensor)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) detached = ebb_tensor_detach (tensor);
  g_autoptr (EbbTensor) cast = ebb_cast (detached, EBB_DTYPE_F32, &error);
  g_autoptr (EbbTensor) dense = ebb_contiguous (cast, &error);
  EbbTensor *result = ebb_to_device (dense, ebb_device_get_cpu (), &error);

  g_assert_no_error (error);
  return result;
}

static const float *
data_of (EbbTensor *tensor)
{
  g_autoptr (GError) error = NULL;
  const float *data = ebb_tensor_get_data (tensor, &error);

  g_assert_no_error (error);
  return data;
}

double
test_difference (EbbTensor *a, EbbTensor *b)
{
  g_autoptr (EbbTensor) x = NULL;
  g_autoptr (EbbTensor) y = NULL;
  g_autofree char *shape_a = NULL;
  g_autofree char *shape_b = NULL;
  const float *p, *q;
  double largest = 0;

  g_assert_nonnull (a);
  g_assert_nonnull (b);
  shape_a = ebb_tensor_shape_to_string (a);
  shape_b = ebb_tensor_shape_to_string (b);
  if (!g_str_equal (shape_a, shape_b))
    return INFINITY;
  x = plain (a);
  y = plain (b);
  p = data_of (x);
  q = data_of (y);
  for (gint64 i = 0; i < ebb_tensor_get_n_elements (x); i++)
    {
      double difference = fabs ((double) p[i] - q[i]);

      if (!(difference <= largest)) /* not a number counts */
        largest = isnan (difference) ? INFINITY : difference;
    }
  return largest;
}

double
test_sum (EbbTensor *tensor)
{
  g_autoptr (EbbTensor) x = plain (tensor);
  double sum = 0;

  for (gint64 i = 0; i < ebb_tensor_get_n_elements (x); i++)
    sum += data_of (x)[i];
  return sum;
}

float
test_at (EbbTensor *tensor, gsize position)
{
  g_autoptr (EbbTensor) x = plain (tensor);

  g_assert_cmpint ((gint64) position, <, ebb_tensor_get_n_elements (x));
  return data_of (x)[position];
}

void
test_fill_grads (EbbOptimizer *optimizer,
                 double value)
{
  guint n;
  g_autofree EbbTensor **parameters = ebb_optimizer_get_parameters (optimizer, &n);

  for (guint i = 0; i < n; i++)
    {
      guint n_dims;
      const gint64 *shape = ebb_tensor_get_shape (parameters[i], &n_dims);
      g_autoptr (EbbTensor) grad = ebb_full (shape, n_dims, value, ebb_tensor_get_dtype (parameters[i]), NULL, NULL);

      g_assert_true (ebb_tensor_set_grad (parameters[i], grad, NULL));
      ebb_tensor_unref (parameters[i]);
    }
}

double
test_get_double (gpointer object,
                 const char *name)
{
  g_auto (GValue) value = G_VALUE_INIT;

  g_value_init (&value, G_TYPE_DOUBLE);
  g_object_get_property (object, name, &value);
  return g_value_get_double (&value);
}

void
test_assert_text (gpointer object,
                  const char *name,
                  const char *expected)
{
  g_autofree char *text = NULL;

  g_object_get (object, name, &text, NULL);
  g_assert_cmpstr (text, ==, expected);
}
