/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <ebb/ebb.h>

/* A class of blocks that a user might write. */

G_BEGIN_DECLS

/* x + down (tanh (up (x))): [..., width] to the same shape. */
G_DECLARE_FINAL_TYPE (OwnBlock, test_own_block, TEST, OWN_BLOCK, EbbModule)
EbbModule *test_own_block_new (gint64 width,
                               gint64 hidden);
/* Has all blocks give @rule in the place of their parallel rules; NULL: no longer. */
void test_own_block_set_rule (const char *rule);

G_END_DECLS
