/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <ebb/ebb.h>

/* Small models, modules written as one function, and a training step whose every result can be compared bit for bit. */

G_BEGIN_DECLS

/* -- modules ------------------------------------------------------------------------------------------------------- */

/* Linear (8, 16), tanh, dropout 0.3, linear (16, 8). */
EbbModule *test_mlp_new (guint64 seed);

/* A sequence that takes the modules over. */
EbbModule *test_chain_new (EbbModule *first,
                           ...) G_GNUC_NULL_TERMINATED;

typedef EbbTensor *(*TestForward1) (EbbModule *self,
                                    EbbTensor *x,
                                    gpointer data,
                                    GError **error);
typedef EbbArgs *(*TestForward) (EbbModule *self,
                                 EbbArgs *args,
                                 gpointer data,
                                 GError **error);

/* Modules whose forward is @forward, called with @data. */
EbbModule *test_lambda1_new (TestForward1 forward,
                             gpointer data);
EbbModule *test_lambda_new (TestForward forward,
                            gpointer data);
/* Gives @module a parameter of 8 elements named "gain". */
EbbModule *test_with_gain (EbbModule *module,
                           guint64 seed);
/* tanh (x * gain), where @data is a counter of calls. */
EbbModule *test_counting_new (guint64 seed,
                              guint *calls);

/* Wraps and gives the module back without a further reference. */
EbbModule *test_wrap (EbbModule *module,
                      EbbCheckpointOptions *options);
/* Wraps each module below @root that has no children of its own. */
void test_wrap_leaves (EbbModule *root,
                       EbbCheckpointOptions *options);
void test_assert_counters (EbbModule *root,
                           guint expected);

/* -- modes --------------------------------------------------------------------------------------------------------- */

/* How a step computes. */
typedef struct
{
  const char *name;
  EbbDType dtype;
  gboolean autocast;
  int n_threads;
} TestMode;

/* Adds @func once for each of f32, bf16 and autocast at 1 and 2 threads, as PATH/f32-1 and so on. */
void test_add_modes (const char *path,
                     void (*func) (const TestMode *mode));
void test_add_modes_data (const char *path,
                          void (*func) (const TestMode *mode,
                                        gconstpointer data),
                          gconstpointer data);

/* [rows, 8], in the mode's dtype. */
EbbTensor *test_input_in (const TestMode *mode,
                          int rows);

/* -- a step -------------------------------------------------------------------------------------------------------- */

/* Outputs, gradients of inputs and parameters, buffers, and where the default generator ended. */
typedef struct
{
  GPtrArray *names, *tensors;
  guint64 seed, offset;
} TestOutcome;

/* The sum of the squares of @y in f32. */
EbbTensor *test_loss (EbbTensor *y);
/* The same of every tensor in @result that requires a gradient. */
EbbTensor *test_loss_of_args (EbbArgs *result);
/* Forward from a fixed seed, backward of the loss of all that comes out, everything collected. */
TestOutcome *test_train (EbbModule *module,
                         EbbArgs *args);
TestOutcome *test_train1 (EbbModule *module,
                          EbbTensor *x);
/* Forward from the same seed as test_train() alone. */
EbbTensor *test_forward1 (EbbModule *module,
                          EbbTensor *x);
void test_backward (EbbTensor *loss);
/* Gradients and buffers of @module as they are now, and gradients of leaves in @args (NULL allowed). */
TestOutcome *test_outcome_new (EbbModule *module,
                               EbbArgs *args);
void test_outcome_free (TestOutcome *outcome);
#define test_assert_same_outcome(a, b) test_compare_outcomes (G_STRLOC, a, b, TRUE)
#define test_assert_other_outcome(a, b) test_compare_outcomes (G_STRLOC, a, b, FALSE)
void test_compare_outcomes (const char *where,
                            const TestOutcome *a,
                            const TestOutcome *b,
                            gboolean want_same);

G_DEFINE_AUTOPTR_CLEANUP_FUNC (TestOutcome, test_outcome_free)

/* The same values in a container of its own. */
EbbArgs *test_args_copy (EbbArgs *args);
/* Fails with both texts unless the containers are equal in kinds, keys, order and values, tensors bit for bit, and
 * objects the same. */
void test_assert_args_equal (EbbArgs *a,
                             EbbArgs *b);

/* Everything that a failure must leave as it was. */
typedef struct
{
  guint64 bytes;
  guint64 seed, offset;
  gboolean grad_enabled, autocast, checkpointing, recomputing;
} TestState;

TestState test_state_now (void);
void test_assert_state (TestState expected);

/* A property that is TRUE or FALSE. */
gboolean test_get_flag (gpointer object,
                        const char *name);

G_END_DECLS
