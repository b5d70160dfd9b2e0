/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: private-headers kernels cpu-only cudaemu */

/* Steps of optimizers, norms of gradients and reductions over ranks, of every instruction set. */

#include <math.h>
#include <string.h>

#include "support/device.h"
#include "support/kernel-case-private.h"
#include "support/kernel-run.h"
#include "tensor/cpu/cpu-private.h"

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
  static const EbbDType dtypes[] = { EBB_DTYPE_F32, EBB_DTYPE_BF16 };

  for (gsize i = 0; i < G_N_ELEMENTS (dtypes); i++)
    for (gint64 n = 1; n < 100000; n = n * 9 + 1)
      for (int scaled = 0; scaled < 2; scaled++)
        {
          KernelCase adamw = {
            .name = "AdamW",
            .kernel = EBB_KERNEL_ADAMW,
            .params.adamw = { 1e-2, 0.9, 0.999, 1e-8, 0.1, 0.5, 3, .l2 = n % 2 == 0 ? 0.3 : 0,
                              .grad_dtype = dtypes[i], .dtype = dtypes[n % 2 == 0], .rounds_at_random = n % 4 == 2,
                              .rounding = { 5, 3 } },
            .n_inputs = 1,
            .n_items = KERNEL_MAX_ITEMS,
            .in_place = -1,
            .tolerance = n % 2 == 0 ? 1.0 / 128 : 1e-6, /* a unit of bf16's last place */
            .scale = 1,
          };
          KernelCase sgd = {
            .name = "SGD",
            .kernel = EBB_KERNEL_SGD,
            .params.sgd = { 1e-1, 0.9, 0.1, 0.2, 0.5, n % 2 == 0, n % 4 > 1, n % 4 == 2, { 5, 3 }, 100 },
            .n_inputs = 2,
            .n_outputs = 2,
            .in_place = -1,
            .tolerance = n % 2 == 0 ? 1.0 / 128 : 1e-6,
            .scale = 1,
          };
          KernelCase norm = {
            .name = "squared norm",
            .kernel = EBB_KERNEL_SQUARED_NORM,
            .params.squared_norm = { dtypes[i] },
            .n_outputs = 1,
            .n_items = KERNEL_MAX_ITEMS,
            .in_place = -1,
            .tolerance = 1e-6,
            .scale = 1,
          };

          norm.outputs[0] = vector (EBB_DTYPE_F32, KERNEL_MAX_ITEMS, 0);
          if (scaled)
            {
              adamw.inputs[0] = vector (EBB_DTYPE_F32, 1, 0.5);
              sgd.inputs[0] = vector (EBB_DTYPE_F32, 1, 0.5);
            }
          for (guint k = 0; k < KERNEL_MAX_ITEMS; k++)
            {
              const gint64 size = k == 1 ? 1 : n + 255 * k;

              adamw.items[k][0] = vector (dtypes[i], size, -1);
              adamw.items[k][1] = vector (dtypes[n % 2 == 0], size, -1);
              adamw.items[k][2] = vector (EBB_DTYPE_F32, size, -1);
              adamw.items[k][3] = vector (EBB_DTYPE_F32, size, 0);
              norm.items[k][0] = vector (dtypes[i], size, -1);
            }
          sgd.inputs[1] = vector (dtypes[i], n, -1);
          sgd.outputs[0] = vector (n % 2 == 0 ? EBB_DTYPE_BF16 : EBB_DTYPE_F32, n, -1);
          if (n != 10) /* without momentum */
            sgd.outputs[1] = vector (EBB_DTYPE_F32, n, -1);
          kernel_case_check (&adamw);
          kernel_case_check (&sgd);
          kernel_case_check (&norm);
        }
}

/* -- rounding at random -------------------------------------------------------------------------------------------- */

#define N_ROUNDED 1500

typedef struct
{
  guint16 parameter[N_ROUNDED], exp_avg_sq[N_ROUNDED];
} Rounded;

/* Steps whose result before rounding has one value in f32 whatever computes it: by decay alone, or by a gradient. The
 * elements are @n of a full parameter, from @first on. */
static void
round_some (const EbbKernelFunc *kernels,
            EbbKernel kernel,
            gint64 first,
            gint64 n,
            Rounded *result)
{
  float grad[N_ROUNDED];
  guint16 *parameter = result->parameter + first, *exp_avg_sq = result->exp_avg_sq + first, zeros[N_ROUNDED] = { 0 };
  EbbView x = { grad + first, EBB_DTYPE_F32, 1, { n }, { 1 } }, y = { parameter, EBB_DTYPE_BF16, 1, { n }, { 1 } };
  const EbbLaunchItem item = { .data = { zeros, parameter, zeros, exp_avg_sq },
                               .n_elements = n,
                               .first_element = first,
                               .philox_seed = 77 };
  EbbLaunch launch = { .kernel = kernel };

  for (gint64 i = 0; i < n; i++)
    {
      grad[first + i] = (float) ((first + i) % 97) * 0x1p-12f;
      parameter[i] = (guint16) (0x3f80 + (first + i) % 128);
      exp_avg_sq[i] = (guint16) (0x3e80 + (first + i) % 128);
    }
  if (kernel == EBB_KERNEL_ADAMW)
    {
      launch.n_items = 1;
      launch.items = &item;
      launch.params.adamw.lr = 1;
      launch.params.adamw.beta1 = launch.params.adamw.beta2 = 0.9;
      launch.params.adamw.eps = 1;
      launch.params.adamw.weight_decay = 0.3;
      launch.params.adamw.grad_scale = 1;
      launch.params.adamw.step = 1;
      launch.params.adamw.grad_dtype = launch.params.adamw.dtype = launch.params.adamw.moment_dtype = EBB_DTYPE_BF16;
      launch.params.adamw.rounds_at_random = TRUE;
      launch.params.adamw.philox = (EbbPhilox){ 3, (guint64) 7 << 40 };
      launch.params.adamw.rounding = (EbbPhilox){ 4, (guint64) 7 << 40 };
    }
  else
    {
      launch.n_inputs = 2;
      launch.n_outputs = 1;
      launch.inputs[1] = &x;
      launch.outputs[0] = &y;
      launch.params.sgd.lr = launch.params.sgd.grad_scale = 1;
      launch.params.sgd.rounds_at_random = TRUE;
      launch.params.sgd.rounding = (EbbPhilox){ 4 ^ 77, (guint64) 7 << 40 };
      launch.params.sgd.first_element = first;
    }
  g_assert_true (test_kernel_run (kernels[kernel], &launch, NULL));
}

/* On every device and instruction set, of a full parameter and of its shards, wherever they begin. */
static void
draws_go_by_the_place_in_the_full_parameter (void)
{
  static const char *const simd_names[] = { "portable", "avx2", "avx512", "avx512bf16" };
  static const EbbKernel which[] = { EBB_KERNEL_ADAMW, EBB_KERNEL_SGD };
  static const gint64 cuts[] = { 0, 1, 100, 128, 256, 333, 768, 1203 };

  for (guint k = 0; k < G_N_ELEMENTS (which); k++)
    {
      Rounded expected = { { 0 } };
      guint n_up = 0;

      round_some (ebb_cpu_find_variant ("portable").kernels, which[k], 0, N_ROUNDED, &expected);
      for (guint s = 0; s < G_N_ELEMENTS (simd_names); s++)
        for (guint c = 0; c < G_N_ELEMENTS (cuts); c++)
          {
            const EbbKernelFunc *kernels = test_kernels_of (simd_names[s]);
            Rounded got = { { 0 } };

            if (kernels == NULL)
              continue;
            if (cuts[c] > 0)
              round_some (kernels, which[k], 0, cuts[c], &got);
            round_some (kernels, which[k], cuts[c], N_ROUNDED - cuts[c], &got);
            g_assert_cmpmem (&got, sizeof got, &expected, sizeof expected);
          }
      for (int i = 0; i + 128 < N_ROUNDED; i++) /* the same value, other draws */
        n_up += expected.exp_avg_sq[i] != expected.exp_avg_sq[i + 128];
      if (which[k] == EBB_KERNEL_ADAMW)
        g_assert_cmpuint (n_up, >, N_ROUNDED / 8);
    }
}

/* -- norms, and what ranks exchange -------------------------------------------------------------------------------- */

/* f64 in [low, 1), whose bits an i64 holds. */
static KernelOperand
doubles (gint64 rows,
         gint64 columns,
         KernelLayout layout,
         double low)
{
  KernelOperand operand = columns > 0
                              ? kernel_operand_new (EBB_DTYPE_I64, KERNEL_SHAPE (rows, columns), layout, 0, 1)
                              : kernel_operand_new (EBB_DTYPE_I64, KERNEL_SHAPE (rows), layout, 0, 1);

  for (gsize i = 0; i < operand.n_elements; i++)
    {
      double value = kernel_random (low, 1);

      memcpy ((gint64 *) operand.view.data + i, &value, sizeof value);
    }
  return operand;
}

static void
test_norms (void)
{
  static const KernelLayout layouts[] = { KERNEL_LAYOUT_CONTIGUOUS, KERNEL_LAYOUT_PERMUTED, KERNEL_LAYOUT_STRIDED };

  for (guint i = 0; i < G_N_ELEMENTS (layouts); i++)
    for (int max = 0; max < 2; max++)
      for (int wide = 0; wide < 2; wide++)
        {
          const double nan = NAN;
          KernelCase test = { .name = "norm sum",
                              .kernel = EBB_KERNEL_NORM_SUM,
                              .params.norm_sum = { max },
                              .n_inputs = 1,
                              .n_outputs = 1,
                              .in_place = -1 };

          test.inputs[0] = wide ? doubles (7, 5, layouts[i], -1)
                                : kernel_operand_new (EBB_DTYPE_F32, KERNEL_SHAPE (7, 5), layouts[i], -1, 1);
          if (wide)
            memcpy ((gint64 *) test.inputs[0].view.data + 2 * test.inputs[0].view.strides[0], &nan, sizeof nan);
          test.outputs[0] = doubles (5, 0, KERNEL_LAYOUT_STRIDED, -1);
          kernel_case_check (&test);
        }
}

static void
test_clip_factor (void)
{
  static const double powers[] = { 1, 2, 3, INFINITY };
  static const double totals[] = { 0, 1e-3, 40, 1e300, INFINITY, NAN };

  for (guint i = 0; i < G_N_ELEMENTS (powers); i++)
    for (guint k = 0; k < G_N_ELEMENTS (totals); k++)
      for (int earlier = 0; earlier < 2; earlier++)
        {
          KernelCase test = { .name = "clip factor",
                              .kernel = EBB_KERNEL_CLIP_FACTOR,
                              .params.clip = { -0.5, 1.25, powers[i] },
                              .n_inputs = 2,
                              .n_outputs = 2,
                              .in_place = -1,
                              .tolerance = 1e-6,
                              .scale = 0 };

          test.inputs[0] = doubles (1, 0, KERNEL_LAYOUT_CONTIGUOUS, 0);
          memcpy (test.inputs[0].view.data, &totals[k], sizeof totals[k]);
          if (earlier)
            test.inputs[1] = vector (EBB_DTYPE_F32, 1, 0.5);
          test.outputs[0] = vector (EBB_DTYPE_F32, 1, 0);
          test.outputs[1] = vector (EBB_DTYPE_F32, 1, 0);
          kernel_case_check (&test);
        }
}

static void
test_reduce_ranks (void)
{
  for (EbbDType dtype = EBB_DTYPE_F32; dtype < EBB_N_DTYPES; dtype++)
    for (int op = 0; op < 4; op++)
      for (gint64 n = 1; n < 70000; n = n * 41 + 3)
        {
          KernelCase test = { .name = "reduce ranks",
                              .kernel = EBB_KERNEL_REDUCE_RANKS,
                              .params.reduce_ranks = { op },
                              .n_inputs = 1,
                              .n_outputs = 1,
                              .in_place = -1,
                              .tolerance = 1e-6,
                              .scale = 1 };
          const double low = dtype == EBB_DTYPE_I32 || dtype == EBB_DTYPE_I64 ? -50 : 0;

          if (dtype == EBB_DTYPE_BOOL && op == 1)
            continue;
          test.inputs[0] = kernel_operand_new (dtype, KERNEL_SHAPE (3, n), KERNEL_LAYOUT_CONTIGUOUS,
                                               ebb_dtype_is_floating_point (dtype) ? -1 : low,
                                               dtype == EBB_DTYPE_BOOL ? 2 : ebb_dtype_is_floating_point (dtype) ? 1
                                                                                                                 : 50);
          test.outputs[0] = kernel_operand_new (dtype, KERNEL_SHAPE (n), KERNEL_LAYOUT_CONTIGUOUS, 0, 1);
          kernel_case_check (&test);
        }
}

int
main (int argc,
      char **argv)
{
  test_init (&argc, &argv);
  g_test_add_func ("/kernels/optimizer/equals-reference", test_optimizers);
  g_test_add_func ("/kernels/optimizer/draws-go-by-the-place-in-the-full-parameter",
                   draws_go_by_the_place_in_the_full_parameter);
  g_test_add_func ("/kernels/norms/equal-reference", test_norms);
  g_test_add_func ("/kernels/clip-factor/equals-reference", test_clip_factor);
  g_test_add_func ("/kernels/reduce-ranks/equals-reference", test_reduce_ranks);
  return g_test_run ();
}
