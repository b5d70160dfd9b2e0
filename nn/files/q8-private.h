/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <glib.h>

/* Q8_0 of GGUF files: blocks of 32 values, each an f16 scale d and 32 signed bytes q, which stand for d q. */

G_BEGIN_DECLS

#define EBB_Q8_BLOCK 32
#define EBB_Q8_BYTES 34 /* of a block */

/* @n: a multiple of 32. A block's scale is its largest absolute value / 127; quotients are rounded to the nearest, ties
 * away from 0, and the scale to f16 after that, as llama.cpp does. */
void ebb_q8_encode (const float *values,
                    void *blocks,
                    gint64 n);
void ebb_q8_decode (const void *blocks,
                    float *values,
                    gint64 n);

G_END_DECLS
