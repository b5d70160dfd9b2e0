/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "tensor/cpu/simd/philox-private.h"

/* An optimizer's moments in less than 32 bits.
 *
 * 8 bits: Dettmers, Lewis, Shleifer and Zettlemoyer, "8-bit optimizers via block-wise quantization" (2022). Each block
 * of EBB_MOMENT_BLOCK elements has a scale, the largest magnitude in it; an element is a code of the dynamic tree: the
 * zeros in front say the power of ten, what follows the first one is linear within it. A code stands for the middle of
 * its cell, so the code 2^e + k means (0.1 + 0.9 (k + 1/2) / 2^e) 10^(e - 7): eight powers of ten, 255 numbers and 0.
 * The signed code spends a bit on the sign and one bit less on the rest, so its cell is two cells of the unsigned one:
 * both are computed on one axis, the position, on which code c covers [c, c + 1), or [2 c, 2 c + 2) if signed. The
 * largest code means less than 1; scales are such that it means the largest magnitude itself. */

#define EBB_MOMENT_TOP_UNSIGNED 0.99648438f /* position 255.5 */
#define EBB_MOMENT_TOP_SIGNED 0.99296875f   /* position 255 */

/* Draws of 16 bits for the elements of a block: two in each of these words. */
#define EBB_MOMENT_WORDS (EBB_MOMENT_BLOCK / 2)

/* What element @at, counted from the first of two full blocks, draws of their words. */
EBB_VEC_INLINE guint32
ebb_moment_pick_ (const guint32 words[2 * EBB_MOMENT_WORDS],
                  gint64 at)
{
  const gint64 place = at % EBB_MOMENT_BLOCK;
  const guint32 word = words[at / EBB_MOMENT_BLOCK * EBB_MOMENT_WORDS + place % EBB_MOMENT_WORDS];

  return word >> (place < EBB_MOMENT_WORDS ? 0 : 16) & 0xffff;
}

/* For EBB_MOMENT_BLOCK elements from element @first of a full parameter on. Element i of a block of the full parameter
 * has the low half of word i in the first half of the block, the high half in the second. A block takes
 * EBB_MOMENT_WORDS / 4 numbers of Philox, so a draw is named by the call's offset and the element. A shard may begin
 * inside a block: its words are put together from those of two. */
EBB_VEC_INLINE void
ebb_moment_draw (const EbbPhilox *philox,
                 gint64 first,
                 guint32 words[EBB_MOMENT_WORDS])
{
  const gint64 skip = first % EBB_MOMENT_BLOCK;
  const guint64 offset = philox->offset + (guint64) (first / EBB_MOMENT_BLOCK) * (EBB_MOMENT_WORDS / 4);
  guint32 both[2 * EBB_MOMENT_WORDS];

  ebb_philox_fill (philox->seed, offset, 0, EBB_MOMENT_WORDS, skip == 0 ? words : both);
  if (skip == 0)
    return;
  ebb_philox_fill (philox->seed, offset, EBB_MOMENT_WORDS, EBB_MOMENT_WORDS, both + EBB_MOMENT_WORDS);
  for (gint64 i = 0; i < EBB_MOMENT_WORDS; i++)
    words[i] = ebb_moment_pick_ (both, skip + i) | ebb_moment_pick_ (both, skip + i + EBB_MOMENT_WORDS) << 16;
}

EBB_VEC_INLINE EbbVecU
vec_moment_draw (const guint32 words[EBB_MOMENT_WORDS],
                 gint64 i)
{
  EbbVecU word = *(const EbbVecUUnaligned *) (words + i % EBB_MOMENT_WORDS);

  return (word >> (i < EBB_MOMENT_WORDS ? 0 : 16)) & 0xffff;
}

/* Rounds down or up to bf16, up with the probability that makes the mean right: numbers whose steps are smaller than
 * half a unit in the last place would otherwise never move. draws: 16 bits. */
EBB_VEC_INLINE EbbVecH
vec_to_bf16_stochastic (EbbVec v,
                        EbbVecU draws)
{
  EbbVecU bits = (EbbVecU) v;
  EbbVecI is_nan = v != v;

  bits = (EbbVecU) vec_select (is_nan, (EbbVec) (bits | 0x400000), (EbbVec) (bits + draws));
  return __builtin_convertvector(bits >> 16, EbbVecH);
}

/* Within the power of ten e = 0 to 7 of the axis, position = 2^e (8 / 9 + x 10^(7 - e) / 0.9). Each table has one entry
 * for each e, and the eight stand twice: AVX-512 looks up 16. */
#define EBB_MOMENT_TABLE(...) \
  {                           \
    __VA_ARGS__, __VA_ARGS__  \
  }
static const float ebb_moment_start[16] =
    EBB_MOMENT_TABLE (8 / 9.0f, 16 / 9.0f, 32 / 9.0f, 64 / 9.0f, 128 / 9.0f, 256 / 9.0f, 512 / 9.0f, 1024 / 9.0f);
static const float ebb_moment_slope[16] = EBB_MOMENT_TABLE (1e7f / 0.9f,
                                                            2 * (1e6f / 0.9f),
                                                            4 * (1e5f / 0.9f),
                                                            8 * (1e4f / 0.9f),
                                                            16 * (1e3f / 0.9f),
                                                            32 * (1e2f / 0.9f),
                                                            64 * (1e1f / 0.9f),
                                                            128 * (1 / 0.9f));
/* Where e ends and e + 1 begins; the last one has no end. */
static const float ebb_moment_end[16] = EBB_MOMENT_TABLE (1e-6f * 0.1f,
                                                          1e-5f * 0.1f,
                                                          1e-4f * 0.1f,
                                                          1e-3f * 0.1f,
                                                          1e-2f * 0.1f,
                                                          1e-1f * 0.1f,
                                                          0.1f,
                                                          INFINITY);
/* For decoding. The index is the low three bits of a position's f32 exponent: 7 for e = 0, else e - 1. These are
 * 10^(e - 7) and 0.9 / 2^e. */
static const float ebb_moment_power[16] = EBB_MOMENT_TABLE (1e-6f, 1e-5f, 1e-4f, 1e-3f, 1e-2f, 1e-1f, 1, 1e-7f);
static const float ebb_moment_step[16] =
    EBB_MOMENT_TABLE (0.9f / 2, 0.9f / 4, 0.9f / 8, 0.9f / 16, 0.9f / 32, 0.9f / 64, 0.9f / 128, 0.9f);

/* Where on the axis x in [0, 1) lies; less than 1 if it lies below the first cell. */
EBB_VEC_INLINE EbbVec
vec_moment_position (EbbVec x)
{
  /* The bits of x, as an integer, are 2^23 (127 + log2 (x)), or up to 0.0861 * 2^23 less. So they give
   * e = 8 + floor (log10 (x)), or e - 1; 1e-4 is for rounding. Below 1e-8 e is 0. */
  const float log10_2 = 0.30103f;
  EbbVec bits = __builtin_convertvector((EbbVecI) vec_max (x, vec_set1 (1e-8f)), EbbVec);
  EbbVecI e = __builtin_convertvector(
      vec_fma (bits, vec_set1 (log10_2 / (1 << 23)), vec_set1 (8 - 127 * log10_2 - 1e-4f)), EbbVecI);

  e -= x >= vec_lookup (ebb_moment_end, e); /* a true comparison is -1 */
  return vec_fma (vec_lookup (ebb_moment_slope, e), x, vec_lookup (ebb_moment_start, e));
}

/* @powers: ebb_moment_power, times the scale of the block. @zero: 0 times it. */
EBB_VEC_INLINE EbbVec
vec_moment_decode (gboolean is_signed,
                   EbbVecU code,
                   const float powers[16],
                   EbbVec zero)
{
  EbbVecU magnitude = code & (is_signed ? 0x7f : 0xff);
  /* the middle of the cell */
  EbbVec position = vec_fma (__builtin_convertvector((EbbVecI) magnitude, EbbVec), vec_set1 (is_signed ? 2.0f : 1.0f),
                             vec_set1 (is_signed ? 1.0f : 0.5f));
  EbbVecI exponent = (EbbVecI) ((EbbVecU) position >> 23);
  EbbVec value =
      vec_lookup (powers, exponent) * vec_fma (vec_lookup (ebb_moment_step, exponent), position, vec_set1 (-0.8f));

  value = vec_select (magnitude != 0, value, zero);
  return is_signed ? (EbbVec) ((EbbVecU) value | (code & 0x80) << 24) : value;
}

/* The code of the cell in which x, divided by its scale, lies. Unsigned: what is more than 0 stays more than 0. A
 * second moment of 0 under a mean that is not 0 would be a step of m / eps. */
EBB_VEC_INLINE EbbVecU
vec_moment_encode (gboolean is_signed,
                   EbbVec x)
{
  EbbVec position = vec_min (vec_moment_position (vec_abs (x)), vec_set1 (255.0f));
  EbbVecI code = __builtin_convertvector(position, EbbVecI);

  if (!is_signed)
    return (EbbVecU) code | (EbbVecU) ((x > 0.0f) & (code == 0) & 1);
  return (EbbVecU) (code >> 1) | ((EbbVecU) x >> 31) << 7;
}

/* -- blocks -------------------------------------------------------------------------------------------------------- */

/* values[0..n) of a block from its codes; what is left of the last vector becomes 0. */
EBB_VEC_INLINE void
ebb_moment_decode_block (gboolean is_signed,
                         const guint8 *codes,
                         float absmax,
                         gint64 n,
                         float values[EBB_MOMENT_BLOCK])
{
  const float scale = absmax / (is_signed ? EBB_MOMENT_TOP_SIGNED : EBB_MOMENT_TOP_UNSIGNED);
  const EbbVec zero = vec_set1 (0 * scale); /* NaN if the scale is not finite: so is the whole block */
  float powers[16];

  for (int k = 0; k < 16; k++)
    powers[k] = scale * ebb_moment_power[k];
  EBB_VEC_FOR (i, m, n)
    vec_store (values + i, vec_moment_decode (is_signed, vec_load_u8 (codes + i, m), powers, zero));
}

/* Codes and scale of a block. A value that is not finite makes the scale so, and the whole block when it is read. */
EBB_VEC_INLINE void
ebb_moment_encode_block (gboolean is_signed,
                         const float values[EBB_MOMENT_BLOCK],
                         gint64 n,
                         guint8 *codes,
                         float *absmax)
{
  EbbVec largest = { 0 };
  float scale;

  EBB_VEC_FOR (i, m, n)
    largest = vec_max_abs (largest, vec_first (vec_load (values + i), m, (EbbVec){ 0 }));
  *absmax = vec_reduce_max_abs (largest);
  scale = (is_signed ? EBB_MOMENT_TOP_SIGNED : EBB_MOMENT_TOP_UNSIGNED) / *absmax;
  /* Of a block of zeros, or of numbers so small that 1 / absmax overflows, nothing is kept. */
  if (!(scale <= G_MAXFLOAT))
    scale = 0;
  EBB_VEC_FOR (i, m, n)
    vec_store_u8 (codes + i, vec_moment_encode (is_signed, scale * vec_load (values + i)), m);
}
