/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* The opening of a GPU: is there one that can be used, with which memory and settings? */
#include "tensor/cuda/cuda-private.h"

#include <string.h>

#define LEAST_ARCHITECTURE 80
#define LEAST_CUDA 12000 /* of the driver */

/* Memory that the driver and libraries need beside the heap: modules of kernels, cuBLASLt, NCCL. */
#define BESIDE_LEAST ((gsize) 256 << 20)
#define BESIDE_FRACTION 32

/* -- is there a GPU? ----------------------------------------------------------------------------------------------- */

static gboolean
fail (int index,
      GError **error,
      const char *format,
      ...) G_GNUC_PRINTF (3, 4);

static gboolean
fail (int index,
      GError **error,
      const char *format,
      ...)
{
  g_autofree char *text = NULL;
  va_list arguments;

  va_start (arguments, format);
  text = g_strdup_vprintf (format, arguments);
  va_end (arguments);
  if (index == 0)
    g_set_error (error, EBB_ERROR, EBB_ERROR_DEVICE, "device \"%s\": %s", EBB_CUDA_NAME, text);
  else
    g_set_error (error, EBB_ERROR, EBB_ERROR_DEVICE, "device \"%s:%d\": %s", EBB_CUDA_NAME, index, text);
  return FALSE;
}

static gboolean
check_driver (int index,
              GError **error)
{
  int version = 0;

  if (cudaDriverGetVersion (&version) != cudaSuccess)
    version = 0;
  if (version == 0)
    return fail (index, error, "there is no NVIDIA driver on this machine (libcuda.so.1)");
  if (version < LEAST_CUDA)
    return fail (index, error, "the NVIDIA driver is too old: it runs CUDA %d.%d, and CUDA %d.%d is needed",
                 version / 1000, version % 1000 / 10, LEAST_CUDA / 1000, LEAST_CUDA % 1000 / 10);
  return TRUE;
}

/* How many GPUs there are; 0 with @error set if there is none that this driver and runtime can use. */
static int
count_devices (int index,
               GError **error)
{
  const char *visible = g_getenv ("CUDA_VISIBLE_DEVICES");
  int n = 0, driver = 0, runtime = 0;
  cudaError_t status = cudaGetDeviceCount (&n);

  cudaGetLastError ();
  if (status == cudaSuccess && n > 0)
    return n;
  if (status == cudaErrorInsufficientDriver)
    {
      cudaDriverGetVersion (&driver);
      cudaRuntimeGetVersion (&runtime);
      fail (index, error,
            "the NVIDIA driver is too old: it runs CUDA %d.%d, and this build needs a driver for CUDA %d.%d",
            driver / 1000, driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10);
    }
  else if (status == cudaSuccess || status == cudaErrorNoDevice)
    fail (index, error, "there is no NVIDIA GPU%s%s%s", visible != NULL ? " (CUDA_VISIBLE_DEVICES is \"" : "",
          visible != NULL ? visible : "", visible != NULL ? "\")" : "");
  else
    {
      g_autofree char *reason = ebb_cuda_error_to_string (status);

      fail (index, error, "CUDA can't use the GPU: %s", reason);
    }
  return 0;
}

static gboolean
check_index (int index,
             GError **error)
{
  int n = count_devices (index, error);

  if (n == 0)
    return FALSE;
  if (index < n)
    return TRUE;
  if (n == 1)
    return fail (index, error, "there is one GPU, \"%s\"", EBB_CUDA_NAME);
  return fail (index, error, "there are %d GPUs, \"%s\" to \"%s:%d\"", n, EBB_CUDA_NAME, EBB_CUDA_NAME, n - 1);
}

static gboolean
read_attributes (EbbCudaDevice *device,
                 GError **error)
{
  int major = 0, minor = 0;

  if (cudaDeviceGetAttribute (&major, cudaDevAttrComputeCapabilityMajor, device->index) != cudaSuccess
      || cudaDeviceGetAttribute (&minor, cudaDevAttrComputeCapabilityMinor, device->index) != cudaSuccess
      || cudaDeviceGetAttribute (&device->n_multiprocessors, cudaDevAttrMultiProcessorCount, device->index)
             != cudaSuccess
      || cudaDeviceGetAttribute (&device->shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device->index)
             != cudaSuccess)
    return fail (device->index, error, "CUDA does not say what kind of GPU it is");
  device->architecture = major * 10 + minor;
  if (device->architecture < LEAST_ARCHITECTURE)
    return fail (device->index, error, "its compute capability is %d.%d; %d.%d (Ampere) or newer is needed", major,
                 minor, LEAST_ARCHITECTURE / 10, LEAST_ARCHITECTURE % 10);
  return TRUE;
}

/* With the device current: a build may have kernels for some GPUs alone. */
static gboolean
check_code (EbbCudaDevice *device,
            GError **error)
{
  const cudaError_t status = ebb_cuda_find_code ();

  if (status != cudaErrorNoKernelImageForDevice && status != cudaErrorInvalidDeviceFunction)
    return ebb_cuda_check (device, status, "finding its kernels", error);
  cudaGetLastError ();
  return fail (device->index, error,
               "this build has no kernels for compute capability %d.%d; build it with EBB_CUDA_ARCHITECTURES=80, or "
               "empty for all GPUs",
               device->architecture / 10, device->architecture % 10);
}

/* -- the driver ---------------------------------------------------------------------------------------------------- */

static gboolean
find_function (const char *name,
               void *function,
               int index,
               GError **error)
{
  return ebb_cuda_find_function (name, function)
         || fail (index, error, "the NVIDIA driver has no function %s; a driver for CUDA %d.%d or newer is needed",
                  name, LEAST_CUDA / 1000, LEAST_CUDA % 1000 / 10);
}

static gboolean
load_driver (int index,
             GError **error)
{
  EbbCudaDriver *driver = &ebb_cuda_driver;
  const struct
  {
    const char *name;
    void *function;
  } functions[] = {
    { "cuMemAddressReserve", &driver->mem_address_reserve },
    { "cuMemAddressFree", &driver->mem_address_free },
    { "cuMemCreate", &driver->mem_create },
    { "cuMemRelease", &driver->mem_release },
    { "cuMemMap", &driver->mem_map },
    { "cuMemUnmap", &driver->mem_unmap },
    { "cuMemSetAccess", &driver->mem_set_access },
    { "cuMemGetAllocationGranularity", &driver->mem_get_granularity },
    { "cuGetErrorName", &driver->get_error_name },
  };

  for (guint i = 0; i < G_N_ELEMENTS (functions); i++)
    if (!find_function (functions[i].name, functions[i].function, index, error))
      return FALSE;
  return TRUE;
}

/* -- settings ------------------------------------------------------------------------------------------------------ */

/* The memory that is free now, less a reserve for libraries; or EBB_CUDA_MEMORY. */
static gboolean
read_memory (EbbCudaDevice *device,
             GError **error)
{
  const char *value = g_getenv ("EBB_CUDA_MEMORY");
  size_t n_free = 0, total = 0;
  guint64 wanted;

  if (!ebb_cuda_check (device, cudaMemGetInfo (&n_free, &total), "asking for its memory", error))
    return FALSE;
  device->memory = total;
  device->capacity = n_free - MIN (n_free, MAX (BESIDE_LEAST, n_free / BESIDE_FRACTION));
  if (value != NULL && *value != '\0')
    {
      g_autofree char *shown = g_strescape (value, NULL);

      if (!ebb_cuda_host->parse_size (value, &wanted, NULL) || wanted < EBB_CUDA_ALIGNMENT)
        return fail (device->index, error,
                     "EBB_CUDA_MEMORY is \"%s\"; it must be a size from %d bytes on, as 1000000, 1500MB or 1.5GiB",
                     shown, EBB_CUDA_ALIGNMENT);
      if (wanted > total)
        return fail (device->index, error,
                     "EBB_CUDA_MEMORY is \"%s\", but the GPU has %" G_GSIZE_FORMAT " bytes", shown, (gsize) total);
      device->capacity = wanted;
    }
  device->capacity = device->capacity / EBB_CUDA_ALIGNMENT * EBB_CUDA_ALIGNMENT;
  if (device->capacity == 0)
    return fail (device->index, error,
                 "other processes have its memory: %" G_GSIZE_FORMAT " of %" G_GSIZE_FORMAT " bytes are free",
                 (gsize) n_free, (gsize) total);
  return TRUE;
}

static gboolean
read_tf32 (EbbCudaDevice *device,
           GError **error)
{
  const char *value = g_getenv ("EBB_CUDA_TF32");
  g_autofree char *shown = NULL;

  if (value == NULL || *value == '\0' || strcmp (value, "0") == 0)
    return TRUE;
  device->allows_tf32 = strcmp (value, "1") == 0;
  if (device->allows_tf32)
    return TRUE;
  shown = g_strescape (value, NULL);
  return fail (device->index, error,
               "EBB_CUDA_TF32 is \"%s\"; it must be 1 (products of f32 in TF32) or 0 (in full f32)", shown);
}

/* -- opening ------------------------------------------------------------------------------------------------------- */

static void
device_free (EbbCudaDevice *device)
{
  ebb_cuda_faults_clear (device);
  ebb_cuda_heap_clear (device);
  ebb_cuda_streams_clear (device);
  pthread_mutex_destroy (&device->faults.lock);
  pthread_mutex_destroy (&device->staging.lock);
  pthread_mutex_destroy (&device->lock);
  g_free ((char *) device->failure);
  g_free (device->name);
  g_free (device);
}

/* A child that was forked has the memory of this process, but CUDA does nothing for it. */
static void
lock_all (void)
{
  ebb_cuda_lock_host_memory ();
  for (int i = 0; i < EBB_CUDA_MAX_DEVICES; i++)
    if (ebb_cuda_device_get (i) != NULL)
      pthread_mutex_lock (&ebb_cuda_device_get (i)->lock);
}

static void
unlock_all (void)
{
  for (int i = 0; i < EBB_CUDA_MAX_DEVICES; i++)
    if (ebb_cuda_device_get (i) != NULL)
      pthread_mutex_unlock (&ebb_cuda_device_get (i)->lock);
  ebb_cuda_unlock_host_memory ();
}

static void
end_in_child (void)
{
  for (int i = 0; i < EBB_CUDA_MAX_DEVICES; i++)
    if (ebb_cuda_device_get (i) != NULL)
      ebb_cuda_device_end (ebb_cuda_device_get (i),
                           "%s does no work in this process: it was forked from the one that opened the GPU",
                           ebb_cuda_device_get (i)->name);
  unlock_all ();
}

static gboolean
device_init (EbbCudaDevice *device,
             GError **error)
{
  /* Makes the context. */
  return read_attributes (device, error) && read_tf32 (device, error)
         && ebb_cuda_check (device, cudaFree (NULL), "opening it", error) && load_driver (device->index, error)
         && read_memory (device, error) && ebb_cuda_streams_init (device, error) && check_code (device, error)
         && ebb_cuda_heap_init (device, device->capacity, error) && ebb_cuda_faults_init (device, error);
}

gboolean
ebb_cuda_device_open (int index,
                      GError **error)
{
  static gboolean watches_forks;
  EbbCudaDevice *device;
  int previous;
  gboolean ok;

  if (!check_driver (index, error) || !check_index (index, error))
    return FALSE;
  device = g_new0 (EbbCudaDevice, 1);
  device->index = index;
  device->name = index == 0 ? g_strdup (EBB_CUDA_NAME) : g_strdup_printf ("%s:%d", EBB_CUDA_NAME, index);
  pthread_mutex_init (&device->lock, NULL);
  pthread_mutex_init (&device->staging.lock, NULL);
  pthread_mutex_init (&device->faults.lock, NULL);
  previous = ebb_cuda_enter (index);
  ok = device_init (device, error);
  if (!ok)
    device_free (device);
  ebb_cuda_leave (previous);
  if (!ok)
    return FALSE;
  if (!watches_forks)
    pthread_atfork (lock_all, unlock_all, end_in_child);
  watches_forks = TRUE;
  /* Not amid a fork, which unlocks the devices that it locked. */
  ebb_cuda_lock_host_memory ();
  ebb_cuda_device_add (device);
  ebb_cuda_unlock_host_memory ();
  return TRUE;
}
