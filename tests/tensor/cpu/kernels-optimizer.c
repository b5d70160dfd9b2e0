/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: private-headers kernels cpu-only */

/* Steps of optimizers, of every instruction set. */

#include "support/device.h"
#include "support/kernel-case-private.h"

static KernelOperand
vector (EbbDType dtype,
        gint64 n,
        double low)
{
  return kernel_vector_new (dtype, n, low, 1);
}

static void
test_optimizers (void)
{
  static const EbbDType dtypes[][2] = { { EBB_DTYPE_F32, EBB_DTYPE_F32 },
                                        { EBB_DTYPE_BF16, EBB_DTYPE_F32 },
                                        { EBB_DTYPE_F32, EBB_DTYPE_BF16 },
                                        { EBB_DTYPE_BF16, EBB_DTYPE_BF16 } };

  for (gsize i = 0; i < G_N_ELEMENTS (dtypes); i++)
    for (gint64 n = 1; n < 100000; n = n * 9 + 1)
      {
        EbbDType gradient = dtypes[i][0], parameter = dtypes[i][1];
        KernelCase adamw = {
          .name = "AdamW",
          .kernel = EBB_KERNEL_ADAMW,
          .params.adamw = { 1e-2, 0.9, 0.999, 1e-8, 0.1, 0.5, 3, .l2 = n % 2 == 0 ? 0.3 : 0 },
          .n_inputs = 1,
          .n_outputs = 3,
          .inputs = { vector (gradient, n, -1) },
          .outputs = { vector (parameter, n, -1), vector (EBB_DTYPE_F32, n, -1), vector (EBB_DTYPE_F32, n, 0) },
          .in_place = -1,
          .tolerance = 1e-6,
          .scale = 1,
        };
        KernelCase sgd = {
          .name = "SGD",
          .kernel = EBB_KERNEL_SGD,
          .params.sgd = { 1e-1, 0.9, 0.1, 0.2, 0.5, n % 2 == 0, n % 4 > 1 },
          .n_inputs = 1,
          .n_outputs = 2,
          .inputs = { vector (gradient, n, -1) },
          .outputs = { vector (parameter, n, -1) },
          .in_place = -1,
          .tolerance = 1e-6,
          .scale = 1,
        };

        if (n != 10) /* without momentum */
          sgd.outputs[1] = vector (EBB_DTYPE_F32, n, -1);
        kernel_case_check (&adamw);
        kernel_case_check (&sgd);
      }
}

int
main (int argc,
      char **argv)
{
  test_init (&argc, &argv);
  g_test_add_func ("/kernels/optimizer/equals-reference", test_optimizers);
  return g_test_run ();
}
