/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <ebb/ebb.h>

#include "nn/files/gguf-private.h"

G_BEGIN_DECLS

EbbGguf *test_gguf_open (const char *path);

/* The two files have the same tensors, byte for byte but for rounded rotary factors. */
void test_gguf_assert_same_tensors (const char *a,
                                    const char *b);

G_END_DECLS
