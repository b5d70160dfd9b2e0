/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */

#include "support/kernel-case-private.h"

#include "support/kernel-run.h"

#include <math.h>
#include <string.h>

#include "tensor/cpu/cpu-private.h"

/* Bytes in front of and behind an operand's memory: they must stay as they are. */
#define MARGIN 256
#define MARGIN_BYTE 0x5a

static guint32 random_state = 1;

double
kernel_random (double low,
               double high)
{
  random_state = random_state * 1664525u + 1013904223u;
  return low + (high - low) * (random_state >> 8) / 16777216.0;
}

static gsize
get_n_bytes (const KernelOperand *operand)
{
  return 2 * MARGIN + operand->n_elements * ebb_dtype_get_size (operand->view.dtype);
}

static void
set_strides (EbbView *view,
             KernelLayout layout)
{
  gint64 stride = layout == KERNEL_LAYOUT_STRIDED ? 2 : 1;
  int n = view->n_dims;

  for (int k = 0; k < n; k++)
    {
      int d = layout == KERNEL_LAYOUT_PERMUTED ? k : n - 1 - k;
      gboolean is_broadcast = layout == KERNEL_LAYOUT_SCALAR || (layout == KERNEL_LAYOUT_BROADCAST && d == 0)
                              || (layout == KERNEL_LAYOUT_ROW && d < n - 1)
                              || (layout == KERNEL_LAYOUT_COLUMN && d == n - 1);

      view->strides[d] = is_broadcast ? 0 : stride;
      if (!is_broadcast)
        stride = stride * view->shape[d] + (layout == KERNEL_LAYOUT_STRIDED ? 3 : 0);
    }
}

KernelOperand
kernel_operand_new (EbbDType dtype,
                    KernelShape shape,
                    KernelLayout layout,
                    double low,
                    double high)
{
  KernelOperand operand = { .view = { .dtype = dtype }, .n_elements = 1 };
  EbbView all = { .dtype = dtype };

  for (int d = 0; shape.sizes[d] >= 0; d++)
    operand.view.shape[operand.view.n_dims++] = shape.sizes[d];
  set_strides (&operand.view, layout);
  for (int d = 0; d < operand.view.n_dims; d++)
    operand.n_elements += (gsize) (MAX (operand.view.shape[d] - 1, 0) * operand.view.strides[d]);
  operand.memory = g_malloc (get_n_bytes (&operand));
  memset (operand.memory, MARGIN_BYTE, get_n_bytes (&operand));
  operand.view.data = all.data = operand.memory + MARGIN;
  for (gint64 i = 0; i < (gint64) operand.n_elements; i++)
    if (ebb_dtype_is_floating_point (dtype))
      ebb_reference_store (&all, i, kernel_random (low, high));
    else
      ebb_reference_store_integer (&all, i, (gint64) floor (kernel_random (low, high)));
  return operand;
}

KernelOperand
kernel_vector_new (EbbDType dtype,
                   gint64 n,
                   double low,
                   double high)
{
  return kernel_operand_new (dtype, KERNEL_SHAPE (n), KERNEL_LAYOUT_CONTIGUOUS, low, high);
}

KernelCase
kernel_case_new (const char *name,
                 EbbKernel kernel)
{
  return (KernelCase){ .name = name, .kernel = kernel, .n_outputs = 1, .in_place = -1, .tolerance = 2e-6, .scale = 1 };
}

/* With the data skip elements further on in its memory */
static KernelOperand
copy_operand (const KernelOperand *operand,
              guint skip)
{
  KernelOperand copy = *operand;
  gsize shift = skip * ebb_dtype_get_size (operand->view.dtype);

  if (operand->memory == NULL)
    return copy;
  copy.memory = g_malloc (get_n_bytes (operand) + shift);
  memset (copy.memory, MARGIN_BYTE, shift);
  memcpy (copy.memory + shift, operand->memory, get_n_bytes (operand));
  copy.view.data = copy.memory + shift + MARGIN;
  return copy;
}

static void
clear_operands (KernelCase *test)
{
  for (guint k = 0; k < test->n_inputs; k++)
    g_clear_pointer (&test->inputs[k].memory, g_free);
  for (guint k = 0; k < test->n_outputs; k++)
    g_clear_pointer (&test->outputs[k].memory, g_free);
  for (guint k = 0; k < test->n_items * EBB_LAUNCH_ITEM_DATA; k++)
    g_clear_pointer (&test->items[k / EBB_LAUNCH_ITEM_DATA][k % EBB_LAUNCH_ITEM_DATA].memory, g_free);
}

/* The case with all its operands copied, and the kernel run on the copies. */
static KernelCase
run_copy (const KernelCase *test,
          EbbKernelFunc func,
          gboolean in_place,
          guint skip)
{
  KernelCase copy = *test;
  EbbLaunch launch = { .kernel = test->kernel, .params = test->params };
  EbbLaunchItem items[KERNEL_MAX_ITEMS] = { 0 };
  g_autoptr (GError) error = NULL;
  gboolean ok;

  launch.n_inputs = test->n_inputs;
  launch.n_outputs = test->n_outputs;
  for (guint k = 0; k < test->n_inputs; k++)
    {
      copy.inputs[k] = copy_operand (&test->inputs[k], skip);
      launch.inputs[k] = copy.inputs[k].memory != NULL ? &copy.inputs[k].view : NULL;
    }
  for (guint k = 0; k < test->n_outputs; k++)
    {
      gboolean is_input = in_place && k == 0;

      copy.outputs[k] = copy_operand (is_input ? &test->inputs[test->in_place] : &test->outputs[k], skip);
      launch.outputs[k] = copy.outputs[k].memory != NULL ? &copy.outputs[k].view : NULL;
      if (is_input)
        launch.inputs[test->in_place] = &copy.outputs[0].view;
    }
  for (guint k = 0; k < test->n_items; k++)
    for (guint d = 0; d < EBB_LAUNCH_ITEM_DATA; d++)
      {
        copy.items[k][d] = copy_operand (&test->items[k][d], skip);
        if (copy.items[k][d].memory != NULL)
          items[k].data[d] = copy.items[k][d].view.data;
        if (d == 0)
          items[k].n_elements = (gint64) copy.items[k][d].n_elements;
      }
  for (guint k = 0; k < test->n_items; k++)
    {
      items[k].first_element = 100 * k;
      items[k].philox_seed = k;
    }
  launch.n_items = test->n_items;
  launch.items = items;
  ok = test_kernel_run (func, &launch, &error);
  g_assert_no_error (error);
  g_assert_true (ok);
  return copy;
}

static double
get_unit (EbbDType dtype)
{
  switch (dtype)
    {
    case EBB_DTYPE_BF16: return 1.0 / 128;
    case EBB_DTYPE_F16: return 1.0 / 1024;
    default: return 0;
    }
}

static void
compare_operand (const KernelCase *test,
                 const char *where,
                 guint k,
                 const KernelOperand *got,
                 const KernelOperand *want)
{
  const EbbView *view = &want->view;
  gboolean is_floating = ebb_dtype_is_floating_point (view->dtype);

  if (want->memory == NULL)
    return;
  for (gint64 i = 0; i < ebb_reference_count (view); i++)
    {
      gint64 offset = ebb_reference_offset (view, i);
      double a = ebb_reference_load (&got->view, offset), b = ebb_reference_load (view, offset);
      double allowed =
          is_floating ? test->tolerance * MAX (fabs (b), test->scale) + get_unit (view->dtype) * fabs (b) : 0;

      if (a != b && !(isnan (a) && isnan (b)) && !(fabs (a - b) <= allowed))
        g_error ("%s %d on %s: operand %u, element %" G_GINT64_FORMAT ": %.9g instead of %.9g (allowed: %.3g)",
                 test->name, (int) test->params.unary.op, where, k, i, a, b, allowed);
    }
}

/* Bit for bit, what lies between and around the elements too. */
static void
compare_bits (const KernelCase *test,
              const char *where,
              guint k,
              const KernelOperand *got,
              const KernelOperand *want)
{
  const guint8 *a, *b;

  if (want->memory == NULL)
    return;
  a = (const guint8 *) got->view.data - MARGIN;
  b = (const guint8 *) want->view.data - MARGIN;
  for (gsize i = 0; i < get_n_bytes (want); i++)
    if (a[i] != b[i])
      g_error ("%s on %s: operand %u differs at byte %" G_GSSIZE_FORMAT, test->name, where, k,
               (gssize) i - MARGIN);
}

/* Sets what the view does not cover, in the copy that a reference wrote, beside what the kernel wrote. */
static void
check_untouched (const KernelCase *test,
                 const char *where,
                 guint k,
                 const KernelOperand *got,
                 const KernelOperand *before)
{
  gsize size = ebb_dtype_get_size (before->view.dtype);
  KernelOperand patched;

  if (before->memory == NULL)
    return;
  patched = copy_operand (before, 0);
  for (gint64 i = 0; i < ebb_reference_count (&before->view); i++)
    {
      gint64 offset = ebb_reference_offset (&before->view, i);

      memcpy ((guint8 *) patched.view.data + (gsize) offset * size,
              (const guint8 *) got->view.data + (gsize) offset * size, size);
    }
  compare_bits (test, where, k, got, &patched);
  g_free (patched.memory);
}

static void
compare_runs (const KernelCase *test,
              const char *where,
              const KernelCase *got,
              const KernelCase *first)
{
  for (guint k = 0; k < test->n_outputs; k++)
    compare_bits (test, where, k, &got->outputs[k], &first->outputs[k]);
  for (guint k = 0; k < test->n_items; k++)
    for (guint d = 0; d < EBB_LAUNCH_ITEM_DATA; d++)
      compare_bits (test, where, k, &got->items[k][d], &first->items[k][d]);
}

static void
check_variant (const KernelCase *test,
               const KernelCase *want,
               const char *simd)
{
  EbbKernelFunc func = test_kernels_of (simd)[test->kernel];
  KernelCase first;

  g_assert_nonnull (func);
  test_kernel_set_threads (1);
  first = run_copy (test, func, FALSE, 0);
  for (guint k = 0; k < test->n_inputs; k++)
    compare_operand (test, simd, k, &first.inputs[k], &want->inputs[k]);
  for (guint k = 0; k < test->n_outputs; k++)
    {
      compare_operand (test, simd, k, &first.outputs[k], &want->outputs[k]);
      check_untouched (test, simd, k, &first.outputs[k], &test->outputs[k]);
    }
  for (guint k = 0; k < test->n_items; k++)
    for (guint d = 0; d < EBB_LAUNCH_ITEM_DATA; d++)
      {
        compare_operand (test, simd, k, &first.items[k][d], &want->items[k][d]);
        check_untouched (test, simd, k, &first.items[k][d], &test->items[k][d]);
      }
  for (int n_threads = 2; n_threads <= 3; n_threads++)
    {
      g_autofree char *where = g_strdup_printf ("%s, %d threads", simd, n_threads);
      KernelCase again;

      test_kernel_set_threads (n_threads);
      again = run_copy (test, func, FALSE, n_threads == 2 ? 1 : 5);
      compare_runs (test, where, &again, &first);
      clear_operands (&again);
    }
  if (test->in_place >= 0)
    {
      g_autofree char *where = g_strdup_printf ("%s, in place", simd);
      KernelCase again = run_copy (test, func, TRUE, 1);

      compare_runs (test, where, &again, &first);
      clear_operands (&again);
    }
  clear_operands (&first);
}

void
kernel_case_check (KernelCase *test)
{
  static const char *const simd_names[] = { "portable", "avx2", "avx512", "avx512bf16" };
  KernelCase want = run_copy (test, ebb_reference_kernels[test->kernel], FALSE, 0);
  int n_threads = ebb_cpu_get_n_threads ();

  for (guint k = 0; k < G_N_ELEMENTS (simd_names); k++)
    if (test_kernels_of (simd_names[k]) != NULL)
      check_variant (test, &want, simd_names[k]);
  test_kernel_set_threads (n_threads);
  clear_operands (&want);
  clear_operands (test);
}
