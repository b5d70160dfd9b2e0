/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */

/* The list of op cases in its modes:
 *
 *   /op-cases/reference/OP         a device's results and gradients against those of the float64 reference
 *   /op-cases/gradient/OP          its gradients against finite differences of the reference
 *   /op-cases/stopped/OP           after the early stop of a recompute: the same shapes and draws, no data, no failure
 *   /op-cases/empties-are-pytorchs what PyTorch makes of nothing
 *   /op-cases/empty/OP             dimensions have size zero: an error, or the results and gradients of the reference
 *   /op-cases/out-of-memory/OP     each allocation of the two passes fails, and all after it: one error, nothing stays
 *   /op-cases/DEVICE-and-cpu/OP    another device's results and gradients against the CPU's, for each that there is
 *
 * --device NAME asks for another device than the CPU in the first two; --time [OP] measures instead of testing. */

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/device.h"
#include "support/op-cases.h"
#include "support/reference-private.h"
#include "support/stores.h"
#include "tensor/backend-private.h"
#include "tensor/tensor-private.h"
#include "tensor/thread-private.h"

#define TOLERANCE 1e-5      /* f32, relative to the greatest result */
#define HALF_TOLERANCE 2e-2 /* bf16 */
#define GRADIENT_TOLERANCE 1e-3
#define STEP 0.02 /* of a finite difference; error of the fourth order */

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

static EbbDevice *reference, *tested;

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

/* -- one run of a case -------------------------------------------------------------------------------------------- */

typedef struct
{
  guint n_inputs;
  EbbTensor *x[OP_CASE_MAX_INPUTS];
  EbbTensor *y[OP_CASE_MAX_OUTPUTS];
  EbbTensor *grads[OP_CASE_MAX_OUTPUTS]; /* what is sent back through y */
} Run;

static void
run_clear (Run *run)
{
  op_case_clear (run->x, OP_CASE_MAX_INPUTS);
  op_case_clear (run->y, OP_CASE_MAX_OUTPUTS);
  op_case_clear (run->grads, OP_CASE_MAX_OUTPUTS);
}

static gboolean
can_flow (EbbTensor *y)
{
  return y != NULL && (ebb_tensor_get_requires_grad (y) || !ebb_tensor_is_leaf (y));
}

/* Sends the same random gradients back through the outputs; their sums with the outputs are what is differentiated. */
static void
run_backward (Run *run)
{
  g_autoptr (GError) error = NULL;
  EbbTensor *outputs[OP_CASE_MAX_OUTPUTS], *grads[OP_CASE_MAX_OUTPUTS];
  guint n = 0;

  for (guint i = 0; i < OP_CASE_MAX_OUTPUTS; i++)
    if (can_flow (run->y[i]))
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

static void
run_forward (Run *run,
             const OpCase *op_case,
             const OpVariant *variant)
{
  g_autoptr (GError) error = NULL;

  op_case_clear (run->y, OP_CASE_MAX_OUTPUTS);
  op_case_run (op_case, variant, run->x, run->y, &error);
  g_assert_no_error (error);
}

static void
run_on (Run *run,
        const OpCase *op_case,
        const OpVariant *variant,
        EbbDevice *device)
{
  g_autoptr (GError) error = NULL;

  memset (run, 0, sizeof *run);
  op_case_make_inputs (variant, 7, device, run->x, &run->n_inputs, &error);
  g_assert_no_error (error);
  run_forward (run, op_case, variant);
}

static gboolean
wants_gradient (const OpCase *op_case,
                Run *run)
{
  if (op_case->flags & OP_CASE_CONSTANT)
    return FALSE;
  for (guint i = 0; i < run->n_inputs; i++)
    if (run->x[i] != NULL && ebb_tensor_get_requires_grad (run->x[i]))
      return TRUE;
  return FALSE;
}

/* -- comparing ---------------------------------------------------------------------------------------------------- */

static double
find_greatest (const double *values,
               gint64 n)
{
  double greatest = 0.0;

  for (gint64 i = 0; i < n; i++)
    if (isfinite (values[i]))
      greatest = MAX (greatest, fabs (values[i]));
  return greatest;
}

static gboolean
is_close (double value,
          double expected,
          double allowed)
{
  if (isnan (expected) || isnan (value))
    return isnan (expected) && isnan (value);
  return value == expected || fabs (value - expected) <= allowed;
}

static void
assert_same_shape (const char *what,
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
                                                                         : TOLERANCE;

  g_assert_no_error (error);
  assert_same_shape (what, result, expected);
  tolerance *= find_greatest (right, n);
  if ((op_case->flags & OP_CASE_EXACT) || !ebb_dtype_is_floating_point (ebb_tensor_get_dtype (result)))
    tolerance = 0.0;
  for (gint64 i = 0; i < n; i++)
    if (!is_close (values[i], right[i], tolerance))
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

/* Results and gradients on @device against those on @other. */
static void
compare_devices_once (const OpCase *op_case,
                      const OpVariant *variant,
                      EbbDevice *device,
                      EbbDevice *other)
{
  Run run, right;
  gboolean backward;

  g_test_message ("%s (%s)", op_case->name, variant->operands);
  run_on (&run, op_case, variant, device);
  run_on (&right, op_case, variant, other);
  for (guint i = 0; i < OP_CASE_MAX_OUTPUTS && right.y[i] != NULL; i++)
    {
      g_autofree char *what = g_strdup_printf ("%s (%s), result %u", op_case->name, variant->operands, i);

      compare (what, op_case, variant, run.y[i], right.y[i]);
      if (runs_same_kernels (device, other))
        compare_bits (what, run.y[i], right.y[i]);
    }
  backward = wants_gradient (op_case, &right);
  if (backward)
    {
      run_backward (&run);
      run_backward (&right);
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
  run_clear (&run);
  run_clear (&right);
}

static void
compare_devices (const OpCase *op_case,
                 EbbDevice *device,
                 EbbDevice *other)
{
  for (const OpVariant *variant = op_case->variants; variant->operands != NULL; variant++)
    compare_devices_once (op_case, variant, device, other);
}

static void
agrees_with_reference (gconstpointer data)
{
  compare_devices (data, tested, reference);
}

typedef struct
{
  const OpCase *op_case;
  EbbDevice *device;
} Pair;

static void
agrees_with_cpu (gconstpointer data)
{
  const Pair *pair = data;

  compare_devices (pair->op_case, pair->device, ebb_device_get_cpu ());
}

/* -- finite differences ------------------------------------------------------------------------------------------- */

/* The outputs times their random gradients, summed in double. */
static double
project (Run *run)
{
  g_autoptr (GError) error = NULL;
  double sum = 0.0;

  for (guint k = 0; k < OP_CASE_MAX_OUTPUTS; k++)
    if (can_flow (run->y[k]))
      {
        g_autoptr (EbbTensor) weights = op_case_make_normal (run->y[k], 1000 + k, &error);
        g_autofree double *y = op_case_read (run->y[k], &error);
        g_autofree double *w = op_case_read (weights, &error);

        g_assert_no_error (error);
        for (gint64 i = 0; i < ebb_tensor_get_n_elements (run->y[k]); i++)
          sum += y[i] * w[i];
      }
  return sum;
}

static double
project_moved (Run *run,
               const OpCase *op_case,
               const OpVariant *variant,
               float *element,
               double distance)
{
  float old = *element;
  double sum;

  *element = (float) (old + distance);
  run_forward (run, op_case, variant);
  sum = project (run);
  *element = old;
  return sum;
}

static gint64
get_offset (EbbTensor *tensor,
            gint64 position)
{
  guint n_dims;
  const gint64 *shape = ebb_tensor_get_shape (tensor, &n_dims);
  const gint64 *strides = ebb_tensor_get_strides (tensor, NULL);
  gint64 offset = 0;

  for (guint i = n_dims; i-- > 0;)
    {
      offset += position % shape[i] * strides[i];
      position /= shape[i];
    }
  return offset;
}

/* Large operands are sampled. */
static void
check_gradient (const OpCase *op_case,
                const OpVariant *variant,
                guint index,
                EbbTensor *grad,
                Run *moved)
{
  g_autoptr (GError) error = NULL;
  g_autofree double *values = op_case_read (grad, &error);
  float *data = ebb_tensor_get_data (moved->x[index], &error);
  gint64 n = ebb_tensor_get_n_elements (grad);
  double allowed = GRADIENT_TOLERANCE * MAX (find_greatest (values, n), 0.1);

  g_assert_no_error (error);
  for (gint64 i = 0; i<n; i += n> 60 ? n / 41 : 1)
    {
      float *element = data + get_offset (moved->x[index], i);
      double near = project_moved (moved, op_case, variant, element, STEP)
                    - project_moved (moved, op_case, variant, element, -STEP);
      double far = project_moved (moved, op_case, variant, element, 2 * STEP)
                   - project_moved (moved, op_case, variant, element, -2 * STEP);
      double expected = (8.0 * near - far) / (12.0 * STEP);

      if (!is_close (values[i], expected, allowed))
        g_error ("%s (%s): gradient of operand %u, element %" G_GINT64_FORMAT
                 ", is %.7g; finite differences give %.7g, up to %.3g",
                 op_case->name, variant->operands, index, i, values[i], expected, allowed);
    }
}

/* NULL if there is none. */
static double *
read_gradient (EbbTensor *leaf)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) grad = leaf != NULL ? ebb_tensor_get_grad (leaf) : NULL;
  double *values = grad != NULL ? op_case_read (grad, &error) : NULL;

  g_assert_no_error (error);
  return values;
}

/* A second backward pass adds the same gradients to those of the first. */
static void
check_accumulation (const OpCase *op_case,
                    const OpVariant *variant,
                    Run *run)
{
  double *once[OP_CASE_MAX_INPUTS] = { NULL };

  for (guint i = 0; i < run->n_inputs; i++)
    once[i] = read_gradient (run->x[i]);
  run_forward (run, op_case, variant);
  run_backward (run);
  for (guint i = 0; i < run->n_inputs; i++)
    if (once[i] != NULL)
      {
        g_autofree double *twice = read_gradient (run->x[i]);
        gint64 n = ebb_tensor_get_n_elements (run->x[i]);
        double allowed = TOLERANCE * find_greatest (once[i], n);

        for (gint64 k = 0; k < n; k++)
          if (!is_close (twice[k], 2.0 * once[i][k], allowed))
            g_error ("%s (%s): gradient of operand %u, element %" G_GINT64_FORMAT
                     ", is %.9g after two passes and %.9g after one",
                     op_case->name, variant->operands, i, k, twice[k], once[i][k]);
        g_free (once[i]);
      }
}

static void
agrees_with_differences (gconstpointer data)
{
  const OpCase *op_case = data;

  for (const OpVariant *variant = op_case->variants; variant->operands != NULL; variant++)
    {
      Run run, moved;

      if (strpbrk (variant->operands, "hqs") != NULL)
        continue;
      g_test_message ("%s (%s)", op_case->name, variant->operands);
      run_on (&run, op_case, variant, tested);
      if (!wants_gradient (op_case, &run))
        {
          run_clear (&run);
          continue;
        }
      run_backward (&run);
      run_on (&moved, op_case, variant, reference);
      for (guint i = 0; i < run.n_inputs; i++)
        if (run.x[i] != NULL && ebb_tensor_get_requires_grad (run.x[i]))
          {
            g_autoptr (EbbTensor) grad = ebb_tensor_get_grad (run.x[i]);

            g_assert_nonnull (grad);
            check_gradient (op_case, variant, i, grad, &moved);
          }
      check_accumulation (op_case, variant, &run);
      run_clear (&run);
      run_clear (&moved);
    }
}

/* -- after the early stop of a recompute -------------------------------------------------------------------------- */

static void
goes_on_without_data (gconstpointer data)
{
  const OpCase *op_case = data;
  g_autoptr (GError) error = NULL;

  for (const OpVariant *variant = op_case->variants; variant->operands != NULL; variant++)
    {
      Run run;
      EbbTensor *y[OP_CASE_MAX_OUTPUTS];
      guint64 offset;

      run_on (&run, op_case, variant, tested);
      offset = ebb_generator_get_offset (ebb_generator_get_default ());
      ebb_thread.stopped = 1;
      op_case_run (op_case, variant, run.x, y, &error);
      ebb_thread.stopped = 0;
      g_assert_no_error (error);
      g_assert_cmpuint (ebb_generator_get_offset (ebb_generator_get_default ()), ==, offset);
      for (guint i = 0; i < OP_CASE_MAX_OUTPUTS; i++)
        {
          g_assert_true ((y[i] == NULL) == (run.y[i] == NULL));
          if (y[i] == NULL)
            continue;
          assert_same_shape (op_case->name, y[i], run.y[i]);
          if (!ebb_tensor_shares_storage (y[i], run.x[0]) && ebb_tensor_get_n_elements (y[i]) > 0)
            g_assert_true (y[i]->storage->phantom);
        }
      op_case_clear (y, OP_CASE_MAX_OUTPUTS);
      run_clear (&run);
    }
}

/* -- nothing to do ------------------------------------------------------------------------------------------------ */

/* Writes the operands to @text with size zero for each dimension of size @size of each operand if @which is
 * -1, or for dimension @dim of operand @which alone. FALSE if there is no such dimension. */
static gboolean
write_empty (const char *operands,
             gint64 size,
             int which,
             int dim,
             GString *text)
{
  int operand = 0, position = -1;
  gboolean any = FALSE;

  g_string_truncate (text, 0);
  for (const char *at = operands; *at != '\0';)
    {
      gint64 value = g_ascii_isdigit (*at) ? g_ascii_strtoll (at, (char **) &at, 10) : -1;
      gboolean is_size = value >= 0 && position >= 0;

      if (is_size && (which < 0 ? value == size : which == operand && position == dim))
        {
          any = TRUE;
          value = 0;
        }
      if (value >= 0)
        {
          g_string_append_printf (text, "%" G_GINT64_FORMAT, value);
          position += is_size;
          continue;
        }
      if (*at == ':')
        position = 0;
      else if (*at == ' ')
        {
          operand++;
          position = -1;
        }
      g_string_append_c (text, *at++);
    }
  return any;
}

static const OpCase *
find_case (const char *name)
{
  for (const OpCase *const *op_case = op_cases_get_all (); *op_case != NULL; op_case++)
    if (strcmp ((*op_case)->name, name) == 0)
      return *op_case;
  return NULL;
}

static void
assert_all (const char *what,
            EbbTensor *tensor,
            double value)
{
  g_autoptr (GError) error = NULL;
  g_autofree double *values = op_case_read (tensor, &error);

  g_assert_no_error (error);
  for (gint64 i = 0; i < ebb_tensor_get_n_elements (tensor); i++)
    if (!is_close (values[i], value, 0))
      g_error ("%s: element %" G_GINT64_FORMAT " is %g and must be %g", what, i, values[i], value);
}

/* Whether @device did it, or said why not. */
static gboolean
try_on (Run *run,
        const OpCase *op_case,
        const OpVariant *variant,
        EbbDevice *device)
{
  g_autoptr (GError) error = NULL;
  gboolean done;

  memset (run, 0, sizeof *run);
  op_case_make_inputs (variant, 7, device, run->x, &run->n_inputs, &error);
  g_assert_no_error (error);
  done = op_case_run (op_case, variant, run->x, run->y, &error);
  g_assert_true (done == (error == NULL));
  return done;
}

static void
compare_empty (const OpCase *op_case,
               const OpVariant *variant)
{
  Run run, right;

  g_test_message ("%s (%s)", op_case->name, variant->operands);
  if (!try_on (&run, op_case, variant, tested))
    {
      g_assert_false (try_on (&right, op_case, variant, reference));
      run_clear (&run);
      run_clear (&right);
      return;
    }
  run_clear (&run);
  compare_devices_once (op_case, variant, tested, reference);
}

static void
does_nothing_where_nothing_is (gconstpointer data)
{
  const OpCase *op_case = data;
  g_autoptr (GString) text = g_string_new (NULL);

  for (const OpVariant *variant = op_case->variants; variant->operands != NULL; variant++)
    {
      OpVariant empty = *variant;

      for (gint64 size = 1; size < 80; size++)
        if (write_empty (variant->operands, size, -1, 0, text))
          {
            empty.operands = text->str;
            compare_empty (op_case, &empty);
          }
      for (int which = 0; which < OP_CASE_MAX_INPUTS; which++)
        for (int dim = 0; write_empty (variant->operands, 0, which, dim, text); dim++)
          {
            empty.operands = text->str;
            compare_empty (op_case, &empty);
          }
    }
}

/* What PyTorch 2.15 gives. Gradients of operands with elements are 0. */
static void
empties_are_pytorchs (void)
{
  static const struct
  {
    const char *op;
    OpVariant variant;
    const char *shape; /* of the first result; NULL: an error */
    double value;      /* of all its elements */
  } cases[] = {
    { "sum", { "n:4x0t", { 0, 0 } }, "[]", 0 },
    { "sum", { "n:0x4", { 0, 1, 0 } }, "[4]", 0 },
    { "sum", { "n:0x4", { 0, 1, 1 } }, "[0]", 0 },
    { "mean", { "n:0x4", { 0, 0 } }, "[]", NAN },
    { "mean", { "n:0x4", { 0, 1, 0 } }, "[4]", NAN },
    { "mean", { "n:0x4", { 0, 1, 1 } }, "[0]", 0 },
    { "var", { "n:0x4", { 0, 0, 0, 0, 1 } }, "[]", NAN },
    { "var", { "n:0x4", { 0, 1, 0, 0, 1 } }, "[4]", NAN },
    { "norm", { "n:4x0t" }, "[]", 0 },
    { "max", { "n:0x4", { 0, 0 } }, NULL, 0 },
    { "max", { "n:0x4", { 0, 1, 0 } }, NULL, 0 },
    { "max", { "n:0x4", { 0, 1, 1 } }, "[0]", 0 },
    { "min", { "n:0x4", { 0, 0 } }, NULL, 0 },
    { "argmax", { "n:0x4", { 0, 0 } }, NULL, 0 },
    { "argmax", { "n:0x4", { 1, 0 } }, "[0]", 0 },
    { "max_along", { "n:0x4", { 0, 0 } }, NULL, 0 },
    { "max_along", { "n:0x4", { 1, 0 } }, "[0]", 0 },
    { "topk", { "n:0x4", { 2, 1 } }, "[0, 2]", 0 },
    { "topk", { "n:4x0", { 2, 1 } }, NULL, 0 },
    { "softmax", { "n:0x4", { 0 } }, "[0, 4]", 0 },
    { "log_softmax", { "n:4x0", { 1 } }, "[4, 0]", 0 },
    { "matmul", { "n:3x0 n:0x5" }, "[3, 5]", 0 },
    { "matmul", { "n:0x3 n:3x5" }, "[0, 5]", 0 },
    { "matmul", { "n:0 n:0" }, "[]", 0 },
    { "matmul", { "n:2x0x3 n:3x4" }, "[2, 0, 4]", 0 },
    { "linear", { "n:0x4 n:5x4 n:5" }, "[0, 5]", 0 },
    { "linear", { "n:3x4 n:0x4 n:0" }, "[3, 0]", 0 },
    { "bias_gelu", { "n:0x8 n:8", { 0 } }, "[0, 8]", 0 },
    { "layer_norm", { "n:2x0x8 n:8 n:8" }, "[2, 0, 8]", 0 },
    { "layer_norm", { "n:2x3x0 n:0 n:0" }, "[2, 3, 0]", 0 },
    { "rms_norm", { "n:2x0x8 n:8" }, "[2, 0, 8]", 0 },
    { "batch_norm", { "n:0x3 n:3 n:3 c:3 v:3", { 1, 0.1 } }, "[0, 3]", 0 },
    { "batch_norm", { "n:4x3x0 n:3 n:3 c:3 v:3", { 1, 0.1 } }, "[4, 3, 0]", 0 },
    { "residual_dropout_layer_norm", { "n:0x8 n:0x8 n:8 n:8", { 0, 1 } }, "[0, 8]", 0 },
    { "cross_entropy", { "n:0x5 i5:0" }, "[]", NAN },
    { "cross_entropy_full", { "n:0x5 i5:0", { -100, 0.1, 1 } }, "[]", 0 },
    { "cross_entropy_full", { "n:0x5 i5:0", { -100, 0, 2 } }, "[0]", 0 },
    { "cross_entropy_full", { "n:3x0 i5:3", { -100, 0, 0 } }, NULL, 0 },
    { "fused_linear_cross_entropy", { "n:0x4 n:7x4 n:7 i7:0", { -100, 0, 0 } }, "[]", NAN },
    { "fused_linear_cross_entropy", { "n:0x4 n:7x4 - i7:0", { -100, 0, 1 } }, "[]", 0 },
    { "scaled_dot_product_attention", { "n:1x1x5x4 n:1x1x0x4 n:1x1x0x4 -" }, "[1, 1, 5, 4]", 0 },
    { "scaled_dot_product_attention", { "n:1x1x5x4 n:1x1x0x4 n:1x1x0x4 -", { 1 } }, "[1, 1, 5, 4]", 0 },
    { "scaled_dot_product_attention", { "n:1x1x0x4 n:1x1x5x4 n:1x1x5x4 -" }, "[1, 1, 0, 4]", 0 },
    { "scaled_dot_product_attention", { "n:1x0x5x4 n:1x3x5x4 n:1x3x5x4 -" }, NULL, 0 },
    { "self_attention", { "n:2x0x12 -", { 0, 0, 0, 2 } }, "[2, 0, 4]", 0 },
    { "embedding", { "n:7x4 i7:0" }, "[0, 4]", 0 },
    { "embedding", { "n:7x0 i7:2" }, "[2, 0]", 0 },
    { "embedding", { "n:0x4 i7:0" }, "[0, 4]", 0 },
    { "embedding", { "n:0x4 i7:2" }, NULL, 0 },
    { "index_select", { "n:7x4 i7:0", { 0 } }, "[0, 4]", 0 },
    { "index_select", { "n:0x4 i7:2", { 0 } }, NULL, 0 },
    { "gather", { "n:7x4 i7:0x4", { 0 } }, "[0, 4]", 0 },
    { "gather", { "n:7x4 i7:3x0", { 0 } }, "[3, 0]", 0 },
    { "gather", { "n:0x4 i7:3x4", { 0 } }, NULL, 0 },
    { "scatter_add", { "n:0x4 i7:3x4 n:3x4", { 0 } }, NULL, 0 },
    { "stack", { "n:0x3 n:0x3", { 0 } }, "[2, 0, 3]", 0 },
    { "reshape", { "n:0x4", { 2, -1, 4 } }, "[0, 4]", 0 },
    { "reshape", { "n:0x4", { 2, 5, 0 } }, "[5, 0]", 0 },
    { "reshape", { "n:0x4", { 2, 0, -1 } }, NULL, 0 },
    { "view", { "n:4x0t", { 2, 0, 9 } }, "[0, 9]", 0 },
    { "view", { "n:0x3x4t", { 2, 0, 12 } }, "[0, 12]", 0 },
    { "view", { "n:0x3x4t", { 4, 7, 0, 2, 2 } }, "[7, 0, 2, 2]", 0 },
    { "reshape", { "n:0x3x4t", { 2, 12, 0 } }, "[12, 0]", 0 },
    { "reshape", { "n:0x3x4t", { 4, 7, 0, 2, 2 } }, "[7, 0, 2, 2]", 0 },
    { "flatten", { "n:0x3x4t", { 0, -1 } }, "[0]", 0 },
    { "view", { "n:4x0t", { 3, 2, 2, 0 } }, "[2, 2, 0]", 0 },
    { "expand", { "n:1x0", { 2, 3, 0 } }, "[3, 0]", 0 },
    { "expand", { "n:1x4", { 2, 0, 4 } }, "[0, 4]", 0 },
    { "flatten", { "n:2x0x3", { 0, -1 } }, "[0]", 0 },
    { "split", { "n:0x4", { 2, 0 } }, "[0, 4]", 0 },
    { "split", { "n:0x4", { 2, 1 } }, "[0, 2]", 0 },
    { "chunk", { "n:0x4", { 3, 0 } }, "[0, 4]", 0 },
    { "narrow", { "n:5x4", { 0, 0, 0 } }, "[0, 4]", 0 },
    { "select", { "n:0x4", { 0, 0 } }, NULL, 0 },
    { "slice", { "n:5x4", { 0, 3, 1, 1 } }, "[0, 4]", 0 },
    { "where", { "b:0x4 n:0x4 n:4" }, "[0, 4]", 0 },
    { "add", { "n:0x4 n:4" }, "[0, 4]", 0 },
    { "add", { "n:0x1 n:1x4" }, "[0, 4]", 0 },
    { "add", { "n:0x4 n:3x4" }, NULL, 0 },
    { "mul", { "n:0x4 n:1" }, "[0, 4]", 0 },
    { "tril", { "n:0x4", { 0 } }, "[0, 4]", 0 },
    { "clamp", { "n:0x4", { 0, 1 } }, "[0, 4]", 0 },
    { "dropout", { "n:0x4", { 0.5, 1 } }, "[0, 4]", 0 },
  };

  for (guint i = 0; i < G_N_ELEMENTS (cases); i++)
    {
      const OpCase *op_case = find_case (cases[i].op);
      g_autofree char *what = g_strdup_printf ("%s (%s)", cases[i].op, cases[i].variant.operands);
      g_autofree char *shape = NULL;
      gboolean backward;
      Run run;

      g_test_message ("%s", what);
      if (try_on (&run, op_case, &cases[i].variant, tested))
        {
          shape = ebb_tensor_shape_to_string (run.y[0]);
          assert_all (what, run.y[0], cases[i].value);
          backward = wants_gradient (op_case, &run);
          if (backward)
            run_backward (&run);
          for (guint k = 0; backward && k < run.n_inputs; k++)
            if (run.x[k] != NULL && ebb_tensor_get_requires_grad (run.x[k]))
              {
                g_autoptr (EbbTensor) grad = ebb_tensor_get_grad (run.x[k]);

                assert_same_shape (what, grad, run.x[k]);
                assert_all (what, grad, 0);
              }
        }
      g_assert_cmpstr (shape, ==, cases[i].shape);
      run_clear (&run);
    }
}

/* -- when memory ends --------------------------------------------------------------------------------------------- */

/* Both passes; the gradients that are sent back are made beforehand. */
static gboolean
try_passes (const OpCase *op_case,
            const OpVariant *variant,
            Run *run,
            gboolean backward,
            GError **error)
{
  EbbTensor *outputs[OP_CASE_MAX_OUTPUTS], *grads[OP_CASE_MAX_OUTPUTS];
  guint n = 0;

  if (!op_case_run (op_case, variant, run->x, run->y, error))
    return FALSE;
  for (guint i = 0; i < OP_CASE_MAX_OUTPUTS; i++)
    if (can_flow (run->y[i]))
      {
        outputs[n] = run->y[i];
        grads[n++] = run->grads[i];
      }
  return !backward || ebb_backward (outputs, n, grads, n, NULL, 0, FALSE, error);
}

static void
fails_once_when_memory_ends (gconstpointer data)
{
  const OpCase *op_case = data;

  for (const OpVariant *variant = op_case->variants; variant->operands != NULL; variant++)
    {
      gboolean backward, done = FALSE;
      Run run;

      g_test_message ("%s (%s)", op_case->name, variant->operands);
      run_on (&run, op_case, variant, ebb_device_get_cpu ());
      backward = wants_gradient (op_case, &run);
      if (backward)
        run_backward (&run);
      for (n_granted = 0; !done; n_granted++)
        {
          g_autoptr (GError) error = NULL;
          guint64 held;

          op_case_clear (run.y, OP_CASE_MAX_OUTPUTS);
          for (guint i = 0; i < run.n_inputs; i++)
            if (run.x[i] != NULL)
              ebb_tensor_set_grad (run.x[i], NULL, NULL);
          held = test_bytes_in_use ();
          n_allocations = 0;
          counting = TRUE;
          done = try_passes (op_case, variant, &run, backward, &error);
          counting = FALSE;
          g_assert_true (done == (n_allocations <= n_granted));
          if (done)
            break;
          g_assert_error (error, EBB_ERROR, EBB_ERROR_NO_MEMORY);
          op_case_clear (run.y, OP_CASE_MAX_OUTPUTS);
          g_assert_cmpuint (test_bytes_in_use (), ==, held);
        }
      run_clear (&run);
    }
}

/* -- the list is whole -------------------------------------------------------------------------------------------- */

static void
each_public_op_has_a_case (void)
{
  g_autofree char *folder = g_build_filename (g_getenv ("EBB_SOURCE_DIR") ?: ".", "tensor", "ops", NULL);
  g_autoptr (GRegex) prototype = g_regex_new ("^EbbTensor [* ]+ebb_([a-z0-9_]+) \\(|^gboolean ebb_([a-z0-9_]+) \\(",
                                              G_REGEX_MULTILINE, 0, NULL);
  g_autoptr (GDir) dir = g_dir_open (folder, 0, NULL);
  const char *file;
  guint n = 0;

  if (dir == NULL)
    {
      g_test_skip ("EBB_SOURCE_DIR does not name the source tree");
      return;
    }
  while ((file = g_dir_read_name (dir)) != NULL)
    {
      g_autofree char *path = g_build_filename (folder, file, NULL);
      g_autofree char *text = NULL;
      g_autoptr (GMatchInfo) match = NULL;

      if (!g_str_has_suffix (file, ".h") || g_str_has_suffix (file, "-private.h"))
        continue;
      g_assert_true (g_file_get_contents (path, &text, NULL, NULL));
      for (g_regex_match (prototype, text, 0, &match); g_match_info_matches (match); g_match_info_next (match, NULL))
        {
          g_autofree char *first = g_match_info_fetch (match, 1);
          g_autofree char *second = g_match_info_fetch (match, 2);
          const char *name = first != NULL && *first != '\0' ? first : second;

          if (find_case (name) == NULL)
            g_error ("ebb_%s () in %s has no entry in tests/support/op-cases*.c", name, file);
          n++;
        }
    }
  g_assert_cmpuint (n, >, 90);
}

/* -- timing ------------------------------------------------------------------------------------------------------- */

static double
count_bytes (EbbTensor **tensors,
             guint n)
{
  double sum = 0.0;

  for (guint i = 0; i < n; i++)
    if (tensors[i] != NULL)
      sum += (double) ebb_tensor_get_n_bytes (tensors[i]);
  return sum;
}

/* The median of some runs, in seconds; of the backward pass alone if @backward. */
static double
measure (const OpCase *op_case,
         Run *run,
         gboolean backward)
{
  double times[15];
  guint n = 0;
  gint64 end;

  run_forward (run, op_case, &op_case->timing);
  if (backward)
    run_backward (run);
  end = g_get_monotonic_time () + G_USEC_PER_SEC;
  while (n < G_N_ELEMENTS (times) && (n < 3 || g_get_monotonic_time () < end))
    {
      gint64 start = g_get_monotonic_time ();

      run_forward (run, op_case, &op_case->timing);
      if (backward)
        {
          start = g_get_monotonic_time ();
          run_backward (run);
        }
      times[n++] = (double) (g_get_monotonic_time () - start) / G_USEC_PER_SEC;
    }
  for (guint i = 1; i < n; i++)
    for (guint k = i; k > 0 && times[k] < times[k - 1]; k--)
      {
        double time = times[k];

        times[k] = times[k - 1];
        times[k - 1] = time;
      }
  return times[n / 2];
}

static void
print_rate (double seconds,
            double bytes,
            double operations)
{
  printf ("  %11.0f", seconds * 1e9);
  if (operations > 0.0)
    printf (" %8.1f GFLOP/s", operations / seconds * 1e-9);
  else
    printf (" %8.1f GB/s   ", bytes / seconds * 1e-9);
}

static int
print_times (const char *wanted)
{
  printf ("%-30s %-50s  %11s %16s  %11s\n", "op", "operands", "ns", "", "ns backward");
  for (const OpCase *const *op_case = op_cases_get_all (); *op_case != NULL; op_case++)
    {
      Run run;
      double bytes, operations;

      if ((*op_case)->timing.operands == NULL || (wanted != NULL && strcmp (wanted, (*op_case)->name) != 0))
        continue;
      run_on (&run, *op_case, &(*op_case)->timing, tested);
      bytes = count_bytes (run.x, OP_CASE_MAX_INPUTS) + count_bytes (run.y, OP_CASE_MAX_OUTPUTS);
      operations = (*op_case)->count_operations != NULL ? (*op_case)->count_operations (run.x, run.y) : 0.0;
      printf ("%-30s %-50s", (*op_case)->name, (*op_case)->timing.operands);
      print_rate (measure (*op_case, &run, FALSE), bytes, operations);
      if (wants_gradient (*op_case, &run))
        print_rate (measure (*op_case, &run, TRUE), bytes, 2.0 * operations);
      printf ("\n");
      fflush (stdout);
      run_clear (&run);
    }
  return EXIT_SUCCESS;
}

/* -- main --------------------------------------------------------------------------------------------------------- */

static void
add_tests (const char *mode,
           GTestDataFunc func)
{
  for (const OpCase *const *op_case = op_cases_get_all (); *op_case != NULL; op_case++)
    {
      g_autofree char *path = g_strdup_printf ("/op-cases/%s/%s", mode, (*op_case)->name);

      g_test_add_data_func (path, *op_case, func);
    }
}

static void
add_device_tests (const char *name)
{
  EbbDevice *device = ebb_device_get (name, NULL);

  if (device == NULL || device == ebb_device_get_cpu ())
    return;
  for (const OpCase *const *op_case = op_cases_get_all (); *op_case != NULL; op_case++)
    {
      g_autofree char *path = g_strdup_printf ("/op-cases/%s-and-cpu/%s", name, (*op_case)->name);
      Pair *pair = g_new (Pair, 1);

      *pair = (Pair){ *op_case, device };
      g_test_add_data_func_full (path, pair, (GTestDataFunc) agrees_with_cpu, g_free);
    }
}

int
main (int argc, char **argv)
{
  gboolean times = FALSE;
  g_autofree char *device = NULL;
  g_autoptr (GError) error = NULL;
  const GOptionEntry entries[] = { { "time", 0, 0, G_OPTION_ARG_NONE, &times, "measure instead of testing", NULL },
                                   { "device", 0, 0, G_OPTION_ARG_STRING, &device, "the device to test", "NAME" },
                                   { NULL } };
  g_autoptr (GOptionContext) options = g_option_context_new ("[OP]");

  g_option_context_add_main_entries (options, entries, NULL);
  g_option_context_set_ignore_unknown_options (options, TRUE);
  if (!g_option_context_parse (options, &argc, &argv, &error))
    g_error ("%s", error->message);
  ebb_backend_register (&reference_backend);
  reference = ebb_device_get ("reference", &error);
  g_assert_no_error (error);
  tested = ebb_device_get (device != NULL ? device : "cpu", &error);
  if (tested == NULL)
    {
      fprintf (stderr, "%s\n", error->message);
      return EXIT_FAILURE;
    }
  if (times)
    return print_times (argc > 1 ? argv[1] : NULL);

  test_init (&argc, &argv);
  install_cpu_backend ();
  g_test_add_func ("/op-cases/each-public-op-has-a-case", each_public_op_has_a_case);
  g_test_add_func ("/op-cases/empties-are-pytorchs", empties_are_pytorchs);
  add_tests ("reference", (GTestDataFunc) agrees_with_reference);
  add_tests ("gradient", (GTestDataFunc) agrees_with_differences);
  add_tests ("stopped", (GTestDataFunc) goes_on_without_data);
  add_tests ("empty", (GTestDataFunc) does_nothing_where_nothing_is);
  add_tests ("out-of-memory", (GTestDataFunc) fails_once_when_memory_ends);
  add_device_tests ("sim");
  add_device_tests ("cuda");
  return g_test_run ();
}
