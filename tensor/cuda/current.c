/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* The current device of a thread: CUDA keeps one for each thread, and other libraries of the process set it as well.
 *
 * A new thread's device is the first one, but the thread has no context. Most functions of the runtime make it one;
 * those of cuBLASLt may fail without. And since CUDA 12 a device that is made current gets a context, for which it
 * gives some hundred MiB: a process that uses another GPU must not go back to one that nobody uses. */
#include "tensor/cuda/current-private.h"

#include <pthread.h>
#include <string.h>

#define LEAST_CUDA 12000

typedef CUresult (*GetCurrentFunc) (CUcontext *context);
typedef CUresult (*GetStateFunc) (CUdevice device,
                                  unsigned int *flags,
                                  int *is_active);

static GetCurrentFunc get_current; /* atomic, as the next; NULL: not found */
static GetStateFunc get_state;

static void
find_functions (void)
{
  GetCurrentFunc current;
  GetStateFunc state;

  if (ebb_cuda_find_function ("cuCtxGetCurrent", &current))
    __atomic_store_n (&get_current, current, __ATOMIC_RELEASE);
  if (ebb_cuda_find_function ("cuDevicePrimaryCtxGetState", &state))
    __atomic_store_n (&get_state, state, __ATOMIC_RELEASE);
}

static gboolean
has_context (void)
{
  const GetCurrentFunc get = __atomic_load_n (&get_current, __ATOMIC_ACQUIRE);
  CUcontext context = NULL;

  return G_LIKELY (get != NULL) && get (&context) == CUDA_SUCCESS && context != NULL;
}

/* Somebody in this process has used that device. The driver numbers devices as the runtime does. */
static gboolean
is_in_use (int device)
{
  const GetStateFunc get = __atomic_load_n (&get_state, __ATOMIC_ACQUIRE);
  unsigned int flags = 0;
  int is_active = TRUE;

  return get == NULL || get (device, &flags, &is_active) != CUDA_SUCCESS || is_active;
}

int
ebb_cuda_enter (int index)
{
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  int current = 0;

  if (G_LIKELY (cudaGetDevice (&current) == cudaSuccess && current == index && has_context ()))
    return -1;
  cudaSetDevice (index);
  pthread_once (&once, find_functions);
  return current != index ? current : -1;
}

void
ebb_cuda_leave (int previous)
{
  if (G_UNLIKELY (previous >= 0) && is_in_use (previous))
    cudaSetDevice (previous);
}

gboolean
ebb_cuda_find_function (const char *name,
                        void *function)
{
  enum cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  void *address = NULL;
  cudaError_t status;

#if CUDART_VERSION >= 12050
  status = cudaGetDriverEntryPointByVersion (name, &address, LEAST_CUDA, cudaEnableDefault, &found);
#else
  status = cudaGetDriverEntryPoint (name, &address, cudaEnableDefault, &found);
#endif
  if (status != cudaSuccess || found != cudaDriverEntryPointSuccess || address == NULL)
    {
      cudaGetLastError ();
      return FALSE;
    }
  memcpy (function, &address, sizeof address);
  return TRUE;
}
