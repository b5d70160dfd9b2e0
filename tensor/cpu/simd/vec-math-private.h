/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "tensor/cpu/simd/vec-private.h"

/* Elementary functions on vectors, within about 2 units in the last place over the whole range of f32. The polynomials
 * are minimax fits (Remez) of the functions that stand beside them. */

EBB_VEC_INLINE EbbVec
vec_exp (EbbVec x)
{
  const float shift = 12582912.0f; /* 1.5 * 2^23: adding it rounds to an integer that stands in the low bits */
  EbbVec clamped = vec_min (vec_set1 (89.0f), vec_max (vec_set1 (-104.0f), x));
  EbbVec t = vec_rounded (vec_fma (clamped, vec_set1 (1.44269504f), vec_set1 (shift)));
  EbbVec n = t - shift;
  EbbVec r = vec_fma (n, vec_set1 (-0.693359375f), clamped); /* ln 2 in two parts, the first exact for any n */
  EbbVec p;

  r = vec_fma (n, vec_set1 (2.12194440e-4f), r);
  /* (e^r - 1 - r) / r^2 on |r| <= ln 2 / 2 */
  p = vec_fma (vec_set1 (1.381401172e-03f), r, vec_set1 (8.369000803e-03f));
  p = vec_fma (p, r, vec_set1 (4.166841566e-02f));
  p = vec_fma (p, r, vec_set1 (1.666651828e-01f));
  p = vec_fma (p, r, vec_set1 (4.999999329e-01f));
  p = vec_fma (p * r, r, r) + 1.0f;
#if EBB_VEC_AVX512
  return (EbbVec) _mm512_scalef_ps ((__m512) p, (__m512) n);
#else
  {
    EbbVecI e = (EbbVecI) t - 0x4b400000; /* the bits of shift */
    EbbVecI e1 = e >> 1;

    /* In two steps, so that 2^e itself may be out of range where the result is not, or is denormal. */
    return p * (EbbVec) ((e1 + 127) << 23) * (EbbVec) ((e - e1 + 127) << 23);
  }
#endif
}

/* 2^x for x < 128, within 1.5 units in the last place where the result is normal. A NaN stays one. */
EBB_VEC_INLINE EbbVec
vec_exp2 (EbbVec x)
{
#if EBB_VEC_AVX512
  EbbVec clamped = vec_max (vec_set1 (-151.0f), x);
  EbbVec n = (EbbVec) _mm512_roundscale_ps ((__m512) clamped, 0);
#else
  const float shift = 12582912.0f; /* as in vec_exp () */
  EbbVec clamped = vec_max (vec_set1 (-151.0f), x);
  EbbVec t = vec_rounded (clamped + shift);
  EbbVec n = t - shift;
#endif
  EbbVec f = clamped - n;
  EbbVec p;

  /* (2^f - 1) / f on |f| <= 1/2 */
  p = vec_fma (vec_set1 (1.326465863e-03f), f, vec_set1 (9.671566077e-03f));
  p = vec_fma (p, f, vec_set1 (5.550734326e-02f));
  p = vec_fma (p, f, vec_set1 (2.402224094e-01f));
  p = vec_fma (p, f, vec_set1 (6.931470037e-01f));
  p = vec_fma (p, f, vec_set1 (1.0f));
#if EBB_VEC_AVX512
  return (EbbVec) _mm512_scalef_ps ((__m512) p, (__m512) n);
#else
  {
    EbbVecI e = (EbbVecI) t - 0x4b400000;
    EbbVecI e1 = e >> 1;

    return p * (EbbVec) ((e1 + 127) << 23) * (EbbVec) ((e - e1 + 127) << 23);
  }
#endif
}

EBB_VEC_INLINE EbbVec
vec_log (EbbVec x)
{
  EbbVecI tiny = x < 1.17549435e-38f;
  EbbVecI bits = (EbbVecI) vec_select (tiny, x * 8388608.0f, x);
  EbbVecI above = bits - 0x3f3504f3; /* the bits of sqrt (0.5) */
  EbbVec e = __builtin_convertvector((above >> 23) + (tiny & -23), EbbVec);
  EbbVec f = (EbbVec) (bits - (above & (gint32) 0xff800000)) - 1.0f;
  EbbVec square = f * f;
  EbbVec p;
  EbbVec result;

  /* (log (1 + f) - f + f^2 / 2) / f^3 on [sqrt (0.5) - 1, sqrt (2) - 1] */
  p = vec_fma (vec_set1 (-7.640326099e-02f), f, vec_set1 (1.277035309e-01f));
  p = vec_fma (p, f, vec_set1 (-1.316217890e-01f));
  p = vec_fma (p, f, vec_set1 (1.420072722e-01f));
  p = vec_fma (p, f, vec_set1 (-1.662306206e-01f));
  p = vec_fma (p, f, vec_set1 (2.000125977e-01f));
  p = vec_fma (p, f, vec_set1 (-2.500082946e-01f));
  p = vec_fma (p, f, vec_set1 (3.333333145e-01f));
  p = vec_fma (p * f, square, e * -2.12194440e-4f);
  p = vec_fma (square, vec_set1 (-0.5f), p) + f;
  result = vec_fma (e, vec_set1 (0.693359375f), p);

  result = vec_select (x < INFINITY, result, x);
  result = vec_select (x == 0.0f, vec_set1 (-INFINITY), result);
  return vec_select (x < 0.0f, vec_set1 (NAN), result);
}

/* 1 / (1 + e^-x), exact in the relative sense on both sides */
EBB_VEC_INLINE EbbVec
vec_sigmoid (EbbVec x)
{
  EbbVec e = vec_exp (-vec_abs (x));

  return vec_select (x < 0.0f, e, vec_set1 (1.0f)) / (1.0f + e);
}

/* That, and 1 minus that, which also is exact in the relative sense */
EBB_VEC_INLINE EbbVec
vec_sigmoid_both (EbbVec x,
                  EbbVec *complement)
{
  EbbVec e = vec_exp (-vec_abs (x));
  EbbVec large = 1.0f / (1.0f + e);
  EbbVec small = e * large;
  EbbVecI is_negative = x < 0.0f;

  *complement = vec_select (is_negative, large, small);
  return vec_select (is_negative, small, large);
}

EBB_VEC_INLINE EbbVec
vec_tanh (EbbVec x)
{
  EbbVec a = vec_abs (x);
  EbbVec z = x * x;
  EbbVec e = vec_exp (-2.0f * a);
  EbbVec large = (1.0f - e) / (1.0f + e);
  EbbVec p;

  /* (tanh (a) / a - 1) / a^2 on [0, 0.64], in a^2 */
  p = vec_fma (vec_set1 (-5.591011723e-03f), z, vec_set1 (2.053881550e-02f));
  p = vec_fma (p, z, vec_set1 (-5.370965592e-02f));
  p = vec_fma (p, z, vec_set1 (1.333109223e-01f));
  p = vec_fma (p, z, vec_set1 (-3.333326952e-01f));
  p = vec_fma (p * z, a, a);
  return vec_copysign (vec_select (a < 0.625f, p, large), x);
}

/* cap tanh (x / cap), and its slope from that value */
EBB_VEC_INLINE EbbVec
vec_soft_cap (EbbVec x,
              float cap)
{
  return vec_tanh (x / cap) * cap;
}

EBB_VEC_INLINE EbbVec
vec_soft_cap_slope (EbbVec y,
                    float cap)
{
  EbbVec t = y / cap;

  return (1.0f - t) * (1.0f + t);
}

/* log (erfc (a)) on [0.92, 3.95] */
EBB_VEC_INLINE EbbVec
vec_log_erfc_ (EbbVec a)
{
  EbbVec q;

  q = vec_fma (vec_set1 (1.959367173e-04f), a, vec_set1 (-3.043212720e-03f));
  q = vec_fma (q, a, vec_set1 (2.222690335e-02f));
  q = vec_fma (q, a, vec_set1 (-1.039315649e-01f));
  q = vec_fma (q, a, vec_set1 (-6.371822801e-01f));
  q = vec_fma (q, a, vec_set1 (-1.127675609e+00f));
  return vec_fma (q, a, vec_set1 (-1.956793764e-04f));
}

/* erf (a) on [0, 0.93] */
EBB_VEC_INLINE EbbVec
vec_erf_small_ (EbbVec a)
{
  EbbVec z = a * a;
  EbbVec p;

  p = vec_fma (vec_set1 (8.316775768e-05f), z, vec_set1 (-8.130012836e-04f));
  p = vec_fma (p, z, vec_set1 (5.199906687e-03f));
  p = vec_fma (p, z, vec_set1 (-2.685894152e-02f));
  p = vec_fma (p, z, vec_set1 (1.128368719e-01f));
  p = vec_fma (p, z, vec_set1 (-3.761263319e-01f));
  p = vec_fma (p, z, vec_set1 (1.283791666e-01f));
  return vec_fma (p, a, a);
}

EBB_VEC_INLINE EbbVec
vec_erf (EbbVec x)
{
  EbbVec a = vec_abs (x);
  EbbVec large = 1.0f - vec_exp (vec_log_erfc_ (vec_min (vec_set1 (3.95f), a)));

  return vec_copysign (vec_select (a < 0.925f, vec_erf_small_ (a), large), x);
}

/* The standard normal distribution function: (1 + erf (x / sqrt (2))) / 2 without cancellation down to x = -5.58 */
EBB_VEC_INLINE EbbVec
vec_normal_cdf (EbbVec x)
{
  EbbVec z = x * 0.707106781f;
  EbbVec a = vec_abs (z);
  EbbVec tail = 0.5f * vec_exp (vec_log_erfc_ (vec_min (vec_set1 (3.95f), a)));
  EbbVec small = vec_fma (vec_copysign (vec_erf_small_ (a), x), vec_set1 (0.5f), vec_set1 (0.5f));

  tail = vec_select (a > 3.95f, (EbbVec){ 0 }, tail);
  return vec_select (a < 0.925f, small, vec_select (x < 0.0f, tail, 1.0f - tail));
}

/* sin and cos of (quarter + f) quarter turns, |f| <= 1/2 */
EBB_VEC_INLINE void
vec_sincos_quarters (EbbVecI quarter,
                     EbbVec f,
                     EbbVec *sine,
                     EbbVec *cosine)
{
  EbbVecI swap = (quarter & 1) == 1;
  EbbVec z = f * f;
  EbbVec s, c;

  s = vec_fma (vec_set1 (1.581950744e-04f), z, vec_set1 (-4.681260628e-03f));
  s = vec_fma (s, z, vec_set1 (7.969258184e-02f));
  s = vec_fma (s, z, vec_set1 (-6.459640961e-01f));
  s = vec_fma (s, z, vec_set1 (1.570796327e+00f)) * f;
  c = vec_fma (vec_set1 (9.037665267e-04f), z, vec_set1 (-2.086016510e-02f));
  c = vec_fma (c, z, vec_set1 (2.536692260e-01f));
  c = vec_fma (c, z, vec_set1 (-1.233700543e+00f));
  c = vec_fma (c, z, vec_set1 (1.0f));
  *sine = (EbbVec) ((EbbVecU) vec_select (swap, c, s) ^ (((EbbVecU) quarter & 2) << 30));
  *cosine = (EbbVec) ((EbbVecU) vec_select (swap, s, c) ^ ((((EbbVecU) quarter + 1) & 2) << 30));
}

/* sin and cos of 2 pi t, t in [0, 1] */
EBB_VEC_INLINE void
vec_sincos_turns (EbbVec t,
                  EbbVec *sine,
                  EbbVec *cosine)
{
  const float shift = 12582912.0f;
  EbbVec rounded = vec_rounded (vec_fma (t, vec_set1 (4.0f), vec_set1 (shift)));
  EbbVec f = vec_fma (t, vec_set1 (4.0f), -(rounded - shift)); /* in quarter turns: |f| <= 1/2 */

  vec_sincos_quarters ((EbbVecI) rounded, f, sine, cosine);
}
