/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */

/* Reductions, softmax, GELU and norms on odd shapes, of every instruction set. */

#include "support/device.h"
#include "support/kernel-case-private.h"

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
};

#define N_SIZES G_N_ELEMENTS (rows_columns)

static KernelCase
case_new (const char *name,
          EbbKernel kernel)
{
  return (KernelCase){ .name = name, .kernel = kernel, .n_outputs = 1, .in_place = -1, .tolerance = 2e-6, .scale = 1 };
}

static KernelOperand
matrix (EbbDType dtype,
        guint size,
        double low,
        double high)
{
  return kernel_operand_new (dtype, KERNEL_SHAPE (rows_columns[size][0], rows_columns[size][1]),
                             KERNEL_LAYOUT_CONTIGUOUS, low, high);
}

static KernelOperand
vector (EbbDType dtype,
        gint64 n,
        double low,
        double high)
{
  return kernel_operand_new (dtype, KERNEL_SHAPE (n), KERNEL_LAYOUT_CONTIGUOUS, low, high);
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
  KernelCase test = case_new ("reduce", EBB_KERNEL_REDUCE);

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
      for (KernelLayout layout = 0; layout < (shape > 3 ? KERNEL_LAYOUT_STRIDED : KERNEL_N_LAYOUTS); layout++)
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
          KernelCase test = case_new ("reduce", EBB_KERNEL_REDUCE);

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
      for (KernelLayout layout = 0; layout < KERNEL_LAYOUT_BROADCAST; layout++)
        for (guint d = 0; d < G_N_ELEMENTS (floats); d++)
          {
            KernelCase test = case_new ("var", EBB_KERNEL_VAR);
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
            KernelCase test = case_new ("arg_reduce", EBB_KERNEL_ARG_REDUCE);
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

  for (guint size = 0; size < N_SIZES; size++)
    for (guint d = 0; d < G_N_ELEMENTS (dtypes); d++)
      for (gint64 k = 1; k <= rows_columns[size][1]; k = MIN (k * 3, 70) + (k > 60 ? 1000 : 0))
        {
          KernelCase test = case_new ("topk", EBB_KERNEL_TOPK);

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
          KernelCase test = case_new ("column_sum", EBB_KERNEL_COLUMN_SUM);

          test.params.column_sum.accumulate = accumulate;
          test.n_inputs = 1;
          test.inputs[0] = kernel_operand_new (floats[d], KERNEL_SHAPE (sizes[size][0], sizes[size][1]),
                                               KERNEL_LAYOUT_CONTIGUOUS, -1, 1);
          test.outputs[0] = vector (EBB_DTYPE_F32, sizes[size][1], -1, 1);
          test.scale = 10;
          kernel_case_check (&test);
        }
}

/* -- rows ---------------------------------------------------------------------------------------------------------- */

static void
test_bias_gelu (void)
{
  for (guint size = 0; size < N_SIZES; size++)
    for (guint d = 0; d < G_N_ELEMENTS (floats); d++)
      for (guint variant = 0; variant < 8; variant++)
        {
          gboolean is_grad = variant & 1;
          KernelCase test = case_new ("bias_gelu", is_grad ? EBB_KERNEL_BIAS_GELU_GRAD : EBB_KERNEL_BIAS_GELU);

          test.params.gelu.tanh = variant >> 1 & 1;
          test.n_inputs = is_grad ? 3 : 2;
          if (is_grad)
            test.inputs[0] = matrix (floats[d], size, -2, 2);
          test.inputs[is_grad] = matrix (floats[d], size, -6, 6);
          if (variant >> 2)
            test.inputs[is_grad + 1] = vector (floats[size % 2], rows_columns[size][1], -2, 2);
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
          KernelCase test = case_new ("softmax", EBB_KERNEL_SOFTMAX);

          test.params.softmax.log = is_log;
          test.n_inputs = 1;
          test.inputs[0] = matrix (floats[d], size, -20, 200);
          test.outputs[0] = matrix (floats[d], size, 0, 1);
          test.in_place = 0;
          kernel_case_check (&test);

          test = case_new ("softmax_grad", EBB_KERNEL_SOFTMAX_GRAD);
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
          KernelCase test = case_new ("norm", is_rms ? EBB_KERNEL_RMS_NORM : EBB_KERNEL_LAYER_NORM);
          gint64 rows = rows_columns[size][0], n = rows_columns[size][1];

          test.params.norm.eps = 1e-5;
          test.n_inputs = is_rms ? 2 : 3;
          test.n_outputs = is_rms ? 2 : 3;
          test.inputs[0] = matrix (floats[d], size, 2, 9);
          if (variant & 1)
            test.inputs[1] = vector (floats[size % 2], n, -2, 2);
          if (variant == 2 || variant == 3)
            test.inputs[2] = vector (floats[size % 2], n, -2, 2);
          test.outputs[0] = matrix (floats[d], size, 0, 1);
          for (guint o = 1; o < test.n_outputs; o++)
            test.outputs[o] = vector (EBB_DTYPE_F32, rows, 0, 1);
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
          KernelCase test = case_new ("add_layer_norm", EBB_KERNEL_ADD_LAYER_NORM);
          gint64 rows = rows_columns[size][0], n = rows_columns[size][1];

          test.params.norm.eps = 1e-5;
          test.params.norm.p = ps[k];
          test.params.norm.philox = (EbbPhilox){ 99, 0xfffffffe };
          test.n_inputs = test.n_outputs = 4;
          test.inputs[0] = matrix (floats[d], size, -4, 4);
          test.inputs[1] = matrix (floats[d], size, -4, 4);
          test.inputs[2] = vector (floats[d], n, -2, 2);
          test.inputs[3] = vector (floats[d], n, -2, 2);
          test.outputs[0] = matrix (floats[d], size, 0, 1);
          test.outputs[1] = matrix (floats[d], size, 0, 1);
          test.outputs[2] = vector (EBB_DTYPE_F32, rows, 0, 1);
          test.outputs[3] = vector (EBB_DTYPE_F32, rows, 0, 1);
          test.in_place = (int) k % 2;
          /* a sum that is rounded to the other of two bf16 neighbours moves what follows */
          test.tolerance = floats[d] == EBB_DTYPE_BF16 ? 0.02 : 2e-6;
          test.scale = 2;
          kernel_case_check (&test);
        }
}

static void
test_norm_grad (void)
{
  for (guint size = 1; size < N_SIZES; size++)
    for (guint d = 0; d < G_N_ELEMENTS (floats); d++)
      for (guint variant = 0; variant < 16; variant++)
        {
          gboolean is_rms = variant & 1;
          KernelCase test = case_new ("norm_grad", is_rms ? EBB_KERNEL_RMS_NORM_GRAD : EBB_KERNEL_LAYER_NORM_GRAD);
          gint64 rows = rows_columns[size][0], n = rows_columns[size][1];

          test.params.norm.accumulate_weight = variant >> 3 & 1;
          test.params.norm.accumulate_bias = !(variant >> 3 & 1);
          test.n_inputs = is_rms ? 4 : 6;
          test.inputs[0] = matrix (floats[d], size, -1, 1);
          test.inputs[1] = matrix (floats[d], size, -2, 3);
          if (variant >> 1 & 1)
            test.inputs[2] = vector (floats[size % 2], n, -2, 2);
          test.inputs[3] = vector (EBB_DTYPE_F32, rows, is_rms ? 0.5 : 0.3, 0.7);
          if (!is_rms)
            test.inputs[4] = vector (EBB_DTYPE_F32, rows, 0.5, 0.9);
          if (!is_rms && variant >> 3 & 1)
            test.inputs[5] = matrix (floats[d], size, -1, 1);
          test.n_outputs = is_rms ? 2 : 3;
          test.outputs[0] = matrix (floats[d], size, 0, 1);
          if (variant >> 2 & 1)
            {
              test.outputs[1] = vector (EBB_DTYPE_F32, n, -1, 1);
              if (!is_rms)
                test.outputs[2] = vector (EBB_DTYPE_F32, n, -1, 1);
            }
          test.scale = 5;
          kernel_case_check (&test);
        }
}

static void
check_batch_norm (KernelShape shape,
                  EbbDType dtype,
                  gboolean training,
                  gboolean has_weight)
{
  KernelCase test = case_new ("batch_norm", EBB_KERNEL_BATCH_NORM);
  gint64 channels = shape.sizes[1];

  test.params.norm.eps = 1e-5;
  test.params.norm.momentum = 0.1;
  test.params.norm.training = training;
  test.n_inputs = 5;
  test.inputs[0] = kernel_operand_new (dtype, shape, KERNEL_LAYOUT_CONTIGUOUS, 1, 3);
  for (guint k = 1; k < 5; k++)
    if (has_weight || k > 2)
      test.inputs[k] = vector (EBB_DTYPE_F32, channels, 0.5, 2);
  test.n_outputs = 3;
  test.outputs[0] = kernel_operand_new (dtype, shape, KERNEL_LAYOUT_CONTIGUOUS, 0, 1);
  test.outputs[1] = vector (EBB_DTYPE_F32, channels, 0, 1);
  test.outputs[2] = vector (EBB_DTYPE_F32, channels, 0, 1);
  test.scale = 5;
  kernel_case_check (&test);

  test = case_new ("batch_norm_grad", EBB_KERNEL_BATCH_NORM_GRAD);
  test.params.norm.training = training;
  test.n_inputs = 5;
  test.inputs[0] = kernel_operand_new (dtype, shape, KERNEL_LAYOUT_CONTIGUOUS, -1, 1);
  test.inputs[1] = kernel_operand_new (dtype, shape, KERNEL_LAYOUT_CONTIGUOUS, -1, 3);
  for (guint k = 2; k < 5; k++)
    if (has_weight || k > 2)
      test.inputs[k] = vector (EBB_DTYPE_F32, channels, 0.5, 1.5);
  test.n_outputs = 3;
  test.outputs[0] = kernel_operand_new (dtype, shape, KERNEL_LAYOUT_CONTIGUOUS, 0, 1);
  if (has_weight)
    {
      test.outputs[1] = vector (EBB_DTYPE_F32, channels, 0, 1);
      test.outputs[2] = vector (EBB_DTYPE_F32, channels, 0, 1);
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
  return g_test_run ();
}
