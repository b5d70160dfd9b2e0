/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "support/random-program.h"

G_BEGIN_DECLS

/* Wraps modules of @tree at random, as @wrapping's seed says. */
void test_wrapping_apply (TestWrapping *wrapping,
                          TestTree *tree);
/* Checkpoints @module, some times more than once. */
void test_wrapping_wrap_module (TestWrapping *wrapping,
                                TestDice *dice,
                                EbbModule *module,
                                const char *name);
/* Offloads the module's saved tensors, so nothing is computed twice. */
void test_wrapping_offload_module (TestWrapping *wrapping,
                                   TestDice *dice,
                                   EbbModule *module,
                                   const char *name);
void test_wrapping_clear (TestWrapping *wrapping);

G_END_DECLS
