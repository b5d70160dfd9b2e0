/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "support/random-parts.h"

/* Stores of all kinds, and in front of one another, which store tensors of any size. */

G_BEGIN_DECLS

#define TEST_N_STORES 7

typedef struct
{
  EbbSavedTensorHooks *stores[TEST_N_STORES];
  const char *names[TEST_N_STORES];
  EbbProcessGroup *group; /* on whose ranks each store is behind one that divides, not owned; NULL: none is */
  char *folder;           /* of those on disk */
} TestStores;

void test_stores_open (TestStores *self);
/* Fails if a store still holds something, or has left a file. */
void test_stores_close (TestStores *self);
/* How far ahead they bring things, how long originals stay, and what they leave where it is. */
void test_stores_draw (TestStores *self,
                       TestDice *dice,
                       GString *text);
/* Fails if one has had nothing to do. */
void test_stores_assert_used (TestStores *self,
                              gboolean on_cpu);
/* Waits for what was begun, and gives back memory that is kept for later. */
void test_stores_settle (TestStores *self);

G_END_DECLS
