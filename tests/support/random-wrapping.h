/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "support/random-program.h"

G_BEGIN_DECLS

/* Wraps modules of @tree at random, as @wrapping's seed says. */
void test_wrapping_apply (TestWrapping *wrapping,
                          TestTree *tree);
void test_wrapping_clear (TestWrapping *wrapping);

G_END_DECLS
