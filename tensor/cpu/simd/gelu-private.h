/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "tensor/cpu/simd/vec-private.h"

/* GELU (Hendrycks, Gimpel 2016): x Phi (x), or with the tanh approximation x (1 + tanh (u)) / 2, which is
 * x sigmoid (2 u), u = sqrt (2 / pi) (x + 0.044715 x^3). tanh is known where this is inlined. */

EBB_VEC_INLINE EbbVec
vec_gelu (gboolean tanh,
          EbbVec x)
{
  EbbVec square = x * x;

  if (tanh)
    return x * vec_sigmoid (x * vec_fma (square, vec_set1 (0.0713548162726f), vec_set1 (1.59576912161f)));
  return x * vec_normal_cdf (x);
}

EBB_VEC_INLINE EbbVec
vec_gelu_slope (gboolean tanh,
                EbbVec x)
{
  /* Beyond 15 the slope is 0 or 1, and powers of x would overflow. */
  EbbVec c = vec_min (vec_set1 (15.0f), vec_max (vec_set1 (-15.0f), x));
  EbbVec square = c * c;

  if (tanh)
    {
      EbbVec u = c * vec_fma (square, vec_set1 (0.0713548162726f), vec_set1 (1.59576912161f));
      EbbVec complement, s = vec_sigmoid_both (u, &complement);
      EbbVec inner = c * vec_fma (square, vec_set1 (0.2140644488178f), vec_set1 (1.59576912161f));

      return vec_fma (s * complement, inner, s);
    }
  return vec_fma (c * 0.398942280401f, vec_exp (-0.5f * square), vec_normal_cdf (c));
}
