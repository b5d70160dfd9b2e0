/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/op-runs-private.h"

#include "support/device.h"
#include "support/reference-private.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tensor/backend/backend-private.h"
#include "tensor/tensor-private.h"

#define HALF_TOLERANCE 2e-2 /* bf16 */

/* -- the reference as a device ------------------------------------------------------------------------------------ */

static void *
reference_alloc (int index,
                 gsize size,
                 GError **error)
{
  return aligned_alloc (64, (size + 127) / 64 * 64);
}

static void
reference_free (int index,
                void *data,
                gsize size)
{
  free (data);
}

static const EbbKernelFunc *
reference_get_kernels (void)
{
  return ebb_reference_kernels;
}

static const EbbBackend reference_backend = {
  .version = EBB_BACKEND_VERSION,
  .name = "reference",
  .host_memory = TRUE,
  .alloc = reference_alloc,
  .free = reference_free,
  .get_kernels = reference_get_kernels,
};

EbbDevice *op_run_reference, *op_run_tested;

/* -- the CPU with memory that holds NaN, and ends on request ------------------------------------------------------- */

static EbbBackend cpu_backend;
static gboolean counting;
static guint n_allocations, n_granted;

static void *
alloc_while_granted (int index,
                     gsize size,
                     GError **error)
{
  void *data = NULL;

  if (!counting || n_allocations++ < n_granted)
    data = ebb_cpu_backend.alloc (index, size, error);
  else
    g_set_error (error, EBB_ERROR, EBB_ERROR_NO_MEMORY, "allocation %u fails", n_allocations);
  if (data != NULL)
    memset (data, 0xff, size);
  return data;
}

static void
install_cpu_backend (void)
{
  cpu_backend = ebb_cpu_backend;
  cpu_backend.alloc = alloc_while_granted;
  ebb_device_get_cpu ()->backend = &cpu_backend;
}

void
op_run_count_allocations (guint granted)
{
  n_granted = granted;
  n_allocations = 0;
  counting = TRUE;
}

guint
op_run_stop_counting (void)
{
  counting = FALSE;
  return n_allocations;
}

/* -- one run of a case -------------------------------------------------------------------------------------------- */

void
op_run_clear (OpRun *run)
{
  op_case_clear (run->x, OP_CASE_MAX_INPUTS);
  op_case_clear (run->y, OP_CASE_MAX_OUTPUTS);
  op_case_clear (run->grads, OP_CASE_MAX_OUTPUTS);
}

gboolean
op_run_can_flow (EbbTensor *y)
{
  return y != NULL && (ebb_tensor_get_requires_grad (y) || !ebb_tensor_is_leaf (y));
}

void
op_run_backward (OpRun *run)
{
  g_autoptr (GError) error = NULL;
  EbbTensor *outputs[OP_CASE_MAX_OUTPUTS], *grads[OP_CASE_MAX_OUTPUTS];
  guint n = 0;

  for (guint i = 0; i < OP_CASE_MAX_OUTPUTS; i++)
    if (op_run_can_flow (run->y[i]))
      {
        if (run->grads[i] == NULL)
          run->grads[i] = op_case_make_normal (run->y[i], 1000 + i, &error);
        g_assert_no_error (error);
        outputs[n] = run->y[i];
        grads[n++] = run->grads[i];
      }
  g_assert_cmpuint (n, >, 0);
  ebb_backward (outputs, n, grads, n, NULL, 0, FALSE, &error);
  g_assert_no_error (error);
}

void
op_run_forward (OpRun *run,
                const OpCase *op_case,
                const OpVariant *variant)
{
  g_autoptr (GError) error = NULL;

  op_case_clear (run->y, OP_CASE_MAX_OUTPUTS);
  op_case_run (op_case, variant, run->x, run->y, &error);
  g_assert_no_error (error);
}

void
op_run_on (OpRun *run,
           const OpCase *op_case,
           const OpVariant *variant,
           EbbDevice *device)
{
  g_autoptr (GError) error = NULL;

  memset (run, 0, sizeof *run);
  op_case_make_inputs (variant, 7, device, run->x, &run->n_inputs, &error);
  g_assert_no_error (error);
  op_run_forward (run, op_case, variant);
}

gboolean
op_run_wants_gradient (const OpCase *op_case,
                       OpRun *run)
{
  if (op_case->flags & OP_CASE_CONSTANT)
    return FALSE;
  for (guint i = 0; i < run->n_inputs; i++)
    if (run->x[i] != NULL && ebb_tensor_get_requires_grad (run->x[i]))
      return TRUE;
  return FALSE;
}

/* -- comparing ---------------------------------------------------------------------------------------------------- */

double
op_run_find_greatest (const double *values,
                      gint64 n)
{
  double greatest = 0.0;

  for (gint64 i = 0; i < n; i++)
    if (isfinite (values[i]))
      greatest = MAX (greatest, fabs (values[i]));
  return greatest;
}

gboolean
op_run_is_close (double value,
                 double expected,
                 double allowed)
{
  if (isnan (expected) || isnan (value))
    return isnan (expected) && isnan (value);
  return value == expected || fabs (value - expected) <= allowed;
}

void
op_run_assert_same_shape (const char *what,
                          EbbTensor *a,
                          EbbTensor *b)
{
  g_autofree char *first = ebb_tensor_shape_to_string (a);
  g_autofree char *second = ebb_tensor_shape_to_string (b);

  if (g_strcmp0 (first, second) != 0 || ebb_tensor_get_dtype (a) != ebb_tensor_get_dtype (b))
    g_error ("%s: %s %s where %s %s is expected", what, ebb_dtype_get_name (ebb_tensor_get_dtype (a)), first,
             ebb_dtype_get_name (ebb_tensor_get_dtype (b)), second);
}

static void
compare (const char *what,
         const OpCase *op_case,
         const OpVariant *variant,
         EbbTensor *result,
         EbbTensor *expected)
{
  g_autoptr (GError) error = NULL;
  g_autofree double *values = op_case_read (result, &error);
  g_autofree double *right = op_case_read (expected, &error);
  gint64 n = ebb_tensor_get_n_elements (expected), n_wrong = 0;
  gboolean is_half = ebb_tensor_get_dtype (result) == EBB_DTYPE_BF16 || strpbrk (variant->operands, "hq") != NULL;
  double tolerance = is_half ? HALF_TOLERANCE : op_case->tolerance > 0.0 ? op_case->tolerance
                                                                         : OP_RUN_TOLERANCE;

  g_assert_no_error (error);
  op_run_assert_same_shape (what, result, expected);
  tolerance *= op_run_find_greatest (right, n);
  if ((op_case->flags & OP_CASE_EXACT) || !ebb_dtype_is_floating_point (ebb_tensor_get_dtype (result)))
    tolerance = 0.0;
  for (gint64 i = 0; i < n; i++)
    if (!op_run_is_close (values[i], right[i], tolerance))
      {
        n_wrong++;
        if (!(op_case->flags & OP_CASE_DISCRETE) || n_wrong * 20 > n)
          g_error ("%s: element %" G_GINT64_FORMAT " is %.9g and must be %.9g, up to %.3g", what, i, values[i],
                   right[i], tolerance);
      }
}

/* A device that runs the same kernels gives the same bits. */
static gboolean
runs_same_kernels (EbbDevice *device,
                   EbbDevice *other)
{
  return memcmp (device->kernels, other->kernels, sizeof (EbbKernelFunc) * EBB_N_KERNELS) == 0;
}

static void
compare_bits (const char *what,
              EbbTensor *result,
              EbbTensor *expected)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) result_here = ebb_to_device (result, NULL, &error);
  g_autoptr (EbbTensor) expected_here = ebb_to_device (expected, NULL, &error);

  g_assert_no_error (error);
  if (!ebb_tensor_equal (result_here, expected_here))
    g_error ("%s: not the same bits", what);
}

void
op_run_compare (const OpCase *op_case,
                const OpVariant *variant,
                EbbDevice *device,
                EbbDevice *other)
{
  OpRun run, right;
  gboolean backward;

  g_test_message ("%s (%s)", op_case->name, variant->operands);
  op_run_on (&run, op_case, variant, device);
  op_run_on (&right, op_case, variant, other);
  for (guint i = 0; i < OP_CASE_MAX_OUTPUTS && right.y[i] != NULL; i++)
    {
      g_autofree char *what = g_strdup_printf ("%s (%s), result %u", op_case->name, variant->operands, i);

      compare (what, op_case, variant, run.y[i], right.y[i]);
      if (runs_same_kernels (device, other))
        compare_bits (what, run.y[i], right.y[i]);
    }
  backward = op_run_wants_gradient (op_case, &right);
  if (backward)
    {
      op_run_backward (&run);
      op_run_backward (&right);
    }
  for (guint i = 0; backward && i < right.n_inputs; i++)
    if (right.x[i] != NULL && ebb_tensor_get_requires_grad (right.x[i]))
      {
        g_autofree char *what =
            g_strdup_printf ("%s (%s), gradient of operand %u", op_case->name, variant->operands, i);
        g_autoptr (EbbTensor) grad = ebb_tensor_get_grad (run.x[i]);
        g_autoptr (EbbTensor) right_grad = ebb_tensor_get_grad (right.x[i]);

        g_assert_nonnull (grad);
        compare (what, op_case, variant, grad, right_grad);
        if (runs_same_kernels (device, other))
          compare_bits (what, grad, right_grad);
      }
  op_run_clear (&run);
  op_run_clear (&right);
}

/* -- programs ------------------------------------------------------------------------------------------------------ */

void
op_run_set_up (const char *device)
{
  g_autoptr (GError) error = NULL;

  ebb_backend_register (&reference_backend);
  op_run_reference = ebb_device_get ("reference", &error);
  g_assert_no_error (error);
  if (device == NULL)
    device = g_getenv ("EBB_TEST_DEVICE");
  op_run_tested = ebb_device_get (device != NULL ? device : "cpu", &error);
  if (op_run_tested == NULL)
    {
      fprintf (stderr, "%s\n", error->message);
      exit (EXIT_FAILURE);
    }
}

void
op_run_init (int *argc,
             char ***argv)
{
  test_init (argc, argv);
  install_cpu_backend ();
}

void
op_run_add_tests (const char *mode,
                  GTestDataFunc func)
{
  for (const OpCase *const *op_case = op_cases_get_all (); *op_case != NULL; op_case++)
    {
      g_autofree char *path = g_strdup_printf ("/op-cases/%s/%s", mode, (*op_case)->name);

      g_test_add_data_func (path, *op_case, func);
    }
}
