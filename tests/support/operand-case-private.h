/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "support/reference-private.h"

/* One launch on views with any strides, to be run by its float64 reference and by every instruction set that the
 * processor has, on one thread and on two. */

G_BEGIN_DECLS

#define TEST_N_SIMD 4
extern const char *const test_simd_names[TEST_N_SIMD];

#define TEST_SHAPE(...) \
  (const gint64[])      \
  {                     \
    __VA_ARGS__         \
  }

typedef struct
{
  EbbView view;
  gsize size;   /* bytes of the memory behind the view */
  char *memory; /* view.data is somewhere in it: odd places are wanted */
} TestOperand;

/* The same numbers in every run. */
double test_case_uniform (double low,
                          double high);

/* A view with @strides of the given shape (NULL: contiguous), its memory filled with numbers in [low, high]. */
TestOperand test_operand_new (EbbDType dtype,
                              int n_dims,
                              const gint64 *shape,
                              const gint64 *strides,
                              double low,
                              double high);
TestOperand test_operand_copy (const TestOperand *operand);
void test_operand_clear (TestOperand *operand);

typedef struct
{
  const char *name;
  EbbKernel kernel;
  TestOperand inputs[EBB_LAUNCH_MAX_INPUTS], outputs[EBB_LAUNCH_MAX_OUTPUTS];
  guint n_inputs, n_outputs;
  EbbKernelParams params;
  double
      tolerance; /* relative to the largest element of an output, or to 0.5; bf16 outputs get their rounding besides */
  gboolean has_few_rows;  /* a product for the kernels of few rows, instead of the one that chooses */
  double pairs_tolerance; /* that of bf16 outputs, if it is more, where pairs of bf16 are multiplied */
} TestCase;

/* Fills @outputs with copies of the case's outputs on which the kernel has run. */
void test_case_run (const TestCase *test,
                    EbbKernelFunc kernel,
                    TestOperand *outputs);

/* Elements of the view are near; the memory between and around them is as it was. */
void test_case_compare (const TestCase *test,
                        const char *label,
                        guint index,
                        const TestOperand *expected,
                        const TestOperand *actual);

/* Takes the operands. */
void test_case_check (TestCase *test);

G_END_DECLS
