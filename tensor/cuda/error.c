/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Errors of CUDA, in one line each. Most concern one call. After a kernel that faults, though, CUDA does no more work
 * for this process: then the device has ended, and each later call reports the same line. */
#include "tensor/cuda/cuda-private.h"

const EbbBackendHost *ebb_cuda_host;
EbbCudaDriver ebb_cuda_driver;

char *
ebb_cuda_error_to_string (cudaError_t status)
{
  return g_strdup_printf ("%s (%s)", cudaGetErrorString (status), cudaGetErrorName (status));
}

char *
ebb_cuda_driver_error_to_string (CUresult result)
{
  const char *name = NULL;

  if (ebb_cuda_driver.get_error_name == NULL || ebb_cuda_driver.get_error_name (result, &name) != CUDA_SUCCESS
      || name == NULL)
    return g_strdup_printf ("error %d of the driver", (int) result);
  return g_strdup (name);
}

void
ebb_cuda_device_end (EbbCudaDevice *device,
                     const char *format,
                     ...)
{
  va_list arguments;
  char *text, *expected = NULL;

  va_start (arguments, format);
  text = g_strdup_vprintf (format, arguments);
  va_end (arguments);
  /* The first reason stays, for ever: others may be reading it. */
  if (!__atomic_compare_exchange_n (&device->failure, &expected, text, FALSE, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
    g_free (text);
}

gboolean
ebb_cuda_check_alive (const EbbCudaDevice *device,
                      GError **error)
{
  const char *failure = __atomic_load_n (&device->failure, __ATOMIC_ACQUIRE);

  return G_LIKELY (failure == NULL) || ebb_fail (error, EBB_ERROR_DEVICE, "%s", failure);
}

/* An error that CUDA forgets when it is asked for it was one call's own. One that comes back stays. */
static gboolean
is_sticky (EbbCudaDevice *device)
{
  cudaError_t status;

  cudaGetLastError ();
  status = cudaStreamQuery (device->streams[EBB_STREAM_COMPUTE].stream);
  if (status == cudaSuccess || status == cudaErrorNotReady)
    {
      cudaGetLastError ();
      return FALSE;
    }
  return TRUE;
}

gboolean
ebb_cuda_check (EbbCudaDevice *device,
                cudaError_t status,
                const char *what,
                GError **error)
{
  g_autofree char *reason = NULL;

  if (G_LIKELY (status == cudaSuccess))
    return TRUE;
  reason = ebb_cuda_error_to_string (status);
  if (is_sticky (device))
    {
      ebb_cuda_device_end (device,
                           "%s does no more work in this process: %s, seen at %s; start the program again "
                           "(CUDA_LAUNCH_BLOCKING=1 shows the kernel)",
                           device->name, reason, what);
      return ebb_cuda_check_alive (device, error);
    }
  return ebb_fail (error, EBB_ERROR_DEVICE, "%s: %s failed: %s", device->name, what, reason);
}
