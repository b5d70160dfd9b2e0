/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <ebb/ebb.h>

/* The cases that every process group must pass, whatever its transport: one list, run on each engine. Every rank runs
 * the same cases in the same order; they assert. */

G_BEGIN_DECLS

typedef void (*TestCollectiveFunc) (EbbProcessGroup *group);

typedef struct
{
  const char *name;
  TestCollectiveFunc check;
  gboolean is_exact; /* asks for the order of additions and the handling of NaN that engines of this library have */
} TestCollectiveCase;

extern const TestCollectiveCase test_collective_cases[];
extern const guint n_test_collective_cases;

/* Runs all cases on the group's ranks; those that are exact if @exact. */
void test_collectives (EbbProcessGroup *group,
                       gboolean exact);

/* Element @i of what rank @rank has: a multiple of 1/16 below 8, or a small integer, that @dtype represents. */
double test_collective_value (guint rank,
                              gsize i,
                              EbbDType dtype);
/* A tensor of such elements on the device under test. */
EbbTensor *test_collective_tensor (guint rank,
                                   EbbDType dtype,
                                   const gint64 *shape,
                                   guint n_dims);
/* The result of @op for element @i of @n ranks, before it is rounded to @dtype. */
double test_collective_reduced (guint n,
                                gsize i,
                                EbbDType dtype,
                                EbbReduceOp op);
/* Asserts that the elements of @tensor are @values, rounded to its type. */
void test_assert_elements (EbbTensor *tensor,
                           const double *values,
                           gsize n);

G_END_DECLS
