/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "tensor/cpu/simd/vec-private.h"

/* Philox4x32-10 (Salmon, Moraes, Dror, Shaw: Parallel random numbers: as easy as 1, 2, 3; 2011). The counter's words
 * are the block's number, low and high, and two zeros; the key is the seed, low and high. */

#define EBB_PHILOX_M0 0xd2511f53u
#define EBB_PHILOX_M1 0xcd9e8d57u
#define EBB_PHILOX_W0 0x9e3779b9u
#define EBB_PHILOX_W1 0xbb67ae85u
#define EBB_PHILOX_ROUNDS 10

/* Draws that ebb_philox_draw_vector () gives at once. */
#define EBB_PHILOX_VECTOR_DRAWS (4 * EBB_VEC_WIDTH)

EBB_VEC_INLINE void
ebb_philox_block (guint64 seed,
                  guint64 block,
                  guint32 out[4])
{
  guint32 k0 = (guint32) seed, k1 = (guint32) (seed >> 32);
  guint32 x0 = (guint32) block, x1 = (guint32) (block >> 32), x2 = 0, x3 = 0;

  for (int round = 0; round < EBB_PHILOX_ROUNDS; round++)
    {
      guint64 p0 = (guint64) EBB_PHILOX_M0 * x0;
      guint64 p1 = (guint64) EBB_PHILOX_M1 * x2;

      x0 = (guint32) (p1 >> 32) ^ x1 ^ k0;
      x1 = (guint32) p1;
      x2 = (guint32) (p0 >> 32) ^ x3 ^ k1;
      x3 = (guint32) p0;
      k0 += EBB_PHILOX_W0;
      k1 += EBB_PHILOX_W1;
    }
  out[0] = x0;
  out[1] = x1;
  out[2] = x2;
  out[3] = x3;
}

EBB_VEC_INLINE void
vec_mul_wide_ (EbbVecU a,
               guint32 m,
               EbbVecU *high,
               EbbVecU *low)
{
#if EBB_VEC_AVX512
  __m512i factor = _mm512_set1_epi32 ((gint32) m);
  __m512i even = _mm512_mul_epu32 ((__m512i) a, factor);
  __m512i odd = _mm512_mul_epu32 (_mm512_srli_epi64 ((__m512i) a, 32), factor);

  /* the low halves of odd into the odd lanes of even, the high halves of even into the even lanes of odd */
  *low = (EbbVecU) _mm512_mask_shuffle_epi32 (even, 0xaaaa, odd, _MM_PERM_CCAA);
  *high = (EbbVecU) _mm512_mask_shuffle_epi32 (odd, 0x5555, even, _MM_PERM_DDBB);
#elif EBB_VEC_AVX2
  __m256i factor = _mm256_set1_epi32 ((gint32) m);
  __m256i even = _mm256_mul_epu32 ((__m256i) a, factor);
  __m256i odd = _mm256_mul_epu32 (_mm256_srli_epi64 ((__m256i) a, 32), factor);

  *low = (EbbVecU) _mm256_blend_epi32 (even, _mm256_slli_epi64 (odd, 32), 0xaa);
  *high = (EbbVecU) _mm256_blend_epi32 (_mm256_srli_epi64 (even, 32), odd, 0xaa);
#elif EBB_VEC_SSE2
  __m128i factor = _mm_set1_epi32 ((gint32) m);
  __m128i even = _mm_mul_epu32 ((__m128i) a, factor);
  __m128i odd = _mm_mul_epu32 (_mm_srli_epi64 ((__m128i) a, 32), factor);

  *low = (EbbVecU) _mm_unpacklo_epi32 (_mm_shuffle_epi32 (even, 0x08), _mm_shuffle_epi32 (odd, 0x08));
  *high = (EbbVecU) _mm_unpacklo_epi32 (_mm_shuffle_epi32 (even, 0x0d), _mm_shuffle_epi32 (odd, 0x0d));
#else
  for (int k = 0; k < EBB_VEC_WIDTH; k++)
    {
      guint64 product = (guint64) a[k] * m;

      (*low)[k] = (guint32) product;
      (*high)[k] = (guint32) (product >> 32);
    }
#endif
}

/* x[w] holds word w of one block a lane; lane l has block l / (WIDTH / 4 groups): see ebb_philox_draw_vector (). On
 * return the words stand in the order of the draws. */
EBB_VEC_INLINE void
vec_transpose_groups_ (EbbVecU x[4])
{
#if EBB_VEC_AVX512
  __m512i a = _mm512_unpacklo_epi32 ((__m512i) x[0], (__m512i) x[1]);
  __m512i b = _mm512_unpackhi_epi32 ((__m512i) x[0], (__m512i) x[1]);
  __m512i c = _mm512_unpacklo_epi32 ((__m512i) x[2], (__m512i) x[3]);
  __m512i d = _mm512_unpackhi_epi32 ((__m512i) x[2], (__m512i) x[3]);

  x[0] = (EbbVecU) _mm512_unpacklo_epi64 (a, c);
  x[1] = (EbbVecU) _mm512_unpackhi_epi64 (a, c);
  x[2] = (EbbVecU) _mm512_unpacklo_epi64 (b, d);
  x[3] = (EbbVecU) _mm512_unpackhi_epi64 (b, d);
#elif EBB_VEC_AVX2
  __m256i a = _mm256_unpacklo_epi32 ((__m256i) x[0], (__m256i) x[1]);
  __m256i b = _mm256_unpackhi_epi32 ((__m256i) x[0], (__m256i) x[1]);
  __m256i c = _mm256_unpacklo_epi32 ((__m256i) x[2], (__m256i) x[3]);
  __m256i d = _mm256_unpackhi_epi32 ((__m256i) x[2], (__m256i) x[3]);

  x[0] = (EbbVecU) _mm256_unpacklo_epi64 (a, c);
  x[1] = (EbbVecU) _mm256_unpackhi_epi64 (a, c);
  x[2] = (EbbVecU) _mm256_unpacklo_epi64 (b, d);
  x[3] = (EbbVecU) _mm256_unpackhi_epi64 (b, d);
#else
  EbbVecU a = x[0], b = x[1], c = x[2], d = x[3];

  for (int k = 0; k < 4; k++)
    x[k] = (EbbVecU){ a[k], b[k], c[k], d[k] };
#endif
}

/* Draws 0 to 4 * WIDTH - 1 from block on: draw i is lane i % WIDTH of out[i / WIDTH]. The blocks are dealt to the lanes
 * so that a transposition within groups of four lanes puts the draws in order. */
EBB_VEC_INLINE void
ebb_philox_draw_vector (guint64 seed,
                        guint64 block,
                        EbbVecU out[4])
{
  EbbVecU k0 = (guint32) seed + (EbbVecU){ 0 }, k1 = (guint32) (seed >> 32) + (EbbVecU){ 0 };
  EbbVecU lane = (EbbVecU) vec_lane_index ();
  EbbVecU step = (lane & 3) * (EBB_VEC_WIDTH / 4) + (lane >> 2);
  EbbVecU x0 = step + (guint32) block;
  EbbVecU x1 = (guint32) (block >> 32) - (EbbVecU) (x0 < step); /* a true comparison is -1: the carry */
  EbbVecU x2 = { 0 }, x3 = { 0 };

  for (int round = 0; round < EBB_PHILOX_ROUNDS; round++)
    {
      EbbVecU high0, low0, high1, low1;

      vec_mul_wide_ (x0, EBB_PHILOX_M0, &high0, &low0);
      vec_mul_wide_ (x2, EBB_PHILOX_M1, &high1, &low1);
      x0 = high1 ^ x1 ^ k0;
      x1 = low1;
      x2 = high0 ^ x3 ^ k1;
      x3 = low0;
      /* Kept in vectors: the compiler would compute the rounds' keys one by one and spread each. */
      k0 = (EbbVecU) vec_rounded ((EbbVec) (k0 + EBB_PHILOX_W0));
      k1 = (EbbVecU) vec_rounded ((EbbVec) (k1 + EBB_PHILOX_W1));
    }
  out[0] = x0;
  out[1] = x1;
  out[2] = x2;
  out[3] = x3;
  vec_transpose_groups_ (out);
}

/* n draws from draw number first on (first need not be a multiple of 4). */
EBB_VEC_INLINE void
ebb_philox_fill (guint64 seed,
                 guint64 offset,
                 guint64 first,
                 gint64 n,
                 guint32 *out)
{
  guint64 block = offset + first / 4;
  guint64 skip = first % 4;
  gint64 done = 0;

  if (skip != 0 && n > 0)
    {
      guint32 words[4];

      ebb_philox_block (seed, block++, words);
      for (; skip < 4 && done < n; skip++)
        out[done++] = words[skip];
    }
  for (; done + EBB_PHILOX_VECTOR_DRAWS <= n; done += EBB_PHILOX_VECTOR_DRAWS, block += EBB_VEC_WIDTH)
    {
      EbbVecU draws[4];

      ebb_philox_draw_vector (seed, block, draws);
      for (int k = 0; k < 4; k++)
        *(EbbVecUUnaligned *) (out + done + k * EBB_VEC_WIDTH) = draws[k];
    }
  while (done < n)
    {
      guint32 words[4];

      ebb_philox_block (seed, block++, words);
      for (int k = 0; k < 4 && done < n; k++)
        out[done++] = words[k];
    }
}

/* A draw is kept if it is >= the threshold: p * 2^32, rounded up. 2^32 keeps none. */
EBB_VEC_INLINE guint64
ebb_dropout_threshold (double p)
{
  return p >= 1.0 ? G_GUINT64_CONSTANT (1) << 32 : p <= 0.0 ? 0
                                                            : (guint64) ceil (p * 4294967296.0);
}

/* The values whose draws reach the threshold; the others become 0. */
EBB_VEC_INLINE EbbVec
vec_drop (EbbVecU draws,
          guint64 threshold,
          EbbVec values)
{
  EbbVecI keep = draws >= (guint32) threshold;

  if (G_UNLIKELY (threshold >> 32 != 0))
    return (EbbVec){ 0 };
  return vec_select (keep, values, (EbbVec){ 0 });
}
