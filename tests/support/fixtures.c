/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/fixtures.h"

#include "support/device.h"

#include <math.h>

EbbArgs *
test_load_fixture (const char *name)
{
  g_autofree char *path = g_test_build_filename (G_TEST_DIST, "fixtures", name, NULL);
  g_autoptr (GError) error = NULL;
  EbbArgs *tensors = ebb_load_safetensors (path, &error);

  g_assert_no_error (error);
  return tensors;
}

EbbTensor *
test_fixture_tensor (EbbArgs *fixture,
                     const char *format,
                     ...)
{
  g_autofree char *name = NULL;
  g_autoptr (EbbTensor) tensor = NULL;
  va_list arguments;
  int index;

  va_start (arguments, format);
  name = g_strdup_vprintf (format, arguments);
  va_end (arguments);
  index = ebb_args_find (fixture, name);
  if (index < 0)
    g_error ("the fixture has no %s", name);
  tensor = ebb_args_get_tensor (fixture, (guint) index);
  return test_move (tensor);
}

EbbTensor *
test_fixture_leaf (EbbArgs *fixture,
                   const char *prefix,
                   const char *name)
{
  g_autoptr (EbbTensor) stored = test_fixture_tensor (fixture, "%s.%s", prefix, name);
  g_autoptr (GError) error = NULL;
  EbbTensor *leaf = ebb_copy (stored, &error);

  g_assert_no_error (error);
  g_assert_true (ebb_tensor_set_requires_grad (leaf, TRUE, &error));
  return leaf;
}

EbbModule *
test_fixture_gpt (int vocab,
                  int context,
                  int width,
                  EbbActivation activation)
{
  g_autoptr (EbbGptConfig) config = ebb_gpt_config_new ();
  g_autoptr (GError) error = NULL;
  EbbModule *gpt;

  config->vocab = vocab;
  config->context = context;
  config->width = width;
  config->heads = 4;
  config->layers = 2;
  config->dropout = 0;
  config->activation = activation;
  gpt = ebb_gpt_new (config, &error);
  g_assert_no_error (error);
  return gpt;
}

static EbbTensor *
dense (EbbTensor *tensor)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) detached = ebb_tensor_detach (tensor);
  g_autoptr (EbbTensor) contiguous = ebb_contiguous (detached, &error);
  EbbTensor *result = ebb_to_device (contiguous, ebb_device_get_cpu (), &error);

  g_assert_no_error (error);
  g_assert_cmpint (ebb_tensor_get_dtype (result), ==, EBB_DTYPE_F32);
  return result;
}

double
test_relative_difference (EbbTensor *a,
                          EbbTensor *b)
{
  g_autoptr (EbbTensor) x = dense (a);
  g_autoptr (EbbTensor) y = dense (b);
  g_autofree char *shape_a = ebb_tensor_shape_to_string (a);
  g_autofree char *shape_b = ebb_tensor_shape_to_string (b);
  const float *p = ebb_tensor_get_data (x, NULL), *q = ebb_tensor_get_data (y, NULL);
  double difference = 0, norm = 0;

  if (!g_str_equal (shape_a, shape_b))
    return INFINITY;
  for (gint64 i = 0; i < ebb_tensor_get_n_elements (x); i++)
    {
      difference += ((double) p[i] - q[i]) * ((double) p[i] - q[i]);
      norm += (double) q[i] * q[i];
    }
  if (isnan (difference))
    return INFINITY;
  return difference == 0 ? 0 : sqrt (difference / norm);
}
