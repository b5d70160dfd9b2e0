/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */

#include "tensor/cpu/simd/cursor-private.h"

/* Conversions of runs of elements between dtypes. */

static inline gint64
float_to_i64 (float f)
{
  if (f >= 9223372036854775808.0f)
    return G_MAXINT64;
  if (f < -9223372036854775808.0f)
    return G_MININT64;
  return f != f ? 0 : (gint64) f;
}

#define READ(type, expression)             \
  G_STMT_START                             \
  {                                        \
    const type *from = source;             \
                                           \
    if (stride == 0 && n > 0)              \
      {                                    \
        const type x = from[0];            \
                                           \
        out[0] = (expression);             \
        for (gint64 i = 1; i < n; i++)     \
          out[i] = out[0];                 \
      }                                    \
    else if (stride == 1)                  \
      for (gint64 i = 0; i < n; i++)       \
        {                                  \
          const type x = from[i];          \
                                           \
          out[i] = (expression);           \
        }                                  \
    else                                   \
      for (gint64 i = 0; i < n; i++)       \
        {                                  \
          const type x = from[i * stride]; \
                                           \
          out[i] = (expression);           \
        }                                  \
  }                                        \
  G_STMT_END

#define WRITE(type, expression)               \
  G_STMT_START                                \
  {                                           \
    type *to = target;                        \
                                              \
    if (stride == 1)                          \
      for (gint64 i = 0; i < n; i++)          \
        to[i] = (type) (expression);          \
    else                                      \
      for (gint64 i = 0; i < n; i++)          \
        to[i * stride] = (type) (expression); \
  }                                           \
  G_STMT_END

void
ebb_run_to_f32 (EbbDType dtype,
                const void *source,
                gint64 stride,
                gint64 n,
                float *out)
{
  switch (dtype)
    {
    case EBB_DTYPE_F32:
      if (stride == 1)
        EBB_VEC_FOR (i, m, n)
          vec_store_as (EBB_DTYPE_F32, out, i, m, vec_load_as (EBB_DTYPE_F32, source, i, m));
      else
        READ (float, x);
      break;
    case EBB_DTYPE_BF16:
      if (stride == 1)
        EBB_VEC_FOR (i, m, n)
          vec_store_as (EBB_DTYPE_F32, out, i, m, vec_load_as (EBB_DTYPE_BF16, source, i, m));
      else
        READ (guint16, ebb_bf16_to_float (x));
      break;
    case EBB_DTYPE_F16: READ (guint16, ebb_f16_to_float (x)); break;
    case EBB_DTYPE_I32: READ (gint32, (float) x); break;
    case EBB_DTYPE_I64: READ (gint64, (float) x); break;
    case EBB_DTYPE_U8:
    case EBB_DTYPE_BOOL: READ (guint8, (float) x); break;
    }
}

void
ebb_run_from_f32 (EbbDType dtype,
                  void *target,
                  gint64 stride,
                  gint64 n,
                  const float *in)
{
  switch (dtype)
    {
    case EBB_DTYPE_F32:
      if (stride == 1)
        EBB_VEC_FOR (i, m, n)
          vec_store_as (EBB_DTYPE_F32, target, i, m, vec_load_as (EBB_DTYPE_F32, in, i, m));
      else
        WRITE (float, in[i]);
      break;
    case EBB_DTYPE_BF16:
      if (stride == 1)
        EBB_VEC_FOR (i, m, n)
          vec_store_as (EBB_DTYPE_BF16, target, i, m, vec_load_as (EBB_DTYPE_F32, in, i, m));
      else
        WRITE (guint16, ebb_bf16_from_float (in[i]));
      break;
    case EBB_DTYPE_F16: WRITE (guint16, ebb_f16_from_float (in[i])); break;
    case EBB_DTYPE_I32: WRITE (gint32, float_to_i64 (in[i])); break;
    case EBB_DTYPE_I64: WRITE (gint64, float_to_i64 (in[i])); break;
    case EBB_DTYPE_U8: WRITE (guint8, float_to_i64 (in[i])); break;
    case EBB_DTYPE_BOOL: WRITE (guint8, in[i] != 0); break;
    }
}

void
ebb_run_to_i64 (EbbDType dtype,
                const void *source,
                gint64 stride,
                gint64 n,
                gint64 *out)
{
  switch (dtype)
    {
    case EBB_DTYPE_F32: READ (float, float_to_i64 (x)); break;
    case EBB_DTYPE_BF16: READ (guint16, float_to_i64 (ebb_bf16_to_float (x))); break;
    case EBB_DTYPE_F16: READ (guint16, float_to_i64 (ebb_f16_to_float (x))); break;
    case EBB_DTYPE_I32: READ (gint32, x); break;
    case EBB_DTYPE_I64: READ (gint64, x); break;
    case EBB_DTYPE_U8:
    case EBB_DTYPE_BOOL: READ (guint8, x); break;
    }
}

void
ebb_run_from_i64 (EbbDType dtype,
                  void *target,
                  gint64 stride,
                  gint64 n,
                  const gint64 *in)
{
  switch (dtype)
    {
    case EBB_DTYPE_F32: WRITE (float, in[i]); break;
    case EBB_DTYPE_BF16: WRITE (guint16, ebb_bf16_from_float ((float) in[i])); break;
    case EBB_DTYPE_F16: WRITE (guint16, ebb_f16_from_float ((float) in[i])); break;
    case EBB_DTYPE_I32: WRITE (gint32, in[i]); break;
    case EBB_DTYPE_I64: WRITE (gint64, in[i]); break;
    case EBB_DTYPE_U8: WRITE (guint8, in[i]); break;
    case EBB_DTYPE_BOOL: WRITE (guint8, in[i] != 0); break;
    }
}
