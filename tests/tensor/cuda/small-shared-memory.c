/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: cpu-only */
#include "support/tensors.h"

/* Attention on GPUs that have 99 KiB of shared memory for a block, as those for desktops: tiles are smaller there. */

#define WANTED_BYTES "99K"

typedef struct
{
  EbbDType dtype;
  gint64 width;
  double dropout;
} Case;

static const Case cases[] = {
  { EBB_DTYPE_F32, 64, 0 },
  { EBB_DTYPE_F32, 80, 0 },
  { EBB_DTYPE_F32, 128, 0.2 },
  { EBB_DTYPE_BF16, 128, 0.2 },
  { EBB_DTYPE_BF16, 200, 0 },
  { EBB_DTYPE_BF16, 256, 0.2 },
};

enum
{
  Q,
  K,
  V,
  N_INPUTS
};

static EbbTensor *
draw (guint seed,
      gint64 n_rows,
      const Case *c)
{
  const gint64 shape[] = { 1, 2, n_rows, c->width };
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbGenerator) generator = ebb_generator_new (seed);
  g_autoptr (EbbTensor) x = ebb_randn (shape, 4, EBB_DTYPE_F32, ebb_device_get_cpu (), generator, &error);
  EbbTensor *cast = ebb_cast (x, c->dtype, &error);

  g_assert_no_error (error);
  return cast;
}

/* The result on @device, and the gradients by the three operands. */
static void
attend (const Case *c,
        EbbDevice *device,
        gboolean differentiates,
        EbbTensor *results[N_INPUTS + 1],
        GError **error)
{
  EbbTensor *inputs[N_INPUTS] = { NULL };
  g_autoptr (EbbTensor) weights = draw (9, 70, c);
  g_autoptr (EbbTensor) there = ebb_to_device (weights, device, error);
  g_autoptr (EbbGenerator) generator = ebb_generator_new (4);
  g_autoptr (EbbTensor) o = NULL;
  g_autoptr (EbbTensor) product = NULL;
  g_autoptr (EbbTensor) sum = NULL;

  for (guint i = 0; i < N_INPUTS; i++)
    {
      g_autoptr (EbbTensor) x = draw (i, i == Q ? 70 : 90, c);

      inputs[i] = ebb_to_device (x, device, error);
      ebb_tensor_set_requires_grad (inputs[i], TRUE, error);
    }
  o = ebb_scaled_dot_product_attention (inputs[Q], inputs[K], inputs[V], NULL, FALSE, 0, c->dropout, generator, error);
  product = ebb_mul (o, there, error);
  sum = ebb_sum (product, NULL, 0, FALSE, error);
  results[N_INPUTS] = ebb_to_device (o, ebb_device_get_cpu (), error);
  if (differentiates)
    ebb_tensor_backward (sum, error);
  for (guint i = 0; i < N_INPUTS; i++)
    {
      g_autoptr (EbbTensor) grad = ebb_tensor_get_grad (inputs[i]);

      if (grad != NULL && *error == NULL)
        results[i] = ebb_to_device (grad, ebb_device_get_cpu (), error);
      ebb_tensor_unref (inputs[i]);
    }
}

static void
clear_all (EbbTensor *results[N_INPUTS + 1])
{
  for (guint i = 0; i <= N_INPUTS; i++)
    g_clear_pointer (&results[i], ebb_tensor_unref);
}

static EbbDevice *
get_device (void)
{
  g_autoptr (GError) error = NULL;
  EbbDevice *device = ebb_device_get ("cudaemu", &error);

  g_assert_no_error (error);
  return device;
}

static void
results_are_the_cpus (gconstpointer data)
{
  const Case *c = data;
  const double tolerance = c->dtype == EBB_DTYPE_F32 ? 2e-5 : 4e-2;
  EbbTensor *here[N_INPUTS + 1] = { NULL }, *there[N_INPUTS + 1] = { NULL };
  g_autoptr (GError) error = NULL;

  attend (c, ebb_device_get_cpu (), TRUE, here, &error);
  attend (c, get_device (), TRUE, there, &error);
  g_assert_no_error (error);
  for (guint i = 0; i <= N_INPUTS; i++)
    for (gint64 k = 0; k < ebb_tensor_get_n_elements (here[i]); k++)
      g_assert_cmpfloat_with_epsilon (test_at (there[i], k), test_at (here[i], k), tolerance);
  clear_all (here);
  clear_all (there);
}

/* No tiles of f32 fit for their gradients. */
static void
wider_f32_has_no_gradients (void)
{
  const Case wide = { EBB_DTYPE_F32, 256, 0 };
  EbbTensor *here[N_INPUTS + 1] = { NULL }, *there[N_INPUTS + 1] = { NULL };
  g_autoptr (GError) error = NULL;

  attend (&wide, ebb_device_get_cpu (), FALSE, here, &error);
  attend (&wide, get_device (), FALSE, there, &error);
  g_assert_no_error (error);
  for (gint64 k = 0; k < ebb_tensor_get_n_elements (here[N_INPUTS]); k++)
    g_assert_cmpfloat_with_epsilon (test_at (there[N_INPUTS], k), test_at (here[N_INPUTS], k), 2e-5);
  clear_all (here);
  clear_all (there);
  attend (&wide, get_device (), TRUE, there, &error);
  test_assert_error (error, EBB_ERROR_NOT_SUPPORTED, "kernel attention_grad does not take f32 [1, 2, 70, 256]");
  clear_all (there);
}

int
main (int argc,
      char **argv)
{
  g_setenv ("EBB_CUDAEMU_SHARED", WANTED_BYTES, TRUE);
  g_test_init (&argc, &argv, NULL);
  for (guint i = 0; i < G_N_ELEMENTS (cases); i++)
    {
      g_autofree char *path = g_strdup_printf ("/cuda/small-shared-memory/%s-%" G_GINT64_FORMAT,
                                               ebb_dtype_get_name (cases[i].dtype), cases[i].width);

      g_test_add_data_func (path, &cases[i], results_are_the_cpus);
    }
  g_test_add_func ("/cuda/small-shared-memory/wider-f32-has-no-gradients", wider_f32_has_no_gradients);
  return g_test_run ();
}
