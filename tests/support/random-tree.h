/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "support/random-parts.h"

/* Modules put together at random, the same for the same seed. */

G_BEGIN_DECLS

#define TEST_N_GENERATORS 2
#define TEST_N_CLOSURES 2
#define TEST_N_SHARED 2

/* Shared by the modules of one tree. */
typedef struct
{
  EbbModule *root;
  GPtrArray *parts;    /* of TestPart, not owned */
  GPtrArray *sharable; /* modules from tensor to tensor */
  EbbGenerator *generators[TEST_N_GENERATORS];
  EbbTensor *closures[TEST_N_CLOSURES]; /* read by forwards that were not given them */
  EbbTensor *shared[TEST_N_SHARED];     /* parameters of several modules */
  TestDice dice;
  TestDice block_dice; /* of the classes of blocks: other trees stay what they were without it */
  guint budget;        /* modules that may still be made */
} TestTree;

void test_tree_init (TestTree *tree,
                     guint64 seed);
void test_tree_clear (TestTree *tree);
/* Every module once, with references. */
EbbModule **test_tree_get_modules (TestTree *tree,
                                   guint *n_modules);
char *test_tree_get_path (TestTree *tree,
                          gpointer module);

G_END_DECLS
