/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <ebb/ebb.h>

/* Steps on the device sim, whose memory and gradients are compared to the byte. Copies take their time there, so that
 * code that does not wait where it must is found. */

G_BEGIN_DECLS

enum
{
  TEST_SIM_ROWS = 32,
  TEST_SIM_WIDTH = 64,
  TEST_SIM_BLOCKS = 6
};

/* Of a block's input. */
#define TEST_SIM_INPUT_BYTES ((guint64) TEST_SIM_ROWS * TEST_SIM_WIDTH * 4)

extern EbbDevice *test_sim;

/* 64 MiB, and 100 MB a second each way. */
void test_sim_open (void);

/* Bytes in use on a device, NULL: the CPU. */
guint64 test_sim_in_use (EbbDevice *device);
EbbTensor *test_sim_send (EbbTensor *tensor);
EbbTensor *test_sim_fetch (EbbTensor *tensor);
void test_sim_assert_equal (EbbTensor *there,
                            EbbTensor *expected);
/* A host store for tensors of any size. */
EbbActivationStore *test_sim_new_store (void);
/* Nothing is left in the store, nor in either memory beyond @there and @here. */
void test_sim_assert_gone (EbbActivationStore *store,
                           guint64 there,
                           guint64 here);

/* Makes four activations as large as its input, and has a dropout. */
EbbModule *test_sim_new_block (guint seed);
/* Such blocks in a row. */
EbbModule *test_sim_new_model (EbbDevice *device);
/* The same with each block behind a checkpoint, whose input goes to @store, unless that is NULL. */
EbbModule *test_sim_new_wrapped (EbbActivationStore *store);
EbbTensor *test_sim_forward (EbbModule *model,
                             EbbTensor *start,
                             GError **error);
void test_sim_train (EbbModule *model,
                     EbbTensor *start,
                     guint n_backwards);
/* Copies the gradients and sets them to 0 in place. */
GPtrArray *test_sim_take_grads (EbbModule *model);

typedef struct
{
  guint64 peak; /* beyond what was there before */
  GPtrArray *grads;
} TestSimStep;

/* A step, after one that makes the gradients. @n_backwards: through the same graph. */
TestSimStep test_sim_run (EbbModule *model,
                          guint n_backwards);
void test_sim_step_clear (TestSimStep *step);
void test_sim_assert_same_grads (const TestSimStep *a,
                                 const TestSimStep *b);

G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC (TestSimStep, test_sim_step_clear)

G_END_DECLS
