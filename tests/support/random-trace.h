/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <ebb/ebb.h>

/* The observations of a program, in order. */

G_BEGIN_DECLS

typedef struct
{
  GPtrArray *entries;
} TestTrace;

void test_trace_init (TestTrace *self);
void test_trace_clear (TestTrace *self);

/* Labels and texts are consumed. */
void test_trace_see (TestTrace *self,
                     char *label,
                     char *text);
/* Type, shape, strides, place in the graph, and every bit. */
void test_trace_see_tensor (TestTrace *self,
                            char *label,
                            EbbTensor *tensor);
/* Everything at any depth; objects by their place among @objects. */
void test_trace_see_args (TestTrace *self,
                          const char *path,
                          EbbArgs *args,
                          GPtrArray *objects);

/* The first difference, or NULL. Owned. */
char *test_trace_compare (const TestTrace *expected,
                          const TestTrace *actual);
/* The same, where @actual is only how it began. */
char *test_trace_compare_begin (const TestTrace *expected,
                                const TestTrace *actual);
/* A failure that is one without a comparison, or NULL. Owned. */
char *test_trace_find_failure (const TestTrace *self);

G_END_DECLS
