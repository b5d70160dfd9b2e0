/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <ebb/ebb.h>

/* Tiny decoders of every kind, with the choices that the models of tests/fixtures/models have. */

G_BEGIN_DECLS

/* NULL-terminated. */
extern const char *const test_decoder_names[];

/* The choices of one of them; the name must be known. Free it. */
EbbGptConfig *test_decoder_config (const char *name);

/* The model, drawn from @seed, with norms and biases that are neither ones nor zeros. */
EbbModule *test_decoder_new (const char *name,
                             guint64 seed);

G_END_DECLS
