/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: private-headers kernels cpu-only cudaemu */

/* Reductions, softmax, GELU and norms on odd shapes, of every instruction set. */

#include "support/kernel-run.h"
#include "support/device.h"
#include "support/kernel-case-private.h"
#include "tensor/cpu/cpu-private.h"

#include <math.h>

static const EbbDType floats[] = { EBB_DTYPE_F32, EBB_DTYPE_BF16 };

static const gint64 rows_columns[][2] = {
  { 1, 1 },
  { 3, 2 },
  { 5, 15 },
  { 2, 16 },
  { 7, 17 },
  { 4, 63 },
  { 33, 65 },
  { 200, 129 },
  { 2, 1000 },
  { 300, 96 },
  { 3, 2100 }, /* on a GPU several warps share such a row, and registers are too few for the last two, */
  { 2, 9001 }, /* of which this one doesn't end with a run of 16 bytes */
  { 2, 8208 }, /* and this one does */
};

#define N_SIZES G_N_ELEMENTS (rows_columns)
#define N_SHORT_SIZES (N_SIZES - 3)

static KernelOperand
matrix (EbbDType dtype,
        guint size,
        double low,
        double high)
{
  return kernel_operand_new (dtype, KERNEL_SHAPE (rows_columns[size][0], rows_columns[size][1]),
                             KERNEL_LAYOUT_CONTIGUOUS, low, high);
}

/* -- reductions ---------------------------------------------------------------------------------------------------- */

static KernelShape
get_shape (guint k)
{
  switch (k)
    {
    case 0: return KERNEL_SHAPE (1, 1);
    case 1: return KERNEL_SHAPE (3, 5, 2);
    case 2: return KERNEL_SHAPE (6, 70, 9);
    case 3: return KERNEL_SHAPE (2, 530, 9);
    case 4: return KERNEL_SHAPE (1300, 19);
    default: return KERNEL_SHAPE (2, 70001);
    }
}

#define N_SHAPES 6

/* On the emulated GPU the longest rows, which two blocks reduce, are taken in one layout: the others there take
 * minutes. */
static KernelLayout
limit_layouts (guint shape,
               KernelLayout n)
{
  return shape == N_SHAPES - 1 && test_device_is_slow () ? KERNEL_LAYOUT_CONTIGUOUS + 1 : n;
}

/* The shape with size 1 in the dimensions of the mask */
static KernelShape
reduce_shape (KernelShape shape,
              guint32 dims)
{
  for (int d = 0; shape.sizes[d] >= 0; d++)
    if (dims >> d & 1)
      shape.sizes[d] = 1;
  return shape;
}

static int
count_dims (KernelShape shape)
{
  int n = 0;

  while (shape.sizes[n] >= 0)
    n++;
  return n;
}

static void
check_reduce (EbbReduceKind op,
              EbbDType dtype,
              guint shape_number,
              guint32 dims,
              KernelLayout layout)
{
  KernelShape shape = get_shape (shape_number);
  gboolean is_float = ebb_dtype_is_floating_point (dtype);
  gboolean is_logical = op == EBB_REDUCE_ANY || op == EBB_REDUCE_ALL;
  gboolean is_extreme = op == EBB_REDUCE_MAX || op == EBB_REDUCE_MIN || op == EBB_REDUCE_MAX_ABS;
  double low = op == EBB_REDUCE_PROD ? 0.98 : -3, high = op == EBB_REDUCE_PROD ? 1.02 : 3;
  EbbDType y_dtype = is_logical ? EBB_DTYPE_BOOL : is_float || is_extreme ? dtype
                                                                          : EBB_DTYPE_I64;
  KernelCase test = kernel_case_new ("reduce", EBB_KERNEL_REDUCE);

  test.params.reduce.op = op;
  test.params.reduce.dims = dims;
  test.n_inputs = 1;
  test.inputs[0] = kernel_operand_new (dtype, shape, layout, is_logical ? 0 : low, is_logical ? 2 : high);
  test.outputs[0] = kernel_operand_new (y_dtype, reduce_shape (shape, dims), KERNEL_LAYOUT_CONTIGUOUS, 0, 1);
  if (op == EBB_REDUCE_SUM) /* sums of both signs cancel */
    test.scale = shape_number > 2 ? 1500 : 100;
  test.tolerance = op == EBB_REDUCE_PROD ? 2e-4 : 2e-6;
  kernel_case_check (&test);
}

static void
test_reduce (void)
{
  for (guint shape = 0; shape < N_SHAPES; shape++)
    for (guint32 dims = 1; dims < 1u << count_dims (get_shape (shape)); dims++)
      for (KernelLayout layout = 0;
           layout < limit_layouts (shape, shape > 3 ? KERNEL_LAYOUT_STRIDED : KERNEL_N_LAYOUTS); layout++)
        for (EbbReduceKind op = EBB_REDUCE_SUM; op <= EBB_REDUCE_ALL; op++)
          {
            for (guint d = 0; d < G_N_ELEMENTS (floats); d++)
              check_reduce (op, floats[d], shape, dims, layout);
            if (op != EBB_REDUCE_MEAN && op != EBB_REDUCE_PROD)
              check_reduce (op, EBB_DTYPE_I64, shape, dims, layout);
          }
}

/* A NaN is never lost. */
static void
test_extremes_of_nan (void)
{
  for (EbbReduceKind op = EBB_REDUCE_MAX; op <= EBB_REDUCE_MIN; op++)
    for (gint64 at = 0; at < 40; at++)
      for (guint32 dims = 1; dims < 4; dims++)
        {
          KernelCase test = kernel_case_new ("reduce", EBB_KERNEL_REDUCE);

          test.params.reduce.op = op;
          test.params.reduce.dims = dims;
          test.n_inputs = 1;
          test.inputs[0] = kernel_operand_new (EBB_DTYPE_F32, KERNEL_SHAPE (2, 20), KERNEL_LAYOUT_CONTIGUOUS, -1, 1);
          ebb_reference_store (&test.inputs[0].view, at, (double) NAN);
          test.outputs[0] = kernel_operand_new (EBB_DTYPE_F32, reduce_shape (KERNEL_SHAPE (2, 20), dims),
                                                KERNEL_LAYOUT_CONTIGUOUS, 0, 1);
          kernel_case_check (&test);
        }
}

static void
test_var (void)
{
  for (guint shape = 1; shape < N_SHAPES; shape++)
    for (guint32 dims = 1; dims < 1u << count_dims (get_shape (shape)); dims++)
      for (KernelLayout layout = 0; layout < limit_layouts (shape, KERNEL_LAYOUT_BROADCAST); layout++)
        for (guint d = 0; d < G_N_ELEMENTS (floats); d++)
          {
            KernelCase test = kernel_case_new ("var", EBB_KERNEL_VAR);
            KernelShape reduced = reduce_shape (get_shape (shape), dims);

            test.params.reduce.dims = dims;
            test.params.reduce.correction = shape % 2;
            test.n_inputs = 1;
            test.n_outputs = 2;
            test.inputs[0] = kernel_operand_new (floats[d], get_shape (shape), layout, 9, 12);
            test.outputs[0] = kernel_operand_new (floats[d], reduced, KERNEL_LAYOUT_CONTIGUOUS, 0, 1);
            test.outputs[1] = kernel_operand_new (floats[d], reduced, KERNEL_LAYOUT_CONTIGUOUS, 0, 1);
            kernel_case_check (&test);
          }
}

static void
test_arg_reduce (void)
{
  static const EbbDType dtypes[] = { EBB_DTYPE_F32, EBB_DTYPE_BF16, EBB_DTYPE_I32 };

  for (guint shape = 0; shape < N_SHAPES; shape++)
    for (int dim = 0; dim < count_dims (get_shape (shape)); dim++)
      for (guint d = 0; d < G_N_ELEMENTS (dtypes); d++)
        for (EbbReduceKind op = EBB_REDUCE_MAX; op <= EBB_REDUCE_MIN; op++)
          {
            KernelCase test = kernel_case_new ("arg_reduce", EBB_KERNEL_ARG_REDUCE);
            KernelShape reduced = reduce_shape (get_shape (shape), 1u << dim);

            test.params.reduce.op = op;
            test.params.reduce.dims = 1u << dim;
            test.n_inputs = 1;
            test.n_outputs = 2;
            /* few different values: the first of equal ones wins */
            test.inputs[0] = kernel_operand_new (dtypes[d], get_shape (shape), (guint) dim, -20, 20);
            test.outputs[0] = kernel_operand_new (dtypes[d], reduced, KERNEL_LAYOUT_CONTIGUOUS, 0, 1);
            test.outputs[1] = kernel_operand_new (EBB_DTYPE_I64, reduced, KERNEL_LAYOUT_CONTIGUOUS, 0, 1);
            kernel_case_check (&test);
          }
}

static void
test_topk (void)
{
  static const EbbDType dtypes[] = { EBB_DTYPE_F32, EBB_DTYPE_BF16, EBB_DTYPE_I32 };

  for (guint size = 0; size < N_SHORT_SIZES; size++)
    for (guint d = 0; d < G_N_ELEMENTS (dtypes); d++)
      for (gint64 k = 1; k <= rows_columns[size][1]; k = MIN (k * 3, 70) + (k > 60 ? 1000 : 0))
        {
          KernelCase test = kernel_case_new ("topk", EBB_KERNEL_TOPK);

          test.params.topk.k = k;
          test.params.topk.largest = (size + d) % 2 == 0;
          test.n_inputs = 1;
          test.n_outputs = 2;
          test.inputs[0] = matrix (dtypes[d], size, -20, 20);
          for (guint o = 0; o < 2; o++)
            test.outputs[o] = kernel_operand_new (o == 0 ? dtypes[d] : EBB_DTYPE_I64,
                                                  KERNEL_SHAPE (rows_columns[size][0], k), KERNEL_LAYOUT_CONTIGUOUS, 0,
                                                  1);
          kernel_case_check (&test);
        }
}

static void
test_column_sum (void)
{
  static const gint64 sizes[][2] = { { 1, 1 }, { 3, 17 }, { 4, 2050 }, { 31, 33 }, { 130, 64 }, { 1000, 100 } };

  for (guint size = 0; size < G_N_ELEMENTS (sizes); size++)
    for (guint d = 0; d < G_N_ELEMENTS (floats); d++)
      for (gboolean accumulate = FALSE; accumulate <= TRUE; accumulate++)
        {
          KernelCase test = kernel_case_new ("column_sum", EBB_KERNEL_COLUMN_SUM);

          test.params.column_sum.accumulate = accumulate;
          test.n_inputs = 1;
          test.inputs[0] = kernel_operand_new (floats[d], KERNEL_SHAPE (sizes[size][0], sizes[size][1]),
                                               KERNEL_LAYOUT_CONTIGUOUS, -1, 1);
          test.outputs[0] = kernel_vector_new (EBB_DTYPE_F32, sizes[size][1], -1, 1);
          test.scale = 10;
          kernel_case_check (&test);
        }
}

/* -- rows ---------------------------------------------------------------------------------------------------------- */

static void
test_bias_gelu (void)
{
  for (guint size = 0; size < N_SHORT_SIZES; size++)
    for (guint d = 0; d < G_N_ELEMENTS (floats); d++)
      for (guint variant = 0; variant < 8; variant++)
        {
          gboolean is_grad = variant & 1;
          KernelCase test = kernel_case_new ("bias_gelu", is_grad ? EBB_KERNEL_BIAS_GELU_GRAD : EBB_KERNEL_BIAS_GELU);

          test.params.gelu.tanh = variant >> 1 & 1;
          test.n_inputs = is_grad ? 3 : 2;
          if (is_grad)
            test.inputs[0] = matrix (floats[d], size, -2, 2);
          test.inputs[is_grad] = matrix (floats[d], size, -6, 6);
          if (variant >> 2)
            test.inputs[is_grad + 1] = kernel_vector_new (floats[size % 2], rows_columns[size][1], -2, 2);
          test.outputs[0] = matrix (floats[d], size, 0, 1);
          test.in_place = 0;
          kernel_case_check (&test);
        }
}

static void
test_softmax (void)
{
  for (guint size = 0; size < N_SIZES; size++)
    for (guint d = 0; d < G_N_ELEMENTS (floats); d++)
      for (gboolean is_log = FALSE; is_log <= TRUE; is_log++)
        {
          KernelCase test = kernel_case_new ("softmax", EBB_KERNEL_SOFTMAX);

          test.params.softmax.log = is_log;
          test.n_inputs = 1;
          test.inputs[0] = matrix (floats[d], size, -20, 200);
          test.outputs[0] = matrix (floats[d], size, 0, 1);
          test.in_place = 0;
          kernel_case_check (&test);

          test = kernel_case_new ("softmax_grad", EBB_KERNEL_SOFTMAX_GRAD);
          test.params.softmax.log = is_log;
          test.n_inputs = 2;
          test.inputs[0] = matrix (floats[d], size, -1, 1);
          test.inputs[1] = matrix (floats[d], size, is_log ? -9 : 0, is_log ? 0 : 0.1);
          test.outputs[0] = matrix (floats[d], size, 0, 1);
          test.scale = 10;
          kernel_case_check (&test);
        }
}

static void
test_layer_norm (void)
{
  for (guint size = 0; size < N_SIZES; size++)
    for (guint d = 0; d < G_N_ELEMENTS (floats); d++)
      for (guint variant = 0; variant < 6; variant++)
        {
          gboolean is_rms = variant >= 4;
          KernelCase test = kernel_case_new ("norm", is_rms ? EBB_KERNEL_RMS_NORM : EBB_KERNEL_LAYER_NORM);
          gint64 rows = rows_columns[size][0], n = rows_columns[size][1];

          test.params.norm.eps = 1e-5;
          test.n_inputs = is_rms ? 2 : 3;
          test.n_outputs = is_rms ? 2 : 3;
          test.inputs[0] = matrix (floats[d], size, 2, 9);
          if (variant & 1)
            test.inputs[1] = kernel_vector_new (floats[size % 2], n, -2, 2);
          if (variant == 2 || variant == 3)
            test.inputs[2] = kernel_vector_new (floats[size % 2], n, -2, 2);
          test.outputs[0] = matrix (floats[d], size, 0, 1);
          for (guint o = 1; o < test.n_outputs; o++)
            test.outputs[o] = kernel_vector_new (EBB_DTYPE_F32, rows, 0, 1);
          test.scale = n == 2 || n == 1 ? 1000 : 2; /* rstd is large where two elements are close */
          kernel_case_check (&test);
        }
}

static void
test_add_layer_norm (void)
{
  static const double ps[] = { 0, 0.1, 0.6 };

  for (guint size = 3; size < N_SIZES; size++)
    for (guint d = 0; d < G_N_ELEMENTS (floats); d++)
      for (guint k = 0; k < G_N_ELEMENTS (ps); k++)
        {
          KernelCase test = kernel_case_new ("add_layer_norm", EBB_KERNEL_ADD_LAYER_NORM);
          gint64 rows = rows_columns[size][0], n = rows_columns[size][1];

          test.params.norm.eps = 1e-5;
          test.params.norm.p = ps[k];
          test.params.norm.philox = (EbbPhilox){ 99, 0xfffffffe };
          test.n_inputs = test.n_outputs = 4;
          test.inputs[0] = matrix (floats[d], size, -4, 4);
          test.inputs[1] = matrix (floats[d], size, -4, 4);
          test.inputs[2] = kernel_vector_new (floats[d], n, -2, 2);
          test.inputs[3] = kernel_vector_new (floats[d], n, -2, 2);
          test.outputs[0] = matrix (floats[d], size, 0, 1);
          test.outputs[1] = matrix (floats[d], size, 0, 1);
          test.outputs[2] = kernel_vector_new (EBB_DTYPE_F32, rows, 0, 1);
          test.outputs[3] = kernel_vector_new (EBB_DTYPE_F32, rows, 0, 1);
          test.in_place = (int) k % 2;
          /* a sum that is rounded to the other of two bf16 neighbours moves what follows */
          test.tolerance = floats[d] == EBB_DTYPE_BF16 ? 0.02 : 2e-6;
          test.scale = n > 1000 ? 4 : 2; /* a mean of thousands is rounded more often */
          kernel_case_check (&test);
        }
}

/* The mean of each group of elements of x, where i is of group (i / length) % n_groups; f32. */
static KernelOperand
means_new (const KernelOperand *x,
           gint64 length,
           gint64 n_groups)
{
  KernelOperand means = kernel_vector_new (EBB_DTYPE_F32, n_groups, 0, 1);
  gint64 n = ebb_reference_count (&x->view);
  g_autofree double *sums = g_new0 (double, n_groups);

  for (gint64 i = 0; i < n; i++)
    sums[i / length % n_groups] += ebb_reference_load (&x->view, i);
  for (gint64 group = 0; group < n_groups; group++)
    ebb_reference_store (&means.view, group, sums[group] / (double) (n / n_groups));
  return means;
}

static void
test_norm_grad (void)
{
  for (guint size = 1; size < N_SIZES; size++)
    for (guint d = 0; d < G_N_ELEMENTS (floats); d++)
      for (guint variant = 0; variant < 16; variant++)
        {
          gboolean is_rms = variant & 1;
          KernelCase test =
              kernel_case_new ("norm_grad", is_rms ? EBB_KERNEL_RMS_NORM_GRAD : EBB_KERNEL_LAYER_NORM_GRAD);
          gint64 rows = rows_columns[size][0], n = rows_columns[size][1];

          test.params.norm.accumulate_weight = variant >> 3 & 1;
          test.params.norm.accumulate_bias = !(variant >> 3 & 1);
          test.n_inputs = is_rms ? 4 : 6;
          test.inputs[0] = matrix (floats[d], size, -1, 1);
          test.inputs[1] = matrix (floats[d], size, -2, 3);
          if (variant >> 1 & 1)
            test.inputs[2] = kernel_vector_new (floats[size % 2], n, -2, 2);
          test.inputs[3] =
              is_rms ? kernel_vector_new (EBB_DTYPE_F32, rows, 0.5, 0.7) : means_new (&test.inputs[1], n, rows);
          if (!is_rms)
            test.inputs[4] = kernel_vector_new (EBB_DTYPE_F32, rows, 0.5, 0.9);
          if (!is_rms && variant >> 3 & 1)
            test.inputs[5] = matrix (floats[d], size, -1, 1);
          test.n_outputs = is_rms ? 2 : 3;
          test.outputs[0] = matrix (floats[d], size, 0, 1);
          if (variant >> 2 & 1)
            {
              test.outputs[1] = kernel_vector_new (EBB_DTYPE_F32, n, -1, 1);
              if (!is_rms)
                test.outputs[2] = kernel_vector_new (EBB_DTYPE_F32, n, -1, 1);
            }
          /* Sums over the rows pass through numbers of about the root of their count, whose last bits they lose. */
          test.scale = MAX (5, sqrt ((double) rows));
          kernel_case_check (&test);
        }
}

static void
check_batch_norm (KernelShape shape,
                  EbbDType dtype,
                  gboolean training,
                  gboolean has_weight)
{
  KernelCase test = kernel_case_new ("batch_norm", EBB_KERNEL_BATCH_NORM);
  gint64 channels = shape.sizes[1];

  test.params.norm.eps = 1e-5;
  test.params.norm.momentum = 0.1;
  test.params.norm.training = training;
  test.n_inputs = 5;
  test.inputs[0] = kernel_operand_new (dtype, shape, KERNEL_LAYOUT_CONTIGUOUS, 1, 3);
  for (guint k = 1; k < 5; k++)
    if (has_weight || k > 2)
      test.inputs[k] = kernel_vector_new (EBB_DTYPE_F32, channels, 0.5, 2);
  test.n_outputs = 3;
  test.outputs[0] = kernel_operand_new (dtype, shape, KERNEL_LAYOUT_CONTIGUOUS, 0, 1);
  test.outputs[1] = kernel_vector_new (EBB_DTYPE_F32, channels, 0, 1);
  test.outputs[2] = kernel_vector_new (EBB_DTYPE_F32, channels, 0, 1);
  test.scale = 5;
  kernel_case_check (&test);

  test = kernel_case_new ("batch_norm_grad", EBB_KERNEL_BATCH_NORM_GRAD);
  test.params.norm.training = training;
  test.n_inputs = 5;
  test.inputs[0] = kernel_operand_new (dtype, shape, KERNEL_LAYOUT_CONTIGUOUS, -1, 1);
  test.inputs[1] = kernel_operand_new (dtype, shape, KERNEL_LAYOUT_CONTIGUOUS, -1, 3);
  for (guint k = 2; k < 5; k++)
    if (has_weight || k > 2)
      test.inputs[k] = kernel_vector_new (EBB_DTYPE_F32, channels, 0.5, 1.5);
  if (training)
    {
      g_free (test.inputs[3].memory);
      test.inputs[3] = means_new (&test.inputs[1], shape.sizes[2], channels);
    }
  test.n_outputs = 3;
  test.outputs[0] = kernel_operand_new (dtype, shape, KERNEL_LAYOUT_CONTIGUOUS, 0, 1);
  if (has_weight)
    {
      test.outputs[1] = kernel_vector_new (EBB_DTYPE_F32, channels, 0, 1);
      test.outputs[2] = kernel_vector_new (EBB_DTYPE_F32, channels, 0, 1);
    }
  test.scale = 20;
  kernel_case_check (&test);
}

static void
test_batch_norm (void)
{
  for (guint d = 0; d < G_N_ELEMENTS (floats); d++)
    for (guint variant = 0; variant < 4; variant++)
      {
        check_batch_norm (KERNEL_SHAPE (4, 3, 1), floats[d], variant & 1, variant >> 1);
        check_batch_norm (KERNEL_SHAPE (70, 19, 1), floats[d], variant & 1, variant >> 1);
        check_batch_norm (KERNEL_SHAPE (5, 6, 37), floats[d], variant & 1, variant >> 1);
        check_batch_norm (KERNEL_SHAPE (3, 8, 1500), floats[d], variant & 1, variant >> 1);
      }
}

/* -- far from zero, and where nothing differs ---------------------------------------------------------------------- */

#define FAR_ROWS 5

static KernelOperand
copy_shifted (const KernelOperand *x,
              double by)
{
  KernelOperand copy = kernel_operand_new (x->view.dtype, KERNEL_SHAPE (x->view.shape[0], x->view.shape[1], 1),
                                           KERNEL_LAYOUT_CONTIGUOUS, 0, 1);

  for (gint64 i = 0; i < ebb_reference_count (&x->view); i++)
    ebb_reference_store (&copy.view, i, ebb_reference_load (&x->view, i) + by);
  return copy;
}

static void
assert_near (const char *simd,
             const char *what,
             double centre,
             const KernelOperand *got,
             const KernelOperand *want,
             double shift,
             double tolerance)
{
  for (gint64 i = 0; i < ebb_reference_count (&want->view); i++)
    {
      double a = ebb_reference_load (&got->view, i), b = ebb_reference_load (&want->view, i) + shift;

      if (!(fabs (a - b) <= tolerance * MAX (fabs (b - shift), 1)))
        g_error ("%s of a mean of %g on %s: element %" G_GINT64_FORMAT ": %.9g instead of %.9g (allowed: %.3g)", what,
                 centre, simd, i, a, b, tolerance);
    }
}

/* A norm and its gradient of rows around @centre, of numbers that f32 holds there, are those of rows around 0: layer
 * norm's rows or batch norm's columns, @n of each. */
static void
check_norm_far_from_zero (const char *simd,
                          gboolean is_batch,
                          gint64 n,
                          double centre)
{
  const EbbKernelFunc *kernels = test_kernels_of (simd);
  EbbKernel norm = is_batch ? EBB_KERNEL_BATCH_NORM : EBB_KERNEL_LAYER_NORM;
  EbbKernel grad = is_batch ? EBB_KERNEL_BATCH_NORM_GRAD : EBB_KERNEL_LAYER_NORM_GRAD;
  gint64 shape[2] = { is_batch ? n : FAR_ROWS, is_batch ? FAR_ROWS : n };
  KernelOperand numbers = kernel_operand_new (EBB_DTYPE_I64, KERNEL_SHAPE (shape[0], shape[1]),
                                              KERNEL_LAYOUT_CONTIGUOUS, -32, 33);
  KernelOperand near = kernel_operand_new (EBB_DTYPE_F32, KERNEL_SHAPE (shape[0], shape[1], 1),
                                           KERNEL_LAYOUT_CONTIGUOUS, 0, 1);
  KernelOperand dy = kernel_operand_new (EBB_DTYPE_F32, KERNEL_SHAPE (shape[0], shape[1], 1),
                                         KERNEL_LAYOUT_CONTIGUOUS, -1, 1);
  KernelOperand far, got[6], want[6];

  for (gint64 i = 0; i < shape[0] * shape[1]; i++)
    ebb_reference_store (&near.view, i, ((const gint64 *) numbers.view.data)[i] / 16.0);
  /* A first element that is far from the others' mean */
  ebb_reference_store (&near.view, is_batch ? 2 : 2 * n, 1000);
  far = copy_shifted (&near, centre);
  for (int k = 0; k < 2; k++)
    {
      KernelOperand *x = k == 0 ? &near : &far, *y = k == 0 ? want : got;
      const EbbKernelFunc *funcs = k == 0 ? ebb_reference_kernels : kernels;
      EbbLaunch forward = { .kernel = norm, .n_inputs = is_batch ? 5 : 3, .n_outputs = 3 };
      EbbLaunch backward = { .kernel = grad, .n_inputs = is_batch ? 5 : 6, .n_outputs = 3 };

      for (int j = 0; j < 6; j++)
        y[j] = j == 0 || j == 3 ? copy_shifted (&near, 0)
                                : kernel_vector_new (EBB_DTYPE_F32, j < 3 ? FAR_ROWS : shape[1], 0, 1);
      forward.params.norm.eps = backward.params.norm.eps = 1e-5;
      forward.params.norm.training = backward.params.norm.training = TRUE;
      if (!is_batch) /* rows, not channels of one element each */
        for (int j = 0; j < 6; j++)
          x->view.n_dims = dy.view.n_dims = y[0].view.n_dims = y[3].view.n_dims = 2;
      forward.inputs[0] = backward.inputs[1] = &x->view;
      backward.inputs[0] = &dy.view;
      for (int j = 0; j < 3; j++)
        {
          forward.outputs[j] = &y[j].view;
          backward.outputs[j] = &y[3 + j].view;
        }
      backward.inputs[3] = &y[1].view;
      backward.inputs[4] = &y[2].view;
      g_assert_true (test_kernel_run (funcs[norm], &forward, NULL));
      g_assert_true (test_kernel_run (funcs[grad], &backward, NULL));
    }
  assert_near (simd, "norm", centre, &got[0], &want[0], 0, 2e-6);
  assert_near (simd, "mean", centre, &got[1], &want[1], centre, MAX (fabs (centre) * 6e-8, 2e-5));
  assert_near (simd, "deviation", centre, &got[2], &want[2], 0, 1e-6);
  assert_near (simd, "gradient", centre, &got[3], &want[3], 0, 2e-6);
  assert_near (simd, "weight's gradient", centre, &got[4], &want[4], 0, is_batch ? 1e-3 : 5e-6);
  assert_near (simd, "bias' gradient", centre, &got[5], &want[5], 0, is_batch ? 1e-3 : 5e-6);
  for (int j = 0; j < 6; j++)
    {
      g_free (got[j].memory);
      g_free (want[j].memory);
    }
  g_free (numbers.memory);
  g_free (near.memory);
  g_free (far.memory);
  g_free (dy.memory);
}

static void
test_norms_far_from_zero (void)
{
  static const char *const simd_names[] = { "portable", "avx2", "avx512", "avx512bf16" };
  static const double centres[] = { 0, 1e3, -1e5, 1e6 };

  for (guint s = 0; s < G_N_ELEMENTS (simd_names); s++)
    for (guint c = 0; c < G_N_ELEMENTS (centres) && test_kernels_of (simd_names[s]) != NULL; c++)
      for (gint64 n = 33; n < 5000; n = 5 * n + 2)
        {
          check_norm_far_from_zero (simd_names[s], FALSE, n, centres[c]);
          check_norm_far_from_zero (simd_names[s], TRUE, n, centres[c]);
        }
}

static void
test_var_far_from_zero (void)
{
  static const double centres[] = { 0, -1e3, 1e5, 1e6 };

  for (guint c = 0; c < G_N_ELEMENTS (centres); c++)
    for (guint32 dims = 1; dims < 4; dims++)
      {
        KernelCase test = kernel_case_new ("var", EBB_KERNEL_VAR);
        KernelShape shape = KERNEL_SHAPE (70, 1500), reduced = reduce_shape (shape, dims);

        test.params.reduce.dims = dims;
        test.params.reduce.correction = 1;
        test.n_inputs = 1;
        test.n_outputs = 2;
        test.inputs[0] = kernel_operand_new (EBB_DTYPE_F32, shape, KERNEL_LAYOUT_CONTIGUOUS, centres[c] - 2,
                                             centres[c] + 2);
        test.outputs[0] = kernel_operand_new (EBB_DTYPE_F32, reduced, KERNEL_LAYOUT_CONTIGUOUS, 0, 1);
        test.outputs[1] = kernel_operand_new (EBB_DTYPE_F32, reduced, KERNEL_LAYOUT_CONTIGUOUS, 0, 1);
        test.tolerance = 4e-6; /* a first element two deviations from the mean makes the squares fivefold */
        kernel_case_check (&test);
      }
}

/* With an eps that leaves no room for an error of the mean. */
static void
check_constant_rows (const EbbKernelFunc *kernels,
                     EbbDType dtype,
                     gint64 n,
                     float value)
{
  KernelOperand x = kernel_operand_new (dtype, KERNEL_SHAPE (2, n), KERNEL_LAYOUT_CONTIGUOUS, value, value);
  KernelOperand zero = kernel_operand_new (dtype, KERNEL_SHAPE (2, n), KERNEL_LAYOUT_CONTIGUOUS, 0, 0);
  KernelOperand sum = kernel_operand_new (dtype, KERNEL_SHAPE (2, n), KERNEL_LAYOUT_CONTIGUOUS, 0, 1);
  KernelOperand y = kernel_operand_new (dtype, KERNEL_SHAPE (2, n), KERNEL_LAYOUT_CONTIGUOUS, 0, 1);
  KernelOperand bias = kernel_vector_new (EBB_DTYPE_F32, n, 0.5, 0.5),
                mean = kernel_vector_new (EBB_DTYPE_F32, 2, 0, 1);
  KernelOperand rstd = kernel_vector_new (EBB_DTYPE_F32, 2, 0, 1), var = kernel_vector_new (EBB_DTYPE_F32, 2, 0, 1);
  EbbView channel = { x.view.data, dtype, 3, { n, 1, 1 }, { 1, 1, 1 } };
  EbbView channel_y = { y.view.data, dtype, 3, { n, 1, 1 }, { 1, 1, 1 } };
  EbbLaunch norm = {
    EBB_KERNEL_LAYER_NORM,
    3,
    3,
    { &x.view, NULL, &bias.view },
    { &y.view, &mean.view, &rstd.view },
    { .norm = { .eps = 1e-12 } }
  };
  EbbLaunch add = { EBB_KERNEL_ADD_LAYER_NORM,
                    4,
                    4,
                    { &x.view, &zero.view, NULL, &bias.view },
                    { &sum.view, &y.view, &mean.view, &rstd.view },
                    { .norm = { .eps = 1e-12 } } };
  EbbLaunch batch = { EBB_KERNEL_BATCH_NORM,
                      5,
                      3,
                      { &channel },
                      { &channel_y, &mean.view, &rstd.view },
                      { .norm = { .eps = 1e-12, .training = TRUE } } };
  EbbLaunch variance = { EBB_KERNEL_VAR, 1, 2, { &x.view }, { &var.view, &mean.view }, { .reduce = { .dims = 2 } } };
  float stored = (float) ebb_reference_load (&x.view, 0);

  for (int k = 0; k < 4; k++)
    {
      EbbLaunch *launch = (EbbLaunch *[]){ &norm, &add, &variance, &batch }[k];
      gboolean is_var = launch == &variance, is_batch = launch == &batch;

      g_assert_true (test_kernel_run (kernels[launch->kernel], launch, NULL));
      g_assert_cmpfloat (ebb_reference_load (&mean.view, 0), ==, stored);
      if (is_var)
        g_assert_cmpfloat (ebb_reference_load (&var.view, 0), ==, 0);
      else
        g_assert_cmpfloat_with_epsilon (ebb_reference_load (&rstd.view, 0), 1e6, 0.1);
      for (gint64 i = 0; i < n && !is_var; i++)
        g_assert_cmpfloat (ebb_reference_load (&y.view, i), ==, is_batch ? 0 : 0.5);
    }
  g_free (x.memory);
  g_free (zero.memory);
  g_free (sum.memory);
  g_free (y.memory);
  g_free (bias.memory);
  g_free (mean.memory);
  g_free (rstd.memory);
  g_free (var.memory);
}

static void
test_constant_rows (void)
{
  static const char *const simd_names[] = { "portable", "avx2", "avx512", "avx512bf16" };
  static const float values[] = { 0.1f, 1e5f + 0.1f, -7e8f, 1e-20f };

  for (guint s = 0; s < G_N_ELEMENTS (simd_names); s++)
    for (guint v = 0; v < G_N_ELEMENTS (values) && test_kernels_of (simd_names[s]) != NULL; v++)
      for (gint64 n = 2; n < 5000; n = 5 * n + 2)
        for (guint d = 0; d < G_N_ELEMENTS (floats); d++)
          check_constant_rows (test_kernels_of (simd_names[s]), floats[d], n, values[v]);
}

/* An element whose distance to the others f32 can square, but not add up as often as there are others. */
static void
test_outlier (void)
{
  static const char *const simd_names[] = { "portable", "avx2", "avx512", "avx512bf16" };
  const gint64 n = 1025;
  KernelOperand x = kernel_operand_new (EBB_DTYPE_F32, KERNEL_SHAPE (1, n), KERNEL_LAYOUT_CONTIGUOUS, 0, 0);
  KernelOperand y = kernel_operand_new (EBB_DTYPE_F32, KERNEL_SHAPE (1, n), KERNEL_LAYOUT_CONTIGUOUS, 0, 1);
  KernelOperand mean = kernel_vector_new (EBB_DTYPE_F32, 1, 0, 1), rstd = kernel_vector_new (EBB_DTYPE_F32, 1, 0, 1);
  EbbLaunch launch = { EBB_KERNEL_LAYER_NORM,
                       3,
                       3,
                       { &x.view, NULL, NULL },
                       { &y.view, &mean.view, &rstd.view },
                       { .norm = { .eps = 1e-5 } } };

  ebb_reference_store (&x.view, 0, 1e18);
  for (guint s = 0; s < G_N_ELEMENTS (simd_names); s++)
    {
      const EbbKernelFunc *kernels = test_kernels_of (simd_names[s]);

      if (kernels == NULL)
        continue;
      g_assert_true (test_kernel_run (kernels[EBB_KERNEL_LAYER_NORM], &launch, NULL));
      g_assert_cmpfloat_with_epsilon (ebb_reference_load (&y.view, 0), 32, 1e-4);
      for (gint64 i = 1; i < n; i++)
        g_assert_cmpfloat_with_epsilon (ebb_reference_load (&y.view, i), -1.0 / 32, 1e-6);
    }
  g_free (x.memory);
  g_free (y.memory);
  g_free (mean.memory);
  g_free (rstd.memory);
}

int
main (int argc,
      char **argv)
{
  test_init (&argc, &argv);
  g_test_add_func ("/kernels/reduce-equals-reference", test_reduce);
  g_test_add_func ("/kernels/maximum-and-minimum-keep-nan", test_extremes_of_nan);
  g_test_add_func ("/kernels/var-equals-reference", test_var);
  g_test_add_func ("/kernels/arg-reduce-takes-first", test_arg_reduce);
  g_test_add_func ("/kernels/topk-equals-reference", test_topk);
  g_test_add_func ("/kernels/column-sum-equals-reference", test_column_sum);
  g_test_add_func ("/kernels/bias-gelu-equals-reference", test_bias_gelu);
  g_test_add_func ("/kernels/softmax-equals-reference", test_softmax);
  g_test_add_func ("/kernels/layer-and-rms-norm-equal-reference", test_layer_norm);
  g_test_add_func ("/kernels/add-layer-norm-equals-reference", test_add_layer_norm);
  g_test_add_func ("/kernels/norm-grad-equals-reference", test_norm_grad);
  g_test_add_func ("/kernels/batch-norm-equals-reference", test_batch_norm);
  g_test_add_func ("/kernels/norms-are-as-exact-far-from-zero", test_norms_far_from_zero);
  g_test_add_func ("/kernels/var-is-as-exact-far-from-zero", test_var_far_from_zero);
  g_test_add_func ("/kernels/norms-of-constant-rows-are-zero", test_constant_rows);
  g_test_add_func ("/kernels/layer-norm-of-an-outlier-is-finite", test_outlier);
  return g_test_run ();
}
