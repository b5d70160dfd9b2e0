/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "support/op-cases.h"

/* Op cases that are run on a device, and compared with what the float64 reference, a device of its own, makes of them.
 * For programs that link the static twin. */

G_BEGIN_DECLS

#define OP_RUN_TOLERANCE 1e-5 /* f32, relative to the greatest result */

typedef struct
{
  guint n_inputs;
  EbbTensor *x[OP_CASE_MAX_INPUTS];
  EbbTensor *y[OP_CASE_MAX_OUTPUTS];
  EbbTensor *grads[OP_CASE_MAX_OUTPUTS]; /* what is sent back through y */
} OpRun;

extern EbbDevice *op_run_reference, *op_run_tested;

/* Makes the reference, and takes the device of that name to test, for NULL that of EBB_TEST_DEVICE or else the CPU;
 * ends the program if there is none. */
void op_run_set_up (const char *device);
/* test_init(), and from now on the CPU's memory holds NaN at first. */
void op_run_init (int *argc,
                  char ***argv);
/* Adds a test of each case: /op-cases/MODE/OP. */
void op_run_add_tests (const char *mode,
                       GTestDataFunc func);

/* Of what the CPU is asked for from now on, it grants @granted allocations and none after them. */
void op_run_count_allocations (guint granted);
/* How many there were; all are granted again. */
guint op_run_stop_counting (void);

/* Makes the operands on @device, and runs the op. */
void op_run_on (OpRun *run,
                const OpCase *op_case,
                const OpVariant *variant,
                EbbDevice *device);
/* Once more, with the operands as they are. */
void op_run_forward (OpRun *run,
                     const OpCase *op_case,
                     const OpVariant *variant);
/* Sends the same random gradients back through the outputs; their sums with the outputs are what is differentiated. */
void op_run_backward (OpRun *run);
void op_run_clear (OpRun *run);
gboolean op_run_can_flow (EbbTensor *y);
gboolean op_run_wants_gradient (const OpCase *op_case,
                                OpRun *run);

/* The greatest absolute value that is finite. */
double op_run_find_greatest (const double *values,
                             gint64 n);
gboolean op_run_is_close (double value,
                          double expected,
                          double allowed);
/* And the same dtype. */
void op_run_assert_same_shape (const char *what,
                               EbbTensor *a,
                               EbbTensor *b);
/* Fails unless results and gradients on @device are those on @other; the same bits where both run the same kernels. */
void op_run_compare (const OpCase *op_case,
                     const OpVariant *variant,
                     EbbDevice *device,
                     EbbDevice *other);

G_END_DECLS
