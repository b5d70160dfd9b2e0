/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: private-headers kernels cpu-only cudaemu */

/* Cross entropies whose classes are in parts, those in place and those of large logits, of every instruction set. */

#include "support/kernel-run.h"
#include "support/device.h"
#include "support/kernel-case-private.h"
#include "tensor/cpu/cpu-private.h"

#include <math.h>
#include <string.h>

static const char *const simd_names[] = { "portable", "avx2", "avx512", "avx512bf16" };

static KernelCase
case_new (const char *name,
          EbbKernel kernel)
{
  KernelCase test = kernel_case_new (name, kernel);

  test.params.xent.ignore_index = -100;
  return test;
}

/* Applied to the logits of all cases that follow, which are in [-20, 20); 0: none. */
static double cap;

/* Some are of other parts' classes, one is of the last class of this one, one is ignored. */
static KernelOperand
targets_new (EbbDType dtype,
             gint64 rows,
             gint64 first,
             gint64 n)
{
  KernelOperand operand =
      kernel_operand_new (dtype, KERNEL_SHAPE (rows), KERNEL_LAYOUT_CONTIGUOUS, 0, (double) (first + 2 * n));

  if (rows > 1)
    ebb_reference_store_integer (&operand.view, 1, -100);
  if (rows > 2)
    ebb_reference_store_integer (&operand.view, 2, first + n - 1);
  return operand;
}

/* The classes [first, first + n) of more. */
static void
check_part (gint64 rows,
            gint64 n,
            EbbDType dtype,
            EbbDType index_dtype,
            gint64 first)
{
  KernelCase test = case_new ("cross_entropy_part", EBB_KERNEL_CROSS_ENTROPY_PART);

  test.params.xent.first = first;
  test.params.xent.n_classes = first + 2 * n;
  test.params.xent.cap = cap;
  test.inputs[test.n_inputs++] =
      kernel_operand_new (dtype, KERNEL_SHAPE (rows, n), KERNEL_LAYOUT_CONTIGUOUS, -20, 20);
  test.inputs[test.n_inputs++] = targets_new (index_dtype, rows, first, n);
  test.outputs[0] = kernel_operand_new (EBB_DTYPE_F32, KERNEL_SHAPE (rows, 3), KERNEL_LAYOUT_CONTIGUOUS, 0, 1);
  kernel_case_check (&test);
}

static void
check_grad (gint64 rows,
            gint64 n,
            EbbDType dtype,
            EbbDType index_dtype,
            gint64 first,
            KernelLayout layout)
{
  KernelCase test = case_new ("cross_entropy_grad", EBB_KERNEL_CROSS_ENTROPY_GRAD);

  test.params.xent.first = first;
  test.params.xent.n_classes = first + 2 * n;
  test.params.xent.cap = cap;
  test.in_place = 1;
  test.inputs[test.n_inputs++] = kernel_operand_new (EBB_DTYPE_F32, KERNEL_SHAPE (rows), layout, 0.1, 1);
  test.inputs[test.n_inputs++] =
      kernel_operand_new (dtype, KERNEL_SHAPE (rows, n), KERNEL_LAYOUT_CONTIGUOUS, -20, 20);
  test.inputs[test.n_inputs++] = targets_new (index_dtype, rows, first, n);
  test.inputs[test.n_inputs++] =
      kernel_operand_new (EBB_DTYPE_F32, KERNEL_SHAPE (rows, 2), KERNEL_LAYOUT_CONTIGUOUS, 10, 12.5);
  test.outputs[0] = kernel_operand_new (dtype, KERNEL_SHAPE (rows, n), KERNEL_LAYOUT_CONTIGUOUS, 0, 1);
  kernel_case_check (&test);
}

static void
check_join (gint64 n_parts,
            gint64 rows,
            EbbDType index_dtype)
{
  KernelCase test = case_new ("cross_entropy_join", EBB_KERNEL_CROSS_ENTROPY_JOIN);

  test.n_outputs = 2;
  test.inputs[test.n_inputs++] =
      kernel_operand_new (EBB_DTYPE_F32, KERNEL_SHAPE (n_parts, rows, 3), KERNEL_LAYOUT_CONTIGUOUS, -20, 20);
  test.inputs[test.n_inputs++] = targets_new (index_dtype, rows, 0, 9);
  test.outputs[0] = kernel_operand_new (EBB_DTYPE_F32, KERNEL_SHAPE (rows), KERNEL_LAYOUT_CONTIGUOUS, 0, 1);
  test.outputs[1] = kernel_operand_new (EBB_DTYPE_F32, KERNEL_SHAPE (rows, 2), KERNEL_LAYOUT_CONTIGUOUS, 0, 1);
  kernel_case_check (&test);
}

static void
test_part (void)
{
  check_part (1, 1, EBB_DTYPE_F32, EBB_DTYPE_I64, 0);
  check_part (5, 7, EBB_DTYPE_F32, EBB_DTYPE_I32, 7);
  check_part (9, 2500, EBB_DTYPE_F32, EBB_DTYPE_I64, 2501);
  check_part (300, 33, EBB_DTYPE_F32, EBB_DTYPE_I64, 0);
  check_part (9, 3001, EBB_DTYPE_BF16, EBB_DTYPE_I64, 3001);
  check_part (0, 7, EBB_DTYPE_F32, EBB_DTYPE_I64, 7);
}

static void
test_grad (void)
{
  check_grad (1, 1, EBB_DTYPE_F32, EBB_DTYPE_I64, 0, KERNEL_LAYOUT_CONTIGUOUS);
  check_grad (5, 7, EBB_DTYPE_F32, EBB_DTYPE_I32, 7, KERNEL_LAYOUT_SCALAR);
  check_grad (9, 2500, EBB_DTYPE_F32, EBB_DTYPE_I64, 2501, KERNEL_LAYOUT_CONTIGUOUS);
  check_grad (9, 3001, EBB_DTYPE_BF16, EBB_DTYPE_I64, 3001, KERNEL_LAYOUT_SCALAR);
}

static void
test_join (void)
{
  check_join (1, 1, EBB_DTYPE_I64);
  check_join (2, 5, EBB_DTYPE_I32);
  check_join (4, 1001, EBB_DTYPE_I64);
  check_join (3, 0, EBB_DTYPE_I64);
}

static void
test_cross_entropy_in_place (void)
{
  for (gsize i = 0; i < G_N_ELEMENTS (simd_names); i++)
    {
      const EbbKernelFunc *kernels = test_kernels_of (simd_names[i]);
      float logits[3] = { 1.0f, 2.0f, 3.0f }, d_loss = 2.0f;
      float logsumexp[2] = { logf (expf (1) + expf (2) + expf (3)), 0.0f };
      gint64 target = 2;
      EbbView views[4] = { { &d_loss, EBB_DTYPE_F32, 1, { 1 }, { 0 } },
                           { logits, EBB_DTYPE_F32, 2, { 1, 3 }, { 3, 1 } },
                           { &target, EBB_DTYPE_I64, 1, { 1 }, { 1 } },
                           { logsumexp, EBB_DTYPE_F32, 2, { 1, 2 }, { 2, 1 } } };
      EbbLaunch launch = {
        EBB_KERNEL_CROSS_ENTROPY_GRAD,
        4,
        1,
        { &views[0], &views[1], &views[2], &views[3] },
        { &views[1] },
        { .xent = { -100, 0.0, .n_classes = 3 } }
      };

      if (kernels == NULL)
        continue;
      g_assert_true (test_kernel_run (kernels[EBB_KERNEL_CROSS_ENTROPY_GRAD], &launch, NULL));
      g_assert_cmpfloat_with_epsilon (logits[0], 2 * 0.0900306, 1e-6);
      g_assert_cmpfloat_with_epsilon (logits[1], 2 * 0.2447285, 1e-6);
      g_assert_cmpfloat_with_epsilon (logits[2], 2 * (0.6652410 - 1.0), 1e-6);
    }
}

/* A loss is a small difference of large numbers: f32 alone has no room for what makes it. */
static void
test_small_losses (void)
{
  for (gsize i = 0; i < G_N_ELEMENTS (simd_names); i++)
    {
      const EbbKernelFunc *kernels = test_kernels_of (simd_names[i]);
      float logits[2] = { 20.0f, 6.0f }, parts[3], loss, logsumexp[2];
      gint64 target = 0;
      EbbView views[] = { { logits, EBB_DTYPE_F32, 2, { 1, 2 }, { 2, 1 } },
                          { &target, EBB_DTYPE_I64, 1, { 1 }, { 1 } },
                          { parts, EBB_DTYPE_F32, 3, { 1, 1, 3 }, { 3, 3, 1 } },
                          { &loss, EBB_DTYPE_F32, 1, { 1 }, { 1 } },
                          { logsumexp, EBB_DTYPE_F32, 2, { 1, 2 }, { 2, 1 } } };
      EbbLaunch part = { EBB_KERNEL_CROSS_ENTROPY_PART,       2, 1, { &views[0], &views[1] }, { &views[2] },
                         { .xent = { -100, .n_classes = 2 } } };
      EbbLaunch join = { EBB_KERNEL_CROSS_ENTROPY_JOIN, 2, 2, { &views[2], &views[1] }, { &views[3], &views[4] },
                         { .xent = { -100, 0, 0 } } };

      if (kernels == NULL)
        continue;
      g_assert_true (test_kernel_run (kernels[part.kernel], &part, NULL)
                     && test_kernel_run (kernels[join.kernel], &join, NULL));
      g_assert_cmpfloat_with_epsilon (loss, log1p (exp (-14.0)), 1e-7);
    }
}

/* A part that holds next to nothing doesn't hide what another holds, and neither overflows. */
static void
test_extremes (void)
{
  for (gsize i = 0; i < G_N_ELEMENTS (simd_names); i++)
    {
      const EbbKernelFunc *kernels = test_kernels_of (simd_names[i]);
      float parts[2][3][3] = { { { -INFINITY, 0, 0 }, { 1000, 0, 0 }, { 20, 1e-6f, 20 } },
                               { { 2, 0, 1 }, { -1000, 0, -1000 }, { -INFINITY, 0, 0 } } };
      gint64 targets[3] = { 0, 0, 0 };
      float losses[3], logsumexps[3][2];
      EbbView views[] = { { parts, EBB_DTYPE_F32, 3, { 2, 3, 3 }, { 9, 3, 1 } },
                          { targets, EBB_DTYPE_I64, 1, { 3 }, { 1 } },
                          { losses, EBB_DTYPE_F32, 1, { 3 }, { 1 } },
                          { logsumexps, EBB_DTYPE_F32, 2, { 3, 2 }, { 2, 1 } } };
      EbbLaunch launch = { EBB_KERNEL_CROSS_ENTROPY_JOIN, 2, 2, { &views[0], &views[1] }, { &views[2], &views[3] },
                           { .xent = { -100, 0, 0 } } };

      if (kernels == NULL)
        continue;
      g_assert_true (test_kernel_run (kernels[launch.kernel], &launch, NULL));
      g_assert_cmpfloat_with_epsilon (losses[0], 1.0, 1e-6);
      g_assert_cmpfloat (losses[1], ==, 2000.0);
      g_assert_cmpfloat_with_epsilon (losses[2], 1e-6, 1e-12);
      g_assert_cmpfloat (logsumexps[1][0], ==, 1000.0);
      g_assert_cmpfloat (logsumexps[1][1], ==, 0.0);
    }
}

#define FAR_CLASSES 1003
#define FAR_ROWS 3

/* The losses and the gradient of rows that lie around @centre, from all classes at once or from two parts, each against
 * f64: as near as they are around 0. */
static void
check_far_from_zero (const EbbKernelFunc *kernels,
                     float centre,
                     double smoothing,
                     gboolean in_parts)
{
  static float logits[FAR_ROWS][FAR_CLASSES], part[2][FAR_ROWS][FAR_CLASSES], gradient[FAR_ROWS][FAR_CLASSES];
  float parts[2][FAR_ROWS][3], losses[FAR_ROWS], logsumexps[FAR_ROWS][2], one = 1.0f;
  gint64 targets[FAR_ROWS], sizes[2] = { 500, FAR_CLASSES - 500 };
  EbbView all = { logits, EBB_DTYPE_F32, 2, { FAR_ROWS, FAR_CLASSES }, { FAR_CLASSES, 1 } };
  EbbView target = { targets, EBB_DTYPE_I64, 1, { FAR_ROWS }, { 1 } };
  EbbView loss = { losses, EBB_DTYPE_F32, 1, { FAR_ROWS }, { 1 } };
  EbbView logsumexp = { logsumexps, EBB_DTYPE_F32, 2, { FAR_ROWS, 2 }, { 2, 1 } };
  EbbView d_loss = { &one, EBB_DTYPE_F32, 1, { FAR_ROWS }, { 0 } };
  EbbView told = { parts, EBB_DTYPE_F32, 3, { 2, FAR_ROWS, 3 }, { FAR_ROWS * 3, 3, 1 } };

  for (int row = 0; row < FAR_ROWS; row++)
    {
      for (int i = 0; i < FAR_CLASSES; i++)
        logits[row][i] = centre + (float) kernel_random (-20, 20);
      targets[row] = row == 0 ? 7 : FAR_CLASSES - row;
    }
  for (int k = 0; k < (in_parts ? 2 : 1); k++)
    {
      gint64 n = in_parts ? sizes[k] : FAR_CLASSES, first = k * sizes[0];
      EbbView some = { part[k], EBB_DTYPE_F32, 2, { FAR_ROWS, n }, { n, 1 } };
      EbbView own = { parts[k], EBB_DTYPE_F32, 2, { FAR_ROWS, 3 }, { 3, 1 } };
      EbbLaunch launch = { EBB_KERNEL_CROSS_ENTROPY_PART,
                           2,
                           1,
                           { &some, &target },
                           { &own },
                           { .xent = { -100, 0, first, .n_classes = FAR_CLASSES } } };

      for (int row = 0; row < FAR_ROWS; row++)
        memcpy (&part[k][0][0] + row * n, &logits[row][first], (gsize) n * sizeof (float));
      g_assert_true (!in_parts || test_kernel_run (kernels[launch.kernel], &launch, NULL));
    }
  if (in_parts)
    {
      EbbLaunch join = { EBB_KERNEL_CROSS_ENTROPY_JOIN, 2, 2, { &told, &target }, { &loss, &logsumexp },
                         { .xent = { -100, 0, 0 } } };

      g_assert_true (test_kernel_run (kernels[join.kernel], &join, NULL));
    }
  else
    {
      EbbLaunch forward = { EBB_KERNEL_CROSS_ENTROPY,
                            3,
                            2,
                            { &all, &target, NULL },
                            { &loss, &logsumexp },
                            { .xent = { -100, smoothing, .n_classes = FAR_CLASSES } } };

      g_assert_true (test_kernel_run (kernels[forward.kernel], &forward, NULL));
    }
  for (int k = 0; k < (in_parts ? 2 : 1); k++)
    {
      gint64 n = in_parts ? sizes[k] : FAR_CLASSES, first = k * sizes[0];
      EbbView some = { part[k], EBB_DTYPE_F32, 2, { FAR_ROWS, n }, { n, 1 } };
      EbbLaunch backward = {
        EBB_KERNEL_CROSS_ENTROPY_GRAD,
        4,
        1,
        { &d_loss, &some, &target, &logsumexp },
        { &some },
        { .xent = { -100, smoothing, first, .n_classes = FAR_CLASSES } }
      };

      g_assert_true (test_kernel_run (kernels[backward.kernel], &backward, NULL));
      for (int row = 0; row < FAR_ROWS; row++)
        memcpy (&gradient[row][first], &part[k][0][0] + row * n, (gsize) n * sizeof (float));
    }
  for (int row = 0; row < FAR_ROWS; row++)
    {
      double best = -INFINITY, sum = 0, plain = 0, exact;

      for (int i = 0; i < FAR_CLASSES; i++)
        best = MAX (best, logits[row][i]);
      for (int i = 0; i < FAR_CLASSES; i++)
        {
          sum += exp (logits[row][i] - best);
          plain += logits[row][i] - best;
        }
      exact = log (sum) - (1 - smoothing) * (logits[row][targets[row]] - best) - smoothing * plain / FAR_CLASSES;
      g_assert_cmpfloat_with_epsilon (losses[row], exact, 5e-7 * MAX (1, exact));
      for (int i = 0; i < FAR_CLASSES; i++)
        g_assert_cmpfloat_with_epsilon (gradient[row][i],
                                        exp (logits[row][i] - best) / sum - smoothing / FAR_CLASSES
                                            - (i == targets[row] ? 1 - smoothing : 0),
                                        2.5e-7);
    }
}

static void
test_far_from_zero (void)
{
  static const float centres[] = { 0, 1e3f, -1e3f, 1e5f, 1e6f, -1e6f };

  for (gsize i = 0; i < G_N_ELEMENTS (simd_names); i++)
    for (gsize k = 0; k < G_N_ELEMENTS (centres); k++)
      {
        const EbbKernelFunc *kernels = test_kernels_of (simd_names[i]);

        if (kernels == NULL)
          continue;
        check_far_from_zero (kernels, centres[k], 0, FALSE);
        check_far_from_zero (kernels, centres[k], 0.1, FALSE);
        check_far_from_zero (kernels, centres[k], 0, TRUE);
      }
}

static void
test_cap (void)
{
  static const double caps[] = { 15, 50 };

  for (guint i = 0; i < G_N_ELEMENTS (caps); i++)
    {
      cap = caps[i];
      for (guint smooth = 0; smooth < 2; smooth++)
        for (EbbDType dtype = EBB_DTYPE_F32; dtype <= EBB_DTYPE_BF16; dtype++)
          {
            KernelCase test = case_new ("cross_entropy", EBB_KERNEL_CROSS_ENTROPY);

            test.params.xent.cap = cap;
            test.params.xent.n_classes = 2500;
            test.params.xent.smoothing = smooth ? 0.1 : 0;
            test.n_inputs = test.n_outputs = 2;
            test.inputs[0] = kernel_operand_new (dtype, KERNEL_SHAPE (9, 2500), KERNEL_LAYOUT_CONTIGUOUS, -40, 40);
            test.inputs[1] = kernel_operand_new (EBB_DTYPE_I64, KERNEL_SHAPE (9), KERNEL_LAYOUT_CONTIGUOUS, 0, 2500);
            test.outputs[0] = kernel_operand_new (EBB_DTYPE_F32, KERNEL_SHAPE (9), KERNEL_LAYOUT_CONTIGUOUS, 0, 1);
            test.outputs[1] = kernel_operand_new (EBB_DTYPE_F32, KERNEL_SHAPE (9, 2), KERNEL_LAYOUT_CONTIGUOUS, 0, 1);
            test.scale = 10;
            kernel_case_check (&test);
          }
      test_part ();
      check_grad (9, 3001, EBB_DTYPE_F32, EBB_DTYPE_I64, 3001, KERNEL_LAYOUT_CONTIGUOUS);
      check_grad (5, 7, EBB_DTYPE_BF16, EBB_DTYPE_I32, 0, KERNEL_LAYOUT_SCALAR);
    }
  cap = 0;
}

int
main (int argc,
      char **argv)
{
  test_init (&argc, &argv);
  g_test_add_func ("/kernels/capped-cross-entropy-equals-reference", test_cap);
  g_test_add_func ("/kernels/cross-entropy-part-equals-reference", test_part);
  g_test_add_func ("/kernels/cross-entropy-gradient-of-a-part-equals-reference", test_grad);
  g_test_add_func ("/kernels/cross-entropy-join-equals-reference", test_join);
  g_test_add_func ("/kernels/cross-entropy/gradient-in-place", test_cross_entropy_in_place);
  g_test_add_func ("/kernels/cross-entropy-in-parts-keeps-small-losses", test_small_losses);
  g_test_add_func ("/kernels/cross-entropy-in-parts-has-room-for-extremes", test_extremes);
  g_test_add_func ("/kernels/cross-entropy-is-as-exact-far-from-zero", test_far_from_zero);
  return g_test_run ();
}
