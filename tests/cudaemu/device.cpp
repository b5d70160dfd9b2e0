/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Devices, errors, and the settings that the environment gives. */
#include "cudaemu/execution-private.h"
#include "cudaemu/runtime-private.h"

#include "cuda.h"

#include <algorithm>
#include <atomic>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

namespace cudaemu
{

static const char *const failure_names[N_FAILURES] = { "no-driver", "old-driver", "no-device", "no-kernels", "alloc",
                                                       "host", "launch", "kernel", "blas" };

/* -- settings ------------------------------------------------------------------------------------------------------ */

struct Settings
{
  int n_devices = 1;
  int n_contexts = MAX_DEVICES; /* devices that a process may use */
  std::size_t memory = (std::size_t) 2 << 30;
  std::size_t shared = 163 * 1024; /* that a block may have */
  bool idle = false;
  std::uint64_t failures[N_FAILURES] = {}; /* how many are left until one fails; 0: none will */
};

[[noreturn]] static void
refuse (const char *name,
        const char *value,
        const char *wanted)
{
  std::fprintf (stderr, "cudaemu: %s is \"%s\", must be %s\n", name, value, wanted);
  std::exit (EXIT_FAILURE);
}

static std::uint64_t
parse (const char *name,
       const char *value,
       const char *wanted,
       bool has_unit)
{
  char *end;
  std::uint64_t number = std::strtoull (value, &end, 10);
  const char *units = "KMG";
  const char *unit = has_unit && *end != '\0' ? std::strchr (units, *end) : nullptr;

  if (unit != nullptr)
    {
      number <<= 10 * (unit - units + 1);
      end++;
    }
  if (end == value || *end != '\0' || number == 0)
    refuse (name, value, wanted);
  return number;
}

static int
parse_devices (const char *name,
               const char *value)
{
  std::uint64_t n = parse (name, value, "a number from 1 to 16", false);

  if (n > MAX_DEVICES)
    refuse (name, value, "a number from 1 to 16");
  return (int) n;
}

static void
read_failures (Settings *settings,
               const char *text)
{
  const char *wanted =
      "a list of no-driver, old-driver, no-device, no-kernels, alloc:N, host:N, launch:N, kernel:N and blas:N, "
      "separated by commas";
  std::string rest = text;

  while (!rest.empty ())
    {
      std::size_t comma = rest.find (',');
      std::string item = rest.substr (0, comma), name = item.substr (0, item.find (':'));
      int found = -1;

      rest = comma != std::string::npos ? rest.substr (comma + 1) : "";
      for (int i = 0; i < N_FAILURES; i++)
        if (name == failure_names[i])
          found = i;
      if (found < 0 || (found >= FAIL_ALLOC) != (item.size () > name.size ()))
        refuse ("EBB_CUDAEMU_FAIL", text, wanted);
      settings->failures[found] =
          found >= FAIL_ALLOC ? parse ("EBB_CUDAEMU_FAIL", item.c_str () + name.size () + 1, wanted, false) : 1;
    }
}

static Settings *
get_settings ()
{
  static Settings *settings;

  if (settings != nullptr)
    return settings;
  settings = new Settings ();
  if (const char *value = std::getenv ("EBB_CUDAEMU_MEMORY"))
    settings->memory = parse ("EBB_CUDAEMU_MEMORY", value, "a size such as 64M", true);
  if (const char *value = std::getenv ("EBB_CUDAEMU_DEVICES"))
    settings->n_devices = parse_devices ("EBB_CUDAEMU_DEVICES", value);
  if (const char *value = std::getenv ("EBB_CUDAEMU_CONTEXTS"))
    settings->n_contexts = parse_devices ("EBB_CUDAEMU_CONTEXTS", value);
  if (const char *value = std::getenv ("EBB_CUDAEMU_FAIL"))
    read_failures (settings, value);
  if (const char *value = std::getenv ("EBB_CUDAEMU_SHARED"))
    settings->shared = parse ("EBB_CUDAEMU_SHARED", value, "a size such as 99K", true);
  settings->idle = std::getenv ("EBB_CUDAEMU_IDLE") != nullptr;
  return settings;
}

static unsigned
get_order_number ()
{
  const char *value = std::getenv ("EBB_CUDAEMU_ORDER");
  unsigned number = 0;

  if (value == nullptr)
    return ORDER_FORWARD;
  for (const char *digit = value; *digit != '\0'; digit++)
    {
      if (*digit < '0' || *digit > '9' || digit - value >= 2)
        refuse ("EBB_CUDAEMU_ORDER", value, "0 (forward), 1 (backward) or a number from 2 to 99 (a way to shuffle)");
      number = 10 * number + (unsigned) (*digit - '0');
    }
  return number;
}

Order
get_order ()
{
  return (Order) std::min (get_order_number (), (unsigned) ORDER_SHUFFLED);
}

std::uint32_t
get_shuffle ()
{
  return std::max (get_order_number (), (unsigned) ORDER_SHUFFLED) - ORDER_SHUFFLED + 1;
}

std::size_t
get_memory_size ()
{
  return get_settings ()->memory;
}

std::size_t
get_most_shared_bytes ()
{
  return get_settings ()->shared;
}

bool
is_idle ()
{
  return get_settings ()->idle;
}

bool
take_failure (Failure failure)
{
  std::uint64_t *left = &get_settings ()->failures[failure];

  if (failure < FAIL_ALLOC)
    return *left != 0;
  return *left > 0 && --*left == 0;
}

/* -- errors -------------------------------------------------------------------------------------------------------- */

static thread_local cudaError_t last_error;
static thread_local int current_device;
static thread_local bool has_current_context;
static std::atomic<bool> contexts[MAX_DEVICES]; /* somebody has used the device */

cudaError_t
finish (cudaError_t error)
{
  if (error != cudaSuccess && error != cudaErrorNotReady)
    last_error = error;
  return error;
}

int
get_device ()
{
  return current_device;
}

cudaError_t
get_state ()
{
  if (is_running_work ())
    return cudaErrorNotPermitted;
  if (take_failure (FAIL_NO_DRIVER) || take_failure (FAIL_OLD_DRIVER))
    return cudaErrorInsufficientDriver;
  if (take_failure (FAIL_NO_DEVICE))
    return cudaErrorNoDevice;
  return get_context_error ();
}

static void
bind_context ()
{
  has_current_context = contexts[current_device] = true;
  if (std::count (contexts, contexts + MAX_DEVICES, true) <= get_settings ()->n_contexts)
    return;
  explain ("device %d gets a context, and EBB_CUDAEMU_CONTEXTS allows no more", current_device);
  std::abort ();
}

cudaError_t
enter_context ()
{
  cudaError_t state = get_state ();

  if (state == cudaSuccess && !has_current_context)
    bind_context ();
  return state;
}

bool
has_context ()
{
  return has_current_context;
}

void
explain (const char *format,
         ...)
{
  std::va_list arguments;

  va_start (arguments, format);
  std::fputs ("cudaemu: ", stderr);
  std::vfprintf (stderr, format, arguments);
  std::fputs ("\n", stderr);
  va_end (arguments);
}

struct ErrorText
{
  cudaError_t error;
  const char *name, *text;
};

static const ErrorText error_texts[] = {
  { cudaSuccess, "cudaSuccess", "no error" },
  { cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument" },
  { cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory" },
  { cudaErrorInitializationError, "cudaErrorInitializationError", "initialization error" },
  { cudaErrorInvalidConfiguration, "cudaErrorInvalidConfiguration", "invalid configuration argument" },
  { cudaErrorInvalidMemcpyDirection, "cudaErrorInvalidMemcpyDirection", "invalid copy direction for memcpy" },
  { cudaErrorInsufficientDriver, "cudaErrorInsufficientDriver",
    "CUDA driver version is insufficient for CUDA runtime version" },
  { cudaErrorInvalidDeviceFunction, "cudaErrorInvalidDeviceFunction", "invalid device function" },
  { cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected" },
  { cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal" },
  { cudaErrorNoKernelImageForDevice, "cudaErrorNoKernelImageForDevice",
    "no kernel image is available for execution on the device" },
  { cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle" },
  { cudaErrorSymbolNotFound, "cudaErrorSymbolNotFound", "named symbol not found" },
  { cudaErrorNotReady, "cudaErrorNotReady", "device not ready" },
  { cudaErrorIllegalAddress, "cudaErrorIllegalAddress", "an illegal memory access was encountered" },
  { cudaErrorLaunchOutOfResources, "cudaErrorLaunchOutOfResources", "too many resources requested for launch" },
  { cudaErrorHostMemoryAlreadyRegistered, "cudaErrorHostMemoryAlreadyRegistered",
    "part or all of the requested memory range is already mapped" },
  { cudaErrorHostMemoryNotRegistered, "cudaErrorHostMemoryNotRegistered",
    "pointer does not correspond to a registered memory region" },
  { cudaErrorMisalignedAddress, "cudaErrorMisalignedAddress", "misaligned address" },
  { cudaErrorLaunchFailure, "cudaErrorLaunchFailure", "unspecified launch failure" },
  { cudaErrorNotPermitted, "cudaErrorNotPermitted", "operation not permitted" },
  { cudaErrorNotSupported, "cudaErrorNotSupported", "operation not supported" },
};

static const ErrorText *
find_text (int error)
{
  static const ErrorText unknown = { cudaErrorUnknown, "cudaErrorUnknown", "unknown error" };

  for (const ErrorText &text : error_texts)
    if ((int) text.error == error)
      return &text;
  return &unknown;
}

static cudaError_t
check_device (int device)
{
  cudaError_t state = get_state ();

  if (state != cudaSuccess)
    return state;
  return device >= 0 && device < get_settings ()->n_devices ? cudaSuccess : cudaErrorInvalidDevice;
}

} // namespace cudaemu

using namespace cudaemu;

const char *
cudaGetErrorName (cudaError_t error)
{
  return find_text (error)->name;
}

const char *
cudaGetErrorString (cudaError_t error)
{
  return find_text (error)->text;
}

cudaError_t
cudaPeekAtLastError ()
{
  return get_context_error () != cudaSuccess ? get_context_error () : last_error;
}

cudaError_t
cudaGetLastError ()
{
  cudaError_t error = cudaPeekAtLastError ();

  last_error = cudaSuccess;
  return error;
}

CUresult
cuGetErrorName (CUresult error,
                const char **name)
{
  switch (error)
    {
    case CUDA_SUCCESS: *name = "CUDA_SUCCESS"; break;
    case CUDA_ERROR_INVALID_VALUE: *name = "CUDA_ERROR_INVALID_VALUE"; break;
    case CUDA_ERROR_OUT_OF_MEMORY: *name = "CUDA_ERROR_OUT_OF_MEMORY"; break;
    case CUDA_ERROR_NOT_INITIALIZED: *name = "CUDA_ERROR_NOT_INITIALIZED"; break;
    case CUDA_ERROR_NO_DEVICE: *name = "CUDA_ERROR_NO_DEVICE"; break;
    case CUDA_ERROR_INVALID_DEVICE: *name = "CUDA_ERROR_INVALID_DEVICE"; break;
    case CUDA_ERROR_ILLEGAL_ADDRESS: *name = "CUDA_ERROR_ILLEGAL_ADDRESS"; break;
    case CUDA_ERROR_LAUNCH_FAILED: *name = "CUDA_ERROR_LAUNCH_FAILED"; break;
    case CUDA_ERROR_NOT_SUPPORTED: *name = "CUDA_ERROR_NOT_SUPPORTED"; break;
    default: *name = nullptr; return CUDA_ERROR_INVALID_VALUE;
    }
  return CUDA_SUCCESS;
}

CUresult
cuGetErrorString (CUresult error,
                  const char **text)
{
  *text = find_text (error)->text;
  return CUDA_SUCCESS;
}

cudaError_t
cudaDriverGetVersion (int *version)
{
  *version = take_failure (FAIL_NO_DRIVER) ? 0 : (take_failure (FAIL_OLD_DRIVER) ? 11040 : CUDA_VERSION);
  return cudaSuccess;
}

cudaError_t
cudaRuntimeGetVersion (int *version)
{
  *version = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t
cudaGetDeviceCount (int *count)
{
  cudaError_t state = get_state ();

  *count = state == cudaSuccess ? get_settings ()->n_devices : 0;
  return finish (state);
}

cudaError_t
cudaSetDevice (int device)
{
  cudaError_t state = check_device (device);

  if (state == cudaSuccess)
    {
      current_device = device;
      bind_context (); /* since CUDA 12 */
    }
  return finish (state);
}

cudaError_t
cudaGetDevice (int *device)
{
  cudaError_t state = get_state ();

  *device = current_device;
  return finish (state);
}

cudaError_t
cudaGetDeviceProperties (struct cudaDeviceProp *properties,
                         int device)
{
  cudaError_t state = check_device (device);

  if (state != cudaSuccess)
    return finish (state);
  std::memset (properties, 0, sizeof *properties);
  std::snprintf (properties->name, sizeof properties->name, "emulated GPU %d", device);
  properties->totalGlobalMem = get_memory_size ();
  properties->sharedMemPerBlock = 48 * 1024;
  properties->sharedMemPerBlockOptin = get_settings ()->shared;
  properties->sharedMemPerMultiprocessor = 164 * 1024;
  properties->warpSize = 32;
  properties->maxThreadsPerBlock = (int) MAX_THREADS;
  properties->major = 8;
  properties->multiProcessorCount = 4;
  properties->l2CacheSize = 1 << 20;
  return cudaSuccess;
}

cudaError_t
cudaDeviceGetAttribute (int *value,
                        cudaDeviceAttr attribute,
                        int device)
{
  struct cudaDeviceProp properties;
  cudaError_t state = cudaGetDeviceProperties (&properties, device);

  if (state != cudaSuccess)
    return state;
  switch (attribute)
    {
    case cudaDevAttrMaxThreadsPerBlock: *value = properties.maxThreadsPerBlock; break;
    case cudaDevAttrMaxSharedMemoryPerBlock: *value = (int) properties.sharedMemPerBlock; break;
    case cudaDevAttrWarpSize: *value = properties.warpSize; break;
    case cudaDevAttrMultiProcessorCount: *value = properties.multiProcessorCount; break;
    case cudaDevAttrComputeCapabilityMajor: *value = properties.major; break;
    case cudaDevAttrComputeCapabilityMinor: *value = properties.minor; break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *value = (int) properties.sharedMemPerMultiprocessor; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = (int) properties.sharedMemPerBlockOptin; break;
    default: return finish (cudaErrorInvalidValue);
    }
  return cudaSuccess;
}

cudaError_t
cudaDeviceGetPCIBusId (char *text,
                       int size,
                       int device)
{
  cudaError_t state = check_device (device);

  if (state == cudaSuccess)
    std::snprintf (text, (std::size_t) size, "0000:%02x:00.0", device);
  return finish (state);
}

CUresult
cuCtxGetCurrent (CUcontext *context)
{
  *context = has_context () ? reinterpret_cast<CUcontext> (&contexts[current_device]) : nullptr;
  return CUDA_SUCCESS;
}

CUresult
cuDevicePrimaryCtxGetState (CUdevice device,
                            unsigned int *flags,
                            int *is_active)
{
  if (device < 0 || device >= get_settings ()->n_devices)
    return CUDA_ERROR_INVALID_DEVICE;
  *flags = 0;
  *is_active = contexts[device];
  return CUDA_SUCCESS;
}

/* Of the driver's functions, which the library does not link. */
cudaError_t
cudaGetDriverEntryPoint (const char *symbol,
                         void **function,
                         unsigned long long flags,
                         cudaDriverEntryPointQueryResult *result)
{
  return cudaGetDriverEntryPointByVersion (symbol, function, CUDART_VERSION, flags, result);
}

cudaError_t
cudaGetDriverEntryPointByVersion (const char *symbol,
                                  void **function,
                                  unsigned int version,
                                  unsigned long long flags,
                                  cudaDriverEntryPointQueryResult *result)
{
  static const struct
  {
    const char *name;
    void *function;
  } entries[] = {
    { "cuGetErrorName", reinterpret_cast<void *> (cuGetErrorName) },
    { "cuGetErrorString", reinterpret_cast<void *> (cuGetErrorString) },
    { "cuCtxGetCurrent", reinterpret_cast<void *> (cuCtxGetCurrent) },
    { "cuDevicePrimaryCtxGetState", reinterpret_cast<void *> (cuDevicePrimaryCtxGetState) },
    { "cuMemAddressReserve", reinterpret_cast<void *> (cuMemAddressReserve) },
    { "cuMemAddressFree", reinterpret_cast<void *> (cuMemAddressFree) },
    { "cuMemCreate", reinterpret_cast<void *> (cuMemCreate) },
    { "cuMemRelease", reinterpret_cast<void *> (cuMemRelease) },
    { "cuMemMap", reinterpret_cast<void *> (cuMemMap) },
    { "cuMemUnmap", reinterpret_cast<void *> (cuMemUnmap) },
    { "cuMemSetAccess", reinterpret_cast<void *> (cuMemSetAccess) },
    { "cuMemGetAllocationGranularity", reinterpret_cast<void *> (cuMemGetAllocationGranularity) },
  };
  cudaError_t state = get_state ();

  (void) version;
  (void) flags;
  *function = nullptr;
  for (const auto &entry : entries)
    if (state == cudaSuccess && std::strcmp (entry.name, symbol) == 0)
      *function = entry.function;
  if (result != nullptr)
    *result = *function != nullptr ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return finish (state);
}
