/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <ebb/ebb.h>

/* Results of PyTorch: the files of tests/fixtures, which README.md there describes. */

G_BEGIN_DECLS

EbbArgs *test_load_fixture (const char *name);

/* The tensor of that name, made like printf() does; it must be there. */
EbbTensor *test_fixture_tensor (EbbArgs *fixture,
                                const char *format,
                                ...) G_GNUC_PRINTF (2, 3);

/* A copy of PREFIX.NAME that requires a gradient, so that cases leave none behind. */
EbbTensor *test_fixture_leaf (EbbArgs *fixture,
                              const char *prefix,
                              const char *name);

/* A GPT of the fixtures' kind: two layers, four heads, no dropout. */
EbbModule *test_fixture_gpt (int vocab,
                             int context,
                             int width,
                             EbbActivation activation);

/* |a - b| / |b| in the Euclidean norm, infinity where shapes differ. */
double test_relative_difference (EbbTensor *a,
                                 EbbTensor *b);

G_END_DECLS
