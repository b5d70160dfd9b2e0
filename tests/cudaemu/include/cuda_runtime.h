/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Stands in for the CUDA toolkit's header of the same name: CUDA's C++ for a C++17 compiler, over the blocks, warps and
 * threads of tests/cudaemu/execution.h. Kernels find here what tensor/cuda/kernels/device.cuh allows them to use. */

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "cuda_runtime_api.h"

#include "cudaemu/execution.h"

#define __global__
#define __device__
#define __host__
#define __constant__ static
#define __forceinline__ inline __attribute__ ((always_inline))
#define __launch_bounds__(...)
#define __align__(n) __attribute__ ((aligned (n)))
/* Shared memory is declared by macros of device.cuh, which register it here. */
#define __shared__ use_EBB_SHARED_or_EBB_SHARED_ARRAY_for_shared_memory

constexpr int warpSize = 32;

/* -- vectors ------------------------------------------------------------------------------------------------------- */

#define CUDAEMU_VECTORS(type, name, alignment2, alignment4)     \
  struct alignas (alignment2) name##2                           \
  {                                                             \
    type x, y;                                                  \
  };                                                            \
  struct alignas (alignment4) name##4                           \
  {                                                             \
    type x, y, z, w;                                            \
  };                                                            \
  inline name##2 make_##name##2(type x, type y)                 \
  {                                                             \
    return name##2 { x, y };                                    \
  }                                                             \
  inline name##4 make_##name##4(type x, type y, type z, type w) \
  {                                                             \
    return name##4 { x, y, z, w };                              \
  }

CUDAEMU_VECTORS (float, float, 8, 16)
CUDAEMU_VECTORS (double, double, 16, 16)
CUDAEMU_VECTORS (int, int, 8, 16)
CUDAEMU_VECTORS (unsigned int, uint, 8, 16)
CUDAEMU_VECTORS (unsigned short, ushort, 4, 8)
CUDAEMU_VECTORS (unsigned char, uchar, 2, 4)
CUDAEMU_VECTORS (long long, longlong, 16, 16)
CUDAEMU_VECTORS (unsigned long long, ulonglong, 16, 16)

#undef CUDAEMU_VECTORS

/* -- barriers and warps -------------------------------------------------------------------------------------------- */

inline void
__syncthreads (int line = __builtin_LINE())
{
  cudaemu::block_barrier (line);
}

inline int
__syncthreads_or (int predicate,
                  int line = __builtin_LINE())
{
  return cudaemu::block_count (predicate != 0, line) > 0;
}

inline int
__syncthreads_and (int predicate,
                   int line = __builtin_LINE())
{
  return cudaemu::block_count (predicate == 0, line) == 0;
}

inline int
__syncthreads_count (int predicate,
                     int line = __builtin_LINE())
{
  return cudaemu::block_count (predicate != 0, line);
}

inline void
__syncwarp (unsigned mask = 0xffffffffu,
            int line = __builtin_LINE())
{
  cudaemu::warp_call (mask, nullptr, nullptr, line);
}

namespace cudaemu
{
template <typename T>
inline T
exchange (unsigned mask,
          T value,
          unsigned from,
          int line)
{
  static_assert (sizeof (T) == 4 || sizeof (T) == 8, "shuffles move 4 or 8 bytes");
  std::uint64_t bits = 0;

  std::memcpy (&bits, &value, sizeof value);
  bits = shuffle (mask, bits, from, line);
  std::memcpy (&value, &bits, sizeof value);
  return value;
}
} // namespace cudaemu

template <typename T>
inline T
__shfl_sync (unsigned mask,
             T value,
             int from,
             int width = 32,
             int line = __builtin_LINE())
{
  unsigned lane = cudaemu::get_lane (), w = (unsigned) width;

  return cudaemu::exchange (mask, value, (lane & ~(w - 1)) | ((unsigned) from & (w - 1)), line);
}

template <typename T>
inline T
__shfl_xor_sync (unsigned mask,
                 T value,
                 int bits,
                 int width = 32,
                 int line = __builtin_LINE())
{
  unsigned lane = cudaemu::get_lane (), w = (unsigned) width, from = lane ^ (unsigned) bits;

  return cudaemu::exchange (mask, value, from >= (lane & ~(w - 1)) + w ? lane : from, line);
}

template <typename T>
inline T
__shfl_down_sync (unsigned mask,
                  T value,
                  unsigned delta,
                  int width = 32,
                  int line = __builtin_LINE())
{
  unsigned lane = cudaemu::get_lane (), w = (unsigned) width;

  return cudaemu::exchange (mask, value, (lane & (w - 1)) + delta < w ? lane + delta : lane, line);
}

template <typename T>
inline T
__shfl_up_sync (unsigned mask,
                T value,
                unsigned delta,
                int width = 32,
                int line = __builtin_LINE())
{
  unsigned lane = cudaemu::get_lane (), w = (unsigned) width;

  return cudaemu::exchange (mask, value, (lane & (w - 1)) >= delta ? lane - delta : lane, line);
}

inline unsigned
__ballot_sync (unsigned mask,
               int predicate,
               int line = __builtin_LINE())
{
  return cudaemu::ballot (mask, predicate != 0, line);
}

inline int
__any_sync (unsigned mask,
            int predicate,
            int line = __builtin_LINE())
{
  return cudaemu::ballot (mask, predicate != 0, line) != 0;
}

inline int
__all_sync (unsigned mask,
            int predicate,
            int line = __builtin_LINE())
{
  return cudaemu::ballot (mask, predicate == 0, line) == 0;
}

inline void
__threadfence ()
{
}

inline void
__threadfence_block ()
{
}

inline void
__threadfence_system ()
{
}

/* -- atomics: of integers alone, since sums of floats in any order are not the same bits --------------------------- */

namespace cudaemu
{
template <typename T, typename Update>
inline T
update (T *place,
        Update update)
{
  static_assert (std::is_integral<T>::value && sizeof (T) >= 4, "atomics work on integers of 32 and 64 bits");
  T old = *place;

  *place = update (old);
  return old;
}

/* Keeps an argument out of the deduction of T. */
template <typename T>
struct Same
{
  using Type = T;
};
template <typename T>
using SameType = typename Same<T>::Type;
} // namespace cudaemu

#define CUDAEMU_ATOMIC(name, result)                                         \
  template <typename T>                                                      \
  inline T atomic##name (T *place, cudaemu::SameType<T> value)               \
  {                                                                          \
    return cudaemu::update (place, [value] (T old) -> T { return result; }); \
  }

CUDAEMU_ATOMIC (Add, (T) ((std::make_unsigned_t<T>) old + (std::make_unsigned_t<T>) value))
CUDAEMU_ATOMIC (Min, value < old ? value : old)
CUDAEMU_ATOMIC (Max, value > old ? value : old)
CUDAEMU_ATOMIC (Or, (T) (old | value))
CUDAEMU_ATOMIC (And, (T) (old &value))
CUDAEMU_ATOMIC (Exch, ((void) old, value))

#undef CUDAEMU_ATOMIC

template <typename T>
inline T
atomicCAS (T *place,
           cudaemu::SameType<T> expected,
           cudaemu::SameType<T> value)
{
  return cudaemu::update (place, [=] (T old) -> T { return old == expected ? value : old; });
}

/* -- arithmetic ---------------------------------------------------------------------------------------------------- */

#define CUDAEMU_REINTERPRET(name, To, From)           \
  inline To name (From value)                         \
  {                                                   \
    static_assert (sizeof (To) == sizeof (From), ""); \
    To result;                                        \
    std::memcpy (&result, &value, sizeof value);      \
    return result;                                    \
  }

CUDAEMU_REINTERPRET (__float_as_uint, unsigned, float)
CUDAEMU_REINTERPRET (__uint_as_float, float, unsigned)
CUDAEMU_REINTERPRET (__float_as_int, int, float)
CUDAEMU_REINTERPRET (__int_as_float, float, int)
CUDAEMU_REINTERPRET (__double_as_longlong, long long, double)
CUDAEMU_REINTERPRET (__longlong_as_double, double, long long)

#undef CUDAEMU_REINTERPRET

inline unsigned
__umulhi (unsigned a,
          unsigned b)
{
  return (unsigned) ((std::uint64_t) a * b >> 32);
}
inline unsigned long long
__umul64hi (unsigned long long a,
            unsigned long long b)
{
  return (unsigned long long) ((unsigned __int128) a * b >> 64);
}
inline int
__popc (unsigned x)
{
  return __builtin_popcount (x);
}
inline int
__popcll (unsigned long long x)
{
  return __builtin_popcountll (x);
}
inline int
__clz (int x)
{
  return x == 0 ? 32 : __builtin_clz ((unsigned) x);
}
inline int
__clzll (long long x)
{
  return x == 0 ? 64 : __builtin_clzll ((unsigned long long) x);
}
inline int
__ffs (int x)
{
  return __builtin_ffs (x);
}
inline unsigned
__byte_perm (unsigned a,
             unsigned b,
             unsigned selector)
{
  std::uint64_t bytes = (std::uint64_t) b << 32 | a;
  unsigned result = 0;

  for (unsigned i = 0; i < 4; i++)
    result |= (unsigned) (bytes >> 8 * (selector >> 4 * i & 7) & 0xff) << 8 * i;
  return result;
}
inline float
__fadd_rn (float a,
           float b)
{
  return a + b;
}
inline float
__fsub_rn (float a,
           float b)
{
  return a - b;
}
inline float
__fmul_rn (float a,
           float b)
{
  return a * b;
}
inline float
__fdiv_rn (float a,
           float b)
{
  return a / b;
}
inline float
__fmaf_rn (float a,
           float b,
           float c)
{
  return std::fma (a, b, c);
}
inline float
__fsqrt_rn (float x)
{
  return std::sqrt (x);
}
inline float
__frcp_rn (float x)
{
  return 1 / x;
}
inline double
__dadd_rn (double a,
           double b)
{
  return a + b;
}
inline double
__dmul_rn (double a,
           double b)
{
  return a * b;
}
inline float
__expf (float x)
{
  return std::exp (x);
}
inline float
__logf (float x)
{
  return std::log (x);
}
inline float
__fdividef (float a,
            float b)
{
  return a / b;
}
inline float
__saturatef (float x)
{
  return x > 0 ? x < 1 ? x : 1 : 0;
}
inline float
rsqrtf (float x)
{
  return 1 / std::sqrt (x);
}
inline double
rsqrt (double x)
{
  return 1 / std::sqrt (x);
}
inline float
__frsqrt_rn (float x)
{
  return (float) (1 / std::sqrt ((double) x));
}
inline float
exp10f (float x)
{
  return std::pow (10.0f, x);
}
inline void
sincospif (float x,
           float *sine,
           float *cosine)
{
  double turn = std::remainder ((double) x, 2.0) * 3.14159265358979323846;

  *sine = (float) std::sin (turn);
  *cosine = (float) std::cos (turn);
}
inline int
__float2int_rn (float x)
{
  return (int) std::nearbyint (x);
}
inline int
__float2int_rz (float x)
{
  return (int) x;
}
inline int
__float2int_rd (float x)
{
  return (int) std::floor (x);
}
inline long long
__float2ll_rz (float x)
{
  return (long long) x;
}
inline float
__int2float_rn (int x)
{
  return (float) x;
}
inline float
__uint2float_rn (unsigned x)
{
  return (float) x;
}

#define CUDAEMU_MIN_MAX(type)      \
  inline type min (type a, type b) \
  {                                \
    return b < a ? b : a;          \
  }                                \
  inline type max (type a, type b) \
  {                                \
    return b > a ? b : a;          \
  }

CUDAEMU_MIN_MAX (int)
CUDAEMU_MIN_MAX (unsigned)
CUDAEMU_MIN_MAX (long)
CUDAEMU_MIN_MAX (unsigned long)
CUDAEMU_MIN_MAX (long long)
CUDAEMU_MIN_MAX (unsigned long long)

#undef CUDAEMU_MIN_MAX

inline float
min (float a,
     float b)
{
  return std::fmin (a, b);
}
inline float
max (float a,
     float b)
{
  return std::fmax (a, b);
}
inline double
min (double a,
     double b)
{
  return std::fmin (a, b);
}
inline double
max (double a,
     double b)
{
  return std::fmax (a, b);
}

template <typename T>
inline T
__ldg (const T *place)
{
  return *place;
}

template <typename T>
inline T
__ldcs (const T *place)
{
  return *place;
}

template <typename T>
inline void
__stcs (T *place,
        cudaemu::SameType<T> value)
{
  *place = value;
}

[[noreturn]] inline void
__trap ()
{
  cudaemu::die ("the kernel calls __trap ()");
}

inline void
__nanosleep (unsigned)
{
}

/* -- launches ------------------------------------------------------------------------------------------------------ */

template <typename... P>
inline cudaError_t
cudaFuncSetAttribute (void (*kernel) (P...),
                      cudaFuncAttribute attribute,
                      int value)
{
  return cudaFuncSetAttribute (reinterpret_cast<const void *> (kernel), attribute, value);
}
