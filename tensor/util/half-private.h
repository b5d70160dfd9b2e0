/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <glib.h>

/* One element of bf16 or f16 to f32 and back. */

G_BEGIN_DECLS

static inline float
ebb_bf16_to_float (guint16 h)
{
  union
  {
    guint32 u;
    float f;
  } bits = { .u = (guint32) h << 16 };

  return bits.f;
}

/* To the nearest, ties to even; a NaN stays one. */
static inline guint16
ebb_bf16_from_float (float f)
{
  union
  {
    float f;
    guint32 u;
  } bits = { .f = f };

  if (f != f)
    return (guint16) ((bits.u | 0x400000) >> 16);
  return (guint16) ((bits.u + 0x7fff + ((bits.u >> 16) & 1)) >> 16);
}

static inline float
ebb_f16_to_float (guint16 h)
{
  guint32 sign = (guint32) (h & 0x8000) << 16;
  guint32 rest = h & 0x7fff;
  union
  {
    guint32 u;
    float f;
  } bits;

  if (rest >= 0x7c00) /* infinity and NaN */
    bits.u = 0x7f800000 | (rest & 0x3ff) << 13;
  else if (rest >= 0x400)
    bits.u = (rest << 13) + ((127 - 15) << 23);
  else /* denormal: rest * 2^-24, which f32 holds exactly */
    bits.f = (float) rest * 5.9604644775390625e-8f;
  bits.u |= sign;
  return bits.f;
}

/* To the nearest, ties to even; too large becomes infinity. */
static inline guint16
ebb_f16_from_float (float f)
{
  union
  {
    float f;
    guint32 u;
  } bits = { .f = f };
  guint32 sign = bits.u >> 16 & 0x8000;
  guint32 rest = bits.u & 0x7fffffff;

  if (rest > 0x7f800000)
    return (guint16) (sign | 0x7e00 | (rest >> 13 & 0x3ff));
  if (rest >= 0x477ff000) /* 65520 and more */
    return (guint16) (sign | 0x7c00);
  if (rest < 0x38800000) /* below 2^-14: adding 0.5 leaves the rounded multiple of 2^-24 in the low bits */
    {
      bits.u = rest;
      bits.f += 0.5f;
      return (guint16) (sign | (bits.u - 0x3f000000));
    }
  rest += 0xfff + (rest >> 13 & 1);
  return (guint16) (sign | ((rest - ((127 - 15) << 23)) >> 13));
}

G_END_DECLS
