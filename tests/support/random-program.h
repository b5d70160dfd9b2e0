/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "support/random-stores.h"
#include "support/random-trace.h"
#include "support/random-tree.h"

/* Some training steps of a random tree, the same for the same seed, and all that can be seen of them. */

G_BEGIN_DECLS

/* The wrappers of the tree, which must not change what is observed. */
typedef struct
{
  guint64 seed; /* 0: nothing */
  EbbDevice *device;
  TestStores *stores;
  GString *description;
  EbbSavedTensorHooks *outside; /* around each forward, or NULL */
  gboolean disabled;            /* around each forward */
  gboolean fails_first;         /* a step that fails precedes */
  guint n_begun, n_ended;       /* recomputes, as announced */
} TestWrapping;

/* Runs the steps of @seed. What must hold for itself (counters, flags, memory) and doesn't is among what is seen. */
void test_program_run (guint64 seed,
                       TestWrapping *wrapping,
                       TestTrace *trace);
/* The tree of @seed, as text. */
char *test_program_describe (guint64 seed);

G_END_DECLS
