/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Launches of kernels: what a device refuses, and the shared memory that a kernel may have. */
#include "cudaemu/execution-private.h"
#include "cudaemu/runtime-private.h"

#include <set>

namespace cudaemu
{

constexpr std::size_t SHARED_BYTES = 48 * 1024;

/* Kernels that may have more shared memory than all have. */
static std::set<std::pair<const void *, std::size_t>> &shared_limits =
    *new std::set<std::pair<const void *, std::size_t>>;

static std::size_t
get_shared_limit (const void *kernel)
{
  auto place = shared_limits.lower_bound ({ kernel, 0 });

  return place != shared_limits.end () && place->first == kernel ? place->second : SHARED_BYTES;
}

static cudaError_t
check_call (const Call &call)
{
  std::uint64_t n_threads = (std::uint64_t) call.block.x * call.block.y * call.block.z;
  std::uint64_t n_blocks = (std::uint64_t) call.grid.x * call.grid.y * call.grid.z;
  const char *problem = nullptr;

  if (n_threads == 0 || n_blocks == 0)
    problem = "a grid or a block without threads";
  else if (n_threads > MAX_THREADS || call.block.z > 64)
    problem = "a block of more than 1024 threads, or 64 in the last dimension";
  else if (call.grid.x > 0x7fffffffu || call.grid.y > 65535 || call.grid.z > 65535)
    problem = "a grid of more than 2147483647 x 65535 x 65535 blocks";
  else if (call.shared_bytes > get_shared_limit (call.kernel))
    problem = "more shared memory than cudaFuncSetAttribute () allows";
  if (problem == nullptr)
    return cudaSuccess;
  explain ("%.*s: %s: grid (%u, %u, %u), block (%u, %u, %u), %zu bytes of shared memory",
           (int) get_name_length (call.text), call.text, problem, call.grid.x, call.grid.y, call.grid.z, call.block.x,
           call.block.y, call.block.z, call.shared_bytes);
  return call.shared_bytes > get_shared_limit (call.kernel) ? cudaErrorInvalidValue : cudaErrorInvalidConfiguration;
}

cudaError_t
enqueue (const Call &call,
         cudaStream_t stream)
{
  std::unique_lock<std::mutex> guard (lock);
  cudaError_t state = enter_context ();
  Item item = {};

  if (state == cudaSuccess)
    state = check_call (call);
  if (state == cudaSuccess && take_failure (FAIL_LAUNCH))
    state = cudaErrorLaunchOutOfResources;
  if (state != cudaSuccess)
    {
      call.free (call.arguments);
      return finish (state);
    }
  item.kind = ITEM_KERNEL;
  item.call = call;
  return finish (enqueue_item (stream, std::move (item)));
}

} // namespace cudaemu

using namespace cudaemu;

cudaError_t
cudaFuncSetAttribute (const void *function,
                      cudaFuncAttribute attribute,
                      int value)
{
  std::unique_lock<std::mutex> guard (lock);
  cudaError_t state = enter_context ();

  if (state == cudaSuccess && attribute == cudaFuncAttributeMaxDynamicSharedMemorySize)
    {
      if (value < 0 || (std::size_t) value > get_most_shared_bytes ())
        return finish (cudaErrorInvalidValue);
      shared_limits.erase (shared_limits.lower_bound ({ function, 0 }),
                           shared_limits.upper_bound ({ function, ~0ul }));
      shared_limits.insert ({ function, (std::size_t) value });
    }
  return finish (state);
}

cudaError_t
cudaFuncGetAttributes (cudaFuncAttributes *attributes,
                       const void *function)
{
  std::unique_lock<std::mutex> guard (lock);
  cudaError_t state = enter_context ();

  *attributes = {};
  attributes->maxDynamicSharedSizeBytes = (int) get_shared_limit (function);
  return finish (state == cudaSuccess && take_failure (FAIL_NO_KERNELS) ? cudaErrorNoKernelImageForDevice : state);
}
