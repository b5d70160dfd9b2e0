/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Products of a warp on tensor cores, loads of their operands from shared memory, copies from global to shared memory
 * beside computing, and other single instructions: the one place that knows PTX. All lanes of a warp must make the
 * call of a product or a load. */

/* d[4] [16, 8] += a[4] [16, 16] b[2] [16, 8] in f32. With row = lane / 4, pair = lane % 4 * 2 a lane has:
 *   a[0], a[2]: of the row, columns pair and pair + 1, pair + 8 and pair + 9; a[1], a[3]: the same of row + 8
 *   b[0]: of column lane / 4, rows pair and pair + 1; b[1]: rows pair + 8 and pair + 9
 *   d[0], d[1]: of the row, columns pair and pair + 1; d[2], d[3]: the same of row + 8
 * Two elements lie in a register, the first in its low half. */
static __device__ __forceinline__ void
mma_bf16_16816 (float *d,
                const uint32_t *a,
                const uint32_t *b)
{
#if defined(__CUDA_ARCH__)
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
               "{%0,%1,%2,%3};\n"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#elif !defined(__CUDACC__)
  cudaemu::mma_bf16_16816 (d, a, b, __LINE__);
#endif
}

#if defined(__CUDA_ARCH__)
static __device__ __forceinline__ uint32_t
get_shared_address (const void *place)
{
  return (uint32_t) __cvta_generic_to_shared (place);
}
#endif

/* Matrices [8, 8] of 16-bit elements from shared memory, one a register: lanes 0 to 7 point to the rows of the first,
 * 8 to 15 to those of the second, and so on; rows are aligned to 16 bytes. A lane gets the elements 2 (lane % 4) and
 * 2 (lane % 4) + 1 of row lane / 4; transposed, of column lane / 4. */
static __device__ __forceinline__ void
ldmatrix_x4 (uint32_t *registers,
             const void *row)
{
#if defined(__CUDA_ARCH__)
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(registers[0]), "=r"(registers[1]), "=r"(registers[2]), "=r"(registers[3])
               : "r"(get_shared_address (row))
               : "memory");
#elif !defined(__CUDACC__)
  cudaemu::ldmatrix (registers, row, 4, false, __LINE__);
#endif
}

static __device__ __forceinline__ void
ldmatrix_x4_trans (uint32_t *registers,
                   const void *row)
{
#if defined(__CUDA_ARCH__)
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(registers[0]), "=r"(registers[1]), "=r"(registers[2]), "=r"(registers[3])
               : "r"(get_shared_address (row))
               : "memory");
#elif !defined(__CUDACC__)
  cudaemu::ldmatrix (registers, row, 4, true, __LINE__);
#endif
}

static __device__ __forceinline__ void
ldmatrix_x2 (uint32_t *registers,
             const void *row)
{
#if defined(__CUDA_ARCH__)
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];\n"
               : "=r"(registers[0]), "=r"(registers[1])
               : "r"(get_shared_address (row))
               : "memory");
#elif !defined(__CUDACC__)
  cudaemu::ldmatrix (registers, row, 2, false, __LINE__);
#endif
}

static __device__ __forceinline__ void
ldmatrix_x2_trans (uint32_t *registers,
                   const void *row)
{
#if defined(__CUDA_ARCH__)
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];\n"
               : "=r"(registers[0]), "=r"(registers[1])
               : "r"(get_shared_address (row))
               : "memory");
#elif !defined(__CUDACC__)
  cudaemu::ldmatrix (registers, row, 2, true, __LINE__);
#endif
}

/* 16 bytes from global to shared memory, both aligned to 16; zeros unless valid, and then @global is not read. They are
 * there after cp_async_wait () of this thread, for others after a barrier behind that. */
static __device__ __forceinline__ void
cp_async_16 (void *shared,
             const void *global,
             bool valid = true)
{
#if defined(__CUDA_ARCH__)
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n"
               :
               : "r"(get_shared_address (shared)), "l"(__cvta_generic_to_global (global)), "r"(valid ? 16 : 0)
               : "memory");
#elif !defined(__CUDACC__)
  cudaemu::cp_async (shared, global, 16, valid);
#endif
}

/* 4 bytes, likewise. */
static __device__ __forceinline__ void
cp_async_4 (void *shared,
            const void *global,
            bool valid = true)
{
#if defined(__CUDA_ARCH__)
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;\n"
               :
               : "r"(get_shared_address (shared)), "l"(__cvta_generic_to_global (global)), "r"(valid ? 4 : 0)
               : "memory");
#elif !defined(__CUDACC__)
  cudaemu::cp_async (shared, global, 4, valid);
#endif
}

/* Copies since the last call are one group. */
static __device__ __forceinline__ void
cp_async_commit ()
{
#if defined(__CUDA_ARCH__)
  asm volatile("cp.async.commit_group;\n" ::
                   : "memory");
#elif !defined(__CUDACC__)
  cudaemu::cp_async_commit ();
#endif
}

/* Until all groups but the last N_PENDING are there. */
template <int N_PENDING>
static __device__ __forceinline__ void
cp_async_wait ()
{
#if defined(__CUDA_ARCH__)
  asm volatile("cp.async.wait_group %0;\n" ::"n"(N_PENDING)
               : "memory");
#elif !defined(__CUDACC__)
  cudaemu::cp_async_wait (N_PENDING);
#endif
}

/* -- rounding, powers and reciprocals in one instruction ----------------------------------------------------------- */

/* 2^x within 2^-22 of it; 0 where that is denormal. */
static __device__ __forceinline__ float
exp2_fast (float x)
{
#if defined(__CUDA_ARCH__)
  float y;

  asm("ex2.approx.ftz.f32 %0, %1;\n"
      : "=f"(y)
      : "f"(x));
  return y;
#else
  return exp2f (x);
#endif
}

/* 1 / x within 2^-23 of it, for x of a normal size. */
static __device__ __forceinline__ float
reciprocal_fast (float x)
{
#if defined(__CUDA_ARCH__)
  float y;

  asm("rcp.approx.ftz.f32 %0, %1;\n"
      : "=f"(y)
      : "f"(x));
  return y;
#else
  return 1.0f / x;
#endif
}
