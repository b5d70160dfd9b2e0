/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Sums and the like over a warp and over a block, in an order that depends on the number of threads alone: lanes in
 * pairs at distances 16, 8, 4, 2, 1, then warps by their numbers. Every thread gets the same bits. */

struct Sum
{
  template <typename T>
  static __device__ __forceinline__ T
  join (T a,
        T b)
  {
    return a + b;
  }
};

/* A NaN wins. */
struct Max
{
  template <typename T>
  static __device__ __forceinline__ T
  join (T a,
        T b)
  {
    return a > b || a != a ? a : b;
  }
};

struct Min
{
  template <typename T>
  static __device__ __forceinline__ T
  join (T a,
        T b)
  {
    return a < b || a != a ? a : b;
  }
};

/* All lanes of the warp must call it; T has 4 or 8 bytes. */
template <typename Join, typename T>
static __device__ __forceinline__ T
warp_reduce (T value)
{
#pragma unroll
  for (int distance = 16; distance > 0; distance >>= 1)
    value = Join::join (value, __shfl_xor_sync (EBB_CUDA_ALL_LANES, value, distance));
  return value;
}

/* All threads of the block must call it, whole warps of a block with one dimension. scratch: shared memory of a T for
 * each warp, which may be used again, also by the next call, at once. */
template <typename Join, typename T>
static __device__ __forceinline__ T
block_reduce (T value,
              T *scratch)
{
  unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32, n_warps = blockDim.x / 32;

  value = warp_reduce<Join> (value);
  if (n_warps == 1)
    return value;
  if (lane == 0)
    scratch[warp] = value;
  __syncthreads ();
  value = scratch[0];
  for (unsigned i = 1; i < n_warps; i++)
    value = Join::join (value, scratch[i]);
  __syncthreads ();
  return value;
}

static __device__ __forceinline__ float
warp_sum (float value)
{
  return warp_reduce<Sum> (value);
}

static __device__ __forceinline__ float
warp_max (float value)
{
  return warp_reduce<Max> (value);
}

static __device__ __forceinline__ float
block_sum (float value,
           float *scratch)
{
  return block_reduce<Sum> (value, scratch);
}

static __device__ __forceinline__ float
block_max (float value,
           float *scratch)
{
  return block_reduce<Max> (value, scratch);
}
