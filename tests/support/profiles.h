/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <ebb/ebb.h>
#include <json-glib/json-glib.h>

/* Shared by the tests of the profiler: the steps that they record. */

G_BEGIN_DECLS

#define TEST_PROFILE_WIDTH 8

/* The object that @text is; it belongs to @parser, which is to be freed. */
JsonObject *test_parse_json (const char *text,
                             JsonParser **parser);
JsonObject *test_profile_get_json (EbbProfiler *profiler,
                                   JsonParser **parser);

void test_profile_start (EbbProfiler *profiler);
/* Forward, backward of the mean square, and a step of the optimizer, if there is one. */
void test_profile_train (EbbModule *module,
                         EbbTensor *x,
                         EbbOptimizer *optimizer);
/* A profile of that, without an optimizer. */
EbbProfiler *test_profile_new (EbbModule *module,
                               EbbTensor *x);

/* Two causal blocks "0" and "1" with two heads, wrapped if there are @options. */
EbbModule *test_profile_blocks_new (EbbCheckpointOptions *options);

G_END_DECLS
