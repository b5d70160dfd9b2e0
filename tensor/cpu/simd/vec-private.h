/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <math.h>
#include <string.h>
#if defined(__x86_64__) || defined(__i386__)
#include <immintrin.h>
#endif

#include "tensor/cpu/cpu-private.h"
#include "tensor/util/half-private.h"

/* Vectors of f32 as wide as the instruction set that this file is compiled for. Nothing here looks at the alignment of
 * a pointer, so results do not depend on where a tensor lies. */

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__)
#define EBB_VEC_AVX512 1
#define EBB_VEC_AVX2 0
#define EBB_VEC_SSE2 0
#define EBB_VEC_WIDTH 16
#elif defined(__AVX2__) && defined(__FMA__)
#define EBB_VEC_AVX512 0
#define EBB_VEC_AVX2 1
#define EBB_VEC_SSE2 0
#define EBB_VEC_WIDTH 8
#else
#define EBB_VEC_AVX512 0
#define EBB_VEC_AVX2 0
#ifdef __SSE2__
#define EBB_VEC_SSE2 1
#else
#define EBB_VEC_SSE2 0
#endif
#define EBB_VEC_WIDTH 4
#endif

/* Whether the processor multiplies pairs of bf16. */
#if EBB_VEC_AVX512 && defined(__AVX512BF16__)
#define EBB_VEC_BF16_PAIRS 1
#else
#define EBB_VEC_BF16_PAIRS 0
#endif

#define EBB_VEC_INLINE static inline __attribute__ ((always_inline, unused))

typedef float EbbVec __attribute__ ((vector_size (4 * EBB_VEC_WIDTH), may_alias));
typedef gint32 EbbVecI __attribute__ ((vector_size (4 * EBB_VEC_WIDTH), may_alias));
typedef guint32 EbbVecU __attribute__ ((vector_size (4 * EBB_VEC_WIDTH), may_alias));
typedef guint16 EbbVecH __attribute__ ((vector_size (2 * EBB_VEC_WIDTH), may_alias));
typedef float EbbVecUnaligned __attribute__ ((vector_size (4 * EBB_VEC_WIDTH), aligned (4), may_alias));
typedef guint32 EbbVecUUnaligned __attribute__ ((vector_size (4 * EBB_VEC_WIDTH), aligned (4), may_alias));
typedef guint16 EbbVecHUnaligned __attribute__ ((vector_size (2 * EBB_VEC_WIDTH), aligned (2), may_alias));

/* Visits [0, n) in vectors of m = EBB_VEC_WIDTH elements, the last one perhaps shorter. */
#define EBB_VEC_FOR(i, m, n)                                                  \
  for (gint64 i = 0, m = MIN ((gint64) (n), EBB_VEC_WIDTH); i < (gint64) (n); \
       i += EBB_VEC_WIDTH, m = MIN ((gint64) (n) -i, EBB_VEC_WIDTH))

/* -- lanes --------------------------------------------------------------------------------------------------------- */

EBB_VEC_INLINE EbbVec
vec_set1 (float value)
{
  return value - (EbbVec){ 0 };
}

EBB_VEC_INLINE EbbVecI
vec_lane_index (void)
{
#if EBB_VEC_WIDTH == 16
  return (EbbVecI){ 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15 };
#elif EBB_VEC_WIDTH == 8
  return (EbbVecI){ 0, 1, 2, 3, 4, 5, 6, 7 };
#else
  return (EbbVecI){ 0, 1, 2, 3 };
#endif
}

/* mask ? a : b, where each lane of the mask is 0 or -1, as comparisons give it */
EBB_VEC_INLINE EbbVec
vec_select (EbbVecI mask,
            EbbVec a,
            EbbVec b)
{
#if EBB_VEC_AVX512
  return (EbbVec) _mm512_mask_blend_ps (_mm512_movepi32_mask ((__m512i) mask), (__m512) b, (__m512) a);
#elif EBB_VEC_AVX2
  return (EbbVec) _mm256_blendv_ps ((__m256) b, (__m256) a, (__m256) mask);
#else
  return (EbbVec) ((mask & (EbbVecI) a) | (~mask & (EbbVecI) b));
#endif
}

/* A comparison as 0 or 1 in f32 */
#define EBB_VEC_TRUTH(mask) ((EbbVec) ((EbbVecI) (mask) &0x3f800000))

/* The first m lanes of v, the others from fill. */
EBB_VEC_INLINE EbbVec
vec_first (EbbVec v,
           gint64 m,
           EbbVec fill)
{
  if (G_LIKELY (m == EBB_VEC_WIDTH))
    return v;
  return vec_select (vec_lane_index () < (gint32) m, v, fill);
}

/* -- loads and stores ---------------------------------------------------------------------------------------------- */

EBB_VEC_INLINE EbbVec
vec_load (const float *p)
{
  return *(const EbbVecUnaligned *) p;
}

EBB_VEC_INLINE void
vec_store (float *p,
           EbbVec v)
{
  *(EbbVecUnaligned *) p = v;
}

/* The m < EBB_VEC_WIDTH first lanes; the others read as 0. */
EBB_VEC_INLINE EbbVec
vec_load_tail (const float *p,
               gint64 m)
{
#if EBB_VEC_AVX512
  return (EbbVec) _mm512_maskz_loadu_ps ((__mmask16) ((1u << m) - 1), p);
#elif EBB_VEC_AVX2
  return (EbbVec) _mm256_maskload_ps (p, (__m256i) (vec_lane_index () < (gint32) m));
#else
  float lanes[EBB_VEC_WIDTH] = { 0 };

  for (gint64 k = 0; k < m; k++)
    lanes[k] = p[k];
  return vec_load (lanes);
#endif
}

EBB_VEC_INLINE void
vec_store_tail (float *p,
                EbbVec v,
                gint64 m)
{
#if EBB_VEC_AVX512
  _mm512_mask_storeu_ps (p, (__mmask16) ((1u << m) - 1), (__m512) v);
#elif EBB_VEC_AVX2
  _mm256_maskstore_ps (p, (__m256i) (vec_lane_index () < (gint32) m), (__m256) v);
#else
  for (gint64 k = 0; k < m; k++)
    p[k] = v[k];
#endif
}

EBB_VEC_INLINE EbbVec
vec_from_bf16 (EbbVecH h)
{
#if EBB_VEC_AVX512
  return (EbbVec) _mm512_slli_epi32 (_mm512_cvtepu16_epi32 ((__m256i) h), 16);
#else
  return (EbbVec) (__builtin_convertvector(h, EbbVecU) << 16);
#endif
}

/* Rounds to the nearest, ties to even; a NaN stays a (quiet) NaN. */
EBB_VEC_INLINE EbbVecH
vec_to_bf16 (EbbVec v)
{
  EbbVecU bits = (EbbVecU) v;
  EbbVecU rounded = bits + 0x7fff + ((bits >> 16) & 1);
#if EBB_VEC_AVX512
  __mmask16 is_nan = _mm512_cmp_ps_mask ((__m512) v, (__m512) v, _CMP_UNORD_Q);

  rounded = (EbbVecU) _mm512_mask_or_epi32 ((__m512i) rounded, is_nan, (__m512i) bits, _mm512_set1_epi32 (0x400000));
  return (EbbVecH) _mm512_cvtepi32_epi16 ((__m512i) (rounded >> 16));
#else
  EbbVecI is_nan = v != v;

  rounded = (EbbVecU) vec_select (is_nan, (EbbVec) (bits | 0x400000), (EbbVec) rounded);
  return __builtin_convertvector(rounded >> 16, EbbVecH);
#endif
}

EBB_VEC_INLINE EbbVec
vec_load_bf16 (const guint16 *p)
{
  return vec_from_bf16 (*(const EbbVecHUnaligned *) p);
}

EBB_VEC_INLINE void
vec_store_bf16 (guint16 *p,
                EbbVec v)
{
  *(EbbVecHUnaligned *) p = vec_to_bf16 (v);
}

EBB_VEC_INLINE EbbVec
vec_load_bf16_tail (const guint16 *p,
                    gint64 m)
{
#if EBB_VEC_AVX512
  return vec_from_bf16 ((EbbVecH) _mm256_maskz_loadu_epi16 ((__mmask16) ((1u << m) - 1), p));
#else
  guint16 lanes[EBB_VEC_WIDTH] = { 0 };

  for (gint64 k = 0; k < m; k++)
    lanes[k] = p[k];
  return vec_load_bf16 (lanes);
#endif
}

/* The m first lanes. */
EBB_VEC_INLINE void
vec_store_u16 (guint16 *p,
               EbbVecH h,
               gint64 m)
{
  if (G_LIKELY (m == EBB_VEC_WIDTH))
    {
      *(EbbVecHUnaligned *) p = h;
      return;
    }
#if EBB_VEC_AVX512
  _mm256_mask_storeu_epi16 (p, (__mmask16) ((1u << m) - 1), (__m256i) h);
#else
  for (gint64 k = 0; k < m; k++)
    p[k] = h[k];
#endif
}

EBB_VEC_INLINE void
vec_store_bf16_tail (guint16 *p,
                     EbbVec v,
                     gint64 m)
{
  vec_store_u16 (p, vec_to_bf16 (v), m);
}

/* Bytes as numbers: the m first lanes, the others read as 0. */
EBB_VEC_INLINE EbbVecU
vec_load_u8 (const guint8 *p,
             gint64 m)
{
  guint8 lanes[EBB_VEC_WIDTH] = { 0 };

  if (G_UNLIKELY (m < EBB_VEC_WIDTH))
    p = memcpy (lanes, p, (gsize) m);
#if EBB_VEC_AVX512
  return (EbbVecU) _mm512_cvtepu8_epi32 (_mm_loadu_si128 ((const __m128i *) p));
#elif EBB_VEC_AVX2
  return (EbbVecU) _mm256_cvtepu8_epi32 (_mm_loadl_epi64 ((const __m128i *) p));
#else
  return (EbbVecU){ p[0], p[1], p[2], p[3] };
#endif
}

/* The m first lanes, each less than 256. */
EBB_VEC_INLINE void
vec_store_u8 (guint8 *p,
              EbbVecU v,
              gint64 m)
{
#if EBB_VEC_AVX512
  __m128i bytes = _mm512_cvtepi32_epi8 ((__m512i) v);
#elif EBB_VEC_AVX2
  __m256i words = _mm256_packus_epi32 ((__m256i) v, (__m256i) v);
  __m128i eight = _mm_unpacklo_epi64 (_mm256_castsi256_si128 (words), _mm256_extracti128_si256 (words, 1));
  __m128i bytes = _mm_packus_epi16 (eight, eight);
#else
  guint8 bytes[EBB_VEC_WIDTH];

  for (int k = 0; k < EBB_VEC_WIDTH; k++)
    bytes[k] = (guint8) v[k];
#endif
  if (G_LIKELY (m == EBB_VEC_WIDTH))
    memcpy (p, &bytes, EBB_VEC_WIDTH);
  else
    memcpy (p, &bytes, (gsize) m);
}

/* The same by dtype, which is f32 or bf16 and known where this is inlined: elements [i, i + m) of data. */
EBB_VEC_INLINE EbbVec
vec_load_as (EbbDType dtype,
             const void *data,
             gint64 i,
             gint64 m)
{
  if (dtype == EBB_DTYPE_BF16)
    return G_LIKELY (m == EBB_VEC_WIDTH) ? vec_load_bf16 ((const guint16 *) data + i)
                                         : vec_load_bf16_tail ((const guint16 *) data + i, m);
  return G_LIKELY (m == EBB_VEC_WIDTH) ? vec_load ((const float *) data + i)
                                       : vec_load_tail ((const float *) data + i, m);
}

EBB_VEC_INLINE void
vec_store_as (EbbDType dtype,
              void *data,
              gint64 i,
              gint64 m,
              EbbVec v)
{
  if (dtype == EBB_DTYPE_BF16)
    {
      if (G_LIKELY (m == EBB_VEC_WIDTH))
        vec_store_bf16 ((guint16 *) data + i, v);
      else
        vec_store_bf16_tail ((guint16 *) data + i, v, m);
    }
  else if (G_LIKELY (m == EBB_VEC_WIDTH))
    vec_store ((float *) data + i, v);
  else
    vec_store_tail ((float *) data + i, v, m);
}

/* Lane k is entry index[k] & 7 of a table that holds its 8 entries twice. */
EBB_VEC_INLINE EbbVec
vec_lookup (const float table[16],
            EbbVecI index)
{
#if EBB_VEC_AVX512
  return (EbbVec) _mm512_permutexvar_ps ((__m512i) index, _mm512_loadu_ps (table));
#elif EBB_VEC_AVX2
  return (EbbVec) _mm256_permutevar8x32_ps (_mm256_loadu_ps (table), (__m256i) index);
#else
  EbbVec v;

  for (int k = 0; k < EBB_VEC_WIDTH; k++)
    v[k] = table[index[k] & 7];
  return v;
#endif
}

/* Entry index[k] & 15 of a table of 16. */
EBB_VEC_INLINE EbbVec
vec_lookup16 (const float table[16],
              EbbVecI index)
{
#if EBB_VEC_AVX512
  return (EbbVec) _mm512_permutexvar_ps ((__m512i) index, _mm512_loadu_ps (table));
#elif EBB_VEC_AVX2
  __m256 low = _mm256_permutevar8x32_ps (_mm256_loadu_ps (table), (__m256i) index);
  __m256 high = _mm256_permutevar8x32_ps (_mm256_loadu_ps (table + 8), (__m256i) index);

  return (EbbVec) _mm256_blendv_ps (low, high, (__m256) (index << 28));
#else
  EbbVec v;

  for (int k = 0; k < EBB_VEC_WIDTH; k++)
    v[k] = table[index[k] & 15];
  return v;
#endif
}

/* EBB_VEC_WIDTH numbers of 4 bits, of each byte the upper half first. */
EBB_VEC_INLINE EbbVecI
vec_load_u4 (const guint8 *p)
{
#if EBB_VEC_AVX512
  guint32 words[2];
  const EbbVecU shifts = { 4, 0, 12, 8, 20, 16, 28, 24, 4, 0, 12, 8, 20, 16, 28, 24 };
  __m512i both;

  memcpy (words, p, sizeof words);
  both = _mm512_inserti64x4 (_mm512_set1_epi32 ((int) words[0]), _mm256_set1_epi32 ((int) words[1]), 1);
  return (EbbVecI) ((EbbVecU) both >> shifts) & 15;
#elif EBB_VEC_AVX2
  const EbbVecU shifts = { 4, 0, 12, 8, 20, 16, 28, 24 };
  guint32 word;

  memcpy (&word, p, sizeof word);
  return (EbbVecI) ((EbbVecU) _mm256_set1_epi32 ((int) word) >> shifts) & 15;
#else
  return (EbbVecI){ p[0] >> 4, p[0] & 15, p[1] >> 4, p[1] & 15 };
#endif
}

/* -- arithmetic ---------------------------------------------------------------------------------------------------- */

/* a * b + c, rounded once where the instruction set can */
EBB_VEC_INLINE EbbVec
vec_fma (EbbVec a,
         EbbVec b,
         EbbVec c)
{
#if EBB_VEC_AVX512
  return (EbbVec) _mm512_fmadd_ps ((__m512) a, (__m512) b, (__m512) c);
#elif EBB_VEC_AVX2
  return (EbbVec) _mm256_fmadd_ps ((__m256) a, (__m256) b, (__m256) c);
#else
  return a * b + c;
#endif
}

/* Two rows of f32 as pairs of bf16: the first in the lower halves. Where the processor rounds, denormals become 0. */
EBB_VEC_INLINE EbbVecU
vec_to_bf16_pairs (EbbVec first,
                   EbbVec second)
{
#if EBB_VEC_BF16_PAIRS
  __m512i low = _mm512_cvtepu16_epi32 ((__m256i) _mm512_cvtneps_pbh ((__m512) first));
  __m512i high = _mm512_cvtepu16_epi32 ((__m256i) _mm512_cvtneps_pbh ((__m512) second));

  return (EbbVecU) low | (EbbVecU) high << 16;
#else
  return __builtin_convertvector(vec_to_bf16 (first), EbbVecU)
         | __builtin_convertvector(vec_to_bf16 (second), EbbVecU) << 16;
#endif
}

/* The same for one row: pairs are neighbours in it. */
EBB_VEC_INLINE EbbVecH
vec_to_bf16_row (EbbVec v)
{
#if EBB_VEC_BF16_PAIRS
  return (EbbVecH) _mm512_cvtneps_pbh ((__m512) v);
#else
  return vec_to_bf16 (v);
#endif
}

/* sum plus the two products of each pair of bf16; where the processor can, denormals count as 0 */
EBB_VEC_INLINE EbbVec
vec_dot_bf16_pairs (EbbVecU a,
                    EbbVecU b,
                    EbbVec sum)
{
#if EBB_VEC_BF16_PAIRS
  return (EbbVec) _mm512_dpbf16_ps ((__m512) sum, (__m512bh) a, (__m512bh) b);
#else
  sum = vec_fma ((EbbVec) (a & 0xffff0000u), (EbbVec) (b & 0xffff0000u), sum);
  return vec_fma ((EbbVec) (a << 16), (EbbVec) (b << 16), sum);
#endif
}

/* Keeps the compiler from fusing v into a sum, where all instruction sets must give the same bits. */
EBB_VEC_INLINE EbbVec
vec_rounded (EbbVec v)
{
#if EBB_VEC_AVX512
  __asm__(""
          : "+v"(v));
#elif EBB_VEC_AVX2 || EBB_VEC_SSE2
  __asm__(""
          : "+x"(v));
#else
  __asm__(""
          : "+m"(v));
#endif
  return v;
}

/* a > b ? a : b: the second if one is a NaN */
EBB_VEC_INLINE EbbVec
vec_max (EbbVec a,
         EbbVec b)
{
#if EBB_VEC_AVX512
  return (EbbVec) _mm512_max_ps ((__m512) a, (__m512) b);
#elif EBB_VEC_AVX2
  return (EbbVec) _mm256_max_ps ((__m256) a, (__m256) b);
#elif EBB_VEC_SSE2
  return (EbbVec) _mm_max_ps ((__m128) a, (__m128) b);
#else
  return vec_select (a > b, a, b);
#endif
}

/* a < b ? a : b */
EBB_VEC_INLINE EbbVec
vec_min (EbbVec a,
         EbbVec b)
{
#if EBB_VEC_AVX512
  return (EbbVec) _mm512_min_ps ((__m512) a, (__m512) b);
#elif EBB_VEC_AVX2
  return (EbbVec) _mm256_min_ps ((__m256) a, (__m256) b);
#elif EBB_VEC_SSE2
  return (EbbVec) _mm_min_ps ((__m128) a, (__m128) b);
#else
  return vec_select (a < b, a, b);
#endif
}

/* The larger or smaller; a NaN if one is a NaN. */
EBB_VEC_INLINE EbbVec
vec_max_nan (EbbVec a,
             EbbVec b)
{
  return vec_select (a != a, a, vec_max (a, b));
}

EBB_VEC_INLINE EbbVec
vec_min_nan (EbbVec a,
             EbbVec b)
{
  return vec_select (a != a, a, vec_min (a, b));
}

EBB_VEC_INLINE EbbVec
vec_sqrt (EbbVec v)
{
#if EBB_VEC_AVX512
  return (EbbVec) _mm512_sqrt_ps ((__m512) v);
#elif EBB_VEC_AVX2
  return (EbbVec) _mm256_sqrt_ps ((__m256) v);
#elif EBB_VEC_SSE2
  return (EbbVec) _mm_sqrt_ps ((__m128) v);
#else
  for (int k = 0; k < EBB_VEC_WIDTH; k++)
    v[k] = sqrtf (v[k]);
  return v;
#endif
}

EBB_VEC_INLINE EbbVec
vec_abs (EbbVec v)
{
  return (EbbVec) ((EbbVecI) v & 0x7fffffff);
}

/* The larger of a, which is a magnitude, and |b|; a NaN if one is a NaN. As integers magnitudes are in the order of the
 * numbers, and NaNs come behind infinity. */
EBB_VEC_INLINE EbbVec
vec_max_abs (EbbVec a,
             EbbVec b)
{
#if EBB_VEC_AVX512
  return (EbbVec) _mm512_max_epi32 ((__m512i) a, (__m512i) vec_abs (b));
#elif EBB_VEC_AVX2
  return (EbbVec) _mm256_max_epi32 ((__m256i) a, (__m256i) vec_abs (b));
#else
  return vec_select ((EbbVecI) a > (EbbVecI) vec_abs (b), a, vec_abs (b));
#endif
}

/* |magnitude| with the sign of sign */
EBB_VEC_INLINE EbbVec
vec_copysign (EbbVec magnitude,
              EbbVec sign)
{
  return (EbbVec) (((EbbVecU) magnitude & 0x7fffffffu) | ((EbbVecU) sign & 0x80000000u));
}

/* Lanes are added by halves: the order is fixed for a vector width. */
EBB_VEC_INLINE float
vec_sum (EbbVec v)
{
#if EBB_VEC_AVX512
  __m256 half = _mm256_add_ps (_mm512_castps512_ps256 ((__m512) v), _mm512_extractf32x8_ps ((__m512) v, 1));
  __m128 x = _mm_add_ps (_mm256_castps256_ps128 (half), _mm256_extractf128_ps (half, 1));
#elif EBB_VEC_AVX2
  __m128 x = _mm_add_ps (_mm256_castps256_ps128 ((__m256) v), _mm256_extractf128_ps ((__m256) v, 1));
#else
  EbbVec x = v;
#endif

  return (x[0] + x[2]) + (x[1] + x[3]);
}

EBB_VEC_INLINE float
vec_reduce_max_nan (EbbVec v)
{
  float best = v[0];

  for (int k = 1; k < EBB_VEC_WIDTH; k++)
    best = best > v[k] || best != best ? best : v[k];
  return best;
}

/* The largest lane of magnitudes; a NaN if one is a NaN. */
EBB_VEC_INLINE float
vec_reduce_max_abs (EbbVec v)
{
#if EBB_VEC_AVX512
  return _mm_cvtss_f32 (_mm_castsi128_ps (_mm_cvtsi32_si128 (_mm512_reduce_max_epi32 ((__m512i) v))));
#elif EBB_VEC_AVX2
  __m128i x = _mm_max_epi32 (_mm256_castsi256_si128 ((__m256i) v), _mm256_extracti128_si256 ((__m256i) v, 1));

  x = _mm_max_epi32 (x, _mm_shuffle_epi32 (x, 0x4e));
  x = _mm_max_epi32 (x, _mm_shuffle_epi32 (x, 0xb1));
  return _mm_cvtss_f32 (_mm_castsi128_ps (x));
#else
  EbbVecI lanes = (EbbVecI) v;

  for (int k = 1; k < EBB_VEC_WIDTH; k++)
    lanes[0] = MAX (lanes[0], lanes[k]);
  return ((EbbVec) lanes)[0];
#endif
}

EBB_VEC_INLINE float
vec_reduce_min_nan (EbbVec v)
{
  float best = v[0];

  for (int k = 1; k < EBB_VEC_WIDTH; k++)
    best = best < v[k] || best != best ? best : v[k];
  return best;
}

#include "tensor/cpu/simd/vec-math-private.h"
