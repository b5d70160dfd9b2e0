/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Activation functions and their slopes, in f32, with the care for tails of tensor/cpu/simd/vec-math-private.h and
 * gelu-private.h. */

#include "tensor/cuda/kernels/device.cuh"
#include "tensor/cuda/kernels-private.h"

/* 1 / (1 + e^-x) and 1 minus that, both within some 2^-22 of their own size. */
static __device__ __forceinline__ float
sigmoid_both (float x,
              float *complement)
{
  float e = expf (-fabsf (x)), large = reciprocal_fast (1.0f + e), small = e * large;

  *complement = x < 0.0f ? large : small;
  return x < 0.0f ? small : large;
}

static __device__ __forceinline__ float
sigmoid (float x)
{
  float e = expf (-fabsf (x));

  return (x < 0.0f ? e : 1.0f) * reciprocal_fast (1.0f + e);
}

/* The standard normal distribution function. */
static __device__ __forceinline__ float
normal_cdf (float x)
{
  return 0.5f * erfcf (x * -0.707106781f);
}

/* GELU (Hendrycks, Gimpel 2016): x Phi (x), or x sigmoid (2 u) with u = sqrt (2 / pi) (x + 0.044715 x^3). */
static __device__ __forceinline__ float
gelu (bool is_tanh,
      float x)
{
  if (is_tanh)
    return x * sigmoid (x * fmaf (x * x, 0.0713548162726f, 1.59576912161f));
  return x * normal_cdf (x);
}

static __device__ __forceinline__ float
gelu_slope (bool is_tanh,
            float x)
{
  /* Beyond 15 the slope is 0 or 1, and powers of x would overflow. A NaN stays. */
  float c = x < -15.0f ? -15.0f : (x > 15.0f ? 15.0f : x);
  float square = c * c, complement, s;

  if (!is_tanh)
    return fmaf (c * 0.398942280401f, expf (-0.5f * square), normal_cdf (c));
  s = sigmoid_both (c * fmaf (square, 0.0713548162726f, 1.59576912161f), &complement);
  return fmaf (s * complement, c * fmaf (square, 0.2140644488178f, 1.59576912161f), s);
}

static __device__ __forceinline__ float
silu_slope (float x)
{
  float complement, s = sigmoid_both (x, &complement);

  return s * fmaf (x, complement, 1.0f);
}

/* The op of a gated activation: GELU, GELU_TANH or SILU. */
static __device__ __forceinline__ float
activate (EbbUnaryOp op,
          float x)
{
  return op == EBB_UNARY_SILU ? x * sigmoid (x) : gelu (op == EBB_UNARY_GELU_TANH, x);
}

static __device__ __forceinline__ float
activate_slope (EbbUnaryOp op,
                float x)
{
  /* Beyond 200 the slope of SiLU is 0 or 1, and infinity times 0 would be neither. A NaN stays. */
  if (op == EBB_UNARY_SILU)
    return silu_slope (x < -200.0f ? -200.0f : (x > 200.0f ? 200.0f : x));
  return gelu_slope (op == EBB_UNARY_GELU_TANH, x);
}

static __device__ __forceinline__ float
soft_cap (float x,
          float cap)
{
  return tanhf (x / cap) * cap;
}

/* The slope of a soft cap, from its result. */
static __device__ __forceinline__ float
soft_cap_slope (float y,
                float cap)
{
  float t = y / cap;

  return (1.0f - t) * (1.0f + t);
}
