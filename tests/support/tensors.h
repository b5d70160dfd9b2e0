/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <ebb/ebb.h>

/* Tensors for tests: made in a line, compared in a line. Shapes end with -1. */

G_BEGIN_DECLS

EbbTensor *test_floats (const float *values,
                        ...);
EbbTensor *test_randn (guint64 seed,
                       ...);
EbbTensor *test_tokens (guint64 seed,
                        gint64 vocab,
                        ...);

/* The largest difference of two tensors' elements; infinity where their shapes differ. */
double test_difference (EbbTensor *a,
                        EbbTensor *b);
double test_sum (EbbTensor *tensor);
float test_at (EbbTensor *tensor,
               gsize position);

#define test_assert_near(a, b, tolerance) g_assert_cmpfloat (test_difference (a, b), <=, tolerance)
#define test_assert_shape(tensor, text)                                  \
  do                                                                     \
    {                                                                    \
      g_autofree char *test_shape = ebb_tensor_shape_to_string (tensor); \
                                                                         \
      g_assert_cmpstr (test_shape, ==, text);                            \
    }                                                                    \
  while (0)
/* The error is of @code, and its message has each of the words (as far as a NULL). */
#define test_assert_error(error, code, ...)                                             \
  do                                                                                    \
    {                                                                                   \
      const char *const test_words[] = { __VA_ARGS__, NULL };                           \
                                                                                        \
      g_assert_error (error, EBB_ERROR, code);                                          \
      for (guint test_i = 0; test_words[test_i] != NULL; test_i++)                      \
        if (strstr ((error)->message, test_words[test_i]) == NULL)                      \
          g_error ("\"%s\" does not say \"%s\"", (error)->message, test_words[test_i]); \
      g_assert_null (strchr ((error)->message, '\n'));                                  \
    }                                                                                   \
  while (0)

/* Each parameter gets a gradient of that value. */
void test_fill_grads (EbbOptimizer *optimizer,
                      double value);

/* A property that is a number. */
double test_get_double (gpointer object,
                        const char *name);

/* The property @name of @object is the text @expected. */
void test_assert_text (gpointer object,
                       const char *name,
                       const char *expected);

G_END_DECLS
