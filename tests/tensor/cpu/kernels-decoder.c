/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: private-headers kernels cpu-only cudaemu */

/* Rotary positions, gated activations, RMS norms of strided rows and after a residual, of every instruction set. */

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
  { 33, 65 },
  { 300, 96 },
};

#define N_SIZES G_N_ELEMENTS (rows_columns)

/* [2, rows, columns]; with @is_apart its rows are halves of longer ones. */
static KernelOperand
matrix (EbbDType dtype,
        guint size,
        gboolean is_apart,
        double low,
        double high)
{
  gint64 rows = rows_columns[size][0], columns = rows_columns[size][1];
  KernelOperand operand = kernel_operand_new (dtype, KERNEL_SHAPE (2, rows, is_apart ? 2 * columns : columns),
                                              KERNEL_LAYOUT_CONTIGUOUS, low, high);

  operand.view.shape[2] = columns;
  return operand;
}

/* -- rotary positions ---------------------------------------------------------------------------------------------- */

typedef struct
{
  gint64 batch, positions, heads, size, pairs;
  gint64 first;
  double factor, ntk, frequency;
  gboolean reversed, is_swapped;
  int starts; /* 0: none, 1: i64 a token, 2: i32 a row, 3: i64 that are out of range */
} Rotation;

/* As [B, T, H, D]; in memory [B, H, T, D] if @is_swapped. */
static KernelOperand
heads_new (const Rotation *rotation,
           EbbDType dtype,
           gboolean is_swapped)
{
  const gint64 t = rotation->positions, h = rotation->heads;
  KernelOperand operand = kernel_operand_new (
      dtype, KERNEL_SHAPE (rotation->batch, is_swapped ? h : t, is_swapped ? t : h, rotation->size),
      KERNEL_LAYOUT_CONTIGUOUS, -2, 2);

  if (is_swapped)
    {
      operand.view.shape[1] = t;
      operand.view.shape[2] = h;
      operand.view.strides[1] = rotation->size;
      operand.view.strides[2] = t * rotation->size;
    }
  return operand;
}

static KernelOperand
starts_new (const Rotation *rotation)
{
  const gint64 end = rotation->first + rotation->positions;
  KernelOperand operand =
      kernel_operand_new (rotation->starts == 2 ? EBB_DTYPE_I32 : EBB_DTYPE_I64,
                          KERNEL_SHAPE (rotation->batch, rotation->positions),
                          rotation->starts == 2 ? KERNEL_LAYOUT_COLUMN : KERNEL_LAYOUT_CONTIGUOUS, 0, (double) end);

  if (rotation->starts == 3)
    for (gsize i = 0; i < operand.n_elements; i++)
      ((gint64 *) operand.view.data)[i] = i % 3 == 0 ? G_MININT64 : i % 3 == 1 ? G_MAXINT64
                                                                               : end + 5;
  return operand;
}

static KernelCase
rotary_case_new (const Rotation *rotation,
                 EbbDType dtype)
{
  KernelCase test = kernel_case_new ("rotary", EBB_KERNEL_ROTARY);

  test.params.rotary.first = rotation->first;
  test.params.rotary.factor = rotation->factor;
  test.params.rotary.ntk = rotation->ntk;
  test.params.rotary.reversed = rotation->reversed;
  test.n_inputs = 3;
  test.inputs[0] = heads_new (rotation, dtype, rotation->is_swapped);
  test.inputs[1] = kernel_vector_new (EBB_DTYPE_F32, rotation->pairs, 0, rotation->frequency);
  if (rotation->starts != 0)
    test.inputs[2] = starts_new (rotation);
  test.outputs[0] = heads_new (rotation, dtype, rotation->is_swapped);
  test.in_place = rotation->batch * rotation->heads > 0 ? 0 : -1;
  return test;
}

static void
test_rotary (void)
{
  static const Rotation rotations[] = {
    { 1, 1, 1, 2, 1, 0, 1, 1, 1 },
    { 2, 5, 3, 8, 4, 3, 1, 1, 1 },
    { 2, 5, 3, 11, 4, 3, 1.25, 1, 1, TRUE },
    { 2, 7, 2, 64, 32, 0, 1, 8, 1, FALSE, TRUE },
    { 3, 4, 5, 70, 33, 100, 0.5, 1, 1, FALSE, FALSE, 1 },
    { 3, 4, 5, 34, 17, 100, 1, 1, 1, TRUE, TRUE, 2 },
    { 1, 6, 1, 16, 8, 2, 1, 1, 1, FALSE, FALSE, 3 },
    { 1, 2, 1, 1100, 520, 131000, 1, 1, 1 }, /* more pairs than are computed at a time */
    { 1, 9, 2, 32, 16, G_MAXINT64 - 9, 1, 1, 1e20 },
    { 40, 31, 12, 32, 16, 7, 1, 1, 1, FALSE, FALSE, 1 },
    { 0, 3, 2, 8, 4, 0, 1, 1, 1 },
    { 2, 3, 0, 8, 4, 0, 1, 1, 1 },
  };

  for (guint i = 0; i < G_N_ELEMENTS (rotations); i++)
    for (guint d = 0; d < G_N_ELEMENTS (floats); d++)
      {
        KernelCase test = rotary_case_new (&rotations[i], floats[d]);

        kernel_case_check (&test);
      }
}

/* The sines and cosines of large angles alone, relative to themselves: next to their zeros too. */
static void
test_rotary_of_large_angles (void)
{
  static const gint64 firsts[] = { 0, 1000, 32768, 131072 };

  for (guint i = 0; i < G_N_ELEMENTS (firsts); i++)
    {
      const Rotation rotation = { 1, 200, 1, 64, 32, firsts[i], 1, 1, 1 };
      KernelCase test = rotary_case_new (&rotation, EBB_DTYPE_F32);
      float *x = test.inputs[0].view.data, *frequencies = test.inputs[1].view.data;

      frequencies[0] = 1;
      for (gint64 k = 1; k < 4; k++) /* a position has an angle that is a multiple of a quarter turn, as good as */
        frequencies[k] = (float) (k * G_PI_2 / (double) (firsts[i] + 50 * k));
      for (gint64 k = 0; k < 200 * 64; k++)
        x[k] = k % 64 < 32 ? 1 : 0;
      test.tolerance = 3e-7;
      test.scale = 1e-7;
      kernel_case_check (&test);
    }
}

/* -- gated activations --------------------------------------------------------------------------------------------- */

static void
test_gated_activation (void)
{
  static const EbbUnaryOp ops[] = { EBB_UNARY_GELU, EBB_UNARY_GELU_TANH, EBB_UNARY_SILU };

  for (guint size = 0; size < N_SIZES; size++)
    for (guint d = 0; d < G_N_ELEMENTS (floats); d++)
      for (guint o = 0; o < G_N_ELEMENTS (ops); o++)
        {
          KernelCase test = kernel_case_new ("gated_activation", EBB_KERNEL_GATED_ACTIVATION);
          guint wanted = (size + o) % 3; /* both gradients, or one of them */

          test.params.gated.op = ops[o];
          test.n_inputs = 2;
          test.inputs[0] = matrix (floats[d], size, size % 2, -9, 9);
          test.inputs[1] = matrix (floats[d], size, size % 2, -3, 3);
          test.outputs[0] = matrix (floats[d], size, FALSE, 0, 1);
          kernel_case_check (&test);

          test = kernel_case_new ("gated_activation_grad", EBB_KERNEL_GATED_ACTIVATION_GRAD);
          test.params.gated.op = ops[o];
          test.n_inputs = 3;
          test.n_outputs = 2;
          test.inputs[0] = matrix (floats[d], size, FALSE, -1, 1);
          test.inputs[1] = matrix (floats[d], size, size % 2, -9, 9);
          test.inputs[2] = matrix (floats[d], size, size % 2, -3, 3);
          if (wanted != 1)
            test.outputs[0] = matrix (floats[d], size, FALSE, 0, 1);
          if (wanted != 2)
            test.outputs[1] = matrix (floats[d], size, FALSE, 0, 1);
          test.in_place = wanted != 1 ? 0 : -1;
          kernel_case_check (&test);
        }
}

/* -- RMS norms ----------------------------------------------------------------------------------------------------- */

static void
test_rms_norm (void)
{
  for (guint size = 0; size < N_SIZES; size++)
    for (guint d = 0; d < G_N_ELEMENTS (floats); d++)
      for (guint variant = 0; variant < 4; variant++)
        {
          KernelCase test = kernel_case_new ("rms_norm", EBB_KERNEL_RMS_NORM);
          gint64 rows = 2 * rows_columns[size][0], n = rows_columns[size][1];

          test.params.norm.eps = 1e-5;
          test.params.norm.unit_offset = variant & 1;
          test.n_inputs = test.n_outputs = 2;
          test.inputs[0] = matrix (floats[d], size, variant >> 1, 2, 9);
          test.inputs[1] = kernel_vector_new (floats[size % 2], n, -2, 2);
          test.outputs[0] = matrix (floats[d], size, FALSE, 0, 1);
          test.outputs[1] = kernel_vector_new (EBB_DTYPE_F32, rows, 0, 1);
          test.scale = 2;
          kernel_case_check (&test);

          test = kernel_case_new ("rms_norm_grad", EBB_KERNEL_RMS_NORM_GRAD);
          test.params.norm.unit_offset = variant & 1;
          test.params.norm.accumulate_weight = variant == 2;
          test.n_inputs = 5;
          test.n_outputs = 2;
          test.inputs[0] = matrix (floats[d], size, FALSE, -1, 1);
          test.inputs[1] = matrix (floats[d], size, variant >> 1, -2, 3);
          test.inputs[2] = kernel_vector_new (floats[size % 2], n, -2, 2);
          test.inputs[3] = kernel_vector_new (EBB_DTYPE_F32, rows, 0.5, 0.7);
          if (variant & 1)
            test.inputs[4] = matrix (floats[d], size, FALSE, -1, 1);
          test.outputs[0] = matrix (floats[d], size, FALSE, 0, 1);
          test.outputs[1] = kernel_vector_new (EBB_DTYPE_F32, n, -1, 1);
          test.scale = 5;
          test.in_place = variant & 1 ? 4 : 0;
          kernel_case_check (&test);
        }
}

static void
test_add_rms_norm (void)
{
  for (guint size = 2; size < N_SIZES; size++)
    for (guint d = 0; d < G_N_ELEMENTS (floats); d++)
      for (guint variant = 0; variant < 8; variant++)
        {
          KernelCase test = kernel_case_new ("add_rms_norm", EBB_KERNEL_ADD_RMS_NORM);
          gint64 rows = 2 * rows_columns[size][0], n = rows_columns[size][1];
          gboolean normalizes_branch = variant >> 1 & 1;

          test.params.norm.eps = 1e-5;
          test.params.norm.p = variant & 1 ? 0.3 : 0;
          test.params.norm.philox = (EbbPhilox){ 99, 0xfffffffe };
          test.params.norm.unit_offset = variant >> 2;
          test.params.norm.normalizes_branch = normalizes_branch;
          test.n_inputs = test.n_outputs = 4;
          test.inputs[0] = matrix (floats[d], size, FALSE, -4, 4);
          test.inputs[1] = matrix (floats[d], size, FALSE, -4, 4);
          test.inputs[2] = kernel_vector_new (floats[d], n, -2, 2);
          test.outputs[0] = matrix (floats[d], size, FALSE, 0, 1);
          test.outputs[1] = matrix (floats[d], size, FALSE, 0, 1);
          test.outputs[2] = kernel_vector_new (EBB_DTYPE_F32, rows, 0, 1);
          if (normalizes_branch)
            {
              test.inputs[3] = kernel_vector_new (floats[size % 2], n, -2, 2);
              test.outputs[3] = kernel_vector_new (EBB_DTYPE_F32, rows, 0, 1);
            }
          else
            test.in_place = (int) size % 2;
          /* a sum that is rounded to the other of two bf16 neighbours moves what follows */
          test.tolerance = floats[d] == EBB_DTYPE_BF16 ? 0.02 : 2e-6;
          test.scale = 2;
          kernel_case_check (&test);
        }
}

int
main (int argc,
      char **argv)
{
  test_init (&argc, &argv);
  g_test_add_func ("/kernels/rotary-equals-reference", test_rotary);
  g_test_add_func ("/kernels/rotary-of-large-angles-is-exact", test_rotary_of_large_angles);
  g_test_add_func ("/kernels/gated-activation-equals-reference", test_gated_activation);
  g_test_add_func ("/kernels/rms-norm-of-strided-rows-equals-reference", test_rms_norm);
  g_test_add_func ("/kernels/add-rms-norm-equals-reference", test_add_rms_norm);
  return g_test_run ();
}
