/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* An optimizer's moments in 8 bits and in bf16: the codes, their positions and the draws are those of
 * tensor/cpu/simd/moment-private.h, which explains them. A warp works on a block of EBB_MOMENT_BLOCK elements. */

#include "tensor/cuda/kernels/element.cuh"

#define MOMENT_TOP_UNSIGNED 0.99648438f /* position 255.5 */
#define MOMENT_TOP_SIGNED 0.99296875f   /* position 255 */
#define MOMENT_LANE 8                   /* elements of a lane */

/* Element k of a lane in its block: four neighbours in the first half, and the same four in the second, since one
 * Philox block has the draws of both. */
static __device__ __forceinline__ int
moment_find (unsigned lane,
             int k)
{
  return (int) lane * 4 + k % 4 + k / 4 * (EBB_MOMENT_BLOCK / 2);
}

template <typename T>
struct alignas (4 * sizeof (T)) Four
{
  T each[4];
};

/* The elements of a lane from a block of n: four at a time, unless the block isn't full or its address is odd. Those
 * behind n are 0. */
template <typename T>
static __device__ __forceinline__ void
load_lane (const T *block,
           int n,
           unsigned lane,
           T (&values)[MOMENT_LANE])
{
  if (n == EBB_MOMENT_BLOCK && (uintptr_t) block % sizeof (Four<T>) == 0)
    {
#pragma unroll
      for (int first = 0; first < MOMENT_LANE; first += 4)
        {
          const Four<T> four = *(const Four<T> *) (block + moment_find (lane, first));

#pragma unroll
          for (int k = 0; k < 4; k++)
            values[first + k] = four.each[k];
        }
      return;
    }
#pragma unroll
  for (int k = 0; k < MOMENT_LANE; k++)
    values[k] = moment_find (lane, k) < n ? block[moment_find (lane, k)] : T{};
}

template <typename T>
static __device__ __forceinline__ void
store_lane (T *block,
            int n,
            unsigned lane,
            const T (&values)[MOMENT_LANE])
{
  if (n == EBB_MOMENT_BLOCK && (uintptr_t) block % sizeof (Four<T>) == 0)
    {
#pragma unroll
      for (int first = 0; first < MOMENT_LANE; first += 4)
        *(Four<T> *) (block + moment_find (lane, first)) = { values[first], values[first + 1], values[first + 2],
                                                             values[first + 3] };
      return;
    }
#pragma unroll
  for (int k = 0; k < MOMENT_LANE; k++)
    if (moment_find (lane, k) < n)
      block[moment_find (lane, k)] = values[k];
}

/* 16 bits for an element of a full parameter. */
static __device__ __forceinline__ guint32
moment_draw_one (guint64 seed,
                 guint64 offset,
                 gint64 element)
{
  const unsigned place = (unsigned) (element % EBB_MOMENT_BLOCK), word = place % (EBB_MOMENT_BLOCK / 2);
  guint32 words[4], low, high;

  philox_block (seed, offset + (guint64) (element / EBB_MOMENT_BLOCK) * (EBB_MOMENT_BLOCK / 8) + word / 4, words);
  low = word & 1 ? words[1] : words[0];
  high = word & 1 ? words[3] : words[2];
  return (word & 2 ? high : low) >> (place < EBB_MOMENT_BLOCK / 2 ? 0 : 16) & 0xffff;
}

/* 16 bits for each element of a lane, in a block that begins at element first of the full parameter. */
static __device__ __forceinline__ void
moment_draw (guint64 seed,
             guint64 offset,
             gint64 first,
             unsigned lane,
             guint32 (&draws)[MOMENT_LANE])
{
  guint32 words[4];

  if (first % EBB_MOMENT_BLOCK != 0) /* the shard begins inside a block */
    {
#pragma unroll 1 /* or registers run out */
      for (int k = 0; k < MOMENT_LANE; k++)
        {
          const guint32 draw = moment_draw_one (seed, offset, first + moment_find (lane, k));

#pragma unroll
          for (int j = 0; j < MOMENT_LANE; j++)
            draws[j] = j == k ? draw : draws[j];
        }
      return;
    }
  philox_block (seed, offset + (guint64) (first / EBB_MOMENT_BLOCK) * (EBB_MOMENT_BLOCK / 8) + lane, words);
#pragma unroll
  for (int k = 0; k < MOMENT_LANE; k++)
    draws[k] = words[k % 4] >> (k < 4 ? 0 : 16) & 0xffff;
}

/* Rounds down or up, up with the probability that makes the mean right. */
static __device__ __forceinline__ Bf16
to_bf16_stochastic (float value,
                    guint32 draw)
{
  guint32 bits = __float_as_uint (value);

  bits = value != value ? bits | 0x400000 : bits + draw;
  return Bf16{ (guint16) (bits >> 16) };
}

/* One of eight numbers, by the bits of e. */
static __device__ __forceinline__ float
moment_choose (int e,
               const float (&of)[8])
{
  float low = e & 2 ? (e & 1 ? of[3] : of[2]) : (e & 1 ? of[1] : of[0]);
  float high = e & 2 ? (e & 1 ? of[7] : of[6]) : (e & 1 ? of[5] : of[4]);

  return e & 4 ? high : low;
}

/* 10^(e - 7) for e = 0 to 7 */
static __device__ __forceinline__ float
moment_power (int e)
{
  return moment_choose (e, { 1e-7f, 1e-6f, 1e-5f, 1e-4f, 1e-3f, 1e-2f, 1e-1f, 1 });
}

/* 10^(7 - e) / 0.9 */
static __device__ __forceinline__ float
moment_inverse (int e)
{
  return moment_choose (e, { 1e7f / 0.9f, 1e6f / 0.9f, 1e5f / 0.9f, 1e4f / 0.9f, 1e3f / 0.9f, 1e2f / 0.9f, 1e1f / 0.9f,
                             1 / 0.9f });
}

/* The value at a position on the axis; 0 below 1. */
static __device__ __forceinline__ float
moment_value (float position)
{
  guint32 bits = __float_as_uint (position);
  float fraction = __uint_as_float ((bits & 0x7fffff) | 0x3f800000); /* position / 2^e */

  return position >= 1.0f ? moment_power (((int) (bits >> 23) - 127) & 7) * fmaf (0.9f, fraction, -0.8f) : 0.0f;
}

/* Where on the axis x in [0, 1) lies; less than 1 if it lies below the first cell. */
static __device__ __forceinline__ float
moment_position (float x)
{
  int exponent = (int) (__float_as_uint (x) >> 23) - 127;
  /* e is 8 + floor (log10 (x)): that of the power of two below x, or one more. 1233 / 4096 is log10 (2). */
  int e = ((exponent * 1233) >> 12) + 8;

  if (x >= __fmul_rn (moment_power ((e + 1) & 7), 0.1f) && e < 7)
    e++;
  if (e < 0)
    return 0.0f;
  return __uint_as_float ((guint32) (e + 127) << 23) * fmaf (moment_inverse (e & 7), x, 8.0f / 9.0f);
}

static __device__ __forceinline__ float
moment_decode (bool is_signed,
               guint8 code)
{
  guint32 magnitude = code & (is_signed ? 0x7f : 0xff);
  /* the middle of the cell; code 0 is left below 1 */
  float position = (float) magnitude * (is_signed ? 2.0f : 1.0f) + (is_signed ? 1.0f : 0.5f);
  float value = moment_value (position);

  if (!is_signed)
    return value;
  return __uint_as_float (__float_as_uint (magnitude != 0 ? value : 0.0f) | (guint32) (code & 0x80) << 24);
}

/* The code of the cell in which x, divided by its scale, lies. Unsigned: a value above 0 stays above 0. */
static __device__ __forceinline__ guint8
moment_encode (bool is_signed,
               float x)
{
  float position = moment_position (fabsf (x));
  int code = (int) (position > 255.0f ? 255.0f : position);

  if (!is_signed)
    return (guint8) (code | (x > 0.0f && code == 0));
  return (guint8) (code >> 1 | (__float_as_uint (x) >> 31) << 7);
}

static __device__ __forceinline__ float
moment_get_top (bool is_signed)
{
  return is_signed ? MOMENT_TOP_SIGNED : MOMENT_TOP_UNSIGNED;
}

/* n: elements of the block. The elements of a lane beyond it become 0. */
static __device__ __forceinline__ void
moment_decode_block (bool is_signed,
                     const guint8 *codes,
                     float absmax,
                     int n,
                     unsigned lane,
                     float (&values)[MOMENT_LANE])
{
  float scale = absmax / moment_get_top (is_signed);
  guint8 own[MOMENT_LANE];

  load_lane (codes, n, lane, own);
#pragma unroll
  for (int k = 0; k < MOMENT_LANE; k++)
    values[k] = moment_find (lane, k) < n ? scale * moment_decode (is_signed, own[k]) : 0.0f;
}

/* All lanes must call it. A value that is not finite makes the scale not finite, and so all values that are read. */
static __device__ __forceinline__ void
moment_encode_block (bool is_signed,
                     const float (&values)[MOMENT_LANE],
                     int n,
                     unsigned lane,
                     guint8 *codes,
                     float *absmax)
{
  float largest = 0.0f, scale;
  guint8 own[MOMENT_LANE];

#pragma unroll
  for (int k = 0; k < MOMENT_LANE; k++)
    if (moment_find (lane, k) < n)
      largest = Max::join (fabsf (values[k]), largest);
  largest = warp_max (largest);
  if (lane == 0)
    *absmax = largest;
  scale = moment_get_top (is_signed) / largest;
  /* Of a block of zeros, or of numbers so small that 1 / absmax overflows, nothing is kept. */
  if (!(scale <= G_MAXFLOAT))
    scale = 0.0f;
#pragma unroll
  for (int k = 0; k < MOMENT_LANE; k++)
    own[k] = moment_encode (is_signed, scale * values[k]);
  store_lane (codes, n, lane, own);
}
