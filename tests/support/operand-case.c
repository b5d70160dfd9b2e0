/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/operand-case-private.h"

#include "support/device.h"
#include "support/kernel-run.h"

#include <math.h>
#include <string.h>

#include "tensor/cpu/cpu-private.h"

/* One launch on views with any strides, compared element by element, and around the elements. */

const char *const test_simd_names[TEST_N_SIMD] = { "portable", "avx2", "avx512", "avx512bf16" };

/* -- operands ------------------------------------------------------------------------------------------------------ */

static guint32 random_state = 1;

double
test_case_uniform (double low,
                   double high)
{
  random_state = random_state * 1664525u + 1013904223u;
  return low + (high - low) * (random_state >> 8) / 16777216.0;
}

TestOperand
test_operand_new (EbbDType dtype,
                  int n_dims,
                  const gint64 *shape,
                  const gint64 *strides,
                  double low,
                  double high)
{
  TestOperand operand = { .view = { .dtype = dtype, .n_dims = n_dims } };
  gint64 extent = 1, stride = 1, skip = 3;
  EbbView all = { .dtype = dtype };

  for (int i = n_dims - 1; i >= 0; i--)
    {
      operand.view.shape[i] = shape[i];
      operand.view.strides[i] = strides ? strides[i] : stride;
      stride *= MAX (shape[i], 1);
      extent += MAX (shape[i] - 1, 0) * operand.view.strides[i];
    }
  operand.size = (extent + skip + 8) * ebb_dtype_get_size (dtype);
  operand.memory = g_malloc0 (operand.size);
  all.data = operand.memory;
  for (gint64 i = 0; i < extent + skip + 8; i++)
    if (ebb_dtype_is_floating_point (dtype))
      ebb_reference_store (&all, i, test_case_uniform (low, high));
    else
      ebb_reference_store_integer (&all, i, (gint64) floor (test_case_uniform (low, high)));
  operand.view.data = operand.memory + skip * ebb_dtype_get_size (dtype);
  return operand;
}

TestOperand
test_operand_copy (const TestOperand *operand)
{
  TestOperand copy = *operand;

  copy.memory = g_memdup2 (operand->memory, operand->size);
  copy.view.data = copy.memory + ((char *) operand->view.data - operand->memory);
  return copy;
}

void
test_operand_clear (TestOperand *operand)
{
  g_clear_pointer (&operand->memory, g_free);
}

/* -- comparison ---------------------------------------------------------------------------------------------------- */

static void
case_clear (TestCase *test)
{
  for (guint i = 0; i < test->n_inputs; i++)
    test_operand_clear (&test->inputs[i]);
  for (guint i = 0; i < test->n_outputs; i++)
    test_operand_clear (&test->outputs[i]);
}

void
test_case_run (const TestCase *test,
               EbbKernelFunc kernel,
               TestOperand *outputs)
{
  EbbLaunch launch = { .kernel = test->kernel,
                       .n_inputs = test->n_inputs,
                       .n_outputs = test->n_outputs,
                       .params = test->params };
  g_autoptr (GError) error = NULL;

  for (guint i = 0; i < test->n_inputs; i++)
    launch.inputs[i] = test->inputs[i].memory ? &test->inputs[i].view : NULL;
  for (guint i = 0; i < test->n_outputs; i++)
    if (test->outputs[i].memory)
      {
        outputs[i] = test_operand_copy (&test->outputs[i]);
        launch.outputs[i] = &outputs[i].view;
      }
  if (!test_kernel_run (kernel, &launch, &error))
    g_error ("%s: %s", test->name, error->message);
}

void
test_case_compare (const TestCase *test,
                   const char *label,
                   guint index,
                   const TestOperand *expected,
                   const TestOperand *actual)
{
  const EbbView *view = &expected->view;
  double largest = 0.0, tolerance;
  gsize size = ebb_dtype_get_size (view->dtype);
  TestOperand untouched = test_operand_copy (actual);

  for (gint64 i = 0; i < ebb_reference_count (view); i++)
    {
      double value = fabs (ebb_reference_load (view, ebb_reference_offset (view, i)));

      largest = isfinite (value) ? MAX (largest, value) : largest;
    }
  tolerance = view->dtype == EBB_DTYPE_BF16 ? MAX (test->tolerance, test->pairs_tolerance) : test->tolerance;
  tolerance *= MAX (largest, 0.5);
  for (gint64 i = 0; i < ebb_reference_count (view); i++)
    {
      gint64 offset = ebb_reference_offset (view, i);
      double x = ebb_reference_load (view, offset), y = ebb_reference_load (&actual->view, offset);
      double allowed = tolerance + (view->dtype == EBB_DTYPE_BF16 ? fabs (x) / 128.0 : 0.0);

      if (!(x == y || (isnan (x) && isnan (y)) || fabs (x - y) <= allowed))
        g_error ("%s, %s: output %u, element %" G_GINT64_FORMAT ": %.9g expected, is %.9g (+- %.3g)", test->name, label,
                 index, i, x, y, allowed);
      memcpy ((char *) untouched.view.data + offset * size, (const char *) view->data + offset * size, size);
    }
  if (memcmp (untouched.memory, expected->memory, expected->size) != 0)
    g_error ("%s, %s: output %u: memory beside the elements was written", test->name, label, index);
  test_operand_clear (&untouched);
}

static void
check_kernel (const TestCase *test,
              EbbKernelFunc kernel,
              const char *simd,
              const TestOperand *expected)
{
  TestOperand first[EBB_LAUNCH_MAX_OUTPUTS] = { 0 };
  const gboolean is_cpu = test_device_is_cpu ();

  /* On the CPU numbers of threads may differ in bits; on a device its orders may not. */
  for (int n_threads = 1; n_threads <= (is_cpu ? 2 : 3); n_threads++)
    for (int run = 0; run < (is_cpu ? 2 : 1); run++)
      {
        g_autofree char *label = g_strdup_printf ("%s, %d threads", simd, n_threads);
        TestOperand outputs[EBB_LAUNCH_MAX_OUTPUTS] = { 0 };
        gboolean again = is_cpu ? run > 0 : n_threads > 1;

        test_kernel_set_threads (n_threads);
        test_case_run (test, kernel, outputs);
        for (guint i = 0; i < test->n_outputs; i++)
          if (test->outputs[i].memory)
            {
              test_case_compare (test, label, i, &expected[i], &outputs[i]);
              if (again && memcmp (first[i].memory, outputs[i].memory, first[i].size) != 0)
                g_error ("%s, %s: output %u is not the same bits in a second run", test->name, label, i);
              test_operand_clear (&first[i]);
              first[i] = outputs[i];
            }
      }
  for (guint i = 0; i < test->n_outputs; i++)
    test_operand_clear (&first[i]);
  test_kernel_set_threads (0);
}

void
test_case_check (TestCase *test)
{
  TestOperand expected[EBB_LAUNCH_MAX_OUTPUTS] = { 0 };

  test_case_run (test, ebb_reference_kernels[test->kernel], expected);
  if (test->kernel == EBB_KERNEL_MATMUL && !test->has_few_rows && test_device_is_cpu ())
    check_kernel (test, ebb_cpu_matmul, "oneDNN", expected);
  else
    for (gsize i = 0; i < TEST_N_SIMD; i++)
      {
        const EbbKernelFunc *kernels = test_kernels_of (test_simd_names[i]);
        TestCase variant = *test;

        if (!g_str_equal (test_simd_names[i], "avx512bf16") && test_device_is_cpu ()) /* tensor cores do as well */
          variant.pairs_tolerance = 0;
        if (kernels)
          check_kernel (&variant, kernels[test->kernel], test_simd_names[i], expected);
      }
  for (guint i = 0; i < test->n_outputs; i++)
    test_operand_clear (&expected[i]);
  case_clear (test);
}
