/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Memory of the devices, which the host can touch while work runs alone, and pinned memory. Both hold NaN at first. */
#include "cudaemu/runtime-private.h"

#include "cuda.h"

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <sys/mman.h>
#include <unistd.h>

namespace cudaemu
{

constexpr std::size_t PAGE = 4096, GRANULARITY = (std::size_t) 2 << 20, NAN_SIZE = (std::size_t) 16 << 20;

struct Range
{
  std::size_t size;
  int device; /* of memory; of reserved addresses -1 */
};

using Ranges = std::map<std::uintptr_t, Range>;
using Sizes = std::map<std::uintptr_t, std::size_t>;
using Handles = std::map<CUmemGenericAllocationHandle, Range>;

/* By address; never freed. */
static Ranges &memory = *new Ranges; /* of the devices: what is allocated or mapped */
static Sizes &reserved = *new Sizes, &pinned = *new Sizes, &registered = *new Sizes;
static Handles &physical = *new Handles;
static std::size_t n_used[MAX_DEVICES];
static bool is_open;

static std::uintptr_t
to_number (const void *data)
{
  return reinterpret_cast<std::uintptr_t> (data);
}

static std::size_t
round_up (std::size_t size,
          std::size_t unit)
{
  return (size + unit - 1) / unit * unit;
}

/* -- pages full of NaN --------------------------------------------------------------------------------------------- */

/* A file of ones that is mapped privately as often as it is needed: a page becomes memory of its own when it is
 * written. */
static int
get_nan_file ()
{
  static int file = -1;

  if (file >= 0)
    return file;
  file = memfd_create ("cudaemu", MFD_CLOEXEC);
  if (file < 0 || ftruncate (file, NAN_SIZE) != 0)
    return -1;

  void *data = mmap (nullptr, NAN_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);

  if (data == MAP_FAILED)
    return -1;
  std::memset (data, 0xff, NAN_SIZE);
  munmap (data, NAN_SIZE);
  return file;
}

static bool
map_at (void *address,
        std::size_t size,
        int protection)
{
  for (std::size_t done = 0; done < size; done += NAN_SIZE)
    {
      std::size_t n = size - done < NAN_SIZE ? size - done : NAN_SIZE;

      if (mmap (static_cast<char *> (address) + done, n, protection, MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE,
                get_nan_file (), 0)
          == MAP_FAILED)
        return false;
    }
  return true;
}

/* NULL: there are no addresses. */
static void *
reserve (std::size_t size)
{
  void *address = mmap (nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

  return address != MAP_FAILED ? address : nullptr;
}

/* -- who may touch it ---------------------------------------------------------------------------------------------- */

/* Calls mprotect () for ranges that lie side by side at once. */
static void
protect (int protection)
{
  std::uintptr_t begin = 0, end = 0;

  for (const auto &entry : memory)
    {
      if (entry.first != end)
        {
          if (end > begin)
            mprotect (reinterpret_cast<void *> (begin), end - begin, protection);
          begin = entry.first;
        }
      end = entry.first + round_up (entry.second.size, PAGE);
    }
  if (end > begin)
    mprotect (reinterpret_cast<void *> (begin), end - begin, protection);
}

void
open_memory ()
{
  if (!is_open)
    protect (PROT_READ | PROT_WRITE);
  is_open = true;
}

void
close_memory ()
{
  if (is_open)
    protect (PROT_NONE);
  is_open = false;
}

/* -- who touched it ------------------------------------------------------------------------------------------------ */

constexpr unsigned MAX_WATCHED = 64;
static struct
{
  std::uintptr_t begin, end;
} watched[MAX_WATCHED];
static unsigned n_watched;
static struct sigaction old_action;

static void
handle_fault (int signal_number,
              siginfo_t *info,
              void *context)
{
  std::uintptr_t address = to_number (info->si_addr);

  for (unsigned i = 0; i < __atomic_load_n (&n_watched, __ATOMIC_ACQUIRE); i++)
    if (address >= watched[i].begin && address < watched[i].end)
      {
        static const char by_work[] = "cudaemu: a kernel or a copy touched memory of the device that is not there\n";
        static const char by_host[] =
            "cudaemu: the host touched memory of the device; copy the tensor to cpu first\n";
        bool works = is_running_work ();

        if (write (STDERR_FILENO, works ? by_work : by_host, (works ? sizeof by_work : sizeof by_host) - 1) < 0)
          break;
      }
  if (old_action.sa_flags & SA_SIGINFO)
    old_action.sa_sigaction (signal_number, info, context);
  else if (old_action.sa_handler != SIG_DFL && old_action.sa_handler != SIG_IGN)
    old_action.sa_handler (signal_number);
  else
    signal (signal_number, SIG_DFL);
}

static void
watch (const void *address,
       std::size_t size)
{
  if (n_watched == 0)
    {
      struct sigaction action = {};

      action.sa_sigaction = handle_fault;
      action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
      sigemptyset (&action.sa_mask);
      sigaction (SIGSEGV, &action, &old_action);
    }
  if (n_watched == MAX_WATCHED)
    return;
  watched[n_watched] = { to_number (address), to_number (address) + size };
  __atomic_store_n (&n_watched, n_watched + 1, __ATOMIC_RELEASE);
}

/* -- what lies where ----------------------------------------------------------------------------------------------- */

template <typename Map>
static auto
find (Map &map,
      const void *data)
{
  auto place = map.upper_bound (to_number (data));

  return place == map.begin () ? map.end () : --place;
}

/* Ranges side by side count as one. */
bool
is_device_memory (const void *data,
                  std::size_t size)
{
  std::uintptr_t at = to_number (data), end = at + size;

  do
    {
      auto range = find (memory, reinterpret_cast<const void *> (at));

      if (range == memory.end () || at >= range->first + range->second.size)
        return false;
      at = range->first + range->second.size;
    }
  while (at < end);
  return true;
}

bool
is_pinned_memory (const void *data,
                  std::size_t size)
{
  for (auto *map : { &pinned, &registered })
    {
      auto range = find (*map, data);

      if (range != map->end () && to_number (data) + size <= range->first + range->second)
        return true;
    }
  return false;
}

static bool
take_memory (std::size_t size,
             int device)
{
  if (take_failure (FAIL_ALLOC) || size > get_memory_size () - n_used[device])
    return false;
  n_used[device] += size;
  return true;
}

} // namespace cudaemu

using namespace cudaemu;

cudaError_t
cudaMemGetInfo (size_t *n_free,
                size_t *n_total)
{
  std::unique_lock<std::mutex> guard (lock);
  cudaError_t state = enter_context ();

  *n_total = get_memory_size ();
  *n_free = *n_total - n_used[get_device ()];
  return finish (state);
}

/* -- allocations --------------------------------------------------------------------------------------------------- */

cudaError_t
cudaMalloc (void **data,
            size_t size)
{
  std::unique_lock<std::mutex> guard (lock);
  cudaError_t state = enter_context ();
  std::size_t pages = round_up (size, PAGE);

  *data = nullptr;
  if (state != cudaSuccess || size == 0)
    return finish (state);
  if (!take_memory (pages, get_device ()))
    return finish (cudaErrorMemoryAllocation);
  *data = reserve (pages);
  if (*data == nullptr || !map_at (*data, pages, is_open ? PROT_READ | PROT_WRITE : PROT_NONE))
    return finish (cudaErrorMemoryAllocation);
  memory[to_number (*data)] = { pages, get_device () };
  watch (*data, pages);
  return cudaSuccess;
}

cudaError_t
cudaFree (void *data)
{
  std::unique_lock<std::mutex> guard (lock);
  cudaError_t state = enter_context ();

  if (state != cudaSuccess || data == nullptr)
    return finish (state);
  drain (guard);

  auto range = memory.find (to_number (data));

  if (range == memory.end ())
    return finish (cudaErrorInvalidValue);
  n_used[range->second.device] -= range->second.size;
  /* The addresses are not used again: who still has one dies of it. */
  mmap (data, range->second.size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  memory.erase (range);
  return finish (get_context_error ());
}

static std::uint64_t n_pinning_calls;

std::uint64_t
cudaemu::cudaemu_count_pinning_calls ()
{
  std::unique_lock<std::mutex> guard (lock);

  return n_pinning_calls;
}

cudaError_t
cudaHostAlloc (void **data,
               size_t size,
               unsigned int flags)
{
  std::unique_lock<std::mutex> guard (lock);
  cudaError_t state = enter_context ();
  std::size_t pages = round_up (size, PAGE);

  (void) flags;
  *data = nullptr;
  if (state != cudaSuccess || size == 0)
    return finish (state);
  if (take_failure (FAIL_HOST))
    return finish (cudaErrorMemoryAllocation);
  n_pinning_calls++;
  *data = reserve (pages);
  if (*data == nullptr || !map_at (*data, pages, PROT_READ | PROT_WRITE))
    return finish (cudaErrorMemoryAllocation);
  pinned[to_number (*data)] = pages;
  return cudaSuccess;
}

cudaError_t
cudaMallocHost (void **data,
                size_t size)
{
  return cudaHostAlloc (data, size, cudaHostAllocDefault);
}

cudaError_t
cudaFreeHost (void *data)
{
  std::unique_lock<std::mutex> guard (lock);
  auto range = pinned.find (to_number (data));

  if (data == nullptr)
    return cudaSuccess;
  if (range == pinned.end ())
    return finish (cudaErrorInvalidValue);
  if (uses_host_memory (data, range->second))
    {
      explain ("cudaFreeHost () of %zu bytes that enqueued copies use", range->second);
      std::abort ();
    }
  n_pinning_calls++;
  munmap (data, range->second);
  pinned.erase (range);
  return cudaSuccess;
}

cudaError_t
cudaHostRegister (void *data,
                  size_t size,
                  unsigned int flags)
{
  std::unique_lock<std::mutex> guard (lock);
  cudaError_t state = enter_context ();

  (void) flags;
  if (state == cudaSuccess && is_pinned_memory (data, size))
    state = cudaErrorHostMemoryAlreadyRegistered;
  if (state == cudaSuccess && take_failure (FAIL_HOST))
    state = cudaErrorMemoryAllocation;
  if (state == cudaSuccess)
    registered[to_number (data)] = size;
  return finish (state);
}

cudaError_t
cudaHostUnregister (void *data)
{
  std::unique_lock<std::mutex> guard (lock);
  auto range = registered.find (to_number (data));

  if (range == registered.end ())
    return finish (cudaErrorHostMemoryNotRegistered);
  if (uses_host_memory (data, range->second))
    {
      explain ("cudaHostUnregister () of %zu bytes that enqueued copies use", range->second);
      std::abort ();
    }
  registered.erase (range);
  return cudaSuccess;
}

cudaError_t
cudaHostGetDevicePointer (void **device_data,
                          void *data,
                          unsigned int flags)
{
  std::unique_lock<std::mutex> guard (lock);

  (void) flags;
  *device_data = data;
  return finish (is_pinned_memory (data, 1) ? enter_context () : cudaErrorInvalidValue);
}

cudaError_t
cudaPointerGetAttributes (struct cudaPointerAttributes *attributes,
                          const void *data)
{
  std::unique_lock<std::mutex> guard (lock);
  auto range = find (memory, data);

  *attributes = {};
  if (range != memory.end () && to_number (data) < range->first + range->second.size)
    *attributes = { cudaMemoryTypeDevice, range->second.device, const_cast<void *> (data), nullptr };
  else if (is_pinned_memory (data, 1))
    *attributes = { cudaMemoryTypeHost, get_device (), const_cast<void *> (data), const_cast<void *> (data) };
  return finish (enter_context ());
}

/* -- addresses and memory apart: the driver's functions ------------------------------------------------------------ */

CUresult
cuMemGetAllocationGranularity (size_t *granularity,
                               const CUmemAllocationProp *properties,
                               CUmemAllocationGranularity_flags option)
{
  (void) option;
  *granularity = GRANULARITY;
  return properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult
cuMemAddressReserve (CUdeviceptr *address,
                     size_t size,
                     size_t alignment,
                     CUdeviceptr wish,
                     unsigned long long flags)
{
  std::unique_lock<std::mutex> guard (lock);

  (void) wish;
  if (size == 0 || size % GRANULARITY != 0 || flags != 0 || (alignment & (alignment - 1)) != 0)
    return CUDA_ERROR_INVALID_VALUE;
  alignment = alignment > GRANULARITY ? alignment : GRANULARITY;

  void *data = reserve (size + alignment);

  if (data == nullptr)
    return CUDA_ERROR_OUT_OF_MEMORY;
  data = reinterpret_cast<void *> (round_up (to_number (data), alignment));
  reserved[to_number (data)] = size;
  watch (data, size);
  *address = to_number (data);
  return CUDA_SUCCESS;
}

CUresult
cuMemAddressFree (CUdeviceptr address,
                  size_t size)
{
  std::unique_lock<std::mutex> guard (lock);
  auto range = reserved.find (address);

  if (range == reserved.end () || range->second != size)
    return CUDA_ERROR_INVALID_VALUE;
  for (const auto &entry : memory)
    if (entry.first >= address && entry.first < address + size)
      return CUDA_ERROR_INVALID_VALUE;
  reserved.erase (range);
  return CUDA_SUCCESS;
}

CUresult
cuMemCreate (CUmemGenericAllocationHandle *handle,
             size_t size,
             const CUmemAllocationProp *properties,
             unsigned long long flags)
{
  static CUmemGenericAllocationHandle last;
  std::unique_lock<std::mutex> guard (lock);
  int device = properties->location.id;

  if (size == 0 || size % GRANULARITY != 0 || flags != 0 || device < 0 || device >= MAX_DEVICES
      || properties->type != CU_MEM_ALLOCATION_TYPE_PINNED)
    return CUDA_ERROR_INVALID_VALUE;
  if (!take_memory (size, device))
    return CUDA_ERROR_OUT_OF_MEMORY;
  *handle = ++last;
  physical[*handle] = { size, device };
  return CUDA_SUCCESS;
}

CUresult
cuMemRelease (CUmemGenericAllocationHandle handle)
{
  std::unique_lock<std::mutex> guard (lock);
  auto range = physical.find (handle);

  if (range == physical.end ())
    return CUDA_ERROR_INVALID_VALUE;
  n_used[range->second.device] -= range->second.size;
  physical.erase (range);
  return CUDA_SUCCESS;
}

/* Nobody may touch it before cuMemSetAccess (). */
CUresult
cuMemMap (CUdeviceptr address,
          size_t size,
          size_t offset,
          CUmemGenericAllocationHandle handle,
          unsigned long long flags)
{
  std::unique_lock<std::mutex> guard (lock);
  void *data = reinterpret_cast<void *> (address);
  auto addresses = find (reserved, data);
  auto range = physical.find (handle);

  if (range == physical.end () || offset != 0 || size != range->second.size || flags != 0
      || addresses == reserved.end () || address + size > addresses->first + addresses->second
      || is_device_memory (data, 1))
    return CUDA_ERROR_INVALID_VALUE;
  if (!map_at (data, size, PROT_NONE))
    return CUDA_ERROR_OUT_OF_MEMORY;
  memory[address] = range->second;
  return CUDA_SUCCESS;
}

CUresult
cuMemUnmap (CUdeviceptr address,
            size_t size)
{
  std::unique_lock<std::mutex> guard (lock);

  if (!is_drained ())
    {
      explain ("cuMemUnmap () while work is enqueued that may use the memory");
      std::abort ();
    }
  for (CUdeviceptr at = address; at < address + size;)
    {
      auto range = memory.find (at);

      if (range == memory.end () || at + range->second.size > address + size)
        return CUDA_ERROR_INVALID_VALUE;
      at += range->second.size;
      memory.erase (range);
    }
  mmap (reinterpret_cast<void *> (address), size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED,
        -1, 0);
  return CUDA_SUCCESS;
}

CUresult
cuMemSetAccess (CUdeviceptr address,
                size_t size,
                const CUmemAccessDesc *accesses,
                size_t n)
{
  std::unique_lock<std::mutex> guard (lock);

  if (n != 1 || accesses->flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE
      || !is_device_memory (reinterpret_cast<void *> (address), size))
    return CUDA_ERROR_INVALID_VALUE;
  if (is_open)
    mprotect (reinterpret_cast<void *> (address), size, PROT_READ | PROT_WRITE);
  return CUDA_SUCCESS;
}
