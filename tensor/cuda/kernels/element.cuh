/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* One element of any dtype as an f32 or an i64 and back, by the rules of tensor/cpu/simd/convert.c, and runs of
 * elements. */

#include "tensor/cuda/kernels/device.cuh"
#include "tensor/cuda/kernels-private.h"

/* -- numbers ------------------------------------------------------------------------------------------------------- */

static __device__ __forceinline__ gint64
float_to_i64 (float value)
{
  if (value >= 9223372036854775808.0f)
    return G_MAXINT64;
  if (value < -9223372036854775808.0f)
    return G_MININT64;
  return value != value ? 0 : (gint64) value;
}

static __host__ __device__ __forceinline__ gint64
double_to_i64 (double value)
{
  if (value >= 9223372036854775808.0)
    return G_MAXINT64;
  if (value < -9223372036854775808.0)
    return G_MININT64;
  return value != value ? 0 : (gint64) value;
}

/* -- one element --------------------------------------------------------------------------------------------------- */

static __device__ __forceinline__ float
load_float (EbbDType dtype,
            const void *data,
            gint64 i)
{
  switch (dtype)
    {
    case EBB_DTYPE_F32: return ((const float *) data)[i];
    case EBB_DTYPE_BF16: return to_float (((const Bf16 *) data)[i]);
    case EBB_DTYPE_F16: return f16_to_float (((const guint16 *) data)[i]);
    case EBB_DTYPE_I32: return (float) ((const gint32 *) data)[i];
    case EBB_DTYPE_I64: return (float) ((const gint64 *) data)[i];
    default: return (float) ((const guint8 *) data)[i];
    }
}

static __device__ __forceinline__ void
store_float (EbbDType dtype,
             void *data,
             gint64 i,
             float value)
{
  switch (dtype)
    {
    case EBB_DTYPE_F32: ((float *) data)[i] = value; break;
    case EBB_DTYPE_BF16: ((Bf16 *) data)[i] = from_float<Bf16> (value); break;
    case EBB_DTYPE_F16: ((guint16 *) data)[i] = f16_from_float (value); break;
    case EBB_DTYPE_I32: ((gint32 *) data)[i] = (gint32) float_to_i64 (value); break;
    case EBB_DTYPE_I64: ((gint64 *) data)[i] = float_to_i64 (value); break;
    case EBB_DTYPE_U8: ((guint8 *) data)[i] = (guint8) float_to_i64 (value); break;
    case EBB_DTYPE_BOOL: ((guint8 *) data)[i] = value != 0; break;
    }
}

static __device__ __forceinline__ gint64
load_integer (EbbDType dtype,
              const void *data,
              gint64 i)
{
  switch (dtype)
    {
    case EBB_DTYPE_F32:
    case EBB_DTYPE_BF16:
    case EBB_DTYPE_F16: return float_to_i64 (load_float (dtype, data, i));
    case EBB_DTYPE_I32: return ((const gint32 *) data)[i];
    case EBB_DTYPE_I64: return ((const gint64 *) data)[i];
    default: return ((const guint8 *) data)[i];
    }
}

static __device__ __forceinline__ void
store_integer (EbbDType dtype,
               void *data,
               gint64 i,
               gint64 value)
{
  switch (dtype)
    {
    case EBB_DTYPE_F32:
    case EBB_DTYPE_BF16:
    case EBB_DTYPE_F16: store_float (dtype, data, i, (float) value); break;
    case EBB_DTYPE_I32: ((gint32 *) data)[i] = (gint32) value; break;
    case EBB_DTYPE_I64: ((gint64 *) data)[i] = value; break;
    case EBB_DTYPE_U8: ((guint8 *) data)[i] = (guint8) value; break;
    case EBB_DTYPE_BOOL: ((guint8 *) data)[i] = value != 0; break;
    }
}

static __host__ __device__ __forceinline__ bool
is_float_dtype (EbbDType dtype)
{
  return dtype == EBB_DTYPE_F32 || dtype == EBB_DTYPE_BF16 || dtype == EBB_DTYPE_F16;
}

static inline gint64
get_dtype_size (EbbDType dtype)
{
  switch (dtype)
    {
    case EBB_DTYPE_I64: return 8;
    case EBB_DTYPE_F32:
    case EBB_DTYPE_I32: return 4;
    case EBB_DTYPE_BF16:
    case EBB_DTYPE_F16: return 2;
    default: return 1;
    }
}

/* -- runs of T (float or Bf16) that fill 16 bytes ------------------------------------------------------------------ */

template <typename T>
static __device__ __forceinline__ void
unpack_run (const uint4 &packed,
            float (&values)[VectorSize<T>::value])
{
  union
  {
    uint4 all;
    T each[VectorSize<T>::value];
  } run;

  run.all = packed;
#pragma unroll
  for (int k = 0; k < VectorSize<T>::value; k++)
    values[k] = to_float (run.each[k]);
}

template <typename T>
static __device__ __forceinline__ void
load_run (const T *data,
          float (&values)[VectorSize<T>::value])
{
  unpack_run<T> (*reinterpret_cast<const uint4 *> (data), values);
}

static __device__ __forceinline__ uint4
pack_run (const float (&values)[4])
{
  return uint4{ __float_as_uint (values[0]), __float_as_uint (values[1]), __float_as_uint (values[2]),
                __float_as_uint (values[3]) };
}

static __device__ __forceinline__ uint4
pack_run (const float (&values)[8])
{
  return uint4{ pack_bf16 (values[0], values[1]), pack_bf16 (values[2], values[3]), pack_bf16 (values[4], values[5]),
                pack_bf16 (values[6], values[7]) };
}

template <typename T>
static __device__ __forceinline__ void
store_run (T *data,
           const float (&values)[VectorSize<T>::value])
{
  *reinterpret_cast<uint4 *> (data) = pack_run (values);
}
