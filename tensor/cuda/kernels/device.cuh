/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* The language of kernels, and the one header that they include for it: launches, shared memory, elements, vectors of
 * 16 bytes. Its parts hold tensor cores and asynchronous copies (tensor-core.cuh), sums of
 * warps and blocks (reduction.cuh), random numbers (philox.cuh) and faults (fault.cuh).
 *
 * nvcc compiles it for a GPU. A compiler for the CPU finds another <cuda_runtime.h> (tests/cudaemu/include), which
 * emulates CUDA's execution model. So kernels use only what both have:
 *
 *   EBB_CUDA_LAUNCH, EBB_SHARED, EBB_SHARED_ARRAY, threadIdx, blockIdx, blockDim, gridDim
 *   __syncthreads, __syncthreads_or/_and/_count, __syncwarp, __shfl_*_sync, __ballot_sync, __any_sync, __all_sync
 *   atomicAdd, atomicMin, atomicMax, atomicExch, atomicCAS on integers; __threadfence
 *   the functions of math.h for float and double; float2, float4, uint2, uint4 and the like
 *   the functions of these headers
 *
 * A mask names all lanes that make the call; the threads of a block pass all of its barriers or none. */

#include <math.h>
#include <stdint.h>

#include <mutex>
#include <vector>

#include <cuda_runtime.h>

#define EBB_CUDA_ALL_LANES 0xffffffffu
#define EBB_CUDA_WARP 32

/* -- launches ------------------------------------------------------------------------------------------------------ */

/* EBB_CUDA_LAUNCH (kernel, grid, block, shared_bytes, stream, arguments...): cudaSuccess, or why it was not enqueued.
 * kernel may be a template's instance: scale<float, 4>. A grid or block without any threads is an error. */
#define EBB_CUDA_LAUNCH(...) ebb_cuda_launch (#__VA_ARGS__, __VA_ARGS__)

#if defined(__CUDACC__)
template <typename... P, typename... A>
static inline cudaError_t
ebb_cuda_launch (const char *,
                 void (*kernel) (P...),
                 dim3 grid,
                 dim3 block,
                 size_t shared_bytes,
                 cudaStream_t stream,
                 A &&...arguments)
{
  cudaLaunchConfig_t config = {};

  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  /* Its own result: cudaGetLastError () might be what another library has left. */
  return cudaLaunchKernelEx (&config, kernel, static_cast<A &&> (arguments)...);
}
#else
template <typename... A>
static inline cudaError_t
ebb_cuda_launch (const char *text,
                 A &&...arguments)
{
  return cudaemu::launch (text, static_cast<A &&> (arguments)...);
}
#endif

/* More than 48 KiB of dynamic shared memory is asked for before the first launch of a kernel on a device, and noted
 * here, since asking takes as long as a launch; at most 99 KiB are there everywhere. */
typedef struct
{
  const void *kernel;
  int device;
  size_t shared_bytes;
} EbbCudaAllowance;

template <typename... P>
static inline cudaError_t
ebb_cuda_allow_shared (void (*kernel) (P...),
                       size_t shared_bytes)
{
  static std::mutex mutex;
  static std::vector<EbbCudaAllowance> allowances;
  const void *key = reinterpret_cast<const void *> (kernel);
  cudaError_t status;
  int device;

  if (shared_bytes <= 48 * 1024)
    return cudaSuccess;
  status = cudaGetDevice (&device);
  if (status != cudaSuccess)
    return status;
  std::lock_guard<std::mutex> guard (mutex);
  for (const EbbCudaAllowance &allowance : allowances)
    if (allowance.kernel == key && allowance.device == device && allowance.shared_bytes >= shared_bytes)
      return cudaSuccess;
  status = cudaFuncSetAttribute (kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int) shared_bytes);
  if (status == cudaSuccess)
    allowances.push_back ({ key, device, shared_bytes });
  return status;
}

/* -- shared memory: nothing is in it when a block begins ----------------------------------------------------------- */

/* EBB_SHARED (float, sums): the launch says how many bytes. EBB_SHARED_ARRAY (float, tile, [32][33]). Both aligned to
 * 16 bytes. */
#if defined(__CUDACC__)
#define EBB_SHARED(type, name)                                        \
  extern __shared__ __align__ (16) unsigned char ebb_shared_memory[]; \
  type *name = reinterpret_cast<type *> (ebb_shared_memory)
#define EBB_SHARED_ARRAY(type, name, size) __shared__ __align__ (16) type name size
#else
#define EBB_SHARED(type, name) type *name = static_cast<type *> (cudaemu::get_shared_memory ())
#define EBB_SHARED_ARRAY(type, name, size)                                  \
  alignas (16) static type name size;                                       \
  static cudaemu::SharedArray name##_shared_array (&(name), sizeof (name)); \
  name##_shared_array.enter ()
#endif

/* -- elements ------------------------------------------------------------------------------------------------------ */

/* Kernels for several dtypes are templates over float and these, as load () and store () are. */
struct Bf16
{
  uint16_t bits;
};
struct F16
{
  uint16_t bits;
};

static __device__ __forceinline__ float
bf16_to_float (uint16_t bits)
{
  return __uint_as_float ((uint32_t) bits << 16);
}

/* To the nearest, ties to even: tensor/util/half-private.h's bits. A NaN stays one; a GPU's is always the same. */
static __device__ __forceinline__ uint16_t
bf16_from_float (float x)
{
#if defined(__CUDA_ARCH__)
  uint16_t rounded;

  asm("cvt.rn.bf16.f32 %0, %1;"
      : "=h"(rounded)
      : "f"(x));
  return rounded;
#else
  uint32_t bits = __float_as_uint (x);

  if ((bits & 0x7fffffffu) > 0x7f800000u)
    return (uint16_t) ((bits | 0x400000u) >> 16);
  return (uint16_t) ((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
#endif
}

/* Two of them by one instruction. */
static __device__ __forceinline__ uint32_t
pack_bf16 (float low,
           float high)
{
#if defined(__CUDA_ARCH__)
  uint32_t packed;

  asm("cvt.rn.bf16x2.f32 %0, %1, %2;"
      : "=r"(packed)
      : "f"(high), "f"(low));
  return packed;
#else
  return (uint32_t) bf16_from_float (low) | (uint32_t) bf16_from_float (high) << 16;
#endif
}

static __device__ __forceinline__ float
f16_to_float (uint16_t half)
{
  uint32_t rest = half & 0x7fffu, bits;

  if (rest >= 0x7c00u) /* infinity and NaN */
    bits = 0x7f800000u | (rest & 0x3ffu) << 13;
  else if (rest >= 0x400u)
    bits = (rest << 13) + ((127 - 15) << 23);
  else /* denormal: rest * 2^-24 */
    bits = __float_as_uint ((float) rest * 5.9604644775390625e-8f);
  return __uint_as_float (bits | (uint32_t) (half & 0x8000u) << 16);
}

static __device__ __forceinline__ uint16_t
f16_from_float (float x)
{
  uint32_t bits = __float_as_uint (x), sign = bits >> 16 & 0x8000u, rest = bits & 0x7fffffffu;

  if (rest > 0x7f800000u)
    return (uint16_t) (sign | 0x7e00u | (rest >> 13 & 0x3ffu));
  if (rest >= 0x477ff000u) /* 65520 and more */
    return (uint16_t) (sign | 0x7c00u);
  if (rest < 0x38800000u) /* below 2^-14: the rounded multiple of 2^-24 is left in the low bits */
    return (uint16_t) (sign | (__float_as_uint (__uint_as_float (rest) + 0.5f) - 0x3f000000u));
  rest += 0xfffu + (rest >> 13 & 1);
  return (uint16_t) (sign | ((rest - ((127 - 15) << 23)) >> 13));
}

static __device__ __forceinline__ float
to_float (float x)
{
  return x;
}

static __device__ __forceinline__ float
to_float (Bf16 x)
{
  return bf16_to_float (x.bits);
}

static __device__ __forceinline__ float
to_float (F16 x)
{
  return f16_to_float (x.bits);
}

/* from_float<Bf16> (x) */
template <typename T>
static __device__ __forceinline__ T from_float (float x);

template <>
__device__ __forceinline__ float
from_float<float> (float x)
{
  return x;
}

template <>
__device__ __forceinline__ Bf16
from_float<Bf16> (float x)
{
  return Bf16{ bf16_from_float (x) };
}

template <>
__device__ __forceinline__ F16
from_float<F16> (float x)
{
  return F16{ f16_from_float (x) };
}

template <typename T>
static __device__ __forceinline__ float
load (const T *place)
{
  return to_float (*place);
}

template <typename T>
static __device__ __forceinline__ void
store (T *place,
       float x)
{
  *place = from_float<T> (x);
}

/* -- vectors: 16 bytes of memory ----------------------------------------------------------------------------------- */

/* Elements of T in 16 bytes. */
template <typename T>
struct VectorSize
{
  static constexpr int value = 16 / (int) sizeof (T);
};

static __host__ __device__ __forceinline__ bool
is_vector_aligned (const void *place)
{
  return ((uintptr_t) place & 15) == 0;
}

template <typename T>
static __device__ __forceinline__ void
load_vector (const T *place,
             T values[16 / sizeof (T)])
{
  union
  {
    uint4 all;
    T each[16 / sizeof (T)];
  } vector;

  vector.all = *reinterpret_cast<const uint4 *> (place);
#pragma unroll
  for (unsigned i = 0; i < 16 / sizeof (T); i++)
    values[i] = vector.each[i];
}

template <typename T>
static __device__ __forceinline__ void
store_vector (T *place,
              const T values[16 / sizeof (T)])
{
  union
  {
    uint4 all;
    T each[16 / sizeof (T)];
  } vector;

#pragma unroll
  for (unsigned i = 0; i < 16 / sizeof (T); i++)
    vector.each[i] = values[i];
  *reinterpret_cast<uint4 *> (place) = vector.all;
}

#include "tensor/cuda/kernels/fault.cuh"
#include "tensor/cuda/kernels/philox.cuh"
#include "tensor/cuda/kernels/reduction.cuh"
#include "tensor/cuda/kernels/tensor-core.cuh"
