/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* What quantised weights are made of, for all backends. Plain numbers: modules use it too.
 *
 * nf4: Dettmers et al., QLoRA, arXiv 2305.14314, as bitsandbytes computes it. The elements of the weight, row after
 * row, are blocks of EBB_NF4_BLOCK. Element i is one of 16 numbers, by the upper half of byte i / 2 if i is even, else
 * by the lower one, times the scale of its block. Scales are u8 codes, NESTED blocks of EBB_NF4_NESTED_BLOCK of them:
 * map[code] * nested absmax + offset.
 *
 * int8: a signed byte for each element, times the largest magnitude of its row / 127. */

#define EBB_NF4_BLOCK 64
#define EBB_NF4_NESTED_BLOCK 256
#define EBB_NF4_MAP 256 /* entries of the map of scales */

/* How many scales have one nested absmax, a power of 2, of which @view is: [n], of EBB_NF4_NESTED_BLOCK scales each, or
 * for other groups [n, group] with the strides 1 and 0. */
#define EBB_NF4_GROUP(view) ((view)->n_dims == 2 ? (view)->shape[1] : EBB_NF4_NESTED_BLOCK)

/* EBB_KERNEL_DEQUANTIZE with two inputs more, x [M, K] f32 or bf16 and bias [N] or NULL, gives y [M, N] = x W^T + bias
 * of all of the weight [N, K], rounded to the dtype of x, for M up to 16: the bits of EBB_KERNEL_MATMUL for so few
 * rows. Backends with the CPU's kernels have it; others dequantise panels. */

/* Whether a product of @m rows with a weight of [n, k] has so few rows that one for few rows computes it: it is bound
 * by reading the weight, for which oneDNN needs up to several times as long (tests/bench/few-rows.c). */
#define EBB_FEW_ROWS 16
#define EBB_FEW_ROWS_WEIGHT 32768
#define EBB_HAS_FEW_ROWS(m, n, k) \
  ((m) <= EBB_FEW_ROWS && (n) > 1 && (k) > 1 && (n) >= EBB_FEW_ROWS_WEIGHT / (k))

/* The published code book. */
#define EBB_NF4_CODES                                                                                   \
  {                                                                                                     \
    -1.0f, -0.6961928009986877f, -0.5250730514526367f, -0.39491748809814453f, -0.28444138169288635f,    \
        -0.18477343022823334f, -0.09105003625154495f, 0.0f, 0.07958029955625534f, 0.16093020141124725f, \
        0.24611230194568634f, 0.33791524171829224f, 0.44070982933044434f, 0.5626170039176941f,          \
        0.7229568362236023f, 1.0f                                                                       \
  }
