/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* CUDA's execution model on one thread of the host: the blocks of a grid run one after another; the threads of a block
 * run one at a time, each until it waits at a barrier or ends. A thread that meets no barrier costs a call of a
 * function; one that waits keeps a fiber, a stack of its own, until it goes on.
 *
 * EBB_CUDAEMU_ORDER says in which order blocks, warps and the lanes of a warp run: 0 forward, 1 backward, from 2 to 99
 * shuffled, each number in another way. A kernel whose results differ between them lacks a barrier. Behaviour that CUDA
 * leaves undefined ends the process with one line: threads that end while others wait, threads at different barriers,
 * lanes outside a mask. */

#include <cstddef>
#include <cstdint>
#include <tuple>
#include <type_traits>
#include <utility>

#include "cuda_runtime_api.h"

#define CUDAEMU_EXPORT __attribute__ ((visibility ("default")))

/* Of the thread that runs. */
extern CUDAEMU_EXPORT uint3 threadIdx, blockIdx;
extern CUDAEMU_EXPORT dim3 blockDim, gridDim;

namespace cudaemu
{

/* -- launches ------------------------------------------------------------------------------------------------------ */

/* A kernel with its arguments, for one call a thread. */
struct Call
{
  const char *text; /* begins with the kernel's name, up to a comma */
  const void *kernel;
  dim3 grid, block;
  std::size_t shared_bytes;
  void (*run) (const void *arguments);
  void *arguments;
  void (*free) (void *arguments);
};

/* Enqueues the call, and takes its arguments in any case. */
CUDAEMU_EXPORT cudaError_t enqueue (const Call &call,
                                    cudaStream_t stream);
/* Runs all blocks; memory of the device can be reached. */
void run_grid (const Call &call);

template <typename... P, typename... A>
inline cudaError_t
launch (const char *text,
        void (*kernel) (P...),
        dim3 grid,
        dim3 block,
        std::size_t shared_bytes,
        cudaStream_t stream,
        A &&...arguments)
{
  static_assert ((std::is_trivially_copyable<std::decay_t<P>>::value && ...), "arguments are copied as bytes");
  static_assert ((sizeof (std::decay_t<P>) + ... + 0) <= 4096, "a kernel has at most 4 KiB of arguments");
  using Bound = std::pair<void (*) (P...), std::tuple<std::decay_t<P>...>>;

  return enqueue (Call{ text, reinterpret_cast<const void *> (kernel), grid, block, shared_bytes,
                        [] (const void *bound) {
                          const Bound *self = static_cast<const Bound *> (bound);

                          std::apply (self->first, self->second);
                        },
                        new Bound (kernel, std::tuple<std::decay_t<P>...> (std::forward<A> (arguments)...)),
                        [] (void *bound) { delete static_cast<Bound *> (bound); } },
                  stream);
}

/* -- what a kernel calls ------------------------------------------------------------------------------------------- */

/* One line that names the kernel, the block and the thread; then the process ends. */
[[noreturn]] CUDAEMU_EXPORT void die (const char *format,
                                      ...) __attribute__ ((format (printf, 1, 2)));

CUDAEMU_EXPORT void block_barrier (int line);
/* A barrier that returns how many threads of the block came with a true predicate. */
CUDAEMU_EXPORT int block_count (bool predicate,
                                int line);

/* A point where the lanes of @mask meet. The last that arrives runs @func on the operands of all of them. */
typedef void (*WarpFunc) (std::uint32_t mask,
                          void *const operands[32]);
CUDAEMU_EXPORT void warp_call (std::uint32_t mask,
                               WarpFunc func,
                               void *operand,
                               int line);
CUDAEMU_EXPORT std::uint64_t shuffle (std::uint32_t mask,
                                      std::uint64_t bits,
                                      unsigned from,
                                      int line);
CUDAEMU_EXPORT std::uint32_t ballot (std::uint32_t mask,
                                     bool predicate,
                                     int line);

inline unsigned
get_thread_number ()
{
  return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
}

inline unsigned
get_lane ()
{
  return get_thread_number () % 32;
}

/* -- shared memory: each block finds it full of NaN ---------------------------------------------------------------- */

CUDAEMU_EXPORT void *get_shared_memory ();

/* Memory that a kernel declares; the object is as old as the process. */
class CUDAEMU_EXPORT SharedArray
{
public:
  constexpr SharedArray (void *data,
                         std::size_t size)
      : data_ (data), size_ (size)
  {
  }
  /* Every thread that reaches the declaration calls it. */
  void
  enter ()
  {
    if (launch_ != current_launch)
      add ();
  }
  void fill () const;
  static void
  begin_launch ()
  {
    current_launch++;
  }

private:
  void add ();

  void *data_;
  std::size_t size_;
  std::uint64_t launch_ = 0; /* the last one that used it */
  static std::uint64_t current_launch;
};

/* -- tensor cores and copies to shared memory (warp.cpp), see tensor-core.cuh -------------------------------------- */

CUDAEMU_EXPORT void mma_bf16_16816 (float d[4],
                                    const std::uint32_t a[4],
                                    const std::uint32_t b[2],
                                    int line);
/* @n: 1, 2 or 4 matrices of 8 rows, each of 16 bytes, which the lanes point to. */
CUDAEMU_EXPORT void ldmatrix (std::uint32_t *registers,
                              const void *row,
                              int n,
                              bool transposed,
                              int line);
/* Until cp_async_wait () what lies at @shared is NaN. */
CUDAEMU_EXPORT void cp_async (void *shared,
                              const void *global,
                              unsigned size,
                              bool valid);
CUDAEMU_EXPORT void cp_async_commit ();
CUDAEMU_EXPORT void cp_async_wait (unsigned n_pending);

} // namespace cudaemu
