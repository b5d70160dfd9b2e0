/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "tensor/cpu/simd/vec-private.h"

#define ebb_sum_partials EBB_SIMD_NAME (ebb_sum_partials)

/* Sums over many rows are made of blocks of rows, each summed by one thread, so that they do not depend on the number
 * of threads. At most 256 blocks: their partial sums are workspace. */
static inline gint64
ebb_rows_per_block (gint64 rows)
{
  return MAX (32, (rows + 255) / 256 + 3) / 4 * 4;
}

/* sums (+)= partials [n_partials, n], rows stride apart, added in pairs; the partials are used up. */
void ebb_sum_partials (float *partials,
                       gint64 n_partials,
                       gint64 stride,
                       gint64 n,
                       gboolean accumulate,
                       float *sums);
