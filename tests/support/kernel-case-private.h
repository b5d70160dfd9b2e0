/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "support/reference-private.h"

/* One call of a kernel, to be run by its float64 reference and by every instruction set that the processor has. */

G_BEGIN_DECLS

typedef enum
{
  KERNEL_LAYOUT_CONTIGUOUS,
  KERNEL_LAYOUT_PERMUTED,  /* the dimensions lie in memory in reverse order */
  KERNEL_LAYOUT_STRIDED,   /* every other element, and a gap behind each row */
  KERNEL_LAYOUT_BROADCAST, /* the first dimension has stride 0 */
  KERNEL_LAYOUT_ROW,       /* all dimensions but the last have stride 0 */
  KERNEL_LAYOUT_COLUMN,    /* the last dimension has stride 0 */
  KERNEL_LAYOUT_SCALAR,    /* all strides are 0 */
  KERNEL_N_LAYOUTS
} KernelLayout;

/* Shapes are given by their sizes, ending with -1. */
typedef struct
{
  gint64 sizes[EBB_MAX_DIMS + 1];
} KernelShape;

#define KERNEL_SHAPE(...) \
  ((KernelShape){         \
      { __VA_ARGS__, -1 } })

typedef struct
{
  EbbView view;
  guint8 *memory;   /* NULL: left out */
  gsize n_elements; /* of the memory, the view's first element being number 0 */
} KernelOperand;

#define KERNEL_MAX_ITEMS 4

typedef struct
{
  const char *name;
  EbbKernel kernel;
  EbbKernelParams params;
  guint n_inputs, n_outputs;
  KernelOperand inputs[EBB_LAUNCH_MAX_INPUTS];
  KernelOperand outputs[EBB_LAUNCH_MAX_OUTPUTS];
  /* Items of the launch: operands, of which each has EBB_LAUNCH_ITEM_DATA of them, input 0 being the gradient's scale
   * and output 0 of a norm the result. */
  guint n_items;
  KernelOperand items[KERNEL_MAX_ITEMS][EBB_LAUNCH_ITEM_DATA];
  int in_place;     /* the input that output 0 may be, or -1 */
  double tolerance; /* of an element relative to itself, and to scale */
  double scale;     /* what an error of tolerance is measured by near 0 */
} KernelCase;

/* Numbers in [low, high), the same in every run. */
double kernel_random (double low,
                      double high);

/* Contents are numbers in [low, high), whole ones for integers. */
KernelOperand kernel_operand_new (EbbDType dtype,
                                  KernelShape shape,
                                  KernelLayout layout,
                                  double low,
                                  double high);

/* A vector. */
KernelOperand kernel_vector_new (EbbDType dtype,
                                 gint64 n,
                                 double low,
                                 double high);

/* A case without operands that has one output, which is not an input, and a tolerance of 2e-6. */
KernelCase kernel_case_new (const char *name,
                            EbbKernel kernel);

/* Runs the case on one, two and three threads, at other alignments, in place if that is allowed, and compares: with the
 * reference within the tolerance, between these runs bit for bit. Frees the operands. */
void kernel_case_check (KernelCase *test);

G_END_DECLS
