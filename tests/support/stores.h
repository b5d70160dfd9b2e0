/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <ebb/ebb.h>

/* Activation stores at work: on one tensor, and under a step of a small GPT. */

G_BEGIN_DECLS

/* Stores tensors of any size, in the file when it has put them: nothing stays in memory. */
EbbSavedTensorHooks *test_disk_store_new (const char *folder);
EbbHandle *test_pack (EbbSavedTensorHooks *store,
                      EbbTensor *tensor);
EbbTensor *test_unpack (EbbSavedTensorHooks *store,
                        EbbHandle *handle);
#define test_held(store) ebb_activation_store_get_bytes_held (EBB_ACTIVATION_STORE (store))
/* On the device under test, for whatever purpose. */
guint64 test_bytes_in_use (void);

typedef struct
{
  EbbTensor *loss;
  EbbTensor **grads;
  guint n_grads;
  guint64 offset; /* of the default generator after the step */
  guint64 peak;   /* activations in memory */
} TestStep;

/* Three layers, width 48, dropout 0.1. */
EbbModule *test_gpt_new (void);
/* The loss of a batch of [2, 24] tokens; always the same. */
EbbTensor *test_gpt_forward (EbbModule *gpt,
                             GError **error);
/* @hooks: for every tensor that is saved, or NULL. */
void test_step_run (EbbModule *gpt,
                    EbbSavedTensorHooks *hooks,
                    TestStep *step);
void test_step_clear (TestStep *step);
void test_step_assert_same (const TestStep *a,
                            const TestStep *b);

G_END_DECLS
