/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Philox4x32-10 (Salmon, Moraes, Dror, Shaw: Parallel random numbers: as easy as 1, 2, 3; 2011), with the bits of
 * tensor/cpu/simd/philox-private.h: the counter's words are the block's number, low and high, and two zeros; the key is
 * the seed, low and high. */

#define EBB_PHILOX_ROUNDS 10

static __device__ __forceinline__ void
philox_block (uint64_t seed,
              uint64_t block,
              uint32_t draws[4])
{
  uint32_t k0 = (uint32_t) seed, k1 = (uint32_t) (seed >> 32);
  uint32_t x0 = (uint32_t) block, x1 = (uint32_t) (block >> 32), x2 = 0, x3 = 0;

#pragma unroll
  for (int round = 0; round < EBB_PHILOX_ROUNDS; round++)
    {
      uint32_t high0 = __umulhi (0xd2511f53u, x0), low0 = 0xd2511f53u * x0;
      uint32_t high1 = __umulhi (0xcd9e8d57u, x2), low1 = 0xcd9e8d57u * x2;

      x0 = high1 ^ x1 ^ k0;
      x1 = low1;
      x2 = high0 ^ x3 ^ k1;
      x3 = low0;
      k0 += 0x9e3779b9u;
      k1 += 0xbb67ae85u;
    }
  draws[0] = x0;
  draws[1] = x1;
  draws[2] = x2;
  draws[3] = x3;
}

/* Draw i of a call: lane i % 4 of block offset + i / 4. For several draws of a block call philox_block (). */
static __device__ __forceinline__ uint32_t
philox_draw (uint64_t seed,
             uint64_t offset,
             uint64_t i)
{
  uint32_t draws[4];

  philox_block (seed, offset + i / 4, draws);
  return draws[i % 4];
}

/* A draw is kept if it is >= the threshold: p * 2^32, rounded up. 2^32 keeps none. On the host, for a launch. */
static inline uint64_t
dropout_threshold (double p)
{
  return p >= 1.0 ? (uint64_t) 1 << 32 : (p <= 0.0 ? 0 : (uint64_t) ceil (p * 4294967296.0));
}
