/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <ebb/ebb.h>

/* One step of a small GPT, and all that must be the same whatever is checkpointed. */

G_BEGIN_DECLS

#define TEST_GPT_WIDTH 32
#define TEST_GPT_HEADS 4
#define TEST_GPT_CONTEXT 16
#define TEST_GPT_BATCH 2

typedef struct
{
  EbbTensor *loss;
  EbbTensor **grads;
  guint n_grads;
  guint64 offset; /* of the generator after the step */
  guint64 held;   /* for backward, in bytes, when the forward is done... */
  guint64 peak;   /* and at most */
} TestGptStep;

void test_gpt_step_clear (TestGptStep *step);
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC (TestGptStep, test_gpt_step_clear)

/* The same weights each time. */
EbbModule *test_gpt_step_model (int layers,
                                double dropout);
/* Forward and backward, with the same numbers each time; @with_mask: a mask goes to every block. */
void test_gpt_step_run (EbbModule *gpt,
                        gboolean with_mask,
                        TestGptStep *step);
/* To the last bit. */
void test_assert_same_gpt_step (const TestGptStep *a,
                                const TestGptStep *b);

G_END_DECLS
