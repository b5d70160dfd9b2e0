/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <ebb/ebb.h>

/* Trainings of models of width TEST_SIDE_WIDTH in one process. */

G_BEGIN_DECLS

#define TEST_SIDE_WIDTH 16

typedef struct
{
  guint64 seed;
  EbbDevice *device;
  guint n_steps;
  /* From [2, 6, TEST_SIDE_WIDTH] to any shape; called once for each time that it is trained. */
  EbbModule *(*make_model) (gpointer data,
                            GError **error);
  gpointer data;
} TestSide;

/* Trains each alone, then all at once, a thread for each: losses and parameters must be the same to the bit. */
void test_side_by_side (const TestSide *sides,
                        guint n);

G_END_DECLS
